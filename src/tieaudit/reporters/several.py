"""Several targets in one call: the table at the end, and one JSON document."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..report import Report, Severity
from ..text import printable, printable_words, quantity
from .json import CONTRACT, document

HEADINGS = ("target", "verdict", "errors", "warnings", "notes", "stored", "wasted", "read")
MAX_TARGET = 60  # columns
NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one target: its report, or why there is none."""

    target: str
    report: Report | None = None
    error: str = ""


def render_table(outcomes: Sequence[Outcome], width: int | None = None) -> str:
    """One line per target, and what stopped those that could not be audited."""
    rows = [HEADINGS, *map(_row, outcomes)]
    room = MAX_TARGET if width is None else max(12, min(MAX_TARGET, width - 62))
    rows = [(_short(row[0], room), *row[1:]) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(widths[at]) if at < 2 else cell.rjust(widths[at]) for at, cell in enumerate(row)).rstrip() for row in rows
    ]
    lines += [f"no answer: {printable_words(outcome.error)}" for outcome in outcomes if outcome.report is None]
    return "\n".join(lines) + "\n"


def render_json(outcomes: Sequence[Outcome]) -> str:
    """`reports` has the documents of single targets, `errors` the targets without one."""
    content: dict[str, Any] = {
        "version": CONTRACT,
        "tool": {"name": "tieaudit", "version": __version__},
        "reports": [document(outcome.report) for outcome in outcomes if outcome.report],
        "errors": [{"target": outcome.target, "message": outcome.error} for outcome in outcomes if outcome.report is None],
    }
    return jsonlib.dumps(content, indent=2, ensure_ascii=True) + "\n"


def _row(outcome: Outcome) -> tuple[str, ...]:
    report = outcome.report
    if report is None:
        return (printable(outcome.target), NO_ANSWER, *[""] * 6)
    counts = (str(sum(finding.severity is severity for finding in report.findings)) for severity in Severity)
    totals = report.totals
    sizes = (quantity(nbytes) for nbytes in (totals.nbytes_stored, totals.nbytes_wasted, report.cost.bytes_read))
    # what was filtered or not asked for is never called clean
    verdict = "nothing found" if report.filtered and report.verdict == "ok" else report.verdict
    return (printable(report.target), verdict, *counts, *sizes)


def _short(target: str, room: int) -> str:
    """The end tells more than the begin."""
    return target if len(target) <= room else "…" + target[-room + 1 :]
