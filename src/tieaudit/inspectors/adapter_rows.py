"""This file holds whether an adapter's tensors fit each other and the base: rows, widths, and the two factors of LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ..adapters import AdapterConfig
from ..checkpoint import TensorRecord
from ..dtypes import DTYPES
from ..report import Severity
from ..text import listed
from .rule import AdapterCase, EndCase, Problem, place


def base_of(case: AdapterCase) -> str:
    return f"the base {case.base}" if case.base else "its base"


def _rows(end: EndCase) -> tuple[int | None, int | None]:
    """(rows, width) that the base has for this end; None where it is not known."""
    matrix = end.base
    if matrix and not matrix.packed and len(matrix.main.shape) == 2:
        return matrix.main.shape[0], matrix.main.shape[1]
    return (end.rows[0] if end.rows else None), None


def _copies(end: EndCase) -> list[TensorRecord]:
    """Whole matrices of plain numbers: packed ones (a quantised base) have other shapes."""
    return [tensor for _, tensor in end.end.copies if len(tensor.shape) == 2 and tensor.numel and DTYPES[tensor.dtype].kind == "float"]


def misfits(adapter: AdapterCase) -> Iterator[Problem]:
    for end in adapter.ends:
        for words, tensors in _of_end(end, adapter.config):
            yield Problem(
                message=words, tensors=tuple(map(place, tensors)), fix="save the adapter again from the model that it was trained on"
            )
    copies = [(end, _copies(end)[0]) for end in adapter.ends if _copies(end)]
    for (one, ours), (other, theirs) in pairwise(copies):
        if ours.shape[0] != theirs.shape[0] and (_rows(one)[0] == _rows(other)[0]):
            yield Problem(
                message=f"{ours.name} has {ours.shape[0]:,} rows, {theirs.name} has {theirs.shape[0]:,}",
                tensors=(place(ours), place(theirs)),
                fix="resize both ends to one number of rows, and save the adapter again",
            )


def _of_end(end: EndCase, config: AdapterConfig | None) -> Iterator[tuple[str, Iterable[TensorRecord]]]:
    """What does not fit within one end, and its width against the base."""
    copies, (rows, width) = _copies(end), _rows(end)
    first = copies[0] if copies else None
    for tensor in copies[1:]:
        if first and tensor.shape != first.shape:
            yield f"{tensor.name} has {_dims(tensor)}, {first.name} has {_dims(first)}", (first, tensor)
    if first and width is not None and first.shape[1] != width and end.base:
        yield f"{first.name} has {_dims(first)}, but {end.base.name} of the base is {width:,} wide", (first,)
        return
    if first:
        rows, width = first.shape
    of = "the adapter's own copy" if first else f"{end.base.name} of the base" if end.base else "the base"
    for down, up, places in (("lora_A", "lora_B", "head"), ("lora_embedding_A", "lora_embedding_B", "embedding")):
        a, b = end.end.delta(down), end.end.delta(up)
        if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or (config and config.reshaped):
            continue
        if a.shape[0] != b.shape[1]:
            yield f"{a.name} has {_dims(a)} and {b.name} has {_dims(b)}: their ranks differ", (a, b)
            continue
        high, wide = (b.shape[0], a.shape[1]) if places == "head" else (a.shape[1], b.shape[0])
        if (rows is not None and high != rows) or (width is not None and wide != width):
            have = f"{rows:,} × {width:,}" if rows is not None and width is not None else f"{rows if width is None else width:,}"
            yield f"{a.name} and {b.name} change a matrix of {high:,} × {wide:,}, but {of} has {have}", (a, b)
    tokens = end.end.tokens
    if tokens and len(tokens.shape) == 2:
        if width is not None and tokens.shape[1] != width:
            yield f"{tokens.name} has rows of {tokens.shape[1]:,}, but {of} has rows of {width:,}", (tokens,)
        elif config and config.trainable_tokens is not None and config.trainable_tokens != tokens.shape[0]:
            yield f"{tokens.name} has {tokens.shape[0]:,} rows, but trainable_token_indices lists {config.trainable_tokens:,}", (tokens,)


def _dims(tensor: TensorRecord) -> str:
    return " × ".join(f"{dim:,}" for dim in tensor.shape)


def resized(adapter: AdapterCase) -> Iterator[Problem]:
    """Whole matrices with another number of rows than the base: the way of PEFT to save a resized vocabulary."""
    found = [
        (end, tensor, rows)
        for end in adapter.ends
        for tensor in _copies(end)[:1]
        if (rows := _rows(end)[0]) is not None and tensor.shape[0] != rows
    ]
    if not found:
        return
    end, tensor, rows = found[0]
    # of two separate matrices the other one would start with random rows
    lost = [other for other in _others(adapter, end) if end.tied is False and not _copies(other)]
    alone = end.tied is False and len(found) == 1 and (bool(lost) or len(adapter.ends) == 1)
    what = f"{end.base.name} of {base_of(adapter)}" if end.base else f"{end.rows[1] if end.rows else ''} of {base_of(adapter)}"
    yield Problem(
        message=f"{listed(place.name for _, place, _ in found)} {'have' if len(found) > 1 else 'has'} {tensor.shape[0]:,} rows, "
        f"{what} {'has' if end.base else 'is'} {rows:,}: the base must be resized before the adapter fits"
        + ("; the other end is not in the adapter, and its new rows are lost" if alone else ""),
        tensors=tuple(place(tensor) for _, tensor, _ in found),
        severity=Severity.WARNING if alone else Severity.NOTE,
        fix=f"base.resize_token_embeddings({tensor.shape[0]}) before PeftModel.from_pretrained",
    )


def _others(adapter: AdapterCase, end: EndCase) -> list[EndCase]:
    return [other for other in adapter.ends if other.end.module != end.end.module]
