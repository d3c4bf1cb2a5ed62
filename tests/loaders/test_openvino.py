"""OpenVINO's IR, written by openvino and held to what it reads of the same graph."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile, TensorRecord
from tieaudit.errors import FormatError, UnknownFormat
from tieaudit.loaders import openvino, sniff

NAME, BESIDE = "openvino_model.xml", "openvino_model.bin"
ELEMENTS = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2", "f8e8m0": "F8_E8M0", "f4e2m1": "F4",
    "nf4": "NF4", "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "i4": "I4", "u64": "U64", "u32": "U32", "u16": "U16", "u8": "U8",
    "u4": "U4", "u2": "U2", "u1": "U1", "boolean": "BOOL",
}  # fmt: skip


@dataclass
class Files:
    """The one or two files that a loader may look at."""

    files: dict[str, bytes] = field(default_factory=dict)
    remote: bool = False

    def exists(self, name: str) -> bool:
        return name in self.files

    def open(self, name: str) -> MemorySource:
        if self.files[name] == b"refused":
            raise FormatError(name, "is a link that leaves the folder: not opened")
        return MemorySource(name, self.files[name])


def load(xml: bytes | str, data: bytes | None = None) -> LoadedFile:
    raw = xml.encode() if isinstance(xml, str) else xml
    return openvino.load(MemorySource(NAME, raw), Files({BESIDE: data} if data is not None else {}))  # type: ignore[arg-type]


def saved(model: ov.Model, path: Path) -> tuple[bytes, bytes]:
    ov.save_model(model, path / NAME, compress_to_fp16=False)
    return (path / NAME).read_bytes(), (path / BESIDE).read_bytes()


def by_name(found: LoadedFile) -> dict[str, TensorRecord]:
    return {tensor.name: tensor for tensor in found.tensors}


def matrix(rows: int = 50, columns: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def constant(array: np.ndarray, name: str) -> Any:
    node = ops.constant(array)
    node.set_friendly_name(name)
    return node


def named(node: Any, name: str) -> Any:
    node.set_friendly_name(name)
    return node


def model(table: Any, weight: Any, *, transpose: bool = True, behind: Callable[[Any], Any] = lambda node: node, more: Any = ()) -> ov.Model:
    """Token ids look `table` up, and the product with `weight` is the result."""
    ids = ops.parameter([-1, -1], np.int64, "ids")
    found = named(ops.gather(table, ids, ops.constant(np.int64(0))), "lookup")
    hidden = ops.tanh(found)
    product = named(ops.matmul(hidden, weight, False, transpose), "product")
    return ov.Model([ops.result(behind(product)), *(ops.result(node) for node in more)], [ids], "test")


# what openvino writes


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_element_type_with_shape_and_bytes(element: str, tmp_path: Path) -> None:
    kind = getattr(ov.Type, element)
    tensor = ov.Tensor(kind, [3, 8])
    raw = np.frombuffer(tensor.data.tobytes(), np.uint8)
    node = named(ops.constant(tensor), "weight")
    xml, data = saved(ov.Model([ops.result(node)], [], "test"), tmp_path)
    found = load(xml, data)
    assert (found.format, found.name, found.nbytes, found.foreign, found.problems) == ("openvino", NAME, len(xml), True, ())
    assert found.data == ((BESIDE, len(data)),)
    (record,) = found.tensors
    assert (record.name, record.dtype, record.shape, record.nbytes) == ("weight", ELEMENTS[element], (3, 8), len(raw))
    assert (record.file, record.storage.offset, record.strides) == (BESIDE, 0, None)
    assert record.nbytes == len(data)


def test_a_type_of_odd_bits_is_bytes(tmp_path: Path) -> None:
    tensor = ov.Tensor(ov.Type.u3, [3, 8])
    xml, data = saved(ov.Model([ops.result(named(ops.constant(tensor), "weight"))], [], "test"), tmp_path)
    (record,) = load(xml, data).tensors
    assert (record.dtype, record.shape, record.nbytes) == ("BYTES", (len(data),), len(data))


def test_strings_are_no_weights() -> None:
    # written by hand: openvino crashes on making such a constant from Python
    (record,) = load(net(layer('element_type="string" shape="2" offset="4" size="12"')), bytes(16)).tensors
    assert (record.dtype, record.shape, record.storage.offset) == ("BYTES", (12,), 4)


def test_offsets_are_those_that_openvino_reads(tmp_path: Path) -> None:
    arrays = {"a": matrix(), "b": matrix(16, 50, 1), "c": np.arange(6, dtype=np.int64).reshape(1, 2, 3), "s": np.float32(3)}
    nodes = [constant(array, name) for name, array in arrays.items()]
    xml, data = saved(ov.Model([ops.result(node) for node in nodes], [], "test"), tmp_path)
    tensors = by_name(load(xml, data))
    again = {
        node.get_friendly_name(): node for node in ov.Core().read_model(tmp_path / NAME).get_ops() if node.get_type_name() == "Constant"
    }
    assert set(tensors) == set(again) == set(arrays)
    for name, tensor in tensors.items():
        assert tensor.shape == arrays[name].shape == tuple(again[name].shape)
        assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == arrays[name].tobytes() == again[name].data.tobytes()


def test_constants_inside_of_branches(tmp_path: Path) -> None:
    branches = []
    for seed in (1, 2):
        inner = ops.parameter([50, 16], np.float32)
        branches.append(ov.Model([ops.result(ops.add(inner, constant(matrix(seed=seed), "weight")))], [inner], f"branch{seed}"))
    condition, value = ops.parameter([], np.bool_), ops.parameter([50, 16], np.float32)
    node = ops.if_op(condition)
    node.set_then_body(branches[0])
    node.set_else_body(branches[1])
    node.set_input(value.output(0), branches[0].get_parameters()[0], branches[1].get_parameters()[0])
    out = node.set_output(branches[0].get_results()[0], branches[1].get_results()[0])
    xml, data = saved(ov.Model([ops.result(out)], [condition, value], "test"), tmp_path)
    found = load(xml, data)
    assert sorted(tensor.name.partition(" ")[0] for tensor in found.tensors) == ["weight", "weight"]
    assert {data[tensor.file_offset : tensor.file_offset + tensor.nbytes] for tensor in found.tensors} == {
        matrix(seed=seed).tobytes() for seed in (1, 2)
    }
    assert found.problems == ()


# where the ends are


def test_one_constant(tmp_path: Path) -> None:
    weight = constant(matrix(), "weight")
    (ends,) = load(*saved(model(weight, weight), tmp_path)).ends
    assert (ends.embedding, ends.head, ends.tied) == ("weight", "product", True)
    assert ends.source == "the graph reads one constant in lookup and in product"


def test_equal_constants_are_merged_by_openvino_itself(tmp_path: Path) -> None:
    found = load(*saved(model(constant(matrix(), "table"), constant(matrix(), "weight")), tmp_path))
    (ends,) = found.ends
    tensors = by_name(found)
    assert tensors["table"].view == tensors["weight"].view
    assert (ends.embedding, ends.head, ends.tied) == ("table", "weight", True)


@pytest.mark.parametrize("transpose", [True, False])
def test_two_constants(tmp_path: Path, *, transpose: bool) -> None:
    weight = matrix(seed=1) if transpose else matrix(16, 50, 1)
    found = load(*saved(model(constant(matrix(), "table"), constant(weight, "weight"), transpose=transpose), tmp_path))
    assert [(ends.embedding, ends.head, ends.tied, ends.by_config) for ends in found.ends] == [("table", "weight", None, True)]


@pytest.mark.parametrize("shape", [(40, 16), (51, 8), (16, 16)])
def test_a_table_of_another_size_is_not_the_heads(shape: tuple[int, int], tmp_path: Path) -> None:
    weight = matrix(50, shape[1], 1)
    assert load(*saved(model(constant(matrix(*shape), "table"), constant(weight, "weight")), tmp_path)).ends == ()


BEHIND: dict[str, Callable[[Any], Any]] = {
    "bias": lambda node: ops.add(node, ops.constant(matrix(1, 50, 9))),
    "scale": lambda node: ops.multiply(ops.constant(np.float32(3)), node),
    "cap": lambda node: ops.multiply(ops.tanh(ops.divide(node, ops.constant(np.float32(30)))), ops.constant(np.float32(30))),
    "convert": lambda node: ops.convert(ops.convert(node, np.float16), np.float32),
    "reshape": lambda node: ops.reshape(node, ops.constant(np.array([-1, 50])), special_zero=False),
    "last token": lambda node: ops.gather(node, ops.constant(np.int64(-1)), ops.constant(np.int64(1))),
    "probabilities": lambda node: ops.log_softmax(node, -1),
}


@pytest.mark.parametrize("step", BEHIND)
def test_what_may_stand_behind_the_product(step: str, tmp_path: Path) -> None:
    weight = constant(matrix(), "weight")
    assert [ends.tied for ends in load(*saved(model(weight, weight, behind=BEHIND[step]), tmp_path)).ends] == [True]


def test_a_sum_of_two_activations_is_no_end(tmp_path: Path) -> None:
    weight = constant(matrix(), "weight")
    assert load(*saved(model(weight, weight, behind=lambda node: ops.add(node, ops.relu(node))), tmp_path)).ends == ()


def test_more_results_and_other_tables(tmp_path: Path) -> None:
    weight, position = constant(matrix(), "weight"), constant(matrix(seed=5), "position")
    places = ops.parameter([-1, -1], np.int64, "places")
    ids = ops.parameter([-1, -1], np.int64, "ids")
    zero = ops.constant(np.int64(0))
    hidden = ops.tanh(ops.add(ops.gather(weight, ids, zero), ops.gather(position, places, zero)))
    key = ops.matmul(hidden, constant(matrix(16, 16, 7), "key"), False, True)
    xml, data = saved(ov.Model([ops.result(key), ops.result(ops.matmul(hidden, weight, False, True))], [ids, places], "test"), tmp_path)
    assert [(ends.embedding, ends.tied) for ends in load(xml, data).ends] == [("weight", True)]
    own = ops.matmul(hidden, constant(matrix(seed=8), "own"), False, True)
    xml, data = saved(ov.Model([ops.result(own)], [ids, places], "test"), tmp_path)
    assert load(xml, data).ends == (), "which of two tables of one size is the head's, nobody knows"


def compressed(codes: Any, scale: np.ndarray, *, zero: float | None = 128) -> Any:
    value = ops.convert(codes, np.float32)
    if zero is not None:
        value = ops.subtract(value, ops.convert(ops.constant(np.full((50, 1), zero, np.uint8)), np.float32))
    return ops.multiply(value, ops.constant(scale))


def test_compressed_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scale, other = np.abs(matrix(50, 1)), np.abs(matrix(50, 1, 1))
    raw = rng.integers(0, 255, (50, 16), np.uint8)
    codes = constant(raw, "codes")
    tied = compressed(codes, scale)
    (ends,) = load(*saved(model(tied, tied), tmp_path)).ends
    assert (ends.embedding, ends.head, ends.tied) == ("codes", "product", True)
    # the same codes and equal scales, merged by openvino
    (ends,) = load(*saved(model(compressed(codes, scale), compressed(codes, scale)), tmp_path)).ends
    assert (ends.embedding, ends.head, ends.tied) == ("codes", "product", True)
    # under other scales they are other numbers, and of codes nobody can tell
    assert load(*saved(model(compressed(codes, scale), compressed(codes, other)), tmp_path)).ends == ()
    assert load(*saved(model(compressed(codes, scale), compressed(codes, scale, zero=None)), tmp_path)).ends == ()
    more = constant(rng.integers(0, 255, (50, 16), np.uint8), "more")
    assert load(*saved(model(compressed(codes, scale), compressed(more, scale)), tmp_path)).ends == ()
    assert load(*saved(model(constant(matrix(), "table"), compressed(codes, scale)), tmp_path)).ends == ()


def test_groups_of_columns(tmp_path: Path) -> None:
    codes = constant(np.random.default_rng(0).integers(0, 15, (50, 4, 4), np.uint8), "codes")
    value = ops.multiply(ops.convert(codes, np.float32), ops.constant(np.ones((50, 4, 1), np.float32) * 3))
    weight = ops.reshape(value, ops.constant(np.array([50, 16])), special_zero=False)
    (ends,) = load(*saved(model(weight, weight), tmp_path)).ends
    assert (ends.embedding, ends.head, ends.tied) == ("codes", "product", True)


def test_halves(tmp_path: Path) -> None:
    weight = ops.convert(constant(matrix().astype(np.float16), "half"), np.float32)
    assert [(ends.embedding, ends.tied) for ends in load(*saved(model(weight, weight), tmp_path)).ends] == [("half", True)]


# broken and hostile


def layer(data: str, name: str = "w", number: int = 0) -> str:
    return f'<layer id="{number}" name="{name}" type="Const" version="opset1"><data {data}/></layer>'


def net(layers: str = "", edges: str = "", version: str = "11") -> str:
    return f'<?xml version="1.0"?>\n<net name="m" version="{version}"><layers>{layers}</layers><edges>{edges}</edges></net>'


GOOD = layer('element_type="f32" shape="2" offset="0" size="8"', "good", 9)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ('element_type="f32" shape="2" offset="4" size="12"', "has 12 bytes for f32 (2,)"),
        ('element_type="f32" shape="2" offset="9" size="8"', f"ends at byte 17 of {BESIDE}, which has 16: truncated file?"),
        ('element_type="u4" shape="3" offset="0" size="1"', "has 1 bytes for u4 (3,)"),
        ('element_type="f32" shape="99999999999,99999999999,99999999999" offset="0" size="8"', "has 8 bytes for f32"),
        ('element_type="f32" shape="2" offset="-1" size="8"', "does not say where its bytes are"),
        ('element_type="f32" shape="2" offset="99999999999999999999" size="8"', "does not say where its bytes are"),
        ('element_type="f32" shape="2" offset="4611686018427387904" size="8"', "does not say where its bytes are"),
        ('element_type="f32" shape="2" offset="٣" size="8"', "does not say where its bytes are"),
        ('element_type="f32" shape="?" offset="0" size="8"', "does not say where its bytes are"),
        (f'element_type="f32" shape="{"1," * 80}2" offset="0" size="8"', "does not say where its bytes are"),
        ('shape="2" offset="0" size="8"', "does not say where its bytes are"),
    ],
)
def test_a_broken_constant_is_a_problem_and_the_rest_is_read(data: str, what: str) -> None:
    found = load(net(layer(data) + GOOD), bytes(16))
    (problem,) = found.problems
    assert what in problem.what
    assert problem.tensors == ("w",)
    assert [tensor.name for tensor in found.tensors] == ["good"]


BOMB = '<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("xml", "what"),
    [
        (BOMB + ']><net name="&j;"></net>', "document type or entities"),
        ('<!DOCTYPE net SYSTEM "file:///etc/passwd"><net></net>', "document type or entities"),
        ('<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]><net name="a">&x;</net>', "document type or entities"),
        ('<net name="&x;"></net>', "not well-formed XML: undefined entity"),
        ("<net>" * 300, "nested more than 200 deep"),
        ("<net><layers>", "not well-formed XML: no element found"),
        ('<net version="11" version="11"/>', "not well-formed XML: duplicate attribute"),
        ("<net>\0</net>", "not well-formed XML"),
        ("<net>" + "".join(f"<a{number}/>" for number in range(6_000)) + "</net>", "over 5,000 kinds of elements"),
        ("<net " + " ".join(f'a{number}=""' for number in range(6_000)) + "/>", "over 5,000 kinds of elements"),
        ("<net><!-- " + "<" * 3_000_000 + " --></net>", "a tag or comment of over 1,048,576 bytes"),
        ("<net name='" + "x" * 3_000_000 + "'></net>", "a tag or comment of over 1,048,576 bytes"),
    ],
)
def test_hostile_xml(xml: str, what: str) -> None:
    started = time.process_time()
    with pytest.raises(FormatError, match=what):
        load(xml, b"")
    assert time.process_time() - started < 15


def test_an_encoding_is_not_looked_up() -> None:
    xml = b'<?xml version="1.0" encoding="idna"?><net version="11"></net>'
    assert load(xml, b"").tensors == ()


def test_too_much_is_unread_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, number, words in (
        ("MAX_XML", 100, "bytes long; at most 100 are read"),
        ("MAX_ELEMENTS", 3, "has over 3 elements"),
        ("MAX_LAYERS", 1, "has over 1 layers"),
        ("MAX_EDGES", 1, "has over 1 edges"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(openvino, limit, number)
            edge = '<edge from-layer="9" from-port="0" to-layer="8" to-port="0"/>'
            found = load(net(layer('shape="2"', "a", 8) + GOOD, edge * 2), bytes(16))
        assert words in found.unread[0]
        assert (found.tensors, found.problems, found.data) == ((), (), ((BESIDE, 16),))


def test_an_old_version_is_unread() -> None:
    found = load(net(GOOD, version="7"), bytes(8))
    assert found.unread == ("is version 7 of the IR, which is not read here",)


def test_without_its_bytes() -> None:
    found = load(net(GOOD))
    assert [problem.what for problem in found.problems] == [f"needs {BESIDE} for its constants, which is not there"]
    assert [(tensor.name, tensor.shape, tensor.file_offset) for tensor in found.tensors] == [("good", (2,), None)]
    assert load(net()).problems == ()
    (problem,) = load(net(GOOD), b"refused").problems
    assert problem.what == f"needs {BESIDE} for its constants, which is a link that leaves the folder: not opened"
    (problem,) = load(net(GOOD + layer("", "other", 9)), bytes(8)).problems[:1]
    assert problem.what == "has two layers with the id '9'"
    assert (
        load(net("", '<edge from-layer="0" from-port="0" to-layer="1" to-port="x"/>')).problems[0].what
        == "has an edge that leads to no layer"
    )


def test_a_graph_that_goes_round() -> None:
    layers = "".join(
        f'<layer id="{number}" name="l" type="{kind}"/>' for number, kind in enumerate(("Result", "Multiply", "MatMul", "Gather"))
    )
    edges = "".join(
        f'<edge from-layer="{begin}" to-layer="{end}" to-port="{port}"/>'
        for begin, end, port in ((1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 2, 0), (1, 2, 1), (1, 3, 0), (3, 3, 1))
    )
    assert load(net(layers, edges)).ends == ()


def test_many_layers_in_time() -> None:
    started = time.process_time()
    layers = "".join(layer('element_type="f32" shape="2" offset="0" size="8"', f"w{number}", number) for number in range(50_000))
    found = load(net(layers), bytes(8))
    assert len(found.tensors) == 50_000
    assert len(found.storages) == 1
    assert time.process_time() - started < 25


def test_cut_anywhere_flip_any_byte(tmp_path: Path) -> None:
    rng = random.Random(4)
    xml, data = saved(model(constant(matrix(5, 4), "table"), constant(matrix(5, 4, 1), "weight")), tmp_path)
    broken = [xml[:n] for n in range(0, len(xml), 5)]
    for _ in range(1_200):
        changed = bytearray(xml)
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] = rng.choice(b'<>"&/0 x') if rng.random() < 0.7 else rng.randrange(256)
        broken.append(bytes(changed))
    for changed in broken:
        try:
            found = load(changed, data)
        except FormatError:
            continue
        for tensor in found.tensors:
            assert tensor.file_offset is not None
            assert tensor.file_offset + tensor.nbytes <= len(data)


def test_sniff() -> None:
    assert openvino.sniff(net().encode())
    assert openvino.sniff(b"\xef\xbb\xbf" + net().encode())
    for head in (b"", b"<?xml version='1.0'?><svg/>", b"<network/>", b"<html><net>", b"net"):
        assert not openvino.sniff(head)
    with pytest.raises(UnknownFormat, match="is XML, but no OpenVINO model"):
        sniff.load(MemorySource("a.xml", b"<?xml version='1.0'?><svg/>"))
    with pytest.raises(UnknownFormat, match="is XML, but no OpenVINO model"):
        load("<a><net></net></a>")
