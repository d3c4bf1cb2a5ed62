"""This file holds how a canonical name is spelled in a file whose names may stand behind a prefix of their own."""

from __future__ import annotations

from collections.abc import Container

from ...catalog import lookup
from ...checkpoint import Edition
from ...inspectors.rule import Case
from ...names import Matrix


def respelled(case: Case, edition: Edition, matrix: Matrix, canonical: str, gone: Container[tuple[str, str]]) -> str:
    """The name that stands to `canonical` as the stored one to the catalog's name for it; "" if that cannot be told or is taken by a tensor
    that is not `gone` (by file and name)."""
    if matrix.packed:
        return ""
    edition_case = next(other for other in case.editions if other.edition is edition)
    state = next((state for state in edition_case.ties if state.group.canonical == canonical), None)
    if state is None:
        return ""
    other_names = edition_case.claim.other_names
    stored = matrix.main.name
    known = [name for name in state.group.names if _found_as(edition_case.stored.find(name, other_names), matrix)]
    for name in known:
        for at, spelling in enumerate((name, *other_names.get(name, ()))):
            if not stored.endswith(spelling) or (stored != spelling and stored[-len(spelling) - 1] != "."):
                continue
            spellings = (canonical, *other_names.get(canonical, ()))
            if at and at >= len(spellings):
                return ""
            new = stored.removesuffix(spelling) + spellings[at]
            taken = any(tensor.name == new and (tensor.file, new) not in gone for tensor in edition.tensors)
            return "" if taken else new
    return ""


def _found_as(found: Matrix | None, matrix: Matrix) -> bool:
    return found is not None and found.main is matrix.main


def flag_keys(architecture: str) -> tuple[str, ...]:
    """Keys that decide ties of this class; none if it is not known."""
    found = lookup.find(architecture) if architecture else None
    return found.keys if found else ()
