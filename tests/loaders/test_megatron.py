"""Folders of Megatron, laid out as its sources write them: tensor, pipeline and expert ranks, copies of the embedding, Megatron-core."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from builders import folder, torch_zip  # noqa: E402
from tieaudit.checkpoint import Ends, Wiring  # noqa: E402
from training_folders import E, H, U, checkpoint, megatron, megatron_args, raw, save, the_edition  # noqa: E402

EMBED, HEAD, FC = "embedding.word_embeddings.weight", "output_layer.weight", "decoder.layers.0.mlp.linear_fc1.weight"
FIRST, LAST = {EMBED: E, FC: U}, {FC: U, HEAD: E}
FALSE = "untie_embeddings_and_output_weights is false in the run's args"
TRUE = "untie_embeddings_and_output_weights is true in the run's args"


def ends(path: Path) -> list[tuple[str, str, bool | None, str]]:
    return [(one.embedding, one.head, one.tied, one.source) for edition in checkpoint(path).editions for one in edition.ends]


@pytest.mark.parametrize("named", ["run", "iteration"])
def test_one_stage(tmp_path: Path, named: str) -> None:
    megatron(tmp_path, {"mp_rank_00": FIRST}, megatron_args(untied=False))
    path = tmp_path if named == "run" else tmp_path / "iter_0000100"
    edition = the_edition(path)
    base = "iter_0000100/" if named == "run" else ""
    assert (edition.name, edition.format, edition.whole, edition.run, edition.foreign) == (
        f"{base}mp_rank_00",
        "megatron",
        True,
        True,
        True,
    )
    assert [(tensor.name, tensor.file) for tensor in edition.weights] == [
        (EMBED, f"{base}mp_rank_00/model_optim_rng.pt"), (FC, f"{base}mp_rank_00/model_optim_rng.pt"),
    ]  # fmt: skip
    assert raw(path, edition.weights[1]) == U.numpy().tobytes()
    assert ends(path) == [(EMBED, HEAD, True, FALSE)]
    assert checkpoint(path).elsewhere == ()


def test_stages_have_names_of_their_own(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00_000": FIRST, "mp_rank_00_001": LAST}, megatron_args(untied=False, pipeline=2))
    edition = the_edition(tmp_path)
    assert [tensor.name for tensor in edition.weights] == [f"stage0.{EMBED}", f"stage0.{FC}", f"stage1.{FC}", f"stage1.{HEAD}"]
    (found,) = edition.ends
    assert found == Ends(
        embedding=f"stage0.{EMBED}",
        head=f"stage1.{HEAD}",
        source=FALSE,
        tied=True,
        wiring=Wiring.REPLICA,
        absent="Megatron does not load the checkpoint without it",
        advice="restore it from the run, or load with the flag that it was trained with",
    )


def test_one_edition_for_each_tensor_rank(tmp_path: Path) -> None:
    stages = {f"mp_rank_{tensor:02d}_{stage:03d}": (FIRST, LAST)[stage] for tensor in range(3) for stage in range(2)}
    found = checkpoint(megatron(tmp_path, stages, megatron_args(untied=True, tensor=3, pipeline=2)))
    assert [(edition.name, len(edition.files), edition.whole) for edition in found.editions] == [
        (f"iter_0000100/mp_rank_{tensor:02d}", 2, True) for tensor in range(3)
    ]
    assert ends(tmp_path) == [(f"stage0.{EMBED}", f"stage1.{HEAD}", False, TRUE)] * 3


def test_missing_stages_and_ranks(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00_000": FIRST, "mp_rank_00_001": LAST}, megatron_args(untied=False, tensor=2, pipeline=3))
    first, second = checkpoint(tmp_path).editions
    assert (first.missing, first.whole) == (("iter_0000100/mp_rank_00_002/model_optim_rng.pt",), False)
    assert (second.name, second.missing) == ("iter_0000100/mp_rank_01", ("iter_0000100/mp_rank_01_000/model_optim_rng.pt",))


def test_without_the_last_stage_no_head_is_missed(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00_000": FIRST}, megatron_args(untied=True, pipeline=2))
    assert ends(tmp_path) == []


def test_experts_are_ranks_too(tmp_path: Path) -> None:
    both = {"mp_rank_00_000": FIRST, "mp_rank_00_001": FIRST}
    found = checkpoint(megatron(tmp_path, both, megatron_args(untied=False, expert_model_parallel_size=2)))
    (edition,) = found.editions  # one stage: the second number counts experts
    assert [file.name for file in edition.files] == ["iter_0000100/mp_rank_00_000/model_optim_rng.pt"]
    assert found.elsewhere == (("iter_0000100/", "has 1 folders of further expert-parallel ranks, which are not read"),)
    four = {f"mp_rank_00_{stage:03d}_{expert:03d}": (FIRST, LAST)[stage] for stage in range(2) for expert in range(2)}
    found = checkpoint(megatron(tmp_path / "four", four, megatron_args(untied=False, pipeline=2)))
    assert [file.name for file in found.editions[0].files] == [
        "iter_0000100/mp_rank_00_000_000/model_optim_rng.pt", "iter_0000100/mp_rank_00_001_000/model_optim_rng.pt",
    ]  # fmt: skip


def test_the_names_of_older_releases(tmp_path: Path) -> None:
    first = {"language_model": {"embedding": {"word_embeddings": {"weight": E}}}}
    last = {"language_model": {"encoder": {"final_layernorm.weight": U[0]}}, "word_embeddings_for_head": {"weight": E}}
    megatron(tmp_path, {"mp_rank_00_000": first, "mp_rank_00_001": last}, megatron_args(untied=None, pipeline=2))
    assert ends(tmp_path) == [
        (
            "stage0.language_model.embedding.word_embeddings.weight",
            "stage1.word_embeddings_for_head.weight",
            True,
            "word_embeddings_for_head is the last stage's copy of the embedding",
        )
    ]


def test_copies_of_the_embedding_on_further_stages(tmp_path: Path) -> None:
    stages = {"mp_rank_00_000": FIRST, "mp_rank_00_001": {**LAST, EMBED: E}}
    megatron(tmp_path, stages, megatron_args(untied=False, pipeline=2))
    assert ends(tmp_path) == [
        (f"stage0.{EMBED}", f"stage1.{HEAD}", True, FALSE),
        (f"stage0.{EMBED}", f"stage1.{EMBED}", True, "each stage that embeds tokens keeps a copy of the embedding"),
    ]


def test_interleaved_stages(tmp_path: Path) -> None:
    content = [{"model0": FIRST, "model1": {FC: U}}, {"model0": {FC: U}, "model1": LAST}]
    args = megatron_args(untied=False, pipeline=2)
    files = {f"iter_0000100/mp_rank_00_{n:03d}/model_optim_rng.pt": torch_zip({"args": args, **content[n]}) for n in range(2)}
    folder(tmp_path, {**files, "latest_checkpointed_iteration.txt": b"100"})
    assert ends(tmp_path) == [(f"stage0.model0.{EMBED}", f"stage1.model1.{HEAD}", True, FALSE)]


def test_without_args_nobody_says(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00": {**FIRST, HEAD: H}}, None)
    assert ends(tmp_path) == [(EMBED, HEAD, None, "the checkpoint keeps no args of its run")]
    megatron(tmp_path, {"mp_rank_00": {**FIRST, HEAD: H}}, megatron_args(untied=None))
    assert ends(tmp_path) == [(EMBED, HEAD, None, "the run's args say nothing of untie_embeddings_and_output_weights")]


def test_optimizer_files_beside_the_model(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00": FIRST}, megatron_args(untied=False))
    folder(tmp_path / "iter_0000100" / "mp_rank_00", {"distrib_optim.pt": torch_zip({0: {"param": torch.ones(64)}})})
    edition = the_edition(tmp_path)
    assert [(tensor.name, tensor.part) for tensor in edition.tensors] == [(EMBED, ""), (FC, ""), ("param", "optimizer")]


def test_a_release_and_a_model_without_random_state(tmp_path: Path) -> None:
    megatron(tmp_path, {"mp_rank_00": FIRST}, megatron_args(untied=False), iteration="release", marker="release\n")
    there = tmp_path / "release" / "mp_rank_00"
    (there / "model_optim_rng.pt").rename(there / "model_rng.pt")
    edition = the_edition(tmp_path)
    assert [file.name for file in edition.files] == ["release/mp_rank_00/model_rng.pt"]


@pytest.mark.parametrize("marker", ["../..", "9" * 11, "-1", "", "1e2", "/", "release/../iter_0000100"])
def test_a_marker_with_anything_but_an_iteration(tmp_path: Path, marker: str) -> None:
    found = checkpoint(megatron(tmp_path, {"mp_rank_00": FIRST}, megatron_args(untied=False), marker=marker))
    assert found.editions == ()


def test_args_that_are_no_args(tmp_path: Path) -> None:
    wild: list[Any] = [3, "a", [1], {"pipeline_model_parallel_size": -5, "tensor_model_parallel_size": "many"}, torch.Size([1])]
    for number, args in enumerate(wild):
        content = {"args": args, "model": FIRST}
        path = folder(tmp_path / str(number), {"mp_rank_00/model_optim_rng.pt": torch_zip(content)})
        assert [tensor.name for tensor in the_edition(path).weights] == [EMBED, FC]
    sizes = megatron_args(untied=False)
    sizes.pipeline_model_parallel_size = sizes.tensor_model_parallel_size = 1 << 60
    megatron(tmp_path / "huge", {"mp_rank_00_000": FIRST}, sizes)
    found = checkpoint(tmp_path / "huge")
    assert len(found.editions) == 1024
    assert len(found.editions[0].missing) == 1023


# Megatron-core


def core(path: Path, tensors: dict[str, Any], args: object = None, backend: str = "torch_dist") -> Path:
    save(path / "iter_0000100", tensors)
    common = {} if args is None else {"iter_0000100/common.pt": torch_zip({"args": args, "iteration": 100})}
    metadata = json.dumps({"sharded_backend": backend, "sharded_backend_version": 1, "common_backend": "torch"}).encode()
    return folder(path, {**common, "iter_0000100/metadata.json": metadata, "latest_checkpointed_iteration.txt": b"100"})


@pytest.mark.parametrize("named", ["run", "iteration"])
def test_core_tied_is_one_key(tmp_path: Path, named: str) -> None:
    core(tmp_path, {EMBED: E, FC: U}, megatron_args(untied=False))
    path = tmp_path if named == "run" else tmp_path / "iter_0000100"
    edition = the_edition(path)
    assert (edition.format, edition.whole, edition.run, edition.foreign) == ("megatron-dist", True, True, True)
    assert [tensor.name for tensor in edition.tensors] == [EMBED, FC]
    assert ends(path) == [(EMBED, HEAD, True, FALSE)]


def test_core_by_its_rule_where_no_args_are_kept(tmp_path: Path) -> None:
    rule = "Megatron-core saves a tied head under the embedding's key, and "
    assert ends(core(tmp_path / "a", {EMBED: E})) == [(EMBED, HEAD, True, rule + "none is stored")]
    assert ends(core(tmp_path / "b", {EMBED: E, HEAD: H})) == [(EMBED, HEAD, False, rule + "a head is stored")]


def test_another_backend_is_read_as_what_it_is(tmp_path: Path) -> None:
    assert the_edition(core(tmp_path, {EMBED: E}, backend="zarr")).format == "torch-dcp"


def test_cut_anywhere_flip_any_byte(tmp_path: Path) -> None:
    rng = random.Random(8)
    megatron(tmp_path, {"mp_rank_00_000": FIRST, "mp_rank_00_001": LAST}, megatron_args(untied=False, pipeline=2))
    file = tmp_path / "iter_0000100" / "mp_rank_00_000" / "model_optim_rng.pt"
    good = file.read_bytes()
    for _ in range(250):
        data = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        checkpoint(tmp_path)
