"""`tieaudit rules`: the list of rules, or the page of one."""

from __future__ import annotations

import click


@click.command("rules")
@click.argument("rule", required=False, metavar="[CODE|NAME]")
def rules_command(rule: str | None) -> None:
    """List all rules, or print the page of one."""
    from ..errors import OptionError
    from ..inspectors.registry import all_rules, matching

    if rule is None:
        for one in all_rules():
            click.echo(f"{one.code}  {one.severity.value:8}  {one.name:20}  {one.summary}")
        return
    try:
        codes = matching([rule], "rules")
    except OptionError as error:
        raise click.ClickException(str(error)) from None
    pages = [f"{one.code} {one.name} ({one.severity.value})\n\n{one.page}\n" for one in all_rules() if one.code in codes]
    click.echo("\n".join(pages), nl=False)
