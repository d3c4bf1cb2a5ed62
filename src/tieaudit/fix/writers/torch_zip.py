"""This file holds the writer of torch's zip format: the old pickle told again, with other storages behind its tensors.

The object is read by the inert reader, never by pickle; what it cannot be told again by plain opcodes (an object of some class) is refused.
Storages keep what any tensor sees, so names and overlapping views that shared memory still do (torch/serialization.py, `_save`).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from typing import IO, cast

from ...bytewise import extent
from ...checkpoint import TensorRecord
from ...errors import FormatError
from ...extents import merged
from ...loaders import torch_legacy, torch_zip
from ...loaders.torch_tensors import ITEM_NBYTES
from ...sources import Source
from ..model import Rewrite
from . import Inputs
from .repickled import Lying, Unwritable, repickled

ALIGNMENT = 64  # torch's own, of every storage
ROOT = "archive"
LOCAL_HEADER, ZIP64_EXTRA, PAD_HEAD = 30, 20, 4
LARGE = 1 << 31  # bytes from which on a member is written as ZIP64
BUFFER = 1 << 20


@dataclass(slots=True)
class _Store:
    """New storages: key by (ident of the old one, begin of the run in it)."""

    runs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    keys: dict[tuple[str, int], str] = field(default_factory=dict)
    parts: list[tuple[TensorRecord, int, int]] = field(default_factory=list)
    """(a tensor of the old storage, begin in it, bytes) of each new storage, in the order of the keys."""

    def lying(self, tensor: TensorRecord, *, alone: bool) -> Lying:
        ident, (begin, stop) = tensor.storage.ident, extent(tensor)
        width = ITEM_NBYTES[tensor.dtype]
        if alone or not tensor.nbytes:
            self.parts.append((tensor, begin, stop - begin))
            return Lying(str(len(self.parts) - 1), (stop - begin) // width, 0)
        run = next(run for run in self.runs[ident] if run[0] <= begin and stop <= run[1])
        if (begin - run[0]) % width or (run[1] - run[0]) % width:
            raise Unwritable(f"{tensor.name} shares a storage with tensors of another width")
        if (ident, run[0]) not in self.keys:
            self.keys[ident, run[0]] = str(len(self.parts))
            self.parts.append((tensor, run[0], run[1] - run[0]))
        return Lying(self.keys[ident, run[0]], (run[1] - run[0]) // width, (begin - run[0]) // width)


def refuses(rewrite: Rewrite, source: Source) -> str:
    """What the pickle holds that cannot be told again."""
    for kept in rewrite.tensors:
        if kept.tensor.storage.offset is None and kept.tensor.nbytes:
            return f"{kept.tensor.name} is compressed in {kept.tensor.file}"
    try:
        _told(rewrite, source)
    except (Unwritable, FormatError) as error:
        return str(error)
    return ""


def _told(rewrite: Rewrite, source: Source) -> tuple[bytes, _Store]:
    """The new pickle, and the storages that it names."""
    roots: list[object] = []
    load = torch_zip.load if torch_zip.sniff(source.read(0, min(4, source.nbytes))) else torch_legacy.load
    load(source, roots.append)
    if not roots:
        raise Unwritable("its object could not be read")
    by_name: Mapping[str, TensorRecord] = {kept.tensor.name: kept.tensor for kept in rewrite.tensors}
    store = _Store()
    extents: dict[str, list[tuple[int, int]]] = {}
    for tensor in by_name.values():
        if tensor.nbytes:
            extents.setdefault(tensor.storage.ident, []).append(extent(tensor))
    store.runs = {ident: merged(found) for ident, found in extents.items()}
    split: set[object] = set()

    def place(name: str) -> tuple[TensorRecord, Lying]:
        tensor = by_name[rewrite.aliases.get(name, name)]
        # asked to store each name by itself: every view but the first gets a storage of its own
        alone = rewrite.apart and tensor.view in split
        split.add(tensor.view)
        return tensor, store.lying(tensor, alone=alone)

    renamed = {kept.tensor.name: kept.name for kept in rewrite.tensors if kept.name != kept.tensor.name}
    return repickled(rewrite.source, roots[0], rewrite.dropped, renamed, place), store


def write(rewrite: Rewrite, inputs: Inputs, out: int) -> None:
    """A zip of stored members, each storage at a multiple of 64."""
    source = inputs.sources[rewrite.source]
    pickle, store = _told(rewrite, source)
    with (
        cast("IO[bytes]", FileIO(os.dup(out), "r+b")) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        _member(archive, file, "data.pkl", [pickle], len(pickle))
        _member(archive, file, "byteorder", [b"little"], 6)
        for number, (tensor, begin, nbytes) in enumerate(store.parts):
            offset = (tensor.storage.offset or 0) + begin
            chunks = (os.pread(inputs.descriptors[tensor.file], min(BUFFER, nbytes - at), offset + at) for at in range(0, nbytes, BUFFER))
            _member(archive, file, f"data/{number}", chunks, nbytes)
        _member(archive, file, "version", [b"3\n"], 2)


def _member(archive: zipfile.ZipFile, file: IO[bytes], name: str, chunks: object, nbytes: int) -> None:
    info = zipfile.ZipInfo(f"{ROOT}/{name}")
    large = nbytes >= LARGE
    begin = file.tell() + LOCAL_HEADER + len(info.filename) + PAD_HEAD + (ZIP64_EXTRA if large else 0)
    pad = -begin % ALIGNMENT
    info.extra = b"FB" + pad.to_bytes(2, "little") + b"Z" * pad  # torch's own id for it
    info.file_size = nbytes
    written = 0
    with archive.open(info, "w", force_zip64=large) as member:
        for chunk in cast("list[bytes]", chunks):
            member.write(chunk)
            written += len(chunk)
    if written != nbytes:
        raise FormatError(name, f"gave {written:,} of {nbytes:,} bytes: was it changed meanwhile?")
