"""The writers against the formats' own libraries: the same bytes as safetensors writes, and what torch itself loads."""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fix_reading import same
from safetensors.torch import load_file, save_file

from builders import EMBED, HEAD, config, folder, index, matrix, safetensors, tied, torch_legacy, torch_zip, untied
from tieaudit import apply_fix, audit, plan_fix
from tieaudit.fix.jsontext import with_value

BIN, WEIGHTS, INDEX = "pytorch_model.bin", "model.safetensors", "pytorch_model.bin.index.json"
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64",
          "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "complex64")  # fmt: skip


def of_every_dtype() -> dict[str, torch.Tensor]:
    raw = torch.arange(240, dtype=torch.uint8)
    found = {f"z.{name}": (raw % 2 if name == "bool" else raw).view(getattr(torch, name)).clone() for name in DTYPES}
    return found | {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), 'ünï"\\\n\x01': torch.ones(3, dtype=torch.int8)}


def test_a_safetensors_file_has_the_bytes_that_the_library_writes(tmp_path: Path) -> None:
    weights = of_every_dtype()
    folder(tmp_path / "in", {"config.json": tied(), BIN: torch_zip(weights)})
    apply_fix(plan_fix(tmp_path / "in", to="safetensors"), tmp_path / "out")
    save_file(weights, tmp_path / "truth.safetensors", {"format": "pt"})
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (tmp_path / "truth.safetensors").read_bytes()


def test_metadata_stays_and_the_order_is_the_library_s(tmp_path: Path) -> None:
    one = torch.from_numpy(matrix(1).copy())
    weights = {EMBED: one, HEAD: one.clone(), "b.bias": torch.ones(3).half(), "a.norm": torch.ones(5)}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_bytes(tied())
    save_file(weights, tmp_path / "in" / WEIGHTS, {"note": "ä\n"})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    del weights[HEAD]
    save_file(weights, tmp_path / "truth.safetensors", {"note": "ä\n"})
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (tmp_path / "truth.safetensors").read_bytes()


def test_an_alias_note_is_turned_round_with_the_name(tmp_path: Path) -> None:
    folder(tmp_path / "in", {"config.json": tied(), WEIGHTS: safetensors({HEAD: matrix(1)}, {EMBED: HEAD, "format": "pt"})})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    data = (tmp_path / "out" / WEIGHTS).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", HEAD: EMBED}
    assert set(header) == {"__metadata__", EMBED}


@pytest.mark.parametrize("save", [torch_zip, torch_legacy])
def test_torch_loads_what_is_written_as_torch(save: object, tmp_path: Path) -> None:
    weights = of_every_dtype()
    wide = torch.arange(4096, dtype=torch.float32)
    weights |= {"slice": wide[64:128], "swapped": wide[256:512].view(16, 16).t(), "inside": wide[96:112]}
    weights["param"] = torch.nn.Parameter(wide[1000:1064].view(8, 8))
    state = OrderedDict(weights)
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    folder(
        tmp_path / "in",
        {BIN: save({"model": state, "epoch": 3, "lr": 0.5, "shape": torch.Size((2, 3)), "name": "x", "dtype": torch.float16})},
    )  # type: ignore[operator]
    plan = plan_fix(tmp_path / "in")
    assert [step.rule for step in plan.steps] == ["oversize-storage"]
    apply_fix(plan, tmp_path / "out")
    loaded = torch.load(tmp_path / "out" / BIN, weights_only=True)
    assert {key: value for key, value in loaded.items() if key != "model"} == {
        "epoch": 3, "lr": 0.5, "shape": torch.Size((2, 3)), "name": "x", "dtype": torch.float16}  # fmt: skip
    model = loaded["model"]
    assert list(model) == list(state)
    assert model._metadata == state._metadata  # type: ignore[attr-defined]
    assert all(same(model[name], tensor) for name, tensor in weights.items())
    assert model["swapped"].stride() == (1, 16)
    assert isinstance(model["param"], torch.nn.Parameter)
    assert model["inside"].data_ptr() == model["slice"].data_ptr() + 32 * 4  # what overlapped still does
    assert model["slice"].untyped_storage().nbytes() == 64 * 4
    assert torch.load(tmp_path / "out" / BIN, weights_only=True, mmap=True)["model"]["slice"][5] == 69
    assert audit(tmp_path / "out").findings == ()


def test_the_zip_is_sound_and_aligned(tmp_path: Path) -> None:
    wide = torch.arange(4096, dtype=torch.float32)
    folder(tmp_path / "in", {BIN: torch_zip({"a": wide[:100], "b": torch.ones(7, dtype=torch.int8)})})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "out" / BIN) as archive:
        assert archive.testzip() is None
        data = (tmp_path / "out" / BIN).read_bytes()
        for info in archive.infolist():
            name, extra = (int.from_bytes(data[info.header_offset + at : info.header_offset + at + 2], "little") for at in (26, 28))
            assert (info.header_offset + 30 + name + extra) % 64 == 0
            assert info.compress_type == zipfile.ZIP_STORED


def test_a_strided_tensor_becomes_row_major(tmp_path: Path) -> None:
    big = torch.arange(3 * 1024 * 1024, dtype=torch.int32).view(3, 1024, 1024)
    weights = {"x": big.permute(2, 0, 1), "y": torch.arange(60, dtype=torch.bfloat16).view(6, 10)[:, ::2], "z": torch.ones(1).expand(5)}
    folder(tmp_path / "in", {BIN: torch_zip(weights)})
    apply_fix(plan_fix(tmp_path / "in", to="safetensors"), tmp_path / "out")
    loaded = load_file(tmp_path / "out" / WEIGHTS)
    assert all(same(loaded[name], tensor) for name, tensor in weights.items())


def test_what_cannot_be_told_again_is_left_with_the_way(tmp_path: Path) -> None:
    wide = torch.arange(4096, dtype=torch.float32)
    folder(tmp_path / "in", {BIN: torch_zip({"a": wide[:100], "hook": complex(1, 2)})})
    plan = plan_fix(tmp_path / "in")
    assert plan.verdict == "unrepaired"
    assert [(left.rule, left.way) for left in plan.left] == [("oversize-storage", "--to safetensors")]
    apply_fix(plan_fix(tmp_path / "in", to="safetensors"), tmp_path / "out")
    assert same(load_file(tmp_path / "out" / WEIGHTS)["a"], wide[:100])


def test_shards_of_torch_become_safetensors_with_their_index(tmp_path: Path) -> None:
    one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    embed, head = (torch.from_numpy(matrix(seed).copy()) for seed in (1, 1))
    files = {"config.json": tied(), INDEX: index({EMBED: one, "norm.weight": two, HEAD: two}, 3072)}
    norm = torch.from_numpy(matrix(4).copy())
    folder(tmp_path / "in", files | {one: torch_zip({EMBED: embed}), two: torch_zip({"norm.weight": norm, HEAD: head})})
    apply_fix(plan_fix(tmp_path / "in", to="safetensors"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]  # fmt: skip
    told = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert told == {
        "metadata": {"total_size": 2048},
        "weight_map": {EMBED: "model-00001-of-00002.safetensors", "norm.weight": "model-00002-of-00002.safetensors"},
    }
    assert same(load_file(tmp_path / "out" / "model-00002-of-00002.safetensors")["norm.weight"], norm)


def test_a_tie_across_torch_shards_is_left_out_of_the_later_one(tmp_path: Path) -> None:
    one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    embed, norm = (torch.from_numpy(matrix(seed).copy()) for seed in (1, 4))
    files = {"config.json": tied(), INDEX: index({EMBED: one, "norm.weight": two, HEAD: two}, 3072)}
    folder(tmp_path / "in", files | {one: torch_zip({EMBED: embed}), two: torch_zip({"norm.weight": norm, HEAD: embed.clone()})})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    assert set(torch.load(tmp_path / "out" / two)) == {"norm.weight"}
    assert json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"] == {EMBED: one, "norm.weight": two}
    assert (tmp_path / "out" / one).read_bytes() == (tmp_path / "in" / one).read_bytes()


def test_a_shard_of_which_nothing_stays_is_left_out(tmp_path: Path) -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = {one: safetensors({EMBED: matrix(1)}), two: safetensors({HEAD: matrix(1)})}
    folder(tmp_path / "in", {"config.json": tied(), "model.safetensors.index.json": index({EMBED: one, HEAD: two}, 2048), **files})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", one, "model.safetensors.index.json"]
    assert audit(tmp_path / "out").findings == ()


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"a": 1}', "b", '{"a": 1, "b": true}'),
        ("{}", "b", '{"b": true}'),
        ('{\n  "a": 1e-05,\n  "b": null\n}\n', "b", '{\n  "a": 1e-05,\n  "b": true\n}\n'),
        ('{\r\n\t"a" : {"b":[1 , {"b": 2}]} , "b":false}', "b", '{\r\n\t"a" : {"b":[1 , {"b": 2}]} , "b":true}'),
        ('{"a": {"x": "}"}, "c": 2}', "a.b", '{"a": {"x": "}", "b": true}, "c": 2}'),
        ('{"b": 1, "b": 2}', "b", '{"b": true, "b": true}'),
        ('\ufeff{\n "a": {\n  "x": 1\n }\n}', "a.b", '\ufeff{\n "a": {\n  "x": 1,\n  "b": true\n }\n}'),
        ('{"a\\u0062": 1}', "ab", '{"a\\u0062": true}'),
    ],
)
def test_one_value_of_a_text_is_replaced(text: str, path: str, expected: str) -> None:
    assert with_value(text, path.split("."), "true") == expected


def test_the_flag_stands_in_every_reading(tmp_path: Path) -> None:
    text = {"model_type": "mistral", "vocab_size": 32, "hidden_size": 8}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": text,
        "tie_word_embeddings": True,
    }
    names = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
    content = safetensors({name: matrix(seed) for seed, name in enumerate(names)})
    folder(tmp_path / "in", {"config.json": json.dumps(config, indent=2).encode(), WEIGHTS: content})
    apply_fix(plan_fix(tmp_path / "in", untie=True), tmp_path / "out")
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told == config | {"tie_word_embeddings": False, "text_config": text | {"tie_word_embeddings": False}}
    assert audit(tmp_path / "out").findings == ()


def test_a_flag_that_would_change_more_than_the_tie_is_not_written(tmp_path: Path) -> None:
    content = safetensors({"shared.weight": matrix(1), HEAD: matrix(2)})
    folder(tmp_path / "in", {"config.json": config("T5ForConditionalGeneration", "t5"), WEIGHTS: content})
    plan = plan_fix(tmp_path / "in", untie=True)
    assert plan.verdict == "refused"
    assert "it would change every logit" in plan.refusals[0].what


def test_two_editions_that_differ_in_one_bit_stay(tmp_path: Path) -> None:
    other = np.array(matrix(1, 4096))
    flipped = other.copy()
    flipped.view(np.uint8).reshape(-1)[70_000] ^= 1  # between the pages of a sample
    files = {"config.json": untied(vocab_size=4096), WEIGHTS: safetensors({EMBED: other, HEAD: matrix(3, 4096)})}
    torch_file = torch_zip({EMBED: torch.from_numpy(flipped), HEAD: torch.from_numpy(matrix(3, 4096).copy())})
    folder(tmp_path / "in", files | {BIN: torch_file})
    plan = plan_fix(tmp_path / "in", drop="formats")
    assert plan.verdict == "refused"
    assert plan.refusals[0].what == f"{BIN} cannot be left out: {EMBED} is not proved to be in {WEIGHTS}"
