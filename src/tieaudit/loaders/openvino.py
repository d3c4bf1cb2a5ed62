"""OpenVINO's IR: a graph as XML, and beside it the bytes of its constants in a .bin of the same name.

`<net><layers><layer id name type><data element_type shape offset size/>…</layer></layers>
<edges><edge from-layer to-layer to-port/></edges></net>`; a layer of type Const has its bytes at `offset` of the .bin, and bodies of
loops and branches are graphs inside of a layer (src/core/src/pass/serialize.cpp). Equal offsets are one constant: `save_model` merges
equal ones itself. The XML is read piece by piece with expat; document types and entities, which no IR has, are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from ..checkpoint import LoadedFile, Problem, Storage, TensorRecord
from ..dtypes import DTYPES
from ..errors import FormatError, ReadError, UnknownFormat
from ..sources import Folder, Source
from . import openvino_ends
from .openvino_ends import Graph, Layer

FORMAT = "openvino"
SUFFIX, DATA_SUFFIX = ".xml", ".bin"
OLDEST = 10  # version of the IR; before, constants were lists of blobs
MAX_XML = 128 << 20  # bytes; a dense model has some 10 MB, a mixture of experts 100
MAX_ELEMENTS = 3_000_000
MAX_LAYERS, MAX_EDGES = 150_000, 400_000
MAX_DEPTH = 200
MAX_NAMES = 5_000  # of elements and attributes, which expat keeps
MAX_DIMS, MAX_NUMBER = 64, 1 << 62
MAX_PROBLEMS = 50
PIECE = 256 << 10  # bytes parsed at once
MAX_TOKEN = 1 << 20  # bytes of one tag or comment: before version 2.6 expat begins it anew with each piece
ROOT = re.compile(rb"<net[\s>]")
GRAPHS = ("net", "body", "then_body", "else_body")

ELEMENT_TYPES = {  # src/core/src/type/element_type.cpp
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2", "f8e8m0": "F8_E8M0",
    "f4e2m1": "F4", "nf4": "NF4", "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "i4": "I4", "u64": "U64", "u32": "U32",
    "u16": "U16", "u8": "U8", "u4": "U4", "u2": "U2", "u1": "U1", "boolean": "BOOL",
}  # fmt: skip


class _TooLargeError(Exception):
    """More than is read of such a file; no fault of it."""


def sniff(head: bytes) -> bool:
    """True for XML whose root is `net`."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith((b"<?xml", b"<net")) and ROOT.search(text) is not None


def load(source: Source, folder: Folder | None = None) -> LoadedFile:
    """Read the graph; of the .bin only the length is needed. UnknownFormat if it is other XML, FormatError if it is broken."""
    parsing = _Parsing(source.name)
    unread = parsing.run(source)
    if unread:
        parsing = _Parsing(source.name)
    beside = source.name.removesuffix(SUFFIX) + DATA_SUFFIX
    problems = list(parsing.problems)
    data: Source | None = None
    try:
        if folder is not None and folder.exists(beside):
            data = folder.open(beside)
        elif parsing.constants:
            problems.append(Problem(file=source.name, what=f"needs {beside} for its constants, which is not there"))
    except ReadError:
        raise
    except FormatError as error:
        problems.append(Problem(file=source.name, what=f"needs {beside} for its constants, which {error.what}"))
    records = _Records(source.name, beside, data.nbytes if data else None)
    for layer in parsing.constants:
        records.add(layer)
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tuple(records.tensors.values()),
        storages=tuple(records.storages.values()),
        problems=(*problems, *records.problems),
        unread=(unread,) if unread else (),
        data=((beside, data.nbytes),) if data else (),
        ends=openvino_ends.find(parsing.top, records.by_layer) if parsing.top else (),
        foreign=True,
    )


@dataclass(slots=True)
class _Parsing:
    """What expat calls. Only layers, their data and edges are kept."""

    file: str
    version: int = 0
    top: Graph | None = None
    constants: list[Layer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _graphs: list[Graph] = field(default_factory=list)
    _layers: list[Layer] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _elements: int = 0
    _layers_seen: int = 0
    _edges_seen: int = 0

    def run(self, source: Source) -> str:
        """Why the graph is not read; "" if it was."""
        if source.nbytes > MAX_XML:
            return f"is {source.nbytes:,} bytes long; at most {MAX_XML:,} are read of a graph"
        # the encoding is given, so that the file cannot ask for a codec
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = False
        parser.StartElementHandler = self.begin
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = self.refuse
        parser.EntityDeclHandler = self.refuse
        try:
            for at in range(0, source.nbytes, PIECE):
                parser.Parse(source.read(at, min(PIECE, source.nbytes - at)), False)
                if at + PIECE - parser.CurrentByteIndex > MAX_TOKEN + PIECE:
                    what = f"has a tag or comment of over {MAX_TOKEN:,} bytes"
                    raise FormatError(self.file, what, parser.CurrentByteIndex)
            parser.Parse(b"", True)
        except _TooLargeError as error:
            return str(error)
        except expat.ExpatError as error:
            what = f"is not well-formed XML: {expat.ErrorString(error.code)}"
            raise FormatError(self.file, what, parser.ErrorByteIndex) from None
        return f"is version {self.version} of the IR, which is not read here" if self.version < OLDEST else ""

    def refuse(self, *_: object) -> None:
        raise FormatError(self.file, "has a document type or entities, which no OpenVINO model has: not read")

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if name not in self._names or not self._names.issuperset(attributes):
            self._names.update((name, *attributes))
            if len(self._names) > MAX_NAMES:
                raise FormatError(self.file, f"has over {MAX_NAMES:,} kinds of elements and attributes")
        if self._elements > MAX_ELEMENTS:
            raise _TooLargeError(f"has over {MAX_ELEMENTS:,} elements")
        if len(self._open) >= MAX_DEPTH:
            raise FormatError(self.file, f"is nested more than {MAX_DEPTH} deep")
        parent = self._open[-1] if self._open else ""
        self._open.append(name)
        if name == "layer" and parent == "layers":
            self._layer(attributes)
        elif name == "data" and parent == "layer" and self._layers:
            self._layers[-1].data = attributes
        elif name == "edge" and parent == "edges":
            self._edge(attributes)
        elif name in GRAPHS:
            self._graphs.append(Graph())
        if not parent:
            if name != "net":
                raise UnknownFormat(self.file, "is XML, but no OpenVINO model")
            self.version = _number(attributes.get("version", "")) or 0
            self.top = self._graphs[0]

    def end(self, name: str) -> None:
        self._open.pop()
        if name == "layer" and self._open[-1] == "layers":
            layer = self._layers.pop()
            if layer.type == "Const":
                self.constants.append(layer)
        elif name in GRAPHS:
            self._graphs.pop()

    def _layer(self, attributes: dict[str, str]) -> None:
        self._layers_seen += 1
        if self._layers_seen > MAX_LAYERS:
            raise _TooLargeError(f"has over {MAX_LAYERS:,} layers")
        layer = Layer(attributes.get("id", ""), attributes.get("name", ""), attributes.get("type", ""))
        self._layers.append(layer)
        if layer.id in self._graphs[-1].layers:
            self.fault(f"has two layers with the id {layer.id!r}")
        self._graphs[-1].layers[layer.id] = layer

    def _edge(self, attributes: dict[str, str]) -> None:
        self._edges_seen += 1
        if self._edges_seen > MAX_EDGES:
            raise _TooLargeError(f"has over {MAX_EDGES:,} edges")
        port = _number(attributes.get("to-port", ""))
        target = self._graphs[-1].layers.get(attributes.get("to-layer", ""))
        if target is None or port is None:
            self.fault("has an edge that leads to no layer")
        else:
            target.inputs[port] = attributes.get("from-layer", "")

    def fault(self, what: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(file=self.file, what=what))


@dataclass(slots=True)
class _Records:
    """Constants as tensors of the .bin, which has `nbytes`; None if it cannot be opened."""

    file: str
    beside: str
    nbytes: int | None
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    by_layer: dict[int, TensorRecord] = field(default_factory=dict)
    """By the identity of the layer: ids repeat in bodies."""
    problems: list[Problem] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        offset, size = _number(layer.data.get("offset", "")), _number(layer.data.get("size", ""))
        shape = _shape(layer.data.get("shape", ""))
        word = layer.data.get("element_type", "")
        dtype = ELEMENT_TYPES.get(word, "BYTES")
        name = layer.name if layer.name not in self.tensors else f"{layer.name} (layer {layer.id})"
        what = ""
        if offset is None or size is None or shape is None or not word:
            what = "does not say where its bytes are, their type and shape"
        elif self.nbytes is not None and offset + size > self.nbytes:
            what = f"ends at byte {offset + size:,} of {self.beside}, which has {self.nbytes:,}: truncated file?"
        elif dtype != "BYTES" and -(-DTYPES[dtype].bits * _numel(shape) // 8) != size:
            what = f"has {size:,} bytes for {word} {str(shape)[:60]}"
        if what or offset is None or size is None or shape is None:
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(Problem(file=self.file, what=f"has the constant {name!r}, which {what}", tensors=(name,)))
            return
        key = f"{offset}+{size}"
        storage = self.storages.setdefault(key, Storage(self.beside, key, None if self.nbytes is None else offset, size))
        # strings, and types of odd bits: only their bytes
        record = TensorRecord(name, dtype, shape if dtype != "BYTES" else (size,), storage, 0, size)
        self.tensors[name] = self.by_layer[id(layer)] = record


def _number(text: str) -> int | None:
    """A number that is not negative and that a file can hold."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
    return number if number is not None and number < MAX_NUMBER else None


def _shape(text: str) -> tuple[int, ...] | None:
    words = text[:2_000].split(",") if text.strip() else []
    sizes = [_number(word.strip()) for word in words]
    if len(sizes) > MAX_DIMS or None in sizes:
        return None
    return tuple(size for size in sizes if size is not None)


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
        if count > MAX_NUMBER:
            break
    return count
