"""This file holds how a name that an architecture asks for is found among the names that are stored.

Wrappers (`module.`, `_orig_mod.`, …) are stripped, a base-model prefix may be missing or extra (as `from_pretrained` allows),
and a quantised matrix is stored as several tensors: a bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .checkpoint import TensorRecord

# DDP, torch.compile, FSDP, activation checkpointing insert these anywhere; PEFT and trainers put theirs in front
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|^(?:module\.|base_model\.model\.)+")
_PREFIXES = ("model.", "language_model.", "model.language_model.", "language_model.model.", "transformer.", "text_model.",
             "model.text_model.", "backbone.", "base_model.", "decoder.", "model.decoder.", "llm.", "net.", "module.")  # fmt: skip
TELLING = 3  # dots in a name from which on its end alone identifies it
# what stands beside or in place of `X.weight` when X is quantised
_BUNDLE = ("weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point", "weight_global_scale",
           "weight_shape", "weight_blocks", "weight_scales", "weight_qdata", "qweight", "qzeros", "scales", "g_idx", "biases",
           "_weight_qdata", "_weight_scale", "_weight_zero_point", "SCB", "weight_format",
           "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "W_q", "scale", "zero")  # fmt: skip
_PACKED_MAIN = ("weight_packed", "qweight", "_weight_qdata", "weight_qdata", "weight_blocks", "W_q")

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
    """What is stored under one name: a tensor, or the tensors of a quantised bundle (`lm_head.weight_packed`, `…_scale`)."""

    name: str
    parts: tuple[TensorRecord, ...]

    @property
    def main(self) -> TensorRecord:
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def packed(self) -> bool:
        return len(self.parts) > 1 or not self.main.name.endswith((".weight", ".bias", self.name))


class StoredNames:
    """The weights of one edition, found by any spelling that a loader would accept."""

    def __init__(self, tensors: Iterable[TensorRecord], broken: Iterable[str] = ()) -> None:
        self._tensors: dict[str, TensorRecord] = {}
        for tensor in tensors:
            self._tensors.setdefault(plain(tensor.name), tensor)
        self._broken = {plain(name) for name in broken}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

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
        if not name.endswith(".weight"):
            return Matrix(found.name, (found,)) if found else None
        stem = name.removesuffix("weight")
        beside = tuple(self._tensors[stem + leaf] for leaf in _BUNDLE if stem + leaf in self._tensors)
        if found:
            return Matrix(found.name, (found, *beside))
        packed = any(stem + leaf in self._tensors for leaf in _PACKED_MAIN)
        return Matrix(name, beside) if packed else None

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
    shape = embeddings[0].main.shape
    embeddings = [matrix for matrix in embeddings if matrix.main.shape == shape]
    heads = [
        matrix
        for matrix in _by_leaf(stored, HEAD_LEAVES)
        if matrix.main.shape == shape or matrix.main.shape == shape[::-1] or (matrix.packed and embeddings[0].packed)
    ]
    return embeddings, heads


def _by_leaf(stored: StoredNames, leaves: tuple[str, ...]) -> list[Matrix]:
    found: list[tuple[int, int, str]] = []
    for name in stored:
        stem, _, last = name.rpartition(".")
        if last not in ("weight", *_PACKED_MAIN) or _BESIDE.search(name):
            continue
        rank = next((place for place, leaf in enumerate(leaves) if stem == leaf or stem.endswith("." + leaf)), None)
        if rank is not None:
            found.append((rank, len(name), stem + ".weight"))
    matrices = (stored.exact(name) for _, _, name in sorted(found))
    return [matrix for matrix in matrices if matrix and len(matrix.main.shape) == 2]
