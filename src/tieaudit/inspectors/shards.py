"""Family 4: the index against the shards. An index is a claim; the headers of the shards decide."""

from __future__ import annotations

from collections.abc import Iterator

from ..kinds import Kind
from ..report import Severity, TensorPlace
from ..text import exactly, listed
from .rule import Case, EditionCase, Problem, place, rule, wasted


def _aliases(edition_case: EditionCase) -> set[str]:
    """Names that need not be stored: the writer's own notes, and the tied names of the claim."""
    tied = {name for state in edition_case.ties if state.holder for name, is_tied, _ in state.absent if is_tied}
    return tied | set(edition_case.edition.aliases)


@rule(401, Severity.ERROR)
def phantom_tensor(case: Case) -> Iterator[Problem]:
    """The index names a tensor that no shard holds.

    What it does: looks every name of `weight_map` up in the headers of the shards.
    Why is this bad: transformers 4 leaves such a weight on the meta device or random without a word.
    Use instead: write the index from what was really saved. A note if the name is a declared alias of a stored tensor, a warning if
    the tensor is in another shard than the index says.
    """
    for edition_case in case.judged:
        edition = edition_case.edition
        if edition.index is None:
            continue
        held = {file.name: {tensor.name for tensor in file.tensors} for file in edition.files}
        read = {file.name for file in edition.files if not file.problems}
        aliases = _aliases(edition_case)
        lost: list[tuple[str, str]] = []
        declared: list[tuple[str, str]] = []
        moved: list[tuple[str, str]] = []
        for name, file_name in edition.index.weight_map.items():
            if file_name not in read or name in held[file_name]:
                continue
            elsewhere = any(name in names for names in held.values())
            (moved if elsewhere else declared if name in aliases else lost).append((name, file_name))
        for names, severity, words in (
            (lost, None, "in no shard"),
            (moved, Severity.WARNING, "in another shard than the index says"),
            (declared, Severity.NOTE, "left out as a declared alias"),
        ):
            if names:
                yield Problem(
                    message=f"{edition.index.file} names {len(names):,} tensor{'s that are' if len(names) > 1 else ' that is'} {words}: "
                    f"{listed(f'{name} ({file})' for name, file in names)}",
                    tensors=tuple(TensorPlace(name, file, None, 0) for name, file in names[:100]),
                    severity=severity,
                    fix="write the index again from the shards",
                )


@rule(402, Severity.WARNING)
def orphan_tensor(case: Case) -> Iterator[Problem]:
    """A tensor is stored that the index does not name: bytes that many readers never open.

    What it does: compares the headers of all shards, and of files beside them that look like shards, with `weight_map`.
    Why is this bad: the bytes are stored for nothing, or weights are silently missing after loading.
    Use instead: add the tensors to the index, or remove them.
    """
    for edition_case in case.judged:
        edition = edition_case.edition
        if edition.index is None:
            continue
        for file in (*edition.files, *edition.strays):
            stray = file in edition.strays
            orphans = [tensor for tensor in file.tensors if stray or tensor.name not in edition.index.weight_map]
            if orphans:
                yield Problem(
                    message=f"{file.name} holds {len(orphans):,} tensor{'s' * (len(orphans) > 1)} that {edition.index.file} does not name: "
                    f"{listed(tensor.name for tensor in orphans)} ({exactly(sum(tensor.nbytes for tensor in orphans))})",
                    tensors=tuple(place(tensor) for tensor in orphans[:100]),
                    waste=wasted(*orphans),
                    fix="add them to the index, or remove them",
                )


@rule(403, Severity.ERROR)
def missing_shard(case: Case) -> Iterator[Problem]:
    """A shard is not there.

    What it does: looks for every file that the index or the numbering of the shards names.
    Why is this bad: loading fails, or the weights of the shard are random.
    Use instead: copy or download the shard again.
    """
    for edition in case.checkpoint.editions:
        if edition.missing:
            by = edition.index.file if edition.index else "the numbering of the others"
            count = len(edition.missing)
            yield Problem(
                message=f"{count:,} shard{'s are' if count > 1 else ' is'} missing, by {by}: {listed(edition.missing)}",
                fix="fetch the missing files; until then nothing is said about tensors that are absent",
            )


@rule(404, Severity.WARNING)
def repeated_tensor(case: Case) -> Iterator[Problem]:
    """One name is stored in two shards.

    What it does: compares the two. An error if they differ: which one is loaded depends on the order of reading.
    Why is this bad: bytes are wasted, or the model depends on chance.
    """
    for edition_case in case.judged:
        for first, second, relation in edition_case.repeats:
            same = relation.kind in (Kind.EQUAL, Kind.SAME_STORAGE, Kind.CONSTANT)
            unknown = relation.kind is Kind.NOT_COMPARED
            words = "with the same values" if same else "" if unknown else "with other values"
            yield Problem(
                message=f"{second.name} is stored in {first.file} and again in {second.file} {words}".rstrip(),
                tensors=(place(first), place(second)),
                severity=None if same or unknown else Severity.ERROR,
                waste=wasted(second) if same else (),
                evidence=relation.evidence,
                fix="keep it in one shard",
            )


@rule(405, Severity.NOTE)
def stale_total_size(case: Case) -> Iterator[Problem]:
    """`total_size` of the index is not the sum of the tensors.

    What it does: adds up the stored bytes.
    Why is this worth knowing: device maps are planned with it.
    """
    for edition_case in case.judged:
        edition = edition_case.edition
        total = edition.index.total_size if edition.index else None
        stored = sum(tensor.nbytes for tensor in edition.tensors)
        if edition.index and total is not None and edition.whole and total != stored:
            yield Problem(message=f"{edition.index.file} says total_size {total:,}, the shards hold {exactly(stored)}")


RULES = (phantom_tensor, orphan_tensor, missing_shard, repeated_tensor, stale_total_size)
