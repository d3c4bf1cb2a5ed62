"""This file holds how two readable tensors relate, found from their bytes and then from their values.

Bytes first: samples reject, a whole compare proves. Only if the bytes differ are numbers decoded (numpy is imported then), from
rows spread over the matrix; what is found there is proved over all elements where a finding would call bytes wasted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from .bytewise import TensorBytes, element
from .checkpoint import TensorRecord
from .dtypes import DTYPES
from .kinds import QUANTISED_TWICE, Evidence, Kind, Relation

if TYPE_CHECKING:
    from .values import Floats

NEAR = 0.8  # cosine of the sampled rows; two independent matrices stay below 0.3, a fine-tuned copy above 0.95
SAMPLED_ROWS = 16
SAMPLED_COLUMNS = 4096  # of a row: a hostile header has one of gigabytes
MAX_FETCHED = 8 << 20  # bytes of a remote matrix that is read whole to prove that it is a transpose
REMOTE_ROWS = 4  # at each end, from pages that are fetched anyway
BLOCK = 1 << 20  # bytes of one side held at once while values are compared
# 1 - cos² of a matrix and what a quantiser makes of it, times 4 to the power of its bits per element: measured from 1.9 (IQ1_S) to 16
# (Q8_0, one column in a hundred twenty times as large) over normal, Laplace and Student weights
QUANTISER = 24
FAINT = 2.2  # bits per element; below it length and half of the direction are lost (ternary of normal weights: cosine 0.6 to 0.7)
FAINT_NEAR = 0.5
LENGTH = 0.15  # relative change of length by a quantiser of more bits: at most 0.07 (Q2_K)
POINTS, REMOTE_POINTS = 48, 6  # elements compared to find a transposed copy; six of BF16 agree by chance once in 10^12


def compare(a: TensorRecord, b: TensorRecord, data: TensorBytes, *, prove: bool) -> Relation:
    """The relation of `b` to `a`, both row-major, readable and not empty. FormatError if a file cannot give its bytes."""
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
    """Equal in the samples and not in the whole (or said to differ by a checksum): count the rows that differ."""
    from . import values

    vague = Relation(kind=Kind.NEAR, evidence=Evidence.PROVED, detail="equal in samples, not in the whole")
    height = a.shape[0] if len(a.shape) == 2 else 0
    width = a.nbytes // height if height else 0
    if not height or a.nbytes % height or not 0 < width <= BLOCK:
        return Relation(kind=Kind.EQUAL, evidence=Evidence.PROVED) if data.first_difference(a, b) is None else vague
    step = BLOCK // width
    changed: list[int] = []
    for row in range(0, height, step):
        n = min(step, height - row) * width
        changed.extend(row + number for number in values.differing_rows(data.read(a, row * width, n), data.read(b, row * width, n), width))
        data.advanced(n)
    if not changed:
        return Relation(kind=Kind.EQUAL, evidence=Evidence.PROVED)
    count, first, last = len(changed), changed[0], changed[-1]
    if last == height - 1 and count == height - first and count <= max(1, height // 10):
        return Relation(
            kind=Kind.PADDED, evidence=Evidence.PROVED, detail=f"rows {first:,} to {last:,} differ, the {first:,} before are equal"
        )
    words = f"row {first:,} differs" if count == 1 else f"{count:,} rows differ, the first is row {first:,}"
    return Relation(kind=Kind.NEAR, evidence=Evidence.PROVED, detail=f"{words}, of {height:,}")


def _by_value(a: TensorRecord, b: TensorRecord, data: TensorBytes, *, prove: bool) -> Relation:
    from . import values

    packed = [tensor.dtype for tensor in (a, b) if values.quantised(tensor.dtype)]
    for dtype in packed:
        if why := values.undecoded(dtype):
            return Relation(kind=Kind.NOT_COMPARED, evidence=Evidence.HEADER, detail=f"quantised, and not the same bytes: {why}")
    if not (values.decodable(a.dtype) and values.decodable(b.dtype)):
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="the bytes differ")
    if len(a.shape) == 1 == len(b.shape):
        a, b = _as_row(a), _as_row(b)
    if len(a.shape) != 2 or len(b.shape) != 2:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="the bytes differ")
    rounding = _Rounding.between(a, b)
    # blocks lie along a row: what is quantised and transposed shares none
    if a.shape == b.shape[::-1] and not packed and _transposed(a, b, data, rounding):
        # tiles of a large remote matrix would be a request per row
        whole = prove and data.at_hand(a, b, fetch=MAX_FETCHED)
        return _proved_transposed(a, b, data, rounding) if whole else Relation(kind=Kind.TRANSPOSED, evidence=Evidence.SAMPLED)
    if a.shape[1] != b.shape[1]:
        if a.shape == b.shape[::-1] and not packed:
            return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail="rows and columns swapped, and other values")
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.HEADER, detail="the shapes have nothing in common")
    if a.shape[0] != b.shape[0]:
        return _padded(a, b, data, prove=prove) or Relation(
            kind=Kind.ROWS_DIFFER, evidence=Evidence.HEADER, detail=f"{a.shape[0]:,} and {b.shape[0]:,} rows"
        )
    numbers = _spread(a, b, data)
    columns = _columns(a, b, data)
    data.prefetch((a, b))
    ours, theirs = _rows(data, a, numbers, columns), _rows(data, b, numbers, columns)
    if a.dtype != b.dtype and packed:
        return _quantised(a, b, ours, theirs)
    if a.dtype != b.dtype and (cast := _cast(a, b, data, rounding, (numbers, columns), prove=prove)):
        return cast
    scale = values.factor(ours, theirs, rounding.tolerance, rounding.floor)
    if scale is not None:
        return Relation(kind=Kind.SCALED, evidence=Evidence.SAMPLED, detail=f"{b.name} = {scale:.6g} x {a.name}")
    cosine = values.cosine(ours, theirs)
    equal_rows = values.equal_rows(ours, theirs) if a.dtype == b.dtype else 0
    if equal_rows and a.shape[0] > 1:
        return _changed_rows(a, b, data) if prove else _near(cosine, equal_rows, len(numbers))
    if packed:
        return _quantised(a, b, ours, theirs)
    if cosine >= NEAR:
        return _near(cosine, equal_rows, len(numbers))
    return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail=f"cosine {cosine:.3f} over {len(numbers)} rows")


@dataclass(frozen=True, slots=True)
class _Rounding:
    """How far two elements may be apart and still be one number in two dtypes; 0 if the dtypes are the same."""

    tolerance: float
    floor: float

    @classmethod
    def between(cls, a: TensorRecord, b: TensorRecord) -> _Rounding:
        from . import values

        return cls(2 * max(values.epsilon(a.dtype), values.epsilon(b.dtype)), max(values.smallest(a.dtype), values.smallest(b.dtype)))


def _near(cosine: float, equal: int, sampled: int) -> Relation:
    rows = "every sampled row differs" if not equal else f"{sampled - equal} of {sampled} sampled rows differ"
    close = "over 0.9999" if cosine > 0.9999 else f"{cosine:.4f}"
    return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=f"{rows}, cosine {close}")


def _quantised(a: TensorRecord, b: TensorRecord, ours: Floats, theirs: Floats) -> Relation:
    """Two matrices of which at least one is quantised, by sampled rows: one matrix if they are as near as their types allow."""
    from . import values

    cosine, rows = values.cosine(ours, theirs), len(ours)
    words = f"cosine {'over 0.9999' if cosine > 0.9999 else f'{cosine:.4f}'} over {rows} rows"
    widths = [DTYPES[tensor.dtype].bits / DTYPES[tensor.dtype].block for tensor in (a, b)]
    faint = min(widths) < FAINT
    near = FAINT_NEAR if faint else NEAR
    if cosine < near:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail=words)
    lost = sum(
        QUANTISER * 4.0**-width if values.quantised(tensor.dtype) else (values.epsilon(tensor.dtype) / 4) ** 2
        for tensor, width in zip((a, b), widths, strict=True)
    )
    if cosine < 1 - lost / 2:
        what = f"every sampled row differs, {words}: further apart than {a.dtype} and {b.dtype} explain"
        return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=what)
    times = values.stretch(ours, theirs)
    if not faint and not 1 - LENGTH < times < 1 + LENGTH:
        what = f"{b.name} = about {times:.3g} x {a.name}, quantised"
        return Relation(kind=Kind.SCALED, evidence=Evidence.SAMPLED, detail=what)
    return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=f"{QUANTISED_TWICE}: {words}")


def _as_row(tensor: TensorRecord) -> TensorRecord:
    return TensorRecord(tensor.name, tensor.dtype, (1, *tensor.shape), tensor.storage, tensor.offset, tensor.nbytes, None, tensor.part)


def _spread(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> list[int]:
    """Row numbers over the whole height, the first and the last among them; of remote matrices those inside of the pages."""
    height = a.shape[0]
    if not data.at_hand(a, b):
        width = max(a.nbytes, b.nbytes) // height
        count = max(1, min(REMOTE_ROWS, data.window // max(1, width)))
        return sorted({*range(min(count, height)), *range(max(0, height - count), height)})
    count = min(height, SAMPLED_ROWS)
    return sorted({row * (height - 1) // max(1, count - 1) for row in range(count)})


def _columns(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> int:
    """Elements of a row that are looked at, in whole blocks: of remote matrices what one page holds on both sides."""
    blocks = [DTYPES[tensor.dtype].block for tensor in (a, b)]
    page = min(data.window // element(tensor) * block for tensor, block in zip((a, b), blocks, strict=True))
    most = min(a.shape[1], SAMPLED_COLUMNS if data.at_hand(a, b) else page)
    return most - most % max(blocks)  # sizes of blocks are powers of two


def _rows(data: TensorBytes, tensor: TensorRecord, numbers: list[int], columns: int) -> Floats:
    """The begins of these rows, shape (rows, columns)."""
    from . import values

    raw = b"".join(values.raw(data, tensor, number * tensor.shape[1], columns) for number in numbers)
    return values.decode(raw, tensor.dtype).reshape(len(numbers), columns)


def _padded(a: TensorRecord, b: TensorRecord, data: TensorBytes, *, prove: bool) -> Relation | None:
    """The shorter matrix is the beginning of the longer one."""
    shared = min(a.nbytes, b.nbytes)
    if a.dtype != b.dtype or any(
        data.read(a, at, n) != data.read(b, at, n) for at, n in ((0, min(shared, 4096)), (max(0, shared - 4096), min(shared, 4096)))
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


class _Fit(IntEnum):
    """How well one side is the other in another dtype; each includes the ones before it."""

    NO = 0
    CLOSE = 1  # equal up to rounding
    ROUNDED = 2  # the narrow side is the wide one rounded
    WIDENED = 3  # the wide side holds nothing that the narrow one does not


def _fit(wide: bytes, narrow: bytes, dtypes: tuple[str, str], rounding: _Rounding) -> _Fit:
    """The fit of two runs of elements; `dtypes` of the wide and of the narrow side."""
    from . import values

    big, small = values.decode(wide, dtypes[0]), values.decode(narrow, dtypes[1])
    if values.encode(small, dtypes[0]) == wide:
        return _Fit.WIDENED
    if values.encode(big, dtypes[1]) == narrow:
        return _Fit.ROUNDED
    return _Fit.CLOSE if values.same_up_to_rounding(big, small, rounding.tolerance, rounding.floor) else _Fit.NO


def _cast(
    a: TensorRecord, b: TensorRecord, data: TensorBytes, rounding: _Rounding, sampled: tuple[list[int], int], *, prove: bool
) -> Relation | None:
    """One side is the other in another dtype, by the sampled rows and (`prove`) by all elements; None if it is not."""
    from . import values

    wide, narrow = sorted((a, b), key=lambda tensor: -DTYPES[tensor.dtype].bits)
    dtypes, (numbers, columns) = (wide.dtype, narrow.dtype), sampled

    def fit(start: int, count: int) -> _Fit:
        return _fit(values.raw(data, wide, start, count), values.raw(data, narrow, start, count), dtypes, rounding)

    found = min(fit(number * a.shape[1], columns) for number in numbers)
    if found is _Fit.NO:
        return None
    total, step = (a.numel, BLOCK // 8) if prove else (0, 1)
    for at in range(0, total, step):
        count = min(step, total - at)
        data.advanced(count * DTYPES[narrow.dtype].bits // 8)
        found = min(found, fit(at, count))
        if found is _Fit.NO:
            return Relation(
                kind=Kind.NEAR, evidence=Evidence.PROVED, detail=f"equal after a cast in samples, not in row {at // a.shape[1]:,} or behind"
            )
    how, redundant = {
        _Fit.WIDENED: (f"{wide.name} is {narrow.name} widened to {wide.dtype}", wide.name),
        _Fit.ROUNDED: (f"{narrow.name} is {wide.name} rounded to {narrow.dtype}", narrow.name),
        _Fit.CLOSE: (f"{a.dtype} and {b.dtype}, equal up to rounding", ""),
    }[found]
    return Relation(kind=Kind.CAST, evidence=Evidence.PROVED if prove else Evidence.SAMPLED, detail=how, redundant=redundant)


def _transposed(a: TensorRecord, b: TensorRecord, data: TensorBytes, rounding: _Rounding) -> bool:
    from . import values

    # seeded: the same file always gets the same answer
    dice = random.Random(a.nbytes)  # noqa: S311  nothing secret
    if not data.at_hand(a, b):  # of one row of `a`, which is in a page; each is a request on the other side
        step = max(1, min(a.shape[1], data.window // element(a)) // REMOTE_POINTS)
        places = [(0, column) for column in range(0, min(a.shape[1], step * REMOTE_POINTS), step)]
    else:
        places = [(dice.randrange(a.shape[0]), dice.randrange(a.shape[1])) for _ in range(POINTS)]
    ours = b"".join(values.raw(data, a, row * a.shape[1] + column, 1) for row, column in places)
    theirs = b"".join(values.raw(data, b, column * b.shape[1] + row, 1) for row, column in places)
    if a.dtype == b.dtype:
        return ours == theirs
    return values.same_up_to_rounding(values.decode(ours, a.dtype), values.decode(theirs, b.dtype), rounding.tolerance, rounding.floor)


def _proved_transposed(a: TensorRecord, b: TensorRecord, data: TensorBytes, rounding: _Rounding) -> Relation:
    """Tiles of `a` against the swapped tiles of `b`, each read row by row."""
    from . import values

    height, width = a.shape
    columns = min(width, BLOCK // 8)
    rows = max(1, BLOCK // 8 // columns)
    for row in range(0, height, rows):
        n = min(rows, height - row)
        for column in range(0, width, columns):
            m = min(columns, width - column)
            tile = b"".join(values.raw(data, a, (row + i) * width + column, m) for i in range(n))
            other = b"".join(values.raw(data, b, (column + j) * height + row, n) for j in range(m))
            ours = values.decode(tile, a.dtype).reshape(n, m)
            theirs = values.decode(other, b.dtype).reshape(m, n).T
            data.advanced(len(tile))
            tolerance, floor = (0.0, 0.0) if a.dtype == b.dtype else (rounding.tolerance, rounding.floor)
            if not values.same_up_to_rounding(ours, theirs, tolerance, floor):
                return Relation(kind=Kind.UNRELATED, evidence=Evidence.PROVED, detail="transposed in samples, not in the whole")
    return Relation(kind=Kind.TRANSPOSED, evidence=Evidence.PROVED, detail=f"{tuple(b.shape)} against {tuple(a.shape)}")
