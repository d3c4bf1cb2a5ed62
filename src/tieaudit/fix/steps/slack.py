"""This file holds the repairs of slack: storages larger than what is seen of them, bytes of no tensor, placeholders, training state."""

from __future__ import annotations

from ...bytewise import extent
from ...checkpoint import LoadedFile
from ...extents import covered
from ...names import Matrix
from ...text import exactly, listed
from ..draft import Draft
from ..model import Ground, Kept, Rewrite, Step
from ..writers import writer


def plan(draft: Draft) -> None:
    for file in draft.case.checkpoint.files:
        if file.format == "safetensors":
            _holes(draft, file)
        elif file.format.startswith("torch"):
            _storages(draft, file)
    _training_state(draft)
    _placeholders(draft)


def _holes(draft: Draft, file: LoadedFile) -> None:
    """A file whose only fault are bytes between the tensors: written again without them."""
    dead = sum(end - begin for begin, end in file.dead)
    if not dead or len(file.problems) != len(file.dead):
        return
    draft.rewritten.add(file.name)
    draft.steps.append(_without_dead("malformed-file", file, dead, "safetensors refuses a file with holes"))


def _without_dead(rule: str, file: LoadedFile, dead: int, why: str) -> Step:
    return Step(
        rule=rule,
        what=f"write {file.name} again without {exactly(dead)} that belong to no tensor",
        why=why,
        saves_bytes=dead,
        lost=f"{exactly(dead)} that no name says how to read",
    )


def _storages(draft: Draft, file: LoadedFile) -> None:
    least = max(1, draft.case.min_waste)
    seen: dict[str, list[tuple[int, int]]] = {}
    for tensor in file.tensors:
        seen.setdefault(tensor.storage.ident, []).append(extent(tensor))
    slack = {storage.ident: storage.nbytes - covered(seen[storage.ident]) for storage in file.storages if storage.ident in seen}
    wide = {ident: nbytes for ident, nbytes in slack.items() if nbytes >= least}
    unused = [storage for storage in file.storages if storage.nbytes and storage.ident not in seen]
    dead = sum(storage.nbytes for storage in unused) + sum(end - begin for begin, end in file.dead)
    if not wide and dead < least:
        return
    if not draft.converts and not _writable(draft, file):
        for rule, speaks in (("oversize-storage", bool(wide)), ("dead-bytes", dead >= least)):
            if speaks:
                draft.way(rule, "--to safetensors")
        return
    if wide:
        names = [tensor.name for tensor in file.tensors if tensor.storage.ident in wide]
        draft.rewritten.add(file.name)
        draft.steps.append(
            Step(
                rule="oversize-storage",
                what=f"store of {listed(names, 3)} in {file.name} only what is used",
                why="the storage was saved whole with a slice of it",
                saves_bytes=sum(wide.values()),
            )
        )
    if dead >= least:
        draft.rewritten.add(file.name)
        draft.steps.append(_without_dead("dead-bytes", file, dead, "nothing in the file refers to them"))


def _writable(draft: Draft, file: LoadedFile) -> bool:
    """Whether the file can be told again as it is; its other repairs must not wait for one that cannot be had."""
    whole = Rewrite(
        name=file.name, source=file.name, format="torch", tensors=tuple(Kept(name=one.name, tensor=one) for one in file.tensors)
    )
    own = writer("torch")
    return not file.problems and own is not None and not own.refuses(whole, draft.folder.open(file.name))


def _training_state(draft: Draft) -> None:
    for edition in draft.case.checkpoint.editions:
        if edition.run:
            continue
        for file in edition.files:
            state = [tensor for tensor in file.tensors if tensor.part == "optimizer" or (tensor.part and edition.kind == "training")]
            nbytes = sum({tensor.storage.ident: tensor.storage.nbytes for tensor in state}.values())
            if nbytes < max(1, draft.case.min_waste):
                continue
            if "training-state" not in draft.choices.drop:
                draft.way("training-state", "--drop training-state")
                continue
            if edition.kind == "training":
                draft.removed.add(file.name)
            else:
                draft.parts.add(file.name)
                draft.rewritten.add(file.name)
            draft.steps.append(
                Step(
                    rule="training-state",
                    what=f"leave the optimizer's state in {file.name} out",
                    why="asked for (--drop training-state)",
                    saves_bytes=nbytes,
                    lost="the run cannot be resumed from the new folder",
                )
            )


def _placeholders(draft: Draft) -> None:
    for case in draft.case.judged:
        ends = {matrix.main.name for state in case.ties for matrix in state.matrices}
        empty = [tensor for tensor in case.edition.weights if tensor.shape == (0,) or (tensor.numel == 0 and tensor.name in ends)]
        if not any(tensor.name.endswith("weight") for tensor in empty):
            continue
        if "placeholders" not in draft.choices.drop:
            draft.way("empty-tensor", "--drop placeholders")
            continue
        for tensor in empty:
            draft.remove(Matrix(tensor.name, (tensor,)), None, Ground.ASKED)
        draft.steps.append(
            Step(
                rule="empty-tensor",
                what=f"leave out {listed(tensor.name for tensor in empty)}",
                why="asked for (--drop placeholders)",
                lost="no bytes: the values were never in the file",
            )
        )
