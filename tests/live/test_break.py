"""Every way in which training code breaks a tie, really done; and the steps that look dangerous and keep it."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from live_models import EMBED, HEAD, VOCAB, WIDTH, Net, llama, names_of
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tieaudit import OptionError, assert_tied, audit_module, compare, snapshot
from tieaudit.alive import Sharing
from tieaudit.live.module import look

ENDS = ("embed.weight", "head.weight")
LOST, HALF = [("lost-alias", "error", ENDS)], [("half-alias", "warning", ENDS)]


def changed(model: nn.Module, step: Callable[[nn.Module], nn.Module | None]) -> tuple[Any, nn.Module]:
    """(what `compare` says around a step, the model after it)."""
    before = snapshot(model)
    made = step(model)
    after = model if made is None else made
    return compare(before, after), after


def one_parameter(model: Any) -> bool:
    return model.embed.weight is model.head.weight


class TestKept:
    """Both the comparison and the audit after it are silent, and the tie is really there."""

    @pytest.mark.parametrize(
        "step",
        [
            pytest.param(lambda model: model.to(torch.bfloat16), id="to(dtype)"),
            pytest.param(lambda model: model.half().float(), id="half and back"),
            pytest.param(lambda model: model.head.half() and None, id="half of the head alone: it is the same Parameter"),
            pytest.param(lambda model: model.to("cpu"), id="to(device)"),
            pytest.param(lambda model: model.to_empty(device="cpu"), id="to_empty where memory is"),
            pytest.param(copy.deepcopy, id="deepcopy"),
            pytest.param(lambda model: pickle.loads(pickle.dumps(model)), id="pickle"),  # noqa: S301
            pytest.param(lambda model: model.share_memory(), id="share_memory"),
            pytest.param(lambda model: model.load_state_dict(model.state_dict()) and None, id="load_state_dict"),
            pytest.param(lambda model: model.requires_grad_(requires_grad=False), id="frozen"),
            pytest.param(lambda model: model.eval(), id="eval"),
        ],
    )
    def test_steps_that_keep_a_tie(self, step: Callable[[nn.Module], nn.Module | None]) -> None:
        report, after = changed(Net(), step)
        assert one_parameter(after)
        assert report.findings == ()
        assert [(tie.claim, tie.relation) for tie in report.ties] == [("tied", "same storage")]
        assert audit_module(after).findings == ()

    def test_a_module_saved_whole_keeps_it(self) -> None:
        def step(model: nn.Module) -> nn.Module:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            return torch.load(file, weights_only=False)  # type: ignore[no-any-return]

        report, after = changed(Net(), step)
        assert one_parameter(after)
        assert report.findings == ()

    def test_compiled(self) -> None:
        report, after = changed(Net(), lambda model: torch.compile(model, backend="eager"))
        assert report.findings == ()
        assert [tie.aliases for tie in report.ties] == [("_orig_mod.head.weight",)]
        assert audit_module(after).target == "OptimizedModule(Net)"
        assert audit_module(after).findings == ()

    def test_a_resize_by_transformers(self) -> None:
        def step(model: Any) -> None:
            model.resize_token_embeddings(70, mean_resizing=False)

        report, after = changed(llama(), step)
        assert report.findings == ()
        assert audit_module(after).findings == ()
        assert after.lm_head.weight.shape == (70, 32)

    @pytest.mark.parametrize("shape_kept", [True, False])
    def test_save_and_load_by_transformers(self, tmp_path: Path, shape_kept: bool) -> None:
        model = llama(tied=shape_kept)

        def step(model: Any) -> Any:
            model.save_pretrained(tmp_path)
            return type(model).from_pretrained(tmp_path)

        report, after = changed(model, step)
        assert report.findings == ()
        assert audit_module(after).findings == ()

    def test_a_parametrization_of_the_shared_parameter_still_shares_it(self) -> None:
        class Twice(nn.Module):
            def forward(self, weight: torch.Tensor) -> torch.Tensor:
                return weight * 2

        report, after = changed(Net(), lambda model: parametrize.register_parametrization(model.head, "weight", Twice()) and None)
        assert after.head.parametrizations.weight.original is after.embed.weight
        assert report.findings == ()

    def test_an_untied_model_that_becomes_tied_is_no_loss(self) -> None:
        def step(model: Any) -> None:
            model.head.weight = model.embed.weight

        assert changed(Net(tied=False), step)[0].findings == ()


class TestLost:
    def test_to_empty_on_the_meta_device(self) -> None:
        with torch.device("meta"):
            model = Net()
        assert audit_module(model).findings == ()
        report, after = changed(model, lambda model: model.to_empty(device="cpu"))
        assert not one_parameter(after)
        assert names_of(report) == LOST

    def test_a_move_to_the_meta_device(self) -> None:
        """torch gives every name a Parameter of its own where it cannot put new values into the old one."""
        report, after = changed(Net(), lambda model: model.to("meta"))
        assert not one_parameter(after)
        assert names_of(report) == [("lost-alias", "warning", ENDS)]
        assert "the meta device holds no values" in report.findings[0].message

    def test_loading_by_assignment_of_an_aliased_dict_is_half_an_alias(self) -> None:
        report, after = changed(Net(), lambda model: model.load_state_dict(model.state_dict(), assign=True) and None)
        assert after.embed.weight.data_ptr() == after.head.weight.data_ptr()
        assert names_of(report) == HALF
        assert names_of(audit_module(after)) == HALF
        # what the message says: a cast makes two of it
        half = snapshot(after)
        assert names_of(compare(half, after.to(torch.float64))) == LOST

    def test_each_half_gets_a_gradient_of_its_own(self) -> None:
        torch.manual_seed(0)
        whole, half = Net(), None
        half = copy.deepcopy(whole)
        half.load_state_dict(half.state_dict(), assign=True)
        for model in (whole, half):
            model(torch.arange(5)).square().sum().backward()
        assert torch.allclose(half.embed.weight.grad + half.head.weight.grad, whole.embed.weight.grad, atol=1e-5)
        assert not torch.allclose(half.embed.weight.grad, whole.embed.weight.grad, atol=1e-5)

    def test_loading_by_assignment_of_separate_tensors(self) -> None:
        def step(model: nn.Module) -> None:
            model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)

        report, after = changed(Net(), step)
        assert names_of(report) == LOST
        assert "equal in all elements that were sampled, but they will drift apart at the first step" in report.findings[0].message
        assert report.findings[0].evidence == "sampled"
        assert names_of(audit_module(after)) == [("lost-alias", "warning", ENDS)]  # nobody declares it: only the values tell

    def test_a_resize_of_one_side(self) -> None:
        def step(model: Any) -> None:
            model.embed = nn.Embedding(VOCAB + 2, WIDTH)

        report, _ = changed(Net(), step)
        assert names_of(report) == LOST
        assert f"{VOCAB + 2} × {WIDTH} F32 and {VOCAB} × {WIDTH} F32" in report.findings[0].message

    def test_a_resize_of_one_side_of_a_transformers_model(self) -> None:
        model = llama()
        model.lm_head.weight = nn.Parameter(torch.randn(70, 32))
        (finding,) = audit_module(model).findings
        assert (finding.rule, finding.severity) == ("lost-alias", "error")
        assert "64 × 32 and 70 × 32" in finding.message

    def test_a_deepcopy_of_a_part(self) -> None:
        def step(model: Any) -> None:
            model.head = copy.deepcopy(model.head)

        report, after = changed(Net(), step)
        assert names_of(report) == LOST
        assert names_of(audit_module(after)) == [("lost-alias", "warning", ENDS)]

    def test_a_cast_of_a_copy(self) -> None:
        model = Net()
        model.head = copy.deepcopy(model.head).half()
        (tie,) = audit_module(model, config=True).ties
        assert tie.relation == "equal after cast"
        assert tie.detail == "F32 and F16, equal after a cast"

    @pytest.mark.parametrize("new", [True, False], ids=["parametrization", "hook"])
    def test_weight_norm_of_one_side(self, new: bool) -> None:
        def step(model: Any) -> None:
            if new:
                parametrizations.weight_norm(model.head)
            else:
                with pytest.warns(FutureWarning):
                    nn.utils.weight_norm(model.head)

        report, after = changed(Net(), step)
        (finding,) = report.findings
        assert (finding.rule, finding.severity) == ("lost-alias", "error")
        parts = "original0 and original1" if new else "weight_g and weight_v"
        assert f"head.weight is no parameter any more but computed from" in finding.message  # noqa: F541
        assert parts.split(" and ", maxsplit=1)[0] in finding.message
        with pytest.raises(OptionError, match="it is computed from"):
            assert_tied(after, *ENDS)

    def test_weight_norm_of_one_side_of_a_transformers_model(self) -> None:
        model = llama()
        parametrizations.weight_norm(model.lm_head)
        (finding,) = audit_module(model).findings
        assert (finding.rule, finding.severity) == ("lost-alias", "error")
        assert "lm_head.weight is no parameter but computed from original0 and original1" in finding.message

    def test_empty_weights_of_accelerate_on_the_meta_device(self) -> None:
        accelerate = pytest.importorskip("accelerate")
        with accelerate.init_empty_weights():
            model = llama()
        assert model.lm_head.weight is not model.model.embed_tokens.weight
        assert names_of(audit_module(model)) == [("lost-alias", "warning", (EMBED, HEAD))]
        assert "the meta device holds no values" in audit_module(model).findings[0].message
        model.tie_weights()
        assert audit_module(model).findings == ()

    def test_two_of_four_names(self) -> None:
        def step(model: Any) -> None:
            model["c"].weight = nn.Parameter(model["c"].weight.detach().clone())
            model["d"].weight = model["c"].weight

        model = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in "abcd"})
        for name in "bcd":
            model[name].weight = model["a"].weight
        report, _ = changed(model, step)
        (finding,) = report.findings
        assert finding.message.startswith("c.weight, d.weight and a.weight = b.weight should be one Parameter")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
class TestAdapters:
    @pytest.fixture
    def wrap(self) -> Callable[..., Any]:
        peft = pytest.importorskip("peft")
        return lambda model, **keys: peft.get_peft_model(model, peft.LoraConfig(**{"target_modules": ["q_proj"], **keys}))

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"target_modules": ["q_proj", "lm_head"]},
            {"target_modules": ["q_proj", "embed_tokens"]},
            {"trainable_token_indices": [1, 2]},
            {"modules_to_save": ["model.embed_tokens"], "ensure_weight_tying": True},
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore:.*tie.*:UserWarning")
    def test_adapters_that_leave_the_tie_whole(self, wrap: Callable[..., Any], keys: dict[str, Any]) -> None:
        report, wrapped = changed(llama(), lambda model: wrap(model, **keys))
        assert report.findings == ()
        assert audit_module(wrapped).findings == ()
        merged = wrapped.merge_and_unload()
        assert merged.lm_head.weight is merged.model.embed_tokens.weight
        assert audit_module(merged).findings == ()

    @pytest.mark.filterwarnings("ignore:.*tie.*:UserWarning")
    def test_a_head_that_is_trained_apart(self, wrap: Callable[..., Any]) -> None:
        report, wrapped = changed(llama(), lambda model: wrap(model, modules_to_save=["lm_head"]))
        copied = (f"base_model.model.{EMBED}", "base_model.model.lm_head.modules_to_save.default.weight")
        for told in (report, audit_module(wrapped)):
            assert names_of(told) == [("lost-alias", "warning", copied)]
            assert told.findings[0].cause == "PEFT trains a copy of lm_head.weight (modules_to_save)"
        # PEFT from 0.19 on says in the config that the merged model is untied: then two matrices are right
        merged = wrapped.merge_and_unload()
        assert merged.config.tie_word_embeddings is False
        assert audit_module(merged).findings == ()
        # earlier ones left the flag
        merged.config.tie_word_embeddings = True
        merged.lm_head.weight.data.add_(1)
        assert names_of(audit_module(merged)) == [("lost-alias", "error", (EMBED, HEAD))]

    def test_an_untied_model_with_adapters_is_fine(self, wrap: Callable[..., Any]) -> None:
        report, wrapped = changed(llama(tied=False), lambda model: wrap(model, modules_to_save=["lm_head"]))
        assert report.findings == ()
        assert audit_module(wrapped).findings == ()


class TestQuantised:
    def test_torchao_of_the_head_alone(self) -> None:
        pytest.importorskip("torchao")
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        def step(model: nn.Module) -> None:
            quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda _, name: name == "lm_head")

        _, after = changed(llama(), step)
        (finding,) = audit_module(after).findings
        assert (finding.rule, finding.severity) == ("lost-alias", "warning")
        assert finding.cause == "lm_head.weight is quantised (Int8Tensor)"

    @pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
    @pytest.mark.parametrize("kind", ["Int8Params", "Params4bit"])
    def test_bitsandbytes_of_the_head_alone(self, kind: str) -> None:
        layers = pytest.importorskip("bitsandbytes").nn
        model = llama()
        values = model.lm_head.weight.data.clone()
        if kind == "Int8Params":
            model.lm_head = layers.Linear8bitLt(32, 64, bias=False, has_fp16_weights=False)
            model.lm_head.weight = layers.Int8Params(values, requires_grad=False, has_fp16_weights=False)
        else:
            model.lm_head = layers.Linear4bit(32, 64, bias=False)
            model.lm_head.weight = layers.Params4bit(values, requires_grad=False)
        model.to("cpu")
        (finding,) = audit_module(model).findings
        assert (finding.rule, finding.severity) == ("lost-alias", "warning")
        assert finding.cause == f"lm_head.weight is quantised ({kind})"

    def test_torchao_of_everything_in_an_untied_model_is_fine(self) -> None:
        pytest.importorskip("torchao")
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        model = llama(tied=False)
        quantize_(model, Int8WeightOnlyConfig())
        assert audit_module(model).findings == ()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
class TestDistributed:
    def test_ddp_keeps_the_tie(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        report, wrapped = changed(Net(), DistributedDataParallel)
        assert report.findings == ()
        assert audit_module(wrapped).findings == ()
        assert audit_module(wrapped).target == "DistributedDataParallel(Net)"
        assert names_of(audit_module(DistributedDataParallel(llama()))) == []

    @staticmethod
    def sharded(model: nn.Module, *units: str) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for unit in units:
            fully_shard(model.get_submodule(unit), mesh=mesh)
        return model

    @pytest.mark.parametrize("units", [("",), ("mid", "")], ids=["whole", "with a layer of its own"])
    def test_fsdp2_keeps_a_tie_whose_ends_are_in_one_unit(self, units: tuple[str, ...]) -> None:
        report, after = changed(Net(), lambda model: self.sharded(model, *units))
        assert one_parameter(after)
        assert report.findings == ()
        assert audit_module(after).findings == ()
        live, _ = look(after)
        assert {name.kind for name in live.names} == {"DTensor"}
        after(torch.arange(4)).sum().backward()
        assert audit_module(after, torch.optim.AdamW(after.parameters())).findings == ()

    @pytest.mark.parametrize("units", [("embed", "head"), ("head", "embed"), ("head",)], ids=str)
    def test_fsdp2_parts_ends_that_are_sharded_apart(self, units: tuple[str, ...]) -> None:
        """torch 2.13 raises only where a root unit holds both; without one the tie is lost silently."""
        report, after = changed(Net(), lambda model: self.sharded(model, *units))
        assert not one_parameter(after)
        assert names_of(report) == LOST
        (tie,) = audit_module(after, config=True).ties
        assert tie.relation == ("equal" if len(units) == 2 else "not comparable")
        assert names_of(audit_module(after, config=True)) == LOST

    def test_fsdp2_of_a_transformers_model(self) -> None:
        whole = self.sharded(llama(), "")
        assert audit_module(whole).findings == ()
        apart = self.sharded(llama(), "model.embed_tokens", "lm_head")
        assert [(finding.rule, finding.severity) for finding in audit_module(apart).findings] == [("lost-alias", "error")]

    @pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed")
    @pytest.mark.parametrize("original", [True, False])
    def test_fsdp1_is_never_accused(self, original: bool) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        report, wrapped = changed(
            Net(), lambda model: FullyShardedDataParallel(model, use_orig_params=original, device_id=torch.device("cpu"))
        )
        assert report.findings == ()
        assert audit_module(wrapped).findings == ()
        # a flat parameter has swallowed the names
        assert len(report.not_compared) == (0 if original else 2)


class TestSnapshot:
    def test_it_keeps_no_tensor_alive(self) -> None:
        model = Net()
        parameter = weakref.ref(model.embed.weight)
        taken = snapshot(model)
        del model
        gc.collect()
        assert parameter() is None
        assert [name.name for name in taken.names] == ["embed.weight", "mid.weight", "mid.bias", "head.weight"]
        assert pickle.loads(pickle.dumps(taken)) == taken  # noqa: S301

    def test_names_that_are_gone_are_listed(self) -> None:
        def step(model: Any) -> None:
            model.head = nn.Identity()

        report, _ = changed(Net(), step)
        assert report.findings == ()
        assert [(skip.subject, skip.reason) for skip in report.not_compared] == [("head.weight", "has no such name after")]

    def test_nothing_but_snapshots_and_modules_are_compared(self) -> None:
        with pytest.raises(OptionError, match="a Snapshot, or a torch"):
            compare({}, Net())  # type: ignore[arg-type]
        assert compare(Net(), Net()).findings == ()

    def test_a_half_alias_that_becomes_two(self) -> None:
        model = Net()
        model.load_state_dict(model.state_dict(), assign=True)
        report, after = changed(model, lambda model: model.to(torch.float64))
        assert names_of(report) == LOST
        assert "one memory before" in report.findings[0].message
        live, _ = look(after)
        assert [tie.sharing for tie in live.ties] == [Sharing.EQUAL_VALUES]
