"""This file holds whether a state dict keeps what the model shares, before it is written.

`audit_state_dict` judges a dict as the file that it would become for transformers; here the model itself is at hand and says which names
are one. A checkpoint of a training run is loaded by `load_state_dict`, which wants every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ..alive import LiveName, Sharing
from ..inspectors.registry import matching
from ..inspectors.rule import Rule
from ..inspectors.ties import cast_copy, diverged_tie, duplicate_tie
from ..kinds import Evidence
from ..names import plain
from ..report import Finding, TensorPlace
from ..text import listed
from .identity import Named, numbered, walk
from .ties import Judge, Relation

FILE = "state dict"
_COUNTS = {2: "two", 3: "three"}


def of_model(model: nn.Module, state_dict: Mapping[Any, Any], ignore: Iterable[str] = ()) -> Iterator[Finding]:
    """Names that are one Parameter in the model and several tensors in the state dict."""
    left = matching(ignore, "ignore")
    tensors = {name: tensor for name, tensor in state_dict.items() if isinstance(name, str) and isinstance(tensor, Tensor)}
    by_plain = {plain(name): name for name in tensors}
    groups: dict[int, dict[str, None]] = {}
    for name in numbered(walk(model), by_view=True).names:
        stored = name.name if name.name in tensors else by_plain.get(plain(name.name))
        if stored:
            groups.setdefault(name.parameter, {})[stored] = None
    for group in groups.values():
        if len(group) > 1:
            yield from _judged(Judge(numbered((Named(name, tensors[name]) for name in group), by_view=True), probe=False), left)


def _judged(judge: Judge, left: frozenset[str]) -> Iterator[Finding]:
    first, *others = {name.parameter: name for name in judge.found.names}.values()
    found: dict[Rule, list[tuple[LiveName, Relation]]] = {}
    for name in others:
        relation = judge.relation(first.name, name.name)
        rule = _rule(relation)
        if rule and rule.code not in left:
            found.setdefault(rule, []).append((name, relation))
    for rule, relations in found.items():
        yield _finding(rule, [first, *(name for name, _ in relations)], relations[0][1])


def _rule(relation: Relation) -> Rule | None:
    if relation.sharing is Sharing.EQUAL_VALUES:
        return cast_copy if "cast" in relation.detail else duplicate_tie
    return diverged_tie if relation.sharing is Sharing.APART else None


def _finding(rule: Rule, names: list[LiveName], relation: Relation) -> Finding:
    wasted = sum(name.nbytes for name in names[1:]) if relation.sharing is Sharing.EQUAL_VALUES else 0
    count = _COUNTS.get(len(names), str(len(names)))
    detail = f" ({relation.detail})" if relation.detail else ""
    if wasted:
        what = f"{count} {'' if detail else 'equal '}copies in the state dict{detail}: {wasted:,} bytes are written for nothing"
        fix = f"let the dict hold one tensor, state[{names[1].name!r}] = state[{names[0].name!r}]: torch.save then stores it once"
    else:
        what = f"{count} different matrices in the state dict{detail}: a load leaves one of them under all names"
        fix = "look for what changes the state dict on its way to the file (a hook, a strategy, a cast): it has to change all or none"
    return Finding(
        code=rule.code,
        rule=rule.name,
        severity=rule.severity,
        message=f"{_and([name.name for name in names])} are one Parameter in the model and {what}",
        tensors=tuple(TensorPlace(name.name, FILE, None, name.nbytes) for name in names),
        wasted_bytes=wasted,
        evidence=Evidence.PROVED,
        fix=fix,
    )


def _and(names: list[str]) -> str:
    return " and ".join(names) if len(names) == 2 else listed(names)
