"""This file holds what the readers of training folders share: the result that they fill, and how they read one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ...checkpoint import Edition, LoadedFile, Problem
from ...errors import FormatError, ReadError
from ...sources import Folder, Source
from ..ahead import ONE_FILE, TAIL

HEAD = 16  # bytes that tell a zip from a pickle


@dataclass(slots=True)
class Found:
    """`taken`: names of files (and `folders`: of sub-folders) that belong to an edition; `notes`: what was seen and not read; `unread`:
    what a server did not give; `unreadable`: files that are not read further."""

    folder: Folder
    editions: list[Edition] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    notes: list[tuple[str, str]] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[Problem] = field(default_factory=list)

    def take(self, base: str, names: Iterable[str]) -> None:
        """The files `names` in `base`, "" or a path that ends in a slash, are read here and by nobody else."""
        if base:
            self.folders.add(base.split("/", 1)[0])
        else:
            self.taken.update(names)

    def note_unseen(self, file: LoadedFile) -> None:
        """Weights whose format keeps no bytes to compare, so that nobody takes them for compared."""
        whys: dict[str, list[str]] = {}
        for tensor in file.tensors:
            if tensor.storage.why and not tensor.part:
                whys.setdefault(tensor.storage.why, []).append(tensor.name)
        for why, names in whys.items():
            self.notes.append((names[0] + (f" and {len(names) - 1:,} more" if len(names) > 1 else ""), why))

    def torch(self, name: str) -> tuple[LoadedFile, object] | None:
        """(a torch file, its unpickled root); None, and noted why, if it cannot be read."""
        roots: list[object] = []
        loaded = self.guarded(name, lambda source: _load(source, roots.append))
        return None if loaded is None else (loaded, roots[0] if roots else None)

    def guarded(self, name: str, load: Callable[[Source], LoadedFile]) -> LoadedFile | None:
        try:
            return load(self.folder.open(name))
        except ReadError as error:
            self.unread.append((name, error.what))
        except FormatError as error:
            self.unreadable.append(Problem(file=name, what=error.what, offset=error.offset))
        return None

    def fetch(self, names: Iterable[str]) -> None:
        """Begins and ends of torch files from a server, all at once."""
        if self.folder.remote:
            sizes = [(name, self.folder.entry(name).nbytes) for name in names]
            begins = [(name, 0, min(ONE_FILE, nbytes)) for name, nbytes in sizes]
            self.folder.prefetch([*begins, *((name, max(0, nbytes - TAIL), min(TAIL, nbytes)) for name, nbytes in sizes)])


def _load(source: Source, see: Callable[[object], None]) -> LoadedFile:
    # imported when the first such file is met, as in sniff.py
    from .. import torch_legacy, torch_zip

    head = source.read(0, min(HEAD, source.nbytes))
    if torch_zip.sniff(head):
        return torch_zip.load(source, see)
    if torch_legacy.sniff(head):
        return torch_legacy.load(source, see)
    raise FormatError(source.name, "is no torch file" if head else "is empty", 0)


def told_once(files: Iterable[LoadedFile]) -> tuple[LoadedFile, ...]:
    """Every rank of a run pickles the same classes: what would only be refused is named in the first file alone, a call in each."""
    known: set[str] = set()
    kept = []
    for file in files:
        kept.append(replace(file, globals=tuple(one for one in file.globals if one.danger == "call" or one.name not in known)))
        known.update(one.name for one in file.globals)
    return tuple(kept)


def whole(files: Iterable[LoadedFile]) -> bool:
    return not any(file.problems or file.unread for file in files)
