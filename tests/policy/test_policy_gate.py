"""Limits, brief and coloured output: what a call in CI ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tieaudit.policy.limits import Limit, Limits, passed
from tieaudit.policy.verdict import Policy, judge
from tieaudit.report import Finding, Report, Severity, Skip, Totals

Run = Callable[..., tuple[int, str, str]]
REPORT = Report(target="m", totals=Totals(nbytes_stored=2_000_000, nbytes_wasted=1500))


def limit(nbytes: int) -> Limit:
    return Limit(nbytes=nbytes, source="--max")


def test_a_limit_is_passed_by_the_first_byte_above_it() -> None:
    assert passed(REPORT, Limits()) == ()
    assert passed(REPORT, Limits(wasted=limit(1500), total=limit(2_000_000))) == ()
    assert passed(REPORT, Limits(wasted=limit(1499), total=limit(0))) == (
        "1.50 kB wasted (1,500 bytes), 1.50 kB allowed (1,499; --max)",
        "2.00 MB stored (2,000,000 bytes), 0 B allowed (0; --max)",
    )


def finding(severity: Severity) -> Finding:
    return Finding(code="TIE001", rule="diverged-tie", severity=severity, message="m")


@pytest.mark.parametrize(
    ("severity", "fail_on", "skipped", "allow_partial", "limited", "code"),
    [
        (None, "error", False, False, False, 0),
        ("warning", "error", False, False, False, 0),
        ("error", "error", False, False, False, 1),
        ("error", "never", False, False, False, 0),
        ("note", "note", False, False, False, 1),
        ("error", "error", True, False, False, 1),
        (None, "error", True, False, False, 2),
        ("error", "never", True, False, False, 2),
        (None, "error", True, True, False, 0),
        (None, "never", False, False, True, 1),  # a limit is asked for by itself
        (None, "error", True, False, True, 1),
    ],
)
def test_exit_codes(severity: str | None, fail_on: str, code: int, *, skipped: bool, allow_partial: bool, limited: bool) -> None:
    report = Report(
        target="m",
        totals=REPORT.totals,
        findings=(finding(Severity(severity)),) if severity else (),
        skipped=(Skip("a", "b"),) if skipped else (),
    )
    policy = Policy(fail_on=fail_on, allow_partial=allow_partial, limits=Limits(total=limit(1)) if limited else Limits())
    assert judge(report, policy).code == code


def test_without_a_policy_nothing_is_said() -> None:
    verdict = judge(Report(target="m", findings=(finding(Severity.ERROR),)), Policy())
    assert (verdict.code, verdict.failing, verdict.remarks, verdict.lines) == (1, (0,), {}, ())


# through the command line


def test_limits_as_options_and_in_the_settings(project: Path, run: Run) -> None:
    told = run("models/twice", "--max-waste", "1023")
    assert told.code == 1
    assert told.out.endswith("  limit    1.02 kB wasted (1,024 bytes), 1.02 kB allowed (1,023; --max-waste)\n")
    assert run("models/twice", "--max-waste", "1 KiB", "--max-size", "2KiB").code == 0
    (project / "tieaudit.toml").write_text('max-total-bytes = 100\n[[target]]\nmatch = "models/apart"\nmax-total-bytes = "1 GB"\n')
    told = run("models/twice")
    assert told.code == 1
    assert "  limit    2.05 kB stored (2,048 bytes), 100 B allowed (100; max-total-bytes in tieaudit.toml)\n" in told.out
    assert "limit" not in run("models/apart").out
    assert run("models/twice", "--max-size", "1 GB").code == 0
    wrong = run("models/twice", "--max-size", "big")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'big' is not a size" in wrong.err


def test_a_limit_in_json_is_the_exit_code_and_a_line_on_stderr(project: Path, run: Run) -> None:
    plain = run("models/twice", "--format", "json")
    told = run("models/twice", "--format", "json", "--max-waste", "0", "--quiet")
    assert (plain.code, told.code) == (0, 1)
    assert {**json.loads(told.out), "cost": 0} == {**json.loads(plain.out), "cost": 0}
    assert told.err == "tieaudit: models/twice: limit: 1.02 kB wasted (1,024 bytes), 0 B allowed (0; --max-waste)\n"


def test_quiet_is_silent_about_what_passes_and_brief_about_what_fails(project: Path, run: Run) -> None:
    assert run("models/twice", "-q") == (0, "", "")
    told = run("models/twice", "models/apart", "-q")
    assert told.code == 1
    [line] = told.out.splitlines()
    assert line.startswith("models/apart: TIE001 error diverged-tie: ")
    assert told.err == ""
    [first, second] = run("models/twice", "-q", "--fail-on", "warning", "--max-waste", "0").out.splitlines()
    assert first.startswith("models/twice: TIE002 warning duplicate-tie: ")
    assert second == "models/twice: limit: 1.02 kB wasted (1,024 bytes), 0 B allowed (0; --max-waste)"
    gone = run("./models/none", "models/twice", "-q")
    assert (gone.code, gone.out.count("\n"), gone.err) == (2, 1, "")
    assert gone.out.startswith("NO ANSWER  ./models/none: no such file or folder")
    one = run("./models/none", "-q")
    assert (one.code, one.out) == (2, "")
    assert one.err.startswith("tieaudit: ./models/none: no such file")


@pytest.mark.parametrize(
    ("option", "variables", "coloured"),
    [
        ((), {}, False),
        (("--color", "always"), {}, True),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": ""}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
        (("--color", "auto"), {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_when_colours_are_used(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], variables: dict[str, str], *, coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = run("models/apart", *option)
    assert told.out.startswith("\x1b[31m\x1b[1mERROR\x1b[0m" if coloured else "ERROR")
    assert run("models/apart", "-q", *option).out.startswith("models/apart: \x1b[31m" if coloured else "models/apart: TIE001")


# sRGB of the palettes that terminals come with (xterm, VS Code, GNOME), for dark and light grounds
PALETTES = {
    "xterm": {"red": (205, 0, 0), "yellow": (205, 205, 0), "cyan": (0, 205, 205)},
    "vscode": {"red": (205, 49, 49), "yellow": (229, 229, 16), "cyan": (17, 168, 205)},
    "gnome": {"red": (192, 28, 40), "yellow": (162, 115, 76), "cyan": (42, 161, 179)},
}
# Machado, Oliveira and Fernandes 2009, severity 1: what people without one kind of cone see, in linear RGB
SEEN = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(colour: tuple[int, int, int], eye: str) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of an sRGB colour as such an eye sees it."""
    linear = [value / 255 / 12.92 if value / 255 <= 0.04045 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour]
    linear = [min(1.0, max(0.0, sum(k * value for k, value in zip(row, linear, strict=True)))) for row in SEEN[eye]]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(k * value for k, value in zip(row, linear, strict=True)) / white
           for row, white in zip(to_xyz, (0.9505, 1.0, 1.089), strict=True)]  # fmt: skip
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("eye", SEEN)
def test_the_colours_of_verdicts_are_told_apart_by_every_eye(palette: str, eye: str) -> None:
    from tieaudit.reporters.terminal import _COLOURS

    used = sorted(set(_COLOURS.values()))
    assert set(used) <= set(PALETTES[palette])
    for at, first in enumerate(used):
        for second in used[at + 1 :]:
            one, other = lab(PALETTES[palette][first], eye), lab(PALETTES[palette][second], eye)
            distance = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
            assert distance > 11, (first, second, distance)  # 2.3 is just noticeable, 11 is seen at a glance


def test_a_verdict_that_fails_and_one_that_passes_never_share_a_colour() -> None:
    from tieaudit.reporters.terminal import _COLOURS

    assert _COLOURS["ok"] not in {_COLOURS["error"], _COLOURS["warning"], _COLOURS["incomplete"]}
