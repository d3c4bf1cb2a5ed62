"""This file holds what each side makes of names that can be one matrix, and what became of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoint import Wiring
from ..difference import HeadLoss, Sharing, SideTie, TieChange
from ..inspectors.rule import Pair, TieState
from ..kinds import QUANTISED_TWICE, Kind
from ..names import Matrix
from ..relations import relate
from .compare import Comparer
from .sides import Side, Unit, moved

SAME = (Kind.EQUAL, Kind.CAST, Kind.TRANSPOSED, Kind.SAME_STORAGE)
_ORDER = (Sharing.APART, Sharing.UNKNOWN, Sharing.REPEATED, Sharing.SHARED)


def changes(before: Side, after: Side, names: dict[str, str]) -> Iterator[TieChange]:
    """Every tie of both sides. `names`: {name before: name after} of tensors that were found on both."""
    ours, theirs = _ties(before), _ties(after)
    end = [next((tie for tie in ties if tie.role == "embedding-head"), None) for ties in (ours, theirs)]
    if end[0] or end[1]:
        yield _change(end[0], end[1])
    rest = [tie for tie in theirs if tie is not end[1]]
    for tie in ours:
        if tie is end[0]:
            continue
        known = {names.get(name, name) for name in tie.names}
        partner = next((other for other in rest if known & set(other.names)), None)
        if partner is not None:
            rest.remove(partner)
            yield _change(tie, partner)
        elif after.foreign == before.foreign:
            yield _change(tie, None)


def _change(before: SideTie | None, after: SideTie | None) -> TieChange:
    role = (before or after).role if (before or after) else ""  # type: ignore[union-attr]
    kept: bool | None = None
    known = (None, Sharing.UNKNOWN)
    if (before.sharing if before else None) not in known and (after.sharing if after else None) not in known and before and after:
        # a copy that readers take for the same matrix is bytes, not another structure
        kept = before.holds == after.holds and (before.holds or before.sharing is after.sharing)
    words = _story(before, after, kept)
    return TieChange(role=role, before=before, after=after, kept=kept, words=words)


def _story(before: SideTie | None, after: SideTie | None, kept: bool | None) -> str:
    if before is None or after is None:
        return "only one side speaks of it"
    if kept and before.sharing is not after.sharing:
        again = "after" if after.sharing is Sharing.REPEATED else "before"
        return f"one matrix for every reader on both sides, stored twice {again}"
    if kept:
        return "the same on both sides"
    if kept is None:
        return "what became of it was not compared"
    if before.holds and after.sharing is Sharing.REPEATED:
        if before.sharing is Sharing.SHARED:
            return "one matrix before, stored twice after"
        return "equal copies on both sides, and nothing ties them after"
    if before.holds and after.sharing is Sharing.APART:
        return "one matrix before, two after"
    if before.holds and after.sharing is Sharing.SHARED:
        return "one matrix before; after, the config says that they are two"
    if before.holds and not after.holds:
        return "one matrix before, and only one of the two names after"
    if before.sharing is Sharing.REPEATED and after.holds:
        return "equal copies before, one matrix after"
    if before.sharing is Sharing.APART and after.holds:
        return "two matrices before, one after"
    return f"{before.sharing.value} before, {after.sharing.value} after"


def _ties(side: Side) -> list[SideTie]:
    states = list(side.case.ties) if side.case else []
    found = [_of_state(state) for state in states]
    if not any(tie.role == "embedding-head" for tie in found):
        ends = _ends(side)
        found += [ends] if ends else []
    found.sort(key=lambda tie: tie.role != "embedding-head")
    return found


def _ends(side: Side) -> SideTie | None:
    """Embedding and head of a class that never ties them."""
    embedding, head = side.unit("embedding"), side.unit("head")
    if side.case is None or embedding is None or head is None:
        return None
    relation = relate(embedding.matrix, head.matrix, side.gathering.reader(), side.gathering.verify)
    pair = Pair(first=embedding.matrix, second=head.matrix, tied=False, tied_v4=False, relation=relation)
    sharing = _sharing_of(pair)
    names = (embedding.matrix.name, head.matrix.name)
    return SideTie(names=names, stored=names, sharing=sharing, tied=False, words=_words(sharing, names, pair), source="nothing ties them")


def _of_state(state: TieState) -> SideTie:
    group = state.group
    claims = {alias.tied for alias in group.aliases}
    tied = True if True in claims else False if claims == {False} else None
    if group.wiring is not Wiring.CONFIG and state.pairs and any(pair.relation.kind is not Kind.SAME_STORAGE for pair in state.pairs):
        tied = False if group.wiring is Wiring.GRAPH else tied  # what a graph reads twice, no flag makes one
    stored = tuple(matrix.name for matrix in state.matrices)
    pair = min(state.pairs, key=lambda pair: _ORDER.index(_sharing_of(pair)), default=None)
    if pair is not None:
        sharing = _sharing_of(pair)
    elif state.holder is None:
        sharing = Sharing.NONE
    else:
        sharing = Sharing.SHARED if tied else Sharing.LONE
    return SideTie(
        names=group.names,
        stored=stored,
        sharing=sharing,
        tied=tied,
        words=_words(sharing, stored, pair, group.names),
        source=group.source.removeprefix("unknown: "),
        role=group.role,
    )


def _sharing_of(pair: Pair) -> Sharing:
    kind = pair.relation.kind
    if kind is Kind.SAME_STORAGE:
        return Sharing.SHARED
    if kind in SAME or (kind is Kind.NEAR and pair.relation.detail.startswith(QUANTISED_TWICE)):
        return Sharing.REPEATED
    return Sharing.UNKNOWN if kind is Kind.NOT_COMPARED else Sharing.APART


def _words(sharing: Sharing, stored: tuple[str, ...], pair: Pair | None, names: tuple[str, ...] = ()) -> str:
    if sharing is Sharing.NONE:
        return "neither name is stored"
    if pair is None:
        others = [name for name in names if name not in stored]
        if sharing is Sharing.SHARED:
            return f"one matrix, {stored[0]}" + (f", which {others[0]} reads" if len(others) == 1 else "")
        return f"{stored[0]} alone"
    first, second = pair.first.name, pair.second.name
    how = {
        Kind.SAME_STORAGE: "one storage under both names",
        Kind.EQUAL: "stored twice, equal",
        Kind.CAST: "stored twice, in two dtypes",
        Kind.TRANSPOSED: "stored twice, the second transposed",
        Kind.NOT_COMPARED: "both stored, not compared",
    }.get(pair.relation.kind, "stored twice, quantised differently" if sharing is Sharing.REPEATED else "two matrices")
    return f"{how}: {first} and {second}"


def head_loss(before: Side, after: Side, ties: list[TieChange], comparer: Comparer) -> HeadLoss | None:
    """A head of its own that the other side does not have, or a tie whose head nobody can make any more."""
    tie = next((tie for tie in ties if tie.role == "embedding-head"), None)
    if tie is None or tie.before is None or tie.after is None or after.edition is None or not after.edition.whole:
        return None
    head, embedding = _head(before), before.unit("embedding")
    if tie.before.holds and tie.after.sharing is Sharing.LONE and tie.after.tied is False and embedding is not None:
        stored = after.unit("embedding")
        if stored is not None:  # the head is what is not there
            source = tie.after.source.partition(": ")[2] or tie.after.source
            absent = next((name for name in tie.before.names if name not in tie.before.stored), embedding.name)
            return HeadLoss(
                head=replace(embedding.stored, name=absent),
                why=f"the two were one matrix; after, no head is stored, and it is not the embedding ({source})",
            )
        return None
    if tie.before.sharing is not Sharing.APART or head is None or tie.after.sharing in (Sharing.UNKNOWN, Sharing.APART):
        return None
    left = next((unit for unit in (after.unit("head"), after.unit("embedding")) if unit), None)
    if left is not None and is_same(head.matrix, left.matrix, comparer):
        return None
    if tie.after.sharing is Sharing.NONE:
        why = "no head is stored after"
    elif tie.after.sharing is Sharing.LONE:
        why = f"after, {tie.after.words}"
    else:
        why = f"after, {tie.after.words}: the embedding has taken its place"
    return HeadLoss(head=head.stored, why=why)


def _head(side: Side) -> Unit | None:
    return side.unit("head")


def is_same(one: Matrix, other: Matrix, comparer: Comparer) -> bool:
    """The matrix after is the head of before, cast, quantised or transposed."""
    relation = relate(moved(one), other, comparer.data, comparer.verify)
    return relation.kind in SAME or (relation.kind is Kind.NEAR and relation.detail.startswith(QUANTISED_TWICE))
