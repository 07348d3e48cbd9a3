"""Describe the runs in a figure: data, scale, epochs, rounds and seeds."""

from __future__ import annotations

from collections.abc import Iterable

from fedgram._util.text import pluralize
from fedgram.paper.networks.comparable import KINDS, TITLES
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import ALL


def describe_runs(runs: Iterable[Result]) -> list[str]:
    """Describe runs in lines: kind of data, stand-ins, scale, epochs, rounds and seeds."""
    by_setting: dict[str, list[Result]] = {}
    for run in sorted(runs, key=lambda run: ALL.index(run.setting)):
        by_setting.setdefault(run.setting, []).append(run)
    titles: dict[tuple[str, str, str], list[str]] = {}
    for setting, group in by_setting.items():
        kinds = " and ".join(kind for kind in KINDS if any(run.kind == kind for run in group))
        stand_in = "" if group[0].dataset == setting else f"{group[0].dataset} for "
        protocol = f"{group[0].scale} scale, {describe_epochs(group)}, {_rounds(group)}, {_seeds(group)}"
        titles.setdefault((kinds, stand_in, protocol), []).append(TITLES[setting])
    return [
        f"{kinds} data: {stand_in}{', '.join(names)} ({protocol})"
        for (kinds, stand_in, protocol), names in titles.items()
    ] or ["not run"]


def describe_epochs(runs: Iterable[Result]) -> str:
    """'E = 400', 'E = 400 and 4000', or 'E = 50 to 4000' for more than two."""
    epochs = sorted({run.epochs for run in runs})
    between = " and " if len(epochs) == 2 else " to "
    return f"E = {between.join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))}"


def _rounds(runs: list[Result]) -> str:
    """Number of rounds; independent starts apart, because the paper needs only their first round."""
    common = {run.rounds for run in runs if not run.procedure.independent}
    independent = {run.rounds for run in runs if run.procedure.independent} - common
    parts = [pluralize(max(common), "round")] if common else []
    return ", ".join(
        [*parts, *(f"{pluralize(each, 'round')} from independent starts" for each in independent)]
    )


def _seeds(runs: list[Result]) -> str:
    """Number of seeds, and the fewest of any condition."""
    conditions: dict[tuple[object, ...], set[int]] = {}
    for run in runs:
        condition = (run.procedure, run.backbone, run.epochs, run.rounds, run.larger)
        conditions.setdefault(condition, set()).add(run.seed)
    seeds, fewest = set().union(*conditions.values()), min(map(len, conditions.values()))
    return pluralize(len(seeds), "seed") + (f", of some {fewest}" if fewest < len(seeds) else "")
