"""This file holds the live check of a checkpoint: the class built on the meta device, the weights loaded, and what became of the claims.

Only here does the tool let transformers read a checkpoint. Code that lies beside the weights is run only if that is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ..alive import Answer, Live, LiveName, Sharing, Tried
from ..bytewise import TensorBytes
from ..checkpoint import TensorRecord
from ..config import Config
from ..errors import FormatError, TargetError
from ..inspectors.rule import Case, EditionCase, Pair, TieState
from ..kinds import Kind
from ..values import decodable, decode
from . import identity, trials, twins
from .module import look

PROBED = 3  # pages of a matrix that say which stored one is in memory
READER = f"transformers {transformers.__version__}"


def load(folder: Path, case: Case, data: TensorBytes, *, trust_remote_code: bool = False) -> Live:
    """Load the model in `folder` on the CPU and look at it. TargetError if transformers cannot."""
    if case.config is None:
        raise TargetError(str(folder), "has no config.json that --load could build a model from", "")
    cls, config = _class(folder, case.config, trust_remote_code=trust_remote_code)
    declared = _on_meta(cls, config)
    before = resident()
    model, info = _loaded(cls, folder, config)
    live, absent = look(model, moment=f"loaded by {READER}")
    names = {name.name: name for name in live.names}
    return Live(
        model=live.model,
        moment=live.moment,
        names=live.names,
        ties=live.ties,
        tried=tuple(_tried(model, info)),
        resident=(before, resident()),
        won=tuple(_won(case, model, data)),
        missing=tuple(sorted(info.get("missing_keys", ()))),
        unexpected=tuple(sorted(info.get("unexpected_keys", ()))),
        answers=tuple(_answers(case, names, declared)),
        absent=absent,
    )


def _class(folder: Path, config: Config, *, trust_remote_code: bool) -> tuple[Any, Any]:
    """(model class, its config). Nothing but transformers' own code is run unless `trust_remote_code`."""
    target = str(folder)
    if config.remote_code and not trust_remote_code and not _known(config):
        raise TargetError(target, "needs the code that lies beside its weights", "--trust-remote-code runs it; read it first")
    try:
        with twins.quiet():
            loaded = transformers.AutoConfig.from_pretrained(target, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # noqa: BLE001  a config can break in any class
        raise _refused(target, "does not read config.json", error) from None
    name = next((name for name in config.architectures if _known_class(name)), None)
    if name is not None and not (config.remote_code and trust_remote_code):
        return getattr(transformers, name), loaded
    for auto in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel"):
        reference = (config.at("auto_map") or {}).get(auto) if isinstance(config.at("auto_map"), dict) else None
        if trust_remote_code and isinstance(reference, str):
            try:
                from transformers.dynamic_module_utils import get_class_from_dynamic_module

                return get_class_from_dynamic_module(reference, target, local_files_only=True), loaded
            except Exception as error:  # noqa: BLE001
                raise _refused(target, f"cannot import {reference}", error) from None
        mapping = getattr(transformers, auto)._model_mapping  # noqa: SLF001  it has no public name
        if not config.architectures and type(loaded) in mapping:
            return mapping[type(loaded)], loaded
    asked = ", ".join(config.architectures) or config.model_type or "a class"
    raise TargetError(target, f"asks for {asked}, which {READER} does not have", "")


def _known(config: Config) -> bool:
    return any(map(_known_class, config.architectures)) and config.model_type in transformers.CONFIG_MAPPING


def _known_class(name: str) -> bool:
    found = getattr(transformers, name, None) if name.isidentifier() else None
    return isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)


def _refused(target: str, what: str, error: Exception) -> TargetError:
    words = " ".join(str(error).split())[:200]
    return TargetError(target, f"{READER} {what}: {type(error).__name__}: {words}", "the audit without --load does not need it")


def _on_meta(cls: Any, config: Any) -> dict[str, int]:
    """{name: number of its Parameter} of the class built without memory: what it ties before any file is read. Empty if that fails."""
    try:
        with twins.quiet(), torch.device("meta"):
            model = cls(config)
    except Exception:  # noqa: BLE001  a class that computes with tensors while it is built
        return {}
    return {name.name: name.parameter for name in identity.collect(model).names}


def _loaded(cls: Any, folder: Path, config: Any) -> tuple[nn.Module, dict[str, Any]]:
    try:
        with twins.quiet():
            model, info = cls.from_pretrained(str(folder), config=config, dtype="auto", local_files_only=True, output_loading_info=True)
    except Exception as error:  # noqa: BLE001  any class may raise anything
        raise _refused(str(folder), "cannot load it", error) from None
    return model.eval(), info


def _tried(model: Any, info: dict[str, Any]) -> Iterator[Tried]:
    """The trials: logits on the model itself, the backward pass on a small one of its class, the round trip on whichever is small."""
    yield trials.logits(model)
    tiny: Any = None
    large = sum(name.nbytes for name in identity.collect(model).names) > trials.ROUND_TRIP_NBYTES
    found = trials.ends(model)
    if (found is not None and found.tied) or large:
        tiny = twins.small(model)
    if found is not None and found.tied and tiny is not None:
        yield trials.gradient(tiny)
    if not large and not info.get("missing_keys"):
        yield trials.round_trip(model)
    elif tiny is not None and not info.get("missing_keys"):
        # in the state that the loaded one is in: a head that was loaded as a matrix of its own must come back as one
        if found is not None and not found.tied and (ends := trials.ends(tiny)) is not None and ends.tied:
            tiny = twins.untied(tiny)
        tried = trials.round_trip(tiny)
        yield Tried(trial=tried.trial, held=tried.held, words=f"{tried.words} (tried on a small {type(model).__name__})", names=tried.names)


def resident() -> int:
    """Bytes of memory that the process holds now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _won(case: Case, model: nn.Module, data: TensorBytes) -> Iterator[tuple[str, str]]:
    """Of ties of which the file holds several matrices: which stored one each name has in memory."""
    tensors = identity.collect(model).tensors
    for edition in _first(case):
        for state in edition.ties:
            pairs = [pair for pair in state.pairs if _differ(pair)]
            if not pairs:
                continue
            stored = list(dict.fromkeys(matrix.main for pair in pairs for matrix in (pair.first, pair.second)))
            for record in stored:
                name = _in_memory(record.name, edition, tensors)
                if name is None:
                    continue
                winner = next((other for other in stored if _is(tensors[name], other, data)), None)
                if winner is not None:
                    same = winner.name == record.name
                    yield name, f"holds the stored {winner.name}" + ("" if same else f": the stored {record.name} is not in memory")
                else:
                    yield name, "holds none of the stored matrices"


def _first(case: Case) -> Iterable[EditionCase]:
    """The edition that transformers loads."""
    return list(case.judged)[:1]


def _differ(pair: Pair) -> bool:
    return pair.relation.kind in (Kind.UNRELATED, Kind.NEAR, Kind.SCALED, Kind.PADDED, Kind.CAST)


def _in_memory(name: str, edition: EditionCase, known: Iterable[str]) -> str | None:
    """The name in memory of a stored one: transformers renames on loading, and adds or drops a base model's prefix."""
    names = set(known)
    tried = [name, *edition.claim.other_names.get(name, ())]
    tried += [own for own, others in edition.claim.other_names.items() if name in others]
    exact = next((one for one in tried if one in names), None)
    if exact is not None:
        return exact
    behind = [one for one in names if any(one.endswith("." + other) or other.endswith("." + one) for other in tried)]
    return behind[0] if len(behind) == 1 else None


def _is(tensor: Tensor, record: TensorRecord, data: TensorBytes) -> bool:
    """The tensor in memory is the stored one, by pages, after the cast that the load made."""
    if (
        tuple(tensor.shape) != record.shape
        or not tensor.numel()
        or tensor.is_meta
        or not data.readable(record)
        or not decodable(record.dtype)
    ):
        return False
    flat = tensor.detach().reshape(-1)
    item = record.nbytes // record.numel
    count = min(record.numel, 1024)
    try:
        for page in range(PROBED):
            start = (record.numel - count) * page // (PROBED - 1)
            values = torch.from_numpy(decode(data.read(record, start * item, count * item), record.dtype).copy())
            if not torch.equal(values.to(flat.dtype), flat[start : start + count].cpu()):
                return False
    except FormatError:
        return False
    return True


def _answers(case: Case, names: dict[str, LiveName], declared: dict[str, int]) -> Iterator[Answer]:
    """What the loaded model says of each tie that the static report claims."""
    for edition in _first(case):
        for state in edition.ties:
            yield from _answer(state, edition, names, declared)


def _answer(state: TieState, edition: EditionCase, names: dict[str, LiveName], declared: dict[str, int]) -> Iterator[Answer]:
    canonical = _in_memory(state.group.canonical, edition, names)
    for alias in state.group.aliases:
        name = _in_memory(alias.name, edition, names)
        if canonical is None or name is None or canonical == name:
            continue
        first, second = names[canonical], names[name]
        one = first.parameter == second.parameter
        half = not one and first.storage is not None and first.storage == second.storage
        seen = Sharing.SAME_PARAMETER if one else Sharing.SAME_STORAGE if half else Sharing.APART
        stored_apart = any(_differ(pair) for pair in state.pairs)
        if alias.tied is None:
            held, words = None, f"nothing claimed it; in memory they are {'one Parameter' if one else 'two'}"
        elif one == alias.tied:
            held, words = True, "one Parameter" if one else "two Parameters over one memory" if half else "two Parameters"
        elif alias.tied and stored_apart:
            held, words = True, "two Parameters: the file holds two different matrices, and both are kept"
        else:
            held, words = False, f"the config {'ties' if alias.tied else 'does not tie'} them, and in memory they are {seen.value}"
        built = declared.get(canonical), declared.get(name)
        on_meta = None if None in built else built[0] == built[1]
        yield Answer(names=(canonical, name), held=held, words=words, pointers=(first.data_ptr, second.data_ptr), on_meta=on_meta)
