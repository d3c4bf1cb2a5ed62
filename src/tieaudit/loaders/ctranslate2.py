"""CTranslate2's model.bin: one variable after the other, and since version 3 a table of aliases at the end.

Little-endian: version u32; since version 2 the name of the specification and its revision u32; number of variables u32; each of
them: name, rank u8, dimensions u32 each, since version 4 dtype u8 and bytes u32, before that bytes per element u8 and elements u32, then
the data; since version 3: number of aliases u32, each the alias and the variable that it means. Names are u16 length, text and a zero
byte that is counted (python/ctranslate2/specs/model_spec.py, `_serialize`; src/models/model.cc, `Model::load`). The converter turns
variables of equal value into aliases, and then quantises: `X/weight` is I8 beside `X/weight_scale`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..checkpoint import Ends, LoadedFile, Problem, Storage, TensorRecord
from ..dtypes import DTYPES
from ..errors import FormatError, ReadError
from ..extents import Extent
from ..sources import Source
from .cursor import Cursor

FORMAT = "ctranslate2"
VERSION = 6  # the newest that is read here
MAX_VARIABLES = 100_000  # and as many aliases
MAX_NAME = 1_024  # bytes
MAX_PROBLEMS = 50
TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")  # include/ctranslate2/types.h, enum DataType
BY_WIDTH = {4: "F32", 2: "I16", 1: "I8"}  # before version 4
TEXT = re.compile(rb"[\x20-\x7e]{2,}\0")
HEAD = "decoder/projection/weight"
EMBEDDINGS = ("decoder/embeddings/weight", "decoder/embeddings_0/weight")
OTHERS = ("encoder/embeddings/weight", "encoder/embeddings_0/weight")


@dataclass(slots=True)
class _Found:
    file: str
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    dead: list[Extent] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def fault(self, what: str, offset: int | None, *names: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(file=self.file, what=what, offset=offset, tensors=names))


def sniff(head: bytes) -> bool:
    """True for a small version number and then the name of a specification, or (version 1) a count and the name of a variable."""
    version = int.from_bytes(head[:4], "little")
    begin = 4 if version > 1 else 8
    n = int.from_bytes(head[begin : begin + 2], "little")
    name = head[begin + 2 : begin + 2 + n]
    # every variable of version 1 belongs to an encoder or a decoder
    return (
        1 <= version <= 99
        and len(name) == n
        and bool(TEXT.fullmatch(name))
        and (version > 1 or name.startswith((b"encoder/", b"decoder/")))
    )


def load(source: Source) -> LoadedFile:
    """Read every variable's header and the aliases; no data. FormatError if not even the first can be read."""
    cursor = Cursor(source)
    version = cursor.number(4, "the version")
    found = _Found(source.name)
    if version > VERSION:
        words = f"is of CTranslate2's binary version {version:,}; up to {VERSION} are read here"
        return LoadedFile(name=source.name, format=FORMAT, nbytes=source.nbytes, unread=(words,), foreign=True)
    try:
        _read(cursor, version, found)
    except ReadError:
        raise
    except FormatError as error:
        if not found.tensors:
            raise
        found.problems.append(Problem(file=source.name, what=error.what, offset=error.offset))
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tuple(found.tensors.values()),
        storages=tuple(found.storages),
        dead=tuple(found.dead),
        problems=tuple(found.problems),
        ends=tuple(_ends(found)),
        foreign=True,
    )


def _read(cursor: Cursor, version: int, found: _Found) -> None:
    if version > 1:
        _name(cursor, "the name of the specification")
        cursor.number(4, "the revision")
    for _ in range(_count(cursor, "variables")):
        _variable(cursor, version, found)
    if version > 2:
        for _ in range(_count(cursor, "aliases")):
            place = cursor.at
            alias, name = _name(cursor, "an alias"), _name(cursor, "the name that an alias stands for")
            tensor = found.tensors.get(name)
            if tensor is None:
                found.fault(f"has the alias {alias!r} of {name!r}, which is not stored", place, alias)
            elif alias in found.tensors:
                found.fault(f"has the alias {alias!r} of {name!r}, and a variable of that name", place, alias)
            else:
                found.aliases[alias] = name
                found.tensors[alias] = TensorRecord(alias, tensor.dtype, tensor.shape, tensor.storage, tensor.offset, tensor.nbytes)
    if cursor.left:
        found.dead.append((cursor.at, cursor.source.nbytes))


def _count(cursor: Cursor, of: str) -> int:
    place = cursor.at
    count = cursor.number(4, f"the number of {of}")
    # the shortest entry: two names of one letter, or a name, rank, dtype and length
    if count > MAX_VARIABLES or 6 * count > cursor.left:
        what = f"announces {count:,} {of} where {cursor.left:,} bytes are left: truncated file?"
        raise FormatError(cursor.source.name, what, place)
    return count


def _name(cursor: Cursor, what: str) -> str:
    place = cursor.at
    n = cursor.number(2, what)
    if not 1 <= n <= MAX_NAME:
        raise FormatError(cursor.source.name, f"has {what} of {n:,} bytes", place)
    text, end, _ = cursor.take(n, what).partition(b"\0")
    if not end:
        raise FormatError(cursor.source.name, f"has {what} without the zero byte at its end", place)
    return text.decode("utf-8", "backslashreplace")


def _variable(cursor: Cursor, version: int, found: _Found) -> None:
    place = cursor.at
    name = _name(cursor, "the name of a variable")
    raw = cursor.take(4 * cursor.number(1, "a rank"), "dimensions")
    shape = tuple(int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4))
    kind, nbytes = cursor.number(1, "a dtype"), cursor.number(4, "a length")
    dtype = TYPES[kind] if version > 3 and kind < len(TYPES) else BY_WIDTH.get(kind, "") if version < 4 else ""
    if version < 4:
        nbytes *= kind
    offset = cursor.skip(nbytes, f"the variable {name!r}")
    if not dtype:
        found.fault(f"has the variable {name!r} of dtype number {kind}, which is not known here", place, name)
    elif _nbits(dtype, shape) != 8 * nbytes:
        found.fault(f"has {nbytes:,} bytes for the variable {name!r}, {dtype} {str(shape)[:60]}", place, name)
    elif name in found.tensors:
        found.fault(f"has two variables named {name!r}: the first is taken", place, name)
    else:
        storage = Storage(found.file, name, offset, nbytes)
        found.storages.append(storage)
        found.tensors[name] = TensorRecord(name, dtype, shape, storage, 0, nbytes)


def _nbits(dtype: str, shape: tuple[int, ...]) -> int:
    bits = DTYPES[dtype].bits
    for size in shape:
        bits *= size
        if bits > 1 << 62:
            break
    return bits


def _ends(found: _Found) -> list[Ends]:
    """The decoder's embedding with the head, and with the encoder's embedding."""
    embedding = next((name for name in EMBEDDINGS if name in found.tensors), "")
    ends = []
    for other, role in ((HEAD, "embedding-head"), *((name, "embedding") for name in OTHERS)):
        if not embedding or other not in found.tensors:
            continue
        shared = found.tensors[other].storage is found.tensors[embedding].storage
        # equal I8 numbers under two scales are two matrices
        if shared or not _quantised(found, embedding, other):
            ends.append(
                Ends(
                    embedding=embedding,
                    head=other,
                    source="the file's own alias table makes them one variable" if shared else "the alias table does not name them",
                    tied=True if shared else None,
                    role=role,
                    advice="convert the model again: the converter makes variables of equal value one",
                )
            )
    return ends


def _quantised(found: _Found, *names: str) -> bool:
    return any(f"{name}_scale" in found.tensors for name in names)
