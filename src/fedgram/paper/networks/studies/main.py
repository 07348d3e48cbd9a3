"""Selection and moment correction in networks (Section 5.2, Appendix F.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedgram._util.text import describe_seeds
from fedgram.display.plotting import GREEN, INK
from fedgram.paper.networks import metrics, panels, tables
from fedgram.paper.networks.cohorts import MAIN, with_correction
from fedgram.paper.networks.comparable import TITLES, ComparableRuns, Row
from fedgram.paper.networks.metrics import Findings, Found, Metric
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import ALL, IMAGES, TABULAR
from fedgram.paper.plots import mark_not_run, shades
from fedgram.theory.penalty import Penalty

# Both have one color here, so a cross is visible under a diamond only if its arms reach out.
CURVES = {
    "ordinary": panels.LOOKS["ordinary"].open | {"ms": 6.0, "lw": 0.8},
    "proximal": panels.LOOKS["proximal"].open | {"ms": 4.0, "lw": 0.8},
}
PARTS = {"tabular": TABULAR, "images": IMAGES}
SHOWN_ROUNDS = (0, 1, 2, -1)
EXAMPLE = "mpiigaze"


def measure_main(shown: ComparableRuns) -> Found:
    """Measure selection and moment correction, Table 4."""
    found = Findings(MAIN, shown)
    barycenter, centralized = metrics.error("barycenter"), metrics.error("centralized")
    four = tuple(condition.procedure for condition in MAIN.conditions)
    return tables.SELECTION.measure(shown) | {
        "main-proximal-closer": found.always(metrics.smaller(metrics.endpoint), "proximal", "ordinary"),
        "main-proximal-medians": found.over(four, _proximal_medians_smaller),
        "main-to-barycenter": found.always(_nearer(barycenter, centralized), "proximal"),
        "main-to-centralized": found.always(_nearer(centralized, barycenter), "proximal+corrected"),
        "main-ordinary-direction": found.always(metrics.closer_in_direction, "ordinary"),
        "main-corrected-improves": found.over(("proximal+corrected",), _improves_after_round_1),
        "main-active": found.always(lambda run: run.least_variance > Penalty().threshold, "ordinary"),
        "main-smallest-variance": found.over(
            ("ordinary",), lambda rows: min(run.least_variance for (run,) in rows)
        ),
    }


def _nearer(near: Metric, far: Metric) -> Callable[[Result], bool]:
    return lambda run: near(run) < far(run)


def _proximal_medians_smaller(rows: list[Row]) -> bool:
    """Whether every median of Table 4 is smaller under proximal training."""
    ordinary, near = [(row[0], row[2]) for row in rows], [(row[1], row[3]) for row in rows]
    free, corrected = (
        (metrics.endpoint, metrics.trajectory, metrics.last_delta),
        (metrics.direction("centralized", 1), metrics.error("centralized", 1)),
    )
    better = [metrics.medians(near, metric)[0] < metrics.medians(ordinary, metric)[0] for metric in free]
    better += [
        metrics.medians(near, metric)[1] < metrics.medians(ordinary, metric)[1]
        for metric in (*corrected, metrics.endpoint)
    ]
    return all(better)


def _improves_after_round_1(rows: list[Row]) -> bool:
    return bool(
        metrics.medians(rows, metrics.endpoint)[0] < metrics.medians(rows, metrics.error("centralized", 1))[0]
    )


def draw_main(results: Results) -> dict[str, Any]:
    """Draw all figures of the main experiments: 3, 4 and 9 to 11 of the paper."""
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
    """Draw a procedure with and without correction, one setting per row: errors, and final Grams.

    Figures of ordinary and of proximal training share their limits, so that they can be compared.
    """
    from matplotlib import pyplot as plt

    groups = {setting: _with_and_without(shown, setting, procedure) for setting in settings}
    if not any(groups.values()):
        return None
    heights = [1.5 if runs else 0.7 for runs in groups.values()]
    figure, axes = plt.subplots(
        len(settings),
        4,
        figsize=(panels.WIDTH, sum(heights) + 1),
        width_ratios=[2.1, 1, 1, 1],
        height_ratios=heights,
    )
    limits = panels.error_limits(_groups(shown, settings))
    for (errors, *grams), (setting, runs) in zip(axes, groups.items(), strict=True):
        _draw_errors(errors, shown, setting, procedure, limits)
        _draw_planes(grams, runs, _all_four(shown, setting))
    axes[-1, 0].set_xlabel("round")
    drawn = [run for runs in groups.values() for run in runs]
    return panels.finish_figure(figure, drawn, _selection_handles(), columns=2)


def _draw_errors(
    axis: Any, shown: ComparableRuns, setting: str, procedure: str, limits: panels.Limits
) -> None:
    """Draw e_F to both references over rounds, dashed with correction."""
    axis.set_title(TITLES[setting])
    for name, style in ((procedure, "-"), (with_correction(procedure), "--")):
        for reference in panels.REFERENCE_COLORS:
            panels.draw_round_curve(axis, shown.runs(setting, name), reference, ls=style)
    if axis.lines:
        panels.style_rounds(axis, limits)
        axis.set_ylabel("$e_F$")
    else:
        mark_not_run(axis, shared=False)


def _draw_planes(axes: Sequence[Any], runs: list[Result], compared: list[Result]) -> None:
    """Draw references as outlines and the last Grams of the first seed as markers."""
    first = [run for run in runs if run.seed == min(each.seed for each in runs)]
    pairs = panels.coordinate_planes(first[0]) if first else []
    for axis in axes[len(pairs) :]:
        axis.set_axis_off()
    for axis, plane in zip(axes, pairs, strict=False):
        for run in first:
            _draw_plane(axis, run, plane)
        panels.set_square_limits(
            axis, panels.reach_of(compared, sorted({target for pair in pairs for target in pair}))
        )
        seed = f", seed {first[0].seed}" if plane == (0, 1) else ""
        axis.set_title(f"targets {plane[0] + 1}, {plane[1] + 1}{seed}", fontsize=7)


def _draw_plane(axis: Any, run: Result, plane: tuple[int, int]) -> None:
    for reference, color in panels.REFERENCE_COLORS.items():
        panels.draw_outline(axis, getattr(run, reference), plane, color=color, lw=1)
    marker = "+" if run.procedure.corrected else "o"
    color = panels.REFERENCE_COLORS["centralized" if run.procedure.corrected else "barycenter"]
    panels.draw_outline(
        axis, run.grams[-1], plane, marker, points=25, color=color, ms=3.5, mfc="none", mew=0.8
    )


def _selection_handles() -> list[Any]:
    return [
        panels.legend_line(f"error to, and outline of {panels.STAR}", GREEN),
        panels.legend_line(f"error to, and outline of {panels.CEN}", INK),
        panels.legend_line("without correction; circles: its last Gram", "0.4", "-", "o", "none"),
        panels.legend_line("with correction; crosses: its last Gram", "0.4", "--", "+"),
    ]


def draw_setting(shown: ComparableRuns, setting: str) -> Any:
    """Draw one setting as the paper shows MPIIGaze: Grams over rounds, errors of all procedures."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(panels.WIDTH, 3.6), width_ratios=[1, 1, 1.2])
    groups = [shown.runs(setting, name)[:1] for name in ("proximal", with_correction("proximal"))]
    both = [run for group in groups for run in group]
    for axis, first, title in zip(axes, groups, ("proximal", "proximal, corrected"), strict=False):
        _draw_evolution(axis, first, both)
        axis.set_title(f"{TITLES[setting]}, {title}")
    _draw_compared(axes[2], shown, setting, None)
    axes[2].set(xlabel="round", ylabel="$e_F$ to the target", title=_seeds_in_title(shown, setting))
    note = "" if setting == EXAMPLE else f"The paper shows {TITLES[EXAMPLE]}; this is {TITLES[setting]}."
    return panels.finish_figure(
        figure, _all_four(shown, setting), _comparison_handles(), columns=2, note=note
    )


def _examples(shown: ComparableRuns) -> list[str]:
    """Settings that were run, the paper's example first; only the example if none was."""
    ran = [setting for setting in ALL if shown.runs(setting, "proximal")]
    return sorted(ran, key=lambda setting: setting != EXAMPLE) or [EXAMPLE]


def _seeds_in_title(shown: ComparableRuns, setting: str) -> str:
    """Title of the error curves of a setting: one seed, or means over several."""
    seeds = {run.seed for run in _all_four(shown, setting)}
    if len(seeds) == 1:
        return f"errors, {describe_seeds(seeds)}"
    return f"mean ± deviation, {len(seeds)} seeds"


def _draw_evolution(axis: Any, runs: list[Result], both: list[Result]) -> None:
    """Draw the shared Gram of a run after some rounds as dots, later ones darker, on the scale of both.

    The plane is that of the two targets whose predictions differ most.
    """
    for run in runs:
        plane = panels.widest_plane(run)
        panels.draw_outline(axis, run.barycenter, plane, color=GREEN, lw=1.8, label=panels.STAR)
        panels.draw_outline(axis, run.centralized, plane, "--", color=INK, lw=1.4, label=panels.CEN)
        for t, color in zip(SHOWN_ROUNDS, shades("plasma_r", len(SHOWN_ROUNDS)), strict=True):
            label = f"$t={t % len(run.grams)}$"
            panels.draw_outline(axis, run.grams[t], plane, ".", points=49, color=color, ms=4, label=label)
        axis.set(xlabel=f"target {plane[0] + 1} (seed {run.seed})", ylabel=f"target {plane[1] + 1}")
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, columnspacing=1, handlelength=1.2
        )
        panels.set_square_limits(axis, panels.reach_of(both, plane, with_start=True))
    if not runs:
        mark_not_run(axis, shared=False)


def draw_comparison(shown: ComparableRuns) -> Any:
    """Draw errors of ordinary and proximal training in all settings, on the same axes."""
    figure, axes = panels.make_setting_panels(shown.settings, 1.65, sharex=True, sharey=True)
    for setting, axis in axes.items():
        _draw_compared(axis, shown, setting, panels.error_limits(_groups(shown, ALL)))
    panels.label_below(axes, "round")
    figure.supylabel("$e_F$ to the target", fontsize=8)
    drawn = [run for group in _groups(shown, ALL) for run in group]
    return panels.finish_figure(figure, drawn, _comparison_handles(), columns=2, note=shown.not_shown)


def _draw_compared(axis: Any, shown: ComparableRuns, setting: str, limits: panels.Limits) -> None:
    """Draw errors to G_⋆ without correction and to G_cen with it, for both procedures."""
    for procedure, look in CURVES.items():
        panels.draw_round_curve(axis, shown.runs(setting, procedure), "barycenter", **look)
        panels.draw_round_curve(axis, shown.runs(setting, with_correction(procedure)), "centralized", **look)
    panels.style_rounds(axis, limits)


def _comparison_handles() -> list[Any]:
    return [
        panels.legend_line(f"{procedure} {how} to {name}", color, "-", panels.LOOKS[procedure].marker, "none")
        for how, name, color in (("training,", panels.STAR, GREEN), ("with correction,", panels.CEN, INK))
        for procedure in CURVES
    ]


def _with_and_without(shown: ComparableRuns, setting: str, procedure: str) -> list[Result]:
    return shown.runs(setting, procedure) + shown.runs(setting, with_correction(procedure))


def _all_four(shown: ComparableRuns, setting: str) -> list[Result]:
    return [run for procedure in CURVES for run in _with_and_without(shown, setting, procedure)]


def _groups(shown: ComparableRuns, settings: Sequence[str]) -> list[list[Result]]:
    """Runs of each of the four procedures in each setting."""
    procedures = [name for each in CURVES for name in (each, with_correction(each))]
    return [shown.runs(setting, name) for setting in settings for name in procedures]
