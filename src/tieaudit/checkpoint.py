"""This file holds what a checkpoint is once every format is behind us: files, storages, tensors, editions.

No value of a weight is kept here. All formats meet in these types; rules and reporters know no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from .extents import Extent


@dataclass(frozen=True, slots=True)
class Storage:
    """One run of bytes that tensors view. Two tensors share memory when loaded if `(file, ident)` is the same.

    `offset` is where the bytes begin in the file, None if they cannot be read as they lie there (compressed members).
    `nbytes` is what the file holds, `crc` the CRC-32 of these bytes if the format records a trustworthy one.
    `pieces`: the runs (file, offset, bytes) that it lies in, in order, if it lies in several (a tensor sharded over ranks).
    `why` says in words why a format keeps no bytes to compare, as a clause after the tensor's name.
    """

    file: str
    ident: str
    offset: int | None
    nbytes: int
    crc: int | None = None
    pieces: tuple[tuple[str, int, int], ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A named view of a storage.

    `offset` is in bytes from the storage's begin; `nbytes` is the dense size (numel x element), `strides` in elements, None when
    row-major without gaps. `part` is "" for the weights of the model, else where it stood in a training checkpoint:
    "optimizer" or "other".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: Storage
    offset: int
    nbytes: int
    strides: tuple[int, ...] | None = None
    part: str = ""

    @property
    def file(self) -> str:
        return self.storage.file

    @property
    def numel(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    @property
    def file_offset(self) -> int | None:
        """Where the first byte lies in the file; None if it cannot be read in place."""
        return None if self.storage.offset is None else self.storage.offset + self.offset

    @property
    def view(self) -> tuple[str, str, int, tuple[int, ...], tuple[int, ...] | None]:
        """Equal for two names exactly when they are the same elements of the same storage."""
        return (self.storage.file, self.storage.ident, self.offset, self.shape, self.strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part of a file that breaks its format; the rest of the file was still read."""

    file: str
    what: str
    offset: int | None = None
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleGlobal:
    """A name that a pickle would import. `danger` is "" for one that only describes tensors and containers,
    "unknown" for a class nobody vouches for, "call" for one that would run code when the file is loaded."""

    name: str
    danger: str = ""


class Wiring(StrEnum):
    """What makes two names one matrix: the model's config, what a format's readers do with a name that is absent, the file's own graph,
    or a training run that keeps copies in step."""

    CONFIG = "config"
    FORMAT = "format"
    GRAPH = "graph"
    REPLICA = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Two names that a file itself relates: the ends of the model in a format that no config governs, or copies of a training run.

    `embedding` and `head` are names of tensors; one that is not stored is absent (GGUF's `output.weight`), or the place in a graph where
    a shared matrix is read. `tied`: True if readers take one matrix for both, False if they need two, None if nobody says; `by_config`:
    then the flag of a config beside the file counts. `source` says why, as a clause. `absent`: what readers do without the name that is
    not stored; `advice`: what to do about an equal copy.
    """

    embedding: str
    head: str
    source: str
    tied: bool | None = None
    by_config: bool = False
    wiring: Wiring = Wiring.GRAPH
    role: str = "embedding-head"
    absent: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """One file, read. `storages` lists every storage, also those that no tensor views; `dead` are extents of the file that
    belong to nothing. `aliases` are the writer's own notes {name left out: name kept}. `unread` says what could not be seen.
    `data` are further files that hold its bytes (name, nbytes). `foreign`: the names are the format's own, not the parameters of
    an architecture; then only `ends` says what is shared. `architecture` is GGUF's
    `general.architecture`."""

    name: str
    format: str
    nbytes: int
    tensors: tuple[TensorRecord, ...] = ()
    storages: tuple[Storage, ...] = ()
    dead: tuple[Extent, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    globals: tuple[PickleGlobal, ...] = ()
    unread: tuple[str, ...] = ()
    data: tuple[tuple[str, int], ...] = ()
    ends: tuple[Ends, ...] = ()
    foreign: bool = False
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """A `*.index.json`: which file is said to hold which tensor. A claim; the files' own headers decide."""

    file: str
    weight_map: Mapping[str, str]
    total_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Edition:
    """Files that together are one copy of the weights: one file, or the shards of one index.

    `kind`: "weights" (judged), "training" (optimizer and scheduler files, pickles beside the weights), "adapter".
    `strays` are files that look like shards of it and that its index does not name. `missing` are shards that are not there.
    `whole` is False if a part could not be read or is missing: then absence of a name proves nothing. `between` relates names of
    several of its files. `run`: the folder of a training run, where each name of a shared matrix is stored by itself: no waste, and
    equal is what is promised.
    """

    name: str
    format: str
    kind: str = "weights"
    files: tuple[LoadedFile, ...] = ()
    index: ShardIndex | None = None
    strays: tuple[LoadedFile, ...] = ()
    missing: tuple[str, ...] = ()
    whole: bool = True
    between: tuple[Ends, ...] = ()
    run: bool = False

    @property
    def ends(self) -> tuple[Ends, ...]:
        """What the files themselves say of names that are or may be one matrix."""
        return (*self.between, *(ends for file in self.files for ends in file.ends))

    @property
    def foreign(self) -> bool:
        """The names are those of a format, not of an architecture's parameters."""
        return any(file.foreign for file in self.files)

    @cached_property
    def tensors(self) -> tuple[TensorRecord, ...]:
        """Of all files that readers of this edition open, in file order."""
        return tuple(tensor for file in self.files for tensor in file.tensors)

    @cached_property
    def weights(self) -> tuple[TensorRecord, ...]:
        """The tensors of the model: no optimizer state, no averages kept beside it."""
        return tuple(tensor for tensor in self.tensors if not tensor.part)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Notes of the writer {name left out: name kept}, over all files."""
        return {left: kept for file in self.files for left, kept in file.aliases.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that was found at the target. `editions` begins with the one that transformers would load.

    `unreadable` are files that are not read further: (file, what, byte), `unread` those that a server did not give, with the
    reason. `elsewhere` are folders and files that were seen and
    not opened, with the reason.
    """

    target: str
    editions: tuple[Edition, ...]
    unreadable: tuple[Problem, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()

    @property
    def primary(self) -> Edition | None:
        """The edition that a reader takes when nothing else is said."""
        return next((edition for edition in self.editions if edition.kind == "weights"), None)

    @property
    def files(self) -> tuple[LoadedFile, ...]:
        return tuple(file for edition in self.editions for file in (*edition.files, *edition.strays))
