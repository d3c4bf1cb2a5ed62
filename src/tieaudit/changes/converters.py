"""This file holds what converters are known to do to a tensor, beyond its dtype: what one side would be after each such step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..bytewise import TensorBytes
from ..difference import Change
from ..dtypes import DTYPES
from ..names import Matrix
from .sides import Unit

_ROTARY = re.compile(r"\.attn_[qk]\.(?:weight|bias)$")
_NORM = re.compile(r"norm\.weight$")
PLUS_ONE = re.compile(r"^gemma")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What is known of the way between the two sides. `turns`: why a matrix may stand transposed on one of them, "" if it may not."""

    data: TensorBytes
    converted: bool
    from_gguf: bool
    family: str
    heads: tuple[int, ...]
    turns: str


@dataclass(frozen=True, slots=True)
class Step:
    """A tensor as a converter would have written it: the first side's, or (`second`) the second one's."""

    kind: Change
    reason: str
    data: bytes
    shape: tuple[int, ...]
    dtype: str
    second: bool = False


def steps(a: Matrix, b: Matrix, before: Unit, after: Unit, conversion: Conversion) -> Iterator[Step]:
    """What one of the two would be after each step that is known of converters."""
    from . import numbers
    from .rows import in_order

    name = next((unit.name for unit in (after, before) if _ROTARY.search(unit.name) or _NORM.search(unit.name)), "")
    if conversion.converted and a.shape == b.shape and _ROTARY.search(name):
        for order in in_order(a, b, conversion.heads, conversion.data, back=conversion.from_gguf):
            words = "GGUF keeps the rows of q and k of this family in rotary order"
            rows = numbers.reordered(a.main, order, conversion.data)
            yield Step(Change.PERMUTED, words, rows, a.main.shape, a.main.dtype)
    if conversion.converted and PLUS_ONE.match(conversion.family) and _NORM.search(name) and a.shape == b.shape:
        from ..values import encode

        # always on the side that has not been through it: taking one away again would lose digits
        plain = (b if conversion.from_gguf else a).main
        data = encode((numbers.floats(plain, conversion.data) + 1.0).astype("float32"), "F32")
        words = "the converter of Gemma adds one to the weights of norms, as llama.cpp multiplies by them alone"
        if data is not None:
            yield Step(Change.SHIFTED, words, data, plain.shape, "F32", second=conversion.from_gguf)
    if conversion.turns and len(a.shape) == 2 and a.shape[::-1] == b.shape:
        # blocks lie along a row, so it is the other side that is turned
        second = DTYPES[a.main.dtype].block > 1
        plain = (b if second else a).main
        if DTYPES[plain.dtype].block == 1:
            data = numbers.turned(plain, conversion.data)
            yield Step(Change.TRANSPOSED, conversion.turns, data, plain.shape[::-1], plain.dtype, second=second)
