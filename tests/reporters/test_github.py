"""Workflow commands: what GitHub's runner reads back is what was meant, and no name can speak to the runner."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import pytest

from report_samples import HOSTILE, RAW, nasty, outcomes, reports
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.report import Severity
from tieaudit.reporters import github
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome
from tieaudit.text import printable_words


class Annotation(NamedTuple):
    level: str
    title: str
    file: str
    message: str


def heard(told: str) -> tuple[list[Annotation], list[str]]:
    """(annotations, other lines), by the runner's own rules: command, properties split at commas, escapes undone with %25 last."""
    annotations, plain = [], []
    for line in told.split("\n")[:-1]:
        found = re.fullmatch(r"::(\w[\w-]*) ([^:]*)::(.*)", line)
        if found is None:
            assert not line.startswith(("::", "##["))
            plain.append(line)
            continue
        assert found[1] in ("error", "warning", "notice")
        given = dict(part.split("=", 1) for part in found[2].split(","))
        assert set(given) <= {"title", "file"}
        fields = {key: _undone(value.replace("%3A", ":").replace("%2C", ",")) for key, value in given.items()}
        annotations.append(Annotation(found[1], fields["title"], fields.get("file", ""), _undone(found[3])))
    return annotations, plain


def _undone(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_a_finding_is_one_line() -> None:
    report = nasty("w", target="dir/m")
    told = github.render(replace(report, findings=report.findings[:1], skipped=()))
    assert told == (
        "::error title=TIE001 diverged-tie,file=dir/m/w::w differs from w%0ALikely cause: cause w%0AWhat to do: fix w\n"
        "tieaudit: error: dir/m: the config ties two names, but the file holds two different matrices\n"
    )


def test_severities_are_levels_and_what_was_not_checked_is_a_warning() -> None:
    annotations, plain = heard(github.render(nasty("w", target="m")))
    assert [(one.level, one.title, one.file) for one in annotations] == [
        ("error", "TIE001 diverged-tie", "m/w"),
        ("warning", "TIE002 duplicate-tie", "m/w"),
        ("warning", "tieaudit: not checked", ""),
        ("notice", "TIE009 untied-but-equal", "m/w"),
    ]
    assert annotations[2].message == "m: w: because w"
    assert len(plain) == 1


def test_all_fixtures_are_told_up_to_what_is_shown() -> None:
    annotations, plain = heard(github.render_several(outcomes()))
    found = {severity: sum(finding.severity is severity for report in reports() for finding in report.findings) for severity in Severity}
    for level, severity in (("error", Severity.ERROR), ("warning", Severity.WARNING), ("notice", Severity.NOTE)):
        there = found[severity] + (level == "error")  # the target without an answer
        assert there > 10
        assert sum(one.level == level for one in annotations) == 10
        assert f"and {there - 10} more {level}s: GitHub shows 10 of a level per step" in plain
    assert plain[-1] == "tieaudit: no answer: nowhere"
    assert len(plain) == 3 + len(outcomes())


def test_ten_are_all_shown_and_the_eleventh_is_counted() -> None:
    report = nasty("w")
    ten = replace(report, findings=report.findings[:1] * 10, skipped=())
    assert "more" not in github.render(ten)
    eleven = github.render(replace(ten, findings=report.findings[:1] * 11))
    assert "and 1 more error: GitHub shows 10 of a level per step\n" in eleven


def test_a_model_elsewhere_has_no_file_in_the_checkout() -> None:
    annotations, _ = heard(github.render(replace(nasty("w", target="org/model"), revision="abc")))
    assert {one.file for one in annotations} == {""}
    assert annotations[0].message.startswith("org/model: w differs from w")


def test_what_is_accepted_is_not_annotated_and_a_limit_is() -> None:
    verdict = Verdict(code=1, failing=(), remarks={0: (Remark("accepted", "in b", accepts=True),), 1: (Remark("new", "not in b"),)},
                      lines=(("limit", "too much"),))  # fmt: skip
    annotations, plain = heard(github.render(nasty("w"), Settings(verdicts=(verdict,))))
    assert [one.title for one in annotations] == [
        "tieaudit: limit", "TIE002 duplicate-tie", "tieaudit: not checked", "TIE009 untied-but-equal"
    ]  # fmt: skip
    assert annotations[1].message.endswith("\nNew: not in b")
    assert plain[-1].endswith("(1 accepted finding not shown)")


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_cannot_speak_to_the_runner(case: str) -> None:
    word = HOSTILE[case]
    for report in (nasty(word), nasty("w", target=word)):
        told = github.render(report)
        annotations, plain = heard(told)
        assert (len(annotations), len(plain)) == (4, 1)
        assert not RAW.search(told)
        assert all(len(line) < 20_000 for line in told.split("\n"))
    annotations, plain = heard(github.render_several([Outcome(target=word, error=word)]))
    assert ([one.title for one in annotations], len(plain)) == (["tieaudit: no answer"], 1)
    shown = printable_words(word)
    assert heard(github.render(nasty(word)))[0][0].message.startswith(f"{shown} differs from {shown}\n")
