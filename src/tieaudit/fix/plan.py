"""This file holds `plan_fix`: an audit, what can be done about its findings, and which files that makes. Nothing is written."""

from __future__ import annotations

import os
import time

from .. import bases
from ..config import FILES, read
from ..errors import OptionError, TargetError
from ..evidence import Gathering, Progress
from ..inspectors import registry
from ..kinds import Verify
from ..loaders import sharded
from ..report import Cost, Report
from ..sources.local import LocalFolder
from ..sources.target import Access, resolve
from ..stages import MIN_WASTE
from .draft import Draft
from .files import listing
from .model import DROPS, SIDES, Choices, Left, Plan, Rewrite, Text
from .outputs import outputs
from .steps import flags, formats, graphs, shards, slack, ties

HEAD = 200  # bytes of a header per tensor, its name left out
STEPS = (flags.plan, ties.plan, graphs.plan, shards.plan, slack.plan, formats.plan)


def plan_fix(
    target: str | os.PathLike[str],
    *,
    untie: bool = False,
    tie: str | None = None,
    to: str | None = None,
    drop: str | tuple[str, ...] | list[str] = (),
    min_waste: int = MIN_WASTE,
    progress: Progress = lambda *_: None,
) -> Plan:
    """What a fix of the checkpoint at `target`, a folder or a file on this machine, would do; `verdict` says whether it can.

    `untie` keeps both of two different matrices and writes the flag false; `tie` ("embed" or "head") keeps that side, and what the other
    one holds is lost. `to`: "safetensors" converts torch files. `drop`: any of "formats" (a second edition that is proved to be the first
    again), "training-state", "placeholders" (weights without elements), "orphans" (tensors that the index does not name).
    Raises TargetError if there is no checkpoint here, OptionError for a value that does not exist.
    """
    started = time.perf_counter()
    choices = _choices(untie=untie, tie=tie, to=to, drop=drop)
    words = os.fspath(target)
    folder, only = resolve(words, Access(offline=True)) if os.path.lexists(words) else (None, None)
    if not isinstance(folder, LocalFolder):
        raise TargetError(words, "is not a folder or file on this machine", "fix needs its files here: download it first")
    try:
        checkpoint = sharded.load(folder, words, only, progress)
        _demand(checkpoint.target, bool(checkpoint.editions))
        config, fault = read(folder)
        gathering = Gathering(folder, checkpoint, config, Verify.FULL, min_waste, progress)
        case = bases.with_adapters(gathering, gathering.case(fault), None, Access(offline=True), Verify.FULL)
        findings, _ = registry.run(case)
        before = Report(
            target=words,
            findings=findings,
            cost=Cost(bytes_read=folder.meter.bytes_read, requests=folder.meter.requests, seconds=round(time.perf_counter() - started, 4)),
        )
        draft = Draft(case=case, folder=folder, data=gathering.reader(), choices=choices)
        for step in STEPS:
            step(draft)
        if only is not None:
            _one_file(draft, only)
        config_text = flags.written(draft)
        made = outputs(draft)
        texts = list(made.texts)
        if config_text is not None and config is not None:
            if only is None:
                texts.append(Text(name=config.file, source=config.file, content=config_text))
            else:
                draft.refuse("ambiguous-flag", f"{config.file} must change with {only}: name the folder")
        return _plan(draft, words, only or "", before, made.rewrites, texts)
    finally:
        folder.close()


def _choices(*, untie: bool, tie: str | None, to: str | None, drop: str | tuple[str, ...] | list[str]) -> Choices:
    drops = frozenset((drop,) if isinstance(drop, str) else drop)
    if tie not in (None, "", *SIDES):
        raise OptionError("--tie", str(tie), " or ".join(SIDES))
    if to not in (None, "", "safetensors"):
        raise OptionError("--to", str(to), "safetensors")
    for name in sorted(drops - set(DROPS)):
        raise OptionError("--drop", name, ", ".join(DROPS))
    if untie and tie:
        raise OptionError("--tie", str(tie), "--untie says the opposite")
    return Choices(untie=untie, tie=tie or "", to=to or "", drop=drops)


def _demand(target: str, found: bool) -> None:
    if not found:
        raise TargetError(target, "no checkpoint here", "name a folder with weights, or a file of weights")


def _one_file(draft: Draft, only: str) -> None:
    """What reaches beyond the one file that was named cannot be done."""
    beyond = {file for file in (*draft.removed, *draft.reindexed) if file != only} | ({only} & draft.removed)
    if beyond:
        draft.refuse(draft.steps[-1].rule, f"{', '.join(sorted(beyond))} must change too: name the folder")


def _plan(draft: Draft, target: str, only: str, before: Report, rewrites: list[Rewrite], texts: list[Text]) -> Plan:
    touched = {rewrite.source for rewrite in rewrites} | {text.source for text in texts} | {
        tensor.file for removal in draft.removals for matrix in (removal.dropped, removal.kept) if matrix for tensor in matrix.parts
    } | set(FILES)  # fmt: skip
    found = listing(draft.folder, target, frozenset(touched), only)
    repaired = {step.rule for step in draft.steps}
    left = tuple(
        Left(rule=finding.rule, severity=finding.severity, message=finding.message, way=draft.ways.get(finding.rule, ""))
        for finding in before.findings
        if finding.rule not in repaired or finding.rule in draft.ways
    )
    return Plan(
        target=target,
        root=str(draft.folder.root),
        file=only,
        choices=draft.choices,
        before=before,
        steps=tuple(dict.fromkeys(draft.steps)),
        refusals=tuple(draft.refusals),
        left=left,
        rewrites=tuple(rewrites),
        texts=tuple(texts),
        removed=frozenset(draft.removed),
        removals=tuple(draft.removals),
        seen=tuple(found.seen),
        folders=found.folders,
        links=found.links,
        foreign=tuple(found.foreign),
        nbytes_before=sum(seen.nbytes for seen in found.seen),
        min_waste=draft.case.min_waste,
    )


def needed(plan: Plan) -> int:
    """Bytes that the result has, headers taken for what they were."""
    new = sum(sum(kept.tensor.nbytes for kept in rewrite.tensors) + _head(rewrite) for rewrite in plan.rewrites)
    return sum(seen.nbytes for seen in plan.carried) + new + sum(len(text.content) for text in plan.texts)


def _head(rewrite: Rewrite) -> int:
    """Room for what a file has beside its tensors."""
    return HEAD * (len(rewrite.tensors) + 1) + sum(len(kept.name) for kept in rewrite.tensors)
