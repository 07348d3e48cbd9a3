"""Tables of the network experiments compared with the paper's, and the report page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from fedgram import InputError
from fedgram.display import plotting
from fedgram.paper.claims import load_claims
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import ALL, SETTINGS
from fedgram.paper.networks.studies import registry
from fedgram.paper.networks.studies.registry import STUDIES
from fedgram.paper.networks.tables import TABLES
from fedgram.paper.registry import MODULES
from fedgram.paper.report import page as page_module
from fedgram.paper.report.claims import count_styles, make_rows, summarize, summarize_all
from fedgram.paper.report.coverage import (
    MAIN,
    STATES,
    SUPPLEMENTARY,
    describe_coverage,
    describe_datasets,
    find_state,
)
from fedgram.paper.report.networks import CAPTIONS, make_chapters
from fedgram.paper.report.page import load_templates, write_report
from fedgram.paper.report.runs import COLUMNS, list_results
from fedgram.paper.report.story import tell_story
from fedgram.paper.report.svg import embed_svg
from tests.helpers.network_results import all_results

SVG = b"""<svg xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg"
viewBox="0 0 72 72"><defs><path id="dot" d="M 0.123456 1"/></defs>
<g id="runs_ab_cd"><use xlink:href="#dot" style="fill: #2f6db5"/></g>
<g id="patch_1"><path d="M 0 0 L 1 1" style="fill: #ffffff"/></g>
<text style="font-size: 8px">e</text></svg>"""
VOID = {"meta", "img", "link", "br", "input", "path", "use", "rect"}


def macros(name):
    """Macros of a template."""
    return load_templates().get_template(f"{name}.html.j2").module


def coverage_section(results):
    return macros("coverage").section(describe_coverage(results), STATES)


def table(name, number=0, results=None):
    """The cells of a table by row."""
    return TABLES[name][number].fill(all_results() if results is None else results)


def median(value, procedure, settings=ALL, seeds=range(5), **fields):
    """Median over runs of the main protocol, straight from the results."""
    fields = {"epochs": 4000, "procedure": procedure, "larger": False} | fields
    found = [
        value(run) for run in all_results().select(**fields)
        if run.setting in settings and run.seed in seeds and run.rounds == 8
        and ("backbone" in fields or run.backbone == SETTINGS[run.setting].backbone)
    ]  # fmt: skip
    return np.median(found)


def test_every_number_of_the_papers_tables_is_a_claim():
    known = {claim.id for claim in load_claims()}
    papers = [each for found in TABLES.values() for each in found if each.where != "ours"]
    named = {
        row.claims.format(column.claim) for each in papers for row in each.rows for column in each.columns
    }
    reference = {"prediction-ordinary-train", "prediction-ordinary-test"}  # the others change from it
    assert named - known == reference


def test_table_4_holds_medians_of_the_main_experiments():
    cells = table("dnn-main")["proximal"]
    assert [cell.paper for cell in cells] == [2.90e-4, 3.39e-4, 4.47e-3, 4.21e-3, 2.29e-2, 7.08e-5]
    assert [cell.ours for cell in cells] == [
        median(lambda run: run.error["barycenter"][-1], "proximal"),
        median(lambda run: np.median(run.trajectory_error[1:]), "proximal"),
        median(lambda run: run.delta[-1], "proximal"),
        median(lambda run: run.direction_error["centralized"][1], "proximal+corrected"),
        median(lambda run: run.error["centralized"][1], "proximal+corrected"),
        median(lambda run: run.error["centralized"][-1], "proximal+corrected"),
    ]
    assert {cell.coverage for cell in cells} == {"50 of 50 runs"}


@pytest.mark.parametrize(
    ("seeds", "coverage"),
    [({"ordinary": (0, 1, 2), "proximal": (1, 2)}, ["2 of 50 runs"] * 2),
     ({"ordinary": (0, 1, 2), "proximal": (3, 4)}, ["3 of 50 runs", "2 of 50 runs"])],
)  # fmt: skip
def test_rows_are_over_what_all_of_them_have_and_over_all_where_that_is_nothing(seeds, coverage):
    runs = Results(
        run
        for run in all_results().select(setting="hopper", epochs=4000)
        if run.seed in seeds.get(run.procedure.name, ())
    )
    rows = table("dnn-main", results=runs)
    assert [rows[name][0].coverage for name in seeds] == coverage


def test_table_5_has_a_row_for_every_weight():
    rows = table("dnn-rho")
    assert list(rows) == [f"ρ = {weight:g}" for weight in cohorts.WEIGHTS]
    cells = rows["ρ = 0.01"]
    assert [cell.ours for cell in cells] == [
        median(lambda run: run.delta[-1], "proximal=0.01", seeds=range(3)),
        median(lambda run: np.median(run.objective_gap[-1]), "proximal=0.01", seeds=range(3)),
        median(lambda run: run.error["barycenter"][-1], "proximal=0.01", seeds=range(3)),
    ]


def test_tables_6_and_7_hold_alignment():
    cells = table("dnn-alignment")["aligned"]
    assert [cell.coverage for cell in cells] == ["30 of 30 runs"] * 3 + ["18 of 18 runs"] * 2
    first = median(lambda run: run.error["centralized"][1], "aligned+corrected", cohorts.ALIGNED, range(3))
    assert cells[3].ours == first
    common, independent = table("dnn-alignment", 1)["Hopper"]
    assert (common.paper, independent.paper) == (0.177, 0.181)
    for cell, words, rounds in (
        (common, ("ordinary", "aligned"), 8),
        (independent, ("independent", "aligned+independent"), 1),
    ):
        raw, aligned = (
            [
                run.shared_objective[0]
                for run in all_results().select(setting="hopper", procedure=name, epochs=4000, rounds=rounds)
            ]
            for name in words
        )
        assert cell.ours == pytest.approx(np.median([(a - b) / a for a, b in zip(raw, aligned, strict=True)]))
        assert cell.format("ours").endswith(" %")


def test_table_8_holds_direction_errors_and_shares():
    cells = table("dnn-architecture")["residual CNN, corrected"]
    fields = {"settings": ALL[5:], "seeds": range(3), "backbone": "residual-cnn"}
    assert cells[1].ours == median(lambda run: run.direction_error["centralized"][-1], "corrected", **fields)
    closer = [
        run.direction_error["barycenter"][-1] < run.direction_error["centralized"][-1]
        for run in all_results().select(procedure="corrected", backbone="residual-cnn")
    ]
    assert cells[2].ours == np.mean(closer)
    assert table("dnn-architecture")["larger data, E = 1000"][0].coverage == "6 of 6 runs"
    short = table("dnn-full-model")["E = 400"]
    assert short[0].ours == median(
        lambda run: run.direction_error["barycenter"][-1], "full-model", epochs=400, seeds=range(3)
    )


def test_table_9_pairs_changes_with_ordinary_training():
    cells = table("dnn-prediction")["proximal+corrected"]
    main = all_results().select(epochs=4000, backbone="resnet18", larger=False)
    pairs = [
        [
            main.select(procedure=name, setting=setting, seed=seed)[0]
            for name in ("ordinary", "proximal+corrected")
        ]
        for setting in ALL[5:]
        for seed in range(3)
    ]
    change = [two.test_mse[-1, 0] / one.test_mse[-1, 0] - 1 for one, two in pairs]
    assert cells[3].ours == pytest.approx(np.median(change))
    assert (cells[3].paper, cells[3].coverage) == (-0.015, "15 of 15 runs")
    assert cells[3].format("paper") == "-1.5 %"


def test_the_cost_of_a_run_stands_beside_the_papers():
    rows = table("beyond-solved", 1)
    assert rows["Walker"][3].ours == median(lambda run: run.seconds, "solved", ["walker"], range(3))
    assert {cell.paper for cells in rows.values() for cell in cells} == {None}
    about = TABLES["beyond-solved"][1].about
    assert "6,668 s a run" in about  # 1,415 GPU-hours for 764 runs
    assert "share its time equally" in about


def test_only_gpus_at_the_papers_scale_have_a_cost():
    slow = Results(replace(run, device="cpu") for run in all_results() if run.setting == "walker")
    for results in (slow, all_results("reduced"), all_results("smoke")):
        rows = table("beyond-solved", 1, results)
        assert {cell.ours for cells in rows.values() for cell in cells} == {None}


def test_cells_say_what_was_not_run():
    part = Results(run for run in all_results() if run.setting == "beijing")
    cell = table("dnn-main", results=part)["ordinary"][0]
    assert (cell.run, cell.coverage) == (5, "5 of 50 runs")
    for name, tables in TABLES.items():
        for number in range(len(tables)):
            for cells in table(name, number, Results()).values():
                assert {(cell.format("ours"), cell.coverage) for cell in cells} == {("-", "not run")}


@pytest.mark.parametrize(("scale", "seeds"), [("reduced", 1), ("smoke", 2)])
def test_tables_at_other_scales_have_no_numbers_of_the_paper_and_count_their_own_seeds(scale, seeds):
    results = all_results(scale)
    for cells in table("dnn-main", results=results).values():
        assert {cell.paper for cell in cells} == {None}
        assert {cell.needed for cell in cells} == {10 * seeds}
    assert table("beyond-solved", results=results)["Hopper"][0].coverage == (
        "1 of 1 run" if seeds == 1 else "2 of 2 runs"
    )


def test_test_errors_are_medians_of_late_rounds_beside_centralized_training():
    for number, rule in enumerate(("shared", "private", "offset")):
        assert rule in TABLES["beyond-prediction"][number].title
        cells = table("beyond-prediction", number)["Walker"]
        assert {cell.coverage for cell in cells} == {"3 of 3 runs"}
        for place, procedure in ((0, "ordinary"), (4, "solved+corrected"), (5, "centralized")):
            runs = all_results().select(procedure=procedure, setting="walker", epochs=4000)
            late = [run.test_mse[4:, number] for run in runs if run.seed < 3]
            assert cells[place].ours == np.median(late)
    assert TABLES["beyond-prediction"][0].columns[5].title == "centralized"
    assert replace(cells[0], ours=5471.0).format("ours") == "5.47e+3"


def test_runs_without_test_rows_are_not_counted_in_tables_of_test_errors():
    blind = [replace(run, test_mse=np.full_like(run.test_mse, np.nan)) for run in all_results("reduced")]
    cells = table("beyond-prediction", results=Results(blind))["Walker"]
    assert {(cell.format("ours"), cell.coverage) for cell in cells} == {("-", "not run")}


ROBUSTNESS = ("to-barycenter", "to-centralized", "closer")
NUMBERED = {
    "dnn-main": [{
        name: [f"main-{name}-{what}" for what in (
            "endpoint", "trajectory", "delta", "corrected-direction-1", "corrected-1", "corrected-endpoint",
        )]
        for name in ("ordinary", "proximal")
    }],
    "dnn-rho": [{
        f"ρ = {weight:g}": [f"rho-{weight:g}-{what}" for what in ("delta", "objective", "endpoint")]
        for weight in cohorts.WEIGHTS
    }],
    "dnn-alignment": [
        {
            name: [f"alignment-{name}-{what}" for what in (
                "delta", "trajectory", "endpoint", "corrected-1", "corrected-8",
            )]
            for name in ("ordinary", "proximal", "aligned")
        },
        {
            SETTINGS[name].title: [f"mismatched-{start}-{name}" for start in ("common", "independent")]
            for name in cohorts.ALIGNED
        },
    ],
    "dnn-architecture": [{
        row: [f"{name}-{what}" for what in ROBUSTNESS]
        for row, name in {
            "residual CNN": "cnn", "residual CNN, corrected": "cnn-corrected", "ResNet-34": "resnet34",
            "larger data, E = 1000": "larger",
        }.items()
    }],
    "dnn-full-model": [{
        row: [f"{name}-{what}" for what in ROBUSTNESS]
        for row, name in {
            "E = 400": "full-400", "E = 4000": "full-4000", "E = 4000, corrected": "full-corrected",
        }.items()
    }],
    "dnn-prediction": [{
        row: [f"prediction-{name}-{what}" for what in ("barycenter", "centralized", "train", "test")]
        for row, name in {
            "ordinary": "ordinary", "proximal": "proximal", "proximal+corrected": "corrected",
        }.items()
    }],
}  # fmt: skip
"""The claim that states each number of the paper's tables, by experiment, table and row."""


@pytest.mark.parametrize("name", NUMBERED)
def test_the_papers_numbers_are_those_of_its_claims(name):
    claimed = {claim.id: claim.value for claim in load_claims(name)}
    # The claims are how much an MSE falls, and the table how much it changes.
    claimed |= {claim: -claimed[claim] for claim in claimed if claim.endswith(("-train", "-test"))}
    for number, rows in enumerate(NUMBERED[name]):
        found = table(name, number, Results())
        stated = {row: [cell.paper for cell in cells] for row, cells in found.items()}
        assert stated == {row: [claimed.get(claim) for claim in claims] for row, claims in rows.items()}


@pytest.mark.parametrize(
    ("runs", "heading", "state"),
    [
        (lambda: all_results(), "ordinary", ("full", "5")),
        (lambda: all_results(), "E", ("full", "21")),
        (lambda: all_results(), "data", ("outside", "–")),
        (lambda: all_results().select(seed=0), "ordinary", ("part", "1 of 5")),
        (lambda: all_results("reduced"), "ρ", ("reduced", "7 of 21")),
        (lambda: Results(), "ordinary", ("none", "")),
    ],
)
def test_coverage_tells_full_part_reduced_and_missing_apart(runs, heading, state):
    column = next(each for each in (*MAIN, *SUPPLEMENTARY) if each.heading == heading)
    assert find_state(runs(), "beijing", column) == state


def test_coverage_shows_kinds_and_does_not_count_the_smoke_scale():
    some = [
        run for run in all_results() if run.setting in ("beijing", "swimmer", "dsprites") and run.seed == 0
    ]
    html = coverage_section(Results(some))
    for kind in ("REAL", "GENERATED", "RE-RENDERED"):
        assert html.count(f">{kind}</span>") == 2
    smoke = coverage_section(all_results("smoke"))
    assert 'class="full"' not in smoke.split("</ul>")[1]
    assert "badge" not in smoke


def test_datasets_that_were_run_are_shown_below_the_papers_numbers():
    agent = replace(all_results().select(setting="hopper")[0], train_rows=3_210, test_rows=123)
    others = all_results("smoke").select(setting="walker")
    page = macros("datasets").section(describe_datasets(Results([agent, *others])))
    rows = {row.partition(" ")[0]: row for row in page.split("<tr><th>")[2:]}
    assert list(rows) == ["Hopper"]
    for part in (
        "<span>11</span>",
        "<span>4,000</span><b>3,210</b>",
        "<span>–</span><b>123</b>",
        ">GENERATED<",
    ):
        assert part in rows["Hopper"]


class Balanced(HTMLParser):
    """Notices tags that are not closed, or closed in another order, and collects ids and figures."""

    def __init__(self, html):
        super().__init__()
        self.open, self.ids, self.figures, self.links = [], [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag not in VOID and tag != "li":
            self.open.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.figures += [dict(attributes)["aria-label"]] if tag == "svg" else []

    def handle_endtag(self, tag):
        if tag not in VOID and tag != "li":
            assert self.open.pop() == tag


def finished_ufm(out):
    """A finished experiment on the unconstrained feature model, as the runner leaves it."""
    folder = out / "quick" / "ufm-gap"
    folder.mkdir(parents=True)
    claims = [
        {"id": claim.id, "where": claim.where, "says": claim.says, "paper": claim.paper, "ours": "1",
         "comparison": claim.comparison, "verdict": "match", "reason": "", "agrees": True, "deviation": 1.0}
        for claim in load_claims("ufm-gap")
    ]  # fmt: skip
    (folder / "claims.json").write_text(json.dumps({"claims": claims}))
    (folder / "manifest.json").write_text(json.dumps({"data": "GENERATED"}))
    (folder / "figure.svg").write_bytes(SVG)
    return len(claims)


@pytest.fixture
def no_rendering(monkeypatch):
    """Draw figures, but put a small one into the page."""

    def close(figure, suffix):
        plotting.pyplot().close(figure)
        return SVG

    monkeypatch.setattr(registry, "render_styled", close)
    monkeypatch.setattr(page_module, "render", close)


@pytest.fixture
def no_figures(monkeypatch):
    """Pages with tables and claims only."""
    monkeypatch.setattr(registry, "figures_of", lambda name, results: {})
    monkeypatch.setattr(page_module, "draw_story", lambda results, claims: {})


def page_of(out, tmp_path):
    said = write_report(out, tmp_path / "report.html")
    return said, (tmp_path / "report.html").read_text("utf-8").replace("&#39;", "'")


def test_the_report_works_without_results_of_networks(tmp_path):
    matched = finished_ufm(tmp_path)
    said, html = page_of(tmp_path, tmp_path)
    exact = sum(claim.experiment in MODULES for claim in load_claims())
    assert said == (
        f"Exact model: {matched} of {exact} claims matched, 0 partial, {exact - matched} not run. "
        "Networks: no claim compared yet ('fedgram reproduce list' has the experiments)"
    )
    assert f"<p>{said}.</p>" in html
    page = Balanced(html)
    assert "ufm-gap" in page.ids
    assert not set(page.ids) & set(STUDIES)
    assert page.figures == ["Three terms of the gap"]
    assert "<b>order</b>: within a factor of the paper" in html
    assert "<b>rounding</b>: zero up to rounding" in html
    story = html[html.index('<ol class="story">') : html.index("</ol>")]
    assert story.count("<li>") == 4
    assert f"{matched} of {matched} claims about the unconstrained feature model hold." in story
    assert "The paper's network experiments were not run; their commands are below." in story


@pytest.mark.usefixtures("no_rendering")
def test_the_report_shows_what_was_run(tmp_path):
    solved = [
        run
        for run in all_results()
        if run.procedure.returned == "solved" and run.setting in ("beijing", "swimmer")
    ]
    Results(solved).save(tmp_path / "paper" / "results")
    finished_ufm(tmp_path)
    said, html = page_of(tmp_path, tmp_path)
    page = Balanced(html)
    assert [name for name in page.ids if name in (*STUDIES, *MODULES)] == [
        "ufm-gap", "beyond-solved", "beyond-prediction",
    ]  # fmt: skip
    assert page.figures == [
        "Error at the end, every run", "Three terms of the gap", CAPTIONS["epochs"], CAPTIONS["seconds"],
        CAPTIONS["beyond-prediction"],
    ]  # fmt: skip
    assert {link for link in page.links if not link.startswith("#")} == {"data:,"}  # nothing is loaded
    section = html[html.index('id="beyond-solved"') : html.index('id="beyond-prediction"')]
    assert {"REAL", "GENERATED"} == set(re.findall(r'class="badge[^>]*>([A-Z-]+)<', section))
    error = median(lambda run: run.error["barycenter"][-1], "solved", ["beijing"], range(3))
    assert f"<b>{error:.2e}".replace("e-0", "e-") in section
    assert "46 runs at paper scale" in section
    assert "trained on NVIDIA H200" in section
    numbers = [int(number) for number in re.findall(r"(\d+) (?:of|missed|partial|not run)", said)]
    assert sum(numbers) == sum(claim.experiment in MODULES for claim in load_claims())
    assert "Networks: no claim compared yet" in said


def test_figures_are_embedded_with_their_runs_and_without_shared_ids():
    one, two = (embed_svg(SVG, name, "A & B") for name in ("f1", "f2"))
    assert 'data-runs="ab cd"' in one
    assert 'aria-label="A &amp; B"' in one
    assert '<path d="M 0.12 1" style="fill: var(--blue)" id="f1-0" />' in one  # the style of its references
    assert 'href="#f1-0"' in one
    assert "#ffffff" not in one  # the page has its own background
    assert set(re.findall(r'id="([^"]+)"', one)).isdisjoint(re.findall(r'id="([^"]+)"', two))


def test_every_run_is_in_the_data_of_the_page_with_its_numbers():
    run = all_results().select(setting="hopper", procedure="proximal", seed=1, epochs=4000)[0]
    (row,) = list_results([replace(run, test_mse=np.full_like(run.test_mse, np.nan))])
    found = dict(zip(COLUMNS, row, strict=True))
    assert (found["id"], found["setting"], found["procedure"], found["seed"]) == (
        run.id,
        "Hopper",
        "proximal",
        1,
    )
    assert found["error"] == pytest.approx(run.error["barycenter"][-1], rel=5e-3)
    assert (found["to"], found["test MSE"]) == ("G_⋆", None)
    ids = [run.id for scale in ("paper", "reduced", "smoke") for run in all_results(scale)]
    assert len(set(ids)) == len(ids)


def test_the_story_has_numbers_of_the_results_and_the_paper():
    results = Results(run for run in all_results() if run.setting in ("beijing", "swimmer"))
    claims = [claim for chapter in make_chapters(results) for claim in chapter.claims]
    agreement = measure_agreement(results)[0]
    story = {sentence.heading: sentence.text for sentence in tell_story([], claims, results, agreement)}
    assert len(story) == 5
    settings = ("beijing", "swimmer")
    ours = median(lambda run: run.error["centralized"][-1], "proximal+corrected", settings)
    assert f"ends {ours:.1e}".split("e-")[0] in story["Networks"]
    assert "(paper: 7.1 × 10⁻⁵)" in story["Networks"]
    short = {
        name: median(lambda run: run.error["barycenter"][-1], name, settings, range(3), epochs=400)
        for name in ("solved", "ordinary")
    }
    assert f"end {short['solved']:.1e}".split("e-")[0] in story["Added"]
    assert f"ordinary training is {short['ordinary']:.2g} " in story["Added"]
    assert "not run" in story["Exact model"]


def tell(results, claims=None):
    found = claims or [claim for chapter in make_chapters(results) for claim in chapter.claims]
    sentences = tell_story([], found, results, measure_agreement(results)[0])
    return {each.heading: each.text for each in sentences}


def test_the_story_says_why_no_number_is_compared():
    solved = [run for run in all_results() if run.procedure.name == "solved"]
    assert solved
    assert tell(Results(solved))["Networks"] == "No number of the paper depends on the finished runs."
    smoke = [run for run in all_results("smoke") if run.setting == "swimmer"]
    for count, runs in ((1, "1 run is"), (2, "2 runs are")):
        said = tell(Results(smoke[:count]))["Networks"]
        assert said == f"{runs} not at the paper's scale, so that its numbers cannot be compared."


@pytest.mark.parametrize(
    ("verdicts", "counts"),
    [
        (["miss", "not run"], "1 claim about networks is missed and 1 waits for runs"),
        (["not run", "not run"], "0 claims about networks are missed and 2 wait for runs"),
    ],
)
def test_one_claim_is_not_plural(verdicts, counts):
    ids = ("main-ordinary-endpoint", "other")
    claims = [{"id": name, "ours": "-", "verdict": each} for name, each in zip(ids, verdicts, strict=True)]
    assert tell(Results([all_results("smoke")[0]]), claims)["Differences"].startswith(counts)


def test_the_summary_says_how_many_partial_claims_agree():
    verdicts = [
        ("partial", True),
        ("partial", False),
        ("match", True),
        ("not comparable", None),
        ("not run", None),
    ]
    claims = [{"verdict": verdict, "agrees": agrees} for verdict, agrees in verdicts]
    assert (
        summarize(claims) == "1 of 5 claims matched, 2 partial (1 agree so far), 1 not comparable, 1 not run"
    )
    assert summarize([*claims[1:3], claims[4]]) == "1 of 3 claims matched, 1 partial, 1 not run"
    rows = make_rows("dnn-main", [claim | {"id": "", "deviation": None} for claim in claims])
    assert list(count_styles(rows).values()) == [
        ("disagree so far", 1), ("partial", 1), ("not comparable", 1), ("matched", 1),
    ]  # fmt: skip
    assert len(rows) == 4  # what was not run is no row


def test_the_exact_model_and_networks_are_counted_apart():
    exact, networks = ([{"verdict": verdict, "agrees": None}] * 3 for verdict in ("match", "not run"))
    found = "3 of 3 claims matched, 0 partial, 0 not run"
    assert summarize_all(exact, networks) == (
        f"Exact model: {found}. Networks: no claim compared yet "
        "('fedgram reproduce list' has the experiments)"
    )
    assert summarize_all(networks, exact) == (
        f"Exact model: no claim compared yet ('fedgram reproduce ufm' takes six minutes). Networks: {found}"
    )


def test_rows_say_whether_a_part_of_the_runs_agrees_and_how_far_they_are():
    fields = dict.fromkeys(("says", "where", "paper", "ours", "comparison", "reason"), "")
    claims = [
        fields | {"verdict": "partial", "agrees": True, "deviation": 1.234},
        fields | {"verdict": "partial", "agrees": False, "deviation": None},
    ]
    first, second = macros("claims").table(make_rows("dnn-main", claims)).split("<tr class=")[1:]
    assert first.startswith('"partial" data-experiment="dnn-main"')
    assert '<td data-key="1.234">×1.23</td>' in first
    assert ">partial, agrees so far</td>" in first
    assert second.startswith('"against"')
    assert '<td data-key=""></td>' in second
    assert ">partial, disagrees so far</td>" in second


@pytest.mark.usefixtures("no_figures")
def test_what_was_not_run_is_one_line_per_experiment_with_its_command(tmp_path):
    all_results().select(setting="hopper", procedure="proximal").save(tmp_path / "paper" / "results")
    said, html = page_of(tmp_path, tmp_path)
    assert "Exact model: no claim compared yet ('fedgram reproduce ufm' takes six minutes)." in said
    assert f"<p>{said}.</p>" in html
    assert '<a href="#not-run">' in html
    section = html[html.index('<section id="not-run"') : html.index('<section id="runs"')]
    assert section.count("<li>") == len(MODULES) + len(STUDIES)
    for name in (*MODULES, *STUDIES):
        assert section.count(f"<code>fedgram reproduce {name}</code>") == 1
    assert "Selection and moment correction in networks: 5 of 200 runs" in section
    assert "Test error on images: 0 of 45 runs; " in section
    assert html.count(">not run<") == 1  # in a legend; no table is filled with it


@pytest.mark.usefixtures("no_rendering")
def test_figures_of_which_nothing_was_run_are_left_out(tmp_path):
    hopper = all_results().select(setting="hopper", procedure="proximal", seed=0, epochs=4000)
    hopper.save(tmp_path / "paper" / "results")
    _, html = page_of(tmp_path, tmp_path)
    section = html[html.index('id="dnn-main"') : html.index('id="dnn-rho"')]
    assert Balanced(f"<details {section[: section.rindex('<details')]}").figures == [
        CAPTIONS[name] for name in ("proximal-tabular", "evolution", "comparison")
    ]
    assert "1 run at paper scale" in section


def test_claims_are_judged_at_the_largest_scale_and_smoke_only_counts_alone():
    some = [
        run
        for scale in ("paper", "reduced", "smoke")
        for run in all_results(scale)
        if run.setting == "hopper"
    ]
    chapters = {each.study.name: each for each in make_chapters(Results(some))}
    main = chapters["dnn-main"]
    assert list(main.results) == ["paper", "reduced"]
    assert main.summary == "20 runs at paper scale, 4 runs at reduced scale"
    assert {claim["verdict"] for claim in main.claims} >= {"partial"}
    assert all(claim["verdict"] != "not run" for claim in main.claims)
    assert not chapters["dnn-prediction"].results
    assert {claim["verdict"] for claim in chapters["dnn-prediction"].claims} == {"not run"}
    alone = {each.study.name: each for each in make_chapters(all_results("smoke"))}
    assert list(alone["dnn-main"].results) == ["smoke"]


def test_runs_that_two_scales_share_are_said():
    some = [run for scale in ("paper", "reduced") for run in all_results(scale) if run.setting == "hopper"]
    hopper = Results(run for run in some if run.scale == "reduced" or run.epochs in (400, 4000))
    chapters = {each.study.name: each for each in make_chapters(Results(hopper))}
    assert chapters["dnn-epochs"].summary == (
        "6 runs at paper scale, 7 runs at reduced scale (1 of them the same as at paper scale with E = 400)"
    )
    few = Results(run for run in hopper if run.epochs >= 400)
    chapters = {each.study.name: each for each in make_chapters(few)}
    assert chapters["dnn-epochs"].summary == (
        "6 runs at paper scale, 1 run at reduced scale (the same as at paper scale with E = 400)"
    )
    assert "the same" not in chapters["dnn-main"].summary


@pytest.mark.usefixtures("no_figures")
def test_a_baseline_alone_is_said_to_be_one(tmp_path):
    ordinary = all_results().select(setting="hopper", procedure="ordinary", seed=0)
    chapters = {each.study.name: each for each in make_chapters(ordinary)}
    words = "only the baseline: 1 of 30 ordinary and 0 of 30 centered runs at paper scale"
    assert chapters["dnn-means"].summary == words
    assert not any(each.has_only_baseline for name, each in chapters.items() if name != "dnn-means")
    ordinary.save(tmp_path / "paper" / "results")
    _, html = page_of(tmp_path, tmp_path)
    section = html[html.index('id="dnn-means"') : html.index('id="dnn-epochs"')]
    assert "badge" not in section
    assert html.count(words) == 1
    centered = all_results().select(setting="hopper", procedure="centered", seed=0)
    chapters = {each.study.name: each for each in make_chapters(Results([*ordinary, *centered]))}
    assert chapters["dnn-means"].summary == "2 runs at paper scale"


@pytest.mark.usefixtures("no_figures")
def test_tables_at_reduced_scale_say_that_the_papers_numbers_are_left_out(tmp_path):
    for scale in ("paper", "reduced"):
        hopper = all_results(scale).select(setting="hopper", procedure="proximal", seed=0)
        hopper.save(tmp_path / scale / "results")
    _, html = page_of(tmp_path, tmp_path)
    section = html[html.index('id="dnn-main"') : html.index('id="dnn-rho"')]
    assert section.count("The upper number is the paper's, the lower one ours.") == 1
    assert section.count("the paper's numbers are not comparable at reduced scale") == 1
    assert section.count("<span>2.90e-4</span>") == 1
    assert "1 of 10 runs" in section
    ours = html[html.index('id="beyond-solved"') : html.index('id="beyond-prediction"')]
    assert "<th>Hopper" in ours
    assert "<th>Walker" not in ours
    assert "Settings without runs are not shown." in ours


def test_nothing_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"There are no results in .*'fedgram report --runs runs'"):
        write_report(tmp_path, tmp_path / "report.html")


@pytest.mark.slow
def test_the_report_of_everything_is_complete(tmp_path):
    for scale in ("paper", "reduced"):
        all_results(scale).save(tmp_path / scale / "results")
    said, html = page_of(tmp_path, tmp_path)
    page = Balanced(html)
    assert len(page.figures) == 2 + len(CAPTIONS)  # reduced runs add no setting
    assert set(page.ids) >= set(STUDIES)
    assert len(set(page.ids)) == len(page.ids)
    assert " 0 partial" in said
    lines = html[html.index('<section id="not-run"') : html.index('<section id="runs"')]
    assert lines.count("<li>") == len(MODULES)  # all networks were trained
