"""This file holds what a GGUF's readers make of its ends: `token_embd.weight`, and `output.weight` or its absence.

GGUF has no key for a tie. llama.cpp's loaders (src/models/*.cpp) ask for `output.weight` and, for most architectures, take
`token_embd.weight` where it is not stored; some ask for both, and refuse the file. Other readers (Ollama, candle, transformers' own
GGUF loader) tie by absence as well.
"""

from __future__ import annotations

import re

from ..checkpoint import Ends

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ENDS = frozenset((EMBEDDING, HEAD))

OUTPUT_REQUIRED = frozenset(
    "apertus arwkv7 baichuan bailingmoe bailingmoe2 codeshell dbrx deepseek4 dots1 exaone-moe glm5-next gptneox hy-v4 internlm2 jais "
    "kimi-k3 kimi-linear llada-moe maple mellum mimo2 minimax-m2 minimax-m3 muse-glimmer nemotron olmo2 olmoe openai-moe gpt-oss orion "
    "phi2 phimoe plamo qwen qwen2moe rwkv6 rwkv6qwen2 rwkv7 stablelm step35 talkie xverse".split()
)
"""Architectures whose loader in llama.cpp creates `output.weight` without TENSOR_NOT_REQUIRED (read at commit 0c1e57098)."""
HEAD_STANDS_IN = frozenset(("codeshell",))
"""Its loader takes `output.weight` for a `token_embd.weight` that is not stored (src/models/codeshell.cpp)."""
HEADLESS = re.compile(r"bert|^(t5encoder|gemma-embedding|llama-embed|clip|mmproj|whisper|wavtokenizer-dec|mimi)$")
"""Encoders, codecs and projectors: no head reads the embedding, or `output.weight` is another thing."""
DRAFTER = re.compile(r"eagle|dflash|dspark|medusa|draft|assistant|mtp|nextn")
"""Heads for speculative decoding borrow the ends that they lack from the model that they speed up (src/models/eagle3.cpp)."""
CONVERTED_WITHOUT = frozenset(("gemma", "gemma2"))
"""Their converter drops `lm_head.weight` whatever it holds: of a checkpoint with the head's name only, neither end is left."""


def of_names(architecture: str, kind: str, names: set[str], *, whole: bool) -> tuple[Ends, ...]:
    """The ends of a model with these names. `kind` is general.type, `whole` False if other parts were not seen."""
    if kind not in ("", "model") or HEADLESS.search(architecture) or DRAFTER.search(architecture):
        return ()
    stored = names & ENDS
    if not stored:
        return (_neither(architecture),) if whole and architecture in CONVERTED_WITHOUT and "output_norm.weight" in names else ()
    if len(stored) == 2:
        return (_both(architecture),)
    if not whole:
        return (Ends(embedding=EMBEDDING, head=HEAD, source="only a part of the model was read"),)
    return (_embedding_only(architecture) if EMBEDDING in stored else _head_only(architecture),)


def _both(architecture: str) -> Ends:
    if architecture in OUTPUT_REQUIRED:
        return Ends(
            embedding=EMBEDDING,
            head=HEAD,
            tied=False,
            source=f"llama.cpp reads {HEAD} of {architecture} and takes nothing in its place",
            advice=f"leave it as it is: llama.cpp refuses {architecture} without {HEAD}",
        )
    return Ends(
        embedding=EMBEDDING,
        head=HEAD,
        source="GGUF has no key for a tie, and readers take each matrix that is stored",
        advice=f"leave {HEAD} out of the file: llama.cpp and the other readers then take {EMBEDDING} in its place",
    )


def _embedding_only(architecture: str) -> Ends:
    if architecture in OUTPUT_REQUIRED:
        return Ends(
            embedding=EMBEDDING,
            head=HEAD,
            tied=False,
            source=f"its loader takes nothing in the place of {HEAD}",
            absent=f"llama.cpp (so Ollama too) refuses to load {architecture} without it",
            advice=f"convert it again from a checkpoint that has the head; if it was trained tied, store {EMBEDDING} under both names",
        )
    return Ends(embedding=EMBEDDING, head=HEAD, tied=True, source=f"GGUF without {HEAD}: llama.cpp reads {EMBEDDING} in its place")


def _head_only(architecture: str) -> Ends:
    if architecture in HEAD_STANDS_IN:
        source = f"llama.cpp reads {HEAD} of {architecture} in the place of {EMBEDDING}"
        return Ends(embedding=EMBEDDING, head=HEAD, source=source)
    return Ends(
        embedding=EMBEDDING,
        head=HEAD,
        tied=False,
        source=f"llama.cpp refuses to load a model without {EMBEDDING}",
        advice=f"convert the model again; if {HEAD} is its embedding too, store it as {EMBEDDING}",
    )


def _neither(architecture: str) -> Ends:
    return Ends(
        embedding=EMBEDDING,
        head=HEAD,
        tied=True,
        source=f"llama.cpp reads {EMBEDDING} of {architecture} for both ends",
        advice="convert again from a checkpoint that stores the matrix as model.embed_tokens.weight: the converter drops lm_head.weight",
    )
