"""The paper's tables about networks as data, ours computed beside each number, and tables of ours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import FIVE, START_PAIRS, THREE, WEIGHTS, Cohort, proximal
from fedgram.paper.networks.figures_runs import PREDICTING, corrected
from fedgram.paper.networks.findings import (
    closer_in_direction,
    direction,
    endpoint,
    error,
    last_delta,
    objective_gap,
    test_mse,
    train_mse,
    trajectory,
)
from fedgram.paper.networks.settings import ALL
from fedgram.paper.networks.shown import TITLES
from fedgram.paper.networks.tables_cells import (
    Column,
    Row,
    SideBySide,
    change_of,
    gpu_seconds,
    late_test_mse,
    per_run,
    removed_share,
)
from fedgram.runs.procedure import BIAS_RULES

PAPER_HOURS, PAPER_RUNS = 1_415, 764
"""GPU-hours of the paper's network experiments, and of how many runs (Appendix E, Compute)."""


def _alone(setting: str, seeds: tuple[int, ...]) -> Cohort:
    return Cohort((setting,), seeds, ())


ENDPOINT, TRAJECTORY = (
    Column("endpoint e_F", per_run(endpoint)),
    Column("trajectory e_F", per_run(trajectory)),
)
DELTA = Column("δ_last", per_run(last_delta))
TURNED, FIRST, LAST = (
    Column("corrected: round 1 d", per_run(direction("centralized", 1))),
    Column("corrected: round 1 e_F", per_run(error("centralized", 1))),
    Column("corrected: last e_F", per_run(endpoint)),
)
ERRORS = (
    Column("e_F to G⋆", per_run(error("barycenter"))),
    Column("e_F to G_cen", per_run(error("centralized"))),
)
DIRECTIONS = (
    Column("d to G⋆", per_run(direction("barycenter"))),
    Column("d to G_cen", per_run(direction("centralized"))),
    Column("closer to G⋆", per_run(lambda run: float(closer_in_direction(run))), "percent", np.mean),
)
TARGETS = "Medians over runs. Without correction errors are to G⋆, with it to G_cen."
TRAJECTORIES = f"{TARGETS} Trajectory errors are to the exact recursion from the same start."
SAME = (
    "All rows are over the same settings and seeds, those that every row has of which any were run; over all "
    "that was run where they share none."
)
ROBUSTNESS = "Median direction errors, and the share of runs closer in direction to G⋆ than to G_cen."

SELECTION = SideBySide(
    "Selection and moment correction", "Table 4", f"{TRAJECTORIES} {SAME}",
    ((ENDPOINT, TRAJECTORY, DELTA), (TURNED, FIRST, LAST)),
    (
        Row("ordinary", ((cohorts.MAIN, "ordinary"), (cohorts.MAIN, "corrected")),
            (1.63e-2, 3.44e-2, 1.85e-1, 8.35e-2, 3.08e-1, 5.06e-3)),
        Row("proximal", ((cohorts.MAIN, "proximal"), (cohorts.MAIN, "proximal+corrected")),
            (2.90e-4, 3.39e-4, 4.47e-3, 4.21e-3, 2.29e-2, 7.08e-5)),
    ),
)  # fmt: skip

WEIGHT_NUMBERS = (
    (1.91e-1, 1.43e-5, 1.71e-2), (1.19e-1, 1.49e-5, 7.38e-3), (3.73e-2, 1.53e-5, 9.14e-4),
    (5.33e-3, 4.05e-5, 3.08e-4), (3.31e-2, 1.40e-3, 4.17e-3), (1.32e-1, 1.81e-2, 4.26e-2),
    (3.56e-1, 1.57e-1, 3.80e-1),
)  # fmt: skip
WEIGHT = SideBySide(
    "Proximal weight and local fitting", "Table 5", f"{TARGETS} {SAME}",
    ((DELTA, Column("relative gap of the objective", per_run(objective_gap)), ENDPOINT),),
    tuple(
        Row(f"ρ = {weight:g}", ((cohorts.RHO, proximal(weight)),), numbers)
        for weight, numbers in zip(WEIGHTS, WEIGHT_NUMBERS, strict=True)
    ),
)  # fmt: skip

ALIGNMENT = SideBySide(
    "Alignment, proximal and ordinary training", "Table 6", f"{TRAJECTORIES} {SAME}",
    ((DELTA, TRAJECTORY, ENDPOINT), (FIRST, LAST)),
    tuple(
        Row(name, ((cohorts.ALIGNMENT, name), (cohorts.ALIGNMENT_CORRECTED, corrected(name))), numbers)
        for name, numbers in (
            ("ordinary", (1.87e-1, 6.75e-2, 1.86e-2, 5.20e-1, 7.07e-3)),
            ("proximal", (6.35e-3, 3.63e-4, 3.24e-4, 2.38e-2, 7.06e-5)),
            ("aligned", (1.54e-4, 1.12e-4, 1.10e-4, 8.38e-5, 6.27e-5)),
        )
    ),
)  # fmt: skip

MISMATCH_NUMBERS = (
    (0.157, 0.154),
    (0.101, 0.105),
    (0.177, 0.181),
    (0.236, 0.237),
    (0.046, 0.060),
    (0.070, 0.083),
)
MISMATCH = SideBySide(
    "Cost of mismatched coordinates in one averaging", "Table 7",
    "Median share of the objective that alignment removes, by the clients' initial backbones, over pairs of "
    "runs.",
    (tuple(Column(start, removed_share(start), "percent") for start in START_PAIRS),),
    tuple(
        Row(TITLES[setting], ((_alone(setting, FIVE), ""),), numbers)
        for setting, numbers in zip(cohorts.ALIGNED, MISMATCH_NUMBERS, strict=True)
    ),
)  # fmt: skip

ARCHITECTURE = SideBySide(
    "Architecture and data size", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Row("residual CNN", ((cohorts.ARCHITECTURE, cohorts.CNN),), (1.45e-2, 5.24e-1, 1.0)),
        Row("residual CNN, corrected", ((cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),),
            (5.05e-1, 1.93e-3, 0.0)),
        Row("ResNet-34", ((cohorts.ARCHITECTURE, cohorts.RESNET34),), (1.29e-2, 5.19e-1, 1.0)),
        Row("larger data, E = 1000", ((cohorts.LARGER_DATA, cohorts.LARGER),), (9.55e-3, 5.63e-1, 1.0)),
    ),
)  # fmt: skip

FULL_MODEL = SideBySide(
    "Full-model averaging", "Table 8", ROBUSTNESS, (DIRECTIONS,),
    (
        Row("E = 400", ((cohorts.FULL_MODEL, cohorts.FULL_SHORT),), (4.41e-1, 1.82e-1, 0.27)),
        Row("E = 4000", ((cohorts.FULL_MODEL, cohorts.FULL),), (2.14e-2, 6.20e-1, 1.0)),
        Row("E = 4000, corrected", ((cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),), (6.22e-1, 8.08e-3, 0.0)),
    ),
)  # fmt: skip

CHANGES = (
    Column("change of train MSE", change_of(train_mse), "percent"),
    Column("change of test MSE", change_of(test_mse), "percent"),
)
PREDICTION = SideBySide(
    "Geometry and prediction under one recipe", "Table 9",
    "Medians; changes are against ordinary training of the same setting and seed.",
    ((*ERRORS, *CHANGES),),
    tuple(
        Row(name, ((cohorts.PREDICTION, name),), numbers)
        for name, numbers in (
            ("ordinary", (1.37e-2, 5.04e-1, None, None)),
            ("proximal", (1.54e-4, 4.96e-1, -0.002, -0.001)),
            ("proximal+corrected", (6.23e-1, 7.03e-5, -0.020, -0.015)),
        )
    ),
)  # fmt: skip

SELECTING = ("ordinary", "proximal", "aligned", "solved")
BOTH = (*SELECTING, *map(corrected, SELECTING))
ENDPOINTS = SideBySide(
    "Endpoints in every setting", "ours", f"{TARGETS} The paper gives no numbers by setting.",
    tuple((Column(name, per_run(endpoint)),) for name in BOTH),
    tuple(
        Row(TITLES[each], tuple((_alone(each, THREE), name) for name in BOTH), (None,) * len(BOTH))
        for each in ALL
    ),
)  # fmt: skip
COSTS = SideBySide(
    "GPU-seconds of a run", "ours",
    "Medians over runs that a GPU trained at the paper's scale. Runs of one stack share its time equally, so "
    f"columns that one stack trained are the same. The paper's {PAPER_RUNS} runs of all settings and budgets "
    f"took an estimated {PAPER_HOURS:,} hours of GH200 GPUs (Appendix E, Compute): "
    f"{3600 * PAPER_HOURS / PAPER_RUNS:,.0f} s a run on average, images included.",
    tuple((Column(name, gpu_seconds, "seconds"),) for name in SELECTING),
    tuple(
        Row(label, tuple((Cohort(settings, THREE, ()), name) for name in SELECTING), (None,) * len(SELECTING))
        for label, settings in (("all settings", ALL), *((TITLES[each], (each,)) for each in ALL))
    ),
)  # fmt: skip


def _test_errors(rule: str) -> SideBySide:
    return SideBySide(
        f"Test error with the {rule} bias", "ours",
        "Test MSE, median over runs and the last half of their rounds. The figure has the range: where it "
        "is wide, some rounds were accidents. Centralized training has no clients: every rule is the same.",
        tuple((Column(name, late_test_mse(rule), "plain"),) for name in PREDICTING),
        tuple(
            Row(TITLES[each], tuple((_alone(each, THREE), name) for name in PREDICTING),
                (None,) * len(PREDICTING))
            for each in ALL
        ),
    )  # fmt: skip


TABLES: dict[str, Sequence[SideBySide]] = {
    "beyond-solved": (ENDPOINTS, COSTS),
    "beyond-prediction": tuple(map(_test_errors, BIAS_RULES)),
    "dnn-main": (SELECTION,),
    "dnn-rho": (WEIGHT,),
    "dnn-alignment": (ALIGNMENT, MISMATCH),
    "dnn-architecture": (ARCHITECTURE,),
    "dnn-full-model": (FULL_MODEL,),
    "dnn-prediction": (PREDICTION,),
}
"""Tables by the name of their experiment."""
