"""This file holds the bytes of one remote file that were fetched already: disjoint runs, found by bisection."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from ..extents import Extent, gaps

LARGE = 1 << 20  # bytes; a longer run was read ahead of a whole compare, and is let go when the next ones come
MAX_LARGE = 16 << 20  # bytes of long runs kept


@dataclass(slots=True)
class Pages:
    """Runs by their begin. Two never overlap: only what is missing is ever added."""

    _begins: list[int] = field(default_factory=list)
    _runs: dict[int, bytes] = field(default_factory=dict)
    _large: list[int] = field(default_factory=list)

    def add(self, begin: int, data: bytes, *, keep: bool = False) -> None:
        """`keep`: a long run too stays to the end. Others stay until `trim`."""
        if not data or begin in self._runs:
            return
        insort(self._begins, begin)
        self._runs[begin] = data
        if len(data) > LARGE and not keep:
            self._large.append(begin)

    def trim(self) -> None:
        """Let go of the oldest long runs."""
        while sum(len(self._runs[at]) for at in self._large) > MAX_LARGE:
            oldest = self._large.pop(0)
            self._begins.remove(oldest)
            del self._runs[oldest]

    def missing(self, begin: int, end: int) -> list[Extent]:
        """What of these bytes is not here."""
        return gaps(self._around(begin, end), (begin, end))

    def read(self, begin: int, end: int) -> bytes:
        """All of these bytes, which must be here."""
        pieces = []
        for start, stop in self._around(begin, end):
            run = self._runs[start]
            pieces.append(run if begin <= start and stop <= end else run[max(0, begin - start) : end - start])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _around(self, begin: int, end: int) -> list[Extent]:
        """The runs that touch these bytes, in order."""
        at = max(0, bisect_right(self._begins, begin) - 1)
        found = []
        while at < len(self._begins) and self._begins[at] < end:
            start = self._begins[at]
            stop = start + len(self._runs[start])
            if stop > begin:
                found.append((start, stop))
            at += 1
        return found
