"""Healthy layouts as they lie on the Hub, older and other than what today's transformers writes: names, prefixes, buffers, configs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from builders import COLUMNS, EMBED, HEAD, ROWS, Raw, Tensor, folder, matrix, safetensors, torch_legacy, torch_tensor, torch_zip
from tieaudit import Severity, audit

E, H = matrix(1), matrix(2)  # an embedding and a head of its own
ONES, ZEROS = np.ones(ROWS, np.float32), np.zeros(ROWS, np.float32)
MASK = Raw("BOOL", (1, 1, 64, 64), np.tril(np.ones((64, 64), np.uint8)).tobytes())
POSITIONS = np.arange(512, dtype=np.int64)[None]
SINUSOIDS = matrix(3, 64, 16)
COUNTER = np.array(3, np.int64)
BIN, ST = "pytorch_model.bin", "model.safetensors"


class Layout(NamedTuple):
    """config.json and the tensors of one file. In a torch file the same array under two names is one storage."""

    config: Mapping[str, Any] | None
    tensors: Mapping[str, Tensor]
    file: str = ST


def of(architecture: str, model_type: str, **keys: Any) -> dict[str, Any]:
    """The config of a class of transformers, as release 4 wrote it."""
    content = {"architectures": [architecture], "model_type": model_type, "vocab_size": ROWS, "hidden_size": COLUMNS}
    return {**content, "transformers_version": "4.38.0", "torch_dtype": "float32", **keys}


def layers(leaf: str, tensor: Tensor, count: int = 3) -> dict[str, Tensor]:
    return {leaf.format(number): tensor for number in range(count)}


LAYOUTS: Mapping[str, Layout] = {
    "gpt2, no prefix, masks in every layer": Layout(
        of("GPT2LMHeadModel", "gpt2"),
        {"wte.weight": E, "wpe.weight": matrix(3), "ln_f.weight": ONES, **layers("h.{}.attn.bias", MASK)},
    ),
    "gpt2, older .bin": Layout(of("GPT2LMHeadModel", "gpt2"), {"wte.weight": E, "wpe.weight": matrix(3)}, BIN),
    "gpt-j, head with a bias": Layout(
        of("GPTJForCausalLM", "gptj", tie_word_embeddings=False),
        {"transformer.wte.weight": E, "lm_head.weight": H, "lm_head.bias": ZEROS},
        BIN,
    ),
    "phi-2": Layout(of("PhiForCausalLM", "phi", tie_word_embeddings=False), {EMBED: E, HEAD: H, "lm_head.bias": ZEROS}),
    "bert, decoder left out": Layout(
        of("BertForMaskedLM", "bert"),
        {"bert.embeddings.word_embeddings.weight": E, "cls.predictions.bias": ZEROS, "cls.seq_relationship.weight": matrix(3, 2)},
    ),
    "bert, decoder in a .bin, gamma and beta": Layout(
        of("BertForPreTraining", "bert"),
        {
            "bert.embeddings.word_embeddings.weight": E,
            "bert.embeddings.LayerNorm.gamma": ONES,
            "bert.embeddings.LayerNorm.beta": ZEROS,
            "cls.predictions.bias": ZEROS,
            "cls.predictions.decoder.weight": E,
        },
        BIN,
    ),
    "sentence encoder, no prefix": Layout(
        of("BertModel", "bert"),
        {"embeddings.word_embeddings.weight": E, "embeddings.position_ids": POSITIONS, "pooler.dense.bias": ZEROS},
    ),
    "xlm-roberta, decoder bias left out": Layout(
        of("XLMRobertaForMaskedLM", "xlm-roberta"),
        {"roberta.embeddings.word_embeddings.weight": E, "lm_head.bias": ZEROS, "lm_head.decoder.weight": E},
        BIN,
    ),
    "esm": Layout(
        of("EsmForMaskedLM", "esm", tie_word_embeddings=True),
        {"esm.embeddings.word_embeddings.weight": E, "lm_head.decoder.weight": E, "lm_head.bias": ZEROS},
        BIN,
    ),
    "xlnet, lm_loss beside word_embedding": Layout(
        of("XLNetLMHeadModel", "xlnet"), {"transformer.word_embedding.weight": E, "lm_loss.weight": E, "lm_loss.bias": ZEROS}, BIN
    ),
    "bart, four names of one storage": Layout(
        of("BartForConditionalGeneration", "bart"),
        {
            "model.shared.weight": E,
            "model.encoder.embed_tokens.weight": E,
            "model.decoder.embed_tokens.weight": E,
            "lm_head.weight": E,
            "final_logits_bias": np.zeros((1, ROWS), np.float32),
        },
        BIN,
    ),
    "bart base class, no prefix": Layout(
        of("BartModel", "bart"), {"shared.weight": E, "encoder.embed_tokens.weight": E, "decoder.embed_tokens.weight": E}, BIN
    ),
    "nllb": Layout(
        of("M2M100ForConditionalGeneration", "m2m_100"),
        {
            "model.shared.weight": E,
            "model.encoder.embed_tokens.weight": E,
            "model.decoder.embed_tokens.weight": E,
            "model.encoder.embed_positions.weights": SINUSOIDS,
            "model.decoder.embed_positions.weights": SINUSOIDS,
            "lm_head.weight": E,
        },
        BIN,
    ),
    "marian, sinusoids twice": Layout(
        of("MarianMTModel", "marian", share_encoder_decoder_embeddings=True, decoder_vocab_size=ROWS),
        {
            "model.shared.weight": E,
            "model.encoder.embed_positions.weight": SINUSOIDS,
            "model.decoder.embed_positions.weight": SINUSOIDS,
            "final_logits_bias": np.zeros((1, ROWS), np.float32),
        },
    ),
    "t5, all four names": Layout(
        of("T5ForConditionalGeneration", "t5"),
        {"shared.weight": E, "encoder.embed_tokens.weight": E, "decoder.embed_tokens.weight": E, "lm_head.weight": E},
        BIN,
    ),
    "t5, shared alone": Layout(of("T5ForConditionalGeneration", "t5"), {"shared.weight": E}),
    "mt5, untied head": Layout(
        of("MT5ForConditionalGeneration", "mt5", tie_word_embeddings=False),
        {"shared.weight": E, "encoder.embed_tokens.weight": E, "decoder.embed_tokens.weight": E, "lm_head.weight": H},
        BIN,
    ),
    "opt, without model.": Layout(of("OPTForCausalLM", "opt"), {"decoder.embed_tokens.weight": E}, BIN),
    "opt, head in a .bin": Layout(of("OPTForCausalLM", "opt"), {"model.decoder.embed_tokens.weight": E, "lm_head.weight": E}, BIN),
    "whisper, proj_out in a .bin": Layout(
        of("WhisperForConditionalGeneration", "whisper"),
        {
            "model.decoder.embed_tokens.weight": E,
            "model.encoder.embed_positions.weight": SINUSOIDS,
            "proj_out.weight": E,
        },
        BIN,
    ),
    "falcon, head in a .bin": Layout(
        of("FalconForCausalLM", "falcon"), {"transformer.word_embeddings.weight": E, "lm_head.weight": E}, BIN
    ),
    "bloom, no prefix": Layout(of("BloomForCausalLM", "bloom"), {"word_embeddings.weight": E, "word_embeddings_layernorm.weight": ONES}),
    "pythia, masks and frequencies": Layout(
        of("GPTNeoXForCausalLM", "gpt_neox", tie_word_embeddings=False),
        {
            "gpt_neox.embed_in.weight": E,
            "embed_out.weight": H,
            **layers("gpt_neox.layers.{}.attention.bias", MASK),
            **layers("gpt_neox.layers.{}.attention.masked_bias", np.array(-1e9, np.float32)),
            **layers("gpt_neox.layers.{}.attention.rotary_emb.inv_freq", matrix(3, 1, 512).reshape(512)),
        },
    ),
    "llama 2": Layout(
        of("LlamaForCausalLM", "llama", tie_word_embeddings=False),
        {EMBED: E, HEAD: H, **layers("model.layers.{}.self_attn.rotary_emb.inv_freq", matrix(3, 1, 512).reshape(512))},
    ),
    "llama, flag absent": Layout(of("LlamaForCausalLM", "llama"), {EMBED: E, HEAD: H}),
    "llama, rewarder": Layout(of("LlamaForSequenceClassification", "llama"), {EMBED: E, "score.weight": matrix(3, 1)}),
    "llama, rewarder with value head": Layout(of("LlamaForCausalLM", "llama"), {EMBED: E, HEAD: H, "v_head.summary.weight": matrix(3, 1)}),
    "mistral embedder": Layout(of("MistralModel", "mistral"), {"embed_tokens.weight": E, "norm.weight": ONES}),
    "gemma, flag absent": Layout(of("GemmaForCausalLM", "gemma"), {EMBED: E}),
    "gemma 3 with pictures": Layout(
        of("Gemma3ForConditionalGeneration", "gemma3", text_config={"model_type": "gemma3_text", "vocab_size": ROWS}),
        {"language_model.model.embed_tokens.weight": E, "vision_tower.vision_model.embeddings.position_embedding.weight": H},
    ),
    "qwen2-vl 2b, flat config": Layout(
        of("Qwen2VLForConditionalGeneration", "qwen2_vl", tie_word_embeddings=True, vision_config={"depth": 2}), {EMBED: E}
    ),
    "qwen2-vl 7b, flat config": Layout(
        of("Qwen2VLForConditionalGeneration", "qwen2_vl", tie_word_embeddings=False, vision_config={"depth": 2}), {EMBED: E, HEAD: H}
    ),
    "qwen2.5-vl 3b": Layout(
        of("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", tie_word_embeddings=True, vision_config={"depth": 2}), {EMBED: E}
    ),
    "llava 1.5": Layout(
        of("LlavaForConditionalGeneration", "llava", text_config={"model_type": "llama", "vocab_size": ROWS}, tie_word_embeddings=False),
        {"language_model.model.embed_tokens.weight": E, "language_model.lm_head.weight": H},
    ),
    "llava 1.5, flag absent": Layout(
        of("LlavaForConditionalGeneration", "llava", text_config={"model_type": "llama", "vocab_size": ROWS}),
        {"language_model.model.embed_tokens.weight": E, "language_model.lm_head.weight": H},
    ),
    "internvl, remote code": Layout(
        {
            "architectures": ["InternVLChatModel"],
            "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
            "llm_config": {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False, "vocab_size": ROWS},
            "model_type": "internvl_chat",
        },
        {"language_model.model.embed_tokens.weight": E, "language_model.lm_head.weight": H},
    ),
    "chatglm, remote code": Layout(
        {
            "architectures": ["ChatGLMModel"],
            "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMModel"},
            "model_type": "chatglm",
            "padded_vocab_size": ROWS,
            "tie_word_embeddings": False,
        },
        {"transformer.embedding.word_embeddings.weight": E, "transformer.output_layer.weight": H},
    ),
    "mamba, first release": Layout(
        {"d_model": COLUMNS, "n_layer": 3, "vocab_size": ROWS - 3, "pad_vocab_size_multiple": 8, "tie_embeddings": True},
        {
            "backbone.embedding.weight": E,
            "lm_head.weight": E,
            **layers("backbone.layers.{}.mixer.A_log", np.log(np.tile(np.arange(1, 17, dtype=np.float32), (32, 1)))),
        },
        BIN,
    ),
    "nanogpt": Layout(None, {"transformer.wte.weight": E, "lm_head.weight": E, "transformer.wpe.weight": H}, "ckpt.pt"),
    "clip": Layout(
        {"architectures": ["CLIPModel"], "model_type": "clip"},
        {"text_model.embeddings.token_embedding.weight": E, "text_model.embeddings.position_ids": np.arange(77, dtype=np.int64)[None]},
    ),
    "timm": Layout(
        {"architecture": "resnet50", "num_classes": 10},
        {
            "conv1.weight": matrix(1, 64, 27).reshape(64, 3, 3, 3),
            "bn1.running_var": ONES,
            **layers("layer{}.bn.num_batches_tracked", COUNTER),
        },
    ),
    "diffusers unet": Layout(
        {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30.0"},
        {"conv_in.weight": matrix(1, 64, 36).reshape(64, 4, 3, 3), "conv_out.weight": matrix(2, 64, 36).reshape(4, 64, 3, 3)},
        "diffusion_pytorch_model.safetensors",
    ),
}


def files_of(layout: Layout, *, legacy: bool = False) -> dict[str, bytes]:
    files = {} if layout.config is None else {"config.json": json.dumps(layout.config).encode()}
    if layout.file.endswith(".safetensors"):
        return {**files, layout.file: safetensors(layout.tensors)}
    made: dict[int, torch.Tensor] = {}
    content = {}
    for name, tensor in layout.tensors.items():
        assert isinstance(tensor, np.ndarray)
        content[name] = made.setdefault(id(tensor), torch_tensor(tensor))
    return {**files, layout.file: torch_legacy(content) if legacy else torch_zip(content)}


def alarms(path: Path, **options: Any) -> list[str]:
    report = audit(path, **options)
    found = [f"{finding.rule}: {finding.message}" for finding in report.findings if finding.severity is not Severity.NOTE]
    return [*found, *(f"skipped {skip.subject}: {skip.reason}" for skip in report.skipped)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_of_the_hub_is_silent(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path, files_of(LAYOUTS[name]))
    assert alarms(path) == []
    assert audit(path).totals.nbytes_wasted == 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("verify", ["headers", "sample"])
def test_layout_of_the_hub_is_silent_at_every_level(name: str, verify: str, tmp_path: Path) -> None:
    assert alarms(folder(tmp_path, files_of(LAYOUTS[name])), verify=verify) == []


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.file == BIN])
def test_layout_of_the_hub_in_a_legacy_file_is_silent(name: str, tmp_path: Path) -> None:
    assert alarms(folder(tmp_path, files_of(LAYOUTS[name], legacy=True))) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_of_the_hub_without_its_config_is_silent(name: str, tmp_path: Path) -> None:
    assert alarms(folder(tmp_path, files_of(LAYOUTS[name]._replace(config=None)))) == []


def test_diffusers_variants_are_other_editions(tmp_path: Path) -> None:
    layout = LAYOUTS["diffusers unet"]
    half = {name: tensor.astype(np.float16) for name, tensor in layout.tensors.items() if isinstance(tensor, np.ndarray)}
    more = {
        "diffusion_pytorch_model.fp16.safetensors": safetensors(half),
        "diffusion_pytorch_model.non_ema.safetensors": safetensors({name: tensor + 1 for name, tensor in half.items()}),
    }
    assert alarms(folder(tmp_path, {**files_of(layout), **more})) == []
