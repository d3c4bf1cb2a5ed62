"""This file holds what is tried on a model: whether its logits are h · Eᵀ. One backward pass is in `backward.py`, one save and load in
`roundtrip.py`.

Each trial says what it saw. A trial that cannot be made (no head, a forward pass that needs images) says why and accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..alive import Trial, Tried
from . import twins
from .backward import gradient
from .compare import comparable
from .passes import TOKENS, Ends, Seen, ends, factor, forward, tolerance
from .roundtrip import round_trip

__all__ = ["ends", "gradient", "logits", "round_trip"]

CAPS = ("final_logit_softcapping", "logit_softcapping", "logits_soft_cap")
CHUNK = 1 << 22  # elements of the matrix that are multiplied at once in float32: it is never copied whole


def logits(model: Any) -> Tried:
    """Whether the head's output is the last hidden state times the head's matrix (plus bias), row by row, and how it is scaled.

    For tied ends that is the embedding's matrix.
    """
    found = ends(model)
    if found is None:
        return _told(None, "the model has no two plain ends")
    if not comparable(found.head.weight):
        return _told(None, f"{found.head_name} is {_kind(found.head.weight)}", found)
    try:
        with torch.no_grad():
            seen = forward(model, found)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        return _head_alone(found, f"a forward pass needs more than token ids ({type(error).__name__})")
    if seen.hidden is None or seen.headed is None:
        return _without_head(found, seen)
    off = _difference(seen.hidden, seen.headed, found)
    if off is None:
        return _told(None, "the head's output has another shape than h · Eᵀ", found)
    if off.compared == 0:
        return _told(None, "the logits are not finite numbers", found)
    if off.worst > tolerance(found.head.weight.dtype):
        return _told(False, _accused(found, off), found)
    scales = (_embedding_scale(seen, found), _hidden_scale(seen), _output_scale(model, seen))
    words = f"logits = {_formula(found)} ({len(seen.ids[0])} tokens, {_precisely(off)})"
    return _told(True, "; ".join([words, *filter(None, scales)]), found)


def _told(held: bool | None, words: str, found: Ends | None = None) -> Tried:
    return Tried(trial=Trial.LOGITS, held=held, words=words, names=found.names if found else ())


def _kind(weight: Tensor) -> str:
    return "on the meta device" if weight.device.type == "meta" else f"a {type(weight).__name__}, no plain matrix"


def _formula(found: Ends) -> str:
    bias = " + bias" if isinstance(getattr(found.head, "bias", None), Tensor) else ""
    return f"h · Eᵀ{bias}" if found.tied else f"h · Wᵀ{bias} with W = {found.head_name}"


class _Off(NamedTuple):
    """How far two results are apart: the largest difference as a part of the largest logit, the row where it is, and how many rows were
    compared and were not, because they are not finite."""

    worst: float
    row: int
    compared: int
    left: int


def _precisely(off: _Off) -> str:
    rows = f"all {off.compared:,} rows" if not off.left else f"{off.compared:,} rows, {off.left:,} more hold NaN or infinity"
    return f"{rows}, {'exactly' if off.worst == 0 else f'to {off.worst:.1g} of the largest'}"


def _accused(found: Ends, off: _Off) -> str:
    whose = f"{found.head_name} is that Parameter" if found.tied else "that is the head's matrix"
    matrix = f" with E = {found.embedding_name}" if found.tied else ""
    where = f"row {off.row:,} differs by {off.worst:.2g} of the largest logit"
    return f"the head's output is not {_formula(found)}{matrix}, though {whose}: {where}"


def _difference(hidden: Tensor, out: Tensor, found: Ends) -> _Off | None:
    """`out` against hidden · matrixᵀ + bias; None if the shapes do not fit.

    Shapes: hidden (…, H), matrix (V, H), out (…, up to V).
    """
    matrix, bias = found.head.weight.detach(), getattr(found.head, "bias", None)
    if out.shape[-1] > matrix.shape[0] or hidden.shape[-1] != matrix.shape[1] or hidden.shape[:-1] != out.shape[:-1]:
        return None
    hidden, out = hidden.detach().flatten(0, -2), out.detach().flatten(0, -2)
    size = max(1, CHUNK // matrix.shape[1])
    largest, apart, row, compared = 0.0, 0.0, 0, 0
    for begin in range(0, out.shape[-1], size):
        part = slice(begin, min(begin + size, out.shape[-1]))
        expected = _wide(hidden) @ _wide(matrix[part]).T
        if isinstance(bias, Tensor):
            expected += _wide(bias.detach()[part])
        got = _wide(out[:, part])
        # a row of NaN, or what float16 cannot hold, says nothing of the others
        finite = torch.isfinite(expected).all(0) & torch.isfinite(got).all(0)
        if not finite.any():
            continue
        compared += int(finite.sum())
        largest = max(largest, float(expected[:, finite].abs().max()))
        differences = (expected - got).abs().amax(0).nan_to_num(0, 0) * finite
        if float(differences.max()) > apart:
            apart, row = float(differences.max()), begin + int(differences.argmax())
    return _Off(apart / max(largest, 1e-12), row, compared, out.shape[-1] - compared)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _head_alone(found: Ends, why: str) -> Tried:
    """The head on random states, where the whole model cannot be run."""
    matrix = found.head.weight.detach()
    with twins.seeded(), torch.no_grad():
        hidden = torch.randn(TOKENS, matrix.shape[1]).to(matrix)
        try:
            out = found.head(hidden)
        except Exception as error:  # noqa: BLE001
            return _told(None, f"{why}, and the head alone raises {type(error).__name__}", found)
    off = _difference(hidden, out, found) if isinstance(out, Tensor) else None
    if off is None or off.compared == 0:
        return _told(None, why, found)
    if off.worst > tolerance(matrix.dtype):
        return _told(False, _accused(found, off), found)
    return _told(True, f"the head alone gives {_formula(found)} (random states, {_precisely(off)}): {why}", found)


def _without_head(found: Ends, seen: Seen) -> Tried:
    """The logits of a model that does not call its head module (`F.linear(h, embedding.weight)`), up to a constant."""
    why = f"the forward pass does not call the module of {found.head_name}"
    if seen.last is None or seen.logits is None or seen.last.shape[-1] != found.head.weight.shape[1]:
        return _told(None, why, found)
    columns = torch.linspace(0, seen.logits.shape[-1] - 1, min(64, seen.logits.shape[-1])).long()
    if seen.logits.shape[-1] > found.head.weight.shape[0] or not torch.isfinite(seen.logits[..., columns]).all():
        return _told(None, why, found)
    product = seen.last.float() @ found.head.weight.detach()[columns].float().T
    c = factor(product, seen.logits[..., columns])
    if c is None:
        return _told(None, f"{why}, and its logits are no multiple of {_formula(found)}", found)
    times = "" if abs(c - 1) < 1e-2 else f"{c:.6g} · "
    return _told(True, f"logits = {times}{_formula(found)} ({len(seen.ids[0])} tokens, {len(columns)} rows): {why}", found)


def _embedding_scale(seen: Seen, found: Ends) -> str:
    """Words on the factor between a row of the embedding and what the first layer gets, if there is one for all."""
    rows = found.embedding.weight.detach()[seen.ids[0]].float()
    for state in _present(seen.embedded, seen.first):
        if state.shape[-2:] == rows.shape[-2:]:
            c = factor(rows, state.reshape(-1, *rows.shape)[0].float())
            if c is not None and abs(c - 1) > 1e-3:
                width = rows.shape[1]
                root = f" = √{width}" if abs(c**2 / width - 1) < 0.02 else ""
                return f"embeddings are scaled by {c:.6g}{root}"
    return ""


def _present(*states: Tensor | None) -> Iterator[Tensor]:
    yield from (state for state in states if state is not None)


def _hidden_scale(seen: Seen) -> str:
    """Words on the factor between the last hidden state and what the head gets."""
    if seen.last is None or seen.hidden is None or seen.last.shape != seen.hidden.shape:
        return ""
    c = factor(seen.last.float(), seen.hidden.float())
    return f"h is the last hidden state times {c:.6g}" if c is not None and abs(c - 1) > 1e-2 else ""


def _output_scale(model: Any, seen: Seen) -> str:
    """Words on what becomes of the head's output on its way to the model's logits."""
    if seen.logits is None or seen.headed is None or seen.logits.shape != seen.headed.shape:
        return ""
    before, after = seen.headed.float(), seen.logits.float()
    if torch.allclose(before, after, rtol=1e-3, atol=1e-6, equal_nan=True):
        return ""
    for section in (model.config, getattr(model.config, "text_config", None)):
        for key in CAPS:
            cap = getattr(section, key, None)
            if isinstance(cap, (int, float)) and cap and torch.allclose(cap * torch.tanh(before / cap), after, rtol=1e-2, atol=1e-4):
                return f"the logits are then capped at {cap:g} ({key})"
    c = factor(before, after)
    return f"the logits are then scaled by {c:.6g}" if c is not None else "the model changes them further"
