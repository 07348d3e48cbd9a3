"""Write the report: one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_bytes
from fedgram.paper.claims import FACTORS, MEANINGS, judge_all, load_claims
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.registry import MODULES, load_experiment
from fedgram.paper.report.claims import group_tiles, list_counts, make_rows, summarize_all
from fedgram.paper.report.coverage import STATES, describe_coverage, describe_datasets
from fedgram.paper.report.networks import (
    NetworkChapter,
    describe_chapter,
    describe_training,
    encode_png,
    load_results,
    make_chapters,
)
from fedgram.paper.ufm.experiment import Scale
from fedgram.paper.ufm.runner import SCALES, folder_of


@dataclass(frozen=True)
class Chapter:
    """A finished experiment on the exact model, read from its folder."""

    name: str
    scale: Scale
    folder: Path
    claims: list[dict[str, Any]]
    manifest: dict[str, Any]


def write_report(out: Path, page: Path, runs: Path | None = None) -> str:
    """Write the page about the finished experiments in a folder.

    Parameters
    ----------
    out : Path
        Folder of results.
    page : Path
        HTML file to write.
    runs : Path, optional
        Folder of runs of `fedgram train` to show as well.

    Returns
    -------
    str
        Summary of the claims, without the final full stop.
    """
    templates = load_templates()
    chapters = [chapter for name in MODULES if (chapter := _load_chapter(name, out)) is not None]
    results = load_results(out)
    if not chapters and not results:
        raise InputError(f"There are no results in '{out}'. Run 'fedgram reproduce ufm' first.", field="out")
    networks = make_chapters(results)
    claims = _exact_claims(chapters), [claim for chapter in networks for claim in chapter.claims]
    summary = summarize_all(*claims)
    html = templates.get_template("page.html.j2").render(
        summary=summary,
        tiles=group_tiles(*claims),
        meanings=MEANINGS,
        factors=FACTORS,
        agreement=measure_agreement(results),
        contents=[*map(_network_entry, networks), *map(_entry, chapters)],
        states=STATES,
        coverage=describe_coverage(results),
        networks=[describe_chapter(chapter, results) for chapter in networks],
        chapters=[_describe_chapter(chapter) for chapter in chapters],
        training=describe_training(runs) if runs else None,
        not_run=_list_not_run(chapters, networks),
        datasets=describe_datasets(results),
    )
    write_bytes(page, html.encode())
    return summary


@cache
def load_templates() -> Any:
    """Create the Jinja environment of the report's templates."""
    try:
        import jinja2
    except ImportError:
        message = "The report needs Jinja2. Install it with pip install 'fedgram[paper]'."
        raise InputError(message, field="output") from None
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedgram.paper.report"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def _load_chapter(name: str, out: Path) -> Chapter | None:
    """Load an experiment at full scale if that is finished, else at quick scale."""
    for scale in SCALES:
        folder = folder_of(load_experiment(name), out, scale)
        if (folder / "manifest.json").exists():
            claims, manifest = (read_json(folder / f"{part}.json") for part in ("claims", "manifest"))
            return Chapter(name, scale, folder, claims["claims"], manifest)
    return None


def _exact_claims(chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    """Every claim about the exact model; 'not run' if its experiment is not finished."""
    finished = {chapter.name for chapter in chapters}
    waiting = [claim for name in MODULES if name not in finished for claim in load_claims(name)]
    found = [claim for chapter in chapters for claim in chapter.claims]
    return found + [judged.document() for judged in judge_all(waiting, {})]


def _describe_chapter(chapter: Chapter) -> dict[str, Any]:
    found = load_experiment(chapter.name)
    return {
        "name": chapter.name,
        "title": found.title,
        "where": found.where,
        "data": chapter.manifest["data"],
        "scale": chapter.scale,
        "png": encode_png((chapter.folder / "figure.png").read_bytes()),
        "claims": make_rows(chapter.claims),
        "manifest": json.dumps(chapter.manifest, indent=1),
    }


def _entry(chapter: Chapter) -> tuple[str, str, str]:
    """Name, title and state for the contents."""
    state = f"{chapter.scale} scale: {list_counts(chapter.claims)}"
    return chapter.name, load_experiment(chapter.name).title, state


def _network_entry(chapter: NetworkChapter) -> tuple[str, str, str]:
    states = [chapter.summary, list_counts(chapter.claims)] if chapter.results else ["not run"]
    return chapter.study.name, chapter.study.title, "; ".join(filter(None, states))


def _list_not_run(chapters: Sequence[Chapter], networks: Sequence[NetworkChapter]) -> dict[str, str]:
    """Describe the experiments without runs or with only a baseline, by name."""
    finished = {chapter.name for chapter in chapters}
    exact = [load_experiment(name) for name in MODULES if name not in finished]
    waiting = [each for each in networks if each.has_only_baseline or not each.results]
    return {each.name: f"{each.title}: not run, {each.cost} on 2 cores" for each in exact} | {
        each.study.name: f"{each.study.title}: {each.summary or 'not run'}" for each in waiting
    }
