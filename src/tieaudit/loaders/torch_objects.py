"""This file holds the walk from an unpickled root to the tensors below it, and what each of them is called.

Names are those of `state_dict()`: keys of dicts and indices of lists joined by dots, `_parameters`, `_buffers` and `_modules` of
a pickled nn.Module left out (torch/nn/modules/module.py). An object that stands at two places has two names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import FormatError
from .pickle_machine import Global, Made, Pairs
from .torch_tensors import TENSOR_CALLS, UTILS, Fault, StorageRef, View, tensor_view, whole_storage

MAX_DEPTH = 100  # of containers; what lies deeper is reported as not seen
MAX_REPEATS = 100_000  # elements of objects that stand at a second place; each object is looked at once without limit
MAX_NAME_CHARACTERS = 128 << 20  # of all names together
MIN_ARRAY_NBYTES = 64 << 10  # a numpy array worth telling about; a random generator's state has 2,496 bytes

MODULE_KEYS = ("_parameters", "_buffers", "_modules")

# Calls whose result is (for what counts here) the argument at this position.
WRAPPERS: Mapping[str, int] = {
    f"{UTILS}_rebuild_parameter": 0,
    f"{UTILS}_rebuild_parameter_with_state": 0,
    f"{UTILS}_rebuild_device_tensor_from_cpu_tensor": 0,
    "torch.jit._pickle.restore_type_tag": 0,
    "torch.jit._pickle.build_intlist": 0,
    "torch.jit._pickle.build_tensorlist": 0,
    "torch.jit._pickle.build_doublelist": 0,
    "torch.jit._pickle.build_boollist": 0,
    "torch.nn.parameter.Parameter": 0,
    "torch.nn.parameter.Buffer": 0,
    "torch.autograd.variable.Variable": 0,
    "builtins.list": 0,
    "builtins.tuple": 0,
    "builtins.dict": 0,
    "builtins.set": 0,
    "__builtin__.set": 0,
    "builtins.frozenset": 0,
}
FROM_TYPE = frozenset(f"torch.{module}._rebuild_from_type{v}" for module in ("_tensor", "tensor") for v in ("", "_v2"))
SPARSE_PARTS = ("indices", "values")
COMPRESSED_PARTS = ("compressed_indices", "plain_indices", "values")
NESTED_PARTS = ("values", "sizes", "strides", "offsets")
NUMPY_ARRAYS = frozenset(
    {
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.numeric._frombuffer",
        "numpy._core.numeric._frombuffer",
    }
)
UNSEEN: Mapping[str, str] = {
    f"{UTILS}_rebuild_meta_tensor_no_storage": "on the meta device: no values are stored",
    f"{UTILS}_rebuild_device_tensor_from_numpy": "kept as numpy arrays inside the pickle",
    f"{UTILS}_rebuild_xla_tensor": "kept as numpy arrays inside the pickle",
}
CONTAINERS = (Made, list, tuple, StorageRef)  # what may lead to a tensor; Pairs are lists


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where an object stands: its key below `parent`. `owner` is the id of the object whose child it is (for cycles)."""

    key: str
    parent: Place | None
    depth: int
    owner: int
    optimizer: bool

    @property
    def path(self) -> tuple[str, ...]:
        keys: list[str] = []
        place: Place | None = self
        while place is not None and place.depth:
            keys.append(place.key)
            place = place.parent
        return tuple(reversed(keys))


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor, or what should be one, at its path. `extra`: an attribute of a module that is neither parameter nor buffer.
    `optimizer`: below a dict that has `state` and `param_groups`."""

    path: tuple[str, ...]
    view: View | Fault
    optimizer: bool = False
    extra: bool = False


@dataclass(slots=True)
class ObjectWalk:
    """One walk. After `run`: `leaves` in the order of the pickle, keys that a dict has twice in `repeated`, and what could not
    be seen in `too_deep`, `array_nbytes` and `unseen` {why: names}."""

    file: str
    leaves: list[Leaf] = field(default_factory=list)
    repeated: dict[str, None] = field(default_factory=dict)
    too_deep: int = 0
    unseen: dict[str, list[str]] = field(default_factory=dict)
    array_nbytes: int = 0
    _again: bool = False  # the object in hand was seen before
    _repeats: int = 0
    _characters: int = 0
    _todo: list[tuple[object, Place]] = field(default_factory=list)
    _extras: list[tuple[object, Place]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _barren: set[int] = field(default_factory=set)
    _kept: list[Made] = field(default_factory=list)  # made here; ids stay theirs

    def run(self, root: object) -> None:
        """FormatError if the names or objects are beyond all measure."""
        self._todo.append((root, Place("", None, 0, 0, optimizer=False)))
        while self._todo:
            self._visit(*self._todo.pop(), extra=False)
        # Attributes of modules come last: what is a parameter as well (an LSTM's _flat_weights) is not told twice.
        while self._extras:
            self._todo.append(self._extras.pop())
            while self._todo:
                value, place = self._todo.pop()
                if id(value) not in self._seen:
                    self._visit(value, place, extra=True)

    def _visit(self, value: object, place: Place, *, extra: bool) -> None:
        self._again = id(value) in self._seen
        self._spend(1)
        self._seen.add(id(value))
        if isinstance(value, Made):
            if value.name in TENSOR_CALLS:
                self._leaf(place, tensor_view(value), extra=extra)
                if value.name.endswith("_rebuild_qtensor") and isinstance(value.args, tuple) and len(value.args) > 4:
                    self._inside(value, place, zip(("scheme", "scales", "zero_points"), _parts(value.args[4]), strict=False))
            else:
                self._visit_made(value, place)
        elif isinstance(value, StorageRef):
            self._leaf(place, whole_storage(value), extra=extra)
        elif isinstance(value, Pairs):
            self._visit_pairs(value, value, place)
        elif isinstance(value, list | tuple):
            self._push(value, place, ((str(index), item) for index, item in enumerate(value)), plain=True)

    def _visit_made(self, made: Made, place: Place) -> None:
        name, args = made.name, made.args if isinstance(made.args, tuple) else ()
        if name in WRAPPERS:
            # A Parameter of torch <= 0.3 has its tensor first in its state.
            source = args or (made.state if isinstance(made.state, tuple) else ())
            if name.endswith("_with_state") and len(args) > 3:
                self._inside(made, place, _state_pairs(args[3]))
            if source:
                self._same(made, place, source[0])
        elif name in FROM_TYPE and len(args) >= 3:
            if len(args) > 3:
                self._inside(made, place, _state_pairs(args[3]))
            self._kept.append(Made(args[0], args[2]))
            self._same(made, place, self._kept[-1])
        elif name == f"{UTILS}_rebuild_sparse_tensor" and len(args) == 2:
            parts = _parts(args[1])
            compressed = len(parts) > 2 and isinstance(parts[2], Made) and parts[2].name in {*TENSOR_CALLS, *WRAPPERS}
            names = COMPRESSED_PARTS if compressed else SPARSE_PARTS
            self._inside(made, place, zip(names, parts, strict=False))
        elif name == f"{UTILS}_rebuild_nested_tensor":
            self._inside(made, place, zip(NESTED_PARTS, args, strict=False))
        elif name in UNSEEN:
            self.unseen.setdefault(UNSEEN[name], []).append(".".join(self._counted(place.path)))
        elif name in NUMPY_ARRAYS:
            self.array_nbytes += sum(len(part) for part in (*_parts(made.state), *args) if isinstance(part, bytes))
        else:
            self._visit_instance(made, place, args)

    def _visit_instance(self, made: Made, place: Place, args: tuple[object, ...]) -> None:
        state = made.state
        if isinstance(state, Pairs):
            self._visit_pairs(made, state, place)
        elif state is not None:
            self._push(made, place, _state_pairs(state))
        if made.pairs is not None:
            self._visit_pairs(made, made.pairs, place)
        if made.items is not None:
            self._push(made, place, ((str(index), item) for index, item in enumerate(made.items)))
        if args:
            # OrderedDict([[key, value], …]) of Python 2
            if made.name == "collections.OrderedDict" and isinstance(args[0], list):
                pairs = Pairs((pair[0], pair[1]) for pair in args[0] if isinstance(pair, list | tuple) and len(pair) == 2)
                self._visit_pairs(made, pairs, place)
            else:
                self._push(made, place, ((str(index), item) for index, item in enumerate(args)))
        if isinstance(made.kwargs, Pairs):
            self._visit_pairs(made, made.kwargs, place)

    def _visit_pairs(self, owner: object, pairs: Pairs, place: Place) -> None:
        self._spend(len(pairs))
        values: dict[tuple[bool, str], object] = {}
        for index, (key, value) in enumerate(pairs):
            if isinstance(value, CONTAINERS) or key in ("state", "param_groups"):
                text = _key(key, index)
                if (type(key) is str, text) in values:
                    self.repeated[text] = None
                values[type(key) is str, text] = value
        if all((True, key) in values for key in MODULE_KEYS):
            self._visit_module(owner, place, {text: value for (_, text), value in values.items()})
            return
        optimizer = (True, "state") in values and (True, "param_groups") in values
        entries = ((text, value) for (_, text), value in values.items())
        self._push(owner, place, entries, plain=owner is pairs, optimizer=optimizer)

    def _visit_module(self, owner: object, place: Place, values: dict[str, object]) -> None:
        for key, value in reversed(values.items()):
            if key not in MODULE_KEYS:
                self._extras.append((value, Place(key, place, place.depth + 1, id(owner), place.optimizer)))
        for key in reversed(MODULE_KEYS):
            self._same(owner, place, values[key])

    # The four ways down: to children with a key, to the thing itself, to parts of a tensor, to a tensor.

    def _push(
        self,
        owner: object,
        place: Place,
        entries: Iterable[tuple[str, object]],
        *,
        plain: bool = False,
        optimizer: bool = False,
    ) -> None:
        """`plain`: the entries are all that the owner has, so if none leads on it need not be looked at again."""
        if id(owner) in self._barren or self._is_cycle(owner, place):
            return
        if place.depth >= MAX_DEPTH:
            self.too_deep += 1
            return
        found = []
        count = 0
        for key, value in entries:
            count += 1
            if isinstance(value, CONTAINERS):
                below = Place(key, place, place.depth + 1, id(owner), place.optimizer or optimizer)
                found.append((value, below))
        self._spend(count)
        if found:
            self._todo.extend(reversed(found))
        elif plain:
            self._barren.add(id(owner))

    def _same(self, owner: object, place: Place, value: object) -> None:
        if isinstance(value, CONTAINERS) and not self._is_cycle(value, place):
            self._spend(1)
            self._todo.append((value, Place(place.key, place.parent, place.depth, id(owner), place.optimizer)))

    def _inside(self, made: Made, place: Place, parts: Iterable[tuple[str, object]]) -> None:
        found = []
        for key, value in parts:
            if isinstance(value, CONTAINERS):
                name = f"{place.key}.{key}" if place.depth else f"tensor.{key}"
                found.append((value, Place(name, place.parent, max(1, place.depth), id(made), place.optimizer)))
        self._spend(len(found))
        self._todo.extend(reversed(found))

    def _leaf(self, place: Place, view: View | Fault, *, extra: bool) -> None:
        self.leaves.append(Leaf(self._counted(place.path), view, place.optimizer, extra))

    def _counted(self, path: tuple[str, ...]) -> tuple[str, ...]:
        self._characters += sum(map(len, path))
        if self._characters > MAX_NAME_CHARACTERS:
            raise FormatError(self.file, f"has tensor names of more than {MAX_NAME_CHARACTERS:,} characters")
        return path

    def _spend(self, elements: int) -> None:
        if self._again:
            self._repeats += elements
            if self._repeats > MAX_REPEATS:
                raise FormatError(self.file, f"repeats its objects more than {MAX_REPEATS:,} times")

    @staticmethod
    def _is_cycle(owner: object, place: Place) -> bool:
        above: Place | None = place
        while above is not None:
            if above.owner == id(owner):
                return True
            above = above.parent
        return False


def _key(key: object, index: int) -> str:
    match key:
        case str():
            return key
        case int() | float() | None:
            return str(key)
        case bytes():
            return key.decode("utf-8", "backslashreplace")
        case Global():
            return key.full_name
        case _:
            return f"#{index}"


def _parts(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else ()


def _state_pairs(state: object) -> Iterator[tuple[str, object]]:
    """Entries of an object's state: a dict, (dict, slots), or whatever its `__getstate__` gave."""
    parts = (state,) if isinstance(state, Pairs) else _parts(state)
    for index, part in enumerate(parts):
        if isinstance(part, Pairs):
            yield from ((_key(key, at), value) for at, (key, value) in enumerate(part))
        else:
            yield str(index), part
