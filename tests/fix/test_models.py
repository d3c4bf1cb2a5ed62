"""Real models with one thing broken, fixed: transformers loads the result with no name missing, ties it in memory, computes what it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import save_file

from builders import folder, index, torch_zip
from tieaudit import apply_fix, audit, plan_fix

TEXT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0,
        "max_position_embeddings": 64}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
BART = {"vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip


class Model(NamedTuple):
    """A class with its ends."""

    architecture: str
    keys: dict[str, Any]
    embedding: str
    head: str


QWEN = Model("Qwen2ForCausalLM", {**GROUPED, "tie_word_embeddings": True}, "model.embed_tokens.weight", "lm_head.weight")
MODELS = [
    QWEN,
    Model("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}, "model.embed_tokens.weight", "lm_head.weight"),
    Model("GPTNeoXForCausalLM", {**TEXT, "tie_word_embeddings": True}, "gpt_neox.embed_in.weight", "embed_out.weight"),
    Model("BertForMaskedLM", TEXT, "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    Model("BartForConditionalGeneration", BART, "model.shared.weight", "lm_head.weight"),
]
IDS = torch.tensor([[3, 17, 95, 4, 60]])


def built(model: Model, **keys: Any) -> torch.nn.Module:
    torch.manual_seed(7)
    found = getattr(transformers, model.architecture)
    made = found(found.config_class(**(model.keys | keys))).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.3)
    return made  # type: ignore[no-any-return]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def loaded(path: Path, model: Model) -> torch.nn.Module:
    """Loaded with nothing missing and nothing unexpected."""
    made, told = getattr(transformers, model.architecture).from_pretrained(path, output_loading_info=True)
    assert {key: value for key, value in told.items() if value} == {}
    return made.eval()  # type: ignore[no-any-return]


def config_of(made: torch.nn.Module, path: Path) -> None:
    path.mkdir()
    made.config.architectures = [type(made).__name__]  # type: ignore[union-attr]
    made.config.save_pretrained(path)  # type: ignore[operator, union-attr]


def cloned(made: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in made.state_dict().items()}


def repeated(made: torch.nn.Module, path: Path, _model: Model) -> None:
    save_file(cloned(made), path / "model.safetensors", {"format": "pt"})


def in_torch(made: torch.nn.Module, path: Path, _model: Model) -> None:
    (path / "pytorch_model.bin").write_bytes(torch_zip(cloned(made)))


def sharded(made: torch.nn.Module, path: Path, model: Model) -> None:
    weights = cloned(made)
    files: dict[str, dict[str, torch.Tensor]] = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    one, two = files.values()
    for name, tensor in weights.items():
        (two if name == model.head or hash(name[-12:]) % 2 else one)[name] = tensor
    for file, part in files.items():
        save_file(part, path / file, {"format": "pt"})
    where = {name: file for file, part in files.items() for name in part}
    total = sum(tensor.nbytes for tensor in weights.values())
    folder(path, {"model.safetensors.index.json": index(where, total)})


BREAKS: list[tuple[Callable[[torch.nn.Module, Path, Model], None], dict[str, Any]]] = [
    (repeated, {}), (in_torch, {}), (in_torch, {"to": "safetensors"}), (sharded, {})]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.architecture)
@pytest.mark.parametrize(("broken", "options"), BREAKS, ids=["safetensors", "torch", "torch-to-safetensors", "sharded"])
def test_a_repeated_tie(
    broken: Callable[[torch.nn.Module, Path, Model], None], options: dict[str, Any], model: Model, tmp_path: Path
) -> None:
    made = built(model)
    config_of(made, tmp_path / "in")
    broken(made, tmp_path / "in", model)
    assert "duplicate-tie" in {finding.rule for finding in audit(tmp_path / "in").findings}
    apply_fix(plan_fix(tmp_path / "in", **options), tmp_path / "out")
    assert audit(tmp_path / "out").findings == ()
    again = loaded(tmp_path / "out", model)
    assert again.get_input_embeddings().weight is again.get_output_embeddings().weight  # type: ignore[operator]
    assert torch.equal(logits(again), logits(made))


def test_an_inverted_alias(tmp_path: Path) -> None:
    made = built(QWEN)
    config_of(made, tmp_path / "in")
    weights = cloned(made)
    del weights[QWEN.embedding]
    save_file(weights, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    again = loaded(tmp_path / "out", QWEN)
    assert again.get_input_embeddings().weight is again.get_output_embeddings().weight  # type: ignore[operator]
    assert torch.equal(logits(again), logits(made))


@pytest.mark.parametrize("model", MODELS[:3], ids=lambda model: model.architecture)
@pytest.mark.parametrize("choice", ["untie", "embed", "head"])
def test_two_matrices_and_a_choice(choice: str, model: Model, tmp_path: Path) -> None:
    untied = built(model, tie_word_embeddings=False)
    config_of(untied, tmp_path / "in")
    told = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps(told | {"tie_word_embeddings": True}, indent=2))
    save_file(cloned(untied), tmp_path / "in" / "model.safetensors", {"format": "pt"})
    assert plan_fix(tmp_path / "in").verdict == "refused"
    options: dict[str, Any] = {"untie": True} if choice == "untie" else {"tie": choice}
    apply_fix(plan_fix(tmp_path / "in", **options), tmp_path / "out")
    assert audit(tmp_path / "out").findings == ()
    again = loaded(tmp_path / "out", model)
    ends = [again.get_input_embeddings().weight, again.get_output_embeddings().weight]  # type: ignore[operator]
    assert (ends[0] is ends[1]) is (choice != "untie")
    right = untied
    with torch.no_grad():  # what the model computes with the side that was chosen at both ends
        if choice == "embed":
            right.get_output_embeddings().weight.copy_(right.get_input_embeddings().weight)  # type: ignore[operator]
        if choice == "head":
            right.get_input_embeddings().weight.copy_(right.get_output_embeddings().weight)  # type: ignore[operator]
    assert torch.equal(logits(again), logits(right))
