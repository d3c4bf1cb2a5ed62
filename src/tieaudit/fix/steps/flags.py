"""This file holds the repairs of the flag: one value in all places, so that every reading of the config says the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...claim import FLAG, FLAG_KEYS, of_edition
from ...config import ABSENT, Config
from ...errors import FormatError
from ...inspectors.advice import SCALED_BY_FLAG
from ...inspectors.verdicts import Situation, Stored, situations
from ...report import Severity
from .. import jsontext
from ..draft import EMBED, UNTIE, Draft
from ..model import Step
from . import names, ties


def plan(draft: Draft) -> None:
    """Readings that differ, and flags that are no boolean."""
    for case in draft.case.judged:
        for key, value in case.claim.bad_flags:
            what = f"{key} is {value}, not a boolean"
            if draft.choices.untie or draft.choices.tie:
                draft.set_flag(not draft.choices.untie)
                draft.steps.append(Step(rule="ambiguous-flag", what=f"write {key} as {_word(not draft.choices.untie)}", why=what))
            else:
                draft.refuse("ambiguous-flag", what, (EMBED, "writes true"), (UNTIE, "writes false"))
    for situation in situations(draft.case):
        if None not in (situation.tied, situation.tied_v4) and situation.tied != situation.tied_v4:
            _readings_differ(draft, situation)


def _readings_differ(draft: Draft, situation: Situation) -> None:
    severity = _severity(draft, situation)
    if severity in (None, Severity.NOTE) and not (draft.choices.untie or draft.choices.tie):
        return
    if situation.stored is Stored.CANONICAL_ONLY and situation.tied and not situation.group.always:
        if draft.flag is None and not draft.choices.untie:
            # one matrix is stored, so no value is at stake: only the reading that needs no second one can be meant
            draft.set_flag(True)
            draft.steps.append(
                Step(
                    rule="ambiguous-flag",
                    what="write tie_word_embeddings as true in all places",
                    why=f"transformers 5 ties {situation.name}, 4 does not, and it is not stored ({situation.group.source})",
                )
            )
    elif situation.differs and severity is not None:
        ties.diverged(draft, situation, "ambiguous-flag")


def _severity(draft: Draft, situation: Situation) -> Severity | None:
    """As ambiguous-flag judges it; None where it does not speak."""
    writer = next((case.claim.writer for case in draft.case.judged if case.edition is situation.edition), None)
    late = writer is not None and writer >= 5
    if situation.stored is Stored.CANONICAL_ONLY and situation.tied:
        return Severity.NOTE if late or situation.group.always else Severity.ERROR
    if situation.differs and not (situation.tied and situation.group.always):
        return Severity.WARNING if situation.tied else Severity.NOTE if late else Severity.ERROR
    return None


def written(draft: Draft) -> bytes | None:
    """The config's new text, None if it stays. Refuses if the class does not obey what would be written."""
    config, wanted = draft.case.config, draft.flag
    if wanted is None:
        return None
    if config is None:
        return None  # a bare state dict: there is no config to say it in
    try:
        text = draft.folder.open(config.file).read(0, draft.folder.entry(config.file).nbytes).decode("utf-8")
    except (FormatError, UnicodeDecodeError) as error:
        draft.refuse("ambiguous-flag", f"{config.file} cannot be written again: {error}")
        return None
    before = text
    for path in _paths(draft, config):
        if config.at(path) is not wanted or type(config.at(path)) is not bool:
            text = jsontext.with_value(text, path.split("."), _word(wanted))
    if text == before:
        return None
    if config.model_type in SCALED_BY_FLAG:
        if wanted and config.at(FLAG) is ABSENT:
            return None  # true is what these classes take it for
        draft.refuse(draft.steps[-1].rule if draft.steps else "ambiguous-flag",
                     f"in {config.model_type} the flag also scales the decoder's output: it would change every logit")  # fmt: skip
        return None
    if not _obeyed(draft, Config(config.file, json.loads(text.removeprefix("\ufeff"))), wanted):
        draft.refuse(draft.steps[-1].rule if draft.steps else "ambiguous-flag",
                     f"{_class_of(draft)} does not obey tie_word_embeddings: {_word(wanted)} would change nothing")  # fmt: skip
        return None
    return text.encode()


def _paths(draft: Draft, config: Config) -> list[str]:
    """Dotted keys that are written: the top one, the nested ones that decide for this class, and those that are there already."""
    paths = [FLAG]
    deciding = [key for case in draft.case.judged for key in names.flag_keys(case.claim.architecture)]
    for key in (*deciding, *FLAG_KEYS):
        section = key.rpartition(".")[0]
        if not key.endswith(FLAG) or "." not in key:
            if key in FLAG_KEYS and config.at(key) is not ABSENT:
                paths.append(key)
            continue
        there: Any = config.at(section)
        if isinstance(there, Mapping) and (key in deciding or FLAG in there):
            paths.append(key)
    return list(dict.fromkeys(paths))


def _obeyed(draft: Draft, config: Config, wanted: bool) -> bool:
    """The main tie of every edition reads as wanted under transformers 5, where it is known at all."""
    for case in draft.case.judged:
        if case.edition.kind != "weights" or case.edition.foreign or not case.edition.whole:
            continue
        claim = of_edition(case.edition, config, case.stored)
        group = next((group for group in claim.groups if group.role == "embedding-head"), None)
        if group and any(alias.tied is (not wanted) for alias in group.aliases if alias.name in (claim.head, claim.embedding)):
            return False
    return True


def _class_of(draft: Draft) -> str:
    return next((case.claim.architecture for case in draft.case.judged if case.claim.architecture), "the model's class")


def _word(value: bool) -> str:
    return "true" if value else "false"
