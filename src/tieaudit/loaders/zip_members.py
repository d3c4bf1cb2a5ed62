"""This file holds how the bytes of a zip member are found and read: local headers, what the directory alone proves, gaps.

A local header has an extra field whose length the directory does not tell, so where the data begins takes one read per
member. torch writes members without gaps and pads the extra field so that data begins at a multiple of 64
(kFieldAlignment and getPadding, caffe2/serialize/inline_container.cc). Where the next header minus the data's length lands on
such a multiple, the begin is known without that read; three headers are read to see that the file does follow the rule.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from ..checkpoint import Problem
from ..errors import FormatError, ReadError
from ..extents import Extent
from ..sources import Source
from .zip_directory import DEFLATED, DESCRIPTOR, ENCRYPTED, FULL32, MAGIC, STORED, Directory, Member

LOCAL = struct.Struct("<4s5H3I2H")
ALIGNMENT = 64  # bytes
MAX_EXTRA = (1 << 16) - 1  # bytes
DESCRIPTOR_NBYTES, DESCRIPTOR64_NBYTES = 16, 24  # signature, CRC, two sizes (APPNOTE 4.3.9); zip64 sizes are wider
LARGE = 64 << 10  # bytes of the window that are worth letting go
SLACK = 2 << 10  # bytes read along with a member: its extra field, and the small members that torch writes next


@dataclass(slots=True)
class ZipMembers:
    """The members of one zip file and one window of its bytes, so that small members beside each other cost one read."""

    source: Source
    directory: Directory
    _window_begin: int = 0
    _window: bytes = b""

    def contents(self, member: Member, limit: int) -> tuple[int, bytes]:
        """(where they begin in the file, the member's bytes, inflated); FormatError if they are more than `limit` or not what the
        directory says."""
        file = self.source.name
        if max(member.packed_nbytes, member.nbytes) > limit:
            what = f"has a member {member.name!r} of {member.nbytes:,} bytes, more than the {limit:,} that are read"
            raise FormatError(file, what, member.header)
        self._look(member.header, LOCAL.size + member.name_nbytes + member.packed_nbytes)
        begin = self.begin(member)
        raw = self._read(begin, member.packed_nbytes)
        self._keep_from(begin + member.packed_nbytes)
        if member.flags & ENCRYPTED:
            raise FormatError(file, f"has an encrypted member {member.name!r}", member.header)
        if member.method == DEFLATED:
            try:
                raw = zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, member.nbytes + 1)
            except zlib.error as error:
                raise FormatError(file, f"has a member {member.name!r} that cannot be inflated ({error})", begin) from None
        elif member.method != STORED:
            raise FormatError(file, f"has a member {member.name!r} packed by method {member.method}", member.header)
        if len(raw) != member.nbytes:
            what = f"has a member {member.name!r} that is not the {member.nbytes:,} bytes its directory says"
            raise FormatError(file, what, begin)
        return begin, raw

    def begin(self, member: Member) -> int:
        """Where the member's bytes begin, by its local header; FormatError if that is not there or is another's."""
        file, directory = self.source.name, self.directory
        n = LOCAL.size + member.name_nbytes
        if member.header + n > directory.offset:
            what = f"has a member {member.name!r} that begins at byte {member.header:,}, outside of the members"
            raise FormatError(file, what, member.header)
        head = self._read(member.header, n)
        magic, _, _, method, _, _, _, packed_nbytes, nbytes, name_nbytes, extra_nbytes = LOCAL.unpack_from(head)
        if magic != MAGIC:
            raise FormatError(file, f"has no local header of member {member.name!r} there", member.header)
        if name_nbytes != member.name_nbytes or head[LOCAL.size :].decode("utf-8", "backslashreplace") != member.name:
            raise FormatError(file, f"has the local header of another member where {member.name!r} should be", member.header)
        sizes = (packed_nbytes, nbytes)
        unsaid = {(FULL32, FULL32), (0, 0)} if member.flags & DESCRIPTOR else {(FULL32, FULL32)}
        if method != member.method or (sizes not in unsaid and sizes != (member.packed_nbytes, member.nbytes)):
            what = f"has a local header of {member.name!r} that says {nbytes:,} bytes, the directory {member.nbytes:,}"
            raise FormatError(file, what, member.header)
        begin: int = member.header + n + extra_nbytes
        if begin + member.packed_nbytes > directory.offset:
            what = f"has a member {member.name!r} of {member.packed_nbytes:,} bytes that run past the last member's end"
            raise FormatError(file, what, begin)
        return begin

    def _look(self, offset: int, n: int) -> None:
        if self._window_begin <= offset and offset + n + ALIGNMENT <= self._window_begin + len(self._window):
            return
        end = min(offset + n + SLACK, self.directory.offset)
        if offset < end:
            self._window_begin, self._window = offset, self.source.read(offset, end - offset)

    def _keep_from(self, offset: int) -> None:
        """Let go of what lies before, a long pickle say."""
        at = offset - self._window_begin
        if LARGE < at <= len(self._window):
            self._window_begin, self._window = offset, self._window[at:]

    def _read(self, offset: int, n: int) -> bytes:
        at = offset - self._window_begin
        if at >= 0 and at + n <= len(self._window):
            return self._window[at : at + n]
        return self.source.read(offset, n)


@dataclass(frozen=True, slots=True)
class Layout:
    """`begins` by the offset of a member's local header; members that could not be placed are missing and are in `problems`.
    `dead` are extents of the file that belong to no member and not to the directory."""

    begins: dict[int, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    dead: list[Extent] = field(default_factory=list)


def lay_out(members: ZipMembers) -> Layout:
    """Where the bytes of every member begin."""
    directory, source = members.directory, members.source
    order = sorted(directory.members, key=lambda member: member.header)
    following = [*(member.header for member in order[1:]), directory.offset][: len(order)]  # none for a zip without members
    layout = Layout()
    proven = []
    for member, limit in zip(order, following, strict=True):
        begin = limit - _descriptor_nbytes(member) - member.packed_nbytes
        least = member.header + LOCAL.size + member.name_nbytes
        if begin == least or (begin % ALIGNMENT == 0 and least < begin <= least + MAX_EXTRA):
            layout.begins[member.header] = begin
            proven.append(member)
    if not all(_holds(members, proven[i], layout) for i in {0, len(proven) // 2, len(proven) - 1} if proven):
        layout.begins.clear()
    end = 0
    for member, limit in zip(order, following, strict=True):
        begin_or_none = layout.begins.get(member.header)
        if begin_or_none is None or member.header < end:
            try:
                begin_or_none = layout.begins[member.header] = members.begin(member)
            except ReadError:
                raise
            except FormatError as error:
                layout.problems.append(Problem(file=source.name, what=error.what, offset=error.offset))
                end = max(end, limit)  # whose the bytes up to the next member are is not known
                continue
        if member.header > end:
            layout.dead.append((end, member.header))
        elif member.header < end:
            what = f"has a member {member.name!r} that overlaps the one before by {end - member.header:,} bytes"
            layout.problems.append(Problem(file=source.name, what=what, offset=member.header))
        end = max(end, begin_or_none + member.packed_nbytes)
        if member.flags & DESCRIPTOR and end < limit <= end + DESCRIPTOR64_NBYTES:
            end = limit
    if end < directory.offset and not layout.problems:
        layout.dead.append((end, directory.offset))
    if directory.end < source.nbytes:
        layout.dead.append((directory.end, source.nbytes))
    return layout


def _descriptor_nbytes(member: Member) -> int:
    if not member.flags & DESCRIPTOR:
        return 0
    return DESCRIPTOR64_NBYTES if max(member.nbytes, member.packed_nbytes, member.header) >= FULL32 else DESCRIPTOR_NBYTES


def _holds(members: ZipMembers, member: Member, layout: Layout) -> bool:
    try:
        return members.begin(member) == layout.begins[member.header]
    except ReadError:
        raise
    except FormatError:
        return False
