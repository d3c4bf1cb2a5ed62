"""Completion of command lines: the scripts are sourced and asked by the shell itself, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tieaudit

SOURCE = Path(tieaudit.__file__).parents[1]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tieaudit`."""
    path = tmp_path_factory.mktemp("bin")
    (path / "tieaudit").write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} PYTHONWARNINGS=error exec {sys.executable} -m tieaudit "$@"\n')
    (path / "tieaudit").chmod(0o755)
    return path


def shell(command: Path, script: str, cwd: Path, name: str = "bash") -> str:
    done = subprocess.run(
        [name, "-c", script], capture_output=True, text=True, cwd=cwd, check=False, timeout=60,
        env={**os.environ, "PATH": f"{command}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# COMP_WORDS is set by hand, as bash does when Tab is pressed; compopt says what bash falls back to
ASK = """
eval "$(tieaudit completion bash)"
compopt() { printf '%s %s\\n' compopt "$2"; }
ask() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _tieaudit_completion tieaudit "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  printf '%s\\n' "${COMPREPLY[@]}" ---
}
"""
FILES = "compopt default"
OFFERED = {
    "tieaudit --fo": {"--format"},
    "tieaudit model --max-": {"--max-waste", "--max-size"},
    "tieaudit --fail-on ''": {"error", "warning", "note", "never"},
    "tieaudit --format s": {"sarif"},
    "tieaudit model --select TIE00": {f"TIE00{n}" for n in range(1, 10)},
    "tieaudit --ignore TIE001,stale": {"TIE001,stale-flag", "TIE001,stale-total-size"},
    "tieaudit rules diverg": {"diverged-tie"},
    "tieaudit completion ''": {"bash", "zsh", "fish"},
    "tieaudit ru": {FILES, "rules"},
    "tieaudit ''": {FILES},
    "tieaudit some/mod": {FILES},
    "tieaudit --engines some/mod": {FILES},
    "tieaudit hook --color a": {"auto", "always"},
}


def test_what_bash_offers(command: Path, tmp_path: Path) -> None:
    told = shell(command, ASK + "\n".join(f"ask {words}" for words in OFFERED), tmp_path).removesuffix("---\n").split("---\n")
    assert {words: set(offered.split("\n")) - {""} for words, offered in zip(OFFERED, told, strict=True)} == OFFERED


def test_bash_registers_the_function(command: Path, tmp_path: Path) -> None:
    told = shell(command, 'eval "$(tieaudit completion bash)"; complete -p tieaudit', tmp_path)
    assert told == "complete -o nosort -F _tieaudit_completion tieaudit\n"


def test_the_answer_to_a_shell_ends_with_0(command: Path, tmp_path: Path) -> None:
    told = shell(command, "COMP_WORDS='tieaudit --fo' COMP_CWORD=1 _TIEAUDIT_COMPLETE=bash_complete tieaudit", tmp_path)
    assert told == "plain,--format\n"


@pytest.mark.parametrize(("name", "word"), [("zsh", "#compdef tieaudit"), ("fish", "complete --no-files --command tieaudit")])
def test_zsh_and_fish(command: Path, tmp_path: Path, name: str, word: str) -> None:
    script = shell(command, f"tieaudit completion {name}", tmp_path)
    assert word in script
    assert "_TIEAUDIT_COMPLETE" in script
    if shutil.which(name):
        (tmp_path / "script").write_text(script)
        shell(command, f"{'autoload -U compinit; compinit -u; ' if name == 'zsh' else ''}source ./script", tmp_path, name)


def test_another_shell_is_refused(command: Path, tmp_path: Path) -> None:
    done = subprocess.run([command / "tieaudit", "completion", "tcsh"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
