"""What the argument means: a path that exists, a Hub id with its parts, a URL; and what is said of each that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import EMBED, folder, matrix, safetensors
from tieaudit.errors import OptionError, TargetError
from tieaudit.sources import target as module
from tieaudit.sources.local import LocalFolder
from tieaudit.sources.target import Access, resolve


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str]]:
    """What would be looked up on the Hub: (repository, revision, path)."""
    from tieaudit.sources import hub

    calls: list[tuple[str, str | None, str]] = []

    def note(what: hub.HubTarget, *_: object) -> tuple[LocalFolder, None]:
        calls.append((what.repo_id, what.revision, what.path))
        return LocalFolder(Path()), None

    monkeypatch.setattr(hub, "open_target", note)
    monkeypatch.setattr(hub, "open_cached", note)
    return calls


@pytest.mark.parametrize(
    ("target", "repository", "revision", "path"),
    [
        ("gpt2", "gpt2", None, ""),
        ("org/model", "org/model", None, ""),
        ("org/Model-1.5_b.v2", "org/Model-1.5_b.v2", None, ""),
        ("hf://gpt2", "gpt2", None, ""),
        ("hf://org/model", "org/model", None, ""),
        ("hf://models/org/model", "org/model", None, ""),
        ("hf://org/model/", "org/model", None, ""),
        ("hf://org/model/sub/deep", "org/model", None, "sub/deep"),
        ("hf://org/model@v1", "org/model", "v1", ""),
        ("hf://gpt2@v1/onnx", "gpt2", "v1", "onnx"),
        ("hf://org/model@v1/sub/model.safetensors", "org/model", "v1", "sub/model.safetensors"),
        ("hf://org/model@refs/pr/3", "org/model", "refs/pr/3", ""),
        ("hf://org/model@refs/pr/3/sub", "org/model", "refs/pr/3", "sub"),
        ("hf://org/model@feature%2Fx/sub", "org/model", "feature/x", "sub"),
        ("https://huggingface.co/org/model", "org/model", None, ""),
        ("https://huggingface.co/gpt2", "gpt2", None, ""),
        ("https://huggingface.co/org/model/tree/main/sub", "org/model", "main", "sub"),
        ("https://huggingface.co/org/model/blob/v1/model.safetensors", "org/model", "v1", "model.safetensors"),
    ],
)
def test_an_id_is_taken_apart(
    asked: list[tuple[str, str | None, str]], monkeypatch: pytest.MonkeyPatch, target: str, repository: str, revision: str, path: str
) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    resolve(target)
    assert asked == [(repository, revision, path)]


def test_options_complete_an_id(asked: list[tuple[str, str | None, str]]) -> None:
    resolve("org/model", Access(revision="v1", subfolder="a/"))
    resolve("hf://org/model@v1/a", Access(revision="v1", subfolder="b"))
    resolve("org/model", Access(offline=True))
    assert asked == [("org/model", "v1", "a"), ("org/model", "v1", "a/b"), ("org/model", None, "")]


def test_a_path_that_exists_wins(asked: list[tuple[str, str | None, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, {"org/model/config.json": b"{}"})
    monkeypatch.chdir(tmp_path)
    found, only = resolve("org/model")
    assert isinstance(found, LocalFolder)
    assert (found.root, only) == (tmp_path / "org" / "model", None)
    resolve("hf://org/model")
    assert asked == [("org/model", None, "")]


@pytest.mark.parametrize(
    "target",
    ["./org/model", "../model", "/org/model", "~/model", "org/model/", "a/b/c", "model.safetensors", "org/model.bin", "config.json", "a b",
     "org//model", "-x", ".", "file:///no/such", "org/model.git"],
)  # fmt: skip
def test_what_is_written_like_a_path_is_not_looked_up(
    asked: list[tuple[str, str | None, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(folder(tmp_path / "d" / "e", {"x": b""}).parent / "e")
    if target == ".":
        resolve(target)
    else:
        with pytest.raises(TargetError, match="no such file or folder"):
            resolve(target)
    assert not asked


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("hf://", "no Hub id"),
        ("hf://org/model@", "no revision"),
        ("hf://a b", "no Hub id"),
        ("hf://datasets/a/b", "no model repository"),
        ("hf://../x", "no Hub id"),
        ("", "empty"),
        ("nothing://x/y", "cannot be opened"),
    ],
)
def test_what_is_no_target_is_said(asked: list[tuple[str, str | None, str]], target: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        resolve(target)
    assert not asked


@pytest.mark.parametrize("access", [Access(revision="v1"), Access(subfolder="x")], ids=["revision", "subfolder"])
def test_options_of_ids_do_not_pass_silently_on_paths(tmp_path: Path, access: Access) -> None:
    with pytest.raises(OptionError, match="for Hub ids"):
        resolve(str(tmp_path), access)


def test_two_revisions_are_one_too_many(asked: list[tuple[str, str | None, str]]) -> None:
    with pytest.raises(OptionError, match="@v1"):
        resolve("hf://org/model@v1", Access(revision="v2"))
    assert not asked


def test_a_page_of_another_host_is_no_id() -> None:
    assert module._from_web("https://example.org/org/model") == ""
    assert module._from_web("https://huggingface.co/datasets/a/b") == ""
    assert module._from_web("/huggingface.co/org/model") == ""


def test_a_local_target_needs_no_client_library(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = """
import sys
from tieaudit import audit
audit(sys.argv[1])
print("huggingface_hub" in sys.modules, "httpx2" in sys.modules)
"""
    folder(tmp_path, {"model.safetensors": safetensors({EMBED: matrix(1)})})
    told = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
