"""This file holds arithmetic on half-open byte ranges.

Written from the definition: the running maximum of the ends decides, not the end of the range before
(`[0,3) [1,2) [2,3)` is one run, which safetensors' own Python splits).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Extent = tuple[int, int]
"""Half-open run of bytes: (begin, end)."""


def merged(extents: Iterable[Extent]) -> list[Extent]:
    """The same bytes as sorted, disjoint, non-empty ranges that do not touch."""
    runs: list[Extent] = []
    for begin, end in sorted(extent for extent in extents if extent[0] < extent[1]):
        if runs and begin <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((begin, end))
    return runs


def covered(extents: Iterable[Extent]) -> int:
    """Bytes in the union."""
    return sum(end - begin for begin, end in merged(extents))


def gaps(extents: Iterable[Extent], whole: Extent) -> list[Extent]:
    """Ranges of `whole` that no extent covers."""
    found = []
    at, stop = whole
    for begin, end in merged(extents):
        if begin >= stop:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < stop:
        found.append((at, stop))
    return found


def span(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> int:
    """Bytes from a view's first element to behind its last; 0 for an empty view. `strides` in elements."""
    if 0 in shape:
        return 0
    if strides is None:
        count = 1
        for dim in shape:
            count *= dim
        return count * itemsize
    return (1 + sum((dim - 1) * abs(step) for dim, step in zip(shape, strides, strict=True))) * itemsize
