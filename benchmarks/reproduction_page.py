"""Write the tables of REPRODUCTION.md from the results in `results/`.

    python benchmarks/reproduction_page.py

DISAGREEMENTS in `reproduction_claims.py` must list exactly the claims that disagree, with their causes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmark_pages import markdown_table, replace_between
from fedgram._util.errors import InputError
from fedgram._util.text import describe_seeds
from fedgram.paper.claims import FACTORS
from fedgram.paper.networks import metrics
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.networks.results import Result, Results, RunKey
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies.registry import Study
from fedgram.paper.report.networks import NetworkChapter, load_results, make_chapters
from fedgram.runs.procedure import BIAS_RULES, Procedure
from reproduction_claims import AGREEMENTS, COVERAGE, DISAGREEMENTS, MAIN, Trained

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "REPRODUCTION.md"
AGENTS = {"swimmer": "Swimmer", "hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker": "Walker"}
TABULAR = {"beijing": "Beijing (REAL)", **AGENTS}
IMAGES = {"cifar-geo": "CIFAR-geo (REAL)", "dsprites": "sprites"}
BREAK = ",<br>"  # browsers would break a line within 1e-4
GROWN = 3.0  # last test error over that of the best round


def main() -> None:
    for name, text in tables().items():
        replace_between(PAGE, name, text)


def tables() -> dict[str, str]:
    """All generated parts of the page by the name of their markers."""
    results = load_results(ROOT / "results")
    chapters = load_chapters(results)
    claims = {claim["id"]: claim for chapter in chapters for claim in chapter.claims}
    # The reduced scale has the paper's protocol with E = 400.
    by_key = {run.key: run for run in results if run.scale != "smoke" and not run.larger}
    runs = list(by_key.values())
    return {
        "coverage": coverage(runs),
        "agreement": agreement(results, chapters),
        "agrees": agreeing(claims),
        "disagrees": disagreeing(claims),
        "seeds": second_seeds(runs),
        "solved": solved(runs),
        "biases": bias_rules(runs),
        "grown": grown_errors(runs),
        "cost": cost(runs),
    }


def coverage(runs: Sequence[Result]) -> str:
    """Seeds that have every run of a row, by setting."""
    settings = TABULAR | IMAGES
    rows = []
    for label, trained in COVERAGE.items():
        cells = [_common_seeds(runs, setting, trained) for setting in settings]
        rows.append((label, *(describe_seeds(seeds).split(" ", 1)[1] if seeds else "" for seeds in cells)))
    return markdown_table(("seeds that were run", *settings.values()), rows)


def agreement(results: Results, chapters: Sequence[NetworkChapter]) -> str:
    """Count runs and claims about networks, and the paper's numbers within several factors of ours."""
    claims = [claim for chapter in chapters for claim in chapter.claims]
    verdicts = Counter((claim["verdict"], claim.get("agrees")) for claim in claims)
    complete = sum(count for (verdict, _), count in verdicts.items() if verdict == "match")
    counts = [
        ("runs at the paper's scale", count_runs(chapters)),
        ("claims that match, with all runs", str(complete)),
        ("claims that agree so far", str(verdicts["partial", True])),
        ("claims that disagree so far", str(verdicts["partial", False])),
        ("claims that are missed", str(sum(n for (name, _), n in verdicts.items() if name == "miss"))),
    ]
    factors = [f"within {factor:.3g}" for factor in FACTORS]
    rows = [
        (row.label, str(len(row.ratios)), *map(str, row.counts))
        for row in measure_agreement(results)
        if row.ratios
    ]
    headings = ("numbers of the paper that depend on training", "compared", *factors)
    return f"{markdown_table(('networks', 'number'), counts)}\n{markdown_table(headings, rows)}"


def agreeing(claims: Mapping[str, Any]) -> str:
    """Medians beside the paper's, with how many of its runs ours have."""
    for name in (name for names in AGREEMENTS.values() for name in names):
        if not claims[name].get("agrees"):
            raise InputError(f"The claim '{name}' does not agree. Move it to DISAGREEMENTS.", field="claims")
    rows = [
        (label, *_compare([claims[name] for name in names]), _count_claimed(claims[names[0]]))
        for label, names in AGREEMENTS.items()
    ]
    return markdown_table(("quantity, medians", "ours", "paper", "our runs"), rows)


def disagreeing(claims: Mapping[str, Any]) -> str:
    """Claims that disagree or are missed, by cause."""
    found = {name for name, claim in claims.items() if claim.get("agrees") is False}
    listed = {name for each in DISAGREEMENTS.values() for name in each.claims}
    if found != listed:
        names = ", ".join(sorted(found ^ listed))
        raise InputError(f"DISAGREEMENTS and the claims that disagree differ in: {names}.", field="claims")
    rows = [
        (
            what,
            str(len(each.claims)),
            *_compare([claims[name] for name in each.claims[: each.shown]]),
            each.cause,
        )
        for what, each in DISAGREEMENTS.items()
    ]
    return markdown_table(("what", "claims", "ours", "paper", "cause"), rows)


def second_seeds(runs: Sequence[Result]) -> str:
    """Endpoint errors of seeds 0 and 1, and the largest factors between them."""
    rows, factors = [], {}
    for name in MAIN:
        cells = []
        for setting, title in TABULAR.items():
            pair = [_endpoints(runs, (setting,), name, seeds=(seed,))[0] for seed in (0, 1)]
            cells.append(BREAK.join(map(_format, pair)))
            factors[f"{name.replace('+', ', ')} on {title.removesuffix(' (REAL)')}"] = max(pair) / min(pair)
        rows.append((f"{name.replace('+', ', ')}, to the {_target(name)}", *cells))
    (first, largest), (second, next_largest), *_ = sorted(factors.items(), key=lambda item: -item[1])
    return (
        f"{markdown_table(('endpoint error, seeds 0 and 1', *TABULAR.values()), rows)}\nThe largest factors "
        f"between two seeds are {largest:.1f} ({first}) and {next_largest:.1f} ({second}).\n"
    )


def solved(runs: Sequence[Result]) -> str:
    """Endpoint errors of solved returns beside all other procedures."""
    kinds = {
        "solved, to the barycenter": (("solved",), 4000),
        "corrected solved, to the centralized Gram": (("solved+corrected",), 4000),
        "solved, E = 400, to the barycenter": (("solved",), 400),
        "ordinary, proximal, aligned, corrected: E = 400": ((*MAIN, "aligned"), 400),
    }
    groups = {"four agents": tuple(AGENTS), "Beijing (REAL)": ("beijing",)}
    groups |= {title: (setting,) for setting, title in IMAGES.items()}
    rows = []
    for label, (procedures, epochs) in kinds.items():
        found = [
            [error for name in procedures for error in _endpoints(runs, settings, name, epochs)]
            for settings in groups.values()
        ]
        rows.append((label, *map(_format_range, found)))
    return markdown_table(("endpoint error", *groups), rows)


def bias_rules(runs: Sequence[Result]) -> str:
    """Test errors at E = 400 under each bias rule: the range over procedures."""
    rows = []
    for setting, title in (TABULAR | IMAGES).items():
        own = [run for name in (*MAIN, "aligned") for run in _select(runs, setting, name, 400)]
        last = np.array([run.test_mse[-1] for run in own])
        rows.append((title, *(_format_range(errors) for errors in last.T.tolist())))
    return markdown_table(("test MSE, E = 400", *(f"{rule} bias" for rule in BIAS_RULES)), rows)


def grown_errors(runs: Sequence[Result]) -> str:
    """Sentence about runs whose last test error is far above their best."""
    rule = BIAS_RULES.index("private")
    errors = {
        run.key: run.test_mse[:, rule]
        for run in runs
        if run.epochs == 4000 and run.rounds == 8 and not run.procedure.centralized
    }
    grown = {key: each[-1] > GROWN * each.min() for key, each in errors.items() if np.isfinite(each).all()}
    beijing = [value for key, value in grown.items() if key.setting == "beijing"]
    return (
        f"With private biases, the last test error is more than {GROWN:g} times that of the best round in "
        f"{sum(grown.values())} of {len(grown)} federated runs (E = 4000), on Beijing in {sum(beijing)} of "
        f"{len(beijing)}.\n"
    )


def cost(runs: Sequence[Result]) -> str:
    """Seconds of a run, which depend on how many models are trained at once."""
    rows = []
    for setting, title in (TABULAR | IMAGES).items():
        epochs = 400 if setting in IMAGES else 4000
        own = [run for run in runs if (run.setting, run.epochs, run.rounds) == (setting, epochs, 8)]
        pooled = [run.seconds for run in own if run.procedure.centralized]
        shared = [run for run in own if not run.procedure.centralized]
        models = {run.models_in_stack for run in shared}
        rows.append(
            (
                title, str(epochs), _format_whole([run.seconds for run in shared]),
                _format_whole(models), _format_whole(pooled),
            )
        )  # fmt: skip
    return markdown_table(("", "E", "seconds per run", "models at once", "centralized"), rows)


def load_chapters(results: Results) -> list[NetworkChapter]:
    """Chapters of the paper's experiments."""
    return [chapter for chapter in make_chapters(results) if chapter.study.where != "ours"]


def count_runs(chapters: Sequence[NetworkChapter]) -> str:
    """Count the paper's runs that are done, of all."""
    done = {run.key for chapter in chapters for run in chapter.results.get("paper", ())}
    wanted = {key for chapter in chapters for key in _list_wanted(chapter.study)}
    return f"{len(done)} of {len(wanted)}"


def _list_wanted(study: Study) -> list[RunKey]:
    sources = {variety: Source("any") for variety in study.varieties}
    return study.keys(SCALES["paper"], sources)


def _common_seeds(runs: Sequence[Result], setting: str, trained: Trained) -> set[int]:
    """Seeds with all procedures and epochs."""
    found = [
        {run.seed for run in _select(runs, setting, name, epochs, trained.rounds)}
        for name, epochs in product(trained.procedures, trained.epochs)
    ]
    return set.intersection(*found)


def _endpoints(
    runs: Sequence[Result],
    settings: Iterable[str],
    procedure: str,
    epochs: int = 4000,
    seeds: Sequence[int] = (),
) -> list[float]:
    """Endpoint errors of a procedure to its own target; all seeds by default."""
    return [
        metrics.endpoint(run)
        for setting in settings
        for run in _select(runs, setting, procedure, epochs)
        if not seeds or run.seed in seeds
    ]


def _select(
    runs: Sequence[Result], setting: str, procedure: str, epochs: int, rounds: int = 8
) -> list[Result]:
    wanted = (setting, Procedure.parse(procedure), epochs, rounds)
    return [run for run in runs if (run.setting, run.procedure, run.epochs, run.rounds) == wanted]


def _target(procedure: str) -> str:
    return "centralized Gram" if "corrected" in procedure else "barycenter"


def _compare(claims: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Our values and the paper's, two digits each."""
    ours, papers = (BREAK.join(_shorten(str(claim[name])) for claim in claims) for name in ("ours", "paper"))
    return ours, "holds" if papers in ("always", "overall") else papers


def _shorten(text: str) -> str:
    """Round the numbers of a text to two digits."""
    return re.sub(
        r"\d[\d,]*\.?\d*(e[-+]?\d+)?", lambda found: _format(float(found[0].replace(",", ""))), text
    )


def _format(value: float) -> str:
    """Two digits: 1,000, 0.29, 9.3e-5."""
    if value >= 0.01:
        return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}"


def _count_claimed(claim: Mapping[str, Any]) -> str:
    """How many of the paper's runs a claim has: '10 of 50', or 'all'."""
    found = re.match(r"(\d+ of \d+) runs", claim["reason"])
    return found[1] if found else "all"


def _format_range(values: Collection[float]) -> str:
    """Two digits of the smallest and the largest value; empty without any."""
    return " to ".join(dict.fromkeys(map(_format, _find_ends(values))))


def _format_whole(values: Collection[float]) -> str:
    return " to ".join(dict.fromkeys(f"{each:.0f}" for each in _find_ends(values)))


def _find_ends(values: Collection[float]) -> tuple[float, ...]:
    return (min(values), max(values)) if values else ()


if __name__ == "__main__":
    main()
