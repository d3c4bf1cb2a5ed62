"""This file holds the reader of checkpoints of torch.distributed.checkpoint, as FSDP, Accelerate and torchtitan write them.

`.metadata` names the tensors, `__RANK_N.distcp` hold their bytes. A tensor that is sharded over ranks has one chunk per rank. Each name is
stored by itself, so a tied matrix lies there twice; the state of its optimizer lies there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...checkpoint import Edition, LoadedFile, Problem, ShardIndex, Storage, TensorRecord
from ...errors import FormatError
from ...sources import Source
from ..torch_file import flat_parameters
from ..torch_objects import Leaf
from ..torch_parts import WEIGHT_KEYS, name_leaves
from ..torch_tensors import ITEM_NBYTES, StorageRef, View
from . import dcp_items, values
from .blocks import in_rows
from .dcp_metadata import Chunk, Reading, Tensor, read_metadata
from .found import Found, whole

FORMAT = "torch-dcp"
METADATA = ".metadata"
SUFFIX = ".distcp"


def edition(found: Found, base: str, names: list[str], optimizer: str = "") -> None:
    """The checkpoint in the folder `base`; Accelerate keeps the optimizer's in a folder of its own."""
    made = read(found, base, names)
    if made is None:
        return
    files, missing = [made[0]], made[1]
    if optimizer:
        state = read(found, optimizer, [entry.name for entry in found.folder.inside(optimizer[:-1])])
        if state:
            files.append(state[0])
            missing += state[1]
    found.editions.append(
        Edition(
            name=base.rstrip("/") or METADATA,
            format=FORMAT,
            files=tuple(files),
            index=index_of(*files),
            missing=missing,
            whole=whole(files) and not missing,
            run=True,
        )
    )


def index_of(*files: LoadedFile) -> ShardIndex:
    """`.metadata` is the index of its files."""
    return ShardIndex(file=files[0].name, weight_map={tensor.name: tensor.file for file in files for tensor in file.tensors})


def read(found: Found, base: str, names: list[str]) -> tuple[LoadedFile, tuple[str, ...]] | None:
    """(`.metadata` with the tensors of all its files, the files that are missing); None, and noted why, if it cannot be read."""
    parts = [name for name in names if name.endswith(SUFFIX)]
    if METADATA not in names:
        ranks = [name for name in names if name.endswith(METADATA)]
        if ranks:
            found.notes.append((base + ranks[0], "each rank wrote a .metadata of its own (no collectives): such a checkpoint is not read"))
        else:
            what = "is not there; it is written last, so the save of the .distcp files beside it was not finished, and nothing reads them"
            found.unreadable.append(Problem(file=base + METADATA, what=what))
            found.take(base, [])
        return None
    head = found.guarded(base + METADATA, _is_pickle)
    if head is None or (not head.tensors and head.format != FORMAT and not parts):
        return None  # a file of this name that is something else
    found.take(base, [METADATA, *parts])
    reading = Reading(found.folder, base, base + METADATA)
    loaded = found.guarded(base + METADATA, lambda source: _load(reading, source))
    if loaded is None:
        if not parts and found.unreadable and found.unreadable[-1].file == base + METADATA:
            problem = found.unreadable.pop()  # a file of this name that is something else
            found.notes.append((problem.file, problem.what))
        return None
    found.note_unseen(loaded)
    stale = [name for name in parts if base + name not in reading.sizes]
    if stale:
        found.notes.append((base + stale[0], f"is one of {len(stale):,} .distcp files that .metadata does not name: nothing reads them"))
    return loaded, reading.missing


def _is_pickle(source: Source) -> LoadedFile:
    format_name = FORMAT if source.read(0, min(1, source.nbytes)) == b"\x80" else ""
    return LoadedFile(name=source.name, format=format_name, nbytes=source.nbytes)


def _load(reading: Reading, source: Source) -> LoadedFile:
    read_metadata(reading, source)
    tensors = _records(reading)
    if flat := flat_parameters(tensor.name for tensor in tensors if not tensor.part):
        reading.unread.append(flat)
    return LoadedFile(
        name=source.name,
        format=FORMAT,
        nbytes=source.nbytes,
        tensors=tuple(tensors),
        storages=tuple(dict.fromkeys(tensor.storage for tensor in tensors)),
        problems=reading.told,
        globals=tuple(reading.globals),
        unread=tuple(reading.unread),
        data=tuple((name, nbytes) for name, nbytes in reading.sizes.items() if nbytes >= 0),
    )


def _records(reading: Reading) -> list[TensorRecord]:
    leaves = [_leaf(tensor) for tensor in _unwrapped(reading.tensors)]
    named = name_leaves(leaves)
    weights = [tensor for tensor, (_, part) in zip(reading.tensors, named, strict=True) if not part]
    items = [_item(tensor, chunk) for tensor in weights if _is_plain(tensor, reading) for chunk in tensor.chunks]
    known = dcp_items.places(items, reading.folder)
    records = []
    for tensor, (name, part) in zip(reading.tensors, named, strict=True):
        storage = _unseen(tensor, "is state of the optimizer") if part else _storage(reading, tensor, known, name)
        if storage:
            shape = tensor.shape
            if tensor.dtype == "F4" and shape:  # torch's element is a pair
                shape = (*shape[:-1], 2 * shape[-1])
            records.append(TensorRecord(name, tensor.dtype, shape, storage, 0, tensor.nbytes, None, part))
    return records


def _unwrapped(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Paths without a key that is around everything: {"app": {"model": …, "optim": …}}."""
    kept = list(tensors)
    while kept:
        firsts = {tensor.path[0] for tensor in kept}
        seconds = {tensor.path[1] for tensor in kept if len(tensor.path) > 1}
        if len(firsts) > 1 or firsts & WEIGHT_KEYS or not seconds & WEIGHT_KEYS or any(len(tensor.path) < 2 for tensor in kept):
            break
        kept = [Tensor(tensor.name, tensor.path[1:], tensor.dtype, tensor.shape, tensor.chunks) for tensor in kept]
    return kept


def _leaf(tensor: Tensor) -> Leaf:
    return Leaf(tensor.path, View(StorageRef("", tensor.dtype, 0, typed=True), tensor.dtype, tensor.shape, 0, tensor.nbytes, 0, None))


def _item(tensor: Tensor, chunk: Chunk) -> dcp_items.Item:
    shape = chunk.sizes
    if tensor.dtype == "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    return dcp_items.Item(chunk.file, chunk.begin, chunk.length, tensor.dtype, shape)


def _is_plain(tensor: Tensor, reading: Reading) -> bool:
    return not _why(tensor, reading)


def _why(tensor: Tensor, reading: Reading) -> str:
    """Why the bytes of a tensor are not looked for, as a clause; "" if they are."""
    lost = next((chunk.file for chunk in tensor.chunks if reading.sizes[chunk.file] < 0), "")
    if lost:
        return f"lies in {lost}, which is not there"
    if any(chunk.packed for chunk in tensor.chunks):
        return "is stored compressed or otherwise transformed"
    if not in_rows(tensor.shape, [(chunk.offsets, chunk.sizes) for chunk in tensor.chunks]):
        return f"is stored in {len(tensor.chunks):,} blocks that are no runs of rows"
    return ""


def _unseen(tensor: Tensor, why: str) -> Storage:
    first = tensor.chunks[0]
    return Storage(file=first.file, ident=f"item at {first.begin}", offset=None, nbytes=tensor.nbytes, why=why)


def _storage(reading: Reading, tensor: Tensor, known: Mapping[dcp_items.Item, dcp_items.Known], name: str) -> Storage | None:
    """The tensor's bytes; None, and a fault, if an item is broken."""
    why = _why(tensor, reading)
    pieces: list[tuple[str, int, int]] = []
    crc = None
    for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.offsets) if not why else ():
        place = known[_item(tensor, chunk)]
        if isinstance(place, FormatError):
            reading.fault(f"tensor {name!r}: {place.what}", name, place.file, place.offset)
            return None
        if isinstance(place, dcp_items.Strange):
            why = place.why
            break
        pieces.append((chunk.file, place.offset, values.numel(chunk.sizes) * ITEM_NBYTES[tensor.dtype]))
        crc = place.crc
    if why:
        return _unseen(tensor, why)
    file, offset, _ = pieces[0]
    ident = f"item at {min(tensor.chunks, key=lambda chunk: chunk.offsets).begin}"
    if len(pieces) == 1:
        return Storage(file=file, ident=ident, offset=offset, nbytes=tensor.nbytes, crc=crc)
    return Storage(file=file, ident=ident, offset=offset, nbytes=tensor.nbytes, pieces=tuple(pieces))
