"""This file holds one side of a comparison as it is read: the target resolved and loaded as an audit does it, and its tensors as units.

A unit is what one parameter is stored as: a tensor, or the tensors of a quantised matrix together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..bytewise import Reach, TensorBytes
from ..checkpoint import Checkpoint, Edition, TensorRecord
from ..config import Config, read
from ..difference import SideSummary, Stored
from ..errors import FormatError, TargetError
from ..evidence import Gathering, Progress
from ..inspectors.rule import EditionCase
from ..kinds import Verify
from ..loaders import sharded
from ..names import Matrix, StoredNames
from ..quantised import MAINS
from ..sources import Folder, Source, Wanted
from ..sources.target import Access, resolve
from ..text import listed

BEFORE = "before\0"  # in front of the first side's files: no file of a folder can have such a name
MAX_NOTES = 100_000  # small tensors that say which shapes packed matrices have
_MAIN_LEAVES = ("weight", *MAINS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is stored of one parameter. `name` has no wrappers; `role` is "embedding" or "head" for the ends of the model."""

    name: str
    matrix: Matrix
    role: str = ""
    part: int | None = None
    """Number of the slice, where a stack of matrices (experts) was taken apart."""

    @property
    def stored(self) -> Stored:
        main = self.matrix.main
        return Stored(
            name=self.matrix.name + (f"[{self.part}]" if self.part is not None else ""),
            file=main.file,
            form=self.matrix.form,
            shape=self.matrix.shape or (() if self.matrix.packed else main.shape),
            nbytes=self.matrix.nbytes,
            offset=main.file_offset,
            role=self.role,
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """A target that can be read."""

    target: str
    folder: Folder
    only: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A target as it was read. `units` by name; `edition` is the copy of the weights that is compared, None if none can be read."""

    opened: Opened
    checkpoint: Checkpoint
    config: Config | None
    gathering: Gathering
    edition: Edition | None
    case: EditionCase | None
    units: Mapping[str, Unit]
    sources: Mapping[str, Source]
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def format(self) -> str:
        return self.edition.format if self.edition else ""

    @property
    def foreign(self) -> bool:
        """Names are a format's own."""
        return self.edition is not None and self.edition.foreign

    def unit(self, role: str) -> Unit | None:
        return next((unit for unit in self.units.values() if unit.role == role), None)

    @property
    def summary(self) -> SideSummary:
        files = tuple({entry: None for file in self.checkpoint.files for entry in ((file.name, file.nbytes), *file.data)})
        return SideSummary(
            target=self.opened.target,
            formats=tuple(dict.fromkeys(edition.format for edition in self.checkpoint.editions if edition.format)),
            files=files,
            tensors=sum(len(file.tensors) for file in self.checkpoint.files),
            revision=self.opened.folder.revision,
            edition=self.edition.name if self.edition and len(self.checkpoint.editions) > 1 else "",
        )


def open_side(target: str | os.PathLike[str], access: Access) -> Opened:
    """TargetError if it is not there."""
    words = os.fspath(target)
    return Opened(words, *resolve(words, access))


def read_side(opened: Opened, verify: Verify, progress: Progress) -> Side:
    """Headers, config and ties. TargetError if there is nothing that could be compared."""
    folder = opened.folder
    checkpoint = sharded.load(folder, opened.target, opened.only, progress, [])
    if not checkpoint.files and not checkpoint.unreadable:
        _refuse(checkpoint)
    config, _ = read(folder)
    gathering = Gathering(folder, checkpoint, config, verify, 0, progress)
    data = gathering.reader()
    edition = checkpoint.primary or next(iter(sorted(checkpoint.editions, key=lambda edition: edition.kind != "adapter")), None)
    case = gathering.tied(edition, data) if edition else None
    units: Mapping[str, Unit] = {}
    if case is not None:
        found = list(_units(case.stored))
        if _learn(case.stored, found, data):
            found = list(_units(case.stored))
        units = {unit.name: unit for unit in _with_roles(found, case)}
    return Side(
        opened=opened,
        checkpoint=checkpoint,
        config=config,
        gathering=gathering,
        edition=edition,
        case=case,
        units=units,
        sources=data.sources,
        digests={entry.name: entry.sha256 for entry in folder.entries() if entry.sha256},
    )


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.unread:
        name, what = checkpoint.unread[0]
        raise TargetError(checkpoint.target, f"{name} {what}", "try again, or raise --timeout")
    if checkpoint.elsewhere:
        name, what = checkpoint.elsewhere[0]
        raise TargetError(checkpoint.target, f"no checkpoint that is read here: {name}: {what}")
    missing = [name for edition in checkpoint.editions for name in edition.missing]
    if missing:
        raise TargetError(checkpoint.target, f"none of its weights are there: {listed(missing)}")
    raise TargetError(checkpoint.target, "no checkpoint here", "tieaudit TARGET says what was looked for")


def _learn(stored: StoredNames, units: Iterable[Unit], data: TensorBytes) -> bool:
    """Shapes of packed matrices that only the values of small tensors tell; of remote files those of the ends were read before."""
    if data.remote:
        return False
    notes: dict[str, bytes] = {}
    for unit in units:
        note = unit.matrix.note
        if note is not None and len(notes) < MAX_NOTES and data.readable(note):
            try:
                notes[note.name] = data.read(note, 0, note.nbytes)
            except FormatError:
                continue  # the matrix keeps its unknown shape
    if notes:
        stored.learn(notes)
    return bool(notes)


def _units(stored: StoredNames) -> Iterator[Unit]:
    """Every tensor once, those of one quantised matrix together."""
    names = list(stored)
    taken: set[int] = set()
    for name in names:
        stem = next((name.removesuffix(leaf) for leaf in _MAIN_LEAVES if name.endswith("." + leaf)), "")
        if stem or name == "weight":
            whole = stem + "weight"
        elif name.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
        else:
            continue
        matrix = stored.exact(whole)
        if matrix is not None and not any(id(part) in taken for part in matrix.parts):
            taken.update(id(part) for part in matrix.parts)
            yield Unit(name=whole, matrix=matrix)
    for name in names:
        matrix = stored.exact(name)
        if matrix is not None and not any(id(part) in taken for part in matrix.parts):
            taken.update(id(part) for part in matrix.parts)
            yield Unit(name=name, matrix=matrix)


def _with_roles(units: Iterable[Unit], case: EditionCase) -> Iterator[Unit]:
    """The units with the ends of the model marked. A matrix that stands for both is the embedding."""
    claim = case.claim
    roles: dict[int, str] = {}
    groups = [group for group in claim.groups if group.role == "embedding-head"]
    heads = [claim.head, *(alias.name for group in groups for alias in group.aliases)]
    embeddings = [claim.embedding, *(group.canonical for group in groups)]
    for role, names in (("embedding", embeddings), ("head", heads)):
        matrix = next((found for name in names if name and (found := case.stored.find(name, claim.other_names))), None)
        if matrix is not None:
            roles.setdefault(id(matrix.main), role)
    for unit in units:
        yield replace(unit, role=roles.get(id(unit.matrix.main), ""))


def moved(matrix: Matrix) -> Matrix:
    """The matrix of the first side, its files told from those of the second."""
    return replace(matrix, parts=tuple(_moved(part) for part in matrix.parts))


def _moved(tensor: TensorRecord) -> TensorRecord:
    storage = tensor.storage
    pieces = tuple((BEFORE + file, begin, n) for file, begin, n in storage.pieces)
    return replace(tensor, storage=replace(storage, file=BEFORE + storage.file, pieces=pieces))


@dataclass(slots=True)
class Both(Reach):
    """The ways to the files of both sides."""

    before: Folder
    after: Folder
    _remote: bool = field(init=False)

    def __post_init__(self) -> None:
        self._remote = self.before.remote or self.after.remote

    @property
    def remote(self) -> bool:
        return self._remote

    def _way(self, name: str) -> tuple[Folder, str]:
        return (self.before, name.removeprefix(BEFORE)) if name.startswith(BEFORE) else (self.after, name)

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        by_side: dict[bool, list[Wanted]] = {True: [], False: []}
        for name, offset, n in wanted:
            by_side[name.startswith(BEFORE)].append((name.removeprefix(BEFORE), offset, n))
        self.before.prefetch(by_side[True])
        self.after.prefetch(by_side[False])

    def held(self, name: str, offset: int, n: int) -> bool:
        folder, inside = self._way(name)
        return folder.held(inside, offset, n)

    def spare(self) -> int:
        return min(folder.spare() for folder in (self.before, self.after) if folder.remote or not self._remote)


def reader(before: Side, after: Side, progress: Progress) -> TensorBytes:
    """Reads the tensors of both: those of `before` as `moved` names them."""
    sources = {BEFORE + name: source for name, source in before.sources.items()} | dict(after.sources)
    total = sum(file.nbytes for side in (before, after) for file in side.checkpoint.files)
    done = 0

    def advanced(n: int) -> None:
        nonlocal done
        done += n
        progress("comparing", min(done, total), total)

    return TensorBytes(sources, advanced, Both(before.opened.folder, after.opened.folder))
