"""numpy's archives, held to numpy's own reading of the same bytes; MLX's where MLX is installed."""

from __future__ import annotations

import io
import random
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from memory_source import MemorySource
from tieaudit.checkpoint import LoadedFile, TensorRecord
from tieaudit.errors import FormatError
from tieaudit.loaders import crc32, npz, sniff

NAME = "weights.npz"
PLAIN = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4",
    "U64": "<u8", "BOOL": "?", "C64": "<c8", "C128": "<c16",
}  # fmt: skip


def saved(*, compressed: bool = False, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def load(data: bytes) -> LoadedFile:
    return npz.load(MemorySource(NAME, data))


def by_name(found: LoadedFile) -> dict[str, TensorRecord]:
    return {tensor.name: tensor for tensor in found.tensors}


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def npy(header: str | bytes, data: bytes, version: int = 1, length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (
        b"\x93NUMPY"
        + bytes((version, 0))
        + struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
        + text
        + data
    )


def one(header: str | bytes, data: bytes = bytes(24), **options: Any) -> bytes:
    return archive({"a.npy": npy(header, data, **options)})


def words(*, descr: str = "'<f4'", fortran: object = False, shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


# what numpy writes


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", PLAIN)
def test_every_dtype_with_shape_and_bytes(dtype: str, *, compressed: bool) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(PLAIN[dtype])
    data = saved(compressed=compressed, **{"layers.0.w": array, "scalar": array[0, 0, 0], "empty": array[:0], "other": array[::-1]})
    found = load(data)
    assert (found.name, found.format, found.nbytes, found.foreign, found.ends) == (NAME, "npz", len(data), False, ())
    assert (found.problems, found.unread, found.dead) == ((), (), ())
    tensors = by_name(found)
    with np.load(io.BytesIO(data)) as truth:
        assert list(tensors) == truth.files
        for name in truth.files:
            tensor, expected = tensors[name], truth[name]
            assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, expected.shape, expected.nbytes)
            assert (tensor.offset, tensor.strides, tensor.part) == (0, None, "")
            if compressed:
                assert tensor.storage.offset is None
            else:
                assert data[tensor.file_offset : tensor.file_offset + tensor.nbytes] == expected.tobytes()
    assert len({tensor.storage.ident for tensor in found.tensors}) == 4


def test_columns_first() -> None:
    array = np.arange(24, dtype="<f4").reshape(2, 3, 4)
    arrays = {"t": array[0].T, "f": np.asfortranarray(array), "row": np.asfortranarray(array[:1, :1]), "c": array}
    data = saved(**arrays)
    tensors = by_name(load(data))
    assert {name: tensor.strides for name, tensor in tensors.items()} == {"t": (1, 4), "f": (1, 2, 6), "row": None, "c": None}
    for name, tensor in tensors.items():
        raw = np.frombuffer(data, "<f4", tensor.numel, tensor.file_offset)
        strides = [4 * step for step in tensor.strides] if tensor.strides else None
        assert np.array_equal(
            np.lib.stride_tricks.as_strided(raw.reshape(tensor.shape) if not strides else raw, tensor.shape, strides), arrays[name]
        )


def test_bfloat16_is_a_void_of_two_bytes() -> None:
    array = np.ones((2, 3), ml_dtypes.bfloat16)
    data = saved(a=array, f8=np.ones((2, 3), ml_dtypes.float8_e4m3fn))
    tensors = by_name(load(data))
    assert (tensors["a"].dtype, tensors["a"].shape, tensors["a"].nbytes) == ("BF16", (2, 3), 12)
    assert data[tensors["a"].file_offset :][:12] == array.tobytes()
    # numpy does not say which of the one-byte types it was
    assert (tensors["f8"].dtype, tensors["f8"].shape, tensors["f8"].nbytes) == ("BYTES", (2, 3, 1), 6)


def test_text_and_dates_are_no_weights() -> None:
    tensors = by_name(load(saved(u=np.array(["ab", "c"]), s=np.array([b"abc"]), m=np.array(["2020"], dtype="M8[s]"), w=np.ones(2))))
    assert {name: (tensor.part, tensor.shape) for name, tensor in tensors.items()} == {
        "u": ("other", (2, 8)), "s": ("other", (1, 3)), "m": ("other", (1, 8)), "w": ("", (2,)),
    }  # fmt: skip


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def test_what_is_not_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = saved(
        o=np.array([Evil()], dtype=object), big=np.ones(3, ">f4"), rec=np.zeros(2, [("shape", "<f4"), ("y", "<i2")]), a=np.ones(3, ">i1")
    )
    found = load(data)
    assert [tensor.name for tensor in found.tensors] == ["big", "a"]
    assert (by_name(found)["big"].storage.offset, by_name(found)["a"].storage.offset is None) == (None, False)
    assert found.unread == (
        "has 1 array of Python objects, which are pickles and never loaded here (o)",
        "has 1 array of records, which are not read (rec)",
        "has 1 array of big-endian numbers, which are not compared (big)",
    )
    assert found.problems == ()
    assert list(tmp_path.iterdir()) == []


def test_the_checksum_is_that_of_the_data_alone() -> None:
    same = np.arange(4096, dtype="<f4")
    arrays = {"a": same.reshape(64, 64), "b": same.reshape(32, 128), "c": same[::-1], "alone": same[:7]}
    for compressed in (False, True):
        tensors = by_name(load(saved(compressed=compressed, **arrays)))
        assert tensors["a"].storage.crc == tensors["b"].storage.crc == zlib.crc32(same.tobytes())
        assert tensors["c"].storage.crc == zlib.crc32(same[::-1].tobytes())
        assert tensors["alone"].storage.crc is None, "no other array has its length"


@pytest.mark.parametrize("nbytes", [0, 1, 2, 255, 256, 65_537, 1_000_003])
def test_crc_of_the_second_part(nbytes: int) -> None:
    first, second = random.Random(1).randbytes(130), random.Random(nbytes).randbytes(nbytes)
    assert crc32.behind(zlib.crc32(first + second), zlib.crc32(first), nbytes) == zlib.crc32(second)


def test_versions_two_and_three() -> None:
    for version in (2, 3):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ones((2, 3), "<f4"), version=(version, 0))
        (tensor,) = load(archive({"a.npy": buffer.getvalue()})).tensors
        assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("F32", (2, 3), 24)


def test_a_long_header_is_read_on() -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = archive({"a.npy": npy(words() + " " * 9_000, bytes(24))}, method)
        assert [tensor.shape for tensor in load(data).tensors] == [(2, 3)]


def test_mlx() -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX is no dependency of the tests")
    weight = mx.arange(12, dtype=mx.float32).reshape(4, 3)
    buffer = io.BytesIO()
    mx.savez(
        buffer, **{"model.embed_tokens.weight": weight.astype(mx.bfloat16), "t": weight.T, "packed": mx.array([1, 2], dtype=mx.uint32)}
    )
    data = buffer.getvalue()
    tensors = by_name(load(data))
    assert {name: (tensor.dtype, tensor.shape, tensor.strides) for name, tensor in tensors.items()} == {
        "model.embed_tokens.weight": ("BF16", (4, 3), None), "t": ("F32", (3, 4), (1, 3)), "packed": ("U32", (2,), None),
    }  # fmt: skip
    embedding = tensors["model.embed_tokens.weight"]
    halves = np.frombuffer(data, "<u2", 12, embedding.file_offset)
    assert (halves.astype("<u4") << 16).view("<f4").tolist() == list(range(12))


def test_few_reads_and_no_weights() -> None:
    data = saved(**{f"layers.{number}.w": np.ones((512, 512), "<f4") for number in range(20)})
    source = MemorySource(NAME, data)
    found = npz.load(source)
    assert (len(found.tensors), found.nbytes) == (20, len(data))
    assert source.meter.requests <= 2 + 2 * 20
    assert source.meter.bytes_read < 20_000


# broken and hostile


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (one("{}"), "does not say dtype, order and shape"),
        (one(words(shape="(2, 3")), "does not say dtype, order and shape"),
        (one(words(shape="(2, -3)")), "does not say dtype, order and shape"),
        (one(words(shape="(2, 1e3)")), "does not say dtype, order and shape"),
        (one(words(shape="(2 3,)")), "does not say dtype, order and shape"),
        (one(words(fortran="__import__('os')")), "does not say dtype, order and shape"),
        (one(words() + "x"), "does not say dtype, order and shape"),
        (one("{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3)}"), "does not say dtype, order and shape"),
        (one(words(descr="'float32'")), "the dtype 'float32'"),
        (one(words(shape="(2, 4)")), "24 bytes, which is not what its header says (f4 (2, 4))"),
        (one(words(shape="(9999999999999999999, 9999999999999999999)")), "which is not what its header says"),
        (one(words(shape=f"({'9, ' * 64})")), "which is not what its header says"),
        (one(words(shape=f"({'1, ' * 65})"), bytes(4)), "does not say dtype, order and shape"),
        (one(words(descr="'<V999999999'")), "which is not what its header says"),
        (one(words(descr="'<f'")), "which is not what its header says"),
        (one(words(), version=4), "no .npy file of version 1 to 3"),
        (one(words(), length=60_000), "with a header of 60,000 bytes"),
        (one(words(), version=2, length=0xFFFFFFFF), "with a header of 4,294,967,295 bytes"),
        (archive({"a.npy": b"\x93NUMP"}), "no .npy file of version 1 to 3"),
        (archive({"a.npy": b""}), "no .npy file of version 1 to 3"),
    ],
)
def test_a_broken_array_is_a_problem_and_the_rest_is_read(data: bytes, what: str) -> None:
    (problem,) = load(data).problems
    assert what in problem.what
    assert problem.tensors == ("a",)
    rest = archive({"good.npy": npy(words(), bytes(24)), **{name: zipfile.ZipFile(io.BytesIO(data)).read(name) for name in ("a.npy",)}})
    assert [tensor.name for tensor in load(rest).tensors] == ["good"]


def test_a_header_that_takes_long_to_match() -> None:
    started = time.process_time()
    for text in (f"{{'shape': ({'1' * 60_000}", f"{{'shape': ({'1,' * 30_000})", f"{{{' ' * 60_000}", f"{{'descr': '{'<' * 60_000}'"):
        assert len(load(one(text)).problems) == 1
    assert time.process_time() - started < 10


def test_two_members_of_one_name() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(zipfile.ZipInfo("a.npy"), npy(words(), bytes(24)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr(zipfile.ZipInfo("a.npy"), npy(words(), bytes(24)))
    assert [problem.what for problem in load(buffer.getvalue()).problems] == ["has 2 members named 'a.npy': numpy loads the last"]
    assert load(archive({"a.npy": npy(words(), bytes(24)), "A.npy": npy(words(), bytes(24))})).problems == ()


def test_more_arrays_than_are_read() -> None:
    started = time.process_time()
    small = npy(words(shape="()"), bytes(4))
    data = archive({f"{number}.npy": small for number in range(npz.MAX_ARRAYS + 2)})
    found = load(data)
    assert len(found.tensors) == npz.MAX_ARRAYS
    assert found.unread == (f"has {npz.MAX_ARRAYS + 2:,} arrays, of which {npz.MAX_ARRAYS:,} were read",)
    assert time.process_time() - started < 50


def test_truncated() -> None:
    with pytest.raises(FormatError, match="truncated file"):
        load(saved(a=np.ones(3))[:-30])


def test_cut_anywhere_flip_any_byte() -> None:
    rng = random.Random(11)
    arrays = {"a": np.ones((3, 2), "<f4"), "b": np.asfortranarray(np.ones((2, 3))), "c": np.array([None], dtype=object)}
    for whole in (saved(**arrays), saved(compressed=True, **arrays)):
        broken = [whole[:n] for n in range(len(whole))]
        for _ in range(1_500):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 2, 8])):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x27, 0x7B, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            broken.append(bytes(data))
        for data in broken:
            try:
                found = load(data)
            except FormatError:
                continue
            for tensor in found.tensors:
                assert tensor.nbytes == tensor.storage.nbytes
                assert tensor.file_offset is None or tensor.file_offset + tensor.nbytes <= len(data)


def test_sniff() -> None:
    data = saved(a=np.ones(3))
    assert npz.sniff(data[:512])
    assert not npz.sniff(archive({"archive/data.pkl": b""})[:512])
    assert not npz.sniff(data[:20])
    assert sniff.load(MemorySource(NAME, data)).format == "npz"
