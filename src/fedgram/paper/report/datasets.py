"""The paper's table of datasets, with what was trained on below its numbers."""

from __future__ import annotations

from html import escape

from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.settings import SETTINGS, Setting
from fedgram.paper.report.coverage import badges

HEADINGS = ("inputs", "targets", "clients", "training rows", "test rows")


def datasets_section(results: Results) -> str:
    """Table 1 as HTML; the smoke scale, whose embedded data stands for every dataset, is left out."""
    headings = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    own = Results(run for run in results if run.scale != "smoke" and not run.larger)
    rows = "\n".join(_row(setting, own.select(setting=name)) for name, setting in SETTINGS.items())
    return f"""<section id="datasets"><h2>Datasets</h2>
<p class="where">Table 1 of the paper, and below its numbers those of the data that networks were trained on.
The paper has no test rows of tabular data; ours are drawn apart from the training rows.</p>
<div class="scroll"><table class="numbers"><thead><tr><th></th>{headings}</tr></thead>
<tbody>{rows}</tbody></table></div>
</section>"""


def _row(setting: Setting, results: Results) -> str:
    run = next(iter(ComparableRuns.from_results(results).by_key.values()), None)
    size = setting.size
    counts = (setting.targets, size.clients, size.rows, size.test_rows)
    ours = _counts(run) if run else (None,) * len(counts)
    cells = "".join(_cell(*pair) for pair in zip(counts, ours, strict=True))
    shape, dataset = " × ".join(map(str, setting.inputs)), escape(run.dataset) if run else "not run"
    label = f"{setting.title} {badges(Results([run] if run else []))}<small>{dataset}</small>"
    return f"<tr><th>{label}</th><td><span>{shape}</span></td>{cells}</tr>"


def _counts(run: Result) -> tuple[int, ...]:
    """Targets, clients, training and test rows of the data of a run."""
    return run.grams.shape[-1], len(run.client_grams), run.train_rows, run.test_rows


def _cell(paper: int, ours: int | None) -> str:
    below = "" if ours is None else f"<b>{ours:,}</b>"
    return f"<td><span>{f'{paper:,}' if paper else '–'}</span>{below}</td>"
