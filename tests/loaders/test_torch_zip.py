"""The zip format, held to torch's own reading of the same bytes."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_truth import assert_same, by_name, load, outcome, saved, scripted, state_dicts, torch

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile
from tieaudit.errors import FormatError
from tieaudit.loaders import torch_zip

# torch warns about TorchScript, quantization, complex32 and sparse tensors
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def repacked(source: MemorySource, *, drop: str = "", add: dict[str, bytes] | None = None, method: int = 0) -> MemorySource:
    """The same archive as Python's zipfile writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source.data)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for info in old.infolist():
            if not drop or not info.filename.endswith(drop):
                new.writestr(info.filename, old.read(info.filename))
        for name, raw in (add or {}).items():
            new.writestr(f"{info.filename.split('/')[0]}/{name}", raw)
    return MemorySource(source.name, buffer.getvalue())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state_dicts(), st.sampled_from([2, 3, 4, 5]))
def test_reads_what_torch_reads(state_dict: dict[str, torch.Tensor], protocol: int) -> None:
    source = saved(state_dict, protocol=protocol)
    truth = torch.load(io.BytesIO(source.data), weights_only=protocol == 2)
    found = torch_zip.load(source)
    assert found.problems == ()
    assert found.dead == ()
    assert found.format == "torch-zip"
    assert_same(source, found, truth)


def test_crc_is_that_of_the_bytes() -> None:
    source = saved({"a": torch.arange(100)})
    (storage,) = torch_zip.load(source).storages
    assert storage.offset is not None
    assert storage.crc == zlib.crc32(source.data[storage.offset : storage.offset + storage.nbytes])


def test_files_without_crcs_have_none() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        source = saved({"a": torch.arange(100), "b": torch.ones(3)})
    finally:
        torch.serialization.set_crc32_options(True)
    found = torch_zip.load(source)
    assert [storage.crc for storage in found.storages] == [None, None]
    assert_same(source, found, torch.load(io.BytesIO(source.data)))


def test_other_alignments_are_followed() -> None:
    from torch.utils.serialization import config

    config.save.storage_alignment = 4096
    try:
        source = saved({"a": torch.arange(10), "b": torch.ones(3)})
    finally:
        config.save.storage_alignment = 64
    assert_same(source, torch_zip.load(source), torch.load(io.BytesIO(source.data)))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_repacked_archive_is_read(method: int) -> None:
    source = repacked(saved({"a": torch.arange(50), "b": torch.ones(7)}), method=method)
    found = torch_zip.load(source)
    assert found.problems == ()
    assert [record.name for record in found.tensors] == ["a", "b"]
    if method == zipfile.ZIP_STORED:
        assert_same(source, found, {"a": torch.arange(50), "b": torch.ones(7)})
    else:
        assert [storage.offset for storage in found.storages] == [None, None]


def test_reads_are_few_and_small() -> None:
    source = saved({f"layers.{i}.weight": torch.ones(64, 64) for i in range(300)})
    found = torch_zip.load(source)
    assert len(found.tensors) == 300
    assert source.meter.requests <= 6
    assert source.meter.bytes_read < 120_000


def test_tensor_outside_its_storage_is_a_problem_and_left_out() -> None:
    source = saved({"a": torch.ones(4), "b": torch.ones(2)})
    data = bytearray(source.data)
    at = data.index(b"\x85", data.index(b"_rebuild_tensor_v2")) - 1  # size of `a`: BININT1 4, TUPLE1
    assert data[at] == 4
    data[at] = 5
    found = torch_zip.load(MemorySource("x", bytes(data)))
    assert [record.name for record in found.tensors] == ["b"]
    (problem,) = found.problems
    assert problem.tensors == ("a",)
    assert "ends at byte 20" in problem.what


def test_missing_and_unused_storages_are_seen() -> None:
    source = saved({"a": torch.ones(4), "b": torch.ones(2)})
    missing = torch_zip.load(repacked(source, drop="data/1"))
    assert [record.name for record in missing.tensors] == ["a"]
    assert [problem.tensors for problem in missing.problems] == [("b",)]
    unused = torch_zip.load(repacked(source, add={"data/7": b"12345678"}))
    assert [(storage.ident, storage.nbytes) for storage in unused.storages][-1] == ("data/7", 8)
    assert unused.problems == ()


def test_storage_shorter_than_said_is_a_problem() -> None:
    found = torch_zip.load(repacked(saved({"a": torch.ones(4)}), drop="data/0", add={"data/0": b"1234"}))
    assert found.tensors == ()
    assert "has 4 bytes in storage 'data/0', the pickle says 16" in found.problems[0].what


def test_bytes_outside_of_members_are_dead() -> None:
    source = saved({"a": torch.ones(4)})
    longer = MemorySource("x", source.data + b"\0" * 100)
    assert torch_zip.load(longer).dead == ((source.nbytes, source.nbytes + 100),)


@pytest.mark.parametrize(("word", "notes", "problems"), [(b"little", 0, 0), (b"big", 1, 0), (b"middle", 0, 1)])
def test_byteorder_member(word: bytes, notes: int, problems: int) -> None:
    source = repacked(saved({"a": torch.ones(4)}), drop="byteorder", add={"byteorder": word})
    found = torch_zip.load(source)
    assert (len(found.unread), len(found.problems)) == (notes, problems)


def test_two_members_of_one_name_are_a_problem() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch_zip.load(repacked(saved({"a": torch.ones(4)}), add={"DATA/0": b"x", "version": b"3"}))
    assert len([problem for problem in found.problems if "two members are named" in problem.what]) == 2


def test_two_pickles_are_refused() -> None:
    for name in ("data.pkl", "DATA.PKL"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = repacked(saved({"a": torch.ones(4)}), add={name: b"N."})
        with pytest.raises(FormatError, match="which one is loaded is not certain"):
            torch_zip.load(source)


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(2))
        self.scale = torch.ones(3)  # neither parameter nor buffer

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)) * torch.tensor([2.0])


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.rnn = torch.nn.LSTM(3, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids)


def weights(found: LoadedFile) -> list[str]:
    return [record.name for record in found.tensors if not record.part]


def test_whole_module_has_the_names_of_its_state_dict() -> None:
    module = Outer()
    found = torch_zip.load(saved(module))
    records = by_name(found)
    assert weights(found) == list(module.state_dict())
    assert [name for name, record in records.items() if record.part == "other"] == ["inner.scale"]
    assert records["inner.embed.weight"].view == records["inner.head.weight"].view
    assert found.problems == ()


def test_torchscript_archive_is_read_like_its_state_dict() -> None:
    module = Inner()
    source = scripted(module)
    found = torch_zip.load(source)
    assert found.format == "torchscript"
    assert found.problems == ()
    assert set(weights(found)) >= set(module.state_dict())
    records = by_name(found)
    assert records["embed.weight"].view == records["head.weight"].view
    assert {name.danger for name in found.globals} == {""}


def test_optimizer_and_averages_are_parts() -> None:
    module = Inner()
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.tensor([1])).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 3,
        "state_dict": module.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "ema": {"embed.weight": torch.ones(5, 3)},
        "rng_state": torch.get_rng_state(),
    }
    found = torch_zip.load(saved(checkpoint))
    assert weights(found) == list(module.state_dict())
    parts = {record.name: record.part for record in found.tensors if record.part}
    assert parts == {
        "optimizer_states.0.state.0.step": "optimizer",
        "optimizer_states.0.state.0.exp_avg": "optimizer",
        "optimizer_states.0.state.0.exp_avg_sq": "optimizer",
        "ema.embed.weight": "other",
        "rng_state": "other",
    }
    alone = torch_zip.load(saved(optimizer.state_dict()))
    assert {record.part for record in alone.tensors} == {"optimizer"}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (torch.ones(2), ["tensor"]),
        ([torch.ones(2), torch.ones(3)], ["0", "1"]),
        ({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, ["a", "b.c"]),
        ({"model": {"x.weight": torch.ones(2)}, "iteration": 7}, ["x.weight"]),
        ({"model": {"state_dict": {"x": torch.ones(2)}, "args": {}}}, ["x"]),
        ({"weight": torch.ones(2), "bias": torch.ones(2)}, ["weight", "bias"]),
        ({"model.x": torch.ones(2), "model": {"y": torch.ones(2)}}, ["model.x", "model.y"]),
        ({"generator": {"x": torch.ones(9)}, "critic": {"x": torch.ones(9)}}, ["generator.x", "critic.x"]),
        ({"mine": {"x": torch.ones(9)}, "epoch": 1}, ["x"]),
        ({"ema": {"x": torch.ones(9)}, "step": 1}, ["x"]),
        ({3: torch.ones(2), None: torch.ones(2)}, ["3", "None"]),
    ],
)
def test_names(value: object, names: list[str]) -> None:
    assert weights(torch_zip.load(saved(value))) == names


def test_one_object_under_two_names_is_two_tensors() -> None:
    tensor = torch.ones(3)
    records = by_name(torch_zip.load(saved({"a": tensor, "b": tensor})))
    assert records["a"].view == records["b"].view


def test_objects_that_contain_themselves_end() -> None:
    loop: dict[str, object] = {"x": torch.ones(1)}
    loop["self"] = loop
    assert weights(torch_zip.load(saved(loop))) == ["x"]


def test_sparse_and_quantized_tensors_show_their_parts() -> None:
    sparse = torch.eye(3).to_sparse()
    compressed = torch.eye(3).to_sparse_csr()
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.quint8)
    channels = torch.quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.qint8)
    found = torch_zip.load(saved({"s": sparse, "c": compressed, "q": quantized, "p": channels}))
    assert {record.name: record.dtype for record in found.tensors} == {
        "s.indices": "I64",
        "s.values": "F32",
        "c.compressed_indices": "I64",
        "c.plain_indices": "I64",
        "c.values": "F32",
        "q": "QU8",
        "p": "QI8",
        "p.scales": "F32",
        "p.zero_points": "F32",
    }
    assert found.problems == ()


def test_meta_tensors_are_told_as_unread() -> None:
    found = torch_zip.load(saved({"a": torch.ones(2), "m": torch.ones(2, device="meta")}))
    assert weights(found) == ["a"]
    assert found.unread == ("1 tensors on the meta device: no values are stored (m)",)


def test_subclasses_and_parameters_with_attributes_are_tensors() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.note = torch.zeros(2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = torch_zip.load(saved({"p": parameter, "n": nested}))
    names = [record.name for record in found.tensors]
    assert names[:2] == ["p", "p.note"]
    assert "n.values" in names


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["a.npy", "b.npy"], "numpy archive"),
        (["metadata.json", "config.json", "model.weights.h5"], "Keras"),
        (["readme.txt"], "zip without data.pkl"),
        (["x/.data/extern_modules"], "torch.package"),
        (["x/archive_format", "x/models/model.json"], "torch.export"),
    ],
)
def test_other_zips_are_named(names: list[str], what: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    with pytest.raises(FormatError, match=what):
        torch_zip.load(MemorySource("x", buffer.getvalue()))


def test_header_that_points_nowhere_is_a_problem() -> None:
    source = saved({"a": torch.ones(4), "b": torch.ones(4)})
    data = bytearray(source.data)
    entry = data.index(b"data/1", data.index(b"PK\x01\x02")) - 46 - len("archive/")
    struct.pack_into("<I", data, entry + 42, 2_000_000_000)
    found = torch_zip.load(MemorySource("x", bytes(data)))
    assert any("outside of the members" in problem.what for problem in found.problems)
    assert by_name(found)["b"].file_offset is None


def test_directory_beyond_all_measure_is_refused_before_it_is_read() -> None:
    for count, nbytes, what in ((1_000_000, 1000, "1,000,000 members"), (100, 40 << 20, "41,943,040 bytes")):
        end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, nbytes, 0)
        locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 46 << 20, 1)
        end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        source = MemorySource("x", b"PK\x03\x04" + b"\0" * ((46 << 20) - 4) + end64 + locator + end)
        with pytest.raises(FormatError, match=what):
            torch_zip.load(source)
        assert source.meter.bytes_read < 100_000


def test_deflated_bomb_is_not_inflated() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (65 << 20))
    with pytest.raises(FormatError, match="more than the 67,108,864 that are read"):
        torch_zip.load(MemorySource("x", buffer.getvalue()))
    data = bytearray(buffer.getvalue())  # the same, but the directory understates what comes out
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, entry + 24, 1000)
    struct.pack_into("<I", data, 22, 1000)
    with pytest.raises(FormatError, match="not the 1,000 bytes"):
        torch_zip.load(MemorySource("x", bytes(data)))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_the_pickle_is_named_and_not_run(tmp_path, monkeypatch, protocol: int) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    found = torch_zip.load(saved({"a": torch.ones(2), "x": Evil()}, protocol=protocol))
    assert weights(found) == ["a"]
    assert {name.name: name.danger for name in found.globals}["posix.system"] == "call"
    assert list(tmp_path.iterdir()) == []


def test_code_before_a_fault_is_still_named() -> None:
    pickle = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R0\xff"
    found = torch_zip.load(repacked(saved({}), drop="data.pkl", add={"data.pkl": pickle}))
    assert [name.danger for name in found.globals] == ["call"]
    assert "0xff is no opcode" in found.problems[0].what


def test_cut_anywhere_flip_any_byte() -> None:
    rng = random.Random(7)
    small = saved({"state_dict": {"a": torch.ones(3, 2).t(), "b": torch.nn.Parameter(torch.ones(2))}, "optimizer": Evil()})
    sources = [small, repacked(small), repacked(small, method=zipfile.ZIP_DEFLATED), scripted(torch.nn.Linear(1, 2))]
    for source in sources:
        cuts = [source.data[:n] for n in range(0, source.nbytes, max(1, source.nbytes // 300))]
        for _ in range(1200):
            data = bytearray(source.data)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x28, 0x2E, 0x52, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            cuts.append(bytes(data))
        for data in cuts:
            found = outcome(lambda data=data: torch_zip.load(MemorySource("x", data)))
            for record in found.tensors if isinstance(found, LoadedFile) else ():
                assert record.offset + (record.nbytes if record.strides is None else 0) <= record.storage.nbytes
                place = record.storage.offset
                assert place is None or place + record.storage.nbytes <= len(data)


def test_sniff() -> None:
    assert torch_zip.sniff(saved({}).data[:16])
    assert not torch_zip.sniff(b"\x80\x02}q\x00.")
    assert load(saved({})).tensors == ()
