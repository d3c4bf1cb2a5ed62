"""`--format NAME[:FILE]`: one run feeds several reports, files are whole or untouched, and what cannot be written is one line."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from lxml import etree

from report_samples import SCHEMAS
from test_cli import SCHEMA, copies, diverged, environment, healthy, on_terminal, one_line, partial
from test_cli import run as process
from tieaudit import cli
from tieaudit.cli import outputs

SARIF = jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0.json").read_text()))
MACHINE = ("sarif", "junit", "github", "gitlab", "markdown", "csv")


def xml(told: str) -> etree._Element:
    return etree.fromstring(told.encode("ascii"))


def run(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As a process would answer, but in this one."""
    with pytest.MonkeyPatch.context() as patch:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setattr(sys, "argv", ["tieaudit", *map(str, args)])
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            cli.main()
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(args, int(end.value.code or 0), out, err)


def test_one_run_feeds_every_report(tmp_path: Path) -> None:
    target = diverged(tmp_path / "m")
    told = run(
        target,
        *(word for name in (*MACHINE, "json", "text") for word in ("--format", f"{name}:{tmp_path / name}.out")),
        "--format",
        "text",
    )
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout.startswith("ERROR  ")
    files = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.out")}
    assert set(files) == {*MACHINE, "json", "text"}
    assert files["text"] == told.stdout
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(files["json"]))
    sarif = json.loads(files["sarif"])
    SARIF.validate(sarif)
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["TIE001"]
    assert sarif["runs"][0]["invocations"][0]["exitCode"] == 1
    assert xml(files["junit"]).get("failures") == "1"
    assert files["github"].startswith("::error title=TIE001 diverged-tie,file=")
    assert [issue["check_name"] for issue in json.loads(files["gitlab"])] == ["diverged-tie"]
    assert files["markdown"].startswith("## tieaudit: ERROR ")
    assert [row["rules"] for row in csv.DictReader(files["csv"].splitlines())] == ["TIE001"]


@pytest.mark.parametrize("name", ["json", *MACHINE])
def test_what_goes_to_stdout_is_what_goes_to_a_file(tmp_path: Path, name: str) -> None:
    target = healthy(tmp_path / "m")
    for form in (name, f"{name}:-"):
        shown = run(target, "--format", form, "--format", f"{name}:{tmp_path / 'file'}")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert (tmp_path / "file").read_bytes().decode() == shown.stdout


def test_only_files_leave_stdout_empty(tmp_path: Path) -> None:
    told = run(diverged(tmp_path / "m"), "--format", f"json:{tmp_path / 'x'}")
    assert (told.returncode, told.stdout, told.stderr) == (1, "", "")


@pytest.mark.parametrize(
    ("forms", "words"),
    [
        (["yaml"], "yaml"),
        (["sarif:"], "names no file"),
        ([":x"], "is none of text, json, sarif"),
        (["text", "json"], "text and json both go to stdout"),
        (["json", "sarif:-"], "json and sarif both go to stdout"),
        (["json:a", "sarif:./a"], "is named twice"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_read(tmp_path: Path, forms: list[str], words: str) -> None:
    told = run(tmp_path / "nothing", *(word for form in forms for word in ("--format", form)))
    assert told.returncode == 2
    assert "--format" in one_line(told)
    assert words in told.stderr
    assert "no such file" not in told.stderr


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file, words in (
        (tmp_path / "no" / "x", "there is no folder"),
        (tmp_path / "folder", "is a folder"),
        (tmp_path / "a\nb" / "x", "a\\nb"),
    ):
        told = run(tmp_path / "nothing", "--format", f"json:{file}")
        assert told.returncode == 2
        assert words in one_line(told)
    assert not (tmp_path / "no").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    told = run(healthy(tmp_path / "m"), "--format", f"json:{closed / 'x'}")
    assert told.returncode == 2
    assert "Permission denied" in one_line(told)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pytorch_model.bin", "model.safetensors.index.json", "x.gguf"])
def test_a_report_is_never_written_over_a_part_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    target = healthy(tmp_path / "m")
    kept = target / name
    if not kept.exists():
        kept.write_bytes(b"kept")
    before = kept.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(kept)
    for file in (kept, link):
        told = run(target, "--format", f"json:{file}")
        assert told.returncode == 2
        assert "looks like a part of a checkpoint" in one_line(told)
    assert kept.read_bytes() == before


def test_a_file_is_replaced_whole_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    target, kept, link = healthy(tmp_path / "m"), tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("old" * 10_000)
    kept.chmod(0o640)
    link.symlink_to(kept)
    before = kept.stat().st_ino
    assert run(target, "--format", f"json:{link}").returncode == 0
    assert link.is_symlink()
    assert kept.stat().st_ino != before  # renamed over, so that a reader sees the old or the new one
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert json.loads(kept.read_text())["verdict"] == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "link.json", "m"]


def test_a_new_file_has_the_mode_of_any(tmp_path: Path) -> None:
    script = f'umask 027; "{sys.executable}" -m tieaudit "{healthy(tmp_path / "m")}" --format "json:{tmp_path / "x"}"'
    subprocess.run(["bash", "-c", script], env=environment(), check=True)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "x"
    old.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        outputs.write(str(old), "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert old.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_devices_are_written_to_and_not_replaced_and_one_failure_keeps_back_no_other(tmp_path: Path) -> None:
    target = healthy(tmp_path / "m")
    assert run(target, "--format", "json:/dev/null").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    told = run(target, "--format", "json:/dev/full", "--format", f"sarif:{tmp_path / 'x'}", "--format", "text")
    assert told.returncode == 2
    assert told.stdout.startswith("OK  ")
    assert "No space left" in told.stderr
    assert told.stderr.count("\n") == 1
    SARIF.validate(json.loads((tmp_path / "x").read_text()))


def test_a_pipe_of_the_shell_gets_the_report(tmp_path: Path) -> None:
    call = f'"{sys.executable}" -m tieaudit "{healthy(tmp_path / "m")}" --format text'
    script = f'{call} --format json:>(cat > "{tmp_path / "x"}"); wait $!'
    subprocess.run(["bash", "-c", script], env=environment(), check=True, stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "x").read_text())["verdict"] == "ok"


def test_a_log_that_others_write_to_is_not_replaced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    call = f'"{sys.executable}" -m tieaudit "{healthy(tmp_path / "m")}"'
    script = f'{call} --format json --format text:/dev/stderr 2>>"{log}"; echo after >>"{log}"'
    told = subprocess.run(["bash", "-c", script], env=environment(), check=True, capture_output=True)
    assert json.loads(told.stdout)["verdict"] == "ok"
    assert re.fullmatch(r"before\nOK  .*\nafter\n", log.read_text(), re.DOTALL)
    assert run(tmp_path / "m", "--format", "json:/dev/stdout", "--format", "text").returncode == 2


# several targets


def several(tmp_path: Path) -> list[Path]:
    return [diverged(tmp_path / "a"), tmp_path / "nothing", healthy(tmp_path / "c"), partial(tmp_path / "d")]


def test_several_targets_have_a_form_in_every_format(tmp_path: Path) -> None:
    targets = several(tmp_path)
    told = run(
        *targets, *(word for name in (*MACHINE, "json", "text") for word in ("--format", f"{name}:{tmp_path / name}.out")), "--jobs", "2"
    )
    assert (told.returncode, told.stdout, told.stderr) == (2, "", "")
    files = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.out")}
    [sarif] = json.loads(files["sarif"])["runs"]
    SARIF.validate(json.loads(files["sarif"]))
    assert [target["verdict"] for target in sarif["properties"]["targets"]] == ["error", "no answer", "ok", "incomplete"]
    [invocation] = sarif["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    assert [note["descriptor"]["id"] for note in invocation["toolExecutionNotifications"]] == ["no-answer", "not-checked"]
    suites = list(xml(files["junit"]))
    assert [suite.get("name") for suite in suites] == list(map(str, targets))
    assert [[suite.get(count) for count in ("failures", "errors", "skipped")] for suite in suites] == [
        ["1", "0", "0"], ["0", "1", "0"], ["0", "0", "0"], ["0", "0", "1"]
    ]  # fmt: skip
    assert [row["verdict"] for row in csv.DictReader(files["csv"].splitlines())] == ["error", "no answer", "ok", "incomplete"]
    assert files["markdown"].count("\n### ") == 4
    assert {issue["check_name"] for issue in json.loads(files["gitlab"])} == {"diverged-tie", "no-answer", "not-checked"}
    assert files["github"].count("::error") == 2
    document = json.loads(files["json"])
    assert (len(document["reports"]), len(document["errors"])) == (3, 1)
    assert files["text"].index("ERROR  ") < files["text"].index("NO ANSWER") < files["text"].index("\ntarget ")


def test_the_text_of_several_is_the_same_in_a_file(tmp_path: Path) -> None:
    targets = several(tmp_path)
    told = run(*targets, "--format", "text", "--format", f"text:{tmp_path / 'x'}")
    assert _untimed((tmp_path / "x").read_text()) == _untimed(told.stdout)


def _untimed(text: str) -> str:
    return re.sub(r"in \d+\.\d+ s", "", text)


@pytest.mark.parametrize("name", MACHINE)
def test_one_target_without_an_answer_is_in_the_report_too(tmp_path: Path, name: str) -> None:
    told = run(tmp_path / "nothing", "--format", name, "--format", f"{name}:{tmp_path / 'x'}")
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "no such file or folder" in told.stderr
    assert "no such file or folder" in told.stdout
    assert (tmp_path / "x").exists()


def test_json_of_no_answer_is_still_nothing(tmp_path: Path) -> None:
    told = run(tmp_path / "nothing", "--format", "json", "--format", f"text:{tmp_path / 'x'}")
    assert told.returncode == 2
    assert one_line(told)
    assert not (tmp_path / "x").exists()


# what was asked for is in the report


def test_the_threshold_and_the_choice_of_rules_are_those_of_the_command_line(tmp_path: Path) -> None:
    target = copies(tmp_path / "m")

    def suite(*options: str) -> Any:
        return xml(run(target, "--format", "junit", *options).stdout)[0]

    assert suite().get("failures") == "0"
    assert suite("--fail-on", "warning").get("failures") == "1"
    chosen = suite("--select", "TIE0", "--ignore", "TIE002")
    assert {case.get("name").split()[0] for case in chosen.iter("testcase")} == {f"TIE{n:03d}" for n in range(1, 12) if n != 2}


def test_a_baseline_and_a_limit_are_in_every_report(tmp_path: Path) -> None:
    target, known = diverged(tmp_path / "m"), tmp_path / "known.json"
    assert run(target, "--write-baseline", known).returncode == 0
    told = run(target, "--baseline", known, "--format", "sarif")
    assert told.returncode == 0
    [result] = json.loads(told.stdout)["runs"][0]["results"]
    assert result["suppressions"][0]["status"] == "accepted"
    assert xml(run(target, "--baseline", known, "--format", "junit").stdout).get("failures") == "0"
    assert json.loads(run(target, "--baseline", known, "--format", "gitlab").stdout) == []
    told = run(copies(tmp_path / "c"), "--max-waste", "10", "--format", "junit")
    assert told.returncode == 1
    assert xml(told.stdout).get("failures") == "1"


# GitHub


def test_the_summary_of_a_github_run_is_appended(tmp_path: Path) -> None:
    target, summary = diverged(tmp_path / "m"), tmp_path / "summary.md"
    summary.write_text("before\n")
    told = run(target, "--format", "github", GITHUB_STEP_SUMMARY=str(summary))
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout.startswith("::error ")
    written = summary.read_text()
    assert written.startswith("before\n## tieaudit: ERROR ")
    for form in (f"github:{tmp_path / 'x'}", "text", "markdown"):
        run(target, "--format", form, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text() == written


def test_a_summary_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    told = run(healthy(tmp_path / "m"), "--format", "github", GITHUB_STEP_SUMMARY=str(tmp_path / "no" / "x"))
    assert told.returncode == 2
    assert told.stdout.startswith("tieaudit: ok: ")
    assert told.stderr.count("\n") == 1
    assert "GITHUB_STEP_SUMMARY" in told.stderr


# HTML, the terminal, other encodings


def test_html_is_no_reading_for_a_terminal(tmp_path: Path) -> None:
    code, told = on_terminal(healthy(tmp_path / "m"), "--format", "html", width=200)
    assert code == 2
    assert "--format html:FILE" in told


def test_html_goes_to_a_file_or_a_pipe(tmp_path: Path) -> None:
    pytest.importorskip("tieaudit.reporters.html")
    target = diverged(tmp_path / "m")
    told = run(target, "--format", "html", "--format", f"html:{tmp_path / 'x.html'}")
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout.lower().startswith("<!doctype html>")
    assert (tmp_path / "x.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert run(target, healthy(tmp_path / "h"), "--format", "html").stdout.lower().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["sarif", "junit", "gitlab"])
def test_documents_are_right_in_any_encoding(tmp_path: Path, name: str) -> None:
    target = healthy(tmp_path / "é中😀")
    told = process(target, "--format", name, PYTHONIOENCODING="ascii", LANG="C", PYTHONUTF8="0")
    assert told.stdout.isascii()
    assert "?" not in told.stdout.split("\n", 1)[1] or name != "junit"


# tieaudit rules


def test_rules_as_json_and_markdown() -> None:
    listed = json.loads(run("rules", "--format", "json").stdout)
    assert listed["version"] == 1
    assert set(listed["rules"][0]) == {"code", "name", "severity", "summary", "page"}
    assert [(rule["code"], rule["severity"]) for rule in listed["rules"]][:2] == [("TIE001", "error"), ("TIE002", "warning")]
    assert json.loads(run("rules", "TIE60", "--format", "json").stdout)["rules"][0]["name"] == "adapter-splits-tie"
    assert run("rules", "--format", "markdown").stdout.startswith("| code | rule | default | what it finds |\n|---|")
    assert run("rules", "TIE001", "--format", "markdown").stdout.startswith("# TIE001 `diverged-tie`\n\nDefault severity: **error**\n")
    assert run("rules", "--format", "yaml").returncode == 2


@pytest.mark.parametrize("width", [200, 60, 1])
def test_rules_fit_the_terminal(width: int) -> None:
    for args in (["rules"], ["rules", "TIE101"]):
        code, told = on_terminal(*args, width=width)
        assert code == 0
        assert all(len(line) <= width or len(line.split()) <= 1 or width < 13 for line in told.splitlines()), told
        piped = run(*args).stdout
        assert told.split() == piped.split()
