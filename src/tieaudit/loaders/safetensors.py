"""safetensors: 8 bytes little-endian header length N, N bytes of JSON, then the data.

`{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {str: str}}`; offsets count from the
end of the header, must be contiguous from 0 to the end of the file, and never overlap. Rules: safetensors/src/tensor.rs (0.8).
The library refuses a bad file without a word on where; this reader says which tensor, which byte, and still lists the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..checkpoint import LoadedFile, Problem, Storage, TensorRecord
from ..dtypes import DTYPES, SAFETENSORS_DTYPES
from ..errors import FormatError
from ..extents import Extent
from ..sources import Source

FORMAT = "safetensors"
MAX_HEADER = 100_000_000  # bytes; safetensors' own limit (tensor.rs)
MAX_PROBLEMS = 50  # of one file; a hostile header could name millions
MAX_DIMS = 64  # torch's own limit is 64
MAX_COUNT = 1 << 64  # of elements, and of bytes; the library counts in usize
MANY = 10_000  # objects from which on their number is held against the header's length
MIN_ENTRY = 48  # bytes; the shortest entry, {"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}
JSON_TYPES = {type(None): "null", str: "a string", int: "a number", float: "a number", bool: "true or false", list: "a list"}


def sniff(head: bytes) -> bool:
    """True if the first bytes are a plausible header length followed by JSON."""
    return len(head) >= 9 and 2 <= int.from_bytes(head[:8], "little") <= MAX_HEADER and head[8:9] in b"{ "


def load(source: Source) -> LoadedFile:
    """Read the header. FormatError if there is none; what is wrong with single entries is in `problems`."""
    name = source.name
    header, start = _header(source)
    problems: list[Problem] = []
    tensors: list[TensorRecord] = []
    data_nbytes = source.nbytes - start
    known = SAFETENSORS_DTYPES
    metadata = header.pop("__metadata__", None)
    for key, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            good = type(shape) is list and len(shape) <= MAX_DIMS and type(begin) is int and type(end) is int
            numel = 1
            for dim in shape if good else ():
                if type(dim) is not int or dim < 0:  # before it is used: "x" * 10**9 is a gigabyte
                    good = False
                    break
                numel *= dim
                good = good and dim < MAX_COUNT and numel < MAX_COUNT
            good = good and dtype in known and 0 <= begin <= end <= data_nbytes and numel * DTYPES[dtype].bits == 8 * (end - begin)
        except (TypeError, KeyError, ValueError):
            good = False
        if good and (key.isascii() or _is_text(key)):
            storage = Storage(name, str(begin), start + begin, end - begin)
            tensors.append(TensorRecord(key, dtype, tuple(shape), storage, 0, end - begin))
        else:
            # words only for those that are shown: a hostile header has a million bad entries
            what = _fault(key, entry, data_nbytes, start) if len(problems) < MAX_PROBLEMS else ""
            problems.append(Problem(file=name, what=what, tensors=(key,)))
    dead = _layout(name, tensors, bool(problems), start, data_nbytes, problems)
    if metadata is not None and not _is_string_map(metadata):
        problems.append(Problem(file=name, what="__metadata__ is not a map of strings to strings", offset=8))
    return LoadedFile(
        name=name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tuple(tensors),
        storages=tuple(tensor.storage for tensor in tensors),
        dead=tuple(dead),
        aliases={
            key: value
            for key, value in (metadata if type(metadata) is dict else {}).items()
            if type(value) is str and value in header and key not in header
        },
        problems=_capped(name, problems),
    )


def _header(source: Source) -> tuple[dict[str, Any], int]:
    """(entries, offset of the data)."""
    name = source.name
    if source.nbytes < 8:
        raise FormatError(name, f"is {source.nbytes} bytes long, too short for a safetensors header", 0)
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise FormatError(name, f"header length {length:,} is over the limit of {MAX_HEADER:,} bytes", 0)
    if length > source.nbytes - 8:
        raise FormatError(name, f"header of {length:,} bytes runs past the end: truncated file?", 8)
    raw = source.read(8, length)
    # a header of bare commas or empty objects would cost gigabytes as Python objects
    if raw.count(b",") > max(1_000_000, length // 8) or MIN_ENTRY * raw.count(b"{") > max(MIN_ENTRY * MANY, length):
        raise FormatError(name, "header is not a list of tensors", 8)
    try:
        # decoded explicitly: json.loads would guess UTF-16 from the first bytes
        text = raw.decode("utf-8")
        entries = json.loads(text)
        if type(entries) is dict and not _surely_unique(raw, entries):
            entries = json.loads(text, object_pairs_hook=lambda pairs: _unique(name, pairs))
    except FormatError:
        raise
    except UnicodeDecodeError as error:
        raise FormatError(name, "header is not UTF-8", 8 + error.start) from None
    except json.JSONDecodeError as error:
        raise FormatError(name, f"header is not JSON: {error.msg}", 8 + len(text[: error.pos].encode())) from None
    except (ValueError, RecursionError):
        raise FormatError(name, "header is not JSON: a number too long or nested too deeply", 8) from None
    if type(entries) is not dict:
        raise FormatError(name, f"header is {JSON_TYPES[type(entries)]}, not an object", 8)
    return entries, 8 + length


def _surely_unique(raw: bytes, entries: dict[str, Any]) -> bool:
    """True if no name and no field can be there twice: each field is spelled out once per entry. Escapes could spell one more."""
    count = len(entries) - ("__metadata__" in entries)
    fields = (b'"dtype"', b'"shape"', b'"data_offsets"')
    return b"\\" not in raw and raw.count(b'"__metadata__"') < 2 and all(raw.count(field) == count for field in fields)


def _unique(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The library takes the last of two equal tensor names without a word; the file then holds bytes that nobody reads."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise FormatError(name, f"header names {twice!r} twice: readers take the last one, and the first is lost", 8)
    return entries


def _fault(key: str, entry: Any, data_nbytes: int, start: int) -> str:
    """Why an entry is not valid, in words."""
    if not _is_text(key):
        return f"entry {key!r} has a name with half a character (a lone surrogate)"
    if type(entry) is not dict:
        return f"entry {key!r} is not an object"
    for field in ("dtype", "shape", "data_offsets"):
        if field not in entry:
            return f"entry {key!r} has no {field}"
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(dtype) is not str or dtype not in SAFETENSORS_DTYPES:
        return f"entry {key!r} has the dtype {str(dtype)[:40]!r}, which safetensors does not have"
    if type(shape) is not list or any(type(dim) is not int or dim < 0 for dim in shape):
        return f"entry {key!r} has a shape that is not a list of sizes: {str(shape)[:60]}"
    if len(shape) > MAX_DIMS:
        return f"entry {key!r} has {len(shape)} dimensions"
    if type(offsets) is not list or len(offsets) != 2 or any(type(offset) is not int for offset in offsets):
        return f"entry {key!r} has data_offsets that are not two numbers: {str(offsets)[:60]}"
    begin, end = offsets
    if max(abs(begin), abs(end)) >= MAX_COUNT:  # before they are written: Python refuses to print 4,300 digits
        return f"entry {key!r} has the data_offsets {str(offsets)[:60]}, which no file can have: truncated file?"
    if not 0 <= begin <= end:
        return f"entry {key!r} has the data_offsets [{begin}, {end}]"
    if end > data_nbytes:
        return f"entry {key!r} ends at byte {start + end:,} of a file of {start + data_nbytes:,}: truncated file?"
    numel = 1
    for dim in shape:
        numel *= dim
        if numel >= MAX_COUNT or dim >= MAX_COUNT:  # also where a later dimension is 0: the library multiplies in usize
            return f"entry {key!r} is {dtype} {str(shape)[:60]}, which needs more bytes than any file has"
    bits = numel * DTYPES[dtype].bits
    return f"entry {key!r} is {dtype} {str(shape)[:60]}, which needs {_bytes(bits)}, but has {end - begin:,} bytes"


def _is_text(name: str) -> bool:
    """False for lone surrogates, which JSON can spell and UTF-8 cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _is_string_map(metadata: Any) -> bool:
    return type(metadata) is dict and all(type(value) is str and _is_text(key + value) for key, value in metadata.items())


def _bytes(bits: int) -> str:
    if bits > 8 << 70:
        return "more bytes than any file"
    return f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits:,} bits (not whole bytes)"


def _layout(
    name: str, tensors: list[TensorRecord], incomplete: bool, start: int, data_nbytes: int, problems: list[Problem]
) -> list[Extent]:
    """Holes and trailing bytes as extents of the file; overlaps become problems.

    With entries that could not be read (`incomplete`) a hole may be theirs, so none is reported.
    """
    dead: list[Extent] = []
    at, before = start, ""
    for tensor in sorted(tensors, key=_place):
        begin = tensor.storage.offset or 0
        if begin < at:
            problems.append(
                Problem(
                    file=name,
                    what=f"{tensor.name!r} overlaps {before!r} by {min(at, begin + tensor.nbytes) - begin:,} bytes"
                    if tensor.nbytes
                    else f"{tensor.name!r} (empty) lies inside {before!r}",
                    offset=begin,
                    tensors=(tensor.name, before),
                )
            )
        elif begin > at:
            dead.append((at, begin))
        if begin + tensor.nbytes > at:
            at, before = begin + tensor.nbytes, tensor.name
    if at < start + data_nbytes:
        dead.append((at, start + data_nbytes))
    if incomplete:
        return []
    problems.extend(_hole(name, extent, start, start + data_nbytes) for extent in dead)
    return dead


def _place(tensor: TensorRecord) -> tuple[int, int]:
    return (tensor.storage.offset or 0, tensor.nbytes)


def _hole(name: str, extent: Extent, start: int, nbytes: int) -> Problem:
    size = extent[1] - extent[0]
    where = "behind the last tensor" if extent[1] == nbytes else "before the first tensor" if extent[0] == start else "between two tensors"
    return Problem(file=name, what=f"{size:,} bytes {where} belong to no tensor; safetensors refuses this", offset=extent[0])


def _capped(name: str, problems: list[Problem]) -> tuple[Problem, ...]:
    def cut() -> Iterator[Problem]:
        yield from problems[:MAX_PROBLEMS]
        if len(problems) > MAX_PROBLEMS:
            rest = problems[MAX_PROBLEMS:]
            names = tuple(name for problem in rest for name in problem.tensors)
            yield Problem(file=name, what=f"and {len(rest):,} more faults of this kind", tensors=names)

    return tuple(cut())
