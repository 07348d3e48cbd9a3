"""One self-contained HTML page: every figure, its claims beside ours, and where the numbers come from."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_bytes
from fedgram._util.text import pluralize
from fedgram.paper.claims import judge_all, load_claims
from fedgram.paper.registry import MODULES, experiment
from fedgram.paper.report.claims import claims_table, in_words, legend, sentences, tile_rows
from fedgram.paper.report.coverage import coverage_section
from fedgram.paper.report.datasets import datasets_section
from fedgram.paper.report.networks import NetworkChapter, load_results, network_chapters, network_section
from fedgram.paper.ufm.experiment import Scale
from fedgram.paper.ufm.runner import SCALES, folder_of


@dataclass(frozen=True)
class Chapter:
    """A finished experiment on the unconstrained feature model as it lies on disk."""

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
    results = load_results(out)
    if not chapters and not results:
        raise InputError(f"There are no results in '{out}': run 'fedgram reproduce ufm' first.", field="out")
    networks = network_chapters(results)
    claims = _exact_claims(chapters), [claim for chapter in networks for claim in chapter.claims]
    missing = _missing(chapters, networks)
    frame = Template(files("fedgram.paper.report").joinpath("page.html").read_text("utf-8"))
    html = frame.substitute(
        sentence=escape(sentences(*claims), quote=False),
        tiles=tile_rows(*claims),
        legend=legend(),
        contents="\n".join(
            [*map(_network_entry, networks), *map(_entry, chapters), *_missing_entry(missing)]
        ),
        coverage=coverage_section(results),
        datasets=datasets_section(results),
        networks="\n".join(network_section(chapter, results) for chapter in networks),
        body="\n".join(map(_section, chapters)),
        training=_training(runs),
        missing=_missing_section(missing),
    )
    write_bytes(page, html.encode())
    return sentences(*claims)


def _chapter(name: str, out: Path) -> Chapter | None:
    """The experiment at full scale if that is finished, else at quick scale."""
    for scale in SCALES:
        folder = folder_of(experiment(name), out, scale)
        if (folder / "manifest.json").exists():
            claims, manifest = (read_json(folder / f"{part}.json") for part in ("claims", "manifest"))
            return Chapter(name, scale, folder, claims["claims"], manifest)
    return None


def _exact_claims(chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    """Every claim about the exact model once, as not run where its experiment is not finished."""
    finished = {chapter.name for chapter in chapters}
    waiting = [claim for name in MODULES if name not in finished for claim in load_claims(name)]
    found = [claim for chapter in chapters for claim in chapter.claims]
    return found + [judged.document() for judged in judge_all(waiting, {})]


def _entry(chapter: Chapter) -> str:
    title = escape(experiment(chapter.name).title)
    words = f"{chapter.scale} scale: {in_words(chapter.claims)}"
    return f'<li><a href="#{chapter.name}">{title}</a> <span>{words}</span></li>'


def _network_entry(chapter: NetworkChapter) -> str:
    study = chapter.study
    words = [chapter.words, in_words(chapter.claims)] if chapter.results else ["not run"]
    shown = escape("; ".join(filter(None, words)))
    return f'<li><a href="#{study.name}">{escape(study.title)}</a> <span>{shown}</span></li>'


def _section(chapter: Chapter) -> str:
    found = experiment(chapter.name)
    image = base64.b64encode((chapter.folder / "figure.png").read_bytes()).decode()
    return f"""<section id="{chapter.name}">
<h2>{escape(found.title)}</h2>
<p class="where">{escape(found.where)} of the paper · <code>fedgram reproduce {chapter.name}</code> ·
{chapter.manifest["data"]} data · {chapter.scale} scale</p>
<div class="scroll"><img alt="{escape(found.title)}" src="data:image/png;base64,{image}"></div>
{claims_table(chapter.claims)}
<details><summary>Settings and provenance</summary>
<pre>{escape(json.dumps(chapter.manifest, indent=1))}</pre></details>
</section>"""


def _training(runs: Path | None) -> str:
    if runs is None:
        return ""
    from fedgram.paper.report.networks import training_section  # needs the extra `train`

    return training_section(runs)


def _missing(chapters: Sequence[Chapter], networks: Sequence[NetworkChapter]) -> dict[str, str]:
    """The experiments of which nothing was run, or only a baseline, by name, with a line about each."""
    finished = {chapter.name for chapter in chapters}
    exact = [experiment(name) for name in MODULES if name not in finished]
    rows = {each.name: f"{each.title}: not run, {each.cost} on 2 cores" for each in exact}
    waiting = [each for each in networks if each.baseline_only or not each.results]
    return rows | {each.study.name: f"{each.study.title}: {each.words or 'not run'}" for each in waiting}


def _missing_entry(missing: dict[str, str]) -> list[str]:
    words = f"{pluralize(len(missing), 'experiment')}, and what runs them"
    return [f'<li><a href="#not-run">Not run</a> <span>{words}</span></li>'] if missing else []


def _missing_section(missing: dict[str, str]) -> str:
    items = "\n".join(
        f"<li><code>fedgram reproduce {name}</code> {escape(words)}</li>" for name, words in missing.items()
    )
    return f'<section id="not-run"><h2>Not run</h2>\n<ul>\n{items}\n</ul></section>' if missing else ""
