"""What a config alone says of a model: names, shapes and ties, exactly those of transformers on the meta device."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tieaudit import TargetError, blueprint
from tieaudit.catalog import tiny
from tieaudit.components import component
from tieaudit.families import FAMILIES
from tieaudit.family_defaults import DEFAULTS
from tieaudit.footprint import Setup
from tieaudit.shapes import family_of, shapes
from tieaudit.size import Size, measure

# as they are published
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
QWEN3: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "vocab_size": 151936}
NAMED: dict[str, tuple[dict[str, Any], int, dict[str, float]]] = {
    "GPT-2 small": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
         "n_positions": 1024, "vocab_size": 50257},
        124_439_808, {"embedding": 31.02, "position": 0.63}),
    "Llama-7B": (LLAMA | {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
                          "torch_dtype": "float16", "vocab_size": 32000}, 6_738_415_616, {"embedding": 1.95, "head": 1.95}),
    "LLaMA-65B": (LLAMA | {"hidden_size": 8192, "intermediate_size": 22016, "num_attention_heads": 64, "num_hidden_layers": 80,
                           "torch_dtype": "float16", "vocab_size": 32000}, 65_285_660_672, {"embedding": 0.40, "head": 0.40}),
    "Llama-3-8B": (LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
                            "num_key_value_heads": 8, "torch_dtype": "bfloat16", "vocab_size": 128256},
                   8_030_261_248, {"embedding": 6.54, "head": 6.54}),
    "Gemma-2-2B": (
        {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216,
         "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "torch_dtype": "float32", "vocab_size": 256000},
        2_614_341_888, {"embedding": 22.56}),
    "Qwen3-0.6B": (QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28,
                            "num_key_value_heads": 8, "tie_word_embeddings": True}, 596_049_920, {"embedding": 26.10}),
    "Qwen3-8B": (QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_hidden_layers": 36,
                          "num_key_value_heads": 8, "tie_word_embeddings": False}, 8_190_735_360, {"embedding": 7.60, "head": 7.60}),
}  # fmt: skip
SECOND_MINIMIND: dict[str, Any] = {
    "architectures": ["MiniMindForCausalLM"], "model_type": "minimind", "hidden_size": 512, "num_attention_heads": 8,
    "num_hidden_layers": 8, "num_key_value_heads": 2, "vocab_size": 6400,
}  # fmt: skip
# switches of a family that are functions in the table
MORE = {
    "gpt_bigcode": ("multi_query",), "falcon": ("new_decoder_architecture", "multi_query", "parallel_attn", "alibi", "bias"),
    "opt": ("layer_norm_elementwise_affine", "do_layer_norm_before", "_remove_final_layer_norm", "enable_bias"),
    "stablelm": ("use_parallel_residual", "use_qkv_bias"), "gpt_neox": ("use_parallel_residual",),
}  # fmt: skip
COMMON = ("tie_word_embeddings", "attention_bias", "attention_out_bias", "mlp_bias", "use_bias", "use_qk_norm", "qk_layernorm")
SET: tuple[tuple[str, Any], ...] = (("num_key_value_heads", 1), ("head_dim", 24), ("n_inner", 100), ("word_embed_proj_dim", 32),
                                    ("ffn_hidden_size", 80), ("num_kv_heads", 2))  # fmt: skip
LAID_OUT = sorted(name for name, family in FAMILIES.items() if not callable(family))


def sized(config: Mapping[str, Any], tmp_path: Path, **options: Any) -> Size:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    report, note = blueprint.read(path, **options)
    return measure(report, Setup(), note=note, source="config")


def built(config: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], int, bool]:
    """(shapes of transformers' own parameters, elements counted once, whether embedding and head are one Parameter)."""
    model = tiny.build(getattr(transformers, config["architectures"][0]), dict(config))
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    one = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return found, sum(parameter.numel() for parameter in model.parameters()), one


@pytest.mark.parametrize("name", NAMED)
def test_real_models_are_counted_exactly(tmp_path: Path, name: str) -> None:
    config, parameters, shares = NAMED[name]
    names, elements, one = built(config)
    size = sized(config, tmp_path)
    assert shapes(family_of(config, ""), config, "") == names
    assert size.parameters_unique == size.parameters_stored == elements == parameters
    # by component, against the parameters of the model
    head = {"lm_head.weight"} if one else set()
    ends = {end.name: end.role for end in size.ends if end.role in ("embedding", "head")}
    expected: dict[str, int] = {}
    for path, shape in names.items():
        if path not in head:
            kind = component(path, "", ends).value
            expected[kind] = expected.get(kind, 0) + math.prod(shape)
    assert {part.name: part.elements for part in size.components} == expected
    assert sum(expected.values()) == elements
    told = {
        part.name: round(100 * part.stored / size.stored, 2) for part in size.components if part.name in ("embedding", "head", "position")
    }
    assert told == shares
    assert [end.role for end in size.ends] == (["embedding and head"] if one else ["embedding", "head"])
    assert {round(100 * end.share, 2) for end in size.ends} == {shares["embedding"]}
    assert size.second is not None
    assert size.second.tied is one


def configs_of(name: str) -> Iterator[dict[str, Any]]:
    """Small configs of a family: as the class has it, every switch turned, sizes that are set, keys that are absent."""
    architecture = FAMILIES[name].architecture  # type: ignore[union-attr]
    cls = getattr(transformers, architecture)
    small = tiny.shrink(tiny.default_config(cls)) | {"model_type": name, "architectures": [architecture]}
    yield small
    for key in (*COMMON, *MORE.get(name, ())):
        if key in small:
            yield {**small, key: not small[key]}
    for key, value in SET:
        if key in small or key == "head_dim":
            yield {**small, key: value}
    for key in ("num_key_value_heads", "head_dim", "n_inner", "intermediate_size"):
        if key in small:
            yield {other: value for other, value in small.items() if other != key}
    if name == "falcon":
        yield {**small, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2}


def test_every_family_is_laid_out_as_transformers_builds_it(tmp_path: Path) -> None:
    compared, refused = 0, []
    for name in LAID_OUT:
        first = compared
        for config in configs_of(name):
            try:
                names, elements, one = built(config)
            except Exception:  # noqa: BLE001, S112  some classes refuse some of these values
                continue
            try:
                size = sized(config, tmp_path)
            except TargetError as error:
                refused.append((name, error.what))
                continue
            changed = {key: value for key, value in config.items() if key in ("head_dim", "num_key_value_heads", *COMMON)}
            assert shapes(family_of(config, ""), config, "") == names, (name, changed)
            assert (size.parameters_unique, size.second and size.second.tied) == (elements, one), (name, changed)
            compared += 1
        assert compared - first >= 3, name
    assert compared >= 230
    assert refused == [("stablelm", "qk_layernorm changes the layout of stablelm in a way that is not laid out here")]


@pytest.mark.parametrize("name", LAID_OUT)
def test_absent_keys_are_those_of_the_class(name: str) -> None:
    """The defaults in the table, and that no key is missing there."""
    family = family_of({"model_type": name}, "")
    config_class = getattr(transformers, family.architecture).config_class
    keys = {key for keys in family.keys.values() for key in keys.split("|") if hasattr(config_class, key)} | set(DEFAULTS[name])
    for row in (*family.modules, *family.rows):
        keys |= {switch for switch in (row.bias, row.when) if isinstance(switch, str)}
    for key in keys:
        spelling = next((keys.split("|")[0] for keys in family.keys.values() if key in keys.split("|") and name != "bloom"), key)
        assert (getattr(config_class, key, None) or None) == (family.defaults.get(spelling) or None), key
    assert config_class.model_type == name


class Block(nn.Module):
    """A layer of MiniMind, by its published code."""

    def __init__(self, hidden: int, heads: int, kv: int, ffn: int, head: int, *, normed: bool) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        for name, out, width in (
            ("q", heads * head, hidden),
            ("k", kv * head, hidden),
            ("v", kv * head, hidden),
            ("o", hidden, heads * head),
        ):
            self.self_attn.add_module(f"{name}_proj", nn.Linear(width, out, bias=False))
        if normed:
            self.self_attn.q_norm, self.self_attn.k_norm = nn.RMSNorm(head), nn.RMSNorm(head)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.mlp = nn.Module()
        for name, out, width in (("gate", ffn, hidden), ("down", hidden, ffn), ("up", ffn, hidden)):
            self.mlp.add_module(f"{name}_proj", nn.Linear(width, out, bias=False))


class MiniMind(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, kv: int, ffn: int, *, normed: bool, tied: bool = True) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(6400, hidden)
        self.model.layers = nn.ModuleList([Block(hidden, heads, kv, ffn, hidden // heads, normed=normed) for _ in range(layers)])
        self.model.norm = nn.RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, 6400, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("config", "arguments", "parameters"),
    [
        # the 26M of the second release: 64 * ceil(8/3 * 512 / 64) = 1,408, written into the config or not
        (SECOND_MINIMIND, {"layers": 8, "hidden": 512, "heads": 8, "kv": 2, "ffn": 1408, "normed": False}, 25_829_888),
        (SECOND_MINIMIND | {"intermediate_size": 1408},
         {"layers": 8, "hidden": 512, "heads": 8, "kv": 2, "ffn": 1408, "normed": False}, 25_829_888),
        # the 104M of the second release
        (SECOND_MINIMIND | {"hidden_size": 768, "num_hidden_layers": 16},
         {"layers": 16, "hidden": 768, "heads": 8, "kv": 2, "ffn": 2048, "normed": False}, 104_030_976),
        # the third: 64 * ceil(pi * 768 / 64) = 2,432, queries and keys are normed
        (SECOND_MINIMIND | {"hidden_size": 768, "num_key_value_heads": 4, "head_dim": 96, "tie_word_embeddings": True},
         {"layers": 8, "hidden": 768, "heads": 8, "kv": 4, "ffn": 2432, "normed": True}, 63_912_192),
        (SECOND_MINIMIND | {"hidden_size": 768, "num_key_value_heads": 4, "head_dim": 96, "tie_word_embeddings": False},
         {"layers": 8, "hidden": 768, "heads": 8, "kv": 4, "ffn": 2432, "normed": True, "tied": False}, 68_827_392),
    ],
)  # fmt: skip
def test_minimind_is_counted_by_its_published_layout(
    tmp_path: Path, config: dict[str, Any], arguments: dict[str, Any], parameters: int
) -> None:
    with torch.device("meta"):
        model = MiniMind(**arguments)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    assert shapes(family_of(config, ""), config, "") == expected
    size = sized(config, tmp_path)
    assert size.parameters_unique == sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert size.second is not None
    assert size.second.tied is arguments.get("tied", True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no model_type"),
        ({"model_type": "bert"}, "model_type bert is not laid out here"),
        ({"model_type": ["llama"]}, "is not laid out here"),
        (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention changes the layout"),
        (SECOND_MINIMIND | {"use_moe": True}, "use_moe changes the layout"),
        (LLAMA | {"vocab_size": "32000"}, "vocab_size is 32000"),
        (LLAMA | {"hidden_size": True}, "hidden_size is True"),
        (LLAMA | {"hidden_size": -4096}, "hidden_size is -4096"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        (LLAMA | {"intermediate_size": 1 << 70}, "intermediate_size is"),
        (LLAMA | {"intermediate_size": None}, "intermediate_size is missing"),
        (LLAMA | {"num_attention_heads": {}}, "num_attention_heads is {}"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_no_guess(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(TargetError, match=words.replace("{", r"\{")):
        sized(config, tmp_path)


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "T5ForConditionalGeneration", "MixtralForCausalLM", "Qwen2VLForConditionalGeneration", "LlamaModel"]
)
def test_meta_builds_any_class_of_transformers(tmp_path: Path, name: str) -> None:
    cls = getattr(transformers, name)
    config, model = tiny.tiny(cls)
    size = sized(config | {"architectures": [name], "model_type": cls.config_class.model_type}, tmp_path, meta=True)
    assert size.parameters_unique == sum(parameter.numel() for parameter in model.parameters())
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    one = head is not None and head.weight is embedding.weight
    assert (size.second.tied if size.second else None) == (one if head is not None else None)
    assert [end.role for end in size.ends] == (
        ["embedding and head"] if one else ["embedding", "head"] if head is not None else ["embedding"]
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama", "architectures": ["os"]}, "is no class of transformers"),
        ({"model_type": "llama", "architectures": ["AutoModel"]}, "is no class of transformers"),
        (SECOND_MINIMIND | {"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "no class of transformers"),
        (LLAMA | {"num_hidden_layers": 10**7}, "num_hidden_layers is 10,000,000"),
        (LLAMA | {"hidden_size": "a lot"}, "cannot build it"),
    ],
)  # fmt: skip
def test_meta_runs_no_other_code(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(TargetError, match=words):
        sized(config, tmp_path, meta=True)
