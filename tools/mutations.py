"""Plant every error of tests/mutations in a copy of the package and write docs/mutations.md.

    python tools/mutations.py [words of a name ...]

Exits with 1 if an error is not caught, or a check fails without one. With words, only errors whose names
contain them are planted, and nothing is written.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.mutations.mutations import MUTATIONS, RESULTS, Mutation  # noqa: E402
from tests.mutations.plant import notices, plant  # noqa: E402

PAGE = ROOT / "docs" / "mutations.md"
HEAD = """# Planted errors

A check that cannot fail proves nothing. `python tools/mutations.py` plants each error below in a copy of the
package, one at a time, and runs the check in the last column. It fails with the error and passes without it.
Tests are part of `make test`. Claims are those of `fedgram reproduce ufm --quick`, which then exits with 1.
The errors are in `tests/mutations/`; `make test-slow` plants them all.

Three kinds of errors have no such check:

- Errors in the GPU kernels of `nets/fused_*.py` are noticed only on a GPU, by `test_gpu.py` and
  `test_fused_layers.py` in `tests/nets`.
- Test errors and times of committed results follow from nothing else that is stored. A test compares those of
  two runs with recorded numbers.
- Stored Gram matrices only bound δ and the objective gap of most runs. A change within the bounds passes.

| planted error | file | caught by |
| --- | --- | --- |
"""


def is_caught(mutation: Mutation) -> bool:
    """Plant an error and report whether its check fails."""
    with TemporaryDirectory() as folder:
        plant(mutation, Path(folder))
        return notices(mutation.caught_by, Path(folder))


def write_page() -> None:
    """Write the table of all errors."""
    rows = [f"| {each.name} | `{each.file}` | {_describe(each.caught_by)} |" for each in MUTATIONS]
    rows += [f"| {name} | `results/` | {_describe(check)} |" for name, (_, check) in RESULTS.items()]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")


def _describe(check: str) -> str:
    if check.startswith("tests/"):
        path, _, test = check.partition("::")
        return f"`{test or path}` in `{path}`" if test else f"`{path}`"
    return f"claim `{check.split(': ')[1]}`"


def main(words: list[str]) -> int:
    """Plant all errors, or some."""
    chosen = [each for each in MUTATIONS if all(word in each.name for word in words)]
    checks = list(dict.fromkeys(each.caught_by for each in chosen))
    with ThreadPoolExecutor(2) as pool:
        broken = [check for check, fails in zip(checks, pool.map(notices, checks), strict=True) if fails]
        missed = []
        for each, caught in zip(chosen, pool.map(is_caught, chosen), strict=True):
            print(f"{'caught' if caught else 'MISSED':7} {each.name}: {each.caught_by}", flush=True)
            missed += [] if caught else [each.name]
    for check in broken:
        print(f"FAILS without an error: {check}")
    if not (missed or broken or words):
        write_page()
    return int(bool(missed or broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
