"""The format before torch 1.6, held to torch's own reading of the same bytes."""

from __future__ import annotations

import io
import pickle
import random
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_truth import assert_same, by_name, outcome, saved, state_dicts, torch

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile
from tieaudit.errors import FormatError
from tieaudit.loaders import torch_legacy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch executed",)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state_dicts(), st.sampled_from([2, 3, 4, 5]))
def test_reads_what_torch_reads(state_dict: dict[str, torch.Tensor], protocol: int) -> None:
    source = saved(state_dict, legacy=True, protocol=protocol)
    try:
        truth = torch.load(io.BytesIO(source.data), weights_only=protocol == 2)
    except AttributeError:  # torch 2.13 writes float8, uint16, … in this format but cannot read them
        truth = {name: tensor.detach() for name, tensor in state_dict.items()}
    assert torch_legacy.sniff(source.data[:16])
    found = torch_legacy.load(source)
    assert found.problems == ()
    assert found.dead == ()
    assert found.format == "torch-legacy"
    assert_same(source, found, truth)


def test_views_of_one_storage_are_one_storage() -> None:
    flat = torch.arange(30.0)  # as cuDNN keeps the weights of an LSTM: one buffer, disjoint views
    source = saved({"weight_ih": flat[:12].view(4, 3), "weight_hh": flat[12:28].view(4, 4), "bias": flat[28:]}, legacy=True)
    found = torch_legacy.load(source)
    assert [record.offset for record in found.tensors] == [0, 48, 112]
    assert len(found.storages) == 1
    assert_same(source, found, torch.load(io.BytesIO(source.data)))


def test_whole_lstm_has_the_names_of_its_state_dict() -> None:
    module = torch.nn.LSTM(3, 2, num_layers=2)
    found = torch_legacy.load(saved(module, legacy=True))
    assert [record.name for record in found.tensors] == list(module.state_dict())


def test_reads_are_few_and_small() -> None:
    source = saved({f"layers.{i}.weight": torch.ones(64, 64) for i in range(300)}, legacy=True)
    found = torch_legacy.load(source)
    assert len(found.tensors) == 300
    assert source.meter.requests <= 6
    assert source.meter.bytes_read < 270_000


def test_pickle_longer_than_the_first_window() -> None:
    truth = {f"a_rather_long_name_of_a_layer.{i}.weight": torch.ones(1) for i in range(4000)}
    source = saved(truth, legacy=True)
    assert_same(source, torch_legacy.load(source), truth)


def test_truncated_file_keeps_what_is_whole() -> None:
    source = saved({"a": torch.ones(100), "b": torch.ones(100)}, legacy=True)
    found = torch_legacy.load(MemorySource("x", source.data[:-100]))
    assert len(found.tensors) == 1
    assert "truncated" in found.problems[0].what
    assert {name for problem in found.problems for name in problem.tensors} == {"a", "b"} - set(by_name(found))


def test_trailing_bytes_are_dead() -> None:
    source = saved({"a": torch.ones(4)}, legacy=True)
    assert torch_legacy.load(MemorySource("x", source.data + b"123")).dead == ((source.nbytes, source.nbytes + 3),)


def test_wrong_count_is_a_problem() -> None:
    source = saved({"a": torch.ones(4)}, legacy=True)
    data = bytearray(source.data)
    data[-24] = 3  # the count before the last 16 bytes
    found = torch_legacy.load(MemorySource("x", bytes(data)))
    assert "has 3 elements" in found.problems[0].what
    assert found.tensors == ()


def test_plain_pickle_is_named() -> None:
    for protocol in (2, 3, 4, 5):
        raw = pickle.dumps({"a": [1, 2]}, protocol=protocol)
        assert torch_legacy.sniff(raw[:16])
        with pytest.raises(FormatError, match="plain pickle"):
            torch_legacy.load(MemorySource("x", raw))


def test_code_in_a_plain_pickle_is_named_and_not_run(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    found = torch_legacy.load(MemorySource("x", pickle.dumps(Evil(), protocol=2)))
    assert [(name.name, name.danger) for name in found.globals] == [("posix.system", "call")]
    assert "plain pickle" in found.problems[0].what
    found = torch_legacy.load(saved({"a": torch.ones(1), "x": Evil()}, legacy=True))
    assert {name.name: name.danger for name in found.globals}["posix.system"] == "call"
    assert [record.name for record in found.tensors] == ["a"]
    assert list(tmp_path.iterdir()) == []


def test_plain_pickles_of_protocol_0_are_known_too() -> None:
    raw = pickle.dumps(Evil(), protocol=0)
    assert torch_legacy.sniff(raw)
    assert [name.danger for name in torch_legacy.load(MemorySource("x", raw)).globals] == ["call"]


def test_tar_is_recognised() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            archive.addfile(tarfile.TarInfo(name))
    data = buffer.getvalue()
    assert torch_legacy.sniff(data[:16])
    with pytest.raises(FormatError, match="re-save it with a newer torch"):
        torch_legacy.load(MemorySource("x", data))


def test_cut_anywhere_flip_any_byte() -> None:
    rng = random.Random(11)
    tensors = {"state_dict": {"a": torch.ones(3, 2).t(), "b": torch.nn.Parameter(torch.ones(2))}, "optimizer": Evil()}
    for protocol in (2, 4):
        source = saved(tensors, legacy=True, protocol=protocol)
        mutants = [source.data[:n] for n in range(2, source.nbytes)]
        for _ in range(2000):
            data = bytearray(source.data)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(2, len(data))] = rng.choice([0, 1, 0x28, 0x2E, 0x52, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            mutants.append(bytes(data))
        for data in mutants:
            found = outcome(lambda data=data: torch_legacy.load(MemorySource("x", data)))
            for storage in found.storages if isinstance(found, LoadedFile) else ():
                assert storage.offset is not None
                assert storage.offset + storage.nbytes <= len(data)
