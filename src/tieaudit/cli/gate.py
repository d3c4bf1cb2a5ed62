"""What decides an exit code beside the report: options and settings of a project, accepted findings, waivers, limits.

An option of the command line goes before the settings' table for the target, and that before the rest of the settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from .screen import COLOURS

if TYPE_CHECKING:
    from ..policy.baseline import Entry
    from ..policy.limits import Limits
    from ..policy.settings import Settings
    from ..policy.verdict import Verdict
    from ..policy.waivers import Card
    from ..report import Report

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Size(click.ParamType[int]):
    """Bytes: `4096`, `1.5 GB`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ..policy import limits

        nbytes = limits.parse(value) if isinstance(value, str) else value
        if not isinstance(nbytes, int):
            self.fail(f"{value!r} is not a size ({limits.ALLOWED}).", param, ctx)
        return nbytes


_OPTIONS = (
    click.option("--config", type=click.Path(), metavar="FILE",
                 help="Settings; else tieaudit.toml or pyproject.toml of this folder or one above."),
    click.option("--no-config", is_flag=True, help="No settings from files."),
    click.option("--baseline", type=click.Path(), metavar="FILE", help="Accepted findings: only new and worse ones count."),
    click.option("--write-baseline", type=click.Path(), metavar="FILE", help="Accept what is found now: write it to FILE."),
    click.option("--max-waste", type=Size(), metavar="BYTES", help="Exit 1 if more bytes are wasted; also '1.5 GB'."),
    click.option("--max-size", type=Size(), metavar="BYTES", help="Exit 1 if more bytes are stored."),
    click.option("--allow-waivers/--no-allow-waivers", default=False, help="Let a model's own card waive findings, with a reason."),
    click.option("--quiet", "-q", is_flag=True, help="Only what fails, a line each; nothing for a target that passes."),
    click.option("--verbose", "-v", is_flag=True, help="Say on stderr what was read, which settings hold, which rules did not run."),
    click.option("--color", type=click.Choice(COLOURS), default="auto", show_default=True, help="Colours; auto: on a terminal."),
)  # fmt: skip


def policy_options(command: Decorated) -> Decorated:
    """The options that `Gate` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Gate:
    """The policy of one call. TieauditError if settings or baseline cannot be taken as they are."""

    def __init__(self, ctx: click.Context, targets: Iterable[str]) -> None:
        self._ctx = ctx
        self._params: Mapping[str, Any] = ctx.params
        self._looked: tuple[str, ...] = ()
        self.settings = self._settings(targets)
        self._baseline: str = self._params["baseline"] or self.settings.baseline or ""
        self._accepted: tuple[Entry, ...] = ()
        self._shown = ""
        # whoever is about to write it for the first time has none yet
        if self._baseline and (os.path.lexists(self._baseline) or not self._params["write_baseline"]):
            from ..policy import baseline

            self._shown = os.path.relpath(self._baseline) if self._given("baseline") is None else self._baseline
            self._accepted = baseline.load(self._baseline, self._shown)

    def _given(self, name: str) -> Any:
        """The option's value if it stands on the command line, else None."""
        return self._params[name] if self._ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE else None

    def _settings(self, targets: Iterable[str]) -> Settings:
        from ..policy import search, settings

        if self._params["no_config"]:
            if self._params["config"]:
                raise click.UsageError("--config and --no-config exclude each other.", self._ctx)
            return settings.Settings()
        if self._params["config"]:
            return settings.load(self._params["config"], self._params["config"])
        base = self._params["base"]
        found = search.search(Path.cwd(), [*targets, *([base] if base else [])])
        self._looked = found.looked
        for words in found.unused:
            self.say(words)
        return settings.understood(found.data, found.path, os.path.relpath(found.path)) if found.path else settings.Settings()

    def option(self, name: str) -> Any:
        """What holds of an option that the settings can give too."""
        given, told = self._given(name), getattr(self.settings, name)
        return given if given is not None else told if told is not None else self._params[name]

    def _of(self, name: str, key: str, option: str) -> Any:
        """As `option`, for what the settings can say of one target."""
        for table in reversed(self.settings.targets):
            value = getattr(table, name)
            if value is not None and table.holds_for(key) and self._given(option) is None:
                return value
        given, told = self._given(option), getattr(self.settings, name)
        return given if given is not None else told if told is not None else self._params[option]

    def _key(self, target: str, start: str) -> str:
        from ..fingerprints import target_key

        return target_key(target, start or str(Path.cwd()), self._params["subfolder"])

    def judge(self, report: Report) -> Verdict:
        """What the report comes to."""
        from ..policy import verdict

        settings = self.settings
        key = self._key(report.target, settings.folder) if settings.targets else ""
        allow = bool(self._of("allow_waivers", key, "allow_waivers"))
        policy = verdict.Policy(
            fail_on=self._of("fail_on", key, "fail_on"),
            allow_partial=self.option("allow_partial"),
            limits=self._limits(key),
            file=settings.file,
            accepting=tuple(table for table in settings.targets if table.ignore and table.holds_for(key)),
            card=self._card(report, allow=allow),
            allow_waivers=allow,
            baseline=self._shown,
            compared=self._compared(report),
            recording=bool(self._params["write_baseline"]),
        )
        return verdict.judge(report, policy)

    def _limits(self, key: str) -> Limits:
        from ..policy.limits import Limit, Limits

        limits = {}
        for name, option, word in (("max_wasted", "max_waste", "max-wasted-bytes"), ("max_total", "max_size", "max-total-bytes")):
            nbytes, given = self._of(name, key, option), self._given(option) is not None
            source = f"--{option.replace('_', '-')}" if given else f"{word} in {self.settings.file}"
            limits[name.removeprefix("max_")] = None if nbytes is None else Limit(nbytes=nbytes, source=source)
        return Limits(**limits)

    def _card(self, report: Report, *, allow: bool) -> Card:
        """The model card's waivers. A remote card costs requests: it is fetched only where its words change something."""
        from ..policy import waivers

        here = os.path.lexists(report.target.removeprefix("file://"))
        if not report.findings or not (allow or here):
            return waivers.NOTHING
        from ..sources.target import Access

        # the card of the commit that was audited
        access = Access(revision=None if "@" in report.target else report.revision, subfolder=self._params["subfolder"],
                        offline=self._params["offline"] or self._params["load"], seconds=self.option("timeout"))  # fmt: skip
        access = Access() if here else access
        return waivers.of_target(report.target, access)

    def _compared(self, report: Report) -> Any:
        if not self._shown:
            return None
        from ..policy import baseline

        return baseline.compare(report, self._key(report.target, str(Path(self._baseline).parent)), self._accepted, self._ran())

    def _ran(self) -> frozenset[str] | None:
        """Names of the rules that could have found what was found before; None for all."""
        from ..inspectors import live, registry

        if self.option("verify") == "headers":
            return frozenset()
        select, ignore = self.option("select"), self.option("ignore")
        codes = registry.matching(select, "--select") or {rule.code for rule in registry.all_rules()}
        codes -= registry.matching(ignore, "--ignore")
        # of this family only one looks at files
        absent = {rule.code for rule in live.RULES if rule.name != "replica-drift"} if not self._params["load"] else set()
        return frozenset(rule.name for rule in registry.all_rules() if rule.code in codes and rule.code not in absent)

    def accept(self, reports: Iterable[Report]) -> None:
        """Write what `--write-baseline` asks for."""
        path = self._params["write_baseline"]
        if not path:
            return
        from ..policy import baseline

        old = baseline.load(path, path) if os.path.lexists(path) else ()
        count = 0
        for report in reports:
            old = baseline.renewed(old, report, self._key(report.target, str(Path(path).parent)), self._ran())
            count += len(report.findings)
        baseline.write(path, path, old)
        self.say(f"{path}: {count:,} finding{'s' * (count != 1)} accepted; give each a reason there")

    def tell(self, report: Report, verdict: Verdict, form: str) -> None:
        """On stderr: what a machine's report has no room for, and with --verbose where everything comes from."""
        from ..text import printable

        if form != "text":
            for label, words in verdict.lines:
                self.say(f"{printable(report.target)}: {label}: {words}", important=label in ("limit", "gate"))
        if self._params["verbose"]:
            from .verbose import lines

            for line in lines(report, self.settings, self._looked, self._ran()):
                click.echo(line, err=True)

    def say(self, words: str, *, important: bool = False) -> None:
        """One line on stderr, unless nothing but failures is asked for."""
        from ..text import printable_words

        if important or not self._params["quiet"]:
            click.echo(f"tieaudit: {printable_words(words)}", err=True)

    @property
    def quiet(self) -> bool:
        return bool(self._params["quiet"])

    @property
    def colour(self) -> str:
        return str(self._params["color"])
