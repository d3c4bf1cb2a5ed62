"""Flax's msgpack: a tree of maps whose leaves are arrays; `flax_model.msgpack` of transformers 4.

msgpack is big-endian and says the length of everything before it (github.com/msgpack/msgpack, spec.md). An array is an extension of type 1,
a numpy scalar one of type 3; both hold a msgpack of their own, [shape, name of the dtype, bytes row by row]. An array of over a gibibyte is
a map {"__msgpack_chunked_array__": true, "shape": {"0": …}, "chunks": {"0": flat array, …}} (flax/serialization.py). There are no aliases:
a tied model has no head, an untied head is `lm_head.kernel`, (width, vocabulary) where the embedding is (vocabulary, width).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checkpoint import Ends, LoadedFile, Problem, Storage, TensorRecord, Wiring
from ..dtypes import DTYPES
from ..errors import FormatError, ReadError
from ..sources import Source
from . import msgpack
from .cursor import Cursor
from .msgpack import broken

FORMAT = "flax"
MAX_DEPTH = 64  # of maps; models have fewer than 20
MAX_NAME = 1_024  # characters
MAX_VALUES, MAX_TENSORS = 500_000, 100_000
MAX_PROBLEMS = 50
MAX_DIMS, MAX_COUNT = 64, 1 << 62
NDARRAY, SCALAR = 1, 3
CHUNKED = "__msgpack_chunked_array__"

DTYPE_NAMES = {
    "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16", "bool": "BOOL", "complex64": "C64", "complex128": "C128",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "int4": "I8", "uint4": "U8",  # one byte each in memory
    **{f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

OPTIMIZER = re.compile(r"^(?:opt_state|optimizer|opt)\.|(?:^|\.)\d+\.(?:mu|nu|trace)\.")
HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.kernel$")
# likeliest first: of an encoder with a decoder, the matrix of both or the decoder's
EMBEDDINGS = tuple(
    re.compile(rf"(?:^|\.){leaf}\.embedding$")
    for leaf in ("shared", r"decoder\.embed_tokens", "embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
)


class _Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Reading:
    cursor: Cursor
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: int = 0

    @property
    def file(self) -> str:
        return self.cursor.source.name

    def fault(self, what: str, offset: int | None, name: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(file=self.file, what=what, offset=offset, tensors=(name,)))

    def add(self, name: str, dtype: str, shape: tuple[int, ...], offset: int | None, nbytes: int, place: int) -> None:
        if name in self.tensors:
            self.fault(f"names {name!r} twice: readers take the last one", place, name)
            return
        if len(self.tensors) >= MAX_TENSORS:
            raise broken(self.cursor, f"has more than the {MAX_TENSORS:,} arrays that are read", place)
        storage = Storage(self.file, name, offset, nbytes)
        part = "optimizer" if OPTIMIZER.search(name) else ""
        self.tensors[name] = TensorRecord(name, dtype, shape, storage, 0, nbytes, None, part)


def sniff(head: bytes) -> bool:
    """True for a map whose first key is a printable name, and the key's value no bare text."""
    if not head or not (0x81 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF)):
        return False
    at = {0xDE: 3, 0xDF: 5}.get(head[0], 1)
    kind = head[at : at + 1]
    if not kind or not (0xA1 <= kind[0] <= 0xBF or kind[0] == 0xD9):
        return False
    begin = at + 1 if kind[0] != 0xD9 else at + 2
    n = kind[0] & 0x1F if kind[0] != 0xD9 else int.from_bytes(head[at + 1 : at + 2])
    key, value = head[begin : begin + n], head[begin + n : begin + n + 1]
    try:
        return len(key) == n > 0 and key.decode().isprintable() and bool(value) and not 0xA0 <= value[0] <= 0xBF
    except UnicodeDecodeError:
        return False


def load(source: Source) -> LoadedFile:
    """Read the tree and pass over the arrays' bytes. FormatError if nothing in it can be read."""
    reading = _Reading(Cursor(source))
    try:
        _value(reading, (), 0)
        if reading.cursor.left:
            reading.fault(f"has {reading.cursor.left:,} bytes behind its tree", reading.cursor.at, "")
    except ReadError:
        raise
    except FormatError as error:
        if not reading.tensors:
            raise
        reading.problems.append(Problem(file=source.name, what=error.what, offset=error.offset))
    tensors = tuple(reading.tensors.values())
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tensors,
        storages=tuple(tensor.storage for tensor in tensors),
        problems=tuple(
            Problem(file=problem.file, what=problem.what, offset=problem.offset, tensors=tuple(filter(None, problem.tensors)))
            for problem in reading.problems
        ),
        ends=tuple(_ends(reading.tensors)),
        foreign=True,
    )


def _value(reading: _Reading, path: tuple[str, ...], depth: int) -> None:
    """Pass over one value at the cursor; the arrays in it become tensors named by their path."""
    cursor = reading.cursor
    reading.values += 1
    if reading.values > MAX_VALUES:
        raise broken(reading.cursor, f"has more than the {MAX_VALUES:,} values that are read")
    if depth > MAX_DEPTH:
        raise broken(reading.cursor, f"is nested more than {MAX_DEPTH} deep")
    place = cursor.at
    kind = cursor.take(1, "a value")[0]
    if kind in msgpack.NUMBERS:
        cursor.skip(msgpack.NUMBERS[kind], "a number")
    elif msgpack.is_map(kind):
        _map(reading, path, msgpack.count(cursor, kind), depth)
    elif msgpack.is_list(kind):
        for number in range(msgpack.count(cursor, kind)):
            _value(reading, (*path, str(number)), depth + 1)
    elif msgpack.is_text(kind):
        cursor.skip(msgpack.text_nbytes(cursor, kind), "a string")
    elif msgpack.is_extension(kind):
        array = _extension(reading, kind, ".".join(path), place)
        if array is not None:
            reading.add(".".join(path), *array, place)
    else:
        raise broken(cursor, f"has a value of the kind 0x{kind:02x}, which msgpack does not have", place)


def _map(reading: _Reading, path: tuple[str, ...], count: int, depth: int) -> None:
    chunked = False
    shape: tuple[int, ...] = ()
    chunks: list[_Array] = []
    place = reading.cursor.at
    for _ in range(count):
        key = msgpack.text(reading.cursor, "a key")
        if sum(map(len, path)) + len(path) + len(key) > MAX_NAME:
            raise broken(reading.cursor, f"has a name of over {MAX_NAME:,} characters")
        if key == CHUNKED:
            chunked = True
            _value(reading, path, depth + 1)
        elif chunked and key == "shape":
            shape = _chunked_shape(reading)
        elif chunked and key == "chunks":
            chunks = _chunks(reading, ".".join(path))
        else:
            _value(reading, (*path, key), depth + 1)
    if chunked:
        _add_chunked(reading, ".".join(path), shape, chunks, place)


def _entries(reading: _Reading, what: str) -> int:
    kind = reading.cursor.take(1, what)[0]
    if not msgpack.is_map(kind):
        raise broken(reading.cursor, f"has {what} that is no map")
    return msgpack.count(reading.cursor, kind)


def _chunked_shape(reading: _Reading) -> tuple[int, ...]:
    count = _entries(reading, "the shape of an array in chunks")
    if count > MAX_DIMS:
        raise broken(reading.cursor, f"has an array of {count:,} dimensions")
    sizes = {}
    for _ in range(count):
        key = msgpack.text(reading.cursor, "a key")
        sizes[key] = msgpack.size(reading.cursor)
    return tuple(sizes[key] for key in sorted(sizes, key=lambda key: (len(key), key)))


def _chunks(reading: _Reading, name: str) -> list[_Array]:
    found = []
    count = _entries(reading, "the chunks of an array")
    if count > MAX_TENSORS:
        raise broken(reading.cursor, f"has an array in {count:,} chunks")
    for _ in range(count):
        msgpack.text(reading.cursor, "a key")
        place = reading.cursor.at
        kind = reading.cursor.take(1, "a chunk")[0]
        if not msgpack.is_extension(kind):
            raise broken(reading.cursor, "has an array in chunks with a chunk that is no array", place)
        array = _extension(reading, kind, name, place)
        if array is not None:
            found.append(array)
    return found


def _add_chunked(reading: _Reading, name: str, shape: tuple[int, ...], chunks: list[_Array], place: int) -> None:
    nbytes = sum(chunk.nbytes for chunk in chunks)
    numel = _numel(shape)
    dtypes = {chunk.dtype for chunk in chunks}
    if len(dtypes) != 1 or numel is None or numel * DTYPES[next(iter(dtypes))].bits != 8 * nbytes:
        reading.fault(f"has {name!r} in {len(chunks):,} chunks of {nbytes:,} bytes, which are not its shape {str(shape)[:60]}", place, name)
        return
    # the bytes between two chunks are the next one's header: only one chunk can be read in place
    reading.add(name, dtypes.pop(), shape, chunks[0].offset if len(chunks) == 1 else None, nbytes, place)


def _extension(reading: _Reading, kind: int, name: str, place: int) -> _Array | None:
    """The array of an extension; None if it is something else, or broken: then it is in the problems."""
    cursor = reading.cursor
    nbytes = msgpack.extension_nbytes(cursor, kind)
    code = cursor.number(1, "an extension")
    if nbytes > cursor.left:
        what = f"has {name!r}, an extension of {nbytes:,} bytes where {cursor.left:,} are left: truncated file?"
        raise broken(cursor, what, place)
    end = cursor.at + nbytes
    if code not in (NDARRAY, SCALAR):
        cursor.at = end
        return None
    try:
        array = _array(reading, end)
    except ReadError:
        raise
    except FormatError as error:
        reading.fault(f"has the array {name!r}, which {error.what}", error.offset, name)
        array = None
    cursor.at = end
    return array


def _array(reading: _Reading, end: int) -> _Array:
    cursor = reading.cursor
    if cursor.take(1, "an array")[0] != 0x93:
        raise broken(cursor, "is not shape, dtype and bytes")
    kind = cursor.take(1, "a shape")[0]
    if not msgpack.is_list(kind):
        raise broken(cursor, "has a shape that is no list")
    count = msgpack.count(cursor, kind)
    if count > MAX_DIMS:
        raise broken(cursor, f"has {count:,} dimensions")
    shape = tuple(msgpack.size(cursor) for _ in range(count))
    word = msgpack.text(cursor, "a dtype")
    dtype = DTYPE_NAMES.get(word)
    if dtype is None:
        raise broken(cursor, f"has the dtype {word[:40]!r}, which is not known here")
    kind = cursor.take(1, "the bytes")[0]
    if not msgpack.is_text(kind):
        raise broken(cursor, "has no bytes")
    nbytes = msgpack.text_nbytes(cursor, kind)
    numel = _numel(shape)
    if cursor.at + nbytes != end or numel is None or numel * DTYPES[dtype].bits != 8 * nbytes:
        raise broken(cursor, f"has {nbytes:,} bytes for {dtype} {str(shape)[:60]}")
    return _Array(dtype, shape, cursor.at, nbytes)


def _numel(shape: tuple[int, ...]) -> int | None:
    """None if no file can hold as many."""
    count = 1
    for size in shape:
        count *= size
        if count > MAX_COUNT:
            return None
    return count


def _ends(tensors: dict[str, TensorRecord]) -> Iterator[Ends]:
    """The head, if there is one, and the embedding that it could be the transpose of."""
    weights = {name: tensor for name, tensor in tensors.items() if not tensor.part and len(tensor.shape) == 2}
    heads = [name for name in weights if HEAD.search(name)]
    if len(heads) != 1:
        return
    head = heads[0]
    for leaf in EMBEDDINGS:
        found = [name for name, tensor in weights.items() if leaf.search(name) and tensor.shape[1] == weights[head].shape[0]]
        if len(found) == 1:
            yield Ends(
                embedding=found[0],
                head=head,
                source=f"{head} is stored, which a tied Flax model does not have",
                by_config=True,
                wiring=Wiring.FORMAT,
                advice="if the two are meant to be one: set tie_word_embeddings to true; a Flax model then reads the embedding for both",
            )
        if found:
            return
