"""Figures of the network experiments: what they plot is what was found, and they say what is missing."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedgram.display.plotting import render
from fedgram.paper.networks.cohorts import BUDGETS, MAIN, WEIGHTS, proximal
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.panels import REFERENCE_COLORS
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import ALL, SETTINGS
from fedgram.paper.networks.studies.main import draw_evolution
from fedgram.paper.networks.studies.registry import STUDIES, figures_of
from fedgram.paper.plots import SETTINGS as SETTINGS_OF_FIGURES
from tests.helpers.network_results import all_results

PANELS = {
    "dnn-main": {
        "proximal-tabular": 20, "proximal-images": 20, "ordinary-tabular": 20, "ordinary-images": 20,
        "evolution": 20, "comparison": 10,
    },
    "dnn-means": {"": 10},
    "dnn-epochs": {"": 10},
    "dnn-rho": {"": 10},
    "dnn-alignment": {"": 3},
    "dnn-architecture": {"": 4},
    "dnn-full-model": {"": 5},
    "dnn-prediction": {"": 5},
    "beyond-solved": {"epochs": 10, "seconds": 10},
    "beyond-prediction": {"": 10},
}  # fmt: skip
FEW = ("beijing", "swimmer", "dsprites")


def drawn(name, results):
    """The figures of an experiment, which pyplot forgets."""
    figures = figures_of(name, results)
    plt.close("all")
    return figures


def one_of_main(draw, results, *arguments):
    """One figure of the main experiments, without the others."""
    shown = ComparableRuns.from_results(results)
    with plt.rc_context(SETTINGS_OF_FIGURES):
        figure = draw(shown.same_seeds([each.procedure for each in MAIN.conditions]), *arguments)
    plt.close("all")
    return figure


@cache
def complete(name):
    """The figures of an experiment of which everything was run, drawn once."""
    return drawn(name, all_results())


def only(results, *settings, **fields):
    """The results of some settings."""
    return Results(run for run in results.select(**fields) if run.setting in settings)


def panel(figure, title):
    """The panel of that title."""
    return next(axis for axis in figure.axes if axis.get_title(loc="left") == title)


def lines_of(axis, runs):
    """The lines of a panel that show exactly these runs."""
    return [line for line in axis.lines if line.get_gid() == "_".join(["runs", *(run.id for run in runs)])]


def markers_of(axis, look):
    """Heights of the markers of single runs that look like this, from left to right."""
    found = [line for line in axis.lines if line.get_gid() and line.get_marker() == look]
    return [float(line.get_ydata()[0]) for line in found]


def plain_lines(axis):
    """The lines of a panel that no single run is behind."""
    return [line for line in axis.lines if not line.get_gid()]


def runs_of(procedure, setting, seeds=range(5), **fields):
    """The runs of one procedure in one setting."""
    main = {"epochs": 4000, "backbone": SETTINGS[setting].backbone}
    runs = all_results().select(procedure=procedure, setting=setting, **main | fields)
    return [run for run in runs if run.seed in seeds and run.rounds == 8]


def samples(procedure, setting, value, seeds=range(5), **fields):
    """A quantity of the runs of one procedure in one setting, straight from the results."""
    return np.array([value(run) for run in runs_of(procedure, setting, seeds, **fields)])


def test_every_experiment_has_figures():
    assert set(STUDIES) == set(PANELS)


# the largest figure takes ten seconds
LARGEST = pytest.param("dnn-main", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [LARGEST if name == "dnn-main" else name for name in PANELS])
def test_all_panels_are_there_and_none_is_empty(name):
    figures = complete(name)
    assert {key: len(figure.axes) for key, figure in figures.items()} == PANELS[name]
    shown = [axis for figure in figures.values() for axis in figure.axes if axis.axison]
    assert all(axis.lines or axis.patches for axis in shown)


@pytest.mark.parametrize("name", PANELS)
def test_without_results_no_figure_is_drawn(name):
    assert drawn(name, Results()) == dict.fromkeys(PANELS[name])
    assert not plt.get_fignums()


def test_figures_are_drawn_if_one_of_their_panels_has_data():
    figures = drawn("dnn-main", only(all_results(), "hopper"))
    missing = {name for name, figure in figures.items() if figure is None}
    assert missing == {"proximal-images", "ordinary-images"}
    ordinary = only(all_results(), "mpiigaze", procedure="ordinary")
    assert drawn("dnn-prediction", ordinary) == {"": None}  # changes against itself say nothing


ONE_SETTING_EACH = ["dnn-means", "dnn-rho", "dnn-epochs", "beyond-solved", "beyond-prediction"]


@pytest.mark.parametrize("name", ONE_SETTING_EACH)
def test_only_settings_with_runs_have_a_panel_and_the_others_are_named(name):
    figure = next(iter(drawn(name, only(all_results(), *FEW)).values()))
    assert [axis.get_title("left") for axis in figure.axes] == [TITLES[setting] for setting in FEW]
    missing = [TITLES[setting] for setting in ALL if setting not in FEW]
    said = " ".join(figure.get_supxlabel().split())
    assert f"Not shown: {', '.join(missing)}." in said


def test_panels_above_an_empty_place_label_their_axis():
    figure = drawn("dnn-epochs", only(all_results(), *ALL[:7]))[""]
    labelled = [axis.xaxis.get_tick_params()["labelbottom"] for axis in figure.axes]
    assert labelled == [False, False, False, True, True, True, True]  # 4 and 3 panels


@pytest.mark.parametrize(
    ("budgets", "words"),
    [((400,), "E = 400"), ((400, 4000), "E = 400 and 4000"), ((50, 400, 4000), "E = 50 to 4000")],
)
def test_two_budgets_are_both_named_and_more_are_a_range(budgets, words):
    hopper = only(all_results(), "hopper", procedure="ordinary")
    some = Results(run for run in hopper if run.epochs in budgets)
    said = " ".join(drawn("dnn-epochs", some)[""].get_supxlabel().split())
    assert f"scale, {words}, 8 rounds," in said


def test_rounds_of_independent_starts_are_said_apart():
    words = complete("dnn-alignment")[""].get_supxlabel()
    assert "E = 4000, 8 rounds, 1 round from independent starts, 5 seeds" in words
    common = Results(run for run in only(all_results(), "beijing") if not run.procedure.independent)
    assert "E = 4000, 8 rounds, 5 seeds" in drawn("dnn-alignment", common)[""].get_supxlabel()


def test_where_some_were_run_with_fewer_seeds_both_numbers_are_said():
    whole = only(all_results(), "beijing")
    fewer = Results(run for run in whole if run.procedure.proximal or run.seed == 0)
    assert "8 rounds, 3 seeds, of some 1)" in drawn("dnn-rho", fewer)[""].get_supxlabel()


@pytest.mark.parametrize("scale", ["paper", "reduced"])
def test_below_a_figure_stand_kinds_and_scale(scale):
    epochs, seeds = (4000, "3 seeds") if scale == "paper" else (400, "1 seed")
    protocol = f"({scale} scale, E = {epochs}, 8 rounds, {seeds})"
    results = only(all_results(scale), *FEW)
    stand_ins = {run.setting: run.dataset for run in results}
    assert stand_ins["beijing"] == "beijing"
    figures = drawn("dnn-rho", results)
    assert figures[""].get_supxlabel().split("\n")[-3:] == [
        f"REAL data: Beijing {protocol}",
        f"GENERATED data: {stand_ins['swimmer']} for Swimmer {protocol}",
        f"RE-RENDERED data: {stand_ins['dsprites']} for dSprites {protocol}",
    ]


def test_data_that_is_not_compared_is_not_named():
    alone = only(all_results(), "dsprites", procedure="ordinary")  # compared with nothing
    figure = drawn("dnn-prediction", Results([*only(all_results(), "mpiigaze"), *alone]))[""]
    assert [axis.get_title("left") for axis in figure.axes] == ["MPIIGaze"]
    not_shown, data = figure.get_supxlabel().split("REAL data: ")
    assert "dSprites" in not_shown
    assert data.startswith("MPIIGaze")


def test_no_figure_mixes_scales_or_datasets():
    paper = all_results()
    reduced = only(all_results("reduced"), "beijing", "walker")
    other = [replace(run, dataset="other", kind="GENERATED") for run in paper.select(setting="beijing")]
    shown = ComparableRuns.from_results([*reduced, *other, *only(paper, "beijing")])
    assert shown.scale.name == "paper"
    assert {(run.scale, run.kind) for run in shown.by_key.values()} == {("paper", "REAL")}
    figures = drawn("dnn-rho", Results([*reduced, *only(paper, "beijing")]))
    assert [axis.get_title("left") for axis in figures[""].axes] == ["Beijing"]
    assert "reduced" not in figures[""].get_supxlabel()


def test_the_smoke_scale_is_drawn_though_its_budgets_coincide():
    for name in ("dnn-epochs", "beyond-solved"):
        figures = drawn(name, only(all_results("smoke"), "beijing"))
        axis = panel(next(iter(figures.values())), "Beijing")
        assert list(plain_lines(axis)[0].get_xdata()) == [1, 2, 4]
        assert labels(axis.xaxis) == ["1", "2", "4"]


def labels(scale):
    """What is written along an axis, inside its limits."""
    low, high = sorted(scale.get_view_interval())
    places = scale.get_majorticklocs()
    pairs = zip(places, scale.get_major_formatter().format_ticks(places), strict=True)
    return [label for place, label in pairs if low <= place <= high and label]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factor"),
    [*((name, 1.0) for name in PANELS), *product(("dnn-rho", "dnn-alignment", "beyond-solved"), (1.3, 6.0))],
)
def test_logarithmic_axes_have_three_labels_even_if_errors_hardly_differ(name, factor):
    def close(errors):
        return {key: 0.2 * factor * (1 + 0.05 * np.tanh(error)) for key, error in errors.items()}

    results = Results(
        replace(run, error=close(run.error), direction_error=close(run.direction_error), seconds=factor)
        for run in only(all_results("smoke"), "beijing", "3dshapes")
    )
    for figure in filter(None, drawn(name, results).values()):
        for axis in figure.axes:
            axis.viewLim  # noqa: B018, scales the axes as drawing them would
        scales = [scale for axis in figure.axes if axis.has_data() for scale in (axis.xaxis, axis.yaxis)]
        assert all(len(labels(scale)) > 2 for scale in scales if scale.get_scale() == "log")


@cache
def some_of_main():
    """The figures of the main experiments in two settings."""
    return drawn("dnn-main", only(all_results(), "beijing", "halfcheetah"))


@pytest.mark.parametrize("setting", ["beijing", "halfcheetah"])
def test_every_seed_has_a_curve_and_the_thick_one_is_their_median(setting):
    figures = some_of_main()
    for panel_of, procedure, reference in (
        ("comparison", "ordinary", "barycenter"), ("comparison", "corrected", "centralized"),
        ("comparison", "proximal", "barycenter"), ("comparison", "proximal+corrected", "centralized"),
        ("proximal-tabular", "proximal+corrected", "centralized"),
    ):  # fmt: skip
        axis, runs = panel(figures[panel_of], TITLES[setting]), runs_of(procedure, setting)
        median = [line for line in lines_of(axis, runs) if line.get_color() == REFERENCE_COLORS[reference]]
        errors = [run.error[reference] for run in runs]
        np.testing.assert_allclose(median[0].get_ydata(), np.median(errors, axis=0))
        for run, error in zip(runs, errors, strict=True):
            thin = [line for line in lines_of(axis, [run]) if line.get_color() == REFERENCE_COLORS[reference]]
            np.testing.assert_array_equal(thin[0].get_ydata(), error)
            assert thin[0].get_linewidth() < median[0].get_linewidth()


def test_no_error_lies_outside_its_axis():
    for axis in some_of_main()["comparison"].axes:
        low, high = axis.get_ylim()
        heights = np.concatenate([line.get_ydata() for line in axis.lines])
        assert low < heights.min()
        assert heights.max() < high


def test_ellipses_are_of_the_first_seed_in_the_planes_of_three_targets():
    row = [axis for axis in some_of_main()["proximal-tabular"].axes if axis.axison][2:]  # HalfCheetah, C = 6
    assert row[0].get_title(loc="left") == "HalfCheetah"
    assert [axis.get_title(loc="left") for axis in row[1:]] == [
        "targets 1, 2, seed 0", "targets 1, 3", "targets 2, 3",
    ]  # fmt: skip
    (run,) = runs_of("proximal", "halfcheetah", [0])
    (outline,) = lines_of(row[2], [run])
    points = np.array(outline.get_data())  # u with uᵀ G⁻¹ u = 1
    gram = run.grams[-1][np.ix_((0, 2), (0, 2))]
    np.testing.assert_allclose(np.einsum("in,ij,jn->n", points, np.linalg.inv(gram), points), 1.0)


def test_ordinary_and_proximal_figures_have_the_same_axes():
    one, two = (some_of_main()[f"{name}-tabular"].axes for name in ("ordinary", "proximal"))
    assert [axis.get_ylim() for axis in one] == [axis.get_ylim() for axis in two]


def test_the_evolution_of_every_setting_that_ran_is_shown():
    figure = some_of_main()["evolution"]
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == ["Beijing", "HalfCheetah"]
    said = " ".join(figure.get_supxlabel().split())
    assert said.startswith("Seed 0, in the plane of the targets whose predictions differ most.")
    assert "The paper shows MPIIGaze, which was not run." in said
    (run,) = runs_of("proximal", "beijing", [0])
    rounds = lines_of(figure.axes[0], [run])
    assert len(rounds) == 4
    points = np.array(rounds[-1].get_data())
    form = np.einsum("in,ij,jn->n", points, np.linalg.inv(run.grams[-1]), points)
    np.testing.assert_allclose(form, 1.0)


def sizes_of_open_markers(figure, title):
    """The size of each marker in a panel, all of which are open."""
    lines = [line for line in panel(figure, title).lines if line.get_marker() not in ("", "None")]
    assert {each.get_mfc() for each in lines} == {"none"}
    return {each.get_marker(): each.get_ms() for each in lines}


def test_no_marker_hides_another_where_procedures_meet():
    for figure in complete("beyond-solved").values():
        sizes = sizes_of_open_markers(figure, "Walker")
        assert sizes["x"] < sizes["D"] < sizes["s"]  # each inside the next
    sizes = sizes_of_open_markers(some_of_main()["comparison"], "Beijing")
    assert sizes["x"] > sizes["D"]  # of the same color: the cross reaches out


@pytest.mark.parametrize("name", ["beyond-solved", "beyond-prediction", "dnn-rho", "dnn-full-model"])
def test_legends_show_the_markers_of_the_panels_and_none_is_clipped(name):
    for figure in complete(name).values():
        marked = [line for axis in figure.axes for line in axis.lines if line.get_gid()]
        looks = {(line.get_marker(), line.get_ms(), line.get_mfc(), line.get_color()) for line in marked}
        for handle in figure.legends[0].legend_handles:
            if handle.get_marker() not in ("", "None", None):
                look = handle.get_marker(), handle.get_ms(), handle.get_mfc(), handle.get_color()
                assert look in looks
        assert name == "beyond-prediction" or not any(line.get_clip_on() for line in marked)


def test_the_evolution_shows_the_targets_whose_predictions_differ_most():
    def same_but_for(run, pair):
        barycenter = run.centralized.copy()
        barycenter[np.ix_(pair, pair)] *= 0.5
        return replace(run, barycenter=barycenter)

    runs = only(all_results(), "walker", epochs=4000)
    for pair in ((0, 1), (2, 5)):
        changed = Results(same_but_for(run, pair) for run in runs)
        figure = one_of_main(draw_evolution, changed)
        for axis in figure.axes:
            assert axis.get_xlabel() == f"target {pair[0] + 1}"
            assert axis.get_ylabel().endswith(f"target {pair[1] + 1}")
            assert max(abs(axis.dataLim.intervalx)) < axis.get_xlim()[1]


def test_gap_bars_are_predictions_and_markers_what_was_observed():
    figures = complete("dnn-means")
    axis = panel(figures[""], "Hopper")
    run = all_results().select(setting="hopper")[0]
    mean, *rest = run.gap_terms / run.gap_terms.sum()
    heights = [bar.get_height() for bar in axis.patches]
    np.testing.assert_allclose(heights, [sum(rest), mean, sum(rest), 0.0], atol=1e-15)
    for name, reference in (("ordinary", "centralized"), ("centered", "within")):
        for each in runs_of(name, "hopper", range(3)):
            (marker,) = lines_of(axis, [each])
            gap = np.trace(getattr(each, reference) - each.grams[-1])
            np.testing.assert_allclose(marker.get_ydata(), gap / run.gap_terms.sum())


def test_sweeps_are_medians_over_three_seeds():
    def turned(run):
        return run.direction_error["barycenter"][-1]

    axis = panel(complete("dnn-epochs")[""], "Walker")
    errors = [samples("ordinary", "walker", turned, range(3), epochs=budget) for budget in BUDGETS]
    np.testing.assert_allclose(plain_lines(axis)[0].get_ydata(), np.median(errors, axis=1))
    np.testing.assert_allclose(markers_of(axis, "o"), np.ravel(errors))
    axis = panel(complete("dnn-rho")[""], "Walker")
    errors = [
        samples(proximal(weight), "walker", lambda run: run.error["barycenter"][-1], range(3))
        for weight in WEIGHTS
    ]
    np.testing.assert_allclose(markers_of(axis, "o"), np.ravel(errors))  # weight 0 comes first
    medians = plain_lines(axis)[1]
    np.testing.assert_allclose(medians.get_ydata(), np.median(errors[1:], axis=1))
    (zero,) = lines_of(axis, runs_of("ordinary", "walker", [0]))
    assert zero.get_xdata()[0] < 0.1 * min(medians.get_xdata())


def test_alignment_shows_every_seed_and_the_removed_share():
    figures = complete("dnn-alignment")
    free, corrected, removed = figures[""].axes
    error = samples("aligned", "beijing", lambda run: run.error["barycenter"][-1])
    np.testing.assert_allclose(markers_of(free, "s")[:5], error)
    error = samples("proximal+corrected", "beijing", lambda run: run.error["centralized"][-1], range(3))
    np.testing.assert_allclose(markers_of(corrected, "D")[:3], error)
    raw, aligned = (
        samples(name, "beijing", lambda run: run.shared_objective[0]) for name in ("ordinary", "aligned")
    )
    np.testing.assert_allclose(markers_of(removed, "o")[:5], 100 * (raw - aligned) / raw)


def test_no_two_entries_of_the_alignment_legend_look_alike():
    figure = complete("dnn-alignment")[""]
    handles = figure.legends[0].legend_handles
    for looks in ([each.get_color() for each in handles], [each.get_marker() for each in handles]):
        assert len(set(looks)) == len(handles) == 5
    drawn = {
        (line.get_color(), line.get_marker(), line.get_mfc()) for axis in figure.axes for line in axis.lines
    }
    assert {(each.get_color(), each.get_marker(), each.get_mfc()) for each in handles} <= drawn


def test_full_model_and_architecture_show_direction_errors():
    def turned(run):
        return run.direction_error["barycenter"][-1]

    figures = complete("dnn-full-model")
    few, many = (samples("full-model", "hopper", turned, epochs=number) for number in (400, 4000))
    moved = samples("corrected+full-model", "hopper", turned)
    medians = [np.median(each) for each in (few, many, moved)]
    np.testing.assert_allclose(plain_lines(panel(figures[""], "Hopper"))[0].get_ydata(), medians)
    figures = complete("dnn-architecture")
    expected = samples("ordinary", "300w-lp", turned, backbone="resnet34")
    np.testing.assert_allclose(markers_of(panel(figures[""], "ResNet-34"), "o")[3:6], expected)


def test_prediction_changes_are_paired_with_ordinary_training():
    figures = complete("dnn-prediction")
    base, moved = (
        samples(name, "mpiigaze", lambda run: run.test_mse[-1, 0], range(3))
        for name in ("ordinary", "proximal+corrected")
    )
    seeds = plain_lines(panel(figures[""], "MPIIGaze"))[:3]
    np.testing.assert_allclose([line.get_ydata()[2] for line in seeds], 100 * (moved / base - 1))
    assert {line.get_ydata()[0] for line in seeds} == {0.0}


def test_solved_returns_are_drawn_against_epochs_and_time():
    figures = complete("beyond-solved")
    errors = [
        samples("solved", "swimmer", lambda run: run.error["barycenter"][-1], epochs=budget)
        for budget in BUDGETS
    ]
    seconds = [samples("solved", "swimmer", lambda run: run.seconds, epochs=budget) for budget in BUDGETS]
    for key, x in (("epochs", BUDGETS), ("seconds", [np.median(own) for own in seconds])):
        line = plain_lines(panel(figures[key], "Swimmer"))[3]
        np.testing.assert_allclose(line.get_xdata(), x)
        np.testing.assert_allclose(line.get_ydata(), [np.median(own) for own in errors])


def test_predictions_are_drawn_by_bias_beside_centralized_training():
    figures = complete("beyond-prediction")
    axis = panel(figures[""], "Walker")
    for rule in range(3):
        errors = samples("ordinary", "walker", lambda run, rule=rule: run.test_mse[4:, rule], range(3))
        assert list(axis.lines[2 * rule].get_xdata()) == [np.min(errors), np.max(errors)]
        assert axis.lines[2 * rule + 1].get_xdata()[0] == np.median(errors)
    pooled = samples("centralized", "walker", lambda run: run.test_mse[4:, 0], range(3))
    assert list(axis.lines[-2].get_xdata()) == [np.min(pooled), np.max(pooled)]
    assert axis.lines[-1].get_xdata()[0] == np.median(pooled)
    names = [label.get_text() for label in figures[""].axes[0].get_yticklabels()]
    assert axis.lines[-1].get_ydata()[0] == names.index("centralized")
    assert "Centralized" not in figures[""].get_supxlabel()


def test_predictions_say_where_centralized_training_was_not_run():
    federated = Results(run for run in only(all_results(), *FEW) if not run.procedure.centralized)
    figure = drawn("beyond-prediction", federated)[""]
    assert figure.get_supxlabel().startswith("Centralized training was not run. Not shown:")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][-1] == "solved\n+ corrected"
    pooled = only(all_results(), "beijing", procedure="centralized")
    figure = drawn("beyond-prediction", Results([*federated, *pooled]))[""]
    assert figure.get_supxlabel().startswith("Centralized training was not run on Swimmer, dSprites. Not")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][-1] == "centralized"


def test_runs_without_test_rows_are_left_out_of_predictions():
    blind = [replace(run, test_mse=np.full_like(run.test_mse, np.nan)) for run in only(all_results(), *FEW)]
    figures = drawn("beyond-prediction", Results(blind))
    assert figures == {"": None}


ALIKE = {"ordinary-tabular", "ordinary-images"}  # with the axes of proximal training


@pytest.mark.slow
@pytest.mark.parametrize("name", PANELS)
def test_labels_do_not_overlap(name):
    for figure in [figure for key, figure in complete(name).items() if key not in ALIKE]:
        figure.draw_without_rendering()
        shown = [axis for axis in figure.axes if axis.axison]
        for axis in shown:
            assert_apart(axis.get_xticklabels())
            assert_apart(axis.get_yticklabels())
        assert_apart([axis._left_title for axis in shown])


def assert_apart(texts):
    """No text lies on another."""
    boxes = [text.get_window_extent() for text in texts if text.get_visible() and text.get_text()]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))


@pytest.mark.slow
def test_files_are_the_same_for_the_same_results():
    few = only(all_results(), "hopper")
    contents = {render(figures_of("dnn-full-model", few)[""], dpi=40) for _ in range(2)}
    assert len(contents) == 1
    assert contents.pop().startswith(b"\x89PNG")
    assert render(figures_of("dnn-full-model", few)[""], "pdf").startswith(b"%PDF")


def test_compared_procedures_have_the_same_seeds():
    some = [
        run
        for run in all_results()
        if run.setting == "hopper" and (run.procedure.name != "proximal" or run.seed < 2)
    ]
    shown = ComparableRuns.from_results(some).same_seeds(["ordinary", "proximal", "full-model+centered"])
    assert [run.seed for run in shown.runs("hopper", "ordinary")] == [0, 1]
    assert [run.seed for run in shown.runs("hopper", "proximal")] == [0, 1]
    assert shown.runs("hopper", "aligned") == []
