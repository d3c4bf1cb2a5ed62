"""This file holds what is tried on a model that ties its ends: logits = h · Eᵀ, one backward pass, one save and load.

Each trial says what it saw. A trial that cannot be made (no head, a forward pass that needs images) says why and accuses nobody.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..alive import Trial, Tried
from . import identity, twins
from .compare import equal

TOKENS = 6
ROUND_TRIP_NBYTES = 256 << 20  # a larger model is not written to disk: its small twin is
CAPS = ("final_logit_softcapping", "logit_softcapping", "logits_soft_cap")
SPREAD = 64  # columns of the logits that are compared, spread over the vocabulary: a whole row of float32 logits may have a megabyte


class Ends(NamedTuple):
    """The modules at both ends of a model and the names of their weights."""

    embedding: Any
    head: Any
    embedding_name: str
    head_name: str

    @property
    def tied(self) -> bool:
        return self.embedding.weight is self.head.weight


def ends(model: Any) -> Ends | None:
    """None for a model without two plain ends."""
    with contextlib.suppress(Exception):  # classes raise NotImplementedError, AttributeError and more
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if not all(isinstance(getattr(module, "weight", None), Tensor) and module.weight.dim() == 2 for module in (embedding, head)):
            return None
        modules = {id(module): name for name, module in model.named_modules()}
        return Ends(embedding, head, modules[id(embedding)] + ".weight", modules[id(head)] + ".weight")
    return None


class _Seen:
    """What passed through both ends in one forward pass."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.logits: Tensor | None = None
        self.embedded: Tensor | None = None
        self.first: Tensor | None = None


def logits(model: Any) -> Tried:
    """Whether the head's output is the last hidden state times the tied matrix (plus bias), and by what it is scaled on the way out."""
    found = ends(model)
    if found is None:
        return Tried(trial=Trial.LOGITS, held=None, words="the model has no two plain ends")
    names = (found.embedding_name, found.head_name)
    if not found.tied:
        return Tried(trial=Trial.LOGITS, held=None, words="the ends are two Parameters", names=names)
    seen = _Seen()
    try:
        ids, out = _forward(model, found, seen)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        return _head_alone(found, f"a forward pass needs more than token ids ({type(error).__name__})")
    if seen.hidden is None or seen.logits is None:
        return _head_alone(found, "the forward pass does not call the head")
    matrix = found.embedding.weight.detach()
    worst = _difference(seen.hidden, seen.logits, matrix, getattr(found.head, "bias", None))
    bias = " + bias" if getattr(found.head, "bias", None) is not None else ""
    if worst is None:
        return Tried(trial=Trial.LOGITS, held=None, words="the logits are not finite", names=names)
    if worst > _tolerance(matrix.dtype):
        words = (
            f"the head's output is not h · Eᵀ{bias} with E = {found.embedding_name}: it differs by {worst:.2g} of the largest logit, "
            f"though {found.head_name} is that Parameter"
        )
        return Tried(trial=Trial.LOGITS, held=False, words=words, names=names)
    scales = [words for words in (_embedding_scale(ids, seen, matrix), _output_scale(model, seen, out)) if words]
    words = f"logits = h · Eᵀ{bias} for {TOKENS} tokens, to {worst:.1g} of the largest" + "".join(f"; {scale}" for scale in scales)
    return Tried(trial=Trial.LOGITS, held=True, words=words, names=names)


def _head_alone(found: Ends, why: str) -> Tried:
    """The head on random states, where the whole model cannot be run."""
    names = (found.embedding_name, found.head_name)
    matrix = found.embedding.weight.detach()
    with twins.seeded(), torch.no_grad():
        hidden = torch.randn(1, TOKENS, matrix.shape[1]).to(matrix.dtype)
        try:
            out = found.head(hidden)
        except Exception as error:  # noqa: BLE001
            return Tried(trial=Trial.LOGITS, held=None, words=f"{why}, and the head alone raises {type(error).__name__}", names=names)
    worst = _difference(hidden, out, matrix, getattr(found.head, "bias", None)) if isinstance(out, Tensor) else None
    if worst is None:
        return Tried(trial=Trial.LOGITS, held=None, words=why, names=names)
    if worst > _tolerance(matrix.dtype):
        words = f"{found.head_name}'s module does not give h · Eᵀ with E = {found.embedding_name}: it differs by {worst:.2g}"
        return Tried(trial=Trial.LOGITS, held=False, words=words, names=names)
    return Tried(trial=Trial.LOGITS, held=True, words=f"the head alone gives h · Eᵀ, to {worst:.1g} of the largest ({why})", names=names)


def _forward(model: Any, found: Ends, seen: _Seen) -> tuple[Tensor, Tensor | None]:
    """(token ids, logits of the model). Raises what the model raises."""
    vocabulary = found.embedding.weight.shape[0]
    ids = torch.arange(TOKENS).unsqueeze(0) * 7 % max(1, vocabulary - 1)
    hooks = [
        found.head.register_forward_hook(_keep_head(seen)),
        found.embedding.register_forward_hook(_keep_embedded(seen)),
    ]
    layers = next((module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)), None)
    if layers is not None:
        hooks.append(layers[0].register_forward_pre_hook(_keep_first(seen), with_kwargs=True))
    try:
        with torch.no_grad(), twins.quiet():
            extra = {"decoder_input_ids": ids} if getattr(model.config, "is_encoder_decoder", False) else {}
            out = model(input_ids=ids, **extra)
    finally:
        for hook in hooks:
            hook.remove()
    return ids, getattr(out, "logits", None)


def _keep_head(seen: _Seen) -> Callable[..., None]:
    def keep(_module: Any, args: tuple[Any, ...], out: Any) -> None:
        if seen.hidden is None and args and isinstance(args[0], Tensor) and isinstance(out, Tensor):
            seen.hidden, seen.logits = args[0].detach(), out.detach()

    return keep


def _keep_embedded(seen: _Seen) -> Callable[..., None]:
    def keep(_module: Any, _args: tuple[Any, ...], out: Any) -> None:
        if seen.embedded is None and isinstance(out, Tensor):
            seen.embedded = out.detach()

    return keep


def _keep_first(seen: _Seen) -> Callable[..., None]:
    def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else kwargs.get("hidden_states")
        if seen.first is None and isinstance(value, Tensor):
            seen.first = value.detach()

    return keep


def _difference(hidden: Tensor, out: Tensor, matrix: Tensor, bias: Any) -> float | None:
    """The largest difference between `out` and hidden · matrixᵀ + bias over some columns, over the largest logit; None if not finite.

    Shapes: hidden (…, H), matrix (V, H), out (…, V).
    """
    if out.shape[-1] > matrix.shape[0] or hidden.shape[-1] != matrix.shape[1]:
        return None
    columns = torch.linspace(0, out.shape[-1] - 1, min(SPREAD, out.shape[-1])).long()
    expected = hidden.float() @ matrix[columns].float().T
    if isinstance(bias, Tensor):
        expected = expected + bias.detach()[columns].float()
    got = out[..., columns].float()
    if not (torch.isfinite(expected).all() and torch.isfinite(got).all()):
        return None
    largest = max(float(expected.abs().max()), 1e-12)
    return float((expected - got).abs().max()) / largest


def _tolerance(dtype: torch.dtype) -> float:
    """A matrix product of some thousand terms, rounded once to the dtype."""
    return {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 1e-2}.get(dtype, 3e-2)


def _embedding_scale(ids: Tensor, seen: _Seen, matrix: Tensor) -> str:
    """Words on the factor between a row of E and what the first layer gets, if there is one for all."""
    rows = matrix[ids[0]].float()
    for state in (seen.embedded, seen.first):
        if state is not None and state.shape[-2:] == rows.shape[-2:]:
            factor = _factor(rows, state.reshape(-1, *rows.shape)[0].float())
            if factor is not None and abs(factor - 1) > 1e-3:
                root = f" = √{matrix.shape[1]}" if abs(factor**2 / matrix.shape[1] - 1) < 0.02 else ""
                return f"embeddings are scaled by {factor:.6g}{root}"
    return ""


def _output_scale(model: Any, seen: _Seen, out: Tensor | None) -> str:
    """Words on what becomes of the head's output on its way to the model's logits."""
    if out is None or seen.logits is None or out.shape != seen.logits.shape:
        return ""
    before, after = seen.logits.float(), out.detach().float()
    if torch.allclose(before, after, rtol=1e-3, atol=1e-6):
        return ""
    factor = _factor(before, after)
    if factor is not None:
        return f"the logits are scaled by {factor:.6g}"
    for section in (model.config, getattr(model.config, "text_config", None)):
        for key in CAPS:
            cap = getattr(section, key, None)
            if isinstance(cap, (int, float)) and cap and torch.allclose(cap * torch.tanh(before / cap), after, rtol=1e-2, atol=1e-4):
                return f"the logits are capped at {cap:g} ({key})"
    return "the model changes them further"


def _factor(before: Tensor, after: Tensor) -> float | None:
    """c with after = c · before; None if there is none."""
    before, after = before.double().flatten(), after.double().flatten()
    square = float(before @ before)
    if before.shape != after.shape or square == 0:
        return None
    c = float(before @ after) / square
    return c if torch.allclose(c * before, after, rtol=2e-2, atol=2e-2 * float(after.abs().max())) and c != 0 else None


def gradient(model: Any) -> Tried:
    """Whether the gradient of the tied matrix is the sum of its two uses: g_tied = g_in + g_out, the latter two of an untied copy.

    `model` is run forward and backward; its gradients are put back as they were.
    """
    found = ends(model)
    if found is None or not found.tied:
        return Tried(trial=Trial.GRADIENT, held=None, words="the model has no tied ends")
    names = (found.embedding_name, found.head_name)
    if not found.embedding.weight.requires_grad:
        return Tried(trial=Trial.GRADIENT, held=None, words="the tied matrix is frozen", names=names)
    try:
        twin = twins.untied(model)
        apart = ends(twin)
        if apart is None or apart.tied:
            return Tried(trial=Trial.GRADIENT, held=None, words="the ends cannot be taken apart", names=names)
        (together,) = _gradients(model, found.embedding.weight)
        first, second = _gradients(twin, apart.embedding.weight, apart.head.weight)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        return Tried(trial=Trial.GRADIENT, held=None, words=f"a backward pass cannot be made ({type(error).__name__})", names=names)
    expected = first + second
    largest = max(float(expected.abs().max()), 1e-30)
    worst = float((together - expected).abs().max()) / largest
    if worst <= _tolerance(found.embedding.weight.dtype):
        words = f"one backward pass adds up both uses once: g = g_in + g_out, to {worst:.1g} of the largest"
        return Tried(trial=Trial.GRADIENT, held=True, words=words, names=names)
    factor = _factor(expected, together)
    seen = (
        f"{factor:.3g} times the sum of its two uses"
        if factor is not None
        else "only that of the embedding"
        if _close(together, first)
        else "only that of the head"
        if _close(together, second)
        else f"off by {worst:.2g} of the largest"
    )
    words = f"the gradient of {names[0]} is not g_in + g_out of its uses as embedding and as head: it is {seen}"
    return Tried(trial=Trial.GRADIENT, held=False, words=words, names=names)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def _gradients(model: Any, *weights: Tensor) -> list[Tensor]:
    """The gradients of the weights by one loss, in float32; what `.grad` held before is put back, and the mode as well."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    training = model.training
    try:
        for parameter, _ in kept:
            parameter.grad = None
        model.eval()  # dropout would make two different losses
        with torch.enable_grad(), twins.quiet():
            ids = torch.arange(TOKENS).unsqueeze(0) * 7 % max(1, weights[0].shape[0] - 1)
            extra = {"decoder_input_ids": ids} if getattr(model.config, "is_encoder_decoder", False) else {}
            out = model(input_ids=ids, **extra).logits.float()
            weight = torch.linspace(-1, 1, out.shape[-1])
            # a plain sum would leave nothing of a head behind a softmax
            ((out * weight).sum() + (out * out).mean()).backward()
        return [(weight.grad if weight.grad is not None else torch.zeros_like(weight)).detach().float().clone() for weight in weights]
    finally:
        for parameter, grad in kept:
            parameter.grad = grad
        model.train(training)


def round_trip(model: Any) -> Tried:
    """Whether `save_pretrained` and `from_pretrained` give back the ties and, bit for bit, the values."""
    folder = tempfile.TemporaryDirectory(prefix="tieaudit-")
    try:
        with twins.quiet():
            model.save_pretrained(folder.name)
            loaded, info = type(model).from_pretrained(folder.name, dtype=model.dtype, output_loading_info=True)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        return Tried(trial=Trial.ROUND_TRIP, held=None, words=f"it cannot be made: {type(error).__name__}: {str(error)[:120]}")
    else:
        return _came_back(model, loaded, info)
    finally:
        with contextlib.suppress(OSError):
            folder.cleanup()


def _came_back(model: Any, loaded: Any, info: dict[str, Any]) -> Tried:
    before, after = identity.collect(model), identity.collect(loaded)
    stored = {name.name for name in before.names if name.stored}
    gone = sorted(stored - after.tensors.keys())
    random = sorted(stored & set(info.get("missing_keys", ())))
    known = {name.name: name for name in after.names}
    parted = [names for names in identity_groups(before) if len({known[name].parameter for name in names if name in known}) > 1]
    first = {name.name: name for name in before.names}
    joined = [names for names in identity_groups(after) if len({first[name].parameter for name in names if name in first}) > 1]
    changed = [
        name
        for name in sorted(stored & after.tensors.keys())
        if name not in random and not _same(before.tensors[name], after.tensors[name])
    ]
    lost = [
        (random, "starts with random values"),
        ([name for names in parted for name in names[:2]], "are one Parameter before and several after"),
        (changed, "comes back with other values"),
        (gone, "is not there any more"),
        ([name for names in joined for name in names[:2]], "are several Parameters before and one after"),
    ]
    said = [f"{', '.join(names[:3])}{f' and {len(names) - 3:,} more' if len(names) > 3 else ''} {what}" for names, what in lost if names]
    names = tuple(dict.fromkeys(name for group, _ in lost for name in group[:4]))
    if said:
        return Tried(trial=Trial.ROUND_TRIP, held=False, words="after save_pretrained and a reload: " + "; ".join(said), names=names)
    count = sum(1 for _ in identity_groups(before))
    ties = f"{count} tie{'s' * (count != 1)}" if count else "no tie, as before,"
    return Tried(trial=Trial.ROUND_TRIP, held=True, words=f"save_pretrained and a reload give back {ties} and all values")


def identity_groups(found: identity.Found) -> Iterator[tuple[str, ...]]:
    """Names of one Parameter, where there are several."""
    groups: dict[int, list[str]] = {}
    for name in found.names:
        groups.setdefault(name.parameter, []).append(name.name)
    yield from (tuple(names) for names in groups.values() if len(names) > 1)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and (a.is_meta or b.is_meta or a.numel() == 0 or equal(a.detach(), b.detach()))
