"""Folders of DeepSpeed, laid out as its sources write them: weights, partitions, and what `shared_params` may say."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from builders import folder, safetensors, torch_zip  # noqa: E402
from training_folders import E, H, U, checkpoint, deepspeed, raw, the_edition  # noqa: E402

EMBED, UP, HEAD = "model.embed_tokens.weight", "model.layers.0.up.weight", "lm_head.weight"
WHY = "has its values in flat partitions (optim_states files), which are not compared; zero_to_fp32.py joins them"


@pytest.mark.parametrize("inside", [True, False])
def test_zero_2_by_its_marker_or_by_itself(tmp_path: Path, inside: bool) -> None:
    deepspeed(tmp_path)
    base = "" if inside else "global_step100/"
    path = tmp_path / "global_step100" if inside else tmp_path
    edition = the_edition(path)
    assert (edition.name, edition.format, edition.whole, edition.run) == (
        "mp_rank_00_model_states.pt" if inside else "global_step100", "deepspeed", True, True,
    )  # fmt: skip
    assert [file.name for file in edition.files] == [
        f"{base}{name}"
        for name in (
            "mp_rank_00_model_states.pt",
            "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        )
    ]
    assert [(tensor.name, tensor.shape) for tensor in edition.weights] == [(EMBED, (32, 8)), (UP, (32, 8)), (HEAD, (32, 8))]
    embed, up, head = edition.weights
    assert embed.view == head.view != up.view
    assert raw(path, up) == U.numpy().tobytes()
    assert edition.aliases == {HEAD: EMBED}
    assert {tensor.part for file in edition.files[1:] for tensor in file.tensors} == {"optimizer"}
    assert checkpoint(path).elsewhere == ()


def test_zero_3_has_names_and_shapes_and_no_values(tmp_path: Path) -> None:
    edition = the_edition(deepspeed(tmp_path, stage=3))
    assert [(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes) for tensor in edition.weights] == [
        (EMBED, (32, 8), "BF16", 512), (UP, (32, 8), "BF16", 512), (HEAD, (32, 8), "BF16", 512),
    ]  # fmt: skip
    assert {(tensor.storage.offset, tensor.storage.nbytes, tensor.storage.why) for tensor in edition.weights} == {(None, 0, WHY)}
    assert edition.weights[0].view == edition.weights[2].view
    assert [len(file.tensors) for file in edition.files] == [3, 0, 1, 1]
    assert edition.whole
    assert checkpoint(tmp_path).elsewhere == ((f"{EMBED} and 2 more", WHY),)


def test_zero_3_keeps_a_placeholder_that_nothing_explains(tmp_path: Path) -> None:
    edition = the_edition(deepspeed(tmp_path, stage=3, shapes={EMBED: E.shape, "model.frozen.weight": U.shape}))
    assert [(tensor.name, tensor.shape) for tensor in edition.weights] == [
        (EMBED, (32, 8)), (UP, (0,)), (HEAD, (32, 8)), ("model.frozen.weight", (32, 8)),
    ]  # fmt: skip


def test_an_alias_of_nothing_is_left_out(tmp_path: Path) -> None:
    edition = the_edition(deepspeed(tmp_path, stage=3, shapes={UP: U.shape}, shared={HEAD: "gone.weight", EMBED: "gone.weight"}))
    assert [tensor.name for tensor in edition.weights] == [UP]
    assert edition.aliases == {HEAD: "gone.weight", EMBED: "gone.weight"}


def test_one_edition_for_each_model_parallel_rank(tmp_path: Path) -> None:
    deepspeed(tmp_path)
    folder(tmp_path / "global_step100", {"mp_rank_01_model_states.pt": torch_zip({"module": {EMBED: H}, "param_shapes": []})})
    assert [edition.name for edition in checkpoint(tmp_path).editions] == [
        "global_step100/mp_rank_00_model_states.pt",
        "global_step100/mp_rank_01_model_states.pt",
    ]


def test_files_of_layers_and_experts_are_told(tmp_path: Path) -> None:
    deepspeed(tmp_path)
    names = ("layer_00-model_00-model_states.pt", "layer_0_expert_3_mp_rank_00_model_states.pt")
    folder(tmp_path / "global_step100", dict.fromkeys(names, b""))
    found = checkpoint(tmp_path)
    (note,) = found.elsewhere
    assert note[1] == "is one of 2 files of single layers or experts, which are not read"
    assert not found.editions[0].whole


@pytest.mark.parametrize("latest", ["../outside", "global_step100/../..", "a/b", "..", ".", "", "x" * 300, "a\\b", "a\nb", "\x1b[2J"])
def test_a_marker_with_anything_but_the_name_of_a_folder_here(tmp_path: Path, latest: str) -> None:
    deepspeed(tmp_path / "outside")
    path = deepspeed(tmp_path / "run", latest=latest)
    found = checkpoint(path)
    assert found.editions == ()
    assert found.elsewhere == (("global_step100/", "a folder of its own with 3 files of weights: audit it by its path"),)


def test_a_marker_that_a_release_kept(tmp_path: Path) -> None:
    folder(tmp_path, {"latest": b"global_step7\n", "model.safetensors": safetensors({EMBED: E.numpy()})})
    found = checkpoint(tmp_path)
    assert [edition.name for edition in found.editions] == ["model.safetensors"]
    assert found.elsewhere == (("latest", "names the folder 'global_step7', which is not here"),)


def test_a_marker_that_names_a_link_is_not_followed(tmp_path: Path) -> None:
    deepspeed(tmp_path / "outside")
    run = folder(tmp_path / "run", {"latest": b"global_step100"})
    (run / "global_step100").symlink_to(tmp_path / "outside" / "global_step100")
    assert checkpoint(run).editions == ()


def test_a_broken_file_leaves_the_rest(tmp_path: Path) -> None:
    deepspeed(tmp_path)
    folder(tmp_path / "global_step100", {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": b"broken"})
    found = checkpoint(tmp_path)
    assert [problem.what for problem in found.unreadable] == ["is no torch file"]
    assert [len(edition.weights) for edition in found.editions] == [3]
    assert not found.editions[0].whole


def test_classes_are_told_once_and_calls_in_every_file(tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> tuple[object, tuple[()]]:
            return os.getpid, ()

    deepspeed(tmp_path, ranks=1)
    for rank in range(3):
        content = {"optimizer_state_dict": {"a": torch.ones(3), "call": Call(), "kind": torch.nn.modules.container.ModuleDict}}
        folder(tmp_path / "global_step100", {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_zip(content)})
    edition = the_edition(tmp_path)
    named = [[(one.name, one.danger) for one in file.globals if one.danger] for file in edition.files]
    unknown = ("torch.nn.modules.container.ModuleDict", "unknown")
    call = ("posix.getpid", "call")
    assert sum(unknown in one for one in named) == 1
    assert sum(call in one for one in named) == 3


def test_cut_anywhere_flip_any_byte(tmp_path: Path) -> None:
    rng = random.Random(6)
    deepspeed(tmp_path, stage=3)
    file = tmp_path / "global_step100" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    good = file.read_bytes()
    for _ in range(250):
        data = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        checkpoint(tmp_path)
