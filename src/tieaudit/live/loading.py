"""This file holds the live check of a checkpoint: the class built on the meta device, the weights loaded, and what is tried on them.

Only here does the tool let transformers read a checkpoint. Code that lies beside the weights is run only if that is asked for, and
nothing is fetched: what is not on this machine is not there.
"""

from __future__ import annotations

import os
import re
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from ..alive import Live, Trial, Tried
from ..bytewise import TensorBytes
from ..config import Config
from ..inspectors.rule import Case, EditionCase
from ..loaders.sharded import PREFERENCE
from ..text import listed, quantity
from . import identity, trials, twins
from .answers import READER, answers, built_tied, ends_by_flag, won
from .compare import comparable
from .module import look

SMALL = 256 << 20  # bytes of a model that is itself written to disk; of a larger one a small instance is
TINY = 32 << 20  # bytes of a model that is itself run backwards, which takes some times its memory
MOST = 100_000  # layers or experts of one model: each is a module that has to be built
_REPEATED = re.compile(r"layers?|blocks?|experts?|depth")
_AUTO = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
_ONE = threading.Lock()  # one model at a time: memory, and what `twins.quiet` changes holds for the whole process


class NotLoaded(Exception):
    """The model cannot be loaded here; the text says why, as a clause."""


def load(folder: Path, case: Case, data: TensorBytes, *, trust_remote_code: bool = False) -> Live:
    """Load the model in `folder` on the CPU and look at it. NotLoaded if transformers cannot."""
    with _ONE, twins.quiet(), twins.offline():
        return _load(folder, case, data, trust_remote_code=trust_remote_code)


def _load(folder: Path, case: Case, data: TensorBytes, *, trust_remote_code: bool) -> Live:
    edition = _edition(case)
    cls, config = _class(folder, case.config, edition, trust_remote_code=trust_remote_code)
    declared = _on_meta(cls, config, edition)
    before = resident()
    model, info = _loaded(cls, folder, config, edition)
    after = resident()
    live, absent = look(model, moment=f"loaded by {READER}")
    found = identity.collect(model)
    told = list(answers(edition, found.by_name(), live.ties, found.tensors, declared))
    told += ends_by_flag(edition, case.config, found.by_name(), live.ties, told, trials.ends(model), declared)
    return replace(
        live,
        ties=tuple(built_tied(type(model).__name__, live.ties, told)),
        tried=tuple(_tried(model, info)),
        resident=(before, after),
        won=tuple(won(edition, found.tensors, data)),
        missing=tuple(sorted(info.get("missing_keys", ()))),
        unexpected=tuple(sorted(info.get("unexpected_keys", ()))),
        answers=tuple(told),
        absent=absent,
    )


def _edition(case: Case) -> EditionCase:
    """The copy of the weights that transformers loads: the first that is judged, if it has a name that transformers looks for."""
    edition = next(case.judged, None)
    if edition is not None and edition.edition.name in PREFERENCE:
        return edition
    there = f", not for {listed(one.edition.name for one in case.editions)}" if case.editions else ""
    raise NotLoaded(f"transformers looks for model.safetensors or pytorch_model.bin (or an index of shards){there}")


def _class(folder: Path, config: Config | None, edition: EditionCase, *, trust_remote_code: bool) -> tuple[Any, Any]:
    """(model class, its config). Nothing but transformers' own code is run unless `trust_remote_code`."""
    if config is None:
        raise NotLoaded("there is no config.json that can be read to build a model from")
    if config.remote_code and not trust_remote_code and not _known(config):
        raise NotLoaded("the model needs the code beside its weights, which was not run: read it, then --trust-remote-code runs it")
    for key, value in _integers(config.data):
        if value > MOST and _REPEATED.search(key):
            raise NotLoaded(f"{config.file} asks for {key} = {value:,}, more than is built here")
    try:
        loaded = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # noqa: BLE001  a config can break in any class
        raise _refused("does not read config.json", error) from None
    if config.remote_code and trust_remote_code and (reference := _reference(config)):
        return _beside(folder, reference), loaded
    # without a class in the config the static claim has found one that suits the names
    name = next(filter(_known_class, (*config.architectures, *(() if config.architectures else (edition.claim.architecture,)))), None)
    if name is not None:
        return getattr(transformers, name), loaded
    for auto in () if config.architectures else _AUTO:
        mapping = getattr(transformers, auto)._model_mapping  # noqa: SLF001  it has no public name
        if type(loaded) in mapping:
            return mapping[type(loaded)], loaded
    asked = ", ".join(config.architectures) or config.model_type or "a class"
    raise NotLoaded(f"{config.file} asks for {asked}, which {READER} does not have")


def _known(config: Config) -> bool:
    return any(map(_known_class, config.architectures)) and config.model_type in transformers.CONFIG_MAPPING


def _known_class(name: str) -> bool:
    found = getattr(transformers, name, None) if name.isidentifier() else None
    return isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)


def _integers(content: Any, key: str = "") -> Iterator[tuple[str, int]]:
    for name, value in content.items() if isinstance(content, Mapping) else ():
        if type(value) is int:
            yield f"{key}{name}", value
        yield from _integers(value, f"{key}{name}.")


def _reference(config: Config) -> str:
    """The class in code beside the weights: that which the config names, or else that of the likeliest task."""
    found = config.at("auto_map")
    known = {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, Mapping) else {}
    named = [value for value in known.values() if value.rpartition(".")[2] in config.architectures]
    return next(iter([*named, *(known[auto] for auto in _AUTO if auto in known)]), "")


def _beside(folder: Path, reference: str) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        return get_class_from_dynamic_module(reference, str(folder), local_files_only=True)
    except Exception as error:  # noqa: BLE001  it runs code that may do anything
        raise _refused(f"cannot import {reference}", error) from None


def _refused(what: str, error: Exception) -> NotLoaded:
    return NotLoaded(f"{READER} {what}: {type(error).__name__}: {textwrap.shorten(str(error), 200, placeholder=' …')}")


def _on_meta(cls: Any, config: Any, edition: EditionCase) -> dict[str, int]:
    """{name: number of its Parameter} of the class built without memory: what it ties before any file is read. Empty if that fails.

    NotLoaded if what it needs beyond the file does not fit in memory.
    """
    try:
        with twins.seeded(), torch.device("meta"):
            model = cls(twins.copied(config))
        found = identity.collect(model)
        asked = sum({name.parameter: found.tensors[name.name].numel() for name in found.names}.values())
    except Exception:  # noqa: BLE001  a class that computes with tensors while it is built
        found, asked = identity.Found((), {}), 0
    stored = [tensor for file in edition.edition.files for tensor in file.tensors]
    needed = sum(tensor.nbytes for tensor in stored)
    if getattr(config, "quantization_config", None) is None:
        needed += 2 * max(0, asked - sum(tensor.numel for tensor in stored))  # what is not in the file is made, in two bytes at least
    free = available()
    if free and needed > free:
        raise NotLoaded(f"the model needs {quantity(needed)} of memory, and {quantity(free)} are free")
    return {name.name: name.parameter for name in found.names}


def _loaded(cls: Any, folder: Path, config: Any, edition: EditionCase) -> tuple[nn.Module, dict[str, Any]]:
    try:
        with twins.seeded():
            model, info = cls.from_pretrained(
                str(folder),
                config=config,
                dtype="auto",
                local_files_only=True,
                output_loading_info=True,
                use_safetensors=not edition.edition.name.startswith("pytorch_model.bin"),
            )
    except Exception as error:  # noqa: BLE001  any class may raise anything
        raise _refused("cannot load it", error) from None
    return model.eval(), info


def _tried(model: Any, info: Mapping[str, Any]) -> Iterator[Tried]:
    """The trials: logits on the model itself, backward pass and round trip on it or on a small one of its class."""
    yield trials.logits(model)
    found = trials.ends(model)
    nbytes = sum({name.parameter: name.nbytes for name in identity.collect(model).names}.values())
    plain = all(map(comparable, model.parameters()))
    if found is not None and found.tied:
        yield _gradient(model, nbytes if plain else SMALL)
    if not plain:
        yield Tried(trial=Trial.ROUND_TRIP, held=None, words="some weights are quantised, or have no values")
    elif info.get("missing_keys"):
        yield Tried(trial=Trial.ROUND_TRIP, held=None, words="some weights were not in the file")
    elif nbytes <= SMALL:
        yield trials.round_trip(model)
    elif (tiny := twins.small(model)) is None:
        yield Tried(trial=Trial.ROUND_TRIP, held=None, words="the model is large, and no small one of its class can be made")
    else:
        # in the state that the loaded one is in: a head that was loaded as a matrix of its own must come back as one
        if found is not None and not found.tied and (ends := trials.ends(tiny)) is not None and ends.tied:
            tiny = twins.untied(tiny, moved=1.0)  # equal ones would be tied again, and rightly
        yield _on_small(trials.round_trip(tiny))


def _gradient(model: Any, nbytes: int) -> Tried:
    """On a copy in float32, where a sum of two gradients is one. If the model is not tiny, or that fails, on a small one of its class."""
    own = trials.gradient(twins.wide(model)) if nbytes <= TINY else None
    if own is not None and own.held is not None:
        return own
    small = twins.small(model)
    if small is not None:
        return _on_small(trials.gradient(small))
    return own or Tried(trial=Trial.GRADIENT, held=None, words="the model is large, and no small one of its class can be made")


def _on_small(tried: Tried) -> Tried:
    if tried.held is None:
        return tried
    return replace(tried, words=f"{tried.words} (tried on a small random instance of the class)")


def resident() -> int:
    """Bytes of memory that the process holds now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available() -> int:
    """Bytes of memory that can still be had; 0 where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
