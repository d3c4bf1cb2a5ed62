"""This file holds config values for classes whose default config cannot be built; no value here says anything of ties.

A default is unusable where a required value is None, names a file on the Hub, or asks for a library that is not there
(timm needs torchvision). The values go into the default config before it is made small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_BERT: Json = {"model_type": "bert"}
_DECODER: Json = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
_STAGES: Json = {"out_features": ["stage2", "stage3", "stage4"], "out_indices": [2, 3, 4]}
_RESNET: Json = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_kwargs": None,
    "use_pretrained_backbone": False,
    "backbone_config": {"model_type": "resnet", **_STAGES},
}
_ALL: Json = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "out_indices": [1, 2, 3, 4]}
_RESNET_ALL: Json = {**_RESNET, "backbone_config": {"model_type": "resnet", **_ALL}}
_MUSIC: Json = {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"}}

# Classes that have no default at all: what the constructor needs.
REQUIRED: Mapping[str, Json] = {
    "encoder-decoder": {"encoder": _BERT, "decoder": _DECODER},
    "vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": _DECODER},
    "speech-encoder-decoder": {"encoder": {"model_type": "wav2vec2"}, "decoder": _DECODER},
    "vision-text-dual-encoder": {"vision_config": {"model_type": "clip_vision_model"}, "text_config": _BERT},
    "rag": {"question_encoder": {"model_type": "dpr"}, "generator": {"model_type": "bart"}},
    "musicgen": {**_MUSIC, "decoder": {"model_type": "musicgen_decoder"}},
    "musicgen_melody": {**_MUSIC, "decoder": {"model_type": "musicgen_melody_decoder"}},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
            "num_kv_shared_layers": 3,
            "num_hidden_layers": 3,
        }
    },
}

# By model type, at the top or nested: values that replace an unusable default.
VALUES: Mapping[str, Json] = {
    "autoformer": {"prediction_length": 8},
    "informer": {"prediction_length": 8},
    "time_series_transformer": {"prediction_length": 8},
    "bridgetower": {"contrastive_hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "emu3": {"vocabulary_map": {"<image>": 4}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 96},
    "timm_wrapper": {"model_args": {"embed_dim": 64}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 10},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 131, "pad_token_id": 1},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[0, 0], [1, 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "ministral": {"head_dim": 16},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron": {"num_key_value_heads": 4},
    "wav2vec2-bert": {"vocab_size": 131},
    "conditional_detr": _RESNET_ALL,
    "dab-detr": _RESNET_ALL,
    "detr": _RESNET_ALL,
    "table-transformer": _RESNET_ALL,
    "deformable_detr": _RESNET,
    "omdet-turbo": {**_RESNET, "backbone_config": {"model_type": "swin", **_STAGES}},
}

# The same for transformers 4 alone.
_MROPE: Json = {"rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2], "mrope_interleaved": True}}
VALUES_4: Mapping[str, Json] = {
    "granitemoehybrid": {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"]},
    "mllama_text_model": {"rope_scaling": {"rope_type": "default"}},
    "qwen3_omni_moe_talker_text": _MROPE,
    "qwen3_omni_moe_text": _MROPE,
    "qwen3_vl_moe_text": _MROPE,
    "qwen3_vl_text": _MROPE,
}

# By class: a config value on which the class insists, or one that its config class forgets.
OF_CLASS: Mapping[str, Json] = {
    "BridgeTowerForContrastiveLearning": {"logit_scale_init_value": 2.6592},
    "Pix2StructTextModel": {"initializer_range": 0.02},
    "Qwen3OmniMoeForConditionalGeneration": {"talker_config": {"spatial_merge_size": 2}},
    "Qwen3OmniMoeTalkerForConditionalGeneration": {"spatial_merge_size": 2},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 131},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "HieraForPreTraining": {"decoder_hidden_size": 64, "decoder_depth": 2, "decoder_num_heads": 4},
    "ViltForImagesAndTextClassification": {"num_images": 2, "modality_type_vocab_size": 3},
}
