"""This file holds what findings on ties say of other programs, and advice that depends on them: none may cost a reader a matrix."""

from __future__ import annotations

from . import readers
from .rule import Case
from .verdicts import Situation, situations

# model types in which the flag also says whether the decoder's output is scaled (T5 1.0) or not (1.1)
SCALED_BY_FLAG = ("t5", "umt5", "longt5", "pop2piano", "mt5", "udop")


def engines(case: Case, situation: Situation, *, harm: bool = False) -> str:
    """What the leading engines make of embedding and head in this file, where they differ; `harm`: only those that go wrong."""
    if situation.head not in (situation.name, situation.holder.name if situation.holder else ""):
        return ""
    from ..engines import words

    return words.clause(readers.of_group(case, situation.edition.name, situation.group.canonical), harm=harm)


def saved_by_5(case: Case, situation: Situation) -> bool:
    """A T5 v1.1 file that transformers 5 loaded and saved: it writes the flag as true and keeps its old value under another name."""
    return situation.group.always and case.config is not None and case.config.at("scale_decoder_outputs") is False


def keep_both(case: Case, situation: Situation) -> str:
    """How both matrices stay, in every reader that can."""
    if situation.group.always and case.config and case.config.model_type in SCALED_BY_FLAG:
        return "keep both: only transformers 5 can (with the flag false the decoder's output is not scaled, and the logits change)"
    return "keep both: set the flag to false in config.json"


def shared_by_4(situation: Situation) -> str | None:
    """Biases, and the embeddings of encoder and decoder: transformers 4 shares them whatever the flag says, and stores them once."""
    if situation.tied_v4 and situation.tied is False and situation.name != situation.head:
        return "transformers 4 wrote it: it shares the two whatever the flag says, and stores them once"
    return None


def restored(case: Case, situation: Situation) -> str:
    """What to do about a name that is not stored."""
    holder = situation.holder.name if situation.holder else situation.group.canonical
    # the flag ties more than these two: where others differ, setting it would cost transformers 4 one of them
    edition = situation.edition
    apart = any(other.differs for other in situations(case) if other.edition is edition and other.tied is False)
    if apart or shared_by_4(situation):
        return f"if it was trained as {holder}: store it as {situation.name} too; else restore it from the training run"
    return f"if it was trained as {holder}: set the flag to true in config.json; else restore it from the training run"
