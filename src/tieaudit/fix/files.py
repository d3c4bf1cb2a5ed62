"""This file holds what touches files: what a folder looks like, copies in the kernel, a stage beside the target, swaps of names.

A stage is a folder with `.unfinished-` in its name: whatever stops the work, nothing that looks complete is left under another name.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import TargetError
from ..sources.local import LocalFolder
from .model import Seen

CHUNK = 64 << 20  # bytes per call of copy_file_range: a signal is obeyed in between
BUFFER = 1 << 20  # bytes held where the kernel cannot copy by itself
WHOLE = 1 << 20  # bytes of a file that is hashed whole; of a larger one its begin and end
EDGE = 256 << 10
MAX_FILES = 100_000
MARK = ".unfinished-"
SPARE = 1 << 20  # bytes left free beside what is needed
BLOCK = 4096  # of a disk: what each file takes more than its length, at most


@dataclass(slots=True)
class Listing:
    """Everything below a folder."""

    seen: list[Seen] = field(default_factory=list)
    folders: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    """Names that are links to other places of the machine which are allowed: blobs of a Hub cache."""


def listing(folder: LocalFolder, target: str, digested: frozenset[str], only: str = "") -> Listing:
    """All files with their state. TargetError for what can be neither copied nor left out in good conscience: links that leave the folder,
    devices, FIFOs."""
    found = Listing()
    found.folders[""] = stat.S_IMODE(folder.root.stat().st_mode)
    if only:
        _file(folder, target, only, digested, found)
        return found
    todo = [""]
    while todo:
        below = todo.pop()
        try:
            items = sorted(os.scandir(folder.root / below), key=lambda item: item.name)
        except OSError as error:
            raise TargetError(target, f"{below or 'the folder'} cannot be listed: {error.strerror}", "check its permissions") from None
        for item in items:
            name = f"{below}/{item.name}" if below else item.name
            if item.is_dir(follow_symlinks=False):
                found.folders[name] = stat.S_IMODE(item.stat(follow_symlinks=False).st_mode)
                todo.append(name)
            elif item.is_symlink() and item.is_dir():
                link = str(Path(item.path).readlink())
                inside = os.path.realpath(item.path).startswith(str(folder.root) + os.sep)
                if Path(link).is_absolute() or not inside:
                    raise TargetError(
                        target, f"{name} is a link to a folder elsewhere, which is not followed", "copy it, or remove the link"
                    )
                found.links[name] = link
            else:
                _file(folder, target, name, digested, found)
            if len(found.seen) > MAX_FILES:
                raise TargetError(target, f"holds more than {MAX_FILES:,} files", "name the folder of the model itself")
    found.seen.sort(key=lambda seen: seen.name)
    return found


def _file(folder: LocalFolder, target: str, name: str, digested: frozenset[str], found: Listing) -> None:
    entry = folder.entry(name)
    if entry.refused:
        raise TargetError(target, f"{name} {entry.refused}", "copy what it stands for into the folder, or remove it")
    if not os.path.realpath(folder.root / name).startswith(str(folder.root) + os.sep):
        found.foreign.append(name)
    descriptor = opened(folder, name)
    try:
        found.seen.append(state(descriptor, name, digest=name in digested))
    finally:
        os.close(descriptor)


def opened(folder: LocalFolder, name: str) -> int:
    """A descriptor of a regular file that the rules for names and links allow. TargetError if it cannot be had."""
    entry = folder.entry(name)
    if entry.refused:
        raise TargetError(str(folder.root), f"{name} {entry.refused}", "nothing was changed")
    try:
        return os.open(os.path.realpath(folder.root / name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise TargetError(str(folder.root), f"{name} cannot be read: {error.strerror}", "check its permissions") from None


def state(descriptor: int, name: str, *, digest: bool) -> Seen:
    """What can be seen of an open file."""
    told = os.fstat(descriptor)
    return Seen(
        name=name,
        nbytes=told.st_size,
        mtime_ns=told.st_mtime_ns,
        ctime_ns=told.st_ctime_ns,  # no program can put it back
        inode=told.st_ino,
        device=told.st_dev,
        mode=stat.S_IMODE(told.st_mode),
        digest=_digest(descriptor, told.st_size) if digest else "",
    )


def _digest(descriptor: int, nbytes: int) -> str:
    """Of the begin (with the header) and the end (with a zip's directory); of all if it is small."""
    head = int.from_bytes(os.pread(descriptor, 8, 0), "little") + 8  # of a safetensors file
    edge = head if EDGE < head <= 64 * WHOLE else EDGE
    parts = [(0, nbytes)] if nbytes <= max(WHOLE, 2 * edge) else [(0, edge), (nbytes - EDGE, nbytes)]
    digest = hashlib.sha256()
    for begin, stop in parts:
        at = begin
        while at < stop:
            data = os.pread(descriptor, min(BUFFER, stop - at), at)
            if not data:
                break
            digest.update(data)
            at += len(data)
    return digest.hexdigest()


def unchanged(folder: LocalFolder, target: str, seen: Seen) -> int:
    """A descriptor of the file, which is as it was. TargetError if it is not."""
    descriptor = opened(folder, seen.name)
    try:
        now = state(descriptor, seen.name, digest=bool(seen.digest))
        if now != seen:
            raise TargetError(  # noqa: TRY301  the descriptor is closed on every way out
                target, f"{seen.name} was changed since the plan was made", "nothing was written; make a new plan"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_COPY_RANGE = getattr(os, "copy_file_range", None)
# what says that the kernel cannot copy between these two files, and nothing about the disk
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def copy_range(source: int, begin: int, out: int, at: int, n: int, name: str) -> None:
    """`n` bytes, in the kernel where it can. FormatError's cousin for a short file: TargetError."""
    while n > 0:
        done = _in_kernel(source, begin, out, at, min(n, CHUNK))
        if not done:
            data = os.pread(source, min(n, BUFFER), begin)
            if not data:
                raise TargetError(name, "became shorter while it was copied", "nothing was put in place")
            write_all(out, data, at)
            done = len(data)
        begin, at, n = begin + done, at + done, n - done


def _in_kernel(source: int, begin: int, out: int, at: int, n: int) -> int:
    if _COPY_RANGE is None or n < BUFFER:
        return 0
    try:
        return int(_COPY_RANGE(source, out, n, begin, at))
    except OSError as error:
        if error.errno in _CANNOT:
            return 0
        raise


def write_all(out: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(out, view, at)
        view, at = view[done:], at + done


@contextmanager
def new_file(stage: Path, name: str, mode: int) -> Iterator[int]:
    """A descriptor of a file that was not there; on the disk when the block ends."""
    path = stage / name
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        yield descriptor
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def stage_beside(place: Path) -> Iterator[Path]:
    """A folder next to `place`, gone when the block ends unless it was renamed."""
    stage = Path(tempfile.mkdtemp(prefix=f".{place.name[:100]}{MARK}", dir=place.parent))
    try:
        yield stage
    finally:
        if stage.exists():
            _writable(stage)
            shutil.rmtree(stage, ignore_errors=True)


def _writable(top: Path) -> None:
    """Read-only folders cannot be emptied."""
    for below, _, _ in os.walk(top):
        with suppress(OSError):
            Path(below).chmod(0o700)


def finish_folders(stage: Path, folders: dict[str, int]) -> None:
    """The modes of all folders, deepest first, and all of them on the disk."""
    for name in sorted(folders, key=lambda name: -name.count("/") if name else 1):
        path = stage / name
        if path.is_dir():
            sync(path)
            path.chmod(folders[name])


def sync(path: Path) -> None:
    """Entries of a folder on the disk, where the system can say so."""
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def demand_space(place: Path, nbytes: int, files: int) -> None:
    """TargetError if the disk has not that much left."""
    free = shutil.disk_usage(place).free
    needed = nbytes + files * BLOCK + SPARE
    if free < needed:
        raise TargetError(str(place), f"{needed:,} bytes are needed, {free:,} are free", "nothing was written")


def exchange(one: Path, other: Path) -> bool:
    """Swap two names at one stroke; False where the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renamex_np" if sys.platform == "darwin" else "renameat2", None)
    if call is None:
        return False
    swap, cwd = 2, -100
    names = (os.fsencode(one), os.fsencode(other))
    done = call(*names, swap) if sys.platform == "darwin" else call(cwd, names[0], cwd, names[1], swap)
    return bool(done == 0)


def free_name(place: Path) -> Path:
    """Where the original goes: `NAME.before-fix`, with a number if that is taken."""
    for number in range(1, 10_000):
        candidate = place.with_name(f"{place.name}.before-fix" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(candidate):
            return candidate
    raise TargetError(str(place), "has thousands of backups beside it", "move them away")
