"""This file holds the plan while it is made: what the steps have decided so far, by tensor and by file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..bytewise import TensorBytes
from ..checkpoint import Edition, LoadedFile, TensorRecord
from ..inspectors.rule import Case
from ..kinds import Evidence, Kind, Verify
from ..names import Matrix
from ..relations import relate
from ..sources.local import LocalFolder
from .model import Choices, Ground, Refusal, Removal, Step

Key = tuple[str, str]
"""(file, name) of a stored tensor."""

EMBED, HEAD, UNTIE = "--tie embed", "--tie head", "--untie"


def key(tensor: TensorRecord) -> Key:
    return (tensor.file, tensor.name)


@dataclass(slots=True)
class Draft:
    """`kept_for` gives for each tensor that is left out the one that holds its values, None if nothing does. `flag`: what every reading of
    the tie shall say, None if the config stays. `removed`, `rewritten`: files; `apart`: torch files in which names that shared a storage
    get one each; `parts`: torch files of which only the weights stay; `reindexed`: index files. `ways` {rule: options}: what would repair
    a finding that stays."""

    case: Case
    folder: LocalFolder
    data: TensorBytes
    choices: Choices
    steps: list[Step] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    kept_for: dict[Key, TensorRecord | None] = field(default_factory=dict)
    renamed: dict[Key, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    rewritten: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    reindexed: set[str] = field(default_factory=set)
    flag: bool | None = None
    ways: dict[str, str] = field(default_factory=dict)

    def refuse(self, rule: str, what: str, *ways: tuple[str, str]) -> None:
        refusal = Refusal(rule=rule, what=what, ways=ways)
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def way(self, rule: str, option: str) -> None:
        """This option would repair what is left of the rule."""
        self.ways.setdefault(rule, option)

    def remove(self, matrix: Matrix, kept: Matrix | None, ground: Ground, kind: Kind = Kind.EQUAL) -> None:
        """Leave a matrix out; `kept` holds its values (or takes its place)."""
        self.removals.append(Removal(dropped=matrix, kept=kept, ground=ground, kind=kind))
        for at, part in enumerate(matrix.parts):
            stays = kept.parts[at] if kept and at < len(kept.parts) else kept.main if kept else None
            self.kept_for[key(part)] = stays

    def gone(self, matrix: Matrix) -> bool:
        return any(key(part) in self.kept_for or part.file in self.removed for part in matrix.parts)

    def set_flag(self, value: bool) -> None:
        self.flag = value

    @property
    def converts(self) -> bool:
        return self.choices.to == "safetensors"

    def is_torch(self, edition: Edition) -> bool:
        """It stays a torch file, in which two names can be one matrix."""
        return edition.format.startswith("torch") and not self.converts


def proved(removal: Removal, data: TensorBytes) -> bool:
    """True if every byte of what is left out follows from what stays: equal, or (`kind` CAST, TRANSPOSED) computed from it."""
    dropped, kept = removal.dropped, removal.kept
    if kept is None:
        return False
    if removal.kind is Kind.EQUAL:
        pairs = list(zip(kept.parts, dropped.parts, strict=False))
        return len(kept.parts) == len(dropped.parts) and all(equal(mine, other, data) for mine, other in pairs)
    relation = relate(kept, dropped, data, Verify.FULL)
    if relation.kind is not removal.kind or relation.evidence is not Evidence.PROVED:
        return False
    return removal.kind is not Kind.CAST or relation.redundant == dropped.name


def equal(a: TensorRecord, b: TensorRecord, data: TensorBytes) -> bool:
    """The same bytes under the same dtype and shape, every one compared."""
    if (a.dtype, a.shape, a.nbytes) != (b.dtype, b.shape, b.nbytes):
        return False
    if not a.nbytes or a.view == b.view:
        return True
    return data.readable(a) and data.readable(b) and data.first_difference(a, b) is None


def nbytes_of(tensors: Iterable[TensorRecord]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def file_named(case: Case, name: str) -> LoadedFile | None:
    return next((file for file in case.checkpoint.files if file.name == name), None)
