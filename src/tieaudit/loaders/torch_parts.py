"""This file holds which tensors of a torch file are the model's weights and which are the rest of a training checkpoint.

There is no standard: `{"state_dict": …}` (Lightning, fairseq, timm), `{"model": …}` (Megatron, detectron2), `{"module": …}`
(DeepSpeed), `{"model_state_dict": …, "optimizer_state_dict": …}` (torch's own tutorial), a bare state dict, a whole module.
"""

from __future__ import annotations

from collections.abc import Sequence

from .torch_objects import Leaf
from .torch_tensors import View

WEIGHT_KEYS = frozenset(
    "state_dict model module model_state_dict model_state model_dict net network weights weight params parameters "
    "net_state_dict network_state_dict pytorch_model".split()
)
INNER_KEYS = frozenset({"state_dict", "model_state_dict"})  # {"model": {"state_dict": …}}
OPTIMIZER_WORDS = (
    "optim",
    "exp_avg",
    "fp32_flat_groups",
    "single_partition_of_fp32_groups",
    "fp32_groups",
    "param_groups",
)
OTHER_WORDS = (
    "ema",
    "rng",
    "sched",
    "scaler",
    "loss",
    "criterion",
    "callback",
    "hyper_param",
    "swa",
    "averaged",
    "loops",
)
RANDOM_STATE_KEYS = frozenset({"python", "numpy", "cpu", "cuda"})  # rng_state.pth of transformers' Trainer
MOST = 0.9  # share of the bytes that makes one entry of an unknown checkpoint the model

Named = tuple[str, str]
"""(name, part); see TensorRecord."""


def name_leaves(leaves: Sequence[Leaf]) -> list[Named]:
    """Name and part of each leaf, in order."""
    prefix = _weights_path(leaves)
    return [_named(leaf, prefix) for leaf in leaves]


def _named(leaf: Leaf, prefix: tuple[str, ...] | None) -> Named:
    name = ".".join(leaf.path) or "tensor"
    if leaf.optimizer:
        return name, "optimizer"
    if leaf.extra:
        return name, "other"
    if prefix is None:  # the whole root is weights, but for what says otherwise
        return name, "" if len(leaf.path) < 2 else _role(leaf.path)
    if leaf.path[: len(prefix)] == prefix and len(leaf.path) > len(prefix):
        return ".".join(leaf.path[len(prefix) :]), ""
    return name, _role(leaf.path) or "other"


def _weights_path(leaves: Sequence[Leaf]) -> tuple[str, ...] | None:
    """Path of the mapping that holds the weights; None if they begin at the root."""
    candidates = [leaf for leaf in leaves if not leaf.optimizer and not leaf.extra]
    direct = {leaf.path[0] for leaf in candidates if len(leaf.path) == 1}
    if direct and direct <= RANDOM_STATE_KEYS and direct & {"cpu", "cuda"}:
        return ("",)  # nothing here is a weight
    if any("." in key for key in direct):
        return None
    below: dict[str, int] = {}
    for leaf in candidates:
        if len(leaf.path) > 1:
            below[leaf.path[0]] = below.get(leaf.path[0], 0) + _nbytes(leaf)
    known = [key for key in below if key.lower() in WEIGHT_KEYS]
    if known:
        best = max(known, key=below.__getitem__)
        return _descend(best, candidates)
    roleless = {key: nbytes for key, nbytes in below.items() if not _role((key,))}
    total = sum(roleless.values()) + sum(_nbytes(leaf) for leaf in candidates if len(leaf.path) < 2)
    for key, nbytes in roleless.items():
        if nbytes > MOST * total or (len(roleless) == 1 and not direct):
            return _descend(key, candidates)
    if below and not roleless and not direct:  # nothing but averages, say: then they are the weights
        others = {key: nbytes for key, nbytes in below.items() if _role((key,)) != "optimizer"}
        if others:
            return _descend(max(others, key=others.__getitem__), candidates)
    return None


def _descend(key: str, leaves: Sequence[Leaf]) -> tuple[str, ...]:
    seconds = {leaf.path[1] for leaf in leaves if len(leaf.path) > 1 and leaf.path[0] == key}
    inner = sorted(seconds & INNER_KEYS)
    if inner and all(len(leaf.path) > 2 for leaf in leaves if leaf.path[:2] == (key, inner[0])):
        return (key, inner[0])
    return (key,)


def _role(path: tuple[str, ...]) -> str:
    """ "optimizer", "other" or "" by the first two keys."""
    for key in path[:2]:
        lower = key.lower()
        if any(word in lower for word in OPTIMIZER_WORDS):
            return "optimizer"
        if any(lower.startswith(word) or lower.endswith(f"_{word}") for word in OTHER_WORDS):
            return "other"
    return ""


def _nbytes(leaf: Leaf) -> int:
    return leaf.view.nbytes if isinstance(leaf.view, View) else 0
