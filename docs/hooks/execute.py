"""Execute the code blocks of a page and show what they print, return and draw, as a notebook does.

Blocks in ```python share one namespace per page; blocks in ```sh are commands. All run in one temporary
folder with copies of some data, so a page writes nothing into the repository. Code below the line `# fold` is
shown only on request. `not_executed.toml` lists the commands that are written as indented blocks instead.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from example_tables import write_example_tables

ROOT = Path(__file__).parents[2]
DATA = {"examples": ROOT / "examples", "results": ROOT / "results"}
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n", flags=re.MULTILINE | re.DOTALL)
FOLD = "# fold\n"
STYLE = re.compile(r"<style.*?</style>", flags=re.DOTALL)
WORD = re.compile("[A-Za-z]{4}")
PICTURES = (".png", ".svg")
PNG = b"\x89PNG"
# Characters in a line of output: what a page shows without scrolling.
COLUMNS = 84


@dataclass(frozen=True)
class ExecutedPage:
    """A page with the output of its blocks, and the pictures that they made, by file name."""

    markdown: str
    pictures: dict[str, bytes] = field(default_factory=dict)


@cache
def execute_page(markdown: str, name: str) -> ExecutedPage:
    """Execute all blocks of a page in order.

    Parameters
    ----------
    markdown
        The page.
    name
        Name of the page; begins the file names of its pictures, and appears in tracebacks.
    """
    if not BLOCK.search(markdown):
        return ExecutedPage(markdown)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pictures: dict[str, bytes] = {}

    def run(match: re.Match[str]) -> str:
        language, code = match.groups()
        shown, drawn = _run_python(code, name, namespace) if language == "python" else _run_shell(code)
        lines = [_fold(code) if code.startswith(FOLD) else match[0], shown]
        for picture, alternative in drawn:
            suffix = "png" if picture.startswith(PNG) else "svg"
            file = f"{name}-{len(pictures) + 1}.{suffix}"
            pictures[file] = picture
            lines.append(f"![{alternative}]({file}){{ .drawn }}\n")
        return "\n".join(lines)

    with _working_folder():
        if "```sh" in markdown:
            write_example_tables(Path())
        return ExecutedPage(BLOCK.sub(run, markdown), pictures)


def _fold(code: str) -> str:
    block = f"```python\n{code.removeprefix(FOLD)}```"
    return f'<details class="code" markdown="1"><summary>Code</summary>\n\n{block}\n\n</details>\n'


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, path in DATA.items():
            shutil.copytree(path, name) if path.is_dir() else shutil.copyfile(path, name)
        yield


def _run_python(code: str, name: str, namespace: dict[str, Any]) -> tuple[str, list[tuple[bytes, str]]]:
    """Run a block; the value of a last expression is shown, unless it is None or a picture."""
    tree = ast.parse(code, f"{name}.md")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"{name}.md", "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), f"{name}.md", "eval"), namespace) if last else None
    drawn = _take_figures()
    text = printed.getvalue()
    shown = "" if drawn or value is None else _show(value)
    return _as_output(text) + shown, drawn


def _show(value: Any) -> str:
    if hasattr(value, "to_html"):
        table = _show_frame(value)
    elif hasattr(value, "_repr_html_"):
        table = STYLE.sub("", value._repr_html_())  # the site has its own style for tables
    else:
        return _as_output(repr(value))
    return f'<div class="output table" markdown="0">{table}</div>\n'


def _show_frame(frame: Any) -> str:
    """Format a data frame; names of the index are in the header, and columns of words have a class."""
    html = frame.to_html(index_names=False, border=0, max_rows=60)
    if frame.columns.nlevels == 1:
        for name in filter(None, frame.index.names):
            html = html.replace("<th></th>", f"<th>{name}</th>", 1)
    are_words = [any(map(WORD.search, map(str, column))) for _, column in frame.items()]
    for name, is_words in zip(frame.columns, are_words, strict=True):
        if is_words:
            html = html.replace(f"<th>{name}</th>", f'<th class="words">{name}</th>', 1)
    kinds = itertools.cycle(are_words)  # cells come row by row
    return re.sub("<td>", lambda cell: '<td class="words">' if next(kinds) else cell[0], html)


def _run_shell(code: str) -> tuple[str, list[tuple[bytes, str]]]:
    """Run commands; pictures that they write are shown."""
    before = _pictures()
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": bin_folder + os.pathsep + os.environ["PATH"],
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"This block failed:\n{code}\n{done.stdout}\n{done.stderr}")
    new = sorted(_pictures() - before)
    return _as_output(done.stdout), [(path.read_bytes(), path.stem) for path in new]


def _pictures() -> set[Path]:
    return {path for path in Path().iterdir() if path.suffix in PICTURES}


def _as_output(text: str) -> str:
    """Format printed text as blocks: the site wraps sentences, and tables scroll."""
    parts = itertools.groupby(text.strip("\n").splitlines(), key=_is_table_row)
    blocks = []
    for is_table, lines in parts:
        shown = "\n".join(line.rstrip() for line in lines).strip("\n")
        if shown:
            kind = "" if is_table else " .prose"
            blocks.append(f"```{{ .text .output{kind} }}\n{shown}\n```\n")
    return "\n".join(blocks)


def _is_table_row(line: str) -> bool:
    is_matrix = line.startswith(("[[", " ["))  # NumPy's
    return "  " in line.strip() or "──" in line or is_matrix or not line.strip()


def _take_figures() -> list[tuple[bytes, str]]:
    """Render all open figures of matplotlib as SVG, and close them."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return []
    drawn = []
    for number in plt.get_fignums():
        figure, content = plt.figure(number), io.BytesIO()
        # Without date and random identifiers, equal data give equal files.
        with plt.rc_context({"svg.hashsalt": "fedgram"}):
            figure.savefig(content, format="svg", bbox_inches="tight", metadata={"Date": None})
        titles = [axis.get_title() or axis.get_title("left") for axis in figure.axes]
        drawn.append((content.getvalue(), next(filter(None, titles), "Figure drawn by the code above")))
        plt.close(figure)
    return drawn
