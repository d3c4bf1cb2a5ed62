"""This file holds the loader of torch's format before 1.6: five pickles, then the storages one after the other.

Magic number, protocol version, system, the object, the list of storage keys; then per key an int64 count of elements and the
bytes, always little-endian (torch/serialization.py, `_legacy_save` and `_legacy_load`; torch/csrc/serialization.cpp). Two tensors
share memory when their pickled storage has the same key. There is no checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..checkpoint import LoadedFile, Problem, Storage
from ..errors import FormatError, UnknownFormat
from ..sources import Source
from .pickle_machine import MAX_INPUT, PersistentId, TruncatedError
from .pickle_reader import PickleReader
from .torch_file import TorchFile
from .torch_tensors import ITEM_NBYTES, StorageRef, storage_ref

FORMAT = "torch-legacy"
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # torch/serialization.py
PROTOCOL_VERSION = 1001
WINDOW = 256 << 10  # bytes read first for a pickle whose length nothing tells; eight times more each time it is too short
COUNT_NBYTES = 8

# Protocols 0 to 5: a PROTO opcode, or before protocol 2 a GLOBAL or the magic number at once. torch.load unpickles any file that
# is no zip, so a plain pickle that runs code must be known for what it is.
PICKLE_HEAD = re.compile(rb"\x80[\x00-\x05]|[()\]}]*c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|L%dL\n" % MAGIC_NUMBER, re.ASCII)
# torch <= 0.1.10 wrote a tar of these four files.
TAR_NAMES = (b"sys_info\0", b"pickle\0", b"storages\0", b"tensors\0")
TAR_MAGIC, TAR_MAGIC_AT = b"ustar", 257


def sniff(head: bytes) -> bool:
    """True for a pickle and for the tar that came before; `load` says if it is not torch's."""
    return PICKLE_HEAD.match(head) is not None or _is_tar(head)


def load(source: Source, see: Callable[[object], None] | None = None) -> LoadedFile:
    """Read the pickles; of the storages three counts are read. FormatError if it is no torch file. `see` is shown the unpickled root."""
    if _is_tar(source.read(0, min(source.nbytes, TAR_MAGIC_AT + len(TAR_MAGIC)))):
        raise FormatError(source.name, "is a tar as torch wrote before 0.2: re-save it with a newer torch", 0)
    found = TorchFile(source.name)
    refs: dict[str, StorageRef] = {}
    pickles = _Pickles(source, found)
    try:
        _check_head(source, pickles)
        root = pickles.next(lambda value: _persistent(value, refs))
        if see:
            see(root)
        storages, end = _storages(source, found, pickles, refs)
        found.storages.extend(storages.values())
        if end < source.nbytes:
            found.dead.append((end, source.nbytes))
        found.add_root(root, storages)
    except FormatError as error:
        found.give_up(error)
    return found.loaded(source, FORMAT)


def _is_tar(head: bytes) -> bool:
    return head.startswith(TAR_NAMES) or head[TAR_MAGIC_AT:].startswith(TAR_MAGIC)


def _persistent(value: object, refs: dict[str, StorageRef]) -> object:
    ref = storage_ref(value)
    if isinstance(ref, StorageRef):
        refs.setdefault(ref.key, ref)  # torch counts in elements of the dtype that it saw first
    return ref


@dataclass(slots=True)
class _Pickles:
    """Pickles one after the other; `pos` is where the next one begins."""

    source: Source
    found: TorchFile
    pos: int = 0
    _begin: int = 0
    _window: bytes = field(default=b"", repr=False)

    def next(self, persistent: Callable[[object], object] = PersistentId) -> object:
        left = self.source.nbytes - self.pos
        want = self._begin + len(self._window) - self.pos or min(left, WINDOW)
        while True:
            if self.pos + want > self._begin + len(self._window):
                self._begin, self._window = self.pos, self.source.read(self.pos, want)
            data = self._window[self.pos - self._begin :]
            reader = PickleReader(self.source.name, data, self.pos, persistent)
            try:
                root = reader.load()
            except TruncatedError:
                if want >= min(left, MAX_INPUT):
                    raise
                want = min(left, MAX_INPUT, max(WINDOW, 8 * want))
            else:
                self.pos += reader.pos
                return root
            finally:
                self.found.add_globals(reader)


def _check_head(source: Source, pickles: _Pickles) -> None:
    if pickles.next() != MAGIC_NUMBER:
        raise UnknownFormat(source.name, "is a plain pickle, not a torch file: no tensors can be read from it", 0)
    version = pickles.next()
    if version != PROTOCOL_VERSION:
        what = f"has the torch protocol version {str(version)[:20]}, not {PROTOCOL_VERSION}"
        raise FormatError(source.name, what, pickles.pos)
    pickles.next()  # byte order and C type sizes of the writer; the storages do not depend on them


def _storages(source: Source, found: TorchFile, pickles: _Pickles, refs: Mapping[str, StorageRef]) -> tuple[dict[str, Storage], int]:
    """(storages by key, where the last one ends)."""
    keys = pickles.next()
    if not isinstance(keys, list) or not all(type(key) is str for key in keys):
        raise FormatError(source.name, "has no list of storage keys after its object", pickles.pos)
    for key in keys:
        if key not in refs:
            raise FormatError(source.name, f"lists a storage {key!r} that its object does not name", pickles.pos)
    if len(set(keys)) != len(keys):
        raise FormatError(source.name, "lists a storage twice", pickles.pos)
    begins = _by_declared_counts(source, pickles.pos, keys, refs)
    counts = [refs[key].numel for key in keys]
    if begins is None:
        begins, counts = _by_stored_counts(source, found, pickles.pos, keys, refs)
    storages: dict[str, Storage] = {}
    end = pickles.pos
    for key, begin, count in zip(keys, begins, counts, strict=False):
        nbytes = count * ITEM_NBYTES[refs[key].dtype]
        end = begin + nbytes
        storages[key] = Storage(source.name, key, begin, nbytes)
    return storages, end


def _by_declared_counts(source: Source, pos: int, keys: list[str], refs: Mapping[str, StorageRef]) -> list[int] | None:
    """Where each storage's bytes begin if every count is the one that the pickle says; None if three of them, or the length
    of the file, show that it is not so. A read per storage would be a request per storage from a server."""
    begins = []
    for key in keys:
        pos += COUNT_NBYTES
        begins.append(pos)
        pos += refs[key].nbytes
    if pos > source.nbytes:
        return None
    for at in {0, len(keys) // 2, len(keys) - 1} if keys else ():
        if _count(source, begins[at] - COUNT_NBYTES) != refs[keys[at]].numel:
            return None
    return begins


def _by_stored_counts(
    source: Source, found: TorchFile, pos: int, keys: list[str], refs: Mapping[str, StorageRef]
) -> tuple[list[int], list[int]]:
    """(begins, counts) up to the first storage that the file does not hold in full."""
    begins: list[int] = []
    counts: list[int] = []
    for key in keys:
        whole = pos + COUNT_NBYTES <= source.nbytes
        count = _count(source, pos) if whole else refs[key].numel
        begin, nbytes = pos + COUNT_NBYTES, count * ITEM_NBYTES[refs[key].dtype]
        if count < 0 or begin + nbytes > source.nbytes:
            missing = len(keys) - len(begins)
            what = f"has a storage {key!r} of {nbytes:,} bytes that runs past the end: truncated file?"
            what += f" {missing:,} of {len(keys):,} storages are not there" if missing > 1 else ""
            found.problems.append(Problem(file=source.name, what=what, offset=pos))
            break
        if count != refs[key].numel:
            what = f"has {count:,} elements in storage {key!r}, the pickle says {refs[key].numel:,}"
            found.problems.append(Problem(file=source.name, what=what, offset=pos))
        begins.append(begin)
        counts.append(count)
        pos = begin + nbytes
    return begins, counts


def _count(source: Source, pos: int) -> int:
    return int.from_bytes(source.read(pos, COUNT_NBYTES), "little", signed=True)
