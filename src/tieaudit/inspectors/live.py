"""Family 8: copies of one matrix that something keeps in step, and whether they are."""

from __future__ import annotations

from collections.abc import Iterator

from ..report import Severity
from .rule import Case, Problem, places, rule
from .verdicts import speaking


@rule(808, Severity.ERROR)
def replica_drift(case: Case) -> Iterator[Problem]:
    """Copies of one matrix that a training run keeps in step have drifted apart.

    What it does: compares the embedding with the copy that Megatron's last pipeline stage keeps for a tied head (tensor rank by tensor
    rank), with the copies of other stages, and the two names of a tied matrix in a distributed checkpoint.
    Why is this bad: each copy learned on its own. An export keeps one of them, so the model that comes out is none that was trained.
    Use instead: go back to a checkpoint in which they agree; a run that goes on from here drifts further.
    A warning if only the last rows (padding) differ.
    """
    several = sum(1 for _ in case.judged) > 1
    for situation in speaking(case, "replica-drift"):
        relation = situation.relation
        # matrices that transformers 4 never tied, under a flag that it does obey, are no copies
        if situation.tied_v4 is False or relation is None or situation.holder is None or situation.second is None:
            continue
        yield Problem(
            message=f"{f'{situation.edition.name}: ' if several else ''}{situation.second.name} differs from {situation.holder.name}, and "
            f"both are copies of one matrix ({situation.group.source}): {relation.detail}",
            tensors=places(situation.holder, situation.second),
            evidence=relation.evidence,
            severity=situation.verdict.severity,
            fix="go back to the last checkpoint in which the two agree, and look for what no longer sums their gradients",
        )


RULES = (replica_drift,)
