"""Trained networks.

Small networks, trained by federated averaging on a CPU, next to where theory says they end. GENERATED data:
four clients with 100 rows each whose targets are a smooth function of the inputs.
"""

# %%
# Each client has its own range of inputs, so that its targets have their own mean and covariance.
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from torch import nn

from fedgram import Penalty, Problem, TrainConfig, measure, train

rng = np.random.default_rng(0)
inputs = {f"site {m}": rng.normal(loc=0.5 * m - 0.75, size=(100, 3)) for m in range(4)}
targets = {name: np.tanh(x[:, :2] + 0.5 * x[:, 1:]) for name, x in inputs.items()}
problem = Problem.from_arrays(inputs, targets, name="four sites", kind="GENERATED")


# %%
# One call trains all procedures and seeds as one stack of networks.
def network():
    return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 128), nn.Tanh())


procedures = ["proximal", "proximal+corrected", "solved", "solved+corrected"]
config = TrainConfig(rounds=5, epochs=40, batch=50, features=16, penalty=Penalty(0.01, 0.01))
runs = train(problem, network, procedures, range(2), config, folder=tempfile.mkdtemp())

# %%
# The relative error of the shared head's Gram matrix to its predicted limit. Solved returns get there soon,
# because they minimize over the last layers exactly. The others need more epochs.
figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
COLORS = dict(zip(procedures, ("#2f6db5", "#e08a1e", "#1b7f4d", "#22252a")))
for run in runs:
    measured, name = measure(run), run.setup.procedure.name
    label = (
        f"{name}, to {'pooled training' if 'corrected' in name else 'the barycenter'}"
        if run.setup.run.seed == 0
        else None
    )
    axis.semilogy(measured.error[measured.expected.target], "o-", ms=3.5, color=COLORS[name], label=label)
axis.set(xlabel="round", ylabel="relative error of the Gram matrix", title="Two seeds each")
axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
axis.spines[["top", "right"]].set_visible(False)
