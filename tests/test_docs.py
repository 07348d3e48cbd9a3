"""Code blocks in the documentation run, links work, and equations and names are where pages say."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from execute import BLOCK, execute_page
from formulas import convert_formulas, link_citations
from gallery import read_script

import fedgram
from fedgram.theory.site_effects import RIDGES, STRENGTHS

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "REPRODUCTION.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
# An empty line, then lines of four spaces; lists continue with their text in two.
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
SOURCES = sorted((ROOT / "src" / "fedgram").rglob("*.py"))
# `make docs`, and with it test_docs_site.py, executes all pages; these take a second or less each.
QUICK_PAGES = ("docs/data.md", "docs/flower.md", "docs/index.md", "docs/limits.md", "docs/measurements.md")


@pytest.mark.parametrize("page", QUICK_PAGES)
def test_code_blocks_run(page):
    executed = execute_page((ROOT / page).read_text(), Path(page).stem)
    assert "```python" in executed.markdown
    assert "58%" in executed.markdown or page != "docs/index.md"


@pytest.mark.slow
def test_the_readme_shows_what_its_commands_print():
    page, shown_blocks = (ROOT / "README.md").read_text(), re.compile(r"```text\n(.*?)```", flags=re.DOTALL)
    said = re.sub(r"\s+", " ", execute_page(shown_blocks.sub("", page), "README").markdown)
    parts = [part for shown in shown_blocks.findall(page) for part in re.split(r"\.\.\.\s", shown)]
    assert len(parts) > 1
    for part in parts:
        assert re.sub(r"\s+", " ", part).strip() in said


def test_commands_that_are_not_executed_are_listed_with_a_reason():
    reasons = tomllib.loads((ROOT / "docs" / "hooks" / "not_executed.toml").read_text())["reasons"]
    texts = {page: page.read_text() for page in PAGES}
    executed = {code.strip() for text in texts.values() for _, code in BLOCK.findall(text)}
    unlisted, used = [], set()
    for page, text in texts.items():
        for block in INDENTED.findall(FENCED.sub("", text)):
            code = re.sub("^ {4}", "", block, flags=re.MULTILINE).strip()
            found = {start for start in reasons if code.startswith(start)}
            used |= found
            if not found and code not in executed:
                unlisted.append(f"{page.name}: {code.splitlines()[0]}")
    assert unlisted == []
    assert used == set(reasons)


def test_every_page_is_in_the_navigation():
    named = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1])
    docs = ROOT / "docs"
    written = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    made = [f"gallery/{path.stem}.md" for path in (docs / "gallery").glob("*.py")]
    assert sorted(named) == sorted([*written, *made, "changelog.md", "contributing.md", "reproduction.md"])


def test_messages_on_the_page_about_failures_are_those_of_the_programs():
    """Parts between numbers, names, punctuation and '...' are in the source of fedgram or of Flower."""
    flower = Path(pytest.importorskip("flwr").__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in (*SOURCES, *flower.rglob("*.py"))]
    # as Python does, join strings that follow each other
    source = re.sub(r'"\s*\n\s*(?:#[^\n]*\n\s*)?[rf]?"', "", "\n".join(texts))
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = [each.replace("\n", " ") for each in re.findall(r"`([A-Zahirsw][^`]* [^`]*)`", page)]
    messages = [each for each in messages if not each.startswith(("insecure =", "settings."))]
    assert len(messages) > 12
    for message in messages:
        parts = re.split(r"'[^']*'(?:, '[^']*')*|\d+(?:\.\d+)?|\.\.\.|[:;]", message)
        for part in (each.strip(" .,") for each in parts if len(each) > 9):
            assert part in source, message


def test_a_block_shows_what_it_prints_returns_and_draws():
    page = (
        "```python\nprint('one')\n2 + 1\n```\n\n```sh\necho four\n```\n"
        "```python\nimport matplotlib.pyplot as plt\nplt.figure().subplots().set_title('A line')\n```\n"
    )
    executed = execute_page(page, "page")
    outputs = re.findall(r"```\{ .text .output .prose }\n(.*?)\n```", executed.markdown)
    assert outputs == ["one", "3", "four"]
    assert "![A line](page-1.svg)" in executed.markdown
    assert b"<svg" in executed.pictures["page-1.svg"]


def test_a_frame_has_its_names_in_the_header_and_marks_columns_of_words():
    frame = "pd.DataFrame({'kind': ['REAL', ''], 'n': [1, 2]}, pd.Index(['a', 'b'], name='site'))"
    html = execute_page(f"```python\nimport pandas as pd\n{frame}\n```\n", "page").markdown
    assert "<th>site</th>" in html
    assert '<th class="words">kind</th>' in html
    assert html.count('<td class="words">') == html.count("<td>") == 2


def test_printed_sentences_wrap_and_tables_do_not():
    page = execute_page(
        "```python\nprint('A sentence.\\n\\nsite   RMSE\\n────\\noslo   1.2')\n```\n", "page"
    ).markdown
    assert "```{ .text .output .prose }\nA sentence.\n```" in page
    assert "```{ .text .output }\nsite   RMSE\n────\noslo   1.2\n```" in page


def test_a_matrix_is_one_block():
    page = execute_page("```python\nimport numpy as np\n\nprint(np.eye(2))\n```\n", "page").markdown
    assert "```{ .text .output }\n[[1. 0.]\n [0. 1.]]\n```" in page


def test_code_below_the_fold_is_hidden_and_its_output_shown():
    page = execute_page("```python\n# fold\nprint(6 * 7)\n```\n", "page").markdown
    assert page.startswith('<details class="code" markdown="1">')
    assert "# fold" not in page
    assert "42" in page[page.index("</details>") :]


def test_a_failing_block_fails_the_page():
    with pytest.raises(AssertionError):
        execute_page("```python\nassert 1 == 2\n```\n", "page")
    with pytest.raises(RuntimeError, match="no-such-command"):
        execute_page("```sh\nno-such-command\n```\n", "page")


def test_formulas_become_mathml_with_a_number_that_citations_link_to():
    html = convert_formulas(r'<div class="arithmatex">\[ \norm{x} \le 1 \tag{B2} \]</div>')
    assert "<math" in html
    assert 'id="eq-B2"' in html
    assert (
        link_citations("see eq. (B2).", "../theory.html")
        == 'see eq. <a href="../theory.html#eq-B2">(B2)</a>.'
    )
    assert convert_formulas(r'<span class="arithmatex">\(a &lt; b\)</span>').startswith("<math")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8192


def test_the_architecture_page_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "fedgram"
    for package in (path.parent.relative_to(source) for path in source.rglob("__init__.py")):
        assert package.name in page, package


def test_links_between_pages_lead_somewhere():
    generated = {"assets/explorer.html"}
    generated |= {f"{path.stem}.md" for path in (ROOT / "docs" / "gallery").glob("*.py")}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert target in generated or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_has_every_public_name_once():
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = re.findall(r"^::: fedgram\.(\w+)$", pages, flags=re.MULTILINE)
    assert sorted(listed) == sorted(fedgram.__all__)


def test_docstrings_cite_equations_of_the_theory_page():
    tags = re.findall(r"\\tag\{(\w+)\}", (ROOT / "docs" / "theory.md").read_text())
    assert len(tags) == len(set(tags))
    cited = set()
    for path in SOURCES:
        for numbers in re.findall(r"\b[Ee]qs?\. ((?:\(\w+\)(?:-| and )?)+)", path.read_text()):
            cited |= set(re.findall(r"\w+(?=\))", numbers))
    assert cited <= set(tags)
    assert {tag for tag in tags if tag.startswith("B")} <= cited  # ours, which no paper has


def test_gallery_scripts_are_pages_with_one_title():
    scripts = sorted((ROOT / "docs" / "gallery").glob("*.py"))
    assert len(scripts) == 5
    for script in scripts:
        ast.parse(script.read_text())
        page = read_script(script)
        assert page.startswith("# ")
        assert page.count("```python") >= 2


def test_the_numbers_of_strengths_that_sites_try_are_current():
    tried = len(RIDGES) * len(STRENGTHS)
    at_the_end = f"with {tried}, then {len(STRENGTHS)}, then {len(STRENGTHS)} strengths at the end"
    for sentence in (at_the_end, f"errors on validation rows with {tried} strengths |"):
        assert sentence in (ROOT / "docs" / "privacy.md").read_text()
