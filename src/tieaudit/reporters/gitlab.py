"""This file holds the report as GitLab's Code Quality JSON: a list of issues, empty for a healthy model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..report import Report, Severity
from ..text import printable, printable_words
from . import settings as about
from .settings import DEFAULT, Settings
from .several import Outcome

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.NOTE: "info"}
NO_ANSWER, LIMIT, NOT_CHECKED = "blocker", "critical", "major"


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """The issues of one target."""
    return render_several(about.single(report), settings)


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """The issues of all targets in one list; a target without an answer and what was not checked are issues too. What was accepted is
    left out: the format has no word for it."""
    return json.dumps(list(_issues(outcomes, settings)), indent=2, ensure_ascii=True) + "\n"


def _issues(outcomes: Sequence[Outcome], settings: Settings) -> Iterator[dict[str, Any]]:
    for answer in about.answers(outcomes, settings):
        report = answer.report
        if report is None:
            path = printable_words(answer.target)
            yield _issue("no-answer", printable_words(answer.error), NO_ANSWER, path, about.mark("no-answer", answer.key))
            continue
        whole = _shown(about.path(report, "", settings.subfolder))
        for number, words in enumerate(answer.limits):
            yield _issue("limit", printable_words(words), LIMIT, whole, about.mark("limit", answer.key, str(number)))
        for judgement in answer.judgements:
            finding = judgement.finding
            if judgement.accepted:
                continue
            words = f"{finding.code} {finding.rule}: {printable_words(finding.message)}"
            words += f" What to do: {printable_words(finding.fix)}" if finding.fix else ""
            path = about.first_path(report, finding, settings.subfolder)
            yield _issue(finding.rule, words, _SEVERITIES[finding.severity], _shown(path), judgement.mark)
        for number, skip in enumerate(report.skipped):
            words = f"not checked: {printable(skip.subject)}: {printable_words(skip.reason)}"
            yield _issue("not-checked", words, NOT_CHECKED, whole, about.mark("not-checked", answer.key, skip.subject, str(number)))


def _shown(path: str) -> str:
    """Part by part, so that a long path is not cut."""
    return "/".join(map(printable, path.split("/")))


def _issue(check: str, words: str, severity: str, path: str, mark: str) -> dict[str, Any]:
    # a matrix has no line; GitLab asks for one
    location = {"path": path, "lines": {"begin": 1}}
    return {"description": words, "check_name": check, "fingerprint": mark, "severity": severity, "location": location}
