"""Train the paper's missing network runs in portions of GPU time, ordered by what each part decides.

    python tools/paper_runs.py --list
    python tools/paper_runs.py --minutes 28

Each entry of QUEUE is a part of `fedgram reproduce networks`. Finished runs are skipped, and a run that is
stopped when the time is over continues after its last round next time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram.paper.launch.launch import load_and_collect
from fedgram.paper.launch.plan import Request, estimate_cost, plan_experiments
from fedgram.paper.networks.scales import get_scale
from fedgram.paper.networks.studies.registry import STUDIES

AGENTS = ("swimmer", "hopper", "halfcheetah", "walker")
TABLES = ("beijing", *AGENTS)
IMAGES = ("cifar-geo", "dsprites")


@dataclass(frozen=True)
class Part:
    """A part of an experiment and the question that it decides; an empty tuple selects everything."""

    question: str
    study: str
    settings: tuple[str, ...]
    procedures: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()

    def remaining(self, out: Path, data_dir: Path | None) -> str:
        """Describe what is left to train, or why it cannot be trained."""
        request = Request(
            out, get_scale("paper"), settings=self.settings, procedures=self.procedures,
            seeds=self.seeds, epochs=self.epochs, data_dir=data_dir,
        )  # fmt: skip
        try:
            (plan,) = plan_experiments([STUDIES[self.study]], request, load_and_collect(request))
        except InputError as error:
            return f"Not possible: {error}"
        return str(estimate_cost(plan.missing))

    def command(self, out: Path, data_dir: Path | None) -> list[str]:
        """Return the command that trains what is left."""
        options = {
            "--setting": ",".join(self.settings),
            "--procedure": ",".join(self.procedures),
            "--seeds": "".join(f"{seed}," for seed in self.seeds),
            "--epochs": ",".join(map(str, self.epochs)),
            "--out": str(out),
            "--data-dir": str(data_dir or ""),
            # fp16 takes less time, but three of twelve runs on Beijing overflowed: docs/speed.md
            "--precision": "fp16" if self.settings == IMAGES else "tf32",
        }
        words = [word for option, value in options.items() if value for word in (option, value)]
        return ["reproduce", "networks", self.study, *words]


QUEUE = [
    Part(
        "Does alignment remove as much from independent as from common starts?", "dnn-alignment",
        ("swimmer", "halfcheetah", "beijing"), procedures=("independent", "aligned+independent"),
    ),
    Part("Does the shared bias cause the drift?", "dnn-means", ("hopper", "swimmer", "beijing")),
    Part("Do images drift as tables do?", "beyond-solved", IMAGES, seeds=(0,), epochs=(1000,)),
    Part("Do five seeds change the verdicts on agents?", "dnn-main", AGENTS),
    Part("Do five seeds change the verdicts on real data?", "dnn-main", ("beijing",)),
    Part("Do more seeds change what alignment does?", "dnn-alignment", TABLES[:4]),
    Part(
        "Do more seeds change what solved returns reach?", "beyond-solved", TABLES,
        procedures=("solved",), epochs=(4000,),
    ),
    Part("Where does full-model averaging end at E = 4000?", "dnn-full-model", TABLES),
    Part(
        "Which proximal weight is best in other settings?", "dnn-rho",
        ("swimmer", "halfcheetah", "walker"), seeds=(0,),
    ),
    Part("Do other networks agree on images?", "dnn-architecture", IMAGES, seeds=(0,)),
    Part("Do images at the full protocol agree?", "dnn-main", IMAGES, seeds=(0,)),
]  # fmt: skip


def main() -> None:
    """Train the queue until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=28.0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--list", action="store_true", help="print what is left, and train nothing")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    for part in QUEUE:
        left, command = part.remaining(given.out, given.data_dir), part.command(given.out, given.data_dir)
        print(f"{part.question}\n  {left}\n  fedgram {' '.join(command)}", flush=True)
        if given.list or left.startswith(("nothing", "Not possible")):
            continue
        try:
            subprocess.run([sys.executable, "-m", "fedgram", *command], timeout=end - time.monotonic())
        except subprocess.TimeoutExpired:
            print("The time is over. Run the same command again to continue.")
            return


if __name__ == "__main__":
    main()
