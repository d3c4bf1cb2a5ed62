"""This file holds which part of a model a tensor belongs to, by its name: embedding, head, attention, MLP and so on, and which layer.

A convention, not a fact of the file: what neither the claim (`ends`) nor a known word tells is OTHER.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache


class Component(StrEnum):
    """Where a tensor belongs. Norms are NORM wherever they stand; a bias goes with its module; a router and shared experts are EXPERTS.

    ATTENTION holds every mixer of tokens: attention, state-space blocks (Mamba), linear attention, RWKV's time mix, short convolutions.
    VISION and AUDIO hold all of a tower and what joins it to the text model by name. POSITION: learned or stored positions.
    OPTIMIZER: the state of a training run; DEAD: bytes that belong to no tensor, which only a file can tell.
    """

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION = "attention"
    MLP = "mlp"
    NORM = "norm"
    EXPERTS = "experts"
    VISION = "vision"
    AUDIO = "audio"
    POSITION = "position"
    ADAPTER = "adapter"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    DEAD = "dead"


MAX_NAME = 500  # characters; a longer one is no name of a module
MAX_SEGMENT = 80  # of what stands between two dots; the longest in transformers has 45
_ENDS = {"embedding": Component.EMBEDDING, "head": Component.HEAD}
_NO_DIGITS = dict.fromkeys(range(ord("0"), ord("9") + 1))


def component(name: str, part: str, ends: Mapping[str, str]) -> Component:
    """Of the tensor `name`. `part` is `TensorRecord.part`, `ends` what the claim knows: {stored name: "embedding" or "head"}."""
    if part:
        return Component.OPTIMIZER if part == "optimizer" else Component.OTHER
    if name in ends:
        return _ENDS.get(ends[name], Component.OTHER)
    if len(name) > MAX_NAME:
        return Component.OTHER
    # 70,000 names of 64 layers and 128 experts are some forty without their digits
    return _by_words(name.translate(_NO_DIGITS))


def layer(name: str) -> int | None:
    """The first number of a layer in a name: 12 for `model.layers.12.mlp.experts.3.up_proj.weight`; None outside of layers."""
    found = stack(name)
    return found[1] if found else None


def stack(name: str) -> tuple[str, int] | None:
    """The list of layers and the place in it: ("model.layers", 12)."""
    found = _LAYER.search(name) if len(name) <= MAX_NAME else None
    return (name[: found.end(1)], int(found[2])) if found else None


_LAYER = re.compile(r"((?:^|[./_])(?:layers?|h|blocks?|blk|resblocks?|stages?|layer_groups?|layer_module))[._/](\d{1,6})(?=[./]|$)")


# What one segment of a name can be, without digits: `fc` for `fc1`, `ln_` for `ln_2`. A segment has the first role that fits.
# The names of whole models (visual_bert) are no towers, nor is what chooses experts by kind of token (vision_moe).
_WORDS: dict[str, str] = {
    Component.ADAPTER: r"(?:lora|loha|lokr|hada|vera|ia)_\w+ prompt_embeddings prefix_encoder modules_to_save",
    Component.OPTIMIZER: r"exp_avg\w* optim optimizer optimizer_state",
    Component.AUDIO: r"(?!audio_spectrogram)(?:\w*_)?(?:audio|speech|codec|vocoder|waveform|acoustic)(?:_\w*)? (?:code|token)wav",
    Component.VISION: r"""
        (?!vis(?:ual|ion)_(?:bert|moe|text|encoder_decoder))(?:\w*_)?(?:vision|visual|visn|image|img|vqmodel|pixel|patch)(?:_\w*)?
        vit_\w+ \w+_vit""",
    Component.POSITION: r"""
        (?:\w*_)?(?:pos|position|positions|positional)(?:_(?:ids?|emb\w*|encoding\w*|bias\w*|table|index\w*|[hw]|conv\w*))?
        relative_attention_bias relative_position\w* position_\w* pos_\w* wpe rotary\w* rope\w* inv_freq attn_rot_embd""",
    Component.NORM: r"(?!norm_attn_norm)\w*norms?(?:ed|alization|_\w*)? pre_LN \w*[Ll]ayer[Nn]orm\w* ln ln_\w* \w+_ln \w*bn bn_\w*",
    Component.EXPERTS: r"""
        \w*experts? \w*_experts?_\w* \w*router\w* gating moe \w+_moe moe_\w+ shared_mlp e_score_correction_bias per_expert_scale
        \w*_(?:exps|shexp|chexps) exp_probs_b ffn_gate_inp\w*""",
    "mixer": r"""
        \w*(?:attn|attention|mamba|mixer|ssm|shortconv|rglru|recurrent)\w*
        (?:\w*_)?att temporal_block short_conv conv_block mlstm_layer""",
    "mlp": r"\w*(?:mlp|ffn|feed_?forward|DenseReluDense|channel_mix|ffw)\w* ffs? intermediate\w* \w*transition",
    "mixer leaf": r"""
        (?:\w*_)?(?:q|k|v|o|qkv|kv|out|query|key|value|q_a|q_b|kv_a|kv_b|g|b|a|x|dt|in)_proj(?:_\w*)? (?:query|key|value)s?(?:_\w*)?
        [Ww][qkvo] Wqkv query_key_value c_attn (?:[qkv]|out)_lin [qkvo] A_log dt_bias D convd in_proj_(?:weight|bias)
        sinks self time_mix_\w+""",
    "mlp leaf": r"(?:\w*_)?(?:gate|up|down|gate_up)_proj(?:_\w*)? (?:c_)?fc(?:_\w*)? linear_fc wi_? w lin dense_h_to_h gate_up pwconv",
    Component.HEAD: r"""
        lm_head\w* embed_out output_layer output_projection \w*classifier score \w*outputs cls \w*pooler \w*_head lm_loss vocab_projector
        unembed mlm_score logits_dense vocab_transform pred_layer \w*predictions \w*_predictor logits_proj proj_out
        start_logits end_logits""",
    Component.EMBEDDING: r"""
        \w*embeddings?\w* \w*embed \w*embed_\w* \w*input_embeds_\w* wte shared token_\w* \w*_embd \w*tok_emb emb \w+_emb \w*codebook
        queries_\w*""",
}
_ROLES = {role: re.compile("|".join(words.split())) for role, words in _WORDS.items()}
# GGUF's towers, and what leads from them into the text model
_TOWER = re.compile(r"(v|a)\.+(?:blk|enc|conv|patch|position|class|pre_|post_|norm|token|output)|(mm)\.")
_TOWERS = (Component.ADAPTER, Component.OPTIMIZER, Component.AUDIO, Component.VISION, Component.POSITION)
_LEAVES = frozenset(
    "weight bias scale gamma beta kernel shift g b qweight qzeros scales zeros g_idx running_mean running_var num_batches_tracked".split()
)
_BLOCKS = {"mixer": Component.ATTENTION, "mlp": Component.MLP}
_TELLING: dict[str, Component] = {"mixer leaf": Component.ATTENTION, "mlp leaf": Component.MLP} | {
    role: role for role in (Component.HEAD, Component.EMBEDDING)
}
_WRAPPERS = frozenset("model module params transformer decoder language_model self".split())


@lru_cache(maxsize=8192)
def _role(segment: str) -> str:
    if len(segment) > MAX_SEGMENT:
        return ""
    return next((role for role, pattern in _ROLES.items() if pattern.fullmatch(segment)), "")


@lru_cache(maxsize=8192)
def _by_words(name: str) -> Component:
    """A tower wins over what stands in it, then norms and experts, then the innermost block, then the innermost word that tells."""
    segments = [segment for segment in name.replace("/", ".").replace(":", ".").split(".") if segment]
    roles = [_role(segment) for segment in segments]
    first = _TOWER.match(name)
    if first:
        return Component.AUDIO if first[1] == "a" or segments[:2] == ["mm", "a"] else Component.VISION
    for tower in _TOWERS:
        if tower in roles:
            return tower
    inner = [role for segment, role in zip(segments, roles, strict=True) if segment not in _LEAVES]
    if Component.NORM in (roles[-1:] + inner[-1:]):
        return Component.NORM
    if Component.EXPERTS in roles or _routes(segments, roles):
        return Component.EXPERTS
    block = next((role for role in reversed(roles) if role in _BLOCKS), "")
    if block == "mixer" and "mixer" in segments and "mlp leaf" in roles:  # Nemotron-H calls every block a mixer
        return Component.MLP
    if block:
        return _BLOCKS[block]
    ends = [segment for segment in segments if segment not in _WRAPPERS]
    if ends and ends[0] in ("output", "head", "heads", "projection"):
        return Component.HEAD
    if "layer" in segments and "output" in segments:  # BERT's second half of a layer
        return Component.MLP
    word = next((role for role in reversed(roles) if role in _TELLING), "")
    return _TELLING[word] if word else Component.OTHER


def _routes(segments: list[str], roles: list[str]) -> bool:
    """`mlp.gate`, which chooses experts; a gate of the MLP itself is `gate_proj`."""
    return any(role in _BLOCKS and after in ("gate", "wg") for role, after in zip(roles, segments[1:], strict=False))
