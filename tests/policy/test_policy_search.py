"""Where settings are looked for, and which files are not believed: a model that was downloaded switches no rule off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tieaudit.policy.search import Found, search

Run = Callable[..., tuple[int, str, str]]
OFF = 'fail-on = "never"\nignore = ["TIE0"]\n'
TABLE = f"[tool.tieaudit]\n{OFF}"


def found(start: Path, *targets: Path | str) -> Found:
    return search(start, [os.fspath(target) for target in targets])


def write(path: Path, text: str = OFF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_nearest_folder_wins_and_tieaudit_toml_before_pyproject(project: Path) -> None:
    outer = write(project / "pyproject.toml", TABLE)
    inner = write(project / "a" / "tieaudit.toml")
    (project / "a" / "b").mkdir()
    assert found(project / "a" / "b").path == str(inner)
    assert found(project / "models").path == str(outer)
    both = write(project / "tieaudit.toml")
    assert found(project).path == str(both)


def test_nothing_above_the_repository_is_looked_at(project: Path) -> None:
    write(project.parent / "tieaudit.toml")
    told = found(project / "models")
    assert (told.path, told.looked) == (None, (str(project / "models"), str(project)))
    shutil.rmtree(project / ".git")
    (project / ".git").write_text("gitdir: elsewhere\n")  # a worktree
    assert found(project / "models").path is None


def test_without_a_repository_the_search_goes_to_the_root(tmp_path: Path) -> None:
    told = found(tmp_path)
    assert told.looked[0] == str(tmp_path)
    assert told.looked[-1] == "/" or any((Path(folder) / ".git").exists() for folder in told.looked[-1:])


@pytest.mark.parametrize(
    "text", ["", "[tool.ruff]\n", "# tieaudit\n", "not = toml = tieaudit", "[project]\nname='x'\ndescription='tieaudit'\n"]
)
def test_a_pyproject_that_does_not_speak_of_us_is_another_tools_business(project: Path, text: str) -> None:
    write(project / "models" / "pyproject.toml", text)
    outer = write(project / "tieaudit.toml")
    assert found(project / "models").path == str(outer)


@pytest.mark.parametrize("text", ["[tool]\ntieaudit.fail-on = 'never'\n", "[tool.tieaudit]\nnot toml\n", "[[tool.tieaudit.target]]\n"])
def test_a_table_in_any_spelling_is_ours(project: Path, text: str) -> None:
    path = write(project / "pyproject.toml", text)
    assert found(project).path == str(path)


# files that are not believed


def test_someone_who_stands_in_a_downloaded_model(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "models" / "apart" / "tieaudit.toml")
    write(project / "models" / "apart" / "pyproject.toml", TABLE)
    monkeypatch.chdir(project / "models" / "apart")
    for target in (".", "model.safetensors", str(project / "models" / "apart"), "../apart"):
        told = run(target)
        assert told.code == 1, target
        assert told.err == (
            "tieaudit: tieaudit.toml is not used: it lies in what is audited (--config tieaudit.toml would use it)\n"
            "tieaudit: pyproject.toml is not used: it lies in what is audited (--config pyproject.toml would use it)\n"
        )
    assert run(".", "--quiet").err == ""
    assert run(".", "--config", "tieaudit.toml").code == 0  # whoever names it, means it
    assert run("../twice").err.startswith("tieaudit: tieaudit.toml is not used: it lies beside a model")


def test_a_model_in_several_folders(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cd repo/onnx && tieaudit .`, where the repository's root has the config.json and a hostile file."""
    shutil.copytree(project / "models" / "apart", project / "repo" / "weights")
    write(project / "repo" / "tieaudit.toml")
    write(project / "repo" / "config.json", "{}")
    monkeypatch.chdir(project / "repo" / "weights")
    told = run(".")
    assert told.code == 1
    assert "../tieaudit.toml is not used: it lies beside a model" in told.err


def test_the_projects_own_file_above_a_model_is_used(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "tieaudit.toml")
    write(project / "models" / "apart" / "tieaudit.toml", "fail-on = 'note'")
    monkeypatch.chdir(project / "models" / "apart")
    told = run(".")
    assert told.code == 0
    assert told.err.count("\n") == 1
    assert "lies in what is audited" in told.err


def test_a_download_of_the_hub_is_not_believed(project: Path) -> None:
    path = write(project / "down" / "ci" / "tieaudit.toml")
    assert found(path.parent).path == str(path)
    (project / "down" / ".cache" / "huggingface" / "download").mkdir(parents=True)
    told = found(path.parent)
    assert told.path is None
    assert told.unused == ("tieaudit.toml is not used: it was downloaded with a model (--config tieaudit.toml would use it)",)


def test_a_snapshot_of_the_hub_cache_is_not_believed(project: Path) -> None:
    path = write(project / "models--a--b" / "snapshots" / "abc" / "tieaudit.toml")
    assert found(path.parent).path == str(path)
    (project / "models--a--b" / "blobs").mkdir()
    assert found(path.parent).path is None


def test_the_home_with_a_hub_cache_is_believed(project: Path) -> None:
    path = write(project / "tieaudit.toml")
    (project / ".cache" / "huggingface" / "hub").mkdir(parents=True)
    assert found(project).path == str(path)


def test_a_link_to_a_model_is_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "plain" / "tieaudit.toml")
    (project / "link").symlink_to(project / "plain")
    assert found(project / "link", project / "plain").path is None
    assert found(project / "plain", project / "link").path is None
    monkeypatch.chdir(project / "plain")
    assert found(project / "plain", ".").path is None


def test_the_base_of_an_adapter_is_audited_too(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "base" / "tieaudit.toml")
    monkeypatch.chdir(project / "base")
    assert run("../models/apart", "--base", ".").code == 1
    assert run("../models/apart").code == 0


def test_another_users_file_in_a_folder_that_all_may_write(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(project / "shared" / "tieaudit.toml")
    path.parent.chmod(0o1777)
    assert found(path.parent).path == str(path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "another user's" in found(path.parent).unused[0]
    path.parent.chmod(0o755)
    assert found(path.parent).path == str(path)


def test_a_trap_in_the_audited_folder_is_never_opened_for_long(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "models" / "apart" / "tieaudit.toml")
    monkeypatch.chdir(project / "models" / "apart")
    assert run(".").code == 1


def test_targets_that_are_no_names_of_files(project: Path) -> None:
    path = write(project / "tieaudit.toml")
    assert found(project, "a\0b", "", "org/model", "hf://a/b", "x" * 5000, "\udc80").path == str(path)
