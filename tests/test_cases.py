"""Small checkpoints made after real reports: each gets the verdict of its EXPECT.json, and no message says what misled people there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tieaudit import Report, Severity, audit
from tieaudit.reporters import terminal

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.name for path in CASES.iterdir())

# What EXPECT.json's `must_not_say` means for the text of the report, in lower case; and rules that must not appear with it.
MUST_NOT_SAY: dict[str, tuple[str, ...]] = {
    "err_bad_header_dtype": ("traceback",),
    "err_diverged": ("delete", "duplicate", "wasted)"),
    "err_empty_zero3": ("duplicate", "shared"),
    "err_one_side_resized": ("padding",),
    "err_transposed_head": ("unknown",),
    "info_mtp_copies": ("warning",),
    "info_scaled_head": ("diverged", "differs from", "set the flag to true", "can be left out"),
    "info_untied_equal": ("warning", "error"),
    "ok_base_class": ("lm_head", "missing"),
    "ok_bin_alias": ("duplicate", "copies", "repeats"),
    "ok_flag_absent_gemma2": ("missing", "untied"),
    "ok_flag_absent_llama_two": ("diverged", "differs from"),
    "ok_gguf_no_output": ("missing", "is not stored", "untied"),
    "ok_mamba_Alog": ("a_log", "duplicate"),
    "ok_onnx_shared": ("dup", "repeats", "missing"),
    "ok_padded_rows": ("vocab_size is", "tie102", "tie103"),
    "ok_roberta_bias": ("missing", "duplicate"),
    "ok_t5_v11_shared_only": ("is not stored", "missing"),
    "ok_tied_no_head": ("missing", "is not stored"),
    "ok_untied_two": ("duplicate",),
    "ok_views_cover_storage": ("oversize", "storages of", "one storage"),
    "warn_adapter_targets_tied": ("missing", "not stored"),
    "warn_bin_cloned": ("tied: both names are one storage", "as it should"),
    "warn_dup": ("error", "untied"),
    "warn_dup_f32_of_bf16": ("different matrices", "differs from"),
    "warn_gguf_dup": ("in memory", "at load"),
    "warn_inverted": ("error",),
    "warn_onnx_transposed_dup": ("two separate", "two different", "transposed-head"),
    "warn_quant_dup": ("missing", "not stored"),
    "warn_zero_head": ("tie002", "tie001", "repeats"),
}
RULES_NOT_TO_SPEAK: dict[str, tuple[str, ...]] = {
    "err_diverged": ("duplicate-tie", "duplicate-tensor"),
    "err_empty_zero3": ("duplicate-tie", "duplicate-tensor", "row-mismatch", "missing-embedding", "missing-head"),
    "err_transposed_head": ("row-mismatch", "transposed-copy", "diverged-tie"),
    "info_both_formats": ("format-mismatch", "duplicate-tie"),
    "info_mtp_copies": ("duplicate-tie", "duplicate-tensor"),
    "info_scaled_head": ("diverged-tie",),
    "warn_adapter_targets_tied": ("adapter-splits-tie", "missing-head", "duplicate-tensor"),
    "warn_bin_cloned": ("duplicate-tensor",),
    "warn_dup": ("duplicate-tensor",),
    "warn_dup_f32_of_bf16": ("diverged-tie", "cast-duplicate"),
    "warn_gguf_dup": ("duplicate-tensor",),
    "warn_index_orphan": ("missing-embedding", "missing-head"),
    "warn_inverted": ("missing-embedding",),
    "warn_onnx_transposed_dup": ("transposed-head", "duplicate-tensor", "duplicate-tie"),
    "warn_oversize_view": ("dead-bytes",),
    "warn_vlm_absent_false": ("diverged-tie",),
    "warn_zero_head": ("duplicate-tie", "diverged-tie", "untied-but-equal"),
}
WASTED = {
    "warn_adapter_targets_tied": 4096,
    "warn_bin_cloned": 4096,
    "warn_dup": 4096,
    "warn_dup_f32_of_bf16": 4096,  # the F32 head; 64 x 16 elements
    "warn_gguf_dup": 64 * 16 * 4,
    "warn_index_orphan": 1024,
    "warn_onnx_transposed_dup": 4096,
    "warn_oversize_view": 40_000 - 64,
    "warn_quant_dup": 64 * 8 + 64 * 4,  # packed and scales
}


def expected(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CASES / name / "EXPECT.json").read_text())
    return content


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Report]:
    name: str = request.param
    return name, expected(name), audit(CASES / name)


def test_case_has_its_verdict(case: tuple[str, dict[str, Any], Report]) -> None:
    name, expect, report = case
    rules = {finding.rule for finding in report.findings}
    for either in expect["expect"]:
        assert rules & set(either.split("|")), f"{name}: {either} is missing among {rules}: {expect['why']}"
    worst = report.findings[0].severity if report.findings else None
    if expect["worst"] == "none":
        assert worst in (None, Severity.NOTE), f"{name}: {report.findings[0].message}: {expect['why']}"
    else:
        assert worst == expect["worst"], f"{name}: {[finding.message for finding in report.findings]}: {expect['why']}"
    assert not report.skipped


def test_case_says_nothing_that_misleads(case: tuple[str, dict[str, Any], Report]) -> None:
    name, expect, report = case
    text = terminal.render(report).lower().replace(str(CASES).lower(), "")
    for words in MUST_NOT_SAY.get(name, ()):
        assert words not in text.replace(name.lower(), ""), f"{name} must not say: {expect['must_not_say']}"
    assert not {finding.rule for finding in report.findings} & set(RULES_NOT_TO_SPEAK.get(name, ()))
    if "OK" in expect["must_not_say"].split(";"):
        assert not text.startswith("ok")


def test_case_counts_the_wasted_bytes(case: tuple[str, dict[str, Any], Report]) -> None:
    name, _, report = case
    if name in WASTED:
        assert report.totals.nbytes_wasted == WASTED[name]
    elif name.startswith(("ok_", "err_diverged", "info_scaled", "info_untied", "warn_inverted", "warn_bin_alias")):
        assert report.totals.nbytes_wasted == 0


def test_case_is_judged_alike_from_samples(case: tuple[str, dict[str, Any], Report]) -> None:
    name, _, report = case
    sampled = audit(CASES / name, verify="sample")
    assert [finding.rule for finding in sampled.findings] == [finding.rule for finding in report.findings]


def test_headers_alone_accuse_no_healthy_case(case: tuple[str, dict[str, Any], Report]) -> None:
    name, expect, _ = case
    if expect["worst"] in ("none", "note"):
        report = audit(CASES / name, verify="headers")
        assert [finding.message for finding in report.findings if finding.severity is not Severity.NOTE] == []


def test_tables_name_only_cases_that_are_there() -> None:
    assert {*MUST_NOT_SAY, *RULES_NOT_TO_SPEAK, *WASTED} <= set(NAMES)


def test_untied_equal_advice_sets_the_flag_first() -> None:
    [finding] = audit(CASES / "info_untied_equal").findings
    assert finding.fix
    assert finding.fix.index("flag to true") < finding.fix.index("left out")


def test_diverged_advice_offers_both_repairs_and_says_what_is_lost() -> None:
    [finding] = audit(CASES / "err_diverged").findings
    assert finding.fix
    assert "keep both" in finding.fix
    assert "keep one" in finding.fix
    assert "lost" in finding.fix


def test_headline_of_equal_untied_matrices_does_not_call_them_different() -> None:
    report = audit(CASES / "info_untied_equal")
    assert "equal" in report.reason
    assert "separate" not in report.reason


def test_training_saves_nothing_on_a_name_that_is_a_matrix_of_its_own() -> None:
    [tie] = audit(CASES / "ok_t5_v11_shared_only").ties
    # encoder and decoder share, the head does not: per element two bytes of gradient and eight of Adam, twice
    assert tie.saves_bytes == 2 * tie.nbytes
    assert tie.training_bytes == 2 * tie.numel * (2 + 8)


def test_vlm_case_names_the_reader_that_differs() -> None:
    [finding] = audit(CASES / "warn_vlm_absent_false").findings
    assert "transformers 5" in finding.message
    assert "transformers 4" in finding.message


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("ok_tied_no_head", [], 0),
        ("ok_bin_alias", ["--fail-on", "note"], 0),
        ("info_untied_equal", [], 0),
        ("info_untied_equal", ["--fail-on", "note"], 1),
        ("warn_dup", [], 0),
        ("warn_dup", ["--fail-on", "warning"], 1),
        ("warn_dup", ["--fail-on", "warning", "--ignore", "TIE0"], 0),
        ("err_diverged", [], 1),
        ("err_diverged", ["--fail-on", "never"], 0),
        ("err_diverged", ["--format", "json"], 1),
        ("err_bad_header_dtype", [], 1),
        ("err_diverged", ["--select", "no-such-rule"], 2),
    ],
)
def test_exit_code(name: str, options: list[str], code: int) -> None:
    command = [sys.executable, "-m", "tieaudit", str(CASES / name), *options]
    source = str(Path(__file__).parent.parent / "src")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
