"""The part of the report about network experiments: figures, tables and claims of each."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedgram._util.text import pluralize
from fedgram.display.plotting import render
from fedgram.display.run_figure import comparison
from fedgram.paper.claims import judge_all, load_claims
from fedgram.paper.networks.comparable import TITLES, ComparableRuns
from fedgram.paper.networks.provenance import epochs_in_words
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES, Scale
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies.registry import STUDIES, Study, figures_of
from fedgram.paper.networks.tables import TABLES, Cell, SideBySide
from fedgram.paper.report.claims import claims_table, in_words
from fedgram.paper.report.coverage import badges
from fedgram.runs import Runs
from fedgram.runs.compare import METRICS, Comparison, compare_runs
from fedgram.runs.procedure import Procedure

CAPTIONS = {
    "proximal-tabular": "Proximal training with and without correction, tabular data (Figures 3 and 9)",
    "proximal-images": "Proximal training with and without correction, image data (Figures 3 and 9)",
    "ordinary-tabular": "Ordinary training with and without correction, tabular data (Figure 10)",
    "ordinary-images": "Ordinary training with and without correction, image data (Figure 10)",
    **{
        f"example-{setting}": f"Gram evolution, {title} (the paper's Figure 4 shows MPIIGaze)"
        for setting, title in TITLES.items()
    },
    "comparison": "Ordinary beside proximal training (Figure 11)",
    "epochs": "Endpoint error against local epochs",
    "seconds": "Endpoint error against a run's share of its stack's time",
    "dnn-means": "Removing the mean contribution leaves a residual gap (Figure 12)",
    "dnn-epochs": "Local epochs and the endpoint (Figure 13)",
    "dnn-rho": "Weight of the proximal regularizer (Figure 14)",
    "dnn-alignment": "Endpoints by procedure, and what alignment removes from the objective (Tables 6 and 7)",
    "dnn-architecture": "Direction errors with other networks and more data (Table 8)",
    "dnn-full-model": "Local training and correction under full-model averaging (Figure 15)",
    "dnn-prediction": "Paired changes of the test error (Figure 16)",
    "beyond-prediction": "Test error by procedure and rule for the bias, beside centralized training",
}
"""What a figure shows, by its own name or else by its experiment's."""


@dataclass(frozen=True)
class NetworkChapter:
    """An experiment with the results that there are of it, by scale, the largest first, and its claims."""

    study: Study
    results: Mapping[str, Results]
    claims: list[dict[str, Any]]

    @property
    def words(self) -> str:
        """At what scales it was run."""
        scales = (f"{self._counted(name)} at {name} scale{self._again(name)}" for name in self.results)
        return ("only the baseline: " if self.baseline_only else "") + ", ".join(scales)

    @property
    def baseline_only(self) -> bool:
        """Whether a procedure was not run at all without which no claim can be measured."""
        trained = {run.procedure for found in self.results.values() for run in found}
        asked = {
            Procedure.parse(each.procedure) for cohort in self.study.cohorts for each in cohort.conditions
        }
        unmeasured = {claim["verdict"] for claim in self.claims} == {"not run"}
        return bool(trained) and unmeasured and trained < asked

    def _counted(self, scale: str) -> str:
        """How many runs; by procedure where only a baseline was run, so that it is seen what is missing."""
        if not self.baseline_only:
            return pluralize(len(self.results[scale]))
        sources = {variety: Source("any") for variety in self.study.varieties}
        asked = Counter(key.procedure.name for key in self.study.keys(SCALES[scale], sources))
        found = Counter(run.procedure.name for run in self.results[scale])
        return (
            " and ".join(f"{found[name]:,} of {number:,} {name}" for name, number in asked.items()) + " runs"
        )

    def _again(self, scale: str) -> str:
        """Which runs of a scale are those of a larger one: a tenth of the epochs may be a sweep's budget."""
        first = next(iter(self.results))
        known = {run.key for run in self.results[first]} if scale != first else set()
        shared = [run for run in self.results[scale] if run.key in known]
        if not shared:
            return ""
        part = "" if len(shared) == len(self.results[scale]) else f"{len(shared):,} of them "
        return f" ({part}the same as at {first} scale with {epochs_in_words(shared)})"


def load_results(out: Path) -> Results:
    """The results of all scales under a folder of experiments; none where there are none."""
    return Results(run for scale in SCALES for run in Results.load(out / scale / "results"))


def network_chapters(results: Results) -> list[NetworkChapter]:
    """All experiments with networks, ours first; the smoke scale counts where there is no other."""
    ours_first = sorted(STUDIES.values(), key=lambda study: study.where != "ours")
    return [_chapter(study, results) for study in ours_first]


def network_section(chapter: NetworkChapter, results: Results) -> str:
    """A chapter as HTML; tables may need runs of other experiments among the results."""
    study = chapter.study
    shown = Results(run for found in chapter.results.values() for run in found)
    place = "beyond the paper" if study.where == "ours" else f"{study.where} of the paper"
    parts = [
        _figures(study, name, found) + _tables(study, results.select(scale=name))
        for name, found in chapter.results.items()
    ]
    parts = parts or [f'<p class="none">Not run.</p>{_tables(study, Results())}']
    return f"""<section id="{study.name}">
<h2>{escape(study.title)} {"" if chapter.baseline_only else badges(shown)}</h2>
<p class="where">{escape(place)} · <code>fedgram reproduce {study.name}</code> ·
{chapter.words or "not run"}{_hardware(shown)}</p>
{"".join(parts)}
{_claims(chapter)}</section>"""


def _hardware(results: Results) -> str:
    names = sorted({run.hardware for run in results})
    return f" · trained on {escape(', '.join(names))}" if names else ""


def _chapter(study: Study, results: Results) -> NetworkChapter:
    found = {name: _own(study, results.select(scale=name)) for name in SCALES}
    found = {name: own for name, own in found.items() if own}
    if len(found) > 1:
        found.pop("smoke", None)
    scale = next(iter(found), "paper")
    measured = study.measure(ComparableRuns.from_results(found[scale])) if found else {}
    judged = judge_all(load_claims(study.name), measured)
    return NetworkChapter(study, found, [each.document() for each in judged])


def _own(study: Study, results: Results) -> Results:
    """The runs of an experiment among results of one scale."""
    shown = ComparableRuns.from_results(results)
    sources = {variety: Source(dataset) for variety, dataset in shown.datasets.items()}
    return Results(shown.by_key[key] for key in study.keys(shown.scale, sources) if key in shown.by_key)


def _figures(study: Study, scale: str, results: Results) -> str:
    words = SCALES[scale].words
    drawn = (_figure(study.name, name, each) for name, each in figures_of(study.name, results).items())
    return f"<h3>{escape(words[0].upper() + words[1:])}</h3>\n{''.join(drawn)}"


def _tables(study: Study, results: Results) -> str:
    return "".join(_table(table, results) for table in TABLES.get(study.name, ()))


def _claims(chapter: NetworkChapter) -> str:
    if not chapter.claims:
        return ""
    judged = f", judged by the runs at {next(iter(chapter.results))} scale" if chapter.results else ""
    words = f"{len(chapter.claims)} claims{judged}: {in_words(chapter.claims)}"
    return f"<details open><summary>{words}</summary>\n{claims_table(chapter.claims)}</details>"


def _figure(experiment: str, name: str, figure: Any) -> str:
    caption = escape(CAPTIONS[name or experiment])
    if figure is None:
        return f'<p class="none">{caption}: not run.</p>\n'
    image = base64.b64encode(render(figure)).decode()
    return f"""<figure><figcaption>{caption}</figcaption>
<div class="scroll"><img alt="{caption}" src="data:image/png;base64,{image}"></div></figure>
"""


def _table(table: SideBySide, results: Results) -> str:
    """A table without the rows in which neither the paper nor we have anything; nothing if that is all."""
    filled = {label: cells for label, cells in table.filled(results).items() if any(map(_has_any, cells))}
    if not filled:
        return ""
    headings = "".join(f"<th>{escape(column.title)}</th>" for column in table.columns)
    rows = "\n".join(_row(label, cells) for label, cells in filled.items())
    return f"""<h4>{escape(table.title)} <span>{escape(table.where)}</span></h4>
<p class="where">{escape(table.about)} {_sides(table, ComparableRuns.from_results(results).scale)}</p>
<div class="scroll"><table class="numbers"><thead><tr><th></th>{headings}</tr></thead>
<tbody>{rows}</tbody></table></div>
"""


def _has_any(cell: Cell) -> bool:
    return bool(cell.run) or cell.paper is not None


def _sides(table: SideBySide, scale: Scale) -> str:
    """Which of the numbers in a table are the paper's."""
    if table.where == "ours":
        return "Settings of which nothing was run are left out."
    if scale.name == "paper":
        return "The paper's number, and below it ours."
    return f"Ours alone, of what was run: the paper's numbers are not comparable at {scale.name} scale."


def _row(label: str, cells: list[Cell]) -> str:
    """The paper's numbers, if any, over ours; how much was run stands once where it is all the same."""
    stated, coverage = any(cell.paper is not None for cell in cells), {cell.coverage for cell in cells}
    common = f"<small>{coverage.pop()}</small>" if len(coverage) == 1 else ""
    shown = "".join(_cell(cell, stated, not common) for cell in cells)
    return f"<tr><th>{escape(label)}{common}</th>{shown}</tr>"


def _cell(cell: Cell, stated: bool, covered: bool) -> str:
    paper = f"<span>{cell.shown('paper')}</span>" if stated else ""
    coverage = f"<small>{cell.coverage}</small>" if covered else ""
    return f"<td>{paper}<b>{cell.shown('ours')}</b>{coverage}</td>"


def training_section(runs: Path) -> str:
    """All finished runs under a folder as HTML: a picture and a table for each setting."""
    found = Runs(runs).require()
    sections = [_setting(setting) for setting in compare_runs(found)]
    hardware = ", ".join(sorted({run.account.hardware for run in found}))
    return f"""<section id="training">
<h2>Trained networks</h2>
<p class="where">{escape(hardware)} · <code>fedgram train</code></p>
{"".join(sections)}</section>"""


def _setting(setting: Comparison) -> str:
    image = base64.b64encode(render(comparison([setting]))).decode()
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
