"""npz: a zip of numpy arrays, one member NAME.npy each; `numpy.savez` and MLX's `mx.savez` write it.

A .npy file is `\\x93NUMPY`, two bytes of version, the length of the header (2 bytes little-endian, 4 since version 2), the header as the
text of a Python dict `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, and the data (numpy/lib/_format_impl.py). An array of
Python objects has a pickle as its data: it is named and never loaded. bfloat16 is written as the two-byte void '<V2', by numpy with
ml_dtypes and by MLX (mlx/io/load.cpp) alike. There are no aliases; the CRC-32 of every member stands in the zip directory.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass, field

from ..checkpoint import LoadedFile, Problem, Storage, TensorRecord
from ..errors import FormatError, ReadError
from ..sources import Folder, Source
from . import crc32
from .zip_directory import DEFLATED, ENCRYPTED, MAGIC, STORED, Directory, Member, read_directory
from .zip_members import LOCAL, ZipMembers, lay_out

FORMAT = "npz"
TAIL = ".npy"
NPY = b"\x93NUMPY"
MAX_ARRAYS = 20_000  # of one file; savez files have hundreds
MAX_HEADER = 64 << 10  # bytes; numpy itself trusts 10,000 characters
FIRST = 256  # bytes read of a member: most headers have 64 or 128
SLACK = 64  # bytes of the extra field before it
MAX_DIMS, MAX_COUNT = 64, 1 << 62
MAX_PROBLEMS = 50

# one entry of the header each; whatever follows in a structured dtype is of no interest
DESCR = re.compile(rb"\s*['\"]descr['\"]\s*:\s*(?:['\"]([^'\"\\]{1,64})['\"]|([\[(]))\s*,?")
ORDER = re.compile(rb"\s*['\"]fortran_order['\"]\s*:\s*(True|False)\s*,?")
SHAPE = re.compile(rb"\s*['\"]shape['\"]\s*:\s*\(([\d\s,L]{0,2000})\)\s*,?")
DIM = re.compile(rb"\s*(\d{1,19})L?\s*")
TYPE = re.compile(rb"([<>|=])?([a-zA-Z])(\d{0,9})(\[\w{1,8}\])?")

NUMBERS = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16", "u4": "U32",
    "u8": "U64", "b1": "BOOL", "c8": "C64", "c16": "C128", "V2": "BF16",
}  # fmt: skip
TEXT = frozenset("SaUMm")  # strings and dates: no weights


@dataclass(frozen=True, slots=True)
class Header:
    """What a .npy header says. `dtype` is "" for elements without a name here, of `width` bytes each; `kind` is numpy's letter."""

    dtype: str
    kind: str
    width: int
    big_endian: bool
    fortran: bool
    shape: tuple[int, ...]
    nbytes: int
    crc: int


@dataclass(slots=True)
class _Found:
    file: str
    tensors: list[TensorRecord] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    pickled: list[str] = field(default_factory=list)
    swapped: list[str] = field(default_factory=list)
    structured: list[str] = field(default_factory=list)
    faults: int = 0

    def fault(self, what: str, offset: int | None, *names: str) -> None:
        self.faults += 1
        self.problems.append(Problem(file=self.file, what=what if self.faults <= MAX_PROBLEMS else "", offset=offset, tensors=names))


def sniff(head: bytes) -> bool:
    """True for a zip whose first member is a .npy file."""
    if not head.startswith(MAGIC) or len(head) < LOCAL.size:
        return False
    n = LOCAL.unpack_from(head)[9]
    return head[LOCAL.size : LOCAL.size + n].endswith(TAIL.encode())


def load(source: Source, folder: Folder | None = None) -> LoadedFile:
    """Read the zip directory and the header of each array; no data. FormatError if there is no directory."""
    directory = read_directory(source)
    arrays = [member for member in directory.members if member.name.endswith(TAIL)]
    if not arrays:
        raise FormatError(source.name, "is a zip whose directory names no array", directory.offset)
    unread = []
    if len(arrays) > MAX_ARRAYS:
        unread.append(f"has {len(arrays):,} arrays, of which {MAX_ARRAYS:,} were read")
        arrays = arrays[:MAX_ARRAYS]
    if folder is not None and folder.remote:
        # their headers lie between the data: all at once
        folder.prefetch((source.name, member.header, LOCAL.size + member.name_nbytes + SLACK + FIRST) for member in arrays)
    found = _Found(source.name)
    archive = ZipMembers(source, Directory(tuple(arrays), directory.offset, directory.end) if unread else directory)
    layout = lay_out(archive)
    for problem in layout.problems:
        found.fault(problem.what, problem.offset)
    for name, count in Counter(member.name for member in arrays).items():
        if count > 1:
            found.fault(f"has {count:,} members named {name!r}: numpy loads the last", None, name.removesuffix(TAIL))
    alike = Counter(member.nbytes for member in arrays)
    for member in arrays:
        begin = layout.begins.get(member.header)
        name = member.name.removesuffix(TAIL)
        if begin is None:
            found.fault(f"cannot say where the array {name!r} begins", member.header, name)
            continue
        try:
            header = _header(archive.source, member, begin)
        except ReadError:
            raise
        except FormatError as error:
            found.fault(error.what, error.offset, name)
            continue
        # a checksum is only of use among arrays of one length
        _add(found, member, name, begin, header, summed=alike[member.nbytes] > 1)
    for names, words in (
        (found.pickled, "of Python objects, which are pickles and never loaded here"),
        (found.structured, "of records, which are not read"),
        (found.swapped, "of big-endian numbers, which are not compared"),
    ):
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            unread.append(f"has {len(names):,} array{'s' * (len(names) > 1)} {words} ({', '.join(names[:3])}{more})")
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tuple(found.tensors),
        storages=tuple(found.storages),
        dead=() if unread else tuple(layout.dead),
        problems=_capped(found),
        unread=tuple(unread),
    )


def _capped(found: _Found) -> tuple[Problem, ...]:
    if found.faults <= MAX_PROBLEMS:
        return tuple(found.problems)
    rest = found.problems[MAX_PROBLEMS:]
    names = tuple(name for problem in rest for name in problem.tensors)
    return (*found.problems[:MAX_PROBLEMS], Problem(file=found.file, what=f"and {len(rest):,} more faults of this kind", tensors=names))


def _header(source: Source, member: Member, begin: int) -> Header:
    """FormatError if it is none."""
    raw = _begin(source, member, begin, FIRST)
    if raw[:6] != NPY or len(raw) < 12 or raw[6] not in (1, 2, 3):
        raise FormatError(source.name, f"has a member {member.name!r} that is no .npy file of version 1 to 3", begin)
    width = 2 if raw[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(raw[8:start], "little")
    if end > min(MAX_HEADER, member.nbytes):
        raise FormatError(source.name, f"has a member {member.name!r} with a header of {end - start:,} bytes", begin)
    if end > len(raw):
        raw = _begin(source, member, begin, end)
        if end > len(raw):
            raise FormatError(source.name, f"has a member {member.name!r} that ends inside its header", begin)
    said = _parsed(raw[start:end])
    if said is None:
        raise FormatError(source.name, f"has a member {member.name!r} whose header does not say dtype, order and shape", begin)
    descr, fortran, shape = said
    match = TYPE.fullmatch(descr)
    if descr and not match:
        raise FormatError(source.name, f"has a member {member.name!r} with the dtype {descr.decode('latin-1')!r}", begin)
    kind = match[2].decode() if match else "["
    width = int(match[3] or 0) * (4 if kind == "U" else 1) if match else 0
    return Header(
        dtype=NUMBERS.get(f"{kind}{width}", ""),
        kind=kind,
        width=width,
        big_endian=match is not None and match[1] == b">" and width > 1,
        fortran=fortran,
        shape=shape,
        nbytes=end,
        crc=zlib.crc32(raw[:end]),
    )


def _begin(source: Source, member: Member, begin: int, n: int) -> bytes:
    """The first `n` bytes of a member, or all that it has, inflated."""
    if member.flags & ENCRYPTED or member.method not in (STORED, DEFLATED):
        raise FormatError(source.name, f"has a member {member.name!r} that is encrypted or packed by method {member.method}", member.header)
    if member.method == STORED:
        return source.read(begin, min(n, member.packed_nbytes))
    # deflate makes nothing longer than by an eighth and a table
    packed = source.read(begin, min(2 * n + 512, member.packed_nbytes))
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, n)
    except zlib.error as error:
        raise FormatError(source.name, f"has a member {member.name!r} that cannot be inflated ({error})", begin) from None


def _parsed(text: bytes) -> tuple[bytes, bool, tuple[int, ...]] | None:
    """(dtype, whether columns come first, shape); the dtype is b"" for records. None if the text says anything else."""
    text = text.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    at, descr, order, shape = 1, None, None, None
    for _ in range(3):
        for pattern in (DESCR, ORDER, SHAPE):
            match = pattern.match(text, at)
            if match:
                break
        if not match:
            return None
        at = match.end()
        if pattern is ORDER:
            order = match[1] == b"True"
        elif pattern is SHAPE:
            words = [DIM.fullmatch(word) for word in match[1].split(b",") if word.strip()]
            shape = tuple(int(word[1]) for word in words if word) if all(words) else None
        elif match[2]:
            return b"", False, ()
        else:
            descr = match[1]
    if descr is None or order is None or shape is None or text[at:].strip() != b"}" or len(shape) > MAX_DIMS:
        return None
    return descr, order, shape


def _add(found: _Found, member: Member, name: str, begin: int, header: Header, *, summed: bool) -> None:
    nbytes = member.nbytes - header.nbytes
    if header.kind == "O":
        found.pickled.append(name)
        return
    if header.kind == "[":
        found.structured.append(name)
        return
    numel = 1
    for dim in header.shape:
        numel *= dim
        if numel > MAX_COUNT:
            break
    if numel > MAX_COUNT or not header.width or numel * header.width != nbytes:
        what = f"has an array {name!r} of {nbytes:,} bytes, which is not what its header says ({header.kind}{header.width} {header.shape})"
        found.fault(what[:300], begin, name)
        return
    plain = member.method == STORED and member.packed_nbytes == member.nbytes
    if header.big_endian:
        found.swapped.append(name)
    storage = Storage(
        file=found.file,
        ident=member.name,
        offset=begin + header.nbytes if plain and not header.big_endian else None,
        nbytes=nbytes,
        # 0 is what a writer without checksums writes
        crc=crc32.behind(member.crc, header.crc, nbytes) if member.crc and summed and not header.big_endian else None,
    )
    found.storages.append(storage)
    dtype, shape = header.dtype, header.shape
    if not dtype:
        dtype, shape = "BYTES", (*shape, header.width)
    strides = None
    if header.fortran and header.dtype and sum(dim != 1 for dim in shape) > 1:
        strides = _columns_first(shape)
    found.tensors.append(
        TensorRecord(name, dtype, shape, storage, 0, nbytes, strides, "other" if header.kind in TEXT else ""),
    )


def _columns_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for dim in shape:
        strides.append(step)
        step *= dim
    return tuple(strides)
