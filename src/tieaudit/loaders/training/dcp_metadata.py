"""This file holds how `.metadata` of torch.distributed.checkpoint is read: tensors, their chunks, and the items that hold them.

It is a pickle of `Metadata(state_dict_metadata {name: TensorStorageMetadata(properties, size, chunks)}, planner_data {name: path},
storage_data {MetadataIndex(fqn, offset): _StorageInfo(relative_path, offset, length)})`, see metadata.py and filesystem.py of that package,
which load it with a plain `pickle.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checkpoint import PickleGlobal, Problem
from ...errors import FormatError
from ...sources import Folder, Source, stays
from ..pickle_globals import judge
from ..pickle_machine import Budget, BudgetError, Global, Made
from ..pickle_reader import PickleReader
from ..torch_file import MAX_PROBLEMS
from ..torch_parts import OPTIMIZER_WORDS
from ..torch_tensors import DTYPES_BY_NAME, ITEM_NBYTES
from . import values
from .blocks import fault_of_chunks

BUDGET = Budget()  # enough for 45,000 chunks, which take 130 MiB
# dataclasses, an enum and what they hold: loading them runs nothing else
_CLASSES = "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata BytesStorageMetadata MetadataIndex StorageMeta"
INERT = frozenset(
    [f"torch.distributed.checkpoint.metadata.{name}" for name in (*_CLASSES.split(), "_MEM_FORMAT_ENCODING")]
    + [f"torch.distributed.checkpoint.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")]
    + ["torch.serialization._get_layout"]
)


class Chunk(NamedTuple):
    """A box of a tensor and the item that holds it. `packed`: transforms that its bytes went through."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int
    packed: bool


@dataclass(slots=True)
class Tensor:
    name: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: list[Chunk]

    @property
    def nbytes(self) -> int:
        return values.numel(self.shape) * ITEM_NBYTES[self.dtype]


@dataclass(slots=True)
class Reading:
    """One `.metadata` under way. `sizes`: bytes of each file that it names, -1 for one that is not there."""

    folder: Folder
    base: str
    file: str
    tensors: list[Tensor] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    globals: list[PickleGlobal] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def fault(self, what: str, name: str = "", file: str = "", offset: int | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS or not name:
            self.problems.append(Problem(file=file or self.file, what=what, offset=offset, tensors=(name,) if name else ()))
        else:
            self.more.append(name)

    @property
    def told(self) -> tuple[Problem, ...]:
        """The problems; of too many the names alone, since their absence is no fault of the model."""
        if not self.more:
            return tuple(self.problems)
        what = f"has {len(self.more):,} more faults of this kind"
        return (*self.problems, Problem(file=self.file, what=what, tensors=tuple(self.more)))

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, nbytes in self.sizes.items() if nbytes < 0))


def read_metadata(reading: Reading, source: Source) -> None:
    """Fill `reading`. FormatError if the file is no such metadata."""
    limit = BUDGET.nbytes
    if source.nbytes > limit:
        reading.unread.append(f"a .metadata of {source.nbytes:,} bytes, more than the {limit:,} that are read")
        return
    machine = PickleReader(source.name, source.read(0, source.nbytes), 0, budget=BUDGET)
    try:
        _take(reading, machine.load())
    except BudgetError as error:
        reading.unread.append(f"a .metadata beyond what is read of one ({error.what})")
    except FormatError as error:
        if not any(one.danger == "call" for one in _judged(machine)):
            raise
        reading.fault(error.what, offset=error.offset)  # who loads it runs what stands before the fault: both are told
    reading.globals.extend(_judged(machine))


def _judged(machine: PickleReader) -> list[PickleGlobal]:
    return [PickleGlobal(name=one.name) if one.name in INERT else one for one in judge(machine)]


def _take(reading: Reading, root: object) -> None:
    """All tensors that the metadata names, with their chunks."""
    if values.class_name(root) != "Metadata":
        raise FormatError(reading.file, "is a pickle, but not the Metadata of torch.distributed.checkpoint", 0)
    top = values.entries(root)
    paths = values.entries(top.get("planner_data"))
    stored = {}
    for key, info in values.pairs(top.get("storage_data")):
        index = values.entries(key)
        fqn, offset = index.get("fqn"), values.size(index.get("offset"))
        if type(fqn) is str and offset is not None:
            stored[fqn, offset] = values.entries(info)
    for name, meta in values.entries(top.get("state_dict_metadata")).items():
        if values.class_name(meta) == "TensorStorageMetadata":
            _tensor(reading, name, values.entries(meta), stored, _path(name, paths.get(name)))


def _path(name: str, planned: object) -> tuple[str, ...]:
    """Where the tensor stood in the nested dict that was saved; without a planner's word the role is told by the first words."""
    words = tuple(str(word) for word in values.items(planned) if type(word) in (str, int))
    if words and ".".join(words) == name:
        return words
    first = name.split(".")[:2]
    return tuple(name.split(".")) if any(word.startswith(OPTIMIZER_WORDS) for word in first) else (name,)


def _tensor(
    reading: Reading,
    name: str,
    meta: Mapping[str, object],
    stored: Mapping[tuple[str, tuple[int, ...]], Mapping[str, object]],
    path: tuple[str, ...],
) -> None:
    dtype = _dtype(meta.get("properties"))
    shape = values.size(meta.get("size"))
    if dtype is None or shape is None:
        reading.fault(f"tensor {name!r} has a {'dtype' if dtype is None else 'size'} that is not known", name)
        return
    chunks: list[Chunk] = []
    for chunk in values.items(meta.get("chunks")):
        box = values.entries(chunk)
        offsets, sizes = values.size(box.get("offsets")), values.size(box.get("sizes"))
        if offsets is None or sizes is None or len(offsets) != len(shape) or len(sizes) != len(shape):
            reading.fault(f"tensor {name!r} has a chunk without a place in it", name)
            return
        if values.numel(sizes) or not (chunks or values.numel(shape)):
            info = stored.get((name, offsets))
            placed = _placed(reading, name, offsets, sizes, info)
            if placed is None:
                return
            chunks.append(placed)
    fault = fault_of_chunks(shape, [(chunk.offsets, chunk.sizes) for chunk in chunks])
    if fault:
        reading.fault(f"tensor {name!r} {fault}", name)
        return
    reading.tensors.append(Tensor(name, path, dtype, shape, chunks))


def _dtype(properties: object) -> str | None:
    """Of `TensorProperties`, whose state is a tuple that begins with the dtype."""
    state = properties.state if isinstance(properties, Made) else None
    first = values.items(state)[0] if values.items(state) else values.entries(properties).get("dtype")
    return DTYPES_BY_NAME.get(first.name) if isinstance(first, Global) and first.module == "torch" else None


def _placed(
    reading: Reading, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], info: Mapping[str, object] | None
) -> Chunk | None:
    """The chunk with its place in a file; None, and a fault, if it has none."""
    where = f"the chunk of tensor {name!r} at {list(offsets)}"
    if info is None:
        reading.fault(f"does not say where {where} lies", name)
        return None
    path, begin, length = info.get("relative_path"), values.count(info.get("offset")), values.count(info.get("length"))
    if type(path) is not str or begin is None or length is None:
        reading.fault(f"has no file, offset and length of {where}", name)
        return None
    file = reading.base + path
    if not stays(path):
        reading.fault(f"puts {where} into {path!r}, which leaves the folder: not opened", name)
        return None
    if file not in reading.sizes:
        entry = reading.folder.entry(file)
        reading.sizes[file] = -1 if not reading.folder.exists(file) else entry.nbytes
        if entry.refused and reading.sizes[file] >= 0:
            reading.fault(f"names the file {path!r}, which {entry.refused}")
            reading.sizes[file] = 0
    if 0 <= reading.sizes[file] < begin + length:
        what = f"ends at byte {reading.sizes[file]:,}, but .metadata puts {where} at {begin:,} to {begin + length:,}"
        reading.fault(what, name, file, reading.sizes[file])
        return None
    return Chunk(offsets, sizes, file, begin, length, bool(values.items(info.get("transform_descriptors"))))
