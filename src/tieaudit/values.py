"""This file holds the numbers behind the bytes: decoding, casting, rows. The only static module that imports numpy, and the `gguf`
package (an extra) for GGUF's quantised types.

bfloat16 is the upper half of float32; the 8-bit floats are decoded by a table built from their definition
(OCP 8-bit floating point specification; the FNUZ variants have no infinities and one NaN at 0x80).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .bytewise import TensorBytes
from .checkpoint import TensorRecord
from .dtypes import DTYPES

Floats = NDArray[np.float32]

_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
          "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "u1"}  # fmt: skip
_FLOAT8 = {  # exponent bits, mantissa bits, bias, infinities, FNUZ
    "F8_E4M3": (4, 3, 7, False, False),
    "F8_E5M2": (5, 2, 15, True, False),
    "F8_E4M3FNUZ": (4, 3, 8, False, True),
    "F8_E5M2FNUZ": (5, 2, 16, False, True),
}
TINY = 1e-38  # about the smallest normal number of float32 and bfloat16


def decodable(dtype: str) -> bool:
    """Whether the elements can be turned into numbers here."""
    return dtype in _PLAIN or dtype == "BF16" or dtype in _FLOAT8 or dtype == "F8_E8M0" or (quantised(dtype) and not undecoded(dtype))


def quantised(dtype: str) -> bool:
    """Whether the dtype packs elements in blocks with a scale each, as GGUF's types do."""
    return DTYPES[dtype].block > 1


@lru_cache(maxsize=64)
def undecoded(dtype: str) -> str:
    """Why a quantised dtype cannot be turned into numbers here; "" if it can."""
    try:
        import gguf.quants  # noqa: F401
    except ImportError:
        return "only dequantised rows can tell how they differ (pip install 'tieaudit[gguf]')"
    try:
        decode(bytes(DTYPES[dtype].bits // 8), dtype)
    except (NotImplementedError, KeyError):
        return f"the installed gguf package does not dequantise {dtype}"
    return ""


def decode(data: bytes, dtype: str) -> Floats:
    """The elements as float32 (float64 and 64-bit integers are rounded)."""
    if dtype == "BF16":
        halves = np.frombuffer(data, "<u2").astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32)
    if dtype in _FLOAT8 or dtype == "F8_E8M0":
        return _float8_table(dtype)[np.frombuffer(data, np.uint8)]
    if quantised(dtype):
        return _dequantised(data, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.frombuffer(data, _PLAIN[dtype]).astype(np.float32)


def _dequantised(data: bytes, dtype: str) -> Floats:
    """Whole blocks as float32."""
    from gguf import GGMLQuantizationType, quants

    # any bytes can stand there, a scale that is not a number too
    with np.errstate(all="ignore"):
        found: Floats = quants.dequantize(np.frombuffer(data, np.uint8), GGMLQuantizationType[dtype])
    return found


def encode(values: Floats, dtype: str) -> bytes | None:
    """float32 rounded to nearest even into `dtype`, as every framework casts; None for a dtype without a rule here."""
    if dtype == "BF16":
        words = values.view(np.uint32)
        # round to nearest even; NaN keeps its upper half and stays quiet
        rounded = ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
        rounded = np.where(np.isnan(values), ((words >> np.uint32(16)) | np.uint32(0x40)).astype("<u2"), rounded)
        return rounded.astype("<u2").tobytes()
    if dtype in ("F32", "F16", "F64"):
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(_PLAIN[dtype]).tobytes()
    return None


@lru_cache(maxsize=8)
def _float8_table(dtype: str) -> Floats:
    codes = np.arange(256)
    if dtype == "F8_E8M0":
        return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127)).astype(np.float32)
    exponent_bits, mantissa_bits, bias, infinities, fnuz = _FLOAT8[dtype]
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    table = sign * np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(exponent - bias))
    top = exponent == (1 << exponent_bits) - 1
    if fnuz:
        table[0x80] = np.nan
    elif infinities:
        table = np.where(top, np.where(mantissa == 0, sign * np.inf, np.nan), table)
    else:
        table[(codes & 0x7F) == 0x7F] = np.nan
    return table.astype(np.float32)


def flat(data: TensorBytes, tensor: TensorRecord, start: int, count: int) -> Floats:
    """`count` elements of a row-major tensor from element `start`, in the order of storage; whole blocks where the dtype has blocks."""
    return decode(raw(data, tensor, start, count), tensor.dtype)


def raw(data: TensorBytes, tensor: TensorRecord, start: int, count: int) -> bytes:
    """The bytes of these elements."""
    bits, _, block = DTYPES[tensor.dtype]
    itemsize = bits // 8
    return data.read(tensor, start // block * itemsize, count // block * itemsize)


def cosine(a: Floats, b: Floats) -> float:
    """Over all elements, NaN and infinities left out; 0.0 if either side is all zero."""
    first, second = _doubles(a), _doubles(b)
    good = np.isfinite(first) & np.isfinite(second)
    first, second = first[good], second[good]
    norm = float(np.sqrt(first @ first) * np.sqrt(second @ second))
    return float(first @ second) / norm if norm > 0 else 0.0


def stretch(a: Floats, b: Floats) -> float:
    """How many times longer `b` is than `a`, NaN and infinities left out; 1.0 if `a` is all zero."""
    first, second = _doubles(a), _doubles(b)
    good = np.isfinite(first) & np.isfinite(second)
    first, second = first[good], second[good]
    square = float(first @ first)
    return float(np.sqrt(second @ second / square)) if square > 0 else 1.0


def factor(a: Floats, b: Floats, tolerance: float, floor: float = TINY) -> float | None:
    """The constant c for which b = c·a up to the relative `tolerance` or the absolute `floor`; None if there is none, or it is 1 or 0."""
    first, second = _doubles(a), _doubles(b)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    square = float(first @ first)
    if square == 0:
        return None
    c = float(first @ second) / square
    close = bool(np.all(np.abs(second - c * first) <= tolerance * np.abs(c * first) + floor * max(1.0, abs(c))))
    return c if close and abs(c) > floor and abs(c - 1) > tolerance else None


def same_up_to_rounding(a: Floats, b: Floats, tolerance: float, floor: float = TINY) -> bool:
    """Every element agrees to the relative `tolerance` or the absolute `floor`; NaN with NaN, an infinity only with itself."""
    first, second = _doubles(a), _doubles(b)
    finite = np.isfinite(first) & np.isfinite(second)
    with np.errstate(invalid="ignore"):
        close = np.abs(first - second) <= tolerance * np.maximum(np.abs(first), np.abs(second)) + floor
    return bool(np.all((finite & close) | (first == second) | (np.isnan(first) & np.isnan(second))))


def differing_rows(a: bytes, b: bytes, width: int) -> list[int]:
    """Numbers of the rows (of `width` bytes) that differ."""
    first, second = (np.frombuffer(side, np.uint8).reshape(-1, width) for side in (a, b))
    numbers: list[int] = np.flatnonzero((first != second).any(axis=1)).tolist()
    return numbers


def equal_rows(a: Floats, b: Floats) -> int:
    """How many rows agree bit for bit, rows of one number (padding) left out."""
    same = (a.view(np.uint32) == b.view(np.uint32)).all(axis=1)
    telling = (a != a[:, :1]).any(axis=1)
    return int((same & telling).sum())


def epsilon(dtype: str) -> float:
    """Relative spacing of the dtype's numbers near 1; twice the worst rounding error."""
    return {"F64": 2.0**-52, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7, "F8_E4M3": 2.0**-3, "F8_E4M3FNUZ": 2.0**-3}.get(
        dtype, 2.0**-2
    )


def smallest(dtype: str) -> float:
    """The smallest number above zero, below which rounding is absolute and not relative."""
    return {"F16": 2.0**-24, "F8_E4M3": 2.0**-9, "F8_E5M2": 2.0**-16, "F8_E4M3FNUZ": 2.0**-10, "F8_E5M2FNUZ": 2.0**-17}.get(dtype, TINY)


def _doubles(values: Floats) -> NDArray[np.float64]:
    # a signalling NaN is no reason to write to the user's terminal
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64).ravel()
