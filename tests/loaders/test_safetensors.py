"""The safetensors format, held to the safetensors library's own reading of the same bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors as library
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from builders import entry, safetensors_file
from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile
from tieaudit.dtypes import DTYPES, SAFETENSORS_DTYPES
from tieaudit.errors import FormatError
from tieaudit.loaders import safetensors, sniff

NAME = "model.safetensors"
TORCH_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4",
}  # fmt: skip


def load(data: bytes, name: str = NAME) -> LoadedFile:
    return safetensors.load(MemorySource(name, data))


def complaints(data: bytes) -> str:
    """What is said about the file, be it refused or read in part; "" if it is taken for good."""
    try:
        return "; ".join(problem.what for problem in load(data).problems)
    except FormatError as error:
        return str(error)


def refused(data: bytes) -> bool:
    """Whether the library refuses the file."""
    try:
        library.deserialize(data)
    except (library.SafetensorError, UnicodeError):
        return True
    return False


# what the library writes


def tensors_of_torch() -> st.SearchStrategy[dict[str, torch.Tensor]]:
    dtypes = st.sampled_from([dtype for dtype in TORCH_DTYPES if dtype is not torch.float4_e2m1fn_x2])
    one = st.builds(lambda dtype, shape: torch.zeros(shape).to(dtype), dtypes, st.lists(st.integers(0, 4), max_size=4))
    return st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12), one, max_size=8)


@settings(max_examples=150, deadline=None)
@given(tensors_of_torch(), st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_reads_what_the_library_reads(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None) -> None:
    tensors.pop("__metadata__", None)
    data = save(tensors, metadata or None)  # 0.8 writes no JSON for ({}, {})
    found = load(data)
    assert found.problems == ()
    assert found.dead == ()
    assert found.format == "safetensors"
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors} == {
        name: (TORCH_DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    for name, stored in library.deserialize(data):
        (tensor,) = (tensor for tensor in found.tensors if tensor.name == name)
        assert (tensor.dtype, list(tensor.shape)) == (stored["dtype"], stored["shape"])
        assert tensor.file_offset is not None
        assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == bytes(stored["data"])
        assert tensor.strides is None


def test_offsets_are_those_of_safe_open(tmp_path: Path) -> None:
    tensors = {f"layer.{n}": torch.full((n + 1, 3), float(n)) for n in range(20)}
    path = tmp_path / NAME
    path.write_bytes(save(tensors))
    found = {tensor.name: tensor for tensor in load(path.read_bytes()).tensors}
    with library.safe_open(path, "pt") as truth:
        assert set(found) == set(truth.keys())
        for name, tensor in found.items():
            view = truth.get_slice(name)
            assert (list(tensor.shape), tensor.dtype) == (view.get_shape(), view.get_dtype())
            assert tensor.file_offset is not None
            raw = path.read_bytes()[tensor.file_offset :][: tensor.nbytes]
            assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.float32).reshape(tensor.shape), truth.get_tensor(name))


@pytest.mark.parametrize("dtype", sorted(SAFETENSORS_DTYPES))
def test_every_dtype_has_the_width_that_the_library_gives_it(dtype: str) -> None:
    shape = (8, 3)
    nbytes = 24 * DTYPES[dtype].bits // 8
    for wrong in (-1, 0, 1):
        data = safetensors_file({"a": entry(dtype, shape, 0, nbytes + wrong)}, bytes(nbytes + wrong))
        assert refused(data) is bool(wrong)
        assert bool(complaints(data)) is bool(wrong)


def test_no_dtype_of_the_library_is_unknown_and_none_is_made_up() -> None:
    made_up = safetensors_file({"a": entry("F7", [1], 0, 1)}, b"\0")
    with pytest.raises(library.SafetensorError) as told:
        library.deserialize(made_up)
    named = {word.strip("` ,") for word in str(told.value).split("expected one of")[-1].split(",")}
    named = {name.split("`")[0] for name in named if name}
    assert named == SAFETENSORS_DTYPES


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [3]), ("F6_E2M3", [5]), ("F6_E3M2", [1, 2]), ("F4", [])])
def test_elements_that_do_not_fill_whole_bytes_are_refused_as_by_the_library(dtype: str, shape: list[int]) -> None:
    data = safetensors_file({"a": entry(dtype, shape, 0, 2)}, bytes(2))
    assert refused(data)
    assert "bits (not whole bytes)" in complaints(data)


def test_float4_of_torch_keeps_its_logical_shape() -> None:
    packed = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    (tensor,) = load(save({"a": packed})).tensors
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("F4", (4, 16), 32)


def test_only_the_header_is_read() -> None:
    data = save({"a": torch.zeros(1000, 1000)})
    source = MemorySource(NAME, data)
    safetensors.load(source)
    assert source.meter.bytes_read == len(data) - 4_000_000
    assert source.meter.requests == 2


# what is legal and odd

F32 = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    "header",
    [
        "{}",
        "   {}",
        "{}" + " " * 100,
        '{"__metadata__": null}',
        '{"__metadata__": {}}',
        json.dumps({"a": {**F32, "more": 1}, "b": entry("F32", [], 8, 12)}),
        json.dumps({"data_offsets": F32}),
        json.dumps({"__metadata__": {"data_offsets": '"data_offsets"'}, "a": F32}),
        json.dumps({"a": F32, "": entry("U8", [0], 8, 8)}),
        '{"\\u0061": {"d\\u0074ype": "F32", "shape": [2], "data_offset\\u0073": [0, 8]}}',
    ],
    ids=range(10),
)
def test_odd_headers_that_the_library_takes_are_taken(header: str) -> None:
    nbytes = max(
        (e["data_offsets"][1] for e in json.loads(header).values() if isinstance(e, dict) and "data_offsets" in e and "dtype" in e),
        default=0,
    )
    data = safetensors_file(header, bytes(nbytes))
    assert not refused(data)
    assert complaints(data) == ""


def test_rank_zero_and_empty_tensors_are_read() -> None:
    header = {"e": entry("F32", [0, 5], 0, 0), "s": entry("F32", [], 0, 4), "z": entry("F32", [0], 4, 4)}
    found = load(safetensors_file(header, bytes(4)))
    assert found.problems == ()
    assert {tensor.name: (tensor.shape, tensor.nbytes) for tensor in found.tensors} == {"e": ((0, 5), 0), "s": ((), 4), "z": ((0,), 0)}


def test_alias_notes_are_those_whose_left_name_is_absent_and_whose_kept_name_is_stored() -> None:
    notes = {"lm_head.weight": "a", "a": "a", "gone": "nowhere", "json": '{"_type": "x"}', "format": "pt"}
    found = load(safetensors_file({"__metadata__": notes, "a": F32}, bytes(8)))
    assert found.aliases == {"lm_head.weight": "a"}
    assert found.problems == ()


def test_a_note_about_two_stored_names_is_no_alias() -> None:
    found = load(safetensors_file({"__metadata__": {"b": "a"}, "a": F32, "b": entry("F32", [2], 8, 16)}, bytes(16)))
    assert found.aliases == {}
    assert len(found.tensors) == 2


# what is wrong, and the words for it

MANY = "9" * 4300
SURROGATE = '{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'


def nested(depth: int) -> str:
    return '{"a": {"dtype": "F32", "shape": ' + "[" * depth + "]" * depth + ', "data_offsets": [0, 8]}}'


def text(shape: Any = "[2]", offsets: Any = "[0, 8]", dtype: Any = '"F32"') -> str:
    return f'{{"a": {{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}}}}}'


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is 0 bytes long, too short"),
    "seven bytes": (b"\x02\0\0\0\0\0\0", "is 7 bytes long, too short"),
    "length and no header": ((2).to_bytes(8, "little"), "header of 2 bytes runs past the end: truncated file?"),
    "length of zero": (bytes(8), "header is not JSON"),
    "length that lies a little": (safetensors_file({"a": F32}, bytes(8), length=200), "runs past the end"),
    "length that cuts the header": (safetensors_file({"a": F32}, bytes(8), length=20), "header is not JSON"),
    "length of 2^63": (safetensors_file({}, b"", length=1 << 63), "over the limit of 100,000,000"),
    "length over the limit": (safetensors_file({}, b"", length=100_000_001), "header length 100,000,001 is over the limit"),
    "no JSON": (safetensors_file("{a: 1}", b""), "header is not JSON"),
    "JSON and more": (safetensors_file("{} {}", b""), "header is not JSON: Extra data (at byte 11)"),
    "a list": (safetensors_file("[]", b""), "not an object"),
    "a string": (safetensors_file('"' + "a" * 50 + '"', b""), "not an object"),
    "null": (safetensors_file("null", b""), "not an object"),
    "not UTF-8": (safetensors_file(b'{"\xff": 1}', b""), "header is not UTF-8 (at byte 10)"),
    "a byte order mark": (safetensors_file(b"\xef\xbb\xbf{}", b""), "header is not JSON"),
    "UTF-16": (safetensors_file('{"a": 1}'.encode("utf-16"), b""), "header is not UTF-8"),
    "UTF-16 without a mark": (safetensors_file('{"a": 1}'.encode("utf-16-le"), b""), "header is not JSON"),
    "UTF-8 with zeros": (safetensors_file("{}\0\0\0", b""), "header is not JSON"),
    "a lone surrogate": (safetensors_file(SURROGATE, bytes(8)), "surrogate"),
    "a name twice": (
        safetensors_file('{"a": %s, "a": %s}' % ((json.dumps(F32),) * 2), bytes(8)),
        "names 'a' twice: readers take the last one, and the first is lost",
    ),
    "a name twice in two spellings": (
        safetensors_file('{"a": %s, "\\u0061": %s}' % ((json.dumps(F32),) * 2), bytes(8)),
        "names 'a' twice",
    ),
    "a name twice, made up for by an escape": (
        safetensors_file(
            '{"a": %s, "a": %s, "b": {"dtype": "F32", "shape": [0], "data_offset\\u0073": [8, 8]}}' % ((json.dumps(F32),) * 2), bytes(8)
        ),
        "names 'a' twice",
    ),
    "a field twice": (
        safetensors_file('{"a": {"dtype": "I32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', bytes(8)),
        "names 'dtype' twice",
    ),
    "metadata twice": (
        safetensors_file(f'{{"__metadata__": {{}}, "a": {json.dumps(F32)}, "__metadata__": {{}}}}', bytes(8)),
        "names '__metadata__' twice",
    ),
    "metadata that is a list": (safetensors_file({"__metadata__": []}, b""), "__metadata__ is not a map of strings"),
    "metadata that is a string": (safetensors_file({"__metadata__": "pt"}, b""), "__metadata__ is not a map of strings"),
    "metadata with a number": (safetensors_file({"__metadata__": {"a": 1}}, b""), "__metadata__ is not a map of strings"),
    "metadata with a map": (safetensors_file({"__metadata__": {"a": {}}}, b""), "__metadata__ is not a map of strings"),
    "metadata with null": (safetensors_file({"__metadata__": {"a": None}}, b""), "__metadata__ is not a map of strings"),
    "an entry that is a list": (safetensors_file({"a": []}, b""), "entry 'a' is not an object"),
    "an entry that is null": (safetensors_file({"a": None}, b""), "entry 'a' is not an object"),
    "no dtype": (safetensors_file({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "entry 'a' has no dtype"),
    "no shape": (safetensors_file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "entry 'a' has no shape"),
    "no offsets": (safetensors_file({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "entry 'a' has no data_offsets"),
    "an unknown dtype": (safetensors_file(text(dtype='"F7"'), bytes(8)), "the dtype 'F7', which safetensors does not have"),
    "a dtype of torch alone": (safetensors_file(text(dtype='"C128"', shape="[1]", offsets="[0,16]"), bytes(16)), "does not have"),
    "a dtype in small letters": (safetensors_file(text(dtype='"f32"'), bytes(8)), "does not have"),
    "a dtype that is a list": (safetensors_file(text(dtype='["F32"]'), bytes(8)), "does not have"),
    "a dtype that is null": (safetensors_file(text(dtype="null"), bytes(8)), "does not have"),
    "a shape that is a number": (safetensors_file(text(shape="2"), bytes(8)), "a shape that is not a list of sizes"),
    "a shape that is a string": (safetensors_file(text(shape='"22"'), bytes(8)), "a shape that is not a list of sizes"),
    "a shape with a float": (safetensors_file(text(shape="[2.0]"), bytes(8)), "a shape that is not a list of sizes"),
    "a shape with true": (safetensors_file(text(shape="[2, true]"), bytes(8)), "a shape that is not a list of sizes"),
    "a shape with a string": (safetensors_file(text(shape='["2"]'), bytes(8)), "a shape that is not a list of sizes"),
    "a negative shape": (safetensors_file(text(shape="[-1, -2]"), bytes(8)), "a shape that is not a list of sizes"),
    "NaN in a shape": (safetensors_file(text(shape="[NaN]"), bytes(8)), "a shape that is not a list of sizes"),
    "a shape of 2^63": (safetensors_file(text(shape="[9223372036854775808]"), bytes(8)), "which needs 36,893,488,147,419,103,232 bytes"),
    "a shape of 2^63 squared": (
        safetensors_file(text(shape="[9223372036854775808, 9223372036854775808]"), bytes(8)),
        "more bytes than any file",
    ),
    "a dimension over 64 bits, times zero": (
        safetensors_file(text(shape="[0, 18446744073709551616]", offsets="[0, 0]"), b""), "18446744073709551616",
    ),
    "dimensions whose product overflows, times zero": (
        safetensors_file(text(shape="[9223372036854775808, 2, 0]", offsets="[0, 0]"), b""), "9223372036854775808",
    ),
    "a dimension of 4,300 digits": (safetensors_file(text(shape=f"[{MANY}]"), bytes(8)), "more bytes than any file"),
    "a dimension of 4,301 digits": (safetensors_file(text(shape=f"[{MANY}9]"), bytes(8)), "a number too long"),
    "an end of 4,300 digits": (safetensors_file(text(offsets=f"[0, {MANY}]"), bytes(8)), "truncated file?"),
    "a begin of 4,300 digits": (safetensors_file(text(offsets=f"[{MANY}, {MANY}]"), bytes(8)), "truncated file?"),
    "a begin of minus 4,300 digits": (safetensors_file(text(offsets=f"[-{MANY}, 8]"), bytes(8)), "has the data_offsets"),
    "one offset": (safetensors_file(text(offsets="[0]"), bytes(8)), "data_offsets that are not two numbers"),
    "three offsets": (safetensors_file(text(offsets="[0, 8, 8]"), bytes(8)), "data_offsets that are not two numbers"),
    "offsets that are a string": (safetensors_file(text(offsets='"08"'), bytes(8)), "data_offsets that are not two numbers"),
    "offsets that are a map": (safetensors_file(text(offsets='{"0": 0, "8": 8}'), bytes(8)), "data_offsets that are not two numbers"),
    "offsets that are floats": (safetensors_file(text(offsets="[0.0, 8.0]"), bytes(8)), "data_offsets that are not two numbers"),
    "offsets that are true": (safetensors_file(text(offsets="[false, true]", dtype='"U8"', shape="[1]"), bytes(1)), "not two numbers"),
    "offsets backwards": (safetensors_file(text(offsets="[8, 0]"), bytes(8)), "has the data_offsets [8, 0]"),
    "a negative offset": (safetensors_file(text(offsets="[-8, 0]"), bytes(8)), "has the data_offsets [-8, 0]"),
    "too few bytes": (safetensors_file(text(shape="[3]"), bytes(8)), "is F32 [3], which needs 12 bytes, but has 8 bytes"),
    "too many bytes": (safetensors_file(text(shape="[1]"), bytes(8)), "is F32 [1], which needs 4 bytes, but has 8 bytes"),
    "truncated data": (safetensors_file({"a": F32}, bytes(7)), "truncated file?"),
    "trailing bytes": (safetensors_file({"a": F32}, bytes(10)), "2 bytes behind the last tensor belong to no tensor"),
    "trailing bytes and no tensor": (safetensors_file({}, bytes(10)), "10 bytes behind the last tensor belong to no tensor"),
    "a hole at the begin": (
        safetensors_file({"a": entry("F32", [2], 4, 12)}, bytes(12)),
        "4 bytes before the first tensor belong to no tensor",
    ),
    "a hole between": (
        safetensors_file({"a": F32, "b": entry("F32", [2], 24, 32)}, bytes(32)),
        "16 bytes between two tensors belong to no tensor",
    ),
    "an overlap": (safetensors_file({"a": F32, "b": entry("F32", [2], 4, 12)}, bytes(12)), "'b' overlaps 'a' by 4 bytes"),
    "two names for the same bytes": (safetensors_file({"a": F32, "b": F32}, bytes(8)), "overlaps"),
    "one within another": (
        safetensors_file({"a": entry("F32", [4], 0, 16), "b": entry("F32", [1], 4, 8)}, bytes(16)),
        "'b' overlaps 'a' by 4 bytes",
    ),
    "an empty one within another": (safetensors_file({"a": F32, "b": entry("F32", [0], 4, 4)}, bytes(8)), "'b'"),
    "65 dimensions": (safetensors_file(text(shape=str([1] * 65), offsets="[0, 4]"), bytes(4)), "has 65 dimensions"),
    "nesting of 200,000": (safetensors_file(nested(200_000), bytes(8)), "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_in_the_right_words(case: str) -> None:
    data, words = BAD[case]
    assert words in complaints(data)


TAKEN_BY_THE_LIBRARY = {"a name twice", "a name twice in two spellings", "a name twice, made up for by an escape", "65 dimensions"}


@pytest.mark.parametrize("case", BAD)
def test_the_library_refuses_the_same_files_but_for_those_it_takes_wrongly(case: str) -> None:
    assert refused(BAD[case][0]) is (case not in TAKEN_BY_THE_LIBRARY)


def test_nesting_of_any_depth_is_refused_or_told() -> None:
    limit = sys.getrecursionlimit()
    for depth in [*range(1, 100, 7), *range(limit - 150, limit + 20)]:
        assert complaints(safetensors_file(nested(depth), bytes(8)))


def test_nesting_where_any_field_stands_is_refused_or_told() -> None:
    for depth in range(850, 1000, 3):
        deep = "[" * depth + "]" * depth
        for header in (text(dtype=deep), text(offsets=deep), f'{{"__metadata__": {deep}}}', f'{{"a": {deep}}}'):
            assert complaints(safetensors_file(header, bytes(8)))


def test_one_bad_entry_leaves_the_others_readable() -> None:
    header = {"a": F32, "bad": entry("F7", [2], 8, 16), "c": entry("F32", [2], 16, 24)}
    found = load(safetensors_file(header, bytes(24)))
    assert [tensor.name for tensor in found.tensors] == ["a", "c"]
    (problem,) = found.problems  # the hole may be the bad one's, so it is not told
    assert problem.tensors == ("bad",)


def test_problems_without_end_are_capped_and_still_name_every_tensor() -> None:
    header = {f"t{n}": entry("F7", [2], 0, 8) for n in range(5000)}
    found = load(safetensors_file(header, bytes(8)))
    assert len(found.problems) == safetensors.MAX_PROBLEMS + 1
    assert {name for problem in found.problems for name in problem.tensors} == set(header)
    assert found.problems[-1].what.startswith("and 4,950 more faults")


def test_offsets_of_problems_are_bytes_of_the_file() -> None:
    header = {"a": F32, "b": entry("F32", [2], 4, 12)}
    data = safetensors_file(header, bytes(20))
    start = len(data) - 20
    by_words = {problem.what.split()[-1]: problem.offset for problem in load(data).problems}
    assert set(by_words.values()) == {start + 4, start + 12}


def test_an_error_within_names_beyond_ascii_is_placed_by_bytes_not_characters() -> None:
    header = '{"\u00e9\u00e9\u00e9": x}'
    with pytest.raises(FormatError) as told:
        load(safetensors_file(header, b""))
    assert told.value.offset == 8 + header.encode().index(b"x")


# sniffing


@pytest.mark.parametrize("length", [0x0280, 60, 19_280, 316, 0x0A80, 0x0280 + 0x10000])
def test_a_safetensors_file_is_recognised_under_any_name_and_with_any_header_length(length: int) -> None:
    """The first bytes of the length can spell the begin of a pickle (80 02), of a zip (PK) or of a tag (<)."""
    header = json.dumps({"a": F32})
    data = safetensors_file(header + " " * (length - len(header)), bytes(8))
    for name in (NAME, "pytorch_model.bin", "weights.pt"):
        found = sniff.load(MemorySource(name, data))
        assert found.format == "safetensors"
        assert [tensor.name for tensor in found.tensors] == ["a"]


def test_a_broken_safetensors_file_whose_length_spells_a_tag_is_still_told_what_is_wrong() -> None:
    header = "{a" + " " * 58
    with pytest.raises(FormatError, match="header is not JSON"):
        sniff.load(MemorySource(NAME, safetensors_file(header, b"")))


# fuzz


def sample_file() -> bytes:
    tensors = {"model.embed_tokens.weight": torch.zeros(4, 3), "b": torch.zeros(2, dtype=torch.bfloat16), "\u00e9": torch.zeros(0)}
    return save(tensors, {"format": "pt", "lm_head.weight": "model.embed_tokens.weight"})


def judged(data: bytes) -> None:
    try:
        found = load(data)
    except FormatError as error:
        str(error)
        return
    for tensor in found.tensors:
        assert tensor.file_offset is not None
        assert 0 <= tensor.file_offset <= tensor.file_offset + tensor.nbytes <= len(data)
    if not found.problems:
        assert not refused(data)


def test_cut_anywhere_gives_records_or_a_format_error() -> None:
    data = sample_file()
    for end in range(len(data)):
        assert complaints(data[:end])
        judged(data[:end])


def test_any_byte_flipped_gives_records_or_a_format_error_and_what_the_library_refuses_is_told() -> None:
    data, dice = sample_file(), random.Random(1)
    for at in range(len(data)):
        for flip in {1 << dice.randrange(8), dice.randrange(1, 256), 0x20, 0x80}:
            judged(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_seeded_mutations_of_the_header_give_records_or_a_format_error_and_what_the_library_refuses_is_told() -> None:
    data, dice = sample_file(), random.Random(2)
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length].decode(), data[8 + length :]
    tokens = ['"', "{", "}", "[", "]", ",", ":", "0", "-1", "1e3", "null", "true", "NaN", "\\u0000", "\\ud800", "a", " ",
              "18446744073709551616", '"shape"', '"dtype"', '"data_offsets"', '"__metadata__"', "[]", "{}",
              "1.0", "Infinity", "\x00", "\u00e9", "\n"]  # fmt: skip
    for _ in range(4000):
        text = header
        for _ in range(dice.randrange(1, 4)):
            at, width = dice.randrange(len(text)), dice.choice([0, 0, 1, 2, 8])
            text = text[:at] + dice.choice([*tokens, text[dice.randrange(len(text)) :][:12]]) + text[at + width :]
        judged(safetensors_file(text, body))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_a_format_error(data: bytes) -> None:
    judged(data)
    judged(safetensors_file(data, b""))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), JSON, max_size=3))
def test_any_json_gives_records_or_a_format_error(header: dict[str, Any]) -> None:
    judged(safetensors_file(header, bytes(16)))


# memory

HOSTILE = {
    "keys": 'b"{" + b",".join(b\'"%x":0\' % n for n in range(N // 10)) + b"}"',
    "empty objects": 'b"{" + b",".join(b\'"%x":{}\' % n for n in range(N // 12)) + b"}"',
    "lists in a shape": 'b\'{"a":{"shape":[\' + b"[]," * (N // 3) + b"[]]}}"',
    "one name": "b'{\"' + b\"a\" * N + b'\":0}'",
    "one number": 'b\'{"a":\' + b"1" * N + b"}"',
    "brackets": 'b"[" * N',
    "objects in objects": "b'{\"a\":' * (N // 5)",
    "zeros": 'b\'{"a":[\' + b"0," * (N // 2) + b"0]}"',
    "escapes": "b'{\"' + b\"\\\\u00e9\" * (N // 6) + b'\":0}'",
    "metadata": 'b\'{"__metadata__":{\' + b",".join(b\'"%x":""\' % n for n in range(N // 11)) + b"}}"',
}
SCRIPT = """
import sys
from pathlib import Path
from tieaudit.errors import FormatError
from tieaudit.loaders import safetensors
from tieaudit.sources.local import LocalFolder

def highest():  # ru_maxrss would be that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

path = Path(sys.argv[1])
source = LocalFolder(path.parent).open(path.name)
before = highest()
try:
    safetensors.load(source)
except FormatError:
    pass
print(highest() - before)
"""


HEADER_NBYTES = 3_200_000


def taken(path: Path, header: bytes) -> int:
    """KiB of memory that reading a file with this header takes, in a process of its own."""
    path.write_bytes(safetensors_file(header, b""))
    return int(subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> int:
    """KiB for as long a header of empty tensors with short names: some 15 bytes of memory for each byte."""
    count = HEADER_NBYTES // 55
    return taken(tmp_path_factory.mktemp("honest") / NAME, json.dumps({f"{n:x}": entry("U8", [0], 0, 0) for n in range(count)}).encode())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_takes_no_more_memory_than_twice_an_honest_one_of_its_length(case: str, tmp_path: Path, honest: int) -> None:
    assert taken(tmp_path / NAME, eval(HOSTILE[case], {"N": HEADER_NBYTES})) < 2 * honest  # noqa: S307  our own words above
