"""This file holds which tensor of a GGUF is which parameter of transformers, for the families of Llama, Gemma, Qwen, GPT-2 and their kin.

Facts of gguf/tensor_mapping.py (version 0.19): `blk.N.attn_q` is `model.layers.N.self_attn.q_proj`. Names of transformers stand here
without the words that move between a state dict and the same on disk (`model.`, `transformer.`, `language_model.`). Where one name is two
things (`post_attention_layernorm` is the norm before the MLP in Llama, the one behind the attention in Gemma 2), both stand here, and
what is left over decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOVING = frozenset(("model", "language_model", "transformer", "text_model"))

_WHOLE = {
    "token_embd": "embed_tokens wte tok_embeddings embed_in word_embeddings embeddings shared",
    "output": "lm_head output embed_out",
    "output_norm": "norm ln_f norm_f final_layernorm final_layer_norm",
    "position_embd": "wpe embed_positions",
    "token_embd_norm": "word_embeddings_layernorm embedding_norm",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}
_BLOCK = {
    "attn_norm": "input_layernorm ln_1 attention_norm ln1",
    "attn_qkv": "attn.c_attn self_attn.qkv_proj self_attention.query_key_value attention.query_key_value attn.Wqkv "
    "self_attn.query_key_value",
    "attn_q": "self_attn.q_proj attention.wq attn.q_proj attn.attention.q_proj",
    "attn_k": "self_attn.k_proj attention.wk attn.k_proj attn.attention.k_proj",
    "attn_v": "self_attn.v_proj attention.wv attn.v_proj attn.attention.v_proj",
    "attn_output": "self_attn.o_proj attn.c_proj attention.wo self_attn.dense self_attn.out_proj self_attention.dense attention.dense "
    "attn.out_proj attn.attention.out_proj",
    "attn_q_norm": "self_attn.q_norm self_attn.q_layernorm self_attn.query_layernorm",
    "attn_k_norm": "self_attn.k_norm self_attn.k_layernorm self_attn.key_layernorm",
    "attn_sinks": "self_attn.sinks",
    "attn_post_norm": "post_attention_layernorm post_self_attn_layernorm",
    "post_attention_norm": "post_attention_layernorm post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm ln_2 pre_feedforward_layernorm ffn_norm ln2",
    "post_ffw_norm": "post_feedforward_layernorm post_mlp_layernorm",
    "ffn_gate": "mlp.gate_proj feed_forward.w1 feed_forward.gate_proj mlp.w2",
    "ffn_up": "mlp.up_proj feed_forward.w3 mlp.c_fc mlp.gate_up_proj feed_forward.up_proj mlp.dense_h_to_4h mlp.fc1 mlp.w1 mlp.fc_in",
    "ffn_down": "mlp.down_proj feed_forward.w2 mlp.c_proj feed_forward.down_proj mlp.dense_4h_to_h mlp.fc2 mlp.fc_out",
    "ffn_gate_inp": "mlp.gate block_sparse_moe.gate mlp.router feed_forward.router",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_exps": "mlp.experts.gate_proj mlp.experts.#.gate_proj block_sparse_moe.experts.#.w1 feed_forward.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj mlp.experts.#.up_proj block_sparse_moe.experts.#.w3 feed_forward.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj mlp.experts.#.down_proj block_sparse_moe.experts.#.w2 feed_forward.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj mlp.shared_experts.down_proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_LAYER = re.compile(r"^(?:layers|h|blocks|layer)\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")


def _turned(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for ours, theirs in table.items():
        for name in theirs.split():
            found[name] = (*found.get(name, ()), ours)
    return found


_WHOLE_BY_NAME, _BLOCK_BY_NAME = _turned(_WHOLE), _turned(_BLOCK)


def candidates(name: str) -> Iterator[tuple[str, int | None]]:
    """(name in a GGUF, number of the expert if it is one slice of a stack) that a parameter of transformers may have there."""
    stem, _, leaf = ".".join(word for word in name.split(".") if word not in MOVING).rpartition(".")
    if leaf not in ("weight", "bias"):
        stem, leaf = (f"{stem}.{leaf}" if stem else leaf), "weight"  # gpt-oss and fused experts: parameters without a module
    layer = _LAYER.match(stem)
    if layer is None:
        yield from ((f"{found}.{leaf}", None) for found in _WHOLE_BY_NAME.get(stem, ()))
        return
    number, inner = layer.groups()
    expert = _EXPERT.search(f".{inner}")
    known = _BLOCK_BY_NAME.get(_EXPERT.sub(".experts.#.", f".{inner}")[1:] if expert else inner, ())
    yield from ((f"blk.{number}.{found}.{leaf}", int(expert[1]) if expert else None) for found in known)
