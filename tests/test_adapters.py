"""Adapters that PEFT itself wrote, on a tied and on an untied base: what the rules say, and whether torch says the same.

The truth of each claim: after a merge the two ends are (or are not) one Parameter, the logits are (or are not) those of the unmerged model,
and a file without the tensors that a finding calls wasted loads to the same logits.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tieaudit import Report, audit

# PEFT says what these tests are about; transformers warns of a name that PEFT still uses
QUIET = [
    "ignore:Model has `tie_word_embeddings=True`:UserWarning",
    "ignore:Model with `tie_word_embeddings=True`:UserWarning",
    "ignore:Input and output embeddings are no longer tied:UserWarning",
    "ignore:Setting `save_embedding_layers`:UserWarning",
    "ignore:You have requested `ensure_weight_tying`:UserWarning",
    "ignore:`is_gradient_checkpointing` is deprecated",
]
pytestmark = [pytest.mark.filterwarnings(line) for line in QUIET]
PREFIX = "base_model.model."
EMBED, HEAD = "model.embed_tokens", "lm_head"
MATRIX = 64 * 16 * 4  # bytes of an end of these models, 64 tokens wide 16
RESIZED = 70
TOKENS = torch.arange(10).reshape(1, -1)

Found = list[tuple[str, str, int]]
SPLIT = ("adapter-splits-tie", "warning", 0)
SHARED = ("adapter-targets-tied", "warning", 0)
TWICE = ("adapter-base-copy", "note", 0)
OTHER_ROWS = ("adapter-row-mismatch", "note", 0)


def copy_of_base(nbytes: int) -> tuple[str, str, int]:
    return ("adapter-base-copy", "warning", nbytes)


COPIED = [copy_of_base(MATRIX), SHARED]

# what PEFT is asked for → what is found if the base is tied, and if it is not
KINDS: dict[str, tuple[dict[str, Any], Found, Found]] = {
    "elsewhere": ({"target_modules": ["q_proj"]}, [], []),
    "all linear layers": ({"target_modules": "all-linear"}, [], []),
    "save head": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, [SPLIT], []),
    "save embedding": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, [SPLIT], []),
    "save both": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}, [SPLIT], []),
    "save head, tied": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "ensure_weight_tying": True}, [TWICE], []),
    "save embedding, tied": (
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        [TWICE],
        [],
    ),
    "save both, tied": (
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
        [TWICE],
        [],
    ),
    "target embedding": ({"target_modules": ["q_proj", "embed_tokens"]}, COPIED, [copy_of_base(MATRIX)]),
    "target head": ({"target_modules": ["q_proj", "lm_head"]}, COPIED, [copy_of_base(MATRIX)]),
    "target both": ({"target_modules": ["embed_tokens", "lm_head"]}, [copy_of_base(2 * MATRIX), SHARED], [copy_of_base(2 * MATRIX)]),
    "target embedding, tied": (
        {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
        [copy_of_base(2 * MATRIX), SHARED],
        [copy_of_base(MATRIX)],
    ),
    "target head, tied": (
        {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True},
        [SHARED],  # PEFT does not find the embedding that it lays the head's delta on among its own names
        [copy_of_base(MATRIX)],
    ),
    "new tokens": ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 2, 3]}, [], []),
    "new tokens of both": ({"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 2], "lm_head": [1, 2]}}, [], []),
    "new tokens of the head": ({"target_modules": ["q_proj"], "trainable_token_indices": {"lm_head": [1, 5]}}, [SHARED], []),
    "other tokens of either": (
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 2], "lm_head": [3, 4]}},
        [SHARED],
        [],
    ),
    "ranks": ({"target_modules": ["q_proj", "lm_head"], "rank_pattern": {"lm_head": 3}}, COPIED, [copy_of_base(MATRIX)]),
    "dora head": ({"target_modules": ["lm_head"], "use_dora": True}, COPIED, [copy_of_base(MATRIX)]),
    "dora embedding": ({"target_modules": ["embed_tokens"], "use_dora": True}, COPIED, [copy_of_base(MATRIX)]),
    "ia3": ({"_method": "IA3Config", "target_modules": ["q_proj", "lm_head"], "feedforward_modules": []}, COPIED, [copy_of_base(MATRIX)]),
    "loha": ({"_method": "LoHaConfig", "r": 2, "target_modules": ["lm_head"]}, COPIED, [copy_of_base(MATRIX)]),
    "lokr": ({"_method": "LoKrConfig", "r": 2, "target_modules": ["lm_head"]}, COPIED, [copy_of_base(MATRIX)]),
    "oft": ({"_method": "OFTConfig", "oft_block_size": 4, "target_modules": ["lm_head"]}, COPIED, [copy_of_base(MATRIX)]),
    "vera": ({"_method": "VeraConfig", "r": 2, "target_modules": ["lm_head"]}, COPIED, [copy_of_base(MATRIX)]),
    "save the ends": ({"target_modules": ["q_proj"], "_save": True}, [copy_of_base(2 * MATRIX)], [copy_of_base(2 * MATRIX)]),
    "resized": ({"target_modules": ["q_proj"], "_rows": RESIZED}, [copy_of_base(RESIZED * 64), OTHER_ROWS], [OTHER_ROWS]),
    "resized, save head": (
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "_rows": RESIZED},
        [copy_of_base(RESIZED * 64), copy_of_base(RESIZED * 64), SPLIT, OTHER_ROWS],
        [copy_of_base(RESIZED * 64), OTHER_ROWS],
    ),
}
BOTH = [(name, tied) for name in KINDS for tied in (True, False)]


@dataclass(frozen=True)
class Workshop:
    """Where the bases and the adapters are."""

    root: Path

    def base(self, *, tied: bool) -> Path:
        return self.root / ("tied" if tied else "untied") / "base"

    def adapter(self, name: str, *, tied: bool) -> Path:
        return self.base(tied=tied).parent / name

    def model(self, name: str, *, tied: bool) -> torch.nn.Module:
        """The base, resized if the adapter needs it; the new rows are always the same."""
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(self.base(tied=tied))
        torch.manual_seed(5)
        if "_rows" in KINDS[name][0]:
            model.resize_token_embeddings(KINDS[name][0]["_rows"])
        return model

    def loaded(self, name: str, path: Path, *, tied: bool) -> Any:
        from peft import PeftModel

        return PeftModel.from_pretrained(self.model(name, tied=tied), path).eval()


def write(shop: Workshop, name: str, *, tied: bool) -> None:
    """An adapter as if trained: every trained number is moved."""
    import peft

    keys = {key: value for key, value in KINDS[name][0].items() if key[0] != "_"}
    method = KINDS[name][0].get("_method", "LoraConfig")
    if method == "LoraConfig":
        keys["r"] = 2
    model = peft.get_peft_model(shop.model(name, tied=tied), getattr(peft, method)(task_type="CAUSAL_LM", **keys))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    options = {"save_embedding_layers": True} if "_save" in KINDS[name][0] else {}
    model.save_pretrained(shop.adapter(name, tied=tied), **options)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchao and bitsandbytes, when peft is first imported
        import peft  # noqa: F401
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = Workshop(tmp_path_factory.mktemp("adapters"))
    for tied in (True, False):
        torch.manual_seed(tied)
        sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
        config = transformers.LlamaConfig(**sizes, **heads, initializer_range=0.3, tie_word_embeddings=tied)
        transformers.LlamaForCausalLM(config).save_pretrained(made.base(tied=tied))
    yield made
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_progress_bar()


@pytest.fixture
def adapter(shop: Workshop) -> Callable[..., Path]:
    """The adapter of a kind, written when it is first asked for."""

    def made(name: str, *, tied: bool) -> Path:
        path = shop.adapter(name, tied=tied)
        if not path.exists():
            write(shop, name, tied=tied)
        return path

    return made


def found(report: Report) -> Found:
    return [(finding.rule, finding.severity.value, finding.wasted_bytes) for finding in report.findings]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def far(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Not the rounding of a merge, which stays below 1e-5 here."""
    return bool((one - two).abs().max() > 1e-3)


@pytest.mark.parametrize(("name", "tied"), BOTH)
def test_each_kind_of_adapter_gets_its_findings(shop: Workshop, adapter: Callable[..., Path], name: str, tied: bool) -> None:
    report = audit(adapter(name, tied=tied))
    assert found(report) == KINDS[name][1 if tied else 2]
    assert not report.skipped
    assert [(tie.canonical, tie.aliases, tie.claim) for tie in report.ties] == [
        (EMBED + ".weight", (HEAD + ".weight",), "tied" if tied else "untied")
    ]
    assert report.totals.nbytes_wasted == sum(nbytes for _, _, nbytes in found(report))


@pytest.mark.parametrize(("name", "tied"), BOTH)
def test_torch_sees_after_a_merge_what_was_said(shop: Workshop, adapter: Callable[..., Path], name: str, tied: bool) -> None:
    rules = {finding.rule for finding in audit(adapter(name, tied=tied)).findings}
    model = shop.loaded(name, adapter(name, tied=tied), tied=tied)
    before = logits(model)
    merged = model.merge_and_unload()
    one = merged.get_output_embeddings().weight is merged.get_input_embeddings().weight
    assert one is (tied and "adapter-splits-tie" not in rules)
    assert far(before, logits(merged)) is ("adapter-targets-tied" in rules)
    assert merged.config.tie_word_embeddings is one


WASTING = [(name, tied) for name, tied in BOTH if any(nbytes for _, _, nbytes in KINDS[name][1 if tied else 2])]


@pytest.mark.parametrize(("name", "tied"), WASTING)
def test_what_is_called_wasted_can_be_left_out(shop: Workshop, adapter: Callable[..., Path], tmp_path: Path, name: str, tied: bool) -> None:
    path = adapter(name, tied=tied)
    before = logits(shop.loaded(name, path, tied=tied))
    wasting = [finding for finding in audit(path).findings if finding.wasted_bytes]
    assert wasting
    for finding in wasting:
        # the tensor that is kept stands first where there is one
        spare = {place.name for place in finding.tensors[-(finding.wasted_bytes // finding.tensors[0].nbytes) :]}
        slim = without(path, tmp_path / str(len(spare)), spare)
        assert torch.equal(logits(shop.loaded(name, slim, tied=tied)), before)
        assert [other for other in audit(slim).findings if other.tensors == finding.tensors] == []


def without(path: Path, copy: Path, names: set[str]) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    weights = copy / "adapter_model.safetensors"
    tensors = load_file(weights)
    assert names < set(tensors)
    save_file({name: tensor for name, tensor in tensors.items() if name not in names}, weights, metadata={"format": "pt"})
    return copy


def test_what_peft_asks_for_is_not_called_wasted(shop: Workshop, adapter: Callable[..., Path], tmp_path: Path) -> None:
    name = "save head, tied"
    [finding] = audit(adapter(name, tied=True)).findings
    repeated = finding.tensors[-1].name
    assert repeated == PREFIX + "lm_head.weight"
    assert finding.fix is None
    with pytest.raises(KeyError, match=r"lm_head\.weight"):
        shop.loaded(name, without(adapter(name, tied=True), tmp_path / "slim", {repeated}), tied=True)


def fresh(shop: Workshop, path: Path, **keys: Any) -> Path:
    """An adapter before its first step: LoRA's B is zero, saved modules are the base's."""
    import peft

    model = shop.model("elsewhere", tied=False)
    peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, **keys)).save_pretrained(path)
    return path


def test_a_fresh_adapter_has_zeros_and_that_is_no_fault(shop: Workshop, tmp_path: Path) -> None:
    path = fresh(shop, tmp_path / "fresh", target_modules=["q_proj", "v_proj"])
    assert not load_file(path / "adapter_model.safetensors")[PREFIX + "model.layers.0.self_attn.q_proj.lora_B.weight"].any()
    report = audit(path)
    assert (report.verdict, report.findings) == ("ok", ())


def test_a_saved_module_that_learned_nothing_goes_with_its_entry(shop: Workshop, tmp_path: Path) -> None:
    path = fresh(shop, tmp_path / "fresh", target_modules=["q_proj"], modules_to_save=["lm_head"])
    [finding] = audit(path).findings
    assert (finding.rule, finding.wasted_bytes, finding.evidence) == ("adapter-base-copy", MATRIX, "proved")
    assert "modules_to_save" in (finding.fix or "")
    slim = without(path, tmp_path / "slim", {place.name for place in finding.tensors})
    config = json.loads((slim / "adapter_config.json").read_text())
    (slim / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": None}))
    loaded = partial(shop.loaded, "elsewhere", tied=False)
    assert torch.equal(logits(loaded(path)), logits(loaded(slim)))


@pytest.mark.parametrize("name", ["target head", "target embedding", "target both", "dora head", "loha"])
def test_the_advice_to_untie_first_merges_exactly(shop: Workshop, adapter: Callable[..., Path], name: str) -> None:
    from peft import PeftModel

    [finding] = [finding for finding in audit(adapter(name, tied=True)).findings if finding.rule == "adapter-targets-tied"]
    assert "matrix of its own first" in (finding.fix or "")
    before = logits(shop.loaded(name, adapter(name, tied=True), tied=True))
    base: Any = shop.model(name, tied=True)
    base.config.tie_word_embeddings = False
    base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
    model = PeftModel.from_pretrained(base, adapter(name, tied=True)).eval()
    assert not far(before, logits(model.merge_and_unload()))


@pytest.mark.parametrize("name", ["target embedding, tied", "target head, tied"])
def test_a_tied_delta_is_merged_twice(shop: Workshop, adapter: Callable[..., Path], name: str) -> None:
    [finding] = [finding for finding in audit(adapter(name, tied=True)).findings if finding.rule == "adapter-targets-tied"]
    assert "adds the change twice" in finding.message
    tensors = load_file(adapter(name, tied=True) / "adapter_model.safetensors")
    head = next(key for key in tensors if key.endswith("lm_head.lora_B.weight"))
    delta = tensors[head] @ tensors[head.replace("lora_B", "lora_A")] * 4  # alpha 8, r 2
    base = shop.model(name, tied=True).get_input_embeddings().weight
    merged = shop.loaded(name, adapter(name, tied=True), tied=True).merge_and_unload().get_input_embeddings().weight
    assert torch.allclose(merged - base, 2 * delta, atol=1e-5)


# without the base: what the adapter shows alone, and notes where all hangs on the base
WITHOUT = {
    "elsewhere": ([], []),
    "save head": ([("adapter-splits-tie", "note", 0)],) * 2,
    "save both": ([("adapter-splits-tie", "note", 0)],) * 2,
    "save head, tied": ([TWICE], []),
    "target head": ([("adapter-base-copy", "note", 0), ("adapter-targets-tied", "note", 0)],) * 2,
    "target both": (
        [copy_of_base(MATRIX), SHARED],
        [("adapter-base-copy", "note", 0), ("adapter-targets-tied", "note", 0)],
    ),
    "target head, tied": ([SHARED], [("adapter-base-copy", "note", 0), ("adapter-targets-tied", "note", 0)]),
    "new tokens": ([], []),
    "save the ends": ([copy_of_base(MATRIX)], []),
    "resized": ([copy_of_base(RESIZED * 64)], []),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", WITHOUT)
def test_without_the_base_what_hangs_on_it_is_a_note(
    adapter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, tied: bool
) -> None:
    from tieaudit.sources import target

    def refuse(*words: object) -> object:
        raise AssertionError(words)

    monkeypatch.setattr(target, "_hub", refuse)
    path = shutil.copytree(adapter(name, tied=tied), tmp_path / "alone")
    named = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**named, "base_model_name_or_path": "org/model"}))
    report = audit(path)
    assert sorted(found(report)) == sorted(WITHOUT[name][0 if tied else 1])
    assert report.ties == ()
    assert not report.skipped
    nbytes = sum((path / file).stat().st_size for file in ("adapter_config.json", "adapter_model.safetensors"))
    assert report.cost.bytes_read < 12 * nbytes  # of these two files alone


@pytest.mark.parametrize("name", ["save head", "target head", "save the ends"])
def test_the_base_that_the_user_names_counts(shop: Workshop, adapter: Callable[..., Path], tmp_path: Path, name: str) -> None:
    path = shutil.copytree(adapter(name, tied=True), tmp_path / "alone")
    named = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**named, "base_model_name_or_path": "org/model"}))
    assert found(audit(path, base=shop.base(tied=True))) == KINDS[name][1]
    # a base that is not the one: nothing of it is in the adapter, and nothing is tied
    assert [rule for rule, _, _ in found(audit(path, base=shop.base(tied=False)))] == []


def test_an_adapter_pickled_by_torch_keeps_one_storage_for_both_names(shop: Workshop, tmp_path: Path) -> None:
    import peft

    model = shop.model("elsewhere", tied=True)
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    made.save_pretrained(tmp_path / "adapter", safe_serialization=False, save_embedding_layers=True)
    report = audit(tmp_path / "adapter")
    assert [name for name, _ in report.files] == ["adapter_model.bin"]
    assert found(report) == [copy_of_base(MATRIX)]  # both names, one matrix of the base


def test_peft_refuses_what_is_called_a_misfit(shop: Workshop, adapter: Callable[..., Path], tmp_path: Path) -> None:
    path = shutil.copytree(adapter("new tokens", tied=False), tmp_path / "adapter")
    weights = path / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = f"{PREFIX}{EMBED}.token_adapter.trainable_tokens_delta"
    for misfit in (tensors[name][:2].clone(), tensors[name][:, :8].clone()):
        save_file({**tensors, name: misfit}, weights, metadata={"format": "pt"})
        assert found(audit(path)) == [("adapter-row-mismatch", "error", 0)]
        with pytest.raises(RuntimeError, match="size mismatch"):
            shop.loaded("elsewhere", path, tied=False)


def test_peft_refuses_a_resized_vocabulary_on_the_base_as_it_is(shop: Workshop, adapter: Callable[..., Path]) -> None:
    assert OTHER_ROWS in found(audit(adapter("resized", tied=False)))
    with pytest.raises(RuntimeError, match="size mismatch"):
        shop.loaded("elsewhere", adapter("resized", tied=False), tied=False)


def encoder_decoder(tmp_path: Path, **keys: Any) -> tuple[Path, Any]:
    import peft
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    model.save_pretrained(tmp_path / "base")
    made = peft.get_peft_model(
        transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "base"),
        peft.LoraConfig(r=2, task_type="SEQ_2_SEQ_LM", **keys),
    )
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", made


@pytest.mark.parametrize(
    ("keys", "expected", "ends"),
    [
        ({"target_modules": ["q"]}, [], []),
        ({"target_modules": ["shared"]}, [SHARED], ["shared"]),
        ({"target_modules": ["lm_head"]}, [copy_of_base(MATRIX), SHARED], ["lm_head"]),
        ({"target_modules": ["q"], "modules_to_save": ["shared"]}, [SPLIT], ["shared"]),
        (
            {"target_modules": ["q"], "modules_to_save": ["embed_tokens"]},
            [SPLIT],
            ["decoder.embed_tokens", "encoder.embed_tokens"],
        ),
        (
            {"target_modules": ["q"], "modules_to_save": ["lm_head"], "ensure_weight_tying": True},
            [TWICE],
            ["decoder.embed_tokens", "encoder.embed_tokens", "shared", "lm_head"],
        ),
    ],
)
def test_the_four_ends_of_an_encoder_decoder(
    shop: Workshop, tmp_path: Path, keys: dict[str, Any], expected: Found, ends: list[str]
) -> None:
    path, made = encoder_decoder(tmp_path, **keys)
    report = audit(path)
    assert found(report) == expected
    named = {
        place.name.removeprefix(PREFIX).partition(".lora")[0].partition(".base_layer")[0] for f in report.findings for place in f.tensors
    }
    assert {name.removesuffix(".weight") for name in named} == set(ends)
    if "modules_to_save" in keys:
        merged = made.merge_and_unload()
        weights = {id(merged.shared.weight), id(merged.encoder.embed_tokens.weight), id(merged.lm_head.weight)}
        assert (len(weights) > 1) is (SPLIT in expected)
