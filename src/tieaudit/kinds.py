"""This file holds the words for how two tensors relate and for what a statement rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verify(StrEnum):
    """How much may be read: `headers` no weights, `sample` some, `full` whole tensors where equality must be proved."""

    HEADERS = "headers"
    SAMPLE = "sample"
    FULL = "full"


class Evidence(StrEnum):
    """What a statement rests on."""

    HEADER = "header"
    SAMPLED = "sampled"
    PROVED = "proved"


def weakest(evidence: Iterable[Evidence]) -> Evidence:
    """What a statement rests on that rests on all of these; PROVED for none."""
    order = tuple(Evidence)
    return min(evidence, key=order.index, default=Evidence.PROVED)


class Kind(StrEnum):
    """The relations of two tensors; the values are the words of the JSON report."""

    SAME_STORAGE = "same storage"
    EQUAL = "equal"
    CAST = "equal after cast"
    TRANSPOSED = "transposed"
    SCALED = "scaled"
    PADDED = "equal up to padding rows"
    NEAR = "near"
    CONSTANT = "constant"
    UNRELATED = "unrelated"
    ROWS_DIFFER = "rows differ"
    NOT_COMPARED = "not comparable"


QUANTISED_TWICE = "one matrix, quantised differently"
"""How `detail` begins where two tensors are near, and as near as their quantised types allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`detail` is a clause in words: the factor, the cosine, the rows. `readable` is False if a file did not give its bytes.
    `redundant` names the side of a cast that can be computed from the other without loss."""

    kind: Kind
    evidence: Evidence
    detail: str = ""
    readable: bool = True
    redundant: str = ""
