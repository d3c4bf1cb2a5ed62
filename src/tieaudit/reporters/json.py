"""The JSON contract, version 1: an explicit dict, checked against `report.schema.json` by the tests."""

from __future__ import annotations

import json
from typing import Any

from .. import __version__
from ..alive import Live
from ..report import Finding, Report, Skip, Tie

CONTRACT = 1


def render(report: Report) -> str:
    """The report as indented JSON with a final line end. Names stand as they are: JSON escapes what is not text."""
    return json.dumps(document(report), indent=2, ensure_ascii=True) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The report as the contract's object."""
    totals, cost = report.totals, report.cost
    content: dict[str, Any] = {
        "version": CONTRACT,
        "tool": {"name": "tieaudit", "version": __version__},
        "target": report.target,
        "revision": report.revision,
        "verdict": report.verdict,
        "checkpoint": {
            "formats": list(report.formats),
            "files": [{"name": name, "nbytes": nbytes} for name, nbytes in report.files],
            "tensors": totals.tensors,
            "parameters": {"stored": totals.parameters_stored, "unique": totals.parameters_unique},
            "nbytes": {"stored": totals.nbytes_stored, "unique": totals.nbytes_unique, "wasted": totals.nbytes_wasted},
        },
        "ties": [_tie(tie) for tie in report.ties],
        "findings": [_finding(finding) for finding in report.findings],
        "skipped": [_skip(skip) for skip in report.skipped],
        "not_compared": [_skip(skip) for skip in report.not_compared],
        "cost": {"bytes_read": cost.bytes_read, "requests": cost.requests, "seconds": cost.seconds},
    }
    if report.live is not None:
        content["live"] = _live(report.live)
    return content


def _live(live: Live) -> dict[str, Any]:
    """What the contract adds where a model was looked at in memory."""
    return {
        "model": live.model,
        "moment": live.moment,
        "parameters": {"counted": live.counted, "unique": live.unique},
        "resident": {"before": live.resident[0], "after": live.resident[1]} if live.resident else None,
        "ties": [
            {
                "names": list(tie.names),
                "sharing": tie.sharing.value,
                "expected": tie.expected or None,
                "declared": tie.declared,
                "probe": tie.probe,
            }
            for tie in live.ties
        ],
        "answers": [
            {
                "names": list(answer.names),
                "held": answer.held,
                "words": answer.words,
                "data_ptr": list(answer.pointers),
                "on_meta": answer.on_meta,
            }
            for answer in live.answers
        ],
        "tried": [{"trial": tried.trial.value, "held": tried.held, "words": tried.words} for tried in live.tried],
        "won": [{"name": name, "words": words} for name, words in live.won],
        "missing": list(live.missing),
        "unexpected": list(live.unexpected),
    }


def _tie(tie: Tie) -> dict[str, Any]:
    return {
        "canonical": tie.canonical,
        "aliases": list(tie.aliases),
        "role": tie.role,
        "claim": tie.claim,
        "claim_source": tie.claim_source,
        "relation": tie.relation,
        "evidence": tie.evidence.value,
        "saves_bytes": tie.saves_bytes,
        "engines": [
            {"engine": outcome.engine, "version": outcome.version, "outcome": outcome.outcome, "silent": outcome.silent}
            for outcome in tie.engines
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "rule": finding.rule,
        "severity": finding.severity.value,
        "message": finding.message,
        "tensors": [
            {"name": tensor.name, "file": tensor.file, "offset": tensor.offset, "nbytes": tensor.nbytes} for tensor in finding.tensors
        ],
        "wasted_bytes": finding.wasted_bytes,
        "evidence": finding.evidence.value,
        "cause": finding.cause,
        "fix": finding.fix,
    }


def _skip(skip: Skip) -> dict[str, str]:
    return {"subject": skip.subject, "reason": skip.reason}
