"""What a model in memory shares against what the catalog says of its class: tiny models of transformers, under each reading of the flag.

The catalog was observed once; the live check reads objects. Each is the other's witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tieaudit import Report, assert_tied, audit_module
from tieaudit.catalog import lookup, tiny
from tieaudit.catalog.generate import in_children
from tieaudit.checkpoint import Edition, LoadedFile, Storage, TensorRecord
from tieaudit.claim import FLAG, of_edition
from tieaudit.config import Config
from tieaudit.names import StoredNames

Groups = set[frozenset[str]]
ARCHITECTURES = (
    "AlbertForMaskedLM AlbertForPreTraining BartForConditionalGeneration BartModel BertForMaskedLM BertForPreTraining BertModel "
    "BlipForConditionalGeneration BloomForCausalLM CodeGenForCausalLM Cohere2ForCausalLM CohereForCausalLM DebertaForMaskedLM "
    "DebertaV2ForMaskedLM DeepseekV3ForCausalLM DistilBertForMaskedLM ElectraForMaskedLM ElectraForPreTraining FalconForCausalLM "
    "FunnelForMaskedLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoXForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM "
    "Gemma3ForConditionalGeneration GemmaForCausalLM GlmForCausalLM GraniteForCausalLM JambaForCausalLM LEDForConditionalGeneration "
    "LlamaForCausalLM LlavaForConditionalGeneration LongT5ForConditionalGeneration M2M100ForConditionalGeneration "
    "MBartForConditionalGeneration MT5ForConditionalGeneration Mamba2ForCausalLM MambaForCausalLM MarianMTModel MistralForCausalLM "
    "MixtralForCausalLM MobileBertForMaskedLM MptForCausalLM OPTForCausalLM Olmo2ForCausalLM PaliGemmaForConditionalGeneration "
    "PegasusForConditionalGeneration Phi3ForCausalLM PhiForCausalLM Qwen2ForCausalLM Qwen2VLForConditionalGeneration Qwen3ForCausalLM "
    "Qwen3MoeForCausalLM RobertaForMaskedLM RwkvForCausalLM SmolLM3ForCausalLM SpeechT5ForSpeechToText StableLmForCausalLM "
    "T5EncoderModel T5ForConditionalGeneration WhisperForConditionalGeneration XLMRobertaForMaskedLM XLNetLMHeadModel ZambaForCausalLM "
    "Zamba2ForCausalLM"
).split()
# one matrix whatever the flag says, or never one
DEAF = {
    "BertModel", "ElectraForPreTraining", "LongT5ForConditionalGeneration", "MT5ForConditionalGeneration", "T5EncoderModel",
    "T5ForConditionalGeneration",
}  # fmt: skip


def readings(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """As the class has it; and the flag set at the top and in every section."""
    yield "as the class has it", dict(config)
    places = [(FLAG,), *((*path, FLAG) for path in tiny.subconfigs(dict(config)))]
    for flag in (True, False):
        yield f"flag {str(flag).lower()}", tiny.with_values(dict(config), dict.fromkeys(places, flag))


def catalogued(name: str, config: Mapping[str, Any], model: nn.Module) -> Groups:
    """Names in memory that are one matrix by the catalog, under transformers 5."""
    storage = Storage("model", "0", None, 0)
    records = tuple(
        TensorRecord(name, "F32", tuple(parameter.shape), storage, 0, 0)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    known = {record.name for record in records}
    edition = Edition(name="model", format="safetensors", files=(LoadedFile(name="model", format="", nbytes=0, tensors=records),))
    claim = of_edition(edition, Config("config.json", {**config, "architectures": [name]}), StoredNames(records))
    assert claim.architecture == name
    found = set()
    for group in claim.groups:
        names = (group.canonical, *(alias.name for alias in group.aliases if alias.tied))
        here = (next((one for one in (name, *claim.other_names.get(name, ())) if one in known), None) for name in names)
        found.add(frozenset(name for name in here if name))
    return {group for group in found if len(group) > 1}


def held(report: Report) -> Groups:
    return {frozenset((tie.canonical, *tie.aliases)) for tie in report.ties if tie.relation == "same storage"}


def differs(name: str, cls: Any, config: Mapping[str, Any], words: str) -> tuple[str, Groups]:
    """("" or both sides, what the model shares)."""
    model = tiny.build(cls, dict(config))
    report = audit_module(model)
    said, seen = catalogued(name, config, model), held(report)
    lines = [f"{found.rule}: {found.message}" for found in report.findings]
    lines += [f"the catalog alone: {' = '.join(sorted(group))}" for group in said - seen]
    lines += [f"the model alone: {' = '.join(sorted(group))}" for group in seen - said]
    # who asks for them must be known as well: a tie that nobody asks for is lost without a word
    lines += [
        f"{tie.claim} ({tie.claim_source}): {tie.canonical} = {', '.join(tie.aliases)}"
        for tie in report.ties
        if tie.relation == "same storage" and tie.claim != "tied"
    ]
    return "\n".join(f"{name}, {words}: {line}" for line in lines), seen


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_groups_in_memory_are_those_of_the_catalog(name: str) -> None:
    cls = getattr(transformers, name)
    config, _ = tiny.tiny(cls)
    shared: dict[str, Groups] = {}
    wrong = []
    for words, changed in readings(config):
        text, shared[words] = differs(name, cls, changed, words)
        wrong += [text] if text else []
    assert not wrong, "\n".join(wrong)
    assert (shared["flag true"] == shared["flag false"]) is (name in DEAF)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fresh_models_with_values_are_silent(name: str) -> None:
    cls = getattr(transformers, name)
    config, _ = tiny.tiny(cls)
    model = tiny.build(cls, config, "cpu")
    assert audit_module(model, torch.optim.SGD(model.parameters(), lr=0.1)).findings == ()
    assert_tied(model)


@pytest.mark.slow
def test_the_groups_of_every_class_are_those_of_the_catalog() -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    classes = tiny.architectures()
    names = [name for name in lookup.names() if name in classes]

    def judged(name: str) -> dict[str, Any]:
        config, _ = tiny.tiny(classes[name])
        wrong, seen = [], 0
        for words, changed in readings(config):
            try:
                text, _ = differs(name, classes[name], changed, words)
            except (ValueError, TypeError, AttributeError, KeyError):
                continue  # some classes refuse one of the flags
            seen += 1
            wrong += [text] if text else []
        return {"wrong": wrong, "seen": seen}

    judged(ARCHITECTURES[0])  # what is imported late is imported before the children
    found = in_children(names, judged, jobs=2)
    wrong = [text for result in found.values() for text in result.get("wrong", ())]
    assert not wrong, "\n".join(wrong)
    errors = {name: result for name, result in found.items() if not result.get("seen")}
    assert len(names) > 50
    assert len(errors) < len(names) / 10, errors


class MiniMind(nn.Module):
    """Shaped as code that is written by hand after transformers' own: the embedding takes the head's Parameter."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(97, 16)
        self.model.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.lm_head = nn.Linear(16, 97, bias=False)
        if tied:
            self.model.embed_tokens.weight = self.lm_head.weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("tied", [True, False])
def test_code_by_hand(device: str, tied: bool) -> None:
    with torch.device(device):
        model = MiniMind(tied=tied)
    pair = frozenset(("model.embed_tokens.weight", "lm_head.weight"))
    for config in (None, tied):
        report = audit_module(model, config=config)
        assert report.findings == ()
        assert held(report) == ({pair} if tied else set())
        assert {frozenset((tie.canonical, *tie.aliases)) for tie in report.ties} <= {pair}
    contrary = audit_module(model, config=not tied)
    expected = {("cpu", True): "undeclared-tie", ("meta", True): "undeclared-tie"}.get((device, tied), "lost-alias")
    assert [finding.rule for finding in contrary.findings] == [expected]
