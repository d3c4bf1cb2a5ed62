"""This file holds the writer of safetensors: the same bytes as the library writes for the same tensors.

Its order (safetensors/src/tensor.rs, `prepare`): wider dtypes first, then names; compact JSON, padded to 8.
"""

from __future__ import annotations

import json
from typing import Any

from ...checkpoint import TensorRecord
from ...dtypes import DTYPES, SAFETENSORS_DTYPES
from ...sources import Source
from ..files import copy_range, write_all
from ..model import Kept, Rewrite
from . import Inputs

_RANK = {name: rank for rank, name in enumerate(name for name in DTYPES if name in SAFETENSORS_DTYPES)}
ALIGNED = 8


def refuses(rewrite: Rewrite, source: Source) -> str:  # noqa: ARG001  the protocol's
    """Tensors that are compressed in their file, or of a dtype that the format does not have."""
    for kept in rewrite.tensors:
        if kept.tensor.dtype not in SAFETENSORS_DTYPES:
            return f"{kept.tensor.name} is {kept.tensor.dtype}, which safetensors does not have"
        if kept.tensor.storage.offset is None and kept.tensor.nbytes:
            return f"{kept.tensor.name} is compressed in {kept.tensor.file}"
        if kept.tensor.storage.pieces:
            return f"{kept.tensor.name} lies in several files"
    names = [kept.name for kept in rewrite.tensors]
    if len(set(names)) != len(names) or "__metadata__" in names:
        return "two tensors would have one name"
    return ""


def ordered(rewrite: Rewrite) -> list[Kept]:
    return sorted(rewrite.tensors, key=lambda kept: (-_RANK[kept.tensor.dtype], kept.name.encode()))


def header(rewrite: Rewrite) -> bytes:
    """Length and header, padded."""
    entries: dict[str, Any] = {"__metadata__": dict(rewrite.metadata)} if rewrite.metadata else {}
    at = 0
    for kept in ordered(rewrite):
        entries[kept.name] = {
            "dtype": kept.tensor.dtype,
            "shape": list(kept.tensor.shape),
            "data_offsets": [at, at + kept.tensor.nbytes],
        }
        at += kept.tensor.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def write(rewrite: Rewrite, inputs: Inputs, out: int) -> None:
    """Neighbours in the old file that are neighbours in the new one are copied in one piece."""
    head = header(rewrite)
    write_all(out, head, 0)
    at = len(head)
    run: tuple[str, int, int, int] | None = None  # file, begin there, begin here, bytes
    for kept in ordered(rewrite):
        tensor = kept.tensor
        if not tensor.nbytes:
            continue
        if tensor.strides is not None:
            _strided(tensor, inputs, out, at)
        else:
            begin = tensor.file_offset or 0
            if run and run[0] == tensor.file and run[1] + run[3] == begin and run[2] + run[3] == at:
                run = (*run[:3], run[3] + tensor.nbytes)
            else:
                _copied(run, inputs, out)
                run = (tensor.file, begin, at, tensor.nbytes)
        at += tensor.nbytes
    _copied(run, inputs, out)


def _copied(run: tuple[str, int, int, int] | None, inputs: Inputs, out: int) -> None:
    if run:
        copy_range(inputs.descriptors[run[0]], run[1], out, run[2], run[3], run[0])


def _strided(tensor: TensorRecord, inputs: Inputs, out: int, at: int) -> None:
    from .strided import blocks

    for data in blocks(tensor, inputs.descriptors[tensor.file]):
        write_all(out, data, at)
        at += len(data)
