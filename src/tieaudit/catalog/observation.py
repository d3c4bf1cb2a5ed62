"""This file holds what one architecture class shows when it is built: which names are one Parameter, under which config.

The truth is identity (`is`) of the parameters of a built instance, never `_tied_weights_keys`: a class may rewrite its
declaration per instance, and a submodel's ties are gated by its own config. Values are never looked at, except in
`disk_names`, where they say which tensor in a saved file came from which parameter.
"""

from __future__ import annotations

import copy
import itertools
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from tieaudit.catalog import tiny
from tieaudit.catalog.tiny import Json, Path

FLAG = "tie_word_embeddings"
STATES: tuple[bool | None, ...] = (True, False, None)  # None: config.json does not have the key
FIRST_CONSTANT = 5_003  # far from what a buffer starts with
MAX_EXTRA = 256  # rows of a matrix beyond the config's own count; Mllama has 8
MAX_KEYS = 5  # 243 builds; the widest architecture has fewer deciding keys
_INTEGER = re.compile(r"(^|\.)\d+(?=\.|$)")
_SWITCH = re.compile(r".*(tie|tied|share|shared)(_.*|$)")

type_groups = tuple[tuple[str, ...], ...]


def observe(cls: type[PreTrainedModel], like: Json | None = None) -> Json:
    """Return the raw observation of one class, as JSON values. Raises NotBuilt.

    `like` is the observation of the same class under another transformers: its config and its keys are used where this
    one accepts them, so that both readings answer the same question.
    """
    model, config, used_like = _instance(cls, like)
    seen: Json = {"model_type": model.config.model_type, "config": config, "same_config": used_like}
    seen["declares"] = any(_declares(module) for module in model.modules() if isinstance(module, PreTrainedModel))
    probe = _Probe(cls, config, model)
    switches = probe.switches()
    embedding, head = ends(model)
    if not (seen["declares"] or head or probe.default.groups or probe.at(dict.fromkeys(switches, True)).groups):
        return seen
    deeper = None if used_like else _deeper(cls, probe.default)
    if deeper:
        seen["config"], config = deeper, deeper
        model = tiny.build(cls, config)
        probe = _Probe(cls, config, model)
        embedding, head = ends(model)
    if embedding:
        seen["embedding"] = {"name": embedding, "shape": list(model.get_parameter(embedding).shape)}
    if head:
        seen["head"] = {"name": head, "shape": list(model.get_parameter(head).shape)}
    wanted = [tuple(key.split(".")) for key in (like or {}).get("keys", ())]
    keys = probe.deciding_keys(wanted)
    table = [probe.at(dict(zip(keys, states, strict=True))) for states in itertools.product(STATES, repeat=len(keys))]
    structures = list(dict.fromkeys(structure for structure in table if structure.names))
    seen["keys"] = [".".join(key) for key in keys]
    seen["table"] = [structures.index(structure) if structure.names else -1 for structure in table]
    seen["structures"] = [{"groups": structure.groups, "names": sorted(structure.names)} for structure in structures]
    seen["default"] = structures.index(probe.default) if probe.default in structures else -1
    seen["kinds"] = kinds(model, _interesting(structures, embedding, head))
    values = [dict(zip(keys, states, strict=True)) for states in itertools.product(STATES, repeat=len(keys))]
    seen["saved"] = [
        _saved(cls, tiny.with_values(config, values[seen["table"].index(number)]), structure) for number, structure in enumerate(structures)
    ]
    seen["rows"] = {
        role: found for role, name in (("embedding", embedding), ("head", head)) if name and (found := _rows(cls, config, name))
    }
    if any(sum(bool(_INTEGER.search(name)) for name in group) > 1 for structure in structures for group in structure.groups):
        seen["layout"] = probe.layout(dict.fromkeys(switches, True))
    seen["types"] = {
        ".".join(path): tiny.get(config, (*path, "model_type"))
        for path in tiny.subconfigs(config)
        if tiny.get(config, (*path, "model_type"))
    }
    return seen


class Structure:
    """Which parameters exist and which of their names are one object; equal structures compare equal."""

    def __init__(self, model: PreTrainedModel | None) -> None:
        by_id: dict[int, list[str]] = defaultdict(list)
        for name, parameter in model.named_parameters(remove_duplicate=False) if model else ():
            by_id[id(parameter)].append(name)
        self.names = frozenset(name for names in by_id.values() for name in names)
        self.groups: type_groups = tuple(sorted(tuple(sorted(names)) for names in by_id.values() if len(names) > 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and (self.names, self.groups) == (other.names, other.groups)

    def __hash__(self) -> int:
        return hash((self.names, self.groups))

    def contradicts(self, other: Structure) -> bool:
        """Whether two names that exist on both sides are one object on one side only."""
        if not self.names or not other.names:
            return False
        common = self.names & other.names
        return _restricted(self.groups, common) != _restricted(other.groups, common)

    def adds(self, other: Structure) -> bool:
        """Whether one side has tied names that the other side does not have at all."""
        if not self.names or not other.names:
            return False
        return any(name not in other.names for group in self.groups for name in group) or any(
            name not in self.names for group in other.groups for name in group
        )


def _restricted(groups: type_groups, names: frozenset[str]) -> set[tuple[str, ...]]:
    kept = {tuple(name for name in group if name in names) for group in groups}
    return {group for group in kept if len(group) > 1}


class _Probe:
    """Builds one class again and again, each time with other values at some config paths; remembers the outcome."""

    def __init__(self, cls: type[PreTrainedModel], config: Json, model: PreTrainedModel) -> None:
        self.cls, self.config = cls, config
        self.default = Structure(model)
        self._memory: dict[frozenset[tuple[Path, Any]], Structure] = {frozenset(): self.default}

    def at(self, values: Mapping[Path, Any]) -> Structure:
        key = frozenset(values.items())
        if key not in self._memory:
            try:
                model = tiny.build(self.cls, tiny.with_values(self.config, values))
            except MemoryError:
                raise
            except Exception:  # a value that the class rejects: the answer is "cannot be built"
                model = None
            self._memory[key] = Structure(model)
        return self._memory[key]

    def switches(self) -> list[Path]:
        """Return the flag at the top and in every nested config, and every other boolean named after tying."""
        paths: list[Path] = [(FLAG,), *((*path, FLAG) for path in tiny.subconfigs(self.config))]
        named = [path for path in _booleans(self.config) if _SWITCH.match(path[-1])]
        return list(dict.fromkeys([*paths, *named]))

    def deciding_keys(self, wanted: Iterable[Path]) -> list[Path]:
        """Return the paths whose value changes a tie, asked from four starting points.

        One start is not enough: in an "either flag ties" architecture neither matters alone while the other is true.
        """
        switches = self.switches()
        starts = [dict.fromkeys(switches, state) for state in STATES]
        if len(switches) > 1:
            starts.append({})
        keys = dict.fromkeys(wanted)
        for path in switches:
            if any(self._matters(start, path) for start in starts):
                keys[path] = None
        others = [path for path in _booleans(self.config) if path not in switches]
        found: dict[Path, None] = {}
        for _ in range(2):  # twice: a boolean may be accepted only together with another one
            base = {**starts[0], **dict.fromkeys(found, True)}
            new = [path for path in others if path not in found and self._adds(base, path)]
            found |= dict.fromkeys(new)
            if not new:
                break
        keys |= found
        ordered = sorted(keys, key=lambda path: (path[-1] != FLAG, len(path), path))
        return ordered[:MAX_KEYS]

    def layout(self, start: Mapping[Path, Any]) -> Json:
        """Return the integers of the config that change which repeated parts are shared, with their values."""
        found: Json = {}
        for path in _integers(self.config):
            value = tiny.get(self.config, path)
            if any(self.at(start).contradicts(self.at({**start, path: value + step})) for step in (1, -1)):
                found[".".join(path)] = value
        return found

    def _matters(self, start: Mapping[Path, Any], path: Path) -> bool:
        outcomes = [self.at({**start, path: state}) for state in STATES]
        return any(one.contradicts(two) for one, two in itertools.combinations(outcomes, 2))

    def _adds(self, start: Mapping[Path, Any], path: Path) -> bool:
        """Whether the other value of a boolean changes a tie or brings one into being."""
        one, two = self.at(start), self.at({**start, path: not tiny.get(self.config, path)})
        return one.contradicts(two) or one.adds(two)


def _instance(cls: type[PreTrainedModel], like: Json | None) -> tuple[PreTrainedModel, Json, bool]:
    if like and like.get("config"):
        try:
            return tiny.build(cls, like["config"]), like["config"], True
        except MemoryError:
            raise
        except Exception:  # noqa: S110  (the other version's config does not fit this class: shrink this version's own)
            pass
    config, model = tiny.tiny(cls)
    return model, config, False


def _deeper(cls: type[PreTrainedModel], default: Structure) -> Json | None:
    """Return a config of the class' full depth where its ties have another shape than the tiny one's, else None."""
    config = tiny.shrink(tiny.default_config(cls), frozenset({"layers"}))
    try:
        full = Structure(tiny.build(cls, config))
    except MemoryError:
        raise
    except Exception:  # the shrink rules clash at this depth; the tiny instance stands alone
        return None
    return config if _shapes(full) != _shapes(default) else None


def _shapes(structure: Structure) -> set[frozenset[str]]:
    return {frozenset(_INTEGER.sub("#", name) for name in group) for group in structure.groups}


def _booleans(config: Json, prefix: Path = ()) -> Iterator[Path]:
    for name, value in config.items():
        if isinstance(value, bool):
            yield (*prefix, name)
        elif isinstance(value, dict):
            yield from _booleans(value, (*prefix, name))


def _declares(module: PreTrainedModel) -> bool:
    return bool(getattr(module, "_tied_weights_keys", None) or getattr(module, "_dynamic_tied_weights_keys", None))


def ends(model: PreTrainedModel) -> tuple[str | None, str | None]:
    """Return the names of the input and the output embedding weight: those of their own modules, even where tied."""
    paths = {id(module): path for path, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}

    def name_of(getter: str) -> str | None:
        try:
            module = getattr(model, getter)()
        except (NotImplementedError, AttributeError, TypeError, KeyError, IndexError):
            return None
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter):
            return None
        return f"{paths[id(module)]}.weight" if id(module) in paths else parameters.get(id(weight))

    return name_of("get_input_embeddings"), name_of("get_output_embeddings")


def kinds(model: PreTrainedModel, names: Iterable[str]) -> Json:
    """Return, per parameter name, the kind of its module: embedding, linear or other."""
    found: Json = {}
    for name in names:
        path, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            continue
        if leaf != "weight":
            found[name] = "other"
        elif isinstance(module, nn.Embedding):
            found[name] = "embedding"
        else:
            found[name] = "linear" if isinstance(module, nn.Linear) or hasattr(module, "out_features") else "other"
    return found


def _interesting(structures: Sequence[Structure], *more: str | None) -> list[str]:
    named = {name for structure in structures for group in structure.groups for name in group}
    return sorted(named | {name for name in more if name})


def _rows(cls: type[PreTrainedModel], config: Json, name: str) -> list[Any] | None:
    """Return the config path whose value gives the row count of a matrix, and the rows beyond it, found by adding to it."""
    before = tiny.build(cls, config).get_parameter(name).shape[0]
    near = [path for path in _integers(config) if 0 <= before - tiny.get(config, path) <= MAX_EXTRA]
    named = [path for path in near if "vocab" in path[-1]]  # some classes insist that all of these are equal
    for paths in ([path] for path in near) if len(named) < 2 else [*([path] for path in near), named]:
        path, value = paths[0], tiny.get(config, paths[0])
        changed = tiny.with_values(config, {each: tiny.get(config, each) + 5 for each in paths})
        try:
            model = tiny.build(cls, changed)
            after = model.get_parameter(name).shape[0]
        except MemoryError:
            raise
        except Exception:  # noqa: S112  (rejected, or the name is gone: not this path)
            continue
        if after - before == 5:
            return [".".join(path), before - value]
    return None


def _integers(config: Json, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of all integers, a level's own before its nested configs'."""
    nested: list[tuple[str, Json]] = []
    for name, value in config.items():
        if isinstance(value, dict):
            nested.append((name, value))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*prefix, name)
    for name, value in nested:
        yield from _integers(value, (*prefix, name))


def _saved(cls: type[PreTrainedModel], config: Json, structure: Structure) -> Json:
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


def _unshare_modules(model: PreTrainedModel) -> None:
    """Give every path a module of its own: version 4 shares whole embedding modules, not only their weights."""
    seen: set[int] = set()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in seen and path and any(True for _ in module.parameters(recurse=False)):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, copy.deepcopy(module))
        seen.add(id(module))


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
        for file in sorted(FilePath(folder).glob("*.safetensors")):
            with safe_open(str(file), "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (safe_open is no mapping)
                    tensor = opened.get_tensor(name)
                    found[name] = float(tensor.flatten()[0]) if tensor.numel() else 0.0
    return found
