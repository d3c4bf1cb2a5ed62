"""This file holds the repairs of an index and of its shards: names that nothing holds, a size that is stale, one name stored twice."""

from __future__ import annotations

from ...checkpoint import Edition
from ...kinds import Evidence, Kind
from ...names import Matrix
from ...text import exactly, listed
from ..draft import Draft, nbytes_of
from ..model import Ground, Step


def plan(draft: Draft) -> None:
    for case in draft.case.judged:
        edition = case.edition
        for first, second, relation in case.repeats:
            if relation.kind is not Kind.EQUAL or relation.evidence is not Evidence.PROVED:
                continue
            said = edition.index.weight_map.get(first.name) if edition.index else None
            kept, dropped = (second, first) if said == second.file else (first, second)
            draft.remove(Matrix(dropped.name, (dropped,)), Matrix(kept.name, (kept,)), Ground.PROVED)
            draft.steps.append(
                Step(
                    rule="repeated-tensor",
                    what=f"leave {dropped.name} out of {dropped.file}",
                    why=f"{kept.file} holds it too, byte for byte",
                    saves_bytes=dropped.nbytes,
                    evidence=Evidence.PROVED,
                )
            )
        if edition.index is None:
            continue
        if edition.whole:
            held = {file.name: {tensor.name for tensor in file.tensors} for file in edition.files}
            wrong = [name for name, file in edition.index.weight_map.items() if name not in held.get(file, ())]
            if wrong:
                draft.reindexed.add(edition.index.file)
                draft.steps.append(
                    Step(
                        rule="phantom-tensor",
                        what=f"write {edition.index.file} again from the shards",
                        why=f"it names {listed(wrong)}, and not the shard that holds {'it' if len(wrong) == 1 else 'them'}",
                        lost="nothing that is stored; what no shard holds must come from the training run"
                        if any(not any(name in names for names in held.values()) for name in wrong)
                        else "",
                    )
                )
            total = edition.index.total_size
            if total is not None and total != nbytes_of(edition.tensors):
                draft.reindexed.add(edition.index.file)
                draft.steps.append(
                    Step(
                        rule="stale-total-size",
                        what=f"write total_size of {edition.index.file} again",
                        why=f"it says {total:,}, the shards hold {exactly(nbytes_of(edition.tensors))}",
                    )
                )
        _orphans(draft, case.edition)


def _orphans(draft: Draft, edition: Edition) -> None:
    index = edition.index
    if index is None:
        return
    inside = [tensor for file in edition.files for tensor in file.tensors if tensor.name not in index.weight_map]
    if not inside and not edition.strays:
        return
    if "orphans" not in draft.choices.drop:
        draft.way("orphan-tensor", "--drop orphans")
        return
    for tensor in inside:
        draft.remove(Matrix(tensor.name, (tensor,)), None, Ground.ASKED)
    draft.removed.update(file.name for file in edition.strays)
    lost = [*inside, *(tensor for file in edition.strays for tensor in file.tensors)]
    draft.steps.append(
        Step(
            rule="orphan-tensor",
            what=f"leave out what {index.file} does not name: {listed(tensor.name for tensor in lost)}",
            why="asked for (--drop orphans)",
            saves_bytes=nbytes_of(lost),
            lost=f"{exactly(nbytes_of(lost))} of tensors",
        )
    )
