"""Every class in the catalog, built small and saved by the installed transformers: a healthy file of each, under every flag, is silent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from builders import folder, torch_zip
from tieaudit import Severity, audit
from tieaudit.catalog import lookup, tiny
from tieaudit.catalog.generate import in_children

FLAGS = {"as the class has it": None, "flag true": True, "flag false": False}
CONSTANT = 1e-12  # spread of the values of a matrix that nobody initialised


@pytest.mark.slow
def test_healthy_files_of_every_class_are_silent() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    classes = tiny.architectures()
    names = [name for name in lookup.names() if name in classes]
    found = in_children(names, lambda name: _judged(classes[name]), jobs=2)
    assert len(names) > 50
    assert {name: result["alarms"] for name, result in found.items() if result.get("alarms")} == {}
    errors = {name: result["error"] for name, result in found.items() if "error" in result}
    # a class that cannot be built small proves nothing; most can
    assert len(errors) < len(names) / 10, errors


def _judged(cls: type[transformers.PreTrainedModel]) -> dict[str, Any]:
    smallest, _ = tiny.tiny(cls)
    alarms: list[str] = []
    for words, flag in FLAGS.items():
        keys = smallest if flag is None else tiny.with_values(smallest, {("tie_word_embeddings",): flag})
        try:
            model = tiny.build(cls, keys, "cpu")
        except Exception:  # noqa: BLE001, S112  some classes refuse one of the flags
            continue
        _fill(model)
        for form, path in _saved(model):
            report = audit(path)
            alarms += [
                f"{words}, {form}: {found.rule}: {found.message}" for found in report.findings if found.severity is not Severity.NOTE
            ]
            alarms += [f"{words}, {form}: skipped {skip.subject}: {skip.reason}" for skip in report.skipped]
    return {"alarms": alarms}


def _fill(model: transformers.PreTrainedModel) -> None:
    """Random values for what the class leaves at one number, as training would."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point() and float(parameter.std()) < CONSTANT:
                parameter.normal_(0, 0.02)


def _saved(model: transformers.PreTrainedModel) -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "safetensors")
        model.save_pretrained(path)
        yield "safetensors", path
    with tempfile.TemporaryDirectory() as name:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(name)
        yield "torch", folder(Path(name), {"pytorch_model.bin": torch_zip(model.state_dict())})
