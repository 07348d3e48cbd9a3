"""One self-contained HTML page: every figure, its claims beside ours, and where the numbers come from."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedgram.errors import InputError
from fedgram.interchange import read_json, write_whole
from fedgram.paper.claims import load_claims
from fedgram.paper.experiment import Scale
from fedgram.paper.registry import MODULES, PLANNED, experiment
from fedgram.paper.runner import SCALES, folder_of

VERDICTS = {"match": "matched", "miss": "missed", "partial": "partial", "not run": "not run"}


@dataclass(frozen=True)
class Chapter:
    """A finished experiment as it lies on disk."""

    name: str
    scale: Scale
    folder: Path
    claims: list[dict[str, Any]]
    manifest: dict[str, Any]


def write_report(out: Path, page: Path, runs: Path | None = None) -> str:
    """Write the page from the finished experiments under `out`, and return its summary in words.

    runs: a folder of trained runs, to be shown as well.
    """
    chapters = [chapter for name in MODULES if (chapter := _chapter(name, out)) is not None]
    if not chapters:
        raise InputError(f"There are no results in '{out}': run 'fedgram reproduce ufm' first.", field="out")
    counts = _counts(chapters)
    summary = ", ".join(f"{number} {VERDICTS[verdict]}" for verdict, number in counts.items() if number)
    body = "\n".join(_section(chapter) for chapter in chapters)
    frame = Template(files("fedgram.paper").joinpath("report.html").read_text("utf-8"))
    html = frame.substitute(
        summary=_tiles(counts),
        contents=_contents(chapters),
        body=body,
        training=_training(runs),
        missing=_missing(chapters),
    )
    write_whole(page, html.encode())
    return f"{sum(counts.values())} claims, {summary}"


def _chapter(name: str, out: Path) -> Chapter | None:
    """The experiment at full scale if that is finished, else at quick scale."""
    for scale in SCALES:
        folder = folder_of(experiment(name), out, scale)
        if (folder / "manifest.json").exists():
            claims, manifest = (read_json(folder / f"{part}.json") for part in ("claims", "manifest"))
            return Chapter(name, scale, folder, claims["claims"], manifest)
    return None


def _counts(chapters: list[Chapter]) -> dict[str, int]:
    found = Counter(claim["verdict"] for chapter in chapters for claim in chapter.claims)
    finished = {chapter.name for chapter in chapters}
    found["not run"] += sum(claim.experiment not in finished for claim in load_claims())
    return {verdict: found[verdict] for verdict in VERDICTS}


def _tiles(counts: dict[str, int]) -> str:
    return "".join(
        f'<div class="tile {verdict.replace(" ", "-")}"><b>{number}</b>{VERDICTS[verdict]}</div>'
        for verdict, number in counts.items()
    )


def _contents(chapters: list[Chapter]) -> str:
    rows = []
    for chapter in chapters:
        counts = Counter(claim["verdict"] for claim in chapter.claims)
        numbers = ", ".join(
            f"{counts[verdict]} {VERDICTS[verdict]}" for verdict in VERDICTS if counts[verdict]
        )
        title = escape(experiment(chapter.name).title)
        rows.append(
            f'<li><a href="#{chapter.name}">{title}</a> <span>{chapter.scale} scale: {numbers}</span></li>'
        )
    return "\n".join(rows)


def _section(chapter: Chapter) -> str:
    found = experiment(chapter.name)
    image = base64.b64encode((chapter.folder / "figure.png").read_bytes()).decode()
    return f"""<section id="{chapter.name}">
<h2>{escape(found.title)}</h2>
<p class="where">{escape(found.where)} of the paper · <code>fedgram reproduce {chapter.name}</code> ·
{chapter.manifest["data"]} data · {chapter.scale} scale</p>
<div class="scroll"><img alt="{escape(found.title)}" src="data:image/png;base64,{image}"></div>
<div class="scroll"><table><thead><tr><th>claim</th><th>where</th><th>paper</th><th>ours</th><th>compared</th>
<th>verdict</th></tr></thead><tbody>
{"".join(_row(claim) for claim in chapter.claims)}</tbody></table></div>
<details><summary>Settings and provenance</summary>
<pre>{escape(json.dumps(chapter.manifest, indent=1))}</pre></details>
</section>"""


def _row(claim: dict[str, Any]) -> str:
    reason = f"<small>{escape(claim['reason'])}</small>" if claim["reason"] else ""
    cells = "".join(f"<td>{escape(claim[key])}</td>" for key in ("where", "paper", "ours", "comparison"))
    style = claim["verdict"].replace(" ", "-")
    return (
        f"<tr><td>{escape(claim['says'])}{reason}</td>{cells}"
        f'<td class="{style}">{escape(claim["verdict"])}</td></tr>\n'
    )


def _training(runs: Path | None) -> str:
    if runs is None:
        return ""
    from fedgram.paper.report_training import training_section  # needs the extra `train`

    return training_section(runs)


def _missing(chapters: list[Chapter]) -> str:
    finished = {chapter.name for chapter in chapters}
    waiting = [(name, experiment(name).title) for name in MODULES if name not in finished]
    rows = [*waiting, *((planned.name, planned.title) for planned in PLANNED)]
    return "\n".join(f"<li><code>{name}</code> {escape(title)}: not run</li>" for name, title in rows)
