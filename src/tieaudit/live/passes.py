"""This file holds how a model is run on a few token ids, and what is seen on the way: what goes into its head, and what comes out.

A model is left as it was: hooks are taken off again, the mode of every module and the random state are put back, also after an error.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import twins

TOKENS = 6
STEP = 7  # between two token ids
_LOGITS = ("logits", "prediction_logits", "lm_logits")


class Ends(NamedTuple):
    """The modules at both ends of a model and the names of their weights."""

    embedding: Any
    head: Any
    embedding_name: str
    head_name: str

    @property
    def tied(self) -> bool:
        return self.embedding.weight is self.head.weight

    @property
    def names(self) -> tuple[str, str]:
        return self.embedding_name, self.head_name


def ends(model: Any) -> Ends | None:
    """None for a model without two plain ends."""
    with contextlib.suppress(Exception):  # classes raise NotImplementedError, AttributeError and more
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if not all(isinstance(getattr(module, "weight", None), Tensor) and module.weight.dim() == 2 for module in (embedding, head)):
            return None
        modules = {id(module): name for name, module in model.named_modules()}
        return Ends(embedding, head, f"{modules[id(embedding)]}.weight", f"{modules[id(head)]}.weight")
    return None


class Seen:
    """One forward pass. `hidden` went into the head and `headed` came out of it (both None if it was not called), `embedded` came out of
    the embedding, `first` went into the first layer, `last` is the last hidden state and `logits` the answer, as the model gives them."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.hidden: Tensor | None = None
        self.headed: Tensor | None = None
        self.embedded: Tensor | None = None
        self.first: Tensor | None = None
        self.last: Tensor | None = None
        self.logits: Tensor | None = None


def forward(model: Any, found: Ends) -> Seen:
    """One pass in eval mode. With gradients if they are on. Raises what the model raises."""
    seen = Seen(_tokens(model, found.embedding.weight))
    hooks = [found.head.register_forward_hook(_keep_head(seen))]
    # encoders and decoders have an embedding module each, with one Parameter
    embedding = [one for one in model.modules() if getattr(one, "weight", None) is found.embedding.weight and one is not found.head]
    hooks += [module.register_forward_hook(_keep_embedded(seen)) for module in embedding]
    hooks += [base.register_forward_hook(_keep_last(seen)) for base in _bases(model)]
    layers = next((module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)), None)
    if layers is not None:
        hooks.append(layers[0].register_forward_pre_hook(_keep_first(seen), with_kwargs=True))
    try:
        with twins.quiet(), twins.seeded(), _eval(model):
            out = _answer(model, seen.ids, found.head.weight)
    finally:
        for hook in hooks:
            hook.remove()
    seen.logits = next((value for name in _LOGITS if isinstance(value := getattr(out, name, None), Tensor)), None)
    return seen


def _answer(model: Any, ids: Tensor, like: Tensor) -> Any:
    # not output_hidden_states: transformers would leave hooks of its own in the model
    if not getattr(model.config, "is_encoder_decoder", False):
        return model(input_ids=ids)
    try:
        return model(input_ids=ids, decoder_input_ids=ids)
    except Exception:  # noqa: BLE001  an encoder of sound or images: what it would say is made up
        state = torch.randn(1, TOKENS, like.shape[1], dtype=like.dtype, device=like.device)
        return model(encoder_outputs=(state,), decoder_input_ids=ids)


def _bases(model: Any) -> Iterator[nn.Module]:
    """The modules whose output is the last hidden state."""
    for name in ("get_decoder", "base_model"):
        with contextlib.suppress(Exception):  # code from beside the weights
            base = getattr(model, name)
            base = base() if name == "get_decoder" else base
            if isinstance(base, nn.Module) and base is not model:
                yield base


def _tokens(model: Any, weight: Tensor) -> Tensor:
    """Token ids, none of which stands for an image or the like. Shape: (1, TOKENS)."""
    sections = (model.config, getattr(model.config, "text_config", None))
    special = {value for one in sections if one is not None for name, value in vars(one).items() if "token" in name and type(value) is int}
    numbers = (place * STEP % weight.shape[0] for place in range(weight.shape[0]))
    plain = list(itertools.islice((number for number in numbers if number not in special), TOKENS))
    return torch.tensor([plain or [0] * TOKENS], device=weight.device)


@contextlib.contextmanager
def _eval(model: nn.Module) -> Iterator[None]:
    """Eval mode: dropout would make two different answers. Every module gets back its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def _keep_head(seen: Seen) -> Callable[..., None]:
    def keep(_module: Any, args: tuple[Any, ...], out: Any) -> None:
        if seen.hidden is None and args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            seen.hidden, seen.headed = args[0], out

    return keep


def _keep_embedded(seen: Seen) -> Callable[..., None]:
    def keep(_module: Any, _args: tuple[Any, ...], out: Any) -> None:
        if seen.embedded is None and isinstance(out, Tensor):
            seen.embedded = out

    return keep


def _keep_last(seen: Seen) -> Callable[..., None]:
    def keep(_module: Any, _args: tuple[Any, ...], out: Any) -> None:
        state = getattr(out, "last_hidden_state", out[0] if isinstance(out, tuple) and out else None)
        if isinstance(state, Tensor):
            seen.last = state

    return keep


def _keep_first(seen: Seen) -> Callable[..., None]:
    def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else kwargs.get("hidden_states")
        if seen.first is None and isinstance(value, Tensor):
            seen.first = value

    return keep


def factor(before: Tensor, after: Tensor) -> float | None:
    """c with after = c · before, to two percent of the largest; None if there is none."""
    before, after = before.detach().double().flatten(), after.detach().double().flatten()
    if before.shape != after.shape or not (square := float(before @ before)):
        return None
    c = float(before @ after) / square
    return c if c and torch.allclose(c * before, after, rtol=2e-2, atol=2e-2 * float(after.abs().max())) else None


def tolerance(dtype: torch.dtype) -> float:
    """What a matrix product of some thousand terms, rounded to the dtype, may be off, as a part of the largest."""
    return {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 1e-2}.get(dtype, 3e-2)
