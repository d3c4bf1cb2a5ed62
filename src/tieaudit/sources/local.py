"""Files on this machine: the path rule, the regular-file rule, counted reads.

The one rule for a name, whether it was listed or came out of an index: relative, no `..`, and after all links are followed
still inside the folder, or inside `blobs/` of the same Hub cache (`models--x/snapshots/REV/file` links to `models--x/blobs/HASH`).
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import FormatError, TargetError
from . import Entry, Meter, Wanted, stays

MAX_OPEN_FILES = 64  # far below the common limit of 1,024 descriptors, above the shards of nearly every model
MAX_LISTED = 100_000  # names in one folder


PLENTY = 1 << 60  # reads of a disk are not counted against anything


@dataclass(slots=True)
class LocalFolder:
    """A folder whose files are opened one by one and only by the rule above. `revision`: the commit, for a snapshot of the Hub cache."""

    root: Path
    meter: Meter = field(default_factory=Meter)
    revision: str | None = None
    remote: bool = False
    _open: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()

    def entries(self) -> list[Entry]:
        """Files directly in the folder, by name. Sub-folders are not listed."""
        found = []
        try:
            with os.scandir(self.root) as listing:
                for count, item in enumerate(listing):
                    if count >= MAX_LISTED:
                        raise TargetError(str(self.root), f"holds more than {MAX_LISTED:,} names", "name the file itself")
                    if not _is_dir(item):
                        found.append(self.entry(item.name))
        except OSError as error:
            raise TargetError(str(self.root), f"cannot be listed: {error.strerror}", "check its permissions") from None
        return sorted(found, key=lambda entry: entry.name)

    def subfolders(self, below: str = "") -> list[str]:
        """Names of the folders directly below, links and hidden ones left out."""
        try:
            with os.scandir(self.root / below) as listing:
                return sorted(item.name for item in listing if item.is_dir(follow_symlinks=False) and item.name[0] != ".")
        except OSError:
            if below:
                return []
            raise

    def inside(self, subfolder: str) -> list[Entry]:
        """Files directly in a sub-folder; none if it cannot be listed."""
        try:
            return LocalFolder(self.root / subfolder).entries()
        except TargetError:
            return []

    def everything(self) -> list[Entry]:
        return []

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Nothing to do: a disk is read when it is asked."""

    def held(self, name: str, offset: int, n: int) -> bool:  # noqa: ARG002  the protocol's
        return True

    def spare(self) -> int:
        return PLENTY

    def allow(self, requests: int) -> None:
        """Nothing to do."""

    def entry(self, name: str) -> Entry:
        """What `name` is, without opening it; never raises."""
        try:
            status = os.stat(self._resolve(name))
        except FormatError as error:
            return Entry(name, 0, error.what)
        except (OSError, ValueError) as error:
            return Entry(name, 0, f"cannot be read: {getattr(error, 'strerror', None) or error}")
        if not stat.S_ISREG(status.st_mode):
            return Entry(name, 0, f"is not a regular file but a {_kind(status.st_mode)}")
        return Entry(name, status.st_size)

    def exists(self, name: str) -> bool:
        """True if the name is there, or is one that `open` will refuse; nothing outside the folder is probed."""
        return not stays(name) or os.path.lexists(self.root / name)

    def open(self, name: str) -> LocalSource:
        """The file as a source. FormatError if the rules refuse it."""
        entry = self.entry(name)
        if entry.refused:
            raise FormatError(name, entry.refused)
        return LocalSource(name, entry.nbytes, self)

    def descriptor(self, name: str) -> int:
        """An open descriptor of a file that the rules allow; the oldest one is closed when there are too many."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        try:
            # O_NONBLOCK: if the name became a FIFO since it was looked at, open must not wait for a writer
            opened = os.open(self._resolve(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise FormatError(name, f"cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise FormatError(name, "is not a regular file")
        if hasattr(os, "posix_fadvise"):
            # without it the kernel reads 128 KiB ahead of every 4 KiB sample
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)
        self._open[name] = opened
        if len(self._open) > MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return opened

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _resolve(self, name: str) -> str:
        if not stays(name):
            raise FormatError(name, "is a name that leaves the folder: not opened")
        real = os.path.realpath(self.root / name)
        if any(_inside(real, allowed) for allowed in self._allowed()):
            return real
        raise FormatError(name, "is a link that leaves the folder: not opened")

    def _allowed(self) -> Iterator[str]:
        yield str(self.root)
        for parent in self.root.parents:
            if parent.name == "snapshots":
                yield str(parent.parent / "blobs")
                return


@dataclass(frozen=True, slots=True)
class LocalSource:
    """One file of a LocalFolder; reads are counted on the folder's meter."""

    name: str
    nbytes: int
    folder: LocalFolder

    def read(self, offset: int, n: int) -> bytes:
        self._check(offset, n)
        try:
            data = os.pread(self.folder.descriptor(self.name), n, offset)
        except OSError as error:
            raise FormatError(self.name, f"cannot be read: {error.strerror}", offset) from None
        self._count(offset, n, len(data))
        return data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._check(offset, len(buffer))
        try:
            got = os.preadv(self.folder.descriptor(self.name), [buffer], offset)
        except OSError as error:
            raise FormatError(self.name, f"cannot be read: {error.strerror}", offset) from None
        self._count(offset, len(buffer), got)

    def _check(self, offset: int, n: int) -> None:
        if offset < 0 or n < 0 or offset + n > self.nbytes:
            raise FormatError(self.name, f"ends at byte {self.nbytes:,}, {n:,} bytes are needed", max(offset, 0))

    def _count(self, offset: int, wanted: int, got: int) -> None:
        self.folder.meter.requests += 1
        self.folder.meter.bytes_read += got
        if got != wanted:
            raise FormatError(self.name, f"gave {got:,} of {wanted:,} bytes: was it changed meanwhile?", offset)


def _is_dir(item: os.DirEntry[str]) -> bool:
    """False for a link that leads to itself, which is then a file that is refused."""
    try:
        return item.is_dir()
    except OSError:
        return False


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _kind(mode: int) -> str:
    for test, word in ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket")):
        if test(mode):
            return word
    return "device"
