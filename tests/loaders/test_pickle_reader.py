"""The inert pickle reader, held to CPython's own for plain values, and to its budgets for hostile ones."""

from __future__ import annotations

import pickle
import random
import struct
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_truth import outcome, run_limited

from tieaudit.errors import FormatError
from tieaudit.loaders.pickle_machine import Budget, Global, Made, Pairs, PersistentId, TruncatedError
from tieaudit.loaders.pickle_reader import PickleReader

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=20) | st.binary(max_size=300)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.tuples(st.integers()), inner, max_size=5)
    ),
    max_leaves=20,
)


def read(raw: bytes) -> object:
    return PickleReader("x", raw).load()


def plain(value: object) -> object:
    """What the reader gives, as the value that CPython would give."""
    match value:
        case Pairs():
            return {plain(key): plain(item) for key, item in value}
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case Made(args=(str(text), "latin1")) if value.name == "_codecs.encode":
            return text.encode("latin1")
        case Made(args=()) if value.name in {"builtins.bytes", "__builtin__.bytes"}:
            return b""
    return value


@settings(max_examples=300, deadline=None)
@given(VALUES, st.integers(0, 5))
def test_plain_values_are_read_as_cpython_reads_them(value: object, protocol: int) -> None:
    raw = pickle.dumps(value, protocol=protocol)
    reader = PickleReader("x", raw + b"more")
    assert plain(reader.load()) == value
    assert reader.pos == len(raw)


@pytest.mark.parametrize("protocol", range(6))
def test_objects_become_records(protocol: int) -> None:
    reader = PickleReader("x", pickle.dumps(OrderedDict(a=1), protocol=protocol))
    root = reader.load()
    assert isinstance(root, Made)
    assert root.name == "collections.OrderedDict"
    assert [found.full_name for found in reader.globals.values()] == ["collections.OrderedDict"]
    if protocol >= 2:
        assert root.pairs == [("a", 1)]


def test_sets_are_lists_and_shared_objects_stay_shared() -> None:
    shared = [1]
    first, second, bag = read(pickle.dumps([shared, shared, {5}], protocol=4))  # type: ignore[misc]
    assert first is second
    assert bag == [5]


def test_persistent_ids_are_handed_over() -> None:
    assert isinstance(read(b"\x80\x02X\x01\x00\x00\x00kQ."), PersistentId)
    assert PickleReader("x", b"Pname\n.", persistent=lambda value: ("seen", value)).load() == ("seen", "name")


def test_old_opcodes() -> None:
    assert plain(read(b"(dS'k'\nI01\nsS'n'\nL12L\ns.")) == {"k": True, "n": 12}
    assert plain(read(b"(lp0\nF1.5\nag0\n0.")) == [1.5]
    made = read(b"(S'x'\nimodule\nname\n.")
    assert isinstance(made, Made)
    assert (made.name, made.args) == ("module.name", ("x",))
    made = read(b"(cmodule\nname\nNo.")
    assert isinstance(made, Made)
    assert made.args == (None,)


def test_names_put_together_on_the_stack_are_seen() -> None:
    reader = PickleReader("x", b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93\x8c\x02id\x85R.")
    reader.load()
    ((module, name),) = reader.globals
    assert (module, name) == ("os", "system")


def test_extension_codes_are_globals() -> None:
    root = read(b"\x82\x07.")
    assert isinstance(root, Global)
    assert root.full_name == "<extension registry>.7"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "past the end"),
        (b"]", "past the end"),
        (b"\x80\x09N.", "protocol 9"),
        (b"N0N00N.", "stack"),
        (b"\xff.", "no opcode"),
        (b"h\x05.", "memo 5"),
        (b"Nr\xff\xff\xff\x7f.", "memo index 2,147,483,647"),
        (b"Np-1\n.", "below zero"),
        (b"\x8b\xff\xff\xff\x7f.", "number of 2,147,483,647 bytes"),
        (b"L" + b"9" * 5000 + b"L\n.", "number of 5,001 characters"),
        (b"X\xff\xff\xff\x7fab.", "past the end"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "past the end"),
        (b"X\x01\x00\x00\x00\xff.", "cannot be read"),
        (b"Ix\n.", "cannot be read"),
        (b"Sx\n.", "without its quotes"),
        (b"K\x01)R.", "calls a int"),
        (b"K\x01K\x01\x93.", "no text"),
        (b"K\x01K\x02a.", "appends to a int"),
        (b"]K\x01K\x02s.", "sets a key of a list"),
        (b"(K\x01d.", "key without a value"),
        (b"]}b.", "sets the state of a list"),
        (b"\x97.", "buffer outside"),
        (b"\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "frame of 255 bytes"),
    ],
)
def test_faults_are_told(raw: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        read(raw)


def test_faults_name_their_byte_in_the_file() -> None:
    with pytest.raises(FormatError) as caught:
        PickleReader("x", b"NN\xff", file_offset=100).load()
    assert caught.value.offset == 102


def test_more_bytes_may_help_only_what_is_cut() -> None:
    whole = pickle.dumps({"a": [1.5, "text", 70000, b"x" * 300]}, protocol=4)
    for n in range(len(whole)):
        with pytest.raises(TruncatedError):
            read(whole[:n])


def test_budget_of_bytes_and_opcodes() -> None:
    with pytest.raises(FormatError, match="more than the 3 that are read"):
        PickleReader("x", b"NNN.", budget=Budget(nbytes=3)).load()
    with pytest.raises(FormatError, match="more than 3 opcodes"):
        PickleReader("x", b"NNN.", budget=Budget(opcodes=3)).load()
    assert PickleReader("x", b"NNN.", budget=Budget(opcodes=4)).load() is None


ATTACKS = {
    "nested tuple as dict key": "b'}' + b')' + b'\\x85' * 3_000_000 + b'Ns.'",
    "nested lists": "b']' * 3_000_000 + b'a' * 2_999_999 + b'.'",
    "memo of 20 million": "b'N' + b'\\x94' * 20_000_000 + b'.'",
    "20 million lists": "b']' * 20_000_000 + b'.'",
    "20 million marks": "b'(' * 20_000_000 + b'.'",
    "20 million dicts": "b'(' + b'}' * 20_000_000 + b'l.'",
    "20 million numbers": "b'(' + b'M\\xff\\xff' * 20_000_000 + b'l.'",
    "20 million fetches": "b'Nq\\x00' + b'h\\x00' * 20_000_000 + b'.'",
    "astral texts": "b'\\x80\\x02' + (b'X\\x00\\x00\\x10\\x00' + b'a' * 1048572 + '\\U0001f600'.encode()) * 60 + b'.'",
    "big numbers": "b'(' + (b'\\x8a\\xff' + b'\\x7f' * 255) * 200_000 + b'l.'",
    "lines": "b'(' + b'S\"ab\"\\n' * 9_000_000 + b'l.'",
    "states": "b'ca\\nb\\n)R' + b'}b' * 9_000_000 + b'.'",
    "items": "b'(' + b'ca\\nb\\n)R' * 7_000_000 + b'l.'",
    "tuples of tuples": "b')' + b'2\\x86' * 4_900_000 + b'.'",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_ends_within_its_budget(attack: str) -> None:
    """In 300 MiB of address space, of which the interpreter and the pickle itself take up to 100."""
    code = (
        "from tieaudit.errors import FormatError\n"
        "from tieaudit.loaders.pickle_reader import PickleReader\n"
        f"raw = {ATTACKS[attack]}\n"
        "try:\n    PickleReader('x', raw).load()\nexcept FormatError as error:\n    print('refused', error)\n"
        "else:\n    print('read')\n"
    )
    assert run_limited(code, megabytes=400).startswith(("refused", "read"))


def test_random_bytes_give_a_value_or_a_format_error() -> None:
    rng = random.Random(3)
    seed = pickle.dumps({"a": (1, 2.5, "text", b"bytes"), "b": [OrderedDict(x=1), {3}]}, protocol=4)
    for _ in range(4000):
        raw = bytearray(seed)
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        assert str(outcome(lambda raw=bytes(raw): read(raw))) is not None


def test_long_number_of_the_limit_is_read() -> None:
    assert read(b"\x8b" + struct.pack("<i", 1024) + b"\x7f" * 1024 + b".") == int.from_bytes(b"\x7f" * 1024, "little")
