"""Small GENERATED tables under the names that pages use for a reader's own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 60  # per site; enough for validation and test rows


def write_example_tables(folder: Path) -> None:
    """Write visits.csv, data.csv, new.csv, measurements.parquet, own.csv and oslo.csv."""
    rng = np.random.default_rng(0)
    _visits(rng).to_csv(folder / "visits.csv", index=False)
    data = _measurements(rng, ("a", "b", "c"), ("y1", "y2"))
    data.to_csv(folder / "data.csv", index=False)
    data.drop(columns=["y1", "y2"]).head(5).to_csv(folder / "new.csv", index=False)
    air = _measurements(rng, ("wind",), ("pm25", "no2"))
    air[["pm25", "no2"]] = 40 + 12 * air[["pm25", "no2"]]
    air.to_parquet(folder / "measurements.parquet")
    for name in ("own.csv", "oslo.csv"):
        air[air["site"] == "oslo"].to_csv(folder / name, index=False)


def _visits(rng: np.random.Generator) -> pd.DataFrame:
    """Visits at three hospitals: the outcome depends on age, sex and dose, and on the hospital."""
    hospitals = np.repeat(["Bergen", "Oslo", "Tromsø"], ROWS)
    size = len(hospitals)
    age, dose, sex = rng.uniform(20, 80, size), rng.uniform(0, 10, size), rng.choice(["F", "M"], size)
    level = np.repeat([0.0, 4.0, 8.0], ROWS)
    outcome = 50 - 0.2 * age + 2 * dose + 3 * (sex == "F") + level + rng.normal(0, 3, size)
    days = np.tile(pd.date_range("2025-01-01", periods=ROWS).strftime("%Y-%m-%d"), 3)
    return pd.DataFrame(
        {"hospital": hospitals, "date": days, "age": age.round(), "sex": sex, "dose": dose.round(1),
         "outcome": outcome.round(1)}
    )  # fmt: skip


def _measurements(
    rng: np.random.Generator, inputs: tuple[str, ...], targets: tuple[str, ...]
) -> pd.DataFrame:
    """Measurements at three sites that differ in mean and covariance."""
    sites = np.repeat(["bergen", "oslo", "tromso"], ROWS)
    x = rng.standard_normal((len(sites), len(inputs)))
    shift = np.repeat([0.0, 0.5, 1.0], ROWS)[:, None]
    noise = rng.standard_normal((len(sites), len(targets))) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = np.tanh(x[:, :1]) + shift + (0.3 + 0.3 * shift) * noise
    columns = dict(zip((*inputs, *targets), np.hstack([x, y]).T.round(3), strict=True))
    return pd.DataFrame({"site": sites} | columns)
