"""This file holds a report as the template shows it: every word is made here and printable, nothing is markup but our own drawings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from ...components import Component
from ...inspectors.registry import all_rules
from ...report import Finding, Report, Severity, Skip, Tie
from ...text import listed, printable, printable_words, quantity
from . import byte_map, diagram, links
from .palette import LOOKS
from .places import FileMap, files

MAX_TIES = 24  # drawn
MAX_FINDINGS = 300
MAX_SKIPS = 200
MAX_PLACES = 40  # tensors named with one finding
MAX_ROWS = 200  # of live ties
MILLION = 10**6
SIGNS = {"error": "✕", "warning": "!", "note": "i", "ok": "✓", "incomplete": "?"}
_EFFECTS = {"intact": ("ok", "✓"), "lost": ("error", "✕"), "random": ("error", "✕"), "error": ("warning", "!")}


@dataclass(frozen=True)
class View:
    """One report for the template. `number` makes ids unique where several stand on one page; `room` is for its map, `size` the level
    of its heading."""

    number: int
    report: Report
    maps: list[FileMap]
    links: tuple[links.Link, ...]
    room: int
    size: int

    @property
    def id(self) -> str:
        return f"r{self.number}"

    @property
    def target(self) -> str:
        return printable(self.report.target)

    @property
    def verdict(self) -> str:
        return "ok" if self.report.verdict == "note" else self.report.verdict

    @property
    def word(self) -> str:
        return "NOTHING FOUND" if self.verdict == "ok" and self.report.filtered else self.verdict.upper()

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]

    @property
    def reason(self) -> str:
        report = self.report
        if self.verdict == "ok":
            return "by the rules that were asked for" if report.filtered else printable_words(report.reason)
        if self.verdict == "incomplete":
            return "not everything that was asked for could be checked"
        worst = report.findings[0]
        return next((rule.summary for rule in all_rules() if rule.code == worst.code), worst.message).rstrip(".")

    @property
    def worst(self) -> str:
        """The worst finding in its own words, under the verdict."""
        bad = [finding for finding in self.report.findings if finding.severity is not Severity.NOTE]
        return printable_words(bad[0].message) if bad and self.verdict in ("error", "warning") else ""

    @cached_property
    def figures(self) -> list[tuple[str, str, str]]:
        """(label, value, what stands under it)."""
        totals, cost = self.report.totals, self.report.cost
        stored = totals.parameters_stored
        exact = f"{totals.parameters_unique:,} unique" if totals.parameters_unique != stored else f"{stored:,}" if stored >= MILLION else ""
        count = len(self.report.files)
        share = f"{100 * totals.nbytes_wasted / totals.nbytes_stored:.1f} % of all" if totals.nbytes_stored and totals.nbytes_wasted else ""
        return [
            ("tensors", f"{totals.tensors:,}", f"in {count:,} file{'s' * (count != 1)}"),
            ("parameters", _short_count(stored), exact),
            ("stored", quantity(totals.nbytes_stored), ", ".join(self.report.formats)),
            ("wasted", quantity(totals.nbytes_wasted), share),
            ("read", quantity(cost.bytes_read), f"in {cost.seconds:.2f} s, {cost.requests:,} read{'s' * (cost.requests != 1)}"),
        ]

    @property
    def counts(self) -> dict[str, int]:
        return {severity.value: sum(finding.severity is severity for finding in self.report.findings) for severity in Severity}

    # ties

    @cached_property
    def ties(self) -> list[dict[str, Any]]:
        chosen = sorted(self.report.ties, key=lambda tie: (tie.role != "embedding-head", -_rank(self._tone(tie))))
        return [self._tie(tie, at) for at, tie in enumerate(chosen[:MAX_TIES])]

    @property
    def more_ties(self) -> int:
        return max(0, len(self.report.ties) - MAX_TIES)

    def _tone(self, tie: Tie) -> str:
        return links.tone(tie, self.report.findings)

    def _tie(self, tie: Tie, at: int) -> dict[str, Any]:
        tone = self._tone(tie)
        drawn = diagram.picture(tie, self.report, tone)
        ident = f"{self.id}-tie{at}"
        unique = self.report.totals.nbytes_unique
        share = f", {_percent(tie.nbytes, unique)} of the whole" if unique > 0 else ""
        more = tie.detail.removeprefix(tie.summary).lstrip(": ")
        detail = f", {more}" if more and tie.relation not in ("same storage", "equal") else ""
        evidence = f" ({tie.evidence.value})" if tie.evidence != "header" else ""
        rows = [("claim", f"{tie.claim}: {tie.claim_source}" if not tie.claim_source.startswith(tie.claim) else tie.claim_source)]
        rows.append(("stored", tie.summary + detail + evidence))
        if tie.nbytes:
            rows.append(("size", f"{' × '.join(f'{dim:,}' for dim in tie.shape)} {tie.dtype}, {quantity(tie.nbytes)}".lstrip() + share))
        if tie.saves_bytes:
            when = "if stored once" if tie.relation in ("equal", "equal after cast") else "here"
            training = f"; in training {quantity(tie.training_bytes)} more (gradient BF16, Adam FP32)" if tie.training_bytes else ""
            rows.append(("saves", f"{quantity(tie.saves_bytes)} {when}{training}"))
        return {
            "id": ident,
            "tone": tone,
            "sign": SIGNS[tone],
            "role": printable(tie.role).replace("-", " and "),
            "file": printable(tie.file) if len({other.file for other in self.report.ties}) > 1 else "",
            "svg": diagram.svg(drawn, f"{ident}w", narrow=False) + diagram.svg(drawn, f"{ident}n", narrow=True),
            "rows": [(label, printable_words(text)) for label, text in rows],
            "engines": _engines(tie),
            "line": _line(tie),
        }

    # the map

    @cached_property
    def files(self) -> list[dict[str, Any]]:
        bars = byte_map.bars(self.maps)
        return [
            {
                "name": printable(one.name),
                "nbytes": quantity(one.nbytes),
                "tensors": f"{sum(block.record is not None for block in one.blocks):,}",
                "format": one.format,
                "bar": bars[at] if at < len(bars) else Markup(),
                "unplaced": one.unplaced,
                "most": ", ".join(f"{LOOKS[what].label} {_percent(nbytes, one.nbytes)}" for what, nbytes in one.shares()[:3]),
            }
            for at, one in enumerate(self.maps[: byte_map.MAX_FILES])
        ]

    @cached_property
    def legend(self) -> list[dict[str, str]]:
        """Components that occur, with their bytes, most first."""
        sums: dict[Component, int] = defaultdict(int)
        for one in self.maps:
            for what, nbytes in one.shares():
                sums[what] += nbytes
        whole = sum(one.nbytes for one in self.maps)
        blank = whole - sum(sums.values())
        rest = {"name": "blank", "label": "headers, padding", "letter": "", "size": quantity(blank), "share": _percent(blank, whole)}
        return [
            {
                "name": what.value,
                "label": LOOKS[what].label,
                "letter": LOOKS[what].letter,
                "size": quantity(nbytes),
                "share": _percent(nbytes, whole),
            }
            for what, nbytes in sorted(sums.items(), key=lambda item: -item[1])
        ] + ([rest] if blank > 0 else [])

    @property
    def data(self) -> Markup:
        return byte_map.data(self.maps, self.links, self.room)

    @property
    def has_map(self) -> bool:
        return any(one.blocks for one in self.maps)

    # findings and the rest

    @cached_property
    def findings(self) -> list[dict[str, Any]]:
        letters = {(link.title, link.places[0]): link.letter for link in self.links}
        return [_finding(finding, letters) for finding in self.report.findings[:MAX_FINDINGS]]

    @property
    def more_findings(self) -> int:
        return max(0, len(self.report.findings) - MAX_FINDINGS)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        return _skips(self.report.skipped)

    @property
    def not_compared(self) -> list[tuple[str, str]]:
        return _skips(self.report.not_compared)

    @cached_property
    def live(self) -> dict[str, Any] | None:
        live = self.report.live
        if live is None:
            return None
        lines = [f"{printable(name)} {printable_words(words)}" for name, words in live.won]
        if live.missing:
            lines.append(f"not in the file, so filled with new values: {listed(map(printable, live.missing))}")
        if live.unexpected:
            lines.append(f"in the file, and not loaded: {listed(map(printable, live.unexpected))}")
        return {
            "model": printable(live.model),
            "moment": printable_words(live.moment),
            "unique": f"{live.unique:,}",
            "counted": f"{live.counted:,}",
            "nbytes": quantity(live.nbytes),
            "lines": lines,
            "answers": [
                (
                    listed(map(printable, answer.names), 4),
                    _held(answer.held, "confirmed", "contradicted", "no claim"),
                    printable_words(answer.words),
                    *(f"{pointer:#x}" for pointer in answer.pointers),
                )
                for answer in live.answers
            ],
            "ties": [
                (
                    listed(map(printable, tie.names), 6),
                    _held(tie.held if tie.expected else None, "held", "broken", "nobody asks for it"),
                    tie.sharing.value,
                    printable_words(tie.expected or tie.detail),
                )
                for tie in live.ties[:MAX_ROWS]
            ],
            "tried": [
                (tried.trial.value, _held(tried.held, "passed", "failed", "not tried"), printable_words(tried.words))
                for tried in live.tried
            ],
        }

    @property
    def revision(self) -> str:
        return printable(self.report.revision) if self.report.revision else ""


def of(report: Report, number: int, room: int, size: int) -> View:
    """The view of a report, its `number`th on the page; `room` characters for its map."""
    return View(number, report, files(report), links.of(report), room, size)


def _rank(tone: str) -> int:
    return ("ok", "note", "warning", "error").index(tone)


def _held(held: bool | None, yes: str, no: str, unknown: str) -> tuple[str, str, str]:
    """(tone, sign, word)."""
    return {True: ("ok", "✓", yes), False: ("error", "✕", no), None: ("note", "·", unknown)}[held]


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.1f} %" if share >= 0.05 else "< 0.1 %" if part else "0 %"


def _short_count(number: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", MILLION)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"


def _engines(tie: Tie) -> list[tuple[str, str, str, str, str]]:
    """(tone, sign, engine, what it does, how that is known)."""
    if not tie.engines:
        return []
    from ...engines import words

    rows = []
    for outcome, (name, does) in zip(tie.engines, words.table(tie.engines), strict=True):
        what, _, known = does.rpartition(" · ")
        rows.append((*_EFFECTS.get(outcome.effect, ("note", "·")), printable_words(name), printable_words(what), printable_words(known)))
    return rows


def _line(tie: Tie) -> str:
    from ...engines import words

    return printable_words(words.line(tie.engines)) if tie.engines and words.differ(tie.engines) else ""


def _finding(finding: Finding, letters: dict[tuple[str, Any], str]) -> dict[str, Any]:
    title = f"{finding.code} {finding.rule}"
    return {
        "code": finding.code,
        "rule": finding.rule,
        "severity": finding.severity.value,
        "sign": SIGNS[finding.severity.value],
        "message": printable_words(finding.message),
        "cause": printable_words(finding.cause or ""),
        "fix": printable_words(finding.fix or ""),
        "evidence": finding.evidence.value,
        "wasted": quantity(finding.wasted_bytes) if finding.wasted_bytes else "",
        "letter": letters.get((title, finding.tensors[0])) if finding.tensors else None,
        "places": [
            (printable(place.name), printable(place.file), "" if place.offset is None else f"{place.offset:,}", quantity(place.nbytes))
            for place in finding.tensors[:MAX_PLACES]
        ],
        "more": max(0, len(finding.tensors) - MAX_PLACES),
    }


def _skips(skips: Sequence[Skip]) -> list[tuple[str, str]]:
    return list(_told(skips))


def _told(skips: Sequence[Skip]) -> Iterator[tuple[str, str]]:
    for skip in skips[:MAX_SKIPS]:
        yield printable(skip.subject), printable_words(skip.reason)
    if len(skips) > MAX_SKIPS:
        yield f"and {len(skips) - MAX_SKIPS:,} more", ""
