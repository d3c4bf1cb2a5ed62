"""CTranslate2's model.bin, written by its own specifications; older versions by what its reader (src/models/model.cc) expects."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
from ctranslate2.specs import model_spec

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile, TensorRecord
from tieaudit.errors import FormatError
from tieaudit.loaders import ctranslate2 as loader
from tieaudit.loaders import sniff

NAME = "model.bin"
EMBEDDING, HEAD = "decoder/embeddings/weight", "decoder/projection/weight"
NAMES = {"float32": "F32", "int8": "I8", "int16": "I16", "int32": "I32", "float16": "F16", "bfloat16": "BF16"}


def filled(spec: Any, seed: int = 0) -> Any:
    """Every required weight of a specification set to numbers."""
    rng = np.random.default_rng(seed)

    def fill(layer: Any, name: str, value: Any) -> None:
        if value is None:
            shape = (50, 16) if name.endswith(("embeddings/weight", "embeddings_0/weight", "projection/weight")) else (16, 16)
            setattr(layer, name.rpartition("/")[2], rng.standard_normal(shape, np.float32))

    spec._visit(fill)
    return spec


def decoder(seed: int = 0) -> Any:
    return filled(ctranslate2.specs.TransformerDecoderModelSpec.from_config(1, 2), seed)


def saved(spec: Any, path: Path, *, quantization: str | None = None, merge: bool = True) -> tuple[bytes, dict[str, Any]]:
    """(model.bin, what its writer says of every variable; a name in place of a value is an alias)."""
    model_spec.LayerSpec.validate(spec)  # without the demand for a vocabulary beside
    if merge:
        spec.optimize(quantization)
    spec._serialize(path / NAME)
    return (path / NAME).read_bytes(), spec.variables()


def load(data: bytes) -> LoadedFile:
    return loader.load(MemorySource(NAME, data))


def by_name(found: LoadedFile) -> dict[str, TensorRecord]:
    return {tensor.name: tensor for tensor in found.tensors}


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def variable(name: str, shape: tuple[int, ...], data: bytes, kind: int = 0, *, version: int = 6, nbytes: int | None = None) -> bytes:
    length = len(data) if nbytes is None else nbytes
    head = text(name) + bytes((len(shape),)) + struct.pack(f"<{len(shape)}I", *shape)
    return head + (struct.pack("<BI", kind, length) if version > 3 else struct.pack("<BI", kind, length // (kind or 1))) + data


def written(variables: list[bytes], aliases: tuple[tuple[str, str], ...] = (), *, version: int = 6, count: int | None = None) -> bytes:
    head = struct.pack("<I", version) + (text("TransformerSpec") + struct.pack("<I", 7) if version > 1 else b"")
    body = struct.pack("<I", len(variables) if count is None else count) + b"".join(variables)
    table = struct.pack("<I", len(aliases)) + b"".join(text(alias) + text(name) for alias, name in aliases) if version > 2 else b""
    return head + body + table


# what the library writes


@pytest.mark.parametrize("quantization", [None, "float16", "bfloat16", "int16", "int8", "int8_float16"])
def test_every_variable_with_shape_and_bytes(tmp_path: Path, quantization: str | None) -> None:
    spec = decoder()
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    data, truth = saved(spec, tmp_path, quantization=quantization)
    found = load(data)
    assert (found.name, found.format, found.nbytes, found.foreign) == (NAME, "ctranslate2", len(data), True)
    assert (found.problems, found.unread, found.dead) == ((), (), ())
    tensors = by_name(found)
    assert set(tensors) == set(truth)
    for name, expected in truth.items():
        tensor = tensors[name]
        if isinstance(expected, str):
            assert tensor.view == tensors[expected].view
            continue
        assert (tensor.dtype, tensor.shape, tensor.nbytes) == (NAMES[expected.dtype], tuple(expected.shape), expected.num_bytes())
        assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == expected.to_bytes()
    assert truth[HEAD] == EMBEDDING
    assert len(found.storages) == sum(not isinstance(value, str) for value in truth.values())


def test_the_alias_table_ties(tmp_path: Path) -> None:
    spec = decoder()
    spec.decoder.projection.weight = spec.decoder.embeddings.weight.copy()
    (ends,) = load(saved(spec, tmp_path, quantization="int8")[0]).ends
    assert (ends.embedding, ends.head, ends.tied, ends.role, ends.by_config) == (EMBEDDING, HEAD, True, "embedding-head", False)


def test_two_variables_are_related_unless_they_have_scales(tmp_path: Path) -> None:
    (ends,) = load(saved(decoder(), tmp_path)[0]).ends
    assert (ends.embedding, ends.head, ends.tied) == (EMBEDDING, HEAD, None)
    assert load(saved(decoder(), tmp_path, quantization="int8")[0]).ends == ()


def test_an_encoder_beside(tmp_path: Path) -> None:
    spec = filled(ctranslate2.specs.TransformerSpec.from_config((1, 1), 2))
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight
    found = load(saved(spec, tmp_path)[0])
    assert [(ends.embedding, ends.head, ends.tied, ends.role) for ends in found.ends] == [
        (EMBEDDING, HEAD, None, "embedding-head"),
        (EMBEDDING, "encoder/embeddings_0/weight", True, "embedding"),
    ]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version(version: int) -> None:
    kinds = {"F32": 0, "I8": 1, "I16": 2} if version > 3 else {"F32": 4, "I8": 1, "I16": 2}
    numbers = {dtype: bytes(range(6 * width)) for dtype, width in (("F32", 4), ("I8", 1), ("I16", 2))}
    variables = [variable(f"decoder/{dtype}", (2, 3), numbers[dtype], kind, version=version) for dtype, kind in kinds.items()]
    data = written(variables, (("decoder/alias", "decoder/I8"),) if version > 2 else (), version=version)
    found = load(data)
    assert loader.sniff(data[:512])
    assert (found.problems, found.dead) == ((), ())
    assert [tensor.name for tensor in found.tensors] == [f"decoder/{dtype}" for dtype in kinds] + ["decoder/alias"] * (version > 2)
    for dtype, raw in numbers.items():
        tensor = by_name(found)[f"decoder/{dtype}"]
        assert (tensor.dtype, tensor.shape) == (dtype, (2, 3))
        assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == raw


def test_a_newer_version_is_not_read_and_no_fault() -> None:
    found = load(written([], version=7))
    assert found.unread == ("is of CTranslate2's binary version 7; up to 6 are read here",)
    assert (found.problems, found.tensors) == ((), ())


def test_reads_headers_only() -> None:
    source = MemorySource(NAME, written([variable(f"v{number}", (512, 512), bytes(4 * 512 * 512)) for number in range(20)]))
    assert len(loader.load(source).tensors) == 20
    assert source.meter.requests <= 22
    assert source.meter.bytes_read <= 22 * 4_096


# broken and hostile

GOOD = variable("good", (2,), bytes(8))
OLD = variable("good", (2,), bytes(8), 4, version=3)


@pytest.mark.parametrize(
    ("data", "what", "names"),
    [
        (written([GOOD, variable("bad", (2, 3), bytes(23))]), "has 23 bytes for the variable 'bad', F32 (2, 3)", ("bad",)),
        (written([GOOD, variable("bad", (2, 3), bytes(24), 6)]), "of dtype number 6", ("bad",)),
        (written([OLD, variable("bad", (2, 3), bytes(48), 8, version=3)], version=3), "of dtype number 8", ("bad",)),
        (written([GOOD, variable("bad", (2**32 - 1,) * 255, b"")]), "has 0 bytes for the variable 'bad'", ("bad",)),
        (written([GOOD, variable("good", (2,), bytes(8))]), "has two variables named 'good'", ("good",)),
        (written([GOOD], (("a", "gone"),)), "the alias 'a' of 'gone', which is not stored", ("a",)),
        (written([GOOD, variable("a", (2,), bytes(8))], (("a", "good"),)), "and a variable of that name", ("a",)),
        (written([GOOD, variable("bad", (2,), b"", nbytes=2**32 - 1)]), "ends inside the variable 'bad', which needs 4,294,967,295", ()),
        (written([GOOD], count=2)[:-4], "ends inside the name of a variable", ()),
        (written([GOOD])[:-4], "ends inside the number of aliases", ()),
        (written([GOOD]) [:-4] + b"\xff\xff\xff\xff", "announces 4,294,967,295 aliases", ()),
    ],
)  # fmt: skip
def test_a_fault_is_a_problem_and_the_rest_is_read(data: bytes, what: str, names: tuple[str, ...]) -> None:
    found = load(data)
    (problem,) = found.problems
    assert what in problem.what
    assert problem.tensors == names
    assert found.tensors[0].name == "good"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x06\0\0", "ends inside the version"),
        (struct.pack("<I", 6) + b"\xff\xff" + b"a" * 70_000, "has the name of the specification of 65,535 bytes"),
        (struct.pack("<I", 6) + b"\x02\0ab", "without the zero byte at its end"),
        (struct.pack("<I", 6) + b"\0\0", "has the name of the specification of 0 bytes"),
        (written([], count=2**32 - 1), "announces 4,294,967,295 variables"),
        (written([], count=100), "announces 100 variables"),
    ],
)
def test_hostile(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        load(data)


def test_as_many_variables_as_are_read() -> None:
    started = time.process_time()
    found = load(written([variable(str(number), (), bytes(4)) for number in range(100_000)]))
    assert len(found.tensors) == 100_000
    assert time.process_time() - started < 25


def test_bytes_behind_the_table() -> None:
    data = written([GOOD])
    assert load(data + b"12345").dead == ((len(data), len(data) + 5),)


def test_cut_anywhere_flip_any_byte(tmp_path: Path) -> None:
    rng = random.Random(2)
    variables = [variable(name, (3, 2), bytes(24)) for name in (EMBEDDING, "decoder/layer_0/linear_0/weight")]
    for version in (6, 3, 1):
        kind = 4 if version < 4 else 0
        variables = [variable(name, (3, 2), bytes(24), kind, version=version) for name in (EMBEDDING, "decoder/layer_0/weight")]
        whole = written(variables, ((HEAD, EMBEDDING),), version=version)
        broken = [whole[:n] for n in range(len(whole))]
        for _ in range(1_500):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 7, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            broken.append(bytes(data))
        for data in broken:
            try:
                found = load(data)
            except FormatError:
                continue
            for tensor in found.tensors:
                assert tensor.file_offset is not None
                assert tensor.file_offset + tensor.nbytes <= len(data)


def test_sniff(tmp_path: Path) -> None:
    data, _ = saved(decoder(), tmp_path)
    assert loader.sniff(data[:512])
    assert sniff.load(MemorySource(NAME, data)).format == "ctranslate2"
    for head in (
        b"",
        b"\x06\0\0\0",
        b"\x06\0\0\0\x02\0a\0",
        b"\0\0\0\0" + text("TransformerSpec"),
        b"\x01\0\0\0\x01\0\0\0" + text("vocab"),
    ):
        assert not loader.sniff(head)
    rng = random.Random(3)
    assert not any(loader.sniff(b"\x06\0\0\0" + rng.randbytes(64)) for _ in range(2_000))
