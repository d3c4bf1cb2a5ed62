"""This file holds what a report comes to under a project's policy: which findings count, what is said of them, and the exit code.

The report itself stays as it is; a finding that is accepted is shown with the words that accept it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..report import Finding, Report, Severity
from . import limits
from .limits import Limits
from .waivers import NOTHING, Card

if TYPE_CHECKING:
    from .baseline import Compared
    from .settings import TargetSettings

MAX_NAMED = 5  # stale entries, and faults of a card, that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is asked of one target. `accepting`: tables of `file` that name rules whose findings do not count. `compared`: against
    the baseline called `baseline`. `recording`: what is found is being accepted, so that only limits and what is not checked can fail."""

    fail_on: str = "error"
    allow_partial: bool = False
    limits: Limits = field(default_factory=Limits)
    file: str = ""
    accepting: tuple[TargetSettings, ...] = ()
    card: Card = NOTHING
    allow_waivers: bool = False
    baseline: str = ""
    compared: Compared | None = None
    recording: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """Words about one finding: `label` says who speaks; `accepts`: the finding does not count."""

    label: str
    words: str
    accepts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`failing`: indices of the findings that make it fail; `remarks`: {index of a finding: what is said of it}; `lines`: (label,
    sentence) for the report's end. The latter are empty where no policy had anything to say."""

    code: int
    failing: tuple[int, ...] = ()
    remarks: Mapping[int, tuple[Remark, ...]] = field(default_factory=dict)
    lines: tuple[tuple[str, str], ...] = ()

    def counts(self, index: int) -> bool:
        """False for a finding that is accepted."""
        return not any(remark.accepts for remark in self.remarks.get(index, ()))


def judge(report: Report, policy: Policy) -> Verdict:
    """2 says that something was not answered; findings and limits that are passed go before."""
    remarks = {index: told for index, finding in enumerate(report.findings) if (told := tuple(_remarks(index, finding, policy)))}
    counted = [index for index in range(len(report.findings)) if not any(remark.accepts for remark in remarks.get(index, ()))]
    failing = () if policy.recording else tuple(index for index in counted if _fails(report.findings[index], policy.fail_on))
    over = limits.passed(report, policy.limits)
    code = 1 if failing or over else 2 if report.skipped and not policy.allow_partial else 0
    lines = [("limit", words) for words in over]
    lines += () if policy.recording else _stale(policy)
    lines += [("waiver", f"the model card's waivers: {words}") for words in policy.card.trouble[:MAX_NAMED]]
    accepted = len(report.findings) - len(counted)
    if (accepted or policy.compared is not None) and not policy.recording:
        worst = [report.findings[index] for index in failing]
        lines.append(("gate", _gate(code, accepted, worst, len(over), new=policy.compared is not None)))
    return Verdict(code=code, failing=failing, remarks=remarks, lines=tuple(lines))


def _fails(finding: Finding, fail_on: str) -> bool:
    return fail_on != "never" and finding.severity.rank <= Severity(fail_on).rank


def _remarks(index: int, finding: Finding, policy: Policy) -> Iterator[Remark]:
    """At most one of them accepts: the first that can."""
    accepted = False
    for table in reversed(policy.accepting):
        if finding.code in table.ignore:
            yield Remark("accepted", f"by {policy.file}: {table.reason}", accepts=True)
            accepted = True
            break
    compared = policy.compared
    if compared is not None and not accepted:
        if index in compared.accepted:
            reason = compared.accepted[index].reason
            yield Remark("accepted", f"in {policy.baseline}" + (f": {reason}" if reason else ""), accepts=True)
            accepted = True
        elif index in compared.worse:
            yield Remark("worse", f"than in {policy.baseline}: {_change(finding, compared, index)}")
        else:
            yield Remark("new", f"not in {policy.baseline}")
    waiver = policy.card.waived.get(finding.rule)
    if waiver is not None and not accepted:
        words = f"by the model card: {waiver}"
        yield Remark("waived", words if policy.allow_waivers else f"{words} (counts all the same without --allow-waivers)",
                     accepts=policy.allow_waivers)  # fmt: skip


def _change(finding: Finding, compared: Compared, index: int) -> str:
    entry = compared.worse[index]
    if finding.severity.rank < entry.severity.rank:
        return f"{entry.severity.value} then, {finding.severity.value} now"
    return f"{entry.wasted_bytes:,} bytes wasted then, {finding.wasted_bytes:,} now"


def _stale(policy: Policy) -> Iterator[tuple[str, str]]:
    gone = policy.compared.gone if policy.compared is not None else ()
    for entry in gone[:MAX_NAMED]:
        about = f" ({', '.join(entry.tensors[:2])})" if entry.tensors else ""
        yield "stale", f"{entry.rule}{about} of {policy.baseline} is not found any more; --write-baseline {policy.baseline} drops it"
    if len(gone) > MAX_NAMED:
        yield "stale", f"and {len(gone) - MAX_NAMED:,} more"


def _gate(code: int, accepted: int, failing: list[Finding], over: int, *, new: bool) -> str:
    """Why the exit code is what it is, where the verdict above can say something else."""
    kept = f"{accepted:,} finding{'s' * (accepted != 1)} accepted"
    if code != 1:
        return f"{'not everything could be checked' if code else 'passes'}; {kept}"
    worst = {severity: sum(finding.severity is severity for finding in failing) for severity in Severity}
    parts = [f"{count:,} {'new ' * new}{severity.value}{'s' * (count > 1)}" for severity, count in worst.items() if count]
    parts += [f"{over} limit{'s' * (over > 1)}"] if over else []
    return f"fails: {', '.join(parts)}; {kept}"
