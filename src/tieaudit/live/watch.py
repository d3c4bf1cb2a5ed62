"""This file holds what the callbacks of training tools share: one run, looked at at its moments; what is found is logged or raised.

No training tool is imported here, and torch only when a model is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BrokenTie, OptionError, TieauditError
from ..report import Finding, Report, Severity

if TYPE_CHECKING:
    from .snapshot import Snapshot

LOGGER = logging.getLogger("tieaudit")
NEVER = "never"
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTE: logging.INFO}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`raise_on`: the least severity that ends the run ("error", "warning"), or "never". `compare`: what was one Parameter when the run
    began must stay one. `config` and `ignore` are those of `audit_module`."""

    raise_on: str = "error"
    compare: bool = True
    config: Any = None
    ignore: str | Iterable[str] = ()

    def __post_init__(self) -> None:
        from .reporting import words

        if self.raise_on not in (Severity.ERROR, Severity.WARNING, NEVER):
            raise OptionError("raise_on", str(self.raise_on), "error, warning or never")
        object.__setattr__(self, "ignore", words(self.ignore))


class Watch:
    """One training run. The callbacks say when to look; `aloud` is False on the ranks that leave the log to the first one."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._before: Snapshot | None = None
        self._told: set[Hashable] = set()

    def begin(self, model: Any, optimizers: Iterable[Any], moment: str, *, aloud: bool = True) -> None:
        """Look for the first time, and remember what is shared."""
        from .snapshot import snapshot

        self._before, self._told = None, set()
        self.check(model, optimizers, moment, aloud=aloud)
        if self._options.compare and _is_module(model):
            with self._unharmed(moment):
                self._before = snapshot(model)

    def check(self, model: Any, optimizers: Iterable[Any], moment: str, *, aloud: bool = True) -> None:
        """Look again. BrokenTie if that is asked for; what it does not say is logged once."""
        if _is_module(model):
            with self._unharmed(moment):
                reports = list(self._reports(model, [one for one in optimizers if _has_groups(one)]))
                self._say(reports[0].target, _distinct(reports), moment, aloud=aloud)

    def check_saved(self, model: Any, state_dict: Any, moment: str, *, aloud: bool = True) -> None:
        """Look at a state dict of the model that is about to be written: does it hold once what the model holds once?"""
        from . import saved
        from .module import called

        if _is_module(model) and isinstance(state_dict, Mapping):
            with self._unharmed(moment):
                findings = tuple(saved.of_model(model, state_dict, self._options.ignore))
                self._say(f"the state dict of {called(model)}", findings, moment, aloud=aloud)

    @contextmanager
    def _unharmed(self, moment: str) -> Iterator[None]:
        """A tensor that nobody thought of must not end a run of days: that it was not checked is said once."""
        try:
            yield
        except TieauditError:
            raise
        except Exception as error:
            kind = type(error).__name__
            if kind not in self._told:
                self._told.add(kind)
                LOGGER.warning("%s: ties were not checked: %s: %s", moment, kind, error, exc_info=error)

    def _reports(self, model: Any, optimizers: list[Any]) -> Iterator[Report]:
        from .module import audit_module
        from .snapshot import compare

        config, ignore = self._options.config, self._options.ignore
        # nothing is written to weights that another thread may be reading just now
        for optimizer in optimizers or [None]:
            yield audit_module(model, optimizer, config=config, probe=False, ignore=ignore)
        if self._before is not None:
            yield compare(self._before, model, ignore=ignore)

    def _say(self, target: str, findings: tuple[Finding, ...], moment: str, *, aloud: bool) -> None:
        limit = self._options.raise_on
        fatal = tuple(finding for finding in findings if limit != NEVER and finding.severity.rank <= Severity(limit).rank)
        for finding in findings:
            key = (finding.severity, _subject(finding))
            if finding in fatal or key in self._told:
                continue
            self._told.add(key)
            if aloud:
                words = f"{finding.code} {finding.rule}: {_sentence(finding)}"
                LOGGER.log(_LEVELS[finding.severity], "%s %s: %s", target, moment, words)
        if fatal:
            raise BrokenTie(f"{target} {moment}", tuple(_sentence(finding) for finding in fatal))


def _is_module(model: Any) -> bool:
    from torch import nn

    return isinstance(model, nn.Module)


def _has_groups(optimizer: Any) -> bool:
    """What some engines hand on in place of an optimizer has none that could be read."""
    groups = getattr(optimizer, "param_groups", None)
    return isinstance(groups, list) and all(isinstance(group, Mapping) and "params" in group for group in groups)


def _distinct(reports: Iterable[Report]) -> tuple[Finding, ...]:
    """Each fault of each set of names once, at its worst: a tie that broke during the run is both against its class and against the
    begin, and a class that nobody knows only suggests it."""
    found: dict[Hashable, Finding] = {}
    for finding in sorted((one for report in reports for one in report.findings), key=lambda one: one.severity.rank):
        found.setdefault(_subject(finding), finding)
    return tuple(found.values())


def _subject(finding: Finding) -> Hashable:
    """The fault and its names. Not the words: those of two copies change as they drift apart."""
    return finding.code, frozenset(place.name for place in finding.tensors) or finding.message


def _sentence(finding: Finding) -> str:
    return finding.message + (f" (what to do: {finding.fix})" if finding.fix else "")
