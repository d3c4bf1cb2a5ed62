"""This file holds what torch itself says about a file that torch wrote, to hold the loaders to it."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile, TensorRecord
from tieaudit.errors import FormatError
from tieaudit.loaders import torch_legacy, torch_zip

torch = pytest.importorskip("torch")

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.complex128: "C128", torch.complex32: "C32", torch.uint16: "U16", torch.uint32: "U32",
    torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip


def saved(value: object, *, legacy: bool = False, protocol: int = 2, name: str = "model.bin") -> MemorySource:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    return MemorySource(name, buffer.getvalue())


def scripted(module: object, name: str = "model.pt") -> MemorySource:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return MemorySource(name, buffer.getvalue())


def load(source: MemorySource) -> LoadedFile:
    head = source.data[:16]
    if torch_zip.sniff(head):
        return torch_zip.load(source)
    assert torch_legacy.sniff(head)
    return torch_legacy.load(source)


def outcome(load_one: Callable[[], object]) -> object:
    """What comes out, or the FormatError; any other exception is the caller's failure."""
    try:
        return load_one()
    except FormatError as error:
        return error


def by_name(found: LoadedFile) -> dict[str, TensorRecord]:
    records = {record.name: record for record in found.tensors}
    assert len(records) == len(found.tensors)
    return records


def assert_same(source: MemorySource, found: LoadedFile, truth: dict[str, torch.Tensor]) -> None:
    """Names in order, dtype, shape, strides, offset, bytes, and which tensors share memory."""
    records = by_name(found)
    assert list(records) == list(truth)
    groups: dict[int, set[str]] = {}
    for name, tensor in truth.items():
        record = records[name]
        item = tensor.element_size()
        assert record.dtype == DTYPES[tensor.dtype]
        assert record.shape == tuple(tensor.shape)
        assert record.offset == tensor.storage_offset() * item
        assert record.nbytes == tensor.numel() * item
        assert record.storage.nbytes == tensor.untyped_storage().nbytes()
        if tensor.is_contiguous():
            assert record.strides is None
        else:
            assert record.strides == tensor.stride()
        if record.nbytes:
            assert _values(source, record, tensor.dtype) == _raw(tensor)
            groups.setdefault(tensor.untyped_storage().data_ptr(), set()).add(name)
    ours: dict[tuple[str, str], set[str]] = {}
    for record in found.tensors:
        if record.nbytes:
            ours.setdefault((record.file, record.storage.ident), set()).add(record.name)
    assert sorted(map(sorted, ours.values())) == sorted(map(sorted, groups.values()))


def _raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def _values(source: MemorySource, record: TensorRecord, dtype: torch.dtype) -> bytes:
    assert record.storage.offset is not None
    raw = source.data[record.storage.offset :][: record.storage.nbytes]
    whole = torch.frombuffer(bytearray(raw), dtype=dtype, count=len(raw) // dtype.itemsize)
    strides = record.strides or torch.empty(record.shape, dtype=torch.uint8).stride()
    return _raw(whole.as_strided(record.shape, strides, record.offset // dtype.itemsize))


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """State dicts whose tensors are whole storages and views of them: slices, transposes, expansions, empties."""
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True))
    bases = [torch.arange(draw(st.integers(0, 24))).to(draw(st.sampled_from(list(DTYPES)))) for _ in range(draw(st.integers(1, 4)))]
    return {name: _view(draw, draw(st.sampled_from(bases))) for name in names}


def _view(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    kind = draw(st.sampled_from(["whole", "slice", "transposed", "expanded", "empty", "scalar", "parameter", "ones"]))
    begin = draw(st.integers(0, len(base)))
    rest = base[begin:]
    match kind:
        case "slice":
            return rest
        case "transposed" if len(rest) >= 6:
            return rest[:6].view(2, 3).t()
        case "expanded" if len(rest):
            return rest[:1].expand(4, 3)
        case "empty":
            return rest[:0]
        case "scalar" if len(rest):
            return rest[0]
        case "parameter" if base.dtype.is_floating_point:
            return torch.nn.Parameter(base, requires_grad=False)
        case "ones" if len(rest) >= 2:
            return rest[:2].view(1, 2, 1).transpose(0, 2)
    return base


def run_limited(code: str, *, megabytes: int = 300) -> str:
    """Output of `code` in a fresh interpreter that may not have more memory."""
    import subprocess
    import sys

    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes << 20},) * 2)\n"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", limit + code],
            capture_output=True, text=True, timeout=60, cwd=folder, env={"PYTHONPATH": path}, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
