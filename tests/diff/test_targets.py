"""Comparisons of whatever a target can be: every fixture with itself, revisions of a Hub, broken files; the command line and its JSON."""

from __future__ import annotations

import contextlib
import gc
import io
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from pairs import EMBED, HEAD, TENSORS, copy

from builders import config, folder, matrix, safetensors
from hub_server import Hub
from tieaudit import OptionError, TargetError, diff
from tieaudit.cli import _run, cli
from tieaudit.difference import Change
from tieaudit.inspectors.registry import all_rules
from tieaudit.reporters import diff_json, diff_text

Models = Callable[[str], Path]
ROOT = Path(__file__).parent.parent
FIXTURES = sorted(path for path in (ROOT.parent / "fixtures").glob("*/*") if path.is_dir())
CASES = sorted((ROOT / "cases").iterdir())
SCHEMA = json.loads(files("tieaudit.reporters").joinpath("diff.schema.json").read_text())
Q0 = "model.layers.0.self_attn.q_proj.weight"


def checked(found: Any) -> dict[str, Any]:
    """The JSON document, valid by the schema."""
    document: dict[str, Any] = json.loads(diff_json.render(found))
    jsonschema.validate(document, SCHEMA)
    return document


def run(*words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command as `main` runs it."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _run(["diff", *map(str, words)])
    finally:
        gc.enable()  # a process of its own leaves it off
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("path", [*CASES, *FIXTURES], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_differs_from_itself(path: Path) -> None:
    found = diff(path, path)
    assert found.findings == ()
    assert diff_text.render(found).startswith(f"SAME  {path} → {path}   no difference: ")
    document = checked(found)
    assert (document["same"], document["size"]["difference"], document["tensors"]["changes"]) == (True, 0, [])
    assert document["tensors"]["added"] == document["tensors"]["lost"] == []


@pytest.mark.parametrize("name", ["lora head", "resized", "untied", "beheaded", "f16.gguf", "mlx4", "bnb4", "bf16", "onnx"])
def test_every_story_is_valid_json(name: str, models: Models) -> None:
    checked(diff(models("base"), models(name), expect=["same-ties", "same-values", "smaller"]))
    checked(diff(models("base"), models(name), verify="headers"))


def test_revisions_of_the_hub_are_compared_by_pages(online: Hub, models: Models, tmp_path: Path) -> None:
    def train(tensors: dict[str, torch.Tensor]) -> None:
        tensors[EMBED] += 0.01 * torch.randn_like(tensors[EMBED])

    repository = online.add("org/model", models("base"))
    first = repository.head
    repository.commit(copy(models("base"), tmp_path / "trained", train), branch="tuned")
    found = diff(f"hf://org/model@{first}", "hf://org/model@tuned")
    assert [(finding.rule, [place.name for place in finding.tensors]) for finding in found.findings] == [("value-change", [EMBED])]
    assert (found.before.revision, found.after.revision) == (first, repository.branches["tuned"])
    assert found.cost.requests == len(online.requests)
    assert found.cost.requests <= 2 * 16  # the budget of an audit, for each side
    assert not found.skipped
    checked(found)


def test_a_file_with_the_same_digest_is_not_read(online: Hub, models: Models) -> None:
    online.add("org/model", models("sharded"))
    online.add("org/other", models("sharded"))
    found = diff("org/model", "org/other", expect="same-values")
    assert found.same
    assert {pair.evidence.value for pair in found.changes.pairs} == {"proved"}
    assert found.expectations[0].met
    assert found.not_compared == ()


def test_a_remote_side_against_a_local_one(online: Hub, models: Models) -> None:
    online.add("org/model", models("base"))
    found = diff("org/model", models("untied"))
    assert [finding.rule for finding in found.findings] == ["tie-lost", "size-growth"]


def test_a_revision_that_is_not_there_is_one_line(online: Hub, models: Models) -> None:
    online.add("org/model", models("base"))
    code, out, err = run("org/model", "hf://org/model@nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err


def broken(path: Path, data: bytes) -> Path:
    return folder(path, {"config.json": config(), "model.safetensors": data})


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x10\0\0\0\0\0\0\0{}"], ids=["empty", "noise", "cut"])
@pytest.mark.parametrize("after", [True, False])
def test_a_side_that_cannot_be_read_is_one_line_and_exit_2(data: bytes, after: bool, models: Models, tmp_path: Path) -> None:
    bad = broken(tmp_path / "bad", data)
    code, out, err = run(*((models("base"), bad) if after else (bad, models("base"))))
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("tieaudit: ")
    assert f"{bad}: cannot be read: {'after' if after else 'before'}: model.safetensors: " in err


def test_a_file_that_is_cut_is_never_called_the_same(models: Models, tmp_path: Path) -> None:
    whole = (models("base") / "model.safetensors").read_bytes()
    cut = folder(tmp_path / "cut", {"config.json": (models("base") / "config.json").read_bytes(), "model.safetensors": whole[:-5000]})
    found = diff(models("base"), cut)
    assert not found.same
    assert found.verdict in ("incomplete", "error")
    code, out, _ = run(models("base"), cut)
    assert code != 0
    assert "model.safetensors" in out


def test_a_target_that_is_none_is_one_line(tmp_path: Path, models: Models) -> None:
    (tmp_path / "nothing").mkdir()
    for words in ((tmp_path / "nothing", models("base")), (models("base"), tmp_path / "nowhere")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_names_of_a_hostile_file_reach_no_terminal(tmp_path: Path) -> None:
    nasty = "\x1b]8;;evil\x07\u202e<script>[/red]\n|,=cmd()"
    one = folder(tmp_path / "a", {"model.safetensors": safetensors({nasty: matrix(1), "b" * 5000: matrix(2)})})
    two = folder(tmp_path / "b", {"model.safetensors": safetensors({nasty: matrix(3)})})
    found = diff(one, two)
    text = diff_text.render(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 3000
    assert [finding.rule for finding in found.findings] == ["value-change", "value-change"]
    checked(found)


def test_exit_codes(models: Models) -> None:
    base = models("base")
    assert run(base, models("sharded"))[0] == 0
    assert run(base, models("lora"))[0] == 1
    assert run(base, models("lora"), "--fail-on", "never")[0] == 0
    assert run(base, models("lora"), "--ignore", "value-change")[0] == 0
    assert run(base, models("untied"))[0] == 0
    assert run(base, models("untied"), "--fail-on", "warning")[0] == 1
    assert run(base, models("untied"), "--expect", "same-ties")[0] == 1
    assert run(base, models("untied"), "--expect", "same-values")[0] == 0
    assert run(base, models("untied"), "--expect", "same-values,smaller")[0] == 1
    assert run(base, models("bf16"), "--expect", "smaller", "--expect", "same-ties")[0] == 0
    assert run(base, models("lora"), "--expect", "same-ties")[0] == 0  # nothing else was expected
    assert run(base, models("bnb4"), "--expect", "same-values")[0] == 2  # values that nobody decodes
    assert run(base, models("bnb4"), "--expect", "same-values", "--allow-partial")[0] == 0


def test_options_that_do_not_exist_are_refused(models: Models) -> None:
    base = models("base")
    for options, words in (
        ({"expect": "smaler"}, "--expect: 'smaler' is not known (same-ties, same-values or smaller)"),
        ({"verify": "deep"}, "--verify: 'deep' is not known (headers, sample or full)"),
        ({"select": "TIE001"}, "--select: 'TIE001' is not known (a comparison has the rules TIE901 to TIE904)"),
    ):
        with pytest.raises(OptionError) as raised:
            diff(base, base, **options)  # type: ignore[arg-type]
        assert str(raised.value) == words
    with pytest.raises(TargetError):
        diff(base, base / "nothing")
    assert run(base, base, "--expect", "smaler")[0] == 2


def test_headers_alone_promise_nothing(models: Models) -> None:
    found = diff(models("base"), models("sharded"), verify="headers", expect="same-values")
    assert diff_text.render(found).startswith("OK  ")
    assert "no value that was compared changed in a way that is not expected; not all were" in diff_text.render(found).splitlines()[0]
    assert found.counts == {"not compared": TENSORS}
    assert found.expectations[0].met is None
    assert found.not_compared[0].reason == "--verify headers reads none"


@pytest.mark.parametrize("width", [40, 60, 100, None])
def test_the_text_fits_its_width(width: int | None, models: Models) -> None:
    found = diff(models("base"), models("head.gguf"), expect=["same-ties", "same-values"])
    text = diff_text.render(found, width=width)
    if width:
        long = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
        # a name that is longer than the line stands alone in it
        assert all(len(max(line.split(), key=len)) + 13 > width for line in long)
    words = " ".join(text.split())
    for told in ("one matrix before, stored twice after", "the head is stored again", "same-ties: NO,", "same-values: yes,",
                 "TIE901 warning tie-lost"):  # fmt: skip
        assert told in words


def test_colours_are_painted_on_words_alone(models: Models) -> None:
    found = diff(models("base"), models("lora"))
    painted = diff_text.render(found, paint=lambda text, colour: f"<{colour}>{text}</>")
    assert painted.startswith("<red>ERROR</>  ")
    assert "<red>TIE903 error</> value-change" in painted


def test_the_rules_are_listed_and_have_pages() -> None:
    assert [(rule.code, rule.name, rule.severity.value) for rule in all_rules() if rule.code.startswith("TIE9")] == [
        ("TIE901", "tie-lost", "warning"),
        ("TIE902", "head-lost", "error"),
        ("TIE903", "value-change", "error"),
        ("TIE904", "size-growth", "note"),
    ]
    out = CliRunner().invoke(cli, ["rules", "TIE903"]).stdout
    assert "Allowed: a cast, quantisation" in out


def test_the_logits_of_a_perturbed_copy_differ(models: Models, tmp_path: Path) -> None:
    def perturb(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q0] += 1.0

    same = diff(models("base"), models("sharded"), logits=True).changes.outputs
    assert same is not None
    assert (same.held, same.max_difference, same.agreement) == (True, 0.0, 1.0)
    other = copy(models("base"), tmp_path / "perturbed", perturb)
    found = diff(models("base"), other, logits=True)
    assert found.changes.outputs is not None
    assert found.changes.outputs.held is False
    truth = []
    from transformers import LlamaForCausalLM

    ids = torch.randint(0, 96, (1, 12), generator=torch.Generator().manual_seed(5))
    for path in (models("base"), other):
        with torch.no_grad():
            truth.append(LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()(ids).logits.double())
    assert found.changes.outputs.max_difference == pytest.approx(float((truth[0] - truth[1]).abs().max()), rel=1e-9)
    assert found.changes.outputs.agreement == float((truth[0].argmax(-1) == truth[1].argmax(-1)).double().mean())
    assert [finding.rule for finding in found.findings] == ["value-change", "value-change"]
    checked(found)


def test_logits_of_a_cast_and_of_an_export_are_within_the_tolerance(models: Models) -> None:
    for name in ("bf16", "onnx", "resized"):
        outputs = diff(models("base"), models(name), logits=True).changes.outputs
        assert outputs is not None
        assert outputs.tried, outputs.words
        assert outputs.held, (name, outputs.words)
        assert outputs.agreement is not None
        assert outputs.agreement > 0.9


def test_logits_that_cannot_be_tried_say_why(models: Models, online: Hub) -> None:
    outputs = diff(models("base"), models("q8.gguf"), logits=True).changes.outputs
    assert outputs is not None
    assert (outputs.tried, outputs.held) == (False, None)
    assert outputs.words == "not tried: after: gguf is run by nothing that is called here"
    online.add("org/model", models("base"))
    outputs = diff(models("base"), "org/model", logits=True).changes.outputs
    assert outputs is not None
    assert outputs.words == "not tried: org/model is not on this machine"
    found = diff(models("base"), models("flipped"), logits=True)
    assert found.changes.outputs is not None
    assert found.changes.outputs.words == f"not tried: after: {HEAD} is not in the file, so its values are random"


def test_adapters_are_compared_like_models() -> None:
    path = ROOT / "cases" / "warn_adapter_targets_tied"
    found = diff(path, path)
    assert found.same
    assert all(pair.kind is Change.EQUAL for pair in found.changes.pairs)
    assert found.changes.pairs
