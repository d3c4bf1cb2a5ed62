"""This file holds what the values of two tensors have to do with each other: how far apart, of which rank, in what order.

Imported only where bytes differ; numpy comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bytewise import TensorBytes
from ..checkpoint import Storage, TensorRecord
from ..dequantise import rows
from ..dtypes import DTYPES
from ..names import Matrix
from ..values import Floats, decode, raw

BLOCK = 1 << 18  # elements held at once
MOST = 1 << 26  # elements that are all looked at; of larger tensors rows
ROWS, COLUMNS = 64, 512  # of a larger one, and those in which a rank is looked for
MOST_WIDE = 1 << 20  # elements of a row that is looked at whole
MOST_ROWS = 1 << 20  # that are told apart in any order
MOST_COPIED = 1 << 28  # bytes of a tensor that is held in memory in another order
GAP = 0.02  # of two singular values one behind the other, where the rank of a change ends
MOST_RANK = 1 / 3  # of the rows; beyond it a change is no low-rank one


@dataclass(frozen=True, slots=True)
class Apart:
    """How far two tensors of one shape are apart, over all elements or (`sampled`) over rows of them."""

    max_difference: float
    relative: float
    cosine: float
    sampled: bool
    finite: bool = True
    worst: float = 0.0
    """Relative difference of the row that differs most, and its number."""
    row: int = 0


class Memory:
    """A source of bytes that were put together here."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data, self.nbytes = name, data, len(data)

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.data[offset : offset + len(buffer)]


def in_memory(tensor: TensorRecord, data: bytes, shape: tuple[int, ...], dtype: str, into: TensorBytes) -> TensorRecord:
    """A tensor of these bytes that `into` can read, in the place of `tensor`."""
    file = f"memory\0{len(into.sources)}"
    into.sources = {**into.sources, file: Memory(file, data)}
    return TensorRecord(tensor.name, dtype, shape, Storage(file, "memory", 0, len(data)), 0, len(data))


def forget(into: TensorBytes, tensor: TensorRecord) -> None:
    """Give the bytes of `in_memory` back."""
    into.sources = {name: source for name, source in into.sources.items() if name != tensor.file}


def dense(tensor: TensorRecord, data: TensorBytes) -> bytes | None:
    """The elements of a strided view in the order of its rows; None if that is not worth holding."""
    strides, width = tensor.strides, DTYPES[tensor.dtype].bits // 8
    if strides is None or tensor.storage.offset is None or tensor.nbytes > MOST_COPIED or not width or len(strides) != len(tensor.shape):
        return None
    reach = sum((dim - 1) * stride for dim, stride in zip(tensor.shape, strides, strict=True)) + 1 if tensor.numel else 0
    if min(strides, default=0) < 0 or reach * width > MOST_COPIED or reach * width + tensor.offset > tensor.storage.nbytes:
        return None
    flat = TensorRecord(tensor.name, "U8", (reach * width,), tensor.storage, tensor.offset, reach * width)
    words = np.frombuffer(data.read(flat, 0, reach * width), np.dtype(f"V{width}"))
    view = np.lib.stride_tricks.as_strided(words, tensor.shape, tuple(stride * width for stride in strides))
    return np.ascontiguousarray(view).tobytes()


def floats(tensor: TensorRecord, data: TensorBytes) -> Floats:
    """All elements, row by row."""
    return decode(raw(data, tensor, 0, tensor.numel), tensor.dtype).reshape(tensor.shape)


def apart(a: Matrix, b: Matrix, data: TensorBytes, *, whole: bool) -> Apart | None:
    """How far two matrices of one logical shape are apart; None if their values cannot be decoded."""
    shape = a.shape
    if len(shape) != 2 or b.shape != shape or 0 in shape:
        return None
    height, width = shape
    complete = whole and height * width <= MOST and width <= MOST_WIDE
    if complete:
        step = max(1, BLOCK // width)
        numbers = [list(range(row, min(row + step, height))) for row in range(0, height, step)]
        columns = width
    else:
        count = min(height, ROWS)
        numbers = [sorted({row * (height - 1) // max(1, count - 1) for row in range(count)})]
        columns = min(width, 4096)
        columns -= columns % max(DTYPES[a.main.dtype].block, DTYPES[b.main.dtype].block)
    if not columns:
        return None
    largest, dot, square_a, square_b, square_d, finite = 0.0, 0.0, 0.0, 0.0, 0.0, True
    worst, row = 0.0, 0
    for some in numbers:
        with np.errstate(all="ignore"):
            ours, theirs = (_some_rows(matrix, some, columns, data).astype(np.float64) for matrix in (a, b))
        good = np.isfinite(ours) & np.isfinite(theirs)
        same = ours == theirs
        finite = finite and bool(np.all(good | same | (np.isnan(ours) & np.isnan(theirs))))
        ours, theirs = np.where(good, ours, 0.0), np.where(good, theirs, 0.0)
        delta = ours - theirs
        lengths, errors = (np.sqrt(np.einsum("ij,ij->i", side, side)) for side in (ours, delta))
        # against the usual row too: what a quantiser makes of a row of nearly nothing says nothing
        against = np.maximum(lengths, lengths.mean())
        each = np.divide(errors, against, out=np.where(errors > 0, np.inf, 0.0), where=against > 0)
        at = int(each.argmax())
        if each[at] > worst:
            worst, row = float(each[at]), some[at]
        ours, theirs, delta = ours.ravel(), theirs.ravel(), delta.ravel()
        largest = max(largest, float(np.abs(delta).max(initial=0.0)))
        dot += float(ours @ theirs)
        square_a, square_b, square_d = square_a + float(ours @ ours), square_b + float(theirs @ theirs), square_d + float(delta @ delta)
    norm = np.sqrt(square_a * square_b)
    relative = float(np.sqrt(square_d / square_a)) if square_a else 0.0
    return Apart(largest, relative, float(dot / norm) if norm else 0.0, not complete, finite, worst, row)


def _some_rows(matrix: Matrix, numbers: list[int], columns: int, data: TensorBytes) -> Floats:
    contiguous = numbers[-1] - numbers[0] + 1 == len(numbers) and columns == matrix.shape[1]
    if not matrix.packed and contiguous:
        return decode(raw(data, matrix.main, numbers[0] * columns, len(numbers) * columns), matrix.main.dtype).reshape(
            len(numbers), columns
        )
    return rows(matrix, numbers, columns, data)[0]


def rank_of_change(a: Matrix, b: Matrix, data: TensorBytes) -> int | None:
    """The rank of b - a, if it is low: what a merged LoRA leaves. None if it is not, or not clearly."""
    if len(a.shape) != 2 or a.shape != b.shape or min(a.shape) < 16:
        return None
    height = min(a.shape[0], ROWS)
    columns = min(a.shape[1], COLUMNS)
    columns -= columns % max(DTYPES[a.main.dtype].block, DTYPES[b.main.dtype].block)
    numbers = sorted({row * (a.shape[0] - 1) // max(1, height - 1) for row in range(height)})
    if not columns:
        return None
    ours, theirs = (rows(matrix, numbers, columns, data)[0].astype(np.float64) for matrix in (a, b))
    delta = theirs - ours
    if not np.isfinite(delta).all() or (delta == delta[0, 0]).all():
        return None
    singular = np.linalg.svd(delta, compute_uv=False)
    for rank in range(1, int(min(delta.shape) * MOST_RANK) + 1):
        if singular[rank] < GAP * singular[rank - 1]:
            return rank
    return None


def rotary(rows_of: int, heads: int) -> NDArray[np.int64]:
    """Which row of the original stands in each row of a GGUF (`permute` of llama.cpp's converter): halves of each head interleaved."""
    return np.arange(rows_of, dtype=np.int64).reshape(heads, 2, rows_of // heads // 2).swapaxes(1, 2).reshape(rows_of)


def head_counts(height: int, hints: tuple[int, ...]) -> list[int]:
    """Numbers of heads that a matrix of this height may have, those that a config names first."""
    divisors = [count for count in range(1, min(height // 4, 512) + 1) if height % count == 0 and height // count % 2 == 0]
    return sorted(divisors, key=lambda count: (count not in hints, -count))


def reordered(tensor: TensorRecord, order: NDArray[np.int64], data: TensorBytes) -> bytes:
    """The rows in another order, as bytes."""
    width = tensor.nbytes // len(order)
    return np.frombuffer(data.read(tensor, 0, tensor.nbytes), np.uint8).reshape(len(order), width)[order].tobytes()


def turned(tensor: TensorRecord, data: TensorBytes) -> bytes:
    """The transpose, as bytes."""
    words = np.frombuffer(data.read(tensor, 0, tensor.nbytes), np.dtype(f"V{DTYPES[tensor.dtype].bits // 8}"))
    return np.ascontiguousarray(words.reshape(tensor.shape).T).tobytes()


def same_rows(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> bool:
    """Both hold the same rows, in whatever order."""
    height, width = a.shape[0], a.nbytes // a.shape[0]
    if height > MOST_ROWS:
        return False
    ours, theirs = (data.read(tensor, 0, tensor.nbytes) for tensor in (a, b))
    cut = [sorted(side[row * width : (row + 1) * width] for row in range(height)) for side in (ours, theirs)]
    return cut[0] == cut[1] and len(set(cut[0])) > 1


def overflows(wide: TensorRecord, narrow: TensorRecord, data: TensorBytes) -> int:
    """Values that are finite on the wide side and not on the narrow one."""
    count = 0
    for at in range(0, wide.numel, BLOCK):
        n = min(BLOCK, wide.numel - at)
        big, small = (decode(raw(data, tensor, at, n), tensor.dtype) for tensor in (wide, narrow))
        count += int((np.isfinite(big) & ~np.isfinite(small)).sum())
    return count


def truncated(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> bool:
    """The BF16 side holds the upper halves of the F32 side: a cast that cuts instead of rounding."""
    wide, narrow = (a, b) if a.dtype == "F32" else (b, a)
    if (wide.dtype, narrow.dtype) != ("F32", "BF16"):
        return False
    for at in range(0, wide.numel, BLOCK):
        n = min(BLOCK, wide.numel - at)
        big, small = np.frombuffer(raw(data, wide, at, n), "<u4"), np.frombuffer(raw(data, narrow, at, n), "<u2")
        if not np.array_equal(big >> np.uint32(16), small):
            return False
    return True


def plain_rows(tensor: TensorRecord, first: int, data: TensorBytes) -> bool:
    """The rows from `first` on are padding: each is one number, or all are the same row."""
    width = tensor.shape[1]
    count = min(tensor.shape[0] - first, max(1, BLOCK // width))
    found = decode(raw(data, tensor, first * width, count * width), tensor.dtype).reshape(count, width)
    return bool((found == found[:, :1]).all() or (count > 1 and (found == found[:1]).all()))


def corners(tensor: TensorRecord, data: TensorBytes) -> tuple[float, ...]:
    """Elements that stay in place when a matrix is transposed: the first and the last; and the middle one of a square's diagonal."""
    block = DTYPES[tensor.dtype].block
    ends = [decode(raw(data, tensor, at - at % block, block), tensor.dtype)[at % block] for at in (0, tensor.numel - 1)]
    return tuple(float(value) for value in ends)
