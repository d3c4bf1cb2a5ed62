"""The protobuf wire format, walked in place: a message is a row of fields, each a tag (field number << 3 | wire type) and a payload.

Wire types: 0 a varint (7 bits per byte, lowest first, at most 10 bytes), 1 eight bytes, 2 a length and so many bytes, 5 four bytes;
3 and 4 (groups) are refused: no format that is read here has them. Source: protobuf.dev/programming-guides/encoding.
What has a length is passed over without being read, so a file costs as its fields, not as its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import FormatError
from ..sources import Source

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10  # bytes
LONGEST = 20  # bytes that a tag and a length, or a tag and a number, can take
MAX_NUMBER = (1 << 29) - 1  # of a field
MAX_DEPTH = 100  # of messages in messages; the limit of the protobuf library itself
MAX_FIELDS = 1_500_000  # of one file, a second's work; the graph of a model of 100 layers has 100,000
MAX_TEXT = 32 << 20  # bytes of names that are kept of one file; 100,000 nodes have 20 MB
JUMP, REMOTE_JUMP = 4 << 10, 16 << 10  # bytes read where a payload was passed over; remote: with the first page of what is there
MOST = 256 << 10  # bytes read at once where field follows field

Field = tuple[int, int, int, int]
"""(number, wire type, value, 0) for a varint, else (number, wire type, begin, end) of the payload in the file."""


class Exhausted(Exception):
    """The file has more of `what` than is looked at. Nothing is wrong with it, and not all of it was seen."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Wire:
    """Fields of a file, read through one window that grows while it moves on and is small again behind a jump."""

    def __init__(self, source: Source, *, jump: int = JUMP, max_windows: int = 1 << 60) -> None:
        self.source = source
        self._jump = jump
        self._windows = max_windows
        self._fields = MAX_FIELDS
        self._text = MAX_TEXT
        self._begin = 0  # of the window in the file
        self._data = b""
        self._last = -1  # the last place in the window where a whole tag and length can be read
        self._size = jump

    def fields(self, begin: int, end: int, depth: int = 0) -> Iterator[Field]:
        """The fields of the message in these bytes of the file. FormatError if they do not fit it."""
        if depth > MAX_DEPTH:
            raise FormatError(self.source.name, f"messages are nested more than {MAX_DEPTH} deep", begin)
        at = begin
        while at < end:
            start = at - self._begin
            if not 0 <= start <= self._last:
                self._move(at)
                start = 0
            self._fields -= 1
            if self._fields < 0:
                raise Exhausted(f"{MAX_FIELDS:,} fields")
            data, value = self._data, 0
            try:
                tag, here = data[start], start + 1
                if tag > 127:
                    tag, here = self._varint(start)
                kind = tag & 7
                if kind in (VARINT, LEN):
                    value = data[here]
                    here += 1
                    if value > 127:
                        value, here = self._varint(here - 1)
            except IndexError:
                raise FormatError(self.source.name, "ends inside of a field: truncated file?", at) from None
            where = self._begin + here
            if not 8 <= tag <= MAX_NUMBER << 3 | 7:
                raise FormatError(self.source.name, f"has a field with the number {tag >> 3:,}, which cannot be", at)
            if kind == VARINT:
                if where > end:
                    raise FormatError(self.source.name, "has a number that runs past the end of its message", at)
                at = where
                yield tag >> 3, VARINT, value, 0
                continue
            if kind == LEN:
                stop = where + value
            elif kind in (FIXED64, FIXED32):
                stop = where + (8 if kind == FIXED64 else 4)
            else:
                raise FormatError(self.source.name, f"has a field of wire type {kind}, which is not read (no protobuf of this kind?)", at)
            if stop > end:
                what = f"has a field of {stop - where:,} bytes where {max(0, end - where):,} are left"
                raise FormatError(self.source.name, what + (": truncated file?" if stop > self.source.nbytes else ""), at)
            at = stop
            yield tag >> 3, kind, where, stop

    def content(self, begin: int, end: int, limit: int) -> bytes:
        """A payload's bytes. FormatError if they are more than `limit`, which is at most the size of a jump."""
        if end - begin > limit:
            raise FormatError(self.source.name, f"has a name of {end - begin:,} bytes", begin)
        self._text -= end - begin
        if self._text < 0:
            raise Exhausted(f"{MAX_TEXT:,} bytes of names")
        start = begin - self._begin
        if not 0 <= start <= len(self._data) - (end - begin):
            self._move(begin)
            start = 0
        return self._data[start : start + end - begin]

    def numbers(self, begin: int, end: int, limit: int) -> list[int]:
        """The varints packed in a payload of at most `limit` bytes."""
        data = self.content(begin, end, limit)
        found, value, shift = [], 0, 0
        for byte in data:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                found.append(value & (1 << 64) - 1)
                value = shift = 0
            elif shift >= 7 * MAX_VARINT:
                break
        if shift:
            raise FormatError(self.source.name, "has a number that does not end", begin)
        return found

    def _varint(self, start: int) -> tuple[int, int]:
        """(value, place behind it) of the varint at this place of the window. IndexError if the file ends inside of it."""
        value = shift = 0
        for here in range(start, start + MAX_VARINT):
            byte = self._data[here]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1, here + 1
            shift += 7
        raise FormatError(self.source.name, f"has a number of more than {MAX_VARINT} bytes", self._begin + start)

    def _move(self, at: int) -> None:
        """Begin the window here."""
        self._windows -= 1
        if self._windows < 0:
            raise Exhausted("places that are each a request")
        # a message that goes on where the window ended will go on further
        follows = self._begin < at <= self._begin + len(self._data)
        self._size = min(2 * self._size, MOST) if follows else self._jump
        n = min(self._size, self.source.nbytes - at)
        self._data = self.source.read(at, n)
        self._begin = at
        self._last = n - 1 if at + n == self.source.nbytes else n - LONGEST


def signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - (1 << 64) if value >> 63 else value
