"""This file holds the byte map as data: blocks with short names for the script, and bars that need no script.

70,000 tensors have names of few kinds: a name is a template and its numbers, and a block is `kind, gap before it, numbers…`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from ...components import Component, stack
from ...text import printable
from .links import Link
from .palette import ORDER
from .places import FileMap, merged

MAX_DATA = 1_300_000  # characters of the data of a page
MAX_BARS = 150  # files that are drawn; the table names up to MAX_FILES
MAX_FILES = 2000
MAX_BESIDE = 12
SLOT = "\x01"  # stands for a number in a template; printable() leaves none in a name
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,6})(?!\d)")


@dataclass(slots=True)
class _Table:
    """Values by number, each once."""

    at: dict[Any, int] = field(default_factory=dict)

    def __call__(self, value: Any) -> int:
        return self.at.setdefault(value, len(self.at))

    @property
    def values(self) -> list[Any]:
        return list(self.at)


def data(maps: Sequence[FileMap], links: Sequence[Link], room: int = MAX_DATA) -> Markup:
    """JSON of the map for a script element, at most about `room` characters: what does not fit is merged, and the map says so."""
    text = _dumped(_document(maps, links, whole=True))
    size = 0
    while len(text) > room and size < 1 << 50:
        small = [FileMap(name=one.name, format=one.format, nbytes=one.nbytes, blocks=merged(one.blocks, size), unplaced=one.unplaced)
                 for one in maps]  # fmt: skip
        text = _dumped(_document(small, links, whole=False))
        size = max(4096, size * 8)
    return Markup(text)  # noqa: S704 - no `<`, `>` or `&` is left in it


def _dumped(document: dict[str, Any]) -> str:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _document(maps: Sequence[FileMap], links: Sequence[Link], *, whole: bool) -> dict[str, Any]:
    templates, dtypes, shapes, kinds = _Table(), _Table(), _Table(), _Table()
    files, beside, number = [], {}, 0
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    wanted = {(place.name, place.file) for link in links for place in link.places}
    for one in maps[:MAX_FILES]:
        flat: list[int] = []
        at = 0
        for block in one.blocks:
            numbers: list[int] = []
            if block.record is None:
                kind = kinds((templates(printable(block.words)), -1, -1, ORDER.index(block.component), -1, block.end - block.begin))
            else:
                record = block.record
                template, slot, numbers = _short(record.name)
                what = (templates(template), dtypes(printable(record.dtype)), shapes(_shape(record.shape)))
                kind = kinds((*what, ORDER.index(block.component), slot, block.end - block.begin))
            flat += (kind, block.begin - at, *numbers)
            at = block.end
            for one_of in (block.record, *block.beside):
                if one_of and (one_of.name, one_of.file) in wanted:
                    places[one_of.name, one_of.file].append(number)
            if block.beside:
                names = [f"{printable(record.name)} ({_shape(record.shape)} {printable(record.dtype)})" for record in block.beside]
                beside[number] = names[:MAX_BESIDE] + ([f"and {len(names) - MAX_BESIDE:,} more"] if len(names) > MAX_BESIDE else [])
            number += 1
        files.append([printable(one.name), one.nbytes, one.format, one.unplaced, flat])
    return {
        "files": files,
        "templates": templates.values,
        "dtypes": dtypes.values,
        "shapes": shapes.values,
        "kinds": kinds.values,
        "beside": beside,
        "links": [[link.letter, link.tone, link.sign, link.title,
                   sorted({at for place in link.places for at in places[place.name, place.file]})] for link in links],
        "whole": whole,
        "bars": MAX_BARS,
    }  # fmt: skip


def _short(name: str) -> tuple[str, int, list[int]]:
    """(name with SLOT for its numbers, which of them is the layer or -1, the numbers)."""
    text = printable(name)
    numbers = [int(found) for found in _NUMBER.findall(text)]
    where = stack(name) if text == name else None
    slot = -1
    if where:
        before = len(_NUMBER.findall(where[0]))
        slot = before if before < len(numbers) and numbers[before] == where[1] else -1
    return _NUMBER.sub(SLOT, text), slot, numbers


@lru_cache(maxsize=4096)
def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{dim:,}" for dim in shape) or "scalar"


def bars(maps: Sequence[FileMap]) -> list[Markup]:
    """Each file as one bar, drawn to the scale of the largest: for readers without a script, and until it ran."""
    largest = max((one.nbytes for one in maps), default=0)
    steps = max(80, min(500, 12_000 // max(1, len(maps))))
    return [_bar(one, largest, steps) for one in maps[:MAX_BARS]]


def _bar(one: FileMap, largest: int, steps: int) -> Markup:
    width = max(0.4, 100 * one.nbytes / largest) if largest else 0.4
    paths = Markup().join(
        Markup('<path class="f-{}" d="{}"/>').format(what.value, "".join(f"M{begin} 0h{length}v20h-{length}z" for begin, length in runs))
        for what, runs in _coarse(one, steps).items()
    )
    return Markup(
        '<svg class="row" width="{:.2f}%" height="22" viewBox="0 0 {} 20" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(width, steps, paths)


def _coarse(one: FileMap, steps: int) -> dict[Component, list[tuple[int, int]]]:
    """Runs (begin, length) of steps in which a component has the most bytes."""
    owners: list[dict[Component, float]] = [{} for _ in range(steps)]
    scale = steps / one.nbytes if one.nbytes else 0
    for block in one.blocks:
        first, last = block.begin * scale, block.end * scale
        for step in range(int(first), min(steps - 1, int(last)) + 1):
            part = min(last, step + 1) - max(first, step)
            owners[step][block.component] = owners[step].get(block.component, 0.0) + part
    runs: dict[Component, list[tuple[int, int]]] = {}
    before: Component | None = None
    for step, owner in enumerate(owners):
        best = max(owner, key=lambda what: owner[what]) if owner and sum(owner.values()) > 0.25 else None
        if best is None:
            pass
        elif best is before:
            begin, length = runs[best][-1]
            runs[best][-1] = (begin, length + 1)
        else:
            runs.setdefault(best, []).append((step, 1))
        before = best
    return runs
