"""`tieaudit TARGET…`: audit checkpoints and print the reports."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import outputs as reports
from .completion import files, formats, rules
from .gate import Gate, policy_options
from .screen import Bar, coloured, columns

if TYPE_CHECKING:
    from ..policy.verdict import Verdict
    from ..report import Report
    from ..reporters.several import Outcome

MAX_JOBS = 64


def _words(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


@click.command("audit", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, metavar="TARGET...", shell_complete=files)
@click.option("--format", "outputs", multiple=True, callback=reports.asked, metavar="NAME[:FILE]", show_default="text",
              shell_complete=formats,
              help=f"Form of the report, to stdout or to FILE; repeatable. One of {', '.join(reports.NAMES)}.")  # fmt: skip
@click.option("--verify", type=click.Choice(["headers", "sample", "full"]), default=None, show_default="full; over a network sample",
              help="What may be read: no weights, pages of them, or whole tensors where an equality must be proved.")  # fmt: skip
@click.option("--select", multiple=True, callback=_words, metavar="RULES", shell_complete=rules,
              help="Only these rules: codes, prefixes (TIE2) or names.")  # fmt: skip
@click.option("--ignore", multiple=True, callback=_words, metavar="RULES", shell_complete=rules, help="All rules but these.")
@click.option("--fail-on", type=click.Choice(["error", "warning", "note", "never"]), default="error", show_default=True,
              help="Exit 1 if a finding is at least this severe.")  # fmt: skip
@click.option("--min-waste", type=click.IntRange(min=0), default=1024, show_default=True, metavar="BYTES",
              help="Repeats and slack below this are no findings.")  # fmt: skip
@click.option("--engines", is_flag=True, help="What each engine makes of embedding and head, also where they agree.")
@click.option("--load", is_flag=True, help="Load the model with transformers too, and compare what it shares in memory.")
@click.option("--trust-remote-code", is_flag=True, help="With --load: run the code that lies beside the weights.")
@click.option("--allow-partial/--no-allow-partial", default=False, help="Do not exit 2 because something could not be checked.")
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a Hub id.")
@click.option("--subfolder", metavar="PATH", help="Folder or file inside the repository of a Hub id.")
@click.option("--offline", is_flag=True, help="Audit what the local Hub cache holds of a Hub id; no network.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
              help="For one read over the network, all its tries included.")  # fmt: skip
@click.option("--base", metavar="TARGET", help="The model that an adapter was trained on: a folder, a file, a Hub id or a URL.")
@click.option("--from-file", type=click.Path(allow_dash=True), metavar="FILE", help="More targets, one per line; - is stdin.")
@click.option("--jobs", type=click.IntRange(1, MAX_JOBS), default=1, show_default=True, metavar="N", help="Targets audited at once.")
@policy_options
@click.pass_context
def audit_command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    outputs: tuple[reports.Output, ...],
    verify: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    min_waste: int,
    engines: bool,
    load: bool,
    trust_remote_code: bool,
    revision: str | None,
    subfolder: str | None,
    offline: bool,
    timeout: float,
    base: str | None,
    from_file: str | None,
    jobs: int,
    **_policy: Any,
) -> None:
    """Audit the checkpoint at TARGET: a folder, a file, a Hub id (org/model, hf://org/model@revision/folder), or a URL such as
    s3://bucket/folder. A path that exists wins over a Hub id. Several targets end with a table."""
    from ..errors import TieauditError
    from ..inspectors.registry import matching
    from ..stages import audit

    several = len(targets) > 1 or from_file is not None
    if from_file is not None:
        targets = (*targets, *_listed(from_file))
    if not targets:
        raise click.UsageError("No targets in the list." if from_file is not None else "Missing argument 'TARGET...'.", ctx)
    try:
        # before the first of many is read: an option that is wrong is wrong for all
        matching((*select, *ignore), "--select or --ignore")
        gate = Gate(ctx, targets)
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    reports.check(outputs)
    verify, select, ignore, min_waste, timeout = map(gate.option, ("verify", "select", "ignore", "min_waste", "timeout"))
    jobs = 1 if load else jobs  # what is silenced while a model is loaded is silent in the whole process
    bar = Bar(sys.stderr if jobs == 1 and not gate.quiet else None)
    judge = _apart_from_stdout(audit) if load else audit
    run = partial(judge, verify=verify, select=select, ignore=ignore, min_waste=min_waste, progress=bar.show, revision=revision,
                  subfolder=subfolder, offline=offline, timeout=timeout, base=base, load=load,
                  trust_remote_code=trust_remote_code)  # fmt: skip
    shown = reports.on_stdout(outputs)
    deliver = partial(reports.deliver, outputs, rules=(select, ignore), fail_on=gate.option("fail_on"),
                      allow_partial=gate.option("allow_partial"), subfolder=subfolder, engines=engines, several=several)  # fmt: skip
    if several:
        ctx.exit(_several(_outcomes(run, targets, jobs, bar), gate, shown, engines, deliver))
    ctx.exit(_single(partial(run, targets[0]), targets[0], bar, gate, shown, engines, deliver))


def _single(run: Callable[[], Report], target: str, bar: Bar, gate: Gate, shown: str, engines: bool, deliver: Callable[..., None]) -> int:
    """The exit code of one target."""
    from ..errors import TieauditError

    try:
        report = run()
        gate.accept([report])
    except TieauditError as error:
        deliver([(target, str(error), None)], code=2)
        raise click.ClickException(str(error)) from None
    finally:
        bar.clear()
    verdict = gate.judge(report)
    if shown == "text":
        click.echo(_rendered(report, engines, gate, verdict), nl=False, color=True)
    deliver([(target, report, verdict)], code=verdict.code)
    gate.tell(report, verdict, shown)
    return verdict.code


def _several(outcomes: Iterator[Outcome], gate: Gate, shown: str, engines: bool, deliver: Callable[..., None]) -> int:
    """The worst exit code; texts are told as they come."""
    from ..errors import TieauditError

    gc.enable()  # `main` turns it off for one audit; a list of them takes as long as it takes
    done, answers, code = [], [], 0
    for outcome in outcomes:
        done.append(outcome)
        judged = gate.judge(outcome.report) if outcome.report else None
        answers.append((outcome.target, outcome.report or outcome.error, judged))
        # 2 says that something was not answered, which is worse than a finding
        code = max(code, judged.code if judged else 2)
        if shown == "text":
            click.echo(_told(outcome, engines, gate, judged), nl=False, color=True)
        if outcome.report and judged:
            gate.tell(outcome.report, judged, shown)
    if shown == "text" and not gate.quiet:
        click.echo(_summed_up(done), nl=False, color=True)
    deliver(answers, code=code)
    try:
        gate.accept(outcome.report for outcome in done if outcome.report)
    except TieauditError as error:
        raise click.ClickException(str(error)) from None
    return code


def _apart_from_stdout(audit: Callable[..., Report]) -> Callable[..., Report]:
    """What code that lies beside the weights prints is not part of the report."""

    def run(target: str, **options: Any) -> Report:
        with contextlib.redirect_stdout(sys.stderr):
            return audit(target, **options)

    return run


def _listed(path: str) -> list[str]:
    """Targets of a list: one per line, empty lines and those that begin with # left out."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _outcomes(run: Callable[[str], Report], targets: tuple[str, ...], jobs: int, bar: Bar) -> Iterator[Outcome]:
    """What came of each target, in their order."""
    from ..errors import TieauditError
    from ..reporters.several import Outcome

    def one(target: str) -> Outcome:
        try:
            return Outcome(target=target, report=run(target))
        except TieauditError as error:
            return Outcome(target=target, error=str(error))
        except Exception as error:  # as the wrapper in `main`, but a crash on one target must not lose the others
            if os.environ.get("TIEAUDIT_DEBUG"):
                raise
            words = f"{target}: internal error: {type(error).__name__}: {error} (TIEAUDIT_DEBUG=1 shows where; please report it)"
            return Outcome(target=target, error=words)
        finally:
            bar.clear()

    if jobs == 1:
        yield from map(one, targets)
        return
    with ThreadPoolExecutor(min(jobs, len(targets))) as pool:
        yield from pool.map(one, targets)


def _told(outcome: Outcome, engines: bool, gate: Gate, verdict: Verdict | None) -> str:
    from ..text import printable_words

    if outcome.report is None or verdict is None:
        return f"NO ANSWER  {printable_words(outcome.error)}\n{'' if gate.quiet else chr(10)}"
    return _rendered(outcome.report, engines, gate, verdict) + ("" if gate.quiet else "\n")


def _summed_up(outcomes: list[Outcome]) -> str:
    from ..reporters import several

    return several.render_table(outcomes, columns(sys.stdout) if sys.stdout.isatty() else None)


def _rendered(report: Report, engines: bool, gate: Gate, verdict: Verdict) -> str:
    from ..reporters import terminal

    width = columns(sys.stdout) if sys.stdout.isatty() else None
    paint = _paint if coloured(gate.colour, sys.stdout) else _plain
    if gate.quiet:
        return terminal.brief(report, verdict, width=width, paint=paint)
    return terminal.render(report, width=width, paint=paint, engines=engines, policy=verdict)


def _paint(text: str, colour: str) -> str:
    return click.style(text, fg=colour, bold=True)


def _plain(text: str, _colour: str) -> str:
    return text
