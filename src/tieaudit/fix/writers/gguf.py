"""This file holds the writer of GGUF: a file without some of its tensors. Every key keeps its bytes, but for `split.tensors.count`.

The list of tensors is written again with new offsets, in the old order: llama.cpp asks for that, and for no hole but padding.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import FormatError
from ...loaders import gguf, gguf_keys
from ...sources import Source
from ..files import copy_range, write_all
from ..model import Rewrite
from . import Inputs

COUNT = "split.tensors.count"
_INTEGERS = (0, 1, 2, 3, 4, 5, 10, 11)  # value types that are whole numbers


@dataclass(frozen=True, slots=True)
class _Old:
    """The old header: its keys, where the list of tensors begins and ends, and of each entry (name, begin, end)."""

    keys: gguf_keys.Keys
    order: str
    wide: str
    table: int
    end: int
    entries: tuple[tuple[str, int, int], ...]


def refuses(rewrite: Rewrite, source: Source) -> str:
    """Faults, entries that are not understood and bytes of no tensor: what they are for would be lost."""
    try:
        file = gguf.load(source)
        old = _old(source)
    except FormatError as error:
        return error.what
    if file.problems:
        return file.problems[0].what
    names = [kept.tensor.name for kept in rewrite.tensors]
    if len(names) + len(rewrite.dropped) != len(old.entries) or {name for name, _, _ in old.entries} != {*names, *rewrite.dropped}:
        return "it lists tensors of types that are not known here"
    if file.dead:
        return "it ends with bytes that belong to no tensor"
    if not names and rewrite.dropped:
        return "no tensor would be left in it"
    if any(kept.name != kept.tensor.name for kept in rewrite.tensors):
        return "its tensors cannot be renamed: readers know them by these names"
    place = old.keys.places.get(COUNT)
    if place is None and (old.keys.number("split.count") or 1) > 1:
        return f"is one part of a model, and has no {COUNT} in which the new number could stand"
    if place is not None and place[0] not in _INTEGERS:
        return f"{COUNT} is no whole number"
    return ""


def write(rewrite: Rewrite, inputs: Inputs, out: int) -> None:
    """Header, list, then each tensor's bytes at its new place."""
    source, descriptor = inputs.sources[rewrite.source], inputs.descriptors[rewrite.source]
    old = _old(source)
    tensors = {kept.tensor.name: kept.tensor for kept in rewrite.tensors}
    alignment = int(old.keys.values.get("general.alignment", gguf.ALIGNMENT))
    copy_range(descriptor, 0, out, 0, old.table, rewrite.source)
    write_all(out, struct.pack(old.order + old.wide, len(tensors)), 8)
    place = old.keys.places.get(COUNT)
    if place is not None and COUNT in rewrite.metadata:
        kind, at = place
        write_all(out, struct.pack(old.order + gguf_keys.FORMATS[kind], int(rewrite.metadata[COUNT])), at)
    raw = source.read(old.table, old.end - old.table)
    entries = bytearray()
    places: list[tuple[str, int]] = []
    offset = 0
    for name, begin, end in old.entries:
        if name in tensors:
            entries += raw[begin - old.table : end - old.table - 8] + struct.pack(old.order + "Q", offset)
            places.append((name, offset))
            offset += _padded(tensors[name].nbytes, alignment)
    write_all(out, bytes(entries), old.table)
    start = _padded(old.table + len(entries), alignment)
    os.ftruncate(out, start + offset)  # padding is zeros
    for begin, at, nbytes in _runs((tensors[name].file_offset or 0, start + place, tensors[name].nbytes) for name, place in places):
        copy_range(descriptor, begin, out, at, nbytes, rewrite.source)


def _runs(pieces: Iterator[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """(begin there, begin here, bytes) with neighbours in one piece. Padding between them is not copied: it may be anything."""
    run: tuple[int, int, int] | None = None
    for begin, at, nbytes in pieces:
        if run and run[0] + run[2] == begin and run[1] + run[2] == at:
            run = (run[0], run[1], run[2] + nbytes)
        else:
            if run:
                yield run
            run = (begin, at, nbytes)
    if run:
        yield run


def _old(source: Source) -> _Old:
    keys, window = gguf_keys.read(source)
    table = window.at
    entries: list[tuple[str, int, int]] = []
    for _ in range(keys.tensors):
        begin = window.at
        name = window.text(gguf.MAX_NAME, "a tensor's name").decode("utf-8", "backslashreplace")
        (count,) = window.numbers("I")
        if count > gguf.MAX_LISTED_DIMS:
            raise FormatError(source.name, f"{name!r} says that it has {count:,} dimensions", begin)
        window.numbers("L" * count + "IQ")
        entries.append((name, begin, window.at))
    return _Old(keys, window.order, "Q" if window.wide == 8 else "I", table, window.at, tuple(entries))


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
