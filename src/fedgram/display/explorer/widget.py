"""The explorer as a notebook widget (extra `notebook`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram.display.explorer.page import bundle, describe_data, style
from fedgram.display.explorer.presets import presets
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.privacy import Privacy

try:
    import anywidget
    import traitlets
except ImportError:
    raise InputError(
        "The notebook widget needs anywidget. Install it with pip install 'fedgram[notebook]'.",
        field="notebook",
    ) from None

# What travels between Python and the page is the state of the explorer: moments, penalties and strength.
RENDER = """
function render({ model, el }) {
  let isOwn = false;
  const explorer = mount(el.appendChild(document.createElement("div")), {
    presets: model.get("presets"),
    initial: model.get("state"),
    onSettle: ({ state }) => {
      isOwn = true;
      model.set("state", {
        name: state.name, caption: state.caption, document: momentsDocument(state.moments), ...state.penalty,
        strength: state.strength, start: [...state.start],
      });
      model.save_changes();
      isOwn = false;
    },
  });
  const follow = () => isOwn || explorer.attempt(() => explorer.open(model.get("state")));
  model.on("change:state", follow);
  return () => {
    model.off("change:state", follow);
    explorer.close();
  };
}
export default { render };
"""


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer in a notebook; its moments, penalty and strength follow what is dragged.

    Parameters
    ----------
    moments
        Moments of 2 to 60 clients with at most 6 targets; the paper's instance by default.
    penalty
        λ_H and λ_W; `Penalty()` by default.
    strength
        γ in [0, 1].

    Raises
    ------
    InputError
        If there are too many targets or clients, or fewer than two clients.
    AccuracyError
        If moments are private and their noise decides the gap.

    Examples
    --------
    >>> from fedgram import Moments
    >>> from fedgram.display.explorer.widget import ExplorerWidget
    >>> widget = ExplorerWidget(Moments(count=[9, 9], mean=[[0.0], [1.0]], covariance=[[[1.0]], [[2.0]]]))
    >>> widget.moments.mean.tolist(), widget.strength
    ([[0.0], [1.0]], 0.0)
    """

    _esm = bundle() + RENDER
    _css = style()
    presets: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    state: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)

    def __init__(
        self, moments: Moments | None = None, penalty: Penalty | None = None, strength: float = 0.0
    ) -> None:
        examples = [dict(preset) for preset in presets()]
        chosen = examples[0] if moments is None else describe_data(moments, penalty, "Moments", strength)
        super().__init__(presets=examples, state=chosen)

    @property
    def moments(self) -> Moments:
        """The moments that the widget shows."""
        document = self.state["document"]
        clients = document["clients"]
        count, mean, covariance = (
            np.array([client[field] for client in clients]) for field in ("count", "mean", "covariance")
        )
        names = tuple(client["name"] for client in clients)
        privacy = tuple(Privacy(**client["privacy"]) if "privacy" in client else None for client in clients)
        moments = Moments(count, mean, covariance, names, tuple(document["targets"]), privacy=privacy)
        weights = [client["weight"] for client in clients if "weight" in client]
        return moments.weighted(weights) if weights else moments

    @property
    def penalty(self) -> Penalty:
        """The penalties that the widget shows."""
        return Penalty(self.state["features"], self.state["head"])

    @property
    def strength(self) -> float:
        """γ of the correction that the widget shows."""
        return float(self.state["strength"])

    def show(self, moments: Moments, penalty: Penalty | None = None, strength: float = 0.0) -> None:
        """Show other moments."""
        self.state = describe_data(moments, penalty, "Moments", strength)
