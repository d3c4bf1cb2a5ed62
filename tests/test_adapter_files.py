"""Adapters as bytes: what adapter_config.json may say, where a base is looked for, shapes that do not fit, and files made to do harm."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import tieaudit
from builders import COLUMNS, EMBED, HEAD, MATRIX_NBYTES, ROWS, Raw, config, folder, index, matrix, safetensors, tied, torch_zip, untied
from hub_server import Hub
from memory_source import MemorySource
from tieaudit import Report, TargetError, adapters, audit
from tieaudit.adapters import AdapterConfig, Copy
from tieaudit.checkpoint import TensorRecord
from tieaudit.loaders import safetensors as loader
from tieaudit.reporters import json as reporter
from tieaudit.reporters import terminal
from tieaudit.sources.local import LocalFolder

SCHEMA = json.loads((Path(tieaudit.__file__).parent / "reporters" / "report.schema.json").read_text(encoding="utf-8"))
PREFIX = "base_model.model."
E, H = matrix(1), matrix(2)
A, B = PREFIX + "lm_head.lora_A.weight", PREFIX + "lm_head.lora_B.weight"
EMBEDDING_A, EMBEDDING_B = PREFIX + "model.embed_tokens.lora_embedding_A", PREFIX + "model.embed_tokens.lora_embedding_B"
LORA = {A: matrix(7, 2), B: matrix(8, ROWS, 2)}
TIED_BASE = {"base/config.json": tied(), "base/model.safetensors": safetensors({EMBED: E})}
UNTIED_BASE = {"base/config.json": untied(), "base/model.safetensors": safetensors({EMBED: E, HEAD: H})}
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "target_modules": ["lm_head"]}


def adapter(tensors: Mapping[str, Any], **keys: Any) -> dict[str, bytes]:
    return {"adapter_config.json": json.dumps({**CONFIG, **keys}).encode(), "adapter_model.safetensors": safetensors(tensors)}


def found(report: Report) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity.value) for finding in report.findings]


def told(report: Report, rule: str) -> str:
    [finding] = [finding for finding in report.findings if finding.rule == rule]
    return finding.message


# where the base is looked for


def test_a_base_is_found_from_the_adapters_folder_and_from_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "one", {**adapter(LORA), **TIED_BASE})
    folder(tmp_path / "two", adapter(LORA))
    folder(tmp_path / "three", adapter(LORA, base_model_name_or_path="../one/base"))
    folder(tmp_path / "four", adapter(LORA, base_model_name_or_path=str(tmp_path / "one" / "base")))
    (tmp_path / "five").symlink_to(tmp_path / "one" / "base")
    folder(tmp_path / "six", adapter(LORA, base_model_name_or_path="../five"))
    for name in ("one", "three", "four", "six"):
        assert found(audit(tmp_path / name)) == [("adapter-targets-tied", "warning")], name
    assert found(audit(tmp_path / "two")) == [("adapter-targets-tied", "note")]
    monkeypatch.chdir(tmp_path / "one")
    assert found(audit(tmp_path / "two")) == [("adapter-targets-tied", "warning")]


def test_one_file_of_an_adapter_is_judged_with_what_stands_beside_it(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter(LORA), **TIED_BASE})
    assert found(audit(tmp_path / "adapter_model.safetensors")) == [("adapter-targets-tied", "warning")]


def test_a_config_beside_the_adapter_stands_for_a_base_that_is_not_there(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter(LORA, base_model_name_or_path="org/model"), "config.json": tied()})
    report = audit(tmp_path)
    assert found(report) == [("adapter-targets-tied", "warning")]
    assert [(tie.claim, tie.relation) for tie in report.ties] == [("tied", "one matrix")]
    folder(tmp_path, {"config.json": untied()})
    assert found(audit(tmp_path)) == []


def test_a_base_of_a_config_alone_is_enough_for_the_claim(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter({**LORA, PREFIX + "lm_head.base_layer.weight": E}), "base/config.json": tied()})
    assert found(audit(tmp_path)) == [("adapter-targets-tied", "warning"), ("adapter-base-copy", "note")]


def test_a_tie_that_the_base_itself_has_lost_is_no_tie(tmp_path: Path) -> None:
    base = {"base/config.json": tied(), "base/model.safetensors": safetensors({EMBED: E, HEAD: H})}
    assert found(audit(folder(tmp_path, {**adapter(LORA), **base}))) == []


def test_weights_without_a_config_are_no_base_unless_the_user_says_so(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter({**LORA, PREFIX + "lm_head.base_layer.weight": H}), **UNTIED_BASE})
    (tmp_path / "base" / "config.json").unlink()
    assert found(audit(tmp_path)) == [("adapter-targets-tied", "note"), ("adapter-base-copy", "note")]
    named = audit(tmp_path, base=tmp_path / "base")
    assert found(named) == [("adapter-base-copy", "warning"), ("adapter-targets-tied", "note")]
    assert found(audit(tmp_path, base=tmp_path / "base" / "model.safetensors")) == found(named)


def test_the_cost_of_the_base_is_counted(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter(LORA), **TIED_BASE})
    whole = audit(tmp_path).cost
    (tmp_path / "base").rename(tmp_path / "gone")
    alone = audit(tmp_path).cost
    files = sum(len(data) for data in TIED_BASE.values()) - MATRIX_NBYTES
    assert whole.bytes_read >= alone.bytes_read + files
    assert whole.requests >= alone.requests + 3  # the config, and the length and the text of one header


def test_a_task_without_a_head_has_nothing_to_split(tmp_path: Path) -> None:
    saved = {PREFIX + "model.embed_tokens.weight": H}
    for task, expected in (
        ("SEQ_CLS", []),
        ("CAUSAL_LM", [("adapter-splits-tie", "warning")]),
        (None, [("adapter-splits-tie", "warning")]),
    ):
        files = adapter(saved, modules_to_save=["embed_tokens"], target_modules=["q_proj"], task_type=task)
        assert found(audit(folder(tmp_path, {**files, **TIED_BASE}))) == expected


def test_layers_and_other_modalities_are_no_ends(tmp_path: Path) -> None:
    names = ("model.layers.0.lm_head", "vision_tower.embed_tokens", "model.layers.3.shared_head.head", "score", "talker.lm_head")
    tensors = {f"{PREFIX}{name}.{leaf}.weight": array for name in names for leaf, array in (("lora_A", matrix(1, 2)), ("lora_B", H[:, :2]))}
    report = audit(folder(tmp_path, adapter(tensors, base_model_name_or_path="org/model")))
    assert (report.verdict, report.findings) == ("ok", ())
    assert "leaves embedding and head alone" in report.reason


def test_two_ends_that_no_module_list_keeps_apart_and_that_differ(tmp_path: Path) -> None:
    both = {PREFIX + HEAD: matrix(3), PREFIX + EMBED: matrix(4)}
    report = audit(folder(tmp_path, {**adapter(both, target_modules=["q_proj"]), **TIED_BASE}))
    assert found(report) == [("adapter-splits-tie", "warning")]
    assert "loaded last wins" in told(report, "adapter-splits-tie")
    headers = audit(tmp_path, verify="headers")
    assert found(headers) == []
    folder(tmp_path, {**UNTIED_BASE})
    assert found(audit(tmp_path)) == []


def test_a_copy_in_another_dtype_is_a_copy(tmp_path: Path) -> None:
    files = {**adapter({**LORA, PREFIX + "lm_head.base_layer.weight": H.astype(np.float64)}), **UNTIED_BASE}
    report = audit(folder(tmp_path, files))
    assert [(f.rule, f.wasted_bytes, f.evidence) for f in report.findings] == [("adapter-base-copy", 2 * MATRIX_NBYTES, "proved")]
    assert "in another dtype" in told(report, "adapter-base-copy")


def test_equality_by_pages_is_to_be_proved_first(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {**adapter({**LORA, PREFIX + "lm_head.base_layer.weight": H}), **UNTIED_BASE}), verify="sample")
    [finding] = report.findings
    assert (finding.evidence, finding.wasted_bytes) == ("sampled", MATRIX_NBYTES)
    assert (finding.fix or "").startswith("prove it first")


def test_headers_alone_prove_no_copy(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {**adapter({**LORA, PREFIX + "lm_head.base_layer.weight": E}), **TIED_BASE}), verify="headers")
    assert found(report) == [("adapter-targets-tied", "warning")]
    assert not report.skipped


def test_a_sharded_adapter_is_an_adapter(tmp_path: Path) -> None:
    files = adapter({})
    del files["adapter_model.safetensors"]
    shards = {f"adapter_model-0000{at}-of-00002.safetensors": {name: LORA[name]} for at, name in enumerate((A, B), 1)}
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    files |= {file: safetensors(tensors) for file, tensors in shards.items()}
    files["adapter_model.safetensors.index.json"] = index(weight_map)
    assert found(audit(folder(tmp_path, {**files, **TIED_BASE}))) == [("adapter-targets-tied", "warning")]


def test_the_model_and_an_adapter_in_one_folder_are_both_judged(tmp_path: Path) -> None:
    model = {"config.json": tied(), "model.safetensors": safetensors({EMBED: E, HEAD: E})}
    report = audit(folder(tmp_path, {**model, **adapter(LORA, base_model_name_or_path=".")}))
    assert found(report) == [("duplicate-tie", "warning"), ("adapter-targets-tied", "warning")]
    assert report.totals.parameters_stored == 2 * ROWS * COLUMNS


# shapes


@pytest.mark.parametrize(
    ("tensors", "keys", "words"),
    [
        ({**LORA, B: matrix(8, ROWS, 3)}, {}, "their ranks differ"),
        ({A: matrix(7, 2, COLUMNS - 1), B: LORA[B]}, {}, f"a matrix of {ROWS} × {COLUMNS - 1}, but lm_head.weight of the base has"),
        ({**LORA, B: matrix(8, ROWS + 6, 2)}, {}, f"a matrix of {ROWS + 6} × {COLUMNS}, but lm_head.weight of the base has"),
        ({EMBEDDING_A: matrix(1, 2, ROWS - 1), EMBEDDING_B: matrix(2, COLUMNS, 2)}, {}, f"a matrix of {ROWS - 1} × {COLUMNS}"),
        ({PREFIX + HEAD: matrix(3, ROWS, COLUMNS + 1)}, {"modules_to_save": ["lm_head"]}, f"lm_head.weight of the base is {COLUMNS} wide"),
        (
            {PREFIX + HEAD: matrix(3, ROWS + 6), PREFIX + EMBED: matrix(4, ROWS)},
            {"modules_to_save": ["lm_head", "embed_tokens"]},
            f"has {ROWS} rows, {PREFIX}lm_head.weight has {ROWS + 6}",
        ),
        (
            {PREFIX + "model.embed_tokens.token_adapter.trainable_tokens_delta": matrix(1, 3, COLUMNS + 1)},
            {},
            f"has rows of {COLUMNS + 1}, but model.embed_tokens.weight of the base has rows of {COLUMNS}",
        ),
        (
            {PREFIX + "model.embed_tokens.token_adapter.trainable_tokens_delta": matrix(1, 3)},
            {"trainable_token_indices": [5, 6]},
            "has 3 rows, but trainable_token_indices lists 2",
        ),
        (
            {**LORA, PREFIX + "lm_head.base_layer.weight": matrix(3, ROWS + 6)},
            {},
            f"a matrix of {ROWS} × {COLUMNS}, but the adapter's own copy has {ROWS + 6} × {COLUMNS}",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path: Path, tensors: dict[str, Any], keys: dict[str, Any], words: str) -> None:
    report = audit(folder(tmp_path, {**adapter(tensors, **keys), **UNTIED_BASE}))
    [finding] = [finding for finding in report.findings if finding.severity == "error"]
    assert finding.rule == "adapter-row-mismatch"
    assert words in finding.message


@pytest.mark.parametrize(
    ("tensors", "keys"),
    [
        (LORA, {}),
        ({A: matrix(7, 2, COLUMNS // 2), B: LORA[B]}, {"use_qalora": True}),
        ({EMBEDDING_A: matrix(1, 2, ROWS), EMBEDDING_B: matrix(2, COLUMNS, 2)}, {}),
        # a base in four bits has its bytes in one column
        ({**LORA, PREFIX + "lm_head.base_layer.weight": Raw("U8", (ROWS * COLUMNS // 2, 1), bytes(ROWS * COLUMNS // 2))}, {}),
        ({PREFIX + "lm_head.lora_A.weight": matrix(1, 2), PREFIX + "lm_head.lora_magnitude_vector": matrix(1, 1, ROWS)[0]}, {}),
    ],
)
def test_what_fits_is_none(tmp_path: Path, tensors: dict[str, Any], keys: dict[str, Any]) -> None:
    assert found(audit(folder(tmp_path, {**adapter(tensors, **keys), **UNTIED_BASE}))) == []


def test_one_resized_end_of_two_loses_the_rows_of_the_other(tmp_path: Path) -> None:
    tensors = {
        PREFIX + "model.embed_tokens.base_layer.weight": matrix(3, ROWS + 6),
        EMBEDDING_A: matrix(1, 2, ROWS + 6),
        EMBEDDING_B: H[:COLUMNS, :2],
    }
    report = audit(folder(tmp_path, {**adapter(tensors), **UNTIED_BASE}))
    assert found(report) == [("adapter-row-mismatch", "warning")]
    assert "its new rows are lost" in told(report, "adapter-row-mismatch")
    folder(tmp_path, {"base/config.json": tied(), "base/model.safetensors": safetensors({EMBED: E})})
    assert ("adapter-row-mismatch", "note") in found(audit(tmp_path))


# names and config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base_model.model.lm_head.weight", ("lm_head", Copy.FULL)),
        ("base_model.model.lm_head.base_layer.weight", ("lm_head", Copy.BASE)),
        ("base_model.model.lm_head.token_adapter.base_layer.weight", ("lm_head", Copy.BASE)),
        ("base_model.model.lm_head.modules_to_save.default.weight", ("lm_head", Copy.SAVED)),
        ("base_model.model.lm_head.modules_to_save.weight", ("lm_head", Copy.SAVED)),
        ("base_model.model.lm_head.original_module.weight", ("lm_head", Copy.ORIGINAL)),
        ("base_model.model.model.embed_tokens.weight", ("model.embed_tokens", Copy.FULL)),
        ("model.language_model.embed_tokens.base_layer.weight", ("model.language_model.embed_tokens", Copy.BASE)),
        ("base_model.model.transformer.wte.lora_embedding_A", ("transformer.wte", None)),
        ("base_model.model.lm_head.ia3_l", ("lm_head", None)),
        ("base_model.model.lm_head.hada_w1_a", ("lm_head", None)),
        ("base_model.model.lm_head.lora_A.default.weight", ("lm_head", None)),
        ("base_model.model.lm_head.bias", None),
        ("base_model.model.lm_head.something.weight", None),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", None),
        ("base_model.vera_A", None),
        ("prompt_embeddings", None),
        ("", None),
        ("...", None),
        ("lm_head", None),
        (".weight", None),
    ],
)
def test_a_name_says_what_it_is(name: str, expected: tuple[str, Copy | None] | None) -> None:
    ends = adapters.ends([_record(name)])
    if expected is None:
        assert ends == ()
        return
    [end] = ends
    assert (end.module, end.copies[0][0] if end.copies else None) == expected
    assert bool(end.deltas) is (expected[1] is None)


def _record(name: str) -> TensorRecord:
    return loader.load(MemorySource("adapter_model.safetensors", safetensors({name: E}))).tensors[0]


@pytest.mark.parametrize(
    ("leaf", "method"),
    [("lora_A.weight", "LoRA"), ("ia3_l", "IA3"), ("hada_w1_a", "LoHa"), ("lokr_w1", "LoKr"), ("oft_R.weight", "OFT"),
     ("vera_lambda_b", "VeRA"), ("lora_magnitude_vector", "DoRA"), ("waveft_spectrum", "waveft")],
)  # fmt: skip
def test_the_method_is_told_by_its_tensors(leaf: str, method: str) -> None:
    [end] = adapters.ends([_record(f"{PREFIX}lm_head.{leaf}")])
    assert end.method == method


def test_only_so_many_ends_are_looked_at() -> None:
    template = _record("x")
    many = [dataclasses.replace(template, name=f"{'a' * at}.lm_head.weight") for at in range(1, 2000)]
    assert len(adapters.ends(many)) == adapters.MAX_ENDS
    same = [dataclasses.replace(template, name=f"lm_head.modules_to_save.n{at}.weight") for at in range(2000)]
    assert len(adapters.ends(same)[0].copies) == adapters.MAX_COPIES


def read(tmp_path: Path, content: object) -> tuple[AdapterConfig | None, str]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    opened = LocalFolder(folder(tmp_path, {"adapter_config.json": data}))
    try:
        config, fault, unread = adapters.read_config(opened)
    finally:
        opened.close()
    assert unread is None
    return config, fault.what if fault else ""


def test_the_config_as_it_is_typed(tmp_path: Path) -> None:
    content = {
        "peft_type": "lora",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/model",
        "peft_version": "0.21.2",
        "target_modules": ["q_proj", "lm_head"],
        "exclude_modules": "model.*",
        "modules_to_save": ["embed_tokens"],
        "trainable_token_indices": [1, 2, 3],
        "ensure_weight_tying": True,
        "r": 8,
        "lora_alpha": 16,
        "rank_pattern": {"lm_head": 4, "bad": "x"},
        "layers_to_transform": 3,
        "fan_in_fan_out": True,
    }
    assert read(tmp_path, content) == (
        AdapterConfig(
            peft_type="LORA",
            task_type="CAUSAL_LM",
            base="org/model",
            peft_version="0.21.2",
            target_modules=("q_proj", "lm_head"),
            exclude_modules="model.*",
            modules_to_save=("embed_tokens",),
            trainable_tokens=3,
            ensure_weight_tying=True,
            r=8,
            alpha=16.0,
            rank_pattern={"lm_head": 4},
            layers_to_transform=(3,),
            fan_in_fan_out=True,
        ),
        "",
    )
    assert read(tmp_path, {}) == (AdapterConfig(), "")


def test_a_regular_expression_of_a_file_is_never_run() -> None:
    assert AdapterConfig(target_modules="(a+)+$").targets("a" * 100) is None
    assert AdapterConfig(target_modules="all-linear").targets("lm_head") is False
    assert AdapterConfig(target_modules=("head",)).targets("lm_head") is False
    assert AdapterConfig(modules_to_save=("head",)).saves("lm_head")  # PEFT asks for the end of the name alone
    assert not AdapterConfig(modules_to_save=("",)).saves("lm_head")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5000, "is not JSON"),
        (b"null", "is null, not a JSON object"),
        (b"[]", "is a list, not a JSON object"),
        ({"peft_type": 3}, "peft_type is a number, not a name"),
        ({"base_model_name_or_path": ["base"]}, "base_model_name_or_path is a list"),
        ({"modules_to_save": [["lm_head"]]}, "modules_to_save is a list with other things than names, not a list of names"),
        ({"target_modules": {"lm_head": 1}}, "target_modules is an object, not a list of names"),
    ],
)
def test_a_broken_config_is_told_and_the_rest_is_judged(tmp_path: Path, content: Any, words: str) -> None:
    assert words in read(tmp_path, content)[1]
    folder(tmp_path, {"adapter_model.safetensors": safetensors({**LORA, B: matrix(8, ROWS, 3)})})
    report = audit(tmp_path)
    assert words in told(report, "malformed-file")
    assert ("adapter-row-mismatch", "error") in found(report)


def test_a_huge_config_is_not_read(tmp_path: Path) -> None:
    folder(tmp_path, adapter(LORA))
    with (tmp_path / "adapter_config.json").open("r+b") as file:
        file.truncate(adapters.MAX_CONFIG + 1)
    report = audit(tmp_path)
    assert "bytes long; at most" in told(report, "malformed-file")
    assert report.cost.bytes_read < 100_000


@pytest.mark.parametrize("value", [True, -1, 1e308, "x", [], {}, {"a": {}}, [None], [[1]], "\0", "~", "../" * 3000, "a" * 100_000])
def test_no_value_of_any_key_is_trusted(tmp_path: Path, value: object) -> None:
    keys = ("task_type", "base_model_name_or_path", "modules_to_save", "target_modules", "trainable_token_indices", "r", "lora_alpha",
            "rank_pattern", "layers_to_transform", "ensure_weight_tying", "peft_version", "exclude_modules", "use_bdlora")  # fmt: skip
    for key in keys:
        report = audit(folder(tmp_path, adapter({**LORA, PREFIX + HEAD: H}, **{key: value})))
        assert report.verdict in ("ok", "note", "warning", "error")
        terminal.render(report)


@pytest.mark.parametrize(
    "base", ["/dev/zero", "/dev", "/dev/stdin", "/proc/self/mem", "..", ".", "", "~", "//", "pipe", "../links/loop", "file", "hf://org/model",
             "s3://b/k", "file:///dev/zero", "\0", "base\0/x", "https://127.0.0.1:9/org/model", "org/model", "sub/base"],
)  # fmt: skip
def test_a_base_that_is_no_folder_of_a_model_is_never_opened(tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tieaudit.sources import target

    monkeypatch.setattr(target, "_hub", lambda *words: pytest.fail(f"asked the Hub for {words}"))
    place = folder(tmp_path / "adapter", {**adapter(LORA, base_model_name_or_path=base), "file": b"x"})
    os.mkfifo(place / "pipe")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "loop").symlink_to("loop")
    report = audit(place)
    assert found(report) == [("adapter-targets-tied", "note")]
    assert report.cost.bytes_read < 10_000
    assert not report.skipped


@pytest.mark.parametrize("inside", ["fifo", "link", "device", "garbage"])
def test_what_lies_in_a_base_is_opened_only_if_it_is_a_file_of_it(tmp_path: Path, inside: str) -> None:
    place = folder(tmp_path, {**adapter(LORA), "base/config.json": tied()})
    weights = place / "base" / "model.safetensors"
    if inside == "fifo":
        os.mkfifo(weights)
    elif inside == "garbage":
        weights.write_bytes(b"\xff" * 100)
    else:
        secret = folder(tmp_path.parent / f"{tmp_path.name}-secret", {"model.safetensors": safetensors({EMBED: E, HEAD: H})})
        weights.symlink_to("/dev/zero" if inside == "device" else secret / "model.safetensors")
    report = audit(place)
    # the config alone says that it is tied; had the weights behind the link been read, the two ends would be apart
    assert found(report) == [("adapter-targets-tied", "warning")]


def test_a_base_with_a_broken_config_is_told_and_nothing_is_claimed(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {**adapter(LORA), **TIED_BASE, "base/config.json": b"{"}))
    assert found(report) == [("adapter-targets-tied", "note")]
    assert any(skip.subject == "the base base" and "is not JSON" in skip.reason for skip in report.not_compared)
    named = audit(tmp_path, base=tmp_path / "base")
    assert [skip.subject for skip in named.skipped] == [f"the base {tmp_path / 'base'}"]


def test_files_of_a_base_never_stand_for_files_of_the_adapter(tmp_path: Path) -> None:
    """The same names on both sides, also where the adapter's shard lies in a folder `base` of its own."""
    base = {"config.json": untied(), "model.safetensors": safetensors({EMBED: E, HEAD: H})}
    base["adapter_model.safetensors"] = safetensors({PREFIX + HEAD: matrix(3), PREFIX + EMBED: matrix(4)})
    folder(tmp_path / "other", base)
    files = adapter({PREFIX + HEAD: H}, base_model_name_or_path="../other", modules_to_save=["lm_head"])
    assert found(audit(folder(tmp_path / "a", files))) == [("adapter-base-copy", "warning")]
    files["adapter_model.safetensors.index.json"] = index({PREFIX + HEAD: "base/model.safetensors"})
    files["base/model.safetensors"] = files.pop("adapter_model.safetensors")
    assert found(audit(folder(tmp_path / "b", files))) == [("adapter-base-copy", "warning")]


@pytest.mark.parametrize("seed", range(3))
def test_any_cut_and_any_flipped_byte_of_the_two_files(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    whole = {
        **adapter({**LORA, PREFIX + "lm_head.base_layer.weight": H, PREFIX + EMBED: E}, modules_to_save=["embed_tokens"]),
        **UNTIED_BASE,
    }
    folder(tmp_path, whole)
    for name in ("adapter_config.json", "adapter_model.safetensors", "base/config.json", "base/model.safetensors"):
        for _ in range(25):
            data = bytearray(whole[name])
            if dice.random() < 0.3:
                del data[dice.randrange(len(data)) :]
            else:
                data[dice.randrange(min(len(data), 600))] = dice.randrange(256)
            (tmp_path / name).write_bytes(bytes(data))
            try:
                terminal.render(audit(tmp_path))
            except TargetError:  # a folder without any checkpoint that is left
                continue
        (tmp_path / name).write_bytes(whole[name])


# reports


def test_the_report_says_what_it_is_about(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {**adapter(LORA, target_modules=["q_proj"]), **UNTIED_BASE}))
    assert report.reason == "an adapter (LORA) of base: it changes lm_head, which the base shares with nothing"
    text = terminal.render(report)
    assert "stored   adapter: LoRA on lm_head; base: two different matrices (sampled)\n" in text
    assert f"{2 * COLUMNS + 2 * ROWS} parameters" in text
    jsonschema.Draft202012Validator(SCHEMA).validate(reporter.document(report))


@pytest.mark.parametrize("base", [TIED_BASE, UNTIED_BASE, {}])
@pytest.mark.parametrize("tensors", [LORA, {PREFIX + HEAD: E, PREFIX + EMBED: E}, {}])
def test_every_report_fits_the_schema(tmp_path: Path, base: dict[str, bytes], tensors: dict[str, Any]) -> None:
    for verify in ("headers", "sample", "full"):
        report = audit(folder(tmp_path, {**adapter(tensors), **base}), verify=verify)
        jsonschema.Draft202012Validator(SCHEMA).validate(reporter.document(report))


def test_names_of_a_file_reach_no_terminal(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, adapter(LORA, base_model_name_or_path="\x1b[2J\u202ebase", peft_type="\x1b]0;x\x07")))
    assert not {"\x1b", "\u202e", "\x07"} & set(terminal.render(report))


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tieaudit.__file__).parents[1]), "HF_ENDPOINT": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-m", "tieaudit", *map(str, words)], capture_output=True, text=True, env=environment, check=False, timeout=60
    )


def test_the_command_line_takes_a_base(tmp_path: Path) -> None:
    folder(tmp_path, {**adapter(LORA, base_model_name_or_path="org/model"), **TIED_BASE})
    alone = command(tmp_path, "--fail-on", "warning")
    assert (alone.returncode, "(1 note)" in alone.stdout) == (0, True)
    named = command(tmp_path, "--base", tmp_path / "base", "--fail-on", "warning")
    assert (named.returncode, "TIE602 warning" in named.stdout) == (1, True)
    lost = command(tmp_path, "--base", tmp_path / "nowhere")
    assert lost.returncode == 2
    assert "nowhere: no such file or folder" in lost.stderr


def test_a_base_without_an_adapter_is_not_read(tmp_path: Path) -> None:
    folder(tmp_path, TIED_BASE)
    report = audit(tmp_path / "base", base=tmp_path / "nowhere")
    assert [(skip.subject, skip.reason) for skip in report.not_compared] == [
        (f"the base {tmp_path / 'nowhere'}", "not read: there is no adapter here")
    ]


# the Hub


def test_a_base_on_the_hub_is_read_only_if_the_user_names_it(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path / "base", {"config.json": tied(), "model.safetensors": safetensors({EMBED: E})}))
    copied = {**LORA, PREFIX + "lm_head.base_layer.weight": E}
    place = folder(tmp_path / "adapter", adapter(copied, base_model_name_or_path="org/model"))
    assert found(audit(place)) == [("adapter-targets-tied", "note"), ("adapter-base-copy", "note")]
    assert online.requests == []
    report = audit(place, base="org/model")
    assert found(report) == [("adapter-base-copy", "warning"), ("adapter-targets-tied", "warning")]
    assert report.findings[0].evidence == "sampled"
    assert 0 < len(online.requests) < 8
    proved = audit(place, base="org/model", verify="full")
    assert [finding.evidence for finding in proved.findings] == ["proved", "header"]


def test_an_adapter_on_the_hub_names_nothing_on_this_machine(online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path, {**adapter(LORA, base_model_name_or_path=str(tmp_path / "base")), **TIED_BASE})
    online.add("org/adapter", place)
    monkeypatch.chdir(tmp_path)
    report = audit("org/adapter")
    assert found(report) == [("adapter-targets-tied", "note")]
    assert (report.cost.requests, report.cost.bytes_read) == (len(online.requests), online.body_bytes)
    assert len(online.requests) < 6
    assert found(audit("org/adapter", base=tmp_path / "base")) == [("adapter-targets-tied", "warning")]


def test_a_pickled_adapter_with_one_storage_repeats_nothing(tmp_path: Path) -> None:
    import torch

    shared = torch.from_numpy(matrix(3))
    files = {"adapter_model.bin": torch_zip({PREFIX + HEAD: shared, PREFIX + EMBED: shared})}
    files["adapter_config.json"] = adapter({})["adapter_config.json"]
    report = audit(folder(tmp_path, {**files, **TIED_BASE}))
    assert found(report) == []


def test_an_unknown_class_with_a_flag_is_judged_by_names(tmp_path: Path) -> None:
    base = {
        "base/config.json": config("MyOwnForCausalLM", "my_own", tie_word_embeddings=True),
        "base/model.safetensors": safetensors({EMBED: E}),
    }
    assert found(audit(folder(tmp_path, {**adapter(LORA), **base}))) == [("adapter-targets-tied", "note")]
    embedding = {EMBEDDING_A: matrix(1, 2, ROWS), EMBEDDING_B: matrix(2, COLUMNS, 2)}
    assert found(audit(folder(tmp_path, {**adapter(embedding), **base}))) == [("adapter-targets-tied", "note")]
