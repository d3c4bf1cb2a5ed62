"""This file holds what `save_pretrained` writes for an instance: which tensor in the file came from which parameter.

Names on disk differ from parameter names in more than a hundred architectures, and of the names of one shared parameter
only one is written; both are read off files that the library itself wrote.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from tieaudit.catalog import tiny
from tieaudit.catalog.structure import Structure
from tieaudit.catalog.tiny import Json

FIRST_CONSTANT = 5_003  # far from what a buffer starts with


def saved(cls: type[PreTrainedModel], config: Json, structure: Structure) -> Json:
    """Return the names that `save_pretrained` writes: `disk` per parameter, and `kept` of each group's names.

    Empty where the instance is too large to be real or the class does not save.
    """
    try:
        model = tiny.build(cls, config)
        if tiny.numel(model) > tiny.MAX_REAL:
            return {"reason": "too large", **_declared(model, structure)}
        model = tiny.build(cls, config, "cpu")
        if Structure(model) != structure:
            return {"reason": "ties differ on the CPU"}
        tied = _files(model, constants=False)
        disk = disk_names(model)
    except MemoryError:
        raise
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {error}"[:200]}
    kept = [[name for name in group if disk.get(name) in tied] for group in structure.groups]
    return {
        "disk": {name: stored for name, stored in disk.items() if stored != name},
        "kept": kept,
        "lost": sorted(structure.names - disk.keys()),
    }


def _declared(model: PreTrainedModel, structure: Structure) -> Json:
    """Return the kept names by declaration, for an instance too large to be saved: those that no pattern drops."""
    patterns: list[str] = []
    for prefix, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            patterns += [f"{prefix}.{key}" if prefix else key for key in getattr(module, "_tied_weights_keys", None) or ()]
    kept = [[name for name in group if not any(re.search(p, name) for p in patterns)] for group in structure.groups]
    return {"kept": kept}


def disk_names(model: PreTrainedModel) -> dict[str, str]:
    """Return, per parameter name, the name of the one tensor that `save_pretrained` writes for it; the model is changed.

    Every alias gets a tensor of its own and every parameter a constant of its own, which survives any transposing,
    splitting and merging on the way to the file. A parameter that is stored as several tensors is left out.
    """
    names = _files(model, constants=True)
    by_value: dict[float, list[str]] = defaultdict(list)
    for stored, value in names.items():
        by_value[value].append(stored)
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return {name: by_value[value][0] for value, name in enumerate(parameters, start=FIRST_CONSTANT) if len(by_value.get(value, ())) == 1}


def _unshare_modules(module: nn.Module, seen: dict[int, nn.Module] | None = None) -> None:
    """Give every path a module of its own: heads and, in version 4, embeddings are shared as whole modules."""
    seen = {} if seen is None else seen  # holds the modules, so that no number is given out twice
    for name, child in list(module._modules.items()):  # noqa: SLF001  (named_children leaves out repeated ones)
        if child is not None:
            own = copy.deepcopy(child) if id(child) in seen else child
            module._modules[name] = own  # noqa: SLF001
            seen[id(own)] = own
            _unshare_modules(own, seen)


def _files(model: PreTrainedModel, *, constants: bool) -> dict[str, float]:
    """Return the name and the first element of every tensor that `save_pretrained` writes."""
    if constants:
        _unshare_modules(model)
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        with torch.no_grad():
            for value, name in enumerate(names, start=FIRST_CONSTANT):
                path, _, leaf = name.rpartition(".")
                old = model.get_parameter(name)
                new = nn.Parameter(torch.full(old.shape, float(value), dtype=torch.float32), requires_grad=False)
                setattr(model.get_submodule(path), leaf, new)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, **({} if transformers.__version__ >= "5" else {"safe_serialization": True}))
        for file in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(str(file), "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (safe_open is no mapping)
                    tensor = opened.get_tensor(name)
                    found[name] = float(tensor.flatten()[0]) if tensor.numel() else 0.0
    return found
