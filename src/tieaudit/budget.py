"""This file holds which tensors are sampled where every sample is a request, the likeliest copies first.

Ties are always compared. Of the others of one length: recorded checksums (zip) tell all copies for nothing; pages that came along with
a header are free; two tensors of a length that no other has are the likeliest (a copy made by a wrapper or a merge), then few, then
two neighbours of many (layers). What is left out is counted and told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .bytewise import BEGIN, TensorBytes
from .checkpoint import TensorRecord

FEW = 8  # tensors of one length that are looked at together
CONFIRM = 2  # requests that a match costs on top: the other place on both sides


def affordable(groups: Iterable[list[TensorRecord]], data: TensorBytes) -> tuple[list[list[TensorRecord]], int]:
    """(groups of equal length to compare, tensors that may have a copy and are not looked at). Their samples are fetched."""
    spare = data.spare
    chosen: list[list[TensorRecord]] = []
    waiting: list[tuple[int, int, int, list[TensorRecord]]] = []
    left = 0
    for number, group in enumerate(groups):
        unknown = _undecided(group)
        free = [tensor for tensor in unknown if data.held(tensor, BEGIN)]
        if len(unknown) < 2 or len(free) == len(unknown):
            chosen.append(free)
            continue
        rank = 0 if len(unknown) == 2 else 1 if len(unknown) <= FEW else 2
        waiting.append((rank, -group[0].nbytes, number, unknown))
    for rank, _, _, unknown in sorted(waiting):
        free = [tensor for tensor in unknown if data.held(tensor, BEGIN)]
        # many of one length: all of them only where they leave most of the budget to the others
        some = unknown if rank < 2 or len(unknown) <= spare // 4 else unknown[:2]
        cost = sum(not data.held(tensor, BEGIN) for tensor in some) + CONFIRM
        if cost <= spare:
            spare -= cost
            looked_at = list(dict.fromkeys((*some, *free)))
        else:
            looked_at = free
        left += len(unknown) - len(looked_at)
        chosen.append(looked_at)
    data.prefetch((tensor for group in chosen for tensor in group), (BEGIN,))
    return [group for group in chosen if group], left


def _undecided(group: list[TensorRecord]) -> list[TensorRecord]:
    """Without those whose whole storage has a checksum that no other one has."""
    sums = [tensor.storage.crc if tensor.nbytes == tensor.storage.nbytes else None for tensor in group]
    if None in sums:
        return group
    count = Counter(sums)
    return [tensor for tensor, crc in zip(group, sums, strict=True) if count[crc] > 1]
