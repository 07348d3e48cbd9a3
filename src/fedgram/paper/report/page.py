"""Write the report: one self-contained HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_bytes
from fedgram._util.text import pluralize
from fedgram.display.explorer import page as explorer
from fedgram.display.plotting import pyplot, render
from fedgram.display.site_errors import read_tested
from fedgram.paper.claims import FACTORS, MEANINGS, judge_all, load_claims
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES as NETWORK_SCALES
from fedgram.paper.networks.settings import SETTINGS, Source
from fedgram.paper.plots import SETTINGS as FIGURE_SETTINGS
from fedgram.paper.registry import MODULES, load_experiment
from fedgram.paper.report.claims import count_styles, list_counts, make_rows, summarize_all
from fedgram.paper.report.coverage import STATES, describe_coverage, describe_datasets
from fedgram.paper.report.networks import (
    NetworkChapter,
    describe_chapter,
    load_results,
    make_chapters,
)
from fedgram.paper.report.own_runs import describe_explored, describe_training, summarize_training
from fedgram.paper.report.runs import COLUMNS, list_own, list_results
from fedgram.paper.report.story import describe_opening, draw_story, tell_story
from fedgram.paper.report.svg import FigureEmbedder
from fedgram.paper.ufm.experiment import Scale
from fedgram.paper.ufm.runner import SCALES, folder_of
from fedgram.runs import Runs
from fedgram.runs.compare import compare_runs
from fedgram.theory.moments import Moments

SYMBOL = re.compile(r"\bG_?(⋆|cen)")
OPENING = "ufm-instance"  # its figure opens the page if no network was trained


@dataclass(frozen=True)
class Chapter:
    """A finished experiment on the exact model, read from its folder."""

    name: str
    scale: Scale
    folder: Path
    claims: list[dict[str, Any]]
    manifest: dict[str, Any]

    def figure(self, embed: FigureEmbedder) -> str:
        """Embed its figure; empty if an earlier version wrote none as SVG."""
        path = self.folder / "figure.svg"
        return embed(path.read_bytes(), load_experiment(self.name).title) if path.exists() else ""


def write_report(out: Path, page: Path, runs: Path | None = None) -> str:
    """Write the page about the finished experiments in a folder.

    Parameters
    ----------
    out : Path
        Folder of results.
    page : Path
        HTML file to write.
    runs : Path, optional
        Folder of runs of `fedgram train` to show first.

    Returns
    -------
    str
        Summary of the claims, without the final full stop.
    """
    templates, embed = load_templates(), FigureEmbedder()
    chapters = [chapter for name in MODULES if (chapter := _load_chapter(name, out)) is not None]
    results = load_results(out)
    stored = Runs(runs).require() if runs else []
    own = compare_runs(stored)
    if not chapters and not results and not own:
        raise InputError(
            f"There are no results in '{out}'. For your own runs, use 'fedgram report --runs runs'; for the "
            "paper's experiments, run 'fedgram reproduce ufm' first.",
            field="out",
        )
    explored = describe_explored(own) + _list_explored(out, results)
    paper = _describe_paper(chapters, results, embed) if chapters or results else None
    html = templates.get_template("page.html.j2").render(
        training=describe_training(own, read_tested(stored), embed),
        paper=paper,
        explored=explored,
        style=_asset("report.css") + explorer.style(),
        script=_asset("report.js"),
        explorer=explorer.bundle(),
        data=_json({"columns": COLUMNS, "runs": list_own(own) + list_results(results), "explored": explored}),
    )
    write_bytes(page, html.encode())
    said = [summarize_training(own)] if own else []
    return ". ".join([*said, paper["summary"]] if paper else said)


def _describe_paper(chapters: Sequence[Chapter], results: Results, embed: FigureEmbedder) -> dict[str, Any]:
    """Template values of the paper's reproduction: its story, chapters, claims and coverage."""
    networks = make_chapters(results)
    exact, trained = _exact_claims(chapters), [claim for chapter in networks for claim in chapter.claims]
    rows = [row for each in chapters for row in make_rows(each.name, each.claims)]
    rows += [row for each in networks for row in make_rows(each.study.name, each.claims)]
    agreement = measure_agreement(results)
    return {
        "story": tell_story(exact, trained, results, agreement[0]),
        "opening": _describe_opening(chapters, results, trained, embed),
        "summary": summarize_all(exact, trained),
        "parts": _describe_parts(chapters, networks, results, embed),
        "claims": rows,
        "verdicts": count_styles(rows),
        "meanings": MEANINGS,
        "factors": FACTORS,
        "agreement": agreement,
        "states": STATES,
        "coverage": describe_coverage(results),
        "not_run": _list_not_run(chapters, networks),
        "datasets": describe_datasets(results),
    }


def _asset(name: str) -> str:
    return (files("fedgram.paper.report") / "assets" / name).read_text(encoding="utf-8")


def _json(document: Any) -> str:
    """Write JSON for a script element, which no name can end."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


@cache
def load_templates() -> Any:
    """Create the Jinja environment of the report's templates."""
    try:
        import jinja2
    except ImportError:
        message = "The report needs Jinja2. Install it with pip install 'fedgram[paper]'."
        raise InputError(message, field="output") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedgram.paper.report"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["symbols"] = _set_symbols
    return environment


def _set_symbols(text: str) -> Any:
    """Set the Grams G_⋆ and G_cen with a subscript, and keep names and numbers on one line."""
    from markupsafe import Markup, escape

    html = SYMBOL.sub(r"G<sub>\1</sub>", str(escape(text)))
    return Markup(html.replace(" × 10", "&nbsp;×&nbsp;10").replace("R² ", "R²&nbsp;"))


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


def _describe_opening(
    chapters: Sequence[Chapter], results: Results, claims: list[dict[str, Any]], embed: FigureEmbedder
) -> dict[str, Any]:
    """The figure below the story: ends of trained networks, or the exact instance if none was trained."""
    with pyplot().rc_context(FIGURE_SETTINGS):
        figures = {title: each for title, each in draw_story(results, claims).items() if each}
        found = [embed(render(each, "svg"), title) for title, each in figures.items()]
    if found:
        return {"figures": found, "caption": describe_opening(results)}
    instance = next((each for each in chapters if each.name == OPENING), None)
    if instance is None:
        return {"figures": [], "caption": ""}
    caption = f"{load_experiment(OPENING).title}: GENERATED data, {instance.scale} scale"
    return {"figures": [instance.figure(embed)], "caption": caption}


def _describe_parts(
    chapters: Sequence[Chapter], networks: Sequence[NetworkChapter], results: Results, embed: FigureEmbedder
) -> list[dict[str, Any]]:
    """The paper by section, then ours: chapters with results."""
    trained = [each for each in networks if each.results]
    described = [(each.study.where == "ours", describe_chapter(each, results, embed)) for each in trained]
    parts = {
        ("exact", "Exact model", "Section 5.1, Appendices D and G"): [
            _describe_chapter(chapter, embed) for chapter in chapters
        ],
        ("networks", "Networks", "Section 5.2, Appendix F"): [each for ours, each in described if not ours],
        ("beyond", "Beyond the paper", "ours"): [each for ours, each in described if ours],
    }
    return [
        {"id": name, "title": title, "where": where, "chapters": found}
        for (name, title, where), found in parts.items()
        if found
    ]


def _describe_chapter(chapter: Chapter, embed: FigureEmbedder) -> dict[str, Any]:
    found = load_experiment(chapter.name)
    return {
        "name": chapter.name,
        "title": found.title,
        "where": found.where,
        "summary": f"{chapter.scale} scale",
        "kinds": [chapter.manifest["data"]],
        "hardware": "",
        "scales": [
            {"title": "", "figures": [{"caption": "", "svg": chapter.figure(embed)}], "tables": []},
        ],
        "claims": list_counts(chapter.claims),
        "judged_at": chapter.scale,
    }


def _list_not_run(
    chapters: Sequence[Chapter], networks: Sequence[NetworkChapter]
) -> list[tuple[str, str, str]]:
    """List experiments that are not complete: command, title and what is missing."""
    scales = {chapter.name: chapter.scale for chapter in chapters}
    lines = []
    for name in MODULES:
        experiment = load_experiment(name)
        if scales.get(name) != "full":
            state = "only quick scale" if name in scales else "not run"
            lines.append((name, experiment.title, f"{state}; {experiment.cost} on 2 cores"))
    for chapter in networks:
        wanted, finished = _count_runs(chapter)
        if finished < wanted:
            waiting = sum(claim["verdict"] == "not run" for claim in chapter.claims)
            claims = f"; {pluralize(waiting, 'claim')} not compared" if waiting else ""
            lines.append(
                (chapter.study.name, chapter.study.title, f"{finished:,} of {wanted:,} runs{claims}")
            )
    return lines


def _count_runs(chapter: NetworkChapter) -> tuple[int, int]:
    """Numbers of runs of an experiment at the paper's scale: wanted and finished."""
    sources = {variety: Source("any") for variety in chapter.study.varieties}
    wanted = chapter.study.keys(NETWORK_SCALES["paper"], sources)
    return len(wanted), len(chapter.results.get("paper", ()))


def _list_explored(out: Path, results: Results) -> list[dict[str, Any]]:
    """Describe the target moments of each setting for the explorer, from the largest scale that has them."""
    found = {}
    for run in ComparableRuns.from_results(results).by_key.values():
        path = out / run.scale / "results" / f"moments-{run.dataset}.json"
        if run.setting not in found and not run.larger and path.exists():
            title = f"{SETTINGS[run.setting].title} ({run.kind})"
            found[run.setting] = explorer.describe_data(Moments.load(path), name=title) | {"id": run.setting}
    return [found[name] for name in SETTINGS if name in found]
