"""Markdown: parsed by another library it is what was meant, and no name becomes markup, a link or a mention."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from report_samples import FOLDERS, HOSTILE, RAW, ROOT, nasty, outcomes, reports
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.report import Skip
from tieaudit.reporters import markdown
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome
from tieaudit.text import printable, printable_words

BLOCKS = "heading paragraph bullet_list list_item table thead tbody tr th td strong"
OURS = {f"{name}_{end}" for name in BLOCKS.split() for end in ("open", "close")} | set(
    "inline text code_inline html_inline softbreak".split()
)


def tokens(told: str) -> list[Token]:
    """Of GitHub's dialect with HTML on; only marks that are ours, and of HTML only the empty comment."""
    flat = [
        inner
        for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(told)
        for inner in (token, *(token.children or ()))
    ]
    assert {token.type for token in flat} <= OURS
    assert {token.content for token in flat if token.type == "html_inline"} <= {"<!-- -->"}
    for token in flat:
        if token.type == "inline":
            for child in token.children or ():
                if child.type == "text":
                    # what GitHub makes of text after it is parsed
                    assert not re.search(r"(?<!\w)@\w", child.content)
                    assert not re.search(r"(?i)(?<!\w)(#|gh-)\d", child.content)
    # and while it parses: from the source
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", told)
    assert not re.search(r"https?://|www\.", outside)
    return flat


def cells(flat: list[Token]) -> list[int]:
    rows, count = [], 0
    for token in flat:
        count = 0 if token.type == "tr_open" else count + (token.type in ("td_open", "th_open"))
        if token.type == "tr_close":
            rows.append(count)
    return rows


@pytest.mark.parametrize("index", range(len(FOLDERS)), ids=[str(path.relative_to(ROOT)) for path in FOLDERS])
def test_every_fixture_is_what_was_meant(index: int) -> None:
    report = reports()[index]
    flat = tokens(markdown.render(report))
    assert sum(token.type == "heading_open" for token in flat) == 1
    assert sum(token.type == "tr_open" for token in flat) == (1 + min(12, len(report.ties)) if report.ties else 0)
    assert set(cells(flat)) <= {5}
    bold = [flat[at + 1].content for at, token in enumerate(flat) if token.type == "strong_open"]
    assert bold == [f"{finding.code} {finding.rule}" for finding in report.findings]


def test_a_section_per_target_and_a_table() -> None:
    told = markdown.render_several(outcomes())
    flat = tokens(told)
    assert sum(token.type == "heading_open" for token in flat) == 1 + len(outcomes())
    assert cells(flat)[: 1 + len(outcomes())] == [7] * (1 + len(outcomes()))
    assert "| `nowhere` | **no answer** | | | | | |" in told
    assert "### NO ANSWER `nowhere`\n\nnowhere: is not there\n" in told


def test_a_report_in_full() -> None:
    report = replace(nasty("w_x", target="a/m"), findings=nasty("w_x").findings[:1])
    assert (
        markdown.render(report)
        == """## tieaudit: ERROR `a/m`

the config ties two names, but the file holds two different matrices

| tie | matrix | claim | stored | saves |
|---|---|---|---|--:|
| `w_x` and `w_x`, `w_x2` (alias, not stored) | 2 × 2 F32, 16 B | tied: w_x | as w_x (proved) |  |

- **TIE001 diverged-tie** (error): w_x differs from w_x
  - likely cause: cause w_x
  - what to do: fix w_x

- not checked: `w_x`: because w_x

- not compared: `w_x`: left w_x

1 tensor in 1 file · 4 parameters · 16 B stored, 0 B wasted · read 0 B in 0.50 s
"""
    )


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_stay_names(case: str) -> None:
    word = HOSTILE[case]
    plain = [token.type for token in tokens(markdown.render(nasty("w")))]
    for report in (nasty(word), nasty("w", target=word)):
        told = markdown.render(report)
        flat = tokens(told)
        assert not RAW.search(told)
        # the same marks in the same order as with a harmless name
        kept = [token.type for token in flat if token.type not in ("text", "html_inline")]
        assert kept == [kind for kind in plain if kind not in ("text", "html_inline")]
        assert set(cells(flat)) == {5}
        assert len(told) < 20_000
    shown = printable(word).replace("\\|", "\\|")
    codes = [token.content for token in tokens(markdown.render(nasty(word))) if token.type == "code_inline"]
    assert codes[1].strip() == shown.strip()
    # a reader sees what a terminal would show, sign by sign
    sentence = printable_words(f"{word} differs from {word}")
    flat = tokens(markdown.render(nasty(word)))
    start = next(at for at, token in enumerate(flat) if token.type == "bullet_list_open")
    inline = next(token for token in flat[start:] if token.type == "inline")
    seen = "".join(child.content for child in inline.children or () if child.type == "text")
    assert seen == f"TIE001 diverged-tie (error): {sentence}".rstrip()
    several = tokens(markdown.render_several([Outcome(target=word, report=nasty(word, target=word)), Outcome(target=word, error=word)]))
    assert cells(several)[:3] == [7, 7, 7]


def test_much_is_cut_and_counted() -> None:
    report = nasty("w")
    told = markdown.render(replace(report, findings=report.findings[:1] * 45, skipped=(Skip("s", "r"),) * 12, ties=report.ties * 14))
    assert told.count("TIE001") == 40
    assert "- and 5 more findings\n" in told
    assert "- not checked: and 2 more\n" in told
    assert "and 2 more ties\n" in told
    many = replace(nasty("y" * 199), findings=report.findings * 13)
    told = markdown.render_several([Outcome(target="m", report=replace(many, findings=nasty("y" * 199).findings * 13))] * 60)
    assert len(told.encode()) < 1024 * 1024
    assert re.search(r"\nand \d+ more sections, left out: the summary would be too long\n$", told)


def test_what_is_accepted_comes_last_with_its_reason() -> None:
    verdict = Verdict(
        code=0, remarks={0: (Remark("accepted", "in b.json: *known*", accepts=True),)}, lines=(("gate", "passes; 1 accepted"),)
    )
    told = markdown.render(nasty("w"), Settings(verdicts=(verdict,)))
    assert (
        told.index("TIE009")
        < told.index("TIE001")
        < told.index("  - accepted: in b.json: \\*known\\*\n")
        < told.index("- gate: passes; 1 accepted\n")
    )
