"""`tieaudit TARGET`: audit one checkpoint and print the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from .screen import Bar, columns

if TYPE_CHECKING:
    from ..report import Report


def _words(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


@click.command("audit", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the report.")
@click.option("--verify", type=click.Choice(["headers", "sample", "full"]), default="full", show_default=True,
              help="What may be read: no weights, pages of them, or whole tensors where an equality must be proved.")  # fmt: skip
@click.option("--select", multiple=True, callback=_words, metavar="RULES", help="Only these rules: codes, prefixes (TIE2) or names.")
@click.option("--ignore", multiple=True, callback=_words, metavar="RULES", help="All rules but these.")
@click.option("--fail-on", type=click.Choice(["error", "warning", "note", "never"]), default="error", show_default=True,
              help="Exit 1 if a finding is at least this severe.")  # fmt: skip
@click.option("--min-waste", type=click.IntRange(min=0), default=1024, show_default=True, metavar="BYTES",
              help="Repeats and slack below this are no findings.")  # fmt: skip
@click.option("--allow-partial", is_flag=True, help="Do not exit 2 because something could not be checked.")
@click.pass_context
def audit_command(
    ctx: click.Context,
    target: str,
    form: str,
    verify: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    min_waste: int,
    allow_partial: bool,
) -> None:
    """Audit the checkpoint at TARGET, a folder or a file."""
    from ..errors import TieauditError
    from ..report import Severity
    from ..stages import audit

    bar = Bar(sys.stderr)
    try:
        report = audit(target, verify=verify, select=select, ignore=ignore, min_waste=min_waste, progress=bar.show)
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    finally:
        bar.clear()
    click.echo(_rendered(report, form), nl=False, color=True)
    if fail_on != "never" and report.at_least(Severity(fail_on)):
        ctx.exit(1)
    if report.skipped and not allow_partial:
        ctx.exit(2)


def _rendered(report: Report, form: str) -> str:
    if form == "json":
        from ..reporters import json

        return json.render(report)
    from ..reporters import terminal

    if not sys.stdout.isatty():
        return terminal.render(report)
    return terminal.render(report, width=columns(sys.stdout), paint=_paint())


def _paint() -> Callable[[str, str], str]:
    # https://no-color.org: any non-empty value
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lambda text, _colour: text
    return lambda text, colour: click.style(text, fg=colour, bold=True)
