"""This file holds the writer of ONNX: a model without some of its initializers, whose nodes read another one in their place.

Nothing is parsed into objects: the new file is the old one with a few edits of the wire format, and everything between them is copied
as it is. Field numbers are those of onnx/onnx.proto (onnx 1.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import FormatError
from ...loaders.onnx_tensors import parse, text
from ...loaders.protobuf import LEN, VARINT, Exhausted, Wire
from ...sources import Source
from ..files import copy_range, write_all
from ..model import Rewrite
from . import Inputs

GRAPH, OPSETS, TRAINING = 7, 8, 20  # of ModelProto
NODE, INITIALIZER, INPUT, OUTPUT, ANNOTATION = 1, 5, 11, 12, 14  # of GraphProto
READS, ATTRIBUTE = 1, 5  # of NodeProto
BODIES = (6, 11)  # of AttributeProto: a graph, graphs
TRANSPOSED = {"F32": 1, "F16": 1, "F64": 1, "BF16": 13}
"""Dtypes of weights that the operator Transpose takes, with the opset from which it does (onnx/docs/Changelog.md)."""

NO_TEXT = "\ufffd"  # stands for bytes of a name that are not UTF-8, which could not be written back


class Edit(NamedTuple):
    """These bytes of the old file become others; an insertion if `begin` is `end`."""

    begin: int
    end: int
    new: bytes


@dataclass(slots=True)
class _Node:
    """A node of the main graph that reads a name of interest: its payload, and (name, begin, end) of each such input's payload."""

    begin: int
    end: int
    reads: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Model:
    """What of a model matters for the names of interest. `graphs`: payloads; `initializers` {name: payload, whether its numbers lie in
    another file}; of the names: those that are read `inside` of bodies, and those that a note on quantisation names (`noted`)."""

    graphs: list[tuple[int, int]] = field(default_factory=list)
    opset: int = 0
    training: bool = False
    initializers: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    inputs: list[tuple[str, int, int]] = field(default_factory=list)
    outputs: set[str] = field(default_factory=set)
    nodes: list[_Node] = field(default_factory=list)
    inside: set[str] = field(default_factory=set)
    noted: set[str] = field(default_factory=set)


def initializers(source: Source) -> frozenset[str]:
    """Names of the initializers of the main graph. FormatError or Exhausted if the file cannot be read to its end."""
    return frozenset(_read(source, frozenset()).initializers)


def refuses(rewrite: Rewrite, source: Source) -> str:
    """What would be lost, or would change what another reader of the name gets."""
    if any(kept.name != kept.tensor.name for kept in rewrite.tensors):
        return "its tensors cannot be renamed"
    if set(rewrite.dropped) != set(rewrite.instead):
        return "nodes would read a tensor that is not there"
    try:
        model = _read(source, frozenset(rewrite.instead))
        return _fault(rewrite, model) or _unfit(_edits(rewrite, model, source))
    except Exhausted as error:
        return f"it has more than {error.what}: not all of it was looked at"
    except FormatError as error:
        return error.what


def write(rewrite: Rewrite, inputs: Inputs, out: int) -> None:
    source, descriptor = inputs.sources[rewrite.source], inputs.descriptors[rewrite.source]
    at = done = 0
    for edit in _edits(rewrite, _read(source, frozenset(rewrite.instead)), source):
        copy_range(descriptor, done, out, at, edit.begin - done, rewrite.source)
        at += edit.begin - done
        write_all(out, edit.new, at)
        at, done = at + len(edit.new), edit.end
    copy_range(descriptor, done, out, at, source.nbytes - done, rewrite.source)


def _fault(rewrite: Rewrite, model: _Model) -> str:
    if len(model.graphs) != 1:
        return "it has more than one graph"
    if model.training:
        return "it describes a training run, which refers to initializers by name"
    dtypes = {kept.tensor.name: kept.tensor.dtype for kept in rewrite.tensors}
    for name, (kept, swapped) in rewrite.instead.items():
        if name not in model.initializers or kept not in model.initializers:
            return f"{name} and {kept} are not both initializers of the main graph"
        if NO_TEXT in name + kept:
            return f"the name {name if NO_TEXT in name else kept} is no valid text"
        if model.initializers[name][2]:
            return f"the numbers of {name} lie in a file beside the model, which would stay as large"
        if name in model.inside:
            return f"{name} is also read in the body of an If, Loop or Scan"
        if name in model.noted:
            return f"{name} is named by a note on quantisation"
        if name in model.outputs:
            return f"{name} is an output of the model"
        if swapped and not 0 < TRANSPOSED.get(dtypes[kept], 0) <= model.opset:
            return f"the model's opset {model.opset} has no Transpose of {dtypes[kept]}"
    return ""


def _unfit(edits: Iterable[Edit]) -> str:
    at = 0
    for edit in edits:
        if edit.begin < at:
            return "its fields lie within each other"
        at = edit.end
    return ""


def _edits(rewrite: Rewrite, model: _Model, source: Source) -> list[Edit]:
    """All edits in the order of the file, the length of the graph with them."""
    equal = {name: kept for name, (kept, swapped) in rewrite.instead.items() if not swapped}
    waiting = {name: kept for name, (kept, swapped) in rewrite.instead.items() if swapped}
    edits: list[Edit] = []
    for name in rewrite.instead:
        begin, end, _ = model.initializers[name]
        edits.append(Edit(_start(source, INITIALIZER, begin, end), end, b""))
    edits.extend(Edit(_start(source, INPUT, begin, end), end, b"") for name, begin, end in model.inputs if name in rewrite.instead)
    for node in model.nodes:
        edits.extend(_told(node, equal, source))
        for name, _, _ in node.reads:
            if name in waiting:  # its first reader: what is made here is there for all that follow
                start = _start(source, NODE, node.begin, node.end)
                edits.append(Edit(start, start, _transpose(waiting.pop(name), name)))
    [(begin, end)] = model.graphs
    more = sum(len(edit.new) - (edit.end - edit.begin) for edit in edits)
    edits.append(Edit(_start(source, GRAPH, begin, end), begin, _tag(GRAPH, end - begin + more)))
    return sorted(edits, key=lambda edit: (edit.begin, edit.end))


def _told(node: _Node, equal: Mapping[str, str], source: Source) -> Iterator[Edit]:
    """A node's inputs under their new names, and its length."""
    more = 0
    for name, begin, end in node.reads:
        if name in equal:
            edit = Edit(_start(source, READS, begin, end), end, _field(READS, equal[name].encode()))
            more += len(edit.new) - (edit.end - edit.begin)
            yield edit
    if any(name in equal for name, _, _ in node.reads):
        yield Edit(_start(source, NODE, node.begin, node.end), node.begin, _tag(NODE, node.end - node.begin + more))


def _transpose(kept: str, name: str) -> bytes:
    """A field of the graph: the node that makes `name` of `kept`."""
    ints = 7
    perm = (
        _field(1, b"perm")
        + b"".join(_varint(8 << 3 | VARINT) + _varint(axis) for axis in (1, 0))
        + _varint(20 << 3 | VARINT)
        + _varint(ints)
    )
    words = ((READS, kept.encode()), (2, name.encode()), (3, f"{name}/Transpose".encode()), (4, b"Transpose"), (ATTRIBUTE, perm))
    return _field(NODE, b"".join(_field(number, content) for number, content in words))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _tag(number: int, nbytes: int) -> bytes:
    """What stands before a payload of so many bytes."""
    return _varint(number << 3 | LEN) + _varint(nbytes)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, len(content)) + content


def _start(source: Source, number: int, begin: int, end: int) -> int:
    """Where the field of this payload begins. FormatError if its tag or length is not in the shortest form, as all writers have it."""
    tag = _tag(number, end - begin)
    if begin < len(tag) or source.read(begin - len(tag), len(tag)) != tag:
        raise FormatError(source.name, "has lengths in a form that no writer of ONNX uses", begin)
    return begin - len(tag)


def _read(source: Source, wanted: frozenset[str]) -> _Model:
    """`wanted`: names of interest; nodes that do not read one are passed over."""
    wire, model = Wire(source), _Model()
    for number, kind, begin, end in wire.fields(0, source.nbytes):
        if number == GRAPH and kind == LEN:
            model.graphs.append((begin, end))
            _graph(wire, model, begin, end, wanted)
        elif number == OPSETS and kind == LEN:
            model.opset = _opset(wire, begin, end) or model.opset
        elif number == TRAINING:
            model.training = True
    return model


def _opset(wire: Wire, begin: int, end: int) -> int:
    """The version of ONNX's own operators; 0 if the entry is of another domain."""
    domain, version = "", 0
    for number, kind, start, stop in wire.fields(begin, end, 1):
        if number == 1 and kind == LEN:
            domain = text(wire, start, stop)
        elif number == 2 and kind == VARINT:
            version = start
    return version if domain in ("", "ai.onnx") else 0


def _graph(wire: Wire, model: _Model, begin: int, end: int, wanted: frozenset[str]) -> None:
    for number, kind, start, stop in wire.fields(begin, end, 1):
        if kind != LEN:
            continue
        if number == NODE:
            node = _node(wire, model, start, stop, wanted)
            if node.reads:
                model.nodes.append(node)
        elif number == INITIALIZER:
            parsed = parse(wire, start, stop, 2)
            model.initializers[parsed.name] = (start, stop, parsed.elsewhere)
        elif number == INPUT:
            model.inputs.append((_name(wire, start, stop), start, stop))
        elif number == OUTPUT:
            model.outputs.add(_name(wire, start, stop))
        elif number == ANNOTATION:
            model.noted |= wanted & set(_annotated(wire, start, stop))


def _name(wire: Wire, begin: int, end: int) -> str:
    return next((text(wire, start, stop) for number, kind, start, stop in wire.fields(begin, end, 2) if number == 1 and kind == LEN), "")


def _annotated(wire: Wire, begin: int, end: int) -> Iterator[str]:
    """Names in a TensorAnnotation: of the tensor, and of those with its scale and zero point."""
    for number, kind, start, stop in wire.fields(begin, end, 2):
        if kind == LEN and number == 1:
            yield text(wire, start, stop)
        elif kind == LEN and number == 2:
            yield from (text(wire, at, behind) for of, how, at, behind in wire.fields(start, stop, 3) if how == LEN and of == 2)


def _node(wire: Wire, model: _Model, begin: int, end: int, wanted: frozenset[str]) -> _Node:
    found = _Node(begin, end)
    for number, kind, start, stop in wire.fields(begin, end, 2):
        if kind != LEN:
            continue
        if number == READS:
            name = text(wire, start, stop)
            if name in wanted:
                found.reads.append((name, start, stop))
        elif number == ATTRIBUTE:
            model.inside |= wanted & set(_in_bodies(wire, start, stop, 3))
    return found


def _in_bodies(wire: Wire, begin: int, end: int, depth: int) -> Iterator[str]:
    """Every name that is read in the graphs of an attribute; whether it is the outer one does not matter here."""
    for number, kind, start, stop in wire.fields(begin, end, depth):
        if kind != LEN or number not in BODIES:
            continue
        for of, how, at, behind in wire.fields(start, stop, depth + 1):
            if how == LEN and of == OUTPUT:
                yield _name(wire, at, behind)
            elif how == LEN and of == NODE:
                for inner, its_kind, here, there in wire.fields(at, behind, depth + 2):
                    if its_kind == LEN and inner == READS:
                        yield text(wire, here, there)
                    elif its_kind == LEN and inner == ATTRIBUTE:
                        yield from _in_bodies(wire, here, there, depth + 3)
