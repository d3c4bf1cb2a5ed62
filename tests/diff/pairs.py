"""This file makes what is compared: a tiny Llama as transformers saves it, and what libraries make of it."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gguf_encoders import encode

V, H, HEADS, KV_HEADS, LAYERS = 96, 64, 4, 2, 2
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MATRIX = V * H * 4  # bytes of the embedding in F32
TENSORS = 9 * LAYERS + 2  # of the tied model


@contextmanager
def quiet() -> Iterator[None]:
    """Without what libraries say while they work."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def llama(*, tied: bool = True, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The same weights at every call."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=V, hidden_size=H, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, tie_word_embeddings=tied, max_position_embeddings=64)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # a norm of ones would be equal to any other
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=H, n_layer=LAYERS, n_head=HEADS, n_positions=64)).eval()


def gemma2() -> Gemma2ForCausalLM:
    torch.manual_seed(2)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=V,
            hidden_size=H,
            intermediate_size=96,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=16,
            max_position_embeddings=64,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    return model


def save(model: PreTrainedModel, path: Path, **options: Any) -> Path:
    with quiet():
        model.save_pretrained(path, **options)
    return path


def copy(source: Path, path: Path, change: Callable[[dict[str, torch.Tensor]], None], **config: Any) -> Path:
    """The folder with other tensors, and other keys in its config."""
    shutil.copytree(source, path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(settings))
    return path


def merged(path: Path, target: list[str], *, modules_to_save: list[str] | None = None, rank: int = 4) -> Path:
    """What `merge_and_unload` and `save_pretrained` make of a LoRA."""
    from peft import LoraConfig, get_peft_model

    with quiet():
        torch.manual_seed(3)
        adapted = get_peft_model(llama(), LoraConfig(r=rank, lora_alpha=8, target_modules=target, modules_to_save=modules_to_save))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name or "modules_to_save" in name:
                    parameter.add_(0.05 * torch.randn_like(parameter))
        adapted.merge_and_unload().save_pretrained(path)
    return path


def export(model: PreTrainedModel, path: Path, *, dynamo: bool = False) -> Path:
    """`torch.onnx.export`; TorchScript folds constants, and so stores a tied head again, transposed."""

    class Logits(torch.nn.Module):
        """The model without the cache that it would give as well."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head = model.model, model.lm_head

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
            logits: torch.Tensor = self.lm_head(states)
            return logits

    path.mkdir()
    ids = torch.ones(1, 12, dtype=torch.long)
    with quiet():
        options: dict[str, Any] = {"dynamo": True, "external_data": False} if dynamo else {"dynamo": False}
        torch.onnx.export(Logits().eval(), (ids, torch.ones_like(ids)), path / "model.onnx", input_names=["input_ids", "attention_mask"],
                          output_names=["logits"], verbose=False, **options)  # fmt: skip
    return path


def rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def to_gguf(model: PreTrainedModel, path: Path, arch: MODEL_ARCH, kind: str = "F16", *, head: bool = False) -> Path:
    """As llama.cpp's converter does: its own name map, its order of rows, its transposes, one-dimensional tensors in F32."""
    names = get_tensor_name_map(arch, LAYERS)
    writer = GGUFWriter(path, {MODEL_ARCH.LLAMA: "llama", MODEL_ARCH.GPT2: "gpt2", MODEL_ARCH.GEMMA2: "gemma2"}[arch])
    writer.add_token_list([f"token {n}" for n in range(V)])
    for name, tensor in model.state_dict().items():
        if (name == HEAD and not head) or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        values = tensor.float().numpy()
        if arch is MODEL_ARCH.LLAMA and ".q_proj." in name:
            values = rotary(values, HEADS)
        if arch is MODEL_ARCH.LLAMA and ".k_proj." in name:
            values = rotary(values, KV_HEADS)
        if arch is MODEL_ARCH.GPT2 and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = values.T
        if arch is MODEL_ARCH.GEMMA2 and name.endswith("norm.weight"):
            values = values + 1
        there = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert there, name
        values = np.ascontiguousarray(values)
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(there, values)
        elif kind == "F16":
            writer.add_tensor(there, values.astype(np.float16))
        else:
            writer.add_tensor(there, encode(values, GGMLQuantizationType[kind]), raw_dtype=GGMLQuantizationType[kind])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def mlx(source: Path, path: Path, bits: int = 8, group: int = 32) -> Path:
    """What `mlx_lm.convert -q` writes: every matrix as words, scales and biases."""
    import mlx.core as mx

    path.mkdir()
    tensors: dict[str, Any] = {}
    for name, tensor in mx.load(str(source / "model.safetensors")).items():
        if tensor.ndim == 2:
            words, scales, biases = mx.quantize(tensor, group, bits)
            tensors |= {name: words, name.replace("weight", "scales"): scales, name.replace("weight", "biases"): biases}
        else:
            tensors[name] = tensor
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "mlx"})
    config = json.loads((source / "config.json").read_text())
    config["quantization"] = {"group_size": group, "bits": bits}
    (path / "config.json").write_text(json.dumps(config))
    return path


def tensors_of(path: Path) -> Mapping[str, torch.Tensor]:
    found: Mapping[str, torch.Tensor] = load_file(path / "model.safetensors")
    return found


def bitsandbytes(source: Path, path: Path, bits: int) -> Path:
    """What `from_pretrained` with a BitsAndBytesConfig and `save_pretrained` write."""
    from transformers import BitsAndBytesConfig

    asked = BitsAndBytesConfig(load_in_8bit=True) if bits == 8 else BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with quiet():
        model = LlamaForCausalLM.from_pretrained(source, quantization_config=asked, device_map="cpu")
        model.save_pretrained(path)
    return path
