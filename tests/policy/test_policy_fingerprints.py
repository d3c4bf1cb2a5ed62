"""What makes two findings the same one: on another day, another machine, with other words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tieaudit.fingerprints import fingerprint, target_key
from tieaudit.kinds import Evidence
from tieaudit.report import Finding, Severity, TensorPlace

PLACES = tuple(TensorPlace(name, "model.safetensors", 128, 4096) for name in ("model.embed_tokens.weight", "lm_head.weight"))
FINDING = Finding(code="TIE002", rule="duplicate-tie", severity=Severity.WARNING, message="words", tensors=PLACES, wasted_bytes=4096)


def test_it_is_the_same_for_all_time() -> None:
    """Baselines and code scanning keep it: a change here makes every accepted finding new."""
    assert fingerprint(FINDING, "models/a") == "d5e9636c184cd72afa8c2785cf9f3e75"


@pytest.mark.parametrize(
    "same",
    [
        replace(FINDING, message="other", cause="c", fix="f", severity=Severity.ERROR, wasted_bytes=9, evidence=Evidence.PROVED),
        replace(FINDING, tensors=PLACES[::-1]),
        replace(FINDING, tensors=tuple(replace(place, offset=None) for place in PLACES)),
        replace(FINDING, tensors=tuple(replace(place, nbytes=4160) for place in PLACES)),
    ],
    ids=["words", "order", "offset", "some rows more"],
)
def test_what_changes_nothing(same: Finding) -> None:
    assert fingerprint(same, "models/a") == fingerprint(FINDING, "models/a")


@pytest.mark.parametrize(
    "other",
    [
        replace(FINDING, rule="cast-copy"),
        replace(FINDING, tensors=PLACES[:1]),
        replace(FINDING, tensors=(replace(PLACES[0], file="b"), PLACES[1])),
        replace(FINDING, tensors=(replace(PLACES[0], name="b"), PLACES[1])),
        replace(FINDING, tensors=tuple(replace(place, nbytes=8192) for place in PLACES)),
        replace(FINDING, tensors=()),
    ],
    ids=["rule", "fewer", "file", "name", "twice the size", "none"],
)
def test_what_makes_another_one(other: Finding) -> None:
    assert fingerprint(other, "models/a") != fingerprint(FINDING, "models/a")


def test_names_do_not_run_into_each_other() -> None:
    def one(file: str, name: str) -> str:
        return fingerprint(replace(FINDING, tensors=(TensorPlace(name, file, 0, 1),)), "m")

    assert len({one("a", "b"), one("a,b", ""), one("", "a,b"), one('a", "b', ""), one("a\n", "b"), one("a", "\udc80")}) == 6


def test_without_tensors_the_names_in_the_message_tell() -> None:
    def one(message: str) -> str:
        return fingerprint(Finding(code="TIE302", rule="dead-bytes", severity=Severity.WARNING, message=message), "m")

    first = one("pytorch_model.bin: 1,024 bytes belong to no tensor (storage data/1)")
    assert one("In pytorch_model.bin, storage data/1 has 9 bytes that no tensor sees.") == first
    assert one("pytorch_model.bin: 1,024 bytes belong to no tensor (storage data/2)") != first


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("models/a", "models/a"), ("./models//a/", "models/a"), (".", "."), ("../a", "../a"), ("file://models/a", "models/a"),
        ("org/model", "org/model"), ("hf://org/model", "org/model"), ("hf://org/model@v1.0", "org/model"),
        ("hf://models/org/model@main/onnx/", "org/model/onnx"), ("hf://org/model/sub", "org/model/sub"), ("s3://b/k/", "s3://b/k"),
    ],
)  # fmt: skip
def test_keys_of_targets(target: str, key: str) -> None:
    assert target_key(target) == key
    assert target_key(key) == key


def test_a_key_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    for target in ("b", "./b/", str(tmp_path / "a" / "b"), str(tmp_path / "link" / "b"), f"file://{tmp_path}/a/b"):
        assert target_key(target, str(tmp_path)) == "a/b"
    assert target_key("..", str(tmp_path)) == "."
    assert target_key("org/model", str(tmp_path)) == "org/model"  # no such path: a Hub id
    assert target_key("org/model", str(tmp_path), "onnx/") == target_key("hf://org/model@v1", None, "onnx") == "org/model/onnx"
