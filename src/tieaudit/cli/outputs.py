"""`--format NAME[:FILE]`: which reports one run gives, and how they are written."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..policy.verdict import Verdict
    from ..report import Report
    from ..reporters.settings import Settings
    from ..reporters.several import Outcome

NAMES = ("text", "json", "sarif", "junit", "github", "gitlab", "markdown", "csv", "html")
_ANSWER_FOR_NONE = ("sarif", "junit", "github", "gitlab", "markdown", "csv")  # have a form for a target that could not be audited
_CHECKPOINT = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".npz", ".msgpack", ".distcp", ".index.json")
_BESIDE = ("config.json", "adapter_config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

_STREAMS = ("/dev/stderr", "/dev/fd/", "/proc/")  # what is open already, whatever is behind it


@dataclass(frozen=True, slots=True)
class Output:
    """One report that was asked for; without a file it goes to stdout."""

    name: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.file}" if self.file else self.name


def asked(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> tuple[Output, ...]:
    """The option's values, `text` if there are none. Raises what click shows as wrong usage."""
    outputs = tuple(map(_one, values)) or (Output("text"),)
    spoken = [output for output in outputs if not output.file]
    if len(spoken) > 1:
        both = " and ".join(output.name for output in spoken[:2])
        raise click.BadParameter(f"{both} both go to stdout; give one of them a file, as in {spoken[1].name}:FILE.")
    files = [os.path.realpath(output.file) for output in outputs if output.file]
    for number, file in enumerate(files):
        if file in files[:number]:
            raise click.BadParameter(f"{file} is named twice.")
    return outputs


def _one(value: str) -> Output:
    name, colon, file = value.partition(":")
    if name not in NAMES:
        raise click.BadParameter(f"{value!r} is none of {', '.join(NAMES)}.")
    if colon and not file:
        raise click.BadParameter(f"{value!r} names no file behind its colon.")
    return Output(name, "" if file in ("-", "/dev/stdout") else file)


def on_stdout(outputs: Sequence[Output]) -> str:
    """The name of the report that goes to stdout, "" if none does."""
    return next((output.name for output in outputs if not output.file), "")


def check(outputs: Sequence[Output]) -> None:
    """Refuse before anything is read what could not be written, or should not be."""
    for output in outputs:
        if output.name == "html" and not output.file and sys.stdout.isatty():
            raise click.UsageError("html is no reading for a terminal; give it a file (--format html:FILE) or a redirect.")
        if output.file:
            _refuse(output)


def _refuse(output: Output) -> None:
    path = Path(os.path.realpath(output.file))
    try:
        if path.is_dir():
            raise _cannot(output, "is a folder")
        if not path.parent.is_dir():
            raise _cannot(output, f"there is no folder {path.parent}")
        there = path.exists()
    except (OSError, ValueError) as error:
        raise _cannot(output, getattr(error, "strerror", None) or str(error)) from None
    # a slip of the hand must not cost a model: a report is never written over a part of one
    if there and (path.name.lower().endswith(_CHECKPOINT) or path.name in _BESIDE):
        raise _cannot(output, "is there and looks like a part of a checkpoint")


def _cannot(output: Output, why: str) -> click.ClickException:
    return click.ClickException(f"--format {output}: {output.file} cannot be written: {why}")


def deliver(
    outputs: Sequence[Output],
    answers: Sequence[tuple[str, Report | str, Verdict | None]],
    *,
    code: int,
    rules: tuple[Sequence[str], Sequence[str]],
    fail_on: str,
    allow_partial: bool,
    subfolder: str | None,
    engines: bool,
    several: bool,
) -> None:
    """Write every report but a text on stdout, which is told as it comes. `answers`: (target, its report or why there is none, what the
    project says of it); `code` is the exit code that follows; `rules`: what --select and --ignore name.

    One that cannot be written does not keep back the others; the first failure is raised at the end.
    """
    if all(output == Output("text") for output in outputs):
        return
    from ..reporters.several import Outcome

    outcomes = [
        Outcome(target=target, error=told) if isinstance(told, str) else Outcome(target=target, report=told) for target, told, _ in answers
    ]
    settings = _settings(rules, fail_on, subfolder, code, tuple(verdict for _, _, verdict in answers), allow_partial=allow_partial)
    failure: click.ClickException | None = None
    for output in outputs:
        if output == Output("text") or (not several and outcomes[0].report is None and output.name not in _ANSWER_FOR_NONE):
            continue
        if output.name == "text":
            content = _text(outcomes, settings, engines=engines, several=several)
        else:
            content = rendered(output.name, outcomes, settings, several=several)
        if not output.file:
            click.echo(content, nl=False, color=True)
            if output.name == "github":
                failure = _summarise(outcomes, settings, several=several) or failure
            continue
        try:
            write(output.file, content)
        except OSError as error:
            failure = failure or _cannot(output, error.strerror or str(error))
    if failure:
        raise failure


def _settings(
    rules: tuple[Sequence[str], Sequence[str]],
    fail_on: str,
    subfolder: str | None,
    code: int,
    verdicts: tuple[Verdict | None, ...],
    *,
    allow_partial: bool,
) -> Settings:
    from ..inspectors.registry import all_rules, matching
    from ..report import Severity
    from ..reporters.settings import Settings

    select, ignore = rules
    chosen = matching(select, "--select") or frozenset(rule.code for rule in all_rules())
    return Settings(
        fail_on=None if fail_on == "never" else Severity(fail_on),
        allow_partial=allow_partial,
        rules=chosen - matching(ignore, "--ignore"),
        exit_code=code,
        subfolder=subfolder or "",
        verdicts=verdicts,
    )


def _text(outcomes: Sequence[Outcome], settings: Settings, *, engines: bool, several: bool) -> str:
    """The text for a file: neither wrapped nor painted."""
    from ..reporters import several as many
    from ..reporters import terminal
    from ..text import printable_words

    told = [
        terminal.render(outcome.report, engines=engines, policy=verdict)
        if outcome.report
        else f"NO ANSWER  {printable_words(outcome.error)}\n"
        for outcome, verdict in zip(outcomes, settings.verdicts, strict=True)
    ]
    return "\n".join([*told, many.render_table(outcomes)] if several else told)


def rendered(name: str, outcomes: Sequence[Outcome], settings: Settings, *, several: bool) -> str:
    """The report in one of the formats but text."""
    report = None if several else outcomes[0].report
    if name == "json":
        from ..reporters import json
        from ..reporters import several as many

        return json.render(report) if report else many.render_json(outcomes)
    if name == "html":
        return _page(outcomes, several=several)
    from importlib import import_module

    reporter = import_module(f"tieaudit.reporters.{name}")
    return str(reporter.render(report, settings) if report else reporter.render_several(outcomes, settings))


def _page(outcomes: Sequence[Outcome], *, several: bool) -> str:
    from ..errors import TieauditError

    try:
        from ..reporters import html
    except ImportError as error:
        raise click.ClickException(f"--format html needs {error.name or 'jinja2'} (pip install jinja2)") from None
    report = None if several else outcomes[0].report
    try:
        return html.render(report) if report else html.render_several(outcomes)
    except TieauditError as error:
        raise click.ClickException(str(error)) from None


def _summarise(outcomes: Sequence[Outcome], settings: Settings, *, several: bool) -> click.ClickException | None:
    """GitHub shows the file that this variable names on the page of the run; other steps write to it too."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return None
    try:
        with open(path, "ab") as file:
            file.write(_encoded(rendered("markdown", outcomes, settings, several=several)))
    except OSError as error:
        return click.ClickException(f"GITHUB_STEP_SUMMARY: {path} cannot be written: {error.strerror or error}")
    return None


def _encoded(content: str) -> bytes:
    return content.encode("utf-8", "backslashreplace")


def write(file: str, content: str) -> None:
    """The whole file, or the one that was there before: written beside it and renamed. Links stay; pipes and devices are written to."""
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and (file.startswith(_STREAMS) or not stat.S_ISREG(mode)):
        # by the name that was given: /dev/fd/63 leads to a pipe that has no path, /dev/stderr to a log that others write to
        with open(file, "ab") as stream:
            stream.write(_encoded(content))
        return
    path = Path(os.path.realpath(file))
    beside = path.parent / f".tieaudit-{os.urandom(8).hex()}.tmp"
    # 0666 less the umask, as any program's files
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(_encoded(content))
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
