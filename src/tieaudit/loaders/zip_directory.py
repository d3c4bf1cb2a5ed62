"""This file holds the reader of a zip file's central directory.

Layout (PKWARE APPNOTE 6.3.10): local headers (30 bytes + name + extra) with the data of each member, the central directory
(46 bytes + name + extra + comment per member), the end record (22 bytes + comment), before it a zip64 locator (20 bytes) if
numbers do not fit. `zipfile` is no choice: it reads a directory of any length at once (a million entries: 5.7 s, 476 MiB),
checks CRCs that torch.serialization.set_crc32_options(False) leaves zero, and hides repeated names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..checkpoint import Problem
from ..errors import FormatError
from ..sources import Source

MAGIC = b"PK\x03\x04"
MAX_MEMBERS = 200_000  # the largest checkpoint known has 94,000 tensors
MAX_DIRECTORY = 32 << 20  # bytes
TAIL = 4 << 10  # bytes read first from the end: the end records, and the whole directory of a small file
MAX_COMMENT = (1 << 16) - 1  # bytes

STORED, DEFLATED = 0, 8
ENCRYPTED, DESCRIPTOR = 0x1, 0x8  # bits of the general purpose flag

END = struct.Struct("<4s4H2IH")
END64_LOCATOR = struct.Struct("<4sIQI")
END64 = struct.Struct("<4sQ2H2I4Q")
ENTRY = struct.Struct("<4s6H3I5H2I")
END_MAGIC, END64_LOCATOR_MAGIC, END64_MAGIC, ENTRY_MAGIC = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06", b"PK\x01\x02"
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the zip64 record"
ZIP64_EXTRA = 1


class Member(NamedTuple):
    """One entry of the central directory. Sizes in bytes; `header` is where its local header lies in the file."""

    name: str
    flags: int
    method: int
    crc: int
    packed_nbytes: int
    nbytes: int
    header: int
    name_nbytes: int


@dataclass(frozen=True, slots=True)
class Directory:
    """`members` in the directory's order; `offset` is where the directory begins, `end` where the last end record ends."""

    members: tuple[Member, ...]
    offset: int
    end: int


class _EndRecord(NamedTuple):
    entries: int
    nbytes: int
    offset: int
    begin: int
    end: int


def read_directory(source: Source) -> Directory:
    """Raises FormatError if there is none, if it is larger than the limits, or if an entry breaks off."""
    tail_begin, tail = _read_tail(source)
    record = _end_record(source, tail_begin, tail)
    if record.entries > MAX_MEMBERS:
        what = f"is a zip with {record.entries:,} members, more than the {MAX_MEMBERS:,} that are read"
        raise FormatError(source.name, what, record.begin)
    if record.nbytes > MAX_DIRECTORY:
        what = f"has a zip directory of {record.nbytes:,} bytes, more than the {MAX_DIRECTORY:,} that are read"
        raise FormatError(source.name, what, record.begin)
    if record.offset + record.nbytes > record.begin:
        raise FormatError(source.name, f"has a zip directory at byte {record.offset:,} that runs past its end record", record.begin)
    at = record.offset - tail_begin
    raw = tail[at : at + record.nbytes] if at >= 0 else source.read(record.offset, record.nbytes)
    return Directory(_entries(source.name, raw, record), record.offset, record.end)


def _read_tail(source: Source) -> tuple[int, bytes]:
    """(offset, bytes) of the end of the file, long enough to hold the end records and their comment."""
    for nbytes in (TAIL, END.size + MAX_COMMENT + END64_LOCATOR.size):
        begin = max(0, source.nbytes - nbytes)
        tail = source.read(begin, source.nbytes - begin)
        at = tail.rfind(END_MAGIC)
        if at >= 0 and at + END.size <= len(tail) and (at >= END64_LOCATOR.size or begin == 0):
            return begin, tail
        if begin == 0:
            break
    raise FormatError(source.name, "is a zip without its end record: truncated file?", source.nbytes)


def _end_record(source: Source, tail_begin: int, tail: bytes) -> _EndRecord:
    at = tail.rfind(END_MAGIC)
    _, disk, first_disk, _, count, nbytes, offset, comment = END.unpack_from(tail, at)
    begin = tail_begin + at
    end = begin + END.size + comment
    locator_at = at - END64_LOCATOR.size
    if locator_at >= 0 and tail[locator_at : locator_at + 4] == END64_LOCATOR_MAGIC:
        _, _, record_offset, _ = END64_LOCATOR.unpack_from(tail, locator_at)
        if record_offset + END64.size > tail_begin + locator_at:
            raise FormatError(source.name, "has a zip64 end record outside of the file", tail_begin + locator_at)
        raw = source.read(record_offset, END64.size)
        magic, _, _, _, disk, first_disk, _, count, nbytes, offset = END64.unpack(raw)
        if magic != END64_MAGIC:
            raise FormatError(source.name, "has no zip64 end record where its locator points", record_offset)
        begin = record_offset
    if disk or first_disk:
        raise FormatError(source.name, "is a zip in several parts", begin)
    return _EndRecord(count, nbytes, offset, begin, end)


def _entries(file: str, raw: bytes, record: _EndRecord) -> tuple[Member, ...]:
    members: list[Member] = []
    at = 0
    for _ in range(record.entries):
        if at + ENTRY.size > len(raw):
            what = f"has a zip directory that ends after {len(members):,} of {record.entries:,} entries"
            raise FormatError(file, what, record.offset + at)
        (
            magic, _, _, flags, method, _, _, crc, packed_nbytes, nbytes, name_nbytes, extra_nbytes, comment_nbytes, _, _, _, header,
        ) = ENTRY.unpack_from(raw, at)  # fmt: skip
        name_end = at + ENTRY.size + name_nbytes
        following = name_end + extra_nbytes + comment_nbytes
        if magic != ENTRY_MAGIC or following > len(raw):
            raise FormatError(file, "has a broken entry in its zip directory", record.offset + at)
        name = raw[at + ENTRY.size : name_end].decode("utf-8", "backslashreplace")
        if FULL32 in {packed_nbytes, nbytes, header}:
            extra = raw[name_end : name_end + extra_nbytes]
            nbytes, packed_nbytes, header = _zip64(file, extra, (nbytes, packed_nbytes, header), record.offset + at)
        members.append(Member(name, flags, method, crc, packed_nbytes, nbytes, header, name_nbytes))
        at = following
    return tuple(members)


def _zip64(file: str, extra: bytes, numbers: tuple[int, int, int], place: int) -> tuple[int, int, int]:
    """(nbytes, packed_nbytes, header) with the numbers that are full replaced by those of the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        tag, nbytes = struct.unpack_from("<2H", extra, at)
        at += 4
        if tag == ZIP64_EXTRA:
            wide = [int.from_bytes(extra[i : i + 8], "little") for i in range(at, min(at + nbytes, len(extra)) - 7, 8)]
            if len(wide) < numbers.count(FULL32):
                break
            first, second, third = (wide.pop(0) if number == FULL32 else number for number in numbers)
            return first, second, third
        at += nbytes
    raise FormatError(file, "has a zip entry without the zip64 sizes that it announces", place)


def repeated_names(file: str, members: Iterable[Member]) -> list[Problem]:
    """Names that two members have, case aside: torch looks names up without case (mz_zip_reader_locate_file), so which of
    them is loaded depends on the reader."""
    seen: dict[str, Member] = {}
    problems = []
    for member in members:
        first = seen.setdefault(member.name.lower(), member)
        if first is not member:
            what = f"two members are named {member.name!r}, at bytes {first.header:,} and {member.header:,}"
            problems.append(Problem(file=file, what=what, offset=member.header))
    return problems
