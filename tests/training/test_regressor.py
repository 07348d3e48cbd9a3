"""FederatedRegressor: scikit-learn's contract, frames, sites, and what a site gains."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

from fedgram import FederatedRegressor, InputError
from fedgram.data.encoding import CLIP
from fedgram.runs.advice import AUTO
from fedgram.training import regressor, site_learning

SMALL = "resmlp-small"


@pytest.fixture
def few_rounds(monkeypatch):
    """Train every plan for three rounds: enough for shapes and errors, not for accuracy."""
    short = [replace(plan, config=replace(plan.config, rounds=3)) for plan in site_learning.plans()]
    monkeypatch.setattr(site_learning, "plans", lambda rows=0: tuple(short))


def make_rows(seed=0, rows=40, sites=3, intercept=2.0):
    """Draw X (N, 3), y (N,) = tanh(x0) + an intercept per site, and sites (N,)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows * sites, 3))
    names = np.repeat([f"site {m}" for m in range(sites)], rows)
    y = np.tanh(X[:, 0]) + np.repeat(intercept * np.arange(sites), rows)
    return X, y + 0.1 * rng.standard_normal(len(y)), names


@pytest.fixture
def rows():
    return make_rows()


def list_checks(*names):
    found = estimator_checks_generator(FederatedRegressor(backbone=SMALL), mark=None)
    for estimator, check in found:
        name = check.func.__name__
        if not names or name in names:
            yield pytest.param(estimator, check, id=name)


QUICK = (
    "check_n_features_in_after_fitting", "check_fit2d_1feature", "check_requires_y_none",
    "check_estimators_nan_inf",
)  # fmt: skip


@pytest.mark.parametrize(("estimator", "check"), list(list_checks(*QUICK)))
def test_quick_estimator_checks(estimator, check, few_rounds):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), list(list_checks()))
def test_estimator_checks(estimator, check, few_rounds):
    check(estimator)


# Sites and what they gain


def test_sites_with_own_intercepts_gain_from_their_names(rows, few_rounds):
    X, y, sites = rows
    X_new, y_new, _ = make_rows(seed=1)
    together = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    pooled = FederatedRegressor(backbone=SMALL).fit(X, y)
    assert (together.procedure_, pooled.procedure_) == (AUTO, "centralized")
    assert together.sites_ == ("site 0", "site 1", "site 2")
    assert together.score(X_new, y_new, sites=sites) > 0.9
    assert together.score(X_new, y_new, sites=sites) > pooled.score(X_new, y_new) + 0.3


@pytest.mark.slow
def test_a_site_best_served_alone_keeps_its_own_model():
    rng = np.random.default_rng(0)
    X, sites = rng.standard_normal((1800, 2)), np.repeat(["a", "b", "odd"], 600)
    wave = np.sin(3 * X[:, 0]) * np.where(sites == "odd", -1, 1)
    y = wave + 0.05 * rng.standard_normal(len(X))
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    assert model.local_share_["odd"] > 0.8
    is_odd = sites == "odd"
    assert model.score(X[is_odd], y[is_odd], sites=sites[is_odd]) > 0.9


def test_local_models_do_not_depend_on_other_sites(rows, few_rounds):
    X, y, sites = rows
    # mirrored targets have the same pooled moments, which standardize the inputs and targets of all sites
    first = FederatedRegressor("local", SMALL).fit(X, y, sites=sites)
    other = y.copy()
    other[80:] = 2 * y[80:].mean() - y[80:]
    second = FederatedRegressor("local", SMALL).fit(X, other, sites=sites)
    np.testing.assert_allclose(
        first.predict(X[:40], sites=sites[:40]), second.predict(X[:40], sites=sites[:40])
    )
    with pytest.raises(InputError, match="'local' has no shared model for site 'new'"):
        first.predict(X[:1], sites=["new"])
    with pytest.raises(InputError, match="rows without a site"):
        first.predict(X[:1])


@pytest.mark.parametrize(
    "procedure",
    ["full-model", "ordinary", "centered+full-model", "centered+full-model+blended", "centralized"],
)
@pytest.mark.parametrize("far", [1.0, 30.0])
def test_predictions_equal_those_of_the_trained_federation(procedure, far, rows, few_rounds, monkeypatch):
    X, y, sites = rows
    trained = []
    monkeypatch.setattr(
        regressor, "learn", lambda *args: trained.append(site_learning.learn(*args)) or trained[0]
    )
    model = FederatedRegressor(procedure, SMALL).fit(X, y, sites=sites)
    (learned,) = trained
    models, clients = learned.models(procedure), learned.federation.clients
    clients.data = replace(
        clients.data,
        train=tuple(((far * x).clip(-0.99 * CLIP, 0.99 * CLIP), y) for x, y in clients.data.train),
    )
    expected = np.concatenate(learned.predict(procedure, models, "train"))
    inputs = torch.cat([inputs for inputs, _ in learned.federation.clients.data.train]).numpy()
    means = [(column.mean, column.scale) for column in model._predictor.encoding.inputs]
    rows = np.stack([inputs[:, d] * scale + mean for d, (mean, scale) in enumerate(means)], axis=1)
    owners = np.repeat(["site 0", "site 1", "site 2"], len(rows) // 3)
    predicted = model.predict(rows, sites=owners)
    expected = model._predictor.encoding.decode_targets(expected)[:, 0]
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5)


def test_inputs_that_are_cut_off_are_named_at_prediction(rows, few_rounds):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    far = X[:3].copy()
    far[:2, 1] += 100 * np.ptp(X[:, 1])
    with pytest.warns(UserWarning, match=r"Inputs of 2 of 3 rows are more than 6 standard .* \('x1'\)"):
        model.predict(far, sites=sites[:3])


def test_unknown_sites_get_the_shared_model_with_one_warning(rows, few_rounds):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    with pytest.warns(UserWarning, match="did not take part: 'new', 'other'") as caught:
        predicted = model.predict(X[:2], sites=["new", "other"])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_allclose(predicted, model.predict(X[:2]), rtol=1e-12)


def test_sites_with_few_rows_take_part(rows, few_rounds):
    X, y, sites = rows
    X, y, sites = np.vstack([X, X[:1]]), np.append(y, 9.0), np.append(sites, "tiny")
    model = FederatedRegressor(backbone=SMALL).fit(X, np.stack([y, y**2], axis=1), sites=sites)
    assert model.sites_[-1] == "tiny"
    assert model.local_share_["tiny"] == 0
    # one row moves the site's own prediction toward it, but not all the way
    shared, own = model.predict(X[:1])[0, 0], model.predict(X[:1], sites=["tiny"])[0, 0]
    assert shared < own < 9.0


def test_one_row_is_not_enough(rows):
    X, y, _ = rows
    with pytest.raises(InputError, match="Cannot train on 1 sample"):
        FederatedRegressor().fit(X[:1], y[:1])
    with pytest.raises(InputError, match="Cannot train on 1 sample"):
        FederatedRegressor().fit(X[:1], y[:1], sites=["a"])


def test_a_site_without_validation_rows_gets_no_local_model(few_rounds):
    rng = np.random.default_rng(0)
    X, sites = rng.standard_normal((243, 2)), np.repeat(["a", "b", "tiny"], [120, 120, 3])
    y = X[:, 0] * np.where(sites == "a", 1.0, -1.0)  # opposite slopes: sites use their own models
    shares = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites).local_share_
    assert shares["a"] > 0
    assert shares["tiny"] == 0


def test_sites_without_validation_rows_average_models(rows, few_rounds):
    X, y, _ = rows
    sites = np.arange(12) // 4
    assert FederatedRegressor().fit(X[:12], y[:12], sites=sites).procedure_ == "full-model"
    with pytest.raises(InputError, match="needs a site with at least 5 rows"):
        FederatedRegressor("full-model+moment-head").fit(X[:12], y[:12], sites=sites)


def test_names_of_sites_are_text_or_numbers(rows, few_rounds):
    X, y, _ = rows
    large = 2**60 + np.arange(3).repeat(40)
    model = FederatedRegressor("full-model", SMALL).fit(X, y, sites=large)
    assert model.sites_ == tuple(str(2**60 + m) for m in range(3))
    large = np.array([2**53 + 1, 2**53 + 2, 2**53], dtype=object).repeat(40)
    model = FederatedRegressor("full-model", SMALL).fit(X, y, sites=pd.Series(large))
    assert model.sites_ == tuple(str(2**53 + m) for m in range(3))
    model = FederatedRegressor("full-model", SMALL).fit(X, y, sites=[1.0, "b", 2**60] * 40)
    assert model.sites_ == ("1", str(2**60), "b")
    model = FederatedRegressor("full-model", SMALL).fit(
        X, y, sites=np.array([0.1, 2, 3], np.float32).repeat(40)
    )
    assert model.sites_ == ("0.1", "2", "3")
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=np.arange(3).repeat(40))
    np.testing.assert_array_equal(model.predict(X[:1], sites=[0]), model.predict(X[:1], sites=[0.0]))


@pytest.mark.parametrize(
    "convert", [np.asarray, pd.DataFrame, lambda X: pd.DataFrame(X, columns=["a", "b", "c"])]
)
def test_no_rows_have_empty_predictions(rows, few_rounds, convert):
    X, y, sites = convert(rows[0]), rows[1], rows[2]
    for targets, shape in ((y, (0,)), (np.stack([y, -y], axis=1), (0, 2))):
        model = FederatedRegressor(backbone=SMALL).fit(X, targets, sites=sites)
        assert model.predict(X[:0]).shape == shape
        assert model.predict(X[:0], sites=sites[:0]).shape == shape


# Frames


def test_text_that_has_only_numbers_gets_a_warning(rows, few_rounds):
    X, y, sites = rows
    frame = pd.DataFrame({"a": X[:, 0], "dose": np.where(X[:, 1] > 0, "1.5", "2")})
    with pytest.warns(UserWarning, match="Column 'dose' has numbers as text, such as") as caught:
        model = FederatedRegressor("full-model", SMALL).fit(frame, y, sites=sites)
    assert [warning.filename for warning in caught] == [__file__]
    declared = FederatedRegressor("full-model", SMALL).fit(frame.astype({"dose": "category"}), y, sites=sites)
    np.testing.assert_array_equal(model.predict(frame), declared.predict(frame))


def test_frames_keep_index_columns_and_categories(rows, few_rounds):
    X, y, sites = rows
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"row {i}" for i in range(len(X))])
    frame["color"] = pd.Categorical(np.where(X[:, 1] > 0, 1, 2))
    frame["wet"] = X[:, 2] > 0
    frame["kind"] = np.where(X[:, 0] > 0, "p", "q")
    targets = pd.DataFrame({"PM2.5": y, "NO2": -y}, index=frame.index)
    model = FederatedRegressor(backbone=SMALL).fit(frame, targets, sites=pd.Series(sites, frame.index))
    predicted = model.predict(frame[5:9], sites=sites[5:9])
    assert predicted.index.equals(frame.index[5:9])
    assert list(predicted.columns) == ["PM2.5", "NO2"]
    names = model._predictor.encoding.input_names
    assert names == ("a", "b", "c", "color=1", "color=2", "wet=false", "wet=true", "kind=p", "kind=q")
    series = FederatedRegressor(backbone=SMALL).fit(frame, targets["NO2"], sites=sites).predict(frame[:3])
    assert series.name == "NO2"
    assert series.index.equals(frame.index[:3])
    with pytest.warns(UserWarning, match="training did not see count as no level: 'r' of 'kind'"):
        model.predict(frame[:1].assign(kind="r"), sites=sites[:1])


def test_a_target_may_have_the_name_of_an_input(rows, few_rounds):
    X, y, sites = rows
    frame = pd.DataFrame(X, columns=["price", "b", "c"])
    price = pd.Series(y, name="price")
    series = (
        FederatedRegressor("full-model", SMALL).fit(frame, price, sites=sites).predict(frame, sites=sites)
    )
    assert series.name == "price"
    plain = FederatedRegressor("full-model", SMALL).fit(frame, y, sites=sites)
    np.testing.assert_array_equal(series, plain.predict(frame, sites=sites))
    both = pd.DataFrame({"other": -y, "price": y})
    frames = FederatedRegressor("full-model", SMALL).fit(frame, both, sites=sites).predict(frame, sites=sites)
    assert list(frames.columns) == ["other", "price"]


# scikit-learn's tools


def test_routing_passes_sites_through_search_and_pipeline(rows, few_rounds):
    X, y, sites = rows
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedRegressor(backbone=SMALL).set_fit_request(sites=True)
        model = model.set_predict_request(sites=True).set_score_request(sites=True)
        pipeline = make_pipeline(StandardScaler(), model)
        grid = {
            "federatedregressor__procedure": ["full-model+moment-head", "full-model+moment-head+site-effects"]
        }
        search = GridSearchCV(pipeline, grid, cv=2, refit=False, error_score="raise")
        shuffled = np.random.default_rng(0).permutation(len(X))
        search.fit(X[shuffled], y[shuffled], sites=sites[shuffled])
        predicted = pipeline.fit(X, y, sites=sites).predict(X, sites=sites)
    assert search.best_params_["federatedregressor__procedure"].endswith("site-effects")
    assert np.corrcoef(predicted, y)[0, 1] > 0.9


def test_equal_seeds_give_equal_models_that_pickle(rows, few_rounds):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL, random_state=3).fit(X, y, sites=sites)
    predicted = model.predict(X, sites=sites)
    again = clone(model).fit(X, y, sites=sites)
    other = clone(model).set_params(random_state=4).fit(X, y, sites=sites)
    np.testing.assert_array_equal(again.predict(X, sites=sites), predicted)
    assert np.abs(other.predict(X, sites=sites) - predicted).max() > 1e-3
    content = pickle.dumps(model)
    np.testing.assert_array_equal(pickle.loads(content).predict(X, sites=sites), predicted)


def test_own_backbones(rows, few_rounds):
    X, y, sites = rows
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh())
    model = FederatedRegressor(backbone=module).fit(X, y, sites=sites)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X, sites=sites), model.predict(X, sites=sites))
    drawn = FederatedRegressor(backbone=lambda: nn.Linear(3, 4)).fit(X, y, sites=sites)
    assert drawn.predict(X).shape == y.shape


def test_one_model_may_have_a_rare_target(rows, few_rounds):
    X, _, _ = rows
    model = FederatedRegressor(backbone=SMALL).fit(X, np.eye(1, len(X))[0])
    assert model.predict(X).shape == (len(X),)


class Explosive(nn.Module):
    """A network whose loss soon overflows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, x):
        return torch.exp(60 * torch.relu(self.layer(x)))


def test_divergence_is_said(rows):
    X, y, sites = rows
    with pytest.warns(
        UserWarning, match=r"Training of 'full-model' diverged \(client .* in round 1\), so its"
    ):
        FederatedRegressor("full-model", Explosive).fit(X, y, sites=sites)


@pytest.mark.parametrize(
    "kind", ["number", "datetime64[D]", "text", "seconds", "zone", "text with a zone", "dates with a zone"]
)
def test_the_latest_rows_are_for_validation(rows, few_rounds, monkeypatch, kind):
    _, y, sites = rows
    days = np.random.default_rng(1).permutation(len(y))
    dates = np.datetime64("2020-01-01") + days
    time = {"number": days, "datetime64[D]": dates, "text": dates.astype(str).tolist(),
            "seconds": dates.astype("datetime64[s]").astype(int).astype(str),
            "zone": (zone := pd.Series(pd.DatetimeIndex(dates, tz="Asia/Tokyo"))),
            "text with a zone": zone.astype(str).tolist(),
            "dates with a zone": zone.dt.to_pydatetime().tolist()}[kind]  # fmt: skip
    problems = []

    def keep(problem, *others):
        problems.append(problem)
        return site_learning.learn(problem, *others)

    monkeypatch.setattr(regressor, "learn", keep)
    model = FederatedRegressor("full-model", SMALL)
    model.fit(pd.DataFrame({"day": days}), y, sites=sites, time=time)
    (problem,) = problems
    for part in problem.clients:
        train, validation = (each[part].inputs[:, 0] for each in (problem.train, problem.validation))
        assert train.max() < validation.min()


# Bad input


def test_bad_input_is_refused(rows, few_rounds):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL)
    holes = X.copy()
    holes[3, 1] = np.nan
    with pytest.raises(
        InputError,
        match=r"Column 'x1' has 1 missing value in 120 rows, first in row 4\. Fill NaN with impute",
    ):
        model.fit(holes, y, sites=sites)
    with pytest.raises(InputError, match="one name for each of 120 rows, not shape"):
        model.fit(X, y, sites=sites[:5])
    with pytest.raises(InputError, match="The site names 'site 0', 'site 0 ' differ only in blanks"):
        model.fit(X, y, sites=["site 0 ", *sites[1:]])
    with pytest.raises(InputError, match="1 of 120 rows has no site"):
        model.fit(X, y, sites=pd.Series([None, *sites[1:]], dtype="string"))
    with pytest.raises(InputError, match="1 of 120 rows has no site"):
        model.fit(X, y, sites=[np.nan, *sites[1:].tolist()])
    with pytest.raises(InputError, match=r"^The target y has text, first 'low'\. Pass numbers\.$"):
        model.fit(X, np.where(y > 0, "high", "low"), sites=sites)
    with pytest.raises(InputError, match=r"^y has several targets '1'\. Rename all but one\.$"):
        model.fit(X, pd.DataFrame({1: y, "1": -y}), sites=sites)
    with pytest.raises(InputError, match=r"^sites and X have different indexes, .* sites.loc\[X.index\]"):
        model.fit(pd.DataFrame(X), y, sites=pd.Series(sites)[::-1])
    with pytest.raises(InputError, match=r"^y and X have different indexes, .* Pass y.loc\[X.index\]"):
        model.fit(pd.DataFrame(X), pd.Series(y)[::-1], sites=sites)
    with pytest.raises(InputError, match="constant over all sites"):
        model.fit(X, np.ones(len(y)), sites=sites)
    with pytest.warns(UserWarning, match="'target 1' is constant at site 'site 0'"):
        model.fit(X, np.where(sites == "site 0", 1.0, y), sites=sites)
    with pytest.raises(InputError, match="time must have one value for each of 120 rows"):
        model.fit(X, y, sites=sites, time=[1, 2])
    for times in (["soon"] * 120, ["15-03-21"] * 120, [2016, "2017-01-01", 2015] * 40):
        with pytest.raises(InputError, match="time has values that are neither numbers nor dates"):
            model.fit(X, y, sites=sites, time=times)
    with pytest.raises(InputError, match="Site 'site 0' has 1 row without a time"):
        model.fit(X, y, sites=sites, time=[np.nan, *range(119)])
    with pytest.raises(InputError, match="Site 'site 0' has 1 row without a time"):
        model.fit(X, y, sites=sites, time=[np.nan, *["2016-03-01"] * 119])
    with pytest.raises(InputError, match="Unknown procedure 'fedavg'"):
        FederatedRegressor("fedavg").fit(X, y, sites=sites)


def test_scores_need_targets_in_the_order_of_the_rows(rows, few_rounds):
    X, y, sites = pd.DataFrame(rows[0]), pd.Series(rows[1]), rows[2]
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    assert model.score(X, y, sites=sites) == model.score(X, y[::-1].to_numpy()[::-1], sites=sites)
    with pytest.raises(InputError, match=r"^y and X have different indexes"):
        model.score(X, y[::-1], sites=sites)
    weights = pd.Series(np.arange(1.0, len(y) + 1))
    assert model.score(X, y, sites=sites, sample_weight=weights) < 1
    with pytest.raises(InputError, match=r"^sample_weight and X have different indexes"):
        model.score(X, y, sites=sites, sample_weight=weights[::-1])


def test_text_among_numbers_of_a_column_is_said(few_rounds):
    X, y, sites = make_rows(rows=20, sites=2)
    years = pd.Series(np.resize([9, 12, 16], len(y)), dtype=object)
    years[30] = "twelve"
    frame = pd.DataFrame({"x": X[:, 0], "education": years})
    said = "Column 'education' is read as categories because 1 of 40 values is text, such as 'twelve' at"
    with pytest.warns(UserWarning, match=said) as caught:
        FederatedRegressor(backbone=SMALL).fit(frame, y, sites=sites)
    assert caught[0].filename == __file__


def test_predictions_that_are_not_finite_are_refused(rows, few_rounds):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    model._predictor.own["head.bias"][1] = np.nan
    with pytest.raises(InputError, match="The prediction for row 41 is not finite"):
        model.predict(X, sites=sites)


def test_median_fills_missing_inputs_in_fit_and_predict(few_rounds, rows):
    X, y, sites = rows
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["season"] = np.where(X[:, 1] > 0, "dry", "wet")
    gaps = frame.copy()
    gaps.loc[::7, "b"] = np.nan
    gaps.loc[::9, "season"] = None
    model = FederatedRegressor(backbone=SMALL, impute="median").fit(gaps, y, sites=sites)
    medians = gaps.groupby(sites)["b"].median()
    counts = gaps.groupby(sites)["b"].count()
    order = medians.sort_values().index  # the row-weighted median of the sites' medians
    middle = medians[order][counts[order].cumsum() >= counts.sum() / 2].iloc[0]
    filled = gaps.fillna({"b": middle})
    np.testing.assert_allclose(model.predict(gaps, sites=sites), model.predict(filled, sites=sites))
    assert np.isfinite(model.predict(gaps[:3])).all()
    assert clone(model).impute == "median"
    assert sklearn.utils.get_tags(model).input_tags.allow_nan


def test_median_fills_missing_values_of_an_array(few_rounds, rows):
    X, y, sites = rows
    X = X.copy()
    X[::5, 2] = np.nan
    model = FederatedRegressor(backbone=SMALL, impute="median").fit(X, y, sites=sites)
    assert np.isfinite(model.predict(X, sites=sites)).all()
    X[3, 2] = np.inf
    with pytest.raises(InputError, match="Column 'x2' has 1 value too large"):
        model.predict(X, sites=sites)


def test_unknown_imputation_is_refused(few_rounds, rows):
    X, y, sites = rows
    with pytest.raises(InputError, match="Unknown imputation: 'mean'"):
        FederatedRegressor(backbone=SMALL, impute="mean").fit(X, y, sites=sites)


def test_one_name_for_all_rows_is_refused_with_a_remedy(few_rounds, rows):
    X, y, sites = rows
    model = FederatedRegressor(backbone=SMALL).fit(X, y, sites=sites)
    with pytest.raises(InputError, match=r"not 'site 0' for all.* \['site 0'\] \* len\(X\)"):
        model.predict(X, sites="site 0")
