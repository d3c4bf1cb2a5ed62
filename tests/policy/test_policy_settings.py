"""What a project's settings say, and what is said of settings that are not understood."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tieaudit.errors import SettingsError
from tieaudit.policy import limits
from tieaudit.policy.settings import MAX_FILE, Settings, load, understood

Run = Callable[..., tuple[int, str, str]]
EVERY = """
select = ["TIE0", "stale-flag"]
ignore = "unusual-alias"
fail-on = "warning"
min-waste = "4 KiB"
verify = "sample"
timeout = 5
allow-partial = true
allow-waivers = true
baseline = "ci/accepted.json"
max-wasted-bytes = "1.5 GB"
max-total-bytes = 4000000000
[[target]]
match = ["models/**", "org/model"]
ignore = ["diverged-tie"]
reason = "on purpose"
fail-on = "never"
"""


def test_every_key_is_taken(tmp_path: Path) -> None:
    told = understood(EVERY.encode(), str(tmp_path / "tieaudit.toml"), "tieaudit.toml")
    [table] = told.targets
    assert told == Settings(
        file="tieaudit.toml", folder=str(tmp_path), select=("TIE0", "stale-flag"), ignore=("unusual-alias",), fail_on="warning",
        min_waste=4096, verify="sample", timeout=5.0, allow_partial=True, allow_waivers=True, baseline=str(tmp_path / "ci/accepted.json"),
        max_wasted=1_500_000_000, max_total=4_000_000_000, targets=(table,),
    )  # fmt: skip
    assert (table.match, table.ignore, table.reason, table.fail_on) == (("models/**", "org/model"), {"TIE001"}, "on purpose", "never")


def test_pyproject_has_a_table_of_its_own(tmp_path: Path) -> None:
    text = b'[tool.tieaudit]\nfail-on = "note"\n[[tool.tieaudit.target]]\nmatch = "a"\n[tool.other]\nfail-on = 7\n'
    told = understood(text, str(tmp_path / "pyproject.toml"), "pyproject.toml")
    assert (told.fail_on, [table.match for table in told.targets]) == ("note", [("a",)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fail_on = 'error'", "s.toml: fail_on: is not known (did you mean fail-on? allowed: select, ignore, fail-on,"),
        ("[tool.tieaudit]\nfail-on = 'error'", "s.toml: tool: is not known (the table is not needed in this file; allowed:"),
        ("fail-on = 'eror'", "s.toml: fail-on: 'eror' is not allowed (error, warning, note or never)"),
        ("fail-on = ['error']", "s.toml: fail-on: ['error'] is not allowed (error, warning, note or never)"),
        ("select = 3", "s.toml: select: 3 is not allowed (a list of codes, prefixes such as TIE2, or names)"),
        ("select = ['TIE999']", "s.toml: select: 'TIE999' is not known (a code, a prefix such as TIE2, or a name; `tieaudit"),
        ("ignore = ['']", "s.toml: ignore: [''] is not allowed (a list of"),
        ("min-waste = -1", "s.toml: min-waste: -1 is not allowed (bytes as a whole number, or words such as '1.5 GB'"),
        ("min-waste = true", "s.toml: min-waste: True is not allowed"),
        ("min-waste = 1.5", "s.toml: min-waste: 1.5 is not allowed"),
        ("max-total-bytes = '12 apples'", "s.toml: max-total-bytes: '12 apples' is not allowed"),
        ("timeout = 0", "s.toml: timeout: 0 is not allowed (a number of seconds above 0)"),
        ("timeout = inf", "s.toml: timeout: inf is not allowed"),
        ("timeout = nan", "s.toml: timeout: nan is not allowed"),
        ("allow-partial = 'yes'", "s.toml: allow-partial: 'yes' is not allowed (true or false)"),
        ("baseline = 1", "s.toml: baseline: 1 is not allowed (a path from the file's folder)"),
        ("verify = 'all'", "s.toml: verify: 'all' is not allowed (headers, sample or full)"),
        ("target = 'a'", "s.toml: target: 'a' is not allowed (tables: [[target]])"),
        ("target = ['a']", "s.toml: target 1: is no table: write [[target]]"),
        ("[[target]]\nignore = []", "s.toml: target 1: match: is missing"),
        ("[[target]]\nmatch='a'\n[[target]]\nmatch='b'\nignore=['TIE001']", "s.toml: target 2: reason: is missing: say why"),
        ("[[target]]\nmatch='a'\nignore=['TIE001']\nreason=' '", "s.toml: target 1: reason: ' ' is not allowed"),
        ("[[target]]\nmatch='a'\nverify='full'", "s.toml: target 1: verify: is not known (allowed: match, ignore, reason, fail-on,"),
        ("[[target]]\nmatch='a'\nignore=['nothing']\nreason='x'", "s.toml: target 1: ignore: 'nothing' is not known"),
        ("a =", "s.toml: is not TOML: "),
        ("\x00", "s.toml: is not TOML: "),
        ("x = " + "[" * 5000, "s.toml: is not TOML: "),
        ("x = " + "9" * 5000, "s.toml: is not TOML: "),
        ('"\\u001b[31m\\u202e" = 1', "s.toml: \\x1b[31m\\u202e: is not known"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_one_error_with_file_key_and_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        load(str(path), "s.toml")
    assert str(error.value).startswith(words), str(error.value)
    assert "\x1b" not in str(error.value)


def test_bytes_that_are_no_text_and_files_that_are_none(tmp_path: Path) -> None:
    cases = {"latin": b"# \xe9", "big": b"#" * (MAX_FILE + 1)}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "fifo")  # must not wait for a writer
    for name, words in {"latin": "is not TOML", "big": "too many for settings", "fifo": "not a regular file", "no": "No such file",
                        ".": "Is a directory", "a\0b": "cannot be read"}.items():  # fmt: skip
        with pytest.raises(SettingsError, match=words):
            load(str(tmp_path / name) if "\0" not in name else name, name)


@pytest.mark.parametrize(
    ("words", "nbytes"),
    [("0", 0), ("4096", 4096), ("4096 B", 4096), ("1.5 GB", 1_500_000_000), ("1.5GiB", 1_610_612_736), ("200 kb", 200_000), ("2K", 2000),
     ("1 TiB", 2**40), ("0.1 MB", 100_000), ("0.3 kB", 300), ("", None), ("GB", None), ("1,5 GB", None), ("-1", None), ("1e3", None),
     ("1 PB", None), ("iB", None), ("1 iB", None), ("٣", None), ("9" * 21, None), ("1.5 GB x", None), ("0x10", None)],
)  # fmt: skip
def test_sizes_as_people_write_them(words: str, nbytes: int | None) -> None:
    assert limits.parse(words) == nbytes


@pytest.mark.parametrize(
    ("pattern", "held", "not_held"),
    [
        ("models/*", ["models/a"], ["models/a/b", "models", "x/models/a"]),
        ("models/**", ["models/a", "models/a/b"], ["models", "model/a"]),
        ("**/old-?", ["old-1", "a/b/old-2"], ["old-12", "a/old-1/b"]),
        ("org/model", ["org/model"], ["org/model2", "Org/model"]),
        ("./models/a/", ["models/a"], []),
        ("a.b[1]", ["a.b[1]"], ["axb1", "a.b1"]),
    ],
)
def test_patterns_of_targets(tmp_path: Path, pattern: str, held: list[str], not_held: list[str]) -> None:
    [table] = understood(f"[[target]]\nmatch = '{pattern}'".encode(), str(tmp_path / "s.toml"), "s.toml").targets
    assert [key for key in held + not_held if table.holds_for(key)] == held


# through the command line


def test_options_go_before_the_table_of_the_target_and_that_before_the_rest(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text('fail-on = "warning"\n[[target]]\nmatch = "models/tw*"\nfail-on = "never"\n')
    assert run("models/twice").code == 0
    assert run("models/twice", "--fail-on", "note").code == 1
    assert run("models/twice", "--no-config").code == 0
    (project / "tieaudit.toml").write_text('fail-on = "warning"\n')
    assert run("models/twice").code == 1
    assert run("models/twice", "--fail-on", "error").code == 0


def test_settings_reach_the_audit(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text('ignore = ["duplicate-tie"]\n')
    told = run("models/twice", "--fail-on", "note")
    assert told.code == 0
    assert told.out.startswith("NOTHING FOUND  models/twice   by the rules that were asked for")
    assert run("models/twice", "--fail-on", "note", "--ignore", "stale-flag").code == 1  # the option, not both
    (project / "tieaudit.toml").write_text("min-waste = '1 MB'\nverify = 'headers'\n")
    assert "--verify headers reads none" in run("models/twice").out
    assert "--verify headers reads none" not in run("models/twice", "--verify", "full").out


def test_findings_that_a_table_ignores_are_shown_with_the_reason_and_do_not_count(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text(
        '[[target]]\nmatch = "models/apart"\nignore = ["TIE001"]\nreason = "trained apart \\u001b[31m on purpose"\n'
    )
    told = run("models/apart")
    assert told.code == 0
    assert "TIE001 error diverged-tie" in told.out
    assert "    accepted      by tieaudit.toml: trained apart \\x1b[31m on purpose\n" in told.out
    assert told.out.endswith("  gate     passes; 1 finding accepted\n")
    assert run("models/apart", "--no-config").code == 1


def test_a_later_table_goes_before_an_earlier_one(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text(
        '[[target]]\nmatch = "models/*"\nfail-on = "never"\n[[target]]\nmatch = "models/twice"\nfail-on = "warning"\n'
    )
    assert run("models/apart", "models/twice").code == 1
    assert run("models/apart").code == 0


def test_settings_that_are_wrong_stop_everything(project: Path, run: Run) -> None:
    (project / "pyproject.toml").write_text('[tool.tieaudit]\nfail-on = "never"\nselct = []\n')
    told = run("models/twice", "--format", "json")
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("tieaudit: pyproject.toml: selct: is not known (did you mean select? allowed: select, ignore, fail-on")
    assert told.err.count("\n") == 1


def test_config_and_no_config_exclude_each_other(project: Path, run: Run) -> None:
    (project / "s.toml").write_text("")
    told = run("models/twice", "--config", "s.toml", "--no-config")
    assert (told.code, told.out) == (2, "")
    assert "exclude each other" in told.err


def test_verbose_says_which_settings_hold_on_stderr(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text('ignore = ["TIE2"]\n')
    told = run("models/twice", "-v", "--format", "json")
    assert told.out.startswith("{")
    lines = told.err.splitlines()
    assert lines[0] == "settings     tieaudit.toml"
    assert f"file         model.safetensors: {(project / 'models/twice/model.safetensors').stat().st_size:,} bytes" in lines
    assert "edition      model.safetensors: weights" in lines
    assert any(line.startswith("read         ") and " reads, " in line for line in lines)
    assert any(line.startswith("not run      TIE201 duplicate-tensor, TIE202 ") and "by the settings" in line for line in lines)
    assert any(line.startswith("not run      TIE801, TIE802, ") and "(--load)" in line for line in lines)
    assert run("models/twice", "-v", "--no-config").err.startswith("settings     none asked for\n")
    (project / "tieaudit.toml").unlink()
    assert run("models/twice", "-v").err.startswith(f"settings     none in {project}\n")
