"""This file holds the repairs of formats that no config governs: GGUF's second end, and initializers of ONNX that are stored twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...checkpoint import Edition, LoadedFile, TensorRecord
from ...errors import FormatError
from ...inspectors.duplicates import BY_DESIGN
from ...inspectors.rule import EditionCase
from ...inspectors.verdicts import Situation, situations
from ...kinds import Evidence, Kind
from ...loaders.protobuf import Exhausted
from ...names import Matrix
from ..draft import Draft, Key, key, proved
from ..model import Ground, Removal, Step

TIED = "duplicate-tie"
_RULES = {TIED: Kind.EQUAL, "transposed-copy": Kind.TRANSPOSED}


def plan(draft: Draft) -> None:
    """With --untie both matrices are wanted: nothing is left out."""
    if draft.choices.untie:
        return
    for situation in situations(draft.case):
        if situation.edition.format == "gguf" and situation.verdict.rule == TIED:
            _second_end(draft, situation)
    for case in draft.case.judged:
        if case.edition.format == "onnx":
            _initializers(draft, case)


def counted(draft: Draft, edition: Edition) -> dict[str, str]:
    """The key of a split GGUF that says how many tensors all parts list."""
    left = sum(1 for tensor in edition.tensors if key(tensor) not in draft.kept_for)
    return {"split.tensors.count": str(left)}


def instead(draft: Draft, file: LoadedFile) -> Mapping[str, tuple[str, bool]]:
    """What nodes of an ONNX model read in the place of what is left out, after all steps."""
    kinds = {key(removal.dropped.main): removal.kind for removal in draft.removals}
    found: dict[str, tuple[str, bool]] = {}
    for tensor in file.tensors:
        if key(tensor) in draft.kept_for:
            root, swapped = _root(draft, tensor, kinds)
            found[tensor.name] = (root.name, swapped)
    return found


def _root(draft: Draft, tensor: TensorRecord, kinds: Mapping[Key, Kind]) -> tuple[TensorRecord, bool]:
    """The tensor that stays for this one, and whether it must be transposed."""
    swapped = False
    while (stays := draft.kept_for.get(key(tensor))) is not None:
        swapped ^= kinds[key(tensor)] is Kind.TRANSPOSED
        tensor = stays
    return tensor, swapped


def _second_end(draft: Draft, situation: Situation) -> None:
    """`output.weight`, of architectures whose loader takes the embedding where it is not stored: of others the rule does not speak."""
    holder, second, relation = situation.holder, situation.second, situation.relation
    if holder is None or second is None or relation is None or draft.gone(second) or draft.gone(holder):
        return
    if relation.kind is not Kind.EQUAL or relation.evidence is not Evidence.PROVED:
        return
    draft.remove(second, holder, Ground.PROVED)
    if len(situation.edition.files) > 1:
        draft.rewritten.update(file.name for file in situation.edition.files)  # each part says how many tensors there are in all
    draft.steps.append(
        Step(
            rule=TIED,
            what=f"leave out {second.name}",
            why=f"it is {holder.name} again, byte for byte: readers of GGUF take that where {second.name} is not stored",
            saves_bytes=second.nbytes,
            evidence=Evidence.PROVED,
        )
    )


@dataclass(slots=True)
class _Merging:
    """One ONNX model. `pinned`: tables of the embedding, which stay as they are; `left`: rules of pairs that cannot be merged here."""

    draft: Draft
    named: frozenset[str]
    pinned: set[Key]
    left: set[str] = field(default_factory=set)

    def merge(self, rule: str, one: TensorRecord, other: TensorRecord, kind: Kind) -> None:
        """Let one initializer stand for both, if the bytes prove that of those which are still there."""
        draft = self.draft
        if one.name not in self.named or other.name not in self.named or key(one) == key(other):
            self.left.add(rule)
            return
        kinds = {key(removal.dropped.main): removal.kind for removal in draft.removals}
        (kept, first), (dropped, second) = _root(draft, one, kinds), _root(draft, other, kinds)
        if key(kept) == key(dropped):
            return
        if key(dropped) in self.pinned and key(kept) not in self.pinned:
            kept, dropped = dropped, kept
        swapped = (kind is Kind.TRANSPOSED) ^ first ^ second
        removal = Removal(
            dropped=Matrix(dropped.name, (dropped,)),
            kept=Matrix(kept.name, (kept,)),
            ground=Ground.PROVED,
            kind=Kind.TRANSPOSED if swapped else Kind.EQUAL,
        )
        # of the very pair that was given every byte is compared already
        shown = {key(kept), key(dropped)} == {key(one), key(other)}
        if (swapped and len(kept.shape) != 2) or not (shown or proved(removal, draft.data)):
            self.left.add(rule)
            return
        draft.removals.append(removal)
        draft.kept_for[key(dropped)] = kept
        draft.steps.append(
            Step(
                rule=rule,
                what=f"make {dropped.name} of {kept.name} by a Transpose" if swapped else f"let nodes read {kept.name} for {dropped.name}",
                why=f"{dropped.name} is {kept.name} again, {'transposed' if swapped else 'byte for byte'}",
                saves_bytes=dropped.nbytes,
                evidence=Evidence.PROVED,
            )
        )


def _initializers(draft: Draft, case: EditionCase) -> None:
    """Pairs of initializers of the main graph that are proved to be one matrix, those of the ends first."""
    pairs = list(_pairs(draft, case))
    if not pairs or len(case.edition.files) != 1:
        return
    [file] = case.edition.files
    if file.problems or file.unread:
        return  # what is not understood may refer to what would be left out
    from ..writers import onnx

    try:
        named = onnx.initializers(draft.folder.open(file.name))
    except (FormatError, Exhausted):
        return
    # the table that tokens are looked up in stays as it is
    pinned = {key(state.holder.main) for state in case.ties if state.holder}
    merging = _Merging(draft, named, pinned)
    for rule, one, other, kind, evidence in pairs:
        if evidence is Evidence.PROVED:
            merging.merge(rule, one, other, kind)
        else:
            merging.left.add(rule)
    for rule in merging.left:
        draft.way(rule, "")


def _pairs(draft: Draft, case: EditionCase) -> Iterator[tuple[str, TensorRecord, TensorRecord, Kind, Evidence]]:
    for situation in situations(draft.case):
        rule, relation = situation.verdict.rule, situation.relation
        if situation.edition is case.edition and situation.holder and situation.second and relation and rule in _RULES:
            yield rule, situation.holder.main, situation.second.main, _RULES[rule], relation.evidence
    for one, other, relation in case.related:
        if relation.kind is Kind.TRANSPOSED:
            yield "transposed-copy", one, other, Kind.TRANSPOSED, relation.evidence
    for copies in case.scan.copies:
        # the ends are among them once more: what is one already stays so
        rest = [tensor for tensor in copies.tensors if not BY_DESIGN.search(tensor.name)]
        for tensor in rest[1:]:
            yield "duplicate-tensor", rest[0], tensor, Kind.EQUAL, copies.evidence
