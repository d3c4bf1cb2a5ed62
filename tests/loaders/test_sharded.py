"""Folders and indexes: which files are one edition, and what an index may say without harm."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from builders import EMBED, HEAD, bf16, config, entry, folder, index, matrix, safetensors, safetensors_file, tied, torch_tensor, torch_zip
from tieaudit import Report, TargetError, audit
from tieaudit.checkpoint import Checkpoint, Edition
from tieaudit.errors import FormatError
from tieaudit.loaders import sharded
from tieaudit.sources.local import LocalFolder

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NORM = "model.norm.weight"


def load(path: Path, only: str | None = None) -> Checkpoint:
    opened = LocalFolder(path)
    try:
        return sharded.load(opened, "target", only)
    finally:
        opened.close()


def two(path: Path, **changed: bytes | None) -> Path:
    """A sound model in two shards, with files changed, added (`extra`) or left out (None)."""
    files: dict[str, bytes | None] = {
        "config.json": tied(),
        ONE: safetensors({EMBED: matrix(1)}),
        TWO: safetensors({NORM: matrix(2)[:1]}),
        INDEX: index({EMBED: ONE, NORM: TWO}, total_size=1024 + 32),
    }
    names = {"one": ONE, "two": TWO, "index": INDEX, "config": "config.json"}
    files.update({names.get(name, name): content for name, content in changed.items()})
    return folder(path, {name: content for name, content in files.items() if content is not None})


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def the_edition(path: Path) -> Edition:
    (edition,) = load(path).editions
    return edition


# sound


def test_an_index_and_its_shards_are_one_whole_edition(tmp_path: Path) -> None:
    edition = the_edition(two(tmp_path))
    assert (edition.name, edition.format, edition.kind, edition.whole) == ("model.safetensors", "safetensors", "weights", True)
    assert [file.name for file in edition.files] == [ONE, TWO]
    assert [tensor.name for tensor in edition.tensors] == [EMBED, NORM]
    assert (edition.strays, edition.missing) == ((), ())
    assert edition.index is not None
    assert edition.index.total_size == 1056
    assert codes(audit(tmp_path)) == []


def test_an_index_of_one_shard_is_one_whole_edition(tmp_path: Path) -> None:
    only = "model-00001-of-00001.safetensors"
    folder(tmp_path, {only: safetensors({EMBED: matrix(1)}), INDEX: index({EMBED: only}), "config.json": tied()})
    edition = the_edition(tmp_path)
    assert edition.whole
    assert codes(audit(tmp_path)) == []


def test_shards_without_an_index_are_one_whole_edition(tmp_path: Path) -> None:
    edition = the_edition(two(tmp_path, index=None))
    assert edition.whole
    assert edition.index is None
    assert [file.name for file in edition.files] == [ONE, TWO]
    assert codes(audit(tmp_path)) == []


def test_shards_that_count_from_zero_are_whole(tmp_path: Path) -> None:
    names = [f"model-{n:05}-of-00003.safetensors" for n in range(3)]
    folder(tmp_path, {name: safetensors({f"t{n}": matrix(n)}) for n, name in enumerate(names)})
    assert the_edition(tmp_path).whole


def test_shards_in_a_folder_below_are_read(tmp_path: Path) -> None:
    folder(tmp_path, {"sub/a.safetensors": safetensors({EMBED: matrix(1)}), INDEX: index({EMBED: "sub/a.safetensors"})})
    edition = load(tmp_path).editions[0]
    assert [tensor.name for tensor in edition.tensors] == [EMBED]
    assert edition.whole


def test_names_that_spell_one_file_in_two_ways_are_one_file(tmp_path: Path) -> None:
    two(tmp_path, index=index({EMBED: f"./{ONE}", NORM: f".//{TWO}"}))
    report = audit(tmp_path)
    assert codes(report) == []
    assert report.totals.nbytes_stored == 1056


# incomplete


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named_and_absence_then_proves_nothing(tmp_path: Path, with_index: bool) -> None:
    changed = {} if with_index else {"index": None}
    edition = the_edition(two(tmp_path, one=None, **changed))
    assert edition.missing == (ONE,)
    assert not edition.whole
    assert codes(audit(tmp_path)) == ["TIE403"]  # and no missing-embedding


def test_all_shards_missing_is_no_clean_checkpoint(tmp_path: Path) -> None:
    report = audit(two(tmp_path, one=None, two=None))
    assert codes(report) == ["TIE403"]
    assert report.verdict == "error"


def test_one_shard_named_by_itself_is_not_judged_by_what_it_lacks(tmp_path: Path) -> None:
    report = audit(two(tmp_path) / TWO)
    assert codes(report) == []
    assert any("other shards" in skip.subject for skip in report.not_compared)


def test_a_million_shards_that_are_not_there_are_told_in_one_line(tmp_path: Path) -> None:
    folder(tmp_path, {"model-000001-of-999999.safetensors": safetensors({EMBED: matrix(1)})})
    (finding,) = audit(tmp_path).findings
    assert finding.code == "TIE403"
    assert len(finding.message) < 500


def test_a_count_of_missing_shards_is_the_true_one(tmp_path: Path) -> None:
    folder(tmp_path, {"model-00001-of-20000.safetensors": safetensors({EMBED: matrix(1)})})
    (finding,) = audit(tmp_path).findings
    assert "19,999 shards" in finding.message


@pytest.mark.parametrize("count", ["00000", "00001"])
def test_a_shard_numbered_beyond_its_count_ends_in_no_crash(tmp_path: Path, count: str) -> None:
    folder(tmp_path, {f"model-00007-of-{count}.safetensors": safetensors({EMBED: matrix(1)})})
    audit(tmp_path)


# the index and the shards disagree


def test_a_phantom_is_told(tmp_path: Path) -> None:
    report = audit(two(tmp_path, index=index({EMBED: ONE, NORM: TWO, "model.gone.weight": TWO})))
    assert codes(report) == ["TIE401"]
    assert "model.gone.weight" in report.findings[0].message


def test_an_orphan_is_told_with_its_bytes(tmp_path: Path) -> None:
    report = audit(two(tmp_path, two=safetensors({NORM: matrix(2)[:1], "extra": matrix(3)})))
    assert [code for code in codes(report) if code != "TIE405"] == ["TIE402"]
    assert report.findings[0].wasted_bytes == 1024


def test_a_tensor_in_another_shard_than_told_is_a_warning(tmp_path: Path) -> None:
    report = audit(two(tmp_path, index=index({EMBED: TWO, NORM: ONE})))
    severities = {finding.code: finding.severity for finding in report.findings}
    assert severities.get("TIE401") == "warning"


def test_an_embedding_that_no_shard_holds_is_no_declared_alias(tmp_path: Path) -> None:
    report = audit(two(tmp_path, one=None, index=index({EMBED: TWO, NORM: TWO})))
    severities = {finding.code: finding.severity for finding in report.findings}
    assert severities.get("TIE401") == "error"
    assert "declared alias" not in " ".join(finding.message for finding in report.findings)


def test_a_stray_shard_beside_the_index_is_read_and_told(tmp_path: Path) -> None:
    two(tmp_path, **{"model-00003-of-00003.safetensors": safetensors({"extra": matrix(3)})})
    edition = the_edition(tmp_path)
    assert [file.name for file in edition.strays] == ["model-00003-of-00003.safetensors"]
    assert "extra" not in {tensor.name for tensor in edition.tensors}
    assert codes(audit(tmp_path)) == ["TIE402"]


def test_a_tensor_in_two_shards_is_told_and_is_an_error_where_they_differ(tmp_path: Path) -> None:
    same = audit(two(tmp_path / "same", two=safetensors({NORM: matrix(2)[:1], EMBED: matrix(1)})))
    other = audit(two(tmp_path / "other", two=safetensors({NORM: matrix(2)[:1], EMBED: matrix(9)})))
    assert [finding.severity for finding in same.findings if finding.code == "TIE404"] == ["warning"]
    assert [finding.severity for finding in other.findings if finding.code == "TIE404"] == ["error"]


@pytest.mark.parametrize("total", [1055, 1057, 0, -1, 1e300, 10**4000])
def test_a_stale_total_size_is_a_note(tmp_path: Path, total: float) -> None:
    report = audit(two(tmp_path, index=index({EMBED: ONE, NORM: TWO}, total_size=total)))
    assert codes(report) == ["TIE405"]


@pytest.mark.parametrize("total", ['"1056"', "null", "true", "[]", "1056.0", "1e400", "NaN"])
def test_a_total_size_that_is_no_count_is_left_alone(tmp_path: Path, total: str) -> None:
    text = index({EMBED: ONE, NORM: TWO}, total_size=123456).decode().replace("123456", total)
    assert codes(audit(two(tmp_path, index=text.encode()))) == []


# names that leave the folder


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\\b.safetensors", "..", "", "\0", "x/../../secret.safetensors"])
def test_an_index_cannot_make_a_file_outside_the_folder_be_opened(tmp_path: Path, name: str) -> None:
    folder(tmp_path, {"secret.safetensors": safetensors({EMBED: matrix(1)})})
    two(tmp_path / "in", index=index({EMBED: name, NORM: TWO}))
    checkpoint = load(tmp_path / "in")
    assert all("secret" not in file.name for file in checkpoint.files)
    assert [problem.what for problem in checkpoint.unreadable] == ["is a name that leaves the folder: not opened"]
    assert not checkpoint.editions[0].whole
    report = audit(tmp_path / "in")
    assert "TIE501" in codes(report)
    assert report.verdict == "error"


def test_an_index_cannot_lead_out_over_a_link(tmp_path: Path) -> None:
    folder(tmp_path, {"secret.safetensors": safetensors({EMBED: matrix(1)})})
    two(tmp_path / "in", one=None)
    (tmp_path / "in" / ONE).symlink_to("../secret.safetensors")
    checkpoint = load(tmp_path / "in")
    assert [problem.what for problem in checkpoint.unreadable] == ["is a link that leaves the folder: not opened"]


@pytest.mark.parametrize(
    "name", ["\ud800.safetensors", "a" * 5000, "x/" * 3000 + "x", "\x1b[31m.safetensors", "a\nb.safetensors", "nowhere/x"]
)
def test_odd_names_of_shards_are_missing_shards(tmp_path: Path, name: str) -> None:
    edition = the_edition(two(tmp_path, index=index({EMBED: name, NORM: TWO, HEAD: ONE})))
    assert edition.missing == (name,)
    audit(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "vocab.bin", INDEX, "."])
def test_a_shard_that_is_no_file_of_weights_is_a_fault(tmp_path: Path, name: str) -> None:
    two(tmp_path, **{"vocab.bin": b"some text that is no checkpoint"}, index=index({EMBED: name, NORM: TWO}))
    report = audit(tmp_path)
    assert any(finding.code == "TIE501" and finding.message.startswith(name) for finding in report.findings)
    assert report.verdict == "error"


# an index that is none

BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is not JSON"),
    "text": (b"weight_map", "is not JSON"),
    "cut": (index({EMBED: ONE})[:-9], "is not JSON"),
    "not UTF-8": (b'{"weight_map": {"\xff": "x"}}', "is not UTF-8"),
    "UTF-16": (index({EMBED: ONE}).decode().encode("utf-16"), "is not UTF-8"),
    "a list": (b"[]", "is not a JSON object"),
    "null": (b"null", "is not a JSON object"),
    "no weight_map": (b'{"metadata": {}}', "has no weight_map"),
    "weight_map null": (b'{"weight_map": null}', "has no weight_map"),
    "weight_map a list": (b'{"weight_map": ["a"]}', "has no weight_map"),
    "weight_map a string": (b'{"weight_map": "a"}', "has no weight_map"),
    "file a number": (b'{"weight_map": {"a": 1}}', "has no weight_map of tensor names to file names"),
    "file null": (b'{"weight_map": {"a": null}}', "has no weight_map of tensor names to file names"),
    "file a list": (b'{"weight_map": {"a": ["x"]}}', "has no weight_map of tensor names to file names"),
    "nested": (b'{"weight_map": ' + b"[" * 100_000, "is not JSON"),
    "a long number": (b'{"weight_map": ' + b"1" * 5000 + b"}", "a number too long"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_index_is_told_and_the_shards_are_still_judged(tmp_path: Path, case: str) -> None:
    content, words = BROKEN[case]
    two(tmp_path, index=content)
    checkpoint = load(tmp_path)
    (problem,) = checkpoint.unreadable
    assert (problem.file, words in problem.what) == (INDEX, True)
    assert {tensor.name for edition in checkpoint.editions for tensor in edition.tensors} == {EMBED, NORM}
    assert codes(audit(tmp_path)) == ["TIE501"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_index_alone_is_a_finding(tmp_path: Path, case: str) -> None:
    folder(tmp_path, {INDEX: BROKEN[case][0]})
    for target in (tmp_path, tmp_path / INDEX):
        assert codes(audit(target)) == ["TIE501"]


def test_an_empty_weight_map_with_shards_beside_it_is_not_clean(tmp_path: Path) -> None:
    report = audit(two(tmp_path, index=index({})))
    assert report.findings
    assert report.verdict != "ok"


def test_an_empty_weight_map_alone_is_not_clean(tmp_path: Path) -> None:
    folder(tmp_path, {INDEX: index({}), "config.json": tied()})
    with contextlib.suppress(TargetError):  # to say that there is no checkpoint is as good
        assert audit(tmp_path).verdict == "error"


def test_an_index_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert codes(audit(two(tmp_path, index=b"\xef\xbb\xbf" + index({EMBED: ONE, NORM: TWO})))) == []


def test_an_index_over_the_limit_is_not_read(tmp_path: Path) -> None:
    two(tmp_path)
    with (tmp_path / INDEX).open("r+b") as file:
        file.truncate(sharded.MAX_JSON + 1)
    (problem,) = load(tmp_path).unreadable
    assert "at most 67,108,864 are read" in problem.what


def test_the_place_of_an_error_is_a_byte_of_the_file(tmp_path: Path) -> None:
    content = '{"\u00e9\u00e9\u00e9": x}'.encode()
    folder(tmp_path, {"a.json": content, "b.json": b"\xef\xbb\xbf" + content})
    for name, mark in (("a.json", 0), ("b.json", 3)):
        with pytest.raises(FormatError) as told:
            sharded.read_json(LocalFolder(tmp_path), name)
        assert told.value.offset == mark + content.index(b"x")


# several editions


def test_a_stale_single_file_beside_shards_is_an_edition_of_its_own(tmp_path: Path) -> None:
    two(tmp_path, **{"model.safetensors": safetensors({EMBED: matrix(7), NORM: matrix(2)[:1]})})
    editions = load(tmp_path).editions
    assert [(edition.name, edition.index is not None) for edition in editions] == [
        ("model.safetensors", False),
        ("model.safetensors", True),
    ]
    assert not editions[1].strays
    assert "TIE207" in codes(audit(tmp_path))


def test_consolidated_weights_beside_shards_are_no_stray(tmp_path: Path) -> None:
    two(tmp_path, **{"consolidated.safetensors": safetensors({"tok_embeddings.weight": matrix(1), "norm.weight": matrix(2)[:1]})})
    editions = load(tmp_path).editions
    assert [edition.name for edition in editions] == ["model.safetensors", "consolidated.safetensors"]
    assert not any(edition.strays for edition in editions)
    assert "TIE402" not in codes(audit(tmp_path))


def test_consolidated_shards_beside_shards_are_no_strays(tmp_path: Path) -> None:
    extra = {f"consolidated-0000{n}-of-00002.safetensors": safetensors({f"t{n}.weight": matrix(n)}) for n in (1, 2)}
    assert "TIE402" not in codes(audit(two(tmp_path, **extra)))


@pytest.mark.parametrize("variant", ["fp16", "bf16", "ema", "non_ema", "fp32"])
def test_a_variant_beside_the_model_is_an_edition_of_its_own(tmp_path: Path, variant: str) -> None:
    tensors = {EMBED: matrix(1), NORM: matrix(2)[:1]}
    files = {
        "model.safetensors": safetensors(tensors),
        f"model.{variant}.safetensors": safetensors({n: bf16(t) for n, t in tensors.items()}),
    }
    folder(tmp_path, {**files, "config.json": tied()})
    assert [edition.name for edition in load(tmp_path).editions] == ["model.safetensors", f"model.{variant}.safetensors"]
    assert not {"TIE402", "TIE207"} & set(codes(audit(tmp_path)))


def test_an_index_of_a_variant_is_an_edition_of_its_own(tmp_path: Path) -> None:
    names = [f"model.fp16-0000{n}-of-00002.safetensors" for n in (1, 2)]
    extra = {
        names[0]: safetensors({EMBED: bf16(matrix(1))}),
        names[1]: safetensors({NORM: bf16(matrix(2)[:1])}),
        "model.safetensors.index.fp16.json": index({EMBED: names[0], NORM: names[1]}),
    }
    two(tmp_path, **extra)
    assert codes(audit(tmp_path)) == []


def test_torch_and_safetensors_of_the_same_model_are_two_editions_safetensors_first(tmp_path: Path) -> None:
    tensors = {EMBED: matrix(1), NORM: matrix(2)[:1]}
    weights = torch_zip({name: torch_tensor(tensor) for name, tensor in tensors.items()})
    folder(tmp_path, {"pytorch_model.bin": weights, "model.safetensors": safetensors(tensors), "config.json": tied()})
    assert [edition.format for edition in load(tmp_path).editions] == ["safetensors", "torch-zip"]
    report = audit(tmp_path)
    assert codes(report) == ["TIE206"]


def test_a_torch_index_and_a_safetensors_index_do_not_take_each_other_s_shards(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    extra = {
        names[0]: torch_zip({EMBED: torch_tensor(matrix(1))}),
        names[1]: torch_zip({NORM: torch_tensor(matrix(2)[:1])}),
        "pytorch_model.bin.index.json": index({EMBED: names[0], NORM: names[1]}),
    }
    two(tmp_path, **extra)
    editions = load(tmp_path).editions
    assert [(edition.name, len(edition.files), edition.strays) for edition in editions] == [
        ("model.safetensors", 2, ()),
        ("pytorch_model.bin", 2, ()),
    ]


def test_files_of_a_training_run_are_no_weights(tmp_path: Path) -> None:
    extra = {"optimizer.pt": torch_zip({"state": {0: {"exp_avg": torch_tensor(matrix(1))}}}), "training_args.bin": torch_zip({})}
    kinds = {edition.name: edition.kind for edition in load(two(tmp_path, **extra)).editions}
    assert kinds["model.safetensors"] == "weights"
    assert set(kinds.values()) <= {"weights", "training"}


def test_other_formats_and_folders_below_are_seen_and_said_to_be_unread(tmp_path: Path) -> None:
    extra = {"model.tflite": b"TFL3", "onnx/model.onnx": b"x", "original/consolidated.00.pth": torch_zip({}), "logs/run.txt": b""}
    seen = dict(load(two(tmp_path, **extra)).elsewhere)
    assert set(seen) == {"model.tflite", "onnx/", "original/"}


def test_a_hidden_file_of_a_mac_is_told_apart_from_weights(tmp_path: Path) -> None:
    """Archives made on a Mac hold `._model.safetensors`, 4 KB of attributes, beside each file."""
    two(tmp_path, **{f"._{ONE}": b"\0\x05\x16\x07" + bytes(100)})
    assert codes(audit(tmp_path)) == []


def test_a_pointer_of_git_lfs_is_told_what_it_is(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    report = audit(folder(tmp_path, {"model.safetensors": pointer, "config.json": tied()}))
    assert codes(report) == ["TIE501"]
    assert "git lfs pull" in report.findings[0].message


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"<!DOCTYPE html><html>", b"<html>", b'{"error": "Repository not found"}', b"PK\x05\x06" + bytes(18)]
)
def test_what_is_no_safetensors_file_is_told_in_place(tmp_path: Path, content: bytes) -> None:
    report = audit(folder(tmp_path, {"model.safetensors": content, "config.json": tied()}))
    assert codes(report) == ["TIE501"]


def test_a_problem_in_one_shard_leaves_the_other_judged_and_proves_no_absence(tmp_path: Path) -> None:
    bad = safetensors_file({EMBED: entry("F7", [32, 8], 0, 1024)}, bytes(1024))
    edition = the_edition(two(tmp_path, one=bad))
    assert not edition.whole
    assert codes(audit(tmp_path)) == ["TIE501"]


# the config beside them


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"[1]", "list"),
        (b"null", "null"),
        (b'"x"', "string"),
        (b"12", "number"),
        (b"\xff", "is not UTF-8"),
        (b"{" * 9999, "is not JSON"),
    ],
)
def test_a_config_that_is_none_is_told_without_words_of_python(tmp_path: Path, content: bytes, words: str) -> None:
    report = audit(two(tmp_path, config=content))
    (finding,) = (finding for finding in report.findings if finding.code == "TIE501")
    assert finding.message.startswith("config.json: ")
    assert words in finding.message
    assert "NoneType" not in finding.message


ODD_VALUES: list[Any] = [None, 0, 1, -1, "true", "", [], {}, 1.5, 10**4000, [[]], {"a": 1}, "\ud800", float("nan")]


@pytest.mark.parametrize(
    "key", ["architectures", "model_type", "tie_word_embeddings", "vocab_size", "text_config", "auto_map", "transformers_version", "dtype"]
)
@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: repr(value)[:12])
def test_a_config_with_an_odd_value_ends_in_a_report(tmp_path: Path, key: str, value: Any) -> None:
    content = json.loads(tied())
    content[key] = value
    report = audit(two(tmp_path, config=json.dumps(content).encode()))
    assert report.verdict in ("ok", "note", "warning", "error")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b'{"model": {"vocab": 1}}', b'{"added_tokens": [{"id": "x"}, 3, null, {"id": -1}]}',
     b'{"model": {"vocab": [1, [], null]}}', b'{"added_tokens_decoder": {"x": {}, "1": null, "\xd9\xa1": {}, "99999999999": {}}}',
     b'{"a": 1e999, "b": true}', b"[" * 9999, b"\xff"],
)  # fmt: skip
def test_a_tokenizer_that_is_none_is_no_fault_of_the_weights(tmp_path: Path, name: str, content: bytes) -> None:
    assert codes(audit(two(tmp_path, **{name: content}))) == []


def test_a_token_beyond_the_rows_is_told(tmp_path: Path) -> None:
    tokenizer = json.dumps({"added_tokens": [{"id": 32, "content": "<\x1b[31m>"}], "model": {"vocab": {"a": 0}}}).encode()
    report = audit(two(tmp_path, **{"tokenizer.json": tokenizer}))
    assert codes(report) == ["TIE103"]
    assert "\x1b" not in report.findings[0].message


def test_a_large_tokenizer_is_searched_for_its_added_tokens(tmp_path: Path) -> None:
    vocab = {f"token{n}": n % 32 for n in range(150_000)}
    tokenizer = json.dumps({"added_tokens": [{"id": 40, "content": "<x>"}], "model": {"vocab": vocab}}).encode()
    assert len(tokenizer) > 2 << 20
    assert codes(audit(two(tmp_path, **{"tokenizer.json": tokenizer}))) == ["TIE103"]


def test_an_unknown_architecture_is_no_fault(tmp_path: Path) -> None:
    assert codes(audit(two(tmp_path, config=config("\x1b[31mOdd\nModel", "odd")))) == []
