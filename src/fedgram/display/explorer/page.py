"""Assemble the explorer: one HTML page without links to other files.

The page holds its style, its examples and its JavaScript. Browsers refuse to import modules from disk, so
`bundle` joins them into one. A name is therefore defined once among all modules.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes
from fedgram.display.explorer.presets import presets
from fedgram.theory.moments import Moments, check_federation
from fedgram.theory.noise import check_noise, noise_intervals
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import predict

# In the order of their imports.
MODULES = (
    "matrices", "barycenter", "local_optimum", "notes", "plots", "privacy", "geometry", "intervals",
    "moments", "bars", "picture", "story", "state", "handles", "target_panel", "gram_panel", "site_table",
    "client_editor", "layout", "app",
)  # fmt: skip
# Limits of the page, the same as in moments.mjs.
MOST_TARGETS, MOST_CLIENTS = 6, 60

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="Drag clients and see where federated averaging ends, and why.">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 0; min-height: 100vh; background: #f6f7f9; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #12161c; }} }}
[data-fedgram-theme="light"] body {{ background: #f6f7f9; }}
[data-fedgram-theme="dark"] body {{ background: #12161c; }}
{style}</style>
</head>
<body>
<main id="explorer"><noscript>The explorer needs JavaScript.</noscript></main>
<script type="application/json" id="options">{options}</script>
<script type="module">
{script}
const options = JSON.parse(document.getElementById("options").textContent);
window.explorer = mount(document.getElementById("explorer"), {{ ...options, hasHash: true }});
</script>
</body>
</html>
"""


@cache
def bundle() -> str:
    """Join the JavaScript modules into one; only `Explorer` and `mount` are meant for callers."""
    parts = "\n".join(_asset(f"{name}.mjs") for name in MODULES)
    bare = re.sub(r"^import \{[^}]*\} from \"\./[a-z_]+\.mjs\";\n", "", parts, flags=re.MULTILINE)
    return re.sub(r"^export (?=function|class|const)", "", bare, flags=re.MULTILINE)


def style() -> str:
    """Return the style sheet; every rule is limited to the explorer."""
    return _asset("style.css")


def _asset(name: str) -> str:
    return (files("fedgram.display.explorer") / name).read_text(encoding="utf-8")


def describe_data(
    moments: Moments, penalty: Penalty | None = None, name: str = "Your data", strength: float = 0.0
) -> dict[str, Any]:
    """Describe moments as the explorer reads them.

    Parameters
    ----------
    moments
        Moments of 2 to 60 clients with at most 6 targets.
    penalty
        λ_H and λ_W; `Penalty()` by default.
    name
        Label in the list of examples.
    strength
        γ in [0, 1].

    Returns
    -------
    dict
        A JSON object.

    Raises
    ------
    InputError
        If there are too many targets or clients, or fewer than two clients.
    AccuracyError
        If moments are private and their noise decides the gap.

    Examples
    --------
    >>> from fedgram import Moments
    >>> from fedgram.display.explorer.page import describe_data
    >>> moments = Moments(count=[9, 9], mean=[[0.0], [1.0]], covariance=[[[1.0]], [[2.0]]])
    >>> describe_data(moments, name="two clients")["name"]
    'two clients'
    """
    check_federation(moments, "explore")
    penalty = Penalty.or_default(penalty)
    clients, targets = len(moments.clients), len(moments.targets)
    if targets > MOST_TARGETS:
        raise InputError(
            f"The explorer shows at most {MOST_TARGETS} targets, but there are {targets}. Choose some with "
            "--targets.",
            field="targets",
        )
    if clients > MOST_CLIENTS:
        raise InputError(
            f"The explorer shows at most {MOST_CLIENTS} clients, but there are {clients}. Choose some with "
            "--where.",
            field="clients",
        )
    _check_privacy(moments, penalty)
    return {
        "name": name,
        "caption": f"{clients} clients, {moments.count.sum():,.0f} rows.",
        "document": moments.document(),
        "features": penalty.features,
        "head": penalty.head,
        "strength": strength,
    }


def _check_privacy(moments: Moments, penalty: Penalty) -> None:
    """Refuse private moments where `fedgram predict` refuses them."""
    if not any(moments.privacy):
        return
    prediction = predict(moments, penalty)
    noise = noise_intervals(prediction)
    if noise is not None:
        check_noise(prediction, noise)


def explorer_page(data: dict[str, Any] | None = None) -> str:
    """Return the page; `data` from `describe_data` comes first among its examples."""
    options = json.dumps({"presets": presets(), "initial": data}, allow_nan=False, separators=(",", ":"))
    return PAGE.format(
        title="fedgram explorer" if data is None else f"fedgram explorer: {_escape(data['name'])}",
        style=style(),
        options=options.replace("<", "\\u003c"),  # no name can end the script element
        script=bundle(),
    )


def write_explorer(path: str | Path, data: dict[str, Any] | None = None) -> int:
    """Write the page and return its size in bytes."""
    content = explorer_page(data).encode()
    write_bytes(path, content)
    return len(content)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
