"""Healthy checkpoints about which no error and no warning may be said; most are written by transformers itself.

Each is a kind of file that people ask about ("where is lm_head?") or that a careless check calls a duplicate.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from builders import (
    COLUMNS,
    EMBED,
    HEAD,
    MATRIX_NBYTES,
    ROWS,
    Raw,
    Tensor,
    config,
    folder,
    matrix,
    safetensors,
    tied,
    torch_legacy,
    torch_tensor,
    torch_zip,
    untied,
)
from tieaudit import Report, Severity, audit

VOCAB = 96
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
BERT = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MARIAN = {**BART, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
WHISPER = {**BART, "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 8}
WHISPER |= dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
MAMBA = {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
ZAMBA = {**TEXT, "num_hidden_layers": 9, "attn_layer_period": 3, "attn_layer_offset": 2, "use_mamba_kernels": False, "n_mamba_heads": 2}
CLIP = {"model_type": "clip_vision_model"}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}

# (class, keys of its config); the flag is left to the class unless it is what the case is about
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama, untied by class default": ("LlamaForCausalLM", TEXT),
    "gemma2, tied by class default": ("Gemma2ForCausalLM", {**TEXT, "head_dim": 8}),
    "qwen2, tied by the flag": ("Qwen2ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "whisper, head proj_out": ("WhisperForConditionalGeneration", WHISPER),
    "distilbert, head vocab_projector": (
        "DistilBertForMaskedLM",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    ),
    "xlnet, head lm_loss": ("XLNetLMHeadModel", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    "gpt_neox, head embed_out": ("GPTNeoXForCausalLM", BERT),
    "gpt_neox, tied": ("GPTNeoXForCausalLM", {**BERT, "tie_word_embeddings": True}),
    "bert, head cls.predictions.decoder": ("BertForMaskedLM", BERT),
    "bert for pretraining": ("BertForPreTraining", BERT),
    "roberta, bias alias": ("RobertaForMaskedLM", BERT),
    "albert, one layer group": ("AlbertForMaskedLM", {**BERT, "embedding_size": 16}),
    "electra": ("ElectraForMaskedLM", {**BERT, "embedding_size": 16}),
    "bart, zero final_logits_bias": ("BartForConditionalGeneration", BART),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 v1.1, flag false": ("T5ForConditionalGeneration", {**T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5ForConditionalGeneration", T5),
    "umt5, flag false": ("UMT5ForConditionalGeneration", {**T5, "tie_word_embeddings": False}),
    "longt5, flag false": ("LongT5ForConditionalGeneration", {**T5, "tie_word_embeddings": False}),
    "t5 encoder": ("T5EncoderModel", T5),
    "marian": ("MarianMTModel", MARIAN),
    "marian, split vocabularies": (
        "MarianMTModel",
        {**MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 80, "tie_word_embeddings": False},
    ),
    "mamba": ("MambaForCausalLM", MAMBA),
    "zamba, tied by a pattern": ("ZambaForCausalLM", ZAMBA),
    "mpt, no head module": ("MptForCausalLM", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "bloom": ("BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconForCausalLM", {**BERT, "alibi": True}),
    "opt": ("OPTForCausalLM", {**BERT, "ffn_dim": 48, "word_embed_proj_dim": 16}),
    "qwen2, base class": ("Qwen2Model", {**TEXT, "tie_word_embeddings": False}),
    "bert, base class": ("BertModel", BERT),
    "llama, classifier": ("LlamaForSequenceClassification", {**TEXT, "tie_word_embeddings": True, "num_labels": 1}),
    "llama, token classifier": ("LlamaForTokenClassification", TEXT),
    "siglip": (
        "SiglipModel",
        {"text_config": {**BERT, "max_position_embeddings": 64, "projection_size": 32}, "vision_config": VISION},
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**VISION, **CLIP},
            "image_token_index": 5,
        },
    ),
    "llava, flag false twice": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {**TEXT, "model_type": "llama", "tie_word_embeddings": False},
            "vision_config": {**VISION, **CLIP},
            "image_token_index": 5,
            "tie_word_embeddings": False,
        },
    ),
    "mllama, eight more rows": (
        "MllamaForConditionalGeneration",
        {
            "text_config": {**TEXT, "cross_attention_layers": [1], "bos_token_id": 1, "eos_token_id": 2},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 4,
                "vision_output_dim": 64,
                "image_size": 16,
                "patch_size": 8,
                "max_num_tiles": 1,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]],
            },
        },
    ),
}


@pytest.fixture(autouse=True)
def _others_warnings() -> Iterator[None]:
    """Warnings of transformers and torch about tiny models are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module", autouse=True)
def _quiet_library() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def built(architecture: str, keys: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    cls = getattr(transformers, architecture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(cls.config_class(**keys))


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return built(*MODELS[request.param])


@pytest.fixture(scope="module")
def saved(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers saves it today."""
    path = tmp_path_factory.mktemp("saved")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(path)
    return path


def alarms(report: Report) -> list[str]:
    """What is said at or above a warning, and what could not be checked."""
    found = [f"{finding.rule}: {finding.message}" for finding in report.findings if finding.severity is not Severity.NOTE]
    return [*found, *(f"skipped {skip.subject}: {skip.reason}" for skip in report.skipped)]


def with_config(model: Any, path: Path, content: bytes, name: str = "pytorch_model.bin") -> Path:
    """A folder as transformers 4 wrote it: config.json and a torch file."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    return folder(path, {name: content})


def test_real_model_saved_by_save_pretrained_is_silent(saved: Path) -> None:
    report = audit(saved)
    assert alarms(report) == []
    assert report.totals.nbytes_wasted == 0


def test_real_model_in_shards_is_silent(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert alarms(audit(tmp_path)) == []


def test_real_state_dict_in_a_torch_zip_is_silent(model: Any, tmp_path: Path) -> None:
    assert alarms(audit(with_config(model, tmp_path, torch_zip(model.state_dict())))) == []


def test_real_state_dict_in_a_legacy_torch_file_is_silent(model: Any, tmp_path: Path) -> None:
    assert alarms(audit(with_config(model, tmp_path, torch_legacy(model.state_dict())))) == []


def test_real_state_dict_without_a_config_is_silent(model: Any, tmp_path: Path) -> None:
    assert alarms(audit(folder(tmp_path, {"weights.pt": torch_zip(model.state_dict())}))) == []


def test_real_model_read_by_headers_is_silent(saved: Path) -> None:
    assert alarms(audit(saved, verify="headers")) == []


def test_real_model_with_every_small_repeat_counted_is_silent(saved: Path) -> None:
    assert alarms(audit(saved, min_waste=0)) == []


def test_both_formats_of_a_real_model_are_a_note(model: Any, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    names_on_disk = load_file(saved / "model.safetensors")
    state_dict = model.state_dict()
    # some classes are stored under older names than they have in memory, in either format
    content = state_dict if names_on_disk.keys() <= state_dict.keys() else names_on_disk
    report = audit(folder(tmp_path, {"pytorch_model.bin": torch_zip(content)}))
    assert alarms(report) == []
    assert "duplicate-format" in {finding.rule for finding in report.findings}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_real_model_in_half_precision_is_silent(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    built(architecture, {**TEXT, "head_dim": 8}).to(dtype).save_pretrained(tmp_path)
    assert alarms(audit(tmp_path)) == []


def test_regex_tie_of_diffusion_gemma_is_silent(tmp_path: Path) -> None:
    encoder, decoder = "model.encoder.language_model.layers.0.mlp.up_proj.weight", "model.decoder.layers.0.mlp.up_proj.weight"
    shared = torch_tensor(matrix(1))
    files = {
        "config.json": config("DiffusionGemmaForBlockDiffusion", "diffusion_gemma", text_config={"vocab_size": ROWS}),
        "pytorch_model.bin": torch_zip({"model.decoder.embed_tokens.weight": torch_tensor(matrix(2)), encoder: shared, decoder: shared}),
    }
    assert alarms(audit(folder(tmp_path, files))) == []


# MiniMind: `torch.save({k: v.half().cpu() for k, v in model.state_dict().items()}, path)`, no config beside it


@pytest.fixture(scope="module")
def minimind() -> Any:
    return built("LlamaForCausalLM", {**TEXT, "tie_word_embeddings": True})


def test_minimind_halves_store_the_tied_matrix_twice(minimind: Any, tmp_path: Path) -> None:
    halves = {name: tensor.half().cpu() for name, tensor in minimind.state_dict().items()}
    report = audit(folder(tmp_path, {"pretrain_512.pth": torch_zip(halves)}))
    [finding] = report.findings
    assert (finding.rule, finding.wasted_bytes) == ("duplicate-tie", VOCAB * 32 * 2)
    assert {place.name for place in finding.tensors} == {EMBED, HEAD}
    assert report.totals.nbytes_wasted == VOCAB * 32 * 2
    assert report.totals.parameters_stored - report.totals.parameters_unique == VOCAB * 32


def test_minimind_halves_cast_in_one_go_stay_tied(minimind: Any, tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"pretrain_512.pth": torch_zip(minimind.half().state_dict())}))
    minimind.float()
    assert report.verdict == "ok"


def test_minimind_saved_as_is_has_both_names_on_one_storage(minimind: Any, tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"pretrain_512.pth": torch_zip(minimind.state_dict())}))
    assert report.verdict == "ok"
    [tie] = report.ties
    assert tie.relation == "same storage"
    assert {tie.canonical, *tie.aliases} == {EMBED, HEAD}
    assert "one storage" in report.reason


def test_minimind_with_its_optimizer_is_a_note(minimind: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(minimind.parameters())
    minimind(input_ids=torch.arange(4)[None], labels=torch.arange(4)[None]).loss.backward()
    optimizer.step()
    content = {"model": minimind.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1, "step": 7, "wandb_id": None}
    report = audit(folder(tmp_path, {"pretrain_512_resume.pth": torch_zip(content)}))
    assert alarms(report) == []
    assert {finding.rule for finding in report.findings} == {"training-state"}
    assert [tie.relation for tie in report.ties] == ["same storage"]


def test_optimizer_state_for_one_name_of_a_pair_is_no_fault(minimind: Any, tmp_path: Path) -> None:
    state = {"state": {EMBED: {"exp_avg": torch.randn(VOCAB, 32), "exp_avg_sq": torch.rand(VOCAB, 32)}}}
    content = {"model": minimind.state_dict(), "optimizer": state}
    assert alarms(audit(folder(tmp_path, {"checkpoint.pt": torch_zip(content)}))) == []


def test_averages_beside_the_weights_are_no_duplicate(minimind: Any, tmp_path: Path) -> None:
    weights = minimind.state_dict()
    content = {"state_dict": weights, "ema": {name: tensor.clone() for name, tensor in weights.items()}}
    assert alarms(audit(folder(tmp_path, {"last.ckpt": torch_zip(content)}))) == []


# storages


@pytest.mark.parametrize("written", [torch_zip, torch_legacy])
def test_flat_weights_of_an_lstm_are_disjoint_views(written: Any, tmp_path: Path) -> None:
    lstm = torch.nn.LSTM(16, 16, num_layers=2)
    shapes = {name: tensor.shape for name, tensor in lstm.state_dict().items()}
    # as on a GPU, where cuDNN wants one flat buffer
    flat = torch.randn(sum(shape.numel() for shape in shapes.values()))
    parts = flat.split([shape.numel() for shape in shapes.values()])
    views = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
    report = audit(folder(tmp_path, {"lstm.pt": written(views)}))
    assert report.verdict == "ok"


def test_transposed_views_of_one_matrix_are_one_storage(tmp_path: Path) -> None:
    weight = torch_tensor(matrix(1))
    report = audit(folder(tmp_path, {"pytorch_model.bin": torch_zip({"encoder.weight": weight, "decoder.weight": weight.T})}))
    assert alarms(report) == []


# other files in the folder


def healthy(**more: bytes) -> dict[str, bytes]:
    return {
        "config.json": tied(),
        "model.safetensors": safetensors({EMBED: matrix(1), "model.norm.weight": np.ones(8, np.float32)}),
        **more,
    }


def test_fp16_variant_is_another_edition(tmp_path: Path) -> None:
    half = {EMBED: matrix(1).astype(np.float16), "model.norm.weight": np.ones(8, np.float16)}
    assert audit(folder(tmp_path, {**healthy(), "model.fp16.safetensors": safetensors(half)})).verdict == "ok"


def test_fp16_variant_beside_shards_is_no_orphan(tmp_path: Path) -> None:
    real = built("LlamaForCausalLM", TEXT)
    real.save_pretrained(tmp_path, max_shard_size="20KB")
    real.half().save_pretrained(tmp_path, variant="fp16")
    assert (tmp_path / "model.fp16.safetensors").exists()
    assert alarms(audit(tmp_path)) == []


def test_sharded_variant_beside_shards_is_no_orphan(tmp_path: Path) -> None:
    real = built("LlamaForCausalLM", TEXT)
    real.save_pretrained(tmp_path, max_shard_size="20KB")
    real.half().save_pretrained(tmp_path, variant="fp16", max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.fp16.json").exists()
    assert alarms(audit(tmp_path)) == []


def test_original_folder_is_seen_and_not_judged(tmp_path: Path) -> None:
    original = {"tok_embeddings.weight": torch_tensor(matrix(1)), "output.weight": torch_tensor(matrix(1))}
    files = {**healthy(), "original/consolidated.00.pth": torch_zip(original), "original/params.json": b'{"dim": 8}'}
    report = audit(folder(tmp_path, files))
    assert report.verdict == "ok"
    assert [skip.subject for skip in report.not_compared] == ["original/"]


def test_original_llama_release_is_silent(tmp_path: Path) -> None:
    original = {"tok_embeddings.weight": torch_tensor(matrix(1)), "output.weight": torch_tensor(matrix(2))}
    files = {"consolidated.00.pth": torch_zip(original), "params.json": b'{"dim": 8, "vocab_size": -1}'}
    assert audit(folder(tmp_path, files)).verdict == "ok"


def test_mistral_consolidated_beside_shards_is_no_orphan(tmp_path: Path) -> None:
    built("MistralForCausalLM", TEXT).save_pretrained(tmp_path, max_shard_size="20KB")
    folder(tmp_path, {"consolidated.safetensors": safetensors({"tok_embeddings.weight": matrix(1), "output.weight": matrix(2)})})
    assert alarms(audit(tmp_path)) == []


def test_fresh_adapter_with_zero_b_beside_the_model_is_silent(tmp_path: Path) -> None:
    layers = (f"base_model.model.model.layers.{number}.self_attn.q_proj" for number in range(2))
    adapter = {
        f"{layer}.lora_{side}.weight": matrix(3 + at, 16, 32) if side == "A" else np.zeros((32, 16), np.float32)
        for at, layer in enumerate(layers)
        for side in "AB"
    }
    content = safetensors(adapter)
    assert alarms(audit(folder(tmp_path / "beside", {**healthy(), "adapter_model.safetensors": content}))) == []
    alone = {"adapter_model.safetensors": content, "adapter_config.json": b'{"peft_type": "LORA", "base_model_name_or_path": "x"}'}
    assert alarms(audit(folder(tmp_path / "alone", alone))) == []


def test_eagle_drafter_without_an_embedding_is_silent(tmp_path: Path) -> None:
    eagle1 = {
        "fc.weight": matrix(1, 32, 64),
        "fc.bias": np.zeros(32, np.float32),
        "layers.0.self_attn.q_proj.weight": matrix(2, 32, 32),
        "layers.0.post_attention_layernorm.weight": np.ones(32, np.float32),
    }
    keys = {**TEXT, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    files = {
        "config.json": json.dumps(keys).encode(),
        "pytorch_model.bin": torch_zip({name: torch_tensor(tensor) for name, tensor in eagle1.items()}),
    }
    assert alarms(audit(folder(tmp_path / "eagle1", files))) == []
    eagle3 = {
        "d2t": np.arange(48, dtype=np.int64),
        "t2d": Raw("BOOL", (VOCAB,), bytes([1, 0]) * (VOCAB // 2)),
        "fc.weight": matrix(1, 32, 96),
        "midlayer.self_attn.q_proj.weight": matrix(2, 32, 64),
        "norm.weight": np.ones(32, np.float32),
        "lm_head.weight": matrix(3, 48, 32),
    }
    keys |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 48}
    files = {"config.json": json.dumps(keys).encode(), "model.safetensors": safetensors(eagle3)}
    assert alarms(audit(folder(tmp_path / "eagle3", files))) == []


def test_prediction_layer_copies_are_a_note(tmp_path: Path) -> None:
    embed, head = matrix(1, VOCAB, 32), matrix(2, VOCAB, 32)
    tensors = {EMBED: embed, HEAD: head, "model.layers.2.embed_tokens.weight": embed, "model.layers.2.shared_head.head.weight": head}
    keys = {**TEXT, "num_nextn_predict_layers": 1, "tie_word_embeddings": False}
    files = {"config.json": config("DeepseekV3ForCausalLM", "deepseek_v3", **keys), "model.safetensors": safetensors(tensors)}
    report = audit(folder(tmp_path, files))
    assert alarms(report) == []
    assert [finding.rule for finding in report.findings] == ["by-design-copy"]


def test_trainer_checkpoint_is_silent(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    rows = [{"input_ids": list(range(8)), "labels": list(range(8))} for _ in range(2)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, save_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    model = built("Qwen2ForCausalLM", {**TEXT, "tie_word_embeddings": True})
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    checkpoint = tmp_path / "checkpoint-1"
    inside = {path.name for path in checkpoint.iterdir()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"} <= inside
    report = audit(checkpoint)
    assert alarms(report) == []
    assert {finding.rule for finding in report.findings} <= {"training-state", "unsafe-pickle"}
    assert [tie.file for tie in report.ties] == ["model.safetensors"]


# rows, scales, constants


def test_padded_rows_are_no_mismatch(tmp_path: Path) -> None:
    tokenizer = json.dumps({"added_tokens": [], "model": {"vocab": {str(number): number for number in range(ROWS - 5)}}}).encode()
    assert audit(folder(tmp_path, healthy(**{"tokenizer.json": tokenizer}))).verdict == "ok"


def test_tokenizer_that_fills_the_last_row_is_no_overflow(tmp_path: Path) -> None:
    decoder = json.dumps({"added_tokens_decoder": {str(ROWS - 1): {"content": "<pad>"}}}).encode()
    assert audit(folder(tmp_path, healthy(**{"tokenizer_config.json": decoder}))).verdict == "ok"


def test_scaled_head_under_flag_false_is_a_note(tmp_path: Path) -> None:
    files = {"config.json": untied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1) / np.float32(9)})}
    report = audit(folder(tmp_path, files))
    assert alarms(report) == []
    assert [finding.rule for finding in report.findings] == ["scaled-copy"]


def test_equal_matrices_under_flag_false_are_a_note(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"config.json": untied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})}))
    assert alarms(report) == []
    assert report.totals.nbytes_wasted == 0


FORMULAS: Mapping[str, Tensor] = {
    "mixer.A_log": np.log(np.tile(np.arange(1, 17, dtype=np.float32), (32, 1))),
    "self_attn.rotary_emb.inv_freq": matrix(5, 1, 512).reshape(512),
    "attn.bias": np.tril(np.ones((1, 1, 32, 32), np.uint8)),
    "attn.masked_bias": np.full((1, 1), -1e4, np.float32),
    "embeddings.position_ids": np.arange(512, dtype=np.int64)[None],
    "embed_positions.weights": matrix(6, 64, 32),
    "norm.weight": np.ones(1024, np.float32),
    "proj.bias": np.zeros(1024, np.float32),
    "relative_position_index": np.arange(1024, dtype=np.int64).reshape(32, 32),
}


@pytest.mark.parametrize("leaf", FORMULAS)
def test_tensors_that_a_formula_fixes_are_no_duplicates(leaf: str, tmp_path: Path) -> None:
    layers = {f"model.layers.{number}.{leaf}": FORMULAS[leaf] for number in range(3)}
    report = audit(folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), **layers})}))
    assert report.verdict == "ok"


@pytest.mark.parametrize("flag", [True, False])
def test_ends_quantised_in_two_ways_are_no_copies(flag: bool, tmp_path: Path) -> None:
    def packed(stem: str, columns: int) -> dict[str, Tensor]:
        words = Raw("I32", (ROWS, columns), matrix(columns).tobytes()[: ROWS * columns * 4])
        return {f"{stem}.weight_packed": words, f"{stem}.weight_scale": matrix(7, ROWS, 1)}

    keys = {"tie_word_embeddings": flag, "quantization_config": {"quant_method": "compressed-tensors"}}
    for name, ends in {
        "both": {**packed("model.embed_tokens", 2), **packed("lm_head", 1)},
        "head only": {EMBED: matrix(1), **packed("lm_head", 1)},
        "fp8": {EMBED: matrix(1), HEAD: Raw("F8_E4M3", (ROWS, COLUMNS), bytes(range(256))), "lm_head.weight_scale": np.ones(1, np.float32)},
    }.items():
        report = audit(folder(tmp_path / name, {"config.json": config(**keys), "model.safetensors": safetensors(ends)}))
        # a float end and a quantised one are two matrices, which a claim that they are one does not allow
        spoken = {"head only": {"one-sided-quantization"}, "fp8": {"diverged-tie"}} if flag else {}
        assert {finding.rule for finding in report.findings} == spoken.get(name, set()), name


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module."])
def test_wrapper_prefixes_hide_no_name(prefix: str, tmp_path: Path) -> None:
    shared = torch_tensor(matrix(1))
    content = torch_zip({prefix + EMBED: shared, prefix + HEAD: shared})
    report = audit(folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": content}))
    assert report.verdict == "ok"
    assert [tie.relation for tie in report.ties] == ["same storage"]


@pytest.mark.parametrize("keys", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}])
@pytest.mark.parametrize("name", ["tok_embeddings.weight", "wte.weight", "emb.weight", "model.embed_tokens.weight"])
def test_unknown_class_without_a_head_is_silent(name: str, keys: dict[str, bool], tmp_path: Path) -> None:
    files = {"config.json": config("OwnModelForCausalLM", "own", **keys), "model.safetensors": safetensors({name: matrix(1)})}
    assert alarms(audit(folder(tmp_path, files))) == []


def test_unknown_class_with_two_matrices_is_silent(tmp_path: Path) -> None:
    tensors = {"wte.weight": matrix(1), "lm_head.weight": matrix(2)}
    files = {"config.json": config("OwnModelForCausalLM", "own"), "model.safetensors": safetensors(tensors)}
    assert audit(folder(tmp_path, files)).verdict == "ok"


@pytest.mark.parametrize(
    "names",
    [
        ("text_encoder.token_embedding.weight", "speech_encoder.token_embedding.weight"),
        ("local_encoder.embed_tokens.weight", "patcher.embed_tokens.weight", "patcher.lm_head.weight"),
    ],
)
def test_flag_of_an_unknown_class_with_several_embeddings_ties_none_of_them(names: tuple[str, ...], tmp_path: Path) -> None:
    tensors = {name: matrix(seed) for seed, name in enumerate(names)}
    files = {"config.json": config("OwnModel", "own", tie_word_embeddings=True), "model.safetensors": safetensors(tensors)}
    assert alarms(audit(folder(tmp_path, files))) == []


def test_nan_in_both_names_of_one_storage_is_no_difference(tmp_path: Path) -> None:
    shared = torch_tensor(matrix(1))
    shared[3, 3] = float("nan")
    report = audit(folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": torch_zip({EMBED: shared, HEAD: shared})}))
    assert report.verdict == "ok"


def test_one_shard_named_alone_accuses_nobody_of_absence(tmp_path: Path) -> None:
    built("LlamaForCausalLM", TEXT).save_pretrained(tmp_path, max_shard_size="20KB")
    for shard in sorted(tmp_path.glob("*.safetensors")):
        assert alarms(audit(shard)) == []


def test_wasted_bytes_of_a_doubled_head_are_exact(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})}))
    assert [finding.rule for finding in report.findings] == ["duplicate-tie"]
    assert report.totals.nbytes_wasted == MATRIX_NBYTES
