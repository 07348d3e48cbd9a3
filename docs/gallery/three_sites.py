"""Three causes of one gap.

Federated averaging of a head ends elsewhere than pooled training, for three reasons. This script makes
sites differ in one way at a time, and shows which term of the gap grows. GENERATED moments.
"""

# %%
# Three sites around a circle. `apart` moves their means, `turned` rotates their covariances against each
# other, and `stretched` makes one of them vary more.
import matplotlib.pyplot as plt
import numpy as np

from fedgram import Moments, Penalty, explain, predict


def sites(apart=0.0, turned=0.0, stretched=1.0):
    angles = np.radians([90.0, 210.0, 330.0])
    means = apart * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    covariances = []
    for direction in turned * np.array([-1.0, 0.0, 1.0]):
        c, s = np.cos(direction), np.sin(direction)
        axes = np.array([[c, -s], [s, c]])
        covariances.append(axes @ np.diag([2.0, 0.4]) @ axes.T)
    covariances[0] = covariances[0] * stretched
    return Moments(count=[100] * 3, mean=means, covariance=covariances)


# %%
# The traces of the three terms, eq. (11), relative to the trace of the centralized Gram matrix.
CAUSES = ("different means", "different covariances", "averaging heads")
COLORS = ("#2f6db5", "#e08a1e", "#1b7f4d")
penalty = Penalty(features=0.1, head=0.1)


def shares(moments):
    prediction = predict(moments, penalty)
    return explain(prediction).traces / np.trace(prediction.centralized)


# %%
# One panel per difference. Means cause the first term alone. Turning and stretching the covariances cause
# the other two.
panels = {
    "distance of means": [(x, sites(apart=x)) for x in np.linspace(0, 2, 25)],
    "angle between covariances": [(np.degrees(x), sites(turned=x)) for x in np.linspace(0, np.pi / 3, 25)],
    "variance of one site, times": [(x, sites(stretched=x)) for x in np.linspace(1, 8, 25)],
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for axis, (label, problems) in zip(axes, panels.items()):
    x = [at for at, _ in problems]
    axis.stackplot(
        x, np.array([shares(moments) for _, moments in problems]).T, labels=CAUSES, colors=COLORS, alpha=0.85
    )
    axis.set(xlabel=label, xlim=(x[0], x[-1]))
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("gap / trace of $G_{cen}$")
axes[0].legend(loc="upper left", fontsize=8, frameon=False)
