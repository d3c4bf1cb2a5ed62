"""Where bytes come from. A format asks a `Source` for bytes and never learns whether it is a file or a server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

Wanted = tuple[str, int, int]
"""(name, offset, n): bytes of a file that will be read soon."""


@dataclass(slots=True)
class Meter:
    """What an audit has cost so far: bytes handed out by sources, and reads. For a server: the bytes of all answers' bodies, and
    requests, as the server counts them (redirects and huggingface_hub's own requests included)."""

    bytes_read: int = 0
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, requests: int = 0, nbytes: int = 0) -> None:
        """From any thread."""
        with self._lock:
            self.requests += requests
            self.bytes_read += nbytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a folder; `refused` says why it will not be opened. `sha256` of the whole file is known where a listing has it."""

    name: str
    nbytes: int
    refused: str = ""
    sha256: str = ""


class Source(Protocol):
    """Random access to the bytes of one file."""

    @property
    def name(self) -> str:
        """Name relative to the target, with forward slashes."""

    @property
    def nbytes(self) -> int: ...

    def read(self, offset: int, n: int) -> bytes:
        """Exactly `n` bytes from `offset`. FormatError if the file does not have them or they cannot be read, ReadError if it is
        the way to them that failed."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; errors as `read`."""


class Folder(Protocol):
    """The files of a target. `remote`: every read costs a request, so what will be read is said beforehand (`prefetch`)."""

    @property
    def remote(self) -> bool: ...

    @property
    def revision(self) -> str | None:
        """The commit that is audited, where the target has one."""

    @property
    def meter(self) -> Meter: ...

    def entries(self) -> list[Entry]:
        """Files directly in the folder, by name."""

    def subfolders(self, below: str = "") -> list[str]:
        """Names of the folders directly below, or directly in the sub-folder `below`; none if that cannot be listed."""

    def inside(self, subfolder: str) -> list[Entry]:
        """Files directly in a sub-folder, by name; none if it cannot be listed."""

    def everything(self) -> list[Entry]:
        """All files of the repository below the folder; none where listing them is not free."""

    def entry(self, name: str) -> Entry:
        """What `name` is, without opening it; never raises."""

    def exists(self, name: str) -> bool:
        """True if the name is there, or is one that `open` will refuse."""

    def open(self, name: str) -> Source:
        """The file as a source. FormatError if the rules refuse it."""

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Fetch what will be read, in few requests and at once. Nothing is raised for a file that cannot give it: its read will."""

    def held(self, name: str, offset: int, n: int) -> bool:
        """True if reading these bytes costs no request."""

    def spare(self) -> int:
        """Requests that may still be spent on what was not asked for by name."""

    def allow(self, requests: int) -> None:
        """Let `spare` grow by so many."""

    def close(self) -> None: ...


def stays(name: str) -> bool:
    """The lexical part of the path rule: a relative name that does not leave the folder."""
    path = PurePosixPath(name)
    return bool(name) and not ("\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts)
