"""This file holds where the bytes of a tensor lie in a `.distcp` file.

Each item of it is a complete zip as `torch.save` writes one tensor (torch/distributed/checkpoint/filesystem.py, `_write_item`): its
directory at the end tells length and CRC-32 of the bytes, its pickle whether they are row-major. Items of one length, dtype and shape
have one layout, so of a large checkpoint a few of each kind are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import FormatError, ReadError
from ...sources import Folder, Source
from ...sources.parts import Slice
from ..pickle_machine import Made
from ..pickle_reader import PickleReader
from ..torch_tensors import TENSOR_CALLS, View, storage_ref, tensor_view
from ..zip_directory import MAGIC, STORED, TAIL, read_directory
from ..zip_members import SLACK, ZipMembers

MAX_LOOKED = 2_000  # items that are looked at one by one
MAX_PICKLE = 64 << 10  # bytes; that of a plain tensor has 155
DATA = "data.pkl"


class Item(NamedTuple):
    """One stored chunk: `length` bytes of `file` from `begin` on are its zip, whose tensor should have `dtype` and `shape`."""

    file: str
    begin: int
    length: int
    dtype: str
    shape: tuple[int, ...]


class Place(NamedTuple):
    """Where the chunk's elements begin in the file, and their CRC-32 if the zip says it."""

    offset: int
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Strange:
    """Why the bytes of an item are not read, as a clause after the tensor's name; no fault."""

    why: str


Known = Place | Strange | FormatError


def places(items: Iterable[Item], folder: Folder) -> dict[Item, Known]:
    """What each item is. ReadError if a server does not give it."""
    wanted = list(dict.fromkeys(items))
    found: dict[Item, Known] = {}
    open_one = _opener(folder)
    if len(wanted) <= MAX_LOOKED:
        _look_at(wanted, folder, open_one, found)
        return found
    alike: dict[tuple[int, str, tuple[int, ...]], list[Item]] = {}
    for item in wanted:
        alike.setdefault((item.length, item.dtype, item.shape), []).append(item)
    kinds = list(alike.values())[:MAX_LOOKED]
    _look_at([group[at] for group in kinds for at in sorted({0, len(group) // 2, len(group) - 1})], folder, open_one, found)
    for group in alike.values():
        looked = [found[item] for item in group if item in found]
        starts = {known.offset - item.begin for item, known in zip(group, map(found.get, group), strict=True) if isinstance(known, Place)}
        agreed = len(starts) == 1 and all(isinstance(known, Place) for known in looked)
        for item in group:
            unknown: Known = Place(item.begin + min(starts)) if agreed else Strange("is one of too many items that differ in layout")
            found.setdefault(item, unknown)
    return found


def _opener(folder: Folder) -> Callable[[str], Source]:
    sources: dict[str, Source] = {}

    def open_one(name: str) -> Source:
        if name not in sources:
            sources[name] = folder.open(name)
        return sources[name]

    return open_one


def _look_at(items: list[Item], folder: Folder, open_one: Callable[[str], Source], found: dict[Item, Known]) -> None:
    if folder.remote:
        ends = [(item.file, item.begin + max(0, item.length - TAIL), min(TAIL, item.length)) for item in items]
        folder.prefetch([*ends, *((item.file, item.begin, min(SLACK, item.length)) for item in items)])
    for item in items:
        try:
            found[item] = _look(Slice(open_one(item.file), item.begin, item.length), item)
        except ReadError:
            raise
        except FormatError as error:
            found[item] = FormatError(item.file, error.what, None if error.offset is None else error.offset + item.begin)


def _look(part: Slice, item: Item) -> Place | Strange:
    if part.read(0, min(len(MAGIC), part.nbytes)) != MAGIC:
        return Strange("is stored in an item that is no zip of torch")
    directory = read_directory(part)
    members = {member.name: member for member in directory.members}
    root = next((name.removesuffix(DATA) for name in members if name == DATA or name.endswith("/" + DATA)), None)
    if root is None:
        return Strange("is stored in an item without a pickle")
    archive = ZipMembers(part, directory)
    at, raw = archive.contents(members[root + DATA], MAX_PICKLE)
    view = _view(PickleReader(item.file, raw, at, storage_ref).load())
    if not isinstance(view, View):
        return Strange("is stored as no plain tensor")
    data = members.get(f"{root}data/{view.ref.key}")
    if data is None:
        raise FormatError(item.file, f"names a storage {view.ref.key!r} that is not in its item", 0)
    if view.dtype != item.dtype or view.shape != item.shape:
        raise FormatError(item.file, f"holds {_words(view.dtype, view.shape)} where .metadata says {_words(item.dtype, item.shape)}", 0)
    if view.strides is not None or view.offset or data.method != STORED or data.packed_nbytes != data.nbytes:
        return Strange("is stored with strides or compressed")
    if view.nbytes > data.nbytes:
        raise FormatError(item.file, f"has {data.nbytes:,} bytes of a tensor that needs {view.nbytes:,}", data.header)
    whole = data.nbytes == view.nbytes
    return Place(item.begin + archive.begin(data), (data.crc or None) if whole else None)


def _view(root: object) -> View | None:
    if not isinstance(root, Made) or root.name not in TENSOR_CALLS:
        return None
    view = tensor_view(root)
    return view if isinstance(view, View) else None


def _words(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{' × '.join(f'{dim:,}' for dim in shape) or 'a scalar'} {dtype}"
