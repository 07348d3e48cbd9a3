"""The part of the report about networks: what trained runs found, beside the prediction."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from fedgram.display.plotting import rendered
from fedgram.display.run_figure import comparison
from fedgram.runs import Runs
from fedgram.runs.compare import METRICS, Setting, compared


def training_section(runs: Path) -> str:
    """All finished runs under a folder as HTML: a picture and a table for each setting."""
    found = Runs(runs).require()
    sections = [_setting(setting) for setting in compared(found)]
    hardware = ", ".join(sorted({run.account.hardware for run in found}))
    return f"""<section id="training">
<h2>Trained networks</h2>
<p class="where">{escape(hardware)} · <code>fedgram train</code></p>
{"".join(sections)}</section>"""


def _setting(setting: Setting) -> str:
    image = base64.b64encode(rendered(comparison([setting]))).decode()
    headings = "".join(f"<th>{escape(name)}</th>" for name in ("procedure", "target", *METRICS))
    rows = [[setting.label(group), group.target, *map(group.spread, METRICS)] for group in setting.groups]
    cells = "".join(f"<tr>{''.join(_training_cell(str(cell)) for cell in row)}</tr>\n" for row in rows)
    notes = "".join(f'<p class="where">{escape(warning)}</p>\n' for warning in setting.warnings)
    return f"""<h3>{escape(setting.title)}</h3>
<p class="where">{escape(setting.scale)}</p>
<div class="scroll"><img alt="{escape(setting.title)}" src="data:image/png;base64,{image}"></div>
<div class="scroll"><table class="measured"><thead><tr>{headings}</tr></thead><tbody>
{cells}</tbody></table></div>
{notes}"""


def _training_cell(words: str) -> str:
    """A cell with the deviation below the mean."""
    mean, _, deviation = words.partition(" ± ")
    return f"<td>{escape(mean)}{f'<small>± {deviation}</small>' if deviation else ''}</td>"
