"""This file holds how a tie is summed up for the report: claim, relation, evidence, bytes, and why all is well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .adapters import Copy
from .checkpoint import Wiring
from .inspectors import readers
from .inspectors.rule import AdapterCase, Case, EditionCase, EndCase, Pair, TieState
from .kinds import QUANTISED_TWICE, Evidence, Kind, Relation
from .report import Tie
from .text import listed

ONE_MATRIX = "one matrix"
NOT_STORED = "not stored"

# of several pairs the one that matters most is shown
_ORDER = (
    Kind.UNRELATED, Kind.NEAR, Kind.ROWS_DIFFER, Kind.SCALED, Kind.TRANSPOSED, Kind.PADDED, Kind.CONSTANT, Kind.NOT_COMPARED,
    Kind.CAST, Kind.EQUAL, Kind.SAME_STORAGE,
)  # fmt: skip


def ties(case: Case) -> Iterator[Tie]:
    """Every tie group of every judged edition of which something is stored, or of which all should be."""
    for edition_case in case.judged:
        for state in edition_case.ties:
            if state.holder is not None or (edition_case.claim.exact and not state.group.optional):
                yield _tie(case, edition_case, state)
    for adapter in case.adapters:
        if adapter.state and adapter.base_edition:
            yield _tie_of_base(adapter, _tie(case, adapter.base_edition, adapter.state))


def _tie_of_base(adapter: AdapterCase, tie: Tie) -> Tie:
    """The tie that the base has, and what the adapter lays on it."""
    relation = (ONE_MATRIX if tie.claim == "tied" else NOT_STORED) if tie.relation == NOT_STORED else tie.relation
    held = listed((_held(end) for end in adapter.ends), 6) or "nothing of either"
    own = f"; base: {tie.summary}" if tie.stored else ""
    return replace(
        tie,
        claim_source=f"{adapter.source} (of the base {adapter.base or 'by the config beside it'})",
        relation=relation,
        saves_bytes=0,
        stored=(tie.canonical, *tie.aliases),
        file=adapter.edition.name,
        shape=(),
        dtype="",
        nbytes=0,
        detail="",
        trainable=False,
        summary=f"adapter: {held}{own}",
    )


def _held(case: EndCase) -> str:
    """`LoRA on lm_head with a copy of the base's matrix`."""
    end, kinds = case.end, {kind for kind, _ in case.end.copies}
    if end.tokens and not end.deltas:
        rows = end.tokens.shape[0] if end.tokens.shape else 1
        words = f"{rows:,} trained row{'s' * (rows != 1)} of {end.module}"
    else:
        words = f"{end.method} on {end.module}" if end.deltas else f"{end.module} in full"
    return words + (" with a copy of the base's matrix" if kinds & {Copy.BASE, Copy.ORIGINAL} else "")


def _tie(case: Case, edition_case: EditionCase, state: TieState) -> Tie:
    group, holder = state.group, state.holder
    claims = {alias.tied for alias in group.aliases}
    claim = "tied" if True in claims else "untied" if claims == {False} else "unknown"
    pair = min(state.pairs, key=lambda pair: _ORDER.index(pair.relation.kind), default=None)
    relation = pair.relation if pair else None
    nbytes = holder.nbytes if holder else 0
    shared = sum(1 for _, tied, _ in state.absent if tied) + sum(
        1
        for pair in state.pairs
        # the copies that a run keeps are its own need
        if pair.tied and pair.relation.kind in (Kind.SAME_STORAGE, *(() if group.wiring is Wiring.REPLICA else (Kind.EQUAL, Kind.CAST)))
    )
    canonical = group.canonical
    if holder and not any(name == group.canonical for name, _, _ in state.absent):
        canonical = holder.name
    stored = tuple(matrix.name for matrix in (holder, *(pair.second for pair in state.pairs)) if matrix)
    aliases = tuple(_stored_name(alias.name, stored, canonical) for alias in group.aliases) if group.aliases else ()
    return Tie(
        canonical=canonical,
        aliases=tuple(dict.fromkeys(aliases)),
        role=group.role,
        claim=claim,
        claim_source=group.source + _apart(pair, always=group.always),
        relation=relation.kind.value if relation else ONE_MATRIX if holder else NOT_STORED,
        evidence=relation.evidence if relation else Evidence.HEADER,
        saves_bytes=shared * nbytes,
        engines=readers.of_tie(case, edition_case, state),
        stored=stored,
        file=edition_case.edition.name,
        shape=holder.shape if holder else (),
        dtype=holder.form if holder else "",
        parts=len(holder.parts) if holder else 1,
        nbytes=nbytes,
        detail=relation.detail if relation else "",
        trainable=group.wiring in (Wiring.CONFIG, Wiring.REPLICA),
        uniform=all(pair.second.nbytes == nbytes for pair in state.pairs),
        summary=_summary(claim, pair, relation, state),
    )


def _apart(pair: Pair | None, *, always: bool) -> str:
    """Where the flag still decides for transformers 4 and both matrices are there (T5 v1.1), the claim does not hold for this alias."""
    if pair and pair.tied and pair.tied_v4 is False and pair.relation.kind in (Kind.UNRELATED, Kind.NEAR, Kind.SCALED):
        saved = "; saved by 5 the flag is true, and 4 then drops it" if always else ""
        return f"; {pair.second.name} stands apart: stored with values of its own, which every transformers keeps{saved}"
    return ""


def _stored_name(alias: str, stored: tuple[str, ...], canonical: str) -> str:
    """The alias as the file spells it, where a wrapper or prefix differs."""
    return next(
        (name for name in stored if name != canonical and (name == alias or name.endswith("." + alias) or alias.endswith("." + name))),
        alias,
    )


def _summary(claim: str, pair: Pair | None, relation: Relation | None, state: TieState) -> str:
    if state.holder is None:
        return "none of its names is stored"
    if relation is None or pair is None:
        if claim == "tied":
            return "one matrix is stored, and all its names read it"
        return "one matrix is stored" + (f", {listed(name for name, _, _ in state.absent)} is not" if claim == "untied" else "")
    return {
        Kind.SAME_STORAGE: "one storage under both names",
        Kind.EQUAL: f"{len(state.pairs) + 1} copies, equal byte for byte",
        Kind.CAST: "two copies in different dtypes",
        Kind.TRANSPOSED: "one is the other transposed",
        Kind.PADDED: "equal up to padding rows",
        Kind.SCALED: "one is the other times a constant",
        Kind.NEAR: QUANTISED_TWICE if relation.detail.startswith(QUANTISED_TWICE) else "two matrices that drifted apart",
        Kind.UNRELATED: "two different matrices",
        Kind.ROWS_DIFFER: "two matrices with different numbers of rows",
        Kind.CONSTANT: "at least one of them is constant",
        Kind.NOT_COMPARED: "both stored, not compared",
    }[relation.kind]


def ends(case: Case) -> Iterator[tuple[str, str]]:
    """(name of a stored tensor, "embedding" or "head") of every edition, all parts of a packed matrix."""
    for edition_case in case.judged:
        claim, stored = edition_case.claim, edition_case.stored
        named = [(claim.embedding, "embedding"), (claim.head, "head")]
        for group in claim.groups:
            if group.role in ("embedding-head", "embedding"):
                heads = {claim.head} if claim.head else {alias.name for alias in group.aliases if group.role == "embedding-head"}
                named += [(name, "head" if name in heads else "embedding") for name in group.names]
        told: set[str] = set()
        for name, end in named:
            matrix = stored.find(name, claim.other_names) if name else None
            for part in matrix.parts if matrix else ():
                if part.name not in told:
                    told.add(part.name)
                    yield part.name, end


def reason(case: Case) -> str:
    """Why a healthy checkpoint is healthy, about its most telling tie."""
    for edition_case in case.judged:
        states = [state for state in edition_case.ties if state.holder is not None]
        states.sort(key=lambda state: (state.group.role != "embedding-head", not state.pairs))
        for state in states:
            told = _reason(state)
            if told:
                return told
            if state.absent and not edition_case.claim.exact:
                return f"one matrix is stored; whether another is missing cannot be told ({edition_case.claim.basis or 'not all was read'})"
        if edition_case.claim.exact and edition_case.claim.architecture and not edition_case.claim.groups:
            return f"{edition_case.claim.architecture} shares no tensor"
        return "no two names share a matrix, and none has to"
    return _of_adapter(case.adapters[0]) if case.adapters else "no weights of a model to judge"


def _of_adapter(adapter: AdapterCase) -> str:
    kind = adapter.config.peft_type if adapter.config else ""
    what = f"an adapter{f' ({kind})' * bool(kind)}{f' of {adapter.base}' * bool(adapter.base)}"
    if adapter.config is None:
        what += " without a readable adapter_config.json"
    names = listed(end.end.module for end in adapter.ends)
    if not adapter.ends:
        return f"{what}: it leaves embedding and head alone"
    if all(end.tied is False for end in adapter.ends):
        return f"{what}: it changes {names}, which the base shares with nothing"
    if any(end.tied is None for end in adapter.ends):
        return f"{what}: it changes {names}; whether the base ties embedding and head is not known here"
    return f"{what}: it changes {names}, and the tie of the base is kept"


def _reason(state: TieState) -> str:
    holder = state.holder
    if holder is None:
        return ""
    claimed = {alias.tied for alias in state.group.aliases}
    pair = state.pairs[0] if state.pairs else None
    if pair is None:
        what = "the head reads it" if state.group.role == "embedding-head" else "all its names read it"
        return f"tied: one matrix is stored, and {what}" if True in claimed else ""
    if pair.relation.kind is Kind.SAME_STORAGE and pair.tied is not False:
        return "tied: both names are one storage"
    if pair.relation.kind is Kind.NOT_COMPARED and pair.tied is False and pair.first.packed != pair.second.packed:
        return "untied: two matrices, one of them quantised, as the config says"
    if pair.relation.kind is Kind.NOT_COMPARED:
        return f"both {pair.first.name} and {pair.second.name} are stored; whether they are one matrix was not compared"
    if pair.tied is False:
        equal = pair.relation.kind in (Kind.EQUAL, Kind.CAST)
        run = state.group.wiring is Wiring.REPLICA
        who = ("the run has them" if run else "the architecture has them") if state.group.always else "the config says"
        return f"untied: two {'equal' if equal else 'separate'} matrices, {'kept apart ' if equal else ''}as {who}"
    if pair.tied is None and pair.relation.kind is Kind.UNRELATED:
        return "two separate matrices, and nothing claims that they are one"
    if pair.relation.kind is Kind.UNRELATED and pair.tied_v4 is False:
        return "two separate matrices, as the flag says; every reader keeps both"
    return f"{pair.first.name} and {pair.second.name}: {_summary('', pair, pair.relation, state)}"
