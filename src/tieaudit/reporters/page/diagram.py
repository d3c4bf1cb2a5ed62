"""This file holds the drawing of a tie: its names, the matrices that are stored, and an arrow from each name to the one it is read from.

Made twice, for a wide and a narrow page, as text in a drawing does not wrap by itself: lines are cut by our own rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from ...report import Report, Tie
from ...text import listed, printable, quantity
from .links import against

WIDE, NARROW = 780, 300
CHAR, LINE, PAD = 7.3, 16, 8  # of 12 px monospace
MAX_NAMES = 8
MAX_LINES = 4  # of one name
WORDS = {"=": "equals the first: stored again", "≈": "equals the first in another dtype", "≠": "differs from the first",
         "ᵀ": "is the first transposed"}  # fmt: skip
OTHERWISE = "was not compared with the first"
MARKS = {"error": "✕", "warning": "!", "note": "i", "ok": "✓"}


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One stored matrix: its own names, the line with its shape, how it stands to the first and how bad that is."""

    names: tuple[str, ...]
    about: str
    sign: str = ""
    tone: str = "ok"


@dataclass(slots=True)
class _Box:
    """A box of text, placed."""

    css: str
    lines: list[tuple[str, str]]
    x: float = 0
    y: float = 0
    width: float = 0

    @property
    def height(self) -> float:
        return 2 * PAD + LINE * len(self.lines) - 3

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    def draw(self) -> Markup:
        text = Markup().join(
            Markup('<text x="{:.0f}" y="{:.0f}" class="{}">{}</text>').format(self.x + PAD + 2, self.y + PAD + 10 + LINE * at, css, words)
            for at, (words, css) in enumerate(self.lines)
        )
        return Markup('<g><rect class="box {}" x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="6"/>{}</g>').format(
            self.css, self.x, self.y, self.width, self.height, text
        )


@dataclass(slots=True)
class Picture:
    """What is drawn: names, matrices, which name is read from which (None: nothing is stored), and what was found."""

    names: list[str]
    stored: frozenset[str]
    matrices: list[_Matrix]
    reads: dict[str, int | None]
    should: dict[str, int] = field(default_factory=dict)
    tone: str = "ok"
    roles: Mapping[str, str] = field(default_factory=dict)
    more: int = 0


def picture(tie: Tie, report: Report, tone: str) -> Picture:
    """The tie as names and matrices. Names that view one storage point at one matrix."""
    names = list(dict.fromkeys((tie.canonical, *tie.aliases, *tie.stored)))
    groups = _groups(tie, report)
    reads: dict[str, int | None] = {name: at for at, group in enumerate(groups) for name in group}
    should = {}
    for name in names:
        if name not in reads:
            reads[name] = 0 if tie.claim == "tied" and groups else None
        elif reads[name] and tie.claim == "tied" and tone != "ok":
            should[name] = 0
    # a lone matrix is at fault where two names should not be one, or where it lies under the wrong name
    lone = len(groups) == 1 and None not in reads.values()
    matrices = [_Matrix(tuple(groups[0]), _about(tie, groups[0], report), "", tone if lone else "ok")] if groups else []
    for group in groups[1:]:
        signs = (against(name, groups[0][0], tie, report.findings) for name in group)
        matrices.append(_Matrix(tuple(group), _about(tie, group, report), *next(signs)))
    return Picture(names[:MAX_NAMES], frozenset(tie.stored), matrices[:MAX_NAMES], reads, should, tone, dict(report.ends),
                   max(0, len(names) - MAX_NAMES))  # fmt: skip


def _groups(tie: Tie, report: Report) -> list[list[str]]:
    if tie.relation in ("one matrix", "same storage"):
        return [list(tie.stored)] if tie.stored else []
    views = {}
    wanted = frozenset(tie.stored)
    editions = report.checkpoint.editions if report.checkpoint else ()
    for edition in editions:
        if edition.name == tie.file:
            files = (*edition.files, *edition.strays)
            views = {tensor.name: tensor.view for file in files for tensor in file.tensors if tensor.name in wanted}
    groups: dict[object, list[str]] = {}
    for name in tie.stored:
        groups.setdefault(views.get(name, name), []).append(name)
    return list(groups.values())


def _about(tie: Tie, group: list[str], report: Report) -> str:
    """Size and place of a matrix, of its own record where the matrix is one tensor."""
    for edition in report.checkpoint.editions if report.checkpoint else ():
        for file in (*edition.files, *edition.strays) if edition.name == tie.file else ():
            for tensor in file.tensors:
                if tensor.name in group:
                    shape = " × ".join(f"{dim:,}" for dim in tensor.shape)
                    return f"{shape} {printable(tensor.dtype)}, {quantity(tensor.nbytes)}"
    shape = " × ".join(f"{dim:,}" for dim in tie.shape)
    return f"{shape} {printable(tie.dtype)}, {quantity(tie.nbytes)}".strip() if tie.nbytes else "stored"


def in_words(drawn: Picture) -> str:
    """The same for a reader who does not see it."""
    parts = []
    for at, matrix in enumerate(drawn.matrices):
        readers = [printable(name) for name in drawn.names if drawn.reads.get(name) == at]
        parts.append(f"matrix {at + 1} ({matrix.about}) is read as {listed(readers, 8)}")
    parts += [f"{printable(name)} is read from nothing: it is not stored" for name in drawn.names if drawn.reads.get(name) is None]
    parts += [f"matrix {at + 1} {WORDS.get(matrix.sign, OTHERWISE)}" for at, matrix in enumerate(drawn.matrices) if matrix.sign]
    parts += [f"{printable(name)} should be matrix 1" for name in drawn.should]
    return "; ".join(part for part in parts if part) + "."


def svg(drawn: Picture, ident: str, *, narrow: bool) -> Markup:
    """The drawing. `ident` makes its ids unique in the page."""
    left, right, width, height = _placed(drawn, narrow=narrow)
    arrows = Markup().join(_arrows(drawn, left, right, narrow=narrow))
    boxes = Markup().join(box.draw() for box in (*left, *right))
    between = Markup().join(_between(drawn, right, narrow=narrow))
    return Markup(
        '<svg class="tie {cls}" viewBox="0 0 {w} {h:.0f}" width="{w}" height="{h:.0f}" role="img" aria-labelledby="{id}-t {id}-d">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{words}</desc>'
        '<g aria-hidden="true">{arrows}{boxes}{between}</g></svg>'
    ).format(
        cls="narrow" if narrow else "wide", w=width, h=height, id=ident, title=_title(drawn), words=in_words(drawn), arrows=arrows,
        boxes=boxes, between=between,
    )  # fmt: skip


def _title(drawn: Picture) -> str:
    matrices = f"{len(drawn.matrices)} stored matri{'x' if len(drawn.matrices) == 1 else 'ces'}"
    count = len(drawn.names) + drawn.more
    return f"Tie: {count} name{'s' * (count != 1)}, {matrices}"


def _placed(drawn: Picture, *, narrow: bool) -> tuple[list[_Box], list[_Box], int, float]:
    names = [_name_box(drawn, name, 270 if narrow else 330) for name in drawn.names]
    if drawn.more:
        names.append(_Box("name absent", [(f"and {drawn.more:,} more names", "small")]))
    matrices = [_matrix_box(drawn, at, 270 if narrow else 290) for at in range(len(drawn.matrices))]
    if None in drawn.reads.values() or not matrices:
        matrices.append(_Box(f"matrix void {drawn.tone}", [("nothing is stored", "small")]))
    space = 26
    if narrow:
        at = 4.0
        for box in (*names, *matrices):
            if matrices and box is matrices[0]:
                at += 22
            box.x, box.y, box.width = 2, at, 270
            at += box.height + (space if box in matrices else 10)
        return names, matrices, NARROW, at - space + 6
    heights = [sum(box.height for box in column) + gap * (len(column) - 1) for column, gap in ((names, 12), (matrices, space))]
    whole = max(heights) + 8
    for column, gap, x, width, high in ((names, 12, 2, 330, heights[0]), (matrices, space, WIDE - 292, 290, heights[1])):
        at = (whole - high) / 2
        for box in column:
            box.x, box.y, box.width = x, at, width
            at += box.height + gap
    return names, matrices, WIDE, whole


def _name_box(drawn: Picture, name: str, width: int) -> _Box:
    lines = [(line, "mono") for line in _wrapped(printable(name), int((width - 2 * PAD - 4) / CHAR))]
    role = drawn.roles.get(name, "")
    if name in drawn.stored:
        told = role
    elif drawn.reads.get(name) is None:
        told = "not stored"
    else:
        told = "alias, not stored"
    absent = name not in drawn.stored
    at = drawn.reads.get(name)
    tone = f" {drawn.tone}" if at is None else f" {drawn.matrices[at].tone}" if name in drawn.should and at < len(drawn.matrices) else ""
    return _Box(f"name{' absent' if absent else ''}{tone}", [*lines, *([(told, "small")] if told else [])])


def _matrix_box(drawn: Picture, at: int, width: int) -> _Box:
    matrix = drawn.matrices[at]
    lines = [(line, "strong") for line in _wrapped(matrix.about, int((width - 2 * PAD - 4) / 7.0))]
    names = listed(map(printable, matrix.names), 2)
    own = [(line, "small mono") for line in _wrapped(f"stored as {names}", int((width - 2 * PAD - 4) / 6.7))]
    return _Box(f"matrix {matrix.tone if matrix.tone in ('error', 'warning') else 'good'}", [*lines, *own])


def _wrapped(text: str, chars: int) -> list[str]:
    """Cut behind a dot, a comma or a space where one is near, at MAX_LINES lines with an ellipsis in the middle of the text."""
    if len(text) > chars * MAX_LINES:
        text = text[: chars * 2 - 2] + "…" + text[-(chars * (MAX_LINES - 2) - 8) :]
    lines = []
    while len(text) > chars:
        cut = max((text.rfind(mark, chars // 2, chars) + 1 for mark in ". ,_/"), default=0) or chars
        lines.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*lines, text][: MAX_LINES + 1]


def _arrows(drawn: Picture, left: list[_Box], right: list[_Box], *, narrow: bool) -> Iterator[Markup]:
    ends = {name: drawn.reads.get(name) for name in drawn.names}
    for number, name in enumerate(drawn.names):
        target = ends[name]
        if target is not None and target >= len(drawn.matrices):
            continue
        to = right[-1 if target is None else target]
        alike = [other for other in drawn.names if ends[other] == target]
        tone = drawn.tone if target is None else drawn.matrices[target].tone
        broken = name in drawn.should or target is None or tone in ("error", "warning")
        tone = tone if broken else "plain"
        dashed = " dashed" if name not in drawn.stored else ""
        offset = (alike.index(name) - (len(alike) - 1) / 2) * min(9, (to.height - 14) / max(1, len(alike) - 1))
        if narrow:
            lane = 280.0 + 4 * min(number, 4)
            path = f"M272 {left[number].middle:.0f}H{lane:.0f}V{to.middle + offset:.0f}H279"
            mark = (lane, (left[number].middle + to.middle + offset) / 2)
        else:
            x, y, end = 334, left[number].middle, to.x - 8
            bend = (x + end) / 2
            path = f"M{x} {y:.0f}C{bend:.0f} {y:.0f} {bend:.0f} {to.middle + offset:.0f} {end:.0f} {to.middle + offset:.0f}"
            mark = (bend, (y + to.middle + offset) / 2)
        if name in drawn.should and not (narrow and len(drawn.should) > 1):
            yield _ghost(left[number], right[0], narrow=narrow)
        yield Markup('<path class="arrow {}{}" d="{}"/>').format(tone, dashed, path)
        tip_x, tip_y, way = (272, to.middle + offset, -1) if narrow else (to.x - 1, to.middle + offset, 1)
        yield Markup('<path class="tip {}" d="M{:.0f} {:.0f}l{} -4v8z"/>').format(tone, tip_x, tip_y, -8 * way)
        if broken:
            yield _badge(tone, *mark)


def _badge(tone: str, x: float, y: float) -> Markup:
    """The sign on a broken arrow: red alone tells nothing to those who do not see it."""
    return Markup(
        '<circle class="badge {0}" cx="{1:.0f}" cy="{2:.0f}" r="9"/><text class="sign" x="{1:.0f}" y="{3:.1f}">{4}</text>'
    ).format(tone, x, y, y + 4, MARKS.get(tone, "!"))


def _ghost(box: _Box, to: _Box, *, narrow: bool) -> Markup:
    """From a name to the matrix that it should be."""
    low = to.y + to.height - 7
    if narrow:
        return Markup('<path class="arrow ghost" d="M272 {0:.0f}H276V{1:.0f}H273"/>').format(box.middle + 7, low)
    bend = (334 + to.x) / 2
    return Markup('<path class="arrow ghost" d="M334 {0:.0f}C{1:.0f} {0:.0f} {1:.0f} {2:.0f} {3:.0f} {2:.0f}"/>').format(
        box.middle - 7, bend, low, to.x - 2
    )


def _between(drawn: Picture, right: list[_Box], *, narrow: bool) -> Iterator[Markup]:
    """How each matrix stands to the first, above it."""
    for matrix, (upper, lower) in zip(drawn.matrices[1:], pairwise(right[: len(drawn.matrices)]), strict=False):
        x = upper.x + (120 if narrow else upper.width / 2)
        y = (upper.y + upper.height + lower.y) / 2
        yield Markup('<text class="between {}" x="{:.0f}" y="{:.0f}">{} {}</text>').format(
            matrix.tone, x, y + 4, matrix.sign, WORDS.get(matrix.sign, OTHERWISE)
        )
