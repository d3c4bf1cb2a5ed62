"""Family 7: ends of a tie that are quantised on one side only, and configs that contradict what is stored packed."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoint import TensorRecord, Wiring
from ..dtypes import DTYPES
from ..kinds import Evidence, Kind
from ..names import Matrix
from ..report import Severity
from ..skiplists import FAMILIES, Wanted
from ..text import exactly, listed
from .rule import Case, EditionCase, Problem, place, places, rule, wasted
from .verdicts import Situation, speaking


@rule(701, Severity.WARNING)
def one_sided_quantization(case: Case) -> Iterator[Problem]:
    """A tied matrix is quantised on one side only, or only the scales of one side are stored.

    What it does: compares how the ends of a tie are stored, and their dequantised rows where that is simple and certain.
    Why is this bad: a reader that ties them drops one side, or copies packed numbers over floats and computes nonsense (SGLang with
    an FP8 head); transformers with compressed-tensors fails. Scales without their matrix make mlx-swift-lm build a quantised head.
    Use instead: store the one matrix that the model needs, or untie it (`tie_word_embeddings: false`) before quantising the head.
    Not counted: two ends quantised to different widths; a float embedding with everything else quantised and no head, as transformers 5
    saves it; a quantised embedding alone.
    """
    for situation in speaking(case, "one-sided-quantization"):
        if situation.tied_v4 is False or situation.holder is None or situation.second is None:
            continue
        yield _two_forms(situation, situation.holder, situation.second)
    for edition_case in case.judged:
        for name, parts in _orphans(edition_case):
            yield Problem(
                message=f"{listed(part.name for part in parts)} {'belong' if len(parts) > 1 else 'belongs'} to {name}, which is not stored "
                f"({exactly(sum(part.nbytes for part in parts))} wasted)",
                tensors=tuple(place(part) for part in parts),
                waste=wasted(*parts),
                fix=f"leave {'them' if len(parts) > 1 else 'it'} out: the head is tied and reads the embedding",
            )


def _two_forms(situation: Situation, first: Matrix, second: Matrix) -> Problem:
    relation = situation.relation
    known = relation.detail if relation and relation.kind is Kind.NEAR else "the values were not compared"
    return Problem(
        message=f"{first.name} is {first.form} and {second.name} is {second.form}, and both are one matrix by the claim "
        f"({situation.group.source}); {known}",
        tensors=places(first, second),
        evidence=relation.evidence if relation else Evidence.HEADER,
        cause="the head was quantised although it is tied" if second.packed and not first.packed else None,
        fix=f"keep both: set the flag to false in config.json; keep one: store only {first.name}, and what {second.name} holds is lost"
        if situation.group.wiring is Wiring.CONFIG
        else "export again with both ends in one form",
    )


def _orphans(edition_case: EditionCase) -> Iterator[tuple[str, tuple[TensorRecord, ...]]]:
    """(name, scales and the like) of tied heads that are not stored."""
    if not edition_case.edition.whole:
        return
    for state in edition_case.ties:
        for name, tied, _ in state.absent:
            parts = edition_case.stored.orphans(name, edition_case.claim.other_names) if tied and state.holder else ()
            if parts:
                yield name, parts


@rule(702, Severity.ERROR)
def quantization_contradiction(case: Case) -> Iterator[Problem]:
    """The config says that the head or the embedding is quantised and it is not, or the other way round.

    What it does: asks the quantisation config (its lists of skipped modules, targets and entries, as its own readers match them) about
    the ends of the model, and looks how they are stored. It speaks only where a reader surely breaks.
    Why is this bad: readers prepare the module that the config asks for. They find no weight and start with random numbers, take packed
    numbers for weights, or fail.
    Use instead: correct the list in the config; the stored tensors are what was quantised.
    """
    if case.quantization is None:
        return
    for edition_case in case.judged:
        claim = edition_case.claim
        if not claim.exact or edition_case.edition.foreign:
            continue
        tied = {matrix.name for state in edition_case.ties for pair in state.pairs if pair.tied is not False for matrix in state.matrices}
        for name, head in ((claim.head, True), (claim.embedding, False)):
            matrix = edition_case.stored.find(name, claim.other_names) if name else None
            # of two ends that are one by the claim, one-sided-quantization speaks
            if not name or matrix is None or matrix.name in tied or (head and claim.head == claim.embedding):
                continue
            yield from _contradiction(case, edition_case, matrix, name, head=head)


def _contradiction(case: Case, edition_case: EditionCase, matrix: Matrix, name: str, *, head: bool) -> Iterator[Problem]:
    plan = case.quantization
    spellings = (name, matrix.name, *edition_case.claim.other_names.get(name, ()))
    answer = plan.asks(tuple(dict.fromkeys(spelling.removesuffix(".weight") for spelling in spellings)), head=head) if plan else None
    if plan is None or answer is None:
        return
    method = "modelopt" if plan.method.startswith("modelopt") else plan.method
    packed = matrix.scheme in FAMILIES.get(method, ())
    plain = not matrix.packed and DTYPES[matrix.main.dtype].kind == "float" and DTYPES[matrix.main.dtype].bits >= 16
    where = f"{plan.key} in {plan.file}" if plan.key else plan.file
    if answer.wanted is Wanted.FLOAT and packed:
        what, other = "leaves it as floats", "store it as floats"
    elif answer.wanted is Wanted.PACKED and plain:
        what, other = "quantises it", "quantise it too"
    else:
        return
    yield Problem(
        message=f"{matrix.name} is stored as {matrix.form}, but {where} {what} ({answer.why}): {answer.readers}",
        tensors=places(matrix),
        fix=f"in {where}: {answer.fix}; or {other}",
    )


RULES = (one_sided_quantization, quantization_contradiction)
