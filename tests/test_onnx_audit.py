"""Audits of ONNX models: real exports and quantised ones, merged decoders, several programs in a folder, data beside the model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from builders import config, folder
from hub_server import Hub
from tieaudit import Finding, Report, Severity, audit
from tieaudit.reporters import terminal

V, H = 96, 16
MATRIX = V * H * 4
Export = Callable[[nn.Module, Path], None]


class Model(nn.Module):
    """A language model as small as they get, with a table of positions beside that of tokens."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens, self.embed_positions = nn.Embedding(V, H), nn.Embedding(V // 2, H)
        self.fc, self.norm, self.lm_head = nn.Linear(H, H), nn.LayerNorm(H), nn.Linear(H, V, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids) + self.embed_positions(torch.arange(input_ids.shape[1]))
        logits: torch.Tensor = self.lm_head(self.norm(x + torch.relu(self.fc(x))))
        return logits


class Encoder(Model):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.norm(self.fc(self.embed_tokens(input_ids)))
        return x


def export(model: nn.Module, path: Path, *, dynamo: bool, fold: bool = True, beside: bool = False) -> Path:
    """What users call; warnings are torch's own."""
    path.mkdir()
    logging.disable(logging.WARNING)
    options = {"external_data": beside} if dynamo else {"do_constant_folding": fold}
    ids = torch.ones(1, 5, dtype=torch.long)
    names = {"input_names": ["input_ids"], "output_names": ["logits"]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model.eval(), (ids,), path / "model.onnx", dynamo=dynamo, verbose=False, **names, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("exports")
    tied, untied = Model(tied=True), Model(tied=False)
    return {
        "dynamo tied": export(tied, path / "a", dynamo=True),
        "dynamo untied": export(untied, path / "b", dynamo=True, beside=True),
        "dynamo tied beside": export(tied, path / "c", dynamo=True, beside=True),
        "script tied folded": export(tied, path / "d", dynamo=False),
        "script tied": export(tied, path / "e", dynamo=False, fold=False),
        "script untied folded": export(untied, path / "f", dynamo=False),
        "script untied": export(untied, path / "g", dynamo=False, fold=False),
        "encoder": export(Encoder(tied=False), path / "h", dynamo=False),
    }


def told(report: Report) -> list[tuple[str, Severity, int]]:
    return [(finding.rule, finding.severity, finding.wasted_bytes) for finding in report.findings]


def tie(report: Report) -> tuple[str, tuple[str, ...], str, str]:
    [one] = report.ties
    return one.canonical, one.aliases, one.claim, one.relation


def of_library(path: Path) -> dict[str, bytes]:
    """What the library reads: initializers and constants."""
    graph = onnx.load(path / "model.onnx").graph
    constants = [(node.output[0], node.attribute[0].t) for node in graph.node if node.op_type == "Constant"]
    return {name: tensor.raw_data for name, tensor in (*((tensor.name, tensor) for tensor in graph.initializer), *constants)}


def reads(path: Path, op: str) -> list[str]:
    """The second inputs of all nodes of this kind, as the library reads them."""
    return [node.input[1] for node in onnx.load(path / "model.onnx").graph.node if node.op_type == op]


# what the exporters write


@pytest.mark.parametrize("name", ["dynamo tied", "dynamo tied beside", "script tied folded"])
def test_a_tied_model_whose_head_was_folded_into_a_transposed_copy(exports: dict[str, Path], name: str) -> None:
    path = exports[name]
    report = audit(path)
    assert told(report) == [("transposed-copy", "warning", MATRIX)]
    embedding = "embed_tokens.weight" if name.startswith("script") else "lm_head.weight"
    head = reads(path, "MatMul")[-1]
    assert tie(report) == (embedding, (head,), "unknown", "transposed")
    stored = of_library(path)
    table, copy = (np.frombuffer(stored[one], np.float32) for one in (embedding, head))
    assert np.array_equal(table.reshape(V, H).T, copy.reshape(H, V))
    [finding] = report.findings
    assert finding.message == f"{head} is {embedding} transposed ({MATRIX:,} bytes wasted)"
    assert finding.evidence == "proved"
    assert finding.fix == "let both nodes read one initializer, through a Transpose before MatMul or transB of Gemm"
    assert report.totals.nbytes_wasted == MATRIX
    assert report.totals.nbytes_stored == sum(map(len, stored.values()))
    # nothing is to be left out on the word of samples
    [sampled] = audit(path, verify="sample").findings
    assert sampled.fix == f"prove it first (--verify full, or a local copy); then {finding.fix}"


def test_a_tied_model_with_one_initializer(exports: dict[str, Path]) -> None:
    report = audit(exports["script tied"])
    assert told(report) == []
    assert tie(report) == ("embed_tokens.weight", ("MatMul /lm_head/MatMul",), "tied", "one matrix")
    assert report.ties[0].claim_source == "tied: the graph: Gather and MatMul read one initializer"
    assert "tied: one matrix is stored, and the head reads it" in terminal.render(report)
    assert report.totals.tensors == len(of_library(exports["script tied"]))


@pytest.mark.parametrize(
    ("name", "head"), [("dynamo untied", ""), ("script untied folded", ""), ("script untied", "lm_head.weight")]
)  # fmt: skip
def test_an_untied_model_is_healthy(exports: dict[str, Path], name: str, head: str) -> None:
    path = exports[name]
    report = audit(path)
    assert told(report) == []
    assert (report.verdict, report.totals.nbytes_wasted, report.skipped) == ("ok", 0, ())
    assert tie(report) == ("embed_tokens.weight", (head or reads(path, "MatMul")[-1],), "unknown", "unrelated")
    assert "nothing claims that they are one" in terminal.render(report)
    assert sorted(name for name, _ in report.files) == sorted(path.name for path in path.iterdir())


def test_an_encoder_has_no_head(exports: dict[str, Path]) -> None:
    report = audit(exports["encoder"])
    assert (told(report), report.ties, report.verdict) == ([], (), "ok")


@pytest.mark.parametrize("flag", [True, False, None])
def test_the_flag_of_a_config_beside_a_healthy_model(exports: dict[str, Path], tmp_path: Path, flag: bool | None) -> None:
    for name in ("script tied", "dynamo tied", "script untied folded"):
        keys = {} if flag is None else {"tie_word_embeddings": flag}
        files = {"config.json": config(**keys), "model.onnx": (exports[name] / "model.onnx").read_bytes()}
        report = audit(folder(tmp_path / name, files))
        rules = [finding.rule for finding in report.findings]
        if name == "script untied folded":
            assert rules == (["diverged-tie"] if flag else [])
            if flag:
                [finding] = report.findings
                assert finding.fix == "export again from the checkpoint that has one matrix"
        else:
            assert rules == ([] if name == "script tied" else ["transposed-copy"])


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

    class Logits(nn.Module):
        def __init__(self, model: PreTrainedModel, **options: bool) -> None:
            super().__init__()
            self.model, self.options = model, options

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=input_ids, **self.options)[0]
            return logits

    torch.manual_seed(0)
    sizes = {"vocab_size": V, "hidden_size": H, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    path = tmp_path_factory.mktemp("transformers")
    llama = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    return {
        "llama": export(Logits(llama, use_cache=False), path / "a", dynamo=True),
        "bert": export(Logits(BertForMaskedLM(BertConfig(**sizes))), path / "b", dynamo=False),
    }


@pytest.mark.parametrize(
    ("name", "embedding"), [("llama", "model.lm_head.weight"), ("bert", "model.bert.embeddings.word_embeddings.weight")]
)
def test_tied_models_of_transformers(of_transformers: dict[str, Path], name: str, embedding: str) -> None:
    path = of_transformers[name]
    report = audit(path)
    assert told(report) == [("transposed-copy", "warning", MATRIX)]
    assert tie(report) == (embedding, (reads(path, "MatMul")[-1],), "unknown", "transposed")
    assert report.totals.tensors == len(of_library(path))


# quantised


@pytest.fixture(scope="module")
def quantised(exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path = tmp_path_factory.mktemp("quantised")
    found = {}

    def place(name: str) -> Path:
        found[name] = path / name
        found[name].mkdir()
        return found[name] / "model.onnx"

    def in_blocks(name: str, **options: object) -> None:
        quantizer = MatMulNBitsQuantizer(
            onnx.load(exports["script tied folded"] / "model.onnx"), block_size=16, is_symmetric=True, **options
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(place(name)), use_external_data_format=False)

    logging.disable(logging.WARNING)
    try:
        for name in ("script tied", "script tied folded"):
            quantize_dynamic(exports[name] / "model.onnx", place(name + " all"), weight_type=QuantType.QInt8)
            quantize_dynamic(
                exports[name] / "model.onnx", place(name + " heads"), weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"]
            )
        in_blocks("blocks")
        in_blocks("blocks all", op_types_to_quantize=("MatMul", "Gather"), quant_axes=(("MatMul", 0), ("Gather", 1)))
    finally:
        logging.disable(logging.NOTSET)
    return found


@pytest.mark.parametrize(
    ("name", "ops", "embedding", "head"),
    [
        ("script tied folded all", ("Gather", "MatMulInteger"), "embed_tokens.weight_quantized", "_quantized"),
        ("script tied folded heads", ("Gather", "MatMulInteger"), "embed_tokens.weight", "_quantized"),
        ("blocks", ("Gather", "MatMulNBits"), "embed_tokens.weight", "_Q4"),
        ("blocks all", ("GatherBlockQuantized", "MatMulNBits"), "embed_tokens.weight_Q4", "_Q4"),
    ],
)
def test_a_quantised_head_is_no_fault_and_not_compared(
    quantised: dict[str, Path], tmp_path: Path, name: str, ops: tuple[str, str], embedding: str, head: str
) -> None:
    stored = of_library(quantised[name])
    [other] = [one for one in stored if one.endswith(head) and one.startswith("onnx::MatMul_") and len(stored[one]) > H * H]
    for flag in (True, False):
        files = {"config.json": config(tie_word_embeddings=flag), "model.onnx": (quantised[name] / "model.onnx").read_bytes()}
        report = audit(folder(tmp_path / f"{flag}", files))
        assert told(report) == []
        assert tie(report) == (embedding, (other,), "unknown", "not comparable")
        assert report.ties[0].claim_source == f"unknown: the graph: {ops[0]} reads {embedding}, {ops[1]} reads {other}"
        assert report.ties[0].detail == (f"the two are quantised differently ({len(stored[embedding]):,} and {len(stored[other]):,} bytes)")
        assert [skip.subject for skip in report.not_compared] == [f"{embedding} and {other}"]
        assert report.skipped == ()


@pytest.mark.parametrize(("name", "embedding"), [("all", "embed_tokens.weight_quantized"), ("heads", "embed_tokens.weight")])
def test_a_tied_model_stays_tied_when_it_is_quantised(quantised: dict[str, Path], name: str, embedding: str) -> None:
    report = audit(quantised["script tied " + name])
    assert told(report) == []
    assert tie(report) == (embedding, ("MatMul /lm_head/MatMul",), "tied", "one matrix")


# hand-made graphs


def table(seed: int, rows: int = V, columns: int = H) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def node(op: str, inputs: list[str], output: str, name: str = "", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name, **attributes)


def lm(weights: dict[str, np.ndarray], *, head: str = "head", op: str = "MatMul") -> onnx.ModelProto:
    nodes = [node("Gather", ["embed", "input_ids"], "x"), node(op, ["x", head], "logits", "/lm_head/" + op)]
    return helper.make_model(graph(nodes, weights))


def graph(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], output: str = "logits") -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["b", "s", "n"])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )


def written(path: Path, model: onnx.ModelProto, name: str = "model.onnx", **files: bytes) -> Path:
    return folder(path, {name: model.SerializeToString(), **{file.replace("__", "."): content for file, content in files.items()}})


@pytest.mark.parametrize("flag", [True, False, None])
def test_equal_copies_are_a_duplicate_whatever_the_flag(tmp_path: Path, flag: bool | None) -> None:
    model = lm({"embed": table(1), "module.head": table(1)}, head="module.head", op="Gemm")
    report = audit(written(tmp_path, model, config__json=config(**({} if flag is None else {"tie_word_embeddings": flag}))))
    assert told(report) == [("duplicate-tie", "warning", MATRIX)]
    [finding] = report.findings
    assert finding.message == f"module.head repeats embed ({MATRIX:,} bytes wasted)"
    assert finding.fix == "let both nodes read one initializer"
    sampled = audit(tmp_path, verify="sample")
    assert sampled.findings[0].fix == "prove it first (--verify full); then let both nodes read one initializer"


def test_a_scaled_copy_is_a_note(tmp_path: Path) -> None:
    report = audit(written(tmp_path, lm({"embed": table(1), "head": table(1) * np.float32(0.5)}, op="Gemm")))
    assert told(report) == [("scaled-copy", "note", 0)]


def test_equal_packed_ends_are_a_duplicate(tmp_path: Path) -> None:
    codes = np.random.default_rng(3).integers(-128, 127, (V, H), np.int8)
    nodes = [
        node("DequantizeLinear", ["embed", "scale"], "e"), node("Gather", ["e", "input_ids"], "x"),
        node("DequantizeLinear", ["head", "scale"], "h"), node("Transpose", ["h"], "t"), node("MatMul", ["x", "t"], "logits"),
    ]  # fmt: skip
    weights = {"embed": codes, "head": codes, "scale": np.array(0.1, np.float32)}
    assert told(audit(written(tmp_path / "a", helper.make_model(graph(nodes, weights))))) == [("duplicate-tie", "warning", V * H)]
    weights["head"] = np.roll(codes, 1)
    report = audit(written(tmp_path / "b", helper.make_model(graph(nodes, weights)), config__json=config(tie_word_embeddings=True)))
    assert told(report) == []
    assert report.ties[0].detail == "the packed values differ, dequantised ones are not compared"


def branches(weights: dict[str, np.ndarray], around: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A decoder merged from two, with and without past, as its branches."""

    def branch(name: str) -> onnx.GraphProto:
        nodes = [node("Gather", ["embed", "input_ids"], "x"), node("MatMul", ["x", "fc"], "h"), node("MatMul", ["h", "head"], "l", name)]
        body = graph(nodes, weights, "l")
        del body.input[:]
        return body

    merged = graph([node("If", ["use_cache"], "logits", "merged", then_branch=branch("a"), else_branch=branch("b"))], around)
    merged.input.append(helper.make_tensor_value_info("use_cache", TensorProto.BOOL, [1]))
    model = helper.make_model(merged)
    onnx.checker.check_model(model)
    return model


def test_a_merged_decoder_whose_branches_share_their_matrices(tmp_path: Path) -> None:
    weights = {"embed": table(1), "fc": table(2, H, H), "head": table(3, H, V)}
    report = audit(written(tmp_path / "a", branches({}, weights), "decoder_model_merged.onnx"))
    assert (told(report), report.verdict) == ([], "ok")
    assert tie(report) == ("embed", ("head",), "unknown", "unrelated")


def test_a_merged_decoder_whose_branches_each_have_a_copy(tmp_path: Path) -> None:
    weights = {"embed": table(1), "fc": table(2, H, H), "head": table(3, H, V)}
    report = audit(written(tmp_path, branches(weights, {}), "decoder_model_merged.onnx"))
    assert [(finding.rule, finding.message) for finding in report.findings] == [
        ("duplicate-tensor", f"then_branch/embed repeats else_branch/embed ({MATRIX:,} bytes wasted)"),
        ("duplicate-tensor", f"then_branch/head repeats else_branch/head ({MATRIX:,} bytes wasted)"),
        ("duplicate-tensor", f"then_branch/fc repeats else_branch/fc ({H * H * 4:,} bytes wasted)"),
    ]
    assert report.totals.nbytes_wasted == 2 * MATRIX + H * H * 4
    assert {(one.canonical, one.aliases) for one in report.ties} == {
        (f"{branch}_branch/embed", (f"{branch}_branch/head",)) for branch in ("then", "else")
    }


# several programs


def encoder(embed: np.ndarray) -> onnx.ModelProto:
    nodes = [node("Gather", ["shared", "input_ids"], "x"), node("MatMul", ["x", "fc"], "hidden")]
    return helper.make_model(graph(nodes, {"shared": embed, "fc": table(9, H, H)}, "hidden"))


def decoder(embed: np.ndarray, *more: np.ndarray) -> onnx.ModelProto:
    weights = {"embed": embed, **{f"fc{n}": array for n, array in enumerate(more)}}
    nodes = [node("Gather", ["embed", "input_ids"], "x0")]
    nodes += [node("MatMul", [f"x{n}", f"fc{n}"], f"x{n + 1}") for n in range(len(more))]
    nodes += [node("Transpose", ["embed"], "t"), node("MatMul", [f"x{len(more)}", "t"], "logits")]
    return helper.make_model(graph(nodes, weights))


def test_what_the_programs_of_one_export_repeat_is_one_note(tmp_path: Path) -> None:
    layers = [table(2, H, H), table(3, H, H)]
    for name, model in (
        ("decoder_model", decoder(table(1), *layers)),
        ("decoder_with_past_model", decoder(table(1), *layers)),
        ("encoder_model", encoder(table(1))),
        ("text_encoder", encoder(table(8))),
    ):
        written(tmp_path, model, name + ".onnx")
    report = audit(tmp_path)
    layer = H * H * 4
    [finding] = report.findings
    assert (finding.rule, finding.severity, finding.wasted_bytes, finding.evidence) == ("by-design-copy", "note", 0, "sampled")
    assert finding.message == (
        f"decoder_with_past_model.onnx repeats 3 matrices of decoder_model.onnx ({MATRIX + 2 * layer:,} bytes), "
        f"encoder_model.onnx repeats 1 matrix of decoder_model.onnx ({MATRIX:,} bytes), "
        f"text_encoder.onnx repeats 1 matrix of encoder_model.onnx ({layer:,} bytes); each file is a program that runs without the others"
    )
    assert report.verdict == "note"
    assert report.totals.nbytes_wasted == 0
    assert told(audit(tmp_path, verify="headers")) == []


def test_programs_that_read_one_file_of_data_repeat_nothing(tmp_path: Path) -> None:
    for name in ("decoder_model", "decoder_with_past_model"):
        model = decoder(table(1), table(2, H, H))
        onnx.save(model, tmp_path / "whole.onnx", save_as_external_data=True, location="shared.data", size_threshold=0)
        (tmp_path / "whole.onnx").rename(tmp_path / f"{name}.onnx")
        if name == "decoder_model":
            (tmp_path / "shared.data").rename(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / "shared.data")
    report = audit(tmp_path)
    assert told(report) == []
    assert report.totals.nbytes_stored == MATRIX + H * H * 4
    assert sorted(name for name, _ in report.files) == ["decoder_model.onnx", "decoder_with_past_model.onnx", "shared.data"]


def test_safetensors_beside_a_model_are_judged_as_ever(tmp_path: Path, exports: dict[str, Path]) -> None:
    from builders import EMBED, HEAD, matrix, safetensors, tied

    files = {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})}
    files["model.onnx"] = (exports["script tied"] / "model.onnx").read_bytes()
    report = audit(folder(tmp_path, files))
    assert [(finding.rule, finding.message.split(":")[0]) for finding in report.findings] == [("duplicate-tie", "model.safetensors")]
    assert report.formats == ("safetensors", "onnx")


# data beside the model


def beside(path: Path, model: onnx.ModelProto) -> Path:
    path.mkdir(exist_ok=True)
    onnx.save(model, path / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path


def problem(report: Report) -> Finding:
    [finding] = report.findings
    assert (finding.rule, finding.severity) == ("malformed-file", "error")
    return finding


def test_missing_data_is_an_error_and_nothing_is_called_clean(tmp_path: Path) -> None:
    path = beside(tmp_path, lm({"embed": table(1), "head": table(2, H, V)}))
    (path / "model.onnx_data").unlink()
    report = audit(path)
    assert problem(report).message == (
        "model.onnx: model.onnx_data, which holds the data of 2 tensors, cannot be read: No such file or directory"
    )
    assert report.verdict == "error"
    assert not any(one.relation == "one matrix" for one in report.ties)


def test_data_that_was_cut_is_an_error(tmp_path: Path) -> None:
    path = beside(tmp_path, lm({"embed": table(1), "head": table(2, H, V)}))
    data = (path / "model.onnx_data").read_bytes()
    (path / "model.onnx_data").write_bytes(data[:-1])
    assert f"of model.onnx_data, which has {len(data) - 1:,}: truncated file?" in problem(audit(path)).message


def test_a_model_that_was_cut_is_an_error(exports: dict[str, Path], tmp_path: Path) -> None:
    data = (exports["script tied"] / "model.onnx").read_bytes()
    report = audit(folder(tmp_path, {"model.onnx": data[: len(data) // 2]}))
    assert "truncated file?" in problem(report).message


def test_two_initializers_of_one_run_of_data_are_one_matrix(tmp_path: Path) -> None:
    path = beside(tmp_path, lm({"embed": table(1), "head": table(2)}, op="Gemm"))
    model = onnx.load(path / "model.onnx", load_external_data=False)
    first, second = model.graph.initializer
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    (path / "model.onnx").write_bytes(model.SerializeToString())
    (path / "model.onnx_data").write_bytes((path / "model.onnx_data").read_bytes()[:MATRIX])
    report = audit(path)
    assert told(report) == []
    assert tie(report) == ("embed", ("head",), "unknown", "same storage")
    assert report.totals.nbytes_stored == MATRIX


def test_data_that_nothing_reads_is_dead(tmp_path: Path) -> None:
    path = beside(tmp_path, lm({"embed": table(1), "head": table(2, H, V)}))
    nbytes = (path / "model.onnx_data").stat().st_size
    with (path / "model.onnx_data").open("ab") as file:
        file.write(bytes(100_000))
    report = audit(path)
    assert told(report) == [("dead-bytes", "warning", 100_000)]
    assert f"model.onnx_data from byte {nbytes:,} to {nbytes + 100_000:,}" in report.findings[0].message
    assert report.totals.nbytes_stored == 2 * MATRIX + 100_000


# a Hub


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    weights = {f"fc{n}": table(10 + n, 256, 256) for n in range(8)} | {"embed": table(1, 4096, 256), "head": table(1, 4096, 256)}
    model = lm(weights, op="Gemm")
    return beside(tmp_path / "model", model)


@pytest.mark.usefixtures("_no_waiting")
def test_a_model_with_its_data_beside_it_on_the_hub(online: Hub, large: Path) -> None:
    online.add("org/model", large)
    report = audit("org/model")
    here = audit(large, verify="sample")
    assert told(report) == told(here) == [("duplicate-tie", "warning", 4096 * 256 * 4)]
    assert report.findings[0].message == here.findings[0].message
    assert (report.cost.requests, report.cost.bytes_read) == (len(online.requests), online.body_bytes)
    assert report.cost.requests <= 16
    assert report.cost.bytes_read < 300_000


@pytest.mark.usefixtures("_no_waiting")
def test_a_model_with_its_weights_inside_costs_a_request_for_each_large_one(online: Hub, large: Path) -> None:
    model = onnx.load(large / "model.onnx")
    (large / "model.onnx_data").unlink()
    (large / "model.onnx").write_bytes(model.SerializeToString())
    online.add("org/model", large)
    report = audit("org/model")
    assert told(report) == [("duplicate-tie", "warning", 4096 * 256 * 4)]
    assert report.cost.requests <= 10 + 12
    assert report.cost.bytes_read < 600_000


@pytest.mark.usefixtures("_no_waiting")
def test_programs_on_the_hub_get_the_note_that_they_get_on_disk(online: Hub, tmp_path: Path) -> None:
    for name in ("decoder_model", "decoder_with_past_model"):
        model = decoder(table(1), table(2, H, H))
        model.producer_name = name  # else they would be one file by their checksums
        written(tmp_path, model, name + ".onnx")
    online.add("org/model", tmp_path)
    report = audit("org/model")
    assert told(report) == [("by-design-copy", "note", 0)]
    assert report.findings == audit(tmp_path).findings
    assert report.cost.requests <= 8


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from tieaudit.sources import http

    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
