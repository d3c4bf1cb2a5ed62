"""This file holds the reader of DeepSpeed's checkpoint folders (deepspeed/runtime/engine.py, `_save_checkpoint`; utils/zero_to_fp32.py).

`mp_rank_TT_model_states.pt` holds the weights of one model-parallel rank under "module"; under ZeRO-3 it is one
`zero_pp_rank_N_mp_rank_TT_model_states.pt` per data-parallel rank, and the weights in it are empty placeholders: the values are flat
partitions in `[bf16_]zero_pp_rank_N_mp_rank_TT_optim_states.pt`, and "param_shapes" [{name: torch.Size}] says how they are cut.
"shared_params" {alias: holder} is what ties are to DeepSpeed: `zero_to_fp32.py` writes the holder's values under the alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...checkpoint import Edition, LoadedFile, Storage, TensorRecord
from ..torch_tensors import ITEM_NBYTES
from . import values
from .found import Found, told_once, whole

FORMAT = "deepspeed"
MODEL = re.compile(r"^(?:zero_pp_rank_(?P<part>\d+)_)?mp_rank_(?P<rank>\d+)_model_states\.pt$")
STATE = re.compile(r"^(?:bf16_)?(?:zero_pp_rank_(?P<part>\d+)|expp_rank_\d+)_mp_rank_(?P<rank>\d+)_?optim_states\.pt$")
OTHERS = re.compile(r"^layer_\d+.*_model_states\.pt$|^.*-model_states\.pt$")
PARTITIONED = "has its values in flat partitions (optim_states files), which are not compared; zero_to_fp32.py joins them"


def editions(found: Found, base: str, names: list[str]) -> None:
    """One edition for each model-parallel rank in the folder `base`."""
    ranks: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        match = MODEL.match(name) or STATE.match(name)
        if match:
            ranks.setdefault(match["rank"], []).append(name)
    mine = [name for group in ranks.values() for name in group]
    others = [name for name in names if OTHERS.match(name) and name not in mine]
    if others:
        found.notes.append((base + others[0], f"is one of {len(others):,} files of single layers or experts, which are not read"))
    found.take(base, [*mine, *others])
    found.fetch(base + name for name in mine)
    for group in ranks.values():
        files = [file for name in group if (file := _file(found, base, name, group)) is not None]
        if files:
            found.editions.append(
                Edition(
                    name=base.rstrip("/") if len(ranks) == 1 and base else base + group[0],
                    format=FORMAT,
                    files=told_once(files),
                    whole=whole(files) and len(files) == len(group) and not others,
                    run=True,
                )
            )


def _order(name: str) -> tuple[int, int, str]:
    match = MODEL.match(name) or STATE.match(name)
    return (0 if MODEL.match(name) else 1, int(match["part"] or 0) if match else 0, name)


def _file(found: Found, base: str, name: str, group: list[str]) -> LoadedFile | None:
    read = found.torch(base + name)
    if read is None:
        return None
    file, root = read
    if STATE.match(name):
        return replace(file, tensors=tuple(replace(tensor, part="optimizer") for tensor in file.tensors))
    if name != group[0]:
        # the weights of another data-parallel rank: the same names, empty again
        return replace(file, tensors=(), storages=()) if MODEL.match(name) else file
    top = values.entries(root)
    shapes = _shapes(top)
    shared = {alias: kept for alias, kept in values.entries(top.get("shared_params")).items() if type(kept) is str}
    tensors = tuple(_whole_names(file, shapes, shared))
    file = replace(file, tensors=tensors, aliases=shared, storages=(*file.storages, *_unseen_storages(tensors, file)))
    found.note_unseen(file)
    return file


def _shapes(top: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Of every parameter that is trained or frozen, by name; each tied matrix has one name here."""
    tables = [*values.items(top.get("param_shapes")), top.get("frozen_param_shapes")]
    if not values.items(top.get("param_shapes")):
        tables.append(top.get("param_shapes"))  # older releases wrote the one table itself
    found = {}
    for table in tables:
        for name, given in values.entries(table).items():
            shape = values.size(given)
            if shape is not None:
                found[name] = shape
    return found


def _whole_names(file: LoadedFile, shapes: Mapping[str, tuple[int, ...]], shared: Mapping[str, str]) -> Iterable[TensorRecord]:
    """The weights with their shapes in place of the placeholders; an alias views the storage of its holder."""
    held = {tensor.name: tensor for tensor in file.tensors if not tensor.part}
    dtype = next((tensor.dtype for tensor in held.values() if tensor.dtype in ("BF16", "F16", "F32")), "F32")
    made = {name: _partitioned(file, name, shape, held, dtype) for name, shape in shapes.items() if _is_empty(held.get(name), shape)}
    for tensor in file.tensors:
        name = tensor.name
        if tensor.part or not _is_empty(tensor, shapes.get(name, ())):
            yield tensor
        elif name in made:
            yield made.pop(name)
        elif name in shared:
            holder = _partitioned(file, shared[name], shapes[shared[name]], held, dtype) if shared[name] in shapes else None
            if holder:
                yield replace(holder, name=name)
        else:
            yield tensor  # a placeholder that nothing explains: empty-tensor speaks
    yield from made.values()


def _is_empty(tensor: TensorRecord | None, shape: tuple[int, ...]) -> bool:
    return tensor is None or (tensor.numel == 0 and 0 not in shape)


def _partitioned(file: LoadedFile, name: str, shape: tuple[int, ...], held: Mapping[str, TensorRecord], dtype: str) -> TensorRecord:
    kind = held[name].dtype if name in held else dtype
    storage = Storage(file=file.name, ident=f"partitions of {name}", offset=None, nbytes=0, why=PARTITIONED)
    return TensorRecord(name, kind, shape, storage, 0, values.numel(shape) * ITEM_NBYTES[kind])


def _unseen_storages(tensors: Iterable[TensorRecord], file: LoadedFile) -> list[Storage]:
    known = {storage.ident for storage in file.storages}
    return list(dict.fromkeys(tensor.storage for tensor in tensors if tensor.storage.ident not in known))
