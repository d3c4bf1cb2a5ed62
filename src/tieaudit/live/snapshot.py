"""This file holds `snapshot` and `compare`: which names were one Parameter before a step (a move, a cast, a wrapper) and are after it.

A snapshot is plain data and keeps no tensor alive. Of the values it keeps a hash of a few elements per tensor.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..alive import Live, LiveName, LiveTie, Sharing
from ..errors import OptionError
from ..report import Report
from . import reporting
from .naming import COPY, LiveNames, grouped, own

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a model shared at one moment. `prints`: hashes of sampled elements by name."""

    model: str
    names: tuple[LiveName, ...]
    prints: Mapping[str, str]


def snapshot(model: nn.Module) -> Snapshot:
    """The names of the model, what they share, and a hash of a few elements of each."""
    from .compare import fingerprint
    from .identity import collect
    from .module import called, demand_module

    demand_module(model)
    found = collect(model)
    # once per Parameter: a model whose layers are shared has many names for few tensors
    prints: dict[int, str] = {}
    for name in found.names:
        if name.parameter not in prints:
            prints[name.parameter] = fingerprint(found.tensors[name.name])
    return Snapshot(model=called(model), names=found.names, prints={name.name: prints[name.parameter] for name in found.names})


def compare(
    before: Snapshot | nn.Module, after: Snapshot | nn.Module, *, select: str | Iterable[str] = (), ignore: str | Iterable[str] = ()
) -> Report:
    """Names that were one Parameter (or one memory) before and are not after: lost-alias and half-alias. A model stands for its snapshot.

    Names that a wrapper changed are matched; one that is gone is listed under `not_compared`. Values are compared by samples.
    """
    started = time.perf_counter()
    chosen, left = reporting.words(select), reporting.words(ignore)
    first, second = (one if isinstance(one, Snapshot) else _of_model(one) for one in (before, after))
    gone: list[tuple[str, str]] = []
    ties = tuple(_groups(first, second, gone))
    live = Live(model=second.model, moment="after", names=second.names, ties=ties)
    return reporting.report(live, chosen, left, gone, time.perf_counter() - started)


def _of_model(model: Any) -> Snapshot:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise OptionError("compare", type(model).__name__, "a Snapshot, or a torch.nn.Module")
    return snapshot(model)


def _groups(before: Snapshot, after: Snapshot, gone: list[tuple[str, str]]) -> Iterator[LiveTie]:
    from .ties import sharing

    known = LiveNames(name.name for name in after.names)
    for group in sharing(name for name in before.names if not name.adapter):
        whole = all(name.parameter == group[0].parameter for name in group)
        expected = f"one {'Parameter' if whole else 'memory'} before"
        now: dict[str, str] = {}
        for asked in dict.fromkeys(own(name.name) for name in group):
            live, sources = known.find(asked), known.sources(asked)
            if live or sources:
                now[live or asked] = f"{asked} is no parameter any more but computed from {' and '.join(sources)}" if not live else ""
            else:
                gone.append((asked, "has no such name after"))
        if len(now) > 1:
            yield _tie(now, after, expected)


def _tie(now: dict[str, str], after: Snapshot, expected: str) -> LiveTie:
    by_name = {name.name: name for name in after.names}
    numbers = {name: by_name[name].parameter if not computed else -1 - place for place, (name, computed) in enumerate(now.items())}
    parts = grouped(now, numbers)
    sharing, detail, apart_by, sampled = Sharing.SAME_PARAMETER, "", "", False
    for part in parts[1:]:
        computed = now[part[0]] or now[parts[0][0]]
        if computed:
            sharing, detail = Sharing.NOT_COMPARED, computed
            continue
        sharing, detail, sampled = _relation(by_name[parts[0][0]], by_name[part[0]], after.prints)
        copied = [name for name in (parts[0][0], part[0]) if COPY in name]
        if len(copied) == 1:
            apart_by = f"PEFT trains a copy of {own(copied[0])} (modules_to_save)"
    return LiveTie(
        names=tuple(now),
        sharing=sharing,
        expected=expected,
        detail=detail,
        parts=parts if len(parts) > 1 else (),
        apart_by=apart_by,
        sampled=sampled,
    )


def _relation(a: LiveName, b: LiveName, prints: Mapping[str, str]) -> tuple[Sharing, str, bool]:
    if a.storage is not None and a.storage == b.storage and (a.offset, a.shape, a.strides) == (b.offset, b.shape, b.strides):
        return Sharing.SAME_STORAGE, "", False
    if (a.full or a.shape) != (b.full or b.shape) or a.dtype != b.dtype:
        return Sharing.APART, f"{_kind(a)} and {_kind(b)}", False
    if not prints.get(a.name) or not prints.get(b.name):
        what = "the meta device holds no values" if "meta" in (a.device, b.device) else "their values were not looked at"
        return Sharing.NOT_COMPARED, what, False
    return (Sharing.EQUAL_VALUES if prints[a.name] == prints[b.name] else Sharing.APART), "", True


def _kind(name: LiveName) -> str:
    return " × ".join(f"{dim:,}" for dim in name.full or name.shape) + f" {name.kind or name.dtype}"
