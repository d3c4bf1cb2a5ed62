"""This file holds what a pickle is made of once it is read without running it, and the stack machine that makes it.

What a pickle would import becomes a `Global`, what it would build a `Made` record, a dict `Pairs`. Nothing here imports,
calls or hashes what a file names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import FormatError

MAX_INPUT = 64 << 20  # bytes of pickle; 45,000 tensors take 10 MiB
MAX_OPCODES = 10_000_000  # one tensor takes about 33
MAX_MEMORY = 192 << 20  # bytes, estimated, of the objects of one pickle; 45,000 tensors take 110 MiB (really 72)
MAX_MEMO_INDEX = 8_000_000  # picklers count up from 0, one index per object

# Estimated bytes per object (sys.getsizeof of CPython 3.11, rounded up, with the pointer that holds it).
COST_SMALL, COST_STR, COST_CONTAINER, COST_MEMO, COST_MADE = 40, 64, 80, 120, 160

MADE, BUILT, CALLED, PATCHED = 1, 2, 4, 8  # bits of `Global.uses`; a global that is only passed around has none


@dataclass(slots=True, eq=False)
class Global:
    """A name that the pickle would import. `uses` gathers how: MADE (its `__new__` runs), BUILT (its `__setstate__` runs),
    CALLED, PATCHED (its attributes would be overwritten). `indirect`: what it does depends on its arguments."""

    module: str
    name: str
    uses: int = 0
    indirect: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


class Pairs(list[tuple[object, object]]):
    """The entries of a dict in the order written. Keys are not hashed and may repeat: the last one counts."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Made:
    """What a call or `__new__` would give. `state` is that of the last BUILD, `items` were appended, `pairs` set by key."""

    callee: object
    args: object
    kwargs: object = None
    state: object = None
    items: list[object] | None = None
    pairs: Pairs | None = None

    @property
    def name(self) -> str:
        """Full name of the function or class, "" if that is itself computed."""
        return self.callee.full_name if isinstance(self.callee, Global) else ""


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """A persistent id that nobody resolved."""

    value: object


class TruncatedError(FormatError):
    """The bytes end before the pickle does: more of the file may help."""


class BudgetError(FormatError):
    """The pickle may be sound and is larger than what is read of one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one pickle may cost."""

    nbytes: int = MAX_INPUT
    opcodes: int = MAX_OPCODES
    memory: int = MAX_MEMORY


# Callables that call their arguments, or make instances of them.
INDIRECT: Final = frozenset(
    {
        ("builtins", "getattr"),
        ("__builtin__", "getattr"),
        ("copyreg", "_reconstructor"),
        ("copy_reg", "_reconstructor"),
        ("copyreg", "__newobj__"),
        ("copyreg", "__newobj_ex__"),
        ("copy_reg", "__newobj__"),
        ("copy_reg", "__newobj_ex__"),
        ("collections", "defaultdict"),
        ("torch._tensor", "_rebuild_from_type"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.tensor", "_rebuild_from_type"),
        ("torch.tensor", "_rebuild_from_type_v2"),
        ("torch._utils", "_rebuild_wrapper_subclass"),
    }
)


class PickleMachine:
    """Bytes, position, stack, memo. `globals`, `indirect` and `result_calls` stay readable after a FormatError: what came
    before the fault would have run.

    `indirect` holds (callable, args) of the calls in `INDIRECT`; `result_calls` names what the pickle itself computed and
    then called. `spent` is the estimated memory since the reader last looked.
    """

    def __init__(self, file: str, data: bytes, file_offset: int | None, persistent: Callable[[object], object], budget: Budget) -> None:
        self.file = file
        self.data = data
        self.file_offset = file_offset
        self.persistent = persistent
        self.budget = budget
        self.pos = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.spent = 0
        self.globals: dict[tuple[str, str], Global] = {}
        self.indirect: list[tuple[Global, object]] = []
        self.result_calls: dict[str, None] = {}

    def error(self, what: str) -> FormatError:
        return FormatError(self.file, f"pickle: {what}", self._place())

    def truncated(self, what: str) -> FormatError:
        return TruncatedError(self.file, f"pickle: {what} runs past the end", self._place())

    def over_budget(self, what: str) -> FormatError:
        return BudgetError(self.file, f"pickle: {what}", self._place())

    def _place(self) -> int | None:
        return None if self.file_offset is None else self.file_offset + self.pos

    def take(self, n: int) -> bytes:
        """The next n bytes."""
        end = self.pos + n
        if end > len(self.data):
            raise self.truncated("an argument")
        chunk = self.data[self.pos : end]
        self.pos = end
        self.spent += COST_STR + n
        return chunk

    def take_uint(self, n: int) -> int:
        end = self.pos + n
        if end > len(self.data):
            raise self.truncated("an argument")
        number = int.from_bytes(self.data[self.pos : end], "little")
        self.pos = end
        self.spent += COST_SMALL
        return number

    def take_line(self) -> bytes:
        end = self.data.find(b"\n", self.pos)
        if end < 0:
            raise self.truncated("a line")
        line = self.take(end - self.pos)
        self.pos += 1
        return line

    def take_text(self, n: int) -> str:
        text = self.take(n).decode("utf-8", "surrogatepass")
        self.spent += 3 * n  # a text with one astral character takes four bytes for each
        return text

    def pop_mark(self) -> list[object]:
        """What was pushed since the last MARK."""
        cut = self.marks.pop()
        items = self.stack[cut:]
        del self.stack[cut:]
        self.spent += 8 * len(items)
        return items

    def remember(self, index: int) -> None:
        if index > MAX_MEMO_INDEX:
            raise self.beyond_memo(index)
        self.spent += COST_MEMO
        self.memo[index] = self.stack[-1]

    def beyond_memo(self, index: int) -> FormatError:
        return self.error(f"memo index {index:,} is beyond {MAX_MEMO_INDEX:,}")

    def push_global(self, module: str, name: str) -> Global:
        found = self.globals.get((module, name))
        if found is None:
            self.spent += COST_MADE
            found = Global(module, name, indirect=(module, name) in INDIRECT)
            self.globals[module, name] = found
        self.stack.append(found)
        return found

    def make(self, callee: object, args: object, kwargs: object, use: int) -> None:
        """Push what `callee(*args, **kwargs)` (or its `__new__`) would give, and note who would run. Costs COST_MADE."""
        if isinstance(callee, Global):
            callee.uses |= use
            if callee.indirect:
                self.indirect.append((callee, args))
        elif isinstance(callee, Made):
            self.result_calls[describe(callee)] = None
        else:
            raise self.error(f"calls a {type(callee).__name__}")
        self.stack.append(Made(callee, args, kwargs))


def describe(made: Made) -> str:
    """The function whose result this is, e.g. `builtins.getattr()`."""
    callee: object = made
    for calls in range(1, 5):
        if isinstance(callee, Made):
            callee = callee.callee
        if isinstance(callee, Global):
            return callee.full_name + "()" * calls
    return "<computed>()"
