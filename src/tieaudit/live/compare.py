"""This file holds how the values of two tensors in memory are compared, and how a write through one name is looked for under another.

Bytes decide, so that NaN equals NaN. Tensors are compared in chunks on their own device; the first chunk tells most pairs apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .identity import has_memory

CHUNK = 1 << 22  # elements compared at once: with casts at most 64 MiB are held beside the model
FIRST = 1 << 10  # elements looked at first
SAMPLES = 64


def comparable(*tensors: Tensor) -> bool:
    """Plain tensors whose elements are there."""
    plain = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return all(type(tensor) in plain and tensor.layout is torch.strided and has_memory(tensor) for tensor in tensors)


def equal(first: Tensor, second: Tensor) -> bool:
    """Every bit of two tensors of one shape and dtype."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return all(torch.equal(_bits(a), _bits(b)) for a, b in _chunks(first, second))


def equal_after_cast(first: Tensor, second: Tensor) -> bool:
    """One is the other in a dtype of fewer bits."""
    if first.shape != second.shape or first.dtype == second.dtype:
        return False
    wide, narrow = (first, second) if first.element_size() >= second.element_size() else (second, first)
    return all(torch.equal(_bits(a.to(narrow.dtype)), _bits(b)) for a, b in _chunks(wide, narrow))


def constant(tensor: Tensor) -> bool:
    """One number everywhere: a fresh bias or a norm, equal to many others by chance."""
    first = _bits(tensor.detach()[(slice(1),) * tensor.ndim]).reshape(-1)
    return all(bool((_bits(chunk) == first).all()) for chunk, _ in _chunks(tensor, tensor))


def fingerprint(tensor: Tensor) -> str:
    """A short hash of some elements, to say later whether two tensors were equal there; "" if there are none to look at."""
    if not comparable(tensor):
        return ""
    flat = tensor.detach()
    index = torch.linspace(0, tensor.numel() - 1, min(SAMPLES, tensor.numel()), dtype=torch.float64).long()
    picked = flat[torch.unravel_index(index.to(flat.device), flat.shape)] if flat.ndim else flat.reshape(1)
    return hashlib.sha256(_bits(picked.contiguous()).cpu().numpy().tobytes()).hexdigest()[:16]


def _chunks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in the same pieces, on the first one's device, a small piece first."""
    a, b = first.detach(), second.detach()
    if a.ndim == 0 or (a.is_contiguous() and b.is_contiguous()):
        a, b = a.reshape(-1), b.reshape(-1)
    row = max(1, a.numel() // max(1, a.shape[0]))
    at, size = 0, max(1, FIRST // row)
    while at < a.shape[0]:
        yield a[at : at + size], b[at : at + size].to(a.device)
        at, size = at + size, max(1, CHUNK // row)


def _bits(tensor: Tensor) -> Tensor:
    """The elements as integers of their width."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    return (tensor.contiguous() if tensor.ndim else tensor.reshape(1)).view(width or torch.uint8)


def seen_through(tensors: Sequence[Tensor]) -> bool | None:
    """Whether one bit that is changed in the first tensor changes in all the others; None if it is better not tried.

    The bit is the lowest of the first element and is put back whatever happens. It is written through `.data`, which leaves autograd's
    version counter alone: a backward pass that saved the tensor goes on. Other threads can see the changed bit for microseconds.
    """
    if len(tensors) < 2 or not comparable(*tensors) or any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    if not all(_writable(tensor) for tensor in tensors):
        return None
    with torch.inference_mode(tensors[0].is_inference()):
        first, *others = (_first_element(tensor) for tensor in tensors)
        before = first.clone()
        seen_before = [other.clone() for other in others]
        try:
            first[:1] ^= 1
            return all(_agree(first, other, old) for other, old in zip(others, seen_before, strict=True))
        finally:
            first.copy_(before)


def _agree(first: Tensor, other: Tensor, before: Tensor) -> bool:
    return bool(other[0] != before[0]) and bool(other[0] == first[0])


def _first_element(tensor: Tensor) -> Tensor:
    return tensor.data.as_strided((1,), (1,), tensor.storage_offset()).view(torch.uint8)


def _writable(tensor: Tensor) -> bool:
    """The memory is not mapped read-only, as that of a file can be: a write would end the process."""
    address = tensor.data_ptr()
    try:
        regions = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # not told here
    for line in regions.splitlines():
        extent, _, rest = line.partition(" ")
        begin, _, end = extent.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest[1:2] == "w"
    return False
