"""The fixtures that pytest finds by itself, in test files of their own, run by a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tieaudit
from tieaudit.pytest_plugin import TieSnapshot

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
# a model without torch's import time would prove nothing; one that is built at once keeps it to that
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        if tied:
            self.head.weight = self.embed.weight
"""
# read from the file's own top, so that a plugin that imports torch would show
FIRST = """
import sys
EARLY = sorted(name for name in ("torch", "numpy", "transformers", "safetensors") if name in sys.modules)
OWN = sorted(name for name in sys.modules if name.split(".")[0] == "tieaudit")
"""


@pytest.fixture(scope="session")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path that registers the entry points of pyproject.toml, whatever is installed."""
    folder = tmp_path_factory.mktemp("registered")
    info = folder / "tieaudit_entry_points-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tieaudit-entry-points\nVersion: 1\n")
    lines = "".join(f"{name} = {module}\n" for name, module in ENTRY_POINTS.items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    return folder


def run(folder: Path, registered: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    path = os.pathsep.join([str(Path(tieaudit.__file__).parents[1]), str(registered)])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-rA", *options, "test_it.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_entry_point_is_the_plugin() -> None:
    assert ENTRY_POINTS == {"tieaudit": "tieaudit.pytest_plugin"}


def test_passing_and_failing_tests(tmp_path: Path, registered: Path) -> None:
    code = (
        FIRST
        + NET
        + """
def test_nothing_heavy_was_imported():
    assert EARLY == []
    assert OWN == ["tieaudit", "tieaudit.pytest_plugin"]

def test_names(assert_tied):
    assert_tied(Net(), "embed.weight", "head.weight")

def test_config(assert_tied):
    assert_tied(Net(), config={"tie_word_embeddings": True})

def test_untied_by_config(assert_tied):
    assert_tied(Net(tied=False), config=False)

def test_snapshot(tie_snapshot):
    model = Net()
    before = tie_snapshot(model)
    model.to(torch.bfloat16)
    before.assert_kept()
    before.assert_kept(torch.compile(model, backend="eager"))
    tie_snapshot(Net(tied=False)).assert_kept()

def test_that_fails(assert_tied):
    model = Net(tied=False)
    assert_tied(model, "embed.weight", "head.weight")

def test_config_fails(assert_tied):
    assert_tied(Net(tied=False), config=True)

def test_typo(assert_tied):
    assert_tied(Net(), "embed.weight", "heat.weight")

def test_snapshot_fails(tie_snapshot):
    model = Net()
    before = tie_snapshot(model)
    model.head.weight = nn.Parameter(model.head.weight.detach() + 1)
    before.assert_kept()

def test_nothing_left_fails(tie_snapshot):
    tie_snapshot(Net()).assert_kept(nn.Linear(2, 2))
"""
    )
    done = run(tmp_path, registered, code)
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = dict(reversed(line.split(" - ")[0].split(" test_it.py::")) for line in done.stdout.splitlines() if " test_it.py::" in line)
    failed = {name for name, outcome in outcomes.items() if outcome == "FAILED"}
    assert failed == {"test_that_fails", "test_config_fails", "test_typo", "test_snapshot_fails", "test_nothing_left_fails"}
    assert len(outcomes) == 10
    for words in (
        "E       tieaudit.errors.BrokenTie: Net: head.weight is not the Parameter embed.weight: different values",
        "Net: head.weight and embed.weight should be one Parameter (the config ties them) and are two Parameters: their values differ",
        "OptionError: names: 'heat.weight' is not known (did you mean head.weight?)",
        "Net: head.weight and embed.weight should be one Parameter (one Parameter before) and are two Parameters: their values differ",
        "Linear: embed.weight is not there any more; head.weight is not there any more",
    ):
        assert words in done.stdout
    # the line of the test is shown, and none of the check's own
    assert '>       assert_tied(model, "embed.weight", "head.weight")' in done.stdout
    assert "pytest_plugin.py" not in done.stdout
    assert "module.py" not in done.stdout


def test_it_can_be_left_out(tmp_path: Path, registered: Path) -> None:
    done = run(tmp_path, registered, FIRST + "def test_it(): assert OWN == []\ndef test_asks(assert_tied): pass", "-p", "no:tieaudit")
    assert done.returncode == 1
    assert "1 passed, 1 error" in done.stdout
    assert "fixture 'assert_tied' not found" in done.stdout


def test_the_fixtures_are_listed_with_their_use(tmp_path: Path, registered: Path) -> None:
    done = run(tmp_path, registered, "", "--fixtures")
    assert "fixtures defined from tieaudit.pytest_plugin" in done.stdout
    assert 'assert_tied(model, "lm_head.weight", "model.embed_tokens.weight")' in done.stdout


def test_the_package_does_not_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from tieaudit import *; print(audit.__name__, assert_tied.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "audit assert_tied"
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert not any(name.startswith("pytest") for name in needed)


def test_a_snapshot_without_ties_is_kept_by_any_model() -> None:
    from torch import nn

    TieSnapshot(nn.Linear(2, 2)).assert_kept()
