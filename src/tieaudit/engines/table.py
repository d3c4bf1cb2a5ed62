"""This file holds how the table of facts is read: which engine, under which flag, makes what of which stored matrices.

`table.json` describes itself (`about`); every row names its evidence in the engine's own source. It is read when first asked.
Named tuples, because nearly every audit asks: a frozen dataclass takes longer to define than the table to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

FLAGS = ("true", "false", "absent", "invalid")
STORED = ("equal", "diff", "embed_only", "head_only")
_SPEECH = {"silent": True, "said": False}


class Cell(NamedTuple):
    """What comes of one flag and one situation. `silent`: nothing is said of it; `mode`: run, or read from the source."""

    outcome: str
    silent: bool
    mode: str
    detail: str = ""


class Row(NamedTuple):
    """Model types that an engine treats alike. `columns`: flag → stored → cell."""

    family: str
    types: tuple[str, ...]
    evidence: str
    columns: Mapping[str, Mapping[str, Cell]]

    def cell(self, flag: str, stored: str) -> Cell | None:
        """None where nobody has run or read it."""
        return self.columns.get(flag, {}).get(stored)


class Engine(NamedTuple):
    """One program in one version, or in a range of versions that behave alike. `name` is how people write it, `leading` that it
    is named first; `formats` of files, as far as they were tried."""

    engine: str
    version: str
    name: str
    leading: bool
    formats: tuple[str, ...]
    checked: str
    rows: tuple[Row, ...]

    def row(self, model_type: str) -> Row | None:
        """The row of a model type; None where nobody has run or read it."""
        return next((row for row in self.rows if model_type in row.types), None)


class GgufLoader(NamedTuple):
    """llama.cpp on files that are already GGUF: the architectures of which it wants `output.weight`, and those of which it does not."""

    engine: str
    version: str
    mode: str
    required: frozenset[str]
    optional: frozenset[str]


@lru_cache(maxsize=1)
def _data() -> Any:
    return json.loads(Path(__file__).with_name("table.json").read_text("utf-8"))


@lru_cache(maxsize=1)
def engines() -> tuple[Engine, ...]:
    """Every engine and version, in the order of the table."""
    return tuple(
        Engine(
            engine=entry["engine"],
            version=entry["version"],
            name=entry["name"],
            leading=entry["leading"],
            formats=tuple(entry["formats"]),
            checked=entry["checked"],
            rows=tuple(_row(row) for row in entry["rows"]),
        )
        for entry in _data()["engines"]
    )


def vocabulary() -> Mapping[str, str]:
    """Each outcome, and what it means."""
    words: dict[str, str] = _data()["outcomes"]
    return words


def gguf_loader() -> GgufLoader:
    entry = _data()["gguf"]
    return GgufLoader(
        engine=entry["engine"],
        version=entry["version"],
        mode=entry["mode"],
        required=frozenset(entry["required"]),
        optional=frozenset(entry["optional"]),
    )


def _row(entry: Mapping[str, Any]) -> Row:
    columns: dict[str, Mapping[str, Cell]] = {}
    for flag, column in entry["cells"].items():
        # a column that is the name of another one is read like it; the table writes the other one first
        columns[flag] = columns[column] if isinstance(column, str) else {stored: _cell(text) for stored, text in column.items()}
    return Row(family=entry["family"], types=tuple(entry["types"]), evidence=entry["evidence"], columns=columns)


def _cell(text: str) -> Cell:
    words, _, detail = text.partition(": ")
    outcome, speech, mode = words.split()
    return Cell(outcome, _SPEECH[speech], mode, detail)
