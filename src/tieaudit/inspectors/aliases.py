"""This file holds a writer's own alias notes ({name left out: name kept}) against what the file stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..checkpoint import LoadedFile, TensorRecord
from .rule import Case


class Contradicted(NamedTuple):
    """Of one file: aliases that have a shape of their own (with the holders that they are said to be), and aliases of nothing."""

    file: LoadedFile
    apart: tuple[tuple[TensorRecord, TensorRecord], ...]
    lost: tuple[tuple[str, str], ...]


def contradicted(case: Case) -> Iterator[Contradicted]:
    """The files whose notes cannot be true."""
    for edition_case in case.judged:
        edition = edition_case.edition
        stored = {tensor.name: tensor for tensor in edition.weights} if any(file.aliases for file in edition.files) else {}
        for file in edition.files:
            apart, lost = [], []
            for left, kept in file.aliases.items():
                if left in stored and kept in stored:
                    if stored[left].shape != stored[kept].shape:
                        apart.append((stored[left], stored[kept]))
                elif left not in stored and kept not in stored and edition.whole:
                    lost.append((left, kept))
            if apart or lost:
                yield Contradicted(file, tuple(apart), tuple(lost))
