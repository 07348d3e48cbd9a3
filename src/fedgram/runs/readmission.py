"""Let suspended clients back into a federation: a file that the server reads before every round."""

from __future__ import annotations

import json
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write, read_json
from fedgram.runs.audit import AUDIT, read_audit
from fedgram.runs.secure_record import DOCUMENT
from fedgram.runs.store import MANIFEST, StoredRun, read_run

READMIT = "readmit.json"
"""File beside the audit log with the clients that an operator lets back in; the server deletes it."""


def readmit_site(folder: Path, client: str, *, new_key: bool = False) -> None:
    """Ask the server of a run to let a suspended client back in, before its next round.

    Parameters
    ----------
    folder : Path
        Folder of one Flower run on the server.
    client : str
        Name of a suspended site, or of any site with `new_key`.
    new_key : bool
        Also take the key and the rows of the site's next introduction.

    Raises
    ------
    InputError
        If there is nothing to readmit the client to, or if it is not suspended.
    """
    run = _read_federation(folder)
    if client not in run.setup.data.clients:
        known = ", ".join(run.setup.data.clients)
        raise InputError(f"The run has no site '{client}', only {known}. Check the name.", field="site")
    if run.account.stopped is not None or run.has_result:
        ended = "is finished" if run.account.stopped is None else f"was stopped: {run.account.stopped}"
        raise InputError(
            f"The run in '{folder}' {ended}. '{client}' can take part in a new run, with another 'out'.",
            field="folder",
        )
    if not new_key and client not in read_audit(folder / AUDIT).suspended:
        raise InputError(
            f"Site '{client}' is not suspended in '{folder}'. Pass --new-key if it lost its key, or changed "
            "its rows with your consent.",
            field="site",
        )
    request_readmission(folder, client, new_key=new_key)


def request_readmission(folder: Path, client: str, *, new_key: bool = False) -> None:
    """Write the request of `readmit_site`."""
    path = folder / READMIT
    waiting = read_json(path) if path.exists() else {}
    with atomic_write(path, private=True) as temporary:
        temporary.write_text(json.dumps(waiting | {client: new_key}), encoding="utf-8")


def _read_federation(folder: Path) -> StoredRun:
    """Read a Flower run whose server can suspend sites; raise InputError if there is none."""
    has_log = (folder / AUDIT).exists()
    if has_log and (folder / DOCUMENT).exists():
        raise InputError(
            f"The run in '{folder}' has secure sums, which suspend no site. Connect the site with its own "
            "key and rows, and it takes part again.",
            field="folder",
        )
    if has_log and not (folder / MANIFEST).exists():
        raise InputError(
            f"The federation in '{folder}' has not begun, so no site is suspended. Repeat this after its "
            "start.",
            field="folder",
        )
    run = read_run(folder) if has_log else None
    if run is None:
        raise InputError(f"'{folder}' is not the folder of a Flower run. Check the path.", field="folder")
    return run
