"""This file holds the report as SARIF 2.1.0: one run, the results of all targets in it.

One run and not one per target, because hosts that show SARIF refuse two runs of one tool in a file.
Severities are SARIF's levels, so nothing is mapped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..fingerprints import VERSION
from ..inspectors.rule import Rule
from ..report import Finding, Report, TensorPlace
from ..text import printable, printable_words
from . import settings as about
from .pages import markdown
from .settings import DEFAULT, Answer, Judgement, Settings
from .several import Outcome

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MAX_LOCATIONS = 100  # of one result; hosts refuse files with thousands
_NOTIFICATIONS = {
    "no-answer": "A target could not be audited.",
    "not-checked": "Something that was asked for could not be checked.",
    "not-compared": "Something that nobody asked for was left out.",
    "limit": "A target is larger, or wastes more, than its project allows.",
}


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """The log of one target."""
    return render_several(about.single(report), settings)


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """The log of all targets; those that could not be audited are notifications of an execution that was not successful."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(outcomes, settings)]}
    return json.dumps(log, indent=2, ensure_ascii=True) + "\n"


def _run(outcomes: Sequence[Outcome], settings: Settings) -> dict[str, Any]:
    answers = about.answers(outcomes, settings)
    reports = [answer.report for answer in answers if answer.report]
    rules = about.ran(settings, reports)
    # a finding of a rule that was not chosen can only come from a report that was made elsewhere
    known = {rule.code: at for at, rule in enumerate(rules)}
    artifacts: dict[str, dict[str, Any]] = {}
    for report in reports:
        for name, nbytes in report.files:
            uri = about.uri(report, name, settings.subfolder)
            artifacts.setdefault(uri, {"location": {"uri": uri}, "length": nbytes, "roles": ["analysisTarget"]})
    numbers = {uri: at for at, uri in enumerate(artifacts)}
    results = [
        _result(answer.report, judgement, known, numbers, settings)
        for answer in answers
        if answer.report
        for judgement in answer.judgements
    ]
    return {
        "tool": {
            "driver": {
                "name": "tieaudit",
                "semanticVersion": __version__,
                "rules": [_rule(rule) for rule in rules],
                "notifications": [{"id": ident, "shortDescription": {"text": words}} for ident, words in _NOTIFICATIONS.items()],
            }
        },
        "invocations": [_invocation(answers, settings)],
        "artifacts": list(artifacts.values()),
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"targets": [_target(answer) for answer in answers]},
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": _message(rule.summary)},
        "fullDescription": {"text": _message(rule.page.replace("\n", " "))},
        "help": {"text": _message(rule.page), "markdown": _braces(markdown(rule))},
        "defaultConfiguration": {"level": rule.severity.value},
    }


def _result(report: Report, judgement: Judgement, known: dict[str, int], numbers: dict[str, int], settings: Settings) -> dict[str, Any]:
    finding = judgement.finding
    result: dict[str, Any] = {"ruleId": finding.code}
    if finding.code in known:
        result["ruleIndex"] = known[finding.code]
    if judgement.accepted:
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": f"{remark.label} {printable_words(remark.words)}"}
            for remark in judgement.remarks
            if remark.accepts
        ]
    return result | {
        "level": finding.severity.value,
        "message": {"text": _message(printable_words(finding.message))},
        "locations": _locations(report, finding, numbers, settings.subfolder),
        "partialFingerprints": {VERSION: judgement.mark},
        "properties": {
            "rule": finding.rule,
            "wastedBytes": finding.wasted_bytes,
            "evidence": finding.evidence.value,
            "cause": finding.cause and printable_words(finding.cause),
            "fix": finding.fix and printable_words(finding.fix),
        },
    }


def _locations(report: Report, finding: Finding, numbers: dict[str, int], subfolder: str) -> list[dict[str, Any]]:
    """One per tensor; of a finding that has none the file that it names, or the target."""
    if not finding.tensors:
        return [{"physicalLocation": _artifact(about.uri(report, about.mentioned(report, finding), subfolder), numbers)}]
    return [_location(report, place, numbers, subfolder) for place in finding.tensors[:MAX_LOCATIONS]]


def _location(report: Report, place: TensorPlace, numbers: dict[str, int], subfolder: str) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if place.file != about.IN_MEMORY:
        physical = _artifact(about.uri(report, place.file, subfolder), numbers)
        if place.offset is not None and place.file:
            physical["region"] = {"byteOffset": place.offset, "byteLength": place.nbytes}
        location["physicalLocation"] = physical
    if place.name:
        name = printable(place.name)
        location["logicalLocations"] = [{"name": name, "fullyQualifiedName": name, "kind": "member"}]
    return location


def _artifact(uri: str, numbers: dict[str, int]) -> dict[str, Any]:
    return {"artifactLocation": {"uri": uri, "index": numbers[uri]} if uri in numbers else {"uri": uri}}


def _invocation(answers: Sequence[Answer], settings: Settings) -> dict[str, Any]:
    notes = [_notification("no-answer", "error", printable_words(answer.error)) for answer in answers if answer.report is None]
    for answer in answers:
        notes += [_notification("limit", "error", f"{printable_words(answer.target)}: {printable_words(words)}") for words in answer.limits]
    reports = [answer.report for answer in answers if answer.report]
    for ident, level in (("not-checked", "warning"), ("not-compared", "note")):
        for report in reports:
            for skip in report.skipped if ident == "not-checked" else report.not_compared:
                words = f"{printable(report.target)}: {printable(skip.subject)}: {printable_words(skip.reason)}"
                notes.append(_notification(ident, level, words))
    whole = len(reports) == len(answers) and (settings.allow_partial or not any(report.skipped for report in reports))
    invocation: dict[str, Any] = {"executionSuccessful": whole}
    if settings.exit_code is not None:
        invocation["exitCode"] = settings.exit_code
    return invocation | {"toolExecutionNotifications": notes}


def _notification(ident: str, level: str, words: str) -> dict[str, Any]:
    index = list(_NOTIFICATIONS).index(ident)
    return {"descriptor": {"id": ident, "index": index}, "level": level, "message": {"text": _message(words)}}


def _target(answer: Answer) -> dict[str, Any]:
    told: dict[str, Any] = {"target": printable_words(answer.target), "verdict": about.verdict(answer.report)}
    if answer.report:
        totals = answer.report.totals
        told |= {
            "revision": answer.report.revision,
            "storedBytes": totals.nbytes_stored,
            "wastedBytes": totals.nbytes_wasted,
        }
    return told


def _message(text: str) -> str:
    """A plain message of SARIF: what would be a link or a placeholder in it is text."""
    return _braces(re.sub(r"\[(?=[^\[\]]*\]\()", r"\\[", text))


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
