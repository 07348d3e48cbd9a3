"""Write the README's file map from the first line of every file's docstring."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
START, END = "<!-- file map: python tools/file_map.py -->", "<!-- end of file map -->"
FOLDERS = {
    "src/fedgram": "the library",
    "src/fedgram/cli": "the command line",
    "src/fedgram/ufm": "the unconstrained feature model",
    "src/fedgram/data": "datasets and partitions",
    "src/fedgram/nets": "networks: the stack and its training loop",
    "src/fedgram/runs": "results on disk",
    "src/fedgram/train": "training with everything kept",
    "src/fedgram/flower": "the same procedures on a Flower federation",
    "src/fedgram/paper": "the paper's experiments",
    "src/fedgram/paper/networks": "those that train networks",
    "examples/flower": "an app for sites with a table each",
    "benchmarks": "side by side with other libraries",
    "tools": "for maintainers",
    "tests": "tests",
}


def file_map() -> str:
    """The map as Markdown: a heading for each folder, a line for each file."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    by_folder: dict[str, list[str]] = {folder: [] for folder in FOLDERS}
    for path in sorted(listed.stdout.split()):
        if not path.endswith("__init__.py"):
            by_folder[str(Path(path).parent)].append(f"- `{path}`: {_first_line(ROOT / path)}")
    return "\n\n".join(
        f"**`{folder}/`**, {what}\n\n" + "\n".join(by_folder[folder]) for folder, what in FOLDERS.items()
    )


def with_map(readme: str) -> str:
    """The README with its map renewed."""
    return re.sub(f"{START}.*?{END}", lambda _: f"{START}\n\n{file_map()}\n\n{END}", readme, flags=re.DOTALL)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.split("\n")[0].rstrip(".")


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(with_map(page.read_text("utf-8")), "utf-8")
