"""ONNX: one protobuf message, `ModelProto` (onnx/onnx.proto, onnx 1.23), with the graph and all tensors in it or in files beside it.

Tensors are initializers, `Constant` nodes, and those in bodies of If, Loop and Scan and in functions; names in bodies get the
attribute's name in front (`then_branch/lm_head`), so that two of one name stay apart. `onnx.load` reads 440 MB of weights to get there
and refuses data behind the links of the Hub cache; this reader passes over the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..checkpoint import Ends, LoadedFile, TensorRecord
from ..errors import FormatError, ReadError, UnknownFormat
from ..sources import Folder, Source
from . import onnx_ends
from .onnx_graph import FunctionKey, Graph, Node, Program
from .onnx_tensors import Collector, text
from .protobuf import JUMP, LEN, REMOTE_JUMP, VARINT, Exhausted, Wire, signed

FORMAT = "onnx"
SUFFIX = ".onnx"
MAX_NODES = 150_000  # whose wiring is kept; the graph of a model of 100 layers has 10,000 to 50,000
MAX_PREFIX = 200  # characters before the name of a tensor in a body
MAX_REQUESTS = 1024  # to a server for one file: every large tensor inside of it hides what stands behind it
MAX_VERSION = 100  # of the format; it is 14 now
KEPT = ("axis", "N", "K")  # attributes that tell which matrix an operator reads

# fields of ModelProto and their wire types
MODEL_FIELDS = {2: LEN, 3: LEN, 4: LEN, 5: VARINT, 6: LEN, 7: LEN, 8: LEN, 14: LEN, 20: LEN, 25: LEN, 26: LEN}


def sniff(head: bytes) -> bool:
    """True if a version of the format comes first and a field of a model behind it."""
    if len(head) < 4 or head[0] != 1 << 3 | VARINT or not 1 <= head[1] <= MAX_VERSION:
        return False
    tag = head[2] if head[2] < 128 else (head[2] & 127) | head[3] << 7
    return MODEL_FIELDS.get(tag >> 3) == tag & 7


def load(source: Source, folder: Folder | None = None) -> LoadedFile:
    """The model. FormatError if its messages are broken (UnknownFormat if it has another suffix and may be something else); what is
    wrong with single tensors is in `problems`."""
    remote = folder is not None and folder.remote
    wire = Wire(source, jump=REMOTE_JUMP, max_windows=MAX_REQUESTS) if remote else Wire(source, jump=JUMP)
    reader = _Reader(wire, Collector(source.name, folder))
    ends: tuple[Ends, ...] = ()
    try:
        reader.model()
        ends = tuple(onnx_ends.find(Program(reader.main, reader.functions)))
    except Exhausted as error:
        reader.tensors.unread.append(f"it has more than {error.what}: not all of it was looked at")
    except ReadError:
        raise
    except FormatError as error:
        if source.name.endswith(SUFFIX):
            raise
        raise UnknownFormat(source.name, f"begins like an ONNX model, but {error.what}", error.offset) from None
    tensors = reader.tensors
    records = tuple(tensors.records.values())
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=records,
        storages=(*{record.storage.ident: record.storage for record in records}.values(), *tensors.unused()),
        problems=tensors.all_problems(),
        unread=tuple(tensors.unread),
        data=tensors.data,
        ends=ends,
        foreign=True,
    )


@dataclass(slots=True)
class _Reader:
    """Walks the model once and keeps its graphs, without names that nothing refers to."""

    wire: Wire
    tensors: Collector
    main: Graph = field(default_factory=Graph)
    functions: dict[FunctionKey, Graph] = field(default_factory=dict)
    _nodes: int = 0
    _prefixes: set[str] = field(default_factory=set)

    def model(self) -> None:
        found = False
        for number, kind, begin, end in self.wire.fields(0, self.wire.source.nbytes):
            if kind != LEN:
                continue
            if number == 7:
                found = True
                self._graph(self.main, begin, end, 1)
            elif number == 25:
                self._part(self._function, begin, end)
            elif number == 20:
                self._part(self._training, begin, end)
        if not found:
            raise FormatError(self.wire.source.name, "has no graph: truncated file, or no ONNX model?", 0)

    def _part(self, read: Callable[[int, int], None], begin: int, end: int) -> None:
        """What is broken inside of a part is a problem, and what stands behind it is still read."""
        try:
            read(begin, end)
        except ReadError:
            raise
        except FormatError as error:
            self.tensors.problem(error.what, error.offset)

    def _graph(self, graph: Graph, begin: int, end: int, depth: int) -> None:
        for number, kind, start, stop in self.wire.fields(begin, end, depth):
            if kind != LEN:
                continue
            if number == 1:
                self._part(lambda start, stop: self._node(graph, start, stop, depth + 1), start, stop)
            elif number == 5:
                name, record = self.tensors.add(self.wire, start, stop, depth + 1, prefix=graph.prefix)
                if record is not None:
                    graph.tensors[name] = record
            elif number == 11:
                name, element = self._value(start, stop, depth + 1)
                graph.add_input(name, element)
            elif number == 12:
                graph.outputs.append(self._value(start, stop, depth + 1)[0])
            elif number == 15:
                self._sparse(graph, start, stop, depth + 1)

    def _node(self, graph: Graph, begin: int, end: int, depth: int) -> None:
        inputs, outputs, attributes = [], [], []
        words = {3: "", 4: "", 7: "", 8: ""}
        for number, kind, start, stop in self.wire.fields(begin, end, depth):
            if kind != LEN:
                continue
            if number == 1:
                inputs.append(text(self.wire, start, stop))
            elif number == 2:
                outputs.append(text(self.wire, start, stop))
            elif number == 5:
                attributes.append((start, stop))
            elif number in words:
                words[number] = text(self.wire, start, stop)
        node = Node(words[4], words[3], tuple(inputs), tuple(outputs), words[7], words[8])
        constants: list[TensorRecord] = []
        for start, stop in attributes:
            constants.extend(self._attribute(graph, node, start, stop, depth + 1))
        if node.op == "Constant" and not node.domain.strip("."):
            if outputs and constants:
                graph.tensors[outputs[0]] = constants[0]
            return
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Exhausted(f"{MAX_NODES:,} nodes")
        graph.add(node)

    def _attribute(self, graph: Graph, node: Node, begin: int, end: int, depth: int) -> list[TensorRecord]:
        """Tensors in the attribute; what else matters is put into the node."""
        name, number_of, tensors, bodies, sparse = "", None, [], [], []
        for number, kind, start, stop in self.wire.fields(begin, end, depth):
            if number == 3 and kind == VARINT:
                number_of = signed(start)
            elif kind != LEN:
                continue
            elif number == 1:
                name = text(self.wire, start, stop)
            elif number in (5, 10) and node.op != "ConstantOfShape":  # its one number is no weight
                tensors.append((start, stop))
            elif number in (6, 11):
                bodies.append((start, stop))
            elif number in (22, 23):
                sparse.append((start, stop))
        if number_of is not None and name in KEPT:
            node.numbers[name] = number_of
        for start, stop in bodies:
            body = Graph(self._prefix(graph.prefix, name, node))
            node.bodies.append(body)
            self._graph(body, start, stop, depth + 1)
        for start, stop in sparse:
            self._sparse(graph, start, stop, depth + 1, node)
        found = []
        for at, (start, stop) in enumerate(tensors):
            of_node = f"{node.place[:MAX_PREFIX]}.{name[:MAX_PREFIX]}" + (f".{at}" if at else "")
            if node.op == "Constant" and node.outputs and not at:
                of_node = node.outputs[0]
            _, record = self.tensors.add(self.wire, start, stop, depth + 1, of_node, graph.prefix)
            found.extend([record] if record is not None else [])
        return found

    def _prefix(self, outer: str, attribute: str, node: Node) -> str:
        """Names a body: by the attribute, and by the node where two have the same."""
        choices = [f"{outer}{attribute}/", f"{outer}{node.place}/{attribute}/"]
        # bodies in bodies could add up to names of any length
        fitting = [choice for choice in choices if choice not in self._prefixes and len(choice) <= MAX_PREFIX]
        prefix = fitting[0] if fitting else f"{attribute[:MAX_PREFIX]}#{len(self._prefixes)}/"
        self._prefixes.add(prefix)
        return prefix

    def _function(self, begin: int, end: int) -> None:
        words, nodes = {1: "", 10: "", 13: ""}, []
        graph = Graph()
        for number, kind, start, stop in self.wire.fields(begin, end, 1):
            if kind != LEN:
                continue
            if number == 4:
                graph.add_input(text(self.wire, start, stop))
            elif number == 5:
                graph.outputs.append(text(self.wire, start, stop))
            elif number == 7:
                nodes.append((start, stop))
            elif number in words:
                words[number] = text(self.wire, start, stop)
        graph.prefix = self._prefix("", words[1], Node(words[10], words[13], (), ()))
        self.functions[words[10], words[1], words[13]] = graph
        for start, stop in nodes:
            self._part(lambda start, stop: self._node(graph, start, stop, 2), start, stop)

    def _training(self, begin: int, end: int) -> None:
        """Graphs that a training run starts with; their tensors are counted."""
        for number, kind, start, stop in self.wire.fields(begin, end, 1):
            if kind == LEN and number in (1, 2):
                name = "initialization" if number == 1 else "algorithm"
                self._graph(Graph(self._prefix("", name, Node("training_info", "", (), ()))), start, stop, 2)

    def _value(self, begin: int, end: int, depth: int) -> tuple[str, int]:
        """(name, element type) of a ValueInfoProto; 0 if it is no tensor."""
        name, element = "", 0
        for number, kind, start, stop in self.wire.fields(begin, end, depth):
            if kind == LEN and number == 1:
                name = text(self.wire, start, stop)
            elif kind == LEN and number == 2:
                for inner, its_kind, at, behind in self.wire.fields(start, stop, depth + 1):
                    if inner == 1 and its_kind == LEN:
                        numbers = [value for of, how, value, _ in self.wire.fields(at, behind, depth + 2) if of == 1 and how == VARINT]
                        element = numbers[-1] if numbers else 0
        return name, element

    def _sparse(self, graph: Graph, begin: int, end: int, depth: int, node: Node | None = None) -> None:
        """A SparseTensorProto: values and indices are counted, the matrix that they are is not compared."""
        name = node.outputs[0] if node and node.outputs else ""
        for number, kind, start, stop in self.wire.fields(begin, end, depth):
            if kind == LEN and number == 1:
                name, _ = self.tensors.add(self.wire, start, stop, depth + 1, name, graph.prefix)
            elif kind == LEN and number == 2:
                self.tensors.add(self.wire, start, stop, depth + 1, f"{name}.indices", graph.prefix)
        self.tensors.unread.append(f"{graph.prefix}{name} is a sparse matrix, which is not compared")
