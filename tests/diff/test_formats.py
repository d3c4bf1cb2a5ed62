"""Comparisons across formats: ONNX by both exporters, GGUF as llama.cpp's converter writes it, quantised copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, get_tensor_name_map
from pairs import EMBED, HEAD, LAYERS, MATRIX, TENSORS, V, gemma2, gpt2, llama, tensors_of
from test_stories import part, told

from tieaudit import diff
from tieaudit.changes.gguf_names import candidates
from tieaudit.changes.numbers import head_counts, rotary
from tieaudit.difference import Change, Sharing

Models = Callable[[str], Path]


@pytest.mark.parametrize("form", ["onnx", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_an_export_that_folds_constants_stores_the_head_again_transposed(form: str, models: Models) -> None:
    found = diff(models("base"), models(form), expect=["same-values", "same-ties"])
    assert told(found) == [("tie-lost", "warning"), ("size-growth", "note")]
    (tie,) = found.changes.ties
    assert (tie.before.sharing, tie.after.sharing) == (Sharing.SHARED, Sharing.REPEATED)  # type: ignore[union-attr]
    assert tie.after.words.startswith("stored twice, the second transposed: ")  # type: ignore[union-attr]
    assert found.counts == {"equal": 6, "transposed": TENSORS - 6}
    assert {pair.reason for pair in found.changes.pairs if pair.kind is Change.TRANSPOSED} == {
        "ONNX multiplies by a matrix of input × output"
    }
    assert all(pair.allowed and pair.evidence == "proved" for pair in found.changes.pairs)
    assert not found.changes.lost
    assert part(found, "head") == ("the head is stored again, transposed", MATRIX)
    assert "the head is stored again, transposed (+24.6 kB)" in found.changes.sizes.words
    assert [one.met for one in found.expectations] == [True, False]
    # every matrix found its own partner, though their names say nothing
    known = tensors_of(models("base"))
    shapes = {pair.before.name: (pair.before.shape, pair.after.shape) for pair in found.changes.pairs}
    assert all(sorted(before) == sorted(after) == sorted(known[name].shape) for name, (before, after) in shapes.items())


@pytest.mark.parametrize(("form", "kinds"), [("f16.gguf", "cast"), ("q8.gguf", "quantised")])
def test_a_gguf_is_renamed_and_has_q_and_k_in_rotary_order(form: str, kinds: str, models: Models) -> None:
    for before, after in (("base", form), (form, "base")):
        found = diff(models(before), models(after), expect=["same-values", "same-ties"], ignore="size-growth")
        assert told(found) == []
        assert found.counts == {"equal": 2 * LAYERS + 1, kinds: 11, f"rows permuted and {kinds}": 2 * LAYERS}
        assert {pair.renamed for pair in found.changes.pairs} == {"its name in GGUF"}
        assert all(pair.allowed for pair in found.changes.pairs)
        assert {name.rsplit(".", 2)[1] for pair in found.changes.pairs if pair.kind is Change.PERMUTED
                for name in (pair.before.name, pair.after.name)} == {"q_proj", "k_proj", "attn_q", "attn_k"}  # fmt: skip
        assert [one.met for one in found.expectations] == [True, True]
        assert not found.changes.lost
        assert not found.changes.added


def test_quantisation_error_is_measured(models: Models) -> None:
    found = diff(models("base"), models("q8.gguf"))
    pair = next(pair for pair in found.changes.pairs if pair.before.name == EMBED)
    from gguf import GGMLQuantizationType, quants

    from gguf_encoders import encode

    original = tensors_of(models("base"))[EMBED].numpy().astype(np.float64)
    packed = np.frombuffer(encode(original.astype(np.float32), GGMLQuantizationType.Q8_0), np.uint8)
    values = quants.dequantize(packed.reshape(-1), GGMLQuantizationType.Q8_0).reshape(original.shape).astype(np.float64)
    error = np.linalg.norm(original - values) / np.linalg.norm(original)
    assert pair.relative_error == pytest.approx(error, rel=1e-6)
    assert 0.003 < error < 0.01
    assert pair.cosine is not None
    assert pair.cosine > 0.9999
    assert part(found, "quantisation")[0] == "F32 became Q8_0"


def test_a_gguf_with_a_head_of_the_same_values_has_lost_the_tie(models: Models) -> None:
    found = diff(models("base"), models("head.gguf"))
    assert told(found) == [("tie-lost", "warning")]
    assert part(found, "head") == ("the head is stored again", V * 64 // 32 * 34)


def test_a_gguf_of_another_model_is_told(models: Models, tmp_path: Path) -> None:
    from pairs import to_gguf

    other = llama()
    with torch.no_grad():
        torch.manual_seed(9)
        other.model.layers[1].self_attn.q_proj.weight.normal_(0, 0.02)
        other.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    found = diff(models("base"), to_gguf(other, tmp_path / "other.gguf", MODEL_ARCH.LLAMA, "Q8_0"))
    assert {name for name, _ in told(found)} == {"value-change"}
    assert {place.name for finding in found.findings for place in finding.tensors} == {"blk.1.attn_q.weight", "blk.0.ffn_up.weight"}


@pytest.mark.parametrize("form", ["gpt2.gguf", "gpt2-q8.gguf"])
def test_gpt2_is_turned_by_the_converter(form: str, models: Models) -> None:
    found = diff(models("gpt2"), models(form), expect=["same-values", "same-ties"])
    assert told(found) == []
    assert sum(pair.kind is Change.TRANSPOSED for pair in found.changes.pairs) == 4 * LAYERS
    assert len(found.changes.pairs) == 12 * LAYERS + 4
    assert [one.met for one in found.expectations] == [True, True]


def test_gemmas_norms_are_stored_plus_one(models: Models) -> None:
    found = diff(models("gemma2"), models("gemma2.gguf"), expect=["same-values", "same-ties"])
    assert told(found) == []
    assert found.counts == {"cast": 7 * LAYERS + 1, "plus one": 4 * LAYERS + 1}
    assert [one.met for one in found.expectations] == [True, True]
    back = diff(models("gemma2.gguf"), models("gemma2"), expect="same-values")
    assert back.expectations[0].met


@pytest.mark.parametrize(("form", "words", "errors"), [("mlx8", "MLX 8-bit", (0.002, 0.01)), ("mlx4", "MLX 4-bit", (0.04, 0.12))])
def test_an_mlx_copy_is_quantised(form: str, words: str, errors: tuple[float, float], models: Models) -> None:
    found = diff(models("base"), models(form), expect=["same-values", "same-ties", "smaller"])
    assert told(found) == []
    assert found.counts == {"equal": 2 * LAYERS + 1, "quantised": 7 * LAYERS + 1}
    assert [one.met for one in found.expectations] == [True, True, True]
    measured = [pair.relative_error for pair in found.changes.pairs if pair.kind is Change.QUANTISED]
    assert all(error is not None and errors[0] < error < errors[1] for error in measured)
    assert part(found, "quantisation")[0] == f"F32 became {words}"


def test_eight_bits_of_bitsandbytes_are_dequantised(models: Models) -> None:
    found = diff(models("base"), models("bnb8"), expect="same-values")
    assert [finding for finding in told(found) if finding[1] == "error"] == []
    assert found.counts["quantised"] == 7 * LAYERS
    assert found.expectations[0].met
    assert part(found, "quantisation")[0] == "F32 became bitsandbytes 8-bit"


def test_what_is_not_decoded_is_neither_equal_nor_changed(models: Models) -> None:
    found = diff(models("base"), models("bnb4"), expect="same-values")
    assert [finding for finding in told(found) if finding[1] == "error"] == []
    assert found.counts["not compared"] == 7 * LAYERS
    assert found.expectations[0].met is None
    assert [skip.subject for skip in found.not_compared] == [f"the values of {7 * LAYERS} tensors"]
    assert "bitsandbytes 4-bit (nf4)" in found.not_compared[0].reason


def test_rotary_order_is_that_of_the_converter() -> None:
    from pairs import rotary as truth

    rows = np.arange(64 * 3).reshape(64, 3)
    for heads in (1, 2, 4, 8, 16):
        assert (rows[rotary(64, heads)] == truth(rows, heads)).all()
    assert head_counts(64, (4, 2))[:2] == [4, 2]
    assert all(64 % count == 0 and 64 // count % 2 == 0 for count in head_counts(64, ()))


@pytest.mark.parametrize(
    ("arch", "model"), [(MODEL_ARCH.LLAMA, llama), (MODEL_ARCH.GPT2, gpt2), (MODEL_ARCH.GEMMA2, gemma2)], ids=["llama", "gpt2", "gemma2"]
)
def test_the_map_of_names_is_that_of_the_gguf_package(arch: MODEL_ARCH, model: Callable[[], torch.nn.Module]) -> None:
    names = get_tensor_name_map(arch, LAYERS)
    for name in set(model().state_dict()) - ({HEAD} if arch is MODEL_ARCH.GEMMA2 else set()):
        there = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert there in [found for found, _ in candidates(name)], name


@pytest.mark.parametrize(
    "name", ["LLAMA", "QWEN2", "QWEN3", "QWEN2MOE", "GEMMA", "GEMMA2", "GEMMA3", "GPT2", "PHI3", "MISTRAL3", "OLMO2", "STARCODER2"]
)
def test_every_name_of_the_map_is_one_of_its_architecture(name: str) -> None:
    """Of the names that stand in transformers' checkpoints of the family, in the words of the package itself."""
    arch = getattr(MODEL_ARCH, name, None)
    if arch is None:
        pytest.skip(f"the installed gguf has no {name}")
    mapping = get_tensor_name_map(arch, 1).mapping
    known = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj",
             "mlp.gate_proj",
             "input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate", "mlp.shared_expert.up_proj")  # fmt: skip
    for inner in known:
        parameter = f"model.layers.0.{inner}"
        if parameter in mapping:
            assert f"{mapping[parameter][1]}.weight" in [found for found, _ in candidates(f"{parameter}.weight")], parameter


@pytest.mark.parametrize("row", [0, 37, 95])
def test_one_broken_row_of_a_quantised_matrix_is_seen(row: int, models: Models, tmp_path: Path) -> None:
    from pairs import to_gguf

    other = llama()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[row] *= -1
    found = diff(models("base"), to_gguf(other, tmp_path / "other.gguf", MODEL_ARCH.LLAMA, "Q8_0"))
    assert {name for name, _ in told(found)} == {"value-change"}
    assert [place.name for finding in found.findings for place in finding.tensors] == ["blk.1.ffn_up.weight"]
