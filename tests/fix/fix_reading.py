"""This file holds what a checkpoint's tensors are, read by second tools: the safetensors library and torch itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a file by its name; those of a nested checkpoint without the way to them."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  the library's own
    return dict(_leaves(torch.load(path, weights_only=False)))


def _leaves(content: object, name: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        return [(name, content)]
    if not isinstance(content, Mapping):
        return []
    return [pair for key, value in content.items() for pair in _leaves(value, f"{name}.{key}" if name else str(key))]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Dtype, shape and every byte."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    one, other = (tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (a, b))
    return torch.equal(one, other)


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
