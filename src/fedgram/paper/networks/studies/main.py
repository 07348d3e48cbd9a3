"""Selection and moment correction in networks (Section 5.2, Appendix F.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fedgram._util.text import describe_seeds
from fedgram.display.plotting import GREEN, INK
from fedgram.paper.networks import metrics, panels, tables
from fedgram.paper.networks.cohorts import MAIN, with_correction
from fedgram.paper.networks.comparable import TITLES, ComparableRuns, Row
from fedgram.paper.networks.metrics import Findings, Found, Metric
from fedgram.paper.networks.results import Result
from fedgram.paper.networks.settings import ALL, IMAGES, TABULAR
from fedgram.paper.plots import make_panels, shades
from fedgram.theory.penalty import Penalty

# Both have one color here, so a cross is visible under a diamond only if its arms reach out.
CURVES = {
    "ordinary": replace(panels.LOOKS["ordinary"], size=6.0),
    "proximal": replace(panels.LOOKS["proximal"], size=4.0),
}
GRAM_MARKERS = {"barycenter": panels.Look(GREEN, "o"), "centralized": panels.Look(INK, "+")}
PARTS = {"tabular": TABULAR, "images": IMAGES}
SHOWN_ROUNDS = (0, 1, 2, -1)
EXAMPLE = "mpiigaze"
PROXIMAL_CORRECTED = with_correction("proximal")


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
    free = (metrics.endpoint, metrics.trajectory, metrics.last_delta)
    corrected = (metrics.direction("centralized", 1), metrics.error("centralized", 1), metrics.endpoint)

    def falls(metric: Metric, ordinary: int, proximal: int) -> bool:
        medians = metrics.medians(rows, metric)
        return bool(medians[proximal] < medians[ordinary])

    return all(falls(metric, 0, 1) for metric in free) and all(falls(metric, 2, 3) for metric in corrected)


def _improves_after_round_1(rows: list[Row]) -> bool:
    first, last = (
        metrics.medians(rows, each)[0] for each in (metrics.error("centralized", 1), metrics.endpoint)
    )
    return bool(last < first)


def draw_main(shown: ComparableRuns) -> dict[str, Any]:
    """Draw all figures of the main experiments: 3, 4 and 9 to 11 of the paper."""
    shown = shown.same_seeds([condition.procedure for condition in MAIN.conditions])
    selection = {
        f"{procedure}-{part}": draw_selection(shown, procedure, settings)
        for procedure in ("proximal", "ordinary")
        for part, settings in PARTS.items()
    }
    return selection | {"evolution": draw_evolution(shown), "comparison": draw_comparison(shown)}


def draw_selection(shown: ComparableRuns, procedure: str, settings: Sequence[str]) -> Any:
    """Draw a procedure with and without correction, one setting per row: errors, and final Grams.

    Figures of ordinary and of proximal training share their limits, so that they can be compared.
    """
    from matplotlib import pyplot as plt

    groups = {setting: _with_and_without(shown, setting, procedure) for setting in settings}
    groups = {setting: runs for setting, runs in groups.items() if runs}
    if not groups:
        return None
    size = (panels.WIDTH, 1.5 * len(groups) + 1)
    figure, axes = plt.subplots(len(groups), 4, figsize=size, width_ratios=[2.1, 1, 1, 1], squeeze=False)
    limits = panels.error_limits(_groups(shown, settings))
    for (errors, *grams), (setting, runs) in zip(axes, groups.items(), strict=True):
        _draw_errors(errors, shown, setting, procedure, limits)
        _draw_planes(grams, runs, list(chain.from_iterable(_groups(shown, (setting,)))))
    axes[-1, 0].set_xlabel("round")
    drawn = [run for runs in groups.values() for run in runs]
    return panels.finish_figure(figure, drawn, _selection_handles(), columns=2, settings=settings)


def _draw_errors(
    axis: Any, shown: ComparableRuns, setting: str, procedure: str, limits: panels.Limits
) -> None:
    """Draw e_F to both references over rounds, dashed with correction."""
    axis.set_title(TITLES[setting])
    for name, style in ((procedure, "-"), (with_correction(procedure), "--")):
        for reference in panels.REFERENCE_COLORS:
            panels.draw_round_curve(axis, shown.runs(setting, name), reference, ls=style)
    panels.style_rounds(axis, limits)
    axis.set_ylabel("$e_F$")


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
    look = GRAM_MARKERS["centralized" if run.procedure.corrected else "barycenter"]
    panels.draw_outline(axis, run.grams[-1], plane, run=run, points=25, ls="", **look.open)


def _selection_handles() -> list[Any]:
    return [
        panels.legend_line(f"error to, and outline of {panels.STAR}", GREEN),
        panels.legend_line(f"error to, and outline of {panels.CEN}", INK),
        GRAM_MARKERS["barycenter"].handle("without correction; circles: its last Gram"),
        GRAM_MARKERS["centralized"].handle("with correction; crosses: its last Gram", "--"),
    ]


def draw_evolution(shown: ComparableRuns) -> Any:
    """Draw the shared Gram over rounds in every setting, as the paper's Figure 4 shows MPIIGaze.

    Proximal training is above, corrected proximal training below, on the same scale.
    """
    firsts = {setting: shown.runs(setting, "proximal")[:1] for setting in ALL}
    firsts = {setting: runs for setting, runs in firsts.items() if runs}
    if not firsts:
        return None
    blocks = -(-len(firsts) // 5)  # pairs of rows
    columns = -(-len(firsts) // blocks)
    width = max(panels.NARROWEST, min(panels.WIDTH, panels.PANEL * columns))
    figure, axes = make_panels(
        2 * blocks, columns, (width, blocks * (1.8 * width / max(columns, 3) + 1) + 0.7)
    )
    grid, drawn = axes.reshape(blocks, 2, columns), list[Result]()
    for number, (setting, first) in enumerate(firsts.items()):
        pair = grid[number // columns, :, number % columns]
        both = first, [run for run in shown.runs(setting, PROXIMAL_CORRECTED) if run.seed == first[0].seed]
        for axis, runs in zip(pair, both, strict=True):
            _draw_evolution(axis, runs, [*both[0], *both[1]])
        pair[0].set_title(TITLES[setting])
        drawn += [*both[0], *both[1]]
    for axis, title in zip(axes[::columns], ("proximal", "proximal, corrected") * blocks, strict=True):
        axis.set_ylabel(f"{title}\n{axis.get_ylabel()}")
    for axis in grid.swapaxes(1, 2).reshape(-1, 2)[len(firsts) :].ravel():
        axis.remove()
    seeds = describe_seeds({run.seed for run in drawn}).capitalize()
    note = f"{seeds}, in the plane of the targets whose predictions differ most."
    note += "" if EXAMPLE in firsts else f" The paper shows {TITLES[EXAMPLE]}, which was not run."
    return panels.finish_figure(figure, drawn, _evolution_handles(drawn[0]), columns=6, note=note)


def _draw_evolution(axis: Any, runs: Sequence[Result], both: Sequence[Result]) -> None:
    """Draw the shared Gram of a run after some rounds, later ones darker, on the scale of both runs.

    The plane is that of the two targets whose predictions differ most.
    """
    for run in runs:
        plane = panels.widest_plane(run)
        panels.draw_outline(axis, run.barycenter, plane, color=GREEN, lw=3, alpha=0.5)
        panels.draw_outline(axis, run.centralized, plane, color=INK, lw=3, alpha=0.3)
        for t, color in _shown_rounds(run):
            panels.draw_outline(axis, run.grams[t], plane, run=run, color=color, lw=1)
        axis.set(xlabel=f"target {plane[0] + 1}", ylabel=f"target {plane[1] + 1}")
        panels.set_square_limits(axis, panels.reach_of(both, plane, with_start=True))
    if not runs:
        axis.set_axis_off()


def _shown_rounds(run: Result) -> list[tuple[int, Any]]:
    """Rounds to draw, each with its color."""
    colors = shades("plasma_r", len(SHOWN_ROUNDS))
    return [(t % len(run.grams), color) for t, color in zip(SHOWN_ROUNDS, colors, strict=True)]


def _evolution_handles(run: Result) -> list[Any]:
    rounds = [panels.legend_line(f"round {t}", color) for t, color in _shown_rounds(run)]
    wide = [panels.legend_line(panels.STAR, GREEN), panels.legend_line(panels.CEN, INK)]
    for line, alpha in zip(wide, (0.5, 0.3), strict=True):
        line.set(linewidth=3, alpha=alpha)
    return [*wide, *rounds]


def draw_comparison(shown: ComparableRuns) -> Any:
    """Draw errors of ordinary and proximal training in all settings, on the same axes."""
    figure, axes = panels.make_setting_panels(shown.settings, 1.65, "round", "$e_F$ to the target")
    limits = panels.error_limits(_groups(shown, ALL))
    for setting, axis in axes.items():
        for procedure, look in CURVES.items():
            style = look.open | {"lw": 0.8}
            del style["color"]
            panels.draw_round_curve(axis, shown.runs(setting, procedure), "barycenter", **style)
            corrected = shown.runs(setting, with_correction(procedure))
            panels.draw_round_curve(axis, corrected, "centralized", **style)
        panels.style_rounds(axis, limits)
    drawn = [run for group in _groups(shown, ALL) for run in group]
    note = "Thin: every seed; thicker: their median."
    return panels.finish_figure(figure, drawn, _comparison_handles(), columns=2, note=note, settings=ALL)


def _comparison_handles() -> list[Any]:
    return [
        replace(look, color=color).handle(f"{procedure} {how} to {name}")
        for how, name, color in (("training,", panels.STAR, GREEN), ("with correction,", panels.CEN, INK))
        for procedure, look in CURVES.items()
    ]


def _with_and_without(shown: ComparableRuns, setting: str, procedure: str) -> list[Result]:
    return shown.runs(setting, procedure) + shown.runs(setting, with_correction(procedure))


def _groups(shown: ComparableRuns, settings: Sequence[str]) -> list[list[Result]]:
    """Runs of each of the four procedures in each setting."""
    procedures = [name for each in CURVES for name in (each, with_correction(each))]
    return [shown.runs(setting, name) for setting in settings for name in procedures]
