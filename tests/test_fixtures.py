"""Every rule has a checkpoint that makes it fire and a nearest one that does not; `fixtures/make.py` makes both."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from builders import EMBED, HEAD, MATRIX_NBYTES, folder, safetensors
from tieaudit import audit
from tieaudit.inspectors.registry import all_rules
from tieaudit.loaders import sniff
from tieaudit.report import Severity
from tieaudit.sources.local import LocalFolder

FIXTURES = Path(__file__).parent.parent / "fixtures"
MAX_FOLDER, MAX_TOTAL = 30_000, 1_000_000  # bytes
UP, NEXT_UP = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"


class Fires(NamedTuple):
    """The one finding in full: its severity, the bytes that it calls wasted, and the tensors in its order."""

    severity: Severity
    wasted_bytes: int = 0
    tensors: tuple[str, ...] = ()


ERROR, WARNING, NOTE = Severity
EXPECTED = {
    "diverged-tie": Fires(ERROR, 0, (EMBED, HEAD)),
    "duplicate-tie": Fires(WARNING, 2 * MATRIX_NBYTES, (EMBED, HEAD)),  # stored in F64
    "missing-head": Fires(ERROR, 0, (EMBED,)),
    "missing-embedding": Fires(ERROR, 0, (HEAD,)),
    "inverted-alias": Fires(WARNING, 0, (HEAD,)),
    "unwanted-alias": Fires(WARNING, 0, (EMBED, HEAD)),
    "cast-copy": Fires(WARNING, MATRIX_NBYTES, (EMBED, HEAD)),
    "transposed-head": Fires(ERROR, 0, (EMBED, HEAD)),
    "untied-but-equal": Fires(NOTE, 0, (EMBED, HEAD)),
    "scaled-copy": Fires(NOTE, 0, (EMBED, HEAD)),
    "unusual-alias": Fires(WARNING, 0, ("model.decoder.embed_tokens.weight",)),
    "ambiguous-flag": Fires(WARNING, 0, ("language_model.lm_head.weight",)),
    "row-mismatch": Fires(ERROR, 0, (EMBED,)),
    "tokenizer-overflow": Fires(ERROR, 0, (EMBED,)),
    "stale-flag": Fires(NOTE),
    "duplicate-tensor": Fires(WARNING, MATRIX_NBYTES, (UP, NEXT_UP)),
    "transposed-copy": Fires(WARNING, MATRIX_NBYTES, (EMBED, "model.layers.0.mlp.down_proj.weight")),
    "cast-duplicate": Fires(WARNING, 2 * MATRIX_NBYTES, (UP, "master.layers.0.mlp.up_proj.weight")),
    "by-design-copy": Fires(NOTE, 0, (EMBED, "model.layers.1.embed_tokens.weight")),
    "constant-tensor": Fires(WARNING, 0, (HEAD,)),
    "duplicate-format": Fires(NOTE, MATRIX_NBYTES),  # as everywhere the tensors, not the container
    "format-mismatch": Fires(ERROR, 0, (EMBED, EMBED)),
    "oversize-storage": Fires(WARNING, MATRIX_NBYTES, ("embed.weight",)),
    "dead-bytes": Fires(WARNING, MATRIX_NBYTES),
    "empty-tensor": Fires(ERROR, 0, (EMBED,)),
    "training-state": Fires(NOTE, 0, ("optimizer.state.0.step", "optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq")),
    "phantom-tensor": Fires(ERROR, 0, ("model.norm.weight",)),
    "orphan-tensor": Fires(WARNING, MATRIX_NBYTES, ("mtp.proj.weight",)),
    "missing-shard": Fires(ERROR),
    "repeated-tensor": Fires(WARNING, MATRIX_NBYTES, (EMBED, EMBED)),
    "stale-total-size": Fires(NOTE),
    "malformed-file": Fires(ERROR, 0, ("",)),
    "unsafe-pickle": Fires(WARNING, 0, ("",)),
    "one-sided-quantization": Fires(WARNING, 0, (EMBED, HEAD, "lm_head.weight_scale")),
    "quantization-contradiction": Fires(ERROR, 0, (HEAD,)),
    "adapter-splits-tie": Fires(WARNING, 0, ("base_model.model.lm_head.weight",)),
    "adapter-targets-tied": Fires(WARNING, 0, ("base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head.lora_B.weight")),
    "adapter-base-copy": Fires(WARNING, MATRIX_NBYTES, ("base_model.model.lm_head.base_layer.weight",)),
    "replica-drift": Fires(ERROR, 0, ("stage0.embedding.word_embeddings.weight", "stage1.output_layer.weight")),
    "adapter-row-mismatch": Fires(ERROR, 0, ("base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head.lora_B.weight")),
}
# a model in memory is no file: these are tested on real models in tests/live/
LIVE = ("TIE801", "TIE802", "TIE803", "TIE804", "TIE805", "TIE806", "TIE807")
# these speak of two checkpoints, and are tested on real pairs in tests/diff/
CHANGES = ("TIE901", "TIE902", "TIE903", "TIE904")
RULES = [rule.name for rule in all_rules() if rule.code not in LIVE + CHANGES]


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixtures_make", FIXTURES / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rebuilt(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fixtures")
    make.build(root)
    return root


@pytest.mark.parametrize("rule", RULES)
def test_fires_says_this_one_thing(rule: str) -> None:
    report = audit(FIXTURES / rule / "fires", select=[rule])
    assert [
        (finding.rule, Fires(finding.severity, finding.wasted_bytes, tuple(place.name for place in finding.tensors)))
        for finding in report.findings
    ] == [(rule, EXPECTED[rule])]
    assert report.totals.nbytes_wasted == EXPECTED[rule].wasted_bytes
    assert not report.skipped


@pytest.mark.parametrize("rule", RULES)
def test_silent_says_nothing_by_this_rule(rule: str) -> None:
    report = audit(FIXTURES / rule / "silent", select=[rule])
    assert report.findings == ()
    assert not report.skipped


@pytest.mark.parametrize("rule", RULES)
def test_nothing_but_this_rule_speaks_of_its_fixture(rule: str) -> None:
    assert {finding.rule for finding in audit(FIXTURES / rule / "fires").findings} == {rule}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", ["fires", "silent"])
def test_no_more_bytes_are_wasted_than_are_stored(rule: str, side: str) -> None:
    totals = audit(FIXTURES / rule / side).totals
    assert 0 <= totals.nbytes_unique <= totals.nbytes_stored
    assert 0 <= totals.parameters_unique <= totals.parameters_stored


def test_every_rule_has_a_pair_and_every_pair_a_rule() -> None:
    pairs = {path.parent.name for path in FIXTURES.glob("*/*/")}
    assert pairs == set(RULES) == set(EXPECTED)
    for rule in RULES:
        assert {path.name for path in (FIXTURES / rule).iterdir()} == {"fires", "silent"}


def test_the_pairs_stay_small() -> None:
    nbytes = {path: sum(file.stat().st_size for file in path.rglob("*")) for path in FIXTURES.glob("*/*/")}
    assert {path: size for path, size in nbytes.items() if size >= MAX_FOLDER} == {}
    assert sum(nbytes.values()) < MAX_TOTAL


def test_make_rebuilds_the_same_files(rebuilt: Path) -> None:
    committed = {path.relative_to(FIXTURES) for path in _files(FIXTURES)}
    assert {path.relative_to(rebuilt) for path in _files(rebuilt)} == committed
    for path in committed:
        if path.suffix in (".bin", ".pt"):
            # the zip around the tensors is torch's own and may change with its release; what is in it may not
            assert _records(rebuilt / path) == _records(FIXTURES / path)
        else:
            assert (rebuilt / path).read_bytes() == (FIXTURES / path).read_bytes(), path


def test_make_is_repeatable(make: ModuleType, rebuilt: Path, tmp_path: Path) -> None:
    make.build(tmp_path)
    for path in _files(rebuilt):
        assert (tmp_path / path.relative_to(rebuilt)).read_bytes() == path.read_bytes(), path


def test_make_removes_what_it_no_longer_makes(make: ModuleType, tmp_path: Path) -> None:
    folder(tmp_path, {"gone-rule/fires/model.safetensors": safetensors({}), "README.md": b"kept"})
    make.build(tmp_path)
    assert not (tmp_path / "gone-rule").exists()
    assert (tmp_path / "README.md").exists()


def test_every_fixture_has_a_reason_of_one_line(make: ModuleType) -> None:
    assert all(fixture.why and "\n" not in fixture.why for fixture in make.fixtures())


def _files(root: Path) -> list[Path]:
    """All files of the pairs; a base or the ranks of a run lie in folders inside."""
    return [path for path in root.glob("*/*/**/*") if path.is_file()]


def _records(path: Path) -> list[tuple[object, ...]]:
    """Every tensor with its bytes, and every global."""
    opened = LocalFolder(path.parent)
    try:
        source = opened.open(path.name)
        file = sniff.load(source)
        tensors: list[tuple[object, ...]] = [
            (tensor.name, tensor.dtype, tensor.shape, tensor.part, tensor.strides, source.read(tensor.file_offset or 0, tensor.nbytes))
            for tensor in file.tensors
        ]
        return [*tensors, *((found.name, found.danger) for found in file.globals)]
    finally:
        opened.close()
