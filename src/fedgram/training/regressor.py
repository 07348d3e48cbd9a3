"""Federated regression as a scikit-learn estimator."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import number_targets, pluralize
from fedgram.data.columns import (
    as_column,
    check_present,
    is_missing,
    level_name,
    parse_column,
    parse_levels,
)
from fedgram.data.holdout import MIN_ROWS_OF_SMALL_SITES, MIN_SITE_ROWS, least_divided
from fedgram.data.site_problem import build_site_problem
from fedgram.data.site_summary import Impute, is_number
from fedgram.data.stray_text import find_numbers_as_text
from fedgram.nets.model import Backbone, default_name
from fedgram.runs.advice import AUTO, FEDAVG, POOLED
from fedgram.runs.procedure import Procedure
from fedgram.theory.validation import check_names
from fedgram.training.site_learning import Plan, choose_plan, count_training_rows, learn
from fedgram.training.site_predictor import SitePredictor

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils import Tags, check_array, check_consistent_length, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise InputError(
        'FederatedRegressor needs scikit-learn 1.6: pip install "fedgram[train]".', field="sklearn"
    ) from None


class FederatedRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Regression for rows that belong to sites.

    `fit` simulates the federation: each site's rows train its own models, and only models and sums are
    combined. Inputs and targets are standardized with pooled moments; predictions are in the targets' units.

    Parameters
    ----------
    procedure : str
        "auto" trains a shared network with a moment head and site effects, and mixes it at each site with the
        site's own network; validation rows choose the share. Otherwise words as for `Procedure.parse`, such
        as "local", "full-model" or "full-model+moment-head+site-effects".
    backbone : str, module or function, optional
        Network before the last feature layer: a name, a torch module, or a function that returns one. By
        default validation rows choose its size.
    random_state : int, RandomState or None
        Seed of initial weights, row order and validation rows. Equal integers give equal results.
    impute : {"median", None}
        "median" fills missing inputs, as `--impute median` of `fedgram advise` does: a number becomes the
        row-weighted median of the sites' medians, a category has no level. None refuses missing inputs.

    Attributes
    ----------
    sites_ : tuple of str
        Names of the sites that took part; empty if `fit` got none.
    procedure_ : str
        Procedure that was trained: "centralized" for rows of a single site.
    backbone_ : str
        Name of the backbone that was trained.
    local_share_ : dict from str to float
        Share of each site's own network in its predictions; 0 everywhere unless the procedure is blended.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram import FederatedRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.standard_normal((60, 2)), np.repeat(["coast", "ridge"], 30)
    >>> y = X[:, 0] + 3.0 * (sites == "ridge")
    >>> model = FederatedRegressor(backbone="wide-deep-64").fit(X, y, sites=sites)
    >>> model.predict(X, sites=sites).shape
    (60,)
    >>> model.score(X, y, sites=sites) > 0.9
    True
    """

    def __init__(
        self,
        procedure: str = "auto",
        backbone: Backbone | None = None,
        random_state: Any = 0,
        impute: Impute = None,
    ) -> None:
        self.procedure = procedure
        self.backbone = backbone
        self.random_state = random_state
        self.impute = impute

    def fit(self, X: Any, y: Any, sites: Any = None, time: Any = None) -> FederatedRegressor:
        """Train the models of all sites.

        Parameters
        ----------
        X : array or data frame (N, D)
            Numbers; columns of data frames may also be categories, text or booleans.
        y : array, series or data frame (N,) or (N, C)
            Targets. If X is a data frame, a series or data frame has its index, as series of sites and times.
        sites : sequence (N,), optional
            Site of each row. Without it, or with a single site, one model is trained on all rows.
        time : sequence (N,), optional
            Time of each row, as numbers or dates, or as text such as "2016-03-01". The latest rows of each
            site are then the validation rows, not random ones: pass it to predict later rows.

        Returns
        -------
        FederatedRegressor
            This estimator.

        Raises
        ------
        InputError
            If targets, or inputs without `impute`, are missing, a row has no site or time, a target is text
            or constant, indexes differ, or the procedure is unknown.
        """
        if y is None:
            raise InputError("fit() requires y to be passed, but the target y is None.", field="y")
        inputs, targets = self._read_inputs(X, reset=True), self._read_targets(y)
        check_consistent_length(X, y)
        _check_same_index(X, y=y, sites=sites, time=time)
        names, by_site = _divide_rows(sites, next(iter(targets.values())))
        if len(names) > 1:
            _check_variation(targets, by_site)
        procedure, seed = self._choose_procedure(names, by_site), self._draw_seed()
        self._target_names = list(targets)
        targets = _rename_shared(targets, inputs)
        columns, clock = {**inputs, **targets}, None
        if time is not None:
            clock = max(columns, key=len) + " time"  # no other column has this name
            columns[clock] = _read_times(time, len(next(iter(targets.values()))))
        problem, encoding = build_site_problem(
            {site: {name: each[rows] for name, each in columns.items()} for site, rows in by_site.items()},
            inputs=list(inputs),
            targets=list(targets),
            impute=self.impute,
            time=clock,
            test_fraction=0.0,
            seed=seed,
            on_warning=partial(warnings.warn, stacklevel=3),  # at the line that calls fit
        )
        has_validation = any(len(split) for split in problem.validation.values())
        if self.backbone is None and has_validation:
            learned = choose_plan(problem, procedure, seed)
        else:
            plan = Plan.from_backbone(self.backbone, training_rows=count_training_rows(problem))
            learned = learn(problem, plan, [procedure], seed)
        for sentence in learned.problems:
            warnings.warn(sentence, stacklevel=2)
        self._predictor = SitePredictor.from_learned(learned, procedure, encoding, names)
        self.sites_, self.procedure_ = names, procedure
        self.backbone_ = default_name(learned.plan.backbone)
        self.local_share_ = dict(zip(names, self._predictor.shares.tolist(), strict=True))
        return self

    def predict(self, X: Any, sites: Any = None) -> Any:
        """Predict rows in the targets' units.

        Parameters
        ----------
        X : array or data frame (N, D)
        sites : sequence (N,), optional
            Site of each row. Rows of other sites, with a warning, and all rows without it get the shared
            model.

        Returns
        -------
        array (N,) or (N, C)
            As the targets of `fit`; a series or data frame with the index of X if X is a pandas.DataFrame.

        Raises
        ------
        InputError
            If values are missing without `impute`, or the procedure has no shared model for the sites.
        """
        check_is_fitted(self)
        inputs = self._read_inputs(X, reset=False)
        _check_same_index(X, sites=sites)
        rows = len(next(iter(inputs.values())))
        by_site: Mapping[Any, Array] = {None: np.arange(rows)} if sites is None else _group_rows(sites, rows)
        predicted = self._predictor.predict(inputs, by_site)
        if not hasattr(X, "iloc"):
            return predicted[:, 0] if self._is_flat else predicted
        from pandas import DataFrame

        frame = DataFrame(predicted, index=X.index, columns=self._target_names)
        return frame.iloc[:, 0] if self._is_flat else frame

    def score(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> float:
        """Return R² of the predictions, averaged over targets; sample_weight (N,) weights rows."""
        _check_same_index(X, y=y, sample_weight=sample_weight)
        return float(r2_score(y, self.predict(X, sites=sites), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.allow_nan = self.impute is not None
        return tags

    def _read_inputs(self, X: Any, *, reset: bool) -> dict[str, Array]:
        """Return columns (N,) by name; without `impute`, reject missing values."""
        if len(names := getattr(X, "columns", ())) and all(isinstance(name, str) for name in names):
            validate_data(self, X, reset=reset, skip_check_array=True)
            columns = {name: _to_array(X[name]) for name in names}
        else:
            values = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=int(reset)
            )
            names = getattr(self, "feature_names_in_", [f"x{d}" for d in range(values.shape[1])])
            columns = dict(zip(names, values.T, strict=True))
        parsed = {name: parse_column(columns, name, "") for name in columns}
        texts = {name: each for name, each in parsed.items() if each.dtype.kind == "U"}  # only of data frames
        undeclared = {name: each for name, each in texts.items() if not _is_category(X[name])}
        for sentence in find_numbers_as_text(undeclared) if reset else ():
            warnings.warn(sentence, stacklevel=3)  # at the line that calls fit
        for name, each in parsed.items() if self.impute is None else ():
            check_present(each, name, "", "Fill NaN with impute='median', or drop the rows.")
        return parsed

    def _read_targets(self, y: Any) -> dict[str, Array]:
        """Return targets (N,) by name."""
        try:
            values = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        except ValueError:
            if (text := _find_text(y)) is not None:
                raise InputError(
                    f"The target y has text, first '{text[:40]}'. Pass numbers.", field="y"
                ) from None
            raise
        self._is_flat = values.ndim == 1
        values = values.reshape(len(values), -1)
        own = getattr(y, "columns", None)
        names: Sequence[Any] = [getattr(y, "name", None)] if own is None else list(own)
        if len(names) != values.shape[1] or None in names:
            names = number_targets(values.shape[1])
        names = list(map(str, names))
        if same := [name for name in names if names.count(name) > 1]:
            raise InputError(f"y has several targets '{same[0]}'. Rename all but one.", field="y")
        return dict(zip(names, values.T, strict=True))

    def _choose_procedure(self, sites: Sequence[str], by_site: Mapping[str, Array]) -> str:
        counts = [len(rows) for rows in by_site.values()]
        has_validation = max(counts) >= least_divided(counts)
        procedure = Procedure.parse(AUTO if self.procedure == "auto" else self.procedure)
        if len(sites) < 2:
            return POOLED
        if procedure.needs_validation and not has_validation:
            if self.procedure == "auto":
                return FEDAVG  # the only procedure with a shared model that chooses nothing
            raise InputError(
                f"'{procedure.name}' needs a site with at least {MIN_ROWS_OF_SMALL_SITES} rows, to choose "
                "strengths on validation rows. Use procedure='auto'.",
                field="procedure",
            )
        return procedure.name

    def _draw_seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _to_array(column: Any) -> Array:
    """Convert a column of a data frame; categories become text, also those that are numbers."""
    if _is_category(column):
        return np.array([level_name(value) for value in column], dtype=np.str_)
    return np.asarray(column)


def _is_category(column: Any) -> bool:
    return str(column.dtype) == "category"


def _find_text(values: Any) -> str | None:
    """Return the first value that is text but no number."""
    found = np.asarray(values, dtype=object).ravel()
    return next((value for value in found if isinstance(value, str) and not is_number(value)), None)


def _rename_shared(targets: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Rename targets that have the name of an input, as later values of a column do: one table has both."""
    known, renamed = {*inputs, *targets}, dict[str, Array]()
    for name, values in targets.items():
        new = name
        while new in inputs or (new != name and new in known):
            new += " (target)"
        renamed[new] = values
    return renamed


def _check_same_index(X: Any, **given: Any) -> None:
    """Reject series whose index is not that of the data frame X: rows are matched by position."""
    for name, values in given.items():
        if hasattr(X, "iloc") and hasattr(values, "iloc") and not X.index.equals(values.index):
            raise InputError(
                f"{name} and X have different indexes, but rows are matched by position. Pass "
                f"{name}.loc[X.index], or {name}.to_numpy() if their order is the same.",
                field=name,
            )


def _group_rows(sites: Any, rows: int) -> dict[str, Array]:
    """Return the rows of each site, by name in alphabetic order."""
    if isinstance(sites, str):
        raise InputError(
            f"sites must have one name for each of {pluralize(rows, 'row')}, not '{sites}' for all. Pass a "
            f"column, such as X['{sites}'], or repeat the name: ['{sites}'] * len(X).",
            field="sites",
        )
    values = as_column(sites)
    if values.shape != (rows,):
        raise InputError(
            f"sites must have one name for each of {pluralize(rows, 'row')}, not shape {values.shape}.",
            field="sites",
        )
    names = parse_levels({"sites": values}, "sites", "")
    if missing := int(is_missing(names).sum()):
        raise InputError(
            f"{missing:,} of {pluralize(rows, 'row')} {'has' if missing == 1 else 'have'} no site. Name the "
            "site, or drop the rows.",
            field="sites",
        )
    unique, number, counts = np.unique(names, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    parts = np.split(order, np.cumsum(counts))[:-1]  # no row is left after the last site
    return dict(zip(unique.tolist(), parts, strict=True))


def _read_times(time: Any, rows: int) -> Array:
    """Return times (N,) as numbers or datetime64."""
    values = as_column(time)
    if values.shape != (rows,):
        raise InputError(
            f"time must have one value for each of {pluralize(rows, 'row')}, not shape {values.shape}.",
            field="time",
        )
    if values.dtype.kind in "iufM":
        return values
    try:
        if any(isinstance(value, (str, bytes, Real)) for value in values.tolist()):
            return _parse_times(values)
        return _to_utc(np.asarray(time))
    except (TypeError, ValueError):
        raise InputError(
            "time has values that are neither numbers nor dates such as 2016-03-01. Convert them.",
            field="time",
        ) from None


def _parse_times(values: Array) -> Array:
    """Return text (N,) as numbers if all of it is, else as dates: NumPy alone takes 20160301 as a year."""
    parsed = parse_column({"time": values}, "time", "")
    is_known = ~is_missing(parsed)
    with suppress(ValueError):
        return np.where(is_known, parsed, "nan").astype(np.float64)
    if not all(map(re.compile(r"\d{4}-").match, parsed[is_known].tolist())):
        raise ValueError
    return _to_utc(np.where(is_known, parsed, "NaT"))


def _to_utc(values: Array) -> Array:
    """Return dates, or text of dates, (N,) as datetime64 in UTC; NumPy warns of every time zone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no explicit representation of timezones")
        return values.astype("datetime64[us]")


def _check_variation(targets: Mapping[str, Array], by_site: Mapping[str, Array]) -> None:
    """Warn of a target that is constant at a site: it may be a wrong column. Few rows may agree."""
    for name, values in targets.items():
        for site, rows in by_site.items():
            if len(rows) >= MIN_SITE_ROWS and np.ptp(values) > np.ptp(values[rows]) == 0:
                warnings.warn(f"Target '{name}' is constant at site '{site}'. Check it.", stacklevel=3)


def _divide_rows(sites: Any, first_target: Array) -> tuple[tuple[str, ...], dict[str, Array]]:
    """Return the names of the sites, and the rows of each client.

    A problem has at least two clients. Rows of a single site are divided over two, which centralized training
    pools again. Neighbors in the order of the first target (N,) are separated, so that neither half is
    constant.
    """
    rows = len(first_target)
    by_site = {} if sites is None else _group_rows(sites, rows)
    texts = sorted({each for each in as_column(sites).ravel().tolist() if isinstance(each, str)})
    check_names(tuple(texts), len(texts), "site")
    if len(by_site) > 1:
        return tuple(by_site), by_site
    if rows < 2:
        raise InputError(f"Cannot train on {pluralize(rows, 'sample')}. Pass more rows.", field="X")
    order = np.argsort(first_target, kind="stable")
    return tuple(by_site), {"half 1": np.sort(order[::2]), "half 2": np.sort(order[1::2])}
