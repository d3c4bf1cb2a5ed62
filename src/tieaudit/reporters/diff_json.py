"""The JSON contract of a comparison, version 1: an explicit dict, checked against `diff.schema.json` by the tests."""

from __future__ import annotations

import json
import math
from typing import Any

from .. import __version__
from ..difference import Change, Diff, OneSided, SideSummary, SideTie, Stored, TensorChange
from .json import _finding, _skip

CONTRACT = 1


def render(diff: Diff) -> str:
    """The comparison as indented JSON with a final line end."""
    return json.dumps(document(diff), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def document(diff: Diff) -> dict[str, Any]:
    """The comparison as the contract's object. `tensors.changes` lists every pair but those that are equal under one name."""
    changes, sizes, cost = diff.changes, diff.changes.sizes, diff.cost
    listed = [pair for pair in changes.pairs if pair.kinds != (Change.EQUAL,) or pair.renamed]
    return {
        "version": CONTRACT,
        "tool": {"name": "tieaudit", "version": __version__},
        "before": _side(diff.before, sizes.before),
        "after": _side(diff.after, sizes.after),
        "verdict": diff.verdict,
        "same": diff.same,
        "ties": [
            {
                "role": tie.role,
                "before": _tie(tie.before),
                "after": _tie(tie.after),
                "kept": tie.kept,
                "lost": tie.lost,
                "words": tie.words,
            }
            for tie in changes.ties
        ],
        "tensors": {
            "compared": len(changes.pairs),
            "equal": sum(pair.kinds == (Change.EQUAL,) for pair in changes.pairs),
            "moved": sum(pair.moved for pair in changes.pairs),
            "counts": dict(diff.counts),
            "changes": [_change(pair) for pair in listed],
            "added": [_one_sided(one) for one in changes.added],
            "lost": [_one_sided(one) for one in changes.lost],
        },
        "size": {
            "before": sizes.before,
            "after": sizes.after,
            "difference": sizes.difference,
            "words": sizes.words,
            "parts": [{"what": part.what, "words": part.words, "nbytes": part.nbytes, "tensors": part.tensors} for part in sizes.parts],
        },
        "logits": None
        if changes.outputs is None
        else {
            "tried": changes.outputs.tried,
            "held": changes.outputs.held,
            "words": changes.outputs.words,
            "max_difference": _number(changes.outputs.max_difference),
            "tolerance": _number(changes.outputs.tolerance),
            "agreement": _number(changes.outputs.agreement),
        },
        "expectations": [{"name": one.name, "met": one.met, "reason": one.reason} for one in diff.expectations],
        "findings": [_finding(finding) for finding in diff.findings],
        "skipped": [_skip(skip) for skip in diff.skipped],
        "not_compared": [_skip(skip) for skip in diff.not_compared],
        "cost": {"bytes_read": cost.bytes_read, "requests": cost.requests, "seconds": cost.seconds},
    }


def _side(side: SideSummary, nbytes: int) -> dict[str, Any]:
    return {
        "target": side.target,
        "revision": side.revision,
        "formats": list(side.formats),
        "files": [{"name": name, "nbytes": size} for name, size in side.files],
        "tensors": side.tensors,
        "nbytes": nbytes,
    }


def _tie(tie: SideTie | None) -> dict[str, Any] | None:
    if tie is None:
        return None
    return {
        "names": list(tie.names),
        "stored": list(tie.stored),
        "sharing": tie.sharing.value,
        "claim": {True: "tied", False: "untied", None: "unknown"}[tie.tied],
        "claim_source": tie.source,
        "words": tie.words,
    }


def _stored(stored: Stored) -> dict[str, Any]:
    return {
        "name": stored.name,
        "file": stored.file,
        "form": stored.form,
        "shape": list(stored.shape),
        "nbytes": stored.nbytes,
        "role": stored.role or None,
    }


def _change(pair: TensorChange) -> dict[str, Any]:
    return {
        "before": _stored(pair.before),
        "after": _stored(pair.after),
        "renamed": pair.renamed or None,
        "moved": pair.moved,
        "kinds": [kind.value for kind in pair.kinds],
        "allowed": pair.allowed,
        "reason": pair.reason,
        "evidence": pair.evidence.value,
        "max_difference": _number(pair.max_difference),
        "relative_error": _number(pair.relative_error),
        "cosine": _number(pair.cosine),
        "rank": pair.rank,
    }


def _one_sided(one: OneSided) -> dict[str, Any]:
    return {"tensor": _stored(one.tensor), "allowed": one.allowed, "judged": one.judged, "reason": one.reason}


def _number(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
