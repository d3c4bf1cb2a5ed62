"""Code Quality JSON: the fields that GitLab asks for, marks that differ, and places in the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from report_samples import FOLDERS, HOSTILE, RAW, ROOT, nasty, outcomes, reports
from tieaudit import audit
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.reporters import gitlab, sarif
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome

# what GitLab's documentation of a custom Code Quality report requires; it publishes no schema
VALID = jsonschema.Draft202012Validator(
    {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["description", "check_name", "fingerprint", "location", "severity"],
            "additionalProperties": False,
            "properties": {
                "description": {"type": "string", "minLength": 1},
                "check_name": {"type": "string", "pattern": "^[a-z-]+$"},
                "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32}(-[0-9]+)?$"},
                "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
                "location": {
                    "type": "object",
                    "required": ["path", "lines"],
                    "properties": {
                        "path": {"type": "string", "minLength": 1, "not": {"pattern": "^\\./"}},
                        "lines": {"type": "object", "required": ["begin"], "properties": {"begin": {"const": 1}}},
                    },
                },
            },
        },
    }
)


def issues(told: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(told)
    VALID.validate(found)
    marks = [issue["fingerprint"] for issue in found]
    assert len(set(marks)) == len(marks)
    return found


@pytest.mark.parametrize("index", range(len(FOLDERS)), ids=[str(path.relative_to(ROOT)) for path in FOLDERS])
def test_every_fixture_is_valid(index: int) -> None:
    report = reports()[index]
    severities = {"error": "critical", "warning": "major", "note": "info"}
    assert [(issue["check_name"], issue["severity"]) for issue in issues(gitlab.render(report))] == [
        (finding.rule, severities[finding.severity]) for finding in report.findings
    ]


def test_all_targets_are_one_list_and_one_without_an_answer_blocks() -> None:
    found = issues(gitlab.render_several(outcomes()))
    assert len(found) == sum(len(report.findings) for report in reports()) + 1
    assert (found[-1]["check_name"], found[-1]["severity"], found[-1]["location"]["path"]) == ("no-answer", "blocker", "nowhere")


def test_an_issue_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "a b", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    monkeypatch.chdir(tmp_path)
    report = audit("./a b/")
    [issue] = issues(gitlab.render(report))
    assert issue["location"] == {"path": "a b/model.safetensors", "lines": {"begin": 1}}
    assert issue["description"] == f"TIE001 diverged-tie: {report.findings[0].message} What to do: {report.findings[0].fix}"
    [run] = json.loads(sarif.render(report))["runs"]
    assert issue["fingerprint"] == run["results"][0]["partialFingerprints"]["tieaudit/v1"]


def test_what_was_not_checked_is_an_issue_and_what_was_accepted_is_none() -> None:
    assert [issue["check_name"] for issue in issues(gitlab.render(nasty("w")))] == [
        "diverged-tie", "duplicate-tie", "untied-but-equal", "not-checked"
    ]  # fmt: skip
    verdict = Verdict(code=1, remarks={0: (Remark("accepted", "", accepts=True),)}, lines=(("limit", "too much"),))
    found = issues(gitlab.render(nasty("w"), Settings(verdicts=(verdict,))))
    assert [issue["check_name"] for issue in found] == ["limit", "duplicate-tie", "untied-but-equal", "not-checked"]


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_text(case: str) -> None:
    for report in (nasty(HOSTILE[case]), nasty("w", target=HOSTILE[case])):
        told = gitlab.render(report)
        assert told.isascii()
        assert len(told) < 50_000
        assert not any(RAW.search(issue["description"] + issue["location"]["path"]) for issue in issues(told))
    [issue] = issues(gitlab.render_several([Outcome(target=HOSTILE[case], error=HOSTILE[case])]))
    assert not RAW.search(issue["description"] + issue["location"]["path"])
