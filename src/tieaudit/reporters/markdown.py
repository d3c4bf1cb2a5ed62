"""This file holds the report as Markdown, for a model card, a comment on a change, or the summary of a CI run.

Names and messages hold text of the file, so nothing in them may become markup: no HTML, no link, no mention, no end of a table cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..report import Report, Severity, Skip, Tie
from ..text import printable, printable_words, quantity
from . import settings as about
from .settings import DEFAULT, Answer, Judgement, Settings
from .several import Outcome

MAX_TIES = 12
MAX_FINDINGS = 40
MAX_SKIPS = 10
MAX_NAMES = 4  # aliases in a cell
MAX_NBYTES = 900_000  # of all sections together: GitHub refuses a summary above 1 MiB
# an underscore inside a word is one
_MARKUP = re.compile(r"[\\`*\[\]<>|~$!{}]|(?<!\w)_|_(?!\w)")


def render(report: Report, settings: Settings = DEFAULT) -> str:
    """Verdict, ties, findings with what to do, sizes."""
    [answer] = about.answers(about.single(report), settings)
    return "\n".join(_section(report, answer, 2)) + "\n"


def render_several(outcomes: Sequence[Outcome], settings: Settings = DEFAULT) -> str:
    """A table of all targets, then a section for each."""
    answers = about.answers(outcomes, settings)
    head = [
        f"## tieaudit: {len(outcomes):,} target{'s' * (len(outcomes) != 1)}",
        "",
        "| target | verdict | errors | warnings | notes | stored | wasted |",
        "|---|---|--:|--:|--:|--:|--:|",
        *map(_row, answers),
    ]
    text = "\n".join(head) + "\n"
    left = 0
    for answer in answers:
        lines = _section(answer.report, answer, 3) if answer.report else _no_answer(answer)
        section = "\n" + "\n".join(lines) + "\n"
        if len((text + section).encode("utf-8", "replace")) > MAX_NBYTES:
            left += 1
        else:
            text += section
    return f"{text}\nand {left:,} more section{'s' * (left != 1)}, left out: the summary would be too long\n" if left else text


def _row(answer: Answer) -> str:
    report = answer.report
    if report is None:
        return f"| {_code(answer.target)} | **no answer** | | | | | |"
    counts = [str(sum(finding.severity is severity for finding in report.findings)) for severity in Severity]
    sizes = [quantity(report.totals.nbytes_stored), quantity(report.totals.nbytes_wasted)]
    return f"| {' | '.join([_code(report.target), f'**{about.verdict(report)}**', *counts, *sizes])} |"


def _no_answer(answer: Answer) -> list[str]:
    return [f"### NO ANSWER {_code(answer.target)}", "", _text(answer.error)]


def _section(report: Report, answer: Answer, level: int) -> list[str]:
    lines = [
        f"{'#' * level} {'tieaudit: ' if level == 2 else ''}{about.verdict(report).upper()} {_code(report.target)}",
        "",
        _text(about.headline(report)),
    ]
    ties = list(_ties(report))
    if ties:
        lines += ["", "| tie | matrix | claim | stored | saves |", "|---|---|---|---|--:|", *ties]
    if len(report.ties) > MAX_TIES:
        lines += ["", f"and {len(report.ties) - MAX_TIES:,} more ties"]
    findings = list(_findings(answer.judgements))
    lines += ["", *findings] if findings else []
    said = [f"- {label}: {_text(words)}" for label, words in (*(("limit", words) for words in answer.limits), *answer.lines)]
    lines += ["", *said] if said else []
    for title, skips in (("Not checked", report.skipped), ("Not compared", report.not_compared)):
        told = list(_skips(title, skips))
        lines += ["", *told] if told else []
    return [*lines, "", _footer(report)]


def _ties(report: Report) -> Iterator[str]:
    for tie in sorted(report.ties, key=lambda tie: tie.role != "embedding-head")[:MAX_TIES]:
        shape = " × ".join(f"{dim:,}" for dim in tie.shape)
        matrix = f"{shape} {tie.dtype}, {quantity(tie.nbytes)}".strip() if tie.shape else ""
        evidence = f" ({tie.evidence})" if tie.evidence != "header" else ""
        saves = quantity(tie.saves_bytes) if tie.saves_bytes else ""
        yield f"| {' | '.join([_names(tie), _text(matrix), _text(tie.claim_source), _text(tie.summary) + evidence, saves])} |"


def _names(tie: Tie) -> str:
    def shown(name: str) -> str:
        return _code(name) + (" (alias, not stored)" if tie.claim == "tied" and name not in tie.stored else "")

    more = f" and {len(tie.aliases) - MAX_NAMES:,} more" if len(tie.aliases) > MAX_NAMES else ""
    return f"{_code(tie.canonical)} and {', '.join(map(shown, tie.aliases[:MAX_NAMES]))}{more}"


def _findings(judgements: Sequence[Judgement]) -> Iterator[str]:
    """Those that count first."""
    for judgement in sorted(judgements, key=lambda judgement: judgement.accepted)[:MAX_FINDINGS]:
        finding = judgement.finding
        yield f"- **{finding.code} {finding.rule}** ({finding.severity.value}): {_text(finding.message)}"
        if finding.cause:
            yield f"  - likely cause: {_text(finding.cause)}"
        if finding.fix:
            yield f"  - what to do: {_text(finding.fix)}"
        for remark in judgement.remarks:
            yield f"  - {remark.label}: {_text(remark.words)}"
    if len(judgements) > MAX_FINDINGS:
        yield f"- and {len(judgements) - MAX_FINDINGS:,} more findings"


def _skips(title: str, skips: Sequence[Skip]) -> Iterable[str]:
    for skip in skips[:MAX_SKIPS]:
        yield f"- {title.lower()}: {_code(skip.subject)}: {_text(skip.reason)}"
    if len(skips) > MAX_SKIPS:
        yield f"- {title.lower()}: and {len(skips) - MAX_SKIPS:,} more"


def _footer(report: Report) -> str:
    totals, cost, count = report.totals, report.cost, len(report.files)
    unique = f" ({totals.parameters_unique:,} unique)" if totals.parameters_unique != totals.parameters_stored else ""
    commit = f" · commit {_code(report.revision[:12])}" if report.revision else ""
    return (
        f"{totals.tensors:,} tensor{'s' * (totals.tensors != 1)} in {count:,} file{'s' * (count != 1)} · "
        f"{totals.parameters_stored:,} parameters{unique} · {quantity(totals.nbytes_stored)} stored, "
        f"{quantity(totals.nbytes_wasted)} wasted · read {quantity(cost.bytes_read)} in {cost.seconds:.2f} s{commit}"
    )


def _text(words: str) -> str:
    """Prose that stays prose. An entity or an empty comment in the right place keeps hosts from making links and mentions of it."""
    text = printable_words(words).replace("&", "&amp;")
    text = _MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else "&gt;" if found[0] == ">" else f"\\{found[0]}", text)
    text = re.sub(r"@(?=\S)|#(?=\d)|(?i:\bgh-)(?=\d)", lambda found: f"{found[0]}<!-- -->", text)
    return text.replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(name: str) -> str:
    """A name as code: the fence is longer than any run of backticks in it; a bar ends a cell even there, so it is escaped."""
    text = printable(name).replace("|", "\\|") or " "
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
