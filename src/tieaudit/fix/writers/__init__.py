"""This file holds what a writer is, and which formats have one.

A writer streams one new file from tensors that stay where they are: `plan_fix` asks `refuses` first, `apply_fix` calls `write` with an
open, empty file. To add a format: a module with these two functions and a line in WRITERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from ...sources import Source
from ..model import Rewrite


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a writer may read: each file as a source, and as a descriptor for copies in the kernel; both of the planned file."""

    sources: Mapping[str, Source]
    descriptors: Mapping[str, int]


class Writer(Protocol):
    """A format that can be written."""

    def refuses(self, rewrite: Rewrite, source: Source) -> str:
        """Why this file cannot be written, as a clause; "" if it can."""

    def write(self, rewrite: Rewrite, inputs: Inputs, out: int) -> None:
        """Write the whole file to the descriptor `out`, with bounded memory."""


WRITERS = {"safetensors": "safetensors", "torch": "torch_zip", "gguf": "gguf", "onnx": "onnx"}


def writer(file_format: str) -> Writer | None:
    """The writer of a format; None if there is none."""
    module = WRITERS.get(file_format)
    return cast(Writer, import_module(f".{module}", __name__)) if module else None


def family(file_format: str) -> str:
    """The name under which a loaded format is written: both torch formats become zips."""
    return "torch" if file_format in ("torch-zip", "torch-legacy") else file_format
