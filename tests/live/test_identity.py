"""Which objects and which memory stand behind names: checked against `is` and `data_ptr` of the tensors themselves."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from live_models import VOCAB, WIDTH, Net
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tieaudit.alive import Live, LiveName
from tieaudit.live import compare
from tieaudit.live.identity import Named, collect, numbered


def names(model: nn.Module) -> dict[str, LiveName]:
    return collect(model).by_name()


def tensors(**named: torch.Tensor) -> dict[str, LiveName]:
    return numbered(Named(name, tensor) for name, tensor in named.items()).by_name()


def test_every_name_of_every_parameter_and_buffer_is_listed_in_torchs_order() -> None:
    model = nn.ModuleDict({"a": nn.BatchNorm1d(3), "b": nn.Linear(3, 3)})
    model["again"] = model["a"]
    found = names(model)
    assert {name for name, one in found.items() if not one.buffer} == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert {name for name, one in found.items() if one.buffer} == {name for name, _ in model.named_buffers(remove_duplicate=False)}
    assert found["a.weight"].parameter == found["again.weight"].parameter != found["b.weight"].parameter
    assert found["a.running_mean"].parameter == found["again.running_mean"].parameter


def test_numbers_of_objects_and_memory_are_those_of_is_and_data_ptr() -> None:
    model = Net()
    model.mid.weight = nn.Parameter(model.embed.weight[:WIDTH].detach())  # a second Parameter over a part of the same memory
    found = names(model)
    embed, head, mid = found["embed.weight"], found["head.weight"], found["mid.weight"]
    assert (embed.parameter, embed.storage) == (head.parameter, head.storage)
    assert embed.parameter != mid.parameter
    assert embed.storage == mid.storage
    assert embed.data_ptr == model.embed.weight.data_ptr()
    assert (embed.nbytes, mid.nbytes, mid.storage_nbytes) == (VOCAB * WIDTH * 4, WIDTH * WIDTH * 4, VOCAB * WIDTH * 4)
    assert found["mid.bias"].storage not in (embed.storage, None)
    assert (embed.dtype, embed.device, embed.shape, embed.trains, embed.kind) == ("F32", "cpu", (VOCAB, WIDTH), True, "")


def test_offsets_and_strides_tell_views_apart() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    found = tensors(whole=whole, rows=whole[2:], turned=whole.T, third=whole[:, ::3])
    assert len({one.storage for one in found.values()}) == 1
    assert [(one.offset, one.strides) for one in found.values()] == [(0, None), (12, None), (0, (1, 6)), (0, (6, 3))]


def test_a_thousand_freed_tensors_never_look_like_one() -> None:
    """The address of a freed tensor comes back at once; all are held while numbers are given out."""
    found = numbered(Named(str(number), torch.full((50, 50), float(number))) for number in range(1000))
    gc.collect()
    assert len({one.storage for one in found.names}) == len({one.parameter for one in found.names}) == 1000


def test_on_the_meta_device_only_the_object_tells() -> None:
    with torch.device("meta"):
        tied, untied = names(Net()), names(Net(tied=False))
    assert all(one.storage is None and one.data_ptr == 0 for one in (*tied.values(), *untied.values()))
    assert tied["embed.weight"].parameter == tied["head.weight"].parameter
    assert untied["embed.weight"].parameter != untied["head.weight"].parameter


def test_a_fake_tensor_has_no_memory_although_it_names_a_device() -> None:
    with FakeTensorMode():
        found = names(Net())
    assert (found["embed.weight"].device, found["embed.weight"].storage, found["embed.weight"].kind) == ("cpu", None, "FakeTensor")
    assert found["embed.weight"].parameter == found["head.weight"].parameter


def test_tensors_without_elements_or_shape_share_nothing() -> None:
    found = tensors(a=torch.empty(0), b=torch.empty(0, 4))
    assert [one.storage for one in found.values()] == [None, None]
    lazy = names(nn.LazyLinear(3))
    assert [(one.shape, one.storage) for one in lazy.values()] == [((), None), ((), None)]


def test_two_storages_over_one_memory_are_one() -> None:
    array = np.zeros(8, dtype=np.float32)
    found = tensors(a=torch.from_numpy(array), b=torch.from_numpy(array), c=torch.zeros(8))
    assert found["a"].storage == found["b"].storage != found["c"].storage


def test_a_lazy_clone_is_no_alias_and_stays_lazy() -> None:
    first = torch.ones(4)
    clone = torch._lazy_clone(first)
    found = tensors(a=first, b=clone)
    assert found["a"].storage != found["b"].storage
    assert torch._C._is_cow_tensor(clone)


def test_sparse_tensors_are_listed_without_memory() -> None:
    assert tensors(a=torch.eye(3).to_sparse())["a"].storage is None


def test_a_quantised_tensor_is_seen_through_its_parts() -> None:
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(32, 64, bias=False))
    quantize_(model, Int8WeightOnlyConfig())
    model.append(model[0])
    first, second = names(model).values()
    assert (first.kind, first.shape, first.dtype) == ("Int8Tensor", (64, 32), "F32")
    assert first.storage == second.storage is not None
    assert first.data_ptr != 0
    assert first.nbytes < 64 * 32 * 4


def test_a_module_that_holds_itself_ends() -> None:
    model = Net()
    model.mid.owner = model
    assert "mid.owner.embed.weight" not in names(model)
    assert {"embed.weight", "head.weight", "mid.weight"} <= set(names(model))


def test_buffers_outside_the_state_dict_are_marked() -> None:
    model = nn.Module()
    model.register_buffer("kept", torch.ones(2))
    model.register_buffer("left", torch.ones(2), persistent=False)
    assert {name: one.stored for name, one in names(model).items()} == {"kept": True, "left": False}
    assert set(model.state_dict()) == {"kept"}


def test_counted_and_unique_parameters_are_torchs() -> None:
    model = Net()
    live = Live(model="Net", moment="", names=collect(model).names)
    assert live.unique == sum(parameter.numel() for parameter in model.parameters())
    assert live.counted == sum(parameter.numel() for _, parameter in model.named_parameters(remove_duplicate=False))
    assert live.counted - live.unique == VOCAB * WIDTH


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_equality_is_of_bits(dtype: torch.dtype) -> None:
    first = torch.randint(0, 2, (300, 70)).to(dtype)
    second = first.clone()
    assert compare.equal(first, second)
    second[299, 69] = not first[299, 69]
    assert not compare.equal(first, second)


def test_nan_equals_nan_and_zero_is_not_minus_zero() -> None:
    first = torch.tensor([float("nan"), 1.0])
    assert compare.equal(first, first.clone())
    assert not compare.equal(torch.zeros(3), -torch.zeros(3))


def test_chunks_cover_everything_in_any_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK", 64)
    monkeypatch.setattr(compare, "FIRST", 8)
    whole = torch.randn(50, 20)
    for first in (whole, whole.T, whole[:, ::2], whole[3:7, 2:5], whole.reshape(10, 5, 20), whole[0], whole[0, 0]):
        for second in (first.clone(), first.clone(memory_format=torch.contiguous_format)):
            assert compare.equal(first, second)
            second.as_strided((1,), (1,), second.numel() - 1)[0] += 1
            assert not compare.equal(first, second)


def test_a_cast_is_told_from_a_difference() -> None:
    wide = torch.randn(64, 64)
    assert compare.equal_after_cast(wide, wide.bfloat16())
    assert compare.equal_after_cast(wide.half(), wide)
    other = wide.bfloat16()
    other[1, 1] += 1
    assert not compare.equal_after_cast(wide, other)
    assert not compare.equal_after_cast(wide, wide.clone())


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(3000), True),
        (torch.full((3, 900), float("nan")), True),
        (torch.tensor(2.0), True),
        (torch.arange(3.0), False),
        (torch.cat([torch.zeros(2999), torch.ones(1)]), False),
    ],
)
def test_constants_are_known(tensor: torch.Tensor, expected: bool) -> None:
    assert compare.constant(tensor) is expected


def test_a_comparison_of_large_matrices_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory of the compare is a few chunks, whatever the tensors are."""
    monkeypatch.setattr(compare, "CHUNK", 1 << 12)
    sizes = []
    real = compare._bits
    monkeypatch.setattr(compare, "_bits", lambda tensor: sizes.append(tensor.numel()) or real(tensor))
    first = torch.randn(1000, 64)
    assert compare.equal(first, first.clone())
    assert max(sizes) <= 1 << 12
    assert sum(sizes) == 2 * first.numel()


def test_fingerprints_agree_exactly_for_equal_tensors() -> None:
    first = torch.randn(100, 30)
    assert compare.fingerprint(first) == compare.fingerprint(first.clone()) == compare.fingerprint(first.T.contiguous().T)
    other = first.clone()
    other[0, 0] += 1
    assert compare.fingerprint(other) != compare.fingerprint(first)
    assert compare.fingerprint(torch.empty(3, device="meta")) == ""
    assert compare.fingerprint(torch.tensor(3.0)) != ""


class TestProbe:
    def test_a_write_is_seen_through_an_alias_and_not_through_a_copy(self) -> None:
        first = torch.randn(5, 4)
        assert compare.seen_through([first, first.T, first]) is True
        assert compare.seen_through([first, first.clone()]) is False
        assert compare.seen_through([first, first, first.clone()]) is False

    def test_one_element_is_no_group(self) -> None:
        assert compare.seen_through([torch.ones(3)]) is None

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn])
    def test_every_bit_is_as_before(self, dtype: torch.dtype) -> None:
        first = torch.randint(0, 2, (6,)).to(dtype)
        before = bytes(first.view(torch.uint8).numpy())
        assert compare.seen_through([first, first.view(6)]) is True
        assert bytes(first.view(torch.uint8).numpy()) == before

    def test_a_nan_keeps_its_payload(self) -> None:
        first = torch.tensor([0x7FC01234, 0], dtype=torch.int32).view(torch.float32)
        assert compare.seen_through([first, first.view(2)]) is True
        assert first.view(torch.int32)[0] == 0x7FC01234

    def test_it_is_put_back_when_looking_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = torch.randn(4)
        before, changed = first.clone(), []

        def fails(*_: object) -> bool:
            changed.append(not torch.equal(first, before))
            raise RuntimeError("no")

        monkeypatch.setattr(compare, "_agree", fails)
        with pytest.raises(RuntimeError, match="no"):
            compare.seen_through([first, first.view(4)])
        assert changed == [True]
        assert torch.equal(first, before)

    def test_a_backward_pass_that_saved_the_tensor_goes_on(self) -> None:
        weight = nn.Parameter(torch.randn(3, 3))
        loss = ((weight * 2) * weight).sum()
        version = weight._version
        assert compare.seen_through([weight, weight]) is True
        assert weight._version == version
        loss.backward()
        assert torch.equal(weight.grad, 4 * weight.detach())

    def test_inference_tensors_and_frozen_ones_can_be_probed(self) -> None:
        with torch.inference_mode():
            made = torch.randn(3)
        before = made.tolist()
        assert compare.seen_through([made, made]) is True
        assert made.tolist() == before
        frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        with torch.inference_mode():
            assert compare.seen_through([frozen, frozen]) is True

    def test_memory_that_cannot_be_written_is_left_alone(self, tmp_path) -> None:
        path = tmp_path / "weights"
        np.arange(4, dtype=np.float32).tofile(path)
        array = np.memmap(path, dtype=np.float32, mode="r")
        with pytest.warns(UserWarning, match="not writable"):
            tensor = torch.from_numpy(array)
        assert compare.seen_through([tensor, tensor]) is None

    def test_one_file_mapped_twice_is_one_memory(self, tmp_path) -> None:
        path = tmp_path / "weights"
        np.random.default_rng(0).random(4).astype(np.float32).tofile(path)
        first, second = (torch.from_file(str(path), shared=True, size=4) for _ in range(2))
        assert first.data_ptr() != second.data_ptr()
        assert compare.seen_through([first, second]) is True

    def test_meta_tensors_are_not_probed(self) -> None:
        tensor = torch.empty(3, device="meta")
        assert compare.seen_through([tensor, tensor]) is None
