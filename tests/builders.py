"""This file makes checkpoints as bytes: safetensors with full control over the header, torch files, index, config, folders.

Everything is exact and repeatable: the same call gives the same bytes on every machine.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROWS, COLUMNS = 32, 8  # of an embedding here: 1,024 bytes in F32, the least that `--min-waste` counts
MATRIX_NBYTES = ROWS * COLUMNS * 4
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8", "int8": "I8"}


@dataclass(frozen=True)
class Raw:
    """A tensor as safetensors stores it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensor = Raw | np.ndarray


def matrix(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    """F32 numbers in [-1, 1), each exact in BF16 and F16 too, the same for every release of Python and numpy."""
    signed = np.frombuffer(random.Random(seed).randbytes(rows * columns), np.int8)
    return signed.astype(np.float32).reshape(rows, columns) / np.float32(128)


def bf16(array: np.ndarray) -> Raw:
    """The numbers cut to BF16: the upper halves of F32."""
    halves = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)).astype("<u2")
    return Raw("BF16", array.shape, halves.tobytes())


def raw(tensor: Tensor) -> Raw:
    if isinstance(tensor, Raw):
        return tensor
    return Raw(_DTYPES[tensor.dtype.name], tensor.shape, np.ascontiguousarray(tensor).tobytes())


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A well-formed file; tensors lie in the order given."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        stored = raw(tensor)
        header[name] = entry(stored.dtype, stored.shape, len(data), len(data) + len(stored.data))
        data += stored.data
    return safetensors_file(header, data)


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    """One entry of a safetensors header; offsets count from the end of the header. Nothing is checked."""
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


def safetensors_file(header: Mapping[str, Any] | str | bytes, data: bytes, *, length: int | None = None) -> bytes:
    """Any header in front of any data: entries that overlap or leave holes, text that names a tensor twice (as str), bytes that
    are no JSON; `length` replaces the header's true length."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def index(weight_map: Mapping[str, str], total_size: float | None = None) -> bytes:
    metadata = {} if total_size is None else {"total_size": total_size}
    return json.dumps({"metadata": metadata, "weight_map": dict(weight_map)}, indent=1).encode()


def config(architecture: str = "Qwen2ForCausalLM", model_type: str = "qwen2", **keys: Any) -> bytes:
    """config.json; keys that are not given are absent, but for `vocab_size` and `hidden_size`."""
    content = {"architectures": [architecture], "model_type": model_type, "vocab_size": ROWS, "hidden_size": COLUMNS, **keys}
    return json.dumps(content, indent=1).encode()


def tied(**keys: Any) -> bytes:
    return config(tie_word_embeddings=True, **keys)


def untied(**keys: Any) -> bytes:
    return config(tie_word_embeddings=False, **keys)


def torch_zip(content: Any) -> bytes:
    """What `torch.save` writes. Repeatable: torch numbers the storages in order and stamps no time."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def torch_legacy(content: Any) -> bytes:
    """What `torch.save` wrote before 1.6. Not repeatable: its storages are named by their addresses."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def with_member(archive: bytes, name: str, content: bytes) -> bytes:
    """A torch zip with one more record, `data/7` say, which its pickle does not name."""
    buffer = io.BytesIO(archive)
    with zipfile.ZipFile(buffer, "a") as file:
        top = file.namelist()[0].split("/")[0]
        # a ZipInfo of its own begins in 1980; writestr with a name would stamp the present time
        file.writestr(zipfile.ZipInfo(f"{top}/{name}"), content)
    return buffer.getvalue()


def torch_tensor(tensor: np.ndarray) -> torch.Tensor:
    """A torch tensor with a storage of its own."""
    return torch.from_numpy(np.array(tensor))


def folder(path: Path, files: Mapping[str, bytes]) -> Path:
    """The files written below `path`, which is made if need be; names may hold slashes."""
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return path
