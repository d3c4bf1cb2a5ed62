"""This file holds in which order a GGUF keeps rows of q and k: which of the possible numbers of heads explains what is stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..bytewise import TensorBytes
from ..dequantise import rows
from ..names import Matrix
from ..values import cosine
from .numbers import head_counts, rotary

SAMPLES = 24  # rows that a number of heads must explain
CLOSE = 0.5  # cosine; what is compared in full then decides, and other rows stay below 0.3
MOST = 3  # numbers of heads that are tried in full


def in_order(a: Matrix, b: Matrix, heads: tuple[int, ...], data: TensorBytes, *, back: bool) -> Iterator[NDArray[np.int64]]:
    """Orders of the rows of `a` that may give `b`, likeliest first. `back`: `a` is the one in rotary order.

    A bias is one row here, so its elements are what is ordered.
    """
    bias = a.shape[0] == 1
    height = a.shape[1] if bias else a.shape[0]
    found = 0
    for count in head_counts(height, heads):
        order = rotary(height, count)
        if back:
            order = np.argsort(order)
        if (order == np.arange(height)).all():
            continue
        if bias or _explains(a, b, order, data):
            yield order
            found += 1
            if found >= (8 if bias else MOST):
                return


def _explains(a: Matrix, b: Matrix, order: NDArray[np.int64], data: TensorBytes) -> bool:
    """Rows that would move are where they should be."""
    height, columns = b.shape
    moving = np.flatnonzero(order != np.arange(height))
    numbers = sorted({int(moving[at * (len(moving) - 1) // (SAMPLES - 1)]) for at in range(SAMPLES)})
    theirs = rows(b, numbers, columns, data)[0]
    ours = rows(a, [int(order[number]) for number in numbers], columns, data)[0]
    return cosine(ours, theirs) >= CLOSE
