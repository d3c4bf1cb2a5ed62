"""What a person reads of a comparison: the verdict, what became of the ties, why the size changed, which tensors changed and how."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator

from ..difference import Change, Diff, OneSided, SideSummary, SideTie, TensorChange, TieChange
from ..inspectors.registry import all_rules
from ..report import Skip
from ..text import listed, printable, printable_words, quantity

MAX_TIES, MAX_LINES, MAX_SKIPS = 4, 12, 10
NAMES = 3  # that a line gives as examples
LABEL = 9  # columns of `tensors  `
SECOND = 8  # columns of `before `
NARROW = 24  # columns below which wrapping makes no sense

Paint = Callable[[str, str], str]
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "ok": "green", "same": "green", "incomplete": "yellow"}
_DIGITS = re.compile(r"[\d.,]+(?:e[+-]?\d+)?")


def render(diff: Diff, width: int | None = None, paint: Paint = lambda text, _colour: text) -> str:
    """The comparison as text, lines at most `width` columns wide (None: as long as they are)."""
    word, headline = _headline(diff)
    marks = {headline: (word, _COLOURS.get(word.lower(), "green"))}
    blocks: list[list[str]] = [[headline]]
    blocks.append([*_ties(diff), *_size(diff), *_tensors(diff), *_logits(diff), *_expected(diff)])
    blocks.append(list(_findings(diff, marks)))
    blocks.append([*_skips("not checked", diff.skipped), *_skips("not compared", diff.not_compared)])
    blocks.append([_footer(diff)])
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += [*([""] if lines else []), *block]
    out = []
    for line in lines:
        first, *rest = _wrapped(line, width)
        told, colour = marks.get(line, ("", ""))
        out += [first.replace(told, paint(told, colour), 1) if told else first, *rest]
    return "\n".join(out) + "\n"


def _headline(diff: Diff) -> tuple[str, str]:
    """(the word that stands first, the line)."""
    way = f"{printable(diff.before.target)} → {printable(diff.after.target)}"
    pairs = diff.changes.pairs
    count = f"{len(pairs):,} tensor{'s' * (len(pairs) != 1)}"
    open_ones = [skip for skip in diff.not_compared if "another copy" not in skip.reason]
    if diff.same and not diff.findings:
        left = any(pair.kind is Change.NOT_COMPARED for pair in pairs)
        proved = "byte for byte" if all(pair.evidence.value != "sampled" for pair in pairs) else "in all that was compared"
        how = f"{count}, equal {proved}" if pairs else "no tensors, and the same bytes"
        return (
            ("OK", f"OK  {way}   no difference in what was compared")
            if left or open_ones
            else ("SAME", f"SAME  {way}   no difference: {how}")
        )
    verdict = diff.verdict
    if verdict in ("ok", "note"):
        word = "OK" if not diff.filtered else "NOTHING FOUND"
        changed = [pair for pair in pairs if pair.kinds != (Change.EQUAL,)]
        if any(pair.kind is Change.NOT_COMPARED for pair in pairs):
            told = "no value that was compared changed in a way that is not expected; not all were"
        elif changed or diff.changes.lost or any(one.allowed for one in diff.changes.added):
            told = "the same values, up to differences that are expected"
        elif any(pair.renamed for pair in pairs):
            told = "the same values under other names"
        else:
            told = "the same values"
        new = sum(not one.allowed for one in diff.changes.added)
        told += f"; {new:,} tensor{'s are' if new > 1 else ' is'} new" if new else ""
        return word, f"{word}  {way}   {told}"
    if verdict == "incomplete":
        return "INCOMPLETE", f"INCOMPLETE  {way}   not everything could be compared"
    worst = diff.findings[0]
    if worst.rule == "value-change":
        return verdict.upper(), f"{verdict.upper()}  {way}   {_changed(diff)}"
    summary = next((rule.summary for rule in all_rules() if rule.code == worst.code), worst.message)
    word = verdict.upper()
    return word, f"{word}  {way}   {summary[0].lower()}{summary[1:].rstrip('.')}"


def _changed(diff: Diff) -> str:
    """What the rule on values has to say, in a clause."""
    changes = diff.changes
    broken = [pair for pair in changes.pairs if not pair.allowed and pair.kind is not Change.NOT_COMPARED]
    gone = sum(one.judged and not one.allowed for one in changes.lost)
    told = [f"{len(broken):,} of {len(changes.pairs):,} tensors changed"] if broken else []
    told += [f"{gone:,} tensor{'s are' if gone != 1 else ' is'} gone"] if gone else []
    if not told:
        return "the outputs differ"
    ranks = {pair.rank for pair in broken}
    low = max((rank for rank in ranks if rank is not None), default=0)
    return ", ".join(told) + (f", each by a matrix of rank {low} or less: a merged LoRA?" if low and None not in ranks and not gone else "")


def _label(label: str, text: str) -> str:
    return f"  {label:{LABEL}}{text}"


def _ties(diff: Diff) -> Iterator[str]:
    ties = diff.changes.ties
    for tie in ties[:MAX_TIES]:
        yield from _tie(tie, "tie")
    if len(ties) > MAX_TIES:
        kept = sum(tie.kept is True for tie in ties[MAX_TIES:])
        yield _label("", f"and {len(ties) - MAX_TIES:,} more ties, {kept:,} of them the same on both sides (all in --format json)")


def _tie(tie: TieChange, label: str) -> Iterator[str]:
    if tie.kept and tie.before and tie.after and tie.before.words == tie.after.words:
        yield _label(label, f"{'both':{SECOND}}{_told(tie.after)}")
        return
    yield _label(label, f"{'before':{SECOND}}{_told(tie.before)}")
    yield _label("", f"{'after':{SECOND}}{_told(tie.after)}")
    if tie.before and tie.after:
        yield _label("", f"{'so':{SECOND}}{printable_words(tie.words)}")


def _told(tie: SideTie | None) -> str:
    return "nothing is known of embedding and head" if tie is None else f"{printable_words(tie.words)} ({printable_words(tie.source)})"


def _size(diff: Diff) -> Iterator[str]:
    if diff.changes.sizes.words:
        yield _label("size", printable_words(diff.changes.sizes.words))


def _tensors(diff: Diff) -> Iterator[str]:
    lines = list(_changes(diff))
    label = "tensors"
    for line in lines[:MAX_LINES]:
        yield _label(label, line)
        label = ""
    if len(lines) > MAX_LINES:
        yield _label("", f"and {len(lines) - MAX_LINES:,} more kinds of change (all in --format json)")


def _changes(diff: Diff) -> Iterator[str]:
    changes = diff.changes
    equal = sum(pair.kinds == (Change.EQUAL,) for pair in changes.pairs)
    yield f"{equal:,} of {len(changes.pairs):,} equal" + (
        f", {moved:,} of all in another file" if (moved := sum(p.moved for p in changes.pairs)) else ""
    )
    groups: dict[tuple[str, bool, str], list[TensorChange]] = {}
    for pair in changes.pairs:
        if pair.kinds != (Change.EQUAL,):
            groups.setdefault((pair.words, pair.allowed, _general(pair)), []).append(pair)
    for (words, allowed, _), pairs in sorted(groups.items(), key=lambda entry: (entry[0][1], -len(entry[1]))):
        worst = max(pairs, key=lambda pair: pair.relative_error or pair.max_difference or 0)
        most = ", at most" if len(pairs) > 1 and worst.reason != pairs[0].reason else ""
        sign = "" if allowed or words == Change.NOT_COMPARED.value else "! "
        yield f"{sign}{len(pairs):,} {words}{most}: {printable_words(worst.reason)}: {_examples(pair.after.name for pair in pairs)}"
    renames: dict[str, list[TensorChange]] = {}
    for pair in changes.pairs:
        if pair.renamed:
            renames.setdefault(pair.renamed, []).append(pair)
    for why, pairs in renames.items():
        names = listed((f"{printable(pair.before.name)} is {printable(pair.after.name)}" for pair in pairs), NAMES)
        yield f"{len(pairs):,} renamed ({why}): {names}"
    for title, several in (("only after", changes.added), ("only before", changes.lost)):
        yield from _one_sided(title, several)


def _general(pair: TensorChange) -> str:
    """The reason without its numbers and names: what a line can say of many tensors."""
    reason = pair.reason.replace(pair.before.name, "").replace(pair.after.name, "")
    return _DIGITS.sub("#", reason.split("; the change has rank")[0].split(" (relative error")[0])


def _one_sided(title: str, several: Iterable[OneSided]) -> Iterator[str]:
    groups: dict[tuple[bool, bool, str], list[OneSided]] = {}
    for one in several:
        groups.setdefault((one.allowed, one.judged, one.reason), []).append(one)
    for (allowed, judged, reason), ones in groups.items():
        sign = "! " if title == "only before" and judged and not allowed else ""
        why = "" if reason == title else f": {printable_words(reason)}"
        yield f"{sign}{len(ones):,} {title}{why}: {_examples(one.tensor.name for one in ones)}"


def _examples(names: Iterable[str]) -> str:
    return listed(map(printable, names), NAMES)


def _logits(diff: Diff) -> Iterator[str]:
    if diff.changes.outputs is not None:
        yield _label("logits", printable_words(diff.changes.outputs.words))


def _expected(diff: Diff) -> Iterator[str]:
    label = "expected"
    for one in diff.expectations:
        told = {True: "yes", False: "NO", None: "not known"}[one.met]
        yield _label(label, f"{one.name}: {told}, {printable_words(one.reason)}")
        label = ""


def _findings(diff: Diff, marks: dict[str, tuple[str, str]]) -> Iterator[str]:
    target = printable(diff.after.target)
    for finding in diff.findings:
        word = f"{finding.code} {finding.severity.value}"
        line = f"{target}: {word} {finding.rule}: {printable_words(finding.message)}"
        marks[line] = (word, _COLOURS[finding.severity.value])
        yield line
        if finding.cause:
            yield f"    likely cause  {printable_words(finding.cause)}"
        if finding.fix:
            yield f"    what to do    {printable_words(finding.fix)}"


def _skips(title: str, skips: tuple[Skip, ...]) -> Iterator[str]:
    for skip in skips[:MAX_SKIPS]:
        yield f"  {title}: {printable(skip.subject)}: {printable_words(skip.reason)}"
    if len(skips) > MAX_SKIPS:
        yield f"  {title}: and {len(skips) - MAX_SKIPS:,} more"


def _footer(diff: Diff) -> str:
    sides = " · ".join(f"{which}: {_side(side)}" for which, side in (("before", diff.before), ("after", diff.after)))
    return f"  {sides} · read {quantity(diff.cost.bytes_read)} in {diff.cost.seconds:.2f} s"


def _side(side: SideSummary) -> str:
    files = len(side.files)
    edition = f", {printable(side.edition)}" if side.edition else ""
    commit = f", commit {printable(side.revision)[:12]}" if side.revision else ""
    return f"{side.tensors:,} tensor{'s' * (side.tensors != 1)} in {files:,} file{'s' * (files != 1)}{edition}{commit}"


def _wrapped(line: str, width: int | None) -> list[str]:
    """Continuation lines are indented to where the text of the line begins."""
    if width is None or len(line) <= width or width < NARROW:
        return [line]
    lead = len(line) - len(line.lstrip(" "))
    indent = " " * min(2 + LABEL if lead in (2, 2 + LABEL) else lead + 4, width // 3)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
