"""What a config claims: who decides, and what is said about it. transformers is asked where it can tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from builders import matrix, safetensors
from memory_source import MemorySource
from tieaudit.catalog import lookup
from tieaudit.checkpoint import Edition
from tieaudit.claim import Claim, of_edition
from tieaudit.config import Config
from tieaudit.loaders.safetensors import load as load_safetensors
from tieaudit.names import StoredNames

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 8}


def claim(config: dict[str, Any] | None, names: tuple[str, ...] = (EMBED, HEAD)) -> Claim:
    file = load_safetensors(MemorySource("model.safetensors", safetensors({name: matrix(number) for number, name in enumerate(names)})))
    edition = Edition(name="model.safetensors", format="safetensors", files=(file,))
    return of_edition(edition, Config("config.json", config) if config is not None else None, StoredNames(file.tensors))


def readings(config: dict[str, Any], names: tuple[str, ...] = (EMBED, HEAD)) -> tuple[bool | None, bool | None, str]:
    (group,) = claim(config, names).groups
    (alias,) = group.aliases
    return alias.tied, alias.tied_v4, group.source


def test_an_explicit_flag_is_named_with_its_value() -> None:
    assert readings({**LLAMA, "tie_word_embeddings": True}) == (True, True, "tied: tie_word_embeddings is true in config.json")
    assert readings({**LLAMA, "tie_word_embeddings": False}) == (False, False, "untied: tie_word_embeddings is false in config.json")


def test_an_absent_key_is_decided_by_the_class() -> None:
    tied, tied_v4, source = readings(LLAMA)
    assert (tied, tied_v4) == (False, False)
    assert source == "untied by class default (llama: config.json has no tie_word_embeddings)"
    tied, tied_v4, source = readings({**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"})
    assert (tied, tied_v4) == (True, True)
    assert source == "tied by class default (gemma2: config.json has no tie_word_embeddings)"


def test_a_nested_flag_is_read_otherwise_by_transformers_4() -> None:
    nested = {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "gemma", "tie_word_embeddings": True},
    }
    names = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
    assert readings(nested, names)[:2] == (False, True)


def test_a_flat_config_of_a_nested_class_has_no_reading_of_transformers_4() -> None:
    """Qwen2-VL as first released: all keys at the top. The tables were observed with the nested section there."""
    flat = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "tie_word_embeddings": True}
    assert readings(flat)[:2] == (True, None)


@pytest.mark.parametrize("value", [None, "true", 1, 0.0, []])
def test_a_flag_that_is_no_boolean_is_refused_by_transformers_5_and_told(value: Any) -> None:
    config = {**LLAMA, "tie_word_embeddings": value}
    with pytest.raises(Exception, match="tie_word_embeddings"):
        transformers.LlamaConfig.from_dict(dict(config))
    assert [key for key, _ in claim(config).bad_flags] == ["tie_word_embeddings"]


def test_remote_code_is_judged_by_names_and_shapes_and_it_is_said() -> None:
    config = {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": {"AutoModel": "own.Own"}, "tie_word_embeddings": True}
    tied, _, source = readings(config)
    assert tied is True
    assert "names and shapes (OwnForCausalLM is remote code)" in source


def test_without_a_config_nothing_is_claimed() -> None:
    (group,) = claim(None).groups
    assert [alias.tied for alias in group.aliases] == [None]
    assert group.source == "unknown: judged by names and shapes (no config.json)"


def test_names_of_the_original_releases_are_a_pair() -> None:
    (group,) = claim({"dim": 8, "n_layers": 1}, ("tok_embeddings.weight", "output.weight")).groups
    assert group.names == ("tok_embeddings.weight", "output.weight")


def test_a_drafter_has_no_ends_to_miss() -> None:
    found = claim(LLAMA, ("fc.weight", "layers.0.self_attn.q_proj.weight"))
    assert found.groups == ()
    assert "drafter" in found.basis


def test_a_class_that_only_model_type_names_is_not_held_to_its_absences() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert not claim(config, (EMBED,)).exact
    assert claim(LLAMA, (EMBED,)).exact


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("MarianMTModel", "share_encoder_decoder_embeddings"),
        ("CsmForConditionalGeneration", "tie_codebooks_embeddings"),
        ("Lfm2ForCausalLM", "tie_embedding"),
    ],
)
def test_other_keys_that_decide_are_in_the_catalog(name: str, key: str) -> None:
    architecture = lookup.find(name)
    assert architecture is not None
    assert key in architecture.keys


def test_t5_ties_whatever_the_flag_says_and_transformers_agrees() -> None:
    architecture = lookup.find("T5ForConditionalGeneration")
    assert architecture is not None
    assert {tie.v5 for tie in architecture.ties} == {"1"}
    config = transformers.T5Config(
        vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_decoder_layers=1, num_heads=2, tie_word_embeddings=False
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    assert model.lm_head.weight is model.shared.weight


def test_the_catalog_does_not_know_what_is_no_class() -> None:
    for name in ("", "@qwen2", "#", "NoSuchModel", "Llama\nForCausalLM", "\t"):
        assert lookup.find(name) is None
