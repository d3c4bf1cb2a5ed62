"""This file holds limits on bytes: how they are written, and what a report says of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..report import Report
from ..text import exactly, quantity

ALLOWED = "bytes as a whole number, or words such as '1.5 GB' (kB, MB, GB, TB; KiB, MiB, GiB, TiB)"
MAX_DIGITS = 20  # a longer number is no size
_SIZE = re.compile(rf"(\d{{1,{MAX_DIGITS}}}(?:\.\d{{1,{MAX_DIGITS}}})?)\s*([kKmMgGtT]?)(i?)[bB]?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most so many bytes; `source` is the option or the key that says so."""

    nbytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a checkpoint may weigh. None: as much as it likes."""

    wasted: Limit | None = None
    total: Limit | None = None


def parse(words: str) -> int | None:
    """Bytes of `4096`, `1.5 GB`, `200MiB`; None for anything else. Parts of a byte are cut off."""
    found = _SIZE.fullmatch(words.strip())
    if found is None or (found[3] and not found[2]):
        return None
    from decimal import Decimal

    power = " kmgt".index(found[2].lower() or " ")
    return int(Decimal(found[1]) * (1024 if found[3] else 1000) ** power)


def passed(report: Report, limits: Limits) -> tuple[str, ...]:
    """A clause for each limit that the checkpoint passes."""
    totals = report.totals
    sizes = ((limits.wasted, totals.nbytes_wasted, "wasted"), (limits.total, totals.nbytes_stored, "stored"))
    return tuple(
        f"{quantity(nbytes)} {what} ({exactly(nbytes)}), {quantity(limit.nbytes)} allowed ({limit.nbytes:,}; {limit.source})"
        for limit, nbytes, what in sizes
        if limit is not None and nbytes > limit.nbytes
    )
