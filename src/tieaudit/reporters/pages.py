"""This file holds the page of a rule as Markdown and as data: for `tieaudit rules`, SARIF, and the files in docs/rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from .. import __version__
from ..inspectors import live
from ..inspectors.rule import Rule

_LABEL = re.compile(r"^(What it does|Why is this bad|Why is this worth knowing|Use instead|Not counted):")


def in_memory(rule: Rule) -> bool:
    """True for a rule that needs a model in memory, not files."""
    return rule in live.RULES and rule.name != "replica-drift"


def paragraphs(rule: Rule) -> list[tuple[str, str]]:
    """The page in parts: (label, text), the label empty for lines without one. Lines that were broken in the source are joined."""
    parts: list[tuple[str, str]] = []
    for line in (line.strip() for line in rule.page.split("\n")):
        found = _LABEL.match(line)
        if found:
            parts.append((found[1], line[found.end() :].strip()))
        elif not line or not parts:
            parts.append(("", line))
        elif parts[-1][1].endswith(".") and line[:1].isupper():
            parts.append(("", line))  # a sentence that begins a line after one that ended: an exception, or a further remark
        else:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]} {line}".strip())
    return [(label, text) for label, text in parts if text]


def markdown(rule: Rule) -> str:
    """The page below its heading. Docstrings are ours: their backticks are meant, and a test sees to it that there is no HTML."""
    return "\n\n".join(f"**{label}:** {text}" if label else text for label, text in paragraphs(rule))


def page(rule: Rule, why: str = "") -> str:
    """The page as a file of its own. `why`: in one line why the fixture of the rule is at fault and its neighbour is not."""
    fixture = (
        f"\n\n**Example:** [`fixtures/{rule.name}`](../../fixtures/{rule.name}) holds the smallest checkpoint that is at fault and the "
        f"nearest one that is not: {why}."
        if why
        else ""
    )
    how = (
        "It looks at a model in memory: `tieaudit PATH --load`, or `tieaudit.audit_module` from Python."
        if in_memory(rule)
        else f"`tieaudit PATH --ignore {rule.name}` leaves it out, `--select {rule.code}` runs it alone."
    )
    return f"# {rule.code} `{rule.name}`\n\nDefault severity: **{rule.severity.value}**\n\n{markdown(rule)}{fixture}\n\n{how}\n"


def table(rules: Iterable[Rule]) -> str:
    """All rules, a row each."""
    rows = [f"| {rule.code} | `{rule.name}` | {rule.severity.value} | {rule.summary} |" for rule in rules]
    return "\n".join(["| code | rule | default | what it finds |", "|---|---|---|---|", *rows]) + "\n"


def as_json(rules: Iterable[Rule]) -> str:
    """The rules for programs: `{"version": 1, "tool": …, "rules": [{"code", "name", "severity", "summary", "page"}]}`."""
    content = {"version": 1, "tool": {"name": "tieaudit", "version": __version__}, "rules": [_data(rule) for rule in rules]}
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def _data(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.value,
        "summary": rule.summary,
        "page": rule.page,
    }
