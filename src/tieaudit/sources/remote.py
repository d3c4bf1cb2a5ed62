"""Files behind a network: what was fetched is kept, what will be read is fetched at once, near things in one request.

A request costs as much time as a megabyte, so reads are coalesced over small gaps, long ones are split and run side by side, and a
read that goes on where the last one ended is answered from a growing read-ahead. Formats and rules see a plain `Folder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import FormatError, ReadError
from ..extents import Extent, merged
from . import Entry, Meter, Wanted, stays
from .pages import Pages

PARALLEL = 8  # requests at once
NEAR = 32 << 10  # bytes between two reads that are cheaper to fetch than to ask for again
PIECE = 4 << 20  # bytes of one request at most: a lost connection loses no more
AHEAD = 256 << 10  # bytes; first read-ahead of sequential reads, doubled with each
MAX_AHEAD = 8 << 20  # bytes
SEQUENTIAL = 64 << 10  # bytes; smaller reads in a row are headers, not a compare
SMALL_SUFFIX, MAX_SMALL = ".json", 64 << 20  # files that are fetched whole, and so cached by huggingface_hub
MAX_TOKENIZER = 256 << 10  # bytes; a larger tokenizer.json is read by range: only its begin matters
FREE_REQUESTS, PER_FILE = 16, 3  # requests that an audit may cost, in all and per file of weights


class Store(Protocol):
    """Where the bytes of a remote folder come from. Both raise ReadError, or TargetError if nothing else will work either. Called
    from several threads."""

    def fetch(self, name: str, offset: int, n: int) -> bytes:
        """Exactly these bytes, in one answer."""

    def whole(self, entry: Entry) -> bytes:
        """A small file."""

    def close(self) -> None: ...


@dataclass(slots=True)
class RemoteFolder:
    """A folder of a repository or bucket. `listing` has every file below it by its path from here; `partial`: the repository has more."""

    store: Store
    listing: Mapping[str, Entry]
    meter: Meter
    revision: str | None = None
    partial: bool = False
    extra_requests: int = 0
    remote: bool = True
    _pages: dict[str, Pages] = field(default_factory=dict)
    _failed: dict[str, ReadError] = field(default_factory=dict)
    _opened: set[str] = field(default_factory=set)
    _pool: ThreadPoolExecutor | None = None

    def entries(self) -> list[Entry]:
        return sorted((entry for name, entry in self.listing.items() if "/" not in name), key=lambda entry: entry.name)

    def subfolders(self, below: str = "") -> list[str]:
        stem = below + "/" if below else ""
        inside = (name.removeprefix(stem) for name in self.listing if name.startswith(stem))
        return sorted({name.partition("/")[0] for name in inside if "/" in name and name[0] != "."})

    def inside(self, subfolder: str) -> list[Entry]:
        stem = subfolder + "/"
        return [
            Entry(name.removeprefix(stem), entry.nbytes, entry.refused, entry.sha256)
            for name, entry in sorted(self.listing.items())
            if name.startswith(stem) and "/" not in name.removeprefix(stem)
        ]

    def everything(self) -> list[Entry]:
        return [] if self.partial else list(self.listing.values())

    def entry(self, name: str) -> Entry:
        if not stays(name):
            return Entry(name, 0, "is a name that leaves the folder: not opened")
        return self.listing.get(name) or Entry(name, 0, "cannot be read: No such file")

    def exists(self, name: str) -> bool:
        return not stays(name) or name in self.listing

    def open(self, name: str) -> RemoteSource:
        entry = self.entry(name)
        if entry.refused:
            raise FormatError(name, entry.refused)
        self._opened.add(name)
        return RemoteSource(name, entry.nbytes, self)

    def spare(self) -> int:
        weights = sum(not name.endswith(SMALL_SUFFIX) for name in self._opened)
        return max(FREE_REQUESTS, PER_FILE * weights) + self.extra_requests - self.meter.requests

    def allow(self, requests: int) -> None:
        self.extra_requests += requests

    def held(self, name: str, offset: int, n: int) -> bool:
        return not self._missing(name, offset, offset + n)

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        near: dict[str, list[Extent]] = {}
        for name, offset, n in wanted:
            entry = self.listing.get(name)
            if entry and not entry.refused and name not in self._failed and n > 0:
                near.setdefault(name, []).extend(self._missing(name, max(0, offset), min(offset + n, entry.nbytes)))
        runs: list[tuple[str, int, int]] = []
        for name, extents in near.items():
            joined = merged((begin, end + NEAR) for begin, end in extents)
            for begin, end in joined:
                runs.extend((name, *gap) for gap in self._missing(name, begin, min(end - NEAR, self.listing[name].nbytes)))
        self._fetch(runs)

    def bytes_at(self, name: str, offset: int, n: int, ahead: int) -> bytes:
        """These bytes; `ahead` more are fetched along if any of them is not there yet."""
        missing = self._missing(name, offset, offset + n)
        if missing:
            if name in self._failed:
                raise self._failed[name]
            self._pages[name].trim()
            missing = self._missing(name, offset, min(offset + n + ahead, self.listing[name].nbytes))
            self._fetch([(name, *extent) for extent in missing])
            if name in self._failed:
                raise self._failed[name]
        return self._pages[name].read(offset, offset + n) if n else b""

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    def _missing(self, name: str, begin: int, end: int) -> list[Extent]:
        return self._pages.setdefault(name, Pages()).missing(begin, end) if begin < end else []

    def _fetch(self, runs: Iterable[tuple[str, int, int]]) -> None:
        """Fetch these runs of bytes (name, begin, end) side by side; what fails is kept for the read that needs it."""
        jobs: dict[tuple[str, int], int] = {}
        for name, begin, end in runs:
            if _is_small(self.listing[name]):
                jobs[name, 0] = self.listing[name].nbytes
            else:
                jobs.update({(name, at): min(PIECE, end - at) for at in range(begin, end, PIECE)})
        if len(jobs) > 1:
            self._pool = self._pool or ThreadPoolExecutor(PARALLEL, thread_name_prefix="tieaudit")
        under_way = {place: self._pool.submit(self._get, *place, n) for place, n in jobs.items()} if self._pool else {}
        for (name, at), n in jobs.items():
            try:
                data = under_way[name, at].result() if under_way else self._get(name, at, n)
            except ReadError as error:
                self._failed.setdefault(name, error)
            else:
                self._pages.setdefault(name, Pages()).add(at, data, keep=_is_small(self.listing[name]))

    def _get(self, name: str, offset: int, n: int) -> bytes:
        entry = self.listing[name]
        return self.store.whole(entry) if _is_small(entry) else self.store.fetch(name, offset, n)


def _is_small(entry: Entry) -> bool:
    if not entry.name.endswith(SMALL_SUFFIX) or entry.nbytes > MAX_SMALL:
        return False
    return entry.nbytes <= MAX_TOKENIZER or entry.name.rpartition("/")[2] != "tokenizer.json"


@dataclass(slots=True)
class RemoteSource:
    """One file of a RemoteFolder."""

    name: str
    nbytes: int
    folder: RemoteFolder
    _next: int = -1
    _ahead: int = 0

    def read(self, offset: int, n: int) -> bytes:
        if offset < 0 or n < 0 or offset + n > self.nbytes:
            raise FormatError(self.name, f"ends at byte {self.nbytes:,}, {n:,} bytes are needed", max(offset, 0))
        if n >= SEQUENTIAL and offset == self._next:
            self._ahead = min(MAX_AHEAD, max(AHEAD, 2 * self._ahead))
        elif n >= SEQUENTIAL:
            self._ahead = 0
        self._next = offset + n if n >= SEQUENTIAL else self._next
        return self.folder.bytes_at(self.name, offset, n, self._ahead if n >= SEQUENTIAL else 0)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))
