"""Family 9: what became of a checkpoint in another one. The data is in `difference.py`; these rules speak in `tieaudit diff` alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..kinds import weakest
from ..report import Severity, TensorPlace
from ..text import listed
from .rule import Case, Problem, rule

if TYPE_CHECKING:  # thirteen dataclasses that only `diff` needs: a small audit starts 4 ms sooner
    from ..difference import Change, Stored, TensorChange

MIN_GROWTH = 1024  # bytes; below it a file grew by its header
_WORDS = {  # by the values of `difference.Change`
    "drifted": "drifted",
    "unrelated": "hold other values",
    "scaled": "were multiplied by a constant",
    "rows permuted": "have their rows in another order",
    "transposed": "are transposed",
    "resized": "have another number of rows",
    "cast": "were cast",
    "quantised": "were quantised",
    "plus one": "were shifted",
}
_SINGULAR = {"hold": "holds", "were": "was", "have": "has", "are": "is"}


def _place(stored: Stored) -> TensorPlace:
    return TensorPlace(stored.name, stored.file, stored.offset, stored.nbytes)


def _places(several: Iterable[Stored]) -> tuple[TensorPlace, ...]:
    return tuple(_place(stored) for stored in several)


@rule(901, Severity.WARNING)
def tie_lost(case: Case) -> Iterator[Problem]:
    """Names that were one matrix are two.

    What it does: compares what each side makes of embedding and head, and of every other tie: config, graph, and what is stored.
    Why is this bad: memory and download grow by a matrix, and from the first training step on the two drift apart.
    Use instead: tie before saving (`model.tie_weights()`), keep `tie_word_embeddings` true, or let an export share one initializer.
    """
    for tie in case.changes.ties if case.changes else ():
        if not tie.lost or tie.before is None or tie.after is None:
            continue
        yield Problem(
            message=f"{' and '.join(tie.before.names)} were one matrix; after, {tie.after.words} ({tie.after.source})",
            fix="if they are meant to be one, tie them before saving or exporting; else nothing is to be done",
        )


@rule(902, Severity.ERROR)
def head_lost(case: Case) -> Iterator[Problem]:
    """The output head is gone.

    What it does: looks for the head of the first side on the second one: under its name, under others, and in the embedding's place.
    Why is this bad: what the head was trained to is lost, and the model that is loaded has another head, or random numbers in its place.
    Use instead: save again with `tie_word_embeddings` false if the head was trained by itself.
    """
    changes = case.changes
    if changes is not None and changes.head is not None:
        yield Problem(
            message=f"the head {changes.head.head.name} is lost: {changes.head.why}",
            tensors=(_place(changes.head.head),),
            fix="keep the checkpoint from before, and convert it again with tie_word_embeddings set to what its weights are",
        )


@rule(903, Severity.ERROR)
def value_change(case: Case) -> Iterator[Problem]:
    """A tensor's values changed, or the tensor is gone, and nothing that is expected explains it.

    What it does: compares every tensor that both sides have, whatever its name, dtype, order and file.
    Why is this bad: the model computes something else. Training, merging an adapter and pruning change values too, and are meant to:
    then this is the list of what they changed.
    Allowed: a cast, quantisation within the error of its type, another name or file, rows added to embedding and head, padding rows taken,
    a repeated head stored or left out, and what a format asks for (matrices turned in ONNX and Flax, rotary order and Gemma's norms in
    GGUF). Each is named with its reason.
    """
    changes = case.changes
    if changes is None:
        return
    groups: dict[Change, list[TensorChange]] = {}
    for pair in changes.pairs:
        # a head in whose place the embedding stands is told of by its own rule
        lost_head = changes.head is not None and pair.before.name == changes.head.head.name
        if not pair.allowed and pair.kind.value != "not compared" and not lost_head:
            groups.setdefault(pair.kind, []).append(pair)
    for kind, pairs in groups.items():
        worst = max(pairs, key=lambda pair: pair.max_difference or 0)
        ranks = {pair.rank for pair in pairs}
        merged = f"a merged LoRA of rank {min(ranks - {None})}" if None not in ranks and ranks else None  # type: ignore[type-var]
        where = f"; most in {worst.after.name}" if len(pairs) > 1 else ""
        yield Problem(
            message=f"{_count(len(pairs))} {_verb(kind, len(pairs))}: {listed(pair.after.name for pair in pairs)}{where} ({worst.reason})",
            tensors=_places(pair.after for pair in pairs[:MAX_PLACES]),
            evidence=weakest(pair.evidence for pair in pairs),
            cause=merged,
        )
    gone = [
        one.tensor
        for one in changes.lost
        if one.judged and not one.allowed and not (changes.head and changes.head.head.name == one.tensor.name)
    ]
    if gone:
        yield Problem(
            message=f"{_count(len(gone))} {'are' if len(gone) > 1 else 'is'} gone: {listed(tensor.name for tensor in gone)}",
            tensors=_places(gone[:MAX_PLACES]),
        )
    if changes.outputs is not None and changes.outputs.held is False:
        yield Problem(message=changes.outputs.words)


MAX_PLACES = 1_000  # tensors that one finding lists


def _count(count: int) -> str:
    return f"{count:,} tensor{'s' * (count != 1)}"


def _verb(kind: Change, count: int) -> str:
    words = _WORDS.get(kind.value, kind.value)
    first, _, rest = words.partition(" ")
    return f"{_SINGULAR[first]} {rest}" if count == 1 and first in _SINGULAR else words


@rule(904, Severity.NOTE)
def size_growth(case: Case) -> Iterator[Problem]:
    """The files grew.

    What it does: adds up the bytes of all files of weights, and says what the difference is made of.
    Use instead: leave out what is stored again; a dtype or rows that were asked for are their own reason.
    """
    sizes = case.changes.sizes if case.changes else None
    if sizes is None:
        return
    causes = sum(part.nbytes for part in sizes.parts if part.what != "other")
    if sizes.difference > 0 and causes >= MIN_GROWTH:
        yield Problem(message=sizes.words)


RULES = (tie_lost, head_lost, value_change, size_growth)
