"""This file makes messages of protobuf as bytes, broken ones too."""

from __future__ import annotations

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def length(number: int, payload: bytes) -> bytes:
    """A field with a length: text, bytes, a message."""
    return tag(number, LEN) + varint(len(payload)) + payload
