"""What a person reads: the verdict first, then the ties, then each finding with what to do.

A finding is one line that can be searched for and pasted, its details are indented below. Piped output is not wrapped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..inspectors.registry import all_rules
from ..kinds import QUANTISED_TWICE
from ..report import Finding, Report, Severity, Skip, Tie
from ..text import listed, printable, printable_words, quantity

if TYPE_CHECKING:
    from ..policy.verdict import Verdict

MAX_BLOCKS = 4  # ties shown with claim and relation; the others get a line each
MAX_LINES = 12
MAX_FINDINGS = 40
MAX_SKIPS = 10
LABEL = 9  # columns of `claim    `
DETAIL = 14  # columns of `what to do    `
NARROW = 12  # columns below which wrapping makes no sense

Paint = Callable[[str, str], str]
# the words carry the meaning; red and green look alike to many, these three to nobody
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "ok": "cyan", "incomplete": "yellow"}
_SIGN = {"same storage": "=", "equal": "=", "one matrix": "=", "equal after cast": "≈", "near": "≠", "unrelated": "≠", "scaled": "≠",
         "rows differ": "≠", "equal up to padding rows": "≠", "transposed": "ᵀ"}  # fmt: skip


def render(report: Report, width: int | None = None, paint: Paint = lambda text, _colour: text, *, engines: bool = False,
           policy: Verdict | None = None) -> str:  # fmt: skip
    """The report as text, lines at most `width` columns wide (None: as long as they are). `engines`: what each of them does, also
    where they agree. `policy`: what the project says of the findings."""
    lines: list[str] = []
    marks: dict[str, tuple[str, str]] = {}
    for block in (
        [_headline(report)],
        _ties(report, engines),
        _loaded(report),
        _findings(report, marks, policy),
        _skips(report),
        [_footer(report), *(f"  {label:{LABEL}}{printable_words(words)}" for label, words in (policy.lines if policy else ()))],
    ):
        part = list(block)
        if part:
            lines += [*([""] if lines else []), *part]
    out = []
    for number, text in enumerate(lines):
        out += _painted(text, width, _verdict(report) if number == 0 else marks.get(text, ("", "")), paint)
    return "\n".join(out) + "\n"


def _verdict(report: Report) -> tuple[str, str]:
    """(the word that stands first, its colour)."""
    verdict = "ok" if report.verdict == "note" else report.verdict
    word = "NOTHING FOUND" if verdict == "ok" and report.filtered else verdict.upper()
    return word, _COLOURS[verdict]


def _headline(report: Report) -> str:
    """Verdict, target, and the worst finding or the reason why all is well."""
    word, target = _verdict(report)[0], printable(report.target)
    if word == "OK":
        notes = sum(finding.severity is Severity.NOTE for finding in report.findings)
        return f"OK  {target}   {printable_words(report.reason)}" + (f" ({notes} note{'s' * (notes > 1)})" if notes else "")
    if report.filtered and report.verdict in ("ok", "note"):
        return f"{word}  {target}   by the rules that were asked for" + ("; notes follow" if report.findings else "")
    if word == "INCOMPLETE":
        return f"{word}  {target}   not everything that was asked for could be checked"
    worst = report.findings[0]
    summary = next((rule.summary for rule in all_rules() if rule.code == worst.code), worst.message)
    return f"{word}  {target}   {summary[0].lower()}{summary[1:].rstrip('.')}"


def _ties(report: Report, engines: bool) -> Iterator[str]:
    ties = sorted(report.ties, key=lambda tie: (tie.role != "embedding-head", tie.relation in ("one matrix", "same storage")))
    several = len({tie.file for tie in ties}) > 1
    for number, tie in enumerate(ties):
        if number < MAX_BLOCKS:
            yield from ([""] if number else [])
            yield from _block(tie, report, several)
            yield from _engines(tie, engines)
        elif number < MAX_LINES:
            yield f"  {'tie':{LABEL}}{_names(tie)}   {printable_words(tie.summary)}"
    if len(ties) > MAX_LINES:
        yield f"  {'':{LABEL}}and {len(ties) - MAX_LINES:,} more ties (all in --format json)"


def _names(tie: Tie) -> str:
    absent = [name for name in tie.aliases if name not in tie.stored]
    names = [printable(name) + (" (alias, not stored)" if name in absent and tie.claim == "tied" else "") for name in tie.aliases]
    alike = tie.relation == "near" and tie.detail.startswith(QUANTISED_TWICE)
    sign = "≈" if alike else _SIGN.get(tie.relation, "?") if tie.claim == "tied" or len(tie.stored) > 1 else "|"
    return f"{printable(tie.canonical)}  {sign}  {listed(names, 3)}"


def _block(tie: Tie, report: Report, several: bool) -> Iterator[str]:
    shape = " × ".join(f"{dim:,}" for dim in tie.shape)
    each = " each" if len(tie.stored) > 1 and tie.uniform and tie.relation != "same storage" else ""
    bundle = f" in {tie.parts} tensors" if tie.parts > 1 else ""
    told = bool(tie.shape or bundle)
    size = f"   {f'{shape} {tie.dtype}'.lstrip()}, {quantity(tie.nbytes)}{bundle}{each}" if told else ""
    share = f", {100 * tie.nbytes / report.totals.nbytes_unique:.1f} % of the whole" if told and report.totals.nbytes_unique > 0 else ""
    yield f"  {'tie':{LABEL}}{_names(tie)}{size}{share}"
    yield f"  {'claim':{LABEL}}{printable_words(tie.claim_source)}"
    where = f"{printable(tie.file)}: " if several else ""
    more = tie.detail.removeprefix(tie.summary).lstrip(": ")
    detail = f", {printable_words(more)}" if more and tie.relation not in ("same storage", "equal") else ""
    yield f"  {'stored':{LABEL}}{where}{printable_words(tie.summary)}{detail}" + (f" ({tie.evidence})" if tie.evidence != "header" else "")
    if tie.saves_bytes:
        when = "if stored once" if tie.relation in ("equal", "equal after cast") else "here"
        training = f"; in training {quantity(tie.training_bytes)} more (gradient BF16, Adam FP32)" if tie.training_bytes else ""
        yield f"  {'saves':{LABEL}}{quantity(tie.saves_bytes)} {when}{training}"


def _engines(tie: Tie, every: bool) -> Iterator[str]:
    """One line where the file is not the same model in all of them; a line for each if asked for."""
    differ = len({outcome.effect for outcome in tie.engines}) > 1
    if not differ and not (every and tie.role == "embedding-head"):
        return
    from ..engines import words

    if not every:
        yield f"  {'engines':{LABEL}}{words.line(tie.engines)}"
        return
    rows = words.table(tie.engines)
    if not rows:
        yield f"  {'engines':{LABEL}}not known: no engine was tried or read on such a file"
    width = max((len(name) for name, _ in rows), default=0)
    for number, (name, does) in enumerate(rows):
        label = "" if number else "engines"
        yield f"  {label:{LABEL}}{name:{width}}  {does}"


def _loaded(report: Report) -> Iterator[str]:
    """What transformers made of the file, and what became of the claims."""
    live = report.live
    if live is None or live.resident is None:
        return
    counted = f" ({live.counted:,} if every name is counted)" if live.counted != live.unique else ""
    what = f"{printable(live.model)} {printable_words(live.moment.removeprefix('loaded '))}: {live.unique:,} parameters{counted}"
    yield f"  {'loaded':{LABEL}}{what}, {quantity(live.nbytes)} in memory"
    lines = []
    for answer in live.answers:
        verdict = {True: "claim confirmed", False: "claim contradicted", None: "no claim"}[answer.held]
        first, second = answer.pointers
        where = f"both at {first:#x}" if first == second else f"at {first:#x} and {second:#x}"
        lines.append(f"{verdict}: {' and '.join(map(printable, answer.names))} are {printable_words(answer.words)} ({where})")
    lines += [f"{printable(name)} {printable_words(words)}" for name, words in live.won]
    if live.missing:
        lines.append(f"not in the file, so filled with new values: {listed(map(printable, live.missing))}")
    if live.unexpected:
        lines.append(f"in the file, and not loaded: {listed(map(printable, live.unexpected))}")
    for tried in live.tried:
        if tried.held is not False:
            told = "" if tried.held else f"{tried.trial.value} not tried: "
            lines.append(told + printable_words(tried.words))
    for line in lines[:MAX_LINES]:
        yield f"  {'':{LABEL}}{line}"
    if len(lines) > MAX_LINES:
        yield f"  {'':{LABEL}}and {len(lines) - MAX_LINES:,} more lines (all in --format json)"


def brief(report: Report, policy: Verdict, width: int | None = None, paint: Paint = lambda text, _colour: text) -> str:
    """Only what makes the audit fail, a line each; nothing if it passes."""
    if not policy.code:
        return ""
    marks: dict[str, tuple[str, str]] = {}
    lines = [_line(report, report.findings[index], marks) for index in policy.failing[:MAX_FINDINGS]]
    if len(policy.failing) > MAX_FINDINGS:
        lines.append(f"and {len(policy.failing) - MAX_FINDINGS:,} more findings (all in --format json)")
    lines += [f"{printable(report.target)}: {label}: {printable_words(words)}" for label, words in policy.lines if label == "limit"]
    if policy.code == 2:
        lines += [f"{printable(report.target)}: {line.strip()}" for line in _listed("not checked", report.skipped)]
    return "".join(f"{text}\n" for line in lines for text in _painted(line, width, marks.get(line, ("", "")), paint))


def _painted(line: str, width: int | None, mark: tuple[str, str], paint: Paint) -> list[str]:
    """The line, wrapped; painted after that, for escape codes have no width."""
    first, *rest = _wrapped(line, width)
    word, colour = mark
    return [first.replace(word, paint(word, colour), 1) if word else first, *rest]


def _findings(report: Report, marks: dict[str, tuple[str, str]], policy: Verdict | None) -> Iterator[str]:
    """One line each, and its details; `marks` takes which words of a line are painted. What is accepted comes last."""
    order = sorted(range(len(report.findings)), key=lambda index: policy is not None and not policy.counts(index))
    for index in order[:MAX_FINDINGS]:
        finding = report.findings[index]
        yield _line(report, finding, marks)
        yield from _details(finding)
        for remark in policy.remarks.get(index, ()) if policy else ():
            yield f"    {remark.label:{DETAIL}}{printable_words(remark.words)}"
    if len(report.findings) > MAX_FINDINGS:
        yield f"and {len(report.findings) - MAX_FINDINGS:,} more findings (all in --format json)"


def _line(report: Report, finding: Finding, marks: dict[str, tuple[str, str]]) -> str:
    word = f"{finding.code} {finding.severity.value}"
    line = f"{printable(report.target)}: {word} {finding.rule}: {printable_words(finding.message)}"
    marks[line] = (word, _COLOURS[finding.severity.value])
    return line


def _details(finding: Finding) -> Iterable[str]:
    if finding.cause:
        yield f"    likely cause  {printable_words(finding.cause)}"
    if finding.fix:
        yield f"    what to do    {printable_words(finding.fix)}"


def _skips(report: Report) -> Iterator[str]:
    for title, skips in (("not checked", report.skipped), ("not compared", report.not_compared)):
        yield from _listed(title, skips)


def _listed(title: str, skips: tuple[Skip, ...]) -> Iterator[str]:
    for skip in skips[:MAX_SKIPS]:
        yield f"  {title}: {printable(skip.subject)}: {printable_words(skip.reason)}"
    if len(skips) > MAX_SKIPS:
        yield f"  {title}: and {len(skips) - MAX_SKIPS:,} more"


def _footer(report: Report) -> str:
    totals, cost = report.totals, report.cost
    files = len(report.files)
    parameters = f"{totals.parameters_stored:,} parameters"
    if totals.parameters_unique != totals.parameters_stored:
        parameters += f" ({totals.parameters_unique:,} unique)"
    return (
        f"  {totals.tensors:,} tensor{'s' * (totals.tensors != 1)} in {files:,} file{'s' * (files != 1)} · {parameters} · "
        f"{quantity(totals.nbytes_stored)} stored, {quantity(totals.nbytes_wasted)} wasted · "
        f"read {quantity(cost.bytes_read)} in {cost.seconds:.2f} s{_remote(report)}"
    )


def _remote(report: Report) -> str:
    """Of a Hub id: the commit that the report is about."""
    return f" · commit {printable(report.revision)[:12]}" if report.revision else ""


def _wrapped(line: str, width: int | None) -> list[str]:
    """Continuation lines are indented to where the text of the line begins."""
    if width is None or len(line) <= width or width < NARROW:
        return [line]
    lead = len(line) - len(line.lstrip(" "))
    indent = " " * min(lead + LABEL if lead == 2 else lead + DETAIL if lead == 4 else lead if lead == 2 + LABEL else 4, width // 3)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
