"""This file holds what one matrix costs in training: weights, gradient and optimizer state of one rank, in bytes.

Every formula is the arithmetic of the program that it names; nothing is measured. What depends on the batch (activations, logits,
buffers of communication) is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import OptionError

WEIGHT = GRADIENT = 2  # bytes of a BF16 element
FP32 = 4
PAD_TO = 128  # Megatron-LM's own default of --make-vocab-size-divisible-by
BLOCK = 256  # elements that share one FP32 scale in bitsandbytes (optim/optimizer.py)
SMALL = 4096  # elements below which bitsandbytes keeps 32-bit state (min_8bit_size)
MAX_RANKS = 1 << 20


def _adam(elements: int, _rows: int, _width: int) -> int:
    """Two FP32 moments per element (torch/optim/adam.py: exp_avg and exp_avg_sq; the step count is one number per tensor)."""
    return 2 * FP32 * elements


def _momentum(elements: int, _rows: int, _width: int) -> int:
    """One FP32 buffer per element (torch/optim/sgd.py with momentum)."""
    return FP32 * elements


def _nothing(_elements: int, _rows: int, _width: int) -> int:
    """torch/optim/sgd.py without momentum keeps no state."""
    return 0


def _adafactor(_elements: int, rows: int, width: int) -> int:
    """The second moment as a row and a column of FP32, no first one (torch/optim/_adafactor.py; transformers' Adafactor as it comes)."""
    return FP32 * (rows + width)


def _adam_8bit(elements: int, _rows: int, _width: int) -> int:
    """Two 8-bit moments and one FP32 scale per block for each (bitsandbytes, Adam8bit). transformers' Trainer keeps the state of
    embeddings in 32 bits; a tied matrix is one of them, a head of its own is not."""
    return 2 * FP32 * elements if elements < SMALL else 2 * (elements + FP32 * -(-elements // BLOCK))


OPTIMIZERS: Mapping[str, tuple[Callable[[int, int, int], int], str]] = {
    "adam": (_adam, "Adam, FP32 moments"),
    "adamw": (_adam, "AdamW, FP32 moments"),
    "sgd": (_nothing, "SGD without momentum"),
    "sgd-momentum": (_momentum, "SGD, FP32 momentum"),
    "adafactor": (_adafactor, "Adafactor, factored FP32 moment"),
    "8bit-adam": (_adam_8bit, "8-bit Adam"),
}
"""State of one tensor by (elements held, rows, width), and how it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a model is trained: weights and gradient in BF16. `zero` is the stage, `dp` the ranks that share by it, `tp` the ranks of
    tensor parallelism; `pad_to`: the vocabulary is filled up to a multiple of `pad_to` × `tp`. None: 1 without tensor parallelism, else
    Megatron-LM's 128. `master`: FP32 copies of the weights beside the moments."""

    zero: int = 0
    dp: int = 1
    tp: int = 1
    pad_to: int | None = None
    optimizer: str = "adam"
    master: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise OptionError("--optimizer", self.optimizer, ", ".join(OPTIMIZERS))
        if self.zero not in range(4):
            raise OptionError("--zero", str(self.zero), "0, 1, 2 or 3")
        for option, value in (("--dp", self.dp), ("--tp", self.tp), ("--pad-to", 1 if self.pad_to is None else self.pad_to)):
            if not 0 < value <= MAX_RANKS:
                raise OptionError(option, str(value), f"a number from 1 to {MAX_RANKS:,}")
        if self.zero and self.optimizer == "adafactor":
            raise OptionError("--optimizer", "adafactor", "with ZeRO every rank holds a run of elements, which has no rows to factor")

    @property
    def multiple(self) -> int:
        pad_to = self.pad_to if self.pad_to is not None else PAD_TO if self.tp > 1 else 1
        return pad_to * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that one matrix takes on one rank. `rows` are those of the whole padded matrix, `elements` what a rank computes with."""

    rows: int
    elements: int
    weights: int
    gradient: int
    optimizer: int
    master: int

    @property
    def total(self) -> int:
        return self.weights + self.gradient + self.optimizer + self.master


def footprint(rows: int, width: int, setup: Setup) -> Footprint:
    """Of a vocabulary matrix of `rows` × `width`.

    Tensor parallelism: the rows are filled up to a multiple of make_vocab_size_divisible_by × tensor-parallel size and split evenly
    (Megatron-LM, `_vocab_size_with_padding` and VocabParallelEmbedding). ZeRO over `dp` ranks: stage 1 splits the optimizer state and
    the master weights, stage 2 the gradient too, stage 3 the weights too (Rajbhandari et al. 2020, figure 1); a rank's part is rounded
    up to a whole element.
    """
    padded = -(-rows // setup.multiple) * setup.multiple
    local_rows = padded // setup.tp
    elements = local_rows * width
    part = -(-elements // setup.dp)

    def held(stage: int) -> int:
        return part if setup.zero >= stage else elements

    state, _ = OPTIMIZERS[setup.optimizer]
    return Footprint(
        rows=padded,
        elements=elements,
        weights=WEIGHT * held(3),
        gradient=GRADIENT * held(2),
        optimizer=state(held(1), local_rows, width),
        master=FP32 * held(1) if setup.master else 0,
    )
