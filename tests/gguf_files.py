"""This file makes GGUF files: real ones by the `gguf` package, and any others byte by byte, of each version and byte order."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFEndian, GGUFWriter

from gguf_encoders import encode

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ROWS, COLUMNS = 64, 256
U8, I32, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 4, 6, 7, 8, 9, 10
LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def weights(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def write(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray, Type]],
    architecture: str = "llama",
    *,
    kind: str = "model",
    tokens: int = 8,
    big: bool = False,
    alignment: int = 0,
    **options: Any,
) -> Path:
    """What the `gguf` package writes; a name ending in `.gguf`. With `split_max_tensors` the parts stand beside it."""
    writer = GGUFWriter(path, architecture, endianess=GGUFEndian.BIG if big else GGUFEndian.LITTLE, **options)
    writer.add_type(kind)
    if alignment:
        writer.add_custom_alignment(alignment)
    if tokens:
        writer.add_token_list([f"token {n}" for n in range(tokens)])
        writer.add_token_scores([float(n) for n in range(tokens)])
        writer.add_token_types([1] * tokens)
    for name, (values, dtype) in tensors.items():
        if dtype in (Type.F32, Type.F16, Type.F64, Type.I8, Type.I16, Type.I32, Type.I64):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, encode(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Raw:
    """A file byte by byte. Nothing is checked."""

    def __init__(self, version: int = 3, *, big: bool = False) -> None:
        self.version, self.order = version, ">" if big else "<"

    def number(self, letter: str, value: float) -> bytes:
        return struct.pack(self.order + letter, value)

    def length(self, value: int) -> bytes:
        return self.number("I" if self.version == 1 else "Q", value)

    def text(self, value: str | bytes, length: int | None = None) -> bytes:
        raw = value if isinstance(value, bytes) else value.encode()
        return self.length(len(raw) if length is None else length) + raw

    def key(self, name: str | bytes, kind: int, value: Any, inner: int = U8) -> bytes:
        """`inner`: the type of an array's values."""
        return self.text(name) + self.number("I", kind) + self.value(kind, value, inner)

    def value(self, kind: int, value: Any, inner: int = U8) -> bytes:
        if isinstance(value, bytes):
            return value
        if kind == STRING:
            return self.text(value)
        if kind == ARRAY:
            return self.number("I", inner) + self.length(len(value)) + b"".join(self.value(inner, one) for one in value)
        return self.number(LETTERS[kind], value)

    def entry(self, name: str | bytes, dims: Sequence[int] = (4,), kind: int = 0, offset: int = 0, *, count: int | None = None) -> bytes:
        """`dims` innermost first; `count` replaces their number."""
        shape = b"".join(map(self.length, dims))
        return (
            self.text(name)
            + self.number("I", len(dims) if count is None else count)
            + shape
            + self.number("I", kind)
            + self.number("Q", offset)
        )

    def file(
        self,
        entries: Iterable[bytes] = (),
        keys: Iterable[bytes] = (),
        data: bytes = b"",
        *,
        tensors: int | None = None,
        count: int | None = None,
        alignment: int = 32,
    ) -> bytes:
        """`tensors` and `count` replace the true numbers of entries and keys."""
        listed, known = list(entries), list(keys)
        head = b"GGUF" + self.number("I", self.version)
        head += self.length(len(listed) if tensors is None else tensors) + self.length(len(known) if count is None else count)
        head += b"".join(known) + b"".join(listed)
        return head + bytes(-len(head) % alignment) + data
