"""This file holds the fixtures that pytest finds by itself: `assert_tied` and `tie_snapshot`. torch is imported when one is used.

Nothing but pytest imports this file; `-p no:tieaudit` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from .live.snapshot import Snapshot


@pytest.fixture(scope="session")
def assert_tied() -> Callable[..., None]:
    """Call it with a model, and names that must be one Parameter: `assert_tied(model, "lm_head.weight", "model.embed_tokens.weight")`.

    Without names every tie that the model, or `config=`, asks for must hold.
    """

    def check(model: nn.Module, *names: str, config: Any = None) -> None:
        __tracebackhide__ = True
        from . import assert_tied

        _shortly(lambda: assert_tied(model, *names, config=config))

    return check


class TieSnapshot:
    """What a model shared when it was taken."""

    def __init__(self, model: nn.Module) -> None:
        from . import snapshot

        self._model = model
        self._before: Snapshot = snapshot(model)

    def assert_kept(self, model: nn.Module | None = None) -> None:
        """Names that were one Parameter still are, in the same model or in the one that a step made of it."""
        __tracebackhide__ = True
        _shortly(lambda: _compared(self._before, self._model if model is None else model))


@pytest.fixture(scope="session")
def tie_snapshot() -> Callable[[nn.Module], TieSnapshot]:
    """Call it with a model before a step: `before = tie_snapshot(model)`, and afterwards `before.assert_kept()`, or
    `before.assert_kept(new_model)`."""
    return TieSnapshot


def _compared(before: Snapshot, model: nn.Module) -> None:
    from . import BrokenTie, compare

    report = compare(before, model)
    messages = tuple(finding.message for finding in report.findings)
    if not report.ties:  # nothing could be compared: that is no proof
        messages += tuple(f"{gone.subject} is not there any more" for gone in report.not_compared)
    if messages:
        raise BrokenTie(report.target, messages)


def _shortly(check: Callable[[], None]) -> None:
    """Without the frames of the check: what is shown is the line of the test, and the words."""
    __tracebackhide__ = True
    from . import TieauditError

    try:
        check()
    except TieauditError as error:
        raise error.with_traceback(None) from None
