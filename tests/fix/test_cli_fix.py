"""`tieaudit fix` as a user runs it: a process, its text, its JSON and its exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from tieaudit import audit

ROOT = Path(__file__).parent.parent.parent
FIXTURES = ROOT / "fixtures"
SCHEMA = json.loads((ROOT / "src" / "tieaudit" / "fix" / "plan.schema.json").read_text())


def run(*args: object, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tieaudit", "fix", *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_plan_in_words(tmp_path: Path) -> None:
    source = FIXTURES / "cast-copy" / "fires"
    told = (
        f"PLAN  {source}   1 repair; nothing is written yet\n"
        "\n"
        "  leave out lm_head.weight   (saves 1.02 kB)\n"
        "      why       it is model.embed_tokens.weight again, cast (tied: tie_word_embeddings is true in config.json)\n"
        "      ends      cast-copy; evidence: proved\n"
        "\n"
        "  1 file written again, 1 carried over byte for byte; saves 1.02 kB\n"
    )
    assert run(source, "--dry-run", cwd=tmp_path) == (0, told, "")
    assert list(tmp_path.iterdir()) == []


def test_done(tmp_path: Path) -> None:
    code, out, err = run(FIXTURES / "cast-copy" / "fires", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"FIXED  {FIXTURES / 'cast-copy' / 'fires'}   1 repair; nothing is left to find"
    assert out.splitlines()[-1] == f"  written to {tmp_path / 'out'}"
    assert run(tmp_path / "out", "-o", tmp_path / "again") == (
        0, f"NOTHING TO DO  {tmp_path / 'out'}   there is nothing to repair\n", "")  # fmt: skip
    assert not (tmp_path / "again").exists()


def test_a_refusal_gives_commands_that_work(tmp_path: Path) -> None:
    source = folder(tmp_path / "a model", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    code, out, _ = run(source, "-o", "out put", cwd=tmp_path)
    assert code == 1
    assert out.splitlines()[0] == f"REFUSED  {source}   a person must choose; nothing was written"
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("tieaudit fix")]
    assert [shlex.split(line)[3:-2] for line in commands] == [["--untie"], ["--tie", "embed"], ["--tie", "head"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a model"]
    code, _, err = run(*shlex.split(commands[0])[2:], cwd=tmp_path)
    assert (code, err) == (0, "")
    assert audit(tmp_path / "out put").findings == ()


@pytest.mark.parametrize(
    ("rule", "code", "verdict"),
    [("duplicate-tie", 0, "ready"), ("scaled-copy", 0, "nothing to do"), ("row-mismatch", 1, "unrepaired"), ("diverged-tie", 1, "refused")],
)
def test_json_keeps_its_schema(rule: str, code: int, verdict: str, tmp_path: Path) -> None:
    got, out, err = run(FIXTURES / rule / "fires", "-o", tmp_path / "out", "--format", "json")
    assert (got, err) == (code, "")
    told = json.loads(out)
    jsonschema.validate(told, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert told["verdict"] == verdict
    assert (told["out"] is not None) is (verdict == "ready") is (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Either -o OUT or --in-place"),
        (["-o", "x", "--in-place"], "two places"),
        (["-o", "x", "--untie", "--tie", "head"], "--untie says the opposite"),
        (["-o", "x", "--tie", "both"], "'both' is not one of"),
    ],
)
def test_wrong_use(args: list[str], words: str, tmp_path: Path) -> None:
    code, out, err = run(FIXTURES / "diverged-tie" / "fires", *args, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_no_target(tmp_path: Path) -> None:
    code, out, err = run("org/model", "-o", "x", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err == "tieaudit: org/model: is not a folder or file on this machine (fix needs its files here: download it first)\n"


def test_names_from_files_do_not_reach_the_terminal(tmp_path: Path) -> None:
    names = {EMBED: matrix(1), HEAD: matrix(1), "\x1b]8;;x\x07.weight": matrix(3), "model.\x1b[31m.weight": matrix(3)}
    source = folder(tmp_path / "in", {"config.json": tied(), "model.safetensors": safetensors(names)})
    _, out, _ = run(source, "-o", tmp_path / "out")
    assert "\x1b" not in out
    assert "\x07" not in out
