"""Accepted findings: written, compared, grown worse, gone, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, untied
from tieaudit.errors import SettingsError
from tieaudit.fingerprints import fingerprint
from tieaudit.policy import baseline
from tieaudit.policy.baseline import Entry, compare, load, renewed, write
from tieaudit.report import Finding, Report, Severity, Skip, TensorPlace

Run = Callable[..., tuple[int, str, str]]


def finding(rule: str = "duplicate-tie", severity: Severity = Severity.WARNING, waste: int = 1000, name: str = "a") -> Finding:
    return Finding(
        code="TIE002", rule=rule, severity=severity, message="words", tensors=(TensorPlace(name, "f", 8, 4096),), wasted_bytes=waste
    )


def report(*findings: Finding, **more: Any) -> Report:
    return Report(target="m", findings=findings, **more)


def accepted(*findings: Finding, target: str = "m") -> tuple[Entry, ...]:
    return renewed((), report(*findings), target)


def document(path: Path) -> list[dict[str, Any]]:
    told = json.loads(path.read_text())
    assert told.keys() == {"version", "findings"}
    assert told["version"] == 1
    return list(told["findings"])


# compare


def test_the_same_finding_is_accepted_with_other_words_and_offsets() -> None:
    moved = replace(finding(), message="other words", tensors=(TensorPlace("a", "f", 99999, 4100),), cause="c", fix="f")
    told = compare(report(moved), "m", accepted(finding()))
    assert (list(told.accepted), list(told.worse), told.gone) == ([0], [], ())


@pytest.mark.parametrize(
    ("now", "is_worse"),
    [
        (finding(waste=1000), False),
        (finding(waste=1100), False),
        (finding(waste=1101), True),
        (finding(waste=0), False),
        (finding(severity=Severity.ERROR), True),
        (finding(severity=Severity.NOTE), False),
    ],
)
def test_a_higher_severity_or_a_tenth_more_waste_is_worse(now: Finding, *, is_worse: bool) -> None:
    told = compare(report(now), "m", accepted(finding()))
    assert (list(told.worse), list(told.accepted)) == (([0], []) if is_worse else ([], [0]))
    assert told.gone == ()


def test_waste_where_there_was_none_is_worse() -> None:
    assert list(compare(report(finding(waste=1)), "m", accepted(finding(waste=0))).worse) == [0]


@pytest.mark.parametrize("other", [finding("cast-copy"), finding(name="b"), replace(finding(), tensors=(TensorPlace("a", "g", 8, 4096),)),
                                   replace(finding(), tensors=(TensorPlace("a", "f", 8, 8192),))])  # fmt: skip
def test_another_rule_tensor_file_or_size_is_new(other: Finding) -> None:
    told = compare(report(other), "m", accepted(finding()))
    assert (told.accepted, told.worse, len(told.gone)) == ({}, {}, 1)


def test_entries_of_other_targets_say_nothing() -> None:
    told = compare(report(finding()), "m", accepted(finding(), target="n"))
    assert (told.accepted, told.gone) == ({}, ())


def test_findings_of_one_fingerprint_are_counted() -> None:
    gaps = [
        Finding(
            code="TIE302", rule="dead-bytes", severity=Severity.WARNING, message=f"f.bin: {n} bytes belong to no tensor", wasted_bytes=n
        )
        for n in (900, 500)
    ]
    assert fingerprint(gaps[0], "m") == fingerprint(gaps[1], "m")
    one = compare(report(*gaps), "m", accepted(gaps[0]))
    assert (list(one.accepted), list(one.worse), one.gone) == ([0], [], ())  # the second is new
    both = compare(report(*gaps), "m", accepted(*gaps))
    assert (list(both.accepted), both.gone) == ([0, 1], ())


def test_what_was_not_looked_at_is_not_gone() -> None:
    entries = accepted(finding())
    assert compare(report(), "m", entries).gone == entries
    assert compare(report(), "m", entries, frozenset({"cast-copy"})).gone == ()
    assert compare(report(skipped=(Skip("a", "timeout"),)), "m", entries).gone == ()


def test_renewing_keeps_reasons_other_targets_and_what_was_not_looked_at() -> None:
    old = (*(replace(entry, reason="known") for entry in accepted(finding(), finding("cast-copy"))), *accepted(finding(), target="n"))
    new = renewed(old, report(finding(waste=5000), finding(name="b")), "m", frozenset({"duplicate-tie"}))
    assert [(entry.target, entry.rule, entry.wasted_bytes, entry.tensors, entry.reason) for entry in new] == [
        ("m", "cast-copy", 1000, ("a",), "known"),
        ("m", "duplicate-tie", 5000, ("a",), "known"),
        ("m", "duplicate-tie", 1000, ("b",), ""),
        ("n", "duplicate-tie", 1000, ("a",), ""),
    ]
    assert [entry.rule for entry in renewed(old, report(), "m") if entry.target == "m"] == []


# the file


def entry(**wrong: Any) -> str:
    fields = {"target": "m", "fingerprint": "1", "rule": "r", "severity": "note", "wasted_bytes": 0}
    return json.dumps({"version": 1, "findings": [fields | wrong]})


def test_the_file_is_the_same_whatever_the_order(tmp_path: Path) -> None:
    entries = accepted(finding(), finding("cast-copy"), finding(name="\udc80\n<b>"))
    write(str(tmp_path / "a"), "a", entries)
    write(str(tmp_path / "b"), "b", entries[::-1])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load(str(tmp_path / "a"), "a") == entries
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_huge_finding_makes_a_short_entry(tmp_path: Path) -> None:
    many = replace(finding(), tensors=tuple(TensorPlace("x" * 100_000 + str(n), "f", 0, 1) for n in range(100)))
    write(str(tmp_path / "a"), "a", accepted(many))
    assert (tmp_path / "a").stat().st_size < 20_000
    assert list(compare(report(many), "m", load(str(tmp_path / "a"), "a")).accepted) == [0]


def test_a_link_and_the_mode_of_the_file_stay(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write(str(tmp_path / "link"), "link", ())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert document(tmp_path / "real") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "b: is not JSON"),
        ("[]", "b: is not a baseline (write it with --write-baseline)"),
        ('{"findings": []}', "b: is not a baseline"),
        ('{"version": 1, "findings": {}}', "b: is not a baseline"),
        ('{"version": 2, "findings": []}', "b: version: 2 is not known (1 is)"),
        ('{"version": 1, "findings": [{}]}', "b: finding 1: is not an entry (target, fingerprint, rule, severity, wasted_bytes;"),
        ('{"version": 1, "findings": [7]}', "b: finding 1: is not an entry"),
        ("[" * 100_000, "b: is not JSON"),
        (entry(fingerprint=1), "b: finding 1: is not an entry"),
        (entry(severity="bad"), "b: finding 1: is not an entry"),
        (entry(wasted_bytes=True), "b: finding 1: is not an entry"),
        (entry(tensors=[1]), "b: finding 1: is not an entry"),
        (entry(reason=None), "b: finding 1: is not an entry"),
    ],
)  # fmt: skip
def test_files_that_are_no_baseline(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b").write_text(text)
    with pytest.raises(SettingsError) as error:
        load(str(tmp_path / "b"), "b")
    assert str(error.value).startswith(words)


# through the command line


def test_accept_then_fail_only_on_what_is_new(project: Path, run: Run) -> None:
    assert run("models/twice", "models/apart", "--fail-on", "warning").code == 1
    told = run("models/twice", "models/apart", "--fail-on", "warning", "--write-baseline", "ci.json")
    assert told.code == 0
    assert told.err == "tieaudit: ci.json: 2 findings accepted; give each a reason there\n"
    assert [(entry["target"], entry["rule"], entry["severity"]) for entry in document(project / "ci.json")] == [
        ("models/apart", "diverged-tie", "error"), ("models/twice", "duplicate-tie", "warning")]  # fmt: skip
    again = run("models/twice", "models/apart", "--fail-on", "warning", "--baseline", "ci.json")
    assert again.code == 0
    assert again.out.count("    accepted      in ci.json\n") == 2
    assert again.out.count("  gate     passes; 1 finding accepted\n") == 2
    folder(project / "models" / "twice", {"model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(3)})})
    new = run("models/twice", "--fail-on", "warning", "--baseline", "ci.json")
    assert new.code == 1
    assert "    new           not in ci.json\n" in new.out
    assert "  stale    duplicate-tie (model.embed_tokens.weight, lm_head.weight) of ci.json is not found any more; " in new.out
    assert new.out.endswith("  gate     fails: 1 new error; 0 findings accepted\n")


def test_the_file_says_the_same_from_every_folder(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "ci").mkdir()
    run("models/twice", "--write-baseline", "ci/b.json")
    assert [entry["target"] for entry in document(project / "ci" / "b.json")] == ["../models/twice"]
    monkeypatch.chdir(project / "models")
    for target in ("twice", "./twice/", str(project / "models" / "twice"), "../models/twice"):
        assert run(target, "--fail-on", "warning", "--baseline", "../ci/b.json").code == 0, target
    # a file of the folder is another target
    assert run("twice/model.safetensors", "--fail-on", "warning", "--baseline", "../ci/b.json").code == 1


def test_a_reason_is_kept_and_shown(project: Path, run: Run) -> None:
    run("models/twice", "--write-baseline", "b.json")
    told = json.loads((project / "b.json").read_text())
    told["findings"][0]["reason"] = "kept for \x1b[31m old readers"
    (project / "b.json").write_text(json.dumps(told))
    assert "accepted      in b.json: kept for \\x1b[31m old readers\n" in run("models/twice", "--baseline", "b.json").out
    run("models/apart", "--write-baseline", "b.json")
    run("models/twice", "--write-baseline", "b.json")
    assert [(entry["target"], entry["reason"]) for entry in document(project / "b.json")] == [
        ("models/apart", ""), ("models/twice", "kept for \x1b[31m old readers")]  # fmt: skip


def test_the_settings_name_the_file_and_it_may_not_be_there_only_when_it_is_written(project: Path, run: Run) -> None:
    (project / "tieaudit.toml").write_text('baseline = "b.json"\nfail-on = "warning"\n')
    told = run("models/twice")
    assert (told.code, told.out) == (2, "")
    assert told.err == "tieaudit: b.json: cannot be read: No such file or directory\n"
    assert run("models/twice", "--write-baseline", "b.json").code == 0
    assert run("models/twice").code == 0


def test_what_is_no_baseline_is_not_written_over(project: Path, run: Run) -> None:
    weights = project / "models" / "twice" / "model.safetensors"
    before = weights.read_bytes()
    for name in (weights, project / "models" / "twice" / "config.json"):
        told = run("models/twice", "--write-baseline", name)
        assert told.code == 2
        assert "is not" in told.err
    assert weights.read_bytes() == before
    assert run("models/twice", "--write-baseline", "no/such/folder.json").code == 2


def test_limits_and_what_was_not_checked_are_not_accepted(project: Path, run: Run) -> None:
    assert run("models/twice", "--write-baseline", "b.json", "--max-waste", "10").code == 1
    told = run("models/twice", "./models/none", "--write-baseline", "c.json")
    assert told.code == 2
    assert [entry["target"] for entry in document(project / "c.json")] == ["models/twice"]


def test_a_run_of_some_rules_drops_no_entry_of_the_others(project: Path, run: Run) -> None:
    run("models/apart", "--write-baseline", "b.json")
    told = run("models/apart", "--select", "TIE2", "--baseline", "b.json")
    assert "stale" not in told.out
    assert "stale" not in run("models/apart", "--verify", "headers", "--baseline", "b.json").out
    run("models/apart", "--select", "TIE2", "--write-baseline", "b.json")
    assert len(document(project / "b.json")) == 1


def test_json_stays_as_it_is_and_stderr_says_why(project: Path, run: Run) -> None:
    plain = json.loads(run("models/apart", "--format", "json").out)
    run("models/apart", "--write-baseline", "b.json")
    told = run("models/apart", "--format", "json", "--baseline", "b.json")
    assert told.code == 0
    assert {**json.loads(told.out), "cost": None} == {**plain, "cost": None}
    assert told.err == "tieaudit: models/apart: gate: passes; 1 finding accepted\n"


def test_new_findings_are_not_hidden_behind_accepted_ones(project: Path, run: Run) -> None:
    """Forty findings are shown; a warning that is new stands before forty errors that are accepted."""
    tensors = {f"{letter}{n}.weight": matrix(n + 1) for n in range(45) for letter in "ab"}
    folder(project / "many", {"config.json": untied(), "model.safetensors": safetensors({EMBED: matrix(99), HEAD: matrix(98), **tensors})})
    run("many", "--write-baseline", "b.json")
    new = {**tensors, "zz1.weight": matrix(77), "zz2.weight": matrix(77)}
    folder(project / "many", {"model.safetensors": safetensors({EMBED: matrix(99), HEAD: matrix(98), **new})})
    told = run("many", "--fail-on", "warning", "--baseline", "b.json")
    assert told.code == 1
    first = next(line for line in told.out.splitlines() if line.startswith("many: TIE"))
    assert "zz" in first
    assert told.out.endswith("  gate     fails: 1 new warning; 45 findings accepted\n")
    assert baseline.CONTRACT == 1
