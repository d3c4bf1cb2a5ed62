"""This file holds which tensors of a file are linked on the page: copies of one matrix, and names that should be one and are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...report import Finding, Report, TensorPlace, Tie

MAX_LINKS = 200
MAX_MEMBERS = 40

# rules whose tensors are one matrix, stored more than once; and those whose tensors should be one and are not
COPIES = frozenset((
    "duplicate-tie", "cast-copy", "transposed-head", "untied-but-equal", "scaled-copy", "duplicate-tensor", "transposed-copy",
    "cast-duplicate", "by-design-copy", "adapter-base-copy", "repeated-tensor", "unwanted-alias",
))  # fmt: skip
APART = frozenset(("diverged-tie", "row-mismatch", "format-mismatch", "replica-drift"))

# of other families, those that say something of the tie itself
OF_TIES = frozenset(("transposed-copy", "cast-duplicate", "constant-tensor", "empty-tensor", "replica-drift"))

SIGNS = {"same storage": "=", "equal": "=", "one matrix": "=", "equal after cast": "≈", "near": "≠", "unrelated": "≠", "scaled": "≠",
         "rows differ": "≠", "equal up to padding rows": "≠", "transposed": "ᵀ", "constant": "≠"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Tensors that belong together, under a letter. `tone` is a severity; `sign` says equal or not without colour."""

    letter: str
    tone: str
    sign: str
    title: str
    places: tuple[TensorPlace, ...]


def of(report: Report) -> tuple[Link, ...]:
    """Linked tensors, the worst finding first."""
    return tuple(_links(report))


def _links(report: Report) -> Iterator[Link]:
    count = 0
    for finding in report.findings:
        if len(finding.tensors) > 1 and finding.rule in COPIES | APART and count < MAX_LINKS:
            sign = "≠" if finding.rule in APART else "="
            yield Link(letter=letter(count), tone=finding.severity.value, sign=sign, title=f"{finding.code} {finding.rule}",
                       places=finding.tensors[:MAX_MEMBERS])  # fmt: skip
            count += 1


def letter(number: int) -> str:
    """A, B, … Z, AA, AB, …"""
    word = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        word = chr(65 + rest) + word
    return word


def against(name: str, canonical: str, tie: Tie, findings: tuple[Finding, ...]) -> tuple[str, str]:
    """(sign, tone) of one stored matrix of a tie against its first: of several, the tie's own relation is only the worst."""
    for finding in findings:
        names = {place.name for place in finding.tensors if _beside(place.file, tie.file)}
        if {name, canonical} <= names and finding.rule in COPIES | APART:
            if finding.rule == "transposed-head":
                return SIGNS["transposed"], finding.severity.value
            if finding.rule == "cast-copy":
                return SIGNS["equal after cast"], finding.severity.value
            return ("≠" if finding.rule in APART or finding.rule == "scaled-copy" else "="), finding.severity.value
    if len(tie.stored) == 2 or SIGNS.get(tie.relation) == "=":
        return SIGNS.get(tie.relation, "?"), tone(tie, findings)
    return "?", tone(tie, findings)


def tone(tie: Tie, findings: tuple[Finding, ...]) -> str:
    """The worst that was found of a tie: a severity, or "ok"."""
    names = {tie.canonical, *tie.aliases, *tie.stored}
    worst = [
        finding.severity
        for finding in findings
        if finding.code[3] in "0167" or finding.rule in OF_TIES
        if any(place.name in names and _beside(place.file, tie.file) for place in finding.tensors)
    ]
    return min(worst, key=lambda severity: severity.rank).value if worst else "ok"


def _beside(file: str, edition: str) -> bool:
    """A finding of the .bin says nothing of the tie in the .safetensors beside it."""
    return not edition or file.rpartition(".")[2] == edition.rpartition(".")[2]
