"""What training code calls: `audit_module`, `assert_tied`, `audit_state_dict`, on hand-made models and on transformers' own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import safetensors.torch
import torch
from live_models import EMBED, HEAD, VOCAB, WIDTH, Net, llama, names_of
from torch import nn

import tieaudit
from tieaudit import BrokenTie, OptionError, Severity, TieauditError, assert_tied, audit_module, audit_state_dict
from tieaudit.inspectors.registry import all_rules
from tieaudit.inspectors.rule import Case
from tieaudit.live.module import look
from tieaudit.live.naming import LiveNames, closure, own
from tieaudit.reporters import json as as_json
from tieaudit.reporters import terminal

ENDS = ("embed.weight", "head.weight")
SCHEMA = json.loads((Path(tieaudit.__file__).parent / "reporters" / "report.schema.json").read_text())
LIVE = [rule for rule in all_rules() if rule.code.startswith("TIE8")]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class TestHandMade:
    def test_a_tied_model_is_fine_and_says_why(self) -> None:
        report = audit_module(Net())
        assert (report.verdict, report.target) == ("ok", "Net")
        assert report.reason == "tied: embed.weight and head.weight are one Parameter"
        (tie,) = report.ties
        assert (tie.canonical, tie.aliases, tie.role, tie.relation, tie.evidence) == (
            "embed.weight", ("head.weight",), "embedding-head", "same storage", "proved",
        )  # fmt: skip
        assert tie.saves_bytes == VOCAB * WIDTH * 4
        assert report.totals.parameters_stored - report.totals.parameters_unique == VOCAB * WIDTH
        assert report.totals.parameters_unique == sum(parameter.numel() for parameter in Net().parameters())

    def test_an_untied_model_is_fine(self) -> None:
        report = audit_module(Net(tied=False))
        assert (report.verdict, report.findings) == ("ok", ())
        assert report.reason == "untied: embed.weight and head.weight are two different matrices, and nobody ties them"

    def test_values_copied_instead_of_a_tie_are_false_sharing(self) -> None:
        model = Net(tied=False)
        model.head.weight.data.copy_(model.embed.weight.data)
        report = audit_module(model)
        assert names_of(report) == [("lost-alias", "warning", ENDS)]
        (finding,) = report.findings
        assert "equal in every element, but they will drift apart at the first step" in finding.message
        assert (finding.wasted_bytes, finding.evidence) == (VOCAB * WIDTH * 4, "proved")
        assert finding.fix
        assert "head.weight = embed.weight" in finding.fix
        # and so they do
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.arange(4)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(model.head.weight, model.embed.weight)
        assert audit_module(model).findings == ()

    def test_one_differing_element_is_an_untied_model(self) -> None:
        model = Net(tied=False)
        model.head.weight.data.copy_(model.embed.weight.data)
        model.head.weight.data[-1, -1] += 1
        assert audit_module(model).findings == ()

    def test_false_sharing_that_nobody_trains_is_a_note(self) -> None:
        model = Net(tied=False).requires_grad_(requires_grad=False)
        model.head.weight.data.copy_(model.embed.weight.data)
        assert names_of(audit_module(model)) == [("lost-alias", "note", ENDS)]

    @pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
    def test_two_constant_matrices_are_equal_by_chance(self, value: float) -> None:
        model = Net(tied=False)
        model.head.weight.data.fill_(value)
        model.embed.weight.data.fill_(value)
        assert audit_module(model).findings == ()

    def test_a_teacher_and_its_student_are_no_false_sharing(self) -> None:
        import copy

        for tied in (True, False):
            student = Net(tied=tied)
            both = nn.ModuleDict({"student": student, "teacher": copy.deepcopy(student)})
            report = audit_module(both)
            assert report.findings == ()
            assert {tie.canonical.split(".")[0] == tie.aliases[0].split(".")[0] for tie in report.ties} == {True}

    def test_a_copy_beside_a_whole_tie_is_no_second_suspicion(self) -> None:
        """An embedding that has its head is not looked for in other Linears, such as the frozen head of a teacher."""
        model = nn.ModuleDict({"net": Net(), "kept": nn.Linear(WIDTH, VOCAB, bias=False)})
        model["kept"].weight.data.copy_(model["net"].embed.weight.data)
        assert audit_module(model).findings == ()

    def test_layers_that_were_copied_or_shared_are_fine(self) -> None:
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
        model = nn.ModuleDict({"net": Net(), "encoder": encoder, "again": encoder.layers[0]})
        report = audit_module(model)
        assert report.findings == ()
        shared = {frozenset((tie.canonical, *tie.aliases)) for tie in report.ties if tie.relation == "same storage"}
        ids: dict[int, set[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            ids.setdefault(id(parameter), set()).add(name)
        assert shared == {frozenset(names) for names in ids.values() if len(names) > 1}

    def test_recurrent_nets_view_one_buffer_without_an_alias(self) -> None:
        flat = torch.randn(100)
        model = nn.ModuleList([nn.LSTM(4, 4, 2), nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False)])
        model[1].weight = nn.Parameter(flat[:20].view(5, 4))
        model[2].weight = nn.Parameter(flat[20:40].view(5, 4))
        assert audit_module(model).findings == ()

    def test_views_that_overlap_are_half_an_alias(self) -> None:
        model = Net(tied=False)
        model.head = nn.Linear(WIDTH, VOCAB // 2, bias=False)
        model.head.weight = nn.Parameter(model.embed.weight.detach()[: VOCAB // 2])
        (finding,) = audit_module(model).findings
        assert (finding.rule, finding.severity) == ("half-alias", "warning")
        assert f"({VOCAB // 2 * WIDTH} elements in common)" in finding.message

    def test_a_transposed_view_is_half_an_alias(self) -> None:
        model = nn.ParameterDict({"a": nn.Parameter(torch.randn(3, 5))})
        model["b"] = nn.Parameter(model["a"].detach().T)
        (finding,) = audit_module(model).findings
        assert finding.rule == "half-alias"
        assert "one is the other transposed" in finding.message

    def test_interleaved_views_have_no_element_in_common(self) -> None:
        whole = torch.randn(4, 6)
        model = nn.ParameterDict({"q": nn.Parameter(whole[:, ::2]), "k": nn.Parameter(whole[:, 1::2])})
        assert audit_module(model).findings == ()

    def test_a_half_alias_of_frozen_parameters_is_a_note(self) -> None:
        model = Net()
        model.load_state_dict(model.state_dict(), assign=True)
        model.requires_grad_(requires_grad=False)
        assert names_of(audit_module(model)) == [("half-alias", "note", ENDS)]


class TestConfig:
    @pytest.mark.parametrize("config", [True, {"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
    def test_a_config_that_ties_makes_two_matrices_an_error(self, config: Any) -> None:
        report = audit_module(Net(tied=False), config=config)
        assert names_of(report) == [("lost-alias", "error", ENDS)]
        assert (report.ties[0].claim, report.ties[0].claim_source) == ("tied", "the config ties them")

    def test_a_config_that_unties_makes_one_parameter_a_warning(self) -> None:
        report = audit_module(Net(), config=False)
        assert names_of(report) == [("undeclared-tie", "warning", ENDS)]
        assert report.ties[0].claim == "untied"

    @pytest.mark.parametrize("config", [True, None])
    def test_a_config_that_agrees_is_silent(self, config: Any) -> None:
        assert audit_module(Net(), config=config).findings == ()
        assert audit_module(Net(tied=False), config=False if config else None).findings == ()

    def test_equal_matrices_that_the_config_keeps_apart_are_meant(self) -> None:
        model = Net(tied=False)
        model.head.weight.data.copy_(model.embed.weight.data)
        assert audit_module(model, config=False).findings == ()

    def test_the_models_own_config_counts(self) -> None:
        from types import SimpleNamespace

        model = Net(tied=False)
        model.config = SimpleNamespace(tie_word_embeddings=True)
        assert names_of(audit_module(model)) == [("lost-alias", "error", ENDS)]

    def test_the_models_accessors_name_the_ends(self) -> None:
        model = Net(tied=False)
        model.other = nn.Linear(WIDTH, VOCAB)
        model.get_input_embeddings = lambda: model.embed
        model.get_output_embeddings = lambda: model.other
        assert names_of(audit_module(model, config=True)) == [("lost-alias", "error", ("embed.weight", "other.weight"))]


class TestOptimizer:
    def test_a_tied_model_and_its_optimizer_are_fine(self) -> None:
        model = Net()
        assert audit_module(model, torch.optim.AdamW(model.parameters())).findings == ()

    def test_parameters_in_groups_of_their_own_are_fine(self) -> None:
        model = Net()
        groups = [{"params": list(model.mid.parameters()), "weight_decay": 0.1}, {"params": [model.embed.weight]}]
        assert audit_module(model, torch.optim.AdamW(groups)).findings == ()

    def test_one_parameter_twice_in_a_group(self) -> None:
        model = Net()
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = torch.optim.SGD([model.embed.weight, model.head.weight], lr=1.0)
        before = model.embed.weight.detach().clone()
        model.embed.weight.grad = torch.ones_like(before)
        optimizer.step()
        assert torch.allclose(model.embed.weight.detach(), before - 2)  # the harm is real
        report = audit_module(model, optimizer)
        assert names_of(report) == [("repeated-optimizer-parameter", "error", ENDS)]
        assert "stand 2 times in the optimizer (param group 0)" in report.findings[0].message

    def test_one_parameter_in_two_groups(self) -> None:
        """torch's own constructor refuses it; code that edits the groups, or optimizers of others, do not."""
        model = Net()
        optimizer = torch.optim.SGD([{"params": [model.embed.weight]}, {"params": [model.mid.weight]}], lr=0.1)
        optimizer.param_groups[1]["params"].append(model.head.weight)
        report = audit_module(model, optimizer)
        assert names_of(report) == [("repeated-optimizer-parameter", "error", ENDS)]
        assert "(param groups 0, 1)" in report.findings[0].message

    def test_two_parameters_over_one_memory_are_stepped_twice(self) -> None:
        model = Net()
        model.load_state_dict(model.state_dict(), assign=True)
        optimizer = torch.optim.AdamW(model.parameters())
        assert names_of(audit_module(model, optimizer)) == [
            ("repeated-optimizer-parameter", "error", ENDS),
            ("half-alias", "warning", ENDS),
        ]

    def test_an_optimizer_from_before_the_tie_holds_a_stranger(self) -> None:
        model = Net(tied=False)
        optimizer = torch.optim.AdamW(model.parameters())
        model.head.weight = model.embed.weight
        (finding,) = audit_module(model, optimizer).findings
        assert (finding.rule, finding.severity) == ("repeated-optimizer-parameter", "note")
        assert "holds a Parameter that is not in the model" in finding.message

    def test_an_optimizer_from_before_a_reload_trains_nothing_of_it(self) -> None:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
        model.head.weight = model.embed.weight
        report = audit_module(model, optimizer)
        assert {(finding.rule, finding.severity) for finding in report.findings} == {("repeated-optimizer-parameter", Severity.WARNING)}
        assert {place.name for finding in report.findings for place in finding.tensors} == {"embed.weight", "mid.weight", "mid.bias"}
        assert "embed.weight needs a gradient and stands in no param group" in report.findings[0].message

    def test_frozen_parameters_need_no_group(self) -> None:
        model = Net()
        model.embed.weight.requires_grad_(requires_grad=False)
        assert audit_module(model, torch.optim.AdamW(model.mid.parameters())).findings == ()

    def test_an_optimizer_of_two_models_is_a_note(self) -> None:
        first, second = Net(), Net()
        report = audit_module(first, torch.optim.AdamW([*first.parameters(), *second.parameters()]))
        assert [finding.severity for finding in report.findings] == [Severity.NOTE]

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(OptionError, match="a torch optimizer"):
            audit_module(Net(), "adamw")


class TestTransformers:
    @pytest.mark.parametrize("tied", [True, False])
    def test_llama_is_fine_both_ways(self, tied: bool) -> None:
        report = audit_module(llama(tied=tied))
        assert (report.verdict, report.findings) == ("ok", ())
        (tie,) = report.ties
        assert (tie.canonical, tie.aliases, tie.claim) == (EMBED, (HEAD,), "tied" if tied else "untied")
        assert tie.relation == ("same storage" if tied else "unrelated")

    def test_equal_matrices_of_an_untied_model_are_fine(self) -> None:
        model = llama(tied=False)
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
        assert audit_module(model).findings == ()

    def test_a_tie_made_at_runtime_is_lost_by_save_and_load(self, tmp_path: Path) -> None:
        model = llama(tied=False)
        model.lm_head.weight = model.model.embed_tokens.weight
        report = audit_module(model)
        assert names_of(report) == [("undeclared-tie", "error", (EMBED, HEAD))]
        assert "a reload starts the other with random values" in report.findings[0].message
        # the truth of it
        model.save_pretrained(tmp_path)
        assert HEAD not in safetensors.torch.load_file(tmp_path / "model.safetensors")
        again = type(model).from_pretrained(tmp_path)
        assert not torch.equal(again.lm_head.weight, model.lm_head.weight)

    def test_sharing_that_the_class_does_not_know_cannot_be_saved(self, tmp_path: Path) -> None:
        model = llama()
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight = layer.self_attn.q_proj.weight
        report = audit_module(model)
        assert [(finding.rule, finding.severity) for finding in report.findings] == [("undeclared-tie", "error")]
        assert "save_pretrained refuses" in report.findings[0].message
        with pytest.raises(RuntimeError, match="shared tensors"):
            model.save_pretrained(tmp_path)

    def test_a_flag_switched_off_on_a_tied_model(self, tmp_path: Path) -> None:
        model = llama()
        model.config.tie_word_embeddings = False
        assert names_of(audit_module(model)) == [("undeclared-tie", "error", (EMBED, HEAD))]
        model.save_pretrained(tmp_path)
        assert not torch.equal(type(model).from_pretrained(tmp_path).lm_head.weight, model.lm_head.weight)

    def test_a_flag_switched_on_over_two_matrices(self) -> None:
        model = llama(tied=False)
        model.config.tie_word_embeddings = True
        report = audit_module(model)
        assert names_of(report) == [("lost-alias", "warning", (EMBED, HEAD))]
        model.tie_weights()
        assert audit_module(model).findings == ()

    def test_a_checkpoint_with_two_matrices_under_a_true_flag(self, tmp_path: Path) -> None:
        """transformers 5 keeps both, warns once and leaves the flag: the next save hands the trap on."""
        model = llama(tied=False)
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        loaded = type(model).from_pretrained(tmp_path)
        assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
        assert names_of(audit_module(loaded)) == [("lost-alias", "warning", (EMBED, HEAD))]

    def test_t5_with_a_head_of_its_own_is_fine(self, tmp_path: Path) -> None:
        """T5 v1.1: the class says true whatever is written, and the file decides."""
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
        model = T5ForConditionalGeneration(config)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["lm_head.weight"] = torch.randn(64, 16)
        model.save_pretrained(tmp_path, state_dict={n: t for n, t in state.items() if not n.endswith("embed_tokens.weight")})
        loaded = T5ForConditionalGeneration.from_pretrained(tmp_path)
        assert loaded.lm_head.weight is not loaded.shared.weight
        assert audit_module(loaded).findings == ()

    def test_a_three_way_tie_says_which_name_is_apart(self) -> None:
        from transformers import T5Config, T5ForConditionalGeneration

        model = T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2))
        (tie,) = [tie for tie in audit_module(model).ties if "shared.weight" in (tie.canonical, *tie.aliases)]
        assert {tie.canonical, *tie.aliases} == {
            "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight",
        }  # fmt: skip
        model.decoder.embed_tokens.weight = nn.Parameter(torch.randn(64, 16))
        (finding,) = audit_module(model).findings
        assert (finding.rule, finding.severity) == ("lost-alias", "error")
        assert finding.message.startswith("decoder.embed_tokens.weight and shared.weight = ")
        assert "are two Parameters" in finding.message

    def test_a_transformers_model_inside_a_larger_one(self) -> None:
        model = nn.ModuleDict({"policy": llama(), "reference": llama(tied=False), "value": nn.Linear(32, 1)})
        report = audit_module(model)
        assert report.findings == ()
        assert {tie.canonical: tie.claim for tie in report.ties} == {f"policy.{EMBED}": "tied", f"reference.{EMBED}": "untied"}
        model["policy"].lm_head.weight = nn.Parameter(torch.randn(64, 32))
        assert names_of(audit_module(model)) == [("lost-alias", "error", (f"policy.{EMBED}", f"policy.{HEAD}"))]

    def test_a_head_that_was_replaced_is_listed_not_judged(self) -> None:
        model = llama()
        model.lm_head = nn.Identity()
        report = audit_module(model)
        assert report.findings == ()
        assert [skip.subject for skip in report.not_compared] == [f"{EMBED} and {HEAD}"]


TINY = {
    "GPT2LMHeadModel": {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16},
    "BertForMaskedLM": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48},
    "RobertaForMaskedLM": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48},
    "BartForConditionalGeneration": {
        "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 16,
    },
    "T5ForConditionalGeneration": {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 2},
    "GemmaForCausalLM": {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 48,
    },
    "MambaForCausalLM": {"vocab_size": 64, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 1},
    "WhisperForConditionalGeneration": {
        "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 8, "max_target_positions": 8,
        "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0,
    },
    "AlbertForMaskedLM": {
        "vocab_size": 64, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48,
    },
    "BertModel": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48},
}  # fmt: skip


@pytest.mark.parametrize("flag", [None, True, False])
@pytest.mark.parametrize("architecture", TINY)
def test_fresh_models_of_transformers_are_silent_and_their_groups_are_the_models_own(architecture: str, flag: bool | None) -> None:
    import transformers

    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**TINY[architecture], **({} if flag is None else {"tie_word_embeddings": flag})))
    report = audit_module(model)
    assert report.findings == ()
    held = {frozenset((tie.canonical, *tie.aliases)) for tie in report.ties if tie.relation == "same storage"}
    ids: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        ids.setdefault(id(parameter), set()).add(name)
    assert held == {frozenset(names) for names in ids.values() if len(names) > 1}
    assert held == {frozenset(group) for group in closure(model.all_tied_weights_keys.items())}
    assert report.totals.parameters_unique == sum(parameter.numel() for parameter in model.parameters())
    assert_tied(model)


class TestAssertTied:
    def test_names_that_are_one_parameter_pass(self) -> None:
        assert_tied(Net(), "embed.weight", "head.weight")
        assert_tied(Net(), *("head.weight", "embed.weight", "head.weight"))

    def test_names_that_are_not_are_told_apart(self) -> None:
        model = Net(tied=False)
        with pytest.raises(BrokenTie, match=r"^Net: head.weight is not the Parameter embed.weight: different values$") as caught:
            assert_tied(model, "embed.weight", "head.weight")
        assert isinstance(caught.value, AssertionError)
        assert isinstance(caught.value, TieauditError)
        model.head.weight.data.copy_(model.embed.weight.data)
        with pytest.raises(AssertionError, match="equal values, two storages"):
            assert_tied(model, "embed.weight", "head.weight")
        tied = Net()
        tied.load_state_dict(tied.state_dict(), assign=True)
        with pytest.raises(AssertionError, match="one storage, two Parameters"):
            assert_tied(tied, "embed.weight", "head.weight")

    def test_without_names_every_expected_tie_counts(self) -> None:
        assert_tied(Net())
        assert_tied(llama())
        assert_tied(llama(tied=False))  # its config says that nothing has to be
        broken = llama()
        broken.lm_head.weight = nn.Parameter(torch.randn(64, 32))
        with pytest.raises(BrokenTie, match=r"lm_head\.weight and model\.embed_tokens\.weight should be one Parameter"):
            assert_tied(broken)
        half = llama()
        half.load_state_dict(half.state_dict(), assign=True)
        with pytest.raises(BrokenTie, match="over one memory"):
            assert_tied(half)

    def test_it_never_passes_because_nothing_is_known(self) -> None:
        with pytest.raises(BrokenTie, match="nothing says which names should be one"):
            assert_tied(Net(tied=False))
        with pytest.raises(BrokenTie, match="the config ties them"):
            assert_tied(Net(tied=False), config=True)
        assert_tied(Net(tied=False), config=False)

    def test_wrappers_may_be_left_out_of_a_name(self) -> None:
        wrapped = torch.compile(Net(), backend="eager")
        assert_tied(wrapped, "embed.weight", "_orig_mod.head.weight")

    def test_a_name_that_is_not_there_is_a_wrong_option(self) -> None:
        with pytest.raises(OptionError, match=r"names: 'heat.weight' is not known \(did you mean head.weight\?\)"):
            assert_tied(Net(), "embed.weight", "heat.weight")
        with pytest.raises(OptionError, match="two names or more"):
            assert_tied(Net(), "embed.weight")
        with pytest.raises(OptionError, match=r"a torch\.nn\.Module"):
            assert_tied({}, "a", "b")


class TestStateDict:
    CONFIG: ClassVar[dict[str, Any]] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }

    def test_an_aliased_dict_is_one_storage_and_says_what_each_way_of_saving_does(self, tmp_path: Path) -> None:
        model = llama()
        report = audit_state_dict(model.state_dict(), self.CONFIG)
        assert (report.verdict, report.target) == ("ok", "state dict")
        (tie,) = report.ties
        assert tie.relation == "same storage"
        assert tie.summary == (
            "one storage under both names; torch.save stores it once, safetensors.torch.save_file raises, "
            f"save_pretrained stores {EMBED} alone"
        )
        # the truth of it
        torch.save(model.state_dict(), tmp_path / "m.pt")
        loaded = torch.load(tmp_path / "m.pt", weights_only=True)
        assert loaded[EMBED].data_ptr() == loaded[HEAD].data_ptr()
        with pytest.raises(RuntimeError, match="share memory"):
            safetensors.torch.save_file(model.state_dict(), tmp_path / "m.safetensors")
        model.save_pretrained(tmp_path)
        assert HEAD not in safetensors.torch.load_file(tmp_path / "model.safetensors")

    def test_a_model_config_is_a_config(self) -> None:
        model = llama()
        assert audit_state_dict(model.state_dict(), model.config).ties[0].claim == "tied"

    def test_copies_are_found_before_they_are_written(self) -> None:
        state = {name: tensor.clone() for name, tensor in llama().state_dict().items()}
        report = audit_state_dict(state, self.CONFIG)
        assert [(finding.rule, finding.wasted_bytes) for finding in report.findings] == [("duplicate-tie", 64 * 32 * 4)]
        assert report.ties[0].summary == "2 copies, equal byte for byte"

    def test_two_matrices_under_a_true_flag_are_an_error(self) -> None:
        assert [finding.rule for finding in audit_state_dict(llama(tied=False).state_dict(), self.CONFIG).findings] == ["diverged-tie"]

    def test_the_verdict_is_that_of_the_file(self, tmp_path: Path) -> None:
        """The same dict, saved by torch and audited on disk, gets the same findings."""
        torch.manual_seed(0)
        big = torch.randn(1000, 64)
        for state in (
            llama().state_dict(),
            llama(tied=False).state_dict(),
            {name: tensor.clone() for name, tensor in llama().state_dict().items()},
            {**llama(tied=False).state_dict(), "extra.weight": big[:10], "extra.bias": torch.zeros(64, dtype=torch.bfloat16)},
            {name: tensor for name, tensor in llama(tied=False).state_dict().items() if name != HEAD},
        ):
            torch.save(state, tmp_path / "pytorch_model.bin")
            for tied in (True, False):
                config = {**self.CONFIG, "tie_word_embeddings": tied}
                (tmp_path / "config.json").write_text(json.dumps(config))
                here, there = audit_state_dict(state, config), tieaudit.audit(tmp_path)
                assert [(f.rule, f.severity, f.wasted_bytes, [t.name for t in f.tensors]) for f in here.findings] == [
                    (f.rule, f.severity, f.wasted_bytes, [t.name for t in f.tensors]) for f in there.findings
                ]
                assert here.totals == there.totals
                assert [tie.relation for tie in here.ties] == [tie.relation for tie in there.ties]

    def test_tensors_without_values_are_listed(self) -> None:
        with torch.device("meta"):
            state = Net().state_dict()
        report = audit_state_dict(state)
        assert {skip.subject for skip in report.not_compared} >= set(state)
        assert not any(finding.severity is Severity.ERROR for finding in report.findings)

    def test_something_else_is_refused(self) -> None:
        for wrong in ({}, {"model": {"a": 1}}, [1], Net()):
            with pytest.raises(OptionError, match="a mapping of names to tensors"):
                audit_state_dict(wrong)
        with pytest.raises(OptionError, match="a mapping as in config"):
            audit_state_dict(Net().state_dict(), 7)


class TestReport:
    @pytest.mark.parametrize("model", [Net(), Net(tied=False), llama()])
    def test_json_keeps_the_contract(self, model: nn.Module) -> None:
        for config in (None, True, False):
            jsonschema.validate(as_json.document(audit_module(model, config=config)), SCHEMA)
        jsonschema.validate(as_json.document(audit_state_dict(model.state_dict())), SCHEMA)

    def test_text_names_the_class_and_the_parameters(self) -> None:
        text = terminal.render(audit_module(llama()))
        assert text.startswith("OK  LlamaForCausalLM   tied: model.embed_tokens.weight and lm_head.weight are one Parameter\n")

    def test_rules_can_be_chosen(self) -> None:
        model = Net()
        model.load_state_dict(model.state_dict(), assign=True)
        assert audit_module(model, select="TIE801").findings == ()
        assert audit_module(model, ignore=["half-alias"]).findings == ()
        assert [finding.code for finding in audit_module(model, select="half-alias").findings] == ["TIE802"]
        with pytest.raises(OptionError, match="a code, a prefix"):
            audit_module(model, select="nothing")

    def test_the_model_is_not_changed(self) -> None:
        model = llama()
        before = {name: (tensor.clone(), tensor._version) for name, tensor in model.named_parameters()}
        state = torch.random.get_rng_state()
        audit_module(model, torch.optim.AdamW(model.parameters()))
        for name, tensor in model.named_parameters():
            assert torch.equal(tensor, before[name][0])
            assert tensor._version == before[name][1]
            assert tensor.grad is None
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_without_the_probe_nothing_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tieaudit.live import compare

        monkeypatch.setattr(compare, "seen_through", lambda *_: pytest.fail("written"))
        live, _ = look(Net(), probe=False)
        assert [tie.probe for tie in live.ties] == [None]

    def test_the_probe_is_told(self) -> None:
        live, _ = look(Net())
        assert [tie.probe for tie in live.ties] == [True]
        assert "a write through one was seen through the others" in audit_module(Net()).ties[0].summary

    def test_torch_is_imported_when_called_and_transformers_never(self) -> None:
        told = run(
            "import sys; from tieaudit import *; print('torch' in sys.modules)\n"
            "import torch; print(audit_module(torch.nn.Linear(2, 2)).verdict, 'transformers' in sys.modules)"
        )
        assert told.split() == ["False", "ok", "False"]

    def test_trials_that_failed_are_errors_and_those_not_made_are_silent(self) -> None:
        from dataclasses import replace

        from tieaudit.alive import Trial, Tried
        from tieaudit.live import reporting

        live, _ = look(Net())
        tried = tuple(Tried(trial=trial, held=held, words=f"{trial} {held}", names=ENDS) for trial in Trial for held in (True, False, None))
        report = reporting.report(replace(live, tried=tried))
        assert names_of(report) == [
            ("round-trip-loss", "error", ENDS), ("logits-mismatch", "error", ENDS), ("doubled-gradient", "error", ENDS),
        ]  # fmt: skip
        assert [finding.message for finding in report.findings] == ["round trip False", "logits False", "gradient False"]

    @pytest.mark.parametrize("rule", LIVE, ids=lambda rule: rule.name)
    def test_live_rules_are_silent_without_a_model_in_memory(self, rule: Any) -> None:
        from tieaudit.checkpoint import Checkpoint

        assert not list(rule.check(Case(checkpoint=Checkpoint(target="", editions=()), config=None, editions=())))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm_head.weight", "lm_head.weight"),
        ("module._orig_mod.lm_head.weight", "lm_head.weight"),
        ("base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight"),
        ("base_model.model.lm_head.original_module.weight", "lm_head.weight"),
        ("base_model.model.lm_head.base_layer.weight", "lm_head.weight"),
        ("base_model.model.model.embed_tokens.token_adapter.base_layer.weight", "model.embed_tokens.weight"),
        ("head.parametrizations.weight.original", "head.weight"),
        ("parametrizations.weight.original1", "weight"),
        ("model.base_layer_norm.weight", "model.base_layer_norm.weight"),
    ],
)
def test_a_name_in_memory_leads_back_to_the_models_own(name: str, expected: str) -> None:
    assert own(name) == expected


def test_of_several_the_one_that_is_used_is_found() -> None:
    names = LiveNames(["h.original_module.weight", "h.modules_to_save.a.weight", "w.weight_g", "w.weight_v", "e.weight"])
    assert names.find("h.weight") == "h.modules_to_save.a.weight"
    assert names.find("e.weight") == "e.weight"
    assert names.find("w.weight") is None
    assert names.sources("w.weight") == ("w.weight_g", "w.weight_v")
    assert names.sources("x.weight") == ()


def test_closure_joins_what_pairs_connect() -> None:
    pairs = [("c", "a"), ("d", "b"), ("b", "a"), ("y", "x")]
    assert sorted(map(sorted, closure(pairs))) == [["a", "b", "c", "d"], ["x", "y"]]
    assert [group[0] for group in closure([("head", "embed"), ("other", "embed")])] == ["embed"]
