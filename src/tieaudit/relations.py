"""This file holds how two stored matrices relate, each answer with its evidence.

`header`: told by names, shapes and storages. `sampled`: told by some of the bytes. `proved`: every byte was compared.
A difference in one sampled byte proves that two tensors differ; what kind of difference it is stays `sampled`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from .bytewise import TensorBytes, crcs_differ
from .checkpoint import TensorRecord
from .dtypes import DTYPES
from .errors import FormatError
from .names import Matrix

if TYPE_CHECKING:
    from .values import Floats

NEAR = 0.8  # cosine of the sampled rows; two independent matrices stay below 0.3, a fine-tuned copy above 0.95
SAMPLED_ROWS = 16
BLOCK = 1 << 20  # bytes of one side held at once while values are compared
POINTS = 48  # elements compared to find a transposed copy


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`detail` is a clause in words: the factor, the cosine, the rows. `shapes_fit` is False if a reader must refuse the pair."""

    kind: Kind
    evidence: Evidence
    detail: str = ""


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
            return _not_compared(f"{tensor.name} is compressed or strided in its file")
    try:
        return _related(first, second, data, verify)
    except FormatError as error:
        return _not_compared(str(error))


def _not_compared(why: str) -> Relation:
    return Relation(kind=Kind.NOT_COMPARED, evidence=Evidence.HEADER, detail=why)


def _by_headers(a: TensorRecord, b: TensorRecord) -> Relation:
    if _rows_differ(a, b):
        return Relation(kind=Kind.ROWS_DIFFER, evidence=Evidence.HEADER, detail=f"{a.shape[0]:,} and {b.shape[0]:,} rows")
    if crcs_differ(a, b):
        return _not_compared("the recorded checksums differ; how, only the bytes can tell")
    return _not_compared("only headers were read (--verify headers)")


def _bundles(a: Matrix, b: Matrix, data: TensorBytes, verify: Verify) -> Relation:
    """Quantised matrices are equal if all their parts are; differently packed ones are not compared by value."""
    ours = {part.name.removeprefix(a.name.removesuffix("weight")): part for part in a.parts}
    theirs = {part.name.removeprefix(b.name.removesuffix("weight")): part for part in b.parts}
    if ours.keys() != theirs.keys():
        return _not_compared("the two are quantised differently")
    found = [
        relate(Matrix(part.name, (part,)), Matrix(theirs[leaf].name, (theirs[leaf],)), data, verify)
        for leaf, part in ours.items()
    ]
    for kind in (Kind.NOT_COMPARED, Kind.ROWS_DIFFER):
        for relation in found:
            if relation.kind is kind:
                return relation
    if all(relation.kind in (Kind.EQUAL, Kind.SAME_STORAGE, Kind.CONSTANT) for relation in found):
        order = list(Evidence)
        weakest = min((relation.evidence for relation in found if relation.kind is Kind.EQUAL), key=order.index, default=None)
        if weakest is None and any(relation.kind is Kind.CONSTANT for relation in found):
            return Relation(kind=Kind.CONSTANT, evidence=Evidence.SAMPLED)
        if weakest is None:
            return Relation(kind=Kind.SAME_STORAGE, evidence=Evidence.HEADER)
        return Relation(kind=Kind.EQUAL, evidence=weakest, detail=f"{len(found)} tensors each")
    return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="the packed values differ")


def _rows_differ(a: TensorRecord, b: TensorRecord) -> bool:
    return a.shape[1:] == b.shape[1:] and a.shape[:1] != b.shape[:1] and len(a.shape) == len(b.shape) > 0


def _related(a: TensorRecord, b: TensorRecord, data: TensorBytes, verify: Verify) -> Relation:
    prove = verify is Verify.FULL
    for tensor in (a, b):
        if len(tensor.shape) > 1 and data.is_constant(tensor, whole=prove):
            evidence = Evidence.PROVED if prove else Evidence.SAMPLED
            return Relation(kind=Kind.CONSTANT, evidence=evidence, detail=f"every element of {tensor.name} is the same")
    if a.nbytes == b.nbytes and a.shape == b.shape and a.dtype == b.dtype and data.samples_equal(a, b):
        if not prove:
            return Relation(kind=Kind.EQUAL, evidence=Evidence.SAMPLED)
        at = data.first_difference(a, b)
        if at is None:
            return Relation(kind=Kind.EQUAL, evidence=Evidence.PROVED)
        return _changed_rows(a, b, data)
    return _by_value(a, b, data, prove=prove)


def _changed_rows(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> Relation:
    """Equal in the samples and not in the whole: count the rows that differ."""
    from . import values

    if len(a.shape) != 2:
        return Relation(kind=Kind.NEAR, evidence=Evidence.PROVED, detail="equal in samples, not in the whole")
    height, width = a.shape[0], a.nbytes // a.shape[0]
    step = max(1, BLOCK // max(1, width))
    changed: list[int] = []
    for row in range(0, height, step):
        n = min(step, height - row) * width
        block = values.differing_rows(data.read(a, row * width, n), data.read(b, row * width, n), width)
        changed.extend(int(number) + row for number in block)
    count, first, last = len(changed), changed[0], changed[-1]
    if last == height - 1 and count == height - first and count <= max(1, height // 10):
        return Relation(
            kind=Kind.PADDED, evidence=Evidence.PROVED, detail=f"rows {first:,} to {last:,} differ, the {first:,} before are equal"
        )
    words = f"row {first:,} differs" if count == 1 else f"{count:,} rows differ, the first is row {first:,}"
    return Relation(kind=Kind.NEAR, evidence=Evidence.PROVED, detail=f"{words}, of {height:,}")


def _by_value(a: TensorRecord, b: TensorRecord, data: TensorBytes, *, prove: bool) -> Relation:
    from . import values

    if not (values.decodable(a.dtype) and values.decodable(b.dtype)):
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="the bytes differ")
    tolerance = 2 * max(values.epsilon(a.dtype), values.epsilon(b.dtype))
    if len(a.shape) == 1 == len(b.shape):
        a, b = _as_row(a), _as_row(b)
    if len(a.shape) != 2 or len(b.shape) != 2 or 0 in a.shape or 0 in b.shape:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="the bytes differ")
    if a.shape == b.shape[::-1] and _transposed(a, b, data, tolerance):
        return _proved_transposed(a, b, data, tolerance) if prove else Relation(kind=Kind.TRANSPOSED, evidence=Evidence.SAMPLED)
    if a.shape[1] != b.shape[1]:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.HEADER, detail="the shapes have nothing in common")
    numbers = _spread(min(a.shape[0], b.shape[0]))
    ours, theirs = values.rows(data, a, numbers), values.rows(data, b, numbers)
    if a.shape[0] != b.shape[0]:
        return _padded(a, b, data, prove=prove) or Relation(
            kind=Kind.ROWS_DIFFER, evidence=Evidence.HEADER, detail=f"{a.shape[0]:,} and {b.shape[0]:,} rows"
        )
    if a.dtype != b.dtype and (cast := _cast(a, b, ours, theirs, data, tolerance, prove=prove)):
        return cast
    scale = values.factor(ours, theirs, tolerance)
    if scale is not None:
        return Relation(kind=Kind.SCALED, evidence=Evidence.SAMPLED, detail=f"{b.name} = {scale:.6g} x {a.name}")
    cosine = values.cosine(ours, theirs)
    equal_rows = sum(ours[row].tobytes() == theirs[row].tobytes() for row in range(len(numbers)))
    if a.dtype == b.dtype and equal_rows and a.shape[0] > 1:
        return _changed_rows(a, b, data) if prove else _near(cosine, equal_rows, len(numbers))
    if cosine >= NEAR:
        return _near(cosine, equal_rows, len(numbers))
    return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail=f"cosine {cosine:.3f} over {len(numbers)} rows")


def _near(cosine: float, equal: int, sampled: int) -> Relation:
    rows = "every sampled row differs" if not equal else f"{sampled - equal} of {sampled} sampled rows differ"
    close = "over 0.9999" if cosine > 0.9999 else f"{cosine:.4f}"
    return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=f"{rows}, cosine {close}")


def _as_row(tensor: TensorRecord) -> TensorRecord:
    return TensorRecord(
        tensor.name, tensor.dtype, (1, *tensor.shape), tensor.storage, tensor.offset, tensor.nbytes, None, tensor.part
    )


def _spread(height: int) -> list[int]:
    """Row numbers over the whole height, the first and the last among them."""
    count = min(height, SAMPLED_ROWS)
    return sorted({row * (height - 1) // max(1, count - 1) for row in range(count)})


def _padded(a: TensorRecord, b: TensorRecord, data: TensorBytes, *, prove: bool) -> Relation | None:
    """The shorter matrix is the beginning of the longer one."""
    shared = min(a.nbytes, b.nbytes)
    if a.dtype != b.dtype or any(
        data.read(a, at, n) != data.read(b, at, n)
        for at, n in ((0, min(shared, 4096)), (max(0, shared - 4096), min(shared, 4096)))
    ):
        return None
    if prove and data.first_difference(a, b, shared) is not None:
        return None
    short, long = sorted((a.shape[0], b.shape[0]))
    return Relation(
        kind=Kind.PADDED,
        evidence=Evidence.PROVED if prove else Evidence.SAMPLED,
        detail=f"the first {short:,} rows are equal, rows {short:,} to {long - 1:,} are on one side only",
    )


def _cast(
    a: TensorRecord, b: TensorRecord, ours: Floats, theirs: Floats, data: TensorBytes, tolerance: float, *, prove: bool
) -> Relation | None:
    """One side is the other rounded (or widened) to its dtype."""
    from . import values

    wide, narrow = sorted((a, b), key=lambda tensor: -DTYPES[tensor.dtype].bits)
    big, small = (ours, theirs) if wide is a else (theirs, ours)
    exact = DTYPES[wide.dtype].bits > DTYPES[narrow.dtype].bits and values.encode(big, narrow.dtype) == values.encode(
        small, narrow.dtype
    )
    if not exact:
        if values.same_up_to_rounding(ours, theirs, tolerance):
            return Relation(kind=Kind.CAST, evidence=Evidence.SAMPLED, detail=f"{a.dtype} and {b.dtype}, equal up to rounding")
        return None
    lossless = values.encode(small, wide.dtype) == values.encode(big, wide.dtype)
    how = f"{wide.name} is {narrow.name} widened to {wide.dtype}" if lossless else f"{narrow.name} is {wide.name} rounded to {narrow.dtype}"
    if prove:
        height, columns = a.shape
        step = max(1, BLOCK // max(1, columns * 4))
        for row in range(0, height, step):
            block = list(range(row, min(row + step, height)))
            if values.encode(_block(data, wide, block), narrow.dtype) != values.encode(_block(data, narrow, block), narrow.dtype):
                return Relation(kind=Kind.NEAR, evidence=Evidence.PROVED, detail=f"equal after a cast up to row {row:,}")
    return Relation(kind=Kind.CAST, evidence=Evidence.PROVED if prove else Evidence.SAMPLED, detail=how)


def _block(data: TensorBytes, tensor: TensorRecord, block: list[int]) -> Floats:
    """Consecutive rows in one read."""
    from . import values

    width = tensor.nbytes // tensor.shape[0]
    return values.decode(data.read(tensor, block[0] * width, len(block) * width), tensor.dtype)


def _transposed(a: TensorRecord, b: TensorRecord, data: TensorBytes, tolerance: float) -> bool:
    from . import values

    # seeded: the same file always gets the same answer
    dice = random.Random(a.nbytes)
    places = [(dice.randrange(a.shape[0]), dice.randrange(a.shape[1])) for _ in range(POINTS)]
    ours = values.elements(data, a, places)
    theirs = values.elements(data, b, [(column, row) for row, column in places])
    return values.same_up_to_rounding(ours, theirs, 0.0 if a.dtype == b.dtype else tolerance)


def _proved_transposed(a: TensorRecord, b: TensorRecord, data: TensorBytes, tolerance: float) -> Relation:
    """Strips of rows of `a` against the same columns of `b`, each read row by row."""
    from . import values

    height, width = a.shape
    isize, jsize = DTYPES[a.dtype].bits // 8, DTYPES[b.dtype].bits // 8
    step = max(1, BLOCK // max(1, width * isize))
    for row in range(0, height, step):
        n = min(step, height - row)
        strip = values.decode(data.read(a, row * width * isize, n * width * isize), a.dtype).reshape(n, width)
        raw = b"".join(data.read(b, (column * height + row) * jsize, n * jsize) for column in range(width))
        other = values.decode(raw, b.dtype).reshape(width, n)
        data.advanced(n * width * isize)
        if not values.same_up_to_rounding(strip, other.T, 0.0 if a.dtype == b.dtype else tolerance):
            return Relation(kind=Kind.UNRELATED, evidence=Evidence.PROVED, detail="transposed in samples, not in the whole")
    return Relation(kind=Kind.TRANSPOSED, evidence=Evidence.PROVED, detail=f"{tuple(b.shape)} against {tuple(a.shape)}")
