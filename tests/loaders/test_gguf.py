"""The GGUF format: files of the `gguf` package against its own reader, other versions and byte orders byte by byte, hostile files."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_files import ARRAY, BOOL, EMBEDDING, F32, HEAD, I32, STRING, U8, U32, U64, Raw, Type, weights, write
from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile
from tieaudit.dtypes import DTYPES
from tieaudit.errors import FormatError, UnknownFormat
from tieaudit.loaders import gguf, gguf_keys, sniff

NAME = "model.gguf"
PLAIN = {0: np.float32, 1: np.float16, 24: np.int8, 25: np.int16, 26: np.int32, 27: np.int64, 28: np.float64}


def load(data: bytes, name: str = NAME) -> LoadedFile:
    return gguf.load(MemorySource(name, data))


def complaints(data: bytes, name: str = NAME) -> str:
    """What is said about the file, be it refused or read in part; "" if it is taken for good."""
    try:
        found = load(data, name)
    except FormatError as error:
        return str(error)
    return "; ".join([*(problem.what for problem in found.problems), *found.unread])


def facts(found: LoadedFile) -> dict[str, tuple[str, tuple[int, ...], int | None, int]]:
    return {tensor.name: (tensor.dtype, tensor.shape, tensor.file_offset, tensor.nbytes) for tensor in found.tensors}


def truth(path: Path) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """The same as the `gguf` package reads it."""
    return {
        tensor.name: (tensor.tensor_type.name, tuple(map(int, reversed(tensor.shape))), int(tensor.data_offset), int(tensor.n_bytes))
        for tensor in GGUFReader(path).tensors
    }


# what the library writes


def test_types_and_widths_are_those_of_the_library() -> None:
    assert {kind.value: kind.name for kind in Type} == gguf.TYPES
    for kind, (block, nbytes) in GGML_QUANT_SIZES.items():
        assert (DTYPES[kind.name].block, DTYPES[kind.name].bits) == (block, 8 * nbytes), kind.name


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_reads_what_the_library_reads_of_every_type(tmp_path: Path, big: bool) -> None:
    dice = np.random.default_rng(1)
    path = tmp_path / NAME
    from gguf import GGUFEndian, GGUFWriter

    writer = GGUFWriter(path, "llama", endianess=GGUFEndian.BIG if big else GGUFEndian.LITTLE)
    writer.add_token_list(["a", "bc", ""])
    for kind in Type:
        block, nbytes = GGML_QUANT_SIZES[kind]
        if kind.value in PLAIN:
            writer.add_tensor(f"t.{kind.name}", np.zeros((3, 5), PLAIN[kind.value]))
        else:
            writer.add_tensor(f"t.{kind.name}", dice.integers(0, 256, (3, 2 * nbytes), np.uint8), raw_dtype=kind)
            assert block in (1, 32, 64, 128, 256)
    writer.add_tensor("one", np.ones(7, np.float32))
    writer.add_tensor("four", np.ones((2, 3, 4, 5), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = load(path.read_bytes())
    assert facts(found) == truth(path)
    assert len(found.tensors) == len(Type) + 2
    assert (found.problems, found.dead, found.unread) == ((), (), ())
    assert (found.format, found.foreign, found.nbytes) == ("gguf", True, path.stat().st_size)
    assert [tensor.strides for tensor in found.tensors] == [None] * len(found.tensors)


@pytest.mark.parametrize(
    "kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q5_1, Type.MXFP4, Type.TQ2_0, Type.Q4_K, Type.Q6_K]
)
def test_the_bytes_of_a_tensor_are_those_of_the_library(tmp_path: Path, kind: Type) -> None:
    values = weights(1)
    path = write(
        tmp_path / NAME, {"a": (weights(2), Type.F16), EMBEDDING: (values.astype(np.float16) if kind is Type.F16 else values, kind)}
    )
    data = path.read_bytes()
    [tensor] = [tensor for tensor in load(data).tensors if tensor.name == EMBEDDING]
    [same] = [tensor for tensor in GGUFReader(path).tensors if tensor.name == EMBEDDING]
    assert tensor.shape == (64, 256)
    assert tensor.file_offset is not None
    assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == bytes(same.data.tobytes())


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment_is_obeyed_and_padding_is_not_dead(tmp_path: Path, alignment: int) -> None:
    tensors = {f"t{n}": (np.ones(n + 1, np.float32), Type.F32) for n in range(9)}
    path = write(tmp_path / NAME, tensors, alignment=alignment)
    found = load(path.read_bytes())
    assert facts(found) == truth(path)
    assert (found.problems, found.dead) == ((), ())
    assert {tensor.storage.offset % alignment for tensor in found.tensors if tensor.storage.offset is not None} == {0}


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12),
        st.lists(st.integers(1, 4), min_size=1, max_size=4),
        max_size=6,
    ),
    st.lists(st.text(max_size=6), max_size=5),
)
def test_any_names_shapes_and_tokens_are_read_as_the_library_reads_them(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, list[int]], tokens: list[str]
) -> None:
    from gguf import GGUFWriter

    path = tmp_path_factory.mktemp("any") / NAME
    writer = GGUFWriter(path, "qwen2")
    if any(tokens):
        writer.add_token_list(tokens)
        writer.add_array("nothing", [1, 2])
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = load(path.read_bytes())
    assert facts(found) == truth(path)
    assert complaints(path.read_bytes()) == ""


def test_only_the_header_is_read_and_vocabularies_are_stepped_over(tmp_path: Path) -> None:
    path = write(tmp_path / NAME, {EMBEDDING: (np.zeros((4096, 1024), np.float32), Type.F32)}, tokens=30_000)
    data = path.read_bytes()
    source = MemorySource(NAME, data)
    found = gguf.load(source)
    start = found.tensors[0].file_offset
    assert start is not None
    assert len(data) - start == 16 << 20
    # windows grow: at most as much again as the header is long
    assert start <= source.meter.bytes_read <= 2 * start + gguf_keys.FIRST_READ
    assert source.meter.requests <= 8


# versions and byte orders, byte by byte


def small(version: int = 3, *, big: bool = False) -> bytes:
    raw = Raw(version, big=big)
    keys = [
        raw.key("general.architecture", STRING, "llama"),
        raw.key("flag", BOOL, True),
        raw.key("numbers", ARRAY, [1, 2, 3], U32),
        raw.key("tokenizer.ggml.tokens", ARRAY, ["a", "", "\u2581c"], STRING),
        raw.key("general.alignment", U32, 64),
    ]
    entries = [raw.entry(EMBEDDING, (3, 2), 0, 0), raw.entry("b", (5,), 1, 64)]
    return raw.file(entries, keys, bytes(24) + bytes(40) + bytes(10), alignment=64)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_every_version_in_both_byte_orders(version: int, big: bool) -> None:
    data = small(version, big=big)
    found = load(data)
    start = len(data) - 74
    assert start % 64 == 0
    assert facts(found) == {EMBEDDING: ("F32", (2, 3), start, 24), "b": ("F16", (5,), start + 64, 10)}
    assert (found.problems, found.dead, found.unread) == ((), (), ())
    assert [ends.tied for ends in found.ends] == [True]


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_the_library_reads_the_files_made_by_hand(tmp_path: Path, big: bool) -> None:
    path = tmp_path / NAME
    path.write_bytes(small(3, big=big))
    assert truth(path) == facts(load(path.read_bytes()))


def test_big_endian_numbers_are_said_not_to_be_decoded(tmp_path: Path) -> None:
    both = {EMBEDDING: (weights(1), Type.F32), HEAD: (weights(2), Type.F32)}
    assert load(write(tmp_path / "big.gguf", both, big=True).read_bytes()).unread == (
        "numbers are stored big-endian: values are compared as bytes only",
    )
    assert load(write(tmp_path / "little.gguf", both).read_bytes()).unread == ()


@pytest.mark.parametrize("version", [0, 4, 77, 0x10000 * 9])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    data = b"GGUF" + version.to_bytes(4, "little") + bytes(24)
    assert "is GGUF version" in complaints(data)


def test_a_file_is_recognised_under_any_name() -> None:
    for name in ("model.gguf", "weights", "pytorch_model.bin", "model.safetensors"):
        assert sniff.load(MemorySource(name, small())).format == "gguf"
        assert sniff.load(MemorySource(name, small(2, big=True))).format == "gguf"


def test_an_empty_gguf_file_is_told_as_one() -> None:
    with pytest.raises(FormatError, match="is 0 bytes long, too short for a GGUF header"):
        sniff.load(MemorySource(NAME, b""))


@pytest.mark.parametrize("magic", [b"lmgg", b"tjgg"])
def test_files_of_before_gguf_are_named(magic: bytes) -> None:
    with pytest.raises(UnknownFormat, match="GGML file of before GGUF"):
        sniff.load(MemorySource("ggml-model-q4_0.bin", magic + bytes(60)))


def test_values_that_are_not_kept_may_be_anything() -> None:
    raw = Raw()
    keys = [raw.key(f"k{kind}", kind, 1) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)]
    keys += [raw.key(f"a{kind}", ARRAY, [1, 0], kind) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)]
    keys += [
        raw.key("long", STRING, "x" * 200_000),
        raw.key("nested", ARRAY, raw.number("I", ARRAY) + raw.length(2) + 2 * raw.value(ARRAY, ["a", "b"], STRING)),
        raw.key("none", ARRAY, [], STRING),
        raw.key("general.architecture", ARRAY, ["no", "text"], STRING),
    ]
    found = load(raw.file([raw.entry("a")], keys, bytes(16)))
    assert (found.problems, len(found.tensors)) == ((), 1)


# split files


def parts(folder: Path, count: int = 3, architecture: str = "llama", **tensors: tuple[np.ndarray, Type]) -> dict[str, bytes]:
    given = tensors or {f"t{n}": (weights(n), Type.Q8_0) for n in range(count)}
    write(folder / NAME, given, architecture, split_max_tensors=1)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.gguf"))}


def test_parts_are_read_each_and_agree_with_the_library(tmp_path: Path) -> None:
    files = parts(tmp_path)
    assert list(files) == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for name, data in files.items():
        found = load(data, name)
        assert facts(found) == truth(tmp_path / name)
        assert (found.problems, found.unread) == ((), ())


def test_a_part_under_another_name_says_that_others_are_missing(tmp_path: Path) -> None:
    data = parts(tmp_path)["model-00001-of-00003.gguf"]
    assert "is one of 3 parts, but its name does not say so" in complaints(data, "renamed.gguf")


def test_a_part_that_contradicts_its_name_is_told(tmp_path: Path) -> None:
    data = parts(tmp_path)["model-00002-of-00003.gguf"]
    assert "split.no is 1, but its name says that it is part 3" in complaints(data, "model-00003-of-00003.gguf")
    assert "split.count is 3, but its name says that it is one of 4 parts" in complaints(data, "model-00002-of-00004.gguf")
    assert "has no split.count" in complaints(small(), "model-00002-of-00004.gguf")
    assert complaints(small(), "model-00001-of-00001.gguf") == ""


def test_the_number_of_all_tensors_is_held_against_what_the_parts_list(tmp_path: Path) -> None:
    files = parts(tmp_path)
    whole = gguf.joined([load(data, name) for name, data in files.items()])
    assert [file.problems for file in whole] == [(), (), ()]
    first, rest = files["model-00001-of-00003.gguf"], list(files.items())[1:]
    at = first.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    lying = first[:at] + (7).to_bytes(4, "little") + first[at + 4 :]
    [problem] = gguf.joined([load(lying, "model-00001-of-00003.gguf"), *(load(data, name) for name, data in rest)])[0].problems
    assert problem.what.startswith("split.tensors.count is 7, but the 3 parts list 3 tensors")


def test_ends_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    files = parts(tmp_path, x=(weights(1), Type.Q8_0), **{EMBEDDING: (weights(2), Type.Q8_0), HEAD: (weights(3), Type.Q8_0)})
    read = [load(data, name) for name, data in files.items()]
    whole = gguf.joined(read)
    assert [len(file.ends) for file in whole] == [1, 0, 0]
    [ends] = whole[0].ends
    assert (ends.embedding, ends.head, ends.tied) == (EMBEDDING, HEAD, None)
    # without the last part nobody knows whether there is a head
    [ends] = gguf.joined(read[:2])[0].ends
    assert (ends.tied, ends.source) == (None, "only a part of the model was read")


# ends


def ends_of(architecture: str, *names: str, kind: str = "") -> list[tuple[bool | None, str]]:
    raw = Raw()
    keys = [raw.key("general.architecture", STRING, architecture)] + ([raw.key("general.type", STRING, kind)] if kind else [])
    entries = [raw.entry(name, (4,), 0, 32 * n) for n, name in enumerate(names)]
    found = load(raw.file(entries, keys, bytes(32 * len(names))))
    assert found.problems == ()
    return [(ends.tied, ends.absent) for ends in found.ends]


@pytest.mark.parametrize(
    ("architecture", "names", "tied"),
    [
        ("llama", (EMBEDDING,), True),
        ("gemma3", (EMBEDDING, "output_norm.weight"), True),
        ("an-architecture-of-tomorrow", (EMBEDDING,), True),
        ("", (EMBEDDING,), True),
        ("llama", (EMBEDDING, HEAD), None),
        ("llama", (HEAD,), False),
        ("olmo2", (EMBEDDING,), False),
        ("olmo2", (EMBEDDING, HEAD), False),
        ("codeshell", (EMBEDDING,), False),
        ("codeshell", (HEAD,), None),
        ("gemma2", ("output_norm.weight", "blk.0.attn_q.weight"), True),
    ],
)
def test_ends_say_what_readers_make_of_them(architecture: str, names: tuple[str, ...], tied: bool | None) -> None:
    [(found, absent)] = ends_of(architecture, *names)
    assert found is tied
    refused = tied is False and names == (EMBEDDING,)
    assert absent == (f"llama.cpp (so Ollama too) refuses to load {architecture} without it" if refused else "")


@pytest.mark.parametrize(
    "architecture",
    [
        "bert",
        "nomic-bert-moe",
        "jina-bert-v3",
        "modern-bert",
        "t5encoder",
        "gemma-embedding",
        "clip",
        "wavtokenizer-dec",
        "eagle3",
        "dflash",
        "gemma4-assistant",
    ],
)
def test_models_without_a_head_and_drafters_have_no_ends(architecture: str) -> None:
    assert ends_of(architecture, EMBEDDING) == []
    assert ends_of(architecture, HEAD) == []


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_files_that_are_no_model_have_no_ends(kind: str) -> None:
    assert ends_of("olmo2", EMBEDDING, kind=kind) == []


def test_files_with_neither_name_have_no_ends() -> None:
    assert ends_of("llama", "token_embd.weight.lora_a", "token_embd.weight.lora_b") == []
    assert ends_of("flux", "double_blocks.0.img_attn.qkv.weight") == []
    assert ends_of("llama", "output_norm.weight") == []


# what is wrong, and the words for it

R = Raw()
HUGE = 1 << 63


def one(*args: object, data: int = 16, **options: object) -> bytes:
    return R.file([R.entry(*args, **options)], (), bytes(data))  # type: ignore[arg-type]


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is 0 bytes long, too short"),
    "the magic alone": (b"GGUF", "is 4 bytes long, too short"),
    "no counts": (b"GGUF" + R.number("I", 3) + bytes(8), "the header runs past the end: truncated file?"),
    "2^63 tensors": (R.file([], tensors=HUGE), "says that it has 9,223,372,036,854,775,808 tensors"),
    "2^63 keys": (R.file([], count=HUGE), "says that it has 9,223,372,036,854,775,808 keys"),
    "2^64 - 1 keys": (R.file([], count=(1 << 64) - 1), "says that it has 18,446,744,073,709,551,615 keys"),
    "more tensors than there are": (R.file([R.entry("a")], tensors=4, data=bytes(64)), "the header runs past the end: truncated file?"),
    "a key past the end": (R.file([], [R.text("a", 1 << 40) + bytes(20)]), "a key of 1,099,511,627,776 bytes runs past the end"),
    "a key of 2^63 bytes": (R.file([], [R.text("a", HUGE) + bytes(20)]), "a key of 9,223,372,036,854,775,808 bytes runs past the end"),
    "a key that is too long": (R.file([], [R.key("k" * 65_536, U8, 1)]), "a key has 65,536 bytes; at most 65,535 make sense"),
    "a text past the end": (
        R.file([], [R.key("general.architecture", STRING, R.text("a", 1 << 33))]), "a value of 8,589,934,592 bytes runs past",
    ),
    "a text of no interest past the end": (R.file([], [R.key("x", STRING, R.text("a", 1 << 33))]), "the header runs past the end"),
    "a text of 2^64 - 1 bytes": (R.file([], [R.key("x", STRING, R.text("a", (1 << 64) - 1))]), "the header runs past the end"),
    "a value of an unknown type": (R.file([], [R.key("x", 13, b"abcd")]), "a value has the type 13, which GGUF does not have"),
    "an array of an unknown type": (R.file([], [R.key("x", ARRAY, R.number("I", 99) + R.length(1))]), "a value has the type 99"),
    "2^63 numbers": (R.file([], [R.key("x", ARRAY, R.number("I", U64) + R.length(HUGE))]), "the header runs past the end"),
    "2^63 strings": (R.file([], [R.key("x", ARRAY, R.number("I", STRING) + R.length(HUGE))]), "has 9,223,372,036,854,775,808 strings"),
    "2^63 arrays": (R.file([], [R.key("x", ARRAY, R.number("I", ARRAY) + R.length(HUGE))]), "has 9,223,372,036,854,775,808 arrays"),
    "a string of an array past the end": (
        R.file([], [R.key("x", ARRAY, R.number("I", STRING) + R.length(2) + R.text("a") + R.text("b", 1 << 62))]), "runs past the end",
    ),
    "arrays nested five deep": (
        R.file([], [R.key("x", ARRAY, 5 * (R.number("I", ARRAY) + R.length(1)) + R.number("I", U8) + R.length(0))]),
        "arrays in arrays, more than 4",
    ),
    "arrays nested without end": (R.file([], [R.key("x", ARRAY, 50_000 * (R.number("I", ARRAY) + R.length(1)))]), "arrays in arrays"),
    "a key twice": (R.file([], 2 * [R.key("x", U8, 1)]), "the key 'x' is there twice: llama.cpp refuses this"),
    "an alignment of 0": (R.file([], [R.key("general.alignment", U32, 0)]), "general.alignment is 0, not a power of two"),
    "an alignment of 24": (R.file([], [R.key("general.alignment", U32, 24)]), "general.alignment is 24, not a power of two"),
    "a negative alignment": (R.file([], [R.key("general.alignment", I32, -32)]), "general.alignment is -32, not a power of two"),
    "an alignment that is a text": (R.file([], [R.key("general.alignment", STRING, "32")]), "general.alignment is '32'"),
    "an alignment that is a fraction": (R.file([], [R.key("general.alignment", F32, 32.0)]), "general.alignment is 32.0"),
    "a name past the end": (R.file([R.text("a", 1 << 50) + bytes(40)]), "a tensor's name of 1,125,899,906,842,624 bytes runs past the end"),
    "a name that is too long": (one("n" * 513), "a tensor's name has 513 bytes"),
    "a name that is no UTF-8": (one(b"\xff\xfe", (4,), 99_999), "tensor '\\\\xff\\\\xfe' has the type 99,999"),
    "5 dimensions": (one("a", (1, 1, 1, 1, 4)), "tensor 'a' has 5 dimensions; ggml has at most 4"),
    "2^32 - 1 dimensions": (one("a", (4,), count=(1 << 32) - 1), "'a' says that it has 4,294,967,295 dimensions"),
    "a type of no release": (one("a", (4,), 1 << 31), "tensor 'a' has the type 2,147,483,648, which GGUF does not have"),
    "a type of a fork": (one("a", (256,), 139), "a have types that are not known here (139): not looked at"),
    "a type that was removed": (one("a", (32,), 31), "tensor 'a' has the type Q4_0_4_4, which llama.cpp no longer reads"),
    "rows that are not whole blocks": (one("a", (100, 2), 12), "rows of 100 elements, which are not whole blocks of 256 (Q4_K)"),
    "a quantised scalar": (one("a", (), 8), "rows of 1 elements, which are not whole blocks of 32 (Q8_0)"),
    "a dimension of 2^63": (one("a", (HUGE,)), "is F32 [9223372036854775808], which needs more bytes than any file has"),
    "dimensions whose product overflows": (one("a", (1 << 32, 1 << 32)), "which needs more bytes than any file has"),
    "dimensions whose product overflows, times zero": (one("a", (0, 1 << 32, 1 << 63)), "which needs more bytes than any file has"),
    "an offset that is not aligned": (one("a", (4,), 0, 4, data=32), "begins at 4, not at a multiple of 32"),
    "an offset past the end": (one("a", (4,), 0, 1 << 40), "but needs 1,099,511,627"),
    "an offset of 2^64 - 32": (one("a", (4,), 0, (1 << 64) - 32), "truncated file?"),
    "truncated data": (one("a", (4,), data=15), "for a: truncated file?"),
    "no data at all": (R.file([R.entry("a")], (), b"")[:-20], "truncated file?"),
    "a name twice": (R.file([R.entry("a"), R.entry("a", offset=32)], (), bytes(48)), "tensor 'a' is listed twice"),
    "an overlap": (R.file([R.entry("a", (16,)), R.entry("b", (4,), 0, 32)], (), bytes(64)), "'b' overlaps 'a' by 16 bytes"),
    "two names for the same bytes": (R.file([R.entry("a"), R.entry("b")], (), bytes(16)), "'b' overlaps 'a' by 16 bytes"),
    "a hole at the begin": (one("a", (4,), 0, 32, data=48), "32 bytes before 'a' belong to no tensor: llama.cpp refuses this"),
    "a hole between": (R.file([R.entry("a"), R.entry("b", offset=64)], (), bytes(80)), "32 bytes before 'b' belong to no tensor"),
    "another order": (R.file([R.entry("a", offset=32), R.entry("b")], (), bytes(48)), "do not lie in the order in which they are listed"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_in_the_right_words(case: str) -> None:
    data, words = BAD[case]
    assert words in complaints(data)


def test_bytes_behind_the_last_tensor_are_dead_and_no_fault() -> None:
    data = one("a", (4,), data=32 + 100)
    found = load(data)
    assert (found.problems, found.dead) == ((), ((len(data) - 100, len(data)),))
    assert load(one("a", (4,), data=32)).dead == ()


def test_a_hole_is_dead_unless_it_may_belong_to_what_could_not_be_read() -> None:
    hole = [R.entry("a"), R.entry("b", offset=64)]
    data = R.file(hole, (), bytes(80))
    assert load(data).dead == ((len(data) - 48, len(data) - 16),)
    assert load(R.file([*hole, R.entry("c", (4,), 31, 32)], (), bytes(80))).dead == ()
    assert load(R.file([*hole, R.entry("c", (4,), 139, 32)], (), bytes(80))).dead == ()


def test_a_truncated_file_is_one_fault_that_names_every_tensor() -> None:
    data = R.file([R.entry(f"t{n}", offset=32 * n) for n in range(200)], (), bytes(32 * 100))
    found = load(data)
    assert len(found.tensors) == 100
    [problem] = found.problems
    assert problem.tensors == tuple(f"t{n}" for n in range(100, 200))
    assert (
        problem.what
        == f"the file ends at byte {len(data):,}, but needs {len(data) + 3184:,} for t100, t101, t102 and 97 more: truncated file?"
    )


def test_empty_tensors_are_read_and_cover_nothing() -> None:
    found = load(R.file([R.entry("a", (0, 4)), R.entry("b", (4,)), R.entry("s", (), 0, 32)], (), bytes(36)))
    assert found.problems == ()
    assert {tensor.name: (tensor.shape, tensor.nbytes) for tensor in found.tensors} == {"a": ((4, 0), 0), "b": ((4,), 16), "s": ((), 4)}


def test_one_bad_entry_leaves_the_others_readable() -> None:
    found = load(R.file([R.entry("a"), R.entry("bad", (4,), 31, 32), R.entry("c", offset=64)], (), bytes(80)))
    assert [tensor.name for tensor in found.tensors] == ["a", "c"]
    assert [problem.tensors for problem in found.problems] == [("bad",)]


def test_problems_without_end_are_capped_and_still_name_every_tensor() -> None:
    names = [f"t{n}" for n in range(5000)]
    found = load(R.file([R.entry(name, (4,), 31) for name in names], (), bytes(16)))
    assert len(found.problems) == gguf.MAX_PROBLEMS + 1
    assert [name for problem in found.problems for name in problem.tensors] == names
    assert found.problems[-1].what == "and 4,950 more faults of this kind"


# fuzz


def sample() -> bytes:
    keys = [
        R.key("general.architecture", STRING, "llama"),
        R.key("tokenizer.ggml.tokens", ARRAY, ["a", "bc"], STRING),
        R.key("scores", ARRAY, [1, 2], U8),
        R.key("general.alignment", U32, 32),
    ]
    entries = [R.entry(EMBEDDING, (32, 2), 8, 0), R.entry(HEAD, (32, 2), 8, 96), R.entry("\u00e9", (3,), 0, 192)]
    return R.file(entries, keys, bytes(204))


def judged(data: bytes) -> None:
    try:
        found = load(data)
    except FormatError as error:
        str(error)
        return
    for tensor in found.tensors:
        assert tensor.file_offset is not None
        assert 0 <= tensor.file_offset <= tensor.file_offset + tensor.nbytes <= len(data)
        assert tensor.nbytes * 8 * DTYPES[tensor.dtype].block == tensor.numel * DTYPES[tensor.dtype].bits
    for begin, end in found.dead:
        assert 0 <= begin < end <= len(data)


def test_cut_anywhere_gives_records_or_a_format_error() -> None:
    data = sample()
    assert complaints(data) == ""
    for end in range(len(data)):
        assert complaints(data[:end])
        judged(data[:end])


def test_any_byte_flipped_gives_records_or_a_format_error() -> None:
    dice = random.Random(1)
    for data in (sample(), small(1), small(2, big=True)):
        for at in range(len(data)):
            for flip in {1 << dice.randrange(8), dice.randrange(1, 256), 0x20, 0x80, 0xFF}:
                judged(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_numbers_put_anywhere_give_records_or_a_format_error() -> None:
    data, dice = sample(), random.Random(2)
    numbers = [0, 1, 7, 8, 9, 31, 1 << 31, (1 << 32) - 1, 1 << 32, HUGE - 1, HUGE, (1 << 64) - 1, len(data)]
    for _ in range(4000):
        at, width = dice.randrange(len(data)), dice.choice([1, 4, 8])
        raw = (dice.choice(numbers) % (1 << 8 * width)).to_bytes(width, "little")
        judged(data[:at] + raw + data[at + dice.choice([0, width]) :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_any_bytes_give_records_or_a_format_error(data: bytes, tensors: int, keys: int) -> None:
    judged(b"GGUF" + data)
    judged(b"GGUF" + R.number("I", 3) + R.length(tensors) + R.length(keys) + data + bytes(100))


# time and memory

HOSTILE = {
    "empty strings": lambda n: R.file([], [R.key("x", ARRAY, R.number("I", STRING) + R.length(n // 8) + bytes(n))]),
    "empty arrays": lambda n: R.file([], [R.key("x", ARRAY, R.number("I", ARRAY) + R.length(n // 12) + bytes(n))]),
    "short keys": lambda _: R.file([], [R.key(f"{k:x}", U8, 1) for k in range(gguf_keys.MAX_KEYS)]),
    "long keys": lambda n: R.file([], [R.key(f"{k:060000x}", U8, 1) for k in range(n // 60_000)]),
    "one key over and over": lambda _: R.file([], [R.key("x" * 100, U8, 1)] * gguf_keys.MAX_KEYS),
    "long names": lambda n: R.file([R.entry(f"{k:0512x}") for k in range(n // 600)], (), bytes(16)),
    "one name over and over": lambda n: R.file([R.entry("x")] * (n // 40), (), bytes(16)),
    "empty tensors": lambda n: R.file([R.entry(f"{k:x}", (0,)) for k in range(n // 48)], (), bytes(16)),
    "tensors on each other": lambda n: R.file([R.entry(f"{k:x}") for k in range(n // 48)], (), bytes(16)),
    "tensors past the end": lambda n: R.file([R.entry(f"{k:x}", offset=1 << 40) for k in range(n // 48)], (), bytes(16)),
}
SCRIPT = """
import sys
from pathlib import Path
from tieaudit.errors import FormatError
from tieaudit.loaders import gguf
from tieaudit.sources.local import LocalFolder

def highest():  # ru_maxrss would be that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

path = Path(sys.argv[1])
source = LocalFolder(path.parent).open(path.name)
before = highest()
try:
    gguf.load(source)
except FormatError:
    pass
print(highest() - before)
"""


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_take_bounded_time(case: str) -> None:
    data = HOSTILE[case](4_000_000)
    begin = time.process_time()
    judged(data)
    assert time.process_time() - begin < 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", ["empty strings", "long keys", "long names", "one name over and over", "tensors on each other"])
def test_hostile_headers_take_bounded_memory(case: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(HOSTILE[case](4_000_000))
    taken = int(subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True).stdout)
    assert taken < 120 << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sparse files")
def test_a_sparse_file_of_many_gigabytes_costs_no_time(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with path.open("wb") as file:
        # as many empty strings as the file has room for
        file.write(R.file([], [R.key("x", ARRAY, R.number("I", STRING) + R.length((30 << 30) // 8))], alignment=1))
        file.truncate(31 << 30)
    begin = time.process_time()
    from tieaudit.sources.local import LocalFolder

    with pytest.raises(FormatError, match="strings, more than is read here"):
        gguf.load(LocalFolder(tmp_path).open(NAME))
    assert time.process_time() - begin < 10
