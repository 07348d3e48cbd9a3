"""Download a dataset's public files, and resume interrupted downloads.

pooch verifies the published checksum and renames the file. It cannot resume, so the transfer is ours.
Received bytes stay in a hidden .part file. The next call continues there if the server sends ranges of the
same version; otherwise the .part file is removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram._util.errors import InputError
from fedgram._util.imports import import_optional
from fedgram.data.datasets.dataset import Dataset, Download

if TYPE_CHECKING:
    from requests import Response

TIMEOUT_SECONDS = 30  # until the server answers, or sends the next bytes
CHUNK_BYTES = 1 << 20

OnBytes = Callable[[str, int, int | None], None]
"""Receives a file's name, its received bytes, and its total bytes if known."""


def fetch(
    dataset: Dataset,
    folder: Path,
    *,
    license_accepted: bool,
    allow_insecure: bool = False,
    on_bytes: OnBytes = lambda file, received, total: None,
) -> list[Path]:
    """Download a dataset's missing files; return the paths of all its files.

    `allow_insecure` accepts a file without a published checksum, which nobody can tell from another file.
    """
    if not dataset.downloads:
        reason = f"cannot be fetched. {dataset.obtain}" if dataset.obtain else "needs no files."
        raise InputError(f"The dataset '{dataset.name}' {reason}", field="name")
    if not license_accepted:
        raise InputError(f"Accept the license of '{dataset.name}' first: {dataset.license}.", field="license")
    for download in dataset.downloads:
        if download.checksum is None and not allow_insecure and not (folder / download.file).exists():
            way = "over https" if download.url.startswith("https://") else "unencrypted"
            raise InputError(
                f"'{download.url}' has no published checksum and comes {way}, so a changed file would go "
                "unnoticed. Pass --insecure to download it anyway.",
                field=download.file,
            )
    return [_fetch_file(download, folder, on_bytes) for download in dataset.downloads]


def _fetch_file(download: Download, folder: Path, on_bytes: OnBytes) -> Path:
    pooch = import_optional("pooch", "Fetching needs pooch: pip install 'fedgram[data]'.", "pooch")
    pooch.get_logger().setLevel("WARNING")  # on_bytes reports progress
    target = folder / download.file
    try:
        pooch.retrieve(
            download.url,
            known_hash=download.checksum,
            fname=target.name,
            path=target.parent,
            downloader=_Transfer(target, on_bytes),
        )
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"Cannot write '{target}': {error.strerror}.", field=str(target)) from error
    except ValueError as error:  # pooch's error for a wrong checksum
        raise InputError(
            f"'{download.url}' is not the published file: its checksum is not {download.checksum}. If "
            "another try fails too, the publisher has changed the file.",
            field=download.file,
        ) from error
    return target


@dataclass(frozen=True)
class _Transfer:
    """A pooch downloader that resumes."""

    target: Path
    on_bytes: OnBytes

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        import requests

        try:
            with _open_url(url) as first:
                part = _Part.from_response(self.target, first)
                if part.total is not None and 0 < part.received < part.total:
                    # The server sends the whole file if its version has changed.
                    headers = {"Range": f"bytes={part.received}-", "If-Range": part.version}
                    with _open_url(url, headers) as rest:
                        self._receive(rest, part, resume=rest.status_code == HTTPStatus.PARTIAL_CONTENT)
                elif part.received != part.total or not part.received:
                    self._receive(first, part, resume=False)
        except requests.RequestException as error:
            raise InputError(_describe_failure(url, error), field=url) from error
        os.replace(part.path, output_file)

    def _receive(self, response: Response, part: _Part, *, resume: bool) -> None:
        """Write a response to the part file; keep it if it is complete or can be resumed."""
        import requests

        received = part.received if resume else 0
        try:
            with part.path.open("ab" if resume else "wb") as file:
                for chunk in response.iter_content(CHUNK_BYTES):
                    file.write(chunk)
                    received += len(chunk)
                    self.on_bytes(self.target.name, received, part.total)
            if part.total not in (None, received):
                raise requests.ConnectionError("the connection ended early")
        except BaseException as error:
            if not part.version:
                part.path.unlink(missing_ok=True)
            if not isinstance(error, requests.RequestException):
                raise
            total = f" of {part.total:,}" if part.total is not None else ""
            advice = "to resume" if part.version else "from the start, as the server cannot resume"
            raise InputError(
                f"The download of '{self.target.name}' stopped after {received:,}{total} bytes. Fetch it "
                f"again {advice}.",
                field=self.target.name,
            ) from error


@dataclass(frozen=True)
class _Part:
    """The received bytes of one version of a file.

    version: the server's mark of the version; empty if it cannot resume. total: size of the whole file, if
    known.
    """

    path: Path
    version: str
    total: int | None

    @classmethod
    def from_response(cls, target: Path, response: Response) -> _Part:
        """Return the part for a response; remove parts of other versions."""
        headers = response.headers
        length = headers.get("Content-Length")
        version = headers.get("ETag") or headers.get("Last-Modified") or ""
        if length is None or headers.get("Accept-Ranges") != "bytes" or version.startswith("W/"):
            version = ""
        mark = hashlib.sha256(version.encode()).hexdigest()[:8] if version else "whole"
        path = target.with_name(f".{target.name}.{mark}.part")
        for other in target.parent.glob(f".{target.name}.*.part"):
            if other != path or not version:
                other.unlink()
        return cls(path, version, None if length is None else int(length))

    @property
    def received(self) -> int:
        """Number of received bytes."""
        return self.path.stat().st_size if self.path.exists() else 0


def _open_url(url: str, headers: dict[str, str] | None = None) -> Response:
    import requests

    # A compressed response could be neither counted nor resumed.
    plain = {"Accept-Encoding": "identity", **(headers or {})}
    response = requests.get(url, headers=plain, stream=True, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()
    return response


def _describe_failure(url: str, error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"The server answered '{response.status_code} {response.reason}' for {url}. Try again later."
    return f"Cannot reach {url} ({type(error).__name__}). Check the connection and try again."
