"""GGUF: keys (gguf_keys.py), then the list of tensors, then their bytes; the format of llama.cpp and its relatives.

    entry = string name | u32 n | n × u64 dimensions, innermost first | u32 type | u64 offset from the begin of the data

The data begins at the next multiple of `general.alignment` (32 if absent), and every tensor at such a multiple. llama.cpp
(ggml/src/gguf.cpp) refuses overlaps, holes and another order; this reader says which tensor, which byte, and still lists the rest.
A model in several files (`-00001-of-00003.gguf`) has its keys in the first one, and `split.*` in each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..checkpoint import Ends, LoadedFile, Problem, Storage, TensorRecord
from ..dtypes import DTYPES
from ..errors import FormatError
from ..extents import Extent
from ..sources import Source
from . import gguf_ends, gguf_keys

FORMAT = "gguf"
ALIGNMENT = 32  # bytes, where general.alignment does not say another
MAX_PROBLEMS = 50  # of one file; a hostile header could name thousands
MAX_NAME = 512  # bytes; ggml takes 63 (stable-diffusion.cpp 127)
MAX_DIMS, MAX_LISTED_DIMS = 4, 64  # of ggml; of an entry that can still be stepped over
MAX_COUNT = 1 << 63  # of elements; ggml counts in int64
NEWEST = 1000  # types from there on are no type of a fork or of a later release, but bytes that were not meant
TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""GGMLQuantizationType of gguf/constants.py, version 0.19."""
REMOVED = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that llama.cpp had and no longer reads (ggml.h)."""
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # llama_split_path of llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile(LoadedFile):
    """A file with what the other parts of a split model need to know: its keys, and all names that it lists."""

    keys: gguf_keys.Keys
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the list, as it stands there."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int
    at: int


def load(source: Source) -> LoadedFile:
    """Read keys and list. FormatError if they cannot be read to the end; what is wrong with single tensors is in `problems`."""
    name, nbytes = source.name, source.nbytes
    keys, window = gguf_keys.read(source)
    alignment = keys.values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise FormatError(name, f"general.alignment is {alignment!r}, not a power of two", None)
    entries = [_entry(window) for _ in range(keys.tensors)]
    start = _padded(window.at, alignment)
    problems = [Problem(file=name, what=f"the key {key!r} is there twice: llama.cpp refuses this") for key in keys.twice[:3]]
    tensors: list[TensorRecord] = []
    unknown: list[_Entry] = []
    beyond: list[tuple[int, str]] = []
    names: set[str] = set()
    for entry in entries:
        dtype = TYPES.get(entry.kind)
        fault = _fault(entry, dtype, alignment, again=entry.name in names)
        names.add(entry.name)
        if dtype is None and not fault:
            unknown.append(entry)
            continue
        if fault or dtype is None:
            problems.append(Problem(file=name, what=fault, offset=entry.at, tensors=(entry.name,)))
            continue
        tensor = _record(name, entry, dtype, start)
        if tensor.nbytes > nbytes - start - entry.offset:
            beyond.append((start + entry.offset + tensor.nbytes, entry.name))
        else:
            tensors.append(tensor)
    if beyond:
        cut = tuple(tensor for _, tensor in beyond)
        what = f"the file ends at byte {nbytes:,}, but needs {max(beyond)[0]:,} for {_listed(cut)}: truncated file?"
        problems.append(Problem(file=name, what=what, offset=nbytes, tensors=cut))
    dead = _layout(name, tensors, (start, nbytes, alignment), problems, complete=not (problems or unknown))
    problems.extend(_split_faults(name, keys))
    unread = _unread(keys, unknown, names, name)
    return GgufFile(
        name=name,
        format=FORMAT,
        architecture=keys.word("general.architecture"),
        nbytes=nbytes,
        tensors=tuple(tensors),
        storages=tuple(tensor.storage for tensor in tensors),
        dead=tuple(dead),
        problems=tuple(_capped(name, problems)),
        unread=tuple(unread),
        ends=_ends(keys, names, whole=(keys.number("split.count") or 1) <= 1),
        foreign=True,
        keys=keys,
        names=frozenset(names),
    )


def joined(files: Sequence[LoadedFile]) -> tuple[LoadedFile, ...]:
    """The parts of one model: what its ends are is said by the keys of the first part about the names of all."""
    parts = [file for file in files if isinstance(file, GgufFile)]
    first = next((part for part in parts if part.keys.word("general.architecture")), parts[0])
    whole = len(parts) == len(files) == (first.keys.number("split.count") or 1)
    names = {name for part in parts for name in part.names}
    problems = first.problems
    said, found = first.keys.number("split.tensors.count"), sum(part.keys.tensors for part in parts)
    if whole and said is not None and said != found:
        what = f"split.tensors.count is {said:,}, but the {len(parts)} parts list {found:,} tensors: llama.cpp refuses this"
        problems = (*problems, Problem(file=first.name, what=what))
    changed = replace(first, ends=_ends(first.keys, names, whole=whole), problems=problems)
    return tuple(changed if file is first else replace(file, ends=()) for file in files)


def _ends(keys: gguf_keys.Keys, names: set[str], *, whole: bool) -> tuple[Ends, ...]:
    return gguf_ends.of_names(keys.word("general.architecture"), keys.word("general.type"), names, whole=whole)


def _entry(window: gguf_keys.Window) -> _Entry:
    at, name = window.at, window.source.name
    raw = window.text(MAX_NAME, "a tensor's name")
    (count,) = window.numbers("I")
    if count > MAX_LISTED_DIMS:
        raise FormatError(name, f"{raw.decode('utf-8', 'replace')!r} says that it has {count:,} dimensions", at)
    *dims, kind, offset = window.numbers("L" * count + "IQ")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "backslashreplace")
    return _Entry(text, tuple(reversed(dims)), kind, offset, at)


def _fault(entry: _Entry, dtype: str | None, alignment: int, *, again: bool) -> str:
    """Why an entry is not valid, in words; "" if it is."""
    named = f"tensor {entry.name!r}"
    if again:
        return f"{named} is listed twice: which one is read depends on the reader"
    if len(entry.dims) > MAX_DIMS:
        return f"{named} has {len(entry.dims)} dimensions; ggml has at most {MAX_DIMS}"
    if dtype is None:
        if entry.kind in REMOVED:
            return f"{named} has the type {REMOVED[entry.kind]}, which llama.cpp no longer reads: quantise the model again"
        return f"{named} has the type {entry.kind:,}, which GGUF does not have" if entry.kind >= NEWEST else ""
    numel = 1
    for dim in entry.dims:
        numel *= dim
        if numel >= MAX_COUNT or dim >= MAX_COUNT:  # also where a later dimension is 0
            return f"{named} is {dtype} {str(list(entry.dims))[:80]}, which needs more bytes than any file has"
    block = DTYPES[dtype].block
    if (entry.dims and entry.dims[-1] % block) or (block > 1 and not entry.dims):
        row = entry.dims[-1] if entry.dims else 1
        return f"{named} has rows of {row:,} elements, which are not whole blocks of {block} ({dtype})"
    if entry.offset % alignment:
        return f"{named} begins at {entry.offset:,}, not at a multiple of {alignment} (general.alignment)"
    return ""


def _record(file: str, entry: _Entry, dtype: str, start: int) -> TensorRecord:
    numel = 1
    for dim in entry.dims:
        numel *= dim
    bits, _, block = DTYPES[dtype]
    nbytes = numel // block * bits // 8
    return TensorRecord(entry.name, dtype, entry.dims, Storage(file, str(entry.offset), start + entry.offset, nbytes), 0, nbytes)


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _layout(
    name: str, tensors: list[TensorRecord], where: tuple[int, int, int], problems: list[Problem], *, complete: bool
) -> list[Extent]:
    """Holes and trailing bytes as extents of the file, padding left out; overlaps, holes and another order become problems.

    `where`: begin of the data, end of the file, alignment. With entries that could not be read a hole may be theirs: none is reported.
    """
    start, nbytes, alignment = where
    dead: list[Extent] = []
    holes: list[Problem] = []
    at, before = start, ""
    begins = [tensor.storage.offset or 0 for tensor in tensors if tensor.nbytes]
    if begins != sorted(begins):
        what = "the tensors do not lie in the order in which they are listed: llama.cpp refuses this"
        problems.append(Problem(file=name, what=what))
    for tensor in sorted((tensor for tensor in tensors if tensor.nbytes), key=lambda tensor: (tensor.storage.offset or 0, tensor.nbytes)):
        begin = tensor.storage.offset or 0
        if begin < at:
            shared = min(at, begin + tensor.nbytes) - begin
            what = f"{tensor.name!r} overlaps {before!r} by {shared:,} bytes"
            problems.append(Problem(file=name, what=what, offset=begin, tensors=(tensor.name, before)))
        elif begin > (padded := _padded(at, alignment)):
            dead.append((padded, begin))
            what = f"{begin - padded:,} bytes before {tensor.name!r} belong to no tensor: llama.cpp refuses this"
            holes.append(Problem(file=name, what=what, offset=padded))
        if begin + tensor.nbytes > at:
            at, before = begin + tensor.nbytes, tensor.name
    if not complete:
        return []
    problems.extend(holes)
    if _padded(at, alignment) < nbytes:
        dead.append((_padded(at, alignment), nbytes))
    return dead


def _split_faults(name: str, keys: gguf_keys.Keys) -> Iterator[Problem]:
    """Where the keys of a part contradict its name, by which llama.cpp looks for the other parts."""
    part, count = PART.search(name), keys.number("split.count")
    if part is None or int(part[2]) < 2:
        return
    if not count:
        yield Problem(file=name, what=f"has no split.count, but its name says that it is one of {int(part[2])} parts")
    elif count != int(part[2]):
        yield Problem(file=name, what=f"split.count is {count:,}, but its name says that it is one of {int(part[2])} parts")
    elif keys.number("split.no") not in (None, int(part[1]) - 1):
        yield Problem(
            file=name, what=f"split.no is {keys.number('split.no')}, but its name says that it is part {int(part[1])}, counted from 1"
        )


def _unread(keys: gguf_keys.Keys, unknown: list[_Entry], names: set[str], name: str) -> Iterator[str]:
    if unknown:
        kinds = _listed(sorted({str(entry.kind) for entry in unknown}))
        yield f"{_listed(entry.name for entry in unknown)} have types that are not known here ({kinds}): not looked at"
    if (keys.number("split.count") or 1) > 1 and not PART.search(name):
        yield f"is one of {keys.number('split.count'):,} parts, but its name does not say so: the others were not found"
    if keys.big and names >= gguf_ends.ENDS:
        yield "numbers are stored big-endian: values are compared as bytes only"


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:3]) + (f" and {len(known) - 3:,} more" if len(known) > 3 else "")


def _capped(name: str, problems: list[Problem]) -> Iterator[Problem]:
    yield from problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        rest = problems[MAX_PROBLEMS:]
        tensors = tuple(tensor for problem in rest for tensor in problem.tensors)
        yield Problem(file=name, what=f"and {len(rest):,} more faults of this kind", tensors=tensors)
