"""This file holds how what was seen in memory becomes a Report. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from ..alive import Live, LiveName, LiveTie, Sharing
from ..checkpoint import Checkpoint
from ..inspectors import registry
from ..inspectors.rule import Case
from ..kinds import Evidence, Kind
from ..names import EMBEDDING_LEAVES, HEAD_LEAVES
from ..report import Cost, Report, Skip, Tie, Totals
from ..text import listed
from .naming import own

MEMORY = "memory"
_RELATIONS = {
    Sharing.SAME_PARAMETER: Kind.SAME_STORAGE,
    Sharing.SAME_STORAGE: Kind.SAME_STORAGE,
    Sharing.EQUAL_VALUES: Kind.EQUAL,
    Sharing.APART: Kind.UNRELATED,
    Sharing.NOT_COMPARED: Kind.NOT_COMPARED,
}


def words(given: str | Iterable[str]) -> tuple[str, ...]:
    """`select` and `ignore` as a tuple; OptionError for a word that names no rule."""
    chosen = (given,) if isinstance(given, str) else tuple(given)
    registry.matching(chosen, "select or ignore")
    return chosen


def report(
    live: Live,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    not_compared: Iterable[tuple[str, str]] = (),
    seconds: float = 0.0,
) -> Report:
    """The answer for one model in memory."""
    case = Case(checkpoint=Checkpoint(target=live.model, editions=()), config=None, editions=(), live=live)
    findings, wasted = registry.run(case, select, ignore)
    by_name = {name.name: name for name in live.names}
    return Report(
        target=live.model,
        formats=(MEMORY,),
        totals=Totals(
            tensors=len(live.names),
            parameters_stored=live.counted,
            parameters_unique=live.unique,
            nbytes_stored=_resident(live.names),
            nbytes_wasted=wasted,
        ),
        ties=tuple(_tie(tie, by_name) for tie in live.ties),
        findings=findings,
        not_compared=tuple(Skip(*entry) for entry in not_compared),
        cost=Cost(seconds=round(seconds, 4)),
        filtered=bool(select or ignore),
        reason=_reason(live),
        live=live,
    )


def _resident(names: tuple[LiveName, ...]) -> int:
    """Bytes of all storages, each once; of tensors without one, of all objects."""
    storages = {name.storage: name.storage_nbytes for name in names if name.storage is not None}
    return sum(storages.values()) + sum({name.parameter: name.nbytes for name in names if name.storage is None}.values())


def _tie(tie: LiveTie, by_name: dict[str, LiveName]) -> Tie:
    first = by_name.get(tie.names[0])
    shared = sum(len(part) - 1 for part in tie.parts) if tie.parts and tie.sharing is not Sharing.SAME_STORAGE else len(tie.names) - 1
    relation = _RELATIONS[tie.sharing]
    if tie.sharing is Sharing.EQUAL_VALUES and tie.detail.endswith("cast"):
        relation = Kind.CAST
    nbytes = first.nbytes if first else 0
    return Tie(
        canonical=tie.names[0],
        aliases=tie.names[1:],
        role=_role(tie.names),
        claim="tied" if tie.expected and tie.certain else "untied" if tie.kept_apart else "unknown",
        claim_source=tie.expected or tie.kept_apart or "nobody says",
        relation=relation.value,
        evidence=Evidence.HEADER if tie.sharing is Sharing.NOT_COMPARED else Evidence.SAMPLED if tie.sampled else Evidence.PROVED,
        saves_bytes=shared * nbytes if relation is Kind.SAME_STORAGE or tie.parts else 0,
        stored=tie.names,
        file=MEMORY,
        shape=(first.full or first.shape) if first else (),
        dtype=first.dtype if first else "",
        nbytes=nbytes,
        detail=tie.detail,
        summary=_summary(tie),
        uniform=all(by_name[name].nbytes == nbytes for name in tie.names if name in by_name),
    )


def _role(names: tuple[str, ...]) -> str:
    leaves = [own(name).removesuffix(".weight") for name in names]
    embeddings = [any(leaf == end or leaf.endswith("." + end) for end in EMBEDDING_LEAVES) for leaf in leaves]
    heads = [any(leaf == end or leaf.endswith("." + end) for end in HEAD_LEAVES) for leaf in leaves]
    if any(embeddings) and any(heads):
        return "embedding-head"
    if all(embeddings):
        return "embedding"
    if all(name.endswith("bias") for name in names):
        return "bias"
    return "layer" if any(part.isdecimal() for part in names[0].split(".")) else "other"


def _summary(tie: LiveTie) -> str:
    held = ", a write through one was seen through the others" if tie.probe else ""
    apart = "; ".join(" = ".join(part) for part in tie.parts) if len(tie.names) > 2 else ""
    return {
        Sharing.SAME_PARAMETER: f"one Parameter under {'both' if len(tie.names) == 2 else 'all'} names{held}",
        Sharing.SAME_STORAGE: f"two Parameters over one memory{held}",
        Sharing.EQUAL_VALUES: "two Parameters, equal in every element" if not tie.detail else "two Parameters",
        Sharing.APART: "two different matrices",
        Sharing.NOT_COMPARED: "two Parameters",
    }[tie.sharing] + (f" ({apart})" if apart else "")


def _reason(live: Live) -> str:
    """Why all is well, about the most telling tie."""
    told = sorted(live.ties, key=lambda tie: (not tie.expected, _role(tie.names) != "embedding-head"))
    for tie in told:
        if tie.held and tie.expected:
            return f"tied: {_and(tie.names)} are one Parameter"
        if not tie.expected and tie.sharing in (Sharing.APART, Sharing.EQUAL_VALUES) and _role(tie.names) == "embedding-head":
            return f"untied: {_and(tie.names)} are two {'equal' if tie.sharing is Sharing.EQUAL_VALUES else 'different'} matrices" + (
                f", {tie.kept_apart}" if tie.kept_apart else ", and nobody ties them"
            )
    held = sum(tie.held for tie in live.ties)
    return f"{held} Parameters stand under several names, all of them whole" if held else "no two names share a Parameter, and none has to"


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names) if len(names) == 2 else listed(names)
