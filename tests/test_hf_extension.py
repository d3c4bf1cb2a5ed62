"""`hf tieaudit …`: started by huggingface_hub's own dispatch, with the script where an installed extension lies."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tieaudit
from builders import EMBED, HEAD, folder, matrix, safetensors, tied

SOURCE = Path(tieaudit.__file__).parents[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the extension, as `hf extensions install` leaves it."""
    extensions = pytest.importorskip("huggingface_hub.cli.extensions")
    module, _, function = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["scripts"]["hf-tieaudit"].partition(":")
    place = tmp_path / ".local/share/hf/extensions/hf-tieaudit"
    script = place / "venv" / "bin" / "hf-tieaudit"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    script.chmod(0o755)
    extensions.ExtensionManifest(
        owner="owner", repo="hf-tieaudit", repo_id="owner/hf-tieaudit", short_name="tieaudit", executable_path=str(script), type="python",
        installed_at=datetime.now(UTC), description="Audit a model checkpoint",
    ).save(place)  # fmt: skip
    return tmp_path


def hf(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "huggingface_hub.cli.hf", *args], cwd=home, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_UPDATE_CHECK": "1", "PYTHONPATH": str(SOURCE),
             "HF_ENDPOINT": "http://127.0.0.1:9", "NO_COLOR": "1"},
    )  # fmt: skip


def test_it_lies_where_huggingface_hub_looks() -> None:
    extensions = pytest.importorskip("huggingface_hub.cli.extensions")
    assert str(extensions.EXTENSIONS_ROOT) == "~/.local/share/hf/extensions"
    assert extensions._get_executable_name("tieaudit") == "hf-tieaudit"


def test_hf_tieaudit_audits(home: Path) -> None:
    folder(home / "apart", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    told = hf(home, "tieaudit", "apart")
    assert told.returncode == 1, told.stderr
    assert told.stdout.startswith("ERROR  apart   ")


def test_its_help_names_it_as_it_was_called(home: Path) -> None:
    told = hf(home, "tieaudit", "-h")
    assert told.returncode == 0
    assert told.stdout.startswith("Usage: hf tieaudit [OPTIONS] TARGET...")


def test_wrong_usage_names_it_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tieaudit.cli import main_hf

    monkeypatch.setattr(sys, "argv", ["hf-tieaudit", "--no-such-option"])
    with pytest.raises(SystemExit) as end:
        main_hf()
    assert end.value.code == 2
    assert capsys.readouterr().err == "tieaudit: No such option '--no-such-option' (hf tieaudit -h lists the options)\n"


def test_hf_lists_it(home: Path) -> None:
    told = hf(home, "--help")
    assert "tieaudit" in told.stdout
    assert "Audit a model checkpoint" in told.stdout
