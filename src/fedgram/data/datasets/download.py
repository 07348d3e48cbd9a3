"""Getting the public files of a dataset: complete, checked, and under their name only then.

pooch checks the checksum, where one is published, and puts the file in its place. It cannot resume, so the
download itself is ours: what arrived stays in a hidden .part file, and the next call goes on from there if
the server can send ranges of the same version of the file. If it cannot, nothing is kept.
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
from fedgram.data.datasets.dataset import Dataset, Download

if TYPE_CHECKING:
    from requests import Response

TIMEOUT_SECONDS = 30  # without an answer, or without the next bytes
CHUNK_BYTES = 1 << 20

OnBytes = Callable[[str, int, int | None], None]
"""Hears the name of a file, how many of its bytes are here, and how many there are, if that is known."""


def fetch(
    dataset: Dataset,
    folder: Path,
    *,
    licence_accepted: bool,
    on_bytes: OnBytes = lambda file, received, total: None,
) -> list[Path]:
    """Download the files of a dataset that are not in the folder yet; return where all of them lie."""
    if not dataset.downloads:
        reason = (
            f"cannot be fetched: {dataset.obtain}"
            if dataset.obtain
            else "is part of fedgram: it needs no files."
        )
        raise InputError(f"The dataset '{dataset.name}' {reason}", field="name")
    if not licence_accepted:
        raise InputError(
            f"The licence of '{dataset.name}', {dataset.licence}, must be accepted first.", field="licence"
        )
    return [_fetch_one(download, folder, on_bytes) for download in dataset.downloads]


def _fetch_one(download: Download, folder: Path, on_bytes: OnBytes) -> Path:
    pooch = _pooch()
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
    except ValueError as error:  # how pooch says that the checksum is another
        raise InputError(
            f"'{download.url}' is not the published file: its checksum is not {download.checksum}; nothing "
            "was kept, so try again, and if that does not help, the publisher has changed the file.",
            field=download.file,
        ) from error
    return target


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise InputError("Fetching needs pooch: pip install 'fedgram[data]'.", field="pooch") from None
    pooch.get_logger().setLevel("WARNING")  # it would print what the caller shows already
    return pooch


@dataclass(frozen=True)
class _Transfer:
    """A downloader for pooch that can go on where the last call stopped."""

    target: Path
    on_bytes: OnBytes

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        import requests

        try:
            with _opened(url) as first:
                part = _Part.from_response(self.target, first)
                if part.lacks_some:
                    with _opened(url, part.missing_range()) as rest:
                        self._receive(rest, part, goes_on=rest.status_code == HTTPStatus.PARTIAL_CONTENT)
                elif part.held != part.total or not part.held:
                    self._receive(first, part, goes_on=False)
        except requests.RequestException as error:
            raise InputError(_reason(url, error), field=url) from error
        os.replace(part.path, output_file)

    def _receive(self, response: Response, part: _Part, *, goes_on: bool) -> None:
        """Write the body of a response to the part file, which stays if it is complete or can be resumed."""
        import requests

        received = part.held if goes_on else 0
        try:
            with part.path.open("ab" if goes_on else "wb") as file:
                for chunk in response.iter_content(CHUNK_BYTES):
                    file.write(chunk)
                    received += len(chunk)
                    self.on_bytes(self.target.name, received, part.total)
            if part.total not in (None, received):
                raise requests.ConnectionError("the connection ended early")
        except BaseException as error:
            if not part.resumable:
                part.path.unlink(missing_ok=True)
            if isinstance(error, requests.RequestException):
                raise InputError(part.stopped(self.target.name, received), field=self.target.name) from error
            raise


@dataclass(frozen=True)
class _Part:
    """The file that holds what has arrived of one version of a public file.

    `version` is how the server tells versions apart, empty if it cannot resume; `total` is the size of the
    whole, None if the server does not say.
    """

    path: Path
    version: str
    total: int | None

    @classmethod
    def from_response(cls, target: Path, response: Response) -> _Part:
        """The part for a response; parts of other versions are removed."""
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
    def resumable(self) -> bool:
        """Whether the server can go on with this version."""
        return bool(self.version)

    @property
    def held(self) -> int:
        """How many bytes are here."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def lacks_some(self) -> bool:
        """Whether the beginning is here, but not the end."""
        return self.total is not None and 0 < self.held < self.total

    def missing_range(self) -> dict[str, str]:
        """Headers that ask for the rest, or for the whole if the version has changed meanwhile."""
        return {"Range": f"bytes={self.held}-", "If-Range": self.version}

    def stopped(self, file: str, received: int) -> str:
        """What happened, and what to do."""
        total = f" of {self.total:,}" if self.total is not None else ""
        remedy = (
            "fetch it again to go on from there"
            if self.resumable
            else "nothing was kept, because the server cannot resume; fetch it again"
        )
        return f"The download of '{file}' stopped after {received:,}{total} bytes: {remedy}."


def _opened(url: str, headers: dict[str, str] | None = None) -> Response:
    import requests

    # Compressed on the way, the bytes could be neither counted nor resumed.
    plain = {"Accept-Encoding": "identity", **(headers or {})}
    response = requests.get(url, headers=plain, stream=True, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()
    return response


def _reason(url: str, error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"The server answered '{response.status_code} {response.reason}' for {url}; try again later."
    return f"Cannot reach {url} ({type(error).__name__}); check the connection and try again."
