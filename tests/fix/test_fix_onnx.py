"""ONNX with one initializer for two: sound to onnx.checker, and onnxruntime computes the same numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from fix_reading import everything
from onnx import TensorProto, helper, numpy_helper

from builders import untied
from tieaudit import apply_fix, audit, plan_fix

CASE = Path(__file__).parent.parent / "cases" / "warn_onnx_transposed_dup"
V, H, NAME = 96, 16, "model.onnx"
EMBED, HEAD, BIAS = "model.embed_tokens.weight", "onnx::MatMul_9", "model.fc.bias"
FLOAT = TensorProto.FLOAT
Nodes = Sequence[onnx.NodeProto]


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (V, H), np.float32)


def logits(weight: str, *, gemm: bool) -> Nodes:
    """As torch.onnx.export writes them: the bias between lookup and head, and the head by MatMul or by Gemm with transB."""
    first = [
        helper.make_node("Gather", [EMBED, "ids"], ["rows"], "/embed/Gather"),
        helper.make_node("Add", ["rows", BIAS], ["x"], "/fc/Add"),
    ]
    if gemm:
        return [*first, helper.make_node("Gemm", ["x", weight], ["logits"], "/lm_head/Gemm", transB=1)]
    return [*first, helper.make_node("MatMul", ["x", weight], ["logits"], "/lm_head/MatMul")]


def model(
    nodes: Nodes, tensors: dict[str, np.ndarray], *, opset: int = 17, listed: Sequence[str] = (), info: Sequence[str] = (), **more: Any
) -> onnx.ModelProto:
    """`listed`: initializers that are also inputs, as before version 4 of the format; `info`: names with a value_info."""
    shapes = {name: list(array.shape) for name, array in tensors.items()}
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["s"]),
            *(helper.make_tensor_value_info(n, FLOAT, shapes[n]) for n in listed),
        ],
        [helper.make_tensor_value_info("logits", FLOAT, ["s", V])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        value_info=[helper.make_tensor_value_info(name, FLOAT, shapes[name]) for name in info],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="pytorch", **more)
    helper.set_model_props(made, {"note": "x" * 200})
    return made


def saved(made: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    onnx.checker.check_model(made, full_check=True)
    (folder / NAME).write_bytes(made.SerializeToString())
    return folder


def run(path: Path, **feeds: Any) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ids = np.array([3, 1, 63, 1, 0], np.int64)
    found: list[np.ndarray] = session.run(None, {"ids": ids[None] if len(session.get_inputs()[0].shape) == 2 else ids, **feeds})
    return found


def fixed(source: Path, out: Path, *rules: str) -> onnx.ModelProto:
    """Fix, and all that must be true of every result."""
    before = everything(source)
    plan = plan_fix(source)
    assert plan.verdict == "ready", plan.refusals
    assert tuple(step.rule for step in plan.steps) == rules
    apply_fix(plan, out)
    assert everything(source) == before
    report = audit(out)
    assert report.findings == ()
    assert not report.skipped
    assert plan_fix(out).verdict == "nothing to do"
    made = onnx.load(out / NAME)
    onnx.checker.check_model(made, full_check=True)
    onnx.checker.check_model(str(out / NAME), full_check=True)
    for one, other in zip(run(source / NAME), run(out / NAME), strict=True):
        assert one.tobytes() == other.tobytes()
    saves = sum(step.saves_bytes for step in plan.steps)
    assert saves - 600 < len(before[NAME]) - (out / NAME).stat().st_size < saves + 600
    return made


def names(made: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in made.graph.initializer]


def same_but(before: onnx.ModelProto, after: onnx.ModelProto, change: Callable[[onnx.ModelProto], None]) -> None:
    """`after` is `before` with this change and no other; the protobuf library says so."""
    wanted = onnx.ModelProto()
    wanted.CopyFrom(before)
    change(wanted)
    assert after == wanted


def without(made: onnx.ModelProto, *dropped: str) -> None:
    for name in dropped:
        made.graph.initializer.remove(next(tensor for tensor in made.graph.initializer if tensor.name == name))
        for value in [value for value in made.graph.input if value.name == name]:
            made.graph.input.remove(value)


def test_an_equal_head_is_read_from_the_embedding(tmp_path: Path) -> None:
    before = model(
        logits("lm_head.weight", gemm=True), {EMBED: values(1), "lm_head.weight": values(1), BIAS: values(2, H)}, info=["lm_head.weight"]
    )
    after = fixed(saved(before, tmp_path / "in"), tmp_path / "out", "duplicate-tie")

    def change(made: onnx.ModelProto) -> None:
        without(made, "lm_head.weight")
        made.graph.node[2].input[1] = EMBED

    same_but(before, after, change)


@pytest.mark.parametrize("opset", [9, 13, 17, 21])
def test_a_transposed_head_is_made_by_a_node(opset: int, tmp_path: Path) -> None:
    before = model(logits(HEAD, gemm=False), {EMBED: values(1), HEAD: values(1).T.copy(), BIAS: values(2, H)}, opset=opset, info=[HEAD])
    after = fixed(saved(before, tmp_path / "in"), tmp_path / "out", "transposed-copy")

    def change(made: onnx.ModelProto) -> None:
        without(made, HEAD)
        made.graph.node.insert(2, helper.make_node("Transpose", [EMBED], [HEAD], f"{HEAD}/Transpose", perm=[1, 0]))

    same_but(before, after, change)


def test_the_fixture(tmp_path: Path) -> None:
    shutil.copytree(CASE, tmp_path / "in")
    after = fixed(tmp_path / "in", tmp_path / "out", "transposed-copy")
    assert names(after) == [EMBED]
    assert [node.op_type for node in after.graph.node] == ["Gather", "Transpose", "MatMul"]


def test_a_dropped_name_is_no_input_either(tmp_path: Path) -> None:
    tensors = {EMBED: values(1), HEAD: values(1).T.copy(), BIAS: values(2, H)}
    before = model(logits(HEAD, gemm=False), tensors, listed=[EMBED, HEAD])
    after = fixed(saved(before, tmp_path / "in"), tmp_path / "out", "transposed-copy")
    assert [value.name for value in after.graph.input] == ["ids", EMBED]


def test_copies_within_the_model(tmp_path: Path) -> None:
    """Three equal layers, one of which a node reads twice, beside a tied pair that is stored twice."""
    layers = {f"layers.{n}.weight": values(5, H, H) for n in range(3)}
    nodes = [
        helper.make_node("Gather", [EMBED, "ids"], ["x0"]),
        *(helper.make_node("MatMul", [f"x{n}", f"layers.{n}.weight"], [f"x{n + 1}"]) for n in range(3)),
        helper.make_node("Sum", ["layers.1.weight", "layers.2.weight", "layers.1.weight"], ["sum"]),
        helper.make_node("MatMul", ["x3", "sum"], ["x"]),
        helper.make_node("MatMul", ["x", HEAD], ["logits"]),
    ]
    before = model(nodes, {HEAD: values(1).T.copy(), **layers, EMBED: values(1)})
    after = fixed(saved(before, tmp_path / "in"), tmp_path / "out", "transposed-copy", "duplicate-tensor", "duplicate-tensor")
    assert names(after) == ["layers.0.weight", EMBED]
    assert list(after.graph.node[4].input) == ["layers.0.weight"] * 3


def test_a_third_form_of_the_ends(tmp_path: Path) -> None:
    """The head transposed, and the same once more, equal to that: both come from the embedding."""
    nodes = [
        helper.make_node("Gather", [EMBED, "ids"], ["x"]),
        helper.make_node("MatMul", ["x", HEAD], ["one"]),
        helper.make_node("MatMul", ["x", "again"], ["two"]),
        helper.make_node("Add", ["one", "two"], ["logits"]),
    ]
    swapped = values(1).T.copy()
    saved(model(nodes, {"again": swapped, HEAD: swapped, EMBED: values(1)}), tmp_path / "in")
    plan = plan_fix(tmp_path / "in")
    assert plan.verdict == "ready", plan.refusals
    apply_fix(plan, tmp_path / "out")
    after = onnx.load(tmp_path / "out" / NAME)
    onnx.checker.check_model(after, full_check=True)
    assert names(after) == [EMBED]
    assert run(tmp_path / "in" / NAME)[0].tobytes() == run(tmp_path / "out" / NAME)[0].tobytes()
    assert audit(tmp_path / "out").findings == ()


@pytest.mark.parametrize("gemm", [True, False])
def test_what_is_shared_already_stays(gemm: bool, tmp_path: Path) -> None:
    nodes = list(logits(EMBED if gemm else "swapped", gemm=gemm))
    if not gemm:
        nodes.insert(0, helper.make_node("Transpose", [EMBED], ["swapped"], perm=[1, 0]))
    plan = plan_fix(saved(model(nodes, {EMBED: values(1), BIAS: values(2, H)}), tmp_path))
    assert (plan.verdict, plan.rewrites) == ("nothing to do", ())


@pytest.mark.parametrize("swapped", [True, False])
def test_a_matrix_with_one_other_element_stays(swapped: bool, tmp_path: Path) -> None:
    other = values(1).T.copy() if swapped else values(1)
    other.view(np.uint8).reshape(-1)[3000] ^= 1
    nodes = logits("w", gemm=not swapped)
    plan = plan_fix(saved(model(nodes, {EMBED: values(1), "w": other, BIAS: values(2, H)}), tmp_path))
    assert (plan.steps, plan.rewrites) == ((), ())


def refusal(made: onnx.ModelProto, folder: Path) -> str:
    plan = plan_fix(saved(made, folder))
    assert plan.verdict == "refused"
    [only] = plan.refusals
    return only.what


def test_a_name_that_bodies_read_is_refused(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", HEAD], [name])], name, [], [helper.make_tensor_value_info(name, FLOAT, ["s", V])]
        )
        for name in ("then", "else")
    }
    nodes = [*logits(HEAD, gemm=False)[:2], helper.make_node("If", ["yes"], ["logits"], **branches)]
    tensors = {EMBED: values(1), HEAD: values(1).T.copy(), BIAS: values(2, H), "yes": np.array(True)}
    assert refusal(model(nodes, tensors), tmp_path) == f"{NAME}: {HEAD} is also read in the body of an If, Loop or Scan"


def test_an_output_of_the_model_is_refused(tmp_path: Path) -> None:
    made = model(logits(HEAD, gemm=False), {EMBED: values(1), HEAD: values(1).T.copy(), BIAS: values(2, H)})
    made.graph.output.append(helper.make_tensor_value_info(HEAD, FLOAT, [H, V]))
    assert refusal(made, tmp_path) == f"{NAME}: {HEAD} is an output of the model"


def test_a_note_on_quantisation_is_refused(tmp_path: Path) -> None:
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    made.graph.quantization_annotation.add(tensor_name="w")
    assert refusal(made, tmp_path) == f"{NAME}: w is named by a note on quantisation"


def test_a_training_run_is_refused(tmp_path: Path) -> None:
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    made.training_info.add().initialization.name = "start"
    tmp_path.joinpath(NAME).write_bytes(made.SerializeToString())
    plan = plan_fix(tmp_path)
    assert plan.refusals[0].what == f"{NAME}: it describes a training run, which refers to initializers by name"


def beside(made: onnx.ModelProto, folder: Path, *outside: str) -> Path:
    """These initializers in `data.bin`."""
    folder.mkdir(exist_ok=True)
    for tensor in made.graph.initializer:
        if tensor.name in outside:
            onnx.external_data_helper.set_external_data(tensor, "data.bin")
    onnx.save(made, folder / NAME)
    return folder


def test_numbers_in_a_file_beside_the_model_are_refused(tmp_path: Path) -> None:
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    plan = plan_fix(beside(made, tmp_path, EMBED, "w"))
    assert plan.verdict == "refused"
    assert plan.refusals[0].what == f"{NAME}: the numbers of w lie in a file beside the model, which would stay as large"


def test_a_copy_in_the_model_of_what_lies_beside_it(tmp_path: Path) -> None:
    made = model(logits(HEAD, gemm=False), {EMBED: values(1), HEAD: values(1).T.copy(), BIAS: values(2, H)})
    beside(made, tmp_path / "in", EMBED)
    fixed(tmp_path / "in", tmp_path / "out", "transposed-copy")
    assert (tmp_path / "out" / "data.bin").read_bytes() == (tmp_path / "in" / "data.bin").read_bytes()


@pytest.mark.parametrize(("opset", "verdict"), [(13, "ready"), (12, "refused")])
def test_a_transpose_that_the_opset_does_not_have_is_refused(opset: int, verdict: str, tmp_path: Path) -> None:
    bf16, one = TensorProto.BFLOAT16, values(1).view(np.uint16)[:, 1::2].copy()
    nodes = [
        helper.make_node("Gather", [EMBED, "ids"], ["x"]),
        helper.make_node("MatMul", ["x", HEAD], ["logits"]),
    ]
    made = model(nodes, {}, opset=opset)
    for name, array in ((EMBED, one), (HEAD, one.T.copy())):
        made.graph.initializer.append(helper.make_tensor(name, bf16, array.shape, array.tobytes(), raw=True))
    made.graph.output[0].type.tensor_type.elem_type = bf16
    (tmp_path / NAME).write_bytes(made.SerializeToString())
    plan = plan_fix(tmp_path)
    assert plan.verdict == verdict
    assert [refused.what for refused in plan.refusals] == (
        [f"{NAME}: the model's opset 12 has no Transpose of BF16"] if verdict == "refused" else []
    )


def test_typed_data_and_constants(tmp_path: Path) -> None:
    """An initializer in `float_data` goes as well; an equal Constant node is no initializer, and stays with its finding."""
    made = model(logits("w", gemm=True), {EMBED: values(1), BIAS: values(2, H)})
    made.graph.initializer.append(helper.make_tensor("w", FLOAT, (V, H), values(1).ravel()))
    onnx.checker.check_model(made)
    assert names(fixed(saved(made, tmp_path / "in"), tmp_path / "out", "duplicate-tie")) == [EMBED, BIAS]
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(values(1)))
    plan = plan_fix(saved(model([constant, *logits("w", gemm=True)], {EMBED: values(1), BIAS: values(2, H)}), tmp_path / "constant"))
    assert (plan.verdict, [left.rule for left in plan.left]) == ("unrepaired", ["duplicate-tie"])


def test_one_pair_that_can_and_one_that_cannot_be_merged(tmp_path: Path) -> None:
    """Layers in Constant nodes stay with their finding; the layers in initializers do not wait for that."""
    nodes = [
        helper.make_node("Gather", [EMBED, "ids"], ["x0"]),
        *(helper.make_node("Constant", [], [f"c{n}"], value=numpy_helper.from_array(values(7, H, H))) for n in range(2)),
        helper.make_node("MatMul", ["x0", "c0"], ["x1"]),
        helper.make_node("MatMul", ["x1", "c1"], ["x2"]),
        helper.make_node("MatMul", ["x2", "a"], ["x3"]),
        helper.make_node("MatMul", ["x3", "b"], ["x"]),
        helper.make_node("Gemm", ["x", EMBED], ["logits"], transB=1),
    ]
    saved(model(nodes, {EMBED: values(1), "a": values(5, H, H), "b": values(5, H, H)}), tmp_path / "in")
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    assert names(onnx.load(tmp_path / "out" / NAME)) == [EMBED, "a"]
    assert [finding.rule for finding in audit(tmp_path / "out").findings] == ["duplicate-tensor"]
    assert run(tmp_path / "in" / NAME)[0].tobytes() == run(tmp_path / "out" / NAME)[0].tobytes()


def test_untie_keeps_both(tmp_path: Path) -> None:
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    assert plan_fix(saved(made, tmp_path), untie=True).steps == ()


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    made = model(logits("w??", gemm=True), {EMBED: values(1), "w??": values(1), BIAS: values(2, H)})
    (tmp_path / NAME).write_bytes(made.SerializeToString().replace(b"w??", b"w\xff\xfe"))
    plan = plan_fix(tmp_path)
    assert plan.verdict == "refused"
    assert plan.refusals[0].what.endswith("is no valid text")


def test_lengths_in_a_longer_form_are_refused(tmp_path: Path) -> None:
    """The length of the graph with a byte more than it needs, which readers take all the same."""
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    graph = made.graph.SerializeToString()
    size = len(graph)
    rest = onnx.ModelProto()
    rest.CopyFrom(made)
    rest.ClearField("graph")
    length = bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14 | 128, 0))
    raw = rest.SerializeToString() + b"\x3a" + length + graph
    assert onnx.load_from_string(raw) == made
    (tmp_path / NAME).write_bytes(raw)
    plan = plan_fix(tmp_path)
    assert plan.verdict == "refused"
    assert plan.refusals[0].what == f"{NAME}: has lengths in a form that no writer of ONNX uses"


def test_the_table_of_tokens_stays_and_a_copy_before_it_goes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", [EMBED, "ids"], ["x"]),
        helper.make_node("Gemm", ["x", "copy"], ["y"], transB=1),
        helper.make_node("MatMul", ["y", "copy"], ["z"]),
        helper.make_node("Gemm", ["z", EMBED], ["logits"], transB=1),
    ]
    before = model(nodes, {"copy": values(1), EMBED: values(1)})
    after = fixed(saved(before, tmp_path / "in"), tmp_path / "out", "duplicate-tensor")
    assert names(after) == [EMBED]


def test_a_flag_beside_it_keeps_no_graph_from_sharing(tmp_path: Path) -> None:
    made = model(logits("w", gemm=True), {EMBED: values(1), "w": values(1), BIAS: values(2, H)})
    (saved(made, tmp_path / "in") / "config.json").write_bytes(untied(vocab_size=V, hidden_size=H))
    assert names(fixed(tmp_path / "in", tmp_path / "out", "duplicate-tie")) == [EMBED, BIAS]
    assert (tmp_path / "out" / "config.json").read_bytes() == untied(vocab_size=V, hidden_size=H)
