"""This file holds the report as JUnit XML: a test suite per target, a test case per rule that was run.

A rule with findings that fail the run is one failed case (readers show one failure of a case, so all its findings are in it); findings
below that are in the case's output. What could not be checked is a skipped case, a target without an answer an error.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from .. import __version__
from ..report import Report
from ..text import printable, printable_words, quantity
from . import settings as about
from .settings import DEFAULT, Answer, Judgement, Settings
from .several import Outcome

MAX_FINDINGS = 100  # of one rule that are written out


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """The document with one suite."""
    return render_several(about.single(report), settings)


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """The document with a suite per target, in their order."""
    root = ET.Element("testsuites", name="tieaudit")
    for answer in about.answers(outcomes, settings):
        _suite(root, answer, settings)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ET.indent(root)
    # in ASCII with references: it is right whatever encoding the pipe or the terminal has
    return f"{ET.tostring(root, encoding='us-ascii', xml_declaration=True).decode('ascii')}\n"


def _suite(root: ET.Element, answer: Answer, settings: Settings) -> None:
    name, report = printable_words(answer.target), answer.report
    suite = ET.SubElement(root, "testsuite", name=name)
    if report is None:
        case = ET.SubElement(suite, "testcase", classname=name, name="audit", time="0.000")
        words = printable_words(answer.error)
        ET.SubElement(case, "error", type="no answer", message=words).text = words
    else:
        properties = ET.SubElement(suite, "properties")
        for key, value in _properties(report):
            ET.SubElement(properties, "property", name=key, value=value)
        for rule in about.ran(settings, (report,)):
            _case(suite, name, f"{rule.code} {rule.name}", [one for one in answer.judgements if one.finding.code == rule.code])
        for words in answer.limits:
            case = ET.SubElement(suite, "testcase", classname=name, name="limits", time="0.000")
            ET.SubElement(case, "failure", type="limit", message=printable_words(words))
        for number, skip in enumerate(report.skipped, 1):
            case = ET.SubElement(suite, "testcase", classname=name, name=f"not checked {number}: {printable(skip.subject)}", time="0.000")
            ET.SubElement(case, "skipped", message=printable_words(skip.reason))
        left = [f"{label}: {printable_words(words)}" for label, words in answer.lines]
        left += [f"not compared: {printable(skip.subject)}: {printable_words(skip.reason)}" for skip in report.not_compared]
        if left:
            ET.SubElement(suite, "system-out").text = "\n".join(left)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(kind) is not None for case in cases)))
    suite.set("time", f"{report.cost.seconds if report else 0:.3f}")


def _properties(report: Report) -> list[tuple[str, str]]:
    totals = report.totals
    told = {
        "tieaudit": __version__,
        "verdict": about.verdict(report),
        "revision": printable(report.revision or ""),
        "formats": ", ".join(map(printable, report.formats)),
        "tensors": str(totals.tensors),
        "stored": quantity(totals.nbytes_stored),
        "wasted": quantity(totals.nbytes_wasted),
    }
    return [(key, value) for key, value in told.items() if value]


def _case(suite: ET.Element, classname: str, name: str, judgements: list[Judgement]) -> None:
    case = ET.SubElement(suite, "testcase", classname=classname, name=name, time="0.000")
    bad = [judgement for judgement in judgements if judgement.fails]
    mild = [judgement for judgement in judgements if not judgement.fails]
    if bad:
        more = f" (and {len(bad) - 1:,} more)" if len(bad) > 1 else ""
        worst = bad[0].finding
        failure = ET.SubElement(case, "failure", type=worst.severity.value, message=printable_words(worst.message) + more)
        failure.text = _text(bad)
    if mild:
        ET.SubElement(case, "system-out").text = _text(mild)


def _text(judgements: list[Judgement]) -> str:
    lines = []
    for judgement in judgements[:MAX_FINDINGS]:
        finding = judgement.finding
        lines.append(f"{finding.severity.value}: {printable_words(finding.message)}")
        lines += [f"  likely cause: {printable_words(finding.cause)}"] if finding.cause else []
        lines += [f"  what to do: {printable_words(finding.fix)}"] if finding.fix else []
        lines += [f"  {remark.label}: {printable_words(remark.words)}" for remark in judgement.remarks]
    if len(judgements) > MAX_FINDINGS:
        lines.append(f"and {len(judgements) - MAX_FINDINGS:,} more")
    return "\n".join(lines)
