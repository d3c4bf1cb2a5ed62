"""JUnit XML: valid by the schema of Jenkins' plugin, counted alike by another parser, green where nothing fails."""

from __future__ import annotations

from xml.sax.saxutils import unescape

import junitparser
import pytest
from lxml import etree

from report_samples import FOLDERS, HOSTILE, RAW, ROOT, SCHEMAS, nasty, outcomes, reports
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.report import Report, Severity
from tieaudit.reporters import junit
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome
from tieaudit.text import printable

VALID = etree.XMLSchema(file=str(SCHEMAS / "junit-10.xsd"))


def suites(told: str) -> etree._Element:
    root = etree.fromstring(told.encode("ascii"))
    VALID.assertValid(root)
    return root


def parsed(told: str) -> junitparser.JUnitXml:
    return junitparser.JUnitXml.fromstring(told.encode("ascii"))


def expected(report: Report, worst: Severity) -> set[str]:
    return {f"{finding.code} {finding.rule}" for finding in report.findings if finding.severity.rank <= worst.rank}


def test_the_schema_refuses_what_is_wrong() -> None:
    assert not VALID.validate(etree.fromstring("<testsuites><testsuite/></testsuites>"))


@pytest.mark.parametrize("index", range(len(FOLDERS)), ids=[str(path.relative_to(ROOT)) for path in FOLDERS])
def test_every_fixture_is_valid_and_fails_where_its_findings_do(index: int) -> None:
    report = reports()[index]
    for worst in Severity:
        told = junit.render(report, Settings(fail_on=worst))
        suites(told)
        [suite] = parsed(told)
        assert suite.name == printable(report.target)
        failed = {case.name for case in suite if any(isinstance(one, junitparser.Failure) for one in case.result)}
        assert failed == expected(report, worst)
        assert (suite.tests, suite.failures, suite.errors) == (len(list(suite)), len(failed), 0)


def test_a_suite_per_target_and_an_error_for_none() -> None:
    told = junit.render_several(outcomes())
    suites(told)
    document = parsed(told)
    assert [suite.name for suite in document] == [printable(outcome.target) for outcome in outcomes()]
    assert (document.errors, document.failures) == (1, sum(len(expected(report, Severity.ERROR)) for report in reports()))
    [case] = list(document)[-1]
    assert (case.name, case.result[0].message, case.result[0].type) == ("audit", "nowhere: is not there", "no answer")
    assert document.tests == sum(len(list(suite)) for suite in document)


def test_a_clean_run_has_a_passing_case_for_every_rule_that_ran() -> None:
    clean = next(report for report in reports() if not report.findings)
    [suite] = parsed(junit.render(clean, Settings(rules=frozenset({"TIE001", "TIE002", "TIE805"}))))
    assert [(case.classname, case.name, case.result) for case in suite] == [
        (printable(clean.target), name, []) for name in ("TIE001 diverged-tie", "TIE002 duplicate-tie")
    ]
    assert {case.name.split()[0] for case in parsed(junit.render(clean)).__iter__().__next__()} >= {"TIE001", "TIE501", "TIE808"}


def test_what_does_not_fail_stands_in_the_output_and_what_was_not_checked_is_skipped() -> None:
    root = suites(junit.render(nasty("x")))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["TIE001 diverged-tie"].find("failure").get("message") == "x differs from x"
    assert cases["TIE001 diverged-tie"].findtext("failure") == "error: x differs from x\n  likely cause: cause x\n  what to do: fix x"
    assert cases["TIE002 duplicate-tie"].findtext("system-out") == "warning: x differs from x\n  likely cause: cause x\n  what to do: fix x"
    assert cases["TIE002 duplicate-tie"].find("failure") is None
    assert cases["not checked 1: x"].find("skipped").get("message") == "because x"
    assert root.find("testsuite").findtext("system-out") == "not compared: x: left x"
    assert [root.find("testsuite").get(count) for count in ("failures", "errors", "skipped", "time")] == ["1", "0", "1", "0.500"]


def test_never_failing_is_green() -> None:
    assert parsed(junit.render(nasty("x"), Settings(fail_on=None))).failures == 0


def test_what_is_accepted_passes_with_its_reason_and_a_limit_fails() -> None:
    verdict = Verdict(code=1, failing=(), remarks={0: (Remark("accepted", "in base.json: known", accepts=True),)},
                      lines=(("limit", "too much"), ("gate", "fails: 1 limit")))  # fmt: skip
    root = suites(junit.render(nasty("x"), Settings(verdicts=(verdict,))))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["TIE001 diverged-tie"].find("failure") is None
    assert cases["TIE001 diverged-tie"].findtext("system-out").endswith("\n  accepted: in base.json: known")
    assert cases["limits"].find("failure").get("message") == "too much"
    assert "gate: fails: 1 limit" in root.find("testsuite").findtext("system-out")


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_text(case: str) -> None:
    word = HOSTILE[case]
    for report in (nasty(word), nasty("x", target=word)):
        told = junit.render(report)
        root = suites(told)
        assert not RAW.search(told)
        assert {element.tag for element in root.iter()} <= {
            "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped", "system-out"
        }  # fmt: skip
        assert len(told) < 100_000
    told = junit.render_several([Outcome(target=word, error=word), Outcome(target="m", report=nasty("w"))])
    assert not RAW.search(told)
    assert len(list(suites(told))) == 2
    shown = " ".join(map(printable, word.split(" ")))
    [failure] = suites(junit.render(nasty(word))).iter("failure")
    # XML makes a space of a tab or a line end in an attribute, but none is left in ours
    assert failure.get("message") == f"{shown} differs from {shown}"
    assert unescape(failure.text).startswith("error: ")
