"""This file holds the tensors that a config alone asks for: names and shapes, without weights and without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .errors import TargetError
from .families import FAMILIES, Dims, Family, Row, Size, Switch
from .family_defaults import DEFAULTS

MAX_LAYERS = 10_000
MAX_SIZE = 1 << 40  # of one dimension; no real config comes near


def family_of(config: Mapping[str, Any], target: str) -> Family:
    """The family that the config names. TargetError if it is not laid out here."""
    kind = config.get("model_type")
    if kind is None and "architectures" not in config:
        raise TargetError(target, "names no model_type", "is it a config.json of transformers?")
    found = FAMILIES.get(kind) if isinstance(kind, str) else None
    family = found(config) if callable(found) else found
    if family is None:
        raise TargetError(target, f"model_type {str(kind)[:60]} is not laid out here", _other())
    asked = config.get("architectures")
    if isinstance(asked, list) and asked and asked[0] != family.architecture:
        raise TargetError(target, f"{str(asked[0])[:60]} is not laid out here, only {family.architecture}", _other())
    for key in family.refused:
        if config.get(key):
            raise TargetError(target, f"{key} changes the layout of {kind} in a way that is not laid out here", _other())
    return replace(family, defaults=DEFAULTS.get(str(kind), family.defaults))


def shapes(family: Family, config: Mapping[str, Any], target: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model {name: shape}, the head too where it is tied. TargetError for sizes that are none."""
    dims = _dims(family, config, target)
    found = dict(_named(family.modules, "", dims))
    for number in range(dims.layers):
        found.update(_named(family.rows, family.layer.replace("{n}", str(number)), dims))
    return found


def _other() -> str:
    return "--meta builds it with transformers instead, or audit its weights"


def _dims(family: Family, given: Mapping[str, Any], target: str) -> Dims:
    config = {**family.defaults, **given}

    def size(of: str, other: int | None = None) -> int:
        spellings = family.keys.get(of, "").split("|")
        key = next((spelling for spelling in spellings if spelling in given), spellings[0])
        value = config.get(key) if key else None
        if value is None and other is not None:
            return other
        limit = MAX_LAYERS if of == "layers" else MAX_SIZE
        if type(value) is not int or not 0 < value < limit:
            said = "is missing" if value is None else f"is {str(value)[:40]}"
            raise TargetError(target, f"{key} {said}", "it must be a whole number above 0")
        return value

    hidden, heads = size("hidden"), size("heads")
    return Dims(
        vocab=size("vocab"),
        hidden=hidden,
        layers=size("layers"),
        heads=heads,
        kv_heads=size("kv_heads", heads),
        head=size("head", hidden // heads),
        ffn=size("ffn", family.ffn_default(hidden) if family.ffn_default else None),
        positions=size("positions", 0),
        config=config,
    )


def _named(rows: tuple[Row, ...], prefix: str, dims: Dims) -> Iterator[tuple[str, tuple[int, ...]]]:
    for row in rows:
        if _on(row.when, dims):
            yield f"{prefix}{row.name}.weight", tuple(_size(size, dims) for size in row.shape)
            if _on(row.bias, dims):
                yield f"{prefix}{row.name}.bias", (_size(row.bias_of, dims),)


def _size(size: Size, dims: Dims) -> int:
    return size(dims) if callable(size) else int(getattr(dims, size))


def _on(switch: Switch, dims: Dims) -> bool:
    return switch if isinstance(switch, bool) else switch(dims) if callable(switch) else dims.on(switch)
