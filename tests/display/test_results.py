"""Every result has a short repr, a summary, a data frame, a plot and HTML."""

import sys
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from rich.console import Console

import fedgram
from fedgram import (
    InputError,
    Moments,
    Penalty,
    Problem,
    Runs,
    align,
    correct,
    effects,
    explain,
    intervals,
    measure,
    predict,
    solve,
)
from fedgram._util.display_methods import DisplayMethods
from fedgram.data.resampling import row_sampler
from fedgram.data.split import Split
from fedgram.display.advice import describe_advice, print_advice, warn_of_few_rows
from fedgram.display.results import MAX_HTML_ROWS, VIEWS
from fedgram.runs.advice import ALONE, AUTO, FEDAVG, HEAD, LABELS, POOLED, Advice, Errors, SiteAdvice
from fedgram.runs.compare import METRICS, compare_runs
from fedgram.runs.procedure import BIAS_RULES
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.privacy import Privacy
from tests.helpers.command import fedgram as run
from tests.helpers.small_runs import exact_run, small_problem

NAMES = sorted(each.__name__ for each in VIEWS)
SCRIPT = "<script>alert('oslo')</script>"
PENALTY = Penalty(0.1, 0.2)


def federation(clients=(SCRIPT, "price in $", "c"), targets=("x", "y")):
    rng = np.random.default_rng(0)
    size = (12 * len(targets), len(targets))
    rows = {name: rng.normal(m, 1 + m, size) for m, name in enumerate(clients)}
    return Moments.from_arrays(rows, target_names=targets)


def advice(site_name=SCRIPT):
    nothing = np.full(2, np.nan)
    rmse = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, np.nan]])
    errors = tuple(
        Errors(name, 0.5 * k, k * np.ones(2), k * np.ones(2), k * rmse, 1 - k * rmse / 10)
        for k, name in zip((1.0, 0.9, 0.8, 0.7, 0.6), (ALONE, HEAD, FEDAVG, AUTO, POOLED), strict=True)
    )
    gain, low, high = np.array([[0.3, 0.6], [0.1, 0.2], [0.5, 0.9]])
    sites = (
        SiteAdvice(site_name, 30, 10, (0.3, 0.1, 0.5), gain, low, high, "join"),
        SiteAdvice("b", 30, 10, (-0.3, -0.5, -0.1), -gain, -high, -low, "alone"),
        SiteAdvice("c", 3, 0, (np.nan,) * 3, nothing, nothing, nothing, "untested"),
    )
    change = (-0.3, -0.5, -0.1)
    return Advice(
        ("x", "y"), AUTO, errors, sites, "network", change, (), "resmlp", TrainConfig(), ("A note.",)
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One result of each class, by its name; clients have hostile names where they have any."""
    folder = tmp_path_factory.mktemp("runs")
    stored = exact_run(folder, rounds=3)
    moments = federation()
    prediction = predict(moments, PENALTY)
    problem = small_problem()
    train = dict(zip(("a", SCRIPT, "c"), problem.train.values(), strict=True))
    named = replace(problem, name=SCRIPT, train=train, test={})
    rng = np.random.default_rng(1)
    found = [
        moments, moments.pooled, PENALTY, prediction, prediction.barycenter, explain(prediction),
        effects(prediction), intervals(prediction, resamples=100), correct(moments, PENALTY, 0.5),
        align(rng.normal(size=(2, 5)), rng.normal(size=(2, 5))),
        solve(rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), rng.normal(size=(2, 5)), PENALTY),
        named, named.train[SCRIPT], Runs(folder), stored, measure(stored), *compare_runs([stored]), advice(),
    ]  # fmt: skip
    return {type(each).__name__: each for each in found}


@pytest.fixture(scope="module")
def axes():
    """Axes of figures that are closed in the end."""
    from matplotlib.figure import Figure

    return lambda: Figure().subplots()


def test_every_public_result_is_shown(results):
    assert sorted(results) == NAMES
    public = [
        getattr(fedgram, name) for name in fedgram.__all__ if name != "FederatedRegressor"
    ]  # scikit-learn's
    shown = {each for each in public if isinstance(each, type) and issubclass(each, DisplayMethods)}
    assert shown <= set(VIEWS)
    assert {"Prediction", "Gap", "Intervals", "Problem", "Runs"} <= {each.__name__ for each in shown}


@pytest.mark.parametrize("name", NAMES)
def test_reprs_are_short(results, name):
    shown = repr(results[name])
    assert shown.startswith(f"{name}(")
    assert len(shown) <= 300
    assert "\n" not in shown
    assert "array" not in shown


def test_reprs_say_the_answer():
    prediction = predict(federation(), PENALTY)
    gap = f"{100 * prediction.relative_gap:.0f}%"
    assert repr(prediction) == f"Prediction(3 clients, 2 targets, gap {gap})"
    assert repr(explain(prediction)) == f"Gap({gap}, 3 clients, 2 targets)"
    inactive = predict(federation(), Penalty(2.0, 1.0))
    assert repr(inactive).endswith("not fully active)")
    several = Moments([9, 9], np.array([[[-1.0], [1.0]], [[0.0], [0.0]]]), np.ones((2, 1, 1)))
    assert repr(predict(several, Penalty(0.25, 0.25))) == (
        "Prediction(2 problems, 2 clients, 1 target, gap 0% to 36%)"
    )


def test_reprs_of_long_names_are_short(tmp_path):
    problem = replace(small_problem(), name="x" * 5000)
    assert len(repr(problem)) <= 300
    assert len(repr(advice("x" * 5000).sites[0])) <= 300
    assert len(repr(Runs(tmp_path / ("x" * 5000)))) <= 320


def test_nested_results_stay_short():
    analysis = effects(predict(federation(), PENALTY))
    for part in (analysis.shared, analysis.prediction.activity, *advice().procedures):
        assert len(repr(part)) <= 300
        assert "array" not in repr(part)


@pytest.mark.parametrize("name", NAMES)
def test_plots_draw_on_the_given_axes(results, name, axes):
    given = axes()
    drawn = results[name].plot(given)
    drawn = drawn[0] if name == "Runs" else drawn
    assert drawn is given
    assert given.has_data()


def test_plots_without_axes_use_new_ones_and_the_callers_backend(results, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(matplotlib, "use", lambda *_: pytest.fail("the backend was replaced"))
    alone, (panel,) = results["Moments"].plot(), results["Runs"].plot()
    assert alone.figure is not panel.figure
    alone.figure.draw_without_rendering()  # a client's name has a dollar sign
    plt.close(alone.figure)
    plt.close(panel.figure)


def test_plots_of_runs_need_axes_for_every_setting(tmp_path, axes):
    exact_run(tmp_path / "a", rounds=2)
    exact_run(tmp_path / "b", rounds=3)
    with pytest.raises(InputError, match="2 Axes, one per setting"):
        Runs(tmp_path).plot(axes())
    given = np.array([axes(), axes(), axes()])
    assert Runs(tmp_path).plot(given) is given


@pytest.mark.parametrize("targets", [("x",), ("x", "y", "z"), tuple("abcdefghi")])
def test_predictions_of_any_number_of_targets_are_drawn(targets, axes):
    prediction = predict(federation(targets=targets), PENALTY)
    for each in (prediction, prediction.barycenter, effects(prediction)):
        given = axes()
        assert each.plot(given) is given


def test_plots_place_points_at_their_values(results, axes):
    found = results["Effects"]
    points = found.plot(axes()).collections
    unit = found.prediction.moments.pooled.deviation
    shared = np.array([points[i].get_offsets()[:, 0] for i in (1, 3)]).T
    np.testing.assert_allclose(shared * unit, found.shared.mean_error, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_html_escapes_names(results, name):
    shown = results[name]._repr_html_()
    assert "<script" not in shown
    is_named = name in (
        "Moments",
        "Prediction",
        "Gap",
        "Effects",
        "Intervals",
        "Correction",
        "Problem",
        "Advice",
    )
    assert ("&lt;script&gt;" in shown) == is_named
    for line in results[name].summary().splitlines():
        assert line.split("<")[0].strip()[:20].replace("&", "&amp;").replace("'", "&#x27;") in shown


def test_html_shows_the_first_rows_of_a_table():
    shown = federation(clients=[f"site {m}" for m in range(20)])._repr_html_()
    assert shown.count("<tr>") == 1 + MAX_HTML_ROWS
    assert f"and {40 - MAX_HTML_ROWS} more rows" in shown
    assert (
        "and 1 more row " in federation(clients=[f"site {m}" for m in range(13)], targets=["x"])._repr_html_()
    )


def test_several_problems_have_a_repr_and_one_clear_sentence():
    moments = federation()
    several = replace(moments, mean=np.stack([moments.mean, moments.mean]))
    prediction = predict(several, PENALTY)
    for each in (
        several, prediction, explain(prediction), effects(prediction), correct(several),
        several.pooled, prediction.barycenter, align(np.ones((2, 1, 3)), np.ones((1, 3))),
    ):  # fmt: skip
        for show in (each.summary, each.to_frame, each.plot):
            with pytest.raises(InputError, match=r"with leading axes \(2,\), cannot be"):
                show()
        assert each._repr_html_() == f"<div><strong>{each!r}</strong></div>"


@pytest.mark.parametrize(("missing", "method"), [("pandas", "to_frame"), ("matplotlib", "plot")])
def test_missing_packages_are_named(monkeypatch, missing, method):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=f"needs {missing}. Install it with pip install"):
        getattr(federation(), method)()


# ---------------------------------------------------------------- sentences


@pytest.fixture(scope="module")
def moments_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("moments") / "moments.json"
    federation(clients=("a", "b", "c")).save(path)
    return path


def sentences(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def is_printed(summary, lines):
    """Whether all lines of a summary are among the printed ones, in their order."""
    remaining = iter(lines)
    return all(line in remaining for line in summary.splitlines())


@pytest.mark.parametrize("penalty", [PENALTY, Penalty(2.0, 1.0)])  # with the second, a client is not active
def test_summaries_are_what_commands_print(moments_file, penalty):
    moments = Moments.load(moments_file)
    prediction = predict(moments, penalty)
    flags = (moments_file, "--lambda-h", penalty.features, "--lambda-w", penalty.head)
    printed = sentences("predict", *flags)
    for result in (prediction, effects(prediction), prediction.barycenter):
        assert is_printed(result.summary(), printed)
    assert is_printed(explain(prediction).summary(), sentences("explain", *flags, "--resamples", 0))
    for strength in (0.5, 1.0):
        printed = sentences("correct", *flags, "--strength", strength)
        assert is_printed(correct(moments, penalty, strength).summary(), printed)


def test_the_summary_of_intervals_is_the_explanation_with_them(moments_file):
    found = intervals(predict(Moments.load(moments_file)), resamples=200)
    assert is_printed(found.summary(), sentences("explain", moments_file, "--resamples", 200))


def test_private_moments_are_said_to_be(tmp_path):
    privacy = Privacy(epsilon=1.0, delta=1e-6, bounds=[[-4.0, 4.0]], noise=9.0)
    means, covariances = [[-1.0], [1.0]], np.ones((2, 1, 1))
    moments = Moments([5000, 5000], means, covariances, privacy=(privacy, privacy))
    moments.save(tmp_path / "moments.json")
    summary = predict(moments).summary()
    assert "Privacy noise" in summary
    assert is_printed(summary, sentences("predict", tmp_path / "moments.json"))


def test_the_summary_of_a_prediction_is_all_that_is_said(moments_file):
    """Whatever else the command prints belongs to a table: an indented row or the line above it."""
    prediction = predict(Moments.load(moments_file))
    rest = set(sentences("predict", moments_file)) - set(prediction.summary().splitlines())
    assert all(not line.strip() or line.startswith("  ") or line.endswith(":") for line in rest)


def test_moments_say_what_the_command_does(moments_file, tmp_path):
    path = tmp_path / "copy.json"
    (line,) = sentences("moments", moments_file, "-o", path)
    moments = Moments.load(moments_file)
    assert line == f"Wrote {path}: {moments.summary().splitlines()[0]}"
    within = moments.pooled.within
    share = 1 - within[0, 0] / moments.pooled.covariance[0, 0]
    assert f"client means: x {100 * share:.0f}%, y" in moments.summary()


def test_a_penalty_is_stated_as_in_the_setting(moments_file):
    assert PENALTY.summary().splitlines()[0] in predict(Moments.load(moments_file), PENALTY).summary()


def test_intervals_from_rows_claim_no_normal_targets():
    rows = {name: np.random.default_rng(m).normal(m, 1, (30, 1)) for m, name in enumerate("ab")}
    moments = Moments.from_arrays(rows)
    prediction = predict(moments)
    found = intervals(prediction, sampler=row_sampler(rows, moments.count), resamples=100)
    assert "normal" not in found.summary()
    assert "Intervals come from 100 resamples.\n" in found.summary() + "\n"
    assert "normal targets" in intervals(prediction, resamples=100).summary()


def test_intervals_in_the_targets_units_say_how_targets_were_scaled():
    moments = federation(clients=("a", "b"))
    deviation = moments.pooled.deviation
    prediction = predict(moments.scaled(deviation))
    found = intervals(prediction, resamples=100, scale=deviation)
    assert "Targets were divided by their scales (x" in found.summary()
    in_units, plain = effects(prediction, deviation).summary(), effects(predict(moments)).summary()
    assert in_units.splitlines()[0] == plain.splitlines()[0]
    frame = found.to_frame().query("quantity == 'mean error'")
    np.testing.assert_allclose(frame.estimate, -moments.offset.ravel(), rtol=1e-12)


@pytest.mark.parametrize("unit", [np.array([1000.0, 0.01]), None], ids=["any", "deviations"])
def test_scaled_moments_keep_the_targets_units(unit):
    moments = federation(clients=("a", "b"))
    scale = moments.pooled.deviation if unit is None else unit
    plain = effects(predict(moments)).summary().splitlines()[0]
    scaled = predict(moments.scaled(scale))
    for found in (effects(scaled), explain(scaled), scaled, intervals(scaled, resamples=100)):
        assert plain.removesuffix(".") in found.summary().splitlines()[0]
    said = explain(scaled).summary()
    assert f"Targets were divided by their scales (x {scale[0]:.3g}, " in said
    back = moments.scaled(scale).scaled(1 / scale)
    np.testing.assert_allclose(back.scale, 1, rtol=1e-15)


def test_runs_say_what_commands_print(results, tmp_path):
    stored = exact_run(tmp_path, rounds=3)
    assert is_printed(stored.summary(), sentences("runs", "show", tmp_path))
    assert measure(stored).summary() in stored.summary()
    (comparison,) = compare_runs([stored])
    title, outcome, *notes = comparison.summary().splitlines()
    assert is_printed("\n".join([title, *notes]), sentences("runs", "compare", tmp_path))
    predicted = 100 * predict(stored.moments, stored.setup.settings.penalty).relative_gap
    assert outcome.endswith(f"(predicted: {predicted:.0f}%).")
    assert Runs(tmp_path).summary() == stored.summary().splitlines()[0]


def test_a_run_without_a_round_is_shown(tmp_path):
    stored = exact_run(tmp_path, rounds=2)
    begun = replace(stored, account=replace(stored.account, seconds=()))
    begun.save()
    assert "0 of 2 rounds" in begun.summary()
    with pytest.raises(InputError, match="has no finished round"):
        begun.to_frame()
    assert begun._repr_html_().startswith("<div><strong>StoredRun(")
    (row,) = Runs(tmp_path).to_frame().to_dict("records")
    assert row["rounds"] == 0
    assert np.isnan(row["error"])


def test_advice_says_what_the_command_prints(capsys):
    found = advice("oslo")
    print_advice(Console(width=500), found, found.targets)
    assert is_printed(found.summary(), [line.rstrip() for line in capsys.readouterr().out.splitlines()])
    assert "by 0.3 (95 %: 0.1 to 0.5), from 1 to 0.7." in found.summary()


JOIN = " Joining is recommended, since it helped on most problems of our benchmarks."
UNEVEN = " The change varies so much between sites that it may be chance."
WIDE = "(95 %: from 20 % lower to 40 % higher)." + JOIN


@pytest.mark.parametrize(
    ("change", "answer", "effect", "size"),
    [
        ((-0.3, -0.5, -0.1), "Federate", "lowers", "30 % in total (95 %: 10 to 50 %)."),
        (
            (0.07, 0.01, 0.2),
            "No clear difference",
            "raises",
            f"7 % in total (95 %: 1 to 20 %).{UNEVEN}{JOIN}",
        ),
        ((0.07, -0.2, 0.4), "No clear difference", "raises", f"7 % in total {WIDE}"),
        ((-0.003, -0.2, 0.4), "No clear difference", "lowers", f"0.3 % in total {WIDE}"),
    ],
)
def test_advice_answers_with_the_total_change(change, answer, effect, size):
    first = replace(advice(), total_change=change).summary().splitlines()[0]
    rows = "20 held-out rows of 2 of 3 sites"
    assert first == f"{answer}: on {rows}, joining {effect} the mean squared error by {size}"


def test_advice_to_stay_alone_says_how_large_the_loss_is():
    alone = replace(advice(), total_change=(0.07, 0.01, 0.2), recommended=ALONE)
    assert alone.summary().splitlines()[0] == (
        "Stay alone: on 20 held-out rows of 2 of 3 sites, joining raises the mean squared error by 7 % "
        "in total (95 %: 1 to 20 %)."
    )


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ((0.002, -0.006, 0.007), "(95 %: from 0.6 % lower to 0.7 % higher).{}: joining gains less than 1 %."),
        ((-0.006, -0.008, -0.004), "(95 %: 0.4 to 0.8 %).{}: joining gains less than 1 %."),
    ],
)  # fmt: skip
def test_advice_against_joining_without_a_clear_difference(change, end):
    first = replace(advice(), total_change=change, recommended=ALONE).summary().splitlines()[0]
    assert first.startswith("No clear difference: ")
    assert end.format(" Working alone is recommended") in first


def test_losses_by_a_sites_own_interval_are_counted_but_not_clear():
    found = advice("oslo")
    losing = replace(found.sites[1], verdict="undecided")
    lines = replace(found, sites=(found.sites[0], losing, found.sites[2])).summary().splitlines()
    assert (
        "Of 3 sites, 1 gains by joining, 1 shows no clear difference and 1 has too few test rows to tell. "
        "By its own interval, one site without a clear difference loses; 1 loss among 2 tested sites is "
        "hardly chance."
    ) in lines


@pytest.mark.parametrize(
    ("tested", "losing", "alone", "end"),
    [
        (3, 1, 0, "loses; 1 loss among 3 tested sites can be chance."),  # 7.3 %
        (3, 3, 0, "lose; 3 losses among 3 tested sites are hardly chance."),
        (40, 3, 0, "lose; 3 losses among 40 tested sites can be chance."),  # 7.7 %
        (40, 3, 1, "lose; 4 losses among 40 tested sites are hardly chance."),  # 1.8 %
    ],
)
def test_losses_are_chance_only_if_so_many_are_probable(tested, losing, alone, end):
    found = advice()
    errors = [replace(each, site_rmse=np.ones((tested + 9, 2))) for each in found.procedures]
    gain, loss, untested = found.sites
    unclear = replace(loss, verdict="undecided")
    sites = (*[unclear] * losing, *[loss] * alone, *[gain] * (tested - losing - alone), *[untested] * 9)
    assert end in replace(found, sites=sites, procedures=tuple(errors)).summary()


def test_without_skill_the_advice_is_not_to_train(capsys):
    useless = [replace(each, r2=np.array([0.0, -0.3])) for each in advice().procedures]
    found = replace(advice("oslo"), procedures=tuple(useless), total_change=(0.05, -0.2, 0.3))
    first, second = found.summary().splitlines()[:2]
    assert first.startswith("On these rows no procedure predicts a target better than a constant would.")
    assert second.startswith("On 20 held-out rows of 2 of 3 sites, joining raises")
    assert "recommended" not in second
    partly = replace(found, procedures=(*useless[1:], replace(useless[0], r2=np.array([0.1, -0.3]))))
    assert not partly.summary().startswith("On these rows")
    unknown = [replace(each, r2=np.array([np.nan, -0.3])) for each in useless]  # equal test targets
    assert not replace(found, procedures=tuple(unknown)).summary().startswith("On these rows")
    diverged = replace(useless[0], r2=np.full(2, np.nan))
    assert replace(found, procedures=(diverged, *useless[1:])).summary().startswith("On these rows")


def test_too_few_test_rows_in_total_get_no_interval():
    first = replace(advice(), total_change=(0.05, np.nan, np.nan)).summary().splitlines()[0]
    needed = "it takes 6 in all, or 16 at a site with --time. Hold out more with --test-fraction"
    rows = "20 held-out rows of 2 of 3 sites are too few to tell whether joining pays"
    assert first.startswith(f"{rows}: ")
    assert first.endswith(
        "in order of time it takes 16 at a site. Pass --test-fraction 0.4 or more, or hold out random rows, "
        f"without --time.{JOIN}"
    )
    short = tuple(replace(site, rows=min(site.rows, 21)) for site in advice().sites)
    first = replace(advice(), sites=short, total_change=(0.05, np.nan, np.nan)).summary().splitlines()[0]
    assert first.endswith(f"No site has enough rows for that: hold out random rows, without --time.{JOIN}")
    few = tuple(replace(site, test_rows=min(site.test_rows, 2)) for site in advice().sites)
    first = replace(advice(), sites=few, total_change=(0.05, np.nan, np.nan)).summary().splitlines()[0]
    assert first.endswith(f"too few to tell whether joining pays: {needed}.{JOIN}")


@pytest.mark.parametrize(
    ("tested", "is_timed", "end"),
    [
        ((15, 8), True, "takes 16 at a site. Pass --test-fraction 0.27 or more, or hold out random rows, "
         "without --time."),
        ((16, 8), True, None),
        ((3, 2), False, "takes 6 in all, or 16 at a site with --time. Hold out more with --test-fraction."),
        ((3, 3), False, None),
        ((0, 0), False, None),
    ],
)  # fmt: skip
def test_too_few_test_rows_are_known_before_training(tested, is_timed, end):
    rng = np.random.default_rng(0)
    draw = {name: rng.standard_normal((rows, 2)) for name, rows in (("a", 45), ("b", 40))}
    problem = fedgram.Problem.from_arrays(draw, draw)
    test = {
        name: Split(draw[name][:rows], draw[name][:rows]) for name, rows in zip("ab", tested, strict=True)
    }
    problem = replace(problem, test=test, provenance={"time": "day"} if is_timed else {})
    found = warn_of_few_rows(problem)
    assert found is None if end is None else found.endswith(end)


@pytest.mark.parametrize(
    ("tested", "untested", "title"),
    [
        (8, 0, "Held-out rows of each site"),
        (8, 55, "Held-out rows of each site with test rows"),
        (18, 9, "Held-out rows of 10 of 18 sites with test rows (--all shows the others)"),
        (18, 0, "Held-out rows of 10 of 18 sites (--all shows the others)"),
    ],
)
def test_table_of_sites_counts_sites_with_test_rows_only(tested, untested, title, capsys):
    found = advice("oslo")
    count = tested + untested
    errors = [
        replace(each, site_rmse=np.ones((count, 2)), site_r2=np.ones((count, 2))) for each in found.procedures
    ]
    sites = (*[found.sites[0]] * tested, *[found.sites[2]] * untested)
    print_advice(Console(width=500), replace(found, sites=sites, procedures=tuple(errors)), found.targets)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert title in lines
    assert sum(line.split()[:2] == ["oslo", "x"] for line in lines) == min(tested, 10)


def test_sites_without_a_clear_difference_are_all_named_if_asked_for():
    one = advice().sites[0]
    sites = tuple(replace(one, name=f"s{m}", verdict="undecided") for m in range(30))
    found = replace(advice(), sites=sites)
    assert describe_advice(found, found.targets)[-1].endswith("'s28', 's29'.")
    assert describe_advice(found, found.targets, 10)[-1].endswith("'s8', 's9' and 20 more.")
    assert "All 30 sites show no clear difference." in found.summary()
    untested = replace(found, sites=tuple(replace(site, verdict="untested") for site in sites))
    assert "All 30 sites have too few test rows to tell." in untested.summary()


def test_advice_has_errors_of_each_site(capsys):
    found = advice("oslo")
    print_advice(Console(width=100), found, found.targets)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["oslo", "x", "1", "0.7", "0.6", "0.90", "0.93", "0.94"] in rows
    assert not any(row[:2] == ["c", "x"] for row in rows)  # it has no test rows


# ---------------------------------------------------------------- data frames


@pytest.mark.parametrize("name", NAMES)
def test_frames_have_rows_and_plain_columns(results, name):
    frame = results[name].to_frame()
    assert len(frame) > 0
    assert frame.columns.is_unique
    assert all(column.isidentifier() for column in frame.columns)


def test_frames_of_moments_have_their_numbers(results):
    moments = results["Moments"]
    frame = moments.to_frame().set_index(["client", "target"])
    for m, client in enumerate(moments.clients):
        for c, target in enumerate(moments.targets):
            row = frame.loc[(client, target)]
            assert row["rows"] == moments.count[m]
            assert row["weight"] == moments.client_weights[m]
            assert row["mean"] == moments.mean[m, c]
            assert row["deviation"] == pytest.approx(np.sqrt(moments.covariance[m, c, c]), rel=1e-15)
            assert row["offset"] == moments.offset[m, c]
    pooled = moments.pooled.to_frame()
    np.testing.assert_array_equal(pooled["between"], np.diag(moments.pooled.between))
    np.testing.assert_array_equal(pooled["deviation"], moments.pooled.deviation)


def test_frames_of_predictions_have_all_grams(results):
    prediction = results["Prediction"]
    frame = prediction.to_frame()
    for m, client in enumerate(prediction.moments.clients):
        gram = frame[(frame.gram == "client") & (frame.client == client)]
        entries = gram.pivot(index="target", columns="other_target", values="value").to_numpy()
        np.testing.assert_array_equal(entries, prediction.grams[m])
    for name, gram in (
        ("barycenter", prediction.barycenter.gram),
        ("within", prediction.within),
        ("centralized", prediction.centralized),
    ):
        np.testing.assert_array_equal(frame[frame.gram == name].value, gram.ravel())
    np.testing.assert_array_equal(results["Barycenter"].to_frame().value, prediction.barycenter.gram.ravel())


def test_frames_of_gaps_add_up(results):
    gap = results["Gap"]
    frame = gap.to_frame()
    by_cause = frame.groupby("cause", sort=False).part.sum()
    assert list(by_cause.index) == ["mean", "covariance", "averaging"]
    np.testing.assert_allclose(by_cause, gap.traces, rtol=1e-12)
    by_client = frame.groupby("client", sort=False).share.sum()
    np.testing.assert_allclose(by_client, gap.client_shares, rtol=1e-12)
    two_sided = explain(predict(federation(), Penalty(2.0, 1.0)))
    if not two_sided.one_sided:
        assert two_sided.to_frame().share.isna().all()


def test_frames_of_effects_and_intervals_have_their_arrays(results):
    found = results["Effects"]
    frame = found.to_frame()
    for name in ("shared", "private", "corrected"):
        part = frame[frame.bias == name]
        np.testing.assert_array_equal(part.mean_error, getattr(found, name).mean_error.ravel())
        np.testing.assert_array_equal(part.rms_difference, getattr(found, name).rms_difference.ravel())
    sure = results["Intervals"]
    frame = sure.to_frame()
    for quantity, array in (
        ("relative gap", sure.relative), ("share", sure.client_shares), ("mean error", sure.mean_error)
    ):  # fmt: skip
        ends = frame[frame.quantity == quantity][["low", "high"]].to_numpy()
        np.testing.assert_array_equal(ends, array.reshape(-1, 2))
    np.testing.assert_array_equal(
        frame.query("quantity == 'mean error'").estimate, -sure.gap.prediction.moments.offset.ravel()
    )
    np.testing.assert_array_equal(frame[frame.quantity.str.endswith("term")].estimate, sure.gap.traces)


def test_frames_of_corrections_and_heads_have_their_arrays(results):
    correction = results["Correction"]
    frame = correction.to_frame()
    np.testing.assert_array_equal(frame.deficit, correction.deficit.ravel())
    np.testing.assert_array_equal(frame.covariance, correction.covariance.ravel())
    np.testing.assert_array_equal(frame.gram, correction.grams.ravel())
    for name in ("Alignment", "SolvedReturn"):
        heads = results[name].to_frame().pivot(index="target", columns="feature", values="value")
        np.testing.assert_array_equal(heads, results[name].head)
    assert results["Penalty"].to_frame().to_dict("records") == [
        {"features": 0.1, "head": 0.2, "threshold": PENALTY.threshold, "scale": PENALTY.scale}
    ]


def test_frames_of_problems_have_no_rows():
    problem = small_problem()
    frame = problem.to_frame()
    train, test = frame.query("part == 'training'"), frame.query("part == 'test'")
    np.testing.assert_allclose(train["mean"], problem.moments.mean.ravel(), rtol=1e-12)
    assert train.groupby("client")["rows"].first().tolist() == [24, 20, 16]
    assert test.groupby("client")["rows"].first().tolist() == [5, 3, 0]
    assert test.query("rows == 0")["mean"].isna().all()
    split = Split(np.zeros((4, 2)), [[0.0], [2.0], [4.0], [6.0]])
    assert split.to_frame().to_dict("records") == [
        {"target": "target 1", "rows": 4, "mean": 3.0, "deviation": np.sqrt(5.0)}
    ]
    unnamed = Problem.from_arrays([[[1.0], [2.0]], [[3.0], [5.0]]], [[[0.0], [2.0]], [[4.0], [8.0]]])
    assert unnamed.to_frame().target.unique().tolist() == ["target 1"]


def test_frames_of_runs_have_their_measurements(results):
    measured = results["RunMeasurement"]
    frame = measured.to_frame()
    assert frame["round"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(frame.error, measured.target_error)
    np.testing.assert_array_equal(frame.centralized_error, measured.error["centralized"])
    np.testing.assert_array_equal(frame.trajectory_error, measured.trajectory_error)
    np.testing.assert_array_equal(frame.delta[1:], measured.delta)
    for i, rule in enumerate(BIAS_RULES):
        np.testing.assert_array_equal(frame[f"train_mse_{rule}"][1:], measured.train_mse[:, i])
        np.testing.assert_array_equal(frame[f"test_mse_{rule}"][1:], measured.test_mse[:, i])
    assert frame["data"].unique().tolist() == [measured.setup.data.name]
    assert frame["backbone"].unique().tolist() == [measured.setup.backbone]
    for other in ("StoredRun", "Comparison"):
        assert results[other].to_frame().equals(frame)
    (row,) = results["Runs"].to_frame().to_dict("records")
    for name, metric in METRICS.items():
        assert row[name.replace(" ", "_").lower()] == metric(measured)
    assert row["is_complete"]


def test_a_run_without_a_limit_is_not_compared_with_one(tmp_path):
    measured = measure(exact_run(tmp_path, "local", rounds=2))
    frame = measured.to_frame()
    compared = [
        "error", "predicted_error", "centralized_error", "trajectory_error", "delta", "objective_gap"
    ]  # fmt: skip
    assert frame[compared].isna().all(axis=None)
    assert frame["train_mse_private"][1:].notna().all()
    assert repr(measured) == "RunMeasurement('local/seed-0', 2 rounds, no limit)"


def test_a_folder_without_runs_has_an_empty_frame(tmp_path):
    frame = Runs(tmp_path).to_frame()
    assert len(frame) == 0
    assert "predicted_gap" in frame.columns
    assert Runs(tmp_path).summary() == ""


def test_frames_of_advice_have_gains(results):
    found = results["Advice"]
    frame = found.to_frame()
    assert len(frame) == 3 * 2 * 5
    ours = frame[frame.procedure == LABELS[AUTO]].set_index(["site", "target"])
    site = found.sites[0]
    np.testing.assert_allclose(ours.loc[SCRIPT].gain, [0.3, 0.6], rtol=1e-12)
    np.testing.assert_allclose(ours.loc[SCRIPT].r2, 1 - ours.loc[SCRIPT].rmse / 10)
    np.testing.assert_array_equal(ours.loc[SCRIPT].gain_low, site.low)
    np.testing.assert_array_equal(ours.loc[SCRIPT].gain_high, site.high)
    alone = frame[frame.procedure == LABELS[ALONE]]
    assert (alone.gain.dropna() == 0).all()
    assert alone.gain_low.isna().all()
