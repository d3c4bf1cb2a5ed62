"""This file holds which two matrices are the ends of an ONNX model: what its graph looks tokens up in, and what makes its logits.

The graph alone decides. The embedding is the table from which a `Gather` takes the rows of token ids, and the head the matrix of the
last multiplication before an output that has the embedding's two dimensions. Without such a path there is no head: names and shapes
alone invent none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..checkpoint import Ends, TensorRecord
from ..dtypes import DTYPES
from .onnx_graph import Frame, Node, Program

MAX_LOOKED_AT = 20_000  # nodes between a Gather and the inputs, or between outputs and the multiplications before them
MAX_LOOKUPS = 16  # of one table or of tables as high; bodies of If can each have their own
MAX_ENDS = 8
INTEGERS = (6, 7, 12, 13)  # int32, int64, uint32, uint64 (onnx.proto, TensorProto.DataType)

# (input with the table, input with the ids); the last two are onnxruntime's own
LOOKUPS = {"Gather": (0, 1), "GatherBlockQuantized": (0, 1), "EmbedLayerNormalization": (2, 0), "QEmbedLayerNormalization": (2, 0)}
PACKING = (1, 2, 4)  # elements in one byte of GatherBlockQuantized's table
MULTIPLICATIONS = frozenset(
    "MatMul Gemm FusedMatMul FusedGemm MatMulNBits MatMulBnb4 MatMulFpQ4 MatMulInteger MatMulInteger16 MatMulIntegerToFloat "
    "DynamicQuantizeMatMul QLinearMatMul QGemm GemmFloat8 TransposeMatMul Conv FusedConv ConvInteger QLinearConv Einsum".split()
)
BLOCKS = frozenset(("MatMulNBits", "MatMulBnb4", "MatMulFpQ4"))
# what may stand between token ids and the lookup, and between the head and an output: all inputs count, the first, or the second and third
EVERY = frozenset("Add Sub Mul Div Max Min Mod Concat".split())
FIRST = frozenset(
    "Cast CastLike Identity Reshape Unsqueeze Squeeze Flatten Expand Clip Slice Transpose Gather GatherND Dropout Pad Tile".split()
)
ONLY_BEHIND_HEADS = frozenset(
    "Tanh Softmax LogSoftmax Sigmoid Neg Exp Log QuantizeLinear DequantizeLinear TopK ArgMax Split ReduceMax BiasAdd".split()
)
# integer inputs that are no tokens
NOT_TOKENS = re.compile(r"mask|position|token_type|segment|past|cache|beam|seqlen|seq_len|length|step", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A table and where it is read. `widths`: what its rows may stand for; packed ones hold several numbers in a byte."""

    frame: Frame
    node: Node
    table: TensorRecord
    rows: int
    widths: tuple[int, ...]
    quantised: bool


@dataclass(frozen=True, slots=True)
class Use:
    """A stored matrix and the multiplication that takes it."""

    frame: Frame
    node: Node
    matrix: TensorRecord
    quantised: bool


def find(program: Program) -> Iterator[Ends]:
    """The pairs of embedding and head, one for each way through the model that has its own."""
    lookups: list[Lookup] = []
    for lookup in _lookups(program):
        # tables of positions and of token types are shorter
        if lookups and lookup.rows > lookups[0].rows:
            lookups.clear()
        if not lookups or (lookup.rows == lookups[0].rows and len(lookups) < MAX_LOOKUPS):
            lookups.append(lookup)
    if not lookups:
        return
    told: set[tuple[str, str]] = set()
    for use in _heads(program, lookups):
        lookup = min(lookups, key=lambda lookup: (not _fits(use, lookup), -_common(use.frame, lookup.frame)))
        one = lookup.table.view == use.matrix.view and lookup.table.name == use.matrix.name
        key = (lookup.table.name, use.matrix.name)
        if key not in told and len(told) < MAX_ENDS:
            told.add(key)
            yield _shared(lookup, use) if one else _apart(lookup, use)


def _shared(lookup: Lookup, use: Use) -> Ends:
    return Ends(
        embedding=lookup.table.name,
        head=use.node.place,
        source=f"the graph: {lookup.node.op} and {use.node.op} read one initializer",
        tied=True,
    )


def _apart(lookup: Lookup, use: Use) -> Ends:
    """What a quantised matrix stands for is not compared, so no flag can accuse it."""
    quantised = lookup.quantised or use.quantised
    swapped = lookup.table.shape == use.matrix.shape[::-1] != use.matrix.shape
    return Ends(
        embedding=lookup.table.name,
        head=use.matrix.name,
        source=f"the graph: {lookup.node.op} reads {lookup.table.name}, {use.node.op} reads {use.matrix.name}",
        by_config=not quantised,
        advice="let both nodes read one initializer" + (", through a Transpose before MatMul or transB of Gemm" if swapped else ""),
    )


def _lookups(program: Program) -> Iterator[Lookup]:
    for frame, node in program.places():
        inputs = LOOKUPS.get(node.op)
        if inputs is None or len(node.inputs) <= max(inputs) or node.numbers.get("axis", 0):
            continue
        found = program.matrix(frame, node.inputs[inputs[0]])
        if found is None:
            continue
        table, swapped, quantised = found
        packed = node.op == "GatherBlockQuantized"
        if len(table.shape) == 2 or (packed and len(table.shape) == 3):
            shape = table.shape[::-1] if swapped else table.shape
            width = math.prod(shape[1:])
            if shape[0] > 1 and width > 1 and _reads_tokens(program, frame, node.inputs[inputs[1]]):
                widths = tuple(width * count for count in PACKING) if packed else (width,)
                yield Lookup(frame, node, table, shape[0], widths, quantised or packed or DTYPES[table.dtype].kind != "float")


def _reads_tokens(program: Program, frame: Frame, name: str) -> bool:
    """The value comes from an integer input of the model, unchanged in kind: not from its shape, nor from a mask."""
    waiting = [(frame, name)]
    seen: set[tuple[Frame, str]] = set()
    while waiting:
        at = waiting.pop()
        found = program.origin(*at)
        if found is None or found.tensor is not None:
            continue
        if found.node is None:
            if found.frame.graph.inputs[found.name][1] in INTEGERS and not NOT_TOKENS.search(found.name):
                return True
        elif (found.frame, found.name) not in seen and len(seen) < MAX_LOOKED_AT:
            seen.add((found.frame, found.name))
            waiting.extend(program.results(found))
            waiting.extend((found.frame, before) for before in _before(found.node, FIRST))
    return False


def _heads(program: Program, lookups: list[Lookup]) -> Iterator[Use]:
    """Matrices of the last multiplications before the outputs that have the dimensions of an embedding."""
    waiting = [(program.start, name) for name in reversed(program.main.outputs)]
    seen: set[tuple[Frame, str]] = set()
    while waiting:
        found = program.origin(*waiting.pop())
        if found is None or found.node is None or (found.frame, found.name) in seen:
            continue
        if len(seen) >= MAX_LOOKED_AT:
            return
        seen.add((found.frame, found.name))
        node = found.node
        inside = program.results(found)
        if inside:
            waiting.extend(inside)
        elif node.op in MULTIPLICATIONS:
            use = _use(program, found.frame, node, lookups)
            if use is not None:
                yield use
        else:
            waiting.extend((found.frame, name) for name in reversed(_before(node, FIRST | ONLY_BEHIND_HEADS)))


def _use(program: Program, frame: Frame, node: Node, lookups: list[Lookup]) -> Use | None:
    """The stored matrix that the node multiplies with, if it fits an embedding."""
    # blocks of packed numbers stand in the second place, their scales behind them
    for name in node.inputs[1:2] if _in_blocks(node) else node.inputs:
        found = program.matrix(frame, name)
        if found is not None:
            matrix, _, quantised = found
            use = Use(frame, node, matrix, quantised or DTYPES[matrix.dtype].kind != "float")
            if any(_fits(use, lookup) for lookup in lookups):
                return use
    return None


def _fits(use: Use, lookup: Lookup) -> bool:
    if _in_blocks(use.node):
        return use.node.numbers["N"] == lookup.rows and use.node.numbers["K"] in lookup.widths
    dims = [dim for dim in use.matrix.shape if dim > 1]
    return any(dims in ([lookup.rows, width], [width, lookup.rows]) for width in lookup.widths)


def _in_blocks(node: Node) -> bool:
    """The matrix is N x K packed numbers, whatever the shape of its tensor."""
    return node.op in BLOCKS and "N" in node.numbers and "K" in node.numbers


def _before(node: Node, first: frozenset[str]) -> tuple[str, ...]:
    """Inputs whose values the node passes on."""
    if node.op in EVERY:
        return node.inputs
    if node.op == "Where":
        return node.inputs[1:3]
    return node.inputs[:1] if node.op in first else ()


def _common(one: Frame, other: Frame) -> int:
    """How many frames around both are the same."""
    around: set[Frame] = set()
    frame: Frame | None = one
    while frame is not None:
        around.add(frame)
        frame = frame.outer
    count, frame = 0, other
    while frame is not None:
        count += frame in around
        frame = frame.outer
    return count
