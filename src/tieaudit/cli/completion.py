"""`tieaudit completion SHELL`: the script that lets a shell complete options, rules and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_TIEAUDIT_COMPLETE"  # the shell sets it when it asks for words


@click.command("completion", epilog='In ~/.bashrc or ~/.zshrc: eval "$(tieaudit completion bash)" (or zsh). For fish: '
               "tieaudit completion fish > ~/.config/fish/completions/tieaudit.fish")  # fmt: skip
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print what a shell needs to complete command lines of tieaudit."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"this release of click does not complete for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "tieaudit", VARIABLE).source())


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Targets are mostly paths: the shell knows them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def formats(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of reports; behind `NAME:` the shell's own paths would lose the name."""
    from click.shell_completion import CompletionItem

    from .outputs import NAMES

    return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]


def rules(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names and codes of rules; of a list (`TIE001,stale-flag`) its last word."""
    from click.shell_completion import CompletionItem

    from ..inspectors.registry import all_rules

    before, comma, word = incomplete.rpartition(",")
    found = (text for rule in all_rules() for text in (rule.code, rule.name) if text.startswith(word))
    return [CompletionItem(before + comma + text) for text in found]
