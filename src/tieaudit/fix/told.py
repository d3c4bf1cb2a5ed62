"""This file holds how a plan and what came of it are told: in words for people, and as an object of JSON."""

from __future__ import annotations

import json
import shlex
from typing import Any

from .. import __version__
from ..text import printable, printable_words, quantity
from .model import Fixed, Plan, Refusal

CONTRACT = 1
WORDS = {
    "nothing to do": "NOTHING TO DO",
    "unrepaired": "NOT REPAIRED",
    "refused": "REFUSED",
    "ready": "PLAN",
}


def text(plan: Plan, fixed: Fixed | None, place: str) -> str:
    """For a terminal. `place`: the options that say where the result goes, for commands to copy."""
    lines = [
        f"{'FIXED' if fixed and fixed.out else WORDS[plan.verdict]}  {printable(plan.target)}   {printable_words(_headline(plan, fixed))}"
    ]
    for step in plan.steps if not plan.refusals else ():
        saved = f"   ({_saved(step.saves_bytes)})" if step.saves_bytes else ""
        lines += ["", f"  {printable_words(step.what)}{saved}", f"      why       {printable_words(step.why)}"]
        lines.append(
            f"      ends      {step.rule}; evidence: {step.evidence.value}" if step.rule else "      ends      no finding: it was asked for"
        )
        if step.lost:
            lines.append(f"      lost      {printable_words(step.lost)}")
    for refusal in plan.refusals:
        lines += ["", f"  {refusal.rule}: {printable_words(refusal.what)}"]
        for option, effect in refusal.ways:
            lines += [f"      {_command(plan, option, place)}", f"          {printable_words(effect)}"]
    if plan.left and not plan.refusals:
        lines += ["", "  stays as it is"]
        for left in plan.left:
            way = f" ({left.way} would repair it)" if left.way else ""
            lines.append(f"      {left.severity.value} {left.rule}: {printable_words(left.message)}{way}")
    if plan.verdict == "ready":
        lines += ["", f"  {_sum(plan)}"]
    if fixed and fixed.out:
        lines.append(f"  written to {printable(fixed.out)}" + (f"; the original is {printable(fixed.backup)}" if fixed.backup else ""))
    return "\n".join(lines) + "\n"


def _headline(plan: Plan, fixed: Fixed | None) -> str:
    count = len(plan.steps)
    steps = f"{count:,} repair{'s' * (count != 1)}"
    if plan.refusals:
        several = any(refusal.ways for refusal in plan.refusals)
        return "a person must choose; nothing was written" if several else "it cannot be done; nothing was written"
    if fixed and fixed.out:
        rest = len(fixed.remaining)
        return f"{steps}; " + (f"{rest:,} finding{'s' * (rest != 1)} left" if rest else "nothing is left to find")
    if plan.verdict == "ready":
        return f"{steps}; nothing is written yet"
    if any(left.way for left in plan.left) and plan.verdict == "unrepaired":
        return "what was found is repaired only if it is asked for"
    return "no repair is known for what was found" if plan.verdict == "unrepaired" else "there is nothing to repair"


def _saved(nbytes: int) -> str:
    return f"saves {quantity(nbytes)}" if nbytes > 0 else f"takes {quantity(-nbytes)} more"


def _sum(plan: Plan) -> str:
    saved = sum(step.saves_bytes for step in plan.steps)
    new = len(plan.rewrites) + len(plan.texts)
    told = [f"{new:,} file{'s' * (new != 1)} written again", f"{len(plan.carried):,} carried over byte for byte"]
    if plan.removed:
        told.append(f"{len(plan.removed):,} left out")
    return f"{', '.join(told)}; {_saved(saved) if saved else 'no bytes saved'}"


def _command(plan: Plan, option: str, place: str) -> str:
    target = plan.target if plan.target.isprintable() else printable(plan.target)
    return f"tieaudit fix {shlex.quote(target)}{plan.choices.words} {option} {place or '-o OUT'}"


def document(plan: Plan, fixed: Fixed | None, place: str) -> dict[str, Any]:
    """The plan as an object; the schema is `plan.schema.json`."""
    return {
        "version": CONTRACT,
        "tool": {"name": "tieaudit", "version": __version__},
        "target": plan.target,
        "verdict": plan.verdict,
        "steps": [
            {
                "rule": step.rule or None,
                "what": step.what,
                "why": step.why,
                "saves_bytes": step.saves_bytes,
                "evidence": step.evidence.value,
                "lost": step.lost or None,
            }
            for step in plan.steps
        ],
        "refusals": [_refusal(plan, refusal, place) for refusal in plan.refusals],
        "left": [
            {"rule": left.rule, "severity": left.severity.value, "message": left.message, "way": left.way or None} for left in plan.left
        ],
        "files": {
            "written": sorted([rewrite.name for rewrite in plan.rewrites] + [text.name for text in plan.texts]),
            "carried": [seen.name for seen in plan.carried],
            "removed": sorted(plan.removed),
        },
        "saves_bytes": sum(step.saves_bytes for step in plan.steps),
        "out": (fixed.out or None) if fixed else None,
        "backup": (fixed.backup or None) if fixed else None,
        "after": [
            {"code": finding.code, "rule": finding.rule, "severity": finding.severity.value, "message": finding.message}
            for finding in fixed.remaining
        ]
        if fixed and fixed.out
        else None,
    }


def _refusal(plan: Plan, refusal: Refusal, place: str) -> dict[str, Any]:
    ways = [{"option": option, "effect": effect, "command": _command(plan, option, place)} for option, effect in refusal.ways]
    return {"rule": refusal.rule, "what": refusal.what, "ways": ways}


def as_json(plan: Plan, fixed: Fixed | None, place: str) -> str:
    return json.dumps(document(plan, fixed, place), indent=2, ensure_ascii=True) + "\n"
