"""`--load`: checkpoints that transformers wrote (and what can happen to them), loaded, and compared with what the files say."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import safetensors.torch
import torch
import transformers
from live_families import FAMILIES, GROUPED, family, vision
from live_models import EMBED, HEAD, llama

import tieaudit
from hub_server import Hub
from tieaudit import OptionError, TargetError, cli
from tieaudit.live import loading, twins
from tieaudit.report import Report
from tieaudit.reporters import json as as_json
from tieaudit.reporters import terminal

SCHEMA = json.loads((Path(tieaudit.__file__).parent / "reporters" / "report.schema.json").read_text())
READER = f"transformers {transformers.__version__}"
SHARED = "language_model.model.embed_tokens.weight"
Edit = Callable[[dict[str, torch.Tensor]], Any]


def saved(folder: Path, model: Any, edit: Edit | None = None, *, drop: tuple[str, ...] = (), **config: Any) -> Path:
    """The model as it is saved; then the tensors and the keys of its config changed."""
    with twins.quiet():
        model.save_pretrained(folder)
    if edit:
        path = folder / "model.safetensors"
        state = safetensors.torch.load_file(path)
        edit(state)
        safetensors.torch.save_file(state, path, {"format": "pt"})
    path = folder / "config.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps(content | config))
    return folder


def audit(folder: Path, **options: Any) -> Report:
    report = tieaudit.audit(folder, load=True, **options)
    document = as_json.document(report)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(document)))
    return report


def loaded(folder: Path, **options: Any) -> Any:
    report = audit(folder, **options)
    assert report.live is not None, report.skipped
    return report.live


def said(live: Any) -> list[tuple[bool | None, str]]:
    return [(answer.held, answer.words) for answer in live.answers]


def failed(folder: Path, **options: Any) -> str:
    """Why it was not loaded."""
    report = audit(folder, **options)
    assert report.live is None
    ((subject, reason),) = [(skip.subject, skip.reason) for skip in report.skipped if skip.subject == "--load"]
    assert subject == "--load"
    return reason


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


class TestEnds:
    def test_tied(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama()))
        live = report.live
        assert (report.verdict, report.skipped, codes(report)) == ("ok", (), [])
        assert (live.model, live.moment) == ("LlamaForCausalLM", f"loaded by {READER}")
        (answer,) = live.answers
        assert (answer.names, answer.held, answer.words, answer.on_meta) == ((EMBED, HEAD), True, "one Parameter", True)
        assert answer.pointers[0] == answer.pointers[1] > 0
        assert live.counted - live.unique == 64 * 32
        assert live.nbytes == live.unique * 4 + sum(name.nbytes for name in live.names if name.buffer)
        assert live.resident[1] >= live.resident[0] > 0
        assert (live.won, live.missing, live.unexpected) == ((), (), ())
        assert [(tried.trial.value, tried.held) for tried in live.tried] == [("logits", True), ("gradient", True), ("round trip", True)]

    def test_untied(self, tmp_path: Path) -> None:
        live = loaded(saved(tmp_path, llama(tied=False)))
        (answer,) = live.answers
        assert (answer.held, answer.words, answer.on_meta) == (True, "two Parameters with different values", False)
        assert len(set(answer.pointers)) == 2
        assert [(tried.trial.value, tried.held) for tried in live.tried] == [("logits", True), ("round trip", True)]

    def test_diverged_is_kept_apart_by_release_5(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama(), lambda state: state.update({HEAD: state[EMBED] + 1})))
        live = report.live
        assert codes(report)[0] == "TIE001"
        kept = f"two Parameters with different values: the file holds different matrices, and {READER} keeps them apart"
        assert said(live) == [(False, kept)]
        assert live.won == ((EMBED, "is the stored matrix of its name"), (HEAD, "is the stored matrix of its name"))
        assert live.answers[0].on_meta is True

    def test_diverged_with_nan_still_says_which_matrix_won(self, tmp_path: Path) -> None:
        def edit(state: dict[str, torch.Tensor]) -> None:
            state[EMBED][0, 0] = float("nan")
            state[HEAD] = state[EMBED] + 1

        live = loaded(saved(tmp_path, llama(), edit))
        assert live.won == ((EMBED, "is the stored matrix of its name"), (HEAD, "is the stored matrix of its name"))

    def test_which_matrix_won_is_asked_of_the_values(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = saved(tmp_path, llama(), lambda state: state.update({HEAD: state[EMBED] + 1}))
        load = transformers.LlamaForCausalLM.from_pretrained

        def swap(*args: Any, **options: Any) -> Any:
            model, info = load(*args, **options)
            model.lm_head.weight = model.model.embed_tokens.weight  # as release 4 does
            return model, info

        monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", swap)
        live = loaded(folder)
        assert live.won == (
            (EMBED, "is the stored matrix of its name"),
            (HEAD, f"is the stored {EMBED}; the stored {HEAD} is not in memory"),
        )

    def test_equal_copies_are_one_again(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama(), lambda state: state.update({HEAD: state[EMBED].clone()})))
        assert (codes(report), said(report.live)) == (["TIE002"], [(True, "one Parameter")])

    def test_equal_copies_with_nan_are_two(self, tmp_path: Path) -> None:
        def edit(state: dict[str, torch.Tensor]) -> None:
            state[EMBED][60, 3] = float("nan")
            state[HEAD] = state[EMBED].clone()

        live = loaded(saved(tmp_path, llama(), edit))
        why = f"there is NaN in them, which {READER} takes for a difference"
        assert said(live) == [(False, f"two Parameters with equal values: {why}")]

    def test_a_head_that_is_missing_is_random(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama(tied=False), lambda state: state.pop(HEAD)))
        assert codes(report) == ["TIE003"]
        assert (report.live.missing, said(report.live)) == ((HEAD,), [(True, "two Parameters with different values")])
        assert report.live.tried[-1].words == "some weights were not in the file"

    def test_only_the_head_is_stored(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama(), lambda state: state.update({HEAD: state.pop(EMBED)})))
        assert (codes(report), said(report.live), report.live.missing) == (["TIE005"], [(True, "one Parameter")], ())

    def test_what_is_not_loaded_is_named(self, tmp_path: Path) -> None:
        live = loaded(saved(tmp_path, llama(), lambda state: state.update({"extra.weight": torch.ones(40, 40).normal_()})))
        assert live.unexpected == ("extra.weight",)

    def test_an_alias_in_a_bin_file_whose_flag_is_false(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, model := llama(), tie_word_embeddings=False)
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        report = audit(folder)
        assert said(report.live) == [(False, "two Parameters over one memory, though the claim keeps them apart")]
        pointers = report.live.answers[0].pointers
        assert pointers[0] == pointers[1] > 0
        assert {"TIE006", "TIE802", "TIE803", "TIE805"} == set(codes(report))

    def test_bfloat16_and_shards(self, tmp_path: Path) -> None:
        with twins.quiet():
            llama().to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="10KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
        report = audit(tmp_path)
        assert (report.verdict, said(report.live)) == ("ok", [(True, "one Parameter")])
        assert all(tried.held for tried in report.live.tried)

    def test_the_file_that_was_named_is_the_one_that_is_loaded(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, model := llama(tied=False))
        state = {name: value + 1 for name, value in model.state_dict().items()}
        torch.save(state | {HEAD: state[EMBED].clone()}, folder / "pytorch_model.bin")
        assert "equal" not in loaded(folder / "model.safetensors").answers[0].words
        assert said(loaded(folder / "pytorch_model.bin")) == [(True, "two Parameters with equal values")]


class TestArchitectures:
    @pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"Llava", "Bert", "T5", "Bart", "Whisper"}))
    def test_decoders(self, tmp_path: Path, name: str) -> None:
        report = audit(saved(tmp_path, family(name)))
        assert (report.verdict, said(report.live)) == ("ok", [(True, "one Parameter")])
        assert [tried.held for tried in report.live.tried] == [True, True, True]

    @pytest.mark.parametrize(("name", "count"), [("T5", 3), ("Bart", 3), ("Whisper", 1), ("Bert", 2)])
    def test_more_than_two_names_and_biases(self, tmp_path: Path, name: str, count: int) -> None:
        report = audit(saved(tmp_path, family(name)))
        assert (report.verdict, said(report.live)) == ("ok", [(True, "one Parameter")] * count)
        assert [tried.held for tried in report.live.tried] == [True, True, True]

    def test_t5_1_1_keeps_its_head_and_that_is_no_contradiction(self, tmp_path: Path) -> None:
        model = family("T5", feed_forward_proj="gated-gelu")
        model.lm_head.weight = torch.nn.Parameter(torch.randn(64, 32))
        report = audit(saved(tmp_path, model, tie_word_embeddings=False))
        assert report.verdict == "ok"
        answers = {answer.names[1]: (answer.held, answer.words) for answer in report.live.answers}
        assert answers["lm_head.weight"] == (True, "two Parameters with different values, as the file holds them")
        assert answers["encoder.embed_tokens.weight"] == (True, "one Parameter")

    def test_bart_of_four_matrices(self, tmp_path: Path) -> None:
        def edit(state: dict[str, torch.Tensor]) -> None:
            for name in (HEAD, "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
                state[name] = torch.randn(64, 32)

        live = loaded(saved(tmp_path, family("Bart"), edit))
        assert [held for held, _ in said(live)] == [False, False, False]
        assert len(live.won) == 4
        assert {words for _, words in live.won} == {"is the stored matrix of its name"}

    @pytest.mark.parametrize("name", ["Llava", "PaliGemma", "Gemma3", "Qwen2VL"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_names_on_disk_that_are_others_in_memory(self, tmp_path: Path, name: str, tied: bool) -> None:
        model = vision(name, tied=tied)
        folder = saved(tmp_path, model)
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            stored = set(file.keys())
        live_embedding = "model.language_model.embed_tokens.weight"
        assert live_embedding not in stored  # else this tests nothing
        report = audit(folder)
        assert codes(report) in ([], ["TIE205"])
        (answer,) = report.live.answers
        assert answer.names == (live_embedding, HEAD)
        assert (answer.held, answer.words) == (True, "one Parameter" if tied else "two Parameters with different values")
        assert all(tried.held for tried in report.live.tried)

    def test_a_renamed_matrix_that_diverged_is_found(self, tmp_path: Path) -> None:
        model = vision("Llava", tied=True)
        folder = saved(tmp_path, model, lambda state: state.update({"language_model.lm_head.weight": state[SHARED] + 1}))
        live = loaded(folder)
        assert [held for held, _ in said(live)] == [False]
        names = ("model.language_model.embed_tokens.weight", HEAD)
        assert live.won == tuple((name, "is the stored matrix of its name") for name in names)

    def test_a_config_without_a_class(self, tmp_path: Path) -> None:
        live = loaded(saved(tmp_path, family("Bert"), drop=("architectures",)))
        assert (live.model, live.missing) == ("BertLMHeadModel", ())
        assert said(live) == [(True, "one Parameter")] * 2

    @pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
    @pytest.mark.filterwarnings("ignore:::bitsandbytes", "ignore:.*quantiz:UserWarning", "ignore::DeprecationWarning")
    def test_a_quantised_model_is_told_apart_from_a_broken_one(self, tmp_path: Path, bits: str) -> None:
        pytest.importorskip("bitsandbytes")
        wide = {"hidden_size": 64, "intermediate_size": 64}
        config = transformers.LlamaConfig(**(GROUPED | wide), tie_word_embeddings=True)
        with twins.quiet():
            transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
            asked = transformers.BitsAndBytesConfig(**{bits: True})
            model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=asked, dtype=torch.bfloat16)
            model.save_pretrained(tmp_path / "quantised")
        report = audit(tmp_path / "quantised")
        assert report.live is not None, report.skipped
        assert (report.verdict, said(report.live)) == ("ok", [(True, "one Parameter")])
        assert [(tried.held, tried.trial.value) for tried in report.live.tried] == [
            (True, "logits"), (True, "gradient"), (None, "round trip"),
        ]  # fmt: skip
        assert report.live.tried[-1].words == "some weights are quantised, or have no values"


CODE = """
import pathlib, torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

pathlib.Path(RAN).write_text("it ran")
print("printed by the code beside the weights")


class MindConfig(PretrainedConfig):
    model_type = "mind_of_a_test"

    def __init__(self, vocab_size=64, hidden_size=32, scale_emb=1.0, dim_model_base=32, tie_word_embeddings=True, **rest):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.scale_emb, self.dim_model_base = scale_emb, dim_model_base
        super().__init__(tie_word_embeddings=tie_word_embeddings, **rest)
        self.tie_word_embeddings = tie_word_embeddings


class Inner(PreTrainedModel):
    config_class = MindConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([nn.Linear(config.hidden_size, config.hidden_size)])
        self.post_init()

    def forward(self, ids):
        state = self.embed_tokens(ids) * self.config.scale_emb
        for layer in self.layers:
            state = torch.tanh(layer(state))
        return (state,)


class MindForCausalLM(PreTrainedModel):
    config_class = MindConfig
    base_model_prefix = "model"
    _tied_weights_keys = KEYS

    def __init__(self, config):
        super().__init__(config)
        self.model = Inner(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        TIE
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids):
        state = self.model(input_ids)[0]
        return CausalLMOutputWithPast(logits=LOGITS)
"""
DECLARED = '{"lm_head.weight": "model.embed_tokens.weight"}'
TIED = "self.model.embed_tokens.weight = self.lm_head.weight"
COPIED = "self.lm_head.weight.data = self.model.embed_tokens.weight.data.clone()"
ORDINARY = "self.lm_head(state / (self.config.hidden_size / self.config.dim_model_base))"


def beside(folder: Path, keys: str = DECLARED, tie: str = TIED, logits: str = ORDINARY, *, both: bool = False, **config: Any) -> Path:
    """A checkpoint whose class is in a file beside it, shaped like the small models of tutorials."""
    folder.mkdir(exist_ok=True)
    code = CODE.replace("RAN", repr(str(folder / "ran"))).replace("KEYS", keys).replace("TIE", tie, 1).replace("LOGITS", logits)
    (folder / "modeling_mind.py").write_text(code)
    content = {"architectures": ["MindForCausalLM"], "model_type": "mind_of_a_test", "vocab_size": 64, "hidden_size": 32,
               "tie_word_embeddings": True, "dtype": "float32",
               "auto_map": {"AutoConfig": "modeling_mind.MindConfig", "AutoModelForCausalLM": "modeling_mind.MindForCausalLM"}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content | config))
    torch.manual_seed(0)
    state = {EMBED: torch.randn(64, 32), "model.layers.0.weight": torch.randn(32, 32), "model.layers.0.bias": torch.zeros(32)}
    if both:
        state[HEAD] = state[EMBED].clone()
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code from beside the weights is copied by transformers to its cache: to one of the test's own."""
    place = str(tmp_path_factory.mktemp("modules"))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", place)
    monkeypatch.setattr(sys, "path", [*sys.path])


class TestCodeBesideTheWeights:
    def test_nothing_of_it_is_run_unless_asked_for(self, tmp_path: Path) -> None:
        folder = beside(tmp_path / "mind")
        assert failed(folder) == "the model needs the code beside its weights, which was not run: read it, then --trust-remote-code runs it"
        assert not (folder / "ran").exists()

    def test_it_is_run_if_asked_for(self, tmp_path: Path) -> None:
        live = loaded(beside(tmp_path / "mind", scale_emb=12.0, dim_model_base=8), trust_remote_code=True)
        assert (tmp_path / "mind" / "ran").exists()
        assert live.model == "MindForCausalLM"
        assert said(live) == [(True, "one Parameter")]
        words = "logits = h · Eᵀ (6 tokens, all 64 rows, exactly); embeddings are scaled by 12; h is the last hidden state times 0.25"
        assert live.tried[0].words == words
        assert [tried.held for tried in live.tried] == [True, True, True]

    def test_a_class_of_transformers_with_code_beside_it_is_loaded_without_the_code(self, tmp_path: Path) -> None:
        folder = saved(tmp_path / "m", llama(), auto_map={"AutoModelForCausalLM": "modeling_mind.MindForCausalLM"})
        beside(tmp_path / "other")
        shutil.copy(tmp_path / "other" / "modeling_mind.py", folder)
        assert said(loaded(folder)) == [(True, "one Parameter")]
        assert not (tmp_path / "other" / "ran").exists()

    def test_a_copy_in_place_of_a_tie_is_caught(self, tmp_path: Path) -> None:
        report = audit(beside(tmp_path / "mind", "None", COPIED, both=True), trust_remote_code=True)
        assert said(report.live) == [(False, "two Parameters with equal values, though the claim ties them")]
        assert report.live.answers[0].on_meta is False

    def test_a_tie_that_transformers_is_not_told_of_is_parted_by_loading(self, tmp_path: Path) -> None:
        report = audit(beside(tmp_path / "mind", "None", both=True), trust_remote_code=True)
        assert report.live.answers[0].on_meta is True
        assert codes(report) == ["TIE002", "TIE801"]
        finding = report.findings[1]
        assert finding.severity == "warning"
        assert "MindForCausalLM makes them one as it is built, and loading has parted them" in finding.message

    def test_and_with_one_matrix_stored_the_head_is_lost(self, tmp_path: Path) -> None:
        report = audit(beside(tmp_path / "mind", "None"), trust_remote_code=True)
        assert (codes(report), report.live.missing) == (["TIE801"], (HEAD,))
        assert report.findings[0].severity == "error"

    def test_a_head_that_reads_another_matrix_is_caught(self, tmp_path: Path) -> None:
        head = "type('Head', (nn.Linear,), {'forward': lambda s, x: nn.functional.linear(x, s.weight.flip(0))})"
        tie = f"self.lm_head = {head}(config.hidden_size, config.vocab_size, bias=False); {TIED}"
        report = audit(beside(tmp_path / "mind", tie=tie), trust_remote_code=True)
        assert "TIE806" in codes(report)

    def test_a_tie_beside_the_flag_is_lost_by_the_round_trip(self, tmp_path: Path) -> None:
        report = audit(beside(tmp_path / "mind", "None", "self.tie_weights = lambda *_, **__: setattr(self.lm_head, 'weight', "
                              "self.model.embed_tokens.weight)", both=True), trust_remote_code=True)  # fmt: skip
        assert "TIE805" in codes(report)
        assert "save_pretrained refuses to save it" in next(one.message for one in report.findings if one.code == "TIE805")

    def test_code_that_raises(self, tmp_path: Path) -> None:
        folder = beside(tmp_path / "mind", tie="raise RuntimeError('needs a kernel')")
        assert failed(folder, trust_remote_code=True) == f"{READER} cannot load it: RuntimeError: needs a kernel"
        (folder / "modeling_mind.py").write_text("import no_such_module_anywhere")
        assert "no_such_module_anywhere" in failed(folder, trust_remote_code=True)

    def test_the_switch_alone_is_wrong(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="--trust-remote-code"):
            tieaudit.audit(saved(tmp_path, llama()), trust_remote_code=True)


class TestNotLoaded:
    """The static report stands, and says why it is all that there is."""

    def test_an_unknown_class(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama(), architectures=["NoSuchForCausalLM"])
        assert failed(folder) == f"config.json asks for NoSuchForCausalLM, which {READER} does not have"
        folder = saved(tmp_path, llama(), architectures=["NoSuchForCausalLM"], model_type="nosuch")
        assert failed(folder).startswith(f"{READER} does not read config.json: ValueError: The checkpoint you are trying to load has model")

    @pytest.mark.parametrize("name", ["__doc__", "AutoModel", "LlamaConfig", "logging", "../x", "LlamaTokenizer"])
    def test_a_name_that_is_no_model(self, tmp_path: Path, name: str) -> None:
        assert "which transformers" in failed(saved(tmp_path, llama(), architectures=[name]))

    def test_no_config_and_a_broken_one(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama())
        (folder / "config.json").write_text('{"architectures": ')
        assert failed(folder) == "there is no config.json that can be read to build a model from"
        assert codes(audit(folder)) == ["TIE501"]
        (folder / "config.json").unlink()
        assert failed(folder) == "there is no config.json that can be read to build a model from"

    def test_a_flag_that_is_no_boolean(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama(), tie_word_embeddings="true")
        assert failed(folder).startswith(f"{READER} does not read config.json: StrictDataclassFieldValidationError")
        assert codes(audit(folder)) == ["TIE101"]

    def test_a_broken_file_keeps_its_finding(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama())
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        assert codes(audit(folder)) == ["TIE501"]
        assert failed(folder).startswith(f"{READER} cannot load it: SafetensorError: ")

    def test_shapes_that_do_not_fit(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama(), vocab_size=65)
        assert failed(folder).startswith(f"{READER} cannot load it: RuntimeError: ")
        assert codes(audit(folder)) == ["TIE102"]

    def test_weights_under_a_name_that_transformers_does_not_look_for(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama())
        (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
        looks = "transformers looks for model.safetensors or pytorch_model.bin (or an index of shards)"
        assert failed(folder) == f"{looks}, not for consolidated.safetensors"

    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_an_adapter(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
        with twins.quiet():
            model.save_pretrained(tmp_path)
        assert failed(tmp_path).endswith("not for adapter_model.safetensors")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"num_hidden_layers": 10**9}, "config.json asks for num_hidden_layers = 1,000,000,000, more than is built here"),
            ({"vocab_size": 10**12}, "the model needs 64.0 TB of memory, and "),
            ({"intermediate_size": 10**12}, "the model needs 192.0 TB of memory, and "),
        ],
    )
    def test_a_config_that_asks_for_more_than_there_is(self, tmp_path: Path, change: dict[str, int], words: str) -> None:
        assert failed(saved(tmp_path, llama(), **change)).startswith(words)

    def test_a_model_that_does_not_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = saved(tmp_path, llama())
        monkeypatch.setattr(loading, "available", lambda: 39_000)
        assert failed(folder) == "the model needs 39.3 kB of memory, and 39.0 kB are free"
        monkeypatch.setattr(loading, "available", lambda: 40_000)
        assert loaded(folder)
        monkeypatch.setattr(loading, "available", lambda: 0)  # a system that does not say
        assert loaded(folder)

    def test_nothing_is_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        seen = []
        load = transformers.LlamaForCausalLM.from_pretrained

        def spy(*args: Any, **options: Any) -> Any:
            seen.append((constants.HF_HUB_OFFLINE, options["local_files_only"]))
            return load(*args, **options)

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", spy)
        loaded(saved(tmp_path, llama()))
        assert (seen, constants.HF_HUB_OFFLINE) == ([(True, True)] * 2, False)  # the load, and that of the round trip

    def test_what_was_changed_for_the_load_is_put_back(self, tmp_path: Path) -> None:
        torch.manual_seed(5)
        before = (torch.random.get_rng_state().tolist(), transformers.logging.get_verbosity(), torch.get_default_dtype(), os.environ.copy())
        loaded(saved(tmp_path / "a", llama()))
        failed(saved(tmp_path / "b", llama(), vocab_size=65))
        torch.manual_seed(5)
        loaded(tmp_path / "a")
        after = (torch.random.get_rng_state().tolist(), transformers.logging.get_verbosity(), torch.get_default_dtype(), os.environ.copy())
        assert before == after

    def test_models_are_loaded_one_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = saved(tmp_path, llama())
        running, most = [], []
        load = loading._load

        def slow(*args: Any, **options: Any) -> Any:
            running.append(1)
            most.append(len(running))
            try:
                return load(*args, **options)
            finally:
                running.pop()

        monkeypatch.setattr(loading, "_load", slow)
        threads = [threading.Thread(target=tieaudit.audit, args=(folder,), kwargs={"load": True}) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1, 1, 1]


class TestTargets:
    def test_a_hub_id_that_is_cached(self, online: Hub, tmp_path: Path) -> None:
        from huggingface_hub import snapshot_download

        online.add("org/model", saved(tmp_path / "m", llama()))
        snapshot_download("org/model", endpoint=online.url, cache_dir=os.environ["HF_HUB_CACHE"])
        online.close()
        report = tieaudit.audit("org/model", load=True)
        assert report.revision
        assert (report.verdict, said(report.live)) == ("ok", [(True, "one Parameter")])

    def test_a_hub_id_that_is_not(self, online: Hub, tmp_path: Path) -> None:
        online.add("org/model", saved(tmp_path / "m", llama()))
        words = r"^org/model: .*no such repository in the local Hub cache \(--load needs its files here: hf download fetches them\)$"
        with pytest.raises(TargetError, match=words):
            tieaudit.audit("org/model", load=True)
        assert not online.requests

    def test_an_object_store(self) -> None:
        with pytest.raises(TargetError, match=r"^s3://bucket/model: is not on this machine \(--load needs its files here\)$"):
            tieaudit.audit("s3://bucket/model", load=True)

    def test_one_file(self, tmp_path: Path) -> None:
        safetensors.torch.save_file({EMBED: torch.ones(4, 4)}, tmp_path / "one.safetensors")
        with pytest.raises(TargetError, match=r"is one file, and no model by itself \(--load takes the folder of a model\)"):
            tieaudit.audit(tmp_path / "one.safetensors", load=True)

    def test_formats_that_transformers_does_not_load_alone(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
        (tmp_path / "config.json").write_text("{}")
        try:
            reason = failed(tmp_path)
        except TargetError as error:  # a version that reads no such file
            assert "model.gguf" in str(error)  # noqa: PT017
        else:
            assert "transformers looks for model.safetensors" in reason


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def call(*args: str | Path) -> tuple[int, str, str]:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            patch.setattr(sys, "argv", ["tieaudit", *map(str, args)])
            with pytest.raises(SystemExit) as end:
                cli.main()
        for stream in streams:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
        return int(end.value.code or 0), out, err

    return call


class TestCommandLine:
    def test_what_a_person_reads(self, tmp_path: Path, inside: Callable[..., tuple[int, str, str]]) -> None:
        code, out, err = inside(saved(tmp_path, llama()), "--load")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("  loaded"))
        pointer = lines[start + 1].partition("both at ")[2]
        assert lines[start : start + 6] == [
            f"  loaded   LlamaForCausalLM by {READER}: 9,824 parameters (11,872 if every name is counted), 39.3 kB in memory",
            f"           claim confirmed: {EMBED} and {HEAD} are one Parameter (both at {pointer}",
            "           logits = h · Eᵀ (6 tokens, all 64 rows, exactly)",
            "           one backward pass adds up both uses of the matrix once: g = g_in + g_out, exactly",
            "           save_pretrained and a reload give back all values, and 1 tie",
            "",
        ]

    def test_in_a_narrow_terminal(self, tmp_path: Path) -> None:
        report = audit(saved(tmp_path, llama(), lambda state: state.update({HEAD: state[EMBED] + 1})))
        lines = terminal.render(report, width=72).splitlines()
        assert all(len(line) <= 72 or " " not in line.strip() for line in lines)
        assert any(line.startswith("  loaded   ") for line in lines)
        assert any(line.startswith("           claim contradicted: ") for line in lines)

    def test_exit_codes(self, tmp_path: Path, inside: Callable[..., tuple[int, str, str]]) -> None:
        folder = saved(tmp_path, llama(), architectures=["NoSuchForCausalLM"])
        code, out, err = inside(folder, "--load")
        assert (code, err) == (2, "")
        assert out.startswith("INCOMPLETE")
        assert "  not checked: --load: config.json asks for NoSuchForCausalLM" in out
        assert inside(folder, "--load", "--allow-partial")[0] == 0
        assert inside(folder, "--trust-remote-code")[0] == 2

    def test_several_targets_are_loaded_one_after_the_other(
        self, tmp_path: Path, inside: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tieaudit.cli.audit.ThreadPoolExecutor", None)  # what is kept off stdout is kept off it in all threads
        first, second = saved(tmp_path / "a", llama()), beside(tmp_path / "mind")
        code, out, err = inside(first, second, "--load", "--trust-remote-code", "--jobs", "4", "--format", "json")
        reports = json.loads(out)["reports"]
        assert (code, [one["live"]["model"] for one in reports]) == (0, ["LlamaForCausalLM", "MindForCausalLM"])
        assert err == "printed by the code beside the weights\n"

    def test_the_json_report_has_it_all(self, tmp_path: Path) -> None:
        folder = saved(tmp_path, llama(), lambda state: state.update({HEAD: state[EMBED] + 1}))
        live = as_json.document(audit(folder))["live"]
        assert live["parameters"] == {"counted": 11_872, "unique": 11_872}
        (answer,) = live["answers"]
        assert (answer["names"], answer["held"], answer["on_meta"]) == ([EMBED, HEAD], False, True)
        assert [one["name"] for one in live["won"]] == [EMBED, HEAD]
        assert "live" not in as_json.document(tieaudit.audit(folder))


def process(code: str, *args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(tieaudit.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True, encoding="utf-8", check=False, timeout=300, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


RUN = "import sys; from tieaudit.cli import main; main()"


def test_a_process_says_nothing_but_the_report(tmp_path: Path) -> None:
    """Libraries talk when they are imported, and code beside the weights prints."""
    told = process(RUN, saved(tmp_path / "m", llama()), "--load", "--format", "json")
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["live"]["tried"][0]["held"] is True


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_without_the_libraries_there_is_one_line(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "m", llama())
    told = process(f"import sys; sys.modules[{name!r}] = None; {RUN}", folder, "--load")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"tieaudit: {folder}: --load needs {name} (pip install 'tieaudit[live]')\n"
    told = process(f"import sys; sys.modules[{name!r}] = None; {RUN}", folder)
    assert (told.returncode, told.stderr) == (0, "")
