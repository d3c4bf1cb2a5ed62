"""This file holds how a name that an architecture asks for is found among the names that are stored.

Wrappers (`module.`, `_orig_mod.`, …) are stripped, a base-model prefix may be missing or extra (as `from_pretrained` allows),
and a quantised matrix is stored as several tensors: a bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .checkpoint import TensorRecord
from .quantised import MAINS, ORPHANS, Bundles, Hints, Layout, note

# DDP, torch.compile, FSDP, activation checkpointing insert these anywhere; PEFT and trainers put theirs in front
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|^(?:module\.|base_model\.model\.)+")
_PREFIXES = ("model.", "language_model.", "model.language_model.", "language_model.model.", "transformer.", "text_model.",
             "model.text_model.", "backbone.", "base_model.", "decoder.", "model.decoder.", "llm.", "net.", "module.")  # fmt: skip
TELLING = 3  # dots in a name from which on its end alone identifies it
# Leaves of input embeddings and output heads, most telling first: counted over every architecture of transformers, plus the
# original formats of LLaMA, Mistral, GPT-NeoX, MPT, ChatGLM, Mamba and RWKV.
EMBEDDING_LEAVES = ("embed_tokens", "word_embeddings", "tok_embeddings", "wte", "shared", "embed_in", "token_embd", "tokens_embed",
                    "token_embedding", "token_embeddings", "embedding", "embeddings", "emb", "embed", "input_embedding",
                    "word_embedding", "tok_emb", "wte.embedding")  # fmt: skip
HEAD_LEAVES = ("lm_head", "output", "embed_out", "proj_out", "output_projection", "lm_head.decoder", "predictions.decoder",
               "output_layer", "lm_loss", "vocab_projector", "generator_lm_head", "pred_layer.proj", "head", "unembed",
               "out_embed", "to_logits", "decoder")  # fmt: skip
# copies kept for speculative decoding and the like are not the model's own ends
_BESIDE = re.compile(r"(?:^|\.)(?:mtp\w*|nextn\w*|eagle\w*|medusa\w*|draft\w*|speculat\w*|layers?|blocks?|h|experts?|vision\w*|visual|"
                     r"image\w*|audio\w*|position\w*|talker|code_predictor|t2u_model|vocoder)\.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrix:
    """What is stored under one name: a tensor, or the tensors of a quantised bundle (`lm_head.weight_packed`, `…_scale`).

    `scheme` is "" for a plain tensor; then `leaves` (what follows the module's name, in the order of `parts`) and `layout` say nothing.
    """

    name: str
    parts: tuple[TensorRecord, ...]
    scheme: str = ""
    leaves: tuple[str, ...] = ()
    layout: Layout | None = None

    @property
    def main(self) -> TensorRecord:
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def packed(self) -> bool:
        return bool(self.scheme)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix that the tensors stand for; () if it cannot be told."""
        return self.layout.shape if self.layout else self.main.shape

    @property
    def rows(self) -> int | None:
        """None if they cannot be told."""
        if self.layout:
            return self.layout.rows
        return self.main.shape[0] if self.main.shape else 1

    @property
    def form(self) -> str:
        """How the numbers are stored: `BF16`, `MLX 4-bit`."""
        return self.layout.words if self.layout else self.main.dtype

    @property
    def note(self) -> TensorRecord | None:
        """The small tensor whose values say which shape a packed matrix has, if that is needed."""
        return note(self.parts, self.leaves) if self.layout and len(self.layout.shape) != 2 else None

    def part(self, leaf: str) -> TensorRecord | None:
        """A tensor of the bundle by what follows the module's name."""
        return next((part for part, known in zip(self.parts, self.leaves, strict=False) if known == leaf), None)


class StoredNames:
    """The weights of one edition, found by any spelling that a loader would accept."""

    def __init__(self, tensors: Iterable[TensorRecord], broken: Iterable[str] = (), hints: Hints | None = None) -> None:
        self._tensors: dict[str, TensorRecord] = {}
        for tensor in tensors:
            self._tensors.setdefault(plain(tensor.name), tensor)
        self._broken = {plain(name) for name in broken}
        # which schemes can occur at all: nearly always none
        self._tails = {name[name.rfind(".") + 1 :] for name in self._tensors}
        self._bundles = Bundles.among(self._tails, {}, hints or Hints())
        self._blocks = any(tail.endswith("_blocks") for tail in self._tails)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def learn(self, notes: Mapping[str, bytes]) -> None:
        """Take in the values of the small tensors (`Matrix.note`) that say which shape a packed matrix has, by name."""
        self._bundles = Bundles.among(self._tails, notes, self._bundles.hints)

    def find(self, name: str, other: Mapping[str, tuple[str, ...]] | None = None) -> Matrix | None:
        """The matrix stored under `name`, one of its `other` names, or with a base-model prefix more or less."""
        for spelling in self._spellings(name, other):
            matrix = self.exact(spelling)
            if matrix:
                return matrix
        return self._behind_a_prefix(name)

    def _behind_a_prefix(self, name: str) -> Matrix | None:
        """The one stored name that ends in `name`, if it is long enough to be telling: the base model under any prefix."""
        if name.count(".") < TELLING:
            return None
        found = [stored for stored in self._tensors if stored.endswith("." + name)]
        return self.exact(found[0]) if len(found) == 1 else None

    def exact(self, name: str) -> Matrix | None:
        found = self._tensors.get(name)
        bundle = None
        if name.endswith(".weight"):
            stem = name.removesuffix("weight")
            bundle = self._bundles.find(lambda leaf: self._tensors.get(stem + leaf))
        elif found is None and self._blocks:
            bundle = self._bundles.bare(lambda leaf: self._tensors.get(name + leaf))
        if bundle:
            return Matrix(found.name if found else name, bundle.parts, bundle.scheme, bundle.leaves, bundle.layout)
        return Matrix(found.name, (found,)) if found else None

    def orphans(self, name: str, other: Mapping[str, tuple[str, ...]] | None = None) -> tuple[TensorRecord, ...]:
        """Scales and the like of a matrix `name` that is not stored itself."""
        if not name.endswith(".weight") or self.find(name, other) or not any(leaf.rpartition(".")[2] in self._tails for leaf in ORPHANS):
            return ()
        for spelling in self._spellings(name, other):
            stem = spelling.removesuffix("weight")
            parts = tuple(part for part in (self._tensors.get(stem + leaf) for leaf in ORPHANS) if part)
            if parts:
                return parts
        return ()

    def is_broken(self, name: str, other: Mapping[str, tuple[str, ...]] | None = None) -> bool:
        """The file has the name, but its entry could not be read."""
        return any(spelling in self._broken for spelling in self._spellings(name, other))

    def _spellings(self, name: str, other: Mapping[str, tuple[str, ...]] | None) -> Iterator[str]:
        names = (name, *(other or {}).get(name, ()))
        yield from names
        for spelling in names:
            head, _, tail = spelling.partition(".")
            # the base model's own prefix (`bert.`) may be missing, as `from_pretrained` allows; a short tail would fit too much
            if tail.count(".") >= (1 if head + "." in _PREFIXES else TELLING - 1):
                yield tail
            for prefix in _PREFIXES:
                yield prefix + spelling


def plain(name: str) -> str:
    """The name without wrappers of training frameworks."""
    # looked at first: a pattern over 70,000 names takes a tenth of a second
    return _WRAPPERS.sub("", name) if "_mod" in name or name.startswith(("module.", "base_model.")) else name


def guess_pairs(stored: StoredNames) -> tuple[list[Matrix], list[Matrix]]:
    """(input embeddings, output heads) by names and shapes alone, likeliest first.

    A head is only taken if its width fits an embedding: (V, H) beside (V, H), or the transposed (H, V).
    """
    embeddings = _by_leaf(stored, EMBEDDING_LEAVES)
    if not embeddings:
        return [], []
    shape = _told(embeddings[0])
    embeddings = [matrix for matrix in embeddings if _told(matrix) == shape]
    heads = [
        matrix
        for matrix in _by_leaf(stored, HEAD_LEAVES)
        if _told(matrix) in (shape, shape[::-1]) or (matrix.packed and (embeddings[0].packed or not matrix.shape))
    ]
    return embeddings, heads


def _told(matrix: Matrix) -> tuple[int, ...]:
    """The logical shape, or the stored one where only values could tell."""
    return matrix.shape or matrix.main.shape


# the last part of a packed tensor's name, and what stands before it within the bundle
_MAIN_TAILS = {"weight": ""} | {tail: before for before, _, tail in (leaf.rpartition(".") for leaf in MAINS)}


def _by_leaf(stored: StoredNames, leaves: tuple[str, ...]) -> list[Matrix]:
    found: list[tuple[int, int, str]] = []
    for name in stored:
        stem, _, last = name.rpartition(".")
        before = _MAIN_TAILS.get(last)
        if before is None or not stem.endswith(before) or _BESIDE.search(name):
            continue
        stem = stem.removesuffix("." + before) if before else stem
        rank = next((place for place, leaf in enumerate(leaves) if stem == leaf or stem.endswith("." + leaf)), None)
        if rank is not None:
            found.append((rank, len(name), stem + ".weight"))
    matrices = (stored.exact(name) for _, _, name in sorted(set(found)))
    return [matrix for matrix in matrices if matrix and (matrix.packed or len(matrix.main.shape) == 2)]
