"""Verdicts on GGUF files: ties by absence, copies, ends in two types, architectures that need both ends, files that are no model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from builders import config, folder, tied
from gguf_encoders import ENCODERS
from gguf_files import EMBEDDING, HEAD, Type, weights, write
from hub_server import Hub
from tieaudit import Report, audit, values
from tieaudit.bytewise import BEGIN, END, MIDDLE, TensorBytes, element
from tieaudit.loaders import gguf
from tieaudit.loaders.gguf_ends import OUTPUT_REQUIRED
from tieaudit.reporters import terminal
from tieaudit.sources.local import LocalFolder

A, B = weights(1), weights(2)
WRITABLE = [
    Type.F32,
    Type.F16,
    Type.BF16,
    Type.Q8_0,
    Type.Q4_0,
    Type.Q4_1,
    Type.Q5_0,
    Type.Q5_1,
    Type.MXFP4,
    Type.TQ1_0,
    Type.TQ2_0,
    *ENCODERS,
]
LAYER = {"blk.0.attn_q.weight": (weights(7), Type.Q8_0), "output_norm.weight": (np.ones(256, np.float32), Type.F32)}


def rules(report: Report) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity.value) for finding in report.findings]


def audited(path: Path, ends: dict[str, tuple[np.ndarray, Type]], architecture: str = "llama", **options: object) -> Report:
    return audit(write(path / "model.gguf", {**ends, **LAYER}, architecture, **options))  # type: ignore[arg-type]


def half(values_of: np.ndarray, kind: Type) -> np.ndarray:
    """What the writer takes for this type."""
    return values_of.astype(np.float16) if kind is Type.F16 else values_of


# one end


def test_a_file_without_output_is_tied_by_absence(tmp_path: Path) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0)})
    [tie] = report.ties
    assert (report.verdict, report.findings, report.skipped, report.not_compared) == ("ok", (), (), ())
    assert report.reason == "tied: one matrix is stored, and the head reads it"
    assert (tie.canonical, tie.aliases, tie.claim, tie.relation) == (EMBEDDING, (HEAD,), "tied", "one matrix")
    assert tie.claim_source == "tied: GGUF without output.weight: llama.cpp reads token_embd.weight in its place"
    assert (tie.shape, tie.dtype, tie.saves_bytes, tie.training_bytes) == ((64, 256), "Q8_0", 64 * 8 * 34, 0)


@pytest.mark.parametrize("architecture", sorted(OUTPUT_REQUIRED))
def test_an_architecture_that_needs_its_head_misses_it(tmp_path: Path, architecture: str) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0)}, architecture)
    assert rules(report) == [("missing-head", "error")]
    [finding] = report.findings
    assert f"llama.cpp (so Ollama too) refuses to load {architecture} without it" in finding.message
    assert "config.json" not in terminal.render(report)


def test_a_file_without_an_embedding_misses_it(tmp_path: Path) -> None:
    [finding] = audited(tmp_path, {HEAD: (A, Type.Q8_0)}).findings
    assert (finding.rule, finding.severity) == ("missing-embedding", "error")
    assert finding.fix == "convert the model again; if output.weight is its embedding too, store it as token_embd.weight"


def test_codeshell_takes_its_head_for_the_embedding(tmp_path: Path) -> None:
    assert audited(tmp_path, {HEAD: (A, Type.Q8_0)}, "codeshell").findings == ()


def test_gemma_with_neither_end_misses_the_embedding(tmp_path: Path) -> None:
    report = audited(tmp_path, {}, "gemma2")
    assert rules(report) == [("missing-embedding", "error")]
    assert "the converter drops lm_head.weight" in (report.findings[0].fix or "")


@pytest.mark.parametrize(
    ("architecture", "kind", "names"),
    [
        ("llama", "adapter", ("token_embd.weight.lora_a", "token_embd.weight.lora_b", "blk.0.attn_q.weight.lora_a")),
        ("olmo2", "adapter", (EMBEDDING,)),
        ("clip", "mmproj", ("v.patch_embd.weight", "mm.0.weight")),
        ("nomic-bert", "model", (EMBEDDING, "token_types.weight")),
        ("t5encoder", "model", (EMBEDDING,)),
        ("eagle3", "model", (HEAD, "fc.weight")),
        ("flux", "model", ("double_blocks.0.img_attn.qkv.weight",)),
    ],
)
def test_files_that_have_no_two_ends_are_healthy(tmp_path: Path, architecture: str, kind: str, names: tuple[str, ...]) -> None:
    path = write(tmp_path / "m.gguf", {name: (weights(n), Type.Q8_0) for n, name in enumerate(names)}, architecture, kind=kind)
    report = audit(path)
    assert (report.verdict, report.findings, report.ties, report.skipped) == ("ok", (), (), ())


# both ends, equal


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_K, Type.Q6_K])
def test_an_equal_copy_is_a_duplicate_to_the_byte(tmp_path: Path, kind: Type) -> None:
    block, nbytes = GGML_QUANT_SIZES[kind]
    report = audited(tmp_path, {EMBEDDING: (half(A, kind), kind), HEAD: (half(A, kind), kind)})
    assert rules(report) == [("duplicate-tie", "warning")]
    [finding] = report.findings
    assert finding.wasted_bytes == report.totals.nbytes_wasted == A.size // block * nbytes
    assert finding.evidence == "proved"
    assert finding.fix == "leave output.weight out of the file: llama.cpp and the other readers then take token_embd.weight in its place"


def test_an_equal_copy_is_as_it_must_be_where_the_head_is_needed(tmp_path: Path) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (A, Type.Q8_0)}, "olmo2")
    assert rules(report) == [("untied-but-equal", "note")]
    [finding] = report.findings
    assert finding.fix == "leave it as it is: llama.cpp refuses olmo2 without output.weight"
    assert report.totals.nbytes_wasted == 0
    assert report.reason == "untied: two equal matrices, kept apart as the architecture has them"
    text = terminal.render(report)
    assert "set the flag" not in text
    assert "config" not in text


def test_a_copy_in_another_layer_is_told_and_one_for_the_next_token_is_by_design(tmp_path: Path) -> None:
    layers = {f"blk.{n}.attn_q.weight": (B, Type.Q8_0) for n in range(2)}
    report = audit(write(tmp_path / "a.gguf", {EMBEDDING: (A, Type.Q8_0), **layers}))
    assert rules(report) == [("duplicate-tensor", "warning")]
    report = audit(write(tmp_path / "b.gguf", {EMBEDDING: (A, Type.Q8_0), "blk.2.nextn.embed_tokens.weight": (A, Type.Q8_0)}, "glm4moe"))
    assert rules(report) == [("by-design-copy", "note")]


def test_a_config_beside_the_file_does_not_speak_for_it(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", {EMBEDDING: (A, Type.Q8_0), HEAD: (B, Type.Q6_K), **LAYER})
    for content in (tied(), config("LlamaForCausalLM", "llama", tie_word_embeddings=False)):
        folder(tmp_path, {"config.json": content})
        assert audit(tmp_path).findings == ()


# both ends, in other types


@pytest.mark.parametrize("second", WRITABLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("first", [Type.F32, Type.Q8_0, Type.Q4_K, Type.Q2_K], ids=lambda kind: kind.name)
def test_one_matrix_in_two_types_is_told_from_two_matrices(tmp_path: Path, first: Type, second: Type) -> None:
    if first is second:
        return
    report = audited(tmp_path, {EMBEDDING: (half(A, first), first), HEAD: (half(A, second), second)})
    [tie] = report.ties
    if second in (Type.F16, Type.BF16) and first is Type.F32:
        assert (rules(report), tie.relation) == ([("cast-copy", "warning")], "equal after cast")
    else:
        assert (report.verdict, tie.relation) == ("ok", "near")
        assert tie.detail.startswith("one matrix, quantised differently: cosine ")
        assert tie.detail.endswith(" over 16 rows")
        assert report.reason == "token_embd.weight and output.weight: one matrix, quantised differently"
        assert "drifted" not in terminal.render(report)
    report = audited(tmp_path, {EMBEDDING: (half(A, first), first), HEAD: (half(B, second), second)})
    [tie] = report.ties
    assert (report.verdict, tie.relation) == ("ok", "unrelated")
    assert "quantised differently" not in terminal.render(report)


def test_the_cosine_is_that_of_the_sampled_rows(tmp_path: Path) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q4_K), HEAD: (A, Type.Q6_K)})
    from gguf import GGUFReader, quants

    ends = {tensor.name: quants.dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    rows = [row * 63 // 15 for row in range(16)]
    first, second = (ends[name][rows].ravel().astype(np.float64) for name in (EMBEDDING, HEAD))
    cosine = float(first @ second / np.sqrt((first @ first) * (second @ second)))
    assert report.ties[0].detail == f"one matrix, quantised differently: cosine {cosine:.4f} over 16 rows"


def test_a_head_that_was_trained_on_is_told_from_a_quantised_one(tmp_path: Path) -> None:
    trained = A + np.float32(0.1) * B
    [tie] = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (trained, Type.Q6_K)}).ties
    assert tie.relation == "near"
    assert "further apart than Q8_0 and Q6_K explain" in tie.detail
    assert tie.summary == "two matrices that drifted apart"


def test_a_scaled_head_is_told_with_its_factor(tmp_path: Path) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (A * np.float32(12), Type.Q6_K)})
    assert rules(report) == [("scaled-copy", "note")]
    assert report.findings[0].message.startswith("output.weight = about 12 x token_embd.weight, quantised: ")


def test_one_type_with_other_scales_is_one_matrix_and_changed_rows_are_counted(tmp_path: Path) -> None:
    [tie] = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (A * np.float32(1.003), Type.Q8_0)}).ties
    assert tie.detail.startswith("one matrix, quantised differently: ")
    changed = A.copy()
    changed[5] = B[5]
    [tie] = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (changed, Type.Q8_0)}).ties
    assert (tie.relation, tie.detail) == ("near", "row 5 differs, of 64")


def test_more_rows_on_one_side_are_seen_through_the_blocks(tmp_path: Path) -> None:
    longer = np.concatenate([A, B[:8]])
    [tie] = audited(tmp_path, {EMBEDDING: (longer, Type.Q6_K), HEAD: (A, Type.Q6_K)}).ties
    assert (tie.relation, tie.detail) == ("equal up to padding rows", "the first 64 rows are equal, rows 64 to 71 are on one side only")
    [tie] = audited(tmp_path, {EMBEDDING: (longer, Type.Q6_K), HEAD: (A, Type.Q8_0)}).ties
    assert tie.relation == "rows differ"


def test_quantised_square_and_swapped_shapes_are_not_searched_for_a_transpose(tmp_path: Path) -> None:
    square = weights(5, 256, 256)
    [tie] = audited(tmp_path, {EMBEDDING: (square, Type.Q8_0), HEAD: (square.T.copy(), Type.Q8_0)}).ties
    assert tie.relation == "unrelated"
    [tie] = audited(tmp_path, {EMBEDDING: (weights(5, 512, 256), Type.Q8_0), HEAD: (weights(5, 256, 512), Type.Q4_K)}).ties
    assert tie.relation == "unrelated"


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q6_K, Type.Q4_K])
def test_a_constant_of_blocks_is_one_whatever_the_length_of_a_block(tmp_path: Path, kind: Type) -> None:
    # longer than what is compared at once
    ones = np.ones((2048, 512), np.float32)
    report = audit(write(tmp_path / "model.gguf", {EMBEDDING: (A, Type.Q8_0), "blk.0.ffn_up.weight": (ones, kind)}))
    assert ("constant-tensor", "note") in rules(report)
    other = ones.copy()
    other[1000, 100] = -3
    report = audit(write(tmp_path / "model.gguf", {EMBEDDING: (ones, kind), HEAD: (other, kind)}))
    assert report.ties[0].relation == "constant"
    report = audit(write(tmp_path / "model.gguf", {EMBEDDING: (other, kind), HEAD: (other, kind)}))
    assert report.ties[0].relation == "equal"


# values of blocks

DECODED = [kind for kind in Type if GGML_QUANT_SIZES[kind][0] > 1 and kind not in (Type.Q8_1, Type.Q8_K, Type.Q1_0)]


@pytest.mark.parametrize("kind", DECODED, ids=lambda kind: kind.name)
def test_every_quantised_type_is_decoded_as_the_library_does_it(kind: Type) -> None:
    from gguf import quants

    block, nbytes = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(kind.value).integers(0, 256, 40 * nbytes, np.uint8)
    with np.errstate(all="ignore"):
        truth = quants.dequantize(raw.reshape(4, -1), kind).ravel()
    assert values.quantised(kind.name)
    assert values.undecoded(kind.name) == ""
    assert values.decodable(kind.name)
    found = values.decode(raw.tobytes(), kind.name)
    assert found.dtype == np.float32
    assert found.size == 40 * block
    assert np.array_equal(found.view(np.uint32), np.ascontiguousarray(truth).view(np.uint32))


def test_a_run_of_elements_is_a_run_of_whole_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", {"x": (weights(3), Type.F16), EMBEDDING: (A, Type.Q6_K)})
    source = LocalFolder(tmp_path).open("model.gguf")
    [tensor] = [tensor for tensor in gguf.load(source).tensors if tensor.name == EMBEDDING]
    from gguf import GGUFReader, quants

    [same] = [tensor for tensor in GGUFReader(path).tensors if tensor.name == EMBEDDING]
    rows = quants.dequantize(same.data, same.tensor_type)
    data = TensorBytes({"model.gguf": source})
    for row in (0, 1, 40, 63):
        assert np.array_equal(values.flat(data, tensor, row * 256, 256), rows[row])
    assert np.array_equal(values.flat(data, tensor, 0, rows.size), rows.ravel())


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0, Type.Q4_0, Type.Q6_K, Type.Q4_K])
def test_samples_begin_with_a_block(tmp_path: Path, kind: Type) -> None:
    write(tmp_path / "model.gguf", {EMBEDDING: (A, kind)})
    source = LocalFolder(tmp_path).open("model.gguf")
    [tensor] = gguf.load(source).tensors
    data, wide = TensorBytes({"model.gguf": source}), element(tensor)
    whole = data.read(tensor, 0, tensor.nbytes)
    for which in (MIDDLE, BEGIN, END):
        page = data.sample(tensor, which)
        at = [at for at in range(0, len(whole), wide) if whole.startswith(page, at)]
        assert len(at) == 1
        assert 4096 - wide < len(page) <= 4096
        assert (at[0] + len(page) == len(whole)) is (which == END)


# without the extra


@pytest.fixture
def _without_gguf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values.undecoded.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    yield
    values.undecoded.cache_clear()


@pytest.mark.usefixtures("_without_gguf")
@pytest.mark.parametrize("second", [Type.Q6_K, Type.Q8_0, Type.F16], ids=lambda kind: kind.name)
def test_without_the_extra_other_types_are_not_compared_and_no_fault(tmp_path: Path, second: Type) -> None:
    report = audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (half(B, second), second)})
    assert (report.verdict, report.findings, report.skipped) == ("ok", (), ())
    [skip] = report.not_compared
    assert skip.subject == "token_embd.weight and output.weight"
    assert skip.reason == "quantised, and not the same bytes: only dequantised rows can tell how they differ (pip install 'tieaudit[gguf]')"


@pytest.mark.usefixtures("_without_gguf")
def test_without_the_extra_equal_copies_are_proved_all_the_same(tmp_path: Path) -> None:
    assert rules(audited(tmp_path, {EMBEDDING: (A, Type.Q8_0), HEAD: (A, Type.Q8_0)})) == [("duplicate-tie", "warning")]


def test_a_type_that_gguf_cannot_dequantise_is_not_compared(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for n, name in enumerate((EMBEDDING, HEAD)):
        writer.add_tensor(name, np.random.default_rng(n).integers(0, 256, (64, 292), np.uint8), raw_dtype=Type.Q8_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [skip] = audit(tmp_path / "model.gguf").not_compared
    assert skip.reason.endswith("the installed gguf package does not dequantise Q8_K")


# several files


def test_a_split_model_is_judged_as_one(tmp_path: Path) -> None:
    ends = {EMBEDDING: (A, Type.Q8_0), **LAYER, HEAD: (A, Type.Q8_0)}
    write(tmp_path / "model.gguf", ends, split_max_tensors=1)
    report = audit(tmp_path)
    assert rules(report) == [("duplicate-tie", "warning")]
    assert report.findings[0].wasted_bytes == A.size // 32 * 34
    assert {place.file for place in report.findings[0].tensors} == {"model-00001-of-00004.gguf", "model-00004-of-00004.gguf"}


def test_a_split_model_without_output_is_tied_and_one_that_needs_it_misses_it(tmp_path: Path) -> None:
    for architecture, expected in (("llama", []), ("olmo2", [("missing-head", "error")])):
        where = tmp_path / architecture
        where.mkdir()
        write(where / "model.gguf", {EMBEDDING: (A, Type.Q8_0), **LAYER}, architecture, split_max_tensors=1)
        assert rules(audit(where)) == expected


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_a_missing_part_is_told_and_nothing_of_what_may_be_in_it(tmp_path: Path, architecture: str) -> None:
    write(tmp_path / "model.gguf", {EMBEDDING: (A, Type.Q8_0), **LAYER, HEAD: (B, Type.Q8_0)}, architecture, split_max_tensors=1)
    (tmp_path / "model-00004-of-00004.gguf").unlink()
    report = audit(tmp_path)
    assert rules(report) == [("missing-shard", "error")]
    (tmp_path / "model-00001-of-00004.gguf").unlink()
    assert rules(audit(tmp_path)) == [("missing-shard", "error")]


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_one_part_alone_accuses_nobody(tmp_path: Path, architecture: str) -> None:
    write(tmp_path / "model.gguf", {EMBEDDING: (A, Type.Q8_0), **LAYER, HEAD: (B, Type.Q8_0)}, architecture, split_max_tensors=1)
    for number in range(1, 5):
        report = audit(tmp_path / f"model-0000{number}-of-00004.gguf")
        assert report.findings == ()
        assert "tied: one matrix" not in report.reason


def test_several_models_of_a_folder_are_judged_each(tmp_path: Path) -> None:
    write(tmp_path / "model-Q8_0.gguf", {EMBEDDING: (A, Type.Q8_0), **LAYER})
    write(tmp_path / "model-Q4_K.gguf", {EMBEDDING: (A, Type.Q4_K), HEAD: (A, Type.Q4_K), **LAYER})
    write(tmp_path / "mmproj.gguf", {"v.patch_embd.weight": (B, Type.Q8_0)}, "clip", kind="mmproj")
    report = audit(tmp_path)
    assert rules(report) == [("duplicate-tie", "warning")]
    assert report.findings[0].message.startswith("model-Q4_K.gguf: output.weight repeats")
    assert len(report.ties) == 2


# broken files


def test_a_truncated_file_is_malformed_and_nothing_else_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", {**LAYER, EMBEDDING: (A, Type.Q8_0)}, "olmo2")
    path.write_bytes(path.read_bytes()[:-5000])
    report = audit(path)
    assert rules(report) == [("malformed-file", "error")]
    assert "for token_embd.weight: truncated file?" in report.findings[0].message


def test_a_pointer_under_the_name_of_a_gguf_is_a_fault(tmp_path: Path) -> None:
    folder(tmp_path, {"some-model.gguf": b"version https://git-lfs.github.com/spec/v1\n"})
    [finding] = audit(tmp_path).findings
    assert finding.rule == "malformed-file"
    assert "git lfs pull" in finding.message


def test_a_type_that_is_not_known_makes_the_audit_incomplete_and_accuses_nobody(tmp_path: Path) -> None:
    from gguf_files import STRING, Raw

    raw = Raw()
    keys = [raw.key("general.architecture", STRING, "olmo2")]
    (tmp_path / "model.gguf").write_bytes(
        raw.file([raw.entry(EMBEDDING, (256, 4)), raw.entry(HEAD, (256, 4), 139, 4096)], keys, np.random.default_rng(1).bytes(8192))
    )
    report = audit(tmp_path / "model.gguf")
    assert (report.verdict, report.findings) == ("incomplete", ())


# on the Hub


def test_a_model_on_the_hub_gets_the_verdict_that_it_gets_on_disk(online: Hub, tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    table = dice.standard_normal((30_000, 256), np.float32)
    for second, expected in ((Type.Q8_0, [("duplicate-tie", "warning")]), (Type.Q5_0, []), (None, [])):
        where = tmp_path / str(second)
        where.mkdir()
        ends = {EMBEDDING: (table, Type.Q8_0)} | ({HEAD: (table, second)} if second else {})
        write(where / "model.gguf", {**ends, **LAYER}, tokens=30_000)
        online.add(f"org/m{second}", where)
        online.reset()
        report = audit(f"org/m{second}")
        assert rules(report) == rules(audit(where, verify="sample")) == expected
        assert (report.cost.requests, report.cost.bytes_read) == (len(online.requests), online.body_bytes)
        # of 8 to 16 MB: the header is one
        assert report.cost.requests <= 12
        assert report.cost.bytes_read < 2_500_000
        if second is Type.Q5_0:
            assert report.ties[0].detail.startswith("one matrix, quantised differently: ")


def test_of_many_quantisations_in_a_repository_the_first_two_are_read(online: Hub, tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    for name in ("Q2", "Q4", "Q5", "Q8"):
        write(tmp_path / f"model-{name}.gguf", {EMBEDDING: (dice.standard_normal((64, 32), np.float32), Type.Q8_0), **LAYER})
    online.add("org/many", tmp_path)
    report = audit("org/many")
    assert [name for name, _ in report.files] == ["model-Q2.gguf", "model-Q4.gguf"]
    assert [skip.subject for skip in report.not_compared] == ["model-Q5.gguf", "model-Q8.gguf"]
    assert not [path for path in online.requests if "Q5" in str(path) or "Q8" in str(path)]
    assert [name for name, _ in audit("hf://org/many@main/model-Q8.gguf").files] == ["model-Q8.gguf"]


def test_the_engines_of_a_gguf_are_llama_cpp_by_its_architecture(tmp_path: Path) -> None:
    table = np.random.default_rng(3).standard_normal((64, 32), np.float32)
    for architecture, ends, expected in (
        ("llama", {EMBEDDING: (table, Type.F16)}, [("llama.cpp", "tied_to_embed")]),
        ("llama", {EMBEDDING: (table, Type.F16), HEAD: (-table, Type.F16)}, [("llama.cpp", "both_kept")]),
        ("olmo2", {EMBEDDING: (table, Type.F16)}, [("llama.cpp", "error")]),
        ("nobody", {EMBEDDING: (table, Type.F16)}, []),
    ):
        write(tmp_path / "model.gguf", {**ends, **LAYER}, architecture=architecture)
        [tie] = audit(tmp_path / "model.gguf").ties
        assert [(outcome.engine, outcome.outcome) for outcome in tie.engines] == expected, architecture
