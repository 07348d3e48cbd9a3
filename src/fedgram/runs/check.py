"""Verify every file of a folder of runs, or of a site's private folder."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import TEMPORARY_ENDINGS
from fedgram.runs.audit import AUDIT, read_audit
from fedgram.runs.secure_record import DOCUMENT, SecureRecord
from fedgram.runs.store import MANIFEST, StoredRun, find_lost_manifests, read_run
from fedgram.runs.tensor_files import read_arrays, read_metadata

STATE = "federation.safetensors"
"""File with the state of a federation's server."""


@dataclass(frozen=True)
class FolderCheck:
    """What `check_folder` found: `problems` are sentences that name a file, `notes` need no repair."""

    root: Path
    files: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram runs check --json`."""
        return vars(self) | {"root": str(self.root)}


def check_folder(root: str | Path) -> FolderCheck:
    """Read every manifest, file of arrays and audit log below a folder, and verify its checksum.

    Parameters
    ----------
    root : path
        A folder of runs, of one run, or of a site's private files.

    Returns
    -------
    FolderCheck
        The number of verified files, the damaged or missing ones, and files that others can read.

    Raises
    ------
    InputError
        If the folder has no files to check.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from fedgram.runs.check import check_folder
    >>> from fedgram.runs.tensor_files import write_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_arrays(Path(folder, "round-01.safetensors"), {"head": np.eye(2)})
    ...     checked = check_folder(folder)
    >>> checked.files, checked.problems
    (1, ())
    """
    root = Path(root)
    paths = sorted(path for path in root.rglob("*") if _is_ours(path))
    if not paths:
        raise InputError(f"No runs or arrays found in '{root}'. Check the path.", field="root")
    problems = [problem for path in paths for problem in _find_problems(path)]
    problems += [f"'{path}' is missing." for path in find_lost_manifests(root)]
    left = [path for ending in TEMPORARY_ENDINGS for path in root.rglob(f".*{ending}")]
    temporary = [f"'{path}' is a temporary file of a killed process." for path in left]
    return FolderCheck(root, len(paths), tuple(dict.fromkeys(problems)), (*_find_open(paths), *temporary))


def read_anchor(audit: Path) -> str | None:
    """Return the hash of the line that was the audit log's last when the server wrote its state."""
    state = audit.with_name(STATE)
    return read_metadata(state).get("audited") if state.exists() else None


def _is_ours(path: Path) -> bool:
    return path.is_file() and (path.suffix == ".safetensors" or path.name in (MANIFEST, AUDIT, DOCUMENT))


def _find_problems(path: Path) -> Iterator[str]:
    try:
        if path.name == MANIFEST:
            run = read_run(path.parent)
            yield from _find_missing(run) if run else ()
        elif path.name == DOCUMENT:
            SecureRecord.load(path.parent)
        elif path.name == AUDIT:
            read_audit(path, read_anchor(path))
        else:
            read_arrays(path)
    except (InputError, OSError) as error:
        yield getattr(error, "message", str(error))


def _find_missing(run: StoredRun) -> Iterator[str]:
    """Find files that the manifest lists and that are missing, or not the ones that it lists."""
    for name in run.checksums:
        path = run.folder / name
        if not path.exists():
            yield f"'{path}' is missing."
    try:
        _ = run.moments
        for number in range(run.account.rounds + 1):
            path = run.round_path(number)
            if path.exists():
                read_arrays(path, checksum=run.checksums.get(path.name))
        if run.has_model:
            run.model()
    except InputError as error:
        yield error.message


def _find_open(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield f"'{path}' has mode {mode:04o}, so other users may read it."
