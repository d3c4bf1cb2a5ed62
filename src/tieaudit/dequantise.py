"""This file holds what packed numbers stand for: some rows of a quantised matrix as floats, where that is simple and certain.

The formulas are those of the libraries that write the files: bitsandbytes `int8_vectorwise_dequant` (q × SCB / 127), compressed-tensors
`dequantize` and `unpack_from_int32`, `mx.dequantize` (affine: q × scale + bias), torchao's (q - zero) × scale, the block scales of
DeepSeek's FP8, and the E2M1 numbers of OCP's microscaling formats. GPTQ, AWQ, NF4, HQQ and others are not decoded: act-order, offsets
of zero points and nested scales differ between their writers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .bytewise import TensorBytes
from .checkpoint import TensorRecord
from .kinds import QUANTISED_TWICE, Evidence, Kind, Relation
from .names import Matrix
from .values import Floats, cosine, decodable, decode, epsilon, raw

ROWS, COLUMNS = 16, 4096  # that are looked at
REMOTE_ROWS, REMOTE_COLUMNS = 2, 1024  # each row is a request
# 1 - cos² of a matrix and what a quantiser makes of it, over what rounding to its steps alone gives: 1 for the nearest step, up to 3 with
# calibration (GPTQ) or clipping. Beyond FAR no quantiser explains it.
CLOSE, FAR = 6.0, 50.0
OTHER = 0.3  # cosine that two matrices of their own stay below
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def compare(a: Matrix, b: Matrix, data: TensorBytes) -> Relation:
    """Sampled rows of two matrices that are stored in two ways. FormatError if a file cannot give its bytes."""
    for matrix in (a, b):
        why = _obstacle(matrix, data)
        if why:
            return _not_compared(why)
    if a.shape[1] != b.shape[1]:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.HEADER, detail=f"{_dims(a)} and {_dims(b)} have nothing in common")
    if a.shape[0] != b.shape[0]:
        return Relation(kind=Kind.ROWS_DIFFER, evidence=Evidence.HEADER, detail=f"{a.shape[0]:,} and {b.shape[0]:,} rows")
    near = data.at_hand(a.main, b.main)
    if not near:
        data.prefetch((*a.parts, *b.parts))
    height = a.shape[0]
    count = min(height, ROWS if near else REMOTE_ROWS)
    numbers = sorted({row * (height - 1) // max(1, count - 1) for row in range(count)})
    columns = min(a.shape[1], COLUMNS if near else REMOTE_COLUMNS)
    ours, theirs = (rows(matrix, numbers, columns, data) for matrix in (a, b))
    # rows of tokens that were never used are zero
    telling = np.isfinite(ours[0]).all(1) & np.isfinite(theirs[0]).all(1) & ours[0].any(1) & theirs[0].any(1)
    if not telling.any():
        return _not_compared("the sampled rows are zero or no numbers")
    angle = cosine(ours[0][telling], theirs[0][telling])
    apart = 1 - angle * angle
    noise = sum(float((steps[telling] ** 2).mean() / 12 / (values[telling] ** 2).mean()) for values, steps in (ours, theirs))
    close = f"cosine {'over 0.9999' if angle > 0.9999 else f'{angle:.4f}'} over {int(telling.sum())} rows"
    if angle > 0 and apart <= CLOSE * noise + 1e-6:
        return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=f"{QUANTISED_TWICE}: {close}")
    if angle < OTHER:
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail=f"dequantised, {close}")
    if apart > FAR * noise:
        return Relation(kind=Kind.NEAR, evidence=Evidence.SAMPLED, detail=f"dequantised, {close}: more than quantisation explains")
    return _not_compared(f"dequantised rows have {close}: neither surely one matrix nor surely two")


def _not_compared(why: str) -> Relation:
    return Relation(kind=Kind.NOT_COMPARED, evidence=Evidence.HEADER, detail=why)


def _dims(matrix: Matrix) -> str:
    return " × ".join(f"{dim:,}" for dim in matrix.shape)


def _obstacle(matrix: Matrix, data: TensorBytes) -> str:
    """Why the matrix cannot be decoded here; "" if it can."""
    if not matrix.packed:
        fine = len(matrix.shape) == 2 and decodable(matrix.main.dtype)
        return "" if fine and data.readable(matrix.main) else f"{matrix.name} is no readable matrix of numbers"
    if len(matrix.shape) != 2:
        return f"{matrix.name} is {matrix.form}, and its shape is not told by the header"
    if _decoder(matrix) is None:
        return f"{matrix.name} is {matrix.form}, whose values are not decoded here"
    unread = next((part.name for part in matrix.parts if not data.readable(part)), "")
    return f"{unread} is compressed or strided in its file" if unread else ""


Decoded = tuple[Floats, Floats]
"""Numbers, and how far the next one that could have been stored lies from each (1 for all, where that is the same)."""
Decoder = Callable[[Matrix, int, int, TensorBytes], Decoded]


def rows(matrix: Matrix, numbers: list[int], columns: int, data: TensorBytes) -> Decoded:
    """The begins of these rows, and the steps between the numbers that could have been stored."""
    decoder = _decoder(matrix) or _plain
    with np.errstate(all="ignore"):
        decoded = [decoder(matrix, row, columns, data) for row in numbers]
    values = np.stack([row for row, _ in decoded])
    return values, np.stack([np.broadcast_to(step, columns) for _, step in decoded])


def _plain(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    values = decode(raw(data, matrix.main, row * matrix.shape[1], columns), matrix.main.dtype)
    return values, np.abs(values) * np.float32(epsilon(matrix.main.dtype))


def _decoder(matrix: Matrix) -> Decoder | None:
    """How this bundle is decoded; None for a plain tensor and for what is not decoded here."""
    bits = matrix.layout.bits if matrix.layout else 0
    if matrix.scheme == "bitsandbytes-8bit":
        scale = matrix.part("SCB")
        return _int8_rows if scale and scale.shape == matrix.shape[:1] and scale.dtype == "F32" else None
    if matrix.scheme in ("int8", "fp8", "fp8-block", "torchao"):
        return _scaled if matrix.main.shape == matrix.shape and _scaled_by(matrix) else None
    if matrix.scheme == "mlx":
        return _mlx if bits and _groups(matrix, "scales") else None
    if matrix.scheme == "modelopt-nvfp4":
        return _e2m1 if bits == 4 and _groups(matrix, "weight_scale") else None
    if matrix.scheme == "compressed-tensors" and _groups(matrix, "weight_scale"):
        if matrix.main.dtype == "U8":
            return _e2m1 if bits == 4 else None
        # a zero point or an order of columns makes it another formula; other widths were packed in two ways over time
        plain = bits in (4, 8) and not matrix.part("weight_zero_point") and not matrix.part("weight_g_idx")
        return _offset if plain else None
    return None


def _floats(part: TensorRecord, start: int, count: int, data: TensorBytes) -> Floats:
    """Elements of a scale. Eight bits without a sign are an exponent (E8M0) wherever they scale floats."""
    return decode(raw(data, part, start, count), "F8_E8M0" if part.dtype == "U8" else part.dtype)


def _groups(matrix: Matrix, leaf: str) -> int:
    """Columns that share one scale of the row; 0 if the scales are not laid out so."""
    part = matrix.part(leaf)
    rows, width = matrix.shape
    if part is None or len(part.shape) != 2 or part.shape[0] != rows or not part.shape[1] or width % part.shape[1]:
        return 0
    return width // part.shape[1]


def _grouped(matrix: Matrix, leaf: str, row: int, columns: int, data: TensorBytes) -> Floats:
    """The row's scales, one per column."""
    part = matrix.part(leaf)
    size = _groups(matrix, leaf)
    if part is None or not size:
        return np.zeros(columns, np.float32)
    return np.repeat(_floats(part, row * part.shape[1], -(-columns // size), data), size)[:columns]


def _codes(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Floats:
    """The row's integers: element i lies at bit i × bits, low bits first, whatever the words are."""
    bits = matrix.layout.bits if matrix.layout else 8
    width = matrix.main.nbytes // matrix.main.shape[0]
    stored = data.read(matrix.main, row * width, -(-columns * bits // 8))
    single = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")[: columns * bits].reshape(columns, bits)
    weights: Floats = (1 << np.arange(bits)).astype(np.float32)
    return single.astype(np.float32) @ weights


def _int8_rows(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    codes = decode(raw(data, matrix.main, row * matrix.shape[1], columns), "I8")
    part = matrix.part("SCB")
    step = _floats(part, row, 1, data) / np.float32(127) if part else np.ones(1, np.float32)
    return codes * step, step


def _scale_of(matrix: Matrix) -> tuple[str, TensorRecord] | None:
    for leaf in ("weight_scale", "weight_scale_inv", "_weight_scale"):
        part = matrix.part(leaf)
        if part:
            return leaf, part
    return None


def _block(matrix: Matrix, part: TensorRecord) -> int:
    """Side of the square blocks that share a scale; 0 if the scales are not laid out so."""
    if len(part.shape) != 2 or 0 in part.shape:
        return 0
    sides = (128, 64, 32, 16)
    return next((side for side in sides if part.shape == tuple(-(-dim // side) for dim in matrix.shape)), 0)


def _scaled_by(matrix: Matrix) -> bool:
    """One scale for all, per row, per group of columns, or per block."""
    found = _scale_of(matrix)
    if not found:
        return False
    leaf, part = found
    zero = matrix.part("_weight_zero_point") or matrix.part("weight_zero_point")
    if zero and (zero.shape != part.shape or zero.dtype != "I8" or matrix.main.dtype != "I8"):
        return False
    laid_out = part.numel == 1 or part.shape == matrix.shape[:1] or _groups(matrix, leaf) or (zero is None and _block(matrix, part))
    return bool(laid_out) and decodable(part.dtype) and decodable(matrix.main.dtype)


def _scaled(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    codes = decode(raw(data, matrix.main, row * matrix.shape[1], columns), matrix.main.dtype)
    step = np.ones(1, np.float32) if matrix.main.dtype == "I8" else np.abs(codes) * np.float32(epsilon(matrix.main.dtype))
    found = _scale_of(matrix)
    if not found:
        return codes, step
    leaf, part = found
    zero = matrix.part("_weight_zero_point") or matrix.part("weight_zero_point")
    if zero:
        codes = codes - _spread(matrix, zero, leaf, row, columns, data)
    scale = _spread(matrix, part, leaf, row, columns, data)
    return codes * scale, step * scale


def _spread(matrix: Matrix, part: TensorRecord, leaf: str, row: int, columns: int, data: TensorBytes) -> Floats:
    """The numbers of `part` (scales, or zero points laid out as they are) for one row, one per column or one for all."""
    if part.numel == 1:
        return _floats(part, 0, 1, data)
    if part.shape == matrix.shape[:1]:
        return _floats(part, row, 1, data)
    size = _groups(matrix, leaf)
    if size:
        return np.repeat(_floats(part, row * part.shape[1], -(-columns // size), data), size)[:columns]
    side = _block(matrix, part)
    return np.repeat(_floats(part, row // side * part.shape[1], -(-columns // side), data), side)[:columns]


def _offset(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    """compressed-tensors stores signed integers with half their range added."""
    bits = matrix.layout.bits if matrix.layout else 8
    scale = _grouped(matrix, "weight_scale", row, columns, data)
    return (_codes(matrix, row, columns, data) - np.float32(1 << (bits - 1))) * scale, scale


def _mlx(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    scales = matrix.part("scales")
    codes = _codes(matrix, row, columns, data)
    if scales is None or scales.dtype != "U8":
        scale = _grouped(matrix, "scales", row, columns, data)
        offset = next((leaf for leaf in ("biases", "qbiases") if matrix.part(leaf)), "")
        return codes * scale + (_grouped(matrix, offset, row, columns, data) if offset else np.float32(0)), np.abs(scale)
    if matrix.layout and matrix.layout.bits == 8:
        numbers = decode(codes.astype(np.uint8).tobytes(), "F8_E4M3") * _grouped(matrix, "scales", row, columns, data)
        return numbers, np.abs(numbers) * np.float32(epsilon("F8_E4M3"))
    if _groups(matrix, "scales") == 16:  # nvfp4: its scales are E4M3, though stored as U8
        stored = raw(data, scales, row * scales.shape[1], -(-columns // 16))
        return _e2m1_times(codes, np.repeat(decode(stored, "F8_E4M3"), 16)[:columns])
    return _e2m1_times(codes, _grouped(matrix, "scales", row, columns, data))


def _e2m1(matrix: Matrix, row: int, columns: int, data: TensorBytes) -> Decoded:
    # a further scale of the whole matrix changes no angle
    return _e2m1_times(_codes(matrix, row, columns, data), _grouped(matrix, "weight_scale", row, columns, data))


def _e2m1_times(codes: Floats, scale: Floats) -> Decoded:
    """Four bits as E2M1: a sign and one of eight magnitudes, whose distances grow from a half to two."""
    whole = codes.astype(np.int64)
    size = _E2M1[whole & 7]
    return np.where(whole & 8, -size, size).astype(np.float32) * scale, np.maximum(np.float32(0.5), size / 3) * scale
