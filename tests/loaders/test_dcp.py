"""Checkpoints of torch.distributed.checkpoint: what torch saves and loads is the truth, and what a hostile `.metadata` may say."""

from __future__ import annotations

import io
import pickle
import random
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: E402
from torch.distributed.checkpoint.metadata import (  # noqa: E402
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch_truth import DTYPES  # noqa: E402

from builders import folder, torch_zip  # noqa: E402
from tieaudit.checkpoint import Edition  # noqa: E402
from tieaudit.loaders import sharded  # noqa: E402
from tieaudit.loaders.training import blocks, dcp_items  # noqa: E402
from tieaudit.sources.local import LocalFolder  # noqa: E402
from tieaudit.sources.parts import Slice, Stitched, runs  # noqa: E402
from training_folders import E, H, U, checkpoint, load, raw, rewrite, save, save_sharded, the_edition, trained  # noqa: E402

WIDE = torch.arange(65 * 16, dtype=torch.float32).reshape(65, 16)


def assert_truth(path: Path, edition: Edition, truth: dict[str, torch.Tensor]) -> None:
    assert [tensor.name for tensor in edition.weights] == list(truth)
    for record in edition.weights:
        tensor = truth[record.name]
        assert (record.dtype, record.shape, record.nbytes) == (DTYPES[tensor.dtype], tuple(tensor.shape), tensor.nbytes)
        assert raw(path, record) == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# sound


@pytest.mark.parametrize("tied", [True, False])
def test_names_dtypes_bytes_and_optimizer_are_those_of_torch(tmp_path: Path, tied: bool) -> None:
    model, optimizer = trained(tied=tied)
    edition = the_edition(save(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    assert (edition.name, edition.format, edition.kind, edition.whole, edition.run) == (".metadata", "torch-dcp", "weights", True, True)
    assert_truth(tmp_path, edition, load(tmp_path, {"model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()}})["model"])
    state = {tensor.name: tensor.shape for tensor in edition.tensors if tensor.part}
    assert {tensor.part for tensor in edition.tensors} == {"", "optimizer"}
    assert state["optimizer.state.0.exp_avg"] == (32, 8)
    assert len([name for name in state if name.endswith("exp_avg")]) == (3 if tied else 4)
    (file,) = edition.files
    assert file.data == (("__0_0.distcp", (tmp_path / "__0_0.distcp").stat().st_size),)
    assert (file.problems, file.unread, file.globals and {found.danger for found in file.globals}) == ((), (), {""})


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_dtypes_scalars_and_empties(tmp_path: Path) -> None:
    tensors = {f"w{number}.weight": torch.arange(6).to(dtype).reshape(2, 3) for number, dtype in enumerate(DTYPES)}
    tensors |= {"a.scalar": torch.tensor(3.0), "a.empty": torch.zeros(0, 4), "a.row": torch.arange(5)}
    edition = the_edition(save(tmp_path, tensors))
    assert_truth(tmp_path, edition, tensors)
    assert edition.whole


@pytest.mark.parametrize("state", [lambda flat: flat, lambda flat: {"model": flat}, lambda flat: {"app": {"model": flat, "optim": {}}}])
def test_the_nested_dict_around_the_weights_is_no_part_of_their_names(tmp_path: Path, state: Callable[[Any], Any]) -> None:
    edition = the_edition(save(tmp_path, state({"model.embed_tokens.weight": E, "lm_head.weight": H})))
    assert [tensor.name for tensor in edition.weights] == ["model.embed_tokens.weight", "lm_head.weight"]


def test_without_a_planner_the_first_words_tell_the_optimizer(tmp_path: Path) -> None:
    save(tmp_path, {"embedding.word_embeddings.weight": E, "optimizer.state.exp_avg.embedding.word_embeddings.weight": E})
    edition = the_edition(rewrite(tmp_path, lambda metadata: setattr(metadata, "planner_data", None)))
    assert [(tensor.name, tensor.part) for tensor in edition.tensors] == [
        ("embedding.word_embeddings.weight", ""),
        ("optimizer.state.exp_avg.embedding.word_embeddings.weight", "optimizer"),
    ]


@pytest.mark.parametrize("world", [2, 4])
def test_a_tensor_sharded_over_ranks_is_one_record(tmp_path: Path, world: int) -> None:
    tensors = {"model.embed_tokens.weight": WIDE, "model.tiny.weight": torch.ones(1, 4), "lm_head.weight": WIDE.clone()}
    save_sharded(tmp_path, world, {name: (tensor, 0) for name, tensor in tensors.items()})
    edition = the_edition(tmp_path)
    assert_truth(tmp_path, edition, load(tmp_path, {"model": {k: torch.zeros_like(v) for k, v in tensors.items()}})["model"])
    assert [len(tensor.storage.pieces) for tensor in edition.weights] == [world, 0, world]
    assert {file for tensor in edition.weights for file, _, _ in tensor.storage.pieces} == {f"__{rank}_0.distcp" for rank in range(world)}


def test_blocks_of_columns_are_not_compared_and_it_is_said(tmp_path: Path) -> None:
    found = checkpoint(save_sharded(tmp_path, 2, {"model.up.weight": (U, 1), "model.embed_tokens.weight": (E, 0)}))
    up, embed = found.editions[0].weights
    assert (up.shape, up.storage.offset, up.storage.why) == ((32, 8), None, "is stored in 2 blocks that are no runs of rows")
    assert embed.storage.why == ""
    assert found.elsewhere == (("model.up.weight", "is stored in 2 blocks that are no runs of rows"),)
    assert found.editions[0].whole


def test_strides_are_not_taken_for_rows(tmp_path: Path) -> None:
    edition = the_edition(save(tmp_path, {"a.weight": torch.arange(6.0).reshape(2, 3).t(), "b.weight": torch.arange(6.0)}))
    assert [tensor.storage.why for tensor in edition.weights] == ["is stored with strides or compressed", ""]


def test_many_items_of_one_layout_are_not_all_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"layers.{number}.weight": torch.full((4, 4), float(number)) for number in range(40)}
    save(tmp_path, tensors)
    opened = LocalFolder(tmp_path)
    sharded.load(opened, "target")
    one_by_one = opened.meter.requests
    opened.close()
    monkeypatch.setattr(dcp_items, "MAX_LOOKED", 10)
    opened = LocalFolder(tmp_path)
    edition = sharded.load(opened, "target").editions[0]
    assert opened.meter.requests < one_by_one / 5
    opened.close()
    assert_truth(tmp_path, edition, tensors)
    assert sum(tensor.storage.crc is not None for tensor in edition.weights) == 3


def test_many_items_that_differ_in_layout_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {f"layers.{number}.weight": torch.arange(16.0).reshape(4, 4) for number in range(8)})

    def swap(metadata: Any) -> None:  # the last item is another tensor's in truth, moved by one item's length
        infos = list(metadata.storage_data.values())
        infos[-1].offset, infos[-1].length = infos[-1].offset + 64, infos[-1].length - 64

    rewrite(tmp_path, swap)
    monkeypatch.setattr(dcp_items, "MAX_LOOKED", 4)
    found = the_edition(tmp_path)
    assert len(found.weights) == 8  # the layout of the moved one is its own kind, and no zip
    assert [tensor.storage.why for tensor in found.weights if tensor.storage.why] == ["is stored in an item that is no zip of torch"]


def test_one_layout_is_not_taken_for_all_where_a_look_shows_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {f"layers.{number}.weight": torch.full((4, 4), float(number)) for number in range(6)})
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())  # noqa: S301
    begin, length = next(
        (stored.offset, stored.length) for index, stored in metadata.storage_data.items() if index.fqn == "layers.5.weight"
    )
    file = tmp_path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[begin : begin + length] = repacked(bytes(data[begin : begin + length]))
    file.write_bytes(bytes(data))
    assert_truth(tmp_path, the_edition(tmp_path), {f"layers.{number}.weight": torch.full((4, 4), float(number)) for number in range(6)})
    monkeypatch.setattr(dcp_items, "MAX_LOOKED", 5)
    whys = [tensor.storage.why for tensor in the_edition(tmp_path).weights]
    other = "is one of too many items that differ in layout"
    assert whys == ["", other, other, "", other, ""]


def repacked(item: bytes) -> bytes:
    """The item with the same members in another layout, as long as before."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(item)) as old, zipfile.ZipFile(buffer, "w") as new:
        for member in old.infolist():
            new.writestr(zipfile.ZipInfo(member.filename), old.read(member.filename))
        directory = sum(46 + len(member.filename) for member in new.infolist()) + 22  # bytes, with the end record
        new.comment = b" " * (len(item) - len(buffer.getvalue()) - directory)
    assert len(buffer.getvalue()) == len(item)
    return buffer.getvalue()


def test_fsdp_flat_parameters_hide_names(tmp_path: Path) -> None:
    edition = the_edition(save(tmp_path, {"_fsdp_wrapped_module._flat_param": torch.ones(64)}))
    assert not edition.whole
    assert edition.files[0].unread == (
        (
            "flat parameters of FSDP hide the names of the weights (_fsdp_wrapped_module._flat_param): save a full state dict, or use "
            "use_orig_params=True"
        ),
    )


def test_accelerates_folders_are_one_edition(tmp_path: Path) -> None:
    model, optimizer = trained(tied=True)
    save(tmp_path / "pytorch_model_fsdp_0", {"model": model.state_dict()})
    save(tmp_path / "optimizer_0", {"optimizer": optimizer.state_dict()})
    edition = the_edition(tmp_path)
    assert (edition.name, [file.name for file in edition.files]) == (
        "pytorch_model_fsdp_0",
        ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata"],
    )
    assert {tensor.part for tensor in edition.tensors} == {"", "optimizer"}
    assert {tensor.file for tensor in edition.weights} == {"pytorch_model_fsdp_0/__0_0.distcp"}


def test_the_file_itself_can_be_named(tmp_path: Path) -> None:
    save(tmp_path, {"a.weight": E})
    (edition,) = checkpoint(tmp_path, ".metadata").editions
    assert [tensor.name for tensor in edition.weights] == ["a.weight"]


# broken


def problems(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    found = checkpoint(path)
    read = [problem for edition in found.editions for file in edition.files for problem in file.problems]
    return [(problem.file, problem.what, problem.tensors) for problem in (*found.unreadable, *read)]


def two(path: Path) -> Path:
    return save(path, {"a.weight": E, "b.weight": H})


def info(metadata: Any, name: str) -> Any:
    return next(stored for index, stored in metadata.storage_data.items() if index.fqn == name)


def test_a_file_that_is_not_there_is_a_missing_shard(tmp_path: Path) -> None:
    save_sharded(tmp_path, 2, {"a.weight": (E, 0), "b.weight": (H, 0)})
    (tmp_path / "__1_0.distcp").unlink()
    edition = the_edition(tmp_path)
    assert (edition.missing, edition.whole) == (("__1_0.distcp",), False)
    assert [tensor.storage.why for tensor in edition.weights] == ["lies in __1_0.distcp, which is not there"] * 2


def test_a_cut_file(tmp_path: Path) -> None:
    two(tmp_path)
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    nbytes = file.stat().st_size
    begin = nbytes + 1 - 2601
    assert problems(tmp_path) == [
        (
            "__0_0.distcp",
            f"ends at byte {nbytes:,}, but .metadata puts the chunk of tensor 'b.weight' at [0, 0] at {begin:,} to {nbytes + 1:,}",
            ("b.weight",),
        )
    ]
    assert [tensor.name for tensor in the_edition(tmp_path).weights] == ["a.weight"]


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "a\\b", "x/../../y", ""])
def test_a_place_outside_of_the_folder_is_not_opened(tmp_path: Path, name: str) -> None:
    rewrite(two(tmp_path), lambda metadata: setattr(info(metadata, "a.weight"), "relative_path", name))
    assert problems(tmp_path) == [
        (
            ".metadata",
            f"puts the chunk of tensor 'a.weight' at [0, 0] into {name!r}, which leaves the folder: not opened",
            ("a.weight",),
        )
    ]


def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path: Path) -> None:
    inside = two(tmp_path / "inside")
    (tmp_path / "secret.distcp").write_bytes((inside / "__0_0.distcp").read_bytes())
    (inside / "__0_0.distcp").unlink()
    (inside / "__0_0.distcp").symlink_to(tmp_path / "secret.distcp")
    assert problems(inside)[0][:2] == (".metadata", "names the file '__0_0.distcp', which is a link that leaves the folder: not opened")
    assert the_edition(inside).weights == ()


def chunks(metadata: Any, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Tensor `a.weight` in these chunks, each in the item that it has."""
    stored = info(metadata, "a.weight")
    metadata.state_dict_metadata["a.weight"].chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size in boxes]
    metadata.storage_data = {MetadataIndex("a.weight", at): stored for at, _ in boxes}
    del metadata.state_dict_metadata["b.weight"]


@pytest.mark.parametrize(
    ("boxes", "what"),
    [
        ([((0, 0), (16, 8))], "has chunks of 128 elements in all, its size is 256"),
        ([((0, 0), (32, 8)), ((16, 0), (16, 8))], "has chunks that overlap"),
        ([((0, 0), (32, 4)), ((0, 2), (32, 6))], "has chunks that overlap"),
        ([((0, 0), (32, 4)), ((0, 5), (32, 3))], "has chunks of 224 elements in all, its size is 256"),
        ([((8, 0), (32, 8))], "has a chunk of [32, 8] at [8, 0], outside of its size [32, 8]"),
        ([((0, 0), (1 << 62, 1 << 62))], f"has a chunk of {[1 << 62, 1 << 62]} at [0, 0], outside of its size [32, 8]"),
        ([], "has no chunk"),
    ],
)
def test_chunks_that_are_no_tiling(tmp_path: Path, boxes: list[Any], what: str) -> None:
    rewrite(two(tmp_path), lambda metadata: chunks(metadata, boxes))
    assert problems(tmp_path) == [(".metadata", f"tensor 'a.weight' {what}", ("a.weight",))]


def test_two_chunks_at_one_place() -> None:
    assert blocks.fault_of_chunks((4, 2), [((0, 0), (2, 2)), ((0, 0), (2, 2))]) == "has two chunks at one place"
    assert blocks.fault_of_chunks((), [((), ())]) == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.storage_data.clear(), "does not say where {} lies"),
        (lambda m: setattr(info(m, "a.weight"), "offset", -1), "has no file, offset and length of {}"),
        (lambda m: setattr(m.state_dict_metadata["a.weight"], "size", "big"), "tensor 'a.weight' has a size that is not known"),
        (
            lambda m: setattr(m.state_dict_metadata["a.weight"].properties, "dtype", torch.strided),
            "tensor 'a.weight' has a dtype that is not known",
        ),
    ],
)
def test_metadata_that_does_not_say_enough(tmp_path: Path, change: Callable[[Any], object], what: str) -> None:
    rewrite(two(tmp_path), change)
    assert problems(tmp_path)[0] == (".metadata", what.format("the chunk of tensor 'a.weight' at [0, 0]"), ("a.weight",))


def test_an_item_that_is_another_tensor(tmp_path: Path) -> None:
    save(tmp_path, {"a.weight": E, "b.weight": E.double()})

    def swap(metadata: Any) -> None:
        a, b = info(metadata, "a.weight"), info(metadata, "b.weight")
        (a.offset, a.length), (b.offset, b.length) = (b.offset, b.length), (a.offset, a.length)

    rewrite(tmp_path, swap)
    assert [what for _, what, _ in problems(tmp_path)] == [
        "tensor 'a.weight': holds 32 × 8 F64 where .metadata says 32 × 8 F32",
        "tensor 'b.weight': holds 32 × 8 F32 where .metadata says 32 × 8 F64",
    ]
    assert the_edition(tmp_path).weights == ()


def test_transformed_items_are_not_compared(tmp_path: Path) -> None:
    rewrite(two(tmp_path), lambda metadata: setattr(info(metadata, "a.weight"), "transform_descriptors", ["zstd"]))
    assert [tensor.storage.why for tensor in the_edition(tmp_path).weights] == ["is stored compressed or otherwise transformed", ""]


def test_an_unfinished_save(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / ".metadata").unlink()
    assert problems(tmp_path) == [
        (
            ".metadata",
            "is not there; it is written last, so the save of the .distcp files beside it was not finished, and nothing reads them",
            (),
        )
    ]


def test_metadata_of_each_rank_is_not_read_and_it_is_said(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / ".metadata").rename(tmp_path / "__0_.metadata")
    found = checkpoint(tmp_path)
    assert (found.editions, found.unreadable) == ((), ())
    assert found.elsewhere == (("__0_.metadata", "each rank wrote a .metadata of its own (no collectives): such a checkpoint is not read"),)


def test_files_of_an_earlier_save_are_told(tmp_path: Path) -> None:
    two(tmp_path)
    folder(tmp_path, {"__3_0.distcp": b"old"})
    assert checkpoint(tmp_path).elsewhere == (
        ("__3_0.distcp", "is one of 1 .distcp files that .metadata does not name: nothing reads them"),
    )


@pytest.mark.parametrize("content", [b"", b"version: 1\n", pickle.dumps({"a": 1}), pickle.dumps([1] * 9)[:-2]])
def test_another_file_of_that_name_is_no_fault(tmp_path: Path, content: bytes) -> None:
    folder(tmp_path, {".metadata": content, "model.pt": torch_zip({"a.weight": E})})
    found = checkpoint(tmp_path)
    assert [edition.name for edition in found.editions] == ["model.pt"]
    assert found.unreadable == ()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch executed",)


def test_code_in_the_metadata_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "run", {"a.weight": E})
    file = tmp_path / "run" / ".metadata"
    metadata = pickle.loads(file.read_bytes())  # noqa: S301
    metadata.planner_data = {**metadata.planner_data, "x": Evil()}
    file.write_bytes(pickle.dumps(metadata))
    edition = the_edition(tmp_path / "run")
    assert {found.name for found in edition.files[0].globals if found.danger} == {"posix.system"}
    assert [tensor.name for tensor in edition.weights] == ["a.weight"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_code_before_a_fault_is_still_named(tmp_path: Path) -> None:
    save(tmp_path, {"a.weight": E})
    (tmp_path / ".metadata").write_bytes(b"\x80\x04cposix\nsystem\nX\x02\x00\x00\x00id\x85R0\xff")
    (file,) = the_edition(tmp_path).files
    assert [(found.name, found.danger) for found in file.globals] == [("posix.system", "call")]
    assert "0xff is no opcode" in file.problems[0].what


def many(count: int) -> Metadata:
    sizes = {f"w{n}": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([1]), []) for n in range(count)}
    for meta in sizes.values():
        meta.chunks = [ChunkStorageMetadata(torch.Size([0]), torch.Size([1]))]
    return Metadata(sizes, None, {MetadataIndex(name, [0]): _StorageInfo("__0_0.distcp", 0, 64) for name in sizes})


def test_metadata_beyond_the_budget_is_not_checked_rather_than_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tieaudit.loaders.pickle_machine import Budget
    from tieaudit.loaders.training import dcp_metadata

    folder(tmp_path, {".metadata": pickle.dumps(many(500)), "__0_0.distcp": bytes(64)})
    monkeypatch.setattr(dcp_metadata, "BUDGET", Budget(memory=100_000))
    edition = the_edition(tmp_path)
    assert (edition.files[0].problems, edition.whole) == ((), False)
    assert edition.files[0].unread == ("a .metadata beyond what is read of one (pickle: its objects would take more than 0 MiB)",)
    monkeypatch.setattr(dcp_metadata, "BUDGET", Budget(nbytes=100))
    nbytes = (tmp_path / ".metadata").stat().st_size
    assert the_edition(tmp_path).files[0].unread == (f"a .metadata of {nbytes:,} bytes, more than the 100 that are read",)


def test_thousands_of_faults_are_told_in_few_words(tmp_path: Path) -> None:
    metadata = many(5000)
    metadata.storage_data = {}
    folder(tmp_path, {".metadata": pickle.dumps(metadata), "__0_0.distcp": bytes(64)})
    started = time.process_time()
    (file,) = the_edition(tmp_path).files
    assert time.process_time() - started < 15
    assert len(file.problems) == 51
    assert file.problems[-1].what == "has 4,950 more faults of this kind"
    assert sorted(name for problem in file.problems for name in problem.tensors) == sorted(metadata.state_dict_metadata)


def test_hostile_metadata_takes_little_memory(tmp_path: Path) -> None:
    deep = b"\x80\x04" + b"(" * 100_000 + b"t" * 100_000 + b"."
    huge = b"\x80\x04X" + (1 << 31).to_bytes(4, "little") + b"a."
    for content in (deep, huge, b"\x80\x04" + b"]" * 300_000 + b".", b"\x80\x04\x8a\xff" + b"\xff" * 255 + b"."):
        folder(tmp_path, {".metadata": content, "__0_0.distcp": b""})
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert checkpoint(tmp_path).unreadable
        assert time.process_time() - started < 10
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_cut_anywhere_flip_any_byte(tmp_path: Path) -> None:
    rng = random.Random(5)
    save_sharded(tmp_path, 2, {"model.embed_tokens.weight": (E, 0), "lm_head.weight": (H, 0), "up.weight": (U, 1)})
    files = {name: (tmp_path / name).read_bytes() for name in (".metadata", "__0_0.distcp")}
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    for name, good in files.items():
        cuts = [good[:n] for n in range(0, len(good), max(1, len(good) // 100))]
        for _ in range(500):
            data = bytearray(good)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x28, 0x2E, 0x52, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            cuts.append(bytes(data))
        for data in cuts:
            (tmp_path / name).write_bytes(data)
            sizes[name] = len(data)
            for edition in checkpoint(tmp_path).editions:
                for record in edition.tensors:
                    for file, begin, n in record.storage.pieces or ((record.file, record.file_offset, record.nbytes),):
                        assert begin is None or begin + n <= sizes[file]
        (tmp_path / name).write_bytes(good)
        sizes[name] = len(good)


# parts of files, and runs of several


class Bytes:
    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data, self.nbytes = name, data, len(data)

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


def test_runs_of_several_files_read_as_one() -> None:
    a, b = Bytes("a", bytes(range(50))), Bytes("b", bytes(range(100, 150)))
    whole = Stitched("both", ((a, 10, 5), (b, 0, 0), (b, 40, 7), (a, 0, 3)))
    expected = a.data[10:15] + b.data[40:47] + a.data[:3]
    assert whole.nbytes == len(expected) == 15
    for offset in range(16):
        for n in range(16 - offset):
            assert whole.read(offset, n) == expected[offset : offset + n]
            buffer = bytearray(n)
            whole.read_into(offset, memoryview(buffer))
            assert bytes(buffer) == expected[offset : offset + n]
    assert runs((("a", 10, 5), ("b", 40, 7)), 3, 4) == [("a", 13, 2), ("b", 40, 2)]
    for offset, n in ((-1, 1), (0, 16), (15, 1), (0, -1)):
        with pytest.raises(Exception, match="15 bytes of this tensor"):
            whole.read(offset, n)


def test_a_part_of_a_file_reads_as_a_file() -> None:
    part = Slice(Bytes("a", bytes(range(50))), 10, 5)
    assert (part.name, part.nbytes, part.read(1, 3)) == ("a", 5, bytes([11, 12, 13]))
    with pytest.raises(Exception, match="an item of 5 bytes, of which 3 more are needed"):
        part.read(3, 3)
