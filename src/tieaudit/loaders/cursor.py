"""This file holds how a format is walked whose headers lie between the weights: forward, through one small window of bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FormatError
from ..sources import Source

WINDOW = 4 << 10  # bytes; one page: what is read behind a header is mostly weights


@dataclass(slots=True)
class Cursor:
    """A place in a file that only moves on. Nothing is taken or passed over that the file does not have."""

    source: Source
    at: int = 0
    _begin: int = 0
    _window: bytes = b""

    @property
    def left(self) -> int:
        """Bytes up to the end of the file."""
        return self.source.nbytes - self.at

    def take(self, n: int, what: str) -> bytes:
        """The next `n` bytes; FormatError that says `what` they should have been if the file ends before."""
        self._demand(n, what)
        begin = self.at - self._begin
        if begin < 0 or begin + n > len(self._window):
            size = min(max(n, WINDOW), self.source.nbytes - self.at)
            self._begin, self._window, begin = self.at, self.source.read(self.at, size), 0
        self.at += n
        return self._window[begin : begin + n]

    def skip(self, n: int, what: str) -> int:
        """Pass over `n` bytes without reading them; the offset where they begin."""
        self._demand(n, what)
        begin = self.at
        self.at += n
        return begin

    def number(self, width: int, what: str, *, big_endian: bool = False) -> int:
        """An unsigned number of `width` bytes."""
        return int.from_bytes(self.take(width, what), "big" if big_endian else "little")

    def _demand(self, n: int, what: str) -> None:
        if n > self.left:
            raise FormatError(self.source.name, f"ends inside {what}, which needs {n:,} bytes: truncated file?", self.at)
