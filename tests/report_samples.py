"""This file makes reports for the tests of reporters: every fixture and case audited, and one whose every name was chosen to do harm."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tieaudit import audit
from tieaudit.kinds import Evidence
from tieaudit.report import Cost, Finding, Report, Severity, Skip, TensorPlace, Tie, Totals
from tieaudit.reporters.several import Outcome

ROOT = Path(__file__).parent.parent
FOLDERS = sorted([*(ROOT / "fixtures").glob("*/*/"), *(ROOT / "tests" / "cases").iterdir()])
SCHEMAS = ROOT / "tests" / "schemas"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")

HOSTILE = {
    "html": "<script>alert(1)</script>&amp;<img src=x onerror=y>",
    "markup": "[red]x[/red] **b** _i_ `code` ~~s~~ $x$ {0} {{1}}",
    "link": "[click](https://example.invalid/x) https://example.invalid www.example.invalid a@example.invalid",
    "image": "![x](http://example.invalid/x.png)",
    "mention": "@someone #1 GH-2 org/repo#3",
    "escape": "\x1b]8;;http://example.invalid\x07link\x1b]8;;\x07\x1b[31m",
    "lines": "a\n::error::forged\r\n::set-output name=x::y\n# heading\n| a | b |\n",
    "cell": "a|b||c\\|d\\",
    "ticks": "`a`` b```",
    "formula": '=HYPERLINK("http://example.invalid")',
    "plus": "+1+1",
    "at": "@SUM(1)",
    "minus": "-2+3",
    "tab": "\t=1",
    "quotes": "a\"b'c,d;e",
    "percent": "%0A%3A%25 100%",
    "colon": "a:b,c=d::e",
    "cdata": "]]>--><!-- &#0;",
    "surrogate": "\ud800x\udfff",
    "nul": "a\0b\ufffe",
    "override": "\u202egnp.exe\u2066",
    "unicode": "é中😀",
    "spaces": "  a   b  ",
    "blank": " ",
    "long": "x" * 300_000,
}


@cache
def reports() -> tuple[Report, ...]:
    """Of all fixtures and cases."""
    return tuple(map(audit, FOLDERS))


@cache
def outcomes() -> tuple[Outcome, ...]:
    """The same as outcomes of one call, and a target without an answer."""
    return (
        *(Outcome(target=report.target, report=report) for report in reports()),
        Outcome(target="nowhere", error="nowhere: is not there"),
    )


def nasty(word: str, target: str = "model") -> Report:
    """A report in which every text that a file could have brought is `word`."""
    place = TensorPlace(word, word, 8, 16)
    return Report(
        target=target,
        formats=("safetensors",),
        files=((word, 24),),
        totals=Totals(tensors=1, parameters_stored=4, parameters_unique=4, nbytes_stored=16),
        ties=(
            Tie(
                canonical=word, aliases=(word, f"{word}2"), role="embedding-head", claim="tied", claim_source=f"tied: {word}",
                relation="equal", evidence=Evidence.PROVED, stored=(word,), shape=(2, 2), dtype="F32", nbytes=16, summary=f"as {word}",
            ),
        ),
        findings=tuple(
            Finding(
                code=code, rule=rule, severity=severity, message=f"{word} differs from {word}", tensors=(place,), wasted_bytes=16,
                cause=f"cause {word}", fix=f"fix {word}",
            )
            for code, rule, severity in (
                ("TIE001", "diverged-tie", Severity.ERROR), ("TIE002", "duplicate-tie", Severity.WARNING),
                ("TIE009", "untied-but-equal", Severity.NOTE),
            )
        ),
        skipped=(Skip(word, f"because {word}"),),
        not_compared=(Skip(word, f"left {word}"),),
        cost=Cost(seconds=0.5),
        reason=f"reason {word}",
        ends=((word, "embedding"),),
    )  # fmt: skip
