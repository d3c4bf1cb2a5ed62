"""What `--verbose` says on stderr: where the settings come from, what was read, which rules did not run and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..text import listed, printable, quantity

if TYPE_CHECKING:
    from ..policy.settings import Settings
    from ..report import Report

MAX_FILES = 200


def lines(report: Report, settings: Settings, looked: tuple[str, ...], ran: frozenset[str] | None) -> Iterator[str]:
    """Lines without their ends, each safe for a terminal."""
    if settings.file:
        yield f"settings     {printable(settings.file)}"
    else:
        where = f"none in {listed(map(printable, looked))}" if looked else "none asked for"
        yield f"settings     {where}"
    for name, nbytes in report.files[:MAX_FILES]:
        yield f"file         {printable(name)}: {nbytes:,} bytes"
    if len(report.files) > MAX_FILES:
        yield f"file         and {len(report.files) - MAX_FILES:,} more"
    kinds = {edition.name: edition.kind for edition in report.checkpoint.editions} if report.checkpoint else {}
    for name, kind in kinds.items():
        yield f"edition      {printable(name or os.curdir)}: {kind}"
    cost = report.cost
    yield f"read         {quantity(cost.bytes_read)} ({cost.bytes_read:,} bytes) in {cost.requests:,} reads, {cost.seconds:.2f} s"
    yield from _rules(ran)


def _rules(ran: frozenset[str] | None) -> Iterator[str]:
    from ..inspectors import live, registry

    rules = registry.all_rules()
    left = [rule for rule in rules if ran is not None and rule.name not in ran]
    in_memory = {rule.code for rule in live.RULES}
    unloaded = [rule.code for rule in left if rule.code in in_memory]
    chosen = [f"{rule.code} {rule.name}" for rule in left if rule.code not in in_memory]
    yield f"rules        {len(rules) - len(left):,} of {len(rules):,} ran"
    if chosen:
        yield f"not run      {listed(chosen, 100)}: left out by --select or --ignore, or by the settings"
    if unloaded:
        yield f"not run      {listed(unloaded, 100)}: they need a model in memory (--load), or were left out"
