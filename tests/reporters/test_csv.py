"""CSV: read back by the csv module it is one row per target, and a spreadsheet runs nothing of it."""

from __future__ import annotations

import csv as csvlib
import io
from pathlib import Path

import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from report_samples import HOSTILE, RAW, nasty, outcomes, reports
from tieaudit import audit
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.report import Severity
from tieaudit.reporters import csv
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome


def rows(told: str) -> list[dict[str, str]]:
    found = list(csvlib.reader(io.StringIO(told, newline=""), strict=True))
    assert tuple(found[0]) == csv.COLUMNS
    assert {len(row) for row in found} == {len(csv.COLUMNS)}
    assert told.count("\r\n") >= len(found)
    return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def test_a_row_per_target() -> None:
    found = rows(csv.render_several(outcomes()))
    assert [row["verdict"] for row in found] == [*(report.verdict for report in reports()), "no answer"]
    for row, report in zip(found[:-1], reports(), strict=True):
        assert int(row["bytes_stored"]) == int(row["bytes_unique"]) + int(row["bytes_wasted"]) == report.totals.nbytes_stored
        assert [int(row[f"{severity}s"]) for severity in Severity] == [
            sum(finding.severity is severity for finding in report.findings) for severity in Severity
        ]
        assert row["rules"].split() == list(dict.fromkeys(finding.code for finding in report.findings))
    assert {name: value for name, value in found[-1].items() if value} == {
        "target": "nowhere", "verdict": "no answer", "problem": "nowhere: is not there"
    }  # fmt: skip


def test_a_row_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "m", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})
    monkeypatch.chdir(tmp_path)
    [row] = rows(csv.render(audit("m")))
    assert row == {
        "target": "m", "revision": "", "verdict": "warning", "formats": "safetensors", "tensors": "2", "parameters_stored": "512",
        "parameters_unique": "256", "bytes_stored": "2048", "bytes_unique": "1024", "bytes_wasted": "1024",
        "embedding": EMBED, "head": HEAD, "claim": "tied", "claim_source": "tied: tie_word_embeddings is true in config.json",
        "relation": "equal", "evidence": "proved", "errors": "0", "warnings": "1", "notes": "0", "accepted": "0", "rules": "TIE002",
        "not_checked": "0", "problem": "",
    }  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_cells_and_no_formulas(case: str) -> None:
    word = HOSTILE[case]
    for report in (nasty(word), nasty("w", target=word)):
        told = csv.render(report)
        [row] = rows(told)
        assert not RAW.search(told.replace("\r\n", ""))
        assert "\r" not in told.replace("\r\n", "")
        assert not [value for value in row.values() if value.lstrip().startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert len(told) < 5_000
    [row] = rows(csv.render_several([Outcome(target=word, error=word)]))
    assert not RAW.search("".join(row.values()))
    assert not row["problem"].lstrip().startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    ("name", "cell"), [("=1+1", "'=1+1"), ("  @x", "'  @x"), ("\uff1dx", "'\uff1dx"), ("a=b", "a=b"), ("lm-head", "lm-head")]
)
def test_only_what_would_run_is_guarded(name: str, cell: str) -> None:
    assert rows(csv.render(nasty(name)))[0]["embedding"] == cell


def test_what_is_accepted_is_counted_and_a_limit_is_told() -> None:
    verdict = Verdict(code=1, remarks={0: (Remark("accepted", "", accepts=True),)}, lines=(("limit", "too much"),))
    [row] = rows(csv.render(nasty("w"), Settings(verdicts=(verdict,))))
    assert (row["accepted"], row["errors"], row["problem"], row["not_checked"]) == ("1", "1", "too much", "1")
