"""This file holds whether chunks tile a tensor: boxes (offsets, sizes), each of as many dimensions as the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .values import numel

Box = tuple[tuple[int, ...], tuple[int, ...]]
MAX_BOXES = 300  # of which each is compared with each other


def fault_of_chunks(shape: tuple[int, ...], boxes: Sequence[Box]) -> str:
    """What is wrong, as a clause after the tensor's name; "" if the boxes cover each element once."""
    if not boxes:
        return "has no chunk"
    for offsets, sizes in boxes:
        if any(offset + length > dim for offset, length, dim in zip(offsets, sizes, shape, strict=True)):
            return f"has a chunk of {list(sizes)} at {list(offsets)}, outside of its size {list(shape)}"
    if overlap := _overlap(shape, boxes):
        return overlap
    held, whole = sum(numel(sizes) for _, sizes in boxes), numel(shape)
    if held != whole:
        return f"has chunks of {held:,} elements in all, its size is {whole:,}"
    return ""


def _overlap(shape: tuple[int, ...], boxes: Sequence[Box]) -> str:
    if len({offsets for offsets, _ in boxes}) < len(boxes):
        return "has two chunks at one place"
    if in_rows(shape, boxes):
        ordered = sorted(boxes)
        clash = any(first[0][0] + first[1][0] > second[0][0] for first, second in pairwise(ordered) if shape)
    else:
        few = boxes[:MAX_BOXES]
        clash = any(_meet(first, second) for at, first in enumerate(few) for second in few[:at])
    return "has chunks that overlap" if clash else ""


def _meet(first: Box, second: Box) -> bool:
    sides = zip(*first, *second, strict=True)
    return all(begin < other + width and other < begin + length for begin, length, other, width in sides)


def in_rows(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Every box is a run of rows, so that the boxes one after the other are the tensor as it lies in memory."""
    return all(sizes[1:] == shape[1:] for _, sizes in boxes)
