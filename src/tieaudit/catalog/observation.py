"""This file holds what one architecture class shows when it is built: which names are one Parameter, under which config.

The truth is identity (`is`) of the parameters of a built instance, never `_tied_weights_keys`: a class may rewrite its
declaration per instance, and a submodel's ties are gated by its own config. Values are never looked at, except in
`disk_names`, where they say which tensor in a saved file came from which parameter.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import transformers
from transformers import PreTrainedModel

from tieaudit.catalog import tiny
from tieaudit.catalog.files import saved
from tieaudit.catalog.structure import Structure, ends, kinds
from tieaudit.catalog.tiny import Json, Path

FLAG = "tie_word_embeddings"
STATES: tuple[bool | None, ...] = (True, False, None)  # None: config.json does not have the key
EXTRA = range(-8, 2049)  # rows of a matrix beyond a count in the config: ImageGPT has -1, Mllama 8, CpmAnt 1024
MAX_KEYS = 5  # 243 builds; the widest architecture has fewer deciding keys
_INTEGER = re.compile(r"(^|\.)\d+(?=\.|$)")
_SWITCH = re.compile(r".*(tie|tied|share|shared)(_.*|$)")


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
    deep = None if used_like else _deep(cls)
    if deep and _deeper(probe.default, Structure(tiny.build(cls, deep))):
        seen["config"], config = deep, deep
        model = tiny.build(cls, config)
        probe = _Probe(cls, config, model)
        embedding, head = ends(model)
    seen["layout"] = {}
    on = dict.fromkeys(switches, True)
    indexed = any(_indexed(group) for structure in (probe.default, probe.at(on)) for group in structure.groups)
    if deep and config is not deep and indexed and any(_moves(cls, config, deep, values) for values in ({}, on)):
        seen["config"], config = deep, deep
        model = tiny.build(cls, config)
        probe = _Probe(cls, config, model)
        seen["layout"] = tiny.depths(config)
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
        saved(cls, tiny.with_values(config, values[seen["table"].index(number)]), structure) for number, structure in enumerate(structures)
    ]
    seen["rows"] = {
        role: found for role, name in (("embedding", embedding), ("head", head)) if name and (found := _rows(cls, config, name))
    }
    if any(_indexed(group) for structure in structures for group in structure.groups):
        seen["layout"] |= probe.layout(on)
    seen["types"] = {
        ".".join(path): tiny.get(config, (*path, "model_type"))
        for path in tiny.subconfigs(config)
        if tiny.get(config, (*path, "model_type"))
    }
    return seen


def flags() -> Json:
    """Return, per model type, the flag that its config class has when config.json does not name it; None: it has none."""
    found: Json = {}
    for model_type in transformers.CONFIG_MAPPING:
        try:
            found[model_type] = getattr(transformers.CONFIG_MAPPING[model_type](), FLAG, None)
        except Exception:  # noqa: S112  (a class without defaults says nothing)
            continue
    return dict(sorted(found.items()))


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
        return list(dict.fromkeys([*paths, *named, *((word,) for word in _hidden_words(self.cls))]))

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
        adding = [path for path in found if not self._contradicts(starts[0], path)]
        keys |= found
        ordered = sorted(keys, key=lambda path: (path in adding, path[-1] != FLAG, len(path), path))
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

    def _contradicts(self, start: Mapping[Path, Any], path: Path) -> bool:
        return self.at(start).contradicts(self.at({**start, path: not tiny.get(self.config, path)}))


def _hidden_words(cls: type[PreTrainedModel]) -> list[str]:
    """Return the words for tying that the config class takes from its keyword arguments and never writes: Lfm2's `tie_embedding`."""
    taken = re.findall(r"kwargs\.(?:pop|get)\(\s*[\"'](\w+)[\"']", inspect.getsource(cls.config_class))
    return sorted({word for word in taken if word.startswith(("tie_", "tied_", "share_"))} - {FLAG})


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


def _deep(cls: type[PreTrainedModel]) -> Json | None:
    """Return a config of the class' full depth, None where the shrink rules clash at that depth."""
    config = tiny.shrink(tiny.default_config(cls), frozenset({"layers"}))
    try:
        tiny.build(cls, config)
    except MemoryError:
        raise
    except Exception:
        return None
    return config


def _deeper(default: Structure, full: Structure) -> bool:
    """Whether the ties of the full depth have another shape than the tiny instance's."""
    one, two = _shapes(full), _shapes(default)
    if one.keys() != two.keys():
        return True
    # A group that occurs once keeps the integers in its names, so these must be those of the full depth.
    return any(len(one[shape]) == len(two[shape]) == 1 and one[shape] != two[shape] for shape in one)


def _moves(cls: type[PreTrainedModel], small: Json, deep: Json, values: Mapping[Path, Any]) -> bool:
    """Whether a shared parameter is stored under another name at another depth: under its last layer's, say."""
    kept: list[set[str]] = []
    for config in (tiny.with_values(small, values), tiny.with_values(deep, values)):
        found = saved(cls, config, Structure(tiny.build(cls, config)))
        kept.append({name for names in found.get("kept", ()) for name in names})
    return not kept[0] <= kept[1]


def _indexed(group: Sequence[str]) -> bool:
    return sum(bool(_INTEGER.search(name)) for name in group) > 1


def _shapes(structure: Structure) -> dict[frozenset[str], set[tuple[str, ...]]]:
    """Return the groups by what is left of their names without integers."""
    found: dict[frozenset[str], set[tuple[str, ...]]] = {}
    for group in structure.groups:
        found.setdefault(frozenset(_INTEGER.sub("#", name) for name in group), set()).add(group)
    return found


def _booleans(config: Json, prefix: Path = ()) -> Iterator[Path]:
    for name, value in config.items():
        if isinstance(value, bool):
            yield (*prefix, name)
        elif isinstance(value, dict):
            yield from _booleans(value, (*prefix, name))


def _declares(module: PreTrainedModel) -> bool:
    return bool(getattr(module, "_tied_weights_keys", None) or getattr(module, "_dynamic_tied_weights_keys", None))


def _interesting(structures: Sequence[Structure], *more: str | None) -> list[str]:
    named = {name for structure in structures for group in structure.groups for name in group}
    return sorted(named | {name for name in more if name})


def _rows(cls: type[PreTrainedModel], config: Json, name: str) -> list[Any] | None:
    """Return the config path whose value gives the row count of a matrix, and the rows beyond it, found by adding to it."""
    before = tiny.build(cls, config).get_parameter(name).shape[0]
    near = [path for path in _integers(config) if before - tiny.get(config, path) in EXTRA]
    named = [path for path in near if "vocab" in path[-1]]
    near = [*named, *(path for path in near if path not in named)]
    together = [named] if len(named) > 1 else []  # some classes insist that all of these are equal
    for paths in [*([path] for path in named), *together, *([path] for path in near if path not in named)]:
        path, value = paths[0], tiny.get(config, paths[0])
        changed = tiny.with_values(config, {each: tiny.get(config, each) + 5 for each in paths})
        try:
            model = tiny.build(cls, changed)
            after = model.get_parameter(name).shape[0]
        except MemoryError:
            raise
        except Exception:  # noqa: S112  (rejected, or the name is gone: not this path)
            continue
        extra = before - value
        if after - before == 5 and (extra == 0 or _extra_at_full_size(cls, name, path) == extra):
            return [".".join(path), extra]
    return None


def _extra_at_full_size(cls: type[PreTrainedModel], name: str, path: Path) -> int | None:
    """Return the rows beyond the count in the default config: what a made-small config adds may come from made-small values."""
    config = tiny.default_config(cls)
    try:
        return int(tiny.build(cls, config).get_parameter(name).shape[0]) - int(tiny.get(config, path))
    except MemoryError:
        raise
    except Exception:  # the default cannot be built: no statement
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
