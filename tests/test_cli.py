"""The command line: exit codes, options, terminals, and names that were chosen to do harm. Each run is a process of its own."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tieaudit
from builders import EMBED, HEAD, bf16, config, folder, index, matrix, safetensors, safetensors_file, tied, torch_tensor, torch_zip, untied
from tieaudit import cli, stages
from tieaudit.inspectors.registry import all_rules

SCHEMA = json.loads((Path(tieaudit.__file__).parent / "reporters" / "report.schema.json").read_text(encoding="utf-8"))
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2028\u2029\ufeff]")


def environment(**changed: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"COLUMNS", "NO_COLOR", "LANG", "LC_ALL", "PYTHONIOENCODING", "TERM", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    }
    return {
        **kept,
        "PYTHONPATH": str(Path(tieaudit.__file__).parents[1]),
        "PYTHONWARNINGS": "error",
        "LANG": "C.UTF-8",
        "HF_ENDPOINT": "http://127.0.0.1:9",  # the discard port: nothing listens
        "TERM": "xterm",
        **changed,
    }


def run(*args: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tieaudit", *map(str, args)],
        capture_output=True, encoding="utf-8", errors="surrogateescape", cwd=cwd, env=environment(**env), check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """The same in this process, for tables: (exit code, stdout, stderr)."""

    def call(*args: str | Path) -> tuple[int, str, str]:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        monkeypatch.setattr(sys, "argv", ["tieaudit", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        monkeypatch.undo()
        for stream in streams:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
        return int(end.value.code or 0), out, err

    return call


def document(*args: str | Path, **env: str) -> dict[str, Any]:
    """The JSON report, held to the schema."""
    told = run(*args, "--format", "json", **env)
    report: dict[str, Any] = json.loads(told.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    return report


def on_terminal(*args: str | Path, width: int = 80, **env: str) -> tuple[int, str]:
    """(exit code, what a terminal of this width was told), stdout and stderr together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "tieaudit", *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**env)
    )
    os.close(theirs)
    told = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 60)
        try:
            piece = os.read(ours, 65536) if ready else b""
        except OSError:  # Linux: the other side was closed
            piece = b""
        if not piece:
            break
        told += piece
    os.close(ours)
    return process.wait(timeout=60), told.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def one_line(told: subprocess.CompletedProcess[str]) -> str:
    """stderr, which must be one line and no traceback, with nothing on stdout."""
    assert told.stdout == ""
    assert told.stderr.endswith("\n")
    assert told.stderr.count("\n") == 1, told.stderr
    assert "Traceback" not in told.stderr
    return told.stderr


# checkpoints


def healthy(path: Path) -> Path:
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})})


def copies(path: Path) -> Path:
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})


def diverged(path: Path) -> Path:
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})


def noted(path: Path) -> Path:
    return folder(path, {"config.json": untied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})


def broken(path: Path) -> Path:
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})[:-1]})


def partial(path: Path) -> Path:
    """A file that asks for something that cannot be checked: its matrices are compressed."""
    stored, packed = torch_zip({EMBED: torch_tensor(matrix(1)), HEAD: torch_tensor(matrix(1))}), io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(stored)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            # what differs is the shape of the deflated stream, so the checksums agree and only the bytes could tell
            new.writestr(
                name, old.read(name), zipfile.ZIP_STORED if name.endswith(("pkl", "version", "byteorder")) else zipfile.ZIP_DEFLATED
            )
    return folder(path, {"config.json": tied(), "pytorch_model.bin": packed.getvalue()})


# exit codes


@pytest.mark.parametrize(
    ("make", "options", "code"),
    [
        (healthy, [], 0),
        (noted, [], 0),
        (copies, [], 0),
        (diverged, [], 1),
        (broken, [], 1),
        (copies, ["--fail-on", "warning"], 1),
        (copies, ["--fail-on", "note"], 1),
        (noted, ["--fail-on", "warning"], 0),
        (noted, ["--fail-on", "note"], 1),
        (diverged, ["--fail-on", "never"], 0),
        (diverged, ["--ignore", "TIE001"], 0),
        (diverged, ["--ignore", "diverged-tie"], 0),
        (diverged, ["--ignore", "TIE0,TIE5"], 0),
        (diverged, ["--select", "TIE2"], 0),
        (diverged, ["--select", "TIE2", "--select", "tie001"], 1),
        (diverged, ["--select", "TIE2, diverged-tie"], 1),
        (diverged, ["--select", "TIE001", "--ignore", "TIE0"], 0),
        (copies, ["--fail-on", "warning", "--min-waste", "4096"], 1),
        (diverged, ["--verify", "headers"], 0),
        (diverged, ["--verify", "sample"], 1),
        (partial, [], 2),
        (partial, ["--allow-partial"], 0),
        (partial, ["--fail-on", "never"], 2),
        (partial, ["--verify", "headers"], 0),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (" ".join(value) if isinstance(value, list) else str(value)),
)
def test_the_exit_code_tells_findings_from_everything_else(tmp_path: Path, make: Any, options: list[str], code: int) -> None:
    told = run(make(tmp_path / "m"), *options)
    assert (told.returncode, told.stderr) == (code, ""), told.stdout


@pytest.mark.parametrize(
    "args",
    [["--nothing"], ["--select", "TIE999"], ["--ignore", "no-such-rule"], ["--format", "yaml"], ["--verify", "all"],
     ["--fail-on", "fatal"], ["--min-waste", "-1"], ["--min-waste", "1k"], ["--timeout", "0"], ["--jobs", "0"],
     ["--from-file", "no-such-list"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_options_exit_2_and_the_last_line_names_the_fault(tmp_path: Path, args: list[str]) -> None:
    told = run(healthy(tmp_path / "m"), *args)
    assert told.returncode == 2
    assert told.stdout == ""
    assert "Traceback" not in told.stderr
    assert args[-1] in told.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("option", "word"), [("--select", "TIE999"), ("--ignore", "nothing"), ("--select", "\x1b[31m"), ("--ignore", "a\nb")]
)
def test_an_unknown_rule_is_one_line_and_exit_2(tmp_path: Path, option: str, word: str) -> None:
    told = run(healthy(tmp_path / "m"), option, word)
    assert told.returncode == 2
    assert option in one_line(told)
    assert not CONTROL.search(told.stderr)


TARGETS: dict[str, tuple[dict[str, bytes], str, str]] = {
    "missing": ({}, "./nowhere", "no such file or folder"),
    "missing file": ({}, "nowhere.safetensors", "no such file or folder"),
    "Hub id": ({}, "org/name", "cannot be reached"),
    "Hub id of one part": ({}, "nowhere", "cannot be reached"),
    "empty folder": ({"m/sub/x": b""}, "m", "no checkpoint here"),
    "only a config": ({"m/config.json": tied()}, "m", "there is a config.json, but no weights"),
    "text file": ({"m.txt": b"some text\n"}, "m.txt", "is no format that is read here"),
    "empty file": ({"m.bin": b""}, "m.bin", "is empty"),
    "config.json": ({"config.json": tied()}, "config.json", "config.json"),
    "image": ({"m.png": b"\x89PNG\r\n\x1a\n"}, "m.png", "is no format that is read here"),
    "only TFLite": ({"m/model.tflite": b"TFL3"}, "m", "model.tflite"),
    "only text": ({"m/vocab.txt": b"x", "m/merges.bin": b"some text"}, "m", ""),
    "a file below a file": ({"m.txt": b""}, "m.txt/x", "Not a directory"),
    "only a folder below": ({"m/inner/model.safetensors": safetensors({EMBED: matrix(1)})}, "m", "inner/"),
    "only a training run": ({"m/optimizer.pt": torch_zip({})}, "m", "no checkpoint"),
}


@pytest.mark.parametrize("case", [case for case in TARGETS if case != "empty file"])
def test_a_target_that_cannot_be_audited_is_one_line_and_exit_2(tmp_path: Path, case: str) -> None:
    files, target, words = TARGETS[case]
    told = run(target, cwd=folder(tmp_path, files))
    assert told.returncode == 2
    assert one_line(told).startswith(f"tieaudit: {target}: ")
    assert words in told.stderr


def test_an_empty_file_is_no_clean_checkpoint(tmp_path: Path) -> None:
    told = run(folder(tmp_path, {"m.bin": b""}) / "m.bin")
    assert told.returncode in (1, 2)
    assert "is empty" in told.stdout + told.stderr or "is 0 bytes long" in told.stdout + told.stderr


def test_an_empty_target_is_no_name_for_the_folder_one_is_in(tmp_path: Path) -> None:
    assert run("", cwd=healthy(tmp_path)).returncode == 2


@pytest.mark.parametrize(
    "target", ["no\nwhere", "no\x1b[31mwhere", "no\u202ewhere", "x" * 5000], ids=["line end", "escape", "override", "long"]
)
def test_a_target_of_hostile_spelling_is_one_printable_line(target: str) -> None:
    told = run(target)
    assert told.returncode == 2
    assert not CONTROL.search(one_line(told))
    assert len(told.stderr) < 1000


def crash(*_: object, **__: object) -> None:
    raise RuntimeError("two\nlines \x1b[31mred \ud800")


def test_a_crash_is_one_printable_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(stages, "audit", crash)
    monkeypatch.setattr(sys, "argv", ["tieaudit", str(tmp_path)])
    monkeypatch.delenv("TIEAUDIT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "internal error: RuntimeError: two" in told.err
    assert told.err.count("\n") == 1
    assert not CONTROL.search(told.err)


def test_a_crash_is_shown_whole_on_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stages, "audit", crash)
    monkeypatch.setattr(sys, "argv", ["tieaudit", str(tmp_path)])
    monkeypatch.setenv("TIEAUDIT_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), RecursionError(), OSError(28, "No space left")], ids=lambda error: type(error).__name__
)
def test_whatever_stops_a_run_is_exit_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException) -> None:
    def stop(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(stages, "audit", stop)
    monkeypatch.setattr(sys, "argv", ["tieaudit", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2


# the other commands


def test_help_version_and_rules_exit_0() -> None:
    for args in (
        ["-h"],
        ["--help"],
        ["audit", "-h"],
        ["rules", "-h"],
        ["x", "-h"],
        ["--version"],
        ["rules"],
        ["rules", "TIE001"],
        ["rules", "diverged-tie"],
    ):
        told = run(*args)
        assert (told.returncode, told.stderr) == (0, ""), args
        assert told.stdout


def test_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"tieaudit {tieaudit.__version__}\n"


def test_rules_lists_every_rule_on_a_line() -> None:
    lines = run("rules").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [[rule.code, rule.severity.value, rule.name] for rule in all_rules()]


@pytest.mark.parametrize("word", ["TIE001", "tie001", "diverged-tie"])
def test_the_page_of_a_rule_is_found_by_code_and_by_name(word: str) -> None:
    page = run("rules", word).stdout
    assert page.startswith("TIE001 diverged-tie (error)\n\n")
    assert "Why is this bad" in page


@pytest.mark.parametrize("word", ["TIE999", "nothing", "\x1b[31m"])
def test_the_page_of_no_rule_is_exit_2(word: str) -> None:
    told = run("rules", word)
    assert (told.returncode, told.stdout) == (2, "")
    assert not CONTROL.search(told.stderr)


def test_no_arguments_is_help_and_exit_2() -> None:
    told = run()
    assert told.returncode == 2
    assert "Usage: tieaudit" in told.stdout + told.stderr


def test_a_folder_with_the_name_of_a_command_is_reached_by_its_path(tmp_path: Path) -> None:
    healthy(tmp_path / "rules")
    assert run("./rules", cwd=tmp_path).stdout.startswith("OK")
    assert run("audit", "rules", cwd=tmp_path).stdout.startswith("OK")


def test_options_may_stand_before_the_target(tmp_path: Path) -> None:
    assert run("--fail-on", "warning", copies(tmp_path)).returncode == 1


# JSON


@pytest.mark.parametrize("make", [healthy, noted, copies, diverged, broken, partial])
def test_json_fits_the_schema(tmp_path: Path, make: Any) -> None:
    target = make(tmp_path / "m")
    report = document(target)
    assert report["target"] == str(target)
    assert (
        report["verdict"]
        == {healthy: "ok", noted: "note", copies: "warning", diverged: "error", broken: "error", partial: "incomplete"}[make]
    )


@pytest.mark.parametrize("verify", ["headers", "sample", "full"])
def test_json_fits_the_schema_however_little_is_read(tmp_path: Path, verify: str) -> None:
    assert document(diverged(tmp_path), "--verify", verify)["verdict"] == ("ok" if verify == "headers" else "error")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_text_never_says_clean_of_what_a_filter_hid(tmp_path: Path) -> None:
    """With the rule switched off the headline must not claim that no two names share a matrix, and that none has to."""
    told = run(diverged(tmp_path / "m"), "--ignore", "TIE001").stdout
    assert "none has to" not in told.splitlines()[0]
    told = run(broken(tmp_path / "b"), "--ignore", "TIE501").stdout
    assert not told.startswith("OK")


def test_text_never_says_clean_of_what_was_not_read(tmp_path: Path) -> None:
    assert "none has to" not in run(diverged(tmp_path), "--verify", "headers").stdout


# pipes and terminals


def test_piped_output_has_no_escapes_and_is_not_wrapped(tmp_path: Path) -> None:
    for make in (healthy, diverged, broken):
        told = run(make(tmp_path / make.__name__), COLUMNS="20").stdout
        assert not CONTROL.search(told)
        assert told.endswith("\n")
        assert not told.endswith("\n\n")
        assert all(line == line.rstrip() for line in told.splitlines())
    assert max(map(len, run(tmp_path / "diverged").stdout.splitlines())) > 120


def test_a_finding_is_one_line_that_can_be_searched_for(tmp_path: Path) -> None:
    target = diverged(tmp_path)
    assert sum(line.startswith(f"{target}: TIE001 error diverged-tie: ") for line in run(target).stdout.splitlines()) == 1


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_colours_can_be_switched_off(tmp_path: Path, env: dict[str, str]) -> None:
    target = diverged(tmp_path)
    assert "\x1b" in on_terminal(target)[1]
    assert "\x1b" not in on_terminal(target, **env)[1]


def test_an_empty_no_color_is_no_request(tmp_path: Path) -> None:
    assert "\x1b" in on_terminal(diverged(tmp_path), NO_COLOR="")[1]


@pytest.mark.parametrize("width", [80, 40, 20])
@pytest.mark.parametrize("make", [healthy, diverged, broken])
def test_no_line_is_wider_than_the_terminal_unless_a_word_is(tmp_path: Path, make: Any, width: int) -> None:
    _, told = on_terminal(make(tmp_path / "m"), width=width)
    for line in told.splitlines():
        bare = re.sub("\x1b\\[[0-9;]*m", "", line)
        assert len(bare) <= width or len(bare.split()) == 1, bare


def test_a_narrow_terminal_is_told_the_same_words(tmp_path: Path) -> None:
    target = diverged(tmp_path)

    def words(text: str) -> list[str]:
        text = re.sub("\x1b\\[[0-9;]*m", "", text)
        return re.sub(r"in \d+\.\d+ s", "", text).split()

    assert words(on_terminal(target, width=40)[1]) == words(run(target).stdout)


@pytest.mark.parametrize("columns", ["0", "-5", "abc", "", "1", "99999999999999999999"])
def test_columns_of_any_value_end_in_a_report(tmp_path: Path, columns: str) -> None:
    code, told = on_terminal(diverged(tmp_path), COLUMNS=columns)
    assert code == 1
    assert "TIE001" in told


# output that cannot be written


@pytest.mark.parametrize(
    "env", [{"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1:strict"}], ids=str
)
def test_an_output_without_unicode_ends_in_a_report(tmp_path: Path, env: dict[str, str]) -> None:
    target = folder(
        tmp_path,
        {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2), "\u00e9\u4e2d\U0001f600": matrix(3)})},
    )
    told = run(target, **env)
    assert (told.returncode, told.stderr) == (1, "")
    assert "TIE001" in told.stdout
    assert document(target, **env)["verdict"] == "error"
    assert one_line(run("now\u00e9re", **env))


def shell(script: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}", sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )


def test_a_reader_that_goes_away_is_no_traceback_and_no_finding(tmp_path: Path) -> None:
    names = {f"layer.{n}.weight": matrix(n) for n in range(400)}
    target = folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), **names})})
    for options in ("", "--format json"):
        told = shell(f'"$0" -m tieaudit "$1" {options} | head -1', target)
        assert told.stderr == ""
        told = shell(f'"$0" -m tieaudit "$1" {options} | true', target)
        assert told.stderr == ""
        assert told.returncode != 1


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-"])
def test_a_closed_stream_is_no_crash(tmp_path: Path, closed: str) -> None:
    told = shell(f'"$0" -m tieaudit "$1" {closed}', healthy(tmp_path))
    assert "internal error" not in told.stderr
    assert told.returncode == (2 if closed == ">&-" else 0)  # a report that nobody could be given is no success


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_exit_2_and_no_traceback(tmp_path: Path) -> None:
    told = shell('"$0" -m tieaudit "$1" > /dev/full', healthy(tmp_path))
    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert told.stderr.count("\n") == 1


# hostile names

NAMES = {
    "escape": "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "line end": "a\nmodel: TIE001 error diverged-tie: forged",
    "carriage return": "a\rOK  model",
    "override": "\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "zero width": "lm\u200b_head.weight",
    "markup": "[bold red]x[/bold red][/x]",
    "html": "<script>alert(1)</script>&amp;",
    "lone surrogate": "\ud800x",
    "c1": "\x9b31m",
    "nul": "a\0b",
    "separators": "a\u2028b\u2029c\x85d\x0be",
    "long": "x" * 100_000,
    "format": "%s %n {0} {name} {0.__class__}",
    "spaces": "a" + " " * 300 + "b",
    "blank": " ",
    "nothing": "",
}


@pytest.mark.parametrize("place", ["tensor", "embedding", "file", "folder", "shard", "alias", "architecture", "dtype", "token"])
@pytest.mark.parametrize("case", NAMES)
def test_a_hostile_name_never_reaches_the_terminal_raw(
    tmp_path: Path, inside: Callable[..., tuple[int, str, str]], case: str, place: str
) -> None:
    name = NAMES[case]
    files = {"config.json": tied()}
    pair = {EMBED: matrix(1), HEAD: matrix(2)}
    target = tmp_path / "m"
    if place == "tensor":
        tensors = {name: matrix(3), name + "2": matrix(3), name + "3": bf16(matrix(4))}
        header = json.loads(safetensors(tensors)[8 : 8 + int.from_bytes(safetensors(tensors)[:8], "little")])
        data = b"".join((matrix(3).tobytes(), matrix(3).tobytes(), bf16(matrix(4)).data))
        files["model.safetensors"] = safetensors_file(header, data)
    elif place == "embedding":
        files["model.safetensors"] = safetensors({f"{name}.embed_tokens.weight": matrix(1), f"{name}.lm_head.weight": matrix(2)})
        files["config.json"] = config("Unknown", "unknown", tie_word_embeddings=True)
    elif place in ("file", "folder"):
        if not name.strip() or "\0" in name or len(name) > 200 or "/" in name or case == "lone surrogate":
            pytest.skip("no name of a file")
        if place == "folder":
            target = tmp_path / name
            files["model.safetensors"] = safetensors(pair)
        else:
            files[f"{name}.safetensors"] = safetensors(pair)[:-1]
    elif place == "shard":
        files["model.safetensors.index.json"] = index({EMBED: name, HEAD: "a.safetensors"})
        files["a.safetensors"] = safetensors({HEAD: matrix(1)})
    elif place == "alias":
        files["model.safetensors"] = safetensors(
            {HEAD: matrix(1)}, {EMBED: HEAD, name: HEAD} if case != "lone surrogate" else {EMBED: HEAD}
        )
    elif place == "architecture":
        files["config.json"] = config(name, name, tie_word_embeddings=True)
        files["model.safetensors"] = safetensors(pair)
    elif place == "dtype":
        files["model.safetensors"] = safetensors_file({"a": {"dtype": name, "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
    else:
        files["tokenizer.json"] = json.dumps({"added_tokens": [{"id": 99, "content": name}]}).encode()
        files["model.safetensors"] = safetensors({EMBED: matrix(1)})
    folder(target, files)
    code, told, err = inside(target)
    assert (code in (0, 1), err) == (True, "")
    assert not CONTROL.search(told.replace("\n", ""))
    assert max(map(len, told.splitlines())) < 5000
    assert not any(line.startswith("model: TIE001") for line in told.splitlines())
    _, told, _ = inside(target, "--format", "json")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(told))


@pytest.mark.parametrize("case", ["escape", "override", "lone surrogate"])
def test_a_hostile_name_never_reaches_a_real_terminal_raw(tmp_path: Path, case: str) -> None:
    pair = {f"{NAMES[case]}.embed_tokens.weight": matrix(1), f"{NAMES[case]}.lm_head.weight": matrix(1), NAMES[case]: matrix(1)}
    target = folder(tmp_path, {"model.safetensors": safetensors(pair)})
    _, told = on_terminal(target, NO_COLOR="1")
    assert not CONTROL.search(told)


# what is left behind


def snapshot(path: Path) -> dict[str, tuple[int, int, int]]:
    return {str(each.relative_to(path)): ((s := each.lstat()).st_mtime_ns, s.st_size, s.st_mode) for each in sorted(path.rglob("*"))}


@pytest.mark.parametrize("make", [diverged, broken])
def test_nothing_is_written_beside_the_target_or_where_one_is(tmp_path: Path, make: Any) -> None:
    target, here = make(tmp_path / "m"), tmp_path / "here"
    here.mkdir()
    before = snapshot(tmp_path)
    run(target, "--format", "json", cwd=here)
    run(target / "model.safetensors", cwd=here)
    assert snapshot(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_audited(tmp_path: Path) -> None:
    target = healthy(tmp_path / "m")
    for each in (*target.iterdir(), target):
        each.chmod(each.stat().st_mode & ~0o222)
    try:
        assert run(target).returncode == 0
    finally:
        target.chmod(0o755)


# what is imported


def imported(*args: str | Path) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tieaudit", *map(str, args)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    return {line.split("|")[-1].strip().split(".")[0] for line in told.stderr.splitlines() if line.startswith("import time:")}


HEAVY = {"torch", "transformers", "safetensors", "huggingface_hub", "rich", "pickle", "asyncio", "http", "ssl"}


@pytest.mark.parametrize("args", [["-h"], ["--version"], ["rules"]], ids=str)
def test_help_and_rules_import_nothing_heavy(args: list[str]) -> None:
    assert not imported(*args) & {*HEAVY, "numpy"}


@pytest.mark.parametrize("make", [healthy, copies, broken])
def test_numpy_is_not_imported_unless_values_are_compared(tmp_path: Path, make: Any) -> None:
    target = make(tmp_path)
    assert not imported(target) & {*HEAVY, "numpy"}


def test_values_that_differ_need_numpy_and_still_no_framework(tmp_path: Path) -> None:
    found = imported(diverged(tmp_path))
    assert "numpy" in found
    assert not found & {"torch", "transformers", "safetensors", "huggingface_hub", "rich"}
