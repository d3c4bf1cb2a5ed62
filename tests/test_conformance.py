"""A sample of the conformance run (`python tests/conformance.py` runs all architectures)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import conformance

SAMPLE = (
    "AlbertForMaskedLM",
    "BarkFineModel",
    "BartForConditionalGeneration",
    "BertForPreTraining",
    "CsmForConditionalGeneration",
    "DFineForObjectDetection",
    "DiffusionGemmaForBlockDiffusion",
    "EncoderDecoderModel",
    "FSMTForConditionalGeneration",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Lfm2ForCausalLM",
    "LlamaForCausalLM",
    "LlavaForConditionalGeneration",
    "LukeForMaskedLM",
    "MambaForCausalLM",
    "MarianMTModel",
    "Mistral3ForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "OpenAIGPTDoubleHeadsModel",
    "Qwen2ForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "SamModel",
    "T5ForConditionalGeneration",
    "ViTModel",
    "WhisperForConditionalGeneration",
)


def test_sample_of_architectures_conforms() -> None:
    outcomes = conformance.run(SAMPLE)
    text, failed = conformance.summary(outcomes)
    assert failed == 0, text
    assert not any(outcome.not_built for outcome in outcomes.values()), text
    checks = {check for outcome in outcomes.values() for check, _, _ in outcome.checks}
    assert {"duplicate-tie", "diverged-tie", "missing-head", "no tie, no head: silent"} <= checks
