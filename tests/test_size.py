"""`tieaudit size`: every byte is somebody's, waste is the findings' waste, and what a tie costs is what optimizers really keep."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import tieaudit
from builders import (
    COLUMNS,
    EMBED,
    HEAD,
    MATRIX_NBYTES,
    ROWS,
    bf16,
    config,
    folder,
    index,
    matrix,
    safetensors,
    tied,
    torch_tensor,
    torch_zip,
)
from hub_server import Hub
from test_cli import CONTROL, environment, on_terminal, one_line, run
from tieaudit import OptionError, audit
from tieaudit.cli import size as command
from tieaudit.components import Component
from tieaudit.footprint import OPTIMIZERS, Setup, footprint
from tieaudit.inspectors.registry import all_rules
from tieaudit.size import Size, measure

FIXTURES = Path(__file__).parents[1] / "fixtures"
SCHEMA = json.loads((Path(tieaudit.__file__).parent / "reporters" / "size.schema.json").read_text(encoding="utf-8"))
LAYER = "model.layers.{}.{}"


def sized(path: Path, *, top: int = 0, setup: Setup | None = None, **options: Any) -> Size:
    """Measured, and held to what must be true of every checkpoint."""
    report = audit(path, **options)
    size = measure(report, setup or Setup(), top=top)
    assert (size.stored, size.wasted, size.tensors) == (report.totals.nbytes_stored, report.totals.nbytes_wasted, report.totals.tensors)
    for parts in (size.components, size.dtypes, size.files):
        assert sum(part.stored for part in parts) == size.stored
        assert sum(part.wasted for part in parts) == size.wasted
        assert sum(part.tensors for part in parts) == size.tensors
        assert all(0 <= part.wasted <= part.stored for part in parts)
    by_rule: dict[str, int] = {}
    for finding in report.findings:
        by_rule[finding.code] = by_rule.get(finding.code, 0) + finding.wasted_bytes
    assert {fault.code: fault.wasted for fault in size.faults} == {code: nbytes for code, nbytes in by_rule.items() if nbytes}
    return size


def parts(size: Size) -> dict[str, tuple[int, int, int]]:
    """{component: (elements, bytes stored, bytes wasted)}."""
    return {part.name: (part.elements, part.stored, part.wasted) for part in size.components}


def vector(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.float32)


def test_a_file_added_up_by_hand(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {EMBED: matrix(1), HEAD: matrix(1), "model.norm.weight": vector(8)}
    for number in range(3):
        tensors[LAYER.format(number, "self_attn.q_proj.weight")] = bf16(matrix(10 + number, 8, 8))
        tensors[LAYER.format(number, "mlp.up_proj.weight")] = matrix(20 + number, 24, 8)
        tensors[LAYER.format(number, "input_layernorm.weight")] = vector(8)
    tensors[LAYER.format(3, "mlp.up_proj.weight")] = matrix(30, 48, 8)
    size = sized(folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors(tensors)}), top=2)
    assert parts(size) == {
        "mlp": (3 * 192 + 384, (3 * 192 + 384) * 4, 0), "embedding": (256, 1024, 0), "head": (256, 1024, 1024),
        "attention": (3 * 64, 3 * 128, 0), "norm": (32, 128, 0),
    }  # fmt: skip
    assert [(run.name, run.first, run.last, run.each, run.elements) for run in size.layers] == [
        ("model.layers", 0, 2, 128 + 768 + 32, 64 + 192 + 8), ("model.layers", 3, 3, 1536, 384),
    ]  # fmt: skip
    assert {part.name: part.stored for part in size.dtypes} == {"F32": size.stored - 384, "BF16": 384}
    assert [(tensor.name, kind) for tensor, kind in size.largest] == [
        (LAYER.format(3, "mlp.up_proj.weight"), Component.MLP),
        (HEAD, Component.HEAD),
    ]
    assert [(fault.rule, fault.findings, fault.wasted) for fault in size.faults] == [("duplicate-tie", 1, 1024)]
    unique = size.stored - 1024
    assert [(end.name, end.role, end.nbytes, end.wasted, end.share) for end in size.ends] == [
        (EMBED, "embedding", 1024, 0, 1024 / unique), (HEAD, "head", 1024, 1024, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted(f"{path.name}/{kind}" for path in FIXTURES.iterdir() for kind in ("fires", "silent") if (path / kind).is_dir())
)
def test_every_byte_of_every_fixture_is_somebodys(name: str) -> None:
    size = sized(FIXTURES / name)
    assert size.stored > 0 or name.partition("/")[0] in ("missing-shard", "malformed-file", "empty-tensor")


def test_two_names_of_one_storage_are_one_matrix_and_it_is_the_embeddings(tmp_path: Path) -> None:
    shared = torch_tensor(matrix(1))
    content = {HEAD: shared, EMBED: shared, "model.norm.weight": torch_tensor(vector(8))}
    size = sized(folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": torch_zip(content)}))
    assert parts(size) == {"embedding": (256, 1024, 0), "norm": (8, 32, 0), "head": (0, 0, 0)}
    assert [(end.role, end.nbytes) for end in size.ends] == [("embedding and head", 1024)]
    assert size.parameters_stored == size.parameters_unique == 264


def test_what_no_tensor_sees_is_dead(tmp_path: Path) -> None:
    whole = torch_tensor(matrix(1, 4 * ROWS))
    size = sized(folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": torch_zip({EMBED: whole[ROWS : 2 * ROWS]})}))
    assert parts(size) == {"dead": (0, 3 * MATRIX_NBYTES, 3 * MATRIX_NBYTES), "embedding": (ROWS * COLUMNS, MATRIX_NBYTES, 0)}
    assert [fault.rule for fault in size.faults] == ["oversize-storage"]
    assert [(part.name, part.stored) for part in size.dtypes] == [("", 3 * MATRIX_NBYTES), ("F32", MATRIX_NBYTES)]


def test_views_that_overlap_count_once(tmp_path: Path) -> None:
    whole = torch_tensor(matrix(1, 4, 8))
    content = {"a.mlp.weight": whole[:3], "b.self_attn.weight": whole[1:], "c.self_attn.weight": whole.t()}
    size = sized(folder(tmp_path, {"pytorch_model.bin": torch_zip(content)}))
    assert size.stored == 128
    assert {part.name: part.stored for part in size.components if part.stored} == {"mlp": 96, "attention": 32}


def test_a_second_format_is_wasted_whole(tmp_path: Path) -> None:
    arrays = {EMBED: matrix(1), "model.layers.0.mlp.up_proj.weight": matrix(2)}
    files = {
        "model.safetensors": safetensors(arrays),
        "pytorch_model.bin": torch_zip({name: torch_tensor(array) for name, array in arrays.items()}),
    }
    size = sized(folder(tmp_path, {"config.json": tied(), **files}))
    assert {part.name: (part.stored, part.wasted) for part in size.files} == {
        "model.safetensors": (2 * MATRIX_NBYTES, 0), "pytorch_model.bin": (2 * MATRIX_NBYTES, 2 * MATRIX_NBYTES),
    }  # fmt: skip


def test_optimizer_state_is_its_own(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch_tensor(matrix(1, 48, 8)))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    content = {"model": {"layers.0.mlp.up_proj.weight": weight.detach()}, "optimizer": optimizer.state_dict()}
    size = sized(folder(tmp_path, {"checkpoint.pt": torch_zip(content)}))
    told = parts(size)
    assert told["mlp"][1] == 48 * 8 * 4
    # two moments and the step count
    assert told["optimizer"][1] == 2 * 48 * 8 * 4 + 4
    assert [run.stored for run in size.layers] == [48 * 8 * 4]


def test_waste_needs_a_comparison_and_its_absence_is_said(tmp_path: Path) -> None:
    path = folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})
    assert sized(path).wasted == MATRIX_NBYTES
    size = sized(path, verify="headers")
    assert size.wasted == 0
    assert size.unsure == (("values of all tensors", "--verify headers reads none"),)
    told = run("size", path, "--verify", "headers")
    assert told.returncode == 0
    assert (
        "  Not read or not compared, so more may be wasted than is counted:\n  values of all tensors: --verify headers reads none\n"
        in told.stdout
    )


# what a tie costs in training


@pytest.mark.parametrize(
    ("setup", "rows", "weights", "gradient", "optimizer", "master"),
    [
        # GPT-2: 50,257 × 768 = 38,597,376 elements
        (Setup(), 50257, 77_194_752, 77_194_752, 308_779_008, 0),
        (Setup(master=True), 50257, 77_194_752, 77_194_752, 308_779_008, 154_389_504),
        (Setup(optimizer="sgd"), 50257, 77_194_752, 77_194_752, 0, 0),
        (Setup(optimizer="sgd-momentum"), 50257, 77_194_752, 77_194_752, 154_389_504, 0),
        (Setup(optimizer="adafactor"), 50257, 77_194_752, 77_194_752, (50257 + 768) * 4, 0),
        # 150,771 blocks of 256 elements: two bytes and two scales
        (Setup(optimizer="8bit-adam"), 50257, 77_194_752, 77_194_752, 2 * (38_597_376 + 4 * 150_771), 0),
        # data parallel alone splits nothing
        (Setup(dp=8), 50257, 77_194_752, 77_194_752, 308_779_008, 0),
        (Setup(zero=1, dp=8, master=True), 50257, 77_194_752, 77_194_752, 38_597_376, 19_298_688),
        (Setup(zero=2, dp=8, master=True), 50257, 77_194_752, 9_649_344, 38_597_376, 19_298_688),
        (Setup(zero=3, dp=8, master=True), 50257, 9_649_344, 9_649_344, 38_597_376, 19_298_688),
        # Megatron-LM pads GPT-2 to 50,304 with one rank and to 51,200 with eight: 6,400 rows each
        (Setup(pad_to=128), 50304, 77_266_944, 77_266_944, 309_067_776, 0),
        (Setup(tp=8), 51200, 9_830_400, 9_830_400, 39_321_600, 0),
        (Setup(tp=8, pad_to=1), 50264, 6283 * 768 * 2, 6283 * 768 * 2, 6283 * 768 * 8, 0),
        (Setup(tp=8, zero=3, dp=7), 51200, 2 * 702_172, 2 * 702_172, 8 * 702_172, 0),
        (Setup(tp=4, optimizer="adafactor"), 50688, 12672 * 768 * 2, 12672 * 768 * 2, (12672 + 768) * 4, 0),
    ],
)
def test_formulas_against_hand_worked_numbers(setup: Setup, rows: int, weights: int, gradient: int, optimizer: int, master: int) -> None:
    cost = footprint(50257, 768, setup)
    assert (cost.rows, cost.weights, cost.gradient, cost.optimizer, cost.master) == (rows, weights, gradient, optimizer, master)
    assert cost.total == weights + gradient + optimizer + master


@pytest.mark.parametrize(
    ("vocab", "divisible", "ranks"), [(50257, 128, 1), (50257, 128, 8), (32000, 128, 3), (151936, 64, 16), (1, 128, 4), (131072, 1, 7)]
)
def test_the_padding_is_megatrons(vocab: int, divisible: int, ranks: int) -> None:
    # its loop, as written: megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding
    after, multiple = vocab, divisible * ranks
    while after % multiple:
        after += 1
    cost = footprint(vocab, 64, Setup(tp=ranks, pad_to=divisible))
    assert cost.rows == after
    assert cost.elements * ranks == after * 64


class Twin(torch.nn.Module):
    """Embedding and head, one matrix or two."""

    def __init__(self, *, tied: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, 64, dtype=dtype)
        self.head = torch.nn.Linear(64, 100, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embed.weight


def kept(optimizer_class: Any, *, tied: bool, **options: Any) -> int:
    """Bytes of state per model, without what one step count takes."""
    model = Twin(tied=tied)
    optimizer = optimizer_class(model.parameters(), **options)
    model.head(model.embed(torch.arange(5))).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1)


@pytest.mark.parametrize(
    ("name", "optimizer_class", "options"),
    [
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
        ("sgd", torch.optim.SGD, {"lr": 0.1}),
        ("sgd-momentum", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        ("adafactor", torch.optim.Adafactor, {}),
    ],
)
def test_untying_costs_what_torch_then_keeps_more(name: str, optimizer_class: Any, options: dict[str, Any]) -> None:
    one, two = (kept(optimizer_class, tied=tied, **options) for tied in (True, False))
    assert two - one == one == footprint(100, 64, Setup(optimizer=name)).optimizer
    assert [sum(p.nbytes for p in Twin(tied=tied, dtype=torch.bfloat16).parameters()) for tied in (True, False)] == [
        footprint(100, 64, Setup()).weights, 2 * footprint(100, 64, Setup()).weights,
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "width"), [(100, 64), (1000, 37), (63, 65), (64, 64)])
def test_eight_bit_state_is_that_of_bitsandbytes(rows: int, width: int) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = torch.nn.Parameter(torch.zeros(rows, width))
    optimizer = bitsandbytes.optim.Adam8bit([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = {
        name: value.nbytes for name, value in optimizer.state[weight].items() if isinstance(value, torch.Tensor) and "qmap" not in name
    }
    assert sum(state.values()) == footprint(rows, width, Setup(optimizer="8bit-adam")).optimizer


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "lion"}, {"zero": 4}, {"zero": -1}, {"dp": 0}, {"tp": 0}, {"pad_to": 0}, {"tp": 1 << 40},
     {"optimizer": "adafactor", "zero": 2}],
)  # fmt: skip
def test_a_setup_that_does_not_exist_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Setup(**options)


@pytest.mark.parametrize(("makes", "words"), [("tied", "untying would cost"), ("untied", "tying would save")])
def test_the_cost_is_said_by_the_claim(tmp_path: Path, makes: str, words: str) -> None:
    tensors = {EMBED: matrix(1)} | ({HEAD: matrix(2)} if makes == "untied" else {})
    path = folder(tmp_path, {"config.json": config(tie_word_embeddings=makes == "tied"), "model.safetensors": safetensors(tensors)})
    told = run("size", path).stdout
    # 256 elements: 512 B, 512 B, 2,048 B
    assert f"  training   {words} 3.07 kB: weights 512 B, gradient 512 B, optimizer 2.05 kB\n" in told
    document = json.loads(run("size", path, "--format", "json", "--tp", "4", "--zero", "2", "--dp", "2", "--master-weights").stdout)
    assert document["training"]["tied"] is (makes == "tied")
    assert document["training"]["rows_padded"] == 512
    assert document["training"]["nbytes_per_rank"] == {
        "weights": 2048,
        "gradient": 1024,
        "optimizer": 4096,
        "master_weights": 2048,
        "total": 9216,
    }


# the command


def validated(*args: str | Path, code: int = 0) -> dict[str, Any]:
    told = run("size", *args, "--format", "json")
    assert told.returncode == code, told.stderr
    document: dict[str, Any] = json.loads(told.stdout)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document


def duplicate(path: Path) -> Path:
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})


def test_json_is_the_schemas_and_the_audits(tmp_path: Path) -> None:
    document = validated(duplicate(tmp_path), "--top", "1")
    assert document["nbytes"] == {"stored": 2048, "unique": 1024, "wasted": 1024}
    assert document["waste"] == [{"code": "TIE002", "rule": "duplicate-tie", "findings": 1, "wasted": 1024}]
    assert [tensor["name"] for tensor in document["largest"]] == [HEAD]
    report = json.loads(run("audit", tmp_path, "--format", "json").stdout)["checkpoint"]
    assert (report["nbytes"], report["parameters"], report["tensors"]) == (document["nbytes"], document["parameters"], document["tensors"])
    alone = tmp_path / "config.json"
    alone.write_bytes(config("LlamaForCausalLM", "llama", num_attention_heads=2, num_hidden_layers=1, intermediate_size=8))
    assert validated(alone, "--config-only")["source"] == "config"


def test_several_targets_are_a_table_and_one_document(tmp_path: Path) -> None:
    targets = [duplicate(tmp_path / "a"), tmp_path / "nothing", FIXTURES / "diverged-tie" / "silent"]
    told = run("size", *targets)
    assert told.returncode == 2
    lines = told.stdout.splitlines()
    assert lines[0].split()[:4] == ["target", "parameters", "bytes", "wasted"]
    assert lines[3] == f"no answer: {targets[1]}: no such file or folder (check the spelling)"
    document = validated(*targets, code=2)
    assert [size["target"] for size in document["sizes"]] == [str(targets[0]), str(targets[2])]
    assert [error["target"] for error in document["errors"]] == [str(targets[1])]


def test_what_cannot_be_read_is_not_all_there_is(tmp_path: Path) -> None:
    whole = safetensors({EMBED: matrix(1)})
    path = folder(tmp_path, {"config.json": tied(), "model.safetensors": whole, "pytorch_model.bin": whole[:40]})
    told = run("size", path)
    assert told.returncode == 2, told.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing argument"),
        (["x", "--meta"], "--meta is for --config-only"),
        (["x", "--config-only", "--verify", "full"], "--verify is for weights"),
        (["x", "--zero", "1", "--optimizer", "adafactor"], "which has no rows to factor"),
        (["nowhere.bin"], "no such file or folder"),
        (["x", "--optimizer", "lion"], "'lion' is not one of"),
    ],
)
def test_wrong_usage_is_one_line_and_two(tmp_path: Path, args: list[str], words: str) -> None:
    told = run("size", *args, cwd=tmp_path)
    assert told.returncode == 2
    assert words in one_line(told)


def test_the_choices_of_the_command_are_those_of_the_formulas() -> None:
    assert list(OPTIMIZERS) == command.OPTIMIZERS
    assert run("size", "-h").returncode == 0
    assert "size" in run("-h").stdout
    enum = SCHEMA["$defs"]["size"]["properties"]["training"]["anyOf"][1]["properties"]["setup"]["properties"]["optimizer"]["enum"]
    assert enum == command.OPTIMIZERS
    kinds = SCHEMA["$defs"]["size"]["properties"]["components"]["items"]["properties"]["name"]["enum"]
    assert kinds == [kind.value for kind in Component]
    assert all(rule.code.startswith("TIE") for rule in all_rules())


@pytest.mark.parametrize("width", [40, 60, 100])
def test_it_fits_the_terminal(tmp_path: Path, width: int) -> None:
    code, told = on_terminal("size", duplicate(tmp_path / "m"), "--top", "2", width=width)
    assert code == 0
    table = told[told.index("  component") : told.index("\n\n", told.index("  component"))]
    assert max(map(len, table.splitlines())) <= width
    assert "wasted" in table
    # only a word that is itself longer goes over the edge
    assert all(len(line) <= width or " " not in line.strip() for line in told.splitlines()), told


HOSTILE = [
    "<script>alert(1)</script>",
    "[/red]",
    "\x1b]8;;http://evil\x07",
    "a\nb",
    "x|y",
    "=cmd()",
    "\ud800",
    "n" * 5000,
    "\u202egnp",
    "layers.0." + "é",
]


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {EMBED: matrix(1), **{name: matrix(2 + number, 4, 4) for number, name in enumerate(HOSTILE)}}
    path = folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors(tensors)})
    told = run("size", path, "--top", "20")
    assert told.returncode == 0, told.stderr
    assert not CONTROL.search(told.stdout.replace("\n", ""))
    assert max(map(len, told.stdout.splitlines())) < 400
    document = validated(path, "--top", "20")
    assert {tensor["name"] for tensor in document["largest"]} >= {name for name in HOSTILE if name != "\ud800"}


def test_a_config_is_read_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    program = "import sys; from tieaudit import cli; sys.argv = ['tieaudit', 'size', '--config-only', '.']\ntry: cli.main()\n"
    program += "except SystemExit as end: assert end.code == 0\nassert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert "124,439,808 parameters" in told.stdout
    assert "31.02 % of the whole" in told.stdout


def test_a_hub_id_is_sized_without_its_weights(online: Hub, tmp_path: Path) -> None:
    large = {EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64)}
    keys = {"vocab_size": 4096, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    files = {
        "config.json": config("LlamaForCausalLM", "llama", tie_word_embeddings=True, **keys),
        "model-1.safetensors": safetensors({EMBED: large[EMBED]}), "model-2.safetensors": safetensors({HEAD: large[HEAD]}),
        "model.safetensors.index.json": index({EMBED: "model-1.safetensors", HEAD: "model-2.safetensors"}),
    }  # fmt: skip
    online.add("org/model", folder(tmp_path / "m", files))
    size = sized(Path("org/model"))
    assert (size.stored, size.wasted) == (2 << 20, 1 << 20)
    assert size.revision
    assert online.body_bytes < 200_000
    online.reset()
    from tieaudit import blueprint

    report, _ = blueprint.read("org/model")
    assert not any(".safetensors" in request.path and "index" not in request.path for request in online.requests)
    assert report.totals.parameters_unique == 4096 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert math.isclose(measure(report, Setup()).ends[0].share, 4096 * 64 / report.totals.parameters_unique)
