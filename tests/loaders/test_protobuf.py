"""The wire format of protobuf, held to the protobuf library's own reading of the same bytes."""

from __future__ import annotations

import random

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_source import MemorySource
from protobuf_bytes import FIXED32, FIXED64, LEN, VARINT, length, tag, varint
from tieaudit.errors import FormatError
from tieaudit.loaders import protobuf
from tieaudit.loaders.protobuf import Exhausted, Wire, signed

NAME = "a.onnx"


def walked(data: bytes, **options: int) -> list[tuple[int, int, int | bytes]]:
    """(number, wire type, number or payload) of every field, through windows of any size."""
    wire = Wire(MemorySource(NAME, data), **options)
    return [(number, kind, value if kind == VARINT else data[value:end]) for number, kind, value, end in wire.fields(0, len(data))]


def truth(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """The same by the library: fields that its message does not know. DecodeError if it refuses the bytes."""
    found = []
    for one in UnknownFieldSet(Empty.FromString(data)):
        value = one.data
        if one.wire_type in (FIXED32, FIXED64):
            value = value.to_bytes(4 if one.wire_type == FIXED32 else 8, "little")
        found.append((one.field_number, one.wire_type, value))
    return found


FIELDS = st.one_of(
    st.builds(lambda n, v: tag(n, VARINT) + varint(v), st.integers(1, 99), st.integers(0, (1 << 64) - 1)),
    st.builds(lambda n, v: tag(n, FIXED64) + v, st.integers(1, 99), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: tag(n, FIXED32) + v, st.integers(1, 1 << 28), st.binary(min_size=4, max_size=4)),
    st.builds(length, st.integers(1, 99), st.binary(max_size=200)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(FIELDS, max_size=30), st.integers(20, 64))
def test_fields_are_those_of_the_library_through_any_window(fields: list[bytes], jump: int) -> None:
    data = b"".join(fields)
    assert walked(data, jump=jump) == truth(data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=40) | st.lists(FIELDS, max_size=4).map(b"".join).flatmap(lambda data: st.just(data[:-1])))
def test_bytes_that_the_library_refuses_are_refused(data: bytes) -> None:
    try:
        expected = truth(data)
    except DecodeError:
        with pytest.raises(FormatError):
            walked(data)
        return
    # groups, and the number that no field can have
    if any(kind not in (VARINT, FIXED64, LEN, FIXED32) or not number for number, kind, _ in expected):
        with pytest.raises(FormatError, match=r"wire type 3|number 0"):
            walked(data)
        return
    assert walked(data) == expected


def test_payloads_are_passed_over_unread() -> None:
    data = b"".join(length(5, bytes(1 << 20)) for _ in range(8)) + tag(1, VARINT) + varint(7)
    source = MemorySource(NAME, data)
    assert [number for number, *_ in Wire(source).fields(0, len(data))] == [5] * 8 + [1]
    assert source.meter.requests == 9
    assert source.meter.bytes_read <= 9 * protobuf.JUMP


def test_windows_grow_while_field_follows_field() -> None:
    data = (tag(1, VARINT) + b"\1") * 500_000
    source = MemorySource(NAME, data)
    assert sum(1 for _ in Wire(source).fields(0, len(data))) == 500_000
    assert source.meter.requests < 12


def test_fields_of_two_messages_are_read_in_turns() -> None:
    inner = b"".join(length(2, bytes([n]) * 3000) for n in range(5))
    data = length(1, inner) + length(1, inner)
    wire = Wire(MemorySource(NAME, data), jump=64)
    found = [data[start : start + 1] for _, _, begin, end in wire.fields(0, len(data)) for _, _, start, _ in wire.fields(begin, end, 1)]
    assert found == [bytes([n]) for n in range(5)] * 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tag(1, 3) + tag(1, 4), "wire type 3"),
        (tag(1, 4), "wire type 4"),
        (tag(1, 6), "wire type 6"),
        (tag(1, 7), "wire type 7"),
        (b"\0\0", "number 0"),
        (tag(1 << 29, VARINT) + b"\0", "number 536,870,912"),
        (b"\x08" + b"\x80" * 10 + b"\0", "more than 10 bytes"),
        (b"\x80" * 11, "more than 10 bytes"),
        (b"\x08", "truncated"),
        (b"\x08\x80", "truncated"),
        (tag(2, LEN), "truncated"),
        (tag(2, LEN) + b"\5abc", "field of 5 bytes where 3 are left: truncated"),
        (tag(2, LEN) + varint((1 << 64) - 1), "are left: truncated"),
        (tag(2, FIXED64) + bytes(7), "field of 8 bytes where 7 are left"),
        (tag(2, FIXED32) + bytes(3), "field of 4 bytes where 3 are left"),
    ],
)
def test_broken_fields_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        walked(data)


def test_a_field_ends_inside_of_its_message() -> None:
    data = length(1, tag(2, LEN) + b"\x09") + bytes(100)
    wire = Wire(MemorySource(NAME, data))
    _, _, begin, end = next(wire.fields(0, len(data)))
    with pytest.raises(FormatError, match=r"field of 9 bytes where 0 are left \(") as told:
        list(wire.fields(begin, end, 1))
    assert told.value.offset == 2


def test_a_number_ends_inside_of_its_message() -> None:
    data = length(1, tag(2, VARINT)) + bytes(100)
    wire = Wire(MemorySource(NAME, data))
    with pytest.raises(FormatError, match="runs past the end of its message"):
        list(wire.fields(2, 3, 1))


def test_depth_fields_names_and_windows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (tag(1, VARINT) + b"\1") * 100
    with pytest.raises(FormatError, match="nested more than 100 deep"):
        next(Wire(MemorySource(NAME, data)).fields(0, 2, 101))
    with pytest.raises(Exhausted, match="places that are each a request"):
        list(Wire(MemorySource(NAME, length(1, bytes(5000)) * 9), max_windows=8).fields(0, 9 * 5003))
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 99)
    with pytest.raises(Exhausted, match="99 fields"):
        walked(data)
    monkeypatch.setattr(protobuf, "MAX_TEXT", 9)
    wire = Wire(MemorySource(NAME, data))
    assert wire.content(0, 9, 100) == data[:9]
    with pytest.raises(Exhausted, match="9 bytes of names"):
        wire.content(0, 1, 100)
    with pytest.raises(FormatError, match="a name of 200 bytes"):
        wire.content(0, 200, 100)


@pytest.mark.parametrize("values", [[], [0], [1, 127, 128, 300], [(1 << 63) - 1, (1 << 64) - 1, 5]])
def test_packed_numbers(values: list[int]) -> None:
    data = b"".join(map(varint, values))
    assert Wire(MemorySource(NAME, data)).numbers(0, len(data), 100) == values


@pytest.mark.parametrize("data", [b"\x80", b"\1\x80\x80", b"\xff" * 11 + b"\0"])
def test_packed_numbers_that_do_not_end_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="a number that does not end"):
        Wire(MemorySource(NAME, data)).numbers(0, len(data), 100)


def test_signed() -> None:
    assert [signed(value) for value in (0, 5, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [0, 5, (1 << 63) - 1, -(1 << 63), -1]


def test_content_crosses_a_window() -> None:
    data = random.Random(1).randbytes(300)
    wire = Wire(MemorySource(NAME, data), jump=64)
    for begin, end in ((0, 10), (50, 100), (290, 300), (7, 64), (60, 61), (300, 300)):
        assert wire.content(begin, end, 64) == data[begin:end]
