"""Sources made of others: a part of a file as if it were a file, and runs of several files as if they were one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import FormatError, ReadError
from . import Source, Wanted

Where = TypeVar("Where")


@dataclass(frozen=True, slots=True)
class Slice:
    """`nbytes` bytes of `source` from `begin` on. Offsets, in errors too, count from there."""

    source: Source
    begin: int
    nbytes: int

    @property
    def name(self) -> str:
        return self.source.name

    def read(self, offset: int, n: int) -> bytes:
        if offset < 0 or n < 0 or offset + n > self.nbytes:
            raise FormatError(self.name, f"has an item of {self.nbytes:,} bytes, of which {n:,} more are needed", max(offset, 0))
        try:
            return self.source.read(self.begin + offset, n)
        except ReadError:
            raise
        except FormatError as error:
            raise FormatError(error.file, error.what, offset) from None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


@dataclass(frozen=True, slots=True)
class Stitched:
    """Runs (source, offset, bytes) one after the other."""

    name: str
    pieces: tuple[tuple[Source, int, int], ...]

    @property
    def nbytes(self) -> int:
        return sum(n for _, _, n in self.pieces)

    def read(self, offset: int, n: int) -> bytes:
        self._check(offset, n)
        return b"".join(source.read(at, length) for source, at, length in _cut(self.pieces, offset, n))

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._check(offset, len(buffer))
        filled = 0
        for source, at, length in _cut(self.pieces, offset, len(buffer)):
            source.read_into(at, buffer[filled : filled + length])
            filled += length

    def _check(self, offset: int, n: int) -> None:
        if offset < 0 or n < 0 or offset + n > self.nbytes:
            raise FormatError(self.name, f"has {self.nbytes:,} bytes of this tensor, {n:,} are needed from byte {offset:,} of it on")


def runs(pieces: Sequence[tuple[str, int, int]], offset: int, n: int) -> list[Wanted]:
    """The runs (file, offset, bytes) in which `n` bytes from `offset` on lie."""
    return list(_cut(pieces, offset, n))


def _cut(pieces: Sequence[tuple[Where, int, int]], offset: int, n: int) -> Iterator[tuple[Where, int, int]]:
    for where, begin, length in pieces:
        if offset < length and n > 0:
            taken = min(n, length - offset)
            yield where, begin + offset, taken
            offset, n = 0, n - taken
        else:
            offset -= length if n > 0 else 0
