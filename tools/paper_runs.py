"""Train the paper's missing network runs in portions of GPU time, ordered by what each part decides.

    python tools/paper_runs.py --list
    python tools/paper_runs.py --minutes 28

Each entry of QUEUE is a part of `fedgram reproduce networks`, some with the pre-activated ResMLP, whose
ordinary training agrees with the paper's (docs/drift.md). Finished runs are skipped, and a run that is
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
    """A part of experiments and the question that it decides; an empty tuple selects everything."""

    question: str
    studies: tuple[str, ...]
    settings: tuple[str, ...]
    procedures: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    scale: str = "paper"
    backbones: tuple[str, ...] = ()

    def remaining(self, out: Path, data_dir: Path | None) -> str:
        """Describe what is left to train, or why it cannot be trained."""
        request = Request(
            out, get_scale(self.scale), settings=self.settings, procedures=self.procedures,
            seeds=self.seeds, epochs=self.epochs, backbones=self.backbones, data_dir=data_dir,
        )  # fmt: skip
        try:
            plans = plan_experiments(
                [STUDIES[name] for name in self.studies], request, load_and_collect(request)
            )
        except InputError as error:
            return f"Not possible: {error}"
        return str(estimate_cost(key for plan in plans for key in plan.missing))

    def command(self, out: Path, data_dir: Path | None) -> list[str]:
        """Return the command that trains what is left."""
        options = {
            "--scale": self.scale,
            "--setting": ",".join(self.settings),
            "--procedure": ",".join(self.procedures),
            "--seeds": "".join(f"{seed}," for seed in self.seeds),
            "--epochs": ",".join(map(str, self.epochs)),
            "--backbone": ",".join(self.backbones),
            "--out": str(out),
            "--data-dir": str(data_dir or ""),
            # fp16 takes less time, but three of twelve runs on Beijing overflowed: docs/speed.md
            "--precision": "fp16" if set(self.settings) <= set(IMAGES) else "tf32",
        }
        words = [word for option, value in options.items() if value for word in (option, value)]
        return ["reproduce", "networks", *self.studies, *words]


BOTH = ("dnn-main", "dnn-alignment")
MAIN = ("ordinary", "proximal", "corrected", "proximal+corrected", "aligned")
STARTS = ("independent", "aligned+independent")
RETURNS = ("aligned", "solved")
DEEPER = ("dnn-architecture",)
PREACTIVATED = "preactivated"
QUEUE = [
    Part("Do images drift as tables do?", ("dnn-main",), ("cifar-geo",), ("ordinary",), seeds=(0,)),
    Part("Is it so with fewer epochs?", ("dnn-main", "beyond-solved"), IMAGES, seeds=(0,), epochs=(1000,)),
    Part("Does correction help aligned returns?", ("dnn-alignment",), TABLES[:4]),
    Part("Do five seeds of our returns agree?", ("beyond-solved",), TABLES, RETURNS, epochs=(4000,)),
    Part("Do images at the full protocol agree?", ("dnn-main",), ("cifar-geo",), seeds=(0,)),
    Part("Do deeper networks agree on images?", DEEPER, IMAGES, scale="reduced", backbones=("resnet34",)),
    Part("Do residual CNNs?", DEEPER, IMAGES, ("ordinary",), scale="reduced", backbones=("residual-cnn",)),
    Part("Where do pre-activated blocks agree?", BOTH, TABLES, MAIN, seeds=(0,), scale=PREACTIVATED),
    Part("After how many epochs?", ("dnn-epochs",), TABLES, seeds=(0,), scale=PREACTIVATED),
    Part("Do independent starts agree?", ("dnn-alignment",), TABLES[:4], STARTS, scale=PREACTIVATED),
    Part("Does full-model averaging jump in other settings?", ("dnn-full-model",), TABLES),
    Part("Do three seeds change the verdicts?", BOTH, TABLES, MAIN, seeds=(0, 1, 2), scale=PREACTIVATED),
    Part("Do sprites at the full protocol agree?", ("dnn-main",), ("dsprites",), seeds=(0,)),
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
