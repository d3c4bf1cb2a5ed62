"""A tensor of ONNX: `TensorProto` → where its bytes lie. Nothing of the bytes is read.

Field numbers and types are those of onnx/onnx.proto (onnx 1.23). A tensor keeps its bytes in `raw_data`, in a field for its kind of
number (`float_data` and `double_data` lie there as in memory; the others are varints, which cannot be compared in place), or in a file
beside the model (`external_data`: location, offset, length as decimal strings).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checkpoint import Problem, Storage, TensorRecord
from ..dtypes import nbits
from ..errors import FormatError, ReadError
from ..extents import gaps, merged
from ..sources import Folder, stays
from .protobuf import LEN, MAX_VARINT, VARINT, Exhausted, Wire, signed

MAX_PROBLEMS = 50  # of one file; a hostile one has millions
MAX_FAULTS = 50_000  # of one file that are counted
MAX_NAMES = 10_000  # of tensors with faults that are listed
MAX_NAME = 4096  # bytes; exporters write the path of a module, far below that
MAX_DIMS = 64
MAX_COUNT = 1 << 63  # of elements and of bytes
MAX_TENSORS = 200_000  # of one model; one of 61 layers of 256 experts each has 50,000
MAX_DATA_FILES = 20_000  # beside one model; exporters can write one per tensor
MAX_PADDING = 64 << 10  # bytes; offsets may be aligned to this (onnx/docs/ExternalData.md)
LOCATION, OFFSET, LENGTH = "location", "offset", "length"
OTHER = "other"  # stands for keys that the format does not have
KNOWN_KEYS = (LOCATION, OFFSET, LENGTH, "checksum", "basepath")
STRING = 8

TYPES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32", 13: "U64",
    14: "C64", 15: "C128", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 21: "U4", 22: "I4", 23: "F4",
    24: "F8_E8M0", 25: "U2", 26: "I2", 27: "F6_E2M3", 28: "F6_E3M2",
}  # fmt: skip
FLOATS, INT32S, INT64S, DOUBLES, UINT64S = 4, 5, 7, 10, 11  # fields with typed data
TYPED = {"F32": FLOATS, "C64": FLOATS, "F64": DOUBLES, "C128": DOUBLES, "I64": INT64S, "U32": UINT64S, "U64": UINT64S}  # others: INT32S
PER_NUMBER = {"I4": 2, "U4": 2, "F4": 2, "I2": 4, "U2": 4}  # elements in one number of int32_data
WIDTHS = {FLOATS: 4, DOUBLES: 8}
VARINTS = "is written number by number (typed data), not as it lies in memory"


class Run(NamedTuple):
    """Typed data of one kind: packed `runs` of `nbytes` together, the first of them from `begin` on, and `loose` numbers, one a field."""

    runs: int = 0
    begin: int = 0
    nbytes: int = 0
    loose: int = 0


@dataclass(slots=True)
class Parsed:
    """A TensorProto as it is written; places are those of the file."""

    begin: int
    name: str = ""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw: tuple[int, int] | None = None
    typed: dict[int, Run] = field(default_factory=dict)
    external: dict[str, str] = field(default_factory=dict)
    elsewhere: bool = False


def parse(wire: Wire, begin: int, end: int, depth: int) -> Parsed:
    """FormatError if the message is broken."""
    found = Parsed(begin)
    for number, kind, value, stop in wire.fields(begin, end, depth):
        if number == 1:
            found.dims.extend([value] if kind == VARINT else wire.numbers(value, stop, MAX_NAME) if kind == LEN else [])
            if len(found.dims) > MAX_DIMS:
                raise FormatError(wire.source.name, f"has a tensor with more than {MAX_DIMS} dimensions", begin)
        elif number == 2 and kind == VARINT:
            found.data_type = value
        elif number in (FLOATS, INT32S, INT64S, DOUBLES, UINT64S):
            run = found.typed.get(number, Run())
            if kind == LEN:
                found.typed[number] = Run(run.runs + 1, run.begin or value, run.nbytes + stop - value, run.loose)
            else:
                found.typed[number] = run._replace(loose=run.loose + 1)
        elif number == 8 and kind == LEN:
            found.name = text(wire, value, stop)
        elif number == 9 and kind == LEN:
            found.raw = (value, stop)
        elif number == 13 and kind == LEN:
            key, words = _entry(wire, value, stop, depth + 1)
            found.external[key if key in KNOWN_KEYS else OTHER] = words
        elif number == 14 and kind == VARINT:
            found.elsewhere = value == 1
    return found


def text(wire: Wire, begin: int, end: int) -> str:
    """A name. FormatError if it is longer than any name is."""
    return wire.content(begin, end, MAX_NAME).decode("utf-8", "replace")


def _entry(wire: Wire, begin: int, end: int, depth: int) -> tuple[str, str]:
    """(key, value) of a StringStringEntryProto."""
    key = value = ""
    for number, kind, start, stop in wire.fields(begin, end, depth):
        if kind == LEN and number == 1:
            key = text(wire, start, stop)
        elif kind == LEN and number == 2:
            value = text(wire, start, stop)
    return key, value


@dataclass(slots=True)
class _DataFile:
    """A file beside the model: its size, or why it cannot be opened, with the tensors that need it; what of it is read."""

    nbytes: int = 0
    refused: str = ""
    tensors: list[str] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Collector:
    """Tensors of one model as records, and what is wrong with the others."""

    file: str
    folder: Folder | None
    records: dict[str, TensorRecord] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    more: int = 0
    more_names: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    _data: dict[str, _DataFile] = field(default_factory=dict)
    _whole: bool = True
    """False if a part of a data file may belong to something that is not known here."""

    def add(self, wire: Wire, begin: int, end: int, depth: int, name: str = "", prefix: str = "") -> tuple[str, TensorRecord | None]:
        """(name, record) of the tensor in these bytes, called `name` or, if that is "", as it says itself; no record if it is broken or
        has no numbers. `prefix` is that of the graph that it stands in."""
        try:
            parsed = parse(wire, begin, end, depth)
            name = name or parsed.name
            record = self._record(parsed, prefix + name)
        except ReadError:
            raise
        except FormatError as error:
            self.problem(error.what, error.offset, *([prefix + name] if name else []))
            return name, None
        if record is not None:
            if len(self.records) >= MAX_TENSORS:
                raise Exhausted(f"{MAX_TENSORS:,} tensors")
            self.records[record.name] = record
        return name, record

    def problem(self, what: str, offset: int | None, *tensors: str) -> None:
        self._whole = False
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(file=self.file, what=what, offset=offset, tensors=tensors))
        else:
            self.more += 1
            if self.more > MAX_FAULTS:
                raise Exhausted(f"{MAX_FAULTS:,} faults")
            self.more_names.extend(tensors if len(self.more_names) < MAX_NAMES else ())

    def all_problems(self) -> tuple[Problem, ...]:
        beside = [
            Problem(
                file=self.file,
                what=f"{location}, which holds the data of {len(data.tensors):,} tensor{'s' * (len(data.tensors) != 1)}, {data.refused}",
                tensors=tuple(data.tensors),
            )
            for location, data in self._data.items()
            if data.refused
        ]
        if len(beside) > MAX_PROBLEMS:
            rest = beside[MAX_PROBLEMS - 1 :]
            names = tuple(name for problem in rest for name in problem.tensors)
            beside = beside[: MAX_PROBLEMS - 1]
            beside.append(Problem(file=self.file, what=f"{len(rest):,} more files of data cannot be read either", tensors=names))
        if self.more:
            beside.append(Problem(file=self.file, what=f"and {self.more:,} more faults of this kind", tensors=tuple(self.more_names)))
        return (*self.problems, *beside)

    @property
    def data(self) -> tuple[tuple[str, int], ...]:
        """The files beside the model that hold its tensors."""
        return tuple((location, data.nbytes) for location, data in self._data.items() if not data.refused)

    def unused(self) -> Iterator[Storage]:
        """Long runs of a data file that no tensor reads, if no other model beside this one can be their owner."""
        if not self._whole or self.unread or self.folder is None or not self._data:
            return
        inside = posixpath.dirname(self.file)
        # the folder of the model is the target's own, where alone all files are known
        if inside or any(entry.name.endswith(".onnx") and entry.name != self.file for entry in self.folder.entries()):
            return
        for location, data in self._data.items():
            for begin, end in gaps(merged(data.read), (0, data.nbytes)):
                if end - begin > MAX_PADDING:
                    yield Storage(location, f"{location} from byte {begin:,} to {end:,}", begin, end - begin)

    def _record(self, parsed: Parsed, name: str) -> TensorRecord | None:
        """FormatError if the tensor is not what it says, None if it has no numbers or lies in a file that cannot be opened."""
        if parsed.data_type == STRING:
            return None
        dtype = TYPES.get(parsed.data_type)
        if dtype is None:
            raise self._fault(parsed, f"{name!r} has the data type {parsed.data_type:,}, which ONNX does not have")
        shape, numel = tuple(map(signed, parsed.dims)), 1
        for dim in shape:
            numel = numel * dim if 0 <= dim < MAX_COUNT and numel < MAX_COUNT else MAX_COUNT
        nbytes = -(-nbits(dtype, numel) // 8)
        if numel >= MAX_COUNT or nbytes >= MAX_COUNT:
            raise self._fault(parsed, f"{name!r} has a shape that no tensor has: {str(list(shape))[:60]}")
        if name in self.records:
            raise self._fault(parsed, f"has two tensors with the name {name!r}: readers take one of them")
        if parsed.elsewhere:
            storage = self._beside(parsed, name, dtype, shape, nbytes)
        elif parsed.raw is not None:
            begin, stop = parsed.raw
            if stop - begin != nbytes:
                raise self._fault(parsed, _has(name, dtype, shape, nbytes, f"{stop - begin:,}"))
            storage = Storage(self.file, str(begin), begin, nbytes)
        else:
            storage = self._typed(parsed, name, dtype, shape, nbytes, numel)
        return TensorRecord(name, dtype, shape, storage, 0, nbytes) if storage else None

    def _fault(self, parsed: Parsed, what: str) -> FormatError:
        return FormatError(self.file, what, parsed.begin)

    def _typed(self, parsed: Parsed, name: str, dtype: str, shape: tuple[int, ...], nbytes: int, numel: int) -> Storage:
        """Numbers in the field for their kind."""
        number = TYPED.get(dtype, INT32S)
        run = parsed.typed.get(number, Run())
        if number in WIDTHS:
            good = run.nbytes + WIDTHS[number] * run.loose == nbytes
        else:
            left = -(-numel // PER_NUMBER.get(dtype, 1)) - run.loose
            good = left <= run.nbytes <= MAX_VARINT * left
        if not good:
            stored = f"{run.nbytes + run.loose:,} in its data field" if run.nbytes + run.loose else "no data"
            raise self._fault(parsed, _has(name, dtype, shape, nbytes, stored))
        if number in WIDTHS and run.runs == 1 and not run.loose:
            return Storage(self.file, str(run.begin), run.begin, nbytes)
        # varints: what they stand for is counted, and cannot be compared as it lies there
        return Storage(self.file, str(parsed.begin), None if nbytes else parsed.begin, nbytes, why=VARINTS if nbytes else "")

    def _beside(self, parsed: Parsed, name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> Storage | None:
        """A run of bytes of a file beside the model."""
        location = parsed.external.get(LOCATION, "")
        offset, length = (_decimal(parsed.external.get(key, ""), default) for key, default in ((OFFSET, 0), (LENGTH, nbytes)))
        if not location:
            raise self._fault(parsed, f"{name!r} lies outside of the model, and no file is named")
        if offset is None or length is None:
            key = OFFSET if offset is None else LENGTH
            raise self._fault(parsed, f"{name!r} lies in {location}, and its {key} is no decimal number: {parsed.external[key][:40]!r}")
        if OTHER in parsed.external:
            self._whole = False  # onnxruntime keeps more there than tensors (prepacked weights)
        if self.folder is None:
            self.unread.append(f"{name} lies in {location}, and this file was read alone")
            return None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.file), location)) if stays(location) else location
        data = self._data.get(path) or self._opened(path, self.folder)
        if data.refused:
            data.tensors.append(name)
            return None
        if length != nbytes:
            raise self._fault(parsed, _has(name, dtype, shape, nbytes, f"{length:,} in {path}"))
        if offset + length > data.nbytes:
            what = f"{name!r} ends at byte {offset + length:,} of {path}, which has {data.nbytes:,}: truncated file?"
            raise self._fault(parsed, what)
        data.read.append((offset, offset + length))
        # two tensors that name the same run are one
        return Storage(path, f"{path}:{offset}:{length}", offset, length)

    def _opened(self, path: str, folder: Folder) -> _DataFile:
        if len(self._data) >= MAX_DATA_FILES:
            raise Exhausted(f"{MAX_DATA_FILES:,} files of data")
        data = self._data[path] = _DataFile()
        try:
            data.nbytes = folder.open(path).nbytes
        except ReadError:
            raise
        except FormatError as error:
            data.refused = error.what
        return data


def _has(name: str, dtype: str, shape: tuple[int, ...], nbytes: int, stored: str) -> str:
    return f"{name!r} is {dtype} {str(list(shape))[:60]}, which needs {nbytes:,} bytes, but has {stored}"


def _decimal(words: str, default: int) -> int | None:
    """The number, `default` for no words, None for anything else."""
    if not words:
        return default
    return int(words) if words.isascii() and words.isdigit() and len(words) <= 20 else None
