"""This file holds models made after another one: a small instance of the same class, and a copy whose head is a matrix of its own."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..catalog.tiny import shrink
from .hush import hushed

SEED = 0
# What must be dropped from the shrinking until a class can be built, as the catalog does; each is tried in turn.
_DROPPED: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"heads", "headdim"}),
    frozenset({"heads", "headdim", "hidden", "rank"}),
    frozenset({"layers"}),
)
MAX_NUMEL = 20_000_000  # parameters of a small instance; more is not small


def small(model: Any) -> nn.Module | None:
    """An instance of the model's class with every dimension made small, in float32 on the CPU, in eval mode; None if it cannot be built.

    Its values are random (seeded; the caller's random state is kept), its ties are those that the class makes under this config.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    content = json.loads(json.dumps(config.to_dict(), default=str))
    for name in ("quantization_config", "dtype", "torch_dtype", "_name_or_path"):
        content.pop(name, None)
    for dropped in _DROPPED:
        # a class may raise anything about a config that does not suit it
        with quiet(), seeded(), contextlib.suppress(Exception):
            with torch.device("meta"):
                tried = type(model)(type(config).from_dict(shrink(copy.deepcopy(content), dropped)))
            if sum(parameter.numel() for parameter in tried.parameters()) <= MAX_NUMEL:
                built: nn.Module = type(model)(type(config).from_dict(shrink(copy.deepcopy(content), dropped)))
                return built.float().eval()
    return None


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Random numbers that are the same each time; the caller's go on as if nothing had happened."""
    state, python = torch.random.get_rng_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(SEED)  # torch.manual_seed would seed every device as well
        yield
    finally:
        torch.random.set_rng_state(state)
        random.setstate(python)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Nothing is fetched from the Hub: configs can name kernels, backbones and code of other repositories."""
    # release 4 of transformers keeps a copy of the switch
    wanted = (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("transformers.utils.hub", "_is_offline_mode"))
    places = [(sys.modules[module], name) for module, name in wanted if hasattr(sys.modules.get(module), name)]
    before = [getattr(*place) for place in places]
    try:
        for module, name in places:
            setattr(module, name, True)
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


def copied(config: Any) -> Any:
    """A config of its own: some classes write into theirs while they are built."""
    return copy.deepcopy(config)


def wide(model: Any) -> Any:
    """A copy of the model in float32 that trains all its parameters."""
    with quiet():
        return copy.deepcopy(model).float().requires_grad_(requires_grad=True)


def untied(model: Any, *, moved: float = 0.0) -> Any:
    """A copy of the model whose output head has a Parameter of its own, with the same values, or with all of them `moved` by so much.

    Hooks on Parameters are not copied (`copy.deepcopy` of a Parameter drops them), so what a hook does to a gradient shows as a difference.
    """
    twin: Any = copy.deepcopy(model)
    head = twin.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach() + moved)
    return twin


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither warnings nor progress bars of the libraries; what matters of them is in the report."""
    import transformers

    verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        with hushed():  # optional kernels that are not there
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()
