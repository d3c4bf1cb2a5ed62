"""Family 6: what an adapter holds of the embedding and the head of its base, and whether the base ties them.

Without a base the adapter is judged by what it shows itself; what hangs on the base is then a note, never more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..adapters import AdapterConfig, Copy
from ..checkpoint import TensorRecord
from ..kinds import Evidence, Kind, weakest
from ..report import Severity
from ..text import exactly, listed
from .adapter_rows import base_of, misfits, resized
from .rule import AdapterCase, Case, EndCase, Problem, place, rule, wasted

OWN = "own (modules_to_save)"
ASK = "name the base to know it: --base FOLDER or a Hub id"


def _why(case: AdapterCase) -> str:
    """Why the base is taken for tied, as a clause."""
    return case.source if case.read and case.source.startswith("tied") else "the adapter itself shows it"


def _required(end: EndCase, kind: Copy | None, config: AdapterConfig | None) -> bool:
    """PEFT refuses an adapter without this tensor: a module of `modules_to_save`, or one that is tied to such a module."""
    if kind is not Copy.FULL:
        return kind is None
    return config is None or config.saves(end.end.module) or (config.ensure_weight_tying and bool(config.modules_to_save))


def _split(case: AdapterCase) -> Iterator[tuple[list[EndCase], bool | None]]:
    """(ends that are trained as modules of their own, whether the base ties them), per group of names."""
    config = case.config
    if config is None or config.ensure_weight_tying:
        return
    for tied in (True, None):
        found = [
            end
            for end in case.ends
            if end.tied is tied and any(kind in (Copy.FULL, Copy.SAVED) for kind, _ in end.end.copies) and config.saves(end.end.module)
        ]
        if found:
            yield found, tied


@rule(601, Severity.WARNING)
def adapter_splits_tie(case: Case) -> Iterator[Problem]:
    """An adapter trains one end of a tied matrix as a module of its own.

    What it does: looks for an embedding or a head that `modules_to_save` names without `ensure_weight_tying`, while the base ties the two.
    Why is this bad: once merged they are two matrices. PEFT 0.19 and later set the flag to false then, and the model grows by a matrix;
    PEFT up to 0.18 leaves it true, and the next reader drops one of the two.
    Use instead: `ensure_weight_tying=True`, or `trainable_token_indices` for a few new tokens.
    A note if nothing tells whether the base is tied.
    """
    for adapter in case.adapters:
        for found, tied in _split(adapter):
            several = len(found) > 1
            own = f"are trained as modules of their {OWN}" if several else f"is trained as a module of its {OWN}"
            others = listed(dict.fromkeys(name for end in found for name in end.partners))
            one = f"has one matrix for {'them' if several else f'it and {others}'} ({_why(adapter)}): once merged they are two"
            yield Problem(
                message=f"{listed(end.end.module for end in found)} {own}"
                + (f", but {base_of(adapter)} {one}" if tied else f": if {base_of(adapter)} ties embedding and head, a merge splits them"),
                tensors=tuple(place(tensor) for end in found for kind, tensor in end.end.copies if kind in (Copy.FULL, Copy.SAVED)),
                severity=None if tied else Severity.NOTE,
                fix="merge with PEFT 0.19 or later, which sets tie_word_embeddings to false; or train again with ensure_weight_tying=True"
                if tied
                else ASK,
            )
        yield from _diverged(adapter)


def _diverged(adapter: AdapterCase) -> Iterator[Problem]:
    """Two different matrices for names that are one in the base, which no `modules_to_save` keeps apart: the last one loaded wins."""
    config = adapter.config
    full = [
        (end.end.module, tensor)
        for end in adapter.ends
        for kind, tensor in end.end.copies
        if kind is Copy.FULL and end.tied and config and (config.ensure_weight_tying or not config.saves(end.end.module))
    ]
    for (module, first), (other, second) in pairwise(full):
        if module != other and _differ(adapter, first, second):
            yield Problem(
                message=f"{first.name} and {second.name} differ, but {base_of(adapter)} has one matrix for both ({_why(adapter)}): "
                "the one that is loaded last wins",
                tensors=(place(first), place(second)),
                evidence=Evidence.SAMPLED,
                fix="save the adapter again from the model in memory",
            )


def _differ(adapter: AdapterCase, first: TensorRecord, second: TensorRecord) -> bool:
    return bool({(first.name, second.name), (second.name, first.name)} & adapter.differing)


@rule(602, Severity.WARNING)
def adapter_targets_tied(case: Case) -> Iterator[Problem]:
    """An adapter changes one end of a tied matrix, and a merge changes both.

    What it does: looks for LoRA and the like on the embedding or the head, while the base has one matrix for both.
    Why is this bad: unmerged the change acts on its own end alone; merged it is in the shared matrix, so the other end changes too and the
    model is another one than was trained. With `ensure_weight_tying` PEFT 0.21 adds the change twice. The merged file looks healthy.
    Use instead: keep the adapter unmerged, or untie the base before merging.
    A note if nothing tells whether the base is tied.
    """
    for adapter in case.adapters:
        laid = [end for end in adapter.ends if end.end.deltas and end.tied is not False]
        laid += [end for end in _apart(adapter) if end not in laid]
        if not laid:
            continue
        method, several = laid[0].end.method, len(laid) > 1
        names = listed(end.end.module for end in laid)
        tensors = tuple(place(tensor) for end in laid for tensor in (*end.end.deltas, *([end.end.tokens] if end.end.tokens else ())))
        if not any(end.tied for end in laid):
            yield Problem(
                message=f"{method} on {names}: if {base_of(adapter)} ties embedding and head, a merge changes both",
                tensors=tensors[:50],
                severity=Severity.NOTE,
                fix=ASK,
            )
            continue
        others = listed(dict.fromkeys(name for end in laid for name in end.partners))
        twice = bool(adapter.config and adapter.config.ensure_weight_tying) and several
        does = "puts all changes into one matrix" if several else "changes both ends"
        if twice:
            does = "adds the change twice (ensure_weight_tying, PEFT 0.21)"
        yield Problem(
            message=f"{method} on {names}, but {base_of(adapter)} has one matrix for {'both' if several else f'it and {others}'} "
            f"({_why(adapter)}): a merge {does}",
            tensors=tensors[:50],
            fix="use the adapter unmerged"
            + ("" if twice else "; to merge it, give the head a matrix of its own first (tie_word_embeddings false, the weight copied)"),
        )


def _apart(adapter: AdapterCase) -> list[EndCase]:
    """Ends with trained rows that PEFT does not share with the other end: on a head alone, or other rows on either."""
    ends = [(end, end.end.tokens) for end in adapter.ends if end.end.tokens and end.tied]
    if len(ends) == 1:
        return [end for end, _ in ends if end.end.is_head]
    return [end for end, tokens in ends if any(_differ(adapter, tokens, other) for _, other in ends if other is not tokens)]


@rule(603, Severity.WARNING)
def adapter_base_copy(case: Case) -> Iterator[Problem]:
    """An adapter carries a copy of a matrix that its base has, or one matrix twice.

    What it does: compares every whole matrix of the adapter with the base's, and with each other.
    Why is this bad: an adapter of some megabytes grows by hundreds. PEFT writes the base's matrix too when an embedding is a target.
    Use instead: `save_pretrained(…, save_embedding_layers=False)` if the vocabulary is the base's.
    A note where PEFT asks for both names, and where there is no base to compare with.
    """
    for adapter in case.adapters:
        told: set[str] = set()
        for problem, names in (*_of_base(adapter, case.min_waste), *_twice(adapter, case.min_waste)):
            told |= names
            yield problem
        unproved = [
            tensor
            for end in adapter.ends
            for kind, tensor in end.end.copies
            if kind is Copy.BASE and tensor.name not in told and not end.against_base and tensor.nbytes >= max(1, case.min_waste)
        ]
        if unproved:
            yield Problem(
                message=f"{listed(tensor.name for tensor in unproved)} {'are' if len(unproved) > 1 else 'is'} by name the base's own "
                f"({exactly(sum(tensor.nbytes for tensor in unproved))}): needed only if the vocabulary was resized",
                tensors=tuple(map(place, unproved)),
                severity=Severity.NOTE,
                fix=ASK,
            )


def _of_base(adapter: AdapterCase, least: int) -> Iterator[tuple[Problem, set[str]]]:
    found = [
        (end, kind, tensor, relation)
        for end in adapter.ends
        for kind, tensor, relation in end.against_base
        if relation.kind in (Kind.EQUAL, Kind.CAST) and tensor.nbytes >= max(1, least)
    ]
    for required in (False, True):
        part = [entry for entry in found if _required(entry[0], entry[1], adapter.config) is required]
        if not part:
            continue
        tensors = [tensor for _, _, tensor, _ in part]
        evidence = weakest(relation.evidence for *_, relation in part)
        cast = any(relation.kind is Kind.CAST for *_, relation in part)
        bases = dict.fromkeys(end.base.name for end, *_ in part if end.base)
        advice = (
            "take it out of modules_to_save and out of the file together, or save the adapter again without it"
            if required
            else "save the adapter with save_embedding_layers=False, or leave "
            f"{'it' if len(tensors) == 1 else 'them'} out of the file: PEFT takes the base's"
        )
        yield (
            Problem(
                message=f"{listed(tensor.name for tensor in tensors)} repeat{'s' * (len(tensors) == 1)} {listed(bases)} of "
                f"{base_of(adapter)}"
                f"{' in another dtype' if cast else ''} ({exactly(sum(tensor.nbytes for tensor in tensors))} wasted)",
                tensors=tuple(map(place, tensors)),
                waste=wasted(*tensors),
                evidence=evidence,
                cause=None
                if required
                else "PEFT saves embedding layers whole when one of them is a target (save_embedding_layers='auto')"
                if any(kind is Copy.BASE for _, kind, *_ in part)
                else None,
                fix=advice if evidence is Evidence.PROVED else f"prove it first (--verify full); then {advice}",
            ),
            {tensor.name for tensor in tensors},
        )


def _twice(adapter: AdapterCase, least: int) -> Iterator[tuple[Problem, set[str]]]:
    """Classes of equal matrices, apart from what repeats the base: that is told already."""
    of_base = {tensor.name for end in adapter.ends for _, tensor, relation in end.against_base if relation.kind in (Kind.EQUAL, Kind.CAST)}
    for members, evidence in adapter.equal:
        if members[0][1] is None or any(tensor.name in of_base for _, _, tensor in members) or members[0][2].nbytes < max(1, least):
            continue
        needed = [entry for entry in members if _required(entry[0], entry[1], adapter.config)]
        kept = (needed or list(members))[0]
        # an untied base needs both of its ends: equal or not, none of them can be left out
        spare = [
            entry
            for entry in members
            if entry is not kept and entry[2].view != kept[2].view and (entry[0].end.module == kept[0].end.module or entry[0].tied)
        ]
        asked, free = [entry for entry in spare if entry in needed], [entry for entry in spare if entry not in needed]
        if asked:
            yield (
                Problem(
                    message=f"{listed(tensor.name for _, _, tensor in asked)} repeat{'s' * (len(asked) == 1)} {kept[2].name} "
                    f"({exactly(sum(tensor.nbytes for _, _, tensor in asked))}), as PEFT asks for both names when it loads the adapter",
                    tensors=tuple(place(tensor) for _, _, tensor in (kept, *asked)),
                    evidence=evidence,
                    severity=Severity.NOTE,
                ),
                {tensor.name for _, _, tensor in members},
            )
        if free:
            names, several = listed(tensor.name for _, _, tensor in free), len(free) > 1
            sure = adapter.read or all(entry[0].end.module == kept[0].end.module for entry in free)
            advice = f"leave {names} out of the file: PEFT loads the adapter without {'them' if several else 'it'}"
            yield (
                Problem(
                    message=f"{names} repeat{'' if several else 's'} {kept[2].name} "
                    f"({exactly(sum(tensor.nbytes for _, _, tensor in free))} wasted)",
                    tensors=tuple(place(tensor) for _, _, tensor in (kept, *free)),
                    waste=wasted(*(tensor for _, _, tensor in free)),
                    evidence=evidence,
                    fix=(advice if evidence is Evidence.PROVED else f"prove it first (--verify full); then {advice}")
                    if sure
                    else f"if the base ties them (--base tells): {advice}",
                ),
                {tensor.name for _, _, tensor in members},
            )


@rule(604, Severity.ERROR)
def adapter_row_mismatch(case: Case) -> Iterator[Problem]:
    """An adapter's tensors do not fit each other, or not the base.

    What it does: compares rows and width of every end in the adapter with the base's matrix, with each other, and the two factors of LoRA.
    Why is this bad: PEFT refuses to load it, or rows of the vocabulary are lost.
    Use instead: resize the base before training, and save the adapter with both ends.
    A note if the adapter brings a whole vocabulary of another size: then the base must be resized before it is loaded.
    """
    for adapter in case.adapters:
        yield from misfits(adapter)
        yield from resized(adapter)


RULES = (adapter_splits_tie, adapter_targets_tied, adapter_base_copy, adapter_row_mismatch)
