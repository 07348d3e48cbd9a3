"""Round by round.

If sites return the optimal head closest to the broadcast, the Gram matrix of the shared head follows a
known recursion, eq. (9). It ends at the same barycenter from every start. GENERATED data:
`examples/three_sites.csv`.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from fedgram import Penalty, predict, read_moments

moments = read_moments("examples/three_sites.csv", client="site", targets=["east", "north"])
prediction = predict(moments, Penalty(features=0.1, head=0.1))
limit = prediction.barycenter.gram

# %%
# Three starts: wide to the east, tilted, and small.
starts = {
    "east": np.diag([2.5, 0.05]),
    "tilted": np.array([[1.5, 1.2], [1.2, 1.1]]),
    "small": 0.02 * np.eye(2),
}
paths = {name: prediction.trajectory(start, rounds=10) for name, start in starts.items()}


# %%
# An ellipse is the image of the unit circle under \(G^{1/2}\).
def outline(gram):
    angle = np.linspace(0, 2 * np.pi, 200)
    values, basis = np.linalg.eigh(gram)
    return (basis * np.sqrt(values)) @ basis.T @ np.stack([np.cos(angle), np.sin(angle)])


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), width_ratios=[4, 5], layout="constrained")
for gram in prediction.grams:
    left.plot(*outline(gram), color="0.75", lw=1)
for number, gram in enumerate(paths["east"][:4]):
    left.plot(*outline(gram), color="#2f6db5", lw=1.2, alpha=0.35 + 0.2 * number)
left.plot(*outline(limit), color="#1b7f4d", lw=2.5, label="barycenter")
left.plot(*outline(prediction.centralized), color="#22252a", ls="--", label="pooled training")
left.set(aspect="equal", xlabel="east", ylabel="north", title="Rounds 0 to 3 from the start 'east'")
left.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)

for (name, path), color in zip(paths.items(), ("#2f6db5", "#e08a1e", "#7d5ba6")):
    right.semilogy(
        np.linalg.norm(path - limit, axis=(1, 2)) / np.linalg.norm(limit),
        "o-",
        ms=4,
        color=color,
        label=f"start '{name}'",
    )
right.set(
    xlabel="round",
    ylabel="relative distance to the barycenter",
    title="Every start ends at the same Gram matrix",
)
right.legend(fontsize=8, frameon=False)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
