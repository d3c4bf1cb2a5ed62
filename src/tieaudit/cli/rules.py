"""`tieaudit rules`: the list of rules, or the page of one."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import click

from .completion import rules
from .screen import columns

if TYPE_CHECKING:
    from ..inspectors.rule import Rule

ROOM = 40  # columns that a summary needs to stand beside its rule


@click.command("rules")
@click.argument("rule", required=False, metavar="[CODE|NAME]", shell_complete=rules)
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True,
              help="Form of the list or the page.")  # fmt: skip
def rules_command(rule: str | None, form: str) -> None:
    """List all rules, or print the page of one."""
    from ..errors import OptionError
    from ..inspectors.registry import all_rules, matching

    try:
        codes = None if rule is None else matching([rule], "rules")
    except OptionError as error:
        raise click.ClickException(str(error)) from None
    chosen = [one for one in all_rules() if codes is None or one.code in codes]
    width = columns(sys.stdout) if sys.stdout.isatty() else None
    click.echo(_rendered(chosen, form, width, whole=codes is None), nl=False)


def _rendered(rules: list[Rule], form: str, width: int | None, *, whole: bool) -> str:
    from ..reporters import pages

    if form == "json":
        return pages.as_json(rules)
    if form == "markdown":
        return pages.table(rules) if whole else "\n".join(map(pages.page, rules))
    if whole:
        return "\n".join(_lines(rules, width)) + "\n"
    return "\n".join(_page(rule, width) for rule in rules)


def _lines(rules: list[Rule], width: int | None) -> list[str]:
    """A line per rule; on a terminal the summary is wrapped beside it, or below it where there is no room."""
    longest = max(len(rule.name) for rule in rules)
    lines = []
    for rule in rules:
        head = f"{rule.code}  {rule.severity.value:8}  {rule.name:{longest}}  "
        if width is None:
            lines.append(f"{head}{rule.summary}")
        elif width - len(head) >= ROOM:
            lines += _wrapped(rule.summary, width, head, " " * len(head))
        else:
            lines += [*_wrapped(f"{rule.code} {rule.severity.value} {rule.name}", width), *_wrapped(rule.summary, width, "    ", "    ")]
    return lines


def _page(rule: Rule, width: int | None) -> str:
    from ..reporters.pages import paragraphs

    head = f"{rule.code} {rule.name} ({rule.severity.value})"
    if width is None:
        return f"{head}\n\n{rule.page}\n"
    summary, *rest = (f"{label}: {text}" if label else text for label, text in paragraphs(rule))
    lines = [*_wrapped(head, width), "", *_wrapped(summary, width), ""]
    return "\n".join([*lines, *(line for text in rest for line in _wrapped(text, width, "", "  "))]) + "\n"


def _wrapped(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    if width <= len(later) + 8:
        return [f"{first}{text}"]
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
