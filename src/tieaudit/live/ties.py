"""This file holds what the expected and the accidental ties of a model are in memory: one Parameter, one memory, equal, or different."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..alive import LiveName, LiveTie, Sharing
from . import compare
from .expect import SHAPES, Expected, Flagged, Pretrained, by_config, by_shape, ends, pretrained
from .identity import Found, plain_parts
from .naming import COPY, LiveNames, grouped, own

_WORST = (Sharing.APART, Sharing.EQUAL_VALUES, Sharing.NOT_COMPARED, Sharing.SAME_STORAGE, Sharing.SAME_PARAMETER)
SHARDED = "DTensor"
_NOT_QUANTISED = ("", SHARDED, "FakeTensor", "UninitializedParameter", "UninitializedBuffer", "AsyncCollectiveTensor")


@dataclass(frozen=True, slots=True)
class Relation:
    """How two names relate. The fields are those of LiveTie."""

    sharing: Sharing
    detail: str = ""
    apart_by: str = ""


class Judge:
    """Relates names of one collection. `probe`: writes may be tried."""

    def __init__(self, found: Found, *, probe: bool) -> None:
        self.found = found
        self.probe = probe
        self.known = found.by_name()
        self.names = LiveNames(self.known)

    def tie(self, expected: Expected) -> LiveTie | None:
        """The tie, looked at; None if fewer than two of its names are there."""
        present: list[str] = []
        numbers: dict[str, int] = {}
        computed: dict[str, tuple[str, ...]] = {}
        for asked in expected.names:
            name = self.names.find(asked)
            sources = () if name else self.names.sources(asked)
            if sources:
                name, computed[asked] = asked, sources
            if name and name not in numbers:
                present.append(name)
                numbers[name] = self.known[name].parameter if name in self.known else -1 - len(computed)
        if len(present) < 2:
            return None
        parts = grouped(present, numbers)
        relations = [self._computed(part[0], computed) or self.relation(parts[0][0], part[0]) for part in parts[1:]]
        if parts[0][0] in computed:
            relations = [self._computed(parts[0][0], computed) or relation for relation in relations]
        worst = min(relations, key=lambda relation: _WORST.index(relation.sharing), default=Relation(Sharing.SAME_PARAMETER))
        seen = None
        if self.probe and not computed and worst.sharing is not Sharing.APART:
            seen = compare.seen_through([self.found.tensors[name] for name in present])
        if seen and worst.sharing is Sharing.EQUAL_VALUES:
            worst = Relation(Sharing.SAME_STORAGE, "one memory at two addresses")
        return LiveTie(
            names=tuple(present),
            sharing=worst.sharing,
            expected=expected.expected,
            certain=expected.certain,
            declared=expected.declared,
            probe=seen,
            detail=worst.detail,
            parts=parts if len(parts) > 1 else (),
            apart_by=worst.apart_by,
        )

    def _computed(self, name: str, computed: dict[str, tuple[str, ...]]) -> Relation | None:
        if name not in computed:
            return None
        sources = " and ".join(source.rpartition(".")[2] for source in computed[name])
        return Relation(Sharing.NOT_COMPARED, f"{name} is no parameter but computed from {sources}")

    def relation(self, first: str, second: str) -> Relation:
        """How the tensors under two names relate."""
        a, b = self.known[first], self.known[second]
        if a.parameter == b.parameter:
            return Relation(Sharing.SAME_PARAMETER)
        if a.storage is not None and a.storage == b.storage:
            overlap = _overlap(a, b)
            if overlap is not None:
                return Relation(Sharing.SAME_STORAGE, overlap)
        relation = self._values(a, b)
        if (COPY in first) is not (COPY in second):
            copied = first if COPY in first else second
            relation = replace(relation, apart_by=f"PEFT trains a copy of {own(copied)} (modules_to_save)")
        return relation

    def _values(self, a: LiveName, b: LiveName) -> Relation:
        first, second = self.found.tensors[a.name], self.found.tensors[b.name]
        quantised = [name for name in (a, b) if name.kind not in _NOT_QUANTISED]
        if quantised:
            clause = " and ".join(f"{name.name} is quantised ({name.kind})" for name in quantised)
            return Relation(Sharing.NOT_COMPARED, clause, apart_by=clause)
        if (a.full or a.shape) != (b.full or b.shape):
            return Relation(Sharing.APART, f"{_dims(a)} and {_dims(b)}")
        if (a.kind == SHARDED) is not (b.kind == SHARDED):
            return Relation(Sharing.NOT_COMPARED, f"{(a if a.kind == SHARDED else b).name} is sharded, the other is not")
        detail = ""
        if a.kind == SHARDED and b.kind == SHARDED:
            (first, *_), (second, *_) = plain_parts(first), plain_parts(second)
            detail = "the parts of this rank"
            if first.shape != second.shape:
                return Relation(Sharing.NOT_COMPARED, "sharded in different ways")
        if "meta" in (a.device, b.device):
            return Relation(Sharing.NOT_COMPARED, "the meta device holds no values")
        if not compare.comparable(first, second):
            return Relation(Sharing.NOT_COMPARED, f"values of {a.kind or b.kind or 'such'} tensors are not looked at")
        if a.dtype == b.dtype:
            return Relation(Sharing.EQUAL_VALUES if compare.equal(first, second) else Sharing.APART, detail)
        if compare.equal_after_cast(first, second):
            return Relation(Sharing.EQUAL_VALUES, f"{a.dtype} and {b.dtype}, equal after a cast")
        return Relation(Sharing.APART, f"{a.dtype} and {b.dtype}")

    def same(self, first: str, second: str) -> bool:
        a, b = self.known[first], self.known[second]
        return a.parameter == b.parameter or (a.storage is not None and a.storage == b.storage and _overlap(a, b) is not None)


def _dims(name: LiveName) -> str:
    return " × ".join(f"{dim:,}" for dim in name.full or name.shape) or "a scalar"


def _overlap(a: LiveName, b: LiveName) -> str | None:
    """None if two views of one storage have no element in common, or may have none; else what kind of overlap, as a clause."""
    if (a.offset, a.shape, a.strides, a.dtype) == (b.offset, b.shape, b.strides, b.dtype):
        return ""
    width = max(1, a.nbytes // max(1, _numel(a))), max(1, b.nbytes // max(1, _numel(b)))
    if width[0] != width[1] or not (_gapless(a) and _gapless(b)):
        return None
    if a.offset == b.offset and a.shape == b.shape[::-1]:
        return "one is the other transposed"
    begin, end = max(a.offset, b.offset), min(a.offset + _numel(a), b.offset + _numel(b))
    return f"{end - begin:,} elements in common" if begin < end else None


def _gapless(name: LiveName) -> bool:
    """Its elements fill their span (a transposed matrix does, every third row does not)."""
    if name.strides is None:
        return True
    span = 1 + sum((dim - 1) * stride for dim, stride in zip(name.shape, name.strides, strict=True))
    return span == _numel(name)


def _numel(name: LiveName) -> int:
    count = 1
    for dim in name.shape:
        count *= dim
    return count


def ties(
    model: nn.Module, found: Found, config: Any = None, *, probe: bool = True
) -> tuple[tuple[LiveTie, ...], tuple[tuple[str, str], ...]]:
    """(every tie that is asked for or happens, [(names that are not there, reason)])."""
    judge = Judge(found, probe=probe)
    inside = pretrained(model)
    flagged = by_config(model, config, inside)
    told: list[LiveTie] = []
    absent: list[tuple[str, str]] = []
    for expected in (*(group for one in inside for group in one.groups), *flagged.groups):
        tie = judge.tie(expected)
        if tie is None:
            absent.append((" and ".join(expected.names), "fewer than two of these names are parameters in memory"))
        elif not any(set(tie.names) <= set(other.names) for other in told):
            told.append(tie)
    told += _guessed(model, judge, inside, flagged, told)
    told += _untied(judge, inside, told)
    asked = [{own(name) for name in tie.names} for tie in told]
    told += [tie for tie in _accidental(judge, inside, flagged) if not any({own(name) for name in tie.names} <= names for names in asked)]
    return tuple(told), tuple(absent)


def _guessed(model: nn.Module, judge: Judge, inside: tuple[Pretrained, ...], flagged: Flagged, told: list[LiveTie]) -> Iterator[LiveTie]:
    """Ends that nobody names. Equal constants are two fresh matrices."""
    known = {name for tie in told for name in tie.names}
    for embedding, head in by_shape(model, judge.names, inside, judge.same):
        if embedding in known and head in known:
            continue
        # ends that the model names itself are judged already: the flag is about no others
        asked = "" if flagged.groups else flagged.ties
        tie = judge.tie(Expected(names=(embedding, head), expected=asked or SHAPES, certain=bool(asked)))
        if tie is None:
            continue
        chance = tie.sharing is Sharing.EQUAL_VALUES and compare.constant(judge.found.tensors[embedding])
        likely = tie.sharing in (Sharing.SAME_PARAMETER, Sharing.SAME_STORAGE, Sharing.EQUAL_VALUES) and not chance
        if flagged.untied:
            yield replace(tie, expected="", kept_apart=flagged.untied)
        elif asked or likely:
            yield tie
        else:
            yield replace(tie, expected="")


def _untied(judge: Judge, inside: tuple[Pretrained, ...], told: list[LiveTie]) -> Iterator[LiveTie]:
    """The ends of transformers models that are two matrices and may be."""
    known = {own(name) for tie in told for name in tie.names}
    for one in inside:
        for head, embedding in ends(one.module):
            names = tuple(own(one.prefix + name) for name in (embedding, head))
            if known.issuperset(names):
                continue
            tie = judge.tie(Expected(names=names, expected=""))
            if tie and tie.sharing not in (Sharing.SAME_PARAMETER, Sharing.SAME_STORAGE):
                yield replace(tie, kept_apart=one.untied)


def _accidental(judge: Judge, inside: tuple[Pretrained, ...], flagged: Flagged) -> Iterator[LiveTie]:
    """Names that share memory though nobody asks for it."""
    weights = [name for name in judge.found.names if not name.adapter]
    for group in sharing(weights):
        names = tuple(name.name for name in group)
        relations = [judge.relation(names[0], name) for name in names[1:]]
        worst = min(relations, key=lambda relation: _WORST.index(relation.sharing))
        holder = next((one for one in inside if all(one.holds(own(name)) for name in names)), None)
        stored = [own(name.name) for name in group if name.stored]
        declared = holder.declared(stored) and not worst.detail if holder and len(stored) > 1 else None
        parts = grouped(names, {name.name: name.parameter for name in group})
        yield LiveTie(
            names=names,
            sharing=worst.sharing,
            expected="",
            declared=declared,
            detail=worst.detail,
            parts=parts if len(parts) > 1 else (),
            kept_apart=holder.untied if holder else flagged.untied,
        )


def sharing(names: Iterable[LiveName]) -> Iterator[list[LiveName]]:
    """Groups of names that are one object, or views with elements in common."""
    by_storage: dict[tuple[str, int], list[LiveName]] = {}
    for name in names:
        key = ("storage", name.storage) if name.storage is not None else ("object", name.parameter)
        by_storage.setdefault(key, []).append(name)
    for together in by_storage.values():
        left = together
        while len(left) > 1:
            first, *rest = left
            mine = [
                name
                for name in rest
                if name.parameter == first.parameter or (name.storage is not None and _overlap(first, name) is not None)
            ]
            if mine:
                yield [first, *mine]
            left = [name for name in rest if name not in mine]
