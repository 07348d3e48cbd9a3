"""Selection and moment correction in networks: Figures 3, 4 and 9 to 11 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedgram._util.text import describe_seeds
from fedgram.display.plotting import GREEN, INK
from fedgram.paper.claims import Measurement
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import MAIN
from fedgram.paper.networks.comparable import TITLES, ComparableRuns, Row
from fedgram.paper.networks.metrics import (
    Findings,
    Found,
    Metric,
    closer_in_direction,
    direction,
    endpoint,
    error,
    last_delta,
    medians,
    smaller,
    trajectory,
)
from fedgram.paper.networks.panels import (
    CEN,
    LOOKS,
    REFERENCE_COLOURS,
    STAR,
    WIDTH,
    Limits,
    below,
    error_limits,
    finish,
    line,
    outline,
    over_rounds,
    planes,
    reach_of,
    round_curve,
    setting_panels,
    square,
    widest_plane,
)
from fedgram.paper.networks.provenance import corrected
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import ALL, IMAGES, SETTINGS, TABULAR
from fedgram.paper.plots import not_run, shades
from fedgram.theory.penalty import Penalty

# Both have one colour here, in which a cross is seen under a diamond only if its arms reach out.
CURVES = {
    "ordinary": LOOKS["ordinary"].open | {"ms": 6.0, "lw": 0.8},
    "proximal": LOOKS["proximal"].open | {"ms": 4.0, "lw": 0.8},
}
PARTS = {"tabular": TABULAR, "images": IMAGES}
SHOWN_ROUNDS = (0, 1, 2, -1)
EXAMPLE = "mpiigaze"


def draw_main(results: Results) -> dict[str, Any]:
    """All figures of the main experiments by name."""
    shown = ComparableRuns.from_results(results).same_seeds(
        [condition.procedure for condition in MAIN.conditions]
    )
    selection = {
        f"{procedure}-{part}": draw_selection(shown, procedure, settings)
        for procedure in ("proximal", "ordinary")
        for part, settings in PARTS.items()
    }
    single = {f"example-{setting}": draw_setting(shown, setting) for setting in _examples(shown)}
    return selection | single | {"comparison": draw_comparison(shown)}


def draw_selection(shown: ComparableRuns, procedure: str, settings: Sequence[str]) -> Any:
    """A procedure with and without correction, a setting in a row: errors over rounds, and final Grams.

    Figures of ordinary and of proximal training have the same axes, so that they can be compared.
    """
    from matplotlib import pyplot as plt

    groups = {setting: _with_and_without(shown, setting, procedure) for setting in settings}
    heights = [1.5 if runs else 0.7 for runs in groups.values()]
    figure, axes = plt.subplots(
        len(settings),
        4,
        figsize=(WIDTH, sum(heights) + 1),
        width_ratios=[2.1, 1, 1, 1],
        height_ratios=heights,
    )
    limits = error_limits(_groups(shown, settings))
    for (errors, *grams), (setting, runs) in zip(axes, groups.items(), strict=True):
        _errors(errors, shown, setting, procedure, limits)
        _planes(grams, runs, _all_four(shown, setting))
    axes[-1, 0].set_xlabel("round")
    drawn = [run for runs in groups.values() for run in runs]
    return finish(figure, drawn, _selection_handles(), columns=2)


def draw_setting(shown: ComparableRuns, setting: str) -> Any:
    """One setting as the paper shows MPIIGaze: Grams of one seed over rounds, errors of all procedures."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 3.6), width_ratios=[1, 1, 1.2])
    groups = [shown.runs(setting, name)[:1] for name in ("proximal", corrected("proximal"))]
    both = [run for group in groups for run in group]
    for axis, first, title in zip(axes, groups, ("proximal", "proximal, corrected"), strict=False):
        _gram_evolution(axis, first, both)
        axis.set_title(f"{TITLES[setting]}, {title}")
    _compared(axes[2], shown, setting, None)
    axes[2].set(xlabel="round", ylabel="$e_F$ to the target", title=_seeds_in_title(shown, setting))
    note = "" if setting == EXAMPLE else f"The paper shows {TITLES[EXAMPLE]}; this is {TITLES[setting]}."
    return finish(figure, _all_four(shown, setting), _comparison_handles(), columns=2, note=note)


def draw_comparison(shown: ComparableRuns) -> Any:
    """Ordinary beside proximal training, against the target of each: all settings on the same axes."""
    figure, axes = setting_panels(shown.settings, 1.65, sharex=True, sharey=True)
    for setting, axis in axes.items():
        _compared(axis, shown, setting, error_limits(_groups(shown, ALL)))
    below(axes, "round")
    figure.supylabel("$e_F$ to the target", fontsize=8)
    drawn = [run for group in _groups(shown, ALL) for run in group]
    return finish(figure, drawn, _comparison_handles(), columns=2, note=shown.left_out)


def _examples(shown: ComparableRuns) -> list[str]:
    """The settings that ran, the paper's example first; it alone where none did."""
    ran = [setting for setting in ALL if shown.runs(setting, "proximal")]
    return sorted(ran, key=lambda setting: setting != EXAMPLE) or [EXAMPLE]


def _seeds_in_title(shown: ComparableRuns, setting: str) -> str:
    """What the error curves of a setting are: those of one seed, or means over several."""
    seeds = {run.seed for run in _all_four(shown, setting)}
    if len(seeds) == 1:
        return f"errors, {describe_seeds(seeds)}"
    return f"mean ± deviation, {len(seeds)} seeds"


def _with_and_without(shown: ComparableRuns, setting: str, procedure: str) -> list[Result]:
    return shown.runs(setting, procedure) + shown.runs(setting, corrected(procedure))


def _all_four(shown: ComparableRuns, setting: str) -> list[Result]:
    return [run for procedure in CURVES for run in _with_and_without(shown, setting, procedure)]


def _groups(shown: ComparableRuns, settings: Sequence[str]) -> list[list[Result]]:
    """The runs of each of the four procedures in each setting."""
    procedures = [name for each in CURVES for name in (each, corrected(each))]
    return [shown.runs(setting, name) for setting in settings for name in procedures]


def _errors(axis: Any, shown: ComparableRuns, setting: str, procedure: str, limits: Limits) -> None:
    """e_F to both references over rounds, dashed with correction."""
    axis.set_title(TITLES[setting])
    for name, style in ((procedure, "-"), (corrected(procedure), "--")):
        for reference in REFERENCE_COLOURS:
            round_curve(axis, shown.runs(setting, name), reference, ls=style)
    if axis.lines:
        over_rounds(axis, limits)
        axis.set_ylabel("$e_F$")
    else:
        not_run(axis, shared=False)


def _planes(axes: Sequence[Any], runs: list[Result], compared: list[Result]) -> None:
    """References as outlines and the last Grams of the first seed as markers, in one unit per setting."""
    first = [run for run in runs if run.seed == min(each.seed for each in runs)]
    pairs = planes(first[0]) if first else []
    for axis in axes[len(pairs) :]:
        axis.set_axis_off()
    for axis, plane in zip(axes, pairs, strict=False):
        for run in first:
            _plane(axis, run, plane)
        square(axis, reach_of(compared, sorted({target for pair in pairs for target in pair})))
        seed = f", seed {first[0].seed}" if plane == (0, 1) else ""
        axis.set_title(f"targets {plane[0] + 1}, {plane[1] + 1}{seed}", fontsize=7)


def _plane(axis: Any, run: Result, plane: tuple[int, int]) -> None:
    for reference, colour in REFERENCE_COLOURS.items():
        outline(axis, getattr(run, reference), plane, color=colour, lw=1)
    marker = "+" if run.procedure.corrected else "o"
    colour = REFERENCE_COLOURS["centralized" if run.procedure.corrected else "barycenter"]
    outline(axis, run.grams[-1], plane, marker, points=25, color=colour, ms=3.5, mfc="none", mew=0.8)


def _gram_evolution(axis: Any, runs: list[Result], both: list[Result]) -> None:
    """Dots trace the shared Gram of a run after some rounds, the later the darker, on the scale of both.

    They are drawn in the two targets whose predictions differ most.
    """
    for run in runs:
        plane = widest_plane(run)
        outline(axis, run.barycenter, plane, color=GREEN, lw=1.8, label=STAR)
        outline(axis, run.centralized, plane, "--", color=INK, lw=1.4, label=CEN)
        for t, colour in zip(SHOWN_ROUNDS, shades("plasma_r", len(SHOWN_ROUNDS)), strict=True):
            label = f"$t={t % len(run.grams)}$"
            outline(axis, run.grams[t], plane, ".", points=49, color=colour, ms=4, label=label)
        axis.set(xlabel=f"target {plane[0] + 1} (seed {run.seed})", ylabel=f"target {plane[1] + 1}")
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, columnspacing=1, handlelength=1.2
        )
        square(axis, reach_of(both, plane, with_start=True))
    if not runs:
        not_run(axis, shared=False)


def _compared(axis: Any, shown: ComparableRuns, setting: str, limits: Limits) -> None:
    """Without correction against G_⋆, with it against G_cen: crosses for ordinary, diamonds for proximal."""
    for procedure, look in CURVES.items():
        round_curve(axis, shown.runs(setting, procedure), "barycenter", **look)
        round_curve(axis, shown.runs(setting, corrected(procedure)), "centralized", **look)
    over_rounds(axis, limits)


def _selection_handles() -> list[Any]:
    return [
        line(f"error to, and outline of {STAR}", GREEN),
        line(f"error to, and outline of {CEN}", INK),
        line("without correction; circles: its last Gram", "0.4", "-", "o", "none"),
        line("with correction; crosses: its last Gram", "0.4", "--", "+"),
    ]


def _comparison_handles() -> list[Any]:
    return [
        line(f"{procedure} {how} to {name}", colour, "-", LOOKS[procedure].marker, "none")
        for how, name, colour in (("training,", STAR, GREEN), ("with correction,", CEN, INK))
        for procedure in CURVES
    ]


def measure_main(shown: ComparableRuns) -> Found:
    """Selection and moment correction, Table 4."""
    found = Findings(cohorts.MAIN, shown)
    measured: Found = {}
    for name, with_correction in (("ordinary", "corrected"), ("proximal", "proximal+corrected")):
        measured |= {
            f"main-{name}-endpoint": found.fair_median(name, endpoint),
            f"main-{name}-trajectory": found.fair_median(name, trajectory),
            f"main-{name}-delta": found.fair_median(name, last_delta),
            f"main-{name}-corrected-direction-1": found.fair_median(
                with_correction, direction("centralized", 1)
            ),
            f"main-{name}-corrected-1": found.fair_median(with_correction, error("centralized", 1)),
            f"main-{name}-corrected-endpoint": found.fair_median(with_correction, endpoint),
        }
    return measured | _main_statements(found)


def _main_statements(found: Findings) -> Found:
    barycenter, centralized = error("barycenter"), error("centralized")
    four = tuple(condition.procedure for condition in cohorts.MAIN.conditions)
    return {
        "main-proximal-closer": found.always(smaller(endpoint), "proximal", "ordinary"),
        "main-proximal-medians": found.over(four, _proximal_medians_smaller),
        "main-to-barycenter": found.always(_nearer(barycenter, centralized), "proximal"),
        "main-to-centralized": found.always(_nearer(centralized, barycenter), "proximal+corrected"),
        "main-ordinary-direction": found.always(closer_in_direction, "ordinary"),
        "main-corrected-improves": found.over(("proximal+corrected",), _improves_after_round_1),
        "main-active": found.always(lambda run: run.least_variance > Penalty().threshold, "ordinary"),
        "main-smallest-variance": found.over(
            ("ordinary",), lambda rows: min(run.least_variance for (run,) in rows)
        ),
        "main-runs": Measurement(_runs_in_all()),
    }


def _nearer(near: Metric, far: Metric) -> Callable[[Result], bool]:
    return lambda run: near(run) < far(run)


def _proximal_medians_smaller(rows: list[Row]) -> bool:
    """Whether every median of Table 4 is smaller under proximal training."""
    ordinary, near = [(row[0], row[2]) for row in rows], [(row[1], row[3]) for row in rows]
    free, corrected = (
        (endpoint, trajectory, last_delta),
        (direction("centralized", 1), error("centralized", 1)),
    )
    better = [medians(near, metric)[0] < medians(ordinary, metric)[0] for metric in free]
    better += [medians(near, metric)[1] < medians(ordinary, metric)[1] for metric in (*corrected, endpoint)]
    return all(better)


def _improves_after_round_1(rows: list[Row]) -> bool:
    return bool(medians(rows, endpoint)[0] < medians(rows, error("centralized", 1))[0])


def _runs_in_all() -> int:
    """How many different runs all comparisons of the paper ask for.

    Those with mismatched coordinates are one for each initialisation, setting and seed.
    """
    sources = {(name, larger): SETTINGS[name].sources[0] for name in ALL for larger in (False, True)}
    others = (cohort for cohort in cohorts.PAPER if cohort is not cohorts.MISMATCHED)
    keys = {key for cohort in others for key in cohort.keys(SCALES["paper"], sources)}
    return len(keys) + 2 * len(cohorts.MISMATCHED.settings) * len(cohorts.MISMATCHED.seeds)
