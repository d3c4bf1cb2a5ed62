"""The models that are compared, made once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pairs
import pytest
import torch
from gguf import MODEL_ARCH
from pairs import EMBED, HEAD

Models = Callable[[str], Path]


def _untie(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[EMBED].clone()


def _behead(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[HEAD]


def _resized(path: Path) -> Path:
    model = pairs.llama()
    with pairs.quiet():
        model.resize_token_embeddings(pairs.V + 32)
    return pairs.save(model, path)


def _makers(root: Path) -> dict[str, Callable[[Path], Path]]:
    base, two = root / "base", root / "two"
    llama, gguf = pairs.llama, pairs.to_gguf
    return {
        "base": lambda path: pairs.save(llama(), path),
        "two": lambda path: pairs.save(llama(tied=False), path),
        "sharded": lambda path: pairs.save(llama(), path, max_shard_size="60KB"),
        "bf16": lambda path: pairs.save(llama(dtype=torch.bfloat16), path),
        "resized": _resized,
        "lora": partial(pairs.merged, target=["q_proj", "v_proj"]),
        "lora head": partial(pairs.merged, target=["q_proj"], modules_to_save=["lm_head"]),
        "lora tied": partial(pairs.merged, target=["lm_head"]),
        "untied": lambda path: pairs.copy(base, path, _untie, tie_word_embeddings=False),
        "flipped": lambda path: pairs.copy(base, path, lambda _: None, tie_word_embeddings=False),
        "beheaded": lambda path: pairs.copy(two, path, _behead, tie_word_embeddings=True),
        "onnx": lambda path: pairs.export(llama(), path),
        "dynamo": lambda path: pairs.export(llama(), path, dynamo=True),
        "f16.gguf": lambda path: gguf(llama(), path, MODEL_ARCH.LLAMA),
        "q8.gguf": lambda path: gguf(llama(), path, MODEL_ARCH.LLAMA, "Q8_0"),
        "head.gguf": lambda path: gguf(llama(), path, MODEL_ARCH.LLAMA, "Q8_0", head=True),
        "gpt2": lambda path: pairs.save(pairs.gpt2(), path),
        "gpt2.gguf": lambda path: gguf(pairs.gpt2(), path, MODEL_ARCH.GPT2),
        "gpt2-q8.gguf": lambda path: gguf(pairs.gpt2(), path, MODEL_ARCH.GPT2, "Q8_0"),
        "gemma2": lambda path: pairs.save(pairs.gemma2(), path),
        "gemma2.gguf": lambda path: gguf(pairs.gemma2(), path, MODEL_ARCH.GEMMA2),
        "mlx8": lambda path: pairs.mlx(base, path, 8),
        "mlx4": lambda path: pairs.mlx(base, path, 4),
        "bnb8": lambda path: pairs.bitsandbytes(base, path, 8),
        "bnb4": lambda path: pairs.bitsandbytes(base, path, 4),
    }


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A model by its name, made when it is asked for."""
    root = tmp_path_factory.mktemp("pairs")
    makers = _makers(root)

    def get(name: str) -> Path:
        path = root / name
        if not path.exists():
            for needed in {"untied": "base", "flipped": "base", "beheaded": "two", "mlx8": "base", "mlx4": "base", "bnb8": "base",
                           "bnb4": "base"}.get(name, "").split():  # fmt: skip
                get(needed)
            with pairs.quiet():
                makers[name](path)
        return path

    return get
