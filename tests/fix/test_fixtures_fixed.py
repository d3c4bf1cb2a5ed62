"""Every rule with a repair: the fixture that fires, fixed, is clean, and each tensor that stays is its source byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fix_reading import everything, same, tensors

from builders import EMBED, HEAD
from tieaudit import apply_fix, audit, plan_fix
from tieaudit.errors import TargetError

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
RULES = sorted(path.parent.name for path in FIXTURES.glob("*/fires"))
WEIGHTS, BIN = "model.safetensors", "pytorch_model.bin"
VLM_EMBED, VLM_HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"


class Repair(NamedTuple):
    """The options, what the result holds {file: {name: (source file, source name)}}, and the notes that stay."""

    options: dict[str, Any]
    holds: dict[str, dict[str, tuple[str, str]]]
    notes: tuple[str, ...] = ()


def own(file: str, *names: str) -> dict[str, dict[str, tuple[str, str]]]:
    return {file: {name: (file, name) for name in names}}


NORM, MASTER, UP = "model.norm.weight", "master.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
REPAIRS = [
    ("diverged-tie", Repair({"untie": True}, own(WEIGHTS, EMBED, HEAD))),
    ("diverged-tie", Repair({"tie": "embed"}, own(WEIGHTS, EMBED))),
    ("diverged-tie", Repair({"tie": "head"}, {WEIGHTS: {EMBED: (WEIGHTS, HEAD)}})),
    ("duplicate-tie", Repair({}, {BIN: {EMBED: (BIN, EMBED), HEAD: (BIN, EMBED)}})),
    ("duplicate-tie", Repair({"to": "safetensors", "tie": "embed"}, {WEIGHTS: {EMBED: (BIN, EMBED)}})),
    ("missing-head", Repair({"tie": "embed"}, own(WEIGHTS, EMBED))),
    ("missing-embedding", Repair({"tie": "head"}, {WEIGHTS: {EMBED: (WEIGHTS, HEAD)}})),
    ("inverted-alias", Repair({}, {WEIGHTS: {EMBED: (WEIGHTS, HEAD)}})),
    ("unwanted-alias", Repair({"tie": "embed"}, own(BIN, EMBED, HEAD))),
    ("unwanted-alias", Repair({"untie": True}, own(BIN, EMBED, HEAD), ("untied-but-equal",))),
    ("unwanted-alias", Repair({"tie": "embed", "to": "safetensors"}, {WEIGHTS: {EMBED: (BIN, EMBED)}})),
    (
        "unwanted-alias",
        Repair({"untie": True, "to": "safetensors"}, {WEIGHTS: {EMBED: (BIN, EMBED), HEAD: (BIN, HEAD)}}, ("untied-but-equal",)),
    ),
    ("cast-copy", Repair({}, own(WEIGHTS, EMBED))),
    ("transposed-head", Repair({}, own(WEIGHTS, EMBED))),
    ("untied-but-equal", Repair({"tie": "embed"}, own(WEIGHTS, EMBED))),
    ("unusual-alias", Repair({}, {WEIGHTS: {"model.shared.weight": (WEIGHTS, "model.decoder.embed_tokens.weight")}})),
    ("ambiguous-flag", Repair({"untie": True}, own(WEIGHTS, VLM_EMBED, VLM_HEAD))),
    ("ambiguous-flag", Repair({"tie": "embed"}, own(WEIGHTS, VLM_EMBED))),
    ("ambiguous-flag", Repair({"tie": "head"}, {WEIGHTS: {VLM_EMBED: (WEIGHTS, VLM_HEAD)}})),
    ("duplicate-format", Repair({"drop": "formats"}, own(WEIGHTS, EMBED))),
    ("oversize-storage", Repair({}, own(BIN, "embed.weight"))),
    ("oversize-storage", Repair({"to": "safetensors"}, {WEIGHTS: {"embed.weight": (BIN, "embed.weight")}})),
    ("dead-bytes", Repair({}, own(BIN, "embed.weight"))),
    (
        "training-state",
        Repair({"drop": "training-state"}, {"checkpoint.pt": {"model.embed.weight": ("checkpoint.pt", "model.embed.weight")}}),
    ),
    (
        "training-state",
        Repair(
            {"drop": "training-state", "to": "safetensors"},
            {"checkpoint.safetensors": {"embed.weight": ("checkpoint.pt", "model.embed.weight")}},
        ),
    ),
    ("orphan-tensor", Repair({"drop": "orphans"}, own(ONE, EMBED) | own(TWO, HEAD))),
    ("phantom-tensor", Repair({}, own(ONE, EMBED) | own(TWO, HEAD))),
    ("repeated-tensor", Repair({}, own(ONE, EMBED) | own(TWO, HEAD))),
    ("stale-total-size", Repair({}, own(ONE, EMBED) | own(TWO, HEAD))),
    ("malformed-file", Repair({}, own(WEIGHTS, EMBED, HEAD))),
    ("unsafe-pickle", Repair({"to": "safetensors"}, {WEIGHTS: {"embed.weight": (BIN, "embed.weight")}})),
]
# what no option repairs, with the reason that the fixture itself gives
UNREPAIRED = {
    "adapter-base-copy", "adapter-row-mismatch", "adapter-splits-tie", "adapter-targets-tied", "by-design-copy", "cast-duplicate",
    "constant-tensor", "duplicate-tensor", "format-mismatch", "missing-shard", "one-sided-quantization", "quantization-contradiction",
    "replica-drift", "row-mismatch", "scaled-copy", "stale-flag", "tokenizer-overflow", "transposed-copy",
    "empty-tensor",  # of its tied pair nothing else is stored: without the placeholder the embedding is missing
}  # fmt: skip


@pytest.mark.parametrize(("rule", "repair"), REPAIRS, ids=lambda value: value if isinstance(value, str) else str(value.options))
def test_fixed_is_clean_and_what_stays_is_equal(rule: str, repair: Repair, tmp_path: Path) -> None:
    source, out = FIXTURES / rule / "fires", tmp_path / "out"
    before = everything(source)
    plan = plan_fix(source, **repair.options)
    assert plan.verdict == "ready", plan.refusals
    fixed = apply_fix(plan, out)
    assert everything(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    report = audit(out)
    assert not report.skipped
    assert tuple(finding.rule for finding in report.findings) == repair.notes
    assert fixed.after is not None
    assert fixed.after.findings == report.findings
    held = {path.name: tensors(path) for path in sorted(out.iterdir()) if path.suffix in (".safetensors", ".bin", ".pt")}
    assert {file: set(found) for file, found in held.items()} == {file: set(names) for file, names in repair.holds.items()}
    if rule == "malformed-file":  # the library refuses the source: nothing second can read it
        return
    for file, names in repair.holds.items():
        for name, (source_file, source_name) in names.items():
            assert same(held[file][name], tensors(source / source_file)[source_name]), name


@pytest.mark.parametrize(("rule", "repair"), REPAIRS, ids=lambda value: value if isinstance(value, str) else str(value.options))
def test_a_fixed_model_needs_nothing(rule: str, repair: Repair, tmp_path: Path) -> None:
    apply_fix(plan_fix(FIXTURES / rule / "fires", **repair.options), tmp_path / "out")
    options = {key: value for key, value in repair.options.items() if not (repair.notes and key == "untie")}
    assert plan_fix(tmp_path / "out").verdict == "nothing to do"
    assert plan_fix(tmp_path / "out", **options).verdict == "nothing to do"


@pytest.mark.parametrize("rule", sorted(UNREPAIRED))
def test_what_has_no_repair_is_left(rule: str, tmp_path: Path) -> None:
    plan = plan_fix(FIXTURES / rule / "fires")
    assert plan.verdict in ("unrepaired", "nothing to do")
    assert [left.rule for left in plan.left] == [rule]
    assert apply_fix(plan, tmp_path / "out").out == ""
    assert not (tmp_path / "out").exists()


def test_a_placeholder_that_nothing_stands_in_for_stays(tmp_path: Path) -> None:
    plan = plan_fix(FIXTURES / "empty-tensor" / "fires", drop="placeholders")
    with pytest.raises(TargetError, match="missing-embedding now says"):
        apply_fix(plan, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_repaired_or_said_not_to_be(rule: str) -> None:
    assert (rule in UNREPAIRED) != (rule in {name for name, _ in REPAIRS})


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "missing-embedding"])  # the nearest one there is inverted-alias
def test_the_nearest_healthy_folder_needs_nothing(rule: str) -> None:
    plan = plan_fix(FIXTURES / rule / "silent")
    assert plan.steps == ()
    assert plan.refusals == ()


@pytest.mark.parametrize("rule", ["diverged-tie", "ambiguous-flag", "missing-head", "missing-embedding", "unwanted-alias"])
def test_where_a_person_must_choose_nothing_is_written(rule: str, tmp_path: Path) -> None:
    plan = plan_fix(FIXTURES / rule / "fires")
    assert plan.verdict == "refused"
    assert [refusal.rule for refusal in plan.refusals] == [rule]
    assert plan.refusals[0].ways
    with pytest.raises(TargetError, match="is not fixed"):
        apply_fix(plan, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_flag_is_the_only_change_in_the_config(tmp_path: Path) -> None:
    source = FIXTURES / "diverged-tie" / "fires"
    apply_fix(plan_fix(source, untie=True), tmp_path / "out")
    old, new = ((folder / "config.json").read_bytes() for folder in (source, tmp_path / "out"))
    assert new == old.replace(b'"tie_word_embeddings": true', b'"tie_word_embeddings": false')
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()


def test_both_readings_of_the_flag_agree_afterwards(tmp_path: Path) -> None:
    apply_fix(plan_fix(FIXTURES / "ambiguous-flag" / "fires", tie="embed"), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]) == (True, True)
