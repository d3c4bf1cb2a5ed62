"""This file holds the report as CSV (RFC 4180): a row per target, for a table of many models."""

from __future__ import annotations

import csv as csvlib
import io
from collections.abc import Sequence

from ..report import Report, Severity
from ..text import listed, printable, printable_words
from . import settings as about
from .settings import DEFAULT, Answer, Settings
from .several import Outcome

COLUMNS = (
    "target", "revision", "verdict", "formats", "tensors", "parameters_stored", "parameters_unique", "bytes_stored", "bytes_unique",
    "bytes_wasted", "embedding", "head", "claim", "claim_source", "relation", "evidence", "errors", "warnings", "notes", "accepted",
    "rules", "not_checked", "problem",
)  # fmt: skip
# what spreadsheets take for the begin of a formula, the full-width forms too
_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """The head and one row."""
    return render_several(about.single(report), settings)


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """The head and a row per target, in their order."""
    out = io.StringIO(newline="")
    writer = csvlib.DictWriter(out, COLUMNS, restval="")
    writer.writeheader()
    for answer in about.answers(outcomes, settings):
        told = _row(answer.report, answer) if answer.report else {"problem": printable_words(answer.error)}
        row = {"target": printable_words(answer.target), "verdict": about.verdict(answer.report), **told}
        writer.writerow({column: _guarded(value) if isinstance(value, str) else value for column, value in row.items()})
    return out.getvalue()


def _row(report: Report, answer: Answer) -> dict[str, str | int]:
    totals = report.totals
    tie = next((tie for tie in report.ties if tie.role == "embedding-head"), None)
    named = {end: list(dict.fromkeys(printable(name) for name, kind in report.ends if kind == end)) for end in ("embedding", "head")}
    row: dict[str, str | int] = {
        "revision": printable(report.revision or ""),
        "formats": " ".join(report.formats),
        "tensors": totals.tensors,
        "parameters_stored": totals.parameters_stored,
        "parameters_unique": totals.parameters_unique,
        "bytes_stored": totals.nbytes_stored,
        "bytes_unique": totals.nbytes_unique,
        "bytes_wasted": totals.nbytes_wasted,
        "embedding": listed(named["embedding"]),
        "head": listed(named["head"]),
        "rules": " ".join(dict.fromkeys(finding.code for finding in report.findings)),
        "accepted": sum(judgement.accepted for judgement in answer.judgements),
        "not_checked": len(report.skipped),
        "problem": "; ".join(map(printable_words, answer.limits)),
    }
    for severity in Severity:
        row[f"{severity.value}s"] = sum(finding.severity is severity for finding in report.findings)
    if tie:
        row |= {
            "claim": tie.claim,
            "claim_source": printable_words(tie.claim_source),
            "relation": tie.relation,
            "evidence": tie.evidence.value,
        }
    return row


def _guarded(text: str) -> str:
    """With an apostrophe in front where a spreadsheet would run it."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
