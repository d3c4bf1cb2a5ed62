"""This file holds the callback for the Trainer of transformers (and of libraries built on it). transformers is imported with this file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import MissingLibrary
from .watch import Options, Watch

try:
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError:
    raise MissingLibrary("TrainerTieCallback", "transformers is not installed", "pip install 'transformers[torch]'") from None


class TrainerTieCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Look at model and optimizer when training begins, before and after each save, and when training ends.

    `raise_on`: "error" or "warning" end the run with BrokenTie, before the save; "never" only logs (logger "tieaudit", each finding once).
    `compare`: what was one Parameter at the begin must still be one. `config` and `ignore` are those of `audit_module`.
    """

    def __init__(self, raise_on: str = "error", *, compare: bool = True, config: Any = None, ignore: str | Iterable[str] = ()) -> None:
        self._watch = Watch(Options(raise_on=raise_on, compare=compare, config=config, ignore=ignore))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  the Trainer's
        """Weights are loaded and wrapped, the optimizer is built."""
        self._watch.begin(kwargs.get("model"), _optimizers(kwargs), "when training begins", aloud=state.is_world_process_zero)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  the Trainer's
        """The Trainer says here that it will save; it has no event of its own for that."""
        if control.should_save:
            self._look(state, f"before the save at step {state.global_step}", kwargs)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  the Trainer's
        """As on_step_end, where an epoch ends with a save."""
        if control.should_save:
            self._look(state, f"before the save at step {state.global_step}", kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  the Trainer's
        """Whatever an evaluation, or a save that nobody announced, made of it."""
        self._look(state, f"after the save at step {state.global_step}", kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  the Trainer's
        """The best weights are loaded again, if that was asked for."""
        self._look(state, "when training ends", kwargs)

    def _look(self, state: Any, moment: str, kwargs: dict[str, Any]) -> None:
        self._watch.check(kwargs.get("model"), _optimizers(kwargs), moment, aloud=state.is_world_process_zero)


def _optimizers(kwargs: dict[str, Any]) -> list[Any]:
    optimizer = kwargs.get("optimizer")
    return [] if optimizer is None else [optimizer]
