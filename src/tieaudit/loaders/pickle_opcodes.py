"""This file holds one handler per pickle opcode, protocols 0 to 5, as listed in CPython's Lib/pickletools.py."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable

from .pickle_machine import (
    BUILT,
    CALLED,
    COST_CONTAINER,
    COST_MADE,
    COST_SMALL,
    MADE,
    PATCHED,
    Global,
    Made,
    Pairs,
    PickleMachine,
)

MAX_INT_BYTES = 1024  # of one number: fewer digits than Python's own limit for printing (4,300)
MAX_DIGITS = 2_400  # the same in text form
HIGHEST_PROTOCOL = 5
EXTENSION_REGISTRY = "<extension registry>"  # module of a global named by number (copyreg.add_extension)
DOUBLE = struct.Struct(">d")

Handler = Callable[[PickleMachine], None]


def _constant(value: object) -> Handler:
    def push(m: PickleMachine) -> None:
        m.stack.append(value)

    return push


def _nothing(m: PickleMachine) -> None:
    pass


def _proto(m: PickleMachine) -> None:
    protocol = m.take_uint(1)
    if protocol > HIGHEST_PROTOCOL:
        raise m.error(f"protocol {protocol} is not known")


def _frame(m: PickleMachine) -> None:
    nbytes = m.take_uint(8)
    if nbytes > len(m.data) - m.pos:
        raise m.truncated(f"a frame of {nbytes:,} bytes")


# Numbers


def _uint(n: int) -> Handler:
    def push(m: PickleMachine) -> None:
        m.stack.append(m.take_uint(n))

    return push


def _binint(m: PickleMachine) -> None:
    number = m.take_uint(4)
    m.stack.append(number - (1 << 32) if number >> 31 else number)


def _long(prefix: int) -> Handler:
    def push(m: PickleMachine) -> None:
        nbytes = m.take_uint(prefix)
        if nbytes > MAX_INT_BYTES:
            raise m.error(f"a number of {nbytes:,} bytes")
        m.stack.append(int.from_bytes(m.take(nbytes), "little", signed=True))

    return push


def _digits(m: PickleMachine) -> bytes:
    line = m.take_line()
    if len(line) > MAX_DIGITS:
        raise m.error(f"a number of {len(line):,} characters")
    return line


def _int_line(m: PickleMachine) -> None:
    line = _digits(m)
    m.stack.append(line == b"01" if line in {b"00", b"01"} else int(line))


def _long_line(m: PickleMachine) -> None:
    m.stack.append(int(_digits(m).removesuffix(b"L")))


def _float_line(m: PickleMachine) -> None:
    m.stack.append(float(_digits(m)))


def _binfloat(m: PickleMachine) -> None:
    m.stack.append(DOUBLE.unpack(m.take(8))[0])


# Texts and bytes


def _text(prefix: int) -> Handler:
    def push(m: PickleMachine) -> None:
        m.stack.append(m.take_text(m.take_uint(prefix)))

    return push


def _bytes(prefix: int) -> Handler:
    def push(m: PickleMachine) -> None:
        m.stack.append(m.take(m.take_uint(prefix)))

    return push


def _old_text(raw: bytes) -> str:
    """A `str` of Python 2. torch.load reads it as UTF-8 (its argument `encoding`)."""
    return raw.decode("utf-8", "backslashreplace")


def _old_string(prefix: int) -> Handler:
    def push(m: PickleMachine) -> None:
        m.stack.append(_old_text(m.take(m.take_uint(prefix))))

    return push


def _string_line(m: PickleMachine) -> None:
    line = m.take_line().strip()
    if len(line) < len("''") or line[:1] not in {b"'", b'"'} or line[-1:] != line[:1]:
        raise m.error("a text without its quotes")
    m.spent += 4 * len(line)
    m.stack.append(_old_text(codecs.escape_decode(line[1:-1])[0]))


def _unicode_line(m: PickleMachine) -> None:
    line = m.take_line()
    m.spent += 4 * len(line)
    m.stack.append(line.decode("raw-unicode-escape"))


# Containers


def _empty_dict(m: PickleMachine) -> None:
    m.spent += COST_CONTAINER
    m.stack.append(Pairs())


def _empty_list(m: PickleMachine) -> None:
    m.spent += COST_CONTAINER
    m.stack.append([])


def _list(m: PickleMachine) -> None:
    m.spent += COST_CONTAINER
    m.stack.append(m.pop_mark())


def _list_target(m: PickleMachine, target: object) -> list[object]:
    if isinstance(target, Made):
        if target.items is None:
            m.spent += COST_CONTAINER
            target.items = []
        return target.items
    if isinstance(target, list) and not isinstance(target, Pairs):
        return target
    raise m.error(f"appends to a {type(target).__name__}")


def _append(m: PickleMachine) -> None:
    value = m.stack.pop()
    m.spent += COST_SMALL
    _list_target(m, m.stack[-1]).append(value)


def _appends(m: PickleMachine) -> None:
    values = m.pop_mark()
    _list_target(m, m.stack[-1]).extend(values)


def _pair_up(m: PickleMachine, flat: list[object]) -> Pairs:
    if len(flat) % 2:
        raise m.error("a key without a value")
    m.spent += COST_CONTAINER * len(flat)
    return Pairs(zip(flat[::2], flat[1::2], strict=True))


def _pairs_target(m: PickleMachine, target: object) -> Pairs:
    if isinstance(target, Made):
        if target.pairs is None:
            m.spent += COST_CONTAINER
            target.pairs = Pairs()
        return target.pairs
    if isinstance(target, Pairs):
        return target
    raise m.error(f"sets a key of a {type(target).__name__}")


def _dict(m: PickleMachine) -> None:
    m.stack.append(_pair_up(m, m.pop_mark()))


def _setitem(m: PickleMachine) -> None:
    value = m.stack.pop()
    key = m.stack.pop()
    _pairs_target(m, m.stack[-1]).extend(_pair_up(m, [key, value]))


def _setitems(m: PickleMachine) -> None:
    pairs = _pair_up(m, m.pop_mark())
    _pairs_target(m, m.stack[-1]).extend(pairs)


# Stack and memo


def _pop(m: PickleMachine) -> None:
    if m.marks and m.marks[-1] == len(m.stack):
        m.marks.pop()
    else:
        m.stack.pop()


def _pop_mark(m: PickleMachine) -> None:
    m.pop_mark()


def _dup(m: PickleMachine) -> None:
    m.spent += COST_SMALL
    m.stack.append(m.stack[-1])


def _get_line(m: PickleMachine) -> None:
    m.stack.append(m.memo[int(_digits(m))])


def _long_binget(m: PickleMachine) -> None:
    m.stack.append(m.memo[m.take_uint(4)])


def _put_line(m: PickleMachine) -> None:
    index = int(_digits(m))
    if index < 0:
        raise m.error("a memo index below zero")
    m.remember(index)


def _memoize(m: PickleMachine) -> None:
    m.remember(len(m.memo))


# Globals, calls, persistent ids


def _global(m: PickleMachine) -> None:
    module = m.take_line().decode("utf-8")
    m.push_global(module, m.take_line().decode("utf-8"))


def _stack_global(m: PickleMachine) -> None:
    name = m.stack.pop()
    module = m.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise m.error("names a global by something that is no text")
    m.push_global(module, name)


def _extension(n: int) -> Handler:
    def push(m: PickleMachine) -> None:
        m.push_global(EXTENSION_REGISTRY, str(m.take_uint(n)))

    return push


def _newobj(m: PickleMachine) -> None:
    args = m.stack.pop()
    m.spent += COST_MADE
    m.make(m.stack.pop(), args, None, MADE)


def _newobj_ex(m: PickleMachine) -> None:
    kwargs = m.stack.pop()
    args = m.stack.pop()
    m.spent += COST_MADE
    m.make(m.stack.pop(), args, kwargs, MADE)


def _inst(m: PickleMachine) -> None:
    _global(m)
    callee = m.stack.pop()
    m.spent += COST_MADE
    m.make(callee, tuple(m.pop_mark()), None, CALLED)


def _obj(m: PickleMachine) -> None:
    parts = m.pop_mark()
    m.spent += COST_MADE
    m.make(parts[0], tuple(parts[1:]), None, CALLED)


def _build(m: PickleMachine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if isinstance(target, Made):
        if isinstance(target.callee, Global):
            target.callee.uses |= BUILT
        target.state = state
    elif isinstance(target, Global):
        target.uses |= PATCHED
    else:
        raise m.error(f"sets the state of a {type(target).__name__}")


def _binpersid(m: PickleMachine) -> None:
    m.spent += 2 * COST_CONTAINER
    m.stack.append(m.persistent(m.stack.pop()))


def _persid_line(m: PickleMachine) -> None:
    m.spent += 2 * COST_CONTAINER
    m.stack.append(m.persistent(m.take_line().decode("utf-8")))


def _buffer(m: PickleMachine) -> None:
    raise m.error("refers to a buffer outside of the file")


_BY_CHARACTER: dict[str, Handler] = {
    "N": _constant(None), "I": _int_line, "J": _binint, "K": _uint(1), "M": _uint(2), "L": _long_line,
    "F": _float_line, "G": _binfloat, "S": _string_line, "T": _old_string(4), "U": _old_string(1),
    "B": _bytes(4), "C": _bytes(1), "V": _unicode_line, "X": _text(4),
    "]": _empty_list, "a": _append, "e": _appends, "l": _list,
    "}": _empty_dict, "d": _dict, "s": _setitem, "u": _setitems, "0": _pop, "2": _dup, "1": _pop_mark,
    "g": _get_line, "j": _long_binget, "p": _put_line, "c": _global, "b": _build,
    "i": _inst, "o": _obj, "P": _persid_line, "Q": _binpersid,
}  # fmt: skip
_BY_NUMBER: dict[int, Handler] = {
    # A set is read as a list: what is in it cannot be hashed here.
    0x80: _proto, 0x81: _newobj, 0x82: _extension(1), 0x83: _extension(2), 0x84: _extension(4),
    0x88: _constant(True), 0x89: _constant(False), 0x8A: _long(1), 0x8B: _long(4), 0x8C: _text(1), 0x8D: _text(8),
    0x8E: _bytes(8), 0x8F: _empty_list, 0x90: _appends, 0x91: _list, 0x92: _newobj_ex, 0x93: _stack_global,
    0x94: _memoize, 0x95: _frame, 0x96: _bytes(8), 0x97: _buffer, 0x98: _buffer,
}  # fmt: skip

HANDLERS: tuple[Handler | None, ...] = tuple(_BY_NUMBER.get(op) or _BY_CHARACTER.get(chr(op)) for op in range(256))
"""By opcode; None for the few that the reader's loop handles itself, and for bytes that are no opcode."""
