"""Twelve stations.

What would a shared head with a shared bias do to predictions of air quality at 12 stations in Beijing? REAL
data: the bundled dataset `beijing-stations`, rows before March 2016.
"""

# %%
# Means and covariances of two targets per station are all that the prediction needs. Rows of a station are
# a time series, so intervals resample blocks of rows.
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np

from fedgram import Penalty, effects, intervals, predict
from fedgram.data.resampling import row_sampler
from fedgram.data.tables.read_sample import read_sample

stations = files("fedgram") / "data/datasets/embedded/beijing_stations.csv.gz"
sample = read_sample(
    str(stations), client="station", targets=["PM2.5", "NO2"], where="time < '2016-03-01'", time=["time"]
)
moments = sample.moments
prediction = predict(moments, Penalty(features=0.01, head=0.01))

# %%
# With the shared bias, a station that is cleaner than the average gets predictions that are too high. Bars
# are 95 % intervals.
error = effects(prediction).shared.mean_error
bounds = intervals(prediction, sampler=row_sampler(sample.rows, moments.count, in_time=True)).mean_error
order = np.argsort(error[:, 0])

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for axis, target, color, c in zip(axes, moments.targets, ("#2f6db5", "#e08a1e"), range(2)):
    low, high = np.moveaxis(bounds[order, c], -1, 0)
    axis.hlines(range(12), low, high, color=color, lw=5, alpha=0.35)
    axis.plot(error[order, c], range(12), "o", color=color, ms=5)
    axis.axvline(0, color="0.5", lw=0.8)
    axis.set(
        xlabel=f"mean error of {target} (µg/m³)",
        yticks=range(12),
        yticklabels=[moments.clients[m] for m in order],
    )
    axis.spines[["top", "right"]].set_visible(False)
