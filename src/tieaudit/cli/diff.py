"""`tieaudit diff BEFORE AFTER`: what became of a checkpoint in another one."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from .audit import _paint, _plain, _words
from .screen import Bar, coloured, columns

if TYPE_CHECKING:
    from ..difference import Diff


@click.command("diff", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the report.")
@click.option("--expect", multiple=True, callback=_words, metavar="WHAT",
              help="same-ties, same-values or smaller: exit 1 if it is not so. Repeatable; then nothing else decides.")  # fmt: skip
@click.option("--logits", is_flag=True, help="Run both on the same token ids (transformers, onnxruntime) and compare their outputs.")
@click.option("--verify", type=click.Choice(["headers", "sample", "full"]), default=None, show_default="full; over a network sample",
              help="What may be read: no weights, pages of them, or all of them.")  # fmt: skip
@click.option("--select", multiple=True, callback=_words, metavar="RULES", help="Only these rules of TIE9: codes or names.")
@click.option("--ignore", multiple=True, callback=_words, metavar="RULES", help="All rules of TIE9 but these.")
@click.option("--fail-on", type=click.Choice(["error", "warning", "note", "never"]), default="error", show_default=True,
              help="Without --expect: exit 1 if a finding is at least this severe.")  # fmt: skip
@click.option("--allow-partial", is_flag=True, help="Do not exit 2 because something could not be compared.")
@click.option("--offline", is_flag=True, help="Of a Hub id: what the local Hub cache holds; no network.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
              help="For one read over the network, all its tries included.")  # fmt: skip
@click.pass_context
def diff_command(
    ctx: click.Context,
    before: str,
    after: str,
    form: str,
    expect: tuple[str, ...],
    logits: bool,
    verify: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    allow_partial: bool,
    offline: bool,
    timeout: float,
) -> None:
    """Compare two checkpoints of any formats: which ties were kept, which tensors changed and how, and why one is larger.

    BEFORE and AFTER are what an audit takes: folders, files, Hub ids (hf://org/model@revision for one of its revisions), URLs."""
    from ..changes.run import diff
    from ..errors import TieauditError

    bar = Bar(sys.stderr)
    # what code of a model prints while it runs is not part of the report
    aside = contextlib.redirect_stdout(sys.stderr) if logits else contextlib.nullcontext()
    try:
        with aside:
            found = diff(before, after, verify=verify, select=select, ignore=ignore, expect=expect, logits=logits, offline=offline,
                         timeout=timeout, progress=bar.show)  # fmt: skip
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    finally:
        bar.clear()
    click.echo(_rendered(found, form), nl=False, color=True)
    ctx.exit(_code(found, fail_on, allow_partial))


def _rendered(diff: Diff, form: str) -> str:
    if form == "json":
        from ..reporters import diff_json

        return diff_json.render(diff)
    from ..reporters import diff_text

    if not sys.stdout.isatty():
        return diff_text.render(diff)
    paint = _paint if coloured("auto", sys.stdout) else _plain
    return diff_text.render(diff, width=columns(sys.stdout), paint=paint)


def _code(diff: Diff, fail_on: str, allow_partial: bool) -> int:
    from ..report import Severity

    if diff.expectations:
        if any(one.met is False for one in diff.expectations):
            return 1
        return 2 if not allow_partial and (diff.skipped or any(one.met is None for one in diff.expectations)) else 0
    if fail_on != "never" and any(finding.severity.rank <= Severity(fail_on).rank for finding in diff.findings):
        return 1
    return 2 if diff.skipped and not allow_partial else 0
