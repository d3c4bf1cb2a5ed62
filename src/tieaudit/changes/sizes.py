"""This file holds why one side is larger than the other: bytes of files, cause by cause, adding up exactly.

What is counted are the files of weights that were read. Each storage counts once, under the first tensor that views it; what is left of a
file (header, graph, tokenizer, alignment) is "other".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..difference import Change, OneSided, SizePart, Sizes, TensorChange
from ..text import quantity
from .sides import Side, Unit

HEAD_AGAIN, TENSORS, OPTIMIZER, COPIES, UNUSED, REPEATED, OTHER = "head", "tensors", "optimizer", "copies", "unused", "repeated", "other"
SHOWN = 3  # causes that the sentence names
LITTLE = 0.02  # of the largest cause; below it a cause is not worth a word


class _Causes:
    """Bytes and tensors by (what, words)."""

    def __init__(self) -> None:
        self.nbytes: dict[tuple[str, str], int] = defaultdict(int)
        self.tensors: dict[tuple[str, str], int] = defaultdict(int)

    def add(self, what: str, words: str, nbytes: int, tensors: int = 1) -> None:
        if nbytes:
            self.nbytes[what, words] += nbytes
            self.tensors[what, words] += tensors


def account(
    before: Side,
    after: Side,
    pairs: Iterable[tuple[Unit, Unit, TensorChange]],
    lost: Iterable[tuple[Unit, OneSided]],
    added: Iterable[tuple[Unit, OneSided]],
) -> Sizes:
    """The causes of the difference, the largest first."""
    causes = _Causes()
    ours, theirs = _own(before), _own(after)
    for one, other, change in pairs:
        _pair(causes, one, other, change, _bytes(one, ours), _bytes(other, theirs))
    for unit, told in lost:
        _one_sided(causes, unit, told, -_bytes(unit, ours), gone=True)
    for unit, told in added:
        _one_sided(causes, unit, told, _bytes(unit, theirs), gone=False)
    for side, sign in ((before, -1), (after, 1)):
        for (what, words), nbytes in _beside(side).items():
            causes.add(what, words, sign * nbytes)
    totals = [sum(nbytes for _, nbytes in side.summary.files) for side in (before, after)]
    rest = totals[1] - totals[0] - sum(causes.nbytes.values())
    parts = [SizePart(what=what, words=words, nbytes=nbytes, tensors=causes.tensors[what, words])
             for (what, words), nbytes in causes.nbytes.items() if nbytes]  # fmt: skip
    if rest:
        parts.append(SizePart(what=OTHER, words="headers and metadata", nbytes=rest))
    parts.sort(key=lambda part: (part.what == OTHER, -abs(part.nbytes)))
    return Sizes(before=totals[0], after=totals[1], parts=tuple(parts), words=_sentence(totals, parts))


def _own(side: Side) -> Mapping[int, int]:
    """{id of a unit's first tensor: bytes that it adds to the files}: what another one views too counts once."""
    seen: set[tuple[str, str]] = set()
    found: dict[int, int] = {}
    for unit in side.units.values():
        nbytes = 0
        for part in unit.matrix.parts:
            key = (part.storage.file, part.storage.ident)
            if key not in seen:
                seen.add(key)
                nbytes += part.storage.nbytes
        found[id(unit.matrix.main)] = nbytes
    return found


def _bytes(unit: Unit, own: Mapping[int, int]) -> int:
    # a slice of a stack is none of the side's own units
    return own.get(id(unit.matrix.main), unit.matrix.nbytes if unit.part is not None else 0)


def _pair(causes: _Causes, one: Unit, other: Unit, change: TensorChange, before: int, after: int) -> None:
    difference = after - before
    if not difference:
        return
    rows = 0
    if Change.RESIZED in change.kinds and change.before.shape and change.after.shape:
        height, new = change.before.shape[0], change.after.shape[0]
        if before == one.matrix.nbytes and height and before % height == 0:
            rows = before // height * (new - height)
            words = f"{abs(new - height):,} rows {'more' if new > height else 'fewer'}"
            causes.add("rows", words, rows)
    rest = difference - rows
    if not rest:
        return
    packed = one.matrix.packed or other.matrix.packed or Change.QUANTISED in change.kinds
    if change.before.form != change.after.form:
        causes.add("quantisation" if packed else "dtype", f"{change.before.form} became {change.after.form}", rest)
    elif before != one.matrix.nbytes or after != other.matrix.nbytes:
        causes.add(REPEATED, "tensors that shared a storage on one side only", rest)
    else:
        causes.add(TENSORS, "tensors of another shape", rest)


def _one_sided(causes: _Causes, unit: Unit, told: OneSided, nbytes: int, *, gone: bool) -> None:
    if unit.role == "head" or told.tensor.role == "head":
        if gone:
            words = "the head is no longer stored by itself" if told.allowed else "the head is gone"
        else:
            turned = ", transposed" if "transposed" in told.reason else ""
            words = f"the head is stored again{turned}" if told.allowed else "a head of its own"
        causes.add(HEAD_AGAIN, words, nbytes)
    elif "constant of the graph" in told.reason:
        causes.add("graph", "constants of the graph", nbytes)
    elif unit.role == "embedding":
        causes.add(TENSORS, "the embedding is gone" if gone else "an embedding of its own", nbytes)
    else:
        causes.add(TENSORS, "tensors that are gone" if gone else "tensors that are new", nbytes)


def _beside(side: Side) -> Mapping[tuple[str, str], int]:
    """Bytes of the side's files that no unit of the compared edition accounts for."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    counted: set[tuple[str, str]] = set()
    mine = {id(file) for file in side.edition.files} if side.edition else set()
    in_units = {(part.storage.file, part.storage.ident) for unit in side.units.values() for part in unit.matrix.parts}
    kinds = {id(file): edition.kind for edition in side.checkpoint.editions for file in (*edition.files, *edition.strays)}
    names = {id(file): edition for edition in side.checkpoint.editions for file in edition.files}
    for file in side.checkpoint.files:
        parts = {(tensor.storage.file, tensor.storage.ident): tensor.part for tensor in file.tensors}
        for storage in file.storages:
            key = (storage.file, storage.ident)
            if key in counted or (id(file) in mine and key in in_units):
                continue
            counted.add(key)
            if parts.get(key) == "optimizer" or kinds.get(id(file)) == "training":
                found[OPTIMIZER, "optimizer state"] += storage.nbytes
            elif parts.get(key):
                found[OPTIMIZER, "other state of a training run"] += storage.nbytes
            elif id(file) not in mine:
                edition = names.get(id(file))
                found[COPIES, f"more weights beside it ({edition.name})" if edition else "files of weights that nothing names"] += (
                    storage.nbytes
                )
            elif key not in parts:
                found[UNUSED, "bytes that no tensor uses"] += storage.nbytes
            else:
                found[REPEATED, "tensors that are stored twice under one name"] += storage.nbytes
        dead = sum(end - begin for begin, end in file.dead)
        if dead:
            found[UNUSED, "bytes that no tensor uses"] += dead
    return found


def signed(nbytes: int) -> str:
    """`+0.5 GB`."""
    return f"{'+' if nbytes >= 0 else '-'}{quantity(abs(nbytes))}"


def _sentence(totals: list[int], parts: list[SizePart]) -> str:
    """`1.9 GB → 2.4 GB: the head is stored again, transposed (+0.5 GB)`."""
    before, after = map(quantity, totals)
    causes = [part for part in parts if part.what != OTHER]
    if totals[0] == totals[1]:
        return f"{before} on both sides" + (": " + _listed(causes) if causes else "")
    way = f"{before} → {after}"
    if before == after:
        way += f" ({signed(totals[1] - totals[0])})"
    if not causes:
        return f"{way}: only headers and metadata of the files differ"
    return f"{way}: {_listed(causes + [part for part in parts if part.what == OTHER])}"


def _listed(causes: list[SizePart]) -> str:
    largest = max(abs(part.nbytes) for part in causes)
    shown = [part for part in causes if abs(part.nbytes) >= LITTLE * largest][:SHOWN]
    rest = sum(part.nbytes for part in causes) - sum(part.nbytes for part in shown)
    words = [f"{part.words} ({signed(part.nbytes)})" for part in shown]
    if abs(rest) >= LITTLE * largest:
        words.append(f"the rest ({signed(rest)})")
    return ", ".join(words)
