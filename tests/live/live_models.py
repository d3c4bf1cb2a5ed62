"""This file holds the small models that the tests of `live/` take apart: hand-made ones, and transformers' own with tiny configs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCAB, WIDTH = 40, 8
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Net(nn.Module):
    """A language model as tutorials write it."""

    def __init__(self, *, tied: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.mid = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mid(self.embed(tokens)))


def llama(*, tied: bool = True, **changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=tied, **changes))


def names_of(report: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    """(rule, severity, tensors) of every finding."""
    return [(finding.rule, finding.severity.value, tuple(place.name for place in finding.tensors)) for finding in report.findings]
