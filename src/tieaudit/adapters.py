"""This file holds what an adapter (PEFT's `adapter_model.safetensors` and `adapter_config.json`) says of the ends of its model.

Names are those that `get_peft_model_state_dict` writes (peft/utils/save_and_load.py): the module's own name behind `base_model.model.`,
then what the method adds. A module of `modules_to_save` is written as `X.weight`; an embedding layer that is a target, or that was resized,
comes with a copy of the base's matrix (`X.base_layer.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from .checkpoint import Problem, TensorRecord
from .errors import FormatError, ReadError
from .loaders.safetensors import JSON_TYPES
from .loaders.sharded import read_json
from .names import plain
from .sources import Folder

CONFIG = "adapter_config.json"
MAX_CONFIG = 16 << 20  # bytes; lists of thousands of target modules have some 300 kB
MAX_ENDS = 32  # modules that are looked at; an encoder-decoder has four
MAX_COPIES = 8  # matrices of one module; PEFT writes at most three

# Without a base only the most telling names are taken for ends: `proj_out`, `head` or `output` are many other things
_EMBEDDINGS = frozenset(("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed_in"))
_HEADS = frozenset(("lm_head", "embed_out"))
# of a layer, of a drafter, of another modality: not the ends of the text model
_BESIDE = re.compile(r"\d+|(?:vision|visual|image|audio|talker|draft|mtp|nextn|eagle|medusa|t2u)\w*")
_METHODS = {"lora": "LoRA", "ia3": "IA3", "hada": "LoHa", "lokr": "LoKr", "oft": "OFT", "boft": "BOFT", "vera": "VeRA", "hra": "HRA"}
# tasks whose class has no output head over the vocabulary
_HEADLESS = frozenset(("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"))
# words that differ between a module's name in memory, as PEFT writes it, and the same on disk
_MOVING = frozenset(("base_model", "model", "language_model", "transformer"))


@cache
def _delta() -> re.Pattern[str]:
    """`prefix` of the tuners in peft/tuners/*/model.py (0.21.2), and of older ones. Compiled when an adapter is met."""
    return re.compile(
        r"(?:lora|ia3|vera|pvera|hada|lokr|oft|boft|randlora|fourierft|hra|vblora|bone|miss|shira|c3a|road|waveft|delora|gralora|hira|frod|"
        r"osf|poly|unilora|glora|psoft|peanut|lily|deft|beft|adamss|tinylora|supertuning|shadow|trainable_tokens)_\w+"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """What is asked of adapter_config.json. `target_modules` is a list, a regular expression (never run here), "all-linear" or None."""

    peft_type: str = ""
    task_type: str = ""
    base: str = ""
    peft_version: str = ""
    target_modules: tuple[str, ...] | str | None = None
    exclude_modules: tuple[str, ...] | str | None = None
    modules_to_save: tuple[str, ...] = ()
    trainable_tokens: int | None = None
    """How many indices `trainable_token_indices` lists; None if it is a map of several layers, or absent."""
    ensure_weight_tying: bool = False
    r: int | None = None
    alpha: float | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    layers_to_transform: tuple[int, ...] = ()
    fan_in_fan_out: bool = False
    reshaped: bool = False
    """Variants of LoRA whose two factors are not (r, in) and (out, r): QA-LoRA pools the input, BD-LoRA keeps blocks."""

    @property
    def headless(self) -> bool:
        return self.task_type in _HEADLESS

    def saves(self, module: str) -> bool:
        """True if `modules_to_save` names the module (peft/utils/other.py, _set_trainable: the end of the name decides)."""
        return any(bool(name) and module.endswith(name) for name in self.modules_to_save)

    def targets(self, module: str) -> bool | None:
        """True if `target_modules` names the module; None if only a regular expression could tell."""
        if isinstance(self.target_modules, str):
            return False if self.target_modules == "all-linear" else None
        return any(module == name or module.endswith("." + name) for name in self.target_modules or ())


class Copy(StrEnum):
    """A whole matrix in an adapter, as its name says what it is. In the order in which one of several equal ones is kept."""

    FULL = "weight"
    BASE = "base_layer"
    SAVED = "modules_to_save"
    ORIGINAL = "original_module"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterEnd:
    """What an adapter holds of one embedding or head. `module` is its name in the model; `tokens` are trained rows."""

    module: str
    is_head: bool
    copies: tuple[tuple[Copy, TensorRecord], ...] = ()
    deltas: tuple[TensorRecord, ...] = ()
    tokens: TensorRecord | None = None

    @property
    def method(self) -> str:
        """What is laid on the matrix, as people say it."""
        leaf = self.deltas[0].name.removesuffix(".weight").rsplit(".", 1)[-1] if self.deltas else ""
        first = _delta().search(self.deltas[0].name) if self.deltas else None
        word = (first[0] if first else leaf).split("_", 1)[0]
        magnitude = any("magnitude" in tensor.name for tensor in self.deltas)
        return "DoRA" if magnitude else _METHODS.get(word, word) if word else "trained tokens" if self.tokens else ""

    def delta(self, leaf: str) -> TensorRecord | None:
        """The one tensor `…leaf` or `…leaf.weight` (with the adapter's name behind it, if it was not taken off)."""
        found = [tensor for tensor in self.deltas if re.search(rf"\.{leaf}(?:\.\w+)?(?:\.weight)?$", tensor.name)]
        return found[0] if len(found) == 1 else None


def read_config(folder: Folder) -> tuple[AdapterConfig | None, Problem | None, tuple[str, str] | None]:
    """(adapter_config.json, what is wrong with it, what a server did not give). All None if it is not there."""
    if not folder.exists(CONFIG):
        return None, None, None
    try:
        data = read_json(folder, CONFIG, MAX_CONFIG)
    except ReadError as error:
        return None, None, (CONFIG, error.what)
    except FormatError as error:
        return None, Problem(file=CONFIG, what=error.what, offset=error.offset), None
    if not isinstance(data, dict):
        return None, Problem(file=CONFIG, what=f"is {JSON_TYPES[type(data)]}, not a JSON object", offset=0), None
    wrong = next((words for words in (_wrong(key, data.get(key)) for key in _SHAPES) if words), "")
    return _typed(data), Problem(file=CONFIG, what=wrong) if wrong else None, None


# what PEFT cannot work without or with
_SHAPES = {
    "peft_type": "a name",
    "base_model_name_or_path": "a name",
    "target_modules": "a list of names",
    "modules_to_save": "a list of names",
}


def _wrong(key: str, value: object) -> str:
    """A clause if the value is of a type that PEFT fails on."""
    if value is None or isinstance(value, str) or (_SHAPES[key] != "a name" and _is_names(value)):
        return ""
    kind = JSON_TYPES.get(type(value), "an object") + (" with other things than names" if isinstance(value, list) else "")
    return f"{key} is {kind}, not {_SHAPES[key]}"


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _typed(data: Mapping[str, Any]) -> AdapterConfig:
    """Values of another type than theirs count as absent."""

    def text(key: str) -> str:
        value = data.get(key)
        return value if isinstance(value, str) else ""

    def names(key: str) -> tuple[str, ...]:
        value = data.get(key)
        return (value,) if isinstance(value, str) else tuple(value) if _is_names(value) and isinstance(value, list) else ()

    def one_or_more(key: str) -> tuple[str, ...] | str | None:
        value = data.get(key)
        return value if isinstance(value, str) else names(key) or None

    tokens, layers, ranks = (data.get(key) for key in ("trainable_token_indices", "layers_to_transform", "rank_pattern"))
    r, alpha = data.get("r"), data.get("lora_alpha", data.get("alpha"))
    return AdapterConfig(
        peft_type=text("peft_type").upper(),
        task_type=text("task_type").upper(),
        base=text("base_model_name_or_path"),
        peft_version=text("peft_version"),
        target_modules=one_or_more("target_modules"),
        exclude_modules=one_or_more("exclude_modules"),
        modules_to_save=names("modules_to_save"),
        trainable_tokens=len(tokens) if isinstance(tokens, list) else None,
        ensure_weight_tying=data.get("ensure_weight_tying") is True,
        r=r if type(r) is int else None,
        alpha=float(alpha) if type(alpha) in (int, float) and abs(alpha) < 1e300 else None,
        rank_pattern={key: rank for key, rank in ranks.items() if type(rank) is int} if isinstance(ranks, dict) else {},
        layers_to_transform=tuple(layer for layer in (layers if isinstance(layers, list) else [layers]) if type(layer) is int),
        fan_in_fan_out=data.get("fan_in_fan_out") is True,
        reshaped=bool(data.get("use_qalora")) or bool(data.get("use_bdlora")),
    )


def short(name: str) -> str:
    """A module's or a weight's name without what differs between memory and disk."""
    return ".".join(word for word in plain(name).removesuffix(".weight").split(".") if word not in _MOVING)


def ends(tensors: Iterable[TensorRecord], heads: Iterable[str] = (), embeddings: Iterable[str] = ()) -> tuple[AdapterEnd, ...]:
    """What the adapter holds of embeddings and heads, embeddings first. `heads` and `embeddings` are names that the base's
    architecture has for them; beside these only names count that are always ends."""
    known = {short(name): False for name in embeddings} | {short(name): True for name in heads}
    found: dict[str, tuple[bool, list[tuple[Copy, TensorRecord]], list[TensorRecord], list[TensorRecord]]] = {}
    # looked at first: an adapter of many experts has 70,000 tensors
    leaves = sorted(_EMBEDDINGS | _HEADS | {name.rpartition(".")[2] for name in known})
    telling = re.compile("|".join(map(re.escape, leaves)))
    for tensor in tensors:
        if not telling.search(tensor.name):
            continue
        split = _split(plain(tensor.name), known)
        if split is None or (split[0] not in found and len(found) >= MAX_ENDS):
            continue
        module, rest, is_head = split
        _, copies, deltas, tokens = found.setdefault(module, (is_head, [], [], []))
        kind = _copy(rest)
        if kind:
            copies.append((kind, tensor))
        elif any(word.startswith("trainable_tokens_delta") for word in rest):
            tokens.append(tensor)
        elif _delta().fullmatch(rest[0]):
            deltas.append(tensor)
    made = [
        AdapterEnd(
            module=module,
            is_head=is_head,
            copies=tuple(sorted(copies, key=lambda entry: list(Copy).index(entry[0]))[:MAX_COPIES]),
            deltas=tuple(deltas),
            tokens=tokens[0] if tokens else None,
        )
        for module, (is_head, copies, deltas, tokens) in found.items()
    ]
    return tuple(sorted((end for end in made if end.copies or end.deltas or end.tokens), key=lambda end: (end.is_head, end.module)))


def _split(name: str, known: Mapping[str, bool]) -> tuple[str, list[str], bool] | None:
    """(module, what PEFT put behind its name, whether it is a head) if the tensor belongs to an end."""
    parts = name.split(".")
    at = next((at for at, word in enumerate(parts) if at and (word in _MARKS or _delta().fullmatch(word))), None)
    if at is None:
        return None
    module, rest = parts[:at], parts[at:]
    is_head = known.get(short(".".join(module)))
    if is_head is None:
        if any(_BESIDE.fullmatch(word) for word in module) or module[-1] not in (_EMBEDDINGS | _HEADS):
            return None
        is_head = module[-1] in _HEADS
    return ".".join(module), rest, is_head


_MARKS = frozenset(("weight", "bias", "base_layer", "modules_to_save", "original_module", "token_adapter"))


def _copy(rest: list[str]) -> Copy | None:
    """Which whole matrix this is, None if it is none."""
    if rest[-1] != "weight":
        return None
    if rest == ["weight"]:
        return Copy.FULL
    inner = [word for word in rest[:-1] if word != "token_adapter"]
    if inner and all(word == "base_layer" for word in inner):
        return Copy.BASE
    if inner[:1] in (["original_module"], ["modules_to_save"]) and len(inner) < 3:
        return Copy(inner[0])
    return None
