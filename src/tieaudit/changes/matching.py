"""This file holds which tensor of one side is which of the other: by name, by every other name that is known, by role, by values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..dtypes import DTYPES
from ..errors import FormatError
from ..kinds import Verify
from ..names import plain
from .compare import Comparer
from .gguf_names import MOVING, candidates
from .sides import Side, Unit

MAX_TRIED = 20_000  # pairs of tensors without a name in common that are looked at
MAX_STACK = 4_096  # experts of one layer
_NUMBER = re.compile(r"\d+")
_FLAX = {"kernel": "weight", "embedding": "weight", "scale": "weight"}


@dataclass(slots=True)
class Matched:
    """`pairs`: (before, after, why two names are one tensor; "" if they are the same name)."""

    pairs: list[tuple[Unit, Unit, str]] = field(default_factory=list)
    lost: dict[str, Unit] = field(default_factory=dict)
    added: dict[str, Unit] = field(default_factory=dict)

    def take(self, before: str, after: str, why: str) -> None:
        ours, theirs = self.lost.pop(before), self.added.pop(after)
        wrapped = "a wrapper's prefix" if ours.matrix.name != theirs.matrix.name and not why and ours.name == theirs.name else why
        self.pairs.append((ours, theirs, wrapped))


def match(before: Side, after: Side, comparer: Comparer) -> Matched:
    """Each step only looks at what the steps before it left over."""
    found = Matched(lost=dict(before.units), added=dict(after.units))
    for name in [name for name in found.lost if name in found.added]:
        found.take(name, name, "")
    if not (found.lost and found.added):
        return found
    also = _other_names(before, after)
    _by_key(found, lambda name: also.get(name, name), "another name of the architecture")
    if "gguf" in comparer.formats and len(comparer.formats) > 1:
        _by_gguf(found, gguf_first=before.format == "gguf")
    _by_key(found, _short, "a prefix more or less")
    if "flax" in comparer.formats:
        _by_key(found, _of_flax, "Flax's name")
    _by_role(found, before, after)
    if not comparer.data.remote and comparer.verify is not Verify.HEADERS:
        _by_values(found, comparer)
    return found


def _other_names(side: Side, other: Side) -> Mapping[str, str]:
    """{a name that the architecture also has: its name on disk}."""
    claims = [case.claim.other_names for case in (side.case, other.case) if case]
    return {also: disk for names in claims for disk, several in names.items() for also in several}


def _short(name: str) -> str:
    return ".".join(word for word in name.split(".") if word not in MOVING)


def _of_flax(name: str) -> str:
    stem, _, leaf = _short(name).rpartition(".")
    return f"{stem}.{_FLAX.get(leaf, leaf)}"


def _by_key(found: Matched, key: Callable[[str], str], why: str) -> None:
    """Names with one key are one tensor, if neither side has two of them."""
    ours, theirs = _keyed(found.lost, key), _keyed(found.added, key)
    for word, name in ours.items():
        other = theirs.get(word)
        if name is not None and other is not None:
            found.take(name, other, why)


def _keyed(units: Iterable[str], key: Callable[[str], str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in units:
        word = key(plain(name))
        found[word] = None if word in found else name
    return found


def _by_gguf(found: Matched, *, gguf_first: bool) -> None:
    gguf, other = (found.lost, found.added) if gguf_first else (found.added, found.lost)
    open_names = {name: [(there, part) for there, part in candidates(name) if there in gguf] for name in other}
    _split_stacks(gguf, open_names)
    choices = {
        name: [_sliced(there, part) for there, part in several if _sliced(there, part) in gguf] for name, several in open_names.items()
    }
    why = "its name in GGUF"
    progress = True
    while progress:
        progress = False
        for name in [name for name, several in choices.items() if name in other]:
            left = [there for there in choices[name] if there in gguf]
            if len(left) == 1:
                found.take(*((left[0], name) if gguf_first else (name, left[0])), why)
                progress = True


def _sliced(name: str, part: int | None) -> str:
    return name if part is None else f"{name}[{part}]"


def _split_stacks(gguf: dict[str, Unit], asked: Mapping[str, list[tuple[str, int | None]]]) -> None:
    """A stack of experts is taken apart where the other side has them one by one."""
    wanted: dict[str, int] = {}
    for several in asked.values():
        for name, part in several:
            if part is not None:
                wanted[name] = max(wanted.get(name, 0), part + 1)
    for name, count in wanted.items():
        unit = gguf.get(name)
        if unit is None or unit.matrix.packed or len(unit.matrix.shape) != 3 or unit.matrix.shape[0] != count or count > MAX_STACK:
            continue
        stack = unit.matrix.main
        if stack.nbytes % count or stack.strides is not None:
            continue
        del gguf[name]
        each = stack.nbytes // count
        for part in range(count):
            slice_ = replace(stack, shape=stack.shape[1:], offset=stack.offset + part * each, nbytes=each)
            gguf[_sliced(name, part)] = Unit(name=_sliced(name, part), matrix=replace(unit.matrix, parts=(slice_,)), part=part)


def _by_role(found: Matched, before: Side, after: Side) -> None:
    """The ends of the model, where a file's own graph says which they are."""
    if not (before.foreign or after.foreign):
        return
    for role in ("embedding", "head"):
        ours = next((name for name, unit in found.lost.items() if unit.role == role), None)
        theirs = next((name for name, unit in found.added.items() if unit.role == role), None)
        if ours is not None and theirs is not None:
            found.take(ours, theirs, f"the {role} by the file's own graph")


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of a tensor without a partner: its dimensions in any order, and elements that stay in place if it is turned."""

    unit: Unit
    dims: tuple[int, ...]
    ends: tuple[float, ...]


def _by_values(found: Matched, comparer: Comparer) -> None:
    """Tensors with other names and the same values, transposed or cast too. Only what a compare confirms is taken."""
    from .sides import moved

    theirs: dict[tuple[int, ...], list[_Look]] = {}
    for unit in found.added.values():
        look = _look(unit, unit, comparer)
        if look:
            theirs.setdefault(look.dims, []).append(look)
    tried = 0
    for name, unit in list(found.lost.items()):
        look = _look(unit, replace(unit, matrix=moved(unit.matrix)), comparer) if theirs else None
        if look is None:
            continue
        numbers = _NUMBER.findall(name)
        several = [other for other in theirs.get(look.dims, ()) if other.unit.name in found.added and _may_be(look, other)]
        # of equal ones (norms of ones) the one of the same layer
        several.sort(key=lambda other: (other.unit.matrix.shape != unit.matrix.shape, _NUMBER.findall(other.unit.name) != numbers))
        for other in several:
            tried += 1
            if tried > MAX_TRIED:
                return
            change = comparer.change(unit, other.unit, "")
            if change.allowed and not any(kind.value in ("not compared", "resized", "plus one") for kind in change.kinds):
                found.take(name, other.unit.name, "the same values under another name")
                break


def _look(unit: Unit, readable: Unit, comparer: Comparer) -> _Look | None:
    from ..values import decodable

    matrix = readable.matrix
    tensor = matrix.main
    dims = tuple(sorted(dim for dim in matrix.shape if dim != 1))
    if matrix.packed or not tensor.numel or not decodable(tensor.dtype) or not comparer.data.readable(tensor):
        return None
    if DTYPES[tensor.dtype].kind not in ("float", "packed") or not dims:
        return None
    from .numbers import corners

    try:
        ends = corners(tensor, comparer.data)
    except FormatError:
        return None
    return _Look(unit, dims, ends) if all(map(math.isfinite, ends)) else None


def _may_be(one: _Look, other: _Look) -> bool:
    """Equal up to rounding, or to what eight bits per element lose."""
    coarse = any(DTYPES[look.unit.matrix.main.dtype].block > 1 for look in (one, other))
    tolerance = 0.3 if coarse else 0.02
    return all(
        abs(a - b) <= tolerance * max(abs(a), abs(b)) + (0.05 if coarse else 1e-7) for a, b in zip(one.ends, other.ends, strict=True)
    )
