"""This file holds what a training run tells about a tie beyond the weights: how its folder keeps copies, and what its optimizer trained.

An optimizer keeps its moments once per parameter, whatever the parameter's names are: one first moment for two names is the mark of one
matrix, two of them of two. That is evidence, told beside the claim; it decides no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from .checkpoint import Edition, TensorRecord, Wiring
from .claim import Claim, TieGroup
from .names import Matrix, StoredNames, plain
from .text import listed

# first moments (Adam and its relatives, SGD and Muon, bitsandbytes, Adagrad, RMSprop): `state.KEY.exp_avg`, Megatron `state.exp_avg.KEY`
FIRST_MOMENTS = ("exp_avg", "momentum_buffer", "state1", "sum", "square_avg")
OF_EACH = "the optimizer has moments for each, as of matrices of their own"
_MOMENT = re.compile(
    rf"(?:^|\.)state\.(?:(?P<key>.+)\.(?P<after>{'|'.join(FIRST_MOMENTS)})|(?P<before>{'|'.join(FIRST_MOMENTS)})\.(?P<fqn>.+))$"
)


def of_run(claim: Claim, edition: Edition, stored: StoredNames) -> Claim:
    """The claim with what the run says: copies are by design in its folder, and what the optimizer's state shows of each pair."""
    groups = tuple(_of_run(group, edition, stored, claim) for group in claim.groups)
    return replace(claim, groups=groups) if groups != claim.groups else claim


def _of_run(group: TieGroup, edition: Edition, stored: StoredNames, claim: Claim) -> TieGroup:
    if group.wiring is not Wiring.CONFIG:
        return group  # the copies of a run have an optimizer each, and are one matrix all the same
    told = _told(group, edition, stored, claim)
    return replace(told, wiring=Wiring.REPLICA) if edition.run else told


def _told(group: TieGroup, edition: Edition, stored: StoredNames, claim: Claim) -> TieGroup:
    if group.role not in ("embedding-head", "embedding") or not any(tensor.part == "optimizer" for tensor in edition.tensors):
        return group
    matrices = {matrix.name: matrix for name in group.names if (matrix := stored.find(name, claim.other_names))}
    words = _moments_of(tuple(matrices.values()), edition)
    return replace(group, source=f"{group.source}; {words}") if words else group


def _moments_of(matrices: tuple[Matrix, ...], edition: Edition) -> str:
    """What the optimizer's state says of these names, as a clause; "" if it says nothing clear."""
    shape = matrices[0].main.shape if matrices else ()
    if len(matrices) < 2 or any(matrix.main.shape != shape for matrix in matrices):
        return ""
    keys = [key for key, tensor in _moments(edition) if tensor.shape == shape]
    names = [matrix.name for matrix in matrices]
    if any(not key.isdecimal() for key in keys):
        trained = [name for name in names if any(_same(name, key) for key in keys)]
        if trained == names:
            return OF_EACH
        return f"the optimizer has moments for {listed(trained)} alone, as of one matrix" if trained == names[:1] else ""
    # keys are numbers: counted over everything of this shape
    alike = {tensor.name for tensor in edition.weights if tensor.shape == shape}
    if len(keys) == len(alike):
        return OF_EACH
    return "the optimizer has moments for one of them, as of one matrix" if keys and len(keys) == len(alike) - len(names) + 1 else ""


def _moments(edition: Edition) -> Iterator[tuple[str, TensorRecord]]:
    """(the parameter's number or name, its first moment)."""
    found: dict[str, list[tuple[str, TensorRecord]]] = {}
    for tensor in edition.tensors:
        match = _MOMENT.search(tensor.name) if tensor.part == "optimizer" else None
        if match:
            found.setdefault(match["after"] or match["before"], []).append((match["key"] or match["fqn"], tensor))
    return iter(next((found[kind] for kind in FIRST_MOMENTS if kind in found), []))


def _same(name: str, key: str) -> bool:
    name, key = plain(name), plain(key)
    return name == key or name.endswith("." + key) or key.endswith("." + name)
