"""The callback for Lightning, in real runs of three steps, under both names of the package."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from live_models import Net, llama
from torch import nn
from torch.utils.data import DataLoader

from tieaudit import BrokenTie

CHECKPOINTS = ["step=1.ckpt", "step=2.ckpt", "step=3.ckpt"]
pytestmark = [
    # looked for without an import, which takes seconds
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning:lightning", "ignore:.*pin_memory.*"),
]


@pytest.fixture(scope="module")
def tool() -> Any:
    with warnings.catch_warnings():  # what its imports say
        warnings.simplefilter("ignore")
        return importlib.import_module("lightning.pytorch")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, tool: Any) -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    caplog.set_level(logging.DEBUG, "tieaudit")


def module(tool: Any, net: Any, *, teacher: Any = None, optimizer: Any = None, at_step: Any = None, saved: Any = None) -> Any:
    """A LightningModule around a net. `at_step`: called with the net before the second step; `saved`: what becomes of its state dict."""

    class Task(tool.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            if teacher is not None:
                self.teacher = teacher.requires_grad_(requires_grad=False)

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            out = self.net(batch)
            return getattr(out, "logits", out).square().mean()

        def configure_optimizers(self) -> Any:
            return optimizer or torch.optim.SGD(self.net.parameters(), lr=0.1)

        def on_train_batch_start(self, _batch: torch.Tensor, index: int) -> None:
            if at_step and index == 1:
                at_step(self.net)

        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            found = super().state_dict(*arguments, **options)
            return {name: saved(name, tensor) for name, tensor in found.items()} if saved else found

    return Task()


def untie(net: Any) -> None:
    end = net.head if isinstance(net, Net) else net.lm_head
    end.weight = nn.Parameter(end.weight.detach().clone())


def fit(tool: Any, folder: Path, task: Any, *arguments: Any, weights_only: bool = False, **options: Any) -> list[str]:
    """Three steps, a save after each; the checkpoints that are there in the end."""
    from tieaudit import LightningTieCallback

    saves = tool.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, save_weights_only=weights_only)
    trainer = tool.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[LightningTieCallback(*arguments, **options), saves],
    )  # fmt: skip
    trainer.fit(task, DataLoader([torch.arange(8)] * 6, batch_size=2))
    return sorted(path.name for path in folder.iterdir())


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "tieaudit"]


@pytest.mark.parametrize("make", [Net, llama])
class TestRuns:
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_healthy_run_is_silent(
        self, tool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., nn.Module], tied: bool
    ) -> None:
        assert fit(tool, tmp_path, module(tool, make(tied=tied)), "warning") == CHECKPOINTS
        assert told(caplog) == []

    def test_a_teacher_beside_its_student_is_silent(
        self, tool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., nn.Module]
    ) -> None:
        import copy

        net = make()
        assert fit(tool, tmp_path, module(tool, net, teacher=copy.deepcopy(net)), "warning") == CHECKPOINTS
        assert told(caplog) == []

    def test_a_tie_that_breaks_in_the_middle_ends_the_run_before_the_save(
        self, tool: Any, tmp_path: Path, make: Callable[..., nn.Module]
    ) -> None:
        with pytest.raises(BrokenTie, match=r"^Task before the save at step 2: net\.\w*head\.weight and net\.\S+ should be one Parameter"):
            fit(tool, tmp_path, module(tool, make(), at_step=untie))
        assert [path.name for path in tmp_path.iterdir()] == CHECKPOINTS[:1]

    def test_never_logs_once_and_goes_on(
        self, tool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., nn.Module]
    ) -> None:
        assert fit(tool, tmp_path, module(tool, make(), at_step=untie), "never") == CHECKPOINTS
        ((level, words),) = told(caplog)
        assert (level, words.startswith("Task before the save at step 2: TIE801 lost-alias: net.")) == ("ERROR", True)

    def test_a_state_dict_that_differs_from_the_module_is_not_written(
        self, tool: Any, tmp_path: Path, make: Callable[..., nn.Module]
    ) -> None:
        task = module(tool, make(), saved=lambda name, tensor: tensor + ("head" in name))
        with pytest.raises(
            BrokenTie, match=r"the state dict of Task before the save at step 1: .* two different matrices in the state dict"
        ):
            fit(tool, tmp_path, task)
        assert list(tmp_path.iterdir()) == []

    def test_copies_in_the_state_dict_are_a_warning(
        self, tool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., nn.Module]
    ) -> None:
        assert fit(tool, tmp_path, module(tool, make(), saved=lambda _, tensor: tensor.clone())) == CHECKPOINTS
        ((level, words),) = told(caplog)
        assert level == "WARNING"
        assert "TIE002 duplicate-tie" in words

    def test_weights_alone_are_saved_unseen_and_the_end_tells(self, tool: Any, tmp_path: Path, make: Callable[..., nn.Module]) -> None:
        with pytest.raises(BrokenTie, match=r"^Task when training ends"):
            fit(tool, tmp_path, module(tool, make(), at_step=untie), weights_only=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == CHECKPOINTS


def test_an_optimizer_that_holds_a_parameter_twice(tool: Any, tmp_path: Path) -> None:
    net = Net()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([net.embed.weight, net.head.weight], lr=0.1)
    with pytest.raises(BrokenTie, match=r"^Task when training begins: .* 2 times in the optimizer"):
        fit(tool, tmp_path, module(tool, net, optimizer=optimizer))


def test_a_config_for_a_net_that_does_not_say(tool: Any, tmp_path: Path) -> None:
    with pytest.raises(BrokenTie, match=r"^Task when the fit begins: .*the config ties them"):
        fit(tool, tmp_path, module(tool, Net(tied=False)), config={"tie_word_embeddings": True})


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_it_is_a_callback_of_the_package_that_is_in_use(package: str) -> None:
    code = (
        f"import warnings; warnings.simplefilter('ignore'); import {package} as tool, tieaudit; "
        "print(issubclass(tieaudit.LightningTieCallback, tool.Callback))"
    )
    pytest.importorskip(package.partition(".")[0])
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "True"
