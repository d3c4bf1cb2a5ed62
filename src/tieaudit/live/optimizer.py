"""This file holds what an optimizer steps: parameters that it holds twice, and parameters that the model does not have (any more)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..alive import LiveName, Repeated, Stray
from ..errors import OptionError
from .identity import Found, Named, numbered


def looked_at(found: Found, optimizer: Any) -> tuple[tuple[Repeated, ...], tuple[Stray, ...]]:
    """(what is held more than once, what is no parameter of the model). OptionError if it has no param groups."""
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        raise OptionError("optimizer", type(optimizer).__name__, "a torch optimizer, or None")
    held = [(number, tensor) for number, group in enumerate(groups) for tensor in group["params"]]
    # numbered again with the model's, so that one object and one memory have one number in both
    both = numbered(
        [*(Named(name.name, found.tensors[name.name], buffer=name.buffer) for name in found.names)]
        + [Named(f"\0{place}", tensor) for place, (_, tensor) in enumerate(held)]
    )
    model, stepped = both.names[: len(found.names)], both.names[len(found.names) :]
    groups_of: dict[int, list[int]] = {}
    for (number, _), name in zip(held, stepped, strict=True):
        groups_of.setdefault(name.parameter, []).append(number)
    names_of: dict[int, list[LiveName]] = {}
    for name in model:
        names_of.setdefault(name.parameter, []).append(name)
    return tuple(_repeated(groups_of, names_of)), tuple(_strays(groups_of, names_of, stepped))


def _repeated(groups_of: dict[int, list[int]], names_of: dict[int, list[LiveName]]) -> Iterator[Repeated]:
    views: dict[Any, list[int]] = {}
    for parameter, groups in groups_of.items():
        known = names_of.get(parameter, [])
        if len(groups) > 1:
            yield Repeated(names=tuple(name.name for name in known), groups=tuple(groups))
        if known and known[0].storage is not None:
            name = known[0]
            views.setdefault((name.storage, name.offset, name.shape, name.strides), []).append(parameter)
    for parameters in views.values():
        if len(parameters) > 1:
            yield Repeated(
                names=tuple(names_of[parameter][0].name for parameter in parameters),
                groups=tuple(groups_of[parameter][0] for parameter in parameters),
                two=True,
            )


def _strays(groups_of: dict[int, list[int]], names_of: dict[int, list[LiveName]], stepped: tuple[LiveName, ...]) -> Iterator[Stray]:
    foreign: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for name in stepped:
        if name.parameter not in names_of:
            foreign.setdefault(name.full or name.shape, {})[name.parameter] = groups_of[name.parameter]
    for shape, parameters in foreign.items():
        untrained = [
            names[0].name
            for parameter, names in names_of.items()
            if parameter not in groups_of and names[0].trains and not names[0].buffer and (names[0].full or names[0].shape) == shape
        ]
        yield Stray(
            shape=shape,
            count=len(parameters),
            groups=tuple(sorted({group for groups in parameters.values() for group in groups})),
            untrained=tuple(untrained),
        )
