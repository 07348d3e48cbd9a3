"""Proximal weight.

A proximal weight ρ keeps heads close to the broadcast. It also moves the limit of training, from the
barycenter for small weights to G_within for large ones, eq. (B9). Lines are computed from the
clients' target moments, before any training. Points are trained networks (ResMLP, 4000 epochs a round), with
Beijing's air quality (REAL) and rollouts of Hopper (GENERATED).
"""

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedgram import Moments, Penalty, predict

RESULTS = Path("results/paper/results")
SETTINGS = {"beijing": "beijing", "hopper": "hopper-rollouts"}


def relative_error(gram, reference):
    return np.linalg.norm(gram - reference) / np.linalg.norm(reference)


# %%
# Networks with six weights, seed 0. The exact rounds begin with their start, round 0.
def read_networks(setting):
    runs = pd.concat(
        [pd.read_parquet(file) for file in RESULTS.glob(f"paper-{setting}-*-E4000-rounds8.parquet")]
    )
    runs = runs[(runs.seed == 0) & runs.procedure.str.fullmatch("proximal(=.*)?")]
    weight = runs.procedure.str.partition("=")[2].replace("", "0.001").astype(float)
    return runs.assign(weight=weight)


def start_of(runs):
    gram = runs[runs["round"] == 0].grams.iloc[0]
    return np.reshape(gram, (int(len(gram) ** 0.5), -1))


# %%
# The limit moves away from the barycenter as the weight grows. Large weights need more than eight rounds.
figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
weights = np.logspace(-5.3, 1.3, 45)
for axis, (setting, dataset) in zip(axes, SETTINGS.items()):
    prediction = predict(Moments.load(RESULTS / f"moments-{dataset}.json"), Penalty())
    networks = read_networks(setting)
    star, within = prediction.barycenter.gram, prediction.within
    limits = [prediction.proximal_limit(weight) for weight in weights]
    after = [prediction.trajectory(start_of(networks), 8, weight)[-1] for weight in weights]
    axis.loglog(weights, [relative_error(gram, star) for gram in limits], color="#2f6db5", label="limit")
    axis.loglog(
        weights, [relative_error(gram, star) for gram in after], "--", color="#2f6db5", label="after 8 rounds"
    )
    axis.axhline(relative_error(within, star), color="0.6", lw=0.8, label="$G_{within}$")
    ends = networks[networks["round"] == 8]
    axis.loglog(ends.weight, ends.error_barycenter, "o", color="#e08a1e", label="networks after 8 rounds")
    axis.set(xlabel="proximal weight ρ", title=setting.capitalize(), ylim=(3e-6, 1))
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("relative distance to the barycenter")
axes[0].legend(fontsize=8, frameon=False, loc="upper left")

# %%
# From ρ = 10⁻³ on, networks end where the dashed line says. With smaller weights their heads drift, which the
# prediction excludes.
