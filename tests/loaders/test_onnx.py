"""The ONNX format, held to the onnx library's own reading of the same files."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memory_source import MemorySource
from protobuf_bytes import length, varint
from tieaudit.checkpoint import Checkpoint, LoadedFile
from tieaudit.errors import FormatError, UnknownFormat
from tieaudit.loaders import onnx as loader
from tieaudit.loaders import onnx_graph, onnx_tensors, sharded, sniff
from tieaudit.sources.local import LocalFolder

NAME = "model.onnx"
V, H = 96, 16
DTYPES = {
    "FLOAT": "F32", "UINT8": "U8", "INT8": "I8", "UINT16": "U16", "INT16": "I16", "INT32": "I32", "INT64": "I64", "BOOL": "BOOL",
    "FLOAT16": "F16", "DOUBLE": "F64", "UINT32": "U32", "UINT64": "U64", "COMPLEX64": "C64", "COMPLEX128": "C128", "BFLOAT16": "BF16",
    "FLOAT8E4M3FN": "F8_E4M3", "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ", "FLOAT8E5M2": "F8_E5M2", "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ",
    "UINT4": "U4", "INT4": "I4", "FLOAT4E2M1": "F4", "FLOAT8E8M0": "F8_E8M0", "UINT2": "U2", "INT2": "I2", "FLOAT6E2M3": "F6_E2M3",
    "FLOAT6E3M2": "F6_E3M2",
}  # fmt: skip


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(seed: int = 0, rows: int = V, columns: int = H) -> np.ndarray:
    return rng(seed).standard_normal((rows, columns)).astype(np.float32)


def load(data: bytes, name: str = NAME) -> LoadedFile:
    return loader.load(MemorySource(name, data))


def load_folder(path: Path, name: str = NAME) -> LoadedFile:
    folder = LocalFolder(path)
    try:
        return loader.load(folder.open(name), folder)
    finally:
        folder.close()


def checkpoint(path: Path) -> Checkpoint:
    folder = LocalFolder(path)
    try:
        return sharded.load(folder, str(path))
    finally:
        folder.close()


def words(found: LoadedFile) -> list[str]:
    return [problem.what for problem in found.problems]


def graph(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], output: str = "y", name: str = "g") -> onnx.GraphProto:
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])]
    return helper.make_graph(nodes, name, inputs, [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], weights)


def model(*weights: onnx.TensorProto, nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    return helper.make_model(graph(nodes or [], list(weights)))


def lm(head: str = "MatMul", *weights: onnx.TensorProto) -> onnx.ModelProto:
    """Gather and `head` as last node, of `embed` and `head`."""
    nodes = [helper.make_node("Gather", ["embed", "input_ids"], ["x"]), helper.make_node(head, ["x", "head"], ["y"], "/lm_head/" + head)]
    return model(*weights, nodes=nodes)


def ends(found: onnx.ModelProto | LoadedFile) -> list[tuple[str, str, bool | None]]:
    loaded = load(found.SerializeToString()) if isinstance(found, onnx.ModelProto) else found
    assert loaded.problems == ()
    assert loaded.unread == ()
    return [(one.embedding, one.head, one.tied) for one in loaded.ends]


# tensors


def raw_tensor(name: str, data_type: int, shape: tuple[int, ...], seed: int = 0) -> onnx.TensorProto:
    """Random bytes of the size that the library itself gives a tensor of this type."""
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    array = np.zeros(shape, dtype)
    tensor = numpy_helper.from_array(array, name)
    assert tensor.data_type == data_type
    tensor.raw_data = rng(seed).bytes(len(tensor.raw_data))
    return tensor


def test_every_type_has_the_size_that_the_library_gives_it() -> None:
    known = {name: number for name, number in TensorProto.DataType.items() if name not in ("UNDEFINED", "STRING")}
    assert set(known) == set(DTYPES)
    weights = [
        raw_tensor(f"{name}{shape}", number, shape, at)
        for at, (name, number) in enumerate(known.items())
        for shape in ((3, 5), (7,), (), (0, 4), (2, 2, 2))
    ]
    data = model(*weights).SerializeToString()
    found = load(data)
    assert words(found) == []
    assert found.foreign
    assert found.format == "onnx"
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors] == [
        (tensor.name, DTYPES[tensor.name.split("(")[0]], tuple(tensor.dims)) for tensor in weights
    ]
    for record, tensor in zip(found.tensors, weights, strict=True):
        assert record.nbytes == record.storage.nbytes == len(tensor.raw_data)
        assert record.file_offset is not None
        assert data[record.file_offset :][: record.nbytes] == tensor.raw_data
        assert (record.file, record.strides, record.part) == (NAME, None, "")


def test_one_byte_too_many_or_too_few_is_told() -> None:
    for name, number in TensorProto.DataType.items():
        if name in ("UNDEFINED", "STRING"):
            continue
        tensor = raw_tensor("w", number, (3, 5))
        good = tensor.raw_data
        for wrong in (good + b"\0", good[:-1]):
            tensor.raw_data = wrong
            [what] = words(load(model(tensor).SerializeToString()))
            assert f"'w' is {DTYPES[name]} [3, 5], which needs {len(good):,} bytes, but has {len(wrong):,}" in what


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith("FLOAT6")])
def test_typed_data_of_every_type(name: str) -> None:
    number = TensorProto.DataType.Value(name)
    values = [complex(n, 1) if name.startswith("COMPLEX") else n % 2 for n in range(15)]
    tensor = helper.make_tensor("w", number, (3, 5), values)
    assert not tensor.HasField("raw_data")
    data = model(tensor).SerializeToString()
    found = load(data)
    assert words(found) == []
    [record] = found.tensors
    whole = len(numpy_helper.from_array(np.zeros((3, 5), helper.tensor_dtype_to_np_dtype(number))).raw_data)
    assert (record.dtype, record.nbytes, record.storage.nbytes) == (DTYPES[name], whole, whole)
    if name in ("FLOAT", "DOUBLE", "COMPLEX64", "COMPLEX128"):
        assert record.file_offset is not None
        numbers = np.frombuffer(data[record.file_offset :][:whole], helper.tensor_dtype_to_np_dtype(number))
        assert numbers.tolist() == np.array(values, numbers.dtype).tolist()
        assert record.storage.why == ""
    else:
        assert record.file_offset is None
        assert "number by number" in record.storage.why


def unpacked(field: int, kind: int, payloads: list[bytes]) -> bytes:
    return b"".join(varint(field << 3 | kind) + payload for payload in payloads)


def raw_model(tensor: bytes) -> bytes:
    return b"\x08\x0a" + length(7, length(5, tensor))


def test_typed_data_that_is_not_packed_is_counted() -> None:
    head = b"\x08\x03\x10\x01" + length(8, b"w")
    loose = raw_model(head + unpacked(4, 5, [bytes(4)] * 3))
    in_two_runs = raw_model(head + length(4, bytes(4)) + length(4, bytes(8)))
    for data in (loose, in_two_runs):
        assert onnx.load_from_string(data).graph.initializer[0].float_data == [0.0] * 3
        [record] = load(data).tensors
        assert (record.nbytes, record.file_offset) == (12, None)
    integers = raw_model(b"\x08\x03\x10\x07" + length(8, b"w") + unpacked(7, 0, [b"\1"]) + length(7, b"\2" + varint((1 << 64) - 1)))
    assert onnx.load_from_string(integers).graph.initializer[0].int64_data == [1, 2, -1]
    [record] = load(integers).tensors
    assert (record.dtype, record.nbytes, record.file_offset) == ("I64", 24, None)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (b"\x08\x03\x10\x01" + length(8, b"w"), "needs 12 bytes, but has no data"),
        (b"\x08\x03\x10\x01" + length(8, b"w") + length(4, bytes(8)), "needs 12 bytes, but has 8 in its data field"),
        (b"\x08\x03\x10\x01" + length(8, b"w") + length(5, bytes(3)), "but has no data"),
        (b"\x08\x03\x10\x07" + length(8, b"w") + length(7, bytes(2)), "needs 24 bytes, but has 2"),
        (b"\x08\x03\x10\x07" + length(8, b"w") + length(7, bytes(31)), "needs 24 bytes, but has 31"),
        (b"\x08\x03" + length(8, b"w") + length(9, bytes(12)), "has the data type 0, which ONNX does not have"),
        (b"\x08\x03\x10\x63" + length(8, b"w") + length(9, bytes(12)), "has the data type 99"),
        (b"\x08" + varint((1 << 64) - 3) + b"\x10\x01" + length(8, b"w") + length(9, b""), "a shape that no tensor has: [-3]"),
        (b"\x08\x80\x80\x80\x80\x08" * 4 + b"\x10\x01" + length(8, b"w") + length(9, b""), "a shape that no tensor has"),
        (b"\x08\x80\x80\x80\x80\x08" * 4 + b"\x08\x00\x10\x01" + length(8, b"w") + length(9, b""), "a shape that no tensor has"),
        (b"\x08\x01" * 65 + b"\x10\x01" + length(8, b"w") + length(9, bytes(4)), "more than 64 dimensions"),
        (length(1, b"\x80") + b"\x10\x01" + length(8, b"w"), "a number that does not end"),
        (b"\x08\x03\x10\x01" + length(8, b"w" * 5000), "a name of 5,000 bytes"),
        (b"\x08\x03\x10\x01" + length(8, b"w") + length(9, bytes(12)) + b"\x0b", "wire type 3"),
        (b"\x08\x03\x10\x01\x70\x01" + length(8, b"w"), "'w' lies outside of the model, and no file is named"),
    ],
)
def test_a_broken_tensor_is_told_and_those_beside_it_are_read(tensor: bytes, told: str) -> None:
    good = b"\x08\x01\x10\x01" + length(8, b"good") + length(9, bytes(4))
    data = b"\x08\x0a" + length(7, length(5, good) + length(5, tensor) + length(5, good.replace(b"good", b"more")))
    found = load(data)
    [what] = words(found)
    assert told in what
    assert found.problems[0].offset is not None
    assert [record.name for record in found.tensors] == ["good", "more"]


def test_two_tensors_of_one_name_are_told() -> None:
    found = load(model(numpy_helper.from_array(table(1), "w"), numpy_helper.from_array(table(2), "w")).SerializeToString())
    assert words(found) == ["has two tensors with the name 'w': readers take one of them"]
    assert found.problems[0].tensors == ("w",)


def test_strings_have_no_numbers_and_are_passed_over() -> None:
    found = load(model(helper.make_tensor("words", TensorProto.STRING, (2,), [b"a", b"b"])).SerializeToString())
    assert found.tensors == found.problems == found.unread == ()


def test_a_sparse_tensor_is_counted_and_said_not_to_be_compared() -> None:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([0, 5], np.int64), "i")
    whole = model()
    whole.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 3]))
    found = load(whole.SerializeToString())
    assert [(record.name, record.shape) for record in found.tensors] == [("sparse", (2,)), ("sparse.indices", (2,))]
    assert found.unread == ("sparse is a sparse matrix, which is not compared",)


def test_weights_are_not_read() -> None:
    weights = [numpy_helper.from_array(np.zeros((1000, 500), np.float32), f"w{n}") for n in range(10)]
    source = MemorySource(NAME, model(*weights).SerializeToString())
    found = loader.load(source)
    assert len(found.tensors) == 10
    assert source.meter.requests <= 12
    assert source.meter.bytes_read <= 12 * 4096


# constants, bodies, functions


def test_constants_and_tensors_in_bodies_and_functions_are_found_and_stay_apart() -> None:
    def branch(seed: int) -> onnx.GraphProto:
        nodes = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(table(seed, 2, 2), "its own name"))]
        return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("c", 1, None)], [numpy_helper.from_array(table(seed), "w")])

    def choice(name: str) -> onnx.NodeProto:
        return helper.make_node("If", ["flag"], [name], name, then_branch=branch(1), else_branch=branch(2))

    nodes = [
        helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([1, -1]))),
        helper.make_node("Constant", [], ["number"], value_float=1.0),
        choice("first"),
        choice("second"),
        helper.make_node("MyOp", [], ["z"], "mine", domain="my", tensors=[numpy_helper.from_array(table(5, 1, 2))]),
        helper.make_node("Twice", ["shape"], ["t"], domain="my"),
    ]
    function = helper.make_function(
        "my", "Twice", ["x"], ["o"],
        [helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(table(7, 3, 3))), *chain(("Mul", ["x", "w"], "o"))],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    whole = helper.make_model(graph(nodes, [numpy_helper.from_array(table(3), "w")]), functions=[function])
    found = load(whole.SerializeToString())
    assert found.problems == ()
    assert {(record.name, record.shape) for record in found.tensors} == {
        ("w", (V, H)), ("shape", (2,)), ("MyOp mine.tensors", (1, 2)), ("Twice/w", (3, 3)),
        ("then_branch/w", (V, H)), ("then_branch/c", (2, 2)), ("else_branch/w", (V, H)), ("else_branch/c", (2, 2)),
        ("If second/then_branch/w", (V, H)), ("If second/then_branch/c", (2, 2)),
        ("If second/else_branch/w", (V, H)), ("If second/else_branch/c", (2, 2)),
    }  # fmt: skip
    assert len({record.storage.ident for record in found.tensors}) == len(found.tensors)


def test_an_attribute_can_hold_several_bodies() -> None:
    bodies = [helper.make_graph([], "g", [], [], [numpy_helper.from_array(table(n), "w")]) for n in range(3)]
    node = helper.make_node("Choose", ["x"], ["y"], "n", domain="my", cases=bodies)
    found = load(model(nodes=[node]).SerializeToString())
    assert [record.name for record in found.tensors] == ["cases/w", "Choose n/cases/w", "cases#2/w"]


def test_a_name_in_bodies_in_bodies_stays_short() -> None:
    inner = helper.make_graph([], "g", [], [], [numpy_helper.from_array(table(), "w")])
    for _ in range(30):
        node = helper.make_node("Loop", [], [], **{"a" * 100: inner})
        inner = helper.make_graph([node], "g", [], [])
    [record] = load(helper.make_model(inner).SerializeToString()).tensors
    assert len(record.name) < 250


def test_bodies_that_never_end_are_told() -> None:
    body = b""
    for _ in range(60):
        body = length(1, length(4, b"If") + length(5, length(1, b"t") + length(6, body)))
    assert words(load(b"\x08\x0a" + length(7, body))) == ["messages are nested more than 100 deep"]


# data in files beside the model


@pytest.mark.parametrize("one_file", [True, False])
def test_external_data_lies_where_the_library_finds_it(tmp_path: Path, one_file: bool) -> None:
    whole = model(*(numpy_helper.from_array(table(n, 50 + n), f"w{n}") for n in range(5)), numpy_helper.from_array(table(9, 1, 2), "small"))
    onnx.save(
        whole, tmp_path / NAME, save_as_external_data=True, all_tensors_to_one_file=one_file, location="weights.pb" if one_file else None
    )
    found = load_folder(tmp_path)
    assert words(found) == []
    assert found.unread == ()
    truth = onnx.load(tmp_path / NAME)
    for record, tensor in zip(found.tensors, truth.graph.initializer, strict=True):
        assert (record.name, record.shape, record.nbytes) == (tensor.name, tuple(tensor.dims), len(tensor.raw_data))
        assert record.file_offset is not None
        data = (tmp_path / record.file).read_bytes()
        assert data[record.file_offset :][: record.nbytes] == tensor.raw_data
    files = sorted(path.name for path in tmp_path.iterdir() if path.name != NAME)
    assert len(files) == (1 if one_file else 5)
    assert sorted(found.data) == [(name, (tmp_path / name).stat().st_size) for name in files]
    assert found.tensors[-1].file == NAME
    assert found.storages == tuple(record.storage for record in found.tensors)


def external(name: str, shape: tuple[int, ...] = (V, H), **entries: Any) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(path: Path, *weights: onnx.TensorProto, name: str = NAME, **files: bytes) -> LoadedFile:
    path.mkdir(exist_ok=True)
    for file, content in files.items():
        (path / file.replace("__", ".")).write_bytes(content)
    (path / name).write_bytes(model(*weights).SerializeToString())
    return load_folder(path, name)


def test_one_range_is_one_storage(tmp_path: Path) -> None:
    data = rng().bytes(2 * V * H * 4)
    half = V * H * 4
    found = write(
        tmp_path,
        external("a", location="w.bin", offset=0, length=half),
        external("b", location="w.bin", length=half),
        external("c", location="./w.bin"),
        external("d", location="w.bin", offset=half, length=half),
        external("e", (H, V), location="w.bin", offset=0, length=half),
        w__bin=data,
    )
    assert words(found) == []
    a, b, c, d, e = found.tensors
    assert a.view == b.view == c.view
    assert a.view not in (d.view, e.view)
    assert a.storage == e.storage
    assert [(storage.file, storage.offset, storage.nbytes) for storage in found.storages] == [("w.bin", 0, half), ("w.bin", half, half)]
    assert found.data == (("w.bin", 2 * half),)


@pytest.mark.parametrize(
    "location",
    ["../up.bin", "/etc/passwd", "a/../../up.bin", "sub/../w.bin", "..\\up.bin", "C:\\up.bin", "w\0.bin",
     "nothing.bin", ".", "sub", "fifo", "link", "..", "*/_ORT_MEM_ADDR_/*", "a" * 3000],
)  # fmt: skip
def test_data_files_that_are_missing_or_may_not_be_opened_are_told(tmp_path: Path, location: str) -> None:
    inside = tmp_path / "in"
    (inside / "sub").mkdir(parents=True)
    os.mkfifo(inside / "fifo")
    (tmp_path / "up.bin").write_bytes(bytes(V * H * 4))
    (inside / "w.bin").write_bytes(bytes(V * H * 4))
    (inside / "link").symlink_to(tmp_path / "up.bin")
    found = write(inside, external("a", location=location), external("b", location=location), numpy_helper.from_array(table(), "c"))
    [problem] = found.problems
    assert problem.tensors == ("a", "b")
    assert "which holds the data of 2 tensors, " in problem.what
    assert [record.name for record in found.tensors] == ["c"]
    assert found.data == ()
    [edition] = checkpoint(inside).editions
    assert not edition.whole


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"offset": -4}, "'a' lies in w.bin, and its offset is no decimal number: '-4'"),
        ({"offset": "0x10"}, "its offset is no decimal number: '0x10'"),
        ({"offset": "1e3"}, "offset is no decimal number"),
        ({"offset": "٣"}, "offset is no decimal number"),
        ({"offset": "9" * 4000}, "offset is no decimal number: '9999"),
        ({"length": " 12"}, "its length is no decimal number"),
        ({"length": V * H * 4 - 1}, "needs 6,144 bytes, but has 6,143 in w.bin"),
        ({"length": V * H * 4 + 1}, "needs 6,144 bytes, but has 6,145 in w.bin"),
        ({"offset": 1}, "'a' ends at byte 6,145 of w.bin, which has 6,144: truncated file?"),
        ({"offset": "9" * 20}, "of w.bin, which has 6,144: truncated file?"),
    ],
)
def test_offsets_and_lengths_are_bounded_by_the_data_file(tmp_path: Path, entries: dict[str, Any], told: str) -> None:
    found = write(tmp_path, external("a", location="w.bin", **entries), external("good", location="w.bin"), w__bin=bytes(V * H * 4))
    [problem] = found.problems
    assert told in problem.what
    assert problem.tensors == ("a",)
    assert [record.name for record in found.tensors] == ["good"]


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write(blobs, external("w", location="model.onnx_data"), name="1", model__onnx_data=table().tobytes())
    (snapshot / NAME).symlink_to(blobs / "1")
    (snapshot / "model.onnx_data").symlink_to(blobs / "model.onnx_data")
    found = load_folder(snapshot)
    assert found.problems == ()
    assert found.data == (("model.onnx_data", V * H * 4),)


def test_a_model_without_its_folder_says_that_the_data_was_not_read() -> None:
    found = load(model(external("w", location="w.bin")).SerializeToString())
    assert found.tensors == ()
    assert found.unread == ("w lies in w.bin, and this file was read alone",)


@pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx_data", "model.bin", "weights.pb", "Constant_12_attr__value"])
def test_data_files_are_no_files_of_their_own(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(table().tobytes())
    write(tmp_path, external("w", location=name))
    read = checkpoint(tmp_path)
    assert [(edition.name, edition.format, edition.whole) for edition in read.editions] == [(NAME, "onnx", True)]
    assert read.unreadable == read.elsewhere == read.unread == ()


def test_long_runs_of_a_data_file_that_no_tensor_reads_belong_to_nothing(tmp_path: Path) -> None:
    nbytes = V * H * 4
    padded, wasted = bytes(nbytes + 65_536), bytes(nbytes + 65_537)
    found = write(tmp_path / "a", external("w", location="w.bin"), w__bin=padded)
    assert len(found.storages) == 1
    found = write(tmp_path / "b", external("w", location="w.bin"), w__bin=wasted)
    assert [(storage.file, storage.offset, storage.nbytes) for storage in found.storages] == [
        ("w.bin", 0, nbytes),
        ("w.bin", nbytes, 65_537),
    ]
    found = write(tmp_path / "c", external("w", location="w.bin", offset=65_537), w__bin=wasted)
    assert [(storage.offset, storage.nbytes) for storage in found.storages] == [(65_537, nbytes), (0, 65_537)]
    # another model may be their owner, onnxruntime keeps prepacked weights there, a broken tensor may lie there
    (tmp_path / "b" / "other.onnx").write_bytes(b"")
    assert len(load_folder(tmp_path / "b").storages) == 1
    found = write(tmp_path / "d", external("w", location="w.bin", prepacked_0="x|1|2"), w__bin=wasted)
    assert len(found.storages) == 1
    found = write(tmp_path / "e", external("w", location="w.bin"), external("x", location="w.bin", length=3), w__bin=wasted)
    assert len(found.storages) == 1


# the graph


def names(*pairs: tuple[str, np.ndarray]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in pairs]


def test_one_initializer_for_both_ends() -> None:
    nodes = [
        helper.make_node("Gather", ["w", "input_ids"], ["x"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "/lm_head/MatMul"),
    ]
    found = load(model(*names(("w", table())), nodes=nodes).SerializeToString())
    [one] = found.ends
    assert (one.embedding, one.head, one.tied) == ("w", "MatMul /lm_head/MatMul", True)
    assert one.source == "the graph: Gather and MatMul read one initializer"


@pytest.mark.parametrize("shape", [(H, V), (V, H)])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "Einsum"])
def test_two_initializers(op: str, shape: tuple[int, int]) -> None:
    found = load(lm(op, *names(("embed", table(1)), ("head", table(2, *shape)))).SerializeToString())
    [one] = found.ends
    assert (one.embedding, one.head, one.tied, one.by_config) == ("embed", "head", None, True)
    assert one.source == f"the graph: Gather reads embed, {op} reads head"
    assert one.advice.startswith("let both nodes read one initializer")
    assert ("transB" in one.advice) is (shape == (H, V))


def test_a_convolution_of_one_position_is_a_head() -> None:
    assert ends(lm("Conv", *names(("embed", table(1)), ("head", table(2)[:, :, None])))) == [("embed", "head", None)]


@pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm", "QLinearConv"])
def test_operators_with_the_matrix_in_the_fourth_place(op: str) -> None:
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["x"]),
        helper.make_node(op, ["x", "s", "z", "head", "s", "z", "s", "z"], ["y"]),
    ]
    weights = names(("embed", table(1)), ("head", table(2).astype(np.int8).T.copy()), ("s", table(3, 1, 1)), ("z", np.zeros((), np.int8)))
    found = load(model(*weights, nodes=nodes).SerializeToString())
    assert [(one.embedding, one.head, one.by_config) for one in found.ends] == [("embed", "head", False)]


def chain(*steps: tuple[str, list[str], str]) -> list[onnx.NodeProto]:
    return [helper.make_node(op, inputs, [output]) for op, inputs, output in steps]


def test_ids_and_logits_are_followed_through_what_passes_them_on() -> None:
    nodes = chain(
        ("Cast", ["input_ids"], "i1"), ("Reshape", ["i1", "shape"], "i2"), ("Where", ["c", "i2", "zero"], "i3"),
        ("Unsqueeze", ["i3", "a"], "i4"), ("Identity", ["embed"], "e1"), ("Cast", ["e1"], "e2"), ("Gather", ["e2", "i4"], "x"),
        ("DequantizeLinear", ["head", "s"], "h1"), ("Transpose", ["h1"], "h2"), ("MatMul", ["x", "h2"], "l1"),
        ("Add", ["bias", "l1"], "l2"), ("Div", ["l2", "s"], "l3"), ("Tanh", ["l3"], "l4"), ("Mul", ["s", "l4"], "l5"),
        ("Reshape", ["l5", "shape"], "l6"), ("Cast", ["l6"], "y"),
    )  # fmt: skip
    weights = names(("embed", table(1)), ("head", table(2).astype(np.int8)), ("bias", table(3, V, 1)[:, 0]), ("s", table(4, 1, 1)))
    found = load(model(*weights, nodes=nodes).SerializeToString())
    assert [(one.embedding, one.head, one.by_config) for one in found.ends] == [("embed", "head", False)]


def test_positions_types_and_masks_are_no_embedding() -> None:
    nodes = chain(
        ("Gather", ["embed", "input_ids"], "x"), ("Gather", ["types", "token_type_ids"], "t"),
        ("Gather", ["positions", "position_ids"], "p"),
        ("Shape", ["input_ids"], "n"), ("Gather", ["long", "n"], "q"), ("CumSum", ["attention_mask"], "m"), ("Gather", ["long", "m"], "r"),
        ("Gather", ["long", "attention_mask"], "u"), ("Add", ["x", "p"], "s"), ("MatMul", ["s", "head"], "y"),
    )  # fmt: skip
    weights = names(
        ("long", table(3, 200)), ("types", table(4, 2)), ("positions", table(5, 150)), ("embed", table(1)), ("head", table(2).T.copy())
    )
    whole = model(*weights, nodes=nodes)
    for name in ("token_type_ids", "position_ids", "attention_mask"):
        whole.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, None))
    assert ends(whole) == [("embed", "head", None)]


def test_what_is_no_head_is_none() -> None:
    # an encoder: nothing of the embedding's width and height before the output
    assert ends(lm("MatMul", *names(("embed", table(1)), ("head", table(2, H, H))))) == []
    # a matrix of the right shape that no output comes from
    nodes = chain(("Gather", ["embed", "input_ids"], "y"), ("MatMul", ["y", "head"], "z"))
    assert ends(model(*names(("embed", table(1)), ("head", table(2, H, V))), nodes=nodes)) == []
    # one that another multiplication follows
    nodes = chain(("Gather", ["embed", "input_ids"], "x"), ("MatMul", ["x", "head"], "z"), ("MatMul", ["z", "last"], "y"))
    weights = names(("embed", table(1)), ("head", table(2, H, V)), ("last", table(3, V, 2)))
    assert ends(model(*weights, nodes=nodes)) == []
    # no table: the hidden state comes in
    nodes = chain(("MatMul", ["x", "head"], "y"))
    assert ends(model(*names(("embed", table(1)), ("head", table(2, H, V))), nodes=nodes)) == []
    # rows that floats choose
    whole = lm("MatMul", *names(("embed", table(1)), ("head", table(2, H, V))))
    whole.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert ends(whole) == []
    # columns, not rows
    whole = lm("MatMul", *names(("embed", table(1)), ("head", table(2, H, V))))
    whole.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    assert ends(whole) == []


def test_the_table_of_tokens_is_the_one_with_the_most_rows() -> None:
    nodes = chain(
        ("Gather", ["languages", "language_ids"], "g"), ("Gather", ["embed", "input_ids"], "x"),
        ("Gather", ["accents", "language_ids"], "h"), ("Add", ["x", "g"], "s"), ("MatMul", ["s", "head"], "y"),
    )  # fmt: skip
    weights = names(("languages", table(3, 4)), ("embed", table(1)), ("accents", table(4, 5)), ("head", table(2, H, V)))
    whole = model(*weights, nodes=nodes)
    whole.graph.input.append(helper.make_tensor_value_info("language_ids", TensorProto.INT32, None))
    assert ends(whole) == [("embed", "head", None)]


def test_a_choice_by_tokens_is_none_of_tokens() -> None:
    nodes = chain(
        ("Cast", ["input_ids"], "c"), ("Where", ["c", "one", "other"], "i"), ("Gather", ["embed", "i"], "x"), ("MatMul", ["x", "head"], "y")
    )
    assert ends(model(*names(("embed", table(1)), ("head", table(2, H, V))), nodes=nodes)) == []


def test_a_table_may_be_stored_transposed() -> None:
    nodes = chain(("Transpose", ["head"], "t"), ("Gather", ["t", "input_ids"], "x"), ("MatMul", ["x", "head"], "y"))
    assert ends(model(*names(("head", table(1, H, V))), nodes=nodes)) == [("head", "MatMul y", True)]
    for times, shape in ((1, (H, V)), (2, (V, H))):
        nodes = chain(
            *(("Transpose", [f"e{n}"], f"e{n + 1}") for n in range(times)), ("Gather", [f"e{times}", "input_ids"], "x"),
            ("Gather", ["long", "input_ids"], "z"), ("MatMul", ["x", "head"], "y"),
        )  # fmt: skip
        # higher than the embedding is wide
        weights = names(("e0", table(1, *shape)), ("long", table(3, H + 1, 5)), ("head", table(2, H, V)))
        assert ends(model(*weights, nodes=nodes)) == [("e0", "head", None)]


def test_a_flag_accuses_no_matrix_that_is_dequantised() -> None:
    for op, by_config in (("DequantizeLinear", False), ("Cast", True)):
        nodes = chain(("Gather", ["embed", "input_ids"], "x"), (op, ["head", "s"], "h"), ("MatMul", ["x", "h"], "y"))
        weights = [*names(("embed", table(1)), ("s", table(4, 1, 1))), raw_tensor("head", TensorProto.FLOAT8E4M3FN, (H, V))]
        [one] = load(model(*weights, nodes=nodes).SerializeToString()).ends
        assert (one.head, one.by_config) == ("head", by_config)


def test_only_the_output_that_is_used_counts() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = chain(("Gather", ["embed", "input_ids"], "x"), ("MatMul", ["x", "head"], "l"))
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(value, 1, None) for value in ("x", "l")])

    weights = names(("embed", table(1)), ("head", table(2, H, V)))
    for outputs, expected in ((["hidden", "y"], [("embed", "head", None)]), (["y", "logits"], [])):
        node = helper.make_node("If", ["flag"], outputs, then_branch=branch("then"), else_branch=branch("else"))
        assert ends(model(*weights, nodes=[node])) == expected


def test_blocks_are_the_matrix_that_their_attributes_say() -> None:
    head = rng().integers(0, 255, (V, 1, 8), np.uint8)
    for k, expected in ((H, [("embed", "head_Q4", None)]), (2 * H, [])):
        nodes = [
            helper.make_node("Gather", ["embed", "input_ids"], ["x"]),
            helper.make_node("MatMulNBits", ["x", "head_Q4", "scales"], ["y"], domain="com.microsoft", K=k, N=V, bits=4, block_size=16),
        ]
        whole = model(*names(("embed", table(1)), ("head_Q4", head), ("scales", table(2, V, 1))), nodes=nodes)
        assert ends(whole) == expected
        assert not any(one.by_config for one in load(whole.SerializeToString()).ends)


def test_a_packed_table_that_both_ends_read() -> None:
    nodes = [
        helper.make_node("Reshape", ["w_Q4", "shape"], ["flat"]),
        helper.make_node("GatherBlockQuantized", ["flat", "input_ids", "scales"], ["x"], domain="com.microsoft"),
        helper.make_node(
            "MatMulNBits", ["x", "w_Q4", "scales"], ["y"], "/lm_head", domain="com.microsoft", K=H, N=V, bits=4, block_size=16
        ),
    ]
    packed = rng().integers(0, 255, (V, 1, 8), np.uint8)
    assert ends(model(*names(("w_Q4", packed), ("scales", table(2, V, 1))), nodes=nodes)) == [("w_Q4", "MatMulNBits /lm_head", True)]


def merged(inner: list[onnx.TensorProto], outer: list[onnx.TensorProto]) -> onnx.ModelProto:
    def branch(name: str) -> onnx.GraphProto:
        nodes = chain(("Gather", ["embed", "input_ids"], "x"), ("MatMul", ["x", "head"], "l"))
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("l", 1, None)], inner)

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("then"), else_branch=branch("else"))
    return helper.make_model(graph([node], outer))


def test_branches_see_the_matrices_around_them() -> None:
    assert ends(merged([], names(("embed", table(1)), ("head", table(1).T.copy())))) == [("embed", "head", None)]
    weights = names(("embed", table(1)), ("head", table(1).T.copy()))
    assert sorted(ends(merged(weights, []))) == [
        ("else_branch/embed", "else_branch/head", None), ("then_branch/embed", "then_branch/head", None)
    ]  # fmt: skip
    assert sorted(ends(merged(weights[1:], weights[:1]))) == [("embed", "else_branch/head", None), ("embed", "then_branch/head", None)]


def test_loops_and_scans_hand_their_inputs_on() -> None:
    body = helper.make_graph(
        chain(("Gather", ["inner", "ids"], "x"), ("MatMul", ["x", "head"], "l")), "body",
        [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("count", "go", "inner", "ids")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("go", "inner", "ids", "l")],
    )  # fmt: skip
    node = helper.make_node("Loop", ["", "", "embed", "input_ids"], ["e", "i", "y"], body=body)
    weights = names(("embed", table(1)), ("head", table(1).T.copy()))
    assert ends(model(*weights, nodes=[node])) == [("embed", "head", None)]
    scan = helper.make_graph(list(body.node), "body", list(body.input[2:]), list(body.output[1:]))
    node = helper.make_node("Scan", ["embed", "input_ids"], ["e", "i", "y"], body=scan, num_scan_inputs=1)
    assert ends(model(*weights, nodes=[node])) == [("embed", "head", None)]
    # how often it runs is not what it reads
    body.node[0].input[1] = "count"
    node = helper.make_node("Loop", ["input_ids", "", "embed", "input_ids"], ["e", "i", "y"], body=body)
    assert ends(model(*weights, nodes=[node])) == []


def test_a_search_that_holds_its_decoder() -> None:
    body = graph(chain(("Gather", ["embed", "input_ids"], "x"), ("MatMul", ["x", "head"], "logits")), [], "logits")
    body.initializer.extend(names(("embed", table(1)), ("head", table(1).T.copy())))
    node = helper.make_node("BeamSearch", ["input_ids"], ["y"], domain="com.microsoft", decoder=body)
    assert ends(model(nodes=[node])) == [("decoder/embed", "decoder/head", None)]


def test_functions_are_entered_and_left() -> None:
    lookup = helper.make_function("my", "Embedding", ["w", "i"], ["o"], chain(("Gather", ["w", "i"], "o")), [helper.make_opsetid("", 20)])
    linear = helper.make_function(
        "my", "Linear", ["x", "w"], ["o"], chain(("Transpose", ["w"], "t"), ("MatMul", ["x", "t"], "o")), [helper.make_opsetid("", 20)]
    )
    nodes = [
        helper.make_node("Embedding", ["embed", "input_ids"], ["x"], domain="my"),
        helper.make_node("Linear", ["x", "inner"], ["h"], domain="my"),
        helper.make_node("Linear", ["h", "head"], ["y"], domain="my"),
    ]
    weights = names(("embed", table(1)), ("inner", table(2, H, H)), ("head", table(3)))
    for functions in ([lookup, linear], [linear, lookup]):
        assert ends(helper.make_model(graph(nodes, weights), functions=functions)) == [("embed", "head", None)]
    nodes[2].input[1] = "embed"
    assert ends(helper.make_model(graph(nodes, weights[:2]), functions=[lookup, linear])) == [("embed", "MatMul o", True)]
    # a function sees no names but its own
    nodes[2].input[1] = "head"
    linear.node[0].input[0] = "head"
    assert ends(helper.make_model(graph(nodes, weights), functions=[lookup, linear])) == []


def test_a_function_that_calls_itself_twice_ends() -> None:
    function = helper.make_function("", "F", ["x"], ["o"], chain(("F", ["x"], "a"), ("F", ["a"], "o")), [helper.make_opsetid("", 20)])
    assert ends(helper.make_model(graph(chain(("F", ["input_ids"], "y")), []), functions=[function])) == []


# what is recognised


def test_models_are_recognised_by_their_first_bytes() -> None:
    whole = lm("MatMul", *names(("embed", table(1)), ("head", table(2))))
    for version in (3, 8, 10, onnx.IR_VERSION):
        whole.ir_version = version
        for producer in ("", "pytorch"):
            whole.producer_name = producer
            data = whole.SerializeToString()
            assert loader.sniff(data[:512])
            for name in (NAME, "weights.bin"):
                assert sniff.load(MemorySource(name, data)).format == "onnx"


@pytest.mark.parametrize(
    "head", [b"", b"\x08", b"\x08\x0a\x3a", b"\x08\x00\x3a\x00", b"\x08\x80\x3a\x00", b"\x08\x0a\x3b\x00", b"\x0a\x05hello"]
)
def test_other_begins_are_not(head: bytes) -> None:
    assert not loader.sniff(head)


@pytest.mark.parametrize("data", [b"", b"\x08", b"hello", b"\x08\x0a\x12\x07pytorch", bytes(100), b"GIF89a" * 30, b"\x08\x0a\x3a\x7f\x0a"])
def test_what_is_no_model_under_its_suffix_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as told:
        sniff.load(MemorySource("decoder.onnx", data))
    assert not isinstance(told.value, UnknownFormat)
    assert "safetensors" not in told.value.what


def test_what_only_begins_like_a_model_is_another_kind_of_file() -> None:
    core_ml = b"\x08\x04" + length(2, b"description") + length(500, bytes(9))
    for data in (core_ml, b"\x08\x0a\x3a\x7f\x0a" + bytes(40)):
        with pytest.raises(UnknownFormat, match="begins like an ONNX model, but"):
            sniff.load(MemorySource("vocabulary.bin", data))


def test_a_pointer_in_place_of_a_model_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "decoder_model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    [problem] = checkpoint(tmp_path).unreadable
    assert "Git LFS pointer" in problem.what


# cut and flipped


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample")
    whole = merged(names(("embed", table(1, 8, 4)), ("head", table(1, 4, 8))), names(("w", table(2, 3, 3))))
    whole.graph.node.extend(chain(("Gather", ["w", "input_ids"], "z")))
    whole.graph.initializer.append(helper.make_tensor("typed", TensorProto.INT32, (3,), [1, 2, -3]))
    whole.graph.initializer.append(external("beside", (2, 2), location="w.bin", offset=0, length=16))
    whole.functions.append(helper.make_function("my", "F", ["x"], ["o"], chain(("Neg", ["x"], "o")), [helper.make_opsetid("", 20)]))
    (path / NAME).write_bytes(whole.SerializeToString())
    (path / "w.bin").write_bytes(bytes(16))
    return path


def judged(folder: LocalFolder, data: bytes) -> None:
    try:
        found = sniff.load(MemorySource(NAME, data), folder)
    except FormatError as error:
        str(error)
        return
    sizes = {NAME: len(data), **dict(found.data)}
    for record in found.tensors:
        if record.file_offset is not None:
            assert 0 <= record.file_offset <= record.file_offset + record.nbytes <= sizes[record.file]
        assert math.prod(record.shape) == record.numel
    for one in found.ends:
        assert one.embedding in {record.name for record in found.tensors}


def test_cut_anywhere_gives_a_format_error(sample: Path) -> None:
    data, folder = (sample / NAME).read_bytes(), LocalFolder(sample)
    judged(folder, data)
    whole = {record.name for record in load_folder(sample).tensors}
    assert "then_branch/embed" in whole
    refused = 0
    for end in range(len(data)):
        try:
            found = sniff.load(MemorySource(NAME, data[:end]), folder)
        except FormatError:
            refused += 1
        else:  # cut between two fields of the model: the last ones are gone
            assert end > len(data) - 80
            assert {record.name for record in found.tensors} == whole
    assert refused > len(data) - 5
    folder.close()


def test_any_byte_flipped_gives_records_or_a_format_error(sample: Path) -> None:
    data, dice, folder = (sample / NAME).read_bytes(), random.Random(1), LocalFolder(sample)
    for at in range(len(data)):
        for flip in {1 << dice.randrange(8), dice.randrange(1, 256), 0x80, 0x01}:
            judged(folder, data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
    folder.close()


def test_seeded_mutations_give_records_or_a_format_error(sample: Path) -> None:
    data, dice, folder = (sample / NAME).read_bytes(), random.Random(2), LocalFolder(sample)
    for _ in range(3000):
        text = data
        for _ in range(dice.randrange(1, 4)):
            at, width = dice.randrange(len(text)), dice.choice([0, 0, 1, 2, 8])
            other = text[dice.randrange(len(text)) :][: dice.randrange(24)]
            text = text[:at] + dice.choice([other, b"", b"\xff" * 9 + b"\x01", b"\x80", b"\x0a\x00", b"\x3a\x7f"]) + text[at + width :]
        judged(folder, text)
    folder.close()


# time and memory

HOSTILE = {
    "fields": 'model(ld(2, b"") * (N // 2))',
    "nodes": 'model(ld(1, b"") * (N // 2))',
    "inputs": 'model(ld(1, ld(1, b"ab") * (N // 4)))',
    "tensors": 'model(b"".join(ld(5, ld(8, b"%x" % n) + b"\\x10\\x01\\x08\\x00") for n in range(N // 14)))',
    "faults": 'model(b"".join(ld(5, ld(8, b"%x" % n) + b"\\x10\\x63") for n in range(N // 14)))',
    "names": 'model(ld(1, ld(1, b"\\xff" * 4000)) * (N // 4010))',
    "data files": 'model(b"".join(ld(5, ld(8, b"%x" % n) + b"\\x10\\x01\\x08\\x00\\x70\\x01" + ld(13, ld(1, b"location")'
    ' + ld(2, b"f%d" % n))) for n in range(N // 40)))',
    "lookups": 'model(ld(5, ld(8, b"E") + b"\\x10\\x01\\x08\\x02\\x08\\x02" + ld(9, bytes(16)))'
    ' + ld(11, ld(1, b"ids") + ld(2, ld(1, b"\\x08\\x07")))'
    ' + b"".join(ld(1, ld(4, b"Cast") + ld(1, b"c%d" % (n - 1) if n else b"ids") + ld(2, b"c%d" % n)) for n in range(19000))'
    ' + ld(1, ld(4, b"Gather") + ld(1, b"E") + ld(1, b"c18999") + ld(2, b"y")) * 20000)',
    "calls": 'b"\\x08\\x0e" + ld(7, ld(1, ld(4, b"f0") + ld(2, b"y")) + ld(12, ld(1, b"y"))) + b"".join(ld(25, ld(1, b"f%d" % n)'
    ' + ld(5, b"o") + ld(7, ld(4, b"f%d" % (n + 1)) + ld(2, b"a")) + ld(7, ld(4, b"f%d" % (n + 1)) + ld(2, b"o"))) for n in range(60))',
}
SCRIPT = """
import sys, time
from pathlib import Path
from tieaudit.errors import FormatError
from tieaudit.loaders import onnx
from tieaudit.sources.local import LocalFolder

def highest():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

path = Path(sys.argv[1])
folder = LocalFolder(path.parent)
source = folder.open(path.name)
begin = time.process_time()
try:
    found = onnx.load(source, folder)
    assert len(found.problems) <= 103
except FormatError:
    pass
print(time.process_time() - begin, highest())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_takes_bounded_time_and_memory(case: str, tmp_path: Path) -> None:
    names = {"N": 8_000_000, "ld": length, "model": lambda body: b"\x08\x0e" + length(7, body)}
    (tmp_path / NAME).write_bytes(eval(HOSTILE[case], names))  # noqa: S307  our own words above
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / NAME)], capture_output=True, text=True, check=True)
    seconds, highest = done.stdout.split()
    assert float(seconds) < 6  # 2 on a machine at rest
    assert int(highest) < 300 << 10


def test_limits_are_told_as_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lm("MatMul", *names(("embed", table(1)), ("head", table(2)))).SerializeToString()
    for module, limit, value, told in (
        (loader, "MAX_NODES", 1, "1 nodes"),
        (onnx_tensors, "MAX_TENSORS", 1, "1 tensors"),
        (onnx_graph, "MAX_LOOKED_UP", 2, "2 steps between its nodes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, value)
            found = load(data)
            assert found.unread == (f"it has more than {told}: not all of it was looked at",)
            assert found.ends == ()
