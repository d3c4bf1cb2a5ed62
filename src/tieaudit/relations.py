"""This file holds how two stored matrices relate, each answer with its evidence.

`header`: told by names, shapes and storages. `sampled`: told by some of the bytes. `proved`: every byte was compared.
A difference in one sampled byte proves that two tensors differ; what kind of difference it is stays `sampled`.
"""

from __future__ import annotations

from .bytewise import TensorBytes, crcs_differ, crcs_equal
from .checkpoint import TensorRecord
from .dtypes import DTYPES
from .errors import FormatError
from .kinds import Evidence, Kind, Relation, Verify
from .names import Matrix
from .valuewise import compare


def relate(a: Matrix, b: Matrix, data: TensorBytes, verify: Verify) -> Relation:
    """How `b` relates to `a`. A file that cannot give its bytes makes the pair not comparable."""
    if a.packed or b.packed:
        return _quantised(a, b, data, verify)
    first, second = a.main, b.main
    if not first.nbytes or not second.nbytes:
        return _not_compared(f"{(second if first.nbytes else first).name} has no elements")
    if first.view == second.view:
        return Relation(kind=Kind.SAME_STORAGE, evidence=Evidence.HEADER, detail="both names view the same bytes")
    if verify is Verify.HEADERS:
        return _by_headers(first, second)
    for tensor in (first, second):
        if tensor.storage.why:
            return _not_compared(f"{tensor.name} {tensor.storage.why}")
    for tensor in (first, second):
        if not data.readable(tensor):
            return _not_compared(f"{tensor.name} is compressed or strided in its file", readable=False)
    coded = _is_coded(first) or _is_coded(second)
    if coded and (first.dtype, first.nbytes) != (second.dtype, second.nbytes):
        return _not_compared(f"the two are quantised differently ({first.nbytes:,} and {second.nbytes:,} bytes)")
    try:
        relation = compare(first, second, data, prove=verify is Verify.FULL)
    except FormatError as error:
        return _not_compared(str(error), readable=False)
    if coded and relation.kind in (Kind.UNRELATED, Kind.NEAR, Kind.SCALED) and relation.evidence is not Evidence.PROVED:
        return _not_compared("the packed values differ, dequantised ones are not compared")
    return relation


def _is_coded(tensor: TensorRecord) -> bool:
    """Integers in place of weights: what they stand for depends on scales that lie elsewhere."""
    return DTYPES[tensor.dtype].kind == "int" or tensor.dtype in ("I4", "U4", "I2", "U2", "U1")


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


def _quantised(a: Matrix, b: Matrix, data: TensorBytes, verify: Verify) -> Relation:
    """Two matrices of which one at least is quantised: by the bytes of all parts if they are stored alike, else by what they stand for."""
    alike = a.leaves == b.leaves and all(
        (mine.dtype, mine.shape) == (other.dtype, other.shape) for mine, other in zip(a.parts, b.parts, strict=True)
    )
    for part in (*a.parts, *b.parts):
        if part.storage.why:
            return _not_compared(f"{part.name} {part.storage.why}")
    if alike and all(mine.view == other.view for mine, other in zip(a.parts, b.parts, strict=True)):
        return Relation(kind=Kind.SAME_STORAGE, evidence=Evidence.HEADER, detail="both names view the same bytes")
    if verify is Verify.HEADERS:
        return _by_headers(a.main, b.main) if alike else _not_compared("only headers were read (--verify headers)")
    try:
        equal = _equal_parts(a, b, data, prove=verify is Verify.FULL) if alike else None
        if equal:
            return equal
        from .dequantise import compare as compare_rows

        return compare_rows(a, b, data)
    except FormatError as error:
        return _not_compared(str(error), readable=False)


def _equal_parts(a: Matrix, b: Matrix, data: TensorBytes, *, prove: bool) -> Relation | None:
    """Equal if every part is, bytes against bytes: a scale that is one number repeated says nothing about another one."""
    for part in (*a.parts, *b.parts):
        if not data.readable(part):
            return _not_compared(f"{part.name} is compressed or strided in its file", readable=False)
    if len(a.main.shape) > 1 and data.is_constant(a.main, whole=prove):
        return Relation(kind=Kind.CONSTANT, evidence=Evidence.SAMPLED, detail=f"every element of {a.main.name} is the same")
    for mine, other in zip(a.parts, b.parts, strict=True):
        if mine.view == other.view or not mine.nbytes:
            continue
        if not data.samples_equal(mine, other) or (prove and data.first_difference(mine, other) is not None):
            return None
    evidence = Evidence.PROVED if prove else Evidence.SAMPLED
    return Relation(kind=Kind.EQUAL, evidence=evidence, detail=f"{len(a.parts)} tensors each")


def _rows_differ(a: TensorRecord, b: TensorRecord) -> bool:
    return a.shape[1:] == b.shape[1:] and a.shape[:1] != b.shape[:1] and len(a.shape) == len(b.shape) > 0
