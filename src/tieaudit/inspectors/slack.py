"""Family 3: bytes that no tensor needs, tensors without bytes, and state that only training needs."""

from __future__ import annotations

from collections.abc import Iterator

from ..bytewise import extent
from ..checkpoint import LoadedFile, Storage, TensorRecord
from ..extents import Extent, covered
from ..report import Severity, TensorPlace
from ..text import exactly, listed
from .rule import Case, Problem, place, rule


def _views(file: LoadedFile) -> dict[str, tuple[Storage, list[TensorRecord], list[Extent]]]:
    """Every storage of the file with the tensors that view it and the extents that they touch."""
    views: dict[str, tuple[Storage, list[TensorRecord], list[Extent]]] = {storage.ident: (storage, [], []) for storage in file.storages}
    for tensor in file.tensors:
        _, tensors, extents = views.setdefault(tensor.storage.ident, (tensor.storage, [], []))
        tensors.append(tensor)
        extents.append(extent(tensor))
    return views


@rule(301, Severity.WARNING)
def oversize_storage(case: Case) -> Iterator[Problem]:
    """A storage is saved whole, but its tensors see only a part of it.

    What it does: adds up which bytes of every storage are seen by any tensor; disjoint views that cover it are healthy.
    Why is this bad: `torch.save` of a slice writes the whole storage; files get 2 to 250 times too large. The same flat buffer can
    be repeated in every shard.
    Use instead: `tensor.clone()` before saving.
    """
    for file in case.checkpoint.files:
        if file.format == "safetensors":
            continue
        found: list[tuple[Storage, list[TensorRecord], int]] = []
        for storage, tensors, extents in _views(file).values():
            unseen = storage.nbytes - covered(extents)
            if tensors and unseen >= max(1, case.min_waste):
                found.append((storage, tensors, unseen))
        if not found:
            continue
        unseen = sum(nbytes for _, _, nbytes in found)
        stored = sum(storage.nbytes for storage, _, _ in found)
        names = [tensor.name for _, tensors, _ in found for tensor in tensors]
        yield Problem(
            message=f"{file.name}: {listed(names, 3)} use {exactly(stored - unseen)} of storages of {exactly(stored)}",
            tensors=tuple(place(tensor) for _, tensors, _ in found[:50] for tensor in tensors[:4]),
            waste=tuple((file.name, f"slack of {storage.ident}", nbytes) for storage, _, nbytes in found),
            cause="a slice was saved with its whole storage",
            fix="clone the tensors before saving: {name: tensor.clone() for …}",
        )


@rule(302, Severity.WARNING)
def dead_bytes(case: Case) -> Iterator[Problem]:
    """Bytes of the file belong to no tensor.

    What it does: finds storages that nothing refers to and data behind the last one.
    Why is this bad: they are stored and downloaded for nothing, and may be weights that a broken writer lost.
    (In safetensors such bytes break the format: malformed-file.)
    """
    for file in case.checkpoint.files:
        viewed = {tensor.storage.ident for tensor in file.tensors}
        unused = [storage for storage in file.storages if storage.nbytes and storage.ident not in viewed]
        total = sum(storage.nbytes for storage in unused) + sum(end - begin for begin, end in file.dead)
        if total < max(1, case.min_waste):
            continue
        where = [f"storage {storage.ident}" for storage in unused] + [f"bytes {begin:,} to {end:,}" for begin, end in file.dead]
        yield Problem(
            message=f"{file.name}: {exactly(total)} belong to no tensor ({listed(where, 3)})",
            tensors=tuple(TensorPlace("", file.name, begin, end - begin) for begin, end in file.dead[:50]),
            waste=(
                *((file.name, f"{storage.ident}+0", storage.nbytes) for storage in unused),
                *((file.name, f"dead {begin}", end - begin) for begin, end in file.dead),
            ),
        )


@rule(303, Severity.ERROR)
def empty_tensor(case: Case) -> Iterator[Problem]:
    """A weight has no elements: a placeholder was saved instead of the values.

    What it does: looks for weights without elements.
    Why is this bad: DeepSpeed ZeRO-3 leaves such placeholders when parameters are not gathered before saving; the weights are lost.
    Use instead: `zero_to_fp32.py`, or `stage3_gather_16bit_weights_on_model_save`.
    """
    for edition_case in case.judged:
        ends = {matrix.main.name for state in edition_case.ties for matrix in state.matrices}
        empty = [tensor for tensor in edition_case.edition.weights if tensor.shape == (0,) or (tensor.numel == 0 and tensor.name in ends)]
        if any(tensor.name.endswith("weight") for tensor in empty):
            yield Problem(
                message=f"{edition_case.edition.name}: {len(empty):,} tensor{'s' * (len(empty) > 1)} without elements: "
                f"{listed(tensor.name for tensor in empty)}",
                tensors=tuple(place(tensor) for tensor in empty[:100]),
                cause="placeholders of DeepSpeed ZeRO-3, saved without gathering the parameters"
                if any(tensor.shape == (0,) for tensor in empty)
                else None,
                fix="gather the weights and save again (zero_to_fp32.py)",
            )


@rule(304, Severity.NOTE)
def training_state(case: Case) -> Iterator[Problem]:
    """The files carry state that only a training run needs.

    What it does: adds up the tensors of optimizers, in files of their own or beside the weights.
    Why is this worth knowing: Adam's two moments in FP32 take four times the bytes of BF16 weights.
    """
    runs = [edition for edition in case.checkpoint.editions if edition.run]
    for edition in case.checkpoint.editions:
        # a run has such files for each of its ranks: they are told together
        groups: list[tuple[str, tuple[LoadedFile, ...]]] = [(file.name, (file,)) for file in edition.files]
        if edition.run:
            ranks = f" and {len(runs) - 1:,} more rank{'s' * (len(runs) > 2)}" if len(runs) > 1 else ""
            groups = [(edition.name + ranks, tuple(file for run in runs for file in run.files))] if edition is runs[0] else []
        for name, files in groups:
            tensors = (tensor for file in files for tensor in file.tensors)
            state = [tensor for tensor in tensors if tensor.part == "optimizer" or (tensor.part and edition.kind == "training")]
            nbytes = sum({(tensor.file, tensor.storage.ident): tensor.storage.nbytes for tensor in state}.values())
            if nbytes >= max(1, case.min_waste):
                yield Problem(
                    message=f"{name}: {exactly(nbytes)} of optimizer state in {len(state):,} tensors",
                    tensors=tuple(place(tensor) for tensor in state[:20]),
                    fix="leave it out of a release",
                )


RULES = (oversize_storage, dead_bytes, empty_tensor, training_state)
