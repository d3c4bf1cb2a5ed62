"""What is tried on a model: logits, one backward pass, one save and load. Real tiny models, and models that cheat."""

from __future__ import annotations

import copy
import errno
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from live_families import FAMILIES, VOCAB, WIDTH, family
from live_models import EMBED, HEAD, llama
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tieaudit.alive import Tried
from tieaudit.live import loading, passes, roundtrip, trials, twins

EXACT = "(6 tokens, all 64 rows, exactly)"


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: family(name) for name in FAMILIES}


def seen(tried: Tried) -> tuple[bool | None, str]:
    return tried.held, tried.words


class Cheat(transformers.LlamaForCausalLM):
    """Each kind of forward pass that does not do what its names say."""

    kind = ""

    def forward(self, input_ids: Tensor) -> Any:
        embedding = self.model.embed_tokens
        if self.kind == "embedding detached":
            hidden = self.model(inputs_embeds=embedding(input_ids).detach()).last_hidden_state
        else:
            hidden = self.model(input_ids=input_ids).last_hidden_state
        if self.kind == "functional":
            logits = nn.functional.linear(hidden, embedding.weight)
        elif self.kind == "functional, another matrix":
            logits = nn.functional.linear(hidden, self.other)
        else:
            logits = self.lm_head(hidden)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def cheat(kind: str) -> Any:
    with twins.seeded():
        model = Cheat(llama().config).eval()
        model.kind = kind
        model.other = nn.Parameter(torch.randn(VOCAB, WIDTH))
    return model


class DetachedHead(nn.Linear):
    """A head that trains nothing."""

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, self.weight.detach())


class OtherHead(nn.Linear):
    """A head whose forward pass reads another matrix than its weight, in `rows`."""

    rows: slice = slice(None)

    def forward(self, hidden: Tensor) -> Tensor:
        weight = self.weight.detach().clone()
        weight[self.rows] = 2 * weight[self.rows] + 1
        return nn.functional.linear(hidden, weight.to(hidden.dtype), self.bias)


def with_other_head(model: Any, rows: slice = slice(None)) -> Any:
    head = OtherHead(WIDTH, VOCAB, bias=False)
    head.rows = rows
    head.weight = model.get_output_embeddings().weight
    model.set_output_embeddings(head)
    return model.eval()


class TestLogits:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("Llama", f"logits = h · Eᵀ {EXACT}"),
            ("Gemma", f"logits = h · Eᵀ {EXACT}; embeddings are scaled by 5.65685 = √32"),
            ("Cohere", f"logits = h · Eᵀ {EXACT}; the logits are then scaled by 0.0625"),
            ("Granite", f"logits = h · Eᵀ {EXACT}; embeddings are scaled by 12; the logits are then scaled by 0.125"),
            ("GPT2", f"logits = h · Eᵀ {EXACT}"),
            ("Mamba", f"logits = h · Eᵀ {EXACT}"),
            ("T5", f"logits = h · Eᵀ {EXACT}; h is the last hidden state times 0.176777"),
            ("Bart", f"logits = h · Eᵀ {EXACT}"),
            ("Whisper", f"logits = h · Eᵀ {EXACT}"),
            ("Llava", f"logits = h · Eᵀ {EXACT}"),
            ("Bert", f"logits = h · Eᵀ + bias {EXACT}"),
        ],
    )
    def test_families_hold_and_say_how_they_scale(self, models: dict[str, Any], name: str, words: str) -> None:
        assert seen(trials.logits(models[name])) == (True, words)

    def test_a_soft_cap_that_bends_the_logits_is_named(self) -> None:
        model = family("Gemma2")
        model.model.embed_tokens.weight.data.mul_(20)  # logits well beyond the cap
        held, words = seen(trials.logits(model))
        assert held
        assert words.endswith("the logits are then capped at 0.5 (final_logit_softcapping)")

    def test_a_bias_that_is_not_zero(self, models: dict[str, Any]) -> None:
        model = copy.deepcopy(models["Bert"])
        model.cls.predictions.bias.data.normal_()
        assert trials.logits(model).held

    def test_untied_ends_are_asked_for_the_heads_own_matrix(self) -> None:
        model = llama(tied=False)
        assert seen(trials.logits(model)) == (True, f"logits = h · Wᵀ with W = lm_head.weight {EXACT}")
        model.lm_head.forward = lambda hidden: nn.functional.linear(hidden, model.model.embed_tokens.weight)  # shares all the same
        held, words = seen(trials.logits(model))
        assert held is False
        assert words.startswith("the head's output is not h · Wᵀ with W = lm_head.weight, though that is the head's matrix: row ")

    def test_a_head_that_reads_another_matrix_is_caught(self) -> None:
        tried = trials.logits(with_other_head(llama()))
        assert tried.held is False
        assert tried.names == (EMBED, HEAD)
        assert tried.words.startswith(f"the head's output is not h · Eᵀ with E = {EMBED}, though {HEAD} is that Parameter: row ")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("row", [0, 17, VOCAB - 1])
    def test_one_row_that_is_another_is_caught(self, dtype: torch.dtype, row: int) -> None:
        tried = trials.logits(with_other_head(llama().to(dtype), slice(row, row + 1)))
        assert tried.held is False
        assert f": row {row:,} differs by " in tried.words

    def test_a_forward_pass_without_the_head_module(self) -> None:
        held, words = seen(trials.logits(cheat("functional")))
        assert held
        assert words == f"logits = h · Eᵀ (6 tokens, 64 rows): the forward pass does not call the module of {HEAD}"
        held, words = seen(trials.logits(cheat("functional, another matrix")))
        assert held is None
        assert words == f"the forward pass does not call the module of {HEAD}, and its logits are no multiple of h · Eᵀ"

    def test_a_forward_pass_that_needs_more_than_ids(self) -> None:
        why = "a forward pass needs more than token ids (ValueError)"
        model = llama()
        model.forward = lambda **_: (_ for _ in ()).throw(ValueError("pixel_values"))
        assert seen(trials.logits(model)) == (True, f"the head alone gives h · Eᵀ (random states, all 64 rows, exactly): {why}")
        model = with_other_head(llama())
        model.forward = lambda **_: (_ for _ in ()).throw(ValueError("pixel_values"))
        assert trials.logits(model).held is False

    def test_what_cannot_be_tried_says_why(self) -> None:
        base = llama().model
        assert seen(trials.logits(base)) == (None, "the model has no two plain ends")
        with torch.device("meta"):
            model = llama()
        assert seen(trials.logits(model)) == (None, f"{HEAD} is on the meta device")
        model = llama()
        model.lm_head = nn.Identity()
        assert trials.logits(model).held is None

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_weights_that_are_not_finite_accuse_nobody(self, value: float) -> None:
        model = llama()
        model.model.embed_tokens.weight.data[40, 3] = value  # no row of a token that is asked
        held, words = seen(trials.logits(model))
        assert held
        assert "63 rows, 1 more hold NaN or infinity" in words
        model.model.norm.weight.data[0] = value
        assert seen(trials.logits(model)) == (None, "the logits are not finite numbers")

    def test_rows_that_are_not_finite_hide_no_other_row(self) -> None:
        model = with_other_head(llama(), slice(50, 51))
        model.model.embed_tokens.weight.data[40, 3] = float("nan")
        tried = trials.logits(model)
        assert tried.held is False
        assert ": row 50 differs by " in tried.words

    def test_logits_beyond_float16_are_left_out(self) -> None:
        model = llama().to(torch.float16)
        model.lm_head.weight.data[40] = 60_000.0
        model.model.norm.weight.data.fill_(100.0)
        assert trials.logits(model).held

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("name", sorted(FAMILIES))
    def test_half_precision_gives_no_false_alarm(self, models: dict[str, Any], name: str, dtype: torch.dtype) -> None:
        assert trials.logits(copy.deepcopy(models[name]).to(dtype)).held

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(("name", "width"), [("Llama", 1024), ("Llama", 4096), ("Gemma2", 4096), ("Cohere", 1024)])
    def test_wide_models_in_half_precision(self, name: str, dtype: torch.dtype, width: int) -> None:
        wide = {"hidden_size": width, "vocab_size": 1000, "intermediate_size": 64, "head_dim": 32} | (
            {"head_dim": width // 4} if name == "Cohere" else {}
        )
        model = family(name, **wide).to(dtype)
        tried = trials.logits(model)
        assert tried.held
        assert "all 1,000 rows" in tried.words
        model.lm_head.forward = _with_one_row(model.lm_head.weight, 777)
        tried = trials.logits(model)
        assert tried.held is False
        assert ": row 777 differs by " in tried.words

    def test_the_matrix_is_never_copied_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trials, "CHUNK", 4 * WIDTH)
        model = llama().to(torch.bfloat16)
        made = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                if "_to_copy" in str(func) and args[0].dtype is torch.bfloat16 and args[0].shape[-1] == WIDTH:
                    made.append(out.numel())
                return out

        with Watch():
            tried = trials.logits(model)
        assert seen(tried)[0]
        assert "all 64 rows" in tried.words
        assert made.count(4 * WIDTH) == VOCAB / 4
        assert max(made) == 6 * WIDTH  # the states of six tokens

    def test_ids_that_stand_for_images_are_not_asked(self) -> None:
        model = llama()
        model.config.image_token_id = 14
        ends = trials.ends(model)
        assert ends is not None
        with torch.no_grad():
            assert passes.forward(model, ends).ids.tolist() == [[0, 7, 21, 28, 35, 42]]

    def test_nothing_is_left_behind(self) -> None:
        before = _state(model := _busy(llama()))
        trials.logits(model)
        assert _state(model) == before
        model.forward = lambda **_: (_ for _ in ()).throw(ValueError(f"no {random.random()} {torch.rand(1)}"))
        trials.logits(model)
        del model.forward
        assert _state(model) == before


def _with_one_row(weight: Tensor, row: int) -> Callable[[Tensor], Tensor]:
    other = weight.detach().clone()
    other[row] *= -1
    return lambda hidden: nn.functional.linear(hidden, other)


def _busy(model: Any) -> Any:
    """In training, in part; with gradients, a frozen part, and a random state of its own."""
    model.train()
    model.model.norm.eval()
    model.model.norm.weight.requires_grad_(requires_grad=False)
    model.model.embed_tokens.weight.grad = torch.ones(VOCAB, WIDTH)
    torch.manual_seed(11)
    random.seed(12)
    return model


def _state(model: Any) -> list[Any]:
    modules = [
        (name, module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for name, module in model.named_modules()
    ]
    parameters = [
        (name, id(one), one.requires_grad, one.grad is None, one.grad is not None and one.grad.sum().item(), one.detach().clone().tolist())
        for name, one in model.named_parameters(remove_duplicate=False)
    ]
    return [modules, parameters, torch.random.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()]


class TestGradient:
    @pytest.mark.parametrize("name", sorted(FAMILIES))
    def test_families_add_up_both_uses(self, models: dict[str, Any], name: str) -> None:
        held, words = seen(trials.gradient(models[name]))
        assert (held, words.partition(", ")[0]) == (True, "one backward pass adds up both uses of the matrix once: g = g_in + g_out")

    def test_a_hook_that_doubles(self) -> None:
        model = llama()
        model.model.embed_tokens.weight.register_hook(lambda grad: 2 * grad)
        tried = trials.gradient(model)
        assert tried.held is False
        assert tried.names == (EMBED, HEAD)
        start = f"the gradient of {EMBED} is not the sum of its uses as embedding and as head (g_in + g_out): it is "
        assert tried.words == start + "2 times their sum"

    def test_a_use_that_is_detached(self) -> None:
        held, words = seen(trials.gradient(cheat("embedding detached")))
        assert (held, words.rpartition("it is ")[2]) == (False, "only that of the head, as if the other were detached")
        model = llama()
        head = DetachedHead(WIDTH, VOCAB, bias=False)
        head.weight = model.lm_head.weight
        model.lm_head = head
        held, words = seen(trials.gradient(model))
        assert (held, words.rpartition("it is ")[2]) == (False, "only that of the embedding, as if the other were detached")

    def test_a_forward_pass_without_the_head_module_is_not_tried(self) -> None:
        assert seen(trials.gradient(cheat("functional"))) == (None, f"the forward pass does not call the module of {HEAD}")

    def test_a_model_that_trains_neither_use(self) -> None:
        model = cheat("embedding detached")
        head = DetachedHead(WIDTH, VOCAB, bias=False)
        head.weight = model.lm_head.weight
        model.lm_head = head
        assert seen(trials.gradient(model)) == (None, "a backward pass reaches neither use of the matrix")

    def test_a_backward_hook_on_a_module_changes_both_alike(self) -> None:
        model = llama()
        handle = model.model.norm.register_full_backward_hook(lambda _module, grads, _out: tuple(3 * grad for grad in grads))
        assert trials.gradient(model).held
        handle.remove()

    def test_a_frozen_matrix_is_not_tried(self) -> None:
        model = llama()
        model.model.embed_tokens.weight.requires_grad_(requires_grad=False)
        assert seen(trials.gradient(model)) == (None, "the tied matrix is frozen")

    def test_untied_ends_are_not_tried(self) -> None:
        assert seen(trials.gradient(llama(tied=False))) == (None, "the model has no tied ends")

    @pytest.mark.parametrize("name", ["Llama", "GPT2", "T5"])
    def test_checkpointing_and_dropout_make_no_difference(self, name: str) -> None:
        model = family(name, **({"dropout_rate": 0.5} if name == "T5" else {"attention_dropout": 0.5} if name == "Llama" else {}))
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        model.train()
        assert trials.gradient(model).held
        assert model.training

    def test_weights_that_are_not_finite(self) -> None:
        model = llama()
        model.model.norm.weight.data[0] = float("nan")
        assert seen(trials.gradient(model)) == (None, "the gradients are not finite numbers")

    def test_nothing_is_left_behind(self) -> None:
        model = _busy(llama())
        before = _state(model)
        assert trials.gradient(model).held
        assert _state(model) == before
        model.lm_head.forward = lambda _: (_ for _ in ()).throw(RuntimeError("no"))
        assert seen(trials.gradient(model)) == (None, "a backward pass cannot be made (RuntimeError)")
        del model.lm_head.forward
        assert _state(model) == before


class TestRoundTrip:
    @pytest.mark.parametrize("name", sorted(FAMILIES))
    def test_families_come_back(self, models: dict[str, Any], name: str) -> None:
        held, words = seen(trials.round_trip(models[name]))
        count = 2 if name == "Bert" else 1
        assert (held, words) == (True, f"save_pretrained and a reload give back all values, and {count} tie{'s' * (count > 1)}")

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("name", ["Llama", "T5", "Mamba", "Whisper"])
    def test_families_come_back_in_half_precision(self, models: dict[str, Any], name: str, dtype: torch.dtype) -> None:
        assert trials.round_trip(copy.deepcopy(models[name]).to(dtype)).held

    @pytest.mark.parametrize("other", [torch.float32, torch.float16])
    def test_one_module_in_another_dtype_loses_nothing(self, other: torch.dtype) -> None:
        model = llama().to(torch.bfloat16)
        model.config.dtype = torch.bfloat16
        model.model.layers[0].mlp.to(other).up_proj.weight.data.add_(1e-3)  # values that bfloat16 does not have
        held, words = seen(trials.round_trip(model))
        assert held, words

    def test_an_untied_model(self) -> None:
        assert seen(trials.round_trip(llama(tied=False))) == (True, "save_pretrained and a reload give back all values")

    def test_nan_comes_back(self) -> None:
        model = llama()
        model.model.embed_tokens.weight.data[3, 3] = float("nan")
        assert trials.round_trip(model).held

    def test_a_tie_that_the_flag_denies_is_lost(self) -> None:
        model = llama(tied=False)
        model.lm_head.weight = model.model.embed_tokens.weight
        tried = trials.round_trip(model)
        assert tried.held is False
        assert tried.names == (HEAD, EMBED)
        assert tried.words == (
            f"save_pretrained and a reload do not give the model back: {HEAD}: not saved, and new values after the load; "
            f"{EMBED}, {HEAD}: one Parameter before, several after"
        )

    def test_a_class_that_declares_no_tie_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transformers.LlamaForCausalLM, "_tied_weights_keys", None)
        model = llama(tied=False)
        model.lm_head.weight = model.model.embed_tokens.weight
        tried = trials.round_trip(model)
        assert tried.held is False
        assert tried.names == (EMBED, HEAD)
        assert tried.words == f"save_pretrained refuses to save it: {EMBED}, {HEAD} share memory, and no class declares that"

    def test_a_save_that_drops_a_weight(self) -> None:
        class Forgetful(transformers.LlamaForCausalLM):
            def save_pretrained(self, folder: Any, **options: Any) -> None:
                state = {name: value for name, value in self.state_dict().items() if name != "model.norm.weight"}
                super().save_pretrained(folder, state_dict=state, **options)

        model = Forgetful(llama().config)
        model.model.norm.weight.data.fill_(3)
        tried = trials.round_trip(model)
        assert (tried.held, tried.names) == (False, ("model.norm.weight",))
        assert tried.words.endswith("model.norm.weight: not saved, and new values after the load")

    def test_values_that_change(self) -> None:
        class Rounding(transformers.LlamaForCausalLM):
            def save_pretrained(self, folder: Any, **options: Any) -> None:
                state = {name: value.bfloat16().float() for name, value in self.state_dict().items() if name != HEAD}
                super().save_pretrained(folder, state_dict=state, **options)

        tried = trials.round_trip(Rounding(llama().config))
        assert tried.held is False
        assert EMBED in tried.names
        assert ": other values after" in tried.words

    def test_the_temporary_folder_is_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        made = []
        save = transformers.LlamaForCausalLM.save_pretrained

        def spy(self: Any, folder: str, **options: Any) -> None:
            made.append(Path(folder))
            save(self, folder, **options)

        monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", spy)
        assert trials.round_trip(llama()).held
        assert [folder.parent for folder in made] == [tmp_path]
        assert not list(tmp_path.iterdir())

    def test_a_full_disk_accuses_nobody(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_self: Any, folder: str, **_: Any) -> None:
            Path(folder, "model.safetensors").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", full)
        held, words = seen(trials.round_trip(llama()))
        assert held is None
        assert words == f"save_pretrained raises OSError: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
        assert not list(tmp_path.iterdir())

    def test_without_a_temporary_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        assert seen(trials.round_trip(llama())) == (None, f"there is no temporary folder ({os.strerror(errno.ENOENT)})")

    def test_nothing_is_left_behind(self) -> None:
        model = _busy(llama())
        before = _state(model)
        assert trials.round_trip(model).held
        assert _state(model) == before

    def test_what_cannot_be_compared_is_no_loss_and_no_proof(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(roundtrip, "comparable", lambda *_: False)
        assert trials.round_trip(llama()).held is None


class TestTwins:
    @pytest.mark.parametrize("name", sorted(FAMILIES))
    def test_a_small_instance_is_tied_as_the_model_is(self, models: dict[str, Any], name: str) -> None:
        small = twins.small(models[name])
        assert type(small) is type(models[name])
        ends = trials.ends(small)
        assert ends is not None
        assert ends.tied

    def test_a_class_that_cannot_be_built_again(self) -> None:
        class Once(transformers.LlamaForCausalLM):
            def __init__(self, config: Any, extra: int) -> None:
                super().__init__(config)
                self.extra = extra

        model = Once(llama().config, 1)
        assert twins.small(model) is None

    def test_a_large_model_is_tried_on_a_small_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "SMALL", 0)
        monkeypatch.setattr(loading, "TINY", 0)
        tried = list(loading._tried(llama(), {}))
        assert [one.held for one in tried] == [True, True, True]
        small = "(tried on a small random instance of the class)"
        assert [one.words.endswith(small) for one in tried] == [False, True, True]

    def test_an_untied_large_model_keeps_its_head(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "SMALL", 0)
        model = llama()
        model.lm_head.weight = nn.Parameter(torch.randn(VOCAB, WIDTH))
        _, back = loading._tried(model, {})
        assert back.held
        assert back.words.startswith("save_pretrained and a reload give back all values (tried")

    def test_silence_ends(self) -> None:
        import logging
        import warnings

        shown, disabled = transformers.logging.is_progress_bar_enabled(), logging.root.manager.disable
        with twins.quiet():
            warnings.warn("not shown", stacklevel=1)
            assert not transformers.logging.is_progress_bar_enabled()
        # whatever it was before: another test may have silenced them
        assert logging.root.manager.disable == disabled
        assert transformers.logging.is_progress_bar_enabled() == shown
        with pytest.warns(UserWarning, match="shown"):
            warnings.warn("shown", stacklevel=1)

    def test_offline_ends(self) -> None:
        from huggingface_hub import constants

        before = constants.HF_HUB_OFFLINE
        with twins.offline():
            assert constants.is_offline_mode()
        assert before == constants.HF_HUB_OFFLINE
