"""This file holds what is one object in a built model: groups of parameter names, input and output embedding, module kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel

Groups = tuple[tuple[str, ...], ...]


class Structure:
    """Which parameters exist and which of their names are one object; equal structures compare equal."""

    def __init__(self, model: PreTrainedModel | None) -> None:
        by_id: dict[int, list[str]] = defaultdict(list)
        for name, parameter in model.named_parameters(remove_duplicate=False) if model else ():
            by_id[id(parameter)].append(name)
        self.names = frozenset(name for names in by_id.values() for name in names)
        self.groups: Groups = tuple(sorted(tuple(sorted(names)) for names in by_id.values() if len(names) > 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and (self.names, self.groups) == (other.names, other.groups)

    def __hash__(self) -> int:
        return hash((self.names, self.groups))

    def contradicts(self, other: Structure) -> bool:
        """Whether two names that exist on both sides are one object on one side only."""
        if not self.names or not other.names:
            return False
        common = self.names & other.names
        return _restricted(self.groups, common) != _restricted(other.groups, common)

    def adds(self, other: Structure) -> bool:
        """Whether one side has tied names that the other side does not have at all."""
        if not self.names or not other.names:
            return False
        return any(name not in other.names for group in self.groups for name in group) or any(
            name not in self.names for group in other.groups for name in group
        )


def _restricted(groups: Groups, names: frozenset[str]) -> set[tuple[str, ...]]:
    kept = {tuple(name for name in group if name in names) for group in groups}
    return {group for group in kept if len(group) > 1}


def ends(model: PreTrainedModel) -> tuple[str | None, str | None]:
    """Return the names of the input and the output embedding weight: those of their own modules, even where tied."""
    paths = {id(module): path for path, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}

    def name_of(getter: str) -> str | None:
        try:
            module = getattr(model, getter)()
        except (NotImplementedError, AttributeError, TypeError, KeyError, IndexError):
            return None
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter):
            return None
        return f"{paths[id(module)]}.weight" if id(module) in paths else parameters.get(id(weight))

    return name_of("get_input_embeddings"), name_of("get_output_embeddings")


def kinds(model: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
    """Return, per parameter name, the kind of its module: embedding, linear or other."""
    found: dict[str, str] = {}
    for name in names:
        path, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            continue
        if leaf != "weight":
            found[name] = "other"
        elif isinstance(module, nn.Embedding):
            found[name] = "embedding"
        else:
            found[name] = "linear" if isinstance(module, nn.Linear) or hasattr(module, "out_features") else "other"
    return found
