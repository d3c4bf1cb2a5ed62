"""This file holds what two checkpoints compute from the same token ids: transformers runs folders, onnxruntime runs ONNX models.

The ids are fixed, the models run on the CPU in float32, and nothing is fetched. Code beside the weights is not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import Edition
from ..config import Config
from ..difference import Outputs
from ..inspectors.rule import EditionCase
from ..text import printable_words
from . import twins
from .hush import hushed
from .loading import _ONE, NotLoaded, _class, _loaded, _on_meta

LENGTH = 12  # tokens
SEED = 5
# of the largest logit: what rounding every weight to this dtype may move it, with room for depth; float8 and below have no such bound
TOLERANCES = {"F64": 1e-4, "F32": 1e-4, "F16": 2e-2, "BF16": 1e-1}

Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One side: the folder it stands in, and what was read of it."""

    root: Path
    edition: Edition | None
    case: EditionCase | None
    config: Config | None

    @property
    def rows(self) -> int:
        """Height of the embedding, 0 if it is not known."""
        claim = self.case.claim if self.case else None
        names = (claim.embedding, *(group.canonical for group in claim.groups)) if claim else ()
        for name in names:
            matrix = self.case.stored.find(name) if self.case and name else None
            if matrix is not None and matrix.rows:
                return matrix.rows
        return 0


def compare(before: Model, after: Model, *, forms: Iterable[str], quantised: bool) -> Outputs:
    """Run both. What cannot be run is not tried, and the words say why."""
    rows = [model.rows for model in (before, after) if model.rows > 1]
    ids = torch.randint(0, min(rows, default=2), (1, LENGTH), generator=torch.Generator().manual_seed(SEED))
    results = []
    for model, which in ((before, "before"), (after, "after")):
        try:
            results.append(_run(model, ids))
        except NotLoaded as error:
            return Outputs(held=None, tried=False, words=f"not tried: {which}: {printable_words(str(error))}")
    one, other = results
    if one.shape[:-1] != other.shape[:-1]:
        return Outputs(
            held=None, tried=False, words=f"not tried: outputs of {tuple(one.shape)} and {tuple(other.shape)} have nothing in common"
        )
    width = min(one.shape[-1], other.shape[-1])
    one, other = one[..., :width].double(), other[..., :width].double()
    if not (torch.isfinite(one).all() and torch.isfinite(other).all()):
        return Outputs(held=None, words="an output is not finite, so the two were not compared")
    furthest = float((one - other).abs().max())
    agreement = float((one.argmax(-1) == other.argmax(-1)).double().mean())
    known = [TOLERANCES[form] for form in forms if form in TOLERANCES]
    tolerance = None if quantised or not known else max(known) * float(one.abs().max())
    held = None if tolerance is None else furthest <= tolerance
    words = f"largest difference of the logits {furthest:.3g} (of {float(one.abs().max()):.3g})"
    words += f", the first token agrees at {agreement:.0%} of {LENGTH} positions"
    words += "; no tolerance applies to quantised weights" if tolerance is None else f"; {'within' if held else 'beyond'} {tolerance:.3g}"
    return Outputs(held=held, words=words, max_difference=furthest, tolerance=tolerance, agreement=agreement)


def _run(model: Model, ids: torch.Tensor) -> torch.Tensor:
    if model.edition is None or model.case is None:
        raise NotLoaded("nothing of it can be read")
    if model.edition.format == "onnx":
        return _onnx(model.root / model.edition.files[0].name, ids)
    if model.edition.format not in ("safetensors", "torch"):
        raise NotLoaded(f"{model.edition.format} is run by nothing that is called here")
    return _transformers(model, model.case, ids)


def _transformers(model: Model, case: EditionCase, ids: torch.Tensor) -> torch.Tensor:
    with _ONE, twins.quiet(), twins.offline():
        if not _loadable(case):
            raise NotLoaded(f"transformers does not look for {case.edition.name}")
        cls, config = _class(model.root, model.config, case, trust_remote_code=False)
        _on_meta(cls, config, case)
        loaded, info = _loaded(cls, model.root, config, case)
        if info.get("missing_keys"):
            missing = sorted(info["missing_keys"])
            raise NotLoaded(f"{missing[0]} is not in the file, so its values are random")
        with contextlib.suppress(Exception):  # a quantised model keeps its own dtypes
            loaded = loaded.float()
        given: dict[str, Any] = {"input_ids": ids}
        if getattr(config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = ids
        try:
            with torch.no_grad():
                out = loaded(**given)
        except Exception as error:  # noqa: BLE001  a model may ask for anything
            raise NotLoaded(f"it does not run on token ids alone: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None
    return _first(out)


def _loadable(case: EditionCase) -> bool:
    from ..loaders.sharded import PREFERENCE

    return case.edition.name in PREFERENCE


def _first(out: Any) -> torch.Tensor:
    found = getattr(out, "logits", None)
    if found is None:
        found = getattr(out, "last_hidden_state", None)
    if not isinstance(found, torch.Tensor):
        raise NotLoaded("its output has neither logits nor hidden states")
    return found


def _onnx(path: Path, ids: torch.Tensor) -> torch.Tensor:
    try:
        with hushed():
            import onnxruntime  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise NotLoaded("onnxruntime is not installed") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its exceptions share no base
        raise NotLoaded(f"onnxruntime cannot load it: {' '.join(str(error).split())[:200]}") from None
    known = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": torch.arange(ids.shape[1])[None],
             "token_type_ids": torch.zeros_like(ids)}  # fmt: skip
    given = {}
    for wanted in session.get_inputs():
        if wanted.name not in known:
            raise NotLoaded(f"it asks for {wanted.name}")
        length = wanted.shape[1] if len(wanted.shape) == 2 else None
        if isinstance(length, int) and length != ids.shape[1]:
            raise NotLoaded(f"it was exported for {length} tokens, {ids.shape[1]} are tried")
        given[wanted.name] = known[wanted.name].numpy().astype("int32" if "int32" in wanted.type else "int64")
    try:
        outputs = session.run(None, given)
    except Exception as error:  # noqa: BLE001
        raise NotLoaded(f"onnxruntime cannot run it: {' '.join(str(error).split())[:200]}") from None
    return torch.from_numpy(outputs[0].astype("float32"))
