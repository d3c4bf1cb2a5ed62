"""Family 2: bytes that are stored more than once although no tie of the claim explains it, and constants."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..checkpoint import LoadedFile, TensorRecord
from ..kinds import Evidence, Kind, Relation
from ..kinds import weakest as weakest_of
from ..names import Matrix
from ..report import Severity
from ..text import exactly, listed
from .rule import Across, Case, EditionCase, Problem, place, places, rule, wasted
from .verdicts import speaking

# extra layers for multi-token prediction and speculative decoding keep their own ends (DeepSeek-V3, GLM-4.5, Qwen3-Next, EAGLE)
BY_DESIGN = re.compile(r"(?:^|\.)(?:mtp\w*|nextn\w*|shared_head|eagle\w*|draft\w*|medusa\w*|speculator\w*)\.")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def _unexplained(edition_case: EditionCase) -> Iterator[tuple[tuple[TensorRecord, ...], Evidence]]:
    """Groups of copies with one name kept of each tie group that the family 0 has judged."""
    judged = [
        {matrix.parts[at].name for matrix in state.matrices if at < len(matrix.parts)}
        for state in edition_case.ties
        if state.pairs
        for at in range(max(len(matrix.parts) for matrix in state.matrices))
    ]
    for copies in edition_case.scan.copies:
        left = list(copies.tensors)
        for names in judged:
            inside = [tensor for tensor in left if tensor.name in names]
            left = [tensor for tensor in left if tensor not in inside[1:]]
        if len(left) > 1:
            yield tuple(left), copies.evidence


def _is_by_design(name: str, case: Case) -> bool:
    if BY_DESIGN.search(name):
        return True
    layer = LAYER.search(name)
    depth = case.config.at("num_hidden_layers") if case.config else None
    extra = case.config.at("num_nextn_predict_layers") if case.config else None
    return bool(layer) and type(depth) is int and type(extra) is int and extra > 0 and layer is not None and int(layer[1]) >= depth


@rule(201, Severity.WARNING)
def duplicate_tensor(case: Case) -> Iterator[Problem]:
    """Two or more tensors hold the same bytes, and no tie of the architecture explains it.

    What it does: groups tensors by length, then by pages, then compares them whole.
    Why is this bad: the bytes are stored (and loaded) more than once; often a merge or an export copied a layer by mistake.
    Not counted: constants, vectors, tensors that a formula fixes (`A_log`, `inv_freq`, masks), copies that a format asks for.
    """
    for edition_case in case.judged:
        for tensors, evidence in _unexplained(edition_case):
            rest = [tensor for tensor in tensors if not _is_by_design(tensor.name, case)]
            if len(rest) < 2:
                continue
            first, *others = rest
            yield Problem(
                message=f"{listed(tensor.name for tensor in others)} repeat{'s' * (len(others) == 1)} {first.name} "
                f"({exactly(sum(tensor.nbytes for tensor in others))} wasted)",
                tensors=tuple(place(tensor) for tensor in rest),
                waste=wasted(*others),
                evidence=evidence,
            )


@rule(202, Severity.WARNING)
def transposed_copy(case: Case) -> Iterator[Problem]:
    """A matrix is stored once more with rows and columns swapped.

    What it does: compares the embedding and the head with every matrix of the swapped shape.
    Why is this bad: the bytes are stored twice; exports that fold a transpose into a constant do it.
    """
    for edition_case in case.judged:
        for first, second, relation in edition_case.related:
            if relation.kind is Kind.TRANSPOSED:
                yield Problem(
                    message=f"{second.name} is {first.name} transposed ({exactly(second.nbytes)} wasted)",
                    tensors=(place(first), place(second)),
                    waste=wasted(second),
                    evidence=relation.evidence,
                )
    for situation in speaking(case, "transposed-copy"):
        first_end, second_end = situation.holder, situation.second
        if first_end is None or second_end is None or situation.relation is None:
            continue
        yield Problem(
            message=f"{second_end.name} is {first_end.name} transposed ({exactly(second_end.nbytes)} wasted)",
            tensors=places(first_end, second_end),
            waste=wasted(*second_end.parts),
            evidence=situation.relation.evidence,
            fix=_proved(situation.relation.evidence, situation.group.advice) or None,
        )


def _proved(evidence: Evidence, advice: str) -> str:
    """A matrix may be left out only if every byte of it was compared."""
    return advice if evidence is Evidence.PROVED or not advice else f"prove it first (--verify full, or a local copy); then {advice}"


@rule(203, Severity.WARNING)
def cast_duplicate(case: Case) -> Iterator[Problem]:
    """A tensor is stored once more in another dtype.

    What it does: compares tensors of one shape and the same last name parts that are stored in different dtypes.
    Why is this bad: a master copy was left in the file; readers load the one that they know by name.
    """
    for edition_case in case.judged:
        for first, second, relation in edition_case.related:
            spare = [tensor for tensor in (first, second) if tensor.name == relation.redundant]
            if relation.kind is Kind.CAST and spare:
                yield Problem(
                    message=f"{first.name} and {second.name} are one tensor: {relation.detail} ({exactly(spare[0].nbytes)} wasted)",
                    tensors=(place(first), place(second)),
                    waste=wasted(*spare),
                    evidence=relation.evidence,
                )


@rule(204, Severity.NOTE)
def by_design_copy(case: Case) -> Iterator[Problem]:
    """A layer for multi-token prediction or a drafter carries its own copy of embedding or head.

    What it does: recognises copies under such a layer's name.
    Programs of one export that each hold a matrix (encoder, decoder, decoder with past) are counted together.
    Why is this worth knowing: the bytes repeat, but readers of the format ask for these names.
    """
    for edition_case in case.judged:
        firsts: list[TensorRecord] = []
        repeated: list[TensorRecord] = []
        weakest = Evidence.PROVED
        for tensors, evidence in _unexplained(edition_case):
            copies = [tensor for tensor in tensors if _is_by_design(tensor.name, case)]
            others = [tensor for tensor in tensors if tensor not in copies]
            first = (others or tensors)[0]
            again = [tensor for tensor in copies if tensor is not first]
            if again:
                firsts.append(first)
                repeated.extend(again)
                weakest = evidence
        if repeated:
            yield Problem(
                message=f"{listed(tensor.name for tensor in repeated)} repeat{'s' * (len(repeated) == 1)} "
                f"{listed(tensor.name for tensor in firsts)} by design of the prediction layer "
                f"({exactly(sum(tensor.nbytes for tensor in repeated))})",
                tensors=tuple(place(tensor) for tensor in (*firsts, *repeated)),
                evidence=weakest,
            )
    if case.across:
        told = listed((_across(pair) for pair in case.across), 6)
        yield Problem(
            message=f"{told}; each file is a program that runs without the others",
            tensors=tuple(place(tensor) for pair in case.across for both in pair.pairs[:5] for tensor in both)[:50],
            evidence=case.across[0].evidence,
        )
    alike: dict[tuple[str, str, str], list[tuple[Matrix, Matrix, Relation]]] = {}
    for situation in speaking(case, "by-design-copy"):
        if situation.holder and situation.second and situation.relation:
            key = (situation.holder.name, situation.second.name, situation.group.source)
            alike.setdefault(key, []).append((situation.holder, situation.second, situation.relation))
    for (kept, copy, source), found in alike.items():  # once for all ranks of a run
        ranks = f" on each of {len(found):,} ranks" if len(found) > 1 else ""
        yield Problem(
            message=f"{copy} repeats {kept}{ranks}, as this format of a training run does "
            f"({exactly(sum(second.nbytes for _, second, _ in found))}; {source})",
            tensors=tuple(one for first, second, _ in found for one in places(first, second))[:50],
            evidence=weakest_of(relation.evidence for _, _, relation in found),
        )


def _across(pair: Across) -> str:
    count = len(pair.pairs)
    nbytes = sum(second.nbytes for _, second in pair.pairs)
    return f"{pair.second.name} repeats {count:,} matri{'x' if count == 1 else 'ces'} of {pair.first.name} ({exactly(nbytes)})"


@rule(205, Severity.NOTE)
def constant_tensor(case: Case) -> Iterator[Problem]:
    """A matrix is one number repeated.

    What it does: looks at pages of every matrix; a head or an embedding that is constant is a warning.
    Why is this bad: a zero head gives every token the same logit; it was never filled, or lost on the way.
    """
    for edition_case in case.judged:
        claim = edition_case.claim
        ends = {name for state in edition_case.ties if state.group.role == "embedding-head" for name in state.group.names}
        ends |= {name for name in (claim.embedding, claim.head) if name}
        found = {matrix.main.name for matrix in (edition_case.stored.find(name, claim.other_names) for name in ends) if matrix}
        rest = []
        for tensor in edition_case.scan.constants:
            if tensor.name in found:
                yield Problem(
                    message=f"every element of {tensor.name} is the same number",
                    tensors=(place(tensor),),
                    severity=Severity.WARNING,
                    evidence=Evidence.SAMPLED,
                )
            else:
                rest.append(tensor)
        if rest:
            yield Problem(
                message=f"{len(rest):,} matri{'x is' if len(rest) == 1 else 'ces are'} one number repeated: "
                f"{listed((tensor.name for tensor in rest), 3)}",
                tensors=tuple(place(tensor) for tensor in rest[:100]),
                evidence=Evidence.SAMPLED,
            )


@rule(206, Severity.NOTE)
def duplicate_format(case: Case) -> Iterator[Problem]:
    """The folder holds the same weights in two formats.

    What it does: compares two editions name by name; an alias that one of them leaves out is no difference.
    Why is this worth knowing: a plain download fetches both.
    """
    for pair in case.format_pairs:
        if pair.differing or not pair.common:
            continue
        waste = tuple((file.name, "all", _tensor_bytes(file)) for file in pair.second.files)
        yield Problem(
            message=f"{pair.second.name} holds the same weights as {pair.first.name} ({exactly(sum(nbytes for _, _, nbytes in waste))})",
            waste=waste,
            evidence=pair.evidence,
            fix=f"remove {pair.second.name} if no reader needs it"
            if not pair.left
            else f"compare more than {pair.common - pair.left:,} of {pair.common:,} tensors first (--verify full, or a local copy); "
            f"then remove {pair.second.name} if no reader needs it",
        )


def _tensor_bytes(file: LoadedFile) -> int:
    """As `nbytes.stored` counts them: storages and dead bytes, not headers."""
    return sum({storage.ident: storage.nbytes for storage in file.storages}.values()) + sum(end - begin for begin, end in file.dead)


@rule(207, Severity.ERROR)
def format_mismatch(case: Case) -> Iterator[Problem]:
    """The folder holds two editions of the model that disagree.

    What it does: compares shapes and pages of the tensors that both editions name. A cast is no disagreement.
    Why is this bad: which weights a user gets depends on the reader and on what is installed.
    Use instead: save both from the same model, or remove the stale one.
    """
    for pair in case.format_pairs:
        if not pair.differing:
            continue
        names = [first.name for first, _ in pair.differing]
        yield Problem(
            message=f"{pair.second.name} and {pair.first.name} disagree on {len(names):,} of {pair.common:,} tensors: {listed(names)}",
            tensors=tuple(place(tensor) for both in pair.differing[:50] for tensor in both),
            evidence=pair.evidence,
            fix="remove the stale one, or save both from the same model",
        )


RULES = (
    duplicate_tensor, transposed_copy, cast_duplicate, by_design_copy, constant_tensor, duplicate_format, format_mismatch,
)  # fmt: skip
