"""This file holds what the two torch formats share: from an unpickled root and its storages to a LoadedFile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..checkpoint import LoadedFile, PickleGlobal, Problem, Storage, TensorRecord
from ..errors import FormatError, ReadError
from ..extents import Extent
from ..sources import Source
from .pickle_globals import judge
from .pickle_machine import PickleMachine
from .torch_objects import MIN_ARRAY_NBYTES, Leaf, ObjectWalk
from .torch_parts import name_leaves
from .torch_tensors import Fault, View

MAX_PROBLEMS = 50  # of one file; a hostile pickle could name as many as tensors
DANGERS = ("", "unknown", "call")  # from harmless to worst
FLAT_PARAMETER = re.compile(r"(?:^|[._])_?flat_param(?:_\d+)?$")
BIG_ENDIAN_NOTE = "numbers are stored big-endian: values are compared as bytes only"


@dataclass(slots=True)
class TorchFile:
    """What is known so far about one file; see LoadedFile."""

    file: str
    tensors: list[TensorRecord] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    dead: list[Extent] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    globals: dict[str, PickleGlobal] = field(default_factory=dict)

    def add_globals(self, machine: PickleMachine, *, torchscript: bool = False) -> None:
        """Note what one pickle would import; the worse of two verdicts on a name stays."""
        for found in judge(machine, torchscript=torchscript):
            before = self.globals.get(found.name)
            if before is None or DANGERS.index(found.danger) > DANGERS.index(before.danger):
                self.globals[found.name] = found

    def add_problem(self, error: FormatError) -> None:
        self.problems.append(Problem(file=error.file, what=error.what, offset=error.offset))

    def give_up(self, error: FormatError) -> None:
        """Raise `error`, unless the pickle would run code: who loads the file runs what stands before the fault, and that
        must be told as well."""
        if isinstance(error, ReadError) or not any(found.danger == "call" for found in self.globals.values()):
            raise error
        self.add_problem(error)

    def loaded(self, source: Source, file_format: str) -> LoadedFile:
        return LoadedFile(
            name=source.name,
            format=file_format,
            nbytes=source.nbytes,
            tensors=tuple(self.tensors),
            storages=tuple(self.storages),
            dead=tuple(self.dead),
            problems=self._capped_problems(),
            globals=tuple(self.globals.values()),
            unread=tuple(self.unread),
        )

    def add_root(self, root: object, storages: Mapping[str, Storage]) -> None:
        """Find the tensors below `root`. `storages` by the key that the pickle names them by."""
        walk = ObjectWalk(self.file)
        walk.run(root)
        for leaf, (name, part) in zip(walk.leaves, name_leaves(walk.leaves), strict=True):
            found = self._record(leaf, name, part, storages)
            if isinstance(found, TensorRecord):
                self.tensors.append(found)
            else:
                self.problems.append(Problem(file=self.file, what=found.what, tensors=(name,)))
        for key in walk.repeated:
            self.problems.append(Problem(file=self.file, what=f"has a dict that sets the key {key!r} twice: the last one is loaded"))
        self._note_unread(walk)
        if flat := flat_parameters(tensor.name for tensor in self.tensors if not tensor.part):
            self.unread.append(flat)

    def _record(self, leaf: Leaf, name: str, part: str, storages: Mapping[str, Storage]) -> TensorRecord | Fault:
        view = leaf.view
        if not isinstance(view, View):
            return Fault(f"tensor {name!r} {view.what}")
        storage = storages.get(view.ref.key)
        if storage is None:
            return Fault(f"tensor {name!r} lies in storage {view.ref.key!r}, which the file does not hold")
        if view.nbytes and view.end > storage.nbytes:
            what = f"tensor {name!r} ends at byte {view.end:,} of storage {storage.ident!r}, which has {storage.nbytes:,}"
            return Fault(what)
        return TensorRecord(name, view.dtype, view.shape, storage, view.offset, view.nbytes, view.strides, part)

    def _note_unread(self, walk: ObjectWalk) -> None:
        for why, names in walk.unseen.items():
            self.unread.append(f"{len(names):,} tensors {why} ({_some(names)})")
        if walk.too_deep:
            self.unread.append(f"{walk.too_deep:,} objects are nested too deeply to be followed")
        if walk.array_nbytes >= MIN_ARRAY_NBYTES:
            self.unread.append(f"{walk.array_nbytes:,} bytes of numpy arrays inside the pickle")

    def _capped_problems(self) -> tuple[Problem, ...]:
        if len(self.problems) <= MAX_PROBLEMS:
            return tuple(self.problems)
        rest = self.problems[MAX_PROBLEMS:]
        names = tuple(name for problem in rest for name in problem.tensors)
        what = f"has {len(rest):,} more faults of this kind"
        return (*self.problems[:MAX_PROBLEMS], Problem(file=self.file, what=what, tensors=names))


def flat_parameters(names: Iterable[str]) -> str:
    """What the flat parameters of FSDP hide, "" if there are none (torch/distributed/fsdp/_flat_param.py, FLAT_PARAM)."""
    flat = [name for name in names if "flat_param" in name and FLAT_PARAMETER.search(name)]
    if not flat:
        return ""
    return f"flat parameters of FSDP hide the names of the weights ({_some(flat)}): save a full state dict, or use use_orig_params=True"


def _some(names: Iterable[str]) -> str:
    shown = [name[:80] for _, name in zip(range(3), names, strict=False)]
    return ", ".join(shown)
