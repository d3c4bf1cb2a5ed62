"""This file holds how the two ends of a model are found in OpenVINO's graph: the table that token ids look up, and the last product.

The embedding is the constant under a Gather, the head the one under the MatMul that a Result comes from; in between stand conversions,
and for compressed weights Convert, Subtract and Multiply with a scale (and Reshape, if scales are of groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..checkpoint import Ends, TensorRecord

MAX_STEPS = 24  # on the way from a result to its product, or from a product to its constant
MAX_VISITS = 64  # layers looked at for one constant
RESULTS = 1_000  # that are followed; a model with a cache has two per layer

_CARRIES = frozenset("Convert Reshape Squeeze Unsqueeze Transpose Identity".split())  # input 0 is the same numbers
_SCALES = frozenset("Multiply Subtract Divide".split())
_BEHIND_HEAD = frozenset(
    "Convert Reshape Squeeze Unsqueeze Transpose Slice StridedSlice Gather Tanh Clamp Softmax LogSoftmax Identity".split()
)
_WITH_CONSTANT = frozenset("Add Multiply Divide Subtract".split())


@dataclass(slots=True)
class Layer:
    """A node: attributes of its `data`, and which layer feeds each input port."""

    id: str
    name: str
    type: str
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Graph:
    layers: dict[str, Layer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A constant as it reaches an operation; `scales` are the storages of what it was dequantised with on the way."""

    layer: Layer
    record: TensorRecord
    scales: tuple[str, ...]

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        return self.record.storage.ident, self.scales

    @property
    def dims(self) -> tuple[int, int]:
        """(rows, columns), groups of columns joined."""
        columns = 1
        for size in self.record.shape[1:]:
            columns *= size
        return self.record.shape[0], columns


def find(graph: Graph, records: Mapping[int, TensorRecord]) -> tuple[Ends, ...]:
    """The ends, if there is one product that a table of the same size goes with."""
    tables: dict[tuple[str, tuple[str, ...]], tuple[Layer, _Weight]] = {}
    for layer in graph.layers.values():
        if layer.type == "Gather":
            weight = _constant(graph, records, layer.inputs.get(0))
            if weight and len(weight.record.shape) > 1 and not _constant(graph, records, layer.inputs.get(1)):
                tables.setdefault(weight.key, (layer, weight))
    found: dict[tuple[str, str], Ends] = {}
    for product, head in _heads(graph, records):
        if head.key in tables:
            gather, table = tables[head.key]
            ends = _of_one(gather, table, product, head)
        else:
            alike = [both for both in tables.values() if head.dims in (both[1].dims, both[1].dims[::-1])]
            # of several tables nobody knows which one the head belongs to; under scales of their own equal bytes are not equal numbers
            if len(alike) != 1 or head.scales or alike[0][1].scales:
                continue
            gather, table = alike[0]
            ends = Ends(
                embedding=table.record.name,
                head=head.record.name,
                source=f"the graph reads {table.record.name} in {gather.name} and {head.record.name} in {product.name}",
                by_config=True,
                advice="export again from a model whose two ends are one parameter: openvino.save_model stores equal constants once",
            )
        found.setdefault((ends.embedding, ends.head), ends)
    return tuple(found.values())


def _of_one(gather: Layer, table: _Weight, product: Layer, head: _Weight) -> Ends:
    """Both ends read the same bytes; a second constant at the same place has a name of its own."""
    own = head.layer is not table.layer and head.record.shape == table.record.shape
    return Ends(
        embedding=table.record.name,
        head=head.record.name if own else product.name,
        source=f"the graph reads one constant in {gather.name} and in {product.name}",
        tied=True,
    )


def _heads(graph: Graph, records: Mapping[int, TensorRecord]) -> Iterator[tuple[Layer, _Weight]]:
    """(product, its constant) of every result that comes from one."""
    results = [layer for layer in graph.layers.values() if layer.type == "Result"]
    for result in results[:RESULTS]:
        at = graph.layers.get(result.inputs.get(0, ""))
        for _ in range(MAX_STEPS):
            if at is None:
                break
            if at.type == "MatMul":
                weight = _constant(graph, records, at.inputs.get(1)) or _constant(graph, records, at.inputs.get(0))
                if weight and len(weight.record.shape) > 1:
                    yield at, weight
                break
            if at.type in _WITH_CONSTANT:
                sides = [at.inputs.get(port) for port in (0, 1)]
                computed = [side for side in sides if not _constant(graph, records, side)]
                if len(computed) != 1:  # a sum of two activations is no bias
                    break
                at = graph.layers.get(computed[0] or "")
            elif at.type in _BEHIND_HEAD:
                at = graph.layers.get(at.inputs.get(0, ""))
            else:
                break


def _constant(graph: Graph, records: Mapping[int, TensorRecord], start: str | None) -> _Weight | None:
    """The constant that a layer only passes on, converts or dequantises; None if anything else goes in."""
    scales: list[str] = []
    largest: tuple[Layer, TensorRecord] | None = None
    waiting = [start or ""]
    for _ in range(MAX_VISITS):
        if not waiting:
            break
        layer = graph.layers.get(waiting.pop())
        if layer is None:
            return None
        if layer.type == "Const":
            record = records.get(id(layer))
            if record is None:
                return None
            if largest is None or record.numel > largest[1].numel:
                if largest:
                    scales.append(largest[1].storage.ident)
                largest = layer, record
            else:
                scales.append(record.storage.ident)
        elif layer.type in _CARRIES:
            waiting.append(layer.inputs.get(0, ""))  # the shape of a Reshape is no weight
        elif layer.type in _SCALES or layer.type == "FakeQuantize":
            waiting.extend(layer.inputs.values())
        else:
            return None
    if waiting or largest is None:
        return None
    return _Weight(*largest, tuple(sorted(scales)))
