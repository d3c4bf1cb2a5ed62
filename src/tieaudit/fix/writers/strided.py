"""This file holds how a view with gaps or swapped axes is read row by row, in its logical order, without holding all of it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...bytewise import element, extent
from ...checkpoint import TensorRecord

BLOCK = 8 << 20  # bytes given at once


def blocks(tensor: TensorRecord, descriptor: int) -> Iterator[bytes]:
    """The elements in row-major order. The file is mapped; its pages are given back after each block."""
    width = element(tensor)
    first, stop = extent(tensor)
    begin = (tensor.storage.offset or 0) + first
    page = begin - begin % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(descriptor, begin - page + stop - first, access=mmap.ACCESS_READ, offset=page)
    words = np.dtype(f"V{width}")
    flat = np.ndarray(((stop - first) // width,), words, mapped, begin - page)
    view = as_strided(flat, tensor.shape, [step * width for step in tensor.strides or ()], writeable=False)
    if not view.ndim:
        yield view.tobytes()
        return
    row = max(1, tensor.nbytes // max(1, tensor.shape[0]))
    step = max(1, BLOCK // row)
    for at in range(0, tensor.shape[0], step):
        yield np.ascontiguousarray(view[at : at + step]).tobytes()
        if hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)
