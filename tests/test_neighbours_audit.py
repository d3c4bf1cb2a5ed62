"""npz, Flax, OpenVINO and CTranslate2 end to end: files of the formats' own libraries, and what is said of them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ctranslate2
import msgpack
import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

from builders import EMBED, HEAD, config, folder, matrix, safetensors, tied, torch_zip, untied
from hub_server import Hub
from tieaudit import Report, TargetError, audit

LARGE = (64, 16)
NBYTES = 64 * 16 * 4
LLAMA = {"architecture": "LlamaForCausalLM", "model_type": "llama", "vocab_size": 64, "hidden_size": 16}
TIED, UNTIED, SILENT = tied(**LLAMA), untied(**LLAMA), config(**LLAMA)
E, H = matrix(1, *LARGE), matrix(2, *LARGE)
FLAX_EMBED, FLAX_HEAD = "model.embed_tokens.embedding", "lm_head.kernel"
CT_EMBED, CT_HEAD = "decoder/embeddings/weight", "decoder/projection/weight"


def told(report: Report) -> list[tuple[str, str, int]]:
    return [(finding.code, str(finding.severity), finding.wasted_bytes) for finding in report.findings]


def relations(report: Report) -> list[tuple[str, tuple[str, ...], str, str]]:
    return [(tie.canonical, tie.aliases, tie.claim, tie.relation) for tie in report.ties]


# npz


def npz(arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("arrays", "claim", "expected"),
    [
        ({EMBED: E}, TIED, []),
        ({EMBED: E, HEAD: H}, UNTIED, []),
        ({EMBED: E, HEAD: E}, TIED, [("TIE002", "warning", NBYTES)]),
        ({EMBED: E, HEAD: H}, TIED, [("TIE001", "error", 0)]),
        ({EMBED: E}, UNTIED, [("TIE003", "error", 0)]),
        ({HEAD: E}, TIED, [("TIE005", "warning", 0)]),
        ({EMBED: E, HEAD: np.ascontiguousarray(E.T)}, TIED, [("TIE008", "error", 0)]),
    ],
)
def test_npz_is_judged_by_the_config(tmp_path: Path, arrays: dict[str, np.ndarray], claim: bytes, expected: list[Any]) -> None:
    report = audit(folder(tmp_path, {"weights.npz": npz(arrays), "config.json": claim}))
    assert told(report) == expected
    assert (report.formats, report.skipped) == (("npz",), ())


def test_npz_compressed_is_said_not_to_be_compared(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"weights.npz": npz({EMBED: E, HEAD: E}, compressed=True), "config.json": TIED}))
    assert told(report) == []
    assert [skip.subject for skip in report.skipped] == [f"{EMBED} and {HEAD}"]


def test_npz_checksums_tell_apart_without_a_look(tmp_path: Path) -> None:
    target = folder(tmp_path, {"weights.npz": npz({EMBED: E, HEAD: H}), "config.json": TIED})
    assert audit(target, verify="headers").ties[0].detail == "the recorded checksums differ; how, only the bytes can tell"


def test_mlx(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX is no dependency of the tests")
    weight = mx.array(E).astype(mx.bfloat16)
    mx.savez(str(tmp_path / "weights.npz"), **{EMBED: weight, HEAD: weight})
    report = audit(folder(tmp_path, {"config.json": TIED}))
    assert told(report) == [("TIE002", "warning", NBYTES // 2)]
    assert report.ties[0].dtype == "BF16"


def test_numbered_npz_files_are_one_edition(tmp_path: Path) -> None:
    files = {"weights.00.npz": npz({EMBED: E}), "weights.01.npz": npz({HEAD: H})}
    report = audit(folder(tmp_path / "whole", {**files, "config.json": UNTIED}))
    assert (told(report), [tie.file for tie in report.ties]) == ([], ["weights.npz"])
    # how many there should be, nobody says: nothing is missed
    del files["weights.01.npz"]
    assert told(audit(folder(tmp_path / "half", {**files, "config.json": UNTIED}))) == []


def test_npz_of_other_things_beside_a_model_is_silent(tmp_path: Path) -> None:
    files = {"model.safetensors": safetensors({EMBED: E, HEAD: H}), "speaker.npz": npz({"semantic_prompt": np.arange(700)})}
    report = audit(folder(tmp_path, {**files, "config.json": UNTIED}))
    assert (told(report), report.skipped) == ([], ())


# Flax


def flax(tree: Mapping[str, Any]) -> bytes:
    def packed(value: np.ndarray) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((value.shape, value.dtype.name, value.tobytes("C")), use_bin_type=True))

    return msgpack.packb(tree, default=packed, strict_types=True)


def flax_model(head: np.ndarray | None = None) -> dict[str, Any]:
    layers = {"0": {"mlp": {"kernel": matrix(3, 16, 16)}}}
    return {"model": {"embed_tokens": {"embedding": E}, "layers": layers}} | ({} if head is None else {"lm_head": {"kernel": head}})


@pytest.mark.parametrize(
    ("head", "claim", "expected"),
    [
        (None, TIED, []),
        (None, UNTIED, []),
        (np.ascontiguousarray(H.T), UNTIED, []),
        (np.ascontiguousarray(H.T), SILENT, []),
        (np.ascontiguousarray(H.T), TIED, [("TIE001", "error", 0)]),
        (np.ascontiguousarray(E.T), TIED, [("TIE202", "warning", NBYTES)]),
        (np.ascontiguousarray(E.T), UNTIED, [("TIE202", "warning", NBYTES)]),
    ],
)
def test_flax(tmp_path: Path, head: np.ndarray | None, claim: bytes, expected: list[Any]) -> None:
    report = audit(folder(tmp_path, {"flax_model.msgpack": flax(flax_model(head)), "config.json": claim}))
    assert told(report) == expected
    assert [(tie.canonical, tie.aliases) for tie in report.ties] == ([] if head is None else [(FLAX_EMBED, (FLAX_HEAD,))])
    assert (report.formats, report.skipped) == (("flax",), ())


def test_flax_in_shards(tmp_path: Path) -> None:
    model = flax_model(np.ascontiguousarray(H.T))
    names = ("flax_model-00001-of-00002.msgpack", "flax_model-00002-of-00002.msgpack")
    weight_map = {"model/embed_tokens/embedding": names[0], "model/layers/0/mlp/kernel": names[0], "lm_head/kernel": names[1]}
    total = 2 * NBYTES + 16 * 16 * 4
    content = {
        names[0]: flax({"model": model["model"]}),
        names[1]: flax({"lm_head": model["lm_head"]}),
        "flax_model.msgpack.index.json": json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode(),
    }
    report = audit(folder(tmp_path, {**content, "config.json": UNTIED}))
    assert (told(report), report.totals.tensors, report.skipped) == ([], 3, ())


def test_flax_beside_torch_files_changes_nothing_of_them(tmp_path: Path) -> None:
    torch_file = torch_zip({EMBED: torch.from_numpy(E), "model.norm.weight": torch.ones(16)})
    report = audit(folder(tmp_path, {"pytorch_model.bin": torch_file, "flax_model.msgpack": flax(flax_model()), "config.json": TIED}))
    assert told(report) == []
    assert relations(report)[0] == (EMBED, (HEAD,), "tied", "one matrix")
    assert report.formats == ("torch-zip", "flax")


def test_a_large_array_in_chunks_is_said_not_to_be_compared(tmp_path: Path) -> None:
    tree = flax_model(np.ascontiguousarray(E.T))
    flat = E.reshape(-1)
    chunks = {str(place): flat[place * 512 :][:512] for place in range(2)}
    tree["model"]["embed_tokens"]["embedding"] = {"__msgpack_chunked_array__": True, "shape": {"0": 64, "1": 16}, "chunks": chunks}
    report = audit(folder(tmp_path, {"flax_model.msgpack": flax(tree), "config.json": TIED}))
    assert told(report) == []
    assert [skip.subject for skip in report.skipped] == [f"{FLAX_EMBED} and {FLAX_HEAD}"]


# OpenVINO


class Tiny(torch.nn.Module):
    """Embedding, one layer, head."""

    def __init__(self, head: np.ndarray | None) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(*LARGE)
        self.layer = torch.nn.Linear(16, 16)
        self.lm_head = torch.nn.Linear(16, 64, bias=False)
        self.embed_tokens.weight.data = torch.from_numpy(E.copy())
        if head is None:
            self.lm_head.weight = self.embed_tokens.weight
        else:
            self.lm_head.weight.data = torch.from_numpy(head.copy())

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(torch.relu(self.layer(self.embed_tokens(input_ids))))


def exported(path: Path, head: np.ndarray | None, *, half: bool = False) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    model = ov.convert_model(Tiny(head).eval(), example_input=torch.zeros(1, 4, dtype=torch.long))
    ov.save_model(model, path / "openvino_model.xml", compress_to_fp16=half)
    return path


@pytest.mark.filterwarnings("ignore::Warning")  # of the conversion
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("head", [None, E, H], ids=["tied", "equal copies", "untied"])
def test_openvino(tmp_path: Path, head: np.ndarray | None, *, half: bool) -> None:
    report = audit(exported(tmp_path, head, half=half))
    stem = "self.embed_tokens.weight" + "_compressed" * half
    (tie,) = report.ties
    assert (told(report), report.skipped, report.formats) == ([], (), ("openvino",))
    assert (tie.canonical, tie.nbytes) == (stem, NBYTES // (1 + half))
    if head is None:
        assert (tie.aliases, tie.claim, tie.relation) == (("__module.lm_head/aten::linear/MatMul",), "tied", "one matrix")
    elif head is E:
        # save_model has merged them
        assert (tie.claim, tie.relation) == ("tied", "same storage")
    else:
        assert (tie.claim, tie.relation, len(tie.stored)) == ("unknown", "unrelated", 2)
    assert dict(report.files).keys() == {"openvino_model.xml", "openvino_model.bin"}


@pytest.mark.filterwarnings("ignore::Warning")
def test_openvino_beside_a_config_that_ties(tmp_path: Path) -> None:
    exported(tmp_path, H)
    folder(tmp_path, {"config.json": TIED})
    report = audit(tmp_path)
    assert told(report) == [("TIE001", "note", 0)]  # the model computes what was exported
    assert relations(report) == [("self.embed_tokens.weight", ("self.lm_head.weight",), "tied", "unrelated")]
    folder(tmp_path, {"config.json": UNTIED})
    assert told(audit(tmp_path)) == []


def graph(table: np.ndarray, weight: np.ndarray, *, transpose: bool) -> ov.Model:
    ids = ops.parameter([-1, -1], np.int64, "ids")
    first, second = ops.constant(table), ops.constant(weight)
    first.set_friendly_name("table")
    second.set_friendly_name("head")
    hidden = ops.tanh(ops.gather(first, ids, ops.constant(np.int64(0))))
    return ov.Model([ops.result(ops.matmul(hidden, second, False, transpose))], [ids], "test")


def test_openvino_with_a_transposed_copy(tmp_path: Path) -> None:
    ov.save_model(graph(E, np.ascontiguousarray(E.T), transpose=False), tmp_path / "openvino_model.xml", compress_to_fp16=False)
    report = audit(tmp_path)
    assert told(report) == [("TIE202", "warning", NBYTES)]
    assert report.findings[0].message == f"head is table transposed ({NBYTES:,} bytes wasted)"


def test_openvino_with_a_cast_copy(tmp_path: Path) -> None:
    ids = ops.parameter([-1, -1], np.int64, "ids")
    table, half = ops.constant(E), ops.constant(E.astype(np.float16))
    table.set_friendly_name("table")
    half.set_friendly_name("half")
    hidden = ops.tanh(ops.gather(table, ids, ops.constant(np.int64(0))))
    model = ov.Model([ops.result(ops.matmul(hidden, ops.convert(half, np.float32), False, True))], [ids], "test")
    ov.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    assert told(audit(tmp_path)) == [("TIE007", "warning", NBYTES)]


def test_openvino_beside_others_of_its_kind_and_other_xml(tmp_path: Path) -> None:
    for name in ("openvino_model", "openvino_tokenizer", "openvino_detokenizer"):
        node = ops.constant(np.frombuffer(b"a vocabulary as bytes" * 100, np.uint8))
        small = ov.Model([ops.result(node)], [], name)
        model = graph(E, H, transpose=True) if name == "openvino_model" else small
        ov.save_model(model, tmp_path / f"{name}.xml", compress_to_fp16=False)
    other = {"sitemap.xml": b"<?xml version='1.0'?><urlset/>", "notes.xml": b"not even XML", "sub/a.xml": b"<a/>"}
    report = audit(folder(tmp_path, other))
    assert (told(report), report.skipped, report.not_compared) == ([], (), ())
    assert len(report.ties) == 1
    assert len(report.files) == 6


def test_openvino_by_the_name_of_its_graph(tmp_path: Path) -> None:
    ov.save_model(graph(E, H, transpose=True), tmp_path / "model.xml", compress_to_fp16=False)
    assert dict(audit(tmp_path / "model.xml").files).keys() == {"model.xml", "model.bin"}
    (tmp_path / "model.bin").unlink()
    report = audit(tmp_path / "model.xml")
    assert told(report) == [("TIE501", "error", 0)]
    assert "needs model.bin for its constants, which is not there" in report.findings[0].message
    with pytest.raises(TargetError, match="no checkpoint here"):
        audit(tmp_path)


def test_openvino_with_its_bytes_cut(tmp_path: Path) -> None:
    ov.save_model(graph(E, H, transpose=True), tmp_path / "openvino_model.xml", compress_to_fp16=False)
    data = (tmp_path / "openvino_model.bin").read_bytes()
    (tmp_path / "openvino_model.bin").write_bytes(data[:-10])
    report = audit(tmp_path)
    assert [finding.code for finding in report.findings] == ["TIE501"]
    assert "truncated file?" in report.findings[0].message


def test_openvino_never_leaves_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    ov.save_model(graph(E, H, transpose=True), inside / "openvino_model.xml", compress_to_fp16=False)
    (inside / "openvino_model.bin").rename(tmp_path / "outside.bin")
    (inside / "openvino_model.bin").symlink_to(tmp_path / "outside.bin")
    report = audit(inside)
    assert {finding.code for finding in report.findings} == {"TIE501"}
    assert report.cost.bytes_read < 20_000


# CTranslate2


def converted(path: Path, head: np.ndarray | None, *, quantization: str | None = None, merge: bool = True) -> Path:
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(1, 2)
    rng = np.random.default_rng(0)

    def fill(layer: Any, name: str, value: Any) -> None:
        if value is None:
            setattr(layer, name.rpartition("/")[2], rng.standard_normal((16, 16), np.float32))

    spec._visit(fill)
    # copies: it quantises in place
    spec.decoder.embeddings.weight = E.copy()
    spec.decoder.projection.weight = (E if head is None else head).copy()
    spec.register_vocabulary([f"<{number}>" for number in range(64)])
    spec.validate()
    if merge:
        spec.optimize(quantization)
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))
    assert ctranslate2.contains_model(str(path))
    return path


@pytest.mark.parametrize(("quantization", "dtype", "part"), [(None, "F32", 1), ("float16", "F16", 2), ("int8", "I8", 4)])
def test_ctranslate2_makes_equal_variables_one(tmp_path: Path, quantization: str | None, dtype: str, part: int) -> None:
    report = audit(converted(tmp_path, None, quantization=quantization))
    assert (told(report), report.skipped, report.formats) == ([], (), ("ctranslate2",))
    assert relations(report) == [(CT_EMBED, (CT_HEAD,), "tied", "same storage")]
    assert (report.ties[0].dtype, report.ties[0].saves_bytes) == (dtype, NBYTES // part)


def test_ctranslate2_untied(tmp_path: Path) -> None:
    report = audit(converted(tmp_path / "float", H))
    assert (told(report), relations(report)) == ([], [(CT_EMBED, (CT_HEAD,), "unknown", "unrelated")])
    report = audit(converted(tmp_path / "int8", H, quantization="int8"))
    assert (told(report), report.ties) == ([], ())
    # one matrix and its double have the same codes: no tie is claimed, and nothing is to be left out
    report = audit(converted(tmp_path / "double", 2 * E, quantization="int8"))
    assert [finding.fix for finding in report.findings] == [None]


def test_ctranslate2_with_a_copy(tmp_path: Path) -> None:
    report = audit(converted(tmp_path, E.copy(), merge=False))
    assert told(report) == [("TIE002", "warning", NBYTES)]
    assert report.findings[0].fix == "convert the model again: the converter makes variables of equal value one"


# behind a network


def test_only_what_costs_few_requests_is_opened_on_the_hub(online: Hub, tmp_path: Path) -> None:
    layers = {f"layers.{number}": matrix(number, 256, 256) for number in range(12)}
    files = {"config.json": TIED, "model.safetensors": safetensors({EMBED: E}), "flax_model.msgpack": flax({"a": layers})}
    index = json.dumps({"weight_map": {"a/b": "flax_model-00001-of-00001.msgpack"}}).encode()
    files |= {"flax_model-00001-of-00001.msgpack": flax({"a": {"b": E}}), "flax_model.msgpack.index.json": index}
    online.add("org/model", folder(tmp_path, files))
    report = audit("org/model")
    assert (told(report), report.skipped, report.formats) == ([], (), ("safetensors",))
    assert [skip.subject for skip in report.not_compared if "msgpack" in skip.subject] == [
        "flax_model-00001-of-00001.msgpack", "flax_model.msgpack",
    ]  # fmt: skip
    assert not [request for request in online.requests if "msgpack" in request.path and "/resolve/" in request.path]


def test_npz_headers_are_fetched_at_once(online: Hub, tmp_path: Path) -> None:
    arrays = {f"layers.{number}": matrix(number, 256, 256) for number in range(12)}
    online.add("org/model", folder(tmp_path, {"config.json": TIED, "weights.npz": npz({EMBED: E, HEAD: E, **arrays})}))
    report = audit("org/model")
    assert told(report) == [("TIE002", "warning", NBYTES)]
    assert report.cost.requests <= 20
    assert report.cost.bytes_read < 12 * 256 * 256 * 4 // 2
