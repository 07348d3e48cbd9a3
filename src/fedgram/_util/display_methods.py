"""Methods that show a result: summary, data frame, plot and HTML.

The functions behind them are in `fedgram.display`, a layer above all results. `fedgram/__init__.py` connects
the two when it is imported, before any result exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class DisplayMethods:
    """Base class of results.

    load_display returns the module with `summarize`, `to_frame`, `plot` and `to_html` of any result.
    """

    load_display: ClassVar[Callable[[], Any]]

    def summary(self) -> str:
        """State the result in sentences, one per line, as the command line does."""
        return str(type(self).load_display().summarize(self))

    def to_frame(self) -> Any:
        """Convert to a tidy pandas.DataFrame."""
        return type(self).load_display().to_frame(self)

    def plot(self, ax: Any = None) -> Any:
        """Draw on matplotlib Axes and return them; on new ones by default."""
        return type(self).load_display().plot(self, ax)

    def _repr_html_(self) -> str:
        """Show the summary and the first rows of the table in a notebook."""
        return str(type(self).load_display().to_html(self))
