"""Flax's msgpack, written as flax/serialization.py writes it, with the msgpack library."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile
from tieaudit.errors import FormatError
from tieaudit.loaders import flax, sniff

NAME = "flax_model.msgpack"
DTYPES = {
    "F16": np.float16, "F32": np.float32, "F64": np.float64, "BF16": ml_dtypes.bfloat16, "BOOL": np.bool_, "I8": np.int8, "I16": np.int16,
    "I32": np.int32, "I64": np.int64, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "C64": np.complex64,
    "C128": np.complex128, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


def array_bytes(array: np.ndarray) -> bytes:
    return msgpack.packb((array.shape, array.dtype.name, array.tobytes("C")), use_bin_type=True)


def extension(value: Any) -> Any:
    """`_msgpack_ext_pack` of flax."""
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(1, array_bytes(value))
    if isinstance(value, np.generic):
        return msgpack.ExtType(3, array_bytes(np.asarray(value)))
    if isinstance(value, complex):
        return msgpack.ExtType(2, msgpack.packb((value.real, value.imag)))
    return value


def saved(tree: Any) -> bytes:
    return msgpack.packb(tree, default=extension, strict_types=True)


def chunked(array: np.ndarray, size: int) -> dict[str, Any]:
    """`_chunk` of flax."""
    flat = array.reshape(-1)
    chunks = [flat[at : at + size] for at in range(0, flat.size, size)]
    return {
        "__msgpack_chunked_array__": True,
        "shape": {str(place): dim for place, dim in enumerate(array.shape)},
        "chunks": {str(place): chunk for place, chunk in enumerate(chunks)},
    }


def load(data: bytes) -> LoadedFile:
    return flax.load(MemorySource(NAME, data))


def matrix(rows: int = 50, columns: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


# what flax writes


def test_every_dtype_with_shape_and_bytes() -> None:
    tree = {"params": {dtype: np.arange(24).reshape(2, 3, 4).astype(kind) for dtype, kind in DTYPES.items()}}
    data = saved(tree)
    found = load(data)
    assert (found.name, found.format, found.nbytes, found.foreign, found.problems, found.unread) == (NAME, "flax", len(data), True, (), ())
    assert [tensor.name for tensor in found.tensors] == [f"params.{dtype}" for dtype in DTYPES]
    for tensor in found.tensors:
        dtype = tensor.name.removeprefix("params.")
        expected = tree["params"][dtype]
        assert (tensor.dtype, tensor.shape, tensor.nbytes, tensor.strides) == (dtype, (2, 3, 4), expected.nbytes, None)
        assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == expected.tobytes()


def test_leaves_of_other_kinds_are_passed_over() -> None:
    tree = {
        "step": 70_000, "rate": -1.5, "minus": -70_000, "none": None, "yes": True, "text": "x" * 70_000, "short": "s", "bytes": b"b" * 300,
        "complex": 1 + 2j, "list": [np.ones(2), [np.zeros((0, 3))]], "scalar": np.float32(3), "huge": 2**63, "small": -3,
        "other": msgpack.ExtType(5, b"12345678"), "time": msgpack.Timestamp(1, 2), "many": {str(n): n for n in range(70_000)},
    }  # fmt: skip
    found = load(saved(tree))
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in found.tensors] == [
        ("list.0", (2,), "F64"), ("list.1.0", (0, 3), "F64"), ("scalar", (), "F32"),
    ]  # fmt: skip
    assert found.problems == ()


def test_an_array_in_chunks_has_no_place_of_its_own() -> None:
    whole = matrix()
    found = load(saved({"model": {"wte": {"embedding": chunked(whole, 100)}, "one": chunked(whole, 800), "b": np.ones(3)}}))
    many, one, rest = found.tensors
    assert (many.name, many.dtype, many.shape, many.nbytes, many.file_offset) == ("model.wte.embedding", "F32", (50, 16), 3_200, None)
    assert (one.name, one.shape, rest.name) == ("model.one", (50, 16), "model.b")
    assert one.file_offset is not None
    assert found.problems == ()


def test_optimizer_state_is_set_apart() -> None:
    params = {"wte": {"embedding": matrix()}}
    found = load(saved({"step": 1, "params": params, "opt_state": {"0": {"mu": params, "nu": params}}}))
    assert {tensor.name: tensor.part for tensor in found.tensors} == {
        "params.wte.embedding": "", "opt_state.0.mu.wte.embedding": "optimizer", "opt_state.0.nu.wte.embedding": "optimizer",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tree", "ends"),
    [
        ({"model": {"embed_tokens": {"embedding": matrix()}}, "lm_head": {"kernel": matrix(16, 50)}},
         ("model.embed_tokens.embedding", "lm_head.kernel")),
        ({"transformer": {"wte": {"embedding": matrix()}, "wpe": {"embedding": matrix(50)}}, "lm_head": {"kernel": matrix(16, 50)}},
         ("transformer.wte.embedding", "lm_head.kernel")),
        ({"shared": {"embedding": matrix()}, "encoder": {"embed_tokens": {"embedding": matrix()}}, "lm_head": {"kernel": matrix(16, 50)}},
         ("shared.embedding", "lm_head.kernel")),
        ({"model": {"embed_tokens": {"embedding": matrix()}}}, None),
        ({"model": {"embed_tokens": {"embedding": matrix(50, 8)}}, "lm_head": {"kernel": matrix(16, 50)}}, None),
        ({"a": {"wte": {"embedding": matrix()}}, "b": {"wte": {"embedding": matrix()}}, "lm_head": {"kernel": matrix(16, 50)}}, None),
        ({"lm_head": {"kernel": matrix(16, 50)}}, None),
    ],
)  # fmt: skip
def test_ends(tree: dict[str, Any], ends: tuple[str, str] | None) -> None:
    found = load(saved(tree)).ends
    assert [(end.embedding, end.head) for end in found] == ([ends] if ends else [])
    assert all(end.tied is None and end.by_config for end in found)


def test_reads_headers_only() -> None:
    source = MemorySource(NAME, saved({f"layer_{number}": {"kernel": np.ones((512, 512), np.float32)} for number in range(20)}))
    assert len(flax.load(source).tensors) == 20
    assert source.meter.requests <= 21
    assert source.meter.bytes_read <= 21 * 4_096


# broken and hostile


def ndarray(inner: bytes) -> bytes:
    return b"\x81\xa1a" + msgpack.packb(msgpack.ExtType(1, inner))


@pytest.mark.parametrize(
    ("inner", "what"),
    [
        (msgpack.packb([[2, 3], "float32", bytes(23)]), "has 23 bytes for F32 (2, 3)"),
        (msgpack.packb([[2, 3], "float32", bytes(24)]) + b"x", "has 24 bytes for F32 (2, 3)"),
        (msgpack.packb([[2, 3], "float99", bytes(24)]), "the dtype 'float99', which is not known here"),
        (msgpack.packb([[2, -3], "float32", bytes(24)]), "a shape that is not made of sizes"),
        (msgpack.packb([[2, [3]], "float32", bytes(24)]), "a shape that is not made of sizes"),
        (msgpack.packb([{}, "float32", bytes(24)]), "a shape that is no list"),
        (msgpack.packb([[2**63] * 15, "float32", bytes(24)]), "has 24 bytes for F32"),
        (msgpack.packb([[1] * 65, "float32", bytes(4)]), "has 65 dimensions"),
        (msgpack.packb([[1], 5, bytes(4)]), "has a dtype that is no string"),
        (msgpack.packb([[1], "float32", None]), "has no bytes"),
        (msgpack.packb([[1], "float32"]), "is not shape, dtype and bytes"),
        (b"\x93\x91\x01\xa7float32\xc6\xff\xff\xff\xff", "has 4,294,967,295 bytes for F32"),
        (b"", "ends inside an array"),
    ],
)
def test_a_broken_array_is_a_problem_and_the_rest_is_read(inner: bytes, what: str) -> None:
    (problem,) = load(ndarray(inner)).problems
    assert what in problem.what
    assert problem.tensors == ("a",)
    if inner:
        both = b"\x82" + ndarray(inner)[1:] + b"\xa1b" + saved(np.ones(2))
        assert [tensor.name for tensor in load(both).tensors] == ["b"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x81\xa1a" * 100, "nested more than 64 deep"),
        (b"\x91" * 100_000, "nested more than 64 deep"),
        (b"\x81\xa1a\xdf\xff\xff\xff\xff", "announces 4,294,967,295 entries"),
        (b"\x81\xa1a\xdd\x00\x10\x00\x00", "announces 1,048,576 entries"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", "ends inside a string"),
        (b"\x81\x05\x05", "a key that is no string"),
        (b"\x81\xda\xff\xff" + b"a" * 70_000, "a key of 65,535 bytes"),
        (b"\x81\xa1a\xc1", "the kind 0xc1"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "an extension of 4,294,967,295 bytes"),
        (b"\x81\xa1a\xdd" + struct.pack(">I", 600_000) + b"\xc0" * 600_000, "more than the 500,000 values"),
        (b"\x81\xd9\xf0" + b"a" * 240 + (b"\x81\xd9\xf0" + b"b" * 240) * 5, "a name of over 1,024 characters"),
        (b"", "ends inside a value"),
    ],
)  # fmt: skip
def test_hostile(data: bytes, what: str) -> None:
    started = time.process_time()
    with pytest.raises(FormatError, match=what.replace("(", r"\(")):
        load(data)
    assert time.process_time() - started < 25


def test_what_was_read_before_a_fault_stays() -> None:
    data = saved({"a": np.ones(2), "b": np.ones(2)})
    found = load(data[:-10])
    assert [tensor.name for tensor in found.tensors] == ["a"]
    assert ["truncated" in problem.what for problem in found.problems] == [True]


def test_names_that_come_twice_and_bytes_behind() -> None:
    leaf = saved(np.ones(2))
    assert [problem.what for problem in load(b"\x82\xa1a" + leaf + b"\xa1a" + leaf).problems] == [
        "names 'a' twice: readers take the last one"
    ]
    assert [problem.what for problem in load(saved({"a": np.ones(2)}) + b"xyz").problems] == ["has 3 bytes behind its tree"]


@pytest.mark.parametrize(
    "change", [{"shape": {"0": 7, "1": 16}}, {"chunks": {}}, {"chunks": {"0": np.ones(400, np.float32), "1": np.ones(400, np.int32)}}]
)
def test_chunks_that_do_not_fit(change: dict[str, Any]) -> None:
    found = load(saved({"a": {**chunked(matrix(), 400), **change}, "b": np.ones(2)}))
    assert [tensor.name for tensor in found.tensors] == ["b"]
    assert "which are not its shape" in found.problems[0].what


def test_cut_anywhere_flip_any_byte() -> None:
    rng = random.Random(5)
    whole = saved(
        {
            "model": {"wte": {"embedding": matrix(5, 4)}, "c": chunked(matrix(5, 4), 7), "n": [1, -1.0, None]},
            "lm_head": {"kernel": matrix(4, 5)},
        }
    )
    broken = [whole[:n] for n in range(len(whole))]
    for _ in range(4_000):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] = rng.choice([0x81, 0x93, 0xC6, 0xC9, 0xDB, 0xDD, 0xDF, 0xFF, rng.randrange(256)])
        broken.append(bytes(data))
    for data in broken:
        try:
            found = load(data)
        except FormatError:
            continue
        for tensor in found.tensors:
            assert tensor.file_offset is None or tensor.file_offset + tensor.nbytes <= len(data)


def test_sniff() -> None:
    assert flax.sniff(saved({"model": {"a": np.ones(2)}})[:512])
    assert flax.sniff(saved({str(number): np.ones(2) for number in range(70_000)})[:512])
    assert flax.sniff(saved({"a" * 200: {"a": np.ones(2)}})[:512])
    for head in (b"", b"\x80\x02}q\x00.", b"\x81", b"\x81\xa3a\x00b\x01", b"\x81\xa1a\xa1b", b"\x81\xa4abc", b"\x82\xd9"):
        assert not flax.sniff(head)
    assert sniff.load(MemorySource(NAME, saved({"a": np.ones(2)}))).format == "flax"
    rng = random.Random(3)
    assert sum(flax.sniff(rng.randbytes(64)) for _ in range(20_000)) < 10
