"""The JSON contract of `tieaudit size`, version 1: an explicit dict, checked against `size.schema.json` by the tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..size import Part, Second, Size

CONTRACT = 1


def render(size: Size) -> str:
    """One target, as indented JSON with a final line end."""
    return json.dumps({"version": CONTRACT, "tool": {"name": "tieaudit", "version": __version__}, **document(size)}, indent=2) + "\n"


def render_several(sizes: Sequence[Size], errors: Sequence[tuple[str, str]]) -> str:
    """`sizes` has what single targets give, `errors` the targets without an answer."""
    content = {
        "version": CONTRACT,
        "tool": {"name": "tieaudit", "version": __version__},
        "sizes": [document(size) for size in sizes],
        "errors": [{"target": target, "message": message} for target, message in errors],
    }
    return json.dumps(content, indent=2) + "\n"


def document(size: Size) -> dict[str, Any]:
    """The contract's object for one target."""
    return {
        "target": size.target,
        "source": size.source,
        "note": size.note or None,
        "revision": size.revision,
        "tensors": size.tensors,
        "parameters": {"stored": size.parameters_stored, "unique": size.parameters_unique},
        "nbytes": {"stored": size.stored, "unique": size.unique, "wasted": size.wasted},
        "components": [_part(part) for part in size.components],
        "layers": [
            {"name": run.name, "first": run.first, "last": run.last, "nbytes_each": run.each, "parameters_each": run.elements}
            for run in size.layers
        ],
        "dtypes": [_part(part) | {"name": part.name or None} for part in size.dtypes],
        "files": [_part(part) for part in size.files] if size.source == "weights" else [],
        "waste": [{"code": fault.code, "rule": fault.rule, "findings": fault.findings, "wasted": fault.wasted} for fault in size.faults],
        "ends": [
            {
                "name": end.name,
                "role": end.role,
                "nbytes": end.nbytes,
                "parameters": end.elements,
                "wasted": end.wasted,
                "share": round(end.share, 6),
            }
            for end in size.ends
        ],
        "training": _training(size.second, size) if size.second else None,
        "largest": [
            {
                "name": tensor.name,
                "file": tensor.file if size.source == "weights" else None,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "nbytes": tensor.nbytes,
                "component": kind.value,
            }
            for tensor, kind in size.largest
        ],
        "unsure": [{"subject": subject, "reason": reason} for subject, reason in size.unsure],
        "partial": size.partial,
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "tensors": part.tensors,
        "parameters": part.elements,
        "nbytes": {"stored": part.stored, "unique": part.unique, "wasted": part.wasted},
    }


def _training(second: Second, size: Size) -> dict[str, Any]:
    setup, cost = size.setup, second.cost
    return {
        "tied": second.tied,
        "why": second.why,
        "rows": second.rows,
        "width": second.width,
        "setup": {
            "optimizer": setup.optimizer,
            "zero": setup.zero,
            "dp": setup.dp,
            "tp": setup.tp,
            "multiple": setup.multiple,
            "master_weights": setup.master,
        },
        "rows_padded": cost.rows,
        "elements_per_rank": cost.elements,
        "nbytes_per_rank": {
            "weights": cost.weights,
            "gradient": cost.gradient,
            "optimizer": cost.optimizer,
            "master_weights": cost.master,
            "total": cost.total,
        },
    }
