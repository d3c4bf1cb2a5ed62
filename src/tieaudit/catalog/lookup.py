"""This file holds how one architecture is found in the catalog: decompress, search for its line, parse that line only.

`architectures.json.gz` holds a line per architecture, `Name<tab>{entry}`, and a line per model type, `@type<tab>[names]`
(the layout is described in `generate.py`). Parsing everything would take ten times as long as finding one line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

State = bool | None | str
STATES: tuple[State, ...] = (True, False, None)
"""The states of a deciding key in the order of a truth table: true, false, absent."""
UNKNOWN = "unknown"
"""The state of a key that config.json does not have where the class has no fixed default for it."""
_CELLS = {"1": True, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTie:
    """Two names that can be one Parameter. `v5` and `v4` are truth tables over the architecture's keys ('' = not known there).

    Names are as stored on disk; `{n}`, `{m}`, `{k}` are numbers that are equal in both names, `{*}` is any number in the alias.
    """

    canonical: str
    alias: str
    role: str
    v5: str
    v4: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One class of transformers: which names it can share, and which keys of config.json decide.

    `types`: model types of the nested configs with which the keys were observed. `layout`: values of other keys for which ties of
    repeated parts were observed. `v4_kept`: aliases that transformers 4 stores in place of the canonical name.
    """

    name: str
    model_type: str = ""
    keys: tuple[str, ...] = ()
    ties: tuple[CatalogTie, ...] = ()
    embedding: str | None = None
    head: str | None = None
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, int] = field(default_factory=dict)
    v4_kept: frozenset[str] = frozenset()

    def read(self, table: str, states: tuple[State, ...]) -> bool | None:
        """The truth table at these states of `keys`; None where it does not say, or where it hangs on a state that is unknown."""
        if len(table) == 1:
            return _CELLS.get(table)
        cells = [table] if table else []
        for state in states:
            third = len(cells[0]) // len(STATES) if cells else 0
            wanted = range(len(STATES)) if state == UNKNOWN else (STATES.index(state),)
            cells = [cell[third * at : third * (at + 1)] for cell in cells for at in wanted]
        found = {_CELLS.get(cell) for cell in cells}
        return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=1)
def _text() -> bytes:
    return b"\n" + gzip.decompress(Path(__file__).with_name("architectures.json.gz").read_bytes())


def _line(key: str) -> Any:
    text = _text()
    start = text.find(b"\n" + key.encode("utf-8", "replace") + b"\t")
    if start < 0 or "\n" in key or "\t" in key:
        return None
    start = text.index(b"\t", start) + 1
    stop = text.find(b"\n", start)
    return json.loads(text[start : None if stop < 0 else stop])


def versions() -> Mapping[str, str]:
    """The transformers releases that were observed: {"v4": …, "v5": …}."""
    found: dict[str, str] = _line("#")["transformers"]
    return found


def names() -> list[str]:
    """Every architecture in the catalog."""
    lines = _text().split(b"\n")
    return [line.split(b"\t", 1)[0].decode() for line in lines if line and line[:1] not in (b"#", b"@")]


def of_type(model_type: str) -> tuple[str, ...]:
    """Architectures of a `model_type`, language models first."""
    return tuple(_line("@" + model_type) or ())


def find(name: str) -> Architecture | None:
    """The architecture as `architectures[0]` of config.json names it; None if transformers has no such class."""
    entry = None if name.startswith(("@", "#")) else _line(name)
    if entry is None:
        return None
    # a name that another end has on disk is no second spelling: transformers 4 stores one matrix under it
    taken = {name for tie in entry.get("ties", ()) for name in (tie["canonical"], tie["alias"])}
    other: dict[str, tuple[str, ...]] = {}
    for field_name in ("names", "v4_names"):
        for disk, also in entry.get(field_name, {}).items():
            if also not in taken:
                other[disk] = (*other.get(disk, ()), also)
    return Architecture(
        name=name,
        model_type=entry.get("model_type", ""),
        keys=tuple(entry.get("keys", ())),
        ties=tuple(CatalogTie(**tie) for tie in entry.get("ties", ())),
        embedding=entry.get("embedding"),
        head=entry.get("head"),
        other_names=other,
        rows={which: (path, extra) for which, (path, extra) in entry.get("rows", {}).items()},
        types=entry.get("types", {}),
        layout=entry.get("layout", {}),
        v4_kept=frozenset(entry.get("v4_kept", ())),
    )
