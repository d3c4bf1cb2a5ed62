"""Which part of a model a name belongs to: against the modules of real architectures on the meta device, and the names of other formats."""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import product
from typing import Any

import pytest
import transformers
from torch import nn

from tieaudit.catalog import tiny
from tieaudit.components import MAX_NAME, Component, component, layer, stack

ARCHITECTURES = """
    GPT2LMHeadModel GPTNeoXForCausalLM OPTForCausalLM BloomForCausalLM FalconForCausalLM MptForCausalLM LlamaForCausalLM
    MistralForCausalLM MixtralForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM
    GemmaForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM Phi3ForCausalLM Olmo2ForCausalLM OlmoeForCausalLM GraniteForCausalLM
    GraniteMoeForCausalLM StableLmForCausalLM Starcoder2ForCausalLM CohereForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM
    DbrxForCausalLM GptOssForCausalLM MambaForCausalLM Mamba2ForCausalLM RwkvForCausalLM JambaForCausalLM
    NemotronForCausalLM NemotronHForCausalLM RecurrentGemmaForCausalLM Glm4ForCausalLM BertForMaskedLM RobertaForMaskedLM
    DistilBertForMaskedLM DebertaV2ForMaskedLM ModernBertForMaskedLM BartForConditionalGeneration T5ForConditionalGeneration
    Qwen2VLForConditionalGeneration LlavaForConditionalGeneration
    Gemma3ForConditionalGeneration Qwen2AudioForConditionalGeneration Lfm2ForCausalLM
""".split()
# weights that are none of the others: what joins modalities, and the scalars of a layer
OTHERS = re.compile(r"multi_modal_projector\.|mixture|z_loss|altup|laurel|per_layer_(?:input_gate|projection|model_projection)")
# segments of a path, not classes: which of two halves a plain linear layer is
BY_PATH = ((re.compile(r"\.attention\.output\.dense"), Component.ATTENTION), (re.compile(r"\.layer\.\d+\.output\.dense"), Component.MLP))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_is_what_its_module_is(name: str) -> None:
    cls = getattr(transformers, name)
    _, model = tiny.tiny(cls)
    ends = _ends(model)
    wrong, seen = [], Counter[Component]()
    for path, _ in model.named_parameters(remove_duplicate=False):
        found = component(path, "", ends)
        seen[found] += 1
        expected = _truth(model, path, ends)
        if found not in expected and not (found is Component.OTHER and OTHERS.search(path)):
            wrong.append((path, found.value, sorted(kind.value for kind in expected)))
    assert wrong == []
    # by the module tree alone, without any name: the numbers of embeddings and norms are exact
    owners = [model.get_submodule(path.rpartition(".")[0]) for path, _ in model.named_parameters(remove_duplicate=False)]
    towers = seen[Component.VISION] + seen[Component.AUDIO]
    if not towers:
        assert seen[Component.EMBEDDING] + seen[Component.POSITION] + sum(
            role == "head" and isinstance(model.get_submodule(path.rpartition(".")[0]), nn.Embedding) for path, role in ends.items()
        ) == sum(isinstance(owner, nn.Embedding) for owner in owners)  # fmt: skip
        assert seen[Component.NORM] == sum(_is_norm(owner) for owner in owners)


def _ends(model: Any) -> dict[str, str]:
    ends = {}
    for which, role in (("output", "head"), ("input", "embedding")):
        module = getattr(model, f"get_{which}_embeddings")()
        for path, other in model.named_modules(remove_duplicate=False):
            if other is module and module is not None:
                ends |= {f"{path}.{leaf}": role for leaf, _ in module.named_parameters(recurse=False)}
    return ends


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _truth(model: nn.Module, path: str, ends: dict[str, str]) -> set[Component]:
    """What the classes of the modules on the path say."""
    if path in ends:
        return {Component(ends[path])}
    steps = path.split(".")[:-1]
    chain = [model.get_submodule(".".join(steps[: at + 1])) for at in range(len(steps))]
    names = [type(module).__name__ for module in chain]
    for pattern, tower in ((r"Vision\w*(?:Model|Tower|Encoder|Transformer)", Component.VISION), (r"Audio\w*Encoder", Component.AUDIO)):
        if any(re.search(pattern, given) for given in names):
            return {tower}
    owner = chain[-1] if chain else model
    if isinstance(owner, nn.Embedding):
        return {Component.EMBEDDING, Component.POSITION}
    if _is_norm(owner):
        return {Component.NORM}
    if any(re.search(r"Experts|Router|TopK|SparseMoe|MoeBlock|M[Oo]E$|Moe$|DbrxFFN", given) for given in names):
        return {Component.EXPERTS}
    for pattern, kind in BY_PATH:
        if pattern.search(path):
            return {kind}
    for given in reversed(names):
        if re.search(r"Attention|Mixer|Mamba|RecurrentBlock|DeltaNet|ShortConv|RgLru|Rglru", given):
            return {Component.ATTENTION}
        if re.search(r"MLP|Mlp|FeedForward|Intermediate|FFN|DenseActDense|DenseGatedActDense", given):
            return {Component.MLP}
        if re.search(r"Head$|LMHead|Predict|Pooler|PredictionHead", given):
            return {Component.HEAD}
    # a plain linear layer of a layer: only its name tells which half it is
    return {Component.ATTENTION, Component.MLP, Component.HEAD} - ({Component.HEAD} if layer(path) is not None else set())


@pytest.mark.parametrize(
    ("name", "expected", "number"),
    [
        # GGUF
        ("token_embd.weight", "embedding", None),
        ("output.weight", "head", None),
        ("output_norm.weight", "norm", None),
        ("rope_freqs.weight", "position", None),
        ("position_embd.weight", "position", None),
        ("token_types.weight", "embedding", None),
        ("blk.31.attn_q.weight", "attention", 31),
        ("blk.3.attn_norm.weight", "norm", 3),
        ("blk.3.attn_q_norm.weight", "norm", 3),
        ("blk.3.ffn_up.weight", "mlp", 3),
        ("blk.3.ffn_norm.weight", "norm", 3),
        ("blk.3.ffn_gate_exps.weight", "experts", 3),
        ("blk.3.ffn_gate_inp.weight", "experts", 3),
        ("blk.3.ffn_down_shexp.weight", "experts", 3),
        ("blk.3.exp_probs_b.bias", "experts", 3),
        ("blk.3.ssm_in.weight", "attention", 3),
        ("blk.3.time_mix_key.weight", "attention", 3),
        ("blk.3.channel_mix_key.weight", "mlp", 3),
        ("v.blk.0.attn_q.weight", "vision", 0),
        ("mm.0.weight", "vision", None),
        ("a.blk.0.ffn_up.weight", "audio", 0),
        # Megatron core and legacy
        ("embedding.word_embeddings.weight", "embedding", None),
        ("language_model.embedding.position_embeddings.weight", "position", None),
        ("decoder.layers.0.self_attention.linear_qkv.weight", "attention", 0),
        ("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", "norm", 0),
        ("decoder.layers.0.mlp.linear_fc1.weight", "mlp", 0),
        ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "norm", 0),
        ("decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight", "experts", 7),
        ("decoder.layers.7.mlp.router.weight", "experts", 7),
        ("output_layer.weight", "head", None),
        ("language_model.encoder.layers.5.mlp.dense_4h_to_h.bias", "mlp", 5),
        # CTranslate2, Flax, ONNX, OpenVINO, the original LLaMA
        ("decoder/layer_3/self_attention/linear_0/weight", "attention", 3),
        ("decoder/layer_3/ffn/layer_norm/gamma", "norm", 3),
        ("decoder/projection/weight", "head", None),
        ("decoder/embeddings/weight", "embedding", None),
        ("transformer.h.11.attn.c_attn.kernel", "attention", 11),
        ("model.layers.4.attn.qkv_proj.MatMul.weight_Q4", "attention", 4),
        ("onnx::MatMul_123", "other", None),
        ("self.model.layers.2.self_attn.q_proj.weight", "attention", 2),
        ("tok_embeddings.weight", "embedding", None),
        ("layers.0.attention.wq.weight", "attention", 0),
        ("layers.0.feed_forward.w1.weight", "mlp", 0),
        ("layers.0.attention_norm.weight", "norm", 0),
        # quantised, adapters, optimizers
        ("model.layers.0.self_attn.q_proj.qweight", "attention", 0),
        ("model.layers.0.mlp.down_proj.weight.quant_state.bitsandbytes__nf4", "mlp", 0),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "experts", 0),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "adapter", 9),
        ("base_model.model.model.embed_tokens.lora_embedding_B", "adapter", None),
        ("optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc1.weight", "optimizer", 0),
        # RWKV, Nemotron-H, Lfm2, and routers that look like gates
        ("rwkv.blocks.2.feed_forward.key.weight", "mlp", 2),
        ("rwkv.blocks.2.attention.key.weight", "attention", 2),
        ("backbone.layers.1.mixer.up_proj.weight", "mlp", 1),
        ("backbone.layers.1.mixer.A_log", "attention", 1),
        ("model.layers.1.conv.in_proj.weight", "attention", 1),
        ("model.layers.1.mlp.gate.weight", "experts", 1),
        ("model.layers.1.mlp.gate_proj.weight", "mlp", 1),
        ("model.layers.1.mlp.shared_expert_gate.weight", "experts", 1),
        ("visual_bert.encoder.layer.0.attention.self.query.weight", "attention", 0),
        ("model.visual.blocks.0.attn.qkv.weight", "vision", 0),
        ("audio_tower.layers.0.self_attn.k_proj.weight", "audio", 0),
        ("", "other", None),
        (".", "other", None),
    ],
)
def test_the_names_of_every_format(name: str, expected: str, number: int | None) -> None:
    assert component(name, "", {}) == expected
    assert layer(name) == number


def test_the_claim_and_the_part_go_before_the_words() -> None:
    assert component("anything", "", {"anything": "head"}) is Component.HEAD
    assert component("model.layers.0.mlp.up_proj.weight", "", {"model.layers.0.mlp.up_proj.weight": "embedding"}) is Component.EMBEDDING
    assert component("model.embed_tokens.weight", "optimizer", {"model.embed_tokens.weight": "embedding"}) is Component.OPTIMIZER
    assert component("model.embed_tokens.weight", "other", {}) is Component.OTHER


def test_a_list_of_layers_has_its_own_name() -> None:
    assert stack("model.layers.12.mlp.experts.3.up_proj.weight") == ("model.layers", 12)
    assert stack("visual.blocks.7.norm1.weight") == ("visual.blocks", 7)
    assert stack("encoder.block.3.layer.1.DenseReluDense.wi.weight") == ("encoder.block", 3)
    assert stack("model.layers.99999999999.x") is None
    assert stack("lm_head.weight") is None


def test_seventy_thousand_names_take_no_time_and_hostile_ones_none_either() -> None:
    names = [f"model.layers.{n}.mlp.experts.{m}.{way}_proj.weight" for n, m, way in product(range(180), range(130), ("up", "down", "gate"))]
    begun = time.process_time()
    assert {component(name, "", {}) for name in names} == {Component.EXPERTS}
    assert time.process_time() - begun < 10  # 0.1 s on the machine that it was written on
    evil = ["_" * 300 + f"norm{chr(97 + n % 26) * (n % 90)}" for n in range(2000)]
    evil += ["_" * 70 + f".{chr(97 + n % 26) * (n % 70)}norm" for n in range(2000)]
    evil += ["a." * (MAX_NAME // 2), "x" * 5_000_000, "\x1b]8;;\n|", "\ud800.attn.w"]
    begun = time.process_time()
    for name in evil:
        component(name, "", {})
        layer(name)
    assert time.process_time() - begun < 10
