"""This file holds the heart: the table claim × stored → verdict, and how a tie group is turned into situations.

The claim's column is the reading of transformers 5, the current one; `ambiguous-flag` (claims.py) compares it with that of 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ..checkpoint import Edition, Wiring
from ..claim import TieGroup
from ..kinds import QUANTISED_TWICE, Kind, Relation
from ..names import Matrix
from ..report import Severity
from .rule import Case, EditionCase, Pair, TieState


class Stored(StrEnum):
    """What the files hold of two names that can be one matrix; the relations, and the cases in which a name is absent."""

    CANONICAL_ONLY = "one matrix, canonical name"
    HEAD_ONLY = "one matrix, under the head's name"
    ALIAS_ONLY = "one matrix, under a lesser alias"
    NEITHER = "neither"
    ONE_STORAGE = "one storage, both names"
    EQUAL = "equal copies"
    CAST = "equal after cast"
    TRANSPOSED = "transposed copy"
    PADDED = "equal up to padding rows"
    SCALED = "scaled by one constant"
    NEAR = "near"
    UNRELATED = "unrelated"
    ROWS_DIFFER = "rows differ"
    CONSTANT = "constant"
    TWO_FORMS = "one side quantised"
    NOT_COMPARED = "not compared"


class Verdict(NamedTuple):
    """The rule that speaks, with a severity of its own where the table says so. No rule: healthy."""

    rule: str = ""
    severity: Severity | None = None


OK = Verdict()
DIVERGED = Verdict("diverged-tie")
DUPLICATE = Verdict("duplicate-tie")
EQUAL_UNTIED = Verdict("untied-but-equal")
NO_EMBEDDING = Verdict("missing-embedding")

#                       tied                    untied                        unknown
TABLE: dict[Stored, tuple[Verdict, Verdict, Verdict]] = {
    Stored.CANONICAL_ONLY: (OK, Verdict("missing-head"), OK),
    Stored.HEAD_ONLY: (Verdict("inverted-alias"), NO_EMBEDDING, OK),
    Stored.ALIAS_ONLY: (Verdict("unusual-alias"), NO_EMBEDDING, OK),
    Stored.NEITHER: (NO_EMBEDDING, NO_EMBEDDING, OK),
    Stored.ONE_STORAGE: (OK, Verdict("unwanted-alias"), OK),
    Stored.EQUAL: (DUPLICATE, EQUAL_UNTIED, DUPLICATE),
    Stored.CAST: (Verdict("cast-copy"), EQUAL_UNTIED, Verdict("cast-copy")),
    Stored.TRANSPOSED: (Verdict("transposed-head"),) * 3,
    Stored.PADDED: (Verdict("diverged-tie", Severity.WARNING), OK, OK),
    Stored.SCALED: (DIVERGED, Verdict("scaled-copy"), Verdict("scaled-copy")),
    Stored.NEAR: (DIVERGED, OK, OK),
    Stored.UNRELATED: (DIVERGED, OK, OK),
    Stored.ROWS_DIFFER: (OK, OK, OK),  # row-mismatch (claims.py) knows the family's own row counts
    Stored.CONSTANT: (OK, OK, OK),  # constant-tensor (duplicates.py)
    Stored.TWO_FORMS: (Verdict("one-sided-quantization"), OK, OK),
    Stored.NOT_COMPARED: (OK, OK, OK),  # listed as not compared
}
# Readers of such a format take what is stored as it is: no config can lose a matrix, and what repeats only wastes bytes.
IN_FORMATS: dict[Stored, tuple[Verdict, Verdict, Verdict]] = {
    Stored.TRANSPOSED: (Verdict("transposed-copy"),) * 3,
    Stored.SCALED: (Verdict("scaled-copy"),) * 3,
    Stored.PADDED: (OK, OK, OK),
}
# A graph also computes what was exported, whatever a config beside it says: the last norm may have been folded into the head.
IN_GRAPHS: dict[Stored, tuple[Verdict, Verdict, Verdict]] = {
    Stored.NEAR: (Verdict("diverged-tie", Severity.NOTE), OK, OK),
    Stored.UNRELATED: (Verdict("diverged-tie", Severity.NOTE), OK, OK),
}
# A training run keeps copies in step: equal is what it promises.
OF_RUNS: dict[Stored, tuple[Verdict, Verdict, Verdict]] = {
    Stored.EQUAL: (Verdict("by-design-copy"),) * 3,
    Stored.SCALED: (Verdict("replica-drift"), OK, OK),
    Stored.PADDED: (Verdict("replica-drift", Severity.WARNING), OK, OK),
    Stored.NEAR: (Verdict("replica-drift"), OK, OK),
    Stored.UNRELATED: (Verdict("replica-drift"), OK, OK),
}
TABLES = {
    Wiring.CONFIG: TABLE,
    Wiring.FORMAT: TABLE | IN_FORMATS,
    Wiring.GRAPH: TABLE | IN_FORMATS | IN_GRAPHS,
    Wiring.REPLICA: TABLE | OF_RUNS,
}

_BY_KIND = {
    Kind.SAME_STORAGE: Stored.ONE_STORAGE,
    Kind.EQUAL: Stored.EQUAL,
    Kind.CAST: Stored.CAST,
    Kind.TRANSPOSED: Stored.TRANSPOSED,
    Kind.PADDED: Stored.PADDED,
    Kind.SCALED: Stored.SCALED,
    Kind.NEAR: Stored.NEAR,
    Kind.UNRELATED: Stored.UNRELATED,
    Kind.ROWS_DIFFER: Stored.ROWS_DIFFER,
    Kind.CONSTANT: Stored.CONSTANT,
    Kind.NOT_COMPARED: Stored.NOT_COMPARED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One cell of the table for one alias: what is stored, what each reading claims, and the matrices.

    `name` is the name that the verdict is about: the alias, or the absent name. `holder` is None if nothing is stored.
    """

    edition: Edition
    group: TieGroup
    stored: Stored
    name: str
    tied: bool | None
    tied_v4: bool | None
    holder: Matrix | None = None
    second: Matrix | None = None
    relation: Relation | None = None
    head: str | None = None

    @property
    def verdict(self) -> Verdict:
        column = {True: 0, False: 1, None: 2}[self.tied]
        return TABLES[self.group.wiring][self.stored][column]

    @property
    def differs(self) -> bool:
        """Both names are stored with values that are not one matrix."""
        return self.stored in (Stored.SCALED, Stored.NEAR, Stored.UNRELATED, Stored.PADDED)


def situations(case: Case) -> Iterator[Situation]:
    """Every cell that the checkpoint touches, over all judged editions."""
    for edition_case in case.judged:
        for state in edition_case.ties:
            yield from _of_group(edition_case, state)


def speaking(case: Case, rule: str) -> Iterator[Situation]:
    """The situations in which the table lets `rule` speak."""
    return (situation for situation in situations(case) if situation.verdict.rule == rule)


def lone_ends(case: Case) -> Iterator[tuple[EditionCase, str, bool]]:
    """(edition, name, whether it is the head) of ends that the class needs, that no tie concerns, and that are not stored."""
    for edition_case in case.judged:
        claim, stored = edition_case.claim, edition_case.stored
        if not claim.exact:
            continue
        tied = {name for group in claim.groups for name in group.names}
        for name in (claim.embedding, claim.head):
            if not name or name in tied or stored.find(name, claim.other_names) or stored.is_broken(name, claim.other_names):
                continue
            # under a prefix that nobody knows it may still be there
            if not any(other.endswith(name.split(".", max(0, name.count(".") - 1))[-1]) for other in stored):
                yield edition_case, name, name == claim.head


def _stored(pair: Pair) -> Stored:
    """By the relation; but a quantised side that was not compared is no copy, and what differs by quantisation alone has not diverged."""
    kind, one = pair.relation.kind, pair.relation.detail.startswith(QUANTISED_TWICE)
    if pair.first.packed != pair.second.packed and (kind is Kind.NOT_COMPARED or (kind is Kind.NEAR and one)):
        return Stored.TWO_FORMS
    # two ends in two widths are what some quantisers give a tied model
    if pair.first.packed and kind is Kind.NEAR and one:
        return Stored.NOT_COMPARED
    return _BY_KIND[kind]


def _of_group(case: EditionCase, state: TieState) -> Iterator[Situation]:
    group, claim = state.group, case.claim

    def situation(stored: Stored, name: str, tied: bool | None, tied_v4: bool | None) -> Situation:
        return Situation(
            edition=case.edition, group=group, stored=stored, name=name, tied=tied, tied_v4=tied_v4, holder=state.holder, head=claim.head
        )

    if state.holder is None:
        # an absence proves something only if the whole edition was read and the class was named by the config
        if claim.exact and not state.broken and group.role == "embedding-head":
            first = group.aliases[0]
            yield situation(Stored.NEITHER, group.canonical, first.tied, first.tied_v4)
        return
    for pair in state.pairs:
        yield Situation(
            edition=case.edition,
            group=group,
            stored=_stored(pair),
            name=pair.second.name,
            tied=pair.tied,
            tied_v4=pair.tied_v4,
            holder=pair.first,
            second=pair.second,
            relation=pair.relation,
            head=claim.head,
        )
    if not claim.exact:
        return
    for name, tied, tied_v4 in state.absent:
        if name != group.canonical or name == claim.head:
            # the head is the canonical name of a few classes (OpenAI GPT with two heads, Blt)
            if not group.optional:
                yield situation(Stored.CANONICAL_ONLY, name, tied, tied_v4)
        elif tied or not group.optional:
            if tied and state.holder_as in claim.v4_kept:
                continue
            holds_head = state.holder_as == claim.head or group.role == "bias"
            yield situation(Stored.HEAD_ONLY if holds_head else Stored.ALIAS_ONLY, name, tied, tied_v4)
