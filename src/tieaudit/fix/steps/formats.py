"""This file holds the repairs of a folder with several editions, and torch files that become safetensors."""

from __future__ import annotations

import re

from ...checkpoint import Edition, TensorRecord
from ...dtypes import SAFETENSORS_DTYPES
from ...inspectors.rule import EditionCase
from ...kinds import Evidence, Kind
from ...names import Matrix, plain
from ...text import listed, quantity
from ..draft import EMBED, UNTIE, Draft, equal, nbytes_of, proved
from ..model import Ground, Removal, Step

SUFFIX = re.compile(r"\.(bin|pth?|ckpt)$")


def plan(draft: Draft) -> None:
    """Further editions go first: what is left out is not converted."""
    for pair in draft.case.format_pairs:
        if pair.differing or not pair.common:
            continue
        if "formats" not in draft.choices.drop:
            draft.way("duplicate-format", "--drop formats")
            continue
        _drop_edition(draft, pair.first, pair.second)
    draft.way("unsafe-pickle", "--to safetensors")
    if draft.converts:
        for edition in draft.case.checkpoint.editions:
            if edition.format.startswith("torch") and edition.kind in ("weights", "adapter") and not edition.run:
                _convert(draft, edition)


def _drop_edition(draft: Draft, first: Edition, second: Edition) -> None:
    ours = {plain(tensor.name): tensor for tensor in first.weights}
    found: list[Removal] = []
    for tensor in second.tensors:
        removal = _again(tensor, ours, second, draft)
        if removal is None:
            draft.refuse("duplicate-format", f"{second.name} cannot be left out: {tensor.name} is not proved to be in {first.name}")
            return
        found.append(removal)
    draft.removals.extend(found)
    names = {file.name for file in (*second.files, *second.strays)} | ({second.index.file} if second.index else set())
    draft.removed |= names
    draft.steps.append(
        Step(
            rule="duplicate-format",
            what=f"leave out {listed(sorted(names))}",
            why=f"asked for (--drop formats); {first.name} holds all of it",
            saves_bytes=sum(draft.folder.entry(name).nbytes for name in names),
            evidence=Evidence.PROVED,
        )
    )


def _again(tensor: TensorRecord, ours: dict[str, TensorRecord], second: Edition, draft: Draft) -> Removal | None:
    """The proof that the first edition holds this tensor: under its name, or under that of another view of it."""
    names = [tensor.name, *(other.name for other in second.tensors if other is not tensor and other.view == tensor.view)]
    kept = next((ours[plain(name)] for name in names if plain(name) in ours), None)
    if kept is None or tensor.part:
        return None
    one, other = Matrix(tensor.name, (tensor,)), Matrix(kept.name, (kept,))
    kind = Kind.EQUAL if equal(kept, tensor, draft.data) else Kind.CAST
    removal = Removal(dropped=one, kept=other, ground=Ground.PROVED, kind=kind)
    return removal if kind is Kind.EQUAL or proved(removal, draft.data) else None


def converted(name: str) -> str:
    """Name of the safetensors file that a torch file becomes."""
    name = SUFFIX.sub(".safetensors", name)
    return re.sub(r"^pytorch_model\b", "model", name)


def _convert(draft: Draft, edition: Edition) -> None:
    names = [file.name for file in (*edition.files, *edition.strays) if file.name not in draft.removed]
    if not names:
        return
    for name in names:
        if draft.folder.exists(converted(name)):
            draft.refuse("unsafe-pickle", f"{name} would become {converted(name)}, which is there",
                         ("--drop formats", "leaves out the edition that is proved to be there twice"))  # fmt: skip
            return
    for file in (*edition.files, *edition.strays):
        if file.problems or file.unread:
            why = file.problems[0].what if file.problems else file.unread[0]
            draft.refuse("malformed-file", f"{file.name} cannot become safetensors: {why}")
            return
        odd = [tensor for tensor in file.tensors if not tensor.part and tensor.dtype not in SAFETENSORS_DTYPES]
        if odd:
            draft.refuse("malformed-file", f"{file.name} cannot become safetensors: {odd[0].name} is {odd[0].dtype}")
            return
        if any(tensor.part for tensor in file.tensors) and "training-state" not in draft.choices.drop:
            draft.refuse("training-state", f"{file.name} holds more than weights, which safetensors does not",
                         ("--drop training-state", "leaves it out"))  # fmt: skip
            return
        draft.rewritten.add(file.name)
        if any(tensor.part for tensor in file.tensors):
            draft.parts.add(file.name)
    _shared(draft, edition)
    unsafe = any(found.danger for file in edition.files for found in file.globals)
    rule = "unsafe-pickle" if unsafe else ""
    draft.steps.append(
        Step(
            rule=rule,
            what=f"{listed(names)} become{'s' * (len(names) == 1)} {listed(map(converted, names))}",
            why="asked for (--to safetensors); nothing in a pickle is run on the way",
            lost="values of the pickle that are no tensors",
        )
    )


def _shared(draft: Draft, edition: Edition) -> None:
    """Names of one storage: safetensors holds a matrix under one name. A tied alias is left out, another needs a word of the user."""
    case = next(case for case in draft.case.editions if case.edition is edition)
    views: dict[object, list[TensorRecord]] = {}
    for tensor in edition.weights:
        if tensor.nbytes and (tensor.file, tensor.name) not in draft.kept_for:
            views.setdefault(tensor.view, []).append(tensor)
    for group in (group for group in views.values() if len(group) > 1):
        tied = _tied(case, group)
        keep = tied[0] if tied else group[0]
        for tensor in (tensor for tensor in group if tensor is not keep):
            if tensor in tied or draft.choices.tie:
                draft.remove(Matrix(tensor.name, (tensor,)), Matrix(keep.name, (keep,)), Ground.PROVED)
            elif not draft.choices.untie:
                draft.refuse(
                    "unwanted-alias",
                    f"{tensor.name} and {keep.name} are one matrix in {tensor.file}, and safetensors holds a matrix under one name",
                    (EMBED, f"leaves {tensor.name} out, with a note in the file"),
                    (UNTIE, f"stores it again ({quantity(nbytes_of([tensor]))} more)"),
                )


def _tied(case: EditionCase, group: list[TensorRecord]) -> list[TensorRecord]:
    """Those of the names that the claim ties, the canonical one first."""
    for state in case.ties:
        if state.holder and any(tensor is state.holder.main for tensor in group):
            others = [pair.second.main for pair in state.pairs if pair.tied]
            found = [state.holder.main, *(tensor for tensor in group if any(tensor is other for other in others))]
            return found if len(found) > 1 else []
    return []
