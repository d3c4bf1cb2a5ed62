"""This file holds tiny models of the families that scale, cap, bias or share their ends in ways of their own."""

from __future__ import annotations

from typing import Any

import transformers

from tieaudit.live import twins

VOCAB, WIDTH = 64, 32
SIZES = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2}
SEQ2SEQ = {"vocab_size": VOCAB, "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED | {"tie_word_embeddings": True},
    "Gemma": GROUPED | {"head_dim": 8},
    "Gemma2": GROUPED | {"head_dim": 8, "final_logit_softcapping": 0.5, "sliding_window": 8},
    "Cohere": GROUPED,
    "Granite": GROUPED | {"tie_word_embeddings": True, "embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "GPT2": {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 1, "n_head": 4, "n_positions": 64},
    "Mamba": {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 1, "state_size": 4},
    "T5": {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0},
    "Bart": SEQ2SEQ,
    "Whisper": SEQ2SEQ | {"max_source_positions": 10, "max_target_positions": 20},
    "Bert": SIZES,
    "Llava": {"text_config": {"model_type": "llama", **GROUPED}, "tie_word_embeddings": True,
              "vision_config": {"model_type": "clip_vision_model", **VISION}, "image_token_index": 7},
}  # fmt: skip
_HEADS = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM"}
_GENERATING = ("T5", "Bart", "Whisper", "Llava")


def family(name: str, **changes: Any) -> Any:
    """A model of the family with random values, in eval mode."""
    wanted = _HEADS.get(name, f"{name}For{'ConditionalGeneration' if name in _GENERATING else 'CausalLM'}")
    config = getattr(transformers, f"{name}Config")(**(FAMILIES[name] | changes))
    with twins.quiet(), twins.seeded():
        return getattr(transformers, wanted)(config).eval()


def vision(name: str, *, tied: bool) -> Any:
    """A model that sees, whose names on disk are others than in memory."""
    if name == "Qwen2VL":
        scaling = {"type": "mrope", "mrope_section": [1, 1, 2]}
        config: Any = transformers.Qwen2VLConfig(
            text_config={"model_type": "qwen2_vl_text", "rope_scaling": scaling, "tie_word_embeddings": tied, **GROUPED},
            vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
            image_token_id=60, video_token_id=61, vision_start_token_id=62, vision_end_token_id=63, tie_word_embeddings=tied,
        )  # fmt: skip
    else:
        text = {"Llava": "llama", "PaliGemma": "gemma", "Gemma3": "gemma3_text"}[name]
        config = getattr(transformers, f"{name}Config")(
            text_config={"model_type": text, "tie_word_embeddings": tied, **GROUPED, "head_dim": 8},
            vision_config={"model_type": "clip_vision_model" if name == "Llava" else "siglip_vision_model", **VISION},
            tie_word_embeddings=tied,
            image_token_index=60,
            **{"Llava": {}, "PaliGemma": {"projection_dim": 32}, "Gemma3": {"mm_tokens_per_image": 4}}[name],
        )
    with twins.quiet(), twins.seeded():
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)
