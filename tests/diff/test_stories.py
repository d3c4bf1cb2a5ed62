"""What a comparison says of real pairs: a tied Llama and what libraries make of it. The words and the numbers are exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pairs import EMBED, HEAD, KV_HEADS, MATRIX, TENSORS, copy, save_file, tensors_of

from tieaudit import Diff, audit, diff
from tieaudit.difference import Change, Sharing
from tieaudit.reporters import diff_text
from tieaudit.text import quantity

Models = Callable[[str], Path]
Q0 = "model.layers.0.self_attn.q_proj.weight"


def told(found: Diff) -> list[tuple[str, str]]:
    """(rule, severity) of the findings, and whether sizes add up."""
    sizes = found.changes.sizes
    assert sizes.difference == sum(part.nbytes for part in sizes.parts)
    assert sizes.before == sum(nbytes for _, nbytes in found.before.files)
    assert sizes.after == sum(nbytes for _, nbytes in found.after.files)
    return [(finding.rule, finding.severity.value) for finding in found.findings]


def part(found: Diff, what: str) -> tuple[str, int]:
    """(words, bytes) of the one cause of this kind."""
    ((words, nbytes),) = [(one.words, one.nbytes) for one in found.changes.sizes.parts if one.what == what]
    return words, nbytes


def size(path: Path) -> int:
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.onnx")]
    return sum(file.stat().st_size for file in files)


def headline(found: Diff) -> str:
    return diff_text.render(found).splitlines()[0].split("   ", 1)[1]


def test_sharded_again_is_no_difference(models: Models) -> None:
    base, after = models("base"), models("sharded")
    found = diff(base, after, expect=["same-ties", "same-values"])
    assert told(found) == []
    assert found.same
    assert found.verdict == "ok"
    assert headline(found) == f"no difference: {TENSORS} tensors, equal byte for byte"
    assert found.counts == {"equal": TENSORS}
    assert all(pair.moved and pair.evidence == "proved" for pair in found.changes.pairs)
    assert [(one.name, one.met, one.reason) for one in found.expectations] == [
        ("same-ties", True, "1 tie, the same on both sides"),
        ("same-values", True, f"{TENSORS} tensors equal"),
    ]
    assert [one.what for one in found.changes.sizes.parts] == ["other"]
    assert found.changes.sizes.words == f"{quantity(size(base))} → {quantity(size(after))}: only headers and metadata of the files differ"


def test_a_merged_lora_changes_its_targets_by_its_rank(models: Models) -> None:
    found = diff(models("base"), models("lora"))
    assert told(found) == [("value-change", "error")]
    assert headline(found) == f"4 of {TENSORS} tensors changed, each by a matrix of rank 4 or less: a merged LoRA?"
    assert found.counts == {"equal": TENSORS - 4, "drifted": 4}
    assert found.findings[0].cause == "a merged LoRA of rank 4"
    assert {place.name.rsplit(".", 2)[1] for place in found.findings[0].tensors} == {"q_proj", "v_proj"}
    pair = next(pair for pair in found.changes.pairs if pair.after.name == Q0)
    before, after = (tensors_of(models(name))[Q0].double() for name in ("base", "lora"))
    assert pair.rank == 4
    assert pair.max_difference == pytest.approx(float((before - after).abs().max()), rel=1e-12)
    assert pair.cosine == pytest.approx(float(torch.cosine_similarity(before.flatten(), after.flatten(), 0)), rel=1e-9)
    assert pair.relative_error == pytest.approx(float((before - after).norm() / before.norm()), rel=1e-9)
    assert [(tie.kept, tie.lost) for tie in found.changes.ties] == [(True, False)]


def test_a_merge_with_a_head_of_its_own_loses_the_tie(models: Models) -> None:
    found = diff(models("base"), models("lora head"), expect="same-ties")
    assert told(found) == [("value-change", "error"), ("tie-lost", "warning"), ("size-growth", "note")]
    (tie,) = found.changes.ties
    assert (tie.before.sharing, tie.after.sharing, tie.kept) == (Sharing.SHARED, Sharing.APART, False)  # type: ignore[union-attr]
    assert tie.words == "one matrix before, two after"
    assert found.findings[1].message == (
        f"{EMBED} and {HEAD} were one matrix; after, two matrices: {EMBED} and {HEAD} (untied: tie_word_embeddings is false in config.json)"
    )
    assert part(found, "head") == ("a head of its own", MATRIX)
    assert [(one.name, one.met, one.reason) for one in found.expectations] == [
        ("same-ties", False, f"{EMBED} and {HEAD}: one matrix before, two after")
    ]


def test_a_lora_on_a_tied_head_changes_both_ends_and_keeps_the_tie(models: Models) -> None:
    found = diff(models("base"), models("lora tied"))
    assert told(found) == [("value-change", "error")]
    (finding,) = found.findings
    assert [place.name for place in finding.tensors] == [EMBED]
    assert finding.cause == "a merged LoRA of rank 4"
    assert found.changes.ties[0].kept


def test_new_rows_are_expected_and_lost_ones_are_not(models: Models) -> None:
    base, more = models("base"), models("resized")
    found = diff(base, more, expect=["same-values", "same-ties", "smaller"])
    assert told(found) == [("size-growth", "note")]
    (pair,) = [pair for pair in found.changes.pairs if pair.kinds != (Change.EQUAL,)]
    assert (pair.kinds, pair.allowed, pair.reason) == ((Change.RESIZED,), True, "the first 96 rows are kept, 32 are new")
    assert part(found, "rows") == ("32 rows more", 32 * 64 * 4)
    assert f"{quantity(size(base))} → {quantity(size(more))}: 32 rows more (+8.19 kB)" in found.changes.sizes.words
    assert [one.met for one in found.expectations] == [True, True, False]
    assert found.expectations[2].reason == f"{size(base):,} bytes before, {size(more):,} bytes after"
    back = diff(more, base)
    assert told(back) == [("value-change", "error")]
    assert back.findings[0].message == f"1 tensor has another number of rows: {EMBED} (the first 96 rows are kept, 32 are gone)"
    assert part(back, "rows") == ("32 rows fewer", -32 * 64 * 4)


def test_padding_rows_may_go(models: Models, tmp_path: Path) -> None:
    def pad(tensors: dict[str, torch.Tensor]) -> None:
        tensors[EMBED] = torch.cat([tensors[EMBED], torch.zeros(32, 64)])

    found = diff(copy(models("base"), tmp_path / "padded", pad, vocab_size=128), models("base"))
    assert told(found) == []
    assert [pair.reason for pair in found.changes.pairs if pair.kind is Change.RESIZED] == [
        "the first 96 rows are kept, 32 are gone: they were padding"
    ]


def test_an_equal_head_beside_it_is_a_tie_lost_and_bytes_but_no_value(models: Models) -> None:
    found = diff(models("base"), models("untied"), expect="same-values")
    assert told(found) == [("tie-lost", "warning"), ("size-growth", "note")]
    assert found.changes.ties[0].words == "one matrix before, stored twice after"
    (one,) = found.changes.added
    assert (one.tensor.name, one.allowed, one.reason) == (HEAD, True, f"it repeats {EMBED}")
    assert part(found, "head") == ("the head is stored again", MATRIX)
    assert found.expectations[0].met
    back = diff(models("untied"), models("base"))
    assert told(back) == []  # nothing is lost: the head was the embedding
    assert [(one.reason, one.allowed) for one in back.changes.lost] == [(f"it repeats {EMBED}, which stays", True)]
    assert part(back, "head") == ("the head is no longer stored by itself", -MATRIX)


def test_a_head_that_was_trained_and_is_gone_is_an_error(models: Models) -> None:
    found = diff(models("two"), models("beheaded"))
    assert told(found) == [("head-lost", "error")]
    assert headline(found) == "the output head is gone"
    assert found.findings[0].message == (
        f"the head {HEAD} is lost: after, one matrix, {EMBED}, which {HEAD} reads: the embedding has taken its place"
    )
    assert part(found, "head") == ("the head is gone", -MATRIX)


def test_a_flag_that_was_flipped_without_a_head_is_an_error(models: Models) -> None:
    found = diff(models("base"), models("flipped"), expect="same-values")
    assert told(found) == [("head-lost", "error")]
    assert found.findings[0].message == (
        f"the head {HEAD} is lost: the two were one matrix; after, no head is stored, and it is not the embedding "
        "(tie_word_embeddings is false in config.json)"
    )
    assert found.expectations[0].met is False


def test_a_head_in_whose_place_the_embedding_stands_is_lost_and_not_changed(models: Models, tmp_path: Path) -> None:
    def overwrite(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBED].clone()

    found = diff(models("two"), copy(models("two"), tmp_path / "over", overwrite))
    assert told(found) == [("head-lost", "error")]
    assert "the embedding has taken its place" in found.findings[0].message


def test_a_head_that_moved_into_the_embeddings_place_is_not_lost(models: Models, tmp_path: Path) -> None:
    def take(tensors: dict[str, torch.Tensor]) -> None:
        tensors[EMBED] = tensors.pop(HEAD)

    found = diff(models("two"), copy(models("two"), tmp_path / "taken", take, tie_word_embeddings=True))
    assert ("head-lost", "error") not in told(found)
    assert [place.name for finding in found.findings for place in finding.tensors][:1] == [EMBED]


def test_a_cast_is_expected(models: Models) -> None:
    found = diff(models("base"), models("bf16"), expect=["same-values", "same-ties", "smaller"])
    assert told(found) == []
    assert found.counts == {"cast": TENSORS}
    assert {(pair.reason, pair.evidence.value) for pair in found.changes.pairs} == {
        ("F32 to BF16: each value is rounded to BF16", "proved")
    }
    assert [one.met for one in found.expectations] == [True, True, True]
    assert found.expectations[0].reason == f"0 tensors equal, {TENSORS} tensors changed in ways that are allowed"
    elements = sum(tensor.numel() for tensor in tensors_of(models("base")).values())
    assert part(found, "dtype") == ("F32 became BF16", -2 * elements)
    back = diff(models("bf16"), models("base"))
    # the F32 weights were not widened from BF16, they hold more
    assert {pair.reason for pair in back.changes.pairs} == {"BF16 to F32: every value is kept"}


def test_values_too_large_for_half_precision_are_no_cast(models: Models, tmp_path: Path) -> None:
    def large(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q0][0, :3] = 1e6

    def half(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.half()

    first = copy(models("base"), tmp_path / "large", large)
    found = diff(first, copy(first, tmp_path / "half", half))
    assert told(found) == [("value-change", "error")]
    assert [place.name for place in found.findings[0].tensors] == [Q0]
    assert "3 values are too large for F16 and became infinite" in found.findings[0].message


def test_a_lost_layer_is_an_error(models: Models, tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[Q0]

    found = diff(models("base"), copy(models("base"), tmp_path / "less", drop))
    assert told(found) == [("value-change", "error")]
    assert found.findings[0].message == f"1 tensor is gone: {Q0}"


def test_wrappers_and_prefixes_are_renames(models: Models, tmp_path: Path) -> None:
    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"module._orig_mod.{name}"] = tensors.pop(name)

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    for change, why in ((wrap, "a wrapper's prefix"), (strip, "a prefix more or less")):
        found = diff(models("base"), copy(models("base"), tmp_path / change.__name__, change), expect="same-values")
        assert told(found) == []
        assert {pair.renamed for pair in found.changes.pairs} == {why}
        assert found.counts == {"equal": TENSORS}
        assert not found.same
        assert headline(found) == "the same values under other names"


def test_rows_in_another_order_are_an_error(models: Models, tmp_path: Path) -> None:
    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q0] = tensors[Q0].flip(0)

    found = diff(models("base"), copy(models("base"), tmp_path / "turned", turn))
    assert told(found) == [("value-change", "error")]
    assert f"1 tensor has its rows in another order: {Q0}".replace("its", "their") in found.findings[0].message


def test_a_transposed_matrix_outside_of_an_export_is_an_error(models: Models, tmp_path: Path) -> None:
    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q0] = tensors[Q0].T

    found = diff(models("base"), copy(models("base"), tmp_path / "turned", turn))
    assert told(found) == [("value-change", "error")]
    assert found.findings[0].message == (
        f"1 tensor is transposed: {Q0} (rows and columns are swapped, and safetensors does not ask for that)"
    )


def test_optimizer_state_is_named_in_the_size(models: Models, tmp_path: Path) -> None:
    weights = dict(tensors_of(models("base")))
    (tmp_path / "run").mkdir()
    moments = {number: {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(tensor), "exp_avg_sq": torch.zeros_like(tensor)}
               for number, tensor in enumerate(weights.values())}  # fmt: skip
    torch.save({"model": weights, "optimizer": {"state": moments, "param_groups": []}}, tmp_path / "run" / "checkpoint.pt")
    torch.save(weights, tmp_path / "weights.pt")
    found = diff(tmp_path / "weights.pt", tmp_path / "run" / "checkpoint.pt")
    nbytes = sum(tensor.numel() * 4 for tensor in weights.values())
    assert told(found) == [("size-growth", "note")]
    assert part(found, "optimizer") == ("optimizer state", 2 * nbytes + 4 * len(weights))
    assert found.counts == {"equal": TENSORS}


def test_bytes_of_a_second_format_are_named(models: Models, tmp_path: Path) -> None:
    both = copy(models("base"), tmp_path / "both", lambda _: None)
    torch.save(dict(tensors_of(both)), both / "pytorch_model.bin")
    found = diff(models("base"), both)
    assert told(found) == [("size-growth", "note")]
    words, nbytes = part(found, "copies")
    assert words == "more weights beside it (pytorch_model.bin)"
    assert nbytes == sum(tensor.numel() * 4 for tensor in tensors_of(both).values())
    assert [skip.subject for skip in found.not_compared] == ["after: pytorch_model.bin"]


def test_views_of_a_torch_file_are_compared_by_their_elements(models: Models, tmp_path: Path) -> None:
    weights = dict(tensors_of(models("base")))
    views = {name: tensor.T.contiguous().T if tensor.dim() == 2 else tensor for name, tensor in weights.items()}
    for name, tensors in (("plain", weights), ("views", views)):
        torch.save(tensors, tmp_path / f"{name}.pt")
    found = diff(tmp_path / "plain.pt", tmp_path / "views.pt")
    assert found.counts == {"equal": TENSORS}
    assert not found.skipped
    assert told(found) == []


def test_the_audits_of_both_sides_agree_on_the_tie(models: Models) -> None:
    for name in ("base", "untied", "onnx", "q8.gguf"):
        found = diff(models("base"), models(name))
        tie = next(tie for tie in audit(models(name)).ties if tie.role == "embedding-head")
        after = found.changes.ties[0].after
        assert after is not None
        assert {"one matrix": Sharing.SHARED, "equal": Sharing.REPEATED, "transposed": Sharing.REPEATED}[tie.relation] is after.sharing


def test_experts_of_a_stack_are_told_one_by_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    experts = {f"model.layers.0.mlp.experts.{n}.up_proj.weight": torch.randn(32, 64) for n in range(4)}
    (tmp_path / "moe").mkdir()
    save_file({EMBED: torch.randn(32, 64), **experts}, tmp_path / "moe" / "model.safetensors")
    from gguf import GGMLQuantizationType

    from gguf_files import write

    stack = torch.stack(list(experts.values())).numpy()
    embedding = tensors_of(tmp_path / "moe")[EMBED].numpy()
    kind = GGMLQuantizationType.F32
    write(tmp_path / "moe.gguf", {"token_embd.weight": (embedding, kind), "blk.0.ffn_up_exps.weight": (stack, kind)}, "qwen2moe")
    found = diff(tmp_path / "moe", tmp_path / "moe.gguf")
    assert found.counts == {"equal": 5}
    assert [pair.after.name for pair in found.changes.pairs][1:] == [f"blk.0.ffn_up_exps.weight[{n}]" for n in range(4)]
    assert told(found)[:0] == []
    assert not found.changes.lost
    assert not found.changes.added


def test_the_json_of_a_story_is_whole(models: Models) -> None:
    from tieaudit.reporters import diff_json

    document = json.loads(diff_json.render(diff(models("base"), models("head.gguf"), expect="same-ties")))
    changes = document["tensors"]["changes"]
    assert len(changes) == TENSORS
    assert all(change["reason"] or change["kinds"] == ["equal"] for change in changes)
    assert {change["renamed"] for change in changes} == {"its name in GGUF"}
    assert sum(part["nbytes"] for part in document["size"]["parts"]) == document["size"]["difference"]
    assert document["expectations"] == [
        {"name": "same-ties", "met": False, "reason": f"{EMBED} and {HEAD}: one matrix before, stored twice after"}
    ]
    assert KV_HEADS == 2


def _bf16(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensors[name] = tensor.bfloat16()


def test_one_step_of_training_in_bf16_is_no_cast(models: Models, tmp_path: Path) -> None:
    """Every value moves by one unit in the last place: as little as a cast may, and it is none."""

    def train(tensors: dict[str, torch.Tensor]) -> None:
        _bf16(tensors)
        tensors[Q0] = (tensors[Q0].view(torch.int16) + 1).view(torch.bfloat16)

    found = diff(models("base"), copy(models("base"), tmp_path / "trained", train))
    assert told(found) == [("value-change", "error")]
    assert [place.name for place in found.findings[0].tensors] == [Q0]
    assert found.counts == {"cast": TENSORS - 1, "drifted": 1}


def test_a_cast_that_cuts_is_a_cast(models: Models, tmp_path: Path) -> None:
    def cut(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = (tensor.view(torch.int32) & -65536).view(torch.float32).bfloat16()

    found = diff(models("base"), copy(models("base"), tmp_path / "cut", cut))
    assert told(found) == []
    assert {pair.reason for pair in found.changes.pairs} == {"F32 to BF16: each value is cut to BF16, not rounded"}


def test_two_things_without_a_tensor_in_common_are_not_called_alike(models: Models) -> None:
    adapter = Path(__file__).parent.parent / "cases" / "warn_adapter_targets_tied"
    found = diff(models("base"), adapter)
    assert not found.same
    assert found.verdict == "incomplete"
    assert [skip.subject for skip in found.skipped] == ["the tensors of the two"]


def test_a_quantised_copy_with_padding_rows_is_not_accused(models: Models, tmp_path: Path) -> None:
    from pairs import mlx

    found = diff(models("base"), mlx(models("resized"), tmp_path / "padded"))
    assert [finding for finding in told(found) if finding[1] == "error"] == []
    assert [(pair.after.name, pair.kind, pair.reason) for pair in found.changes.pairs if pair.kind is Change.NOT_COMPARED] == [
        (EMBED, Change.NOT_COMPARED, "a quantised matrix with another number of rows (96 × 64 before, 128 × 64 after)")
    ]
