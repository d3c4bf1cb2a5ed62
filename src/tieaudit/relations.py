"""This file holds how two stored matrices relate, each answer with its evidence.

`header`: told by names, shapes and storages. `sampled`: told by some of the bytes. `proved`: every byte was compared.
A difference in one sampled byte proves that two tensors differ; what kind of difference it is stays `sampled`.
"""

from __future__ import annotations

from .bytewise import TensorBytes, crcs_differ, crcs_equal
from .checkpoint import TensorRecord
from .errors import FormatError
from .kinds import Evidence, Kind, Relation, Verify, weakest
from .names import Matrix
from .valuewise import compare


def relate(a: Matrix, b: Matrix, data: TensorBytes, verify: Verify) -> Relation:
    """How `b` relates to `a`. A file that cannot give its bytes makes the pair not comparable."""
    if len(a.parts) > 1 or len(b.parts) > 1:
        return _bundles(a, b, data, verify)
    first, second = a.main, b.main
    if not first.nbytes or not second.nbytes:
        return _not_compared(f"{(second if first.nbytes else first).name} has no elements")
    if first.view == second.view:
        return Relation(kind=Kind.SAME_STORAGE, evidence=Evidence.HEADER, detail="both names view the same bytes")
    if verify is Verify.HEADERS:
        return _by_headers(first, second)
    for tensor in (first, second):
        if not data.readable(tensor):
            return _not_compared(f"{tensor.name} is compressed or strided in its file", readable=False)
    try:
        return compare(first, second, data, prove=verify is Verify.FULL)
    except FormatError as error:
        return _not_compared(str(error), readable=False)


def _not_compared(why: str, *, readable: bool = True) -> Relation:
    return Relation(kind=Kind.NOT_COMPARED, evidence=Evidence.HEADER, detail=why, readable=readable)


def _by_headers(a: TensorRecord, b: TensorRecord) -> Relation:
    if _rows_differ(a, b):
        return Relation(kind=Kind.ROWS_DIFFER, evidence=Evidence.HEADER, detail=f"{a.shape[0]:,} and {b.shape[0]:,} rows")
    if crcs_differ(a, b):
        return _not_compared("the recorded checksums differ; how, only the bytes can tell")
    if crcs_equal(a, b):
        return _not_compared("the recorded checksums are equal; only the bytes can prove it")
    return _not_compared("only headers were read (--verify headers)")


def _bundles(a: Matrix, b: Matrix, data: TensorBytes, verify: Verify) -> Relation:
    """Quantised matrices are equal if all their parts are; differently packed ones are not compared by value."""
    ours = {part.name.removeprefix(a.name.removesuffix("weight")): part for part in a.parts}
    theirs = {part.name.removeprefix(b.name.removesuffix("weight")): part for part in b.parts}
    if ours.keys() != theirs.keys() or any(
        (part.dtype, part.shape) != (theirs[leaf].dtype, theirs[leaf].shape) for leaf, part in ours.items()
    ):
        return _not_compared("the two are quantised differently")
    found = [relate(Matrix(part.name, (part,)), Matrix(theirs[leaf].name, (theirs[leaf],)), data, verify) for leaf, part in ours.items()]
    for kind in (Kind.NOT_COMPARED, Kind.ROWS_DIFFER):
        for relation in found:
            if relation.kind is kind:
                return relation
    kinds = {relation.kind for relation in found}
    if kinds <= {Kind.EQUAL, Kind.SAME_STORAGE, Kind.CONSTANT}:
        if Kind.EQUAL in kinds:
            evidence = weakest(relation.evidence for relation in found if relation.kind is Kind.EQUAL)
            return Relation(kind=Kind.EQUAL, evidence=evidence, detail=f"{len(found)} tensors each")
        if Kind.CONSTANT in kinds:
            return Relation(kind=Kind.CONSTANT, evidence=Evidence.SAMPLED)
        return Relation(kind=Kind.SAME_STORAGE, evidence=Evidence.HEADER)
    # two calibrations of one matrix differ too: only the dequantised values could tell
    return _not_compared("the packed values differ, dequantised ones are not compared")


def _rows_differ(a: TensorRecord, b: TensorRecord) -> bool:
    return a.shape[1:] == b.shape[1:] and a.shape[:1] != b.shape[:1] and len(a.shape) == len(b.shape) > 0
