"""This file holds the layouts of dense decoder families: which tensors a config asks for, and their shapes.

Written from the modules of transformers and checked against them on the meta device, name by name and shape by shape. A size is
the name of a `Dims` field, or a product or sum of them as a function. What a family can also be and is not laid out here (`refused`)
is no guess: it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Dims:
    """The sizes of one config. `q` and `kv` are the widths of all query and all key heads, `on` answers for a key that is a switch."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    positions: int
    config: Mapping[str, Any]

    @property
    def q(self) -> int:
        return self.heads * self.head

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head

    def on(self, key: str) -> bool:
        return bool(self.config.get(key))


Size = str | Callable[[Dims], int]
Switch = bool | str | Callable[[Dims], bool]
"""A key of the config that says so, or an answer."""
NEVER, ALWAYS = False, True


@dataclass(frozen=True, slots=True)
class Row:
    """One module: a weight of `shape`, and a bias of `bias_of` elements if `bias`. Left out if `when` says no."""

    name: str
    shape: tuple[Size, ...]
    bias: Switch = NEVER
    bias_of: Size = ""
    when: Switch = ALWAYS


LLAMA_KEYS = {
    "vocab": "vocab_size", "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head": "head_dim", "ffn": "intermediate_size", "positions": "max_position_embeddings",
}  # fmt: skip
GPT2_KEYS = {
    "vocab": "vocab_size", "hidden": "n_embd|hidden_size", "layers": "n_layer|num_hidden_layers", "heads": "n_head|num_attention_heads",
    "ffn": "n_inner", "positions": "n_positions|max_position_embeddings",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The modules outside of the layers, those of one layer, and where the config keeps the sizes.

    `keys`: field of `Dims` to key of the config, or several spellings of it; `defaults`: what the config class takes for a key that
    is absent. `refused`: keys that must be off. `ffn_default`: the width of the MLP where the config has none. `tied`: what decides
    where no catalog does.
    """

    architecture: str
    modules: tuple[Row, ...]
    layer: str
    rows: tuple[Row, ...]
    keys: Mapping[str, str] = field(default_factory=lambda: LLAMA_KEYS)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    ffn_default: Callable[[int], int] | None = None
    tied: bool | None = None


def linear(name: str, out: Size, width: Size, bias: Switch = NEVER, when: Switch = ALWAYS) -> Row:
    return Row(name, (out, width), bias, out, when)


def conv1d(name: str, width: Size, out: Size) -> Row:
    """GPT-2's linear layer, whose weight lies the other way round."""
    return Row(name, (width, out), bias=True, bias_of=out)


def norm(name: str, width: Size = "hidden", bias: Switch = NEVER, when: Switch = ALWAYS) -> Row:
    return Row(name, (width,), bias, width, when)


def _outside(norm_bias: Switch = NEVER, last: str = "model.norm", head_bias: bool = NEVER, norms: bool = ALWAYS) -> tuple[Row, ...]:
    return (
        Row("model.embed_tokens", ("vocab", "hidden")),
        *((norm(last, bias=norm_bias),) if norms else ()),
        linear("lm_head", "vocab", "hidden", head_bias),
    )


def _attention(bias: Switch = NEVER, out_bias: Switch | None = None, out: str = "o_proj") -> tuple[Row, ...]:
    return (
        linear("self_attn.q_proj", "q", "hidden", bias),
        linear("self_attn.k_proj", "kv", "hidden", bias),
        linear("self_attn.v_proj", "kv", "hidden", bias),
        linear(f"self_attn.{out}", "hidden", "q", bias if out_bias is None else out_bias),
    )


def _gated(bias: Switch = NEVER) -> tuple[Row, ...]:
    return (
        linear("mlp.gate_proj", "ffn", "hidden", bias),
        linear("mlp.up_proj", "ffn", "hidden", bias),
        linear("mlp.down_proj", "hidden", "ffn", bias),
    )


def _plain(first: str, second: str, bias: Switch = NEVER) -> tuple[Row, ...]:
    return (linear(f"mlp.{first}", "ffn", "hidden", bias), linear(f"mlp.{second}", "hidden", "ffn", bias))


def _norms(*names: str, bias: Switch = NEVER) -> tuple[Row, ...]:
    return tuple(norm(name, bias=bias) for name in names)


_PRE = ("input_layernorm", "post_attention_layernorm")
_FUSED = (linear("mlp.gate_up_proj", lambda d: 2 * d.ffn, "hidden"), linear("mlp.down_proj", "hidden", "ffn"))
_QK = (norm("self_attn.q_norm", "head"), norm("self_attn.k_norm", "head"))
_QK_WIDE = (norm("self_attn.q_norm", "q"), norm("self_attn.k_norm", "kv"))


def _llama(name: str, *rows: Row, outside: tuple[Row, ...] = (), **more: Any) -> Family:
    return Family(architecture=name, modules=outside or _outside(), layer="model.layers.{n}.", rows=rows, **more)


def _minimind(config: Mapping[str, Any]) -> Family:
    """MiniMind's own code: the third release writes `head_dim` into its configs, norms queries and keys and obeys the flag; the second
    always ties, and rounds 8/3 of the width up to 64."""
    third = "head_dim" in config
    return _llama(
        "MiniMindForCausalLM", *_attention(), *(_QK if third else ()), *_gated(), *_norms(*_PRE), refused=("use_moe",),
        defaults={"vocab_size": 6400, "hidden_size": 768 if third else 512, "num_hidden_layers": 8, "num_attention_heads": 8,
                  "num_key_value_heads": 4 if third else 2},
        ffn_default=(lambda hidden: math.ceil(hidden * math.pi / 64) * 64) if third else (lambda hidden: -(-(hidden * 8 // 3) // 64) * 64),
        tied=bool(config.get("tie_word_embeddings", True)) if third else True,
    )  # fmt: skip


_GPT2_BLOCK = (
    *_norms("ln_1", bias=True), conv1d("attn.c_attn", "hidden", lambda d: 3 * d.hidden), conv1d("attn.c_proj", "hidden", "hidden"),
    *_norms("ln_2", bias=True), conv1d("mlp.c_fc", "hidden", "ffn"), conv1d("mlp.c_proj", "ffn", "hidden"),
)  # fmt: skip
_GPT2_ENDS = (
    Row("transformer.wte", ("vocab", "hidden")), Row("transformer.wpe", ("positions", "hidden")), norm("transformer.ln_f", bias=True),
    linear("lm_head", "vocab", "hidden"),
)  # fmt: skip
_GPTJ_ENDS = (Row("transformer.wte", ("vocab", "hidden")), norm("transformer.ln_f", bias=True), linear("lm_head", "vocab", "hidden", True))
_GPTJ_MLP = (linear("mlp.fc_in", "ffn", "hidden", bias=True), linear("mlp.fc_out", "hidden", "ffn", bias=True))
_NEOX_MLP = _plain("dense_h_to_4h", "dense_4h_to_h", bias=True)


def _opt_affine(d: Dims) -> bool:
    return d.on("layer_norm_elementwise_affine")


def _four(hidden: int) -> int:
    return 4 * hidden


def _projected(d: Dims) -> int:
    """OPT-350m embeds in another width than it computes in."""
    return int(d.config.get("word_embed_proj_dim") or d.hidden)


def _falcon_qkv(d: Dims) -> int:
    if d.on("new_decoder_architecture"):
        return (2 * int(d.config.get("num_kv_heads") or d.heads) + d.heads) * d.head
    return d.hidden + 2 * d.head if d.on("multi_query") else 3 * d.hidden


def _falcon_two(d: Dims) -> bool:
    """Two norms side by side, for attention and MLP."""
    return d.on("new_decoder_architecture") and d.config.get("num_ln_in_parallel_attn") in (None, 2)


def _falcon_serial(d: Dims) -> bool:
    """A second norm, between attention and MLP."""
    return not d.on("parallel_attn") and not d.on("new_decoder_architecture")


FAMILIES: Mapping[str, Family | Callable[[Mapping[str, Any]], Family]] = {
    "gpt2": Family(architecture="GPT2LMHeadModel", modules=_GPT2_ENDS, layer="transformer.h.{n}.", rows=_GPT2_BLOCK, keys=GPT2_KEYS,
                   refused=("add_cross_attention",), ffn_default=_four),
    "openai-gpt": Family(
        architecture="OpenAIGPTLMHeadModel", layer="transformer.h.{n}.", rows=_GPT2_BLOCK, keys=GPT2_KEYS | {"ffn": ""}, ffn_default=_four,
        modules=(Row("transformer.tokens_embed", ("vocab", "hidden")), Row("transformer.positions_embed", ("positions", "hidden")),
                 linear("lm_head", "vocab", "hidden"))),
    "gpt_bigcode": Family(
        architecture="GPTBigCodeForCausalLM", modules=_GPT2_ENDS, layer="transformer.h.{n}.", keys=GPT2_KEYS,
        refused=("add_cross_attention",), ffn_default=_four,
        rows=(*_norms("ln_1", "ln_2", bias=True),
              linear("attn.c_attn", lambda d: d.hidden + 2 * d.head if d.on("multi_query") else 3 * d.hidden, "hidden", bias=True),
              linear("attn.c_proj", "hidden", "hidden", bias=True), *_plain("c_fc", "c_proj", bias=True))),
    "gpt_neo": Family(
        architecture="GPTNeoForCausalLM", modules=_GPT2_ENDS, layer="transformer.h.{n}.", ffn_default=_four,
        keys=LLAMA_KEYS | {"layers": "num_layers|num_hidden_layers", "heads": "num_heads|num_attention_heads"},
        rows=(*_norms("ln_1", "ln_2", bias=True), *(linear(f"attn.attention.{x}_proj", "hidden", "hidden") for x in "qkv"),
              linear("attn.attention.out_proj", "hidden", "hidden", bias=True), *_plain("c_fc", "c_proj", bias=True))),
    "gptj": Family(architecture="GPTJForCausalLM", modules=_GPTJ_ENDS, layer="transformer.h.{n}.", keys=GPT2_KEYS,
                   ffn_default=_four, rows=(*_norms("ln_1", bias=True), *_GPTJ_MLP,
                         *(linear(f"attn.{x}_proj", "hidden", "hidden") for x in ("q", "k", "v", "out")))),
    "codegen": Family(architecture="CodeGenForCausalLM", modules=_GPTJ_ENDS, layer="transformer.h.{n}.", keys=GPT2_KEYS,
                      ffn_default=_four, rows=(*_norms("ln_1", bias=True), linear("attn.qkv_proj", lambda d: 3 * d.hidden, "hidden"),
                            linear("attn.out_proj", "hidden", "hidden"), *_GPTJ_MLP)),
    "gpt_neox": Family(
        architecture="GPTNeoXForCausalLM", layer="gpt_neox.layers.{n}.",
        modules=(Row("gpt_neox.embed_in", ("vocab", "hidden")), norm("gpt_neox.final_layer_norm", bias=True),
                 linear("lm_head", "vocab", "hidden")),
        rows=(*_norms(*_PRE, bias=True), linear("attention.query_key_value", lambda d: 3 * d.hidden, "hidden", "attention_bias"),
              linear("attention.dense", "hidden", "hidden", "attention_bias"), *_NEOX_MLP)),
    "bloom": Family(
        architecture="BloomForCausalLM", layer="transformer.h.{n}.", ffn_default=_four,
        keys={"vocab": "vocab_size", "hidden": "n_embed|hidden_size", "layers": "n_layer|num_hidden_layers",
              "heads": "n_head|num_attention_heads"},
        modules=(Row("transformer.word_embeddings", ("vocab", "hidden")), linear("lm_head", "vocab", "hidden"),
                 *_norms("transformer.word_embeddings_layernorm", "transformer.ln_f", bias=True)),
        rows=(*_norms(*_PRE, bias=True), linear("self_attention.query_key_value", lambda d: 3 * d.hidden, "hidden", bias=True),
              linear("self_attention.dense", "hidden", "hidden", bias=True), *_NEOX_MLP)),
    "falcon": Family(
        architecture="FalconForCausalLM", layer="transformer.h.{n}.", ffn_default=_four,
        keys={"vocab": "vocab_size", "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
              "ffn": "ffn_hidden_size"},
        modules=(Row("transformer.word_embeddings", ("vocab", "hidden")), norm("transformer.ln_f", bias=True),
                 linear("lm_head", "vocab", "hidden")),
        rows=(norm("ln_attn", bias=True, when=_falcon_two), norm("ln_mlp", bias=True, when=_falcon_two),
              norm("input_layernorm", bias=True, when=lambda d: not _falcon_two(d)),
              norm("post_attention_layernorm", bias=True, when=_falcon_serial),
              linear("self_attention.query_key_value", _falcon_qkv, "hidden", "bias"),
              linear("self_attention.dense", "hidden", "hidden", "bias"), *_plain("dense_h_to_4h", "dense_4h_to_h", "bias"))),
    "mpt": Family(
        architecture="MptForCausalLM", layer="transformer.blocks.{n}.", ffn_default=_four,
        keys={"vocab": "vocab_size", "hidden": "d_model|hidden_size", "layers": "n_layers|num_hidden_layers",
              "heads": "n_heads|num_attention_heads"},
        modules=(Row("transformer.wte", ("vocab", "hidden")), norm("transformer.norm_f"), linear("lm_head", "vocab", "hidden")),
        rows=(*_norms("norm_1", "norm_2"), linear("attn.Wqkv", lambda d: 3 * d.hidden, "hidden"),
              linear("attn.out_proj", "hidden", "hidden"), linear("ffn.up_proj", "ffn", "hidden"),
              linear("ffn.down_proj", "hidden", "ffn"))),
    "opt": Family(
        architecture="OPTForCausalLM", layer="model.decoder.layers.{n}.", keys=LLAMA_KEYS | {"ffn": "ffn_dim"},
        modules=(Row("model.decoder.embed_tokens", ("vocab", _projected)),
                 Row("model.decoder.embed_positions", (lambda d: d.positions + 2, "hidden")),
                 Row("model.decoder.project_out", (_projected, "hidden"), when=lambda d: _projected(d) != d.hidden),
                 Row("model.decoder.project_in", ("hidden", _projected), when=lambda d: _projected(d) != d.hidden),
                 norm("model.decoder.final_layer_norm", bias=_opt_affine,
                      when=lambda d: _opt_affine(d) and d.on("do_layer_norm_before") and not d.on("_remove_final_layer_norm")),
                 linear("lm_head", "vocab", _projected)),
        rows=(*(linear(f"self_attn.{x}_proj", "hidden", "hidden", "enable_bias") for x in ("q", "k", "v", "out")),
              *(norm(name, bias=True, when=_opt_affine) for name in ("self_attn_layer_norm", "final_layer_norm")),
              linear("fc1", "ffn", "hidden", "enable_bias"), linear("fc2", "hidden", "ffn", "enable_bias"))),
    "llama": _llama("LlamaForCausalLM", *_attention("attention_bias"), *_gated("mlp_bias"), *_norms(*_PRE)),
    "mistral": _llama("MistralForCausalLM", *_attention(), *_gated(), *_norms(*_PRE)),
    "ministral": _llama("MinistralForCausalLM", *_attention(), *_gated(), *_norms(*_PRE)),
    "ministral3": _llama("Ministral3ForCausalLM", *_attention(), *_gated(), *_norms(*_PRE)),
    "minimind": _minimind,
    "qwen2": _llama("Qwen2ForCausalLM", *_attention(bias=True, out_bias=False), *_gated(), *_norms(*_PRE)),
    "qwen3": _llama("Qwen3ForCausalLM", *_attention("attention_bias"), *_QK, *_gated(), *_norms(*_PRE)),
    "gemma": _llama("GemmaForCausalLM", *_attention("attention_bias"), *_gated(), *_norms(*_PRE)),
    "gemma2": _llama("Gemma2ForCausalLM", *_attention("attention_bias"), *_gated(),
                     *_norms(*_PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm")),
    "gemma3_text": _llama("Gemma3ForCausalLM", *_attention("attention_bias"), *_QK, *_gated(),
                          *_norms(*_PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm")),
    "vaultgemma": _llama("VaultGemmaForCausalLM", *_attention("attention_bias"), *_gated(),
                         *_norms("input_layernorm", "pre_feedforward_layernorm")),
    "phi": _llama("PhiForCausalLM", *_attention(bias=True, out="dense"), *_plain("fc1", "fc2", bias=True),
                  *_norms("input_layernorm", bias=True),
                  *(norm(f"self_attn.{x}_layernorm", "head", bias=True, when="qk_layernorm") for x in "qk"),
                  outside=_outside(norm_bias=True, last="model.final_layernorm", head_bias=True)),
    "phi3": _llama("Phi3ForCausalLM", linear("self_attn.qkv_proj", lambda d: d.q + 2 * d.kv, "hidden"),
                   linear("self_attn.o_proj", "hidden", "q"), *_FUSED, *_norms(*_PRE)),
    "olmo": _llama("OlmoForCausalLM", *_attention("attention_bias"), *_gated(), outside=_outside(norms=False)),
    "olmo2": _llama("Olmo2ForCausalLM", *_attention("attention_bias"), *_QK_WIDE, *_gated(),
                    *_norms("post_attention_layernorm", "post_feedforward_layernorm")),
    "olmo3": _llama("Olmo3ForCausalLM", *_attention("attention_bias"), *_QK_WIDE, *_gated(),
                    *_norms("post_attention_layernorm", "post_feedforward_layernorm")),
    "granite": _llama("GraniteForCausalLM", *_attention("attention_bias"), *_gated("mlp_bias"), *_norms(*_PRE)),
    "stablelm": _llama("StableLmForCausalLM", *_attention("use_qkv_bias", out_bias=False), *_gated(),
                       *_norms("input_layernorm", bias=True),
                       norm("post_attention_layernorm", bias=True, when=lambda d: not d.on("use_parallel_residual")),
                       outside=_outside(norm_bias=True), refused=("qk_layernorm",), keys=LLAMA_KEYS | {"head": ""}),
    "starcoder2": _llama("Starcoder2ForCausalLM", *_attention("use_bias"), *_plain("c_fc", "c_proj", "use_bias"),
                         *_norms(*_PRE, bias=True), outside=_outside(norm_bias=True)),
    "cohere": _llama("CohereForCausalLM", *_attention("attention_bias"), *_gated(), *_norms("input_layernorm"),
                     Row("self_attn.q_norm", ("heads", "head"), when="use_qk_norm"),
                     Row("self_attn.k_norm", ("kv_heads", "head"), when="use_qk_norm")),
    "cohere2": _llama("Cohere2ForCausalLM", *_attention("attention_bias"), *_gated(), *_norms("input_layernorm")),
    "smollm3": _llama("SmolLM3ForCausalLM", *_attention("attention_bias"), *_gated("mlp_bias"), *_norms(*_PRE)),
    "glm": _llama("GlmForCausalLM", *_attention("attention_bias", out_bias=False), *_FUSED, *_norms(*_PRE)),
    "glm4": _llama("Glm4ForCausalLM", *_attention("attention_bias", out_bias=False), *_FUSED,
                   *_norms(*_PRE, "post_self_attn_layernorm", "post_mlp_layernorm")),
    "exaone4": _llama("Exaone4ForCausalLM", *_attention(), *_QK, *_gated(),
                      *_norms("post_attention_layernorm", "post_feedforward_layernorm")),
    "nemotron": _llama("NemotronForCausalLM", *_attention("attention_bias"), *_plain("up_proj", "down_proj", "mlp_bias"),
                       *_norms(*_PRE, bias=True), outside=_outside(norm_bias=True)),
    "helium": _llama("HeliumForCausalLM", *_attention("attention_bias")[:3], linear("self_attn.o_proj", "hidden", "hidden"),
                     *_gated("mlp_bias"), *_norms(*_PRE)),
    "seed_oss": _llama("SeedOssForCausalLM", *_attention("attention_bias", "attention_out_bias"), *_gated("mlp_bias"), *_norms(*_PRE)),
    "arcee": _llama("ArceeForCausalLM", *_attention("attention_bias"), *_plain("up_proj", "down_proj", "mlp_bias"), *_norms(*_PRE)),
    "ernie4_5": _llama("Ernie4_5ForCausalLM", *_attention("use_bias"), *_gated("use_bias"), *_norms(*_PRE)),
    "hunyuan_v1_dense": _llama("HunYuanDenseV1ForCausalLM", *_attention("attention_bias"), *_gated(), *_norms(*_PRE),
                               norm("self_attn.query_layernorm", "head"), norm("self_attn.key_layernorm", "head")),
}  # fmt: skip
