"""This file holds the report as workflow commands of GitHub Actions: a line per finding that becomes an annotation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..report import Report, Severity
from ..text import printable, printable_words
from . import settings as about
from .settings import DEFAULT, Answer, Judgement, Settings
from .several import Outcome

SHOWN = 10  # annotations of one level that GitHub shows for a step; it drops the others without a word
MAX_MESSAGE = 4000  # characters
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """The annotations of one target, and a line for the log."""
    return render_several(about.single(report), settings)


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """The annotations of all targets, the worst first; how many were left out; and a line per target for the log."""
    answers = about.answers(outcomes, settings)
    told = [line for answer in answers for line in _annotations(answer, settings)]
    lines = []
    for level in _LEVELS.values():
        of_level = [line for found, line in told if found == level]
        lines += of_level[:SHOWN]
        if len(of_level) > SHOWN:
            more = len(of_level) - SHOWN
            lines.append(f"and {more:,} more {level}{'s' * (more != 1)}: GitHub shows {SHOWN} of a level per step")
    return "\n".join([*lines, *map(_summary, answers)]) + "\n"


def _annotations(answer: Answer, settings: Settings) -> Iterator[tuple[str, str]]:
    """(level, line). What was accepted draws nobody's attention again."""
    report = answer.report
    if report is None:
        yield "error", _command("error", "tieaudit: no answer", "", printable_words(answer.error))
        return
    for words in answer.limits:
        yield "error", _command("error", "tieaudit: limit", "", f"{printable(report.target)}: {printable_words(words)}")
    for judgement in answer.judgements:
        if not judgement.accepted:
            yield _finding(report, judgement, settings)
    for skip in report.skipped:
        words = f"{printable(report.target)}: {printable(skip.subject)}: {printable_words(skip.reason)}"
        yield "warning", _command("warning", "tieaudit: not checked", "", words)


def _finding(report: Report, judgement: Judgement, settings: Settings) -> tuple[str, str]:
    finding = judgement.finding
    level = _LEVELS[finding.severity]
    # a file elsewhere has no place in the workflow's checkout
    file = "" if about.is_remote(report) else printable(about.first_path(report, finding, settings.subfolder))
    words = f"{printable(report.target)}: " if about.is_remote(report) else ""
    words += printable_words(finding.message)
    words += f"\nLikely cause: {printable_words(finding.cause)}" if finding.cause else ""
    words += f"\nWhat to do: {printable_words(finding.fix)}" if finding.fix else ""
    words += "".join(f"\n{remark.label.capitalize()}: {printable_words(remark.words)}" for remark in judgement.remarks)
    return level, _command(level, f"{finding.code} {finding.rule}", file, words)


def _command(level: str, title: str, file: str, message: str) -> str:
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - 1]}…"
    place = f",file={_property(file)}" if file else ""
    return f"::{level} title={_property(title)}{place}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _summary(answer: Answer) -> str:
    """Never begins with `::`, whatever the target is called."""
    report = answer.report
    if report is None:
        return f"tieaudit: no answer: {printable_words(answer.target)}"
    accepted = sum(judgement.accepted for judgement in answer.judgements)
    more = f" ({accepted:,} accepted finding{'s' * (accepted != 1)} not shown)" if accepted else ""
    return f"tieaudit: {about.verdict(report)}: {printable(report.target)}: {about.headline(report)}{more}"
