"""This file holds one save and load: whether `save_pretrained` and `from_pretrained` give back the ties and, bit for bit, the values."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..alive import Trial, Tried
from ..text import listed
from . import identity, twins
from .compare import comparable, equal

_UNDECLARED = "shared tensors"  # of the RuntimeError with which save_pretrained refuses sharing that no class declares


def round_trip(model: Any) -> Tried:
    """The model is saved to a temporary folder, which is removed again. Nothing is said of a save that the machine refuses."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="tieaudit-", ignore_cleanup_errors=True)
    except OSError as error:
        return _told(None, f"there is no temporary folder ({error.strerror or error})")
    with folder, twins.quiet(), twins.seeded():
        try:
            model.save_pretrained(folder.name)
        except RuntimeError as error:
            if _UNDECLARED in str(error):
                return _refused(model)
            return _told(None, f"save_pretrained raises {_words(error)}")
        except Exception as error:  # noqa: BLE001  any class may raise anything
            return _told(None, f"save_pretrained raises {_words(error)}")
        try:
            loaded, info = type(model).from_pretrained(folder.name, dtype=_dtype(model), output_loading_info=True, local_files_only=True)
        except Exception as error:  # noqa: BLE001
            return _told(None, f"what save_pretrained wrote cannot be loaded: {_words(error)}")
        return _came_back(model, loaded, info)


def _told(held: bool | None, words: str, names: Iterable[str] = ()) -> Tried:
    return Tried(trial=Trial.ROUND_TRIP, held=held, words=words, names=tuple(dict.fromkeys(names)))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _dtype(model: Any) -> torch.dtype:
    """One that holds all the values: `model.dtype` is that of its first weights, and a class may keep others wider."""
    held = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return held.pop() if len(held) == 1 else torch.float64 if torch.float64 in held else torch.float32


def _refused(model: Any) -> Tried:
    shared = list(groups(identity.collect(model)))
    names = listed(names_of(shared)) if shared else "tensors"
    return _told(False, f"save_pretrained refuses to save it: {names} share memory, and no class declares that", names_of(shared))


def names_of(shared: Iterable[tuple[str, ...]]) -> list[str]:
    return [name for names in shared for name in names[:2]]


def _came_back(model: Any, loaded: Any, info: dict[str, Any]) -> Tried:
    before, after = identity.collect(model), identity.collect(loaded)
    first, second = before.by_name(), after.by_name()
    stored = {name.name for name in before.names if name.stored}
    gone = sorted(stored - second.keys())
    random = sorted(stored & set(info.get("missing_keys", ())))
    same = {name: _same(before.tensors[name], after.tensors[name]) for name in sorted(stored & second.keys()) if name not in random}
    changed = [name for name, held in same.items() if held is False]
    parted = [names for names in groups(before) if len({second[name].parameter for name in names if name in second}) > 1]
    joined = [names for names in groups(after) if len({first[name].parameter for name in names if name in first}) > 1]
    lost = [
        (random, "not saved, and new values after the load"),
        (names_of(parted), "one Parameter before, several after"),
        (changed, "other values after"),
        (gone, "not there any more"),
        (names_of(joined), "several Parameters before, one after"),
    ]
    said = [f"{listed(names)}: {what}" for names, what in lost if names]
    if said:
        words = "save_pretrained and a reload do not give the model back: " + "; ".join(said)
        return _told(False, words, (name for names, _ in lost for name in names[:4]))
    count = sum(1 for _ in groups(before))
    ties = f", and {count} tie{'s' * (count != 1)}" if count else ""
    unseen = sum(held is None for held in same.values())
    values = "all values" if not unseen else f"all values but those of {unseen:,} tensors that cannot be compared"
    return _told(True if unseen < len(same) else None, f"save_pretrained and a reload give back {values}{ties}")


def groups(found: identity.Found) -> Iterator[tuple[str, ...]]:
    """Names of one Parameter, where there are several."""
    together: dict[int, list[str]] = {}
    for name in found.names:
        together.setdefault(name.parameter, []).append(name.name)
    yield from (tuple(names) for names in together.values() if len(names) > 1)


def _same(a: Tensor, b: Tensor) -> bool | None:
    """The values, bit for bit; a wider dtype holds the same ones. None for tensors that cannot be looked into."""
    if a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    if not comparable(a, b):
        return None
    return equal(a.detach(), b.detach()) if a.dtype == b.dtype else torch.equal(b.detach().to(a.dtype), a.detach())
