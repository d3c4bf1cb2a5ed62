"""This file holds a model on the meta device: names and shapes of its parameters as transformers builds it, without a byte of weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..errors import TargetError
from . import twins

MAX_DEPTH = 10_000  # layers, experts: what would be built one by one
_REPEATED = re.compile(r"layers?|blocks?|experts?|depth|stages?")
_WIDTH = re.compile(r"size|dim|_id|window|length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Parameters {name: shape}, {alias: the name of the same Parameter}, and the weights at the ends."""

    tensors: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    embedding: str | None
    head: str | None
    version: str = transformers.__version__


def build(config: Mapping[str, Any], target: str) -> Built:
    """Of the class that the config names, if it is one of transformers' own; code beside a config is not run. TargetError if not."""
    kind, asked = config.get("model_type"), config.get("architectures")
    name = asked[0] if isinstance(asked, list) and asked else None
    cls: Any = getattr(transformers, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)) or kind not in CONFIG_MAPPING:
        what = f"{str(name or kind)[:60]} is no class of transformers {transformers.__version__}"
        raise TargetError(target, what, "--meta runs no other code")
    for path, value in _counts(config):
        if value > MAX_DEPTH:
            raise TargetError(target, f"{path} is {value:,}", "no model has so many")
    try:
        with twins.quiet(), twins.offline(), torch.device("meta"):
            settings: Any = CONFIG_MAPPING[kind].from_dict(dict(config))
            model: Any = cls(settings)
    except Exception as error:  # noqa: BLE001  any class may raise anything about a config
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TargetError(target, f"transformers {transformers.__version__} cannot build it: {words}") from None
    first: dict[int, str] = {}
    tensors, aliases = {}, {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        tensors[path] = tuple(parameter.shape)
        if first.setdefault(id(parameter), path) != path:
            aliases[path] = first[id(parameter)]
    return Built(tensors=tensors, aliases=aliases, embedding=_end(model, "input", tensors), head=_end(model, "output", tensors))


def _counts(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Keys that say how many modules are built."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value, f"{prefix}{key}.")
        elif type(value) is int and _REPEATED.search(key) and not _WIDTH.search(key):
            yield prefix + key, value


def _end(model: Any, which: str, tensors: Mapping[str, tuple[int, ...]]) -> str | None:
    try:
        module = getattr(model, f"get_{which}_embeddings")()
    except (AttributeError, NotImplementedError):
        return None
    found = next((f"{name}.weight" for name, other in model.named_modules() if other is module), None) if module is not None else None
    return found if found in tensors else None
