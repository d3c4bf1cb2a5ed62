"""This file holds how the object of a torch file is told again as a pickle: dicts, lists, plain values, tensors; protocol 2, as torch does.

What runs is known beforehand: `collections.OrderedDict`, torch's storage classes and `torch._utils._rebuild_*`. Nothing else is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checkpoint import TensorRecord
from ...errors import TieauditError
from ...loaders.pickle_machine import Global, Made, Pairs
from ...loaders.torch_objects import WRAPPERS, ObjectWalk
from ...loaders.torch_parts import name_leaves
from ...loaders.torch_tensors import DTYPES_BY_NAME, ITEM_NBYTES, STORAGE_DTYPES, TENSOR_CALLS

MAX_DEPTH = 50  # of containers; a state dict has two
ORDERED = "collections.OrderedDict"
_CLASSES = {dtype: name for name, dtype in reversed(list(STORAGE_DTYPES.items())) if not name.startswith(("Untyped", "Typed", "Q"))}
_NAMES = {dtype: name for name, dtype in reversed(list(DTYPES_BY_NAME.items()))}
_PARAMETERS = ("torch._utils._rebuild_parameter",)


class Unwritable(TieauditError):
    """The object has a part that is not written; the words say which."""


class Lying(NamedTuple):
    """Where a tensor lies in the new file: storage, elements of it, the element at which the tensor begins."""

    key: str
    numel: int
    offset: int


Place = Callable[[str], tuple[TensorRecord, Lying]]


def repickled(file: str, root: object, dropped: Collection[str], renamed: Mapping[str, str], place: Place) -> bytes:
    """The object without the tensors that are `dropped`; `place` says for a name where its tensor lies now."""
    walk = ObjectWalk(file)
    walk.run(root)
    named = {leaf.path: name for leaf, (name, _) in zip(walk.leaves, name_leaves(walk.leaves), strict=True)}
    teller = _Teller(named, frozenset(dropped), renamed, place)
    if not teller.value(root, ()):
        raise Unwritable("nothing of its object would be left")
    told = {named_path for named_path, name in named.items() if name not in dropped}
    if told - teller.told:
        raise Unwritable(f"{named[min(told - teller.told)]} lies where it cannot be written")
    return b"\x80\x02" + b"".join(teller.out) + b"."


@dataclass(slots=True)
class _Teller:
    named: Mapping[tuple[str, ...], str]
    dropped: frozenset[str]
    renamed: Mapping[str, str]
    place: Place
    out: list[bytes] = field(default_factory=list)
    told: set[tuple[str, ...]] = field(default_factory=set)

    def value(self, value: object, path: tuple[str, ...]) -> bool:
        """Write it; False if nothing of it stays (then nothing was written)."""
        if len(path) > MAX_DEPTH:
            raise Unwritable("its object is nested too deeply")
        if isinstance(value, Made):
            return self._made(value, path)
        if isinstance(value, Pairs):
            return self._mapping(b"}", value, path)
        if isinstance(value, list | tuple):
            self._sequence(value, path)
            return True
        self.out.append(_plain(value, path))
        return True

    def _made(self, made: Made, path: tuple[str, ...]) -> bool:
        args = made.args if isinstance(made.args, tuple) else ()
        if made.name in TENSOR_CALLS:
            return self._tensor(made, args, path)
        if made.name in _PARAMETERS and args:
            mark = len(self.out)
            self.out.append(_global("torch._utils", "_rebuild_parameter") + b"(")
            if not self.value(args[0], path):
                del self.out[mark:]
                return False
            trains = args[1] if len(args) > 1 else True
            self.out.append(_plain(trains is True, path) + _ORDERED_DICT + b"tR")
            return True
        if made.name in WRAPPERS and made.name.startswith("torch.nn.") and args:
            return self.value(args[0], path)
        if made.name == ORDERED and not args and made.items is None:
            return self._mapping(_ORDERED_DICT, made.pairs or Pairs(), path, made.state)
        if made.name == "torch.Size" and len(args) == 1 and made.state is None:
            self.out.append(_global("torch", "Size"))
            self.value(args[0], path)
            self.out.append(b"\x85R")
            return True
        raise Unwritable(f"{'.'.join(path) or 'its object'} is a {made.name or 'computed object'}, which is not written")

    def _mapping(self, opening: bytes, pairs: Pairs, path: tuple[str, ...], state: object = None) -> bool:
        begin, kept = len(self.out), 0
        self.out.append(opening + b"(")
        for key, value in {repr(key): (key, value) for key, value in pairs}.values():
            below = (*path, key if type(key) is str else str(key))
            name = self.named.get(below, "")
            if not path and self._goes(below):
                continue
            mark = len(self.out)
            new = self.renamed.get(name, name)
            if new != name:
                if not isinstance(key, str) or not name.endswith(key):
                    raise Unwritable(f"{name} stands where it cannot be renamed")
                key = new.removeprefix(name.removesuffix(key))  # noqa: PLW2901
            self.out.append(_plain(key, below))
            if self.value(value, below):
                kept += 1
            else:
                del self.out[mark:]
        if pairs and not kept:
            del self.out[begin:]
            return False
        self.out.append(b"u")
        if state is not None:
            self.value(state, (*path, "state of the dict"))
            self.out.append(b"b")
        return True

    def _goes(self, top: tuple[str, ...]) -> bool:
        """All tensors below this entry of the root are left out: what else it has (an optimizer's groups) goes with them."""
        below = [name for path, name in self.named.items() if path[: len(top)] == top]
        return bool(below) and self.dropped.issuperset(below)

    def _sequence(self, items: list[object] | tuple[object, ...], path: tuple[str, ...]) -> None:
        self.out.append(b"(" if isinstance(items, tuple) else b"](")
        for at, item in enumerate(items):
            # what is left out of a list would move what follows it
            if not self.value(item, (*path, str(at))):
                raise Unwritable(f"{'.'.join(path)} is a list of which a part would be left out")
        self.out.append(b"t" if isinstance(items, tuple) else b"e")

    def _tensor(self, made: Made, args: tuple[object, ...], path: tuple[str, ...]) -> bool:
        name = self.named.get(path)
        if name is None:
            raise Unwritable(f"{'.'.join(path)} has no name of its own")
        if name in self.dropped:
            self.told.add(path)
            return False
        tensor, lying = self.place(name)
        self.told.add(path)
        width = ITEM_NBYTES[tensor.dtype]
        typed = _CLASSES.get(tensor.dtype)
        steps = tensor.strides if tensor.strides is not None else _dense(tensor.shape)
        trains = args[4] if len(args) > 4 and not made.name.endswith("qtensor") else False
        if made.name.endswith("_rebuild_qtensor") or (typed is None and tensor.dtype not in _NAMES):
            raise Unwritable(f"{name} is a quantised tensor of torch's own kind")
        call = "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3"
        kind = _global("torch", typed) if typed else _global("torch.storage", "UntypedStorage")
        numel = lying.numel if typed else lying.numel * width
        storage = b"(" + _text("storage") + kind + _text(lying.key) + _text("cpu") + _integer(numel) + b"tQ"
        shape, strides = (b"(" + b"".join(map(_integer, numbers)) + b"t" for numbers in (tensor.shape, steps))
        last = b"" if typed else _global("torch", _NAMES[tensor.dtype])
        trained = _plain(trains is True, path)
        self.out.append(
            _global("torch._utils", call)
            + b"("
            + storage
            + _integer(lying.offset)
            + shape
            + strides
            + trained
            + _ORDERED_DICT
            + last
            + b"tR"
        )
        return True


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for dim in reversed(shape):
        steps.append(step)
        step *= max(1, dim)
    return tuple(reversed(steps))


def _plain(value: object, path: tuple[str, ...]) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return _integer(value)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return _text(value)
        case Global() if value.module == "torch" and value.name in DTYPES_BY_NAME:
            return _global("torch", value.name)
    raise Unwritable(f"{'.'.join(path) or 'its object'} is no tensor, no container and no plain value")


def _integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) > 255:
        raise Unwritable("a number has thousands of digits")
    return b"\x8a" + bytes([len(data)]) + data


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


_ORDERED_DICT = _global("collections", "OrderedDict") + b")R"
