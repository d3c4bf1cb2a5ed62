"""This file holds the graph of an ONNX model and how a value is traced back to what makes it.

A value is a name. It is looked up in its graph, then in the graph around it (bodies of If, Loop, Scan see outer names), and a formal
input leads to where the body or the function is used. Operators: onnx/docs/Operators.md and onnxruntime/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checkpoint import TensorRecord
from .protobuf import Exhausted

MAX_FRAMES = 4096  # bodies and uses of functions that are looked into; functions can call functions, twice each
MAX_VISITS = 200_000  # nodes that are looked at, over all of them
MAX_STEPS = 64  # from a matrix to where it is used, or from a use out of its bodies
MAX_LOOKED_UP = 500_000  # values that are traced in all: half a second
MAX_DEPTH = 40  # bodies in bodies

# pass one of their inputs on, as far as wiring goes
PASSING = frozenset("Identity Cast CastLike Transpose Reshape Squeeze Unsqueeze Flatten Dropout QuantizeLinear DequantizeLinear".split())

FunctionKey = tuple[str, str, str]
"""(domain, name, overload)."""


@dataclass(slots=True, eq=False)
class Node:
    """An operator that is used once. `numbers` are attributes that matter here, `bodies` the graphs in its attributes."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    overload: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    bodies: list[Graph] = field(default_factory=list)

    @property
    def place(self) -> str:
        """How a message names it: `MatMul /lm_head/MatMul`."""
        return f"{self.op} {self.name or next(iter(self.outputs), '')}".rstrip()


@dataclass(slots=True, eq=False)
class Graph:
    """Nodes by their outputs (with the output's place), tensors by their names here, formal inputs with place and element type.
    `prefix` tells names of bodies apart."""

    prefix: str = ""
    nodes: list[Node] = field(default_factory=list)
    makers: dict[str, tuple[Node, int]] = field(default_factory=dict)
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        for at, name in enumerate(node.outputs):
            self.makers.setdefault(name, (node, at))

    def add_input(self, name: str, element: int = 0) -> None:
        self.inputs[name] = (len(self.inputs), element)


@dataclass(slots=True, eq=False)
class Frame:
    """A graph where it is used: the main one, a body inside of its `outer` frame, or a function called there by `user`."""

    graph: Graph
    outer: Frame | None = None
    user: Node | None = None
    function: bool = False
    depth: int = 0


class Origin(NamedTuple):
    """What makes a value, under which name in which frame: a tensor, a node (as which of its outputs), or (neither) an input of the
    model."""

    frame: Frame
    name: str
    tensor: TensorRecord | None = None
    node: Node | None = None
    at: int = 0


@dataclass(slots=True, eq=False)
class Program:
    """The main graph and the functions of a model."""

    main: Graph
    functions: dict[FunctionKey, Graph] = field(default_factory=dict)
    _frames: dict[tuple[Frame | None, Node | None], list[Frame]] = field(default_factory=dict)
    _count: int = 0
    _looked_up: int = 0

    @property
    def start(self) -> Frame:
        return self._frames.setdefault((None, None), [Frame(self.main)])[0]

    def within(self, frame: Frame, node: Node) -> list[Frame]:
        """The bodies of the node, or the function that it calls, as used there."""
        function = self.functions.get((node.domain, node.op, node.overload)) if self.functions else None
        graphs = [function] if function else node.bodies
        if not graphs:
            return []
        found = self._frames.get((frame, node))
        if found is None:
            self._count += len(graphs)
            room = self._count <= MAX_FRAMES and frame.depth < MAX_DEPTH
            found = [Frame(graph, frame, node, function is not None, frame.depth + 1) for graph in graphs] if room else []
            self._frames[frame, node] = found
        return found

    def places(self) -> Iterator[tuple[Frame, Node]]:
        """Every node of every frame, bodies behind the node that has them."""
        waiting, visits = [self.start], 0
        while waiting:
            frame = waiting.pop()
            for node in frame.graph.nodes:
                visits += 1
                if visits > MAX_VISITS:
                    return
                yield frame, node
                waiting.extend(self.within(frame, node))

    def origin(self, frame: Frame, name: str) -> Origin | None:
        """What makes the value of this name here; None if nothing that is known does. Exhausted if that was asked too often."""
        self._looked_up += 1
        if self._looked_up > MAX_LOOKED_UP:
            raise Exhausted(f"{MAX_LOOKED_UP:,} steps between its nodes")
        for _ in range(2 * MAX_DEPTH):
            graph, outer = frame.graph, frame.outer
            if not name:
                return None
            tensor, maker = graph.tensors.get(name), graph.makers.get(name)
            if tensor is not None:
                return Origin(frame, name, tensor)
            if maker is not None:
                return Origin(frame, name, None, *maker)
            if name in graph.inputs:
                actual = _actual(frame, name)
                if actual is None or outer is None:
                    return Origin(frame, name)
                name = actual
            elif frame.function:
                return None  # a function sees nothing but its inputs
            if outer is None:
                return None
            frame = outer
        return None

    def results(self, made: Origin) -> list[tuple[Frame, str]]:
        """The values inside of a node's bodies or its function that become this output of it."""
        node, at = made.node, made.at
        found: list[tuple[Frame, str]] = []
        if node is None:
            return found
        for inside in self.within(made.frame, node):
            names = inside.graph.outputs
            if inside.function or node.op in ("If", "Scan"):
                names = names[at : at + 1]
            elif node.op == "Loop":
                names = names[at + 1 : at + 2]  # the first one is the condition
            # other operators with bodies (BeamSearch of onnxruntime) make something of all of them
            found.extend((inside, name) for name in names)
        return found

    def matrix(self, frame: Frame, name: str) -> tuple[TensorRecord, bool, bool] | None:
        """(tensor, whether it is transposed on the way, whether it is dequantised on the way) if the value is a stored tensor, perhaps
        in another form."""
        swapped = quantised = False
        for _ in range(MAX_STEPS):
            found = self.origin(frame, name)
            if found is None:
                return None
            if found.tensor is not None:
                return found.tensor, swapped, quantised
            node = found.node
            if node is None or not node.inputs:
                return None
            inside = self.results(found)
            if inside:
                frame, name = inside[0]
                continue
            if node.op not in PASSING:
                return None
            swapped ^= node.op == "Transpose"
            quantised |= node.op == "DequantizeLinear"
            frame, name = found.frame, node.inputs[0]
        return None


def _actual(frame: Frame, name: str) -> str | None:
    """The value of the outer frame that a formal input stands for; None for an input of the model."""
    user = frame.user
    if user is None:
        return None
    at, _ = frame.graph.inputs[name]
    if frame.function:
        return user.inputs[at] if at < len(user.inputs) else ""
    if user.op in ("Loop", "Scan"):
        # a loop's first two are its counter and its condition, which are made inside
        return user.inputs[at] if (2 if user.op == "Loop" else 0) <= at < len(user.inputs) else ""
    return None
