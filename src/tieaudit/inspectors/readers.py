"""This file holds what is asked of the table of engines about a tie of this checkpoint: which readings, which matrices are stored.

Nothing is asked where an answer would be a guess: classes that are not in the catalog, names that only this tool understands,
quantised matrices, groups of more names than embedding and head unless all the others follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checkpoint import Wiring
from ..claim import FLAG, Claim
from ..config import ABSENT, Config
from ..kinds import Kind, Relation
from ..names import Matrix, plain
from ..report import EngineOutcome
from .rule import Case, EditionCase, TieState

if TYPE_CHECKING:
    from ..engines.lookup import Question

# of which transformers, and the engines that were tried, load the weights
_FILES = {"safetensors": "model", "torch-zip": "pytorch_model", "torch-legacy": "pytorch_model"}
_STORED = {
    Kind.SAME_STORAGE: ("equal",),
    Kind.EQUAL: ("equal",),
    # equal if it is loaded in the narrower dtype, different if not
    Kind.CAST: ("equal", "diff"),
    Kind.NEAR: ("diff",),
    Kind.SCALED: ("diff",),
    Kind.UNRELATED: ("diff",),
    Kind.PADDED: ("diff",),
    Kind.CONSTANT: ("diff",),
}
# classes of one text model with one head, which is what the engines' rows are about; gemma3 is the one with a vision tower
_PLAIN = ("ForCausalLM", "LMHeadModel")
_NESTED = {"gemma3": "Gemma3ForConditionalGeneration"}


def of_tie(case: Case, edition_case: EditionCase, state: TieState) -> tuple[EngineOutcome, ...]:
    """What engines make of embedding and head; empty if the tie is not about them, or if nobody knows."""
    if edition_case.edition.format == "gguf":
        return _of_gguf(edition_case, state)
    if state.group.role != "embedding-head" or state.group.wiring is not Wiring.CONFIG or case.config is None:
        return ()
    # imported, and the table read, when there is something to ask
    from ..engines.lookup import outcomes

    question = _question(case, case.config, edition_case, state)
    return outcomes(question) if question else ()


def _of_gguf(edition_case: EditionCase, state: TieState) -> tuple[EngineOutcome, ...]:
    from ..engines.lookup import of_gguf

    embedding, head = (edition_case.stored.find(name) for name in state.group.names[:2])
    relation = state.pairs[0].relation if state.pairs else None
    stored = (
        "embed_only" if head is None else "head_only" if embedding is None else _STORED.get(relation.kind, ("",))[0] if relation else ""
    )
    architecture = next((file.architecture for file in edition_case.edition.files if file.architecture), "")
    return of_gguf(architecture, stored) if stored and edition_case.edition.whole else ()


def of_group(case: Case, edition: str, canonical: str) -> tuple[EngineOutcome, ...]:
    """The same, by the names of edition and group."""
    for edition_case in case.judged:
        for state in edition_case.ties:
            if edition_case.edition.name == edition and state.group.canonical == canonical:
                return of_tie(case, edition_case, state)
    return ()


def _question(case: Case, config: Config, edition_case: EditionCase, state: TieState) -> Question | None:
    from ..engines.lookup import Question

    claim, group, edition = edition_case.claim, state.group, edition_case.edition
    if claim.basis or not claim.embedding or not claim.head or not {claim.embedding, claim.head} <= set(group.names):
        return None
    begin = _FILES.get(edition.format)
    if edition is not case.checkpoint.primary or begin is None or not edition.name.startswith(begin):
        return None
    embedding, head = (edition_case.stored.find(name, claim.other_names) for name in (claim.embedding, claim.head))
    there = [matrix for matrix in (embedding, head) if matrix]
    if not there or any(matrix.packed or plain(matrix.name) != matrix.name for matrix in there) or _quantised(config):
        return None
    found = _both(state, embedding, head) if embedding and head else _one(state, claim, head_stored=head is not None)
    if found is None:
        return None
    stored, tied, tied_v4 = found
    known = all(matrix.name in (claim.embedding, claim.head) for matrix in there)
    followed, followed_v4 = _followed(edition_case, state)
    return Question(
        format=edition.format.split("-")[0],
        stored=stored,
        tied_v5=tied if followed else None,
        # under this name transformers 4 keeps the one matrix, and finds it again
        tied_v4=tied_v4 if followed_v4 and not (stored == ("head_only",) and state.holder_as in claim.v4_kept) else None,
        model_type=config.model_type,
        plain=known and _is_plain(claim.architecture, config.model_type),
        flag=_flag(config, claim),
    )


def _both(state: TieState, embedding: Matrix, head: Matrix) -> tuple[tuple[str, ...], bool | None, bool | None] | None:
    for pair in state.pairs:
        if {pair.first.name, pair.second.name} == {embedding.name, head.name}:
            stored = _STORED.get(pair.relation.kind)
            return (stored, pair.tied, pair.tied_v4) if stored and embedding.main.shape == head.main.shape else None
    return None


def _one(state: TieState, claim: Claim, *, head_stored: bool) -> tuple[tuple[str, ...], bool | None, bool | None] | None:
    if not claim.exact or state.broken:
        return None
    for name, tied, tied_v4 in state.absent:
        if name == (claim.embedding if head_stored else claim.head):
            return (("head_only",) if head_stored else ("embed_only",)), tied, tied_v4
    return None


def _followed(edition_case: EditionCase, state: TieState) -> tuple[bool, bool]:
    """Whether all further names of the group (encoder, decoder) are the same matrix, as transformers 5 and 4 read it: then embedding and
    head tell the whole story."""
    claim = edition_case.claim
    five = four = True
    relations: dict[str, Relation] = {pair.second.name: pair.relation for pair in state.pairs}
    absent = {name: (tied, tied_v4) for name, tied, tied_v4 in state.absent}
    for name in state.group.names:
        if name in (claim.embedding, claim.head):
            continue
        if name in absent:
            five, four = five and absent[name][0] is True, four and absent[name][1] is True
            continue
        matrix = edition_case.stored.find(name, claim.other_names)
        is_holder = matrix is not None and state.holder is not None and matrix.name == state.holder.name
        relation = relations.get(matrix.name) if matrix else None
        if not is_holder and (relation is None or relation.kind not in (Kind.EQUAL, Kind.SAME_STORAGE)):
            return False, False
    return five, four


def _quantised(config: Config) -> bool:
    return any(config.at(key) not in (ABSENT, None) for key in ("quantization_config", "quantization", "compression_config"))


def _is_plain(architecture: str, model_type: str) -> bool:
    return architecture.endswith(_PLAIN) or _NESTED.get(model_type) == architecture


def _flag(config: Config, claim: Claim) -> str:
    if claim.bad_flags:
        return "invalid"
    value = config.at(FLAG)
    return "absent" if value is ABSENT else str(value).lower()
