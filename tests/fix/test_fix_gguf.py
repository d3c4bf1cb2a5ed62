"""GGUF without its second end: read by the `gguf` package, every key and every tensor that stays is what it was."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fix_reading import everything
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader

from gguf_files import EMBEDDING, HEAD, STRING, U32, Raw, weights, write
from tieaudit import apply_fix, audit, plan_fix
from tieaudit.errors import TargetError

CASE = Path(__file__).parent.parent / "cases" / "warn_gguf_dup"
U16 = 2
NAME, NORM, EXTRA = "model.gguf", "output_norm.weight", "blk.0.ffn_up.weight"
COUNTED = ("GGUF.tensor_count", "split.tensors.count")


def model(kind: Type, *, equal: bool = True) -> dict[str, tuple[np.ndarray, Type]]:
    """The head in the middle; a norm of a length that asks for padding."""
    return {
        EMBEDDING: (weights(1), kind),
        NORM: (np.arange(7, dtype=np.float32), Type.F32),
        HEAD: (weights(1 if equal else 2), kind),
        EXTRA: (weights(3, 5), kind),
    }


def keys(path: Path) -> dict[str, tuple[list[object], list[bytes]]]:
    """Types and bytes of every key, without the counts."""
    found = GGUFReader(path).fields
    return {name: (list(one.types), [part.tobytes() for part in one.parts]) for name, one in found.items() if name not in COUNTED}


def held(path: Path) -> dict[str, tuple[Type, list[int], bytes]]:
    return {one.name: (one.tensor_type, one.shape.tolist(), one.data.tobytes()) for one in GGUFReader(path).tensors}


def fixed(source: Path, out: Path) -> None:
    """Fix, and all that must be true of every result."""
    before = everything(source)
    plan = plan_fix(source)
    assert plan.verdict == "ready", plan.refusals
    assert [step.rule for step in plan.steps] == ["duplicate-tie"]
    assert plan.steps[0].what == f"leave out {HEAD}"
    apply_fix(plan, out)
    assert everything(source) == before
    report = audit(out)
    assert report.findings == ()
    assert not report.skipped
    assert plan_fix(out).verdict == "nothing to do"


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("alignment", [0, 8, 4096])
def test_the_head_is_left_out_and_all_else_stays(kind: Type, alignment: int, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tensors = model(kind)
    if kind is Type.F16:
        tensors = {name: (values.astype(np.float16) if one is kind else values, one) for name, (values, one) in tensors.items()}
    write(tmp_path / "in" / NAME, tensors, alignment=alignment)
    (tmp_path / "in" / "README.md").write_text("a model\n")
    fixed(tmp_path / "in", tmp_path / "out")
    before, after = tmp_path / "in" / NAME, tmp_path / "out" / NAME
    assert keys(after) == keys(before)
    assert held(after) == {name: one for name, one in held(before).items() if name != HEAD}
    # the same bytes as the package writes for the same tensors
    del tensors[HEAD]
    truth = write(tmp_path / "truth.gguf", tensors, alignment=alignment)
    assert after.read_bytes() == truth.read_bytes()
    assert (tmp_path / "out" / "README.md").read_text() == "a model\n"


def test_big_endian(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tensors = model(Type.F32)
    write(tmp_path / "in" / NAME, tensors, big=True)
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    del tensors[HEAD]
    truth = write(tmp_path / "truth.gguf", tensors, big=True)
    assert (tmp_path / "out" / NAME).read_bytes() == truth.read_bytes()
    assert plan_fix(tmp_path / "out").verdict == "nothing to do"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(version: int, tmp_path: Path) -> None:
    raw, one = Raw(version), weights(1, 8, 256).tobytes()
    known = [raw.key("general.architecture", STRING, "llama")]
    size = len(one)
    entries = [raw.entry(HEAD, (256, 8)), raw.entry(NORM, (8,), offset=size), raw.entry(EMBEDDING, (256, 8), offset=size + 32)]
    norm = np.arange(8, dtype=np.float32).tobytes()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / NAME).write_bytes(raw.file(entries, known, one + norm + one))
    fixed(tmp_path / "in", tmp_path / "out")
    entries = [raw.entry(NORM, (8,)), raw.entry(EMBEDDING, (256, 8), offset=32)]
    assert (tmp_path / "out" / NAME).read_bytes() == raw.file(entries, known, norm + one)


def test_the_fixture(tmp_path: Path) -> None:
    shutil.copytree(CASE, tmp_path / "in")
    fixed(tmp_path / "in", tmp_path / "out")
    assert set(held(tmp_path / "in" / NAME)) - set(held(tmp_path / "out" / NAME)) == {HEAD}


def test_one_file_in_place(tmp_path: Path) -> None:
    write(tmp_path / NAME, model(Type.F32))
    old = (tmp_path / NAME).read_bytes()
    done = apply_fix(plan_fix(tmp_path / NAME), in_place=True)
    assert Path(done.backup).read_bytes() == old
    assert HEAD not in held(tmp_path / NAME)


def test_parts_of_a_model_say_the_new_number(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / NAME, model(Type.F32), split_max_tensors=2)
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert names == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    fixed(tmp_path / "in", tmp_path / "out")
    assert [set(held(tmp_path / "out" / name)) for name in names] == [{EMBEDDING, NORM}, {EXTRA}]
    for name in names:
        before, after = tmp_path / "in" / name, tmp_path / "out" / name
        assert keys(after) == keys(before)
        assert {one: held(before)[one] for one in held(after)} == held(after)
        assert GGUFReader(before).fields["split.tensors.count"].contents() == 4
        assert GGUFReader(after).fields["split.tensors.count"].contents() == 3


def test_a_part_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    tensors = model(Type.F32)
    tensors = {name: tensors[name] for name in (EMBEDDING, NORM, EXTRA, HEAD)}
    write(tmp_path / NAME, tensors, split_max_tensors=3)
    plan = plan_fix(tmp_path)
    assert plan.verdict == "refused"
    assert plan.refusals[0].what == "model-00002-of-00002.gguf: no tensor would be left in it"


def test_parts_without_the_key_are_refused(tmp_path: Path) -> None:
    raw, one = Raw(), weights(1, 8, 256).tobytes()
    for at, name in enumerate((EMBEDDING, HEAD)):
        known = [raw.key("split.no", U16, at), raw.key("split.count", U16, 2)]
        entries = [raw.entry(name, (256, 8)), raw.entry(f"blk.{at}.attn_norm.weight", (8,), offset=len(one))]
        if not at:
            known.append(raw.key("general.architecture", STRING, "llama"))
        content = raw.file(entries, known, one + np.full(8, at, np.float32).tobytes())
        (tmp_path / f"model-{at + 1:05d}-of-00002.gguf").write_bytes(content)
    plan = plan_fix(tmp_path)
    assert plan.verdict == "refused"
    assert "has no split.tensors.count" in plan.refusals[0].what
    with pytest.raises(TargetError, match=re.escape("split.tensors.count")):
        apply_fix(plan, tmp_path.parent / "out")


@pytest.mark.parametrize(("architecture", "equal"), [("llama", False), ("olmo2", False), ("olmo2", True), ("qwen2moe", True)])
def test_a_head_that_differs_or_that_readers_need_stays(architecture: str, equal: bool, tmp_path: Path) -> None:
    write(tmp_path / NAME, model(Type.F32, equal=equal), architecture)
    plan = plan_fix(tmp_path)
    assert plan.verdict == "nothing to do"
    assert plan.rewrites == ()


def test_untie_keeps_both(tmp_path: Path) -> None:
    write(tmp_path / NAME, model(Type.F32))
    plan = plan_fix(tmp_path, untie=True)
    assert (plan.steps, plan.rewrites) == ((), ())


def test_bytes_of_no_tensor_and_unknown_types_are_not_lost(tmp_path: Path) -> None:
    raw, one = Raw(), weights(1, 8, 256).tobytes()
    known, size = [raw.key("general.architecture", STRING, "llama"), raw.key("general.alignment", U32, 32)], len(one)
    entries = [raw.entry(EMBEDDING, (256, 8)), raw.entry(HEAD, (256, 8), offset=size)]
    (tmp_path / NAME).write_bytes(raw.file(entries, known, one + one + bytes(4096)))
    assert plan_fix(tmp_path).refusals[0].what == f"{NAME}: it ends with bytes that belong to no tensor"
    entries.append(raw.entry("blk.0.new.weight", (4,), 200, offset=2 * size))
    (tmp_path / NAME).write_bytes(raw.file(entries, known, one + one + bytes(4096)))
    assert plan_fix(tmp_path).refusals[0].what == f"{NAME}: it lists tensors of types that are not known here"


def test_a_head_that_changes_after_the_plan_stays(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / NAME, model(Type.F32))
    plan = plan_fix(tmp_path / "in")
    data = bytearray((tmp_path / "in" / NAME).read_bytes())
    data[-100] ^= 1
    (tmp_path / "in" / NAME).write_bytes(data)
    with pytest.raises(TargetError, match="was changed since the plan"):
        apply_fix(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
