"""Standardize a federation's columns with moments pooled over sites.

A number x becomes (x − μ) / σ, with the mean μ and variance σ² (1/N) of all N training rows:

    N μ = Σ_m N_m μ_m,    N σ² = Σ_m N_m (σ_m² + (μ_m − μ)²)

Sites send N_m, μ_m and σ_m² of every column, or add N_m μ_m and N_m (σ_m² + μ_m²) to secure sums. Inputs are
clipped at ±CLIP, and inputs that are constant become 0, as in `fedgram.data.encoding`. I inputs, C targets,
M sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fedgram._util.arrays import SMALLEST_SQUARE, Array
from fedgram._util.errors import InputError
from fedgram._util.text import tiny_column_message
from fedgram.data.column_notes import constants_message
from fedgram.data.encoded_columns import NO_EFFECT
from fedgram.data.encoding import CLIP
from fedgram.data.split import Split
from fedgram.federation.secure_sums import SCALE
from fedgram.flower.site import Site

PREFIX = "scaling."
"""Prefix of the arrays in requests and in a site's model file."""


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Moments of a site's training rows: mean and variance (1/N) of I inputs and of C targets, all (I + C,).

    The targets' variances are the diagonal of the covariance that every site sends.
    """

    rows: int
    mean: Array
    variance: Array

    def numbers(self) -> list[Fraction]:
        """Return N_m, N_m μ_m and N_m (σ_m² + μ_m²), 1 + 2 (I + C) exact numbers of a secure sum."""
        rows = Fraction(self.rows)
        mean, variance = ([Fraction(value) for value in each.tolist()] for each in (self.mean, self.variance))
        squares = (spread + center**2 for center, spread in zip(mean, variance, strict=True))
        return [rows, *(rows * value for value in (*mean, *squares))]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Pooled means and standard deviations of inputs (I,) and targets (C,); a constant has deviation 1."""

    input_mean: Array
    input_scale: Array
    target_mean: Array
    target_scale: Array

    @classmethod
    def pool(cls, moments: Sequence[ColumnMoments], inputs: int) -> Scaling:
        """Pool the moments of all sites; the first `inputs` columns are inputs."""
        rows = np.array([each.rows for each in moments], np.float64)[:, None]
        mean, variance = (
            np.stack([getattr(each, name) for each in moments]) for name in ("mean", "variance")
        )
        # Differences from the first site's mean: that of a constant column is exactly 0.
        offset = (rows * (mean - mean[0])).sum(axis=0) / rows.sum()
        spread = (rows * (variance + (mean - mean[0] - offset) ** 2)).sum(axis=0) / rows.sum()
        is_constant = np.all((mean == mean[0]) & (variance == 0), axis=0)
        for number in np.flatnonzero((spread < 2 * SMALLEST_SQUARE) & ~is_constant).tolist():
            raise InputError(tiny_column_message(_number_column(number, inputs)), field="inputs")
        return cls._from_columns(mean[0] + offset, spread, inputs)

    @classmethod
    def from_total(
        cls,
        numbers: Sequence[Fraction],
        inputs: int,
        on_warning: Callable[[str], None] = lambda sentence: None,
        names: Sequence[str] = (),
    ) -> Scaling:
        """Compute pooled moments from the total of all sites' `ColumnMoments.numbers`.

        `on_warning` receives a sentence for each input or target that counts as constant. `names` are those
        of all columns.
        """
        rows, *sums = numbers
        columns = len(sums) // 2
        mean = [each / rows for each in sums[:columns]]
        spread = [each / rows - center**2 for each, center in zip(sums[columns:], mean, strict=True)]
        # Secure sums round to multiples of 1 / SCALE, so a constant may have a variance of this size.
        rounding = [(1 + 2 * abs(center)) / SCALE for center in mean]
        spread = [each if each > size else Fraction(0) for each, size in zip(spread, rounding, strict=True)]
        names = names or [_number_column(number, inputs) for number in range(columns)]
        sizes = dict(zip(names, rounding, strict=True))
        for name in find_constants(names, [not each for each in spread]):
            on_warning(
                f"{name} counts as constant: its variance is below {float(sizes[name]):.1g}, to which secure "
                "sums are rounded. If it varies, multiply it by a large number."
            )
        return cls._from_columns(np.array(mean, np.float64), np.array(spread, np.float64), inputs)

    @classmethod
    def _from_columns(cls, mean: Array, variance: Array, inputs: int) -> Scaling:
        constant = np.where(np.arange(len(mean)) < inputs, NO_EFFECT, 1.0)
        scale = np.where(variance > 0, np.sqrt(variance), constant)
        return cls(mean[:inputs], scale[:inputs], mean[inputs:], scale[inputs:])

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Scaling | None:
        """Find a scaling among other arrays; None if there is none."""
        names = [each.name for each in fields(cls)]
        if not all(PREFIX + name in arrays for name in names):
            return None
        return cls(*(np.asarray(arrays[PREFIX + name], np.float64) for name in names))

    def to_arrays(self) -> dict[str, Array]:
        """Name the arrays for requests and files."""
        return {PREFIX + name: value for name, value in asdict(self).items()}

    def document(self) -> dict[str, Any]:
        """Convert to JSON values, which `from_document` reads."""
        return {name: value.tolist() for name, value in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Scaling:
        """Read what `document` wrote."""
        return cls(**{name: np.array(value, np.float64) for name, value in document.items()})

    def describe_constants(self, names: Sequence[str]) -> str | None:
        """Name inputs with one value in all training rows, if there are any; names (I,) of their columns."""
        constant = find_constants(names, (self.input_scale == NO_EFFECT).tolist())
        return constants_message(constant) if constant else None

    def encode_inputs(self, inputs: Array) -> Array:
        """Standardize inputs (N, I), and clip them at ±CLIP."""
        if np.shape(inputs)[1:] != self.input_mean.shape:
            raise InputError(
                f"Inputs have shape {np.shape(inputs)}, but the network was trained on "
                f"{len(self.input_mean)} columns. Pass the columns of its federation.",
                field="inputs",
            )
        numbers = np.asarray(inputs, np.float64)
        return np.clip((numbers - self.input_mean) / self.input_scale, -CLIP, CLIP)

    def find_clipped(self, inputs: Array, is_level: Sequence[bool] | bool = False) -> Array:
        """Find the rows (N,) that `encode_inputs` clips in columns (I,) of numbers, not of levels."""
        away = np.abs((np.asarray(inputs) - self.input_mean) / self.input_scale)
        return np.any((away > CLIP) & ~np.asarray(is_level), axis=1)

    def decode_targets(self, values: Array) -> Array:
        """Convert standardized predictions (N, C) to the targets' units."""
        return values * self.target_scale + self.target_mean

    def encode_moments(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Standardize a mean (C,) and a covariance (C, C) of targets."""
        scale = self.target_scale
        return (mean - self.target_mean) / scale, covariance / np.outer(scale, scale)

    def encode_site(self, site: Site) -> Site:
        """Standardize all rows of a site."""
        return replace(
            site,
            train=self._encode(site.train),
            test=site.test and self._encode(site.test),
            validation=site.validation and self._encode(site.validation),
        )

    def _encode(self, split: Split) -> Split:
        targets = (split.targets - self.target_mean) / self.target_scale
        return Split(self.encode_inputs(split.inputs), targets)


def measure_columns(site: Site) -> ColumnMoments:
    """Compute what a site sends to standardize columns; raise InputError for inputs that are not columns."""
    inputs = site.train.inputs
    if inputs.ndim != 2 or inputs.dtype.kind != "f":
        raise InputError(
            f"Cannot standardize inputs of type {inputs.dtype} and shape {inputs.shape}. Set 'standardize' "
            "to false in the run config.",
            field="standardize",
        )
    columns = np.hstack([inputs.astype(np.float64), site.train.targets])
    first = columns[0]
    mean = first + (columns - first).mean(axis=0)  # that of a constant is the constant
    variance = ((columns - mean) ** 2).mean(axis=0)
    # A column whose squares become 0 is no constant.
    varies = (columns != first).any(axis=0)
    return ColumnMoments(len(columns), mean, np.where(varies, np.maximum(variance, SMALLEST_SQUARE), 0.0))


def name_inputs(row_selection: Mapping[str, Any], columns: int) -> list[str]:
    """Return the input of each column, quoted, or its number if the run config has other inputs.

    A category has a column for every level.
    """
    levels = row_selection.get("categories", {})
    names = [f"'{name}'" for name in row_selection.get("inputs", ()) for _ in levels.get(name, [name])]
    return names if len(names) == columns else [_number_column(each, columns) for each in range(columns)]


def find_constants(names: Sequence[str], is_constant: Sequence[bool]) -> list[str]:
    """Return the names whose columns are all constant."""
    varying = {name for name, constant in zip(names, is_constant, strict=True) if not constant}
    return [name for name in dict.fromkeys(names) if name not in varying]


def _number_column(number: int, inputs: int) -> str:
    return f"Input {number + 1}" if number < inputs else f"Target {number - inputs + 1}"
