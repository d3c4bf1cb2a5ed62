"""This file holds the small parts of msgpack: counts, lengths, keys and sizes (github.com/msgpack/msgpack, spec.md), all big-endian.

The first byte of a value is its kind; small counts, lengths and numbers are in it.
"""

from __future__ import annotations

from ..errors import FormatError
from .cursor import Cursor

MAX_TEXT = 512  # bytes of a key or another name
TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}  # kinds of strings and bytes: bytes of their length
EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
# bytes behind the kind: nil, false, true, floats, unsigned and signed integers
NUMBERS = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
NUMBERS |= dict.fromkeys((*range(0x80), *range(0xE0, 0x100)), 0)
UNSIGNED = (0xCC, 0xCD, 0xCE, 0xCF)


def is_map(kind: int) -> bool:
    return 0x80 <= kind <= 0x8F or kind in (0xDE, 0xDF)


def is_list(kind: int) -> bool:
    return 0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD)


def is_text(kind: int) -> bool:
    """Strings, and bytes, which older writers do not tell apart."""
    return 0xA0 <= kind <= 0xBF or kind in TEXTS


def is_extension(kind: int) -> bool:
    return 0xD4 <= kind <= 0xD8 or kind in EXTENSIONS


def broken(cursor: Cursor, what: str, at: int | None = None) -> FormatError:
    return FormatError(cursor.source.name, what, cursor.at if at is None else at)


def count(cursor: Cursor, kind: int) -> int:
    """Entries of a map or list; each takes a byte at least."""
    entries = cursor.number(2 if kind in (0xDC, 0xDE) else 4, "a count", big_endian=True) if kind >= 0xDC else kind & 0x0F
    if entries > cursor.left:
        raise broken(cursor, f"announces {entries:,} entries where {cursor.left:,} bytes are left: truncated file?")
    return entries


def text_nbytes(cursor: Cursor, kind: int) -> int:
    """Length of a string or of bytes."""
    return kind & 0x1F if kind <= 0xBF else cursor.number(TEXTS[kind], "a length", big_endian=True)


def extension_nbytes(cursor: Cursor, kind: int) -> int:
    return 1 << (kind - 0xD4) if kind >= 0xD4 else cursor.number(EXTENSIONS[kind], "a length", big_endian=True)


def text(cursor: Cursor, what: str) -> str:
    """A short string: a key, a dtype."""
    place = cursor.at
    kind = cursor.take(1, what)[0]
    if not is_text(kind):
        raise broken(cursor, f"has {what} that is no string", place)
    n = text_nbytes(cursor, kind)
    if n > MAX_TEXT:
        raise broken(cursor, f"has {what} of {n:,} bytes", place)
    return cursor.take(n, what).decode("utf-8", "backslashreplace")


def size(cursor: Cursor) -> int:
    """A number that is not negative."""
    place = cursor.at
    kind = cursor.take(1, "a size")[0]
    if kind > 0x7F and kind not in UNSIGNED:
        raise broken(cursor, "has a shape that is not made of sizes", place)
    return kind if kind <= 0x7F else cursor.number(NUMBERS[kind], "a size", big_endian=True)
