"""This file holds the repairs of ties: proved copies left out, names restored, and where two matrices differ the side that was chosen."""

from __future__ import annotations

from ...checkpoint import Wiring
from ...inspectors.verdicts import Situation, Stored, situations
from ...kinds import Evidence, Kind
from ...names import Matrix
from ...text import exactly
from ..draft import EMBED, HEAD, UNTIE, Draft
from ..model import Ground, Step
from . import names

_KINDS = {Stored.EQUAL: Kind.EQUAL, Stored.CAST: Kind.CAST, Stored.TRANSPOSED: Kind.TRANSPOSED}
_ENDS = {"duplicate-tie", "cast-copy", "transposed-head"}


def plan(draft: Draft) -> None:
    """Every cell of the table claim × stored that a rule speaks of."""
    for situation in situations(draft.case):
        rule = situation.verdict.rule
        if situation.group.wiring is not Wiring.CONFIG or not rule:
            continue
        if rule == "diverged-tie":
            if situation.tied_v4 is not False:  # else only the two readings disagree: flags.py
                diverged(draft, situation, rule)
        elif rule in _ENDS:
            _copy(draft, situation, rule)
        elif rule in ("inverted-alias", "unusual-alias"):
            _misnamed(draft, situation, rule)
        elif rule == "unwanted-alias":
            _one_storage(draft, situation)
        elif rule == "missing-head":
            _absent_head(draft, situation)
        elif rule == "missing-embedding":
            _absent_embedding(draft, situation)
        elif rule == "untied-but-equal":
            _equal_untied(draft, situation)


def _told(situation: Situation) -> str:
    """Why, in one clause: the claim's own words."""
    return situation.group.source


def _copy(draft: Draft, situation: Situation, rule: str) -> None:
    """A second form of a matrix that one reading at least ties."""
    holder, second, relation = situation.holder, situation.second, situation.relation
    if holder is None or second is None or relation is None or draft.gone(second) or draft.gone(holder):
        return
    if draft.choices.untie and rule != "transposed-head":
        draft.set_flag(False)
        draft.steps.append(
            Step(
                rule=rule,
                what=f"keep {holder.name} and {second.name} as two matrices",
                why="asked for (--untie)",
                brings=("untied-but-equal",),
            )
        )
        return
    if relation.evidence is not Evidence.PROVED:
        draft.refuse(rule, f"{second.name} could not be proved to be {holder.name}: {relation.detail or 'it was not read whole'}")
        return
    kept, dropped = holder, second
    if relation.kind is Kind.CAST:
        if not relation.redundant:
            _choose(
                draft, situation, rule, f"{holder.name} and {second.name} are one matrix in two dtypes, and neither holds the other exactly"
            )
            return
        if relation.redundant == holder.name:
            kept, dropped = second, holder
    if situation.tied is None and not draft.is_torch(situation.edition) and not draft.choices.tie:
        draft.refuse(
            rule,
            f"{dropped.name} repeats {kept.name}, but no config says that readers take one for the other",
            (EMBED, f"leaves {dropped.name} out"),
        )
        return
    if situation.tied is None and draft.choices.tie:
        draft.set_flag(True)
    draft.remove(dropped, kept, Ground.PROVED, _KINDS[situation.stored])
    how = {Kind.CAST: "cast", Kind.TRANSPOSED: "transposed"}.get(relation.kind, "byte for byte")
    verb = "store once, under both names:" if draft.is_torch(situation.edition) else "leave out"
    draft.steps.append(
        Step(
            rule=rule,
            what=f"{verb} {dropped.name}",
            why=f"it is {kept.name} again, {how} ({_told(situation)})",
            saves_bytes=dropped.nbytes,
            evidence=Evidence.PROVED,
        )
    )
    if kept is not holder and not draft.is_torch(situation.edition):
        _rename(draft, situation, kept, rule)


def diverged(draft: Draft, situation: Situation, rule: str) -> None:
    """Two different matrices where a reader takes one: only the user knows which is right."""
    holder, second, relation = situation.holder, situation.second, situation.relation
    if holder is None or second is None or relation is None or draft.gone(second) or draft.gone(holder):
        return
    _choose(
        draft, situation, rule, f"{second.name} differs from {holder.name} ({relation.detail}), and one reader at least takes one for both"
    )


def _choose(draft: Draft, situation: Situation, rule: str, what: str) -> None:
    holder, second = situation.holder, situation.second
    if holder is None or second is None:
        return
    embed, head = (second, holder) if holder.name == situation.head and holder is not second else (holder, second)
    if draft.choices.untie:
        draft.set_flag(False)
        draft.steps.append(Step(rule=rule, what=f"keep both matrices, {embed.name} and {head.name}", why=f"asked for (--untie); {what}"))
    elif draft.choices.tie:
        kept, dropped = (embed, head) if draft.choices.tie == "embed" else (head, embed)
        draft.remove(dropped, kept, Ground.CHOSEN)
        draft.set_flag(True)
        draft.steps.append(
            Step(
                rule=rule,
                what=f"keep {kept.name} for both names",
                why=f"asked for (--tie {draft.choices.tie}); {what}",
                saves_bytes=dropped.nbytes,
                evidence=Evidence.PROVED,
                lost=f"what {dropped.name} holds: {exactly(dropped.nbytes)} that nothing else has",
            )
        )
        if kept is not holder and not draft.is_torch(situation.edition):
            _rename(draft, situation, kept, rule)
    else:
        draft.refuse(
            rule,
            what,
            (UNTIE, f"keeps both, and writes tie_word_embeddings false so that every reader does ({_told(situation)})"),
            (EMBED, f"keeps {embed.name}: what {head.name} holds is lost"),
            (HEAD, f"keeps {head.name}: what {embed.name} holds is lost"),
        )


def _misnamed(draft: Draft, situation: Situation, rule: str) -> None:
    if situation.holder and not draft.gone(situation.holder):
        step = _rename(draft, situation, situation.holder, rule)
        if step:
            draft.steps.append(step)


def _rename(draft: Draft, situation: Situation, matrix: Matrix, rule: str) -> Step | None:
    """Store `matrix` under the canonical name of its group, spelled as the file spells it if it holds that name (and gives it up)."""
    canonical, holder = situation.group.canonical, situation.holder
    freed = holder is not None and holder is not matrix and draft.gone(holder) and not matrix.packed
    new = holder.main.name if holder and freed else names.respelled(draft.case, situation.edition, matrix, canonical, draft.kept_for)
    if not new:
        draft.refuse(rule, f"{matrix.name} should be stored as {canonical}, but how this file spells that name cannot be told")
        return None
    draft.renamed[(matrix.main.file, matrix.main.name)] = new
    return Step(rule=rule, what=f"store {matrix.main.name} as {new}", why=f"that is the name which readers look for ({_told(situation)})")


def _one_storage(draft: Draft, situation: Situation) -> None:
    holder, second = situation.holder, situation.second
    if holder is None or second is None:
        return
    if draft.choices.tie:
        draft.set_flag(True)
        draft.steps.append(
            Step(rule="unwanted-alias", what=f"tie {second.name} to {holder.name}", why=f"asked for (--tie {draft.choices.tie})")
        )
    elif draft.choices.untie:
        draft.apart.update(part.file for part in second.parts)
        draft.set_flag(False)
        draft.steps.append(
            Step(
                rule="unwanted-alias",
                what=f"store {second.name} and {holder.name} one by one",
                why="asked for (--untie)",
                saves_bytes=-second.nbytes,
                brings=("untied-but-equal",),
            )
        )
    else:
        draft.refuse(
            "unwanted-alias",
            f"{second.name} and {holder.name} are one storage, but {_told(situation)}",
            (EMBED, "writes tie_word_embeddings true: they stay one matrix"),
            (UNTIE, f"stores {second.name} a second time ({exactly(second.nbytes)} more)"),
        )


def _absent_head(draft: Draft, situation: Situation) -> None:
    holder = situation.holder
    if holder is None or not situation.edition.whole:
        return
    if draft.choices.tie == "embed":
        draft.set_flag(True)
        draft.steps.append(
            Step(
                rule="missing-head",
                what=f"tie {situation.name} to {holder.name}",
                why="asked for (--tie embed); it is not stored",
                lost=f"nothing that is stored; a {situation.name} of its own, if there was one, must come from the training run",
            )
        )
    else:
        draft.refuse(
            "missing-head",
            f"{situation.name} is not stored ({_told(situation)}): restore it from the training run, "
            f"or say that it was one with {holder.name}",
            (EMBED, f"writes tie_word_embeddings true: readers take {holder.name} for it"),
        )


def _absent_embedding(draft: Draft, situation: Situation) -> None:
    holder = situation.holder
    if holder is None or holder.name != situation.head:
        return  # nothing here can stand in for it
    if draft.choices.tie == "head":
        step = _rename(draft, situation, holder, "missing-embedding")
        if step:
            draft.set_flag(True)
            draft.steps.append(step)
    else:
        draft.refuse(
            "missing-embedding",
            f"{situation.name} is not stored, only {holder.name} ({_told(situation)}): restore it, or say that the two were one",
            (HEAD, f"stores {holder.name} as {situation.name} and writes tie_word_embeddings true"),
        )


def _equal_untied(draft: Draft, situation: Situation) -> None:
    holder, second, relation = situation.holder, situation.second, situation.relation
    if holder is None or second is None or relation is None or draft.gone(second) or len(second.main.shape) < 2:
        return
    if not draft.choices.tie or relation.kind is not Kind.EQUAL or relation.evidence is not Evidence.PROVED:
        draft.way("untied-but-equal", EMBED)
        return
    draft.set_flag(True)
    draft.remove(second, holder, Ground.PROVED)
    draft.steps.append(
        Step(
            rule="untied-but-equal",
            what=f"tie {second.name} to {holder.name}, and store it once",
            why=f"asked for (--tie {draft.choices.tie}); the two are equal",
            saves_bytes=second.nbytes,
            evidence=Evidence.PROVED,
        )
    )
