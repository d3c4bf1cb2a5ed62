"""The command line: the only place that prints and exits.

Exit codes: 0 nothing at or above --fail-on, 1 findings at or above it, 2 everything else (usage, target, crash, not checked).
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from .. import __version__
from .audit import audit_command
from .completion import VARIABLE, completion_command, files
from .diff import diff_command
from .fix import fix_command
from .hook import hook_command
from .rules import rules_command
from .size import size_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class DefaultGroup(click.Group):
    """`tieaudit TARGET` is `tieaudit audit TARGET`; a folder that has a command's name is written `./rules`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "--version"}
        if args and args[0] not in self.commands and args[0] not in own:
            args = ["audit", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The first word is a command or already a target or an option of an audit."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            # bash takes either its own paths or our words: commands only once a letter points at one
            return [*files(ctx, audit_command.params[0], incomplete), *(found if incomplete else ())]
        known = {item.value for item in found}
        audit = click.Context(audit_command, parent=ctx, info_name="audit", resilient_parsing=True)
        return [*found, *(item for item in audit_command.shell_complete(audit, incomplete) if item.value not in known)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] TARGET...  |  size, fix or diff …  |  rules [CODE|NAME]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of an audit stand here too: it is what nearly everyone runs."""
        records = [
            param.get_help_record(ctx) for param in (*audit_command.params, *self.get_params(ctx)) if isinstance(param, click.Option)
        ]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])
        self.format_commands(ctx, formatter)


@click.group(
    cls=DefaultGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    epilog="Exit codes: 0 nothing at or above --fail-on, 1 findings at or above it, 2 everything else.",
)
@click.version_option(__version__, message="tieaudit %(version)s")
def cli() -> None:
    """Audit a model checkpoint: do the ties that its config claims (tie_word_embeddings and every other shared tensor) hold in what
    is stored? TARGET is a folder, a file, a Hub id (org/model) or a URL (s3://bucket/folder)."""


cli.add_command(audit_command)
cli.add_command(diff_command)
cli.add_command(fix_command)
cli.add_command(rules_command)
cli.add_command(size_command)
cli.add_command(completion_command)
cli.add_command(hook_command())


def main() -> None:
    """Run, and turn every way to end into an exit code."""
    sys.exit(_run(sys.argv[1:]))


def main_hf() -> None:
    """As `main`, called by `hf tieaudit …`: huggingface_hub starts the script `hf-tieaudit` of an extension."""
    sys.exit(_run(sys.argv[1:], "hf tieaudit"))


def _run(args: list[str], name: str = "tieaudit") -> int:
    # one audit and out: the collector would walk 140,000 records again and again, and none of them is cyclic
    gc.disable()
    # read by huggingface_hub when it is imported: an audit sends no word about this machine, and spares the request that asks for a
    # list of agents
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if sys.stdout is None:  # closed by the caller (`>&-`): there is nowhere to report to
        return 2
    try:
        for stream in (sys.stdout, sys.stderr):
            # a terminal that cannot show a sign shows `?`; it never ends in a traceback
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        code = cli.main(args=args, prog_name=name, complete_var=VARIABLE, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        _say(f"{error.format_message().rstrip('.')} ({name} -h lists the options)")
        return 2
    except click.ClickException as error:
        _say(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        _say("stopped")
        return 2
    except (BrokenPipeError, SystemExit) as stop:
        if VARIABLE in os.environ and isinstance(stop, SystemExit):
            return stop.code if isinstance(stop.code, int) else 0  # click has answered the shell
        # the reader (`| head`) has gone (click turns that into SystemExit(1)); Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as error:  # the one wrapper: a crash is exit 2 and one line
        if os.environ.get("TIEAUDIT_DEBUG"):
            raise
        _say(f"internal error: {type(error).__name__}: {error} (TIEAUDIT_DEBUG=1 shows where; please report it)")
        return 2


def _say(message: str) -> None:
    """One line on stderr, whatever is in the message."""
    from ..text import printable_words

    click.echo(f"tieaudit: {printable_words(message)}", err=True)
