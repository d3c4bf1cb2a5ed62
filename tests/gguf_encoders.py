"""This file quantises to GGUF's K types and IQ1_S, which the `gguf` package only reads: one scale per sub-block by its largest value.

llama.cpp searches for better scales; what is encoded here is at least as far from the source, and is decoded by `gguf` all the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

Bytes = np.ndarray


def encode(rows: np.ndarray, kind: Type) -> Bytes:
    """(rows, bytes of a row) of any type that can be written here or by the `gguf` package; NotImplementedError for the others."""
    own = ENCODERS.get(kind)
    if own is None:
        return quants.quantize(rows, kind)
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, 256)
    return np.ascontiguousarray(own(blocks)).view(np.uint8).reshape(len(rows), -1)


def _half(values: np.ndarray) -> Bytes:
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _scales(values: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(one factor per block, whole numbers up to `top`) whose products are the values."""
    d = (np.abs(values).max(axis=1) / top).astype(np.float16).astype(np.float32)
    return d, np.rint(np.divide(values, d[:, None], out=np.zeros_like(values), where=d[:, None] != 0)).astype(np.int32)


def _affine(blocks: np.ndarray, size: int, levels: int, top: int) -> tuple[np.ndarray, ...]:
    """(d, dmin, scale and min per sub-block, codes) of types with q · scale - min."""
    sub = blocks.reshape(len(blocks), -1, size)
    low = np.minimum(sub.min(axis=2), 0)
    d, sc = _scales((sub.max(axis=2) - low) / levels, top)
    dmin, m = _scales(-low, top)
    step = (d[:, None] * sc)[..., None]
    codes = np.divide(sub + (dmin[:, None] * m)[..., None], step, out=np.zeros_like(sub), where=step != 0)
    return d, dmin, sc, m, np.clip(np.rint(codes), 0, levels).astype(np.uint8).reshape(len(blocks), 256)


def _symmetric(blocks: np.ndarray, half: int, top: int) -> tuple[np.ndarray, ...]:
    """(d, scale per 16 elements, codes from 0) of types with (q - half) · scale."""
    sub = blocks.reshape(len(blocks), 16, 16)
    peak = np.take_along_axis(sub, np.abs(sub).argmax(axis=2)[..., None], axis=2)[..., 0]
    d, sc = _scales(-peak / half, top)
    step = (d[:, None] * sc)[..., None]
    codes = np.divide(sub, step, out=np.zeros_like(sub), where=step != 0)
    return d, sc, (np.clip(np.rint(codes), -half, half - 1) + half).astype(np.uint8).reshape(len(blocks), 256)


def _two_bits(codes: np.ndarray) -> Bytes:
    part = (codes & 3).reshape(len(codes), 2, 4, 32)
    return (part[:, :, 0] | part[:, :, 1] << 2 | part[:, :, 2] << 4 | part[:, :, 3] << 6).reshape(len(codes), 64)


def _four_bits(codes: np.ndarray) -> Bytes:
    part = (codes & 15).reshape(len(codes), 4, 2, 32)
    return (part[:, :, 0] | part[:, :, 1] << 4).reshape(len(codes), 128)


def _six_bit_pairs(sc: np.ndarray, m: np.ndarray) -> Bytes:
    sc, m = sc.astype(np.uint8), m.astype(np.uint8)
    low = np.concatenate([sc[:, :4] | (sc[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6], axis=1)
    return np.concatenate([low, (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4], axis=1)


def _q2_k(blocks: np.ndarray) -> Bytes:
    d, dmin, sc, m, codes = _affine(blocks, 16, 3, 15)
    return np.concatenate([(sc | m << 4).astype(np.uint8), _two_bits(codes), _half(d), _half(dmin)], axis=1)


def _q3_k(blocks: np.ndarray) -> Bytes:
    d, sc, codes = _symmetric(blocks, 4, 31)
    packed = (sc + 32).astype(np.uint8)
    low = (packed[:, :8] & 15) | (packed[:, 8:] & 15) << 4
    high = (packed >> 4).reshape(len(blocks), 4, 4)
    top = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    mask = (codes >> 2).reshape(len(blocks), 8, 32)
    hmask = np.bitwise_or.reduce(mask << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)
    return np.concatenate([hmask, _two_bits(codes), low, top, _half(d)], axis=1)


def _q4_k(blocks: np.ndarray) -> Bytes:
    d, dmin, sc, m, codes = _affine(blocks, 32, 15, 63)
    return np.concatenate([_half(d), _half(dmin), _six_bit_pairs(sc, m), _four_bits(codes)], axis=1)


def _q5_k(blocks: np.ndarray) -> Bytes:
    d, dmin, sc, m, codes = _affine(blocks, 32, 31, 63)
    high = np.bitwise_or.reduce((codes >> 4).reshape(len(blocks), 8, 32) << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)
    return np.concatenate([_half(d), _half(dmin), _six_bit_pairs(sc, m), high, _four_bits(codes)], axis=1)


def _q6_k(blocks: np.ndarray) -> Bytes:
    d, sc, codes = _symmetric(blocks, 32, 127)
    part = (codes & 15).reshape(len(blocks), 2, 2, 64)
    low = (part[:, :, 0] | part[:, :, 1] << 4).reshape(len(blocks), 128)
    return np.concatenate([low, _two_bits(codes >> 4), sc.astype(np.int8).view(np.uint8), _half(d)], axis=1)


def _iq1_s(blocks: np.ndarray) -> Bytes:
    quants.IQ1_S.init_grid()
    grid = quants.IQ1_S.grid.reshape(2048, 8)
    groups = blocks.reshape(len(blocks), 8, 4, 8)
    scale = np.abs(groups).mean(axis=(2, 3)) * 1.4  # where the squared error of normal weights is least
    d = (scale.max(axis=1) / 15).astype(np.float16).astype(np.float32)
    steps = np.clip(np.rint((scale / np.where(d == 0, 1, d)[:, None] - 1) / 2), 0, 7).astype(np.uint16)
    shape = groups / np.where(d == 0, 1, d)[:, None, None, None] / (2 * steps + 1)[..., None, None] - np.float32(0.125)
    flat = shape.reshape(-1, 8)
    index = np.concatenate([(np.square(grid).sum(1) - 2 * part @ grid.T).argmin(1) for part in np.array_split(flat, -(-len(flat) // 4096))])
    index = index.astype(np.uint16).reshape(len(blocks), 8, 4)
    high = index >> 8
    qh = (steps << 12) | high[..., 0] | high[..., 1] << 3 | high[..., 2] << 6 | high[..., 3] << 9
    return np.concatenate([_half(d), (index & 255).astype(np.uint8).reshape(len(blocks), 32), qh.astype("<u2").view(np.uint8)], axis=1)


ENCODERS: dict[Type, Callable[[np.ndarray], Bytes]] = {
    Type.Q2_K: _q2_k, Type.Q3_K: _q3_k, Type.Q4_K: _q4_k, Type.Q5_K: _q5_k, Type.Q6_K: _q6_k, Type.IQ1_S: _iq1_s,
}  # fmt: skip
