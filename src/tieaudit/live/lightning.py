"""This file holds the callback for Lightning, under either of its names. Lightning is imported with this file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from ..errors import MissingLibrary
from .watch import Options, Watch

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    """The Callback of the package that the program uses; of one that it could use, if it has imported neither yet."""
    for name in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise MissingLibrary("LightningTieCallback", "neither lightning nor pytorch_lightning is installed", "pip install lightning")


class LightningTieCallback(_base()):  # type: ignore[misc]  # which package it is shows at run time
    """Look at the module when the fit begins, at the optimizers when training begins, at module and state dict before each save, and when
    training ends.

    `raise_on`: "error" or "warning" end the run with BrokenTie, before the save; "never" only logs (logger "tieaudit", each finding once).
    `compare`: what was one Parameter at the begin must still be one. `config` and `ignore` are those of `audit_module`.
    Of saves without training state (`save_weights_only=True`) Lightning tells its callbacks nothing.
    """

    def __init__(self, raise_on: str = "error", *, compare: bool = True, config: Any = None, ignore: str | Iterable[str] = ()) -> None:
        self._watch = Watch(Options(raise_on=raise_on, compare=compare, config=config, ignore=ignore))

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is configured."""
        self._watch.begin(pl_module, (), "when the fit begins", aloud=trainer.is_global_zero)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is on its device, a checkpoint to resume from is loaded, the optimizers are built."""
        self._look(trainer, pl_module, "when training begins")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Before it is written."""
        moment = f"before the save at step {trainer.global_step}"
        self._look(trainer, pl_module, moment)
        self._watch.check_saved(pl_module, checkpoint.get("state_dict"), moment, aloud=trainer.is_global_zero)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last step and its save."""
        self._look(trainer, pl_module, "when training ends")

    def _look(self, trainer: Any, module: Any, moment: str) -> None:
        self._watch.check(module, trainer.optimizers, moment, aloud=trainer.is_global_zero)
