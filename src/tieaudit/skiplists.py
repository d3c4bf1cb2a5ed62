"""This file holds what a quantisation config asks of one module: packed, left as floats, or nobody can tell.

Each method has its own keys and its own matching, read from the programs that obey them: transformers `should_convert_module`
(bitsandbytes, fp8) and `get_keys_to_not_convert` (the default: no output head), compressed-tensors `match.is_match`, vLLM's
`lm_head_quantized` (GPTQ, AWQ) and `is_layer_excluded` (ModelOpt), mlx-lm's `class_predicate`. Patterns come from a file: only those
that surely end soon are run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from typing import Any

MAX_PATTERN, MAX_NAME = 200, 128  # characters
MAX_PATTERNS, MAX_REGEXES = 20_000, 64  # in one list
MAX_STEPS = 1_000_000  # that one pattern may take, at worst
_PLAIN = re.compile(r"[\w.-]*")
# a repeated group can take exponential time, a counted repeat unfolds, a back reference defeats every bound
_DANGEROUS = re.compile(r"\)[*+]|\{|\\[1-9]|\(\?P=")
_REPEAT, _BRANCH = re.compile(r"[*+]"), re.compile(r"\||(?<!\()\?")


class Wanted(Enum):
    PACKED = "packed"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is asked of a module, why (as a clause), what readers make of the other form, and how the config is corrected."""

    wanted: Wanted
    why: str
    readers: str
    fix: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A quantisation config: the file that it is in, the key ("" for the whole file), and its object."""

    file: str
    key: str
    data: Mapping[str, Any]

    @property
    def method(self) -> str:
        if self.key == "quantization":
            return "mlx"
        if self.key == "":
            return "modelopt"
        name = self.data.get("quant_method")
        return name.lower() if isinstance(name, str) else ""

    def asks(self, names: Iterable[str], *, head: bool) -> Answer | None:
        """What it asks of the module that goes by these names; `head`: the output head, else the embedding."""
        known = tuple(names)
        reader = _READERS.get("modelopt" if self.method.startswith("modelopt") else self.method)
        if reader is None or not known or any(len(name) > MAX_NAME for name in known):
            return None
        return reader(self.data, known, head)


def plan(config: Mapping[str, Any] | None, file: str) -> Plan | None:
    """The quantisation config within config.json, if any."""
    for key in ("quantization_config", "quantization"):
        data = config.get(key) if config else None
        if isinstance(data, Mapping) and (key == "quantization" or "quant_method" in data):
            return Plan(file, key, data)
    return None


def _agree(found: Iterable[bool | None]) -> bool | None:
    """What all say, None if they differ or one cannot tell."""
    answers = set(found)
    return answers.pop() if len(answers) == 1 else None


def _listed(entries: Any, names: tuple[str, ...], matches: Callable[[str, str], bool | None]) -> bool | None:
    """Whether a list of names and patterns matches the module under all its names; None if that cannot be told."""
    if not isinstance(entries, list) or len(entries) > MAX_PATTERNS or not all(isinstance(entry, str) for entry in entries):
        return None
    if sum(_PLAIN.fullmatch(entry) is None for entry in entries) > MAX_REGEXES:
        return None

    def by(name: str) -> bool | None:
        answers = {matches(entry, name) for entry in entries}
        return True if True in answers else None if None in answers else False

    return _agree(map(by, names))


def _regex(pattern: str, name: str, end: str = "") -> bool | None:
    """`re.match` of `pattern` and `end`, if the pattern surely ends soon."""
    if len(pattern) > MAX_PATTERN or _DANGEROUS.search(pattern):
        return None
    # each repeat can stop at every character, each alternative doubles the ways
    if (len(name) + 1) ** len(_REPEAT.findall(pattern)) * 2 ** len(_BRANCH.findall(pattern)) > MAX_STEPS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful sets in it
            return re.match(f"(?:{pattern}){end}", name) is not None
    except (re.error, RecursionError, OverflowError):
        return None


def _transformers(entry: str, name: str) -> bool | None:
    """`should_convert_module`: a regex from the start to a module boundary, or a suffix."""
    if name.endswith(entry):
        return True
    found = _regex(entry, name, r"(?:(?<=\.)|(?=\.|$))")
    # the same module under another model's prefix: releases of transformers move them
    return None if found is False and entry.rpartition(".")[2] == name.rpartition(".")[2] else found


def _compressed(entry: str, name: str, kind: str) -> bool | None:
    if entry.startswith("re:"):
        return _regex(entry.removeprefix("re:"), name)
    if entry in (name, kind):
        return True
    return None if entry.rpartition(".")[2] == name.rpartition(".")[2] else False


def _wildcards(entry: str, name: str) -> bool | None:
    """ModelOpt: names with `*`, or a part of the name."""
    if entry.count("*") > 3 or len(entry) > MAX_PATTERN or "[" in entry:
        return None
    return entry.strip("*.") in name if entry.strip("*.") else re.match(translate(entry), name) is not None


def _skipping(data: Mapping[str, Any], keys: tuple[str, ...], names: tuple[str, ...], default: str) -> tuple[bool | None, str]:
    """(whether the list skips the module, why); `default` says why where no list is given, "" if then nothing is skipped."""
    key = next((key for key in keys if data.get(key) is not None), "")
    if not key:
        return bool(default), default
    skipped = _listed(data[key], names, _transformers)
    return skipped, f"{key} {'names' if skipped else 'does not name'} it"


_NO_LIST = "no list of skipped modules is given, and without one the output head is left as it is"


def _bitsandbytes(data: Mapping[str, Any], names: tuple[str, ...], head: bool) -> Answer | None:
    if not head or not (data.get("load_in_4bit") or data.get("load_in_8bit")):
        return None
    key = "llm_int8_skip_modules"
    skipped, why = _skipping(data, (key,), names, _NO_LIST)
    if skipped is None:
        return None
    fix = f"write {key} without it" if skipped else f"add it to {key}"
    return Answer(Wanted.FLOAT if skipped else Wanted.PACKED, why, "transformers fails when it loads or runs it", fix)


def _fp8(data: Mapping[str, Any], names: tuple[str, ...], head: bool) -> Answer | None:
    skipped, why = _skipping(data, ("modules_to_not_convert", "ignored_layers"), names, _NO_LIST)
    # on a CPU transformers takes the scale along; a float head that should be FP8 is cast, which harms less than it breaks
    readers = "transformers on a GPU drops its scale and computes with other numbers"
    return Answer(Wanted.FLOAT, why, readers, "write modules_to_not_convert without it") if head and skipped else None


def _awq(data: Mapping[str, Any], _names: tuple[str, ...], head: bool) -> Answer | None:
    if not head or data.get("lm_head"):
        return None
    why = "AWQ leaves the output head as it is unless lm_head is true"
    return Answer(Wanted.FLOAT, why, "transformers and vLLM look for its plain weight", "set lm_head to true, which vLLM obeys")


def _gptq(data: Mapping[str, Any], _names: tuple[str, ...], head: bool) -> Answer | None:
    # `dynamic` of GPTQModel has rules of its own
    if not head or data.get("lm_head") or data.get("dynamic"):
        return None
    why = f"lm_head is {'false' if 'lm_head' in data else 'not set, which means false'}"
    return Answer(Wanted.FLOAT, why, "vLLM looks for its plain weight", "set lm_head to true")


def _compressed_tensors(data: Mapping[str, Any], names: tuple[str, ...], head: bool) -> Answer | None:
    groups, kind = data.get("config_groups"), "Linear" if head else "Embedding"
    if not isinstance(groups, Mapping) or not groups or data.get("quantization_status", "compressed") != "compressed":
        return None
    targeted: list[bool | None] = []
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            return None
        targeted.append(_listed(group.get("targets"), names, lambda entry, name: _compressed(entry, name, kind)))
    ignored = _listed(data.get("ignore") or [], names, lambda entry, name: _compressed(entry, name, kind))
    unread = "transformers does not read its scale and computes with other numbers"
    if ignored:
        return Answer(Wanted.FLOAT, "ignore names it", unread, "take it out of ignore")
    if all(hit is False for hit in targeted):
        return Answer(Wanted.FLOAT, "no target names it", unread, "name it in the targets of its group")
    if ignored is False and True in targeted:
        why = "it is a target, and ignore does not name it"
        return Answer(Wanted.PACKED, why, "transformers finds no scale for it and computes with random numbers", "add it to ignore")
    return None


def _modelopt(data: Mapping[str, Any], names: tuple[str, ...], head: bool) -> Answer | None:
    inner = data.get("quantization")
    section, key = (inner, "exclude_modules") if isinstance(inner, Mapping) else (data, "ignore")
    excluded = _listed(section.get(key), names, _wildcards)
    return Answer(Wanted.FLOAT, f"{key} names it", "vLLM does not read its scales", f"take it out of {key}") if head and excluded else None


def _mlx(data: Mapping[str, Any], names: tuple[str, ...], _head: bool) -> Answer | None:
    # without an entry of its own the stored scales decide
    given = [data[name] for name in names if name in data]
    if len(given) != 1:
        return None
    if given[0] is False:
        return Answer(Wanted.FLOAT, "its entry is false", "mlx-lm refuses the scales", "remove the entry")
    if isinstance(given[0], Mapping) or given[0] is True:
        return Answer(Wanted.PACKED, "it has an entry of its own", "mlx-lm finds no scales for it", "remove the entry")
    return None


_READERS: dict[str, Callable[[Mapping[str, Any], tuple[str, ...], bool], Answer | None]] = {
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "mlx": _mlx,
}
FAMILIES = {
    "bitsandbytes": ("bitsandbytes-4bit", "bitsandbytes-8bit"),
    "fp8": ("fp8", "fp8-block", "fp8-scale", "fp8-qscale"),
    "awq": ("gptq-awq",),
    "gptq": ("gptq-awq",),
    "compressed-tensors": ("compressed-tensors", "int8", "fp8", "fp8-block"),
    "modelopt": ("modelopt-nvfp4", "fp8"),
    "mlx": ("mlx",),
}
"""The schemes (quantised.py) that a method writes: what is stored in another way says nothing about its config."""
