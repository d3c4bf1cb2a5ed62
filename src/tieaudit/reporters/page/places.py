"""This file holds where everything lies in the files: each tensor and each dead byte as a block, in order, without overlaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...checkpoint import Checkpoint, LoadedFile, Storage, TensorRecord
from ...components import Component, component, stack
from ...extents import Extent, gaps, span
from ...report import Report


@dataclass(slots=True)
class Block:
    """A run of bytes of one file. `record` is None for bytes of no tensor, and for `count` neighbours that were merged.

    `beside` are further tensors on the same bytes.
    """

    begin: int
    end: int
    component: Component
    record: TensorRecord | None = None
    beside: list[TensorRecord] = field(default_factory=list)
    count: int = 1
    words: str = ""


@dataclass(slots=True, kw_only=True)
class FileMap:
    """One file and its blocks. `unplaced` counts tensors whose bytes do not lie open in it (compressed, or of no known place)."""

    name: str
    format: str
    nbytes: int
    blocks: list[Block] = field(default_factory=list)
    unplaced: int = 0

    def shares(self) -> list[tuple[Component, int]]:
        """Bytes of each component, most first."""
        sums: dict[Component, int] = defaultdict(int)
        for block in self.blocks:
            sums[block.component] += block.end - block.begin
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def files(report: Report) -> list[FileMap]:
    """Every file that was read or listed, in the order of the report."""
    checkpoint = report.checkpoint
    maps = {name: FileMap(name=name, format="", nbytes=nbytes) for name, nbytes in report.files}
    if checkpoint is None:
        return list(maps.values())
    for file in checkpoint.files:
        maps.setdefault(file.name, FileMap(name=file.name, format="", nbytes=file.nbytes)).format = file.format
        for name, nbytes in file.data:
            known = maps.setdefault(name, FileMap(name=name, format="", nbytes=nbytes))
            known.format = known.format or f"{file.format} data"
    _fill(maps, checkpoint, dict(report.ends))
    return list(maps.values())


def _fill(maps: dict[str, FileMap], checkpoint: Checkpoint, ends: Mapping[str, str]) -> None:
    found: dict[str, list[Block]] = defaultdict(list)
    for file in checkpoint.files:
        for tensor in file.tensors:
            what = component(tensor.name, tensor.part, ends)
            placed = False
            for name, begin, end in _runs(tensor):
                if name in maps and 0 <= begin < end <= maps[name].nbytes:
                    found[name].append(Block(begin, end, what, tensor))
                    placed = True
            if not placed and tensor.nbytes and file.name in maps:
                maps[file.name].unplaced += 1
        found[file.name] += _dead(file)
    for name, blocks in found.items():
        if name in maps:
            maps[name].blocks = _apart(blocks)


def _runs(tensor: TensorRecord) -> Iterator[tuple[str, int, int]]:
    if tensor.storage.pieces:
        yield from ((file, offset, offset + nbytes) for file, offset, nbytes in tensor.storage.pieces)
    elif (begin := tensor.file_offset) is not None:
        yield (tensor.file, begin, begin + _seen(tensor))


def _seen(tensor: TensorRecord) -> int:
    """Bytes from the first to the last that the view sees."""
    if tensor.strides is None or not tensor.numel:
        return tensor.nbytes
    return min(span(tensor.shape, tensor.strides, tensor.nbytes // tensor.numel), max(0, tensor.storage.nbytes - tensor.offset))


def _dead(file: LoadedFile) -> Iterator[Block]:
    """Bytes that belong to nothing, and bytes of a storage that no tensor sees."""
    for begin, end in file.dead:
        yield Block(begin, end, Component.DEAD, words="bytes that belong to no tensor")
    seen: dict[Storage, list[Extent]] = defaultdict(list)
    for tensor in file.tensors:
        seen[tensor.storage].append((tensor.offset, tensor.offset + _seen(tensor)))
    for storage in file.storages:
        if storage.offset is None or storage.pieces or storage.file != file.name:
            continue
        if len(seen[storage]) == 1 and seen[storage][0] == (0, storage.nbytes):
            continue
        for begin, end in gaps(seen[storage], (0, storage.nbytes)):
            yield Block(storage.offset + begin, storage.offset + end, Component.DEAD, words="stored, but no tensor sees these bytes")


def _apart(blocks: Iterable[Block]) -> list[Block]:
    """Sorted and disjoint: what lies inside another block stands beside it, what reaches further begins behind it."""
    kept: list[Block] = []
    for block in sorted(blocks, key=lambda block: (block.begin, -block.end)):
        if kept and block.begin < kept[-1].end:
            if block.record and kept[-1].record:
                kept[-1].beside.append(block.record)
            if block.end <= kept[-1].end:
                continue
            block.begin = kept[-1].end
        kept.append(block)
    return kept


def merged(blocks: Iterable[Block], size: int) -> list[Block]:
    """Neighbours of one layer and component as one block; of less than `size` bytes, whatever they are."""
    kept: list[Block] = []
    last: tuple[str, tuple[str, int] | None] | None = None
    for block in blocks:
        name = block.record.name if block.record else ""
        key = (block.component.value, stack(name))
        before = kept[-1] if kept else None
        small = before is not None and max(before.end - before.begin, block.end - block.begin) < size
        dead = Component.DEAD in (block.component, before.component if before else None)
        if before is not None and not dead and (key == last or small):
            count, where = before.count + block.count, key[1] if key == last else None
            words = f"{count:,} tensors" + (f" of {where[0]}.{where[1]}" if where else "")
            kept[-1] = Block(before.begin, block.end, before.component, count=count, words=words)
        else:
            kept.append(block)
        last = key
    return kept
