"""The callback for the Trainer of transformers, in real runs of two or three steps; and what all callbacks share."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from live_models import EMBED, HEAD, Net, llama
from torch import nn

from tieaudit import BrokenTie, OptionError, TieauditError
from tieaudit.live.watch import Options, Watch

transformers = pytest.importorskip("transformers")
TOKENS = torch.arange(8)
CHECKPOINTS = ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


class At(transformers.TrainerCallback):
    """Another callback, which does something to the model at one moment."""

    def __init__(self, event: str, step: int, act: Callable[[Any], None]) -> None:
        def called(_args: Any, state: Any, _control: Any, *, model: Any, **_: Any) -> None:
            if state.global_step == step:
                act(model)

        setattr(self, event, called)


def untie(model: Any) -> None:
    model.get_output_embeddings().weight = nn.Parameter(model.get_input_embeddings().weight.detach().clone())


def train(folder: Path, model: Any, callbacks: Sequence[Any], optimizer: Any = None, **changes: Any) -> list[str]:
    """Three steps, a save after each; the checkpoints that are there in the end."""
    settings = {"save_steps": 1, "max_steps": 3, **changes}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", **settings
    )
    data = [{"input_ids": TOKENS, "labels": TOKENS}] * 6
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:2], callbacks=list(callbacks), optimizers=(optimizer, None)
    )
    try:
        trainer.train()
    finally:
        found = sorted(path.name for path in folder.glob("checkpoint-*"))
    return found


def callback(*arguments: Any, **options: Any) -> Any:
    from tieaudit import TrainerTieCallback

    return TrainerTieCallback(*arguments, **options)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """(level, words) of what the logger "tieaudit" said."""
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "tieaudit"]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    caplog.set_level(logging.DEBUG, "tieaudit")


class TestTrainer:
    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("compiled", [True, False])
    def test_a_healthy_run_is_silent(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, tied: bool, compiled: bool) -> None:
        extra = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        assert train(tmp_path, llama(tied=tied), [callback("warning")], **extra) == CHECKPOINTS
        assert told(caplog) == []

    def test_the_class_will_do_for_an_instance(self, tmp_path: Path) -> None:
        from tieaudit import TrainerTieCallback

        with pytest.raises(BrokenTie, match="before the save at step 1"):
            train(tmp_path, llama(), [TrainerTieCallback, At("on_step_begin", 0, untie)])

    def test_a_tie_that_breaks_in_the_middle_ends_the_run_before_the_save(self, tmp_path: Path) -> None:
        with pytest.raises(BrokenTie) as caught:
            train(tmp_path, llama(), [callback(), At("on_step_begin", 1, untie)])
        assert isinstance(caught.value, TieauditError)
        assert str(caught.value) == (
            "LlamaForCausalLM before the save at step 2: lm_head.weight and model.embed_tokens.weight should be one Parameter "
            "(LlamaForCausalLM ties them) and are two Parameters: their values differ (what to do: call model.tie_weights(), which keeps "
            "model.embed_tokens.weight; what lm_head.weight holds is then lost)"
        )
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]

    def test_never_logs_once_and_goes_on(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert train(tmp_path, llama(), [callback("never"), At("on_step_begin", 1, untie)]) == CHECKPOINTS
        ((level, words),) = told(caplog)
        assert level == "ERROR"
        assert words.startswith("LlamaForCausalLM before the save at step 2: TIE801 lost-alias: lm_head.weight and model.embed_tokens")

    def test_a_model_that_begins_broken_takes_no_step(self, tmp_path: Path) -> None:
        model = llama()
        untie(model)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(BrokenTie, match=r"LlamaForCausalLM when training begins: .* but they will drift apart at the first step"):
            train(tmp_path, model, [callback()])
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    def test_a_tie_that_no_save_would_keep_ends_the_run(self, tmp_path: Path) -> None:
        model = llama(tied=False)
        model.lm_head.weight = model.model.embed_tokens.weight
        with pytest.raises(BrokenTie, match="a reload starts the other with random values"):
            train(tmp_path, model, [callback()])

    def test_a_save_at_the_end_of_an_epoch_is_a_save(self, tmp_path: Path) -> None:
        with pytest.raises(BrokenTie, match="before the save at step 3"):
            train(tmp_path, llama(), [callback(), At("on_step_begin", 1, untie)], save_strategy="epoch")
        assert list(tmp_path.glob("checkpoint-*")) == []

    def test_what_an_evaluation_breaks_is_found_at_the_save_after_it(self, tmp_path: Path) -> None:
        with pytest.raises(BrokenTie, match="after the save at step 2"):
            train(tmp_path, llama(), [callback(), At("on_evaluate", 2, untie)], eval_strategy="steps", eval_steps=1)

    def test_without_a_save_it_is_found_at_the_end(self, tmp_path: Path) -> None:
        with pytest.raises(BrokenTie, match="when training ends"):
            train(tmp_path, llama(), [callback(), At("on_step_begin", 1, untie)], save_strategy="no")

    def test_an_optimizer_that_holds_a_parameter_twice(self, tmp_path: Path) -> None:
        model = llama()
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = torch.optim.SGD([model.lm_head.weight, model.model.embed_tokens.weight], lr=0.1)
        with pytest.raises(BrokenTie, match=r"when training begins: .* 2 times in the optimizer \(param group 0\)"):
            train(tmp_path, model, [callback()], optimizer)

    def test_an_optimizer_from_before_a_reload_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = llama()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.model.embed_tokens.weight = nn.Parameter(model.model.embed_tokens.weight.detach().clone())
        model.tie_weights()
        assert train(tmp_path / "a", model, [callback()], optimizer) == CHECKPOINTS
        ((level, words),) = told(caplog)
        assert level == "WARNING"
        assert "TIE804" in words
        assert "stands in no param group" in words
        with pytest.raises(BrokenTie, match="stands in no param group"):
            train(tmp_path / "b", model, [callback("warning")], optimizer)

    def test_rules_can_be_left_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert train(tmp_path, llama(), [callback(ignore="lost-alias"), At("on_step_begin", 1, untie)]) == CHECKPOINTS
        assert told(caplog) == []

    @pytest.mark.parametrize("where", ["on_step_begin", "on_save"])
    def test_a_tie_that_only_the_begin_knows(self, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
        """The class does not tie two layers; that they were one is what `compare` remembers."""

        def share(model: Any) -> None:
            first, second = model.model.layers
            second.mlp.up_proj.weight = first.mlp.up_proj.weight

        def part(model: Any) -> None:
            second = model.model.layers[1].mlp.up_proj
            second.weight = nn.Parameter(second.weight.detach() + 1)

        def model() -> Any:
            shared = llama()
            shared.model.layers.append(type(shared.model.layers[0])(shared.config, 0))
            shared.config.num_hidden_layers = 2
            shared._keys_to_ignore_on_save = ["model.layers.1.mlp.up_proj.weight"]  # as its author would do to save it
            share(shared)
            return shared

        options = {"ignore": "undeclared-tie"}
        with pytest.raises(
            BrokenTie, match=r"should be one Parameter \(one Parameter before\) and are two Parameters: their values differ"
        ):
            train(tmp_path / "a", model(), [callback(**options), At(where, 1, part)])
        train(tmp_path / "b", model(), [callback(compare=False, **options), At(where, 1, part)])
        assert told(caplog) == []


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
class TestPeft:
    @staticmethod
    def adapted(**options: Any) -> Any:
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj"], **options))

    def test_an_adapter_beside_a_tie_is_silent(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert train(tmp_path, self.adapted(), [callback("warning")]) == CHECKPOINTS
        assert told(caplog) == []

    @pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*")
    @pytest.mark.filterwarnings("ignore:.*ensure_weight_tying.*")
    def test_a_copy_that_peft_trains_is_told_once_and_ends_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = self.adapted(modules_to_save=["lm_head"])
        assert train(tmp_path / "a", model, [callback()]) == CHECKPOINTS
        ((level, words),) = told(caplog)
        assert level == "WARNING"
        assert words.startswith(
            "PeftModel when training begins: TIE801 lost-alias: base_model.model.lm_head.modules_to_save.default.weight"
        )
        assert "let PEFT tie the copies (ensure_weight_tying=True)" in words
        with pytest.raises(BrokenTie, match="PeftModel when training begins"):
            train(tmp_path / "b", model, [callback("warning")])

    @pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*")
    def test_copies_that_peft_ties_are_silent(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = self.adapted(modules_to_save=["lm_head"], ensure_weight_tying=True)
        assert train(tmp_path, model, [callback("warning")]) == CHECKPOINTS
        assert told(caplog) == []


class Wrapped:
    """An optimizer as an engine hands it on: without groups that could be read."""

    param_groups: Any = None


class TestWatch:
    def test_what_cannot_be_looked_at_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        watch = Watch(Options(raise_on="warning"))
        watch.begin(None, [Wrapped()], "now")
        watch.check(object(), [], "now")
        watch.begin(Net(), [Wrapped(), object()], "now")
        watch.check_saved(Net(), None, "now")
        watch.check_saved(Net(), {"step": 7, 3: torch.ones(2)}, "now")
        assert told(caplog) == []

    def test_what_cannot_be_checked_is_said_once_and_ends_nothing(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tieaudit.live import module

        def fails(*_: Any, **__: Any) -> None:
            raise NotImplementedError("no such op")

        monkeypatch.setattr(module, "audit_module", fails)
        watch = Watch(Options())
        watch.begin(Net(), [], "now")
        watch.check(Net(), [], "later")
        assert told(caplog) == [("WARNING", "now: ties were not checked: NotImplementedError: no such op")]

    def test_the_worst_word_about_a_tie_counts(self) -> None:
        """The class of a hand-made model only suggests its tie; that it was one Parameter before makes its loss an error."""
        model = Net()
        watch = Watch(Options())
        watch.begin(model, [], "at first")
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        with pytest.raises(
            BrokenTie, match=r"^Net later: head\.weight and embed\.weight should be one [^;]* \(one Parameter before\)[^;]*$"
        ):
            watch.check(model, [], "later")

    def test_each_run_begins_anew(self, caplog: pytest.LogCaptureFixture) -> None:
        model = llama()
        untie(model)
        watch = Watch(Options(raise_on="never"))
        for _ in range(2):
            watch.begin(model, [], "now")
            watch.check(model, [], "later")
        assert [level for level, _ in told(caplog)] == ["ERROR", "ERROR"]

    def test_other_ranks_raise_and_leave_the_log_to_the_first(self, caplog: pytest.LogCaptureFixture) -> None:
        model = llama()
        untie(model)
        Watch(Options(raise_on="never")).begin(model, [], "now", aloud=False)
        assert told(caplog) == []
        with pytest.raises(BrokenTie):
            Watch(Options()).begin(model, [], "now", aloud=False)

    def test_every_optimizer_is_looked_at(self) -> None:
        model = Net()
        good = torch.optim.SGD(model.mid.parameters(), lr=0.1)
        bad = torch.optim.SGD([model.embed.weight], lr=0.1)
        bad.param_groups[0]["params"].append(model.head.weight)
        Watch(Options()).begin(model, [good], "now")
        with pytest.raises(BrokenTie, match="2 times in the optimizer"):
            Watch(Options()).begin(model, [good, bad], "now")

    def test_a_config_for_models_that_do_not_say(self) -> None:
        with pytest.raises(BrokenTie, match="the config ties them"):
            Watch(Options(config={"tie_word_embeddings": True})).begin(Net(tied=False), [], "now")

    def test_wrong_options_are_told_at_once(self) -> None:
        with pytest.raises(OptionError, match=r"raise_on: 'errors' is not known \(error, warning or never\)"):
            Options(raise_on="errors")
        with pytest.raises(OptionError, match="nothing-like-it"):
            Options(ignore=["nothing-like-it"])


class TestStateDict:
    """What the module holds once, and a state dict that is about to be written does not."""

    @staticmethod
    def judged(model: nn.Module, change: Callable[[str, torch.Tensor], torch.Tensor], **options: Any) -> None:
        state = {name: change(name, tensor) for name, tensor in model.state_dict().items()}
        Watch(Options(**options)).check_saved(model, state, "now")

    @pytest.mark.parametrize("model", [Net(), Net(tied=False), llama(), llama(tied=False)])
    def test_the_models_own_is_fine(self, model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
        self.judged(model, lambda _, tensor: tensor, raise_on="warning")
        wrapped = torch.compile(model, backend="eager")
        self.judged(wrapped, lambda _, tensor: tensor, raise_on="warning")
        Watch(Options(raise_on="warning")).check_saved(wrapped, model.state_dict(), "now")  # a strategy takes the wrapper's prefix off
        assert told(caplog) == []

    def test_a_name_is_found_without_the_wrappers_prefix(self) -> None:
        model = Net()
        copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(BrokenTie, match=r"embed\.weight and head\.weight are one Parameter in the model and two equal copies"):
            Watch(Options(raise_on="warning")).check_saved(torch.compile(model, backend="eager"), copies, "now")

    def test_copies_are_a_warning_with_their_bytes(self, caplog: pytest.LogCaptureFixture) -> None:
        self.judged(llama(), lambda _, tensor: tensor.clone())
        ((level, words),) = told(caplog)
        assert level == "WARNING"
        assert words == (
            f"the state dict of LlamaForCausalLM now: TIE002 duplicate-tie: {EMBED} and {HEAD} are one Parameter in the model and two "
            "equal copies in the state dict: 8,192 bytes are written for nothing (what to do: let the dict hold one tensor, "
            f"state['{HEAD}'] = state['{EMBED}']: torch.save then stores it once)"
        )
        with pytest.raises(BrokenTie):
            self.judged(llama(), lambda _, tensor: tensor.clone(), raise_on="warning")
        self.judged(llama(), lambda _, tensor: tensor.clone(), raise_on="warning", ignore="TIE002")
        # the truth of it
        state = {name: tensor.clone() for name, tensor in llama().state_dict().items()}
        twice, once = io.BytesIO(), io.BytesIO()
        torch.save(state, twice)
        state[HEAD] = state[EMBED]
        torch.save(state, once)
        assert twice.tell() - once.tell() >= 8192

    def test_a_cast_of_one_side(self, caplog: pytest.LogCaptureFixture) -> None:
        self.judged(Net(), lambda name, tensor: tensor.bfloat16() if name == "head.weight" else tensor)
        ((level, words),) = told(caplog)
        assert level == "WARNING"
        assert "TIE007 cast-copy" in words
        assert "(F32 and BF16, equal after a cast): 640 bytes are written for nothing" in words

    def test_different_matrices_are_an_error_for_a_load_keeps_one(self) -> None:
        def moved(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + (name == "head.weight")

        model = Net()
        with pytest.raises(BrokenTie, match=r"embed\.weight and head\.weight are one Parameter in the model and two different matrices"):
            self.judged(model, moved)
        # the truth of it
        state = {name: moved(name, tensor) for name, tensor in model.state_dict().items()}
        model.load_state_dict(state)
        assert not torch.equal(model.embed.weight, state["embed.weight"])
        assert torch.equal(model.embed.weight, state["head.weight"])

    def test_each_of_two_models_is_told_and_their_likeness_is_not(self, caplog: pytest.LogCaptureFixture) -> None:
        import copy

        student = llama()
        both = nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student)})
        self.judged(both, lambda _, tensor: tensor, raise_on="warning")
        self.judged(both, lambda _, tensor: tensor.clone())
        assert [words.split("duplicate-tie: ")[1].split(" are one")[0] for _, words in told(caplog)] == [
            f"{name}.{EMBED} and {name}.{HEAD}" for name in ("student", "teacher")
        ]

    def test_names_that_were_left_out_are_fine(self, caplog: pytest.LogCaptureFixture) -> None:
        state = llama().state_dict()
        del state[HEAD]
        Watch(Options(raise_on="warning")).check_saved(llama(), state, "now")
        assert told(caplog) == []


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_training_tools_are_imported_when_their_callback_is_asked_for() -> None:
    seen = "[name for name in ('torch', 'transformers', 'lightning', 'pytorch_lightning') if name in sys.modules]"
    assert run(f"import sys, tieaudit; from tieaudit import *; import tieaudit.live.watch; print({seen})") == "[]"


@pytest.mark.parametrize(
    ("name", "blocked", "words"),
    [
        ("TrainerTieCallback", ["transformers"], "TrainerTieCallback: transformers is not installed (pip install 'transformers[torch]')"),
        (
            "LightningTieCallback",
            ["lightning", "pytorch_lightning"],
            "LightningTieCallback: neither lightning nor pytorch_lightning is installed (pip install lightning)",
        ),
    ],
)
def test_a_tool_that_is_not_there_is_named(name: str, blocked: list[str], words: str) -> None:
    code = f"""
import sys
for name in {blocked}:
    sys.modules[name] = None
import tieaudit
try:
    tieaudit.{name}
except tieaudit.TieauditError as error:
    print(isinstance(error, ImportError), error)
"""
    assert run(code) == f"True {words}"
