"""This file holds GGUF's header up to the list of tensors (docs/gguf.md of ggml, gguf/gguf_reader.py).

    "GGUF" | u32 version | u64 tensors | u64 keys | keys × (string, u32 type, value) | tensors × entry | padding | data

A string is a u64 length and its bytes, an array u32 type, u64 count, values; version 1 has u32 in place of u64. A version number
whose bytes stand the wrong way round means that the whole file is big-endian. Vocabularies (hundreds of thousands of strings) stand
in front of the tensors: they are stepped over, one length per string, and nothing of them is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import FormatError
from ..sources import Source

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
FIRST_READ, MAX_READ = 64 << 10, 1 << 20  # bytes of a window; each is twice as long as the one before
MAX_KEYS = 10_000  # a model has about fifty
MAX_KEY = 65_535  # bytes, of a key's name (docs/gguf.md)
MAX_TENSORS = 100_000
MAX_STRINGS = 8_000_000  # of all arrays of a file; the largest vocabularies with their merges have one million
MAX_TEXT = 4096  # bytes of a value that is kept
MAX_DEPTH = 4  # of arrays in arrays, which llama.cpp does not read at all
STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}  # GGUFValueType: struct's letter
WIDTHS = {kind: struct.calcsize(letter) for kind, letter in FORMATS.items()}
KEPT = frozenset(
    ("general.architecture", "general.type", "general.alignment", "split.no", "split.count", "split.tensors.count")
)  # fmt: skip
CUT = "the header runs past the end: truncated file?"


@dataclass(slots=True)
class Window:
    """Reads a header from begin to end, a window at a time. `order` is struct's letter; lengths and counts have `wide` bytes."""

    source: Source
    order: str = "<"
    wide: int = 8
    strings: int = 0
    """Strings of arrays, stepped over so far."""
    _buffer: bytes = b""
    _begin: int = 0
    _at: int = 0
    _next: int = FIRST_READ

    @property
    def at(self) -> int:
        """The byte of the file that is read next."""
        return self._begin + self._at

    def skip(self, n: int) -> None:
        """Step over bytes, which need not be read for that. FormatError if the file does not have them."""
        if n > self.source.nbytes - self.at:
            raise FormatError(self.source.name, CUT, self.at)
        self._at += n

    def take(self, n: int) -> bytes:
        self._need(n)
        self._at += n
        return self._buffer[self._at - n : self._at]

    def numbers(self, letters: str) -> tuple[int, ...]:
        """Numbers that stand in a row; "L" is a length or count of the version's width."""
        layout = self.order + letters.replace("L", "Q" if self.wide == 8 else "I")
        found: tuple[int, ...] = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return found

    def text(self, limit: int, what: str) -> bytes:
        """The bytes of a string. FormatError if there are more than `limit`."""
        start = self.at
        (n,) = self.numbers("L")
        if n > self.source.nbytes - self.at:
            raise FormatError(self.source.name, f"{what} of {n:,} bytes runs past the end: truncated file?", start)
        if n > limit:
            raise FormatError(self.source.name, f"{what} has {n:,} bytes; at most {limit:,} make sense", start)
        return self.take(n)

    def skip_strings(self, count: int) -> None:
        """Step over an array's strings."""
        self.strings += count
        if self.strings > MAX_STRINGS or count * self.wide > self.source.nbytes - self.at:
            raise FormatError(self.source.name, f"an array says that it has {count:,} strings, more than is read here", self.at)
        length = struct.Struct(self.order + ("Q" if self.wide == 8 else "I")).unpack_from
        wide, left = self.wide, count
        while left:
            self._need(wide)
            buffer, at = self._buffer, self._at
            try:
                while left:
                    at += wide + length(buffer, at)[0]
                    left -= 1
            except (struct.error, IndexError, OverflowError):
                pass  # behind the window
            self._at = at
        self.skip(0)

    def _need(self, n: int) -> None:
        """Have the next `n` bytes in the window."""
        if self._at + n <= len(self._buffer):
            return
        if n > self.source.nbytes - self.at:
            raise FormatError(self.source.name, CUT, min(self.at, self.source.nbytes))
        rest, end = self._buffer[self._at :], self._begin + len(self._buffer)
        behind = max(0, self.at - end)
        if behind > FIRST_READ:
            end, behind = self.at, 0
        # goes on where the last read ended, unless that is far: a server's source then reads ahead
        size = min(max(self._next, behind + n - len(rest)), self.source.nbytes - end)
        self._buffer = rest + self.source.read(end, size)
        self._begin, self._at = end - len(rest), behind
        self._next = min(MAX_READ, 2 * self._next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What stands before the list of tensors; `values` has only the keys of KEPT."""

    version: int
    big: bool
    tensors: int
    values: Mapping[str, str | float] = field(default_factory=dict)
    twice: tuple[str, ...] = ()
    """Keys that are there more than once."""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(type, byte of the file) of each value of `values`."""

    def word(self, key: str) -> str:
        """A text value; "" if it is absent or no text."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) else None


def read(source: Source) -> tuple[Keys, Window]:
    """The header's keys, and the window that stands at the first tensor's entry. FormatError if it cannot be read that far."""
    name, nbytes = source.name, source.nbytes
    if nbytes < 16:
        raise FormatError(name, f"is {nbytes:,} bytes long, too short for a GGUF header", 0)
    window = Window(source)
    if window.take(4) != MAGIC:
        raise FormatError(name, "does not begin with GGUF", 0)
    raw = window.take(4)
    version, big = int.from_bytes(raw, "little"), False
    if version & 0xFFFF == 0 and version:
        version, big = int.from_bytes(raw, "big"), True
    if version not in VERSIONS:
        raise FormatError(name, f"is GGUF version {version:,}; 1 to 3 are known", 4)
    window.order, window.wide = ">" if big else "<", 4 if version == 1 else 8
    tensors, count = window.numbers("LL")
    for what, said, limit, least in (("tensors", tensors, MAX_TENSORS, 24), ("keys", count, MAX_KEYS, 9)):
        if said > limit or said * least > nbytes:
            raise FormatError(name, f"says that it has {said:,} {what}: no such file, or a truncated one", 8)
    values: dict[str, str | float] = {}
    places: dict[str, tuple[int, int]] = {}
    seen: set[bytes] = set()
    twice: list[str] = []
    for _ in range(count):
        key = window.text(MAX_KEY, "a key")
        if key in seen:
            twice.append(key[:80].decode("utf-8", "replace"))
        # longer ones are nobody's, and hostile ones could fill the memory
        elif len(key) <= 128:
            seen.add(key)
        (kind,) = window.numbers("I")
        word = key.decode("utf-8", "replace") if len(key) <= 128 else ""
        place = window.at
        value = _value(window, kind, keep=word in KEPT and word not in values)
        if value is not None:
            values[word], places[word] = value, (kind, place)
    return Keys(version=version, big=big, tensors=tensors, values=values, twice=tuple(twice), places=places), window


def _value(window: Window, kind: int, *, keep: bool, depth: int = 0) -> str | float | None:
    """Read a value if it is to be kept, else step over it. Arrays are never kept."""
    if kind == STRING:
        if keep:
            return window.text(MAX_TEXT, "a value").decode("utf-8", "replace")
        window.skip(window.numbers("L")[0])
    elif kind == ARRAY:
        if depth == MAX_DEPTH:
            raise FormatError(window.source.name, f"has arrays in arrays, more than {MAX_DEPTH} deep", window.at)
        inner, count = window.numbers("IL")
        if inner == STRING:
            window.skip_strings(count)
        elif inner == ARRAY:
            window.strings += 8 * count  # each takes as much time
            if window.strings > MAX_STRINGS:
                raise FormatError(window.source.name, f"an array says that it has {count:,} arrays, more than is read here", window.at)
            for _ in range(count):
                _value(window, ARRAY, keep=False, depth=depth + 1)
        else:
            window.skip(count * _width(window, inner))
    elif keep and _width(window, kind):
        return window.numbers(FORMATS[kind])[0]
    else:
        window.skip(_width(window, kind))
    return None


def _width(window: Window, kind: int) -> int:
    """Bytes of a number. FormatError for a type that there is not: nothing behind it can be found."""
    if kind not in WIDTHS:
        raise FormatError(window.source.name, f"a value has the type {kind:,}, which GGUF does not have", window.at - 4)
    return WIDTHS[kind]
