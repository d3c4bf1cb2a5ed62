"""Fixtures of the tests about settings, accepted findings, waivers and limits."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from tieaudit import cli


class Told(NamedTuple):
    """How a call ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two models: `models/twice` repeats its head (a warning, 1,024 bytes), `models/apart` has another one (an error)."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    root = tmp_path / "project"
    folder(root / "models" / "twice", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})
    folder(root / "models" / "apart", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Told]]:
    """The command line in this process."""

    def call(*args: str | Path) -> Told:
        capsys.readouterr()
        code = cli._run([os.fspath(arg) for arg in args])
        return Told(code, *capsys.readouterr())

    yield call
    gc.enable()  # the command turns it off
