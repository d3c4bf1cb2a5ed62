"""`tieaudit fix TARGET -o OUT`: plan repairs, write them beside the target, audit the result."""

from __future__ import annotations

import shlex
import sys

import click

from .screen import Bar


@click.command("fix", context_settings={"help_option_names": ["-h", "--help"]},
               epilog="Exit codes: 0 done or nothing to do, 1 refused or no repair known, 2 everything else.")  # fmt: skip
@click.argument("target", metavar="TARGET")
@click.option("-o", "--out", metavar="OUT", help="Where the result goes: a name that is not there yet, or an empty folder.")
@click.option("--in-place", is_flag=True, help="Put the result where TARGET is; the original stays beside it as TARGET.before-fix.")
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@click.option("--untie", is_flag=True, help="Keep both of two matrices and write tie_word_embeddings false.")
@click.option("--tie", type=click.Choice(["embed", "head"]), help="Keep one of two matrices, for both names; a flag becomes true.")
@click.option("--to", type=click.Choice(["safetensors"]), help="Convert torch files.")
@click.option("--drop", multiple=True, type=click.Choice(["formats", "training-state", "placeholders", "orphans"]),
              help="Leave out a second edition that is proved to be there twice, optimizer state, weights without elements, "
              "tensors that the index does not name.")  # fmt: skip
@click.option("--min-waste", type=click.IntRange(min=0), default=1024, show_default=True, metavar="BYTES",
              help="Slack below this is no finding.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the plan.")
@click.pass_context
def fix_command(
    ctx: click.Context,
    target: str,
    out: str | None,
    in_place: bool,
    dry_run: bool,
    untie: bool,
    tie: str | None,
    to: str | None,
    drop: tuple[str, ...],
    min_waste: int,
    form: str,
) -> None:
    """Repair what an audit finds at TARGET, a folder or a file on this machine. No matrix is left out unless all of its bytes were proved
    to be in one that stays, or you said so. TARGET itself is never written to."""
    from ..errors import TieauditError
    from ..fix import told
    from ..fix.apply import apply_fix
    from ..fix.plan import plan_fix

    if out and in_place:
        raise click.UsageError("-o OUT and --in-place are two places.", ctx)
    if not out and not in_place and not dry_run:
        raise click.UsageError("Where should the result go? Either -o OUT or --in-place (or --dry-run).", ctx)
    place = "--in-place" if in_place else f"-o {shlex.quote(out)}" if out else "-o OUT"
    bar = Bar(sys.stderr)
    fixed = None
    try:
        plan = plan_fix(target, untie=untie, tie=tie, to=to, drop=drop, min_waste=min_waste, progress=bar.show)
        if plan.verdict == "ready" and not dry_run:
            fixed = apply_fix(plan, out, in_place=in_place, progress=bar.show)
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    finally:
        bar.clear()
    click.echo(told.as_json(plan, fixed, place) if form == "json" else told.text(plan, fixed, place), nl=False, color=True)
    ctx.exit(1 if plan.verdict in ("refused", "unrepaired") else 0)
