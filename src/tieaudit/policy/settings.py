"""This file holds the settings of a project: `tieaudit.toml`, or the table `[tool.tieaudit]` of `pyproject.toml`.

select = ["TIE0"]            ignore = ["unusual-alias"]    fail-on = "warning"       min-waste = 4096
verify = "full"              timeout = 60                  allow-partial = false     allow-waivers = false
baseline = "accepted.json"   max-wasted-bytes = "10 MB"    max-total-bytes = "4 GB"

[[target]]                   # [[tool.tieaudit.target]] in pyproject.toml; of several that match, the later goes before
match = ["models/old-*", "org/model"]      # paths from the file's folder (`**` for any depth), or Hub ids
ignore = ["diverged-tie"]
reason = "head and embedding were trained apart on purpose"
fail-on = "error"            # max-wasted-bytes, max-total-bytes, allow-waivers as well
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptionError, SettingsError
from ..inspectors import registry
from ..text import printable
from . import limits

NAMES = ("tieaudit.toml", "pyproject.toml")  # the first wins
MAX_FILE = 1_000_000  # bytes; people write these by hand
TABLE = "[tool.tieaudit]"
FAIL_ON = ("error", "warning", "note", "never")
VERIFY = ("headers", "sample", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """What holds for the targets that `match` one of the patterns. `ignore` are codes of rules whose findings do not count."""

    match: tuple[str, ...]
    ignore: frozenset[str] = frozenset()
    reason: str = ""
    fail_on: str | None = None
    max_wasted: int | None = None
    max_total: int | None = None
    allow_waivers: bool | None = None

    def holds_for(self, key: str) -> bool:
        return any(_pattern(pattern).fullmatch(key) for pattern in self.match)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """None: the file does not say. `file` as people call it, "" if there is none; `folder` is where its paths begin."""

    file: str = ""
    folder: str = ""
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    fail_on: str | None = None
    min_waste: int | None = None
    verify: str | None = None
    timeout: float | None = None
    allow_partial: bool | None = None
    allow_waivers: bool | None = None
    baseline: str | None = None
    max_wasted: int | None = None
    max_total: int | None = None
    targets: tuple[TargetSettings, ...] = field(default=())


def load(path: str, file: str) -> Settings:
    """The settings of a file; `file` is its name for messages. SettingsError for the first thing that is not understood."""
    return understood(content(path, file), path, file)


def content(path: str, file: str) -> bytes:
    """The bytes of a regular file of a size that a person writes. SettingsError otherwise."""
    try:
        # a FIFO under this name must not stop the audit
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise SettingsError(file, "", "is not a regular file")
            data = stream.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(file, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_FILE:
        raise SettingsError(file, "", f"has more than {MAX_FILE:,} bytes, too many for settings")
    return data


def understood(data: bytes, path: str, file: str) -> Settings:
    """The settings in the bytes of `path`."""
    import tomllib

    try:
        table: Any = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(file, "", f"is not TOML: {error}") from None
    if Path(path).name == "pyproject.toml":
        table = table.get("tool")
        table = table.get("tieaudit") if isinstance(table, dict) else None
        if table is None:
            raise SettingsError(file, "", f"has no table {TABLE}")
        if not isinstance(table, dict):
            raise SettingsError(file, "tool.tieaudit", "is no table")
    told = _Table(file, "", table)
    values = told.read(_KEYS)
    folder = Path(path).absolute().parent
    targets = values.pop("target", ())
    if "baseline" in values:
        values["baseline"] = str(folder / values["baseline"])
    return Settings(
        file=file, folder=str(folder), targets=tuple(_target(file, number, one) for number, one in enumerate(targets, 1)), **values
    )


def _target(file: str, number: int, table: Any) -> TargetSettings:
    where = f"target {number}: "
    if not isinstance(table, dict):
        raise SettingsError(file, f"target {number}", "is no table: write [[target]]")
    values = _Table(file, where, table).read(_TARGET_KEYS)
    if "match" not in values:
        raise SettingsError(file, f"{where}match", "is missing: a path from the file's folder, or a Hub id; * stands for any name")
    if values.get("ignore") and "reason" not in values:
        raise SettingsError(file, f"{where}reason", "is missing: say why the findings that are ignored are no fault here")
    if "ignore" in values:
        values["ignore"] = registry.matching(values["ignore"], f"{file}: {where}ignore")
    return TargetSettings(**values)


class _Table:
    """Takes keys out of a TOML table, or says which one is wrong and what is allowed there."""

    def __init__(self, file: str, where: str, table: Mapping[str, Any]) -> None:
        self._file = file
        self._where = where
        self._table = table

    def read(self, keys: Mapping[str, tuple[str, Callable[[Any], Any], str]]) -> dict[str, Any]:
        for key in self._table:
            if key not in keys:
                import difflib

                near = difflib.get_close_matches(key[:100], keys, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                hint += "the table is not needed in this file; " if key == "tool" else ""
                raise SettingsError(self._file, f"{self._where}{printable(key)}", f"is not known ({hint}allowed: {', '.join(keys)})")
        values = {}
        for key, value in self._table.items():
            name, take, allowed = keys[key]
            try:
                values[name] = take(value)
            except (TypeError, ValueError):
                shown = printable(repr(value)[:80])
                raise SettingsError(self._file, f"{self._where}{key}", f"{shown} is not allowed ({allowed})") from None
            if name in ("select", "ignore"):
                try:
                    registry.matching(values[name], "")
                except OptionError as error:
                    what = f"{error.value!r} is not known ({error.advice})"
                    raise SettingsError(self._file, f"{self._where}{key}", what) from None
        return values


def _one_of(*words: str) -> Callable[[Any], str]:
    def take(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return take


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_text(word).strip() for word in ([value] if isinstance(value, str) else _list(value)))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TypeError
    return float(value)


def _size(value: Any) -> int:
    nbytes = limits.parse(value) if isinstance(value, str) else value
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise TypeError
    return nbytes


_RULES = "a list of codes, prefixes such as TIE2, or names"
_GATE: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "fail-on": ("fail_on", _one_of(*FAIL_ON), "error, warning, note or never"),
    "max-wasted-bytes": ("max_wasted", _size, limits.ALLOWED),
    "max-total-bytes": ("max_total", _size, limits.ALLOWED),
    "allow-waivers": ("allow_waivers", _switch, "true or false"),
}
_KEYS: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "select": ("select", _words, _RULES),
    "ignore": ("ignore", _words, _RULES),
    **_GATE,
    "min-waste": ("min_waste", _size, limits.ALLOWED),
    "verify": ("verify", _one_of(*VERIFY), "headers, sample or full"),
    "timeout": ("timeout", _seconds, "a number of seconds above 0"),
    "allow-partial": ("allow_partial", _switch, "true or false"),
    "baseline": ("baseline", _text, "a path from the file's folder"),
    "target": ("target", _list, "tables: [[target]]"),
}
_TARGET_KEYS: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "match": ("match", _words, "a pattern or a list of patterns"),
    "ignore": ("ignore", _words, _RULES),
    "reason": ("reason", _text, "words: why it is no fault here"),
    **_GATE,
}


def _pattern(words: str) -> re.Pattern[str]:
    """`*` and `?` stay within a name, `**` does not."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", words.removeprefix("./").rstrip("/"))
    means = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(means.get(part) or re.escape(part) for part in parts), re.DOTALL)
