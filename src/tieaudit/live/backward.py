"""This file holds one backward pass: whether the gradient of a tied matrix is the sum over its two uses, g = g_in + g_out.

The uses are told apart by a copy of the model whose head has a Parameter of its own with the same values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..alive import Trial, Tried
from . import twins
from .passes import Ends, Seen, ends, factor, forward, tolerance


def gradient(model: Any) -> Tried:
    """`model` is run forward and backward, and so is a copy of it; its gradients are put back as they were."""
    found = ends(model)
    if found is None or not found.tied:
        return _told(None, "the model has no tied ends")
    if not found.embedding.weight.requires_grad:
        return _told(None, "the tied matrix is frozen", found)
    try:
        twin = twins.untied(model)
        apart = ends(twin)
        if apart is None or apart.tied:
            return _told(None, "the ends cannot be taken apart", found)
        _, (together,) = _gradients(model, found, found.embedding.weight)
        seen, (first, second) = _gradients(twin, apart, apart.embedding.weight, apart.head.weight)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        return _told(None, f"a backward pass cannot be made ({type(error).__name__})", found)
    if seen.headed is None or seen.embedded is None:
        which = found.head_name if seen.headed is None else found.embedding_name
        return _told(None, f"the forward pass does not call the module of {which}", found)
    if seen.logits is None or seen.logits.shape != seen.headed.shape:
        return _told(None, "the logits are not the head's output", found)
    return _judged(found, together, first, second)


def _told(held: bool | None, words: str, found: Ends | None = None) -> Tried:
    return Tried(trial=Trial.GRADIENT, held=held, words=words, names=found.names if found else ())


def _judged(found: Ends, together: Tensor | None, first: Tensor | None, second: Tensor | None) -> Tried:
    """None stands for a Parameter that the backward pass did not reach."""
    if first is None and second is None:
        return _told(None, "a backward pass reaches neither use of the matrix", found)
    if first is None or second is None or together is None:
        seen = "only that of the head" if first is None else "only that of the embedding" if second is None else "none at all"
        return _told(False, f"{_accused(found)}: it is {seen}, as if the other were detached", found)
    expected = first + second
    if not (torch.isfinite(expected).all() and torch.isfinite(together).all()):
        return _told(None, "the gradients are not finite numbers", found)
    worst = float((together - expected).abs().max()) / max(float(expected.abs().max()), 1e-30)
    if worst <= tolerance(found.embedding.weight.dtype):
        how = "exactly" if worst == 0 else f"to {worst:.1g} of the largest"
        return _told(True, f"one backward pass adds up both uses of the matrix once: g = g_in + g_out, {how}", found)
    c = factor(expected, together)
    if c is not None:
        seen = f"{c:.3g} times their sum"
    elif _close(together, first):
        seen = "only that of the embedding"
    elif _close(together, second):
        seen = "only that of the head"
    else:
        seen = f"off by {worst:.2g} of the largest"
    return _told(False, f"{_accused(found)}: it is {seen}", found)


def _accused(found: Ends) -> str:
    return f"the gradient of {found.embedding_name} is not the sum of its uses as embedding and as head (g_in + g_out)"


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def _gradients(model: Any, found: Ends, *weights: Tensor) -> tuple[Seen, list[Tensor | None]]:
    """What was seen, and the gradients of the weights by one loss, in float32. What `.grad` held before is put back."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        with torch.enable_grad():
            seen = forward(model, found)
            if seen.logits is None:
                raise ValueError("no logits")
            out = seen.logits.float()
            # a plain sum would leave nothing of a head behind a softmax
            loss = (out * torch.linspace(-1, 1, out.shape[-1], device=out.device)).sum() + (out * out).mean()
            torch.autograd.backward(loss)
        return seen, [None if weight.grad is None else weight.grad.detach().float().clone() for weight in weights]
    finally:
        for parameter, grad in kept:
            parameter.grad = grad
