"""This file holds how a parameter's name in memory is brought back to the name that the model itself gave it. No torch.

PEFT puts a layer of its own in place of the model's (`lm_head.base_layer.weight`, `lm_head.modules_to_save.default.weight`), torch's
parametrizations move a parameter (`head.parametrizations.weight.original`), frameworks wrap modules (`plain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..names import plain

_ADAPTED = re.compile(r"\.(?:token_adapter\.base_layer|base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")
_PARAMETRIZED = re.compile(r"\.?\bparametrizations\.([^.]+)\.original(\d*)$")
_HALVES = ("weight_g", "weight_v")  # torch.nn.utils.weight_norm: the weight itself is then no parameter
COPY = ".modules_to_save."


def own(name: str) -> str:
    """The name that the model gave to this parameter."""
    name = _ADAPTED.sub("", plain(name)) if "_" in name else name
    if "parametrizations." in name:
        name = _PARAMETRIZED.sub(lambda match: ("." if match[0][0] == "." else "") + match[1], name)
    return name


class LiveNames:
    """Names in memory, found by the model's own names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = tuple(dict.fromkeys(names))
        self._by_own: dict[str, list[str]] = {}
        for name in self.all:
            self._by_own.setdefault(own(name), []).append(name)

    def find(self, name: str) -> str | None:
        """The one in memory that stands for `name`: of several that which is used, an adapter's trained copy before the original."""
        found = [one for one in self._by_own.get(own(name), ()) if not _of_several(one)]
        return min(found, key=lambda one: (COPY not in one, "original_module." in one), default=None)

    def sources(self, name: str) -> tuple[str, ...]:
        """The parameters that `name` is computed from, if it is no parameter itself."""
        name = own(name)
        stem = name.removesuffix("weight")
        halves = [half for leaf in _HALVES for half in self._by_own.get(stem + leaf, ())] if stem != name else []
        several = [one for one in self._by_own.get(name, ()) if _of_several(one)]
        return tuple(several or (halves if len(halves) == len(_HALVES) else ()))


def _of_several(name: str) -> bool:
    """One of several parameters that a weight is computed from (`parametrizations.weight.original0`)."""
    match = _PARAMETRIZED.search(name)
    return match is not None and match[2] != ""


def closure(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Groups of names that the pairs (alias, source) join, sources first."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    for alias, source in pairs:
        at, to = find(alias), find(source)
        if at != to:
            root[at] = to
    groups: dict[str, list[str]] = {}
    for name in list(root):
        groups.setdefault(find(name), []).append(name)
    return [(first, *(name for name in names if name != first)) for first, names in groups.items() if len(names) > 1]


def grouped(names: Iterable[str], number: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """The names by number, in order."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(number[name], []).append(name)
    return tuple(tuple(group) for group in groups.values())
