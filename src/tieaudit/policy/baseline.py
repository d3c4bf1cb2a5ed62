"""This file holds accepted findings: a JSON file that `--write-baseline` writes and `--baseline` compares with.

    {"version": 1, "findings": [{"target", "fingerprint", "rule", "severity", "wasted_bytes", "tensors", "reason"}]}

`target` is a path from the file's own folder, or a Hub id. A finding is new if no entry has its fingerprint, and also if it got worse:
a higher severity, or more than a tenth more wasted bytes. `reason` is the user's; it stays when the file is written again.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..fingerprints import fingerprint
from ..report import Finding, Report, Severity
from .settings import content

CONTRACT = 1
MAX_NAMES = 16  # tensors that an entry lists for people; the fingerprint knows all
MAX_NAME = 500  # characters of a name or target in the file
HOW = "write it with --write-baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An accepted finding."""

    target: str
    fingerprint: str
    rule: str
    severity: Severity
    wasted_bytes: int
    tensors: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A report against the entries of its target. `accepted` and `worse`: {index of a finding: its entry}; `gone`: entries that
    nothing answers to any more."""

    accepted: Mapping[int, Entry]
    worse: Mapping[int, Entry]
    gone: tuple[Entry, ...]


def load(path: str, file: str) -> tuple[Entry, ...]:
    """The entries of a file. SettingsError if it is not one."""
    try:
        told = json.loads(content(path, file))
    except (ValueError, RecursionError) as error:
        raise SettingsError(file, "", f"is not JSON: {error} ({HOW})") from None
    if not isinstance(told, dict) or not isinstance(told.get("findings"), list) or "version" not in told:
        raise SettingsError(file, "", f"is not a baseline ({HOW})")
    if told["version"] != CONTRACT:
        raise SettingsError(file, "version", f"{told['version']!r} is not known ({CONTRACT} is)")
    return tuple(_entry(file, number, one) for number, one in enumerate(told["findings"], 1))


def _entry(file: str, number: int, one: Any) -> Entry:
    try:
        entry = Entry(
            target=one["target"],
            fingerprint=one["fingerprint"],
            rule=one["rule"],
            severity=Severity(one["severity"]),
            wasted_bytes=one["wasted_bytes"],
            tensors=tuple(one.get("tensors", ())),
            reason=one.get("reason", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        entry = None
    words = () if entry is None else (entry.target, entry.fingerprint, entry.rule, entry.reason, *entry.tensors)
    if entry is None or not all(isinstance(word, str) for word in words) or type(entry.wasted_bytes) is not int:
        fields = "target, fingerprint, rule, severity, wasted_bytes; tensors and reason may be left out"
        raise SettingsError(file, f"finding {number}", f"is not an entry ({fields})")
    return entry


def compare(report: Report, key: str, entries: Iterable[Entry], ran: frozenset[str] | None = None) -> Compared:
    """`key`: how the target is called in the file. `ran`: names of the rules that were asked for, None for all; an entry of another
    rule is not gone, and none is where the audit could not see everything."""
    left: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.target == key:
            left.setdefault(entry.fingerprint, []).append(entry)
    for same in left.values():  # one fingerprint, several findings (two gaps in one file): the worst for the worst
        same.sort(key=lambda entry: (-entry.severity.rank, entry.wasted_bytes))
    accepted: dict[int, Entry] = {}
    worse: dict[int, Entry] = {}
    for index, finding in enumerate(report.findings):  # they come sorted, the worst first
        same = left.get(fingerprint(finding, key), [])
        if same:
            entry = same.pop()
            (worse if _is_worse(finding, entry) else accepted)[index] = entry
    gone = (entry for same in left.values() for entry in same if ran is None or entry.rule in ran)
    return Compared(accepted=accepted, worse=worse, gone=() if report.skipped else tuple(sorted(gone, key=_order)))


def _is_worse(finding: Finding, entry: Entry) -> bool:
    return finding.severity.rank < entry.severity.rank or finding.wasted_bytes * 10 > entry.wasted_bytes * 11


def renewed(old: Iterable[Entry], report: Report, key: str, ran: frozenset[str] | None = None) -> tuple[Entry, ...]:
    """The entries after this report was accepted: reasons stay, entries of other targets and of what was not looked at too."""
    old = tuple(old)
    compared = compare(report, key, old, ran)
    gone = set(map(id, compared.gone))
    known = {**compared.accepted, **compared.worse}
    replaced = set(map(id, known.values()))
    kept = [entry for entry in old if id(entry) not in gone and id(entry) not in replaced]
    new = [
        Entry(
            target=key,
            fingerprint=fingerprint(finding, key),
            rule=finding.rule,
            severity=finding.severity,
            wasted_bytes=finding.wasted_bytes,
            tensors=tuple(place.name[:MAX_NAME] for place in finding.tensors if place.name)[:MAX_NAMES],
            reason=known[index].reason if index in known else "",
        )
        for index, finding in enumerate(report.findings)
    ]
    return tuple(sorted((*kept, *new), key=_order))


def _order(entry: Entry) -> tuple[Any, ...]:
    return (entry.target, entry.rule, entry.tensors, entry.fingerprint, entry.severity.rank, -entry.wasted_bytes, entry.reason)


def write(path: str, file: str, entries: Iterable[Entry]) -> None:
    """Replace the file in one step. SettingsError if that cannot be done."""
    document = {
        "version": CONTRACT,
        "findings": [
            {
                "target": entry.target,
                "fingerprint": entry.fingerprint,
                "rule": entry.rule,
                "severity": entry.severity.value,
                "wasted_bytes": entry.wasted_bytes,
                "tensors": list(entry.tensors),
                "reason": entry.reason,
            }
            for entry in sorted(entries, key=_order)
        ],
    }
    text = json.dumps(document, indent=2, ensure_ascii=True) + "\n"
    beside = None
    try:
        real = Path(path).resolve()
        beside = real.with_name(f".{real.name}.{secrets.token_hex(8)}")
        beside.write_text(text, "ascii")
        if real.exists():
            beside.chmod(real.stat().st_mode & 0o777)
        os.replace(beside, real)
    except (OSError, ValueError, RuntimeError) as error:
        if beside is not None:
            with contextlib.suppress(OSError, ValueError):
                beside.unlink(missing_ok=True)
        raise SettingsError(file, "", f"cannot be written: {getattr(error, 'strerror', None) or error}") from None
