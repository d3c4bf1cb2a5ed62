"""This file holds which names should be one matrix, and who says so.

A transformers model says it itself (`all_tied_weights_keys` in release 5; in release 4 the same class built once more without memory).
Of any other model the config's flag and its embeddings tell; without them an Embedding and a Linear of one shape are taken for the pair,
which then only counts if they are, or by their values once were, one matrix.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..claim import FLAG, FLAG_KEYS
from .naming import LiveNames, closure, own

SHAPES = "an Embedding and a Linear of one shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Names (as the model gave them) that should be one. The fields are those of LiveTie. `told` is False where the tie is asked for,
    but whoever loaded the model was told that it does not hold."""

    names: tuple[str, ...]
    expected: str
    certain: bool = True
    declared: bool | None = None
    told: bool = True


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A transformers model inside the model: where it stands, what it asks for, and which names `save_pretrained` can leave out."""

    prefix: str
    module: nn.Module
    groups: tuple[Expected, ...]
    patterns: tuple[str, ...]
    untied: str

    def holds(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def declared(self, names: Iterable[str]) -> bool:
        """`save_pretrained` leaves all but one of these out, as it does with the aliases that the classes declare, whatever the config
        says."""
        inner = [name.removeprefix(self.prefix) for name in names]
        return sum(not any(_matches(pattern, name) for pattern in self.patterns) for name in inner) <= 1


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return pattern == name


def pretrained(model: nn.Module) -> tuple[Pretrained, ...]:
    """The outermost transformers models in the model; none, at no cost, where transformers was never imported."""
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if base is None:
        return ()
    found: list[Pretrained] = []
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = own(path + ".") if path else ""
        if isinstance(module, base) and not any(prefix.startswith(other.prefix) for other in found):
            found.append(_asked(prefix, module))
    return tuple(found)


def _asked(prefix: str, module: Any) -> Pretrained:
    name = type(module).__name__
    pairs, popped = (_release_5 if hasattr(module, "get_expanded_tied_weights_keys") else _release_4)(module)
    flag = _flag(module.config)
    groups = [
        Expected(names=tuple(prefix + name for name in group), expected=f"{name} ties them", declared=True) for group in closure(pairs)
    ]
    for alias, source in popped:
        groups.append(
            Expected(
                names=(prefix + source, prefix + alias),
                expected=f"{FLAG} is true in the config of {name}",
                certain=False,
                declared=True,
                told=False,
            )
        )
    untied = f"{FLAG} is false in the config of {name}" if flag is False else f"{name} does not tie them"
    return Pretrained(prefix, module, tuple(groups), tuple(_patterns(module)), untied)


def _release_5(module: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(pairs that it tied and that its config still asks for, pairs that its config asks for and that it keeps apart)."""
    listed: dict[str, str] = dict(getattr(module, "all_tied_weights_keys", None) or {})
    try:
        asked = dict(module.get_expanded_tied_weights_keys(all_submodels=True))
    except (ValueError, AttributeError, KeyError, TypeError, re.error):  # an adapter's or a quantiser's names do not fit the patterns
        return list(listed.items()), []
    kept = [(alias, source) for alias, source in listed.items() if alias in asked]
    late = [(alias, source) for alias, source in asked.items() if alias not in listed]
    # Some configs say true whatever was written (T5), or follow a section that says false: there the file decides, and two are right
    free = _flag_is_free(module.config)
    return kept, [pair for pair in late if free]


def _flag_is_free(config: Any) -> bool:
    """The flag is what was written, and no section of the config says otherwise."""
    sections = [value for value in vars(config).values() if hasattr(value, "to_dict") and hasattr(value, "model_type")]
    if any(_flag(section) is False for section in sections):
        return False
    try:
        return bool(getattr(type(config)(**{FLAG: False}), FLAG, True) is False)
    except Exception:  # noqa: BLE001  a class of remote code may do anything
        return False


def _release_4(module: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """In release 4 only an instance knows: the same class with the same config, on the meta device, and what it shares."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            again = type(module)(copy.deepcopy(module.config))
    except Exception:  # noqa: BLE001  a class of remote code may do anything
        return ends(module) if _flag(_text_config(module.config)) is not False else [], []
    first: dict[int, str] = {}
    held = list(again.named_parameters(remove_duplicate=False))
    pairs = []
    for name, parameter in held:
        source = first.setdefault(id(parameter), name)
        if source != name:
            pairs.append((name, source))
    return pairs, []


def _text_config(config: Any) -> Any:
    get = getattr(config, "get_text_config", None)
    return get(decoder=True) if get else config


def _patterns(module: nn.Module) -> Iterator[str]:
    """As `_get_tied_weight_keys` of transformers: the aliases of every class inside, whatever the config says."""
    for path, inner in module.named_modules(remove_duplicate=False):
        prefix = own(path + ".") if path else ""
        for attribute in ("_tied_weights_keys", "_dynamic_tied_weights_keys"):
            keys = getattr(inner, attribute, None)
            if isinstance(keys, Iterable) and not isinstance(keys, str):
                yield from (prefix + str(key) for key in keys)


def flag_of(config: Any) -> bool | None:
    """Whether a config (an object, a mapping, or the answer itself) ties the ends; None if it does not say."""
    return config if isinstance(config, bool) else _flag(config)


def _flag(config: Any) -> bool | None:
    for key in FLAG_KEYS:
        value = config
        for step in key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step, None)
        if isinstance(value, bool):
            return value
    return None


def ends(module: Any) -> list[tuple[str, str]]:
    """[(head, embedding)] as the model's own accessors give them."""
    paths = {id(inner): path for path, inner in module.named_modules()}
    found = []
    for accessor in ("get_output_embeddings", "get_input_embeddings"):
        try:
            end = getattr(module, accessor)()
        except (AttributeError, NotImplementedError, TypeError):
            end = None
        if id(end) not in paths or not hasattr(end, "weight"):
            return []
        found.append(f"{paths[id(end)]}.weight")
    return [(found[0], found[1])] if found[0] != found[1] else []


@dataclass(frozen=True, slots=True)
class Flagged:
    """What the flag of a config says of a model that transformers does not know. `groups`: its ends, if the model can name them; `ties`
    and `untied`: who says that the ends are one, or separate, as a clause."""

    groups: tuple[Expected, ...] = ()
    ties: str = ""
    untied: str = ""


def by_config(model: nn.Module, config: Any, inside: tuple[Pretrained, ...]) -> Flagged:
    """The answer of a config that was given, or of the model's own if no transformers model inside speaks for itself."""
    given = config is not None
    inner = _inner(model)
    flag = None if inside and not given else flag_of(config if given else getattr(inner, "config", None))
    if flag is None:
        return Flagged()
    whose = "the config" if given else f"the config of {type(inner).__name__}"
    if flag is False:
        return Flagged(untied=f"{whose} keeps them apart")
    clause = f"{whose} ties them"
    return Flagged(tuple(Expected(names=(embedding, head), expected=clause) for head, embedding in ends(inner)), ties=clause)


def _inner(model: nn.Module) -> Any:
    """The model without what DDP, FSDP and torch.compile put around it."""
    for _ in range(8):
        inner = next((model._modules[leaf] for leaf in ("module", "_orig_mod", "_fsdp_wrapped_module") if leaf in model._modules), None)  # noqa: SLF001
        if inner is None or len(model._modules) != 1:  # noqa: SLF001
            break
        model = inner
    return model


def by_shape(model: nn.Module, names: LiveNames, inside: tuple[Pretrained, ...], same: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """[(embedding, head)] of one shape outside of transformers models: those that share memory (`same`), then each head that is left with
    the embedding that is left and stands nearest.

    An end that has its partner is left alone: a teacher and its student have equal ends, and each model is tied within.
    """
    embeddings, heads = _by_class(model, names, inside)
    tied = [(name, head) for head, shape in heads.items() for name, other in embeddings.items() if shape == other and same(name, head)]
    paired = {name for pair in tied for name in pair}
    found = tied
    for head, shape in heads.items():
        partners = [name for name, other in embeddings.items() if shape == other and name not in paired]
        if partners and head not in paired:
            found.append((max(partners, key=lambda name: _common(name, head)), head))
    return found


def _by_class(
    model: nn.Module, names: LiveNames, inside: tuple[Pretrained, ...]
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """(weights of the Embeddings, weights of the Linears), with their shapes."""
    embeddings: dict[str, tuple[int, int]] = {}
    heads: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        if not isinstance(module, (nn.Embedding, nn.Linear)):
            continue
        name = names.find(f"{path}.weight" if path else "weight")
        if name is None or any(one.holds(own(name)) for one in inside):
            continue
        if isinstance(module, nn.Embedding):
            embeddings.setdefault(name, (module.num_embeddings, module.embedding_dim))
        else:
            heads.setdefault(name, (module.out_features, module.in_features))
    return embeddings, heads


def _common(first: str, second: str) -> int:
    count = 0
    for one, other in zip(first.split("."), second.split("."), strict=False):
        if one != other:
            break
        count += 1
    return count
