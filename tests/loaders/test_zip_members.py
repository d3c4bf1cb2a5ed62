"""Where the bytes of zip members begin, held to Python's zipfile and to damaged directories."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from torch_truth import saved, torch

from memory_source import MemorySource
from tieaudit.errors import FormatError
from tieaudit.loaders.zip_directory import Directory, read_directory, repeated_names
from tieaudit.loaders.zip_members import Layout, ZipMembers, lay_out

CONTENTS = {"a": b"first", "b": b"", "c": b"third" * 100}


def archive(method: int = zipfile.ZIP_STORED, *, comment: bytes = b"", stream: bool = False) -> bytes:
    buffer = io.BytesIO()
    if stream:
        buffer.seekable = lambda: False  # type: ignore[method-assign]  # zipfile then writes data descriptors
    with zipfile.ZipFile(buffer, "w", method) as out:
        out.comment = comment
        for name, raw in CONTENTS.items():
            out.writestr(name, raw)
    return buffer.getvalue()


def opened(data: bytes) -> tuple[ZipMembers, Layout, Directory]:
    source = MemorySource("x", data)
    directory = read_directory(source)
    members = ZipMembers(source, directory)
    return members, lay_out(members), directory


def entry_of(data: bytes, name: bytes) -> int:
    """Where the directory's entry of a member begins."""
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(name)] != name:
        at = data.index(b"PK\x01\x02", at + 1)
    return at


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"c" * 30_000])
@pytest.mark.parametrize("stream", [False, True])
def test_contents_are_those_of_zipfile(method: int, comment: bytes, stream: bool) -> None:
    data = archive(method, comment=comment, stream=stream)
    members, layout, directory = opened(data)
    assert {member.name: members.contents(member, 1000)[1] for member in directory.members} == CONTENTS
    assert layout.problems == []
    assert layout.dead == []
    assert repeated_names("x", directory.members) == []
    for member in directory.members:
        assert layout.begins[member.header] == members.begin(member)


def test_torch_files_take_three_headers_and_others_all() -> None:
    source = saved({str(i): torch.ones(i) for i in range(1, 100)})
    members = ZipMembers(source, read_directory(source))
    before = source.meter.requests
    layout = lay_out(members)
    assert source.meter.requests - before == 3
    assert all(layout.begins[member.header] == members.begin(member) for member in members.directory.members)


def test_headers_that_break_torchs_rule_are_all_read() -> None:
    source = saved({str(i): torch.ones(i) for i in range(1, 20)})
    directory = read_directory(source)
    middle = sorted(directory.members, key=lambda member: member.header)[len(directory.members) // 2]
    data = bytearray(source.data)
    struct.pack_into("<H", data, middle.header + 28, 0)  # no extra field: its bytes begin elsewhere
    members, layout, _ = opened(bytes(data))
    assert layout.begins[middle.header] == middle.header + 30 + middle.name_nbytes
    assert all(layout.begins[member.header] == members.begin(member) for member in directory.members)


def test_another_members_header_is_a_problem() -> None:
    data = bytearray(archive())
    data[data.index(b"a")] = ord("z")
    _, layout, directory = opened(bytes(data))
    assert [problem.what for problem in layout.problems] == ["has the local header of another member where 'a' should be"]
    assert directory.members[0].header not in layout.begins


def test_members_in_one_place_are_a_problem() -> None:
    data = bytearray(archive())
    struct.pack_into("<I", data, entry_of(data, b"c") + 42, 0)
    _, layout, _ = opened(bytes(data))
    assert any("another member" in problem.what for problem in layout.problems)


def test_member_that_runs_into_the_next_overlaps_it() -> None:
    data = bytearray(archive())
    for at in (entry_of(data, b"a") + 20, 18):
        struct.pack_into("<2I", data, at, 50, 50)
    _, layout, _ = opened(bytes(data))
    assert any("overlaps the one before by" in problem.what for problem in layout.problems)


def test_bytes_before_between_and_behind_are_dead() -> None:
    whole = archive()
    cut = entry_of(whole, b"a")
    data = bytearray(whole[:cut] + b"gap" + whole[cut:] + b"trailing")
    end = data.index(b"PK\x05\x06")
    struct.pack_into("<I", data, end + 16, cut + 3)
    _, layout, _ = opened(bytes(data))
    assert layout.dead == [(cut, cut + 3), (len(data) - 8, len(data))]


def test_numbers_over_32_bits_stand_in_the_extra_field() -> None:
    whole = archive()
    at = entry_of(whole, b"a")
    extra = struct.pack("<2H3Q", 1, 24, 5, 5, 0)
    entry = bytearray(whole[at : at + 47])
    struct.pack_into("<2I", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, len(extra))
    struct.pack_into("<I", entry, 42, 0xFFFFFFFF)
    data = bytearray(whole[:at] + entry + extra + whole[at + 47 :])
    end = data.index(b"PK\x05\x06")
    struct.pack_into("<I", data, end + 12, struct.unpack_from("<I", data, end + 12)[0] + len(extra))
    members, layout, directory = opened(bytes(data))
    assert (directory.members[0].nbytes, directory.members[0].header) == (5, 0)
    assert members.contents(directory.members[0], 1000)[1] == b"first"
    assert layout.problems == []
    struct.pack_into("<H", data, data.index(extra) + 2, 8)
    with pytest.raises(FormatError, match="without the zip64 sizes"):
        read_directory(MemorySource("x", bytes(data)))


def test_names_that_differ_by_case_are_one_to_torch() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        out.writestr("data/A", b"1")
        out.writestr("data/a", b"2")
    _, _, directory = opened(buffer.getvalue())
    (problem,) = repeated_names("x", directory.members)
    assert "two members are named 'data/a'" in problem.what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[:-30], "without its end record"),
        (lambda _: b"PK\x03\x04", "without its end record"),
        (lambda data: _at_end(data, 10, "<H", 9), "ends after 3 of 9"),
        (lambda data: _at_end(data, 12, "<I", 1 << 24), "runs past its end record"),
        (lambda data: _at_end(data, 16, "<I", 5), "broken entry"),
        (lambda data: _at_end(data, 4, "<H", 1), "several parts"),
    ],
)
def test_broken_directories_are_refused(change, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        read_directory(MemorySource("x", change(archive())))


def _at_end(data: bytes, at: int, form: str, number: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, changed.index(b"PK\x05\x06") + at, number)
    return bytes(changed)


def test_encrypted_and_unknown_packing_is_refused() -> None:
    data = bytearray(archive())
    struct.pack_into("<H", data, entry_of(data, b"a") + 8, 1)
    members, _, directory = opened(bytes(data))
    with pytest.raises(FormatError, match="encrypted"):
        members.contents(directory.members[0], 1000)
    for at in (entry_of(data, b"c") + 10, data.index(b"c") - 22):
        struct.pack_into("<H", data, at, 12)
    members, _, directory = opened(bytes(data))
    with pytest.raises(FormatError, match="packed by method 12"):
        members.contents(directory.members[2], 1000)
