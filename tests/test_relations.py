"""How two stored matrices relate; torch makes them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from memory_source import MemorySource
from tieaudit.bytewise import CHUNK, TensorBytes
from tieaudit.checkpoint import Storage, TensorRecord
from tieaudit.dtypes import DTYPES
from tieaudit.names import Matrix
from tieaudit.relations import Evidence, Kind, Relation, Verify, relate

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64", torch.bool: "BOOL",
}  # fmt: skip
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
ROWS, COLUMNS = 257, 48
FACTOR = 45.254834  # sqrt(2048), the embedding scale of a Gemma


def normal(rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> torch.Tensor:
    """What a trained embedding looks like: standard deviation 0.02."""
    return 0.02 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def stored(name: str, tensor: torch.Tensor, file: str = "") -> tuple[TensorRecord, MemorySource]:
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return raw(name, NAMES[tensor.dtype], tuple(tensor.shape), data, file)


def narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In a dtype that may have few values, yet not constant."""
    if dtype is torch.bool:
        return tensor > 0
    return (tensor * 1000).abs().to(dtype) if not dtype.is_floating_point else (10 * tensor).to(dtype)


def raw(
    name: str, dtype: str, shape: tuple[int, ...], data: bytes, file: str = "", crc: int | None = None
) -> tuple[TensorRecord, MemorySource]:
    file = file or name
    return TensorRecord(name, dtype, shape, Storage(file, "0", 0, len(data), crc), 0, len(data)), MemorySource(file, data)


def related(first: tuple[TensorRecord, MemorySource], second: tuple[TensorRecord, MemorySource], verify: Verify = Verify.FULL) -> Relation:
    (a, source), (b, other) = first, second
    data = TensorBytes({source.name: source, other.name: other})
    return relate(Matrix(a.name, (a,)), Matrix(b.name, (b,)), data, verify)


def between(a: torch.Tensor, b: torch.Tensor, verify: Verify = Verify.FULL) -> Relation:
    return related(stored("a", a), stored("b", b), verify)


def found(relation: Relation) -> tuple[Kind, Evidence]:
    return relation.kind, relation.evidence


# equal and nearly so


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_copy_is_equal_and_proved_in_every_dtype(dtype: torch.dtype) -> None:
    a = narrowed(normal(), dtype)
    assert found(between(a, a.clone())) == (Kind.EQUAL, Evidence.PROVED)
    assert found(between(a, a.clone(), Verify.SAMPLE)) == (Kind.EQUAL, Evidence.SAMPLED)
    assert found(between(a, a.clone(), Verify.HEADERS)) == (Kind.NOT_COMPARED, Evidence.HEADER)


@pytest.mark.parametrize("rows", [1, 2, 7, 4096, 5000])
def test_a_copy_is_equal_at_any_height(rows: int) -> None:
    a = normal(rows, 64)
    assert found(between(a, a.clone())) == (Kind.EQUAL, Evidence.PROVED)


def test_nan_bytes_that_are_the_same_are_equal() -> None:
    a = normal()
    a[3, 5] = float("nan")
    a[9] = float("inf")
    assert found(between(a, a.clone())) == (Kind.EQUAL, Evidence.PROVED)


def test_one_name_twice_for_the_same_bytes_is_one_storage() -> None:
    record, source = stored("a", normal())
    other = TensorRecord("b", record.dtype, record.shape, record.storage, 0, record.nbytes)
    assert found(related((record, source), (other, source))) == (Kind.SAME_STORAGE, Evidence.HEADER)


@pytest.mark.parametrize("at", [(1000, 0), (1000, 511), (2, 300), (2045, 1)])
def test_one_element_among_a_million_is_found_by_full_and_missed_by_samples(at: tuple[int, int]) -> None:
    a = normal(2048, 512)
    b = a.clone()
    b[at] += 1
    relation = between(a, b)
    assert found(relation) == (Kind.NEAR, Evidence.PROVED)
    assert relation.detail == f"row {at[0]:,} differs, of 2,048"
    if at[0] not in (2, 2045):
        assert found(between(a, b, Verify.SAMPLE)) == (Kind.EQUAL, Evidence.SAMPLED)


@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 63])
def test_one_byte_at_the_edges_of_a_chunk_is_found(at: int) -> None:
    first = bytes(range(1, 65)) * ((2 * CHUNK + 64) // 64)
    second = bytearray(first)
    second[at] ^= 0x40
    shape = (len(first) // 64, 64)
    relation = related(raw("a", "U8", shape, first), raw("b", "U8", shape, bytes(second)))
    assert relation.kind is not Kind.EQUAL


def test_minus_zero_is_not_equal_to_zero_byte_for_byte() -> None:
    a = normal()
    a[100, 3] = 0.0
    b = a.clone()
    b[100, 3] = -0.0
    assert between(a, b).kind is Kind.NEAR


@pytest.mark.parametrize("at", [10_000, 50_000])
def test_packed_rows_that_end_within_a_byte_are_compared_to_the_last_byte(at: int) -> None:
    # 3 elements of 4 bits are 1.5 bytes a row: a third of the data lies behind rows * 1 byte
    rows = 40_000
    first = (bytes(range(1, 252)) * 300)[: rows * 3 // 2]
    second = bytearray(first)
    second[at] ^= 1
    relation = related(raw("a", "F4", (rows, 3), first), raw("b", "F4", (rows, 3), bytes(second)))
    assert relation.kind is Kind.NEAR


def test_three_dimensions_that_differ_in_one_byte_are_not_equal() -> None:
    a = torch.stack([normal(seed=seed) for seed in range(8)])
    b = a.clone()
    b[3, 100, 7] += 1
    assert between(a, a.clone()).kind is Kind.EQUAL
    assert between(a, b).kind is Kind.NEAR


@pytest.mark.parametrize("rows", [1, 3])
def test_a_checksum_that_lies_ends_in_no_crash_and_no_equality_claimed_from_it(rows: int) -> None:
    data = normal(rows, 64).numpy().tobytes()
    relation = related(raw("a", "F32", (rows, 64), data, crc=1), raw("b", "F32", (rows, 64), data, crc=2))
    assert isinstance(relation, Relation)


def test_equal_checksums_over_different_bytes_are_not_equal() -> None:
    a, b = normal().numpy().tobytes(), normal(seed=1).numpy().tobytes()
    for verify in (Verify.FULL, Verify.SAMPLE):
        relation = related(raw("a", "F32", (ROWS, COLUMNS), a, crc=7), raw("b", "F32", (ROWS, COLUMNS), b, crc=7), verify)
        assert relation.kind is Kind.UNRELATED


# casts


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("swap", [False, True], ids=["wide first", "narrow first"])
def test_a_rounded_copy_is_a_cast_in_both_directions(narrow: torch.dtype, swap: bool) -> None:
    a = normal()
    pair = (a.to(narrow), a) if swap else (a, a.to(narrow))
    relation = between(*pair)
    assert found(relation) == (Kind.CAST, Evidence.PROVED)
    assert "rounded to" in relation.detail
    assert found(between(*pair, Verify.SAMPLE)) == (Kind.CAST, Evidence.SAMPLED)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_widened_copy_is_told_from_a_rounded_one(narrow: torch.dtype) -> None:
    wide = torch.float64 if narrow is torch.float32 else torch.float32
    b = normal().to(narrow)
    relation = between(b.to(wide), b)
    assert found(relation) == (Kind.CAST, Evidence.PROVED)
    assert relation.detail.startswith("a is b widened")


def test_a_double_that_holds_more_than_the_float_was_rounded_not_widened() -> None:
    a = normal().double() * (1 + 1e-10)
    relation = between(a, a.float())
    assert relation.kind is Kind.CAST
    assert relation.detail.startswith("b is a rounded")


def test_casts_with_nan_inf_and_subnormals_are_casts() -> None:
    a = normal()
    a[0, :6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-41, 3e38, -0.0])
    assert found(between(a, a.bfloat16())) == (Kind.CAST, Evidence.PROVED)
    assert found(between(a, a.half())) == (Kind.CAST, Evidence.PROVED)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_an_8_bit_copy_is_a_cast(dtype: torch.dtype) -> None:
    a = 10 * normal()
    assert between(a, a.to(dtype)).kind is Kind.CAST
    assert between(a.to(dtype), a).kind is Kind.CAST


@pytest.mark.parametrize("dtype", [*FLOAT8, torch.int8, torch.uint8, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_stranger_in_a_narrower_dtype_is_no_cast(dtype: torch.dtype, verify: Verify, wide: torch.dtype) -> None:
    a, b = (10 * normal()).to(wide), narrowed(normal(seed=1), dtype)
    for pair in ((a, b), (b, a)):
        relation = between(*pair, verify)
        assert relation.kind in (Kind.UNRELATED, Kind.NOT_COMPARED)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_a_cast_of_which_one_row_was_changed_is_not_proved_a_cast(narrow: torch.dtype) -> None:
    a = 10 * normal(4096, 64)
    b = a.to(narrow).float()
    b[1000] = 10 * normal(1, 64, seed=5)[0]
    relation = between(a, b.to(narrow))
    assert relation.kind is Kind.NEAR


def test_float16_beside_bfloat16_of_one_origin_is_a_cast() -> None:
    a = normal()
    assert between(a.half(), a.bfloat16()).kind is Kind.CAST


def test_float16_beside_bfloat16_is_no_cast_when_full_was_asked_and_unsampled_rows_differ() -> None:
    a = normal(4096, 64)
    b = a.bfloat16()
    b[1000:1004] = normal(4, 64, seed=5).bfloat16()
    assert between(a.half(), b).kind is not Kind.CAST


def test_truncated_bfloat16_is_a_cast_and_not_proved_from_samples() -> None:
    a = normal(4096, 64)
    b = (a.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()
    assert between(a, b).kind is Kind.CAST
    b[1000] = normal(1, 64, seed=5)[0].bfloat16()
    assert between(a, b).kind is not Kind.CAST


def test_an_infinity_is_not_a_rounded_finite_number() -> None:
    a = normal().half()
    b = normal().bfloat16()
    b[0, 0] = float("inf")
    assert between(a, b).kind is not Kind.CAST


# transposed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_transposed_copy_is_found_and_proved(dtype: torch.dtype) -> None:
    a = normal().to(dtype)
    assert found(between(a, a.T)) == (Kind.TRANSPOSED, Evidence.PROVED)
    assert found(between(a, a.T, Verify.SAMPLE)) == (Kind.TRANSPOSED, Evidence.SAMPLED)


def test_a_transposed_copy_that_is_cut_into_strips_is_proved() -> None:
    a = normal(2100, 300)
    assert found(between(a, a.T)) == (Kind.TRANSPOSED, Evidence.PROVED)
    b = a.T.clone()
    b[150, 1999] += 1
    assert between(a, b).kind is not Kind.TRANSPOSED


def test_a_square_transposed_copy_is_found() -> None:
    a = normal(64, 64)
    assert between(a, a.T).kind is Kind.TRANSPOSED


def test_a_transposed_copy_with_infinities_and_nan_is_found() -> None:
    a = normal()
    a[:, 3] = float("inf")
    a[7] = float("nan")
    assert between(a, a.T).kind is Kind.TRANSPOSED


def test_a_transposed_copy_in_another_dtype_is_transposed() -> None:
    a = normal()
    assert between(a, a.T.bfloat16()).kind is Kind.TRANSPOSED
    assert between(a.half(), a.T.contiguous()).kind is Kind.TRANSPOSED


@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
def test_square_matrices_that_are_mostly_zero_are_not_transposed_because_of_their_zeros(verify: Verify) -> None:
    a, b = torch.zeros(256, 256), torch.zeros(256, 256)
    a[0], a[-1] = normal(1, 256)[0], normal(1, 256, seed=1)[0]
    b[0], b[-1] = normal(1, 256, seed=2)[0], normal(1, 256, seed=3)[0]
    assert between(a, b, verify).kind is not Kind.TRANSPOSED


@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
def test_swapped_shapes_of_strangers_are_unrelated(verify: Verify) -> None:
    assert between(normal(), normal(seed=1).T, verify).kind is Kind.UNRELATED


# scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("factor", [FACTOR, 1 / FACTOR, 2.0, -1.0], ids=["sqrt(2048)", "1/sqrt(2048)", "2", "-1"])
def test_a_scaled_copy_is_found_with_its_factor(dtype: torch.dtype, factor: float) -> None:
    a = normal().to(dtype)
    relation = between(a, (a.float() * factor).to(dtype))
    assert relation.kind is Kind.SCALED
    assert float(relation.detail.split(" = ")[1].split(" x ")[0]) == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("rows", [3, 100])
def test_a_copy_scaled_but_for_some_rows_is_no_scaled_copy_when_full_was_asked(rows: int) -> None:
    """A note says that a scaled pair `must stay untied`; a pair that differs elsewhere is something else."""
    a = normal(4096, 64)
    b = FACTOR * a
    b[1000 : 1000 + rows] = normal(rows, 64, seed=9)
    relation = between(a, b)
    assert relation.kind is not Kind.SCALED or relation.evidence is Evidence.SAMPLED


# padding and rows


def test_rows_on_one_side_only_are_padding_in_both_directions() -> None:
    a = normal(300, 64)
    b = torch.cat([a, normal(20, 64, seed=3)])
    for pair in ((a, b), (b, a)):
        relation = between(*pair)
        assert found(relation) == (Kind.PADDED, Evidence.PROVED)
        assert relation.detail == "the first 300 rows are equal, rows 300 to 319 are on one side only"
        assert found(between(*pair, Verify.SAMPLE)) == (Kind.PADDED, Evidence.SAMPLED)


def test_last_rows_that_differ_are_padding() -> None:
    a = normal(3000, 64)
    b = a.clone()
    b[2990:] = 0
    relation = between(a, b)
    assert found(relation) == (Kind.PADDED, Evidence.PROVED)
    assert "rows 2,990 to 2,999 differ" in relation.detail
    assert between(b, a).kind is Kind.PADDED


def test_first_rows_that_differ_are_no_padding() -> None:
    a = normal(3000, 64)
    b = a.clone()
    b[:10] = 0
    assert between(a, b).kind is Kind.NEAR


def test_more_rows_with_a_changed_one_among_the_shared_are_no_padding() -> None:
    a = normal(3000, 64)
    b = torch.cat([a, normal(8, 64, seed=3)])
    b[1700, 5] += 1
    assert between(a, b).kind is Kind.ROWS_DIFFER


def test_other_row_counts_of_strangers_differ_in_rows() -> None:
    assert found(between(normal(300), normal(320, seed=1))) == (Kind.ROWS_DIFFER, Evidence.HEADER)


def test_headers_alone_tell_that_rows_differ() -> None:
    a = normal(300)
    assert found(between(a, torch.cat([a, a]), Verify.HEADERS)) == (Kind.ROWS_DIFFER, Evidence.HEADER)


# near and far


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
def test_a_drifted_copy_is_near_and_says_its_cosine(dtype: torch.dtype, verify: Verify) -> None:
    a = normal()
    b = a + 0.14 * normal(seed=1)  # cosine 0.99
    relation = between(a.to(dtype), b.to(dtype), verify)
    assert found(relation) == (Kind.NEAR, Evidence.SAMPLED)
    assert float(relation.detail.split("cosine ")[1]) == pytest.approx(0.99, abs=0.003)


def test_a_drift_below_the_resolution_of_the_samples_is_near() -> None:
    a = normal()
    b = a * (1 + 1e-4 * torch.randn(a.shape, generator=torch.Generator().manual_seed(4)))
    assert between(a, b).kind is Kind.NEAR


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, *FLOAT8], ids=str)
@pytest.mark.parametrize("verify", [Verify.FULL, Verify.SAMPLE])
def test_independent_matrices_are_unrelated(dtype: torch.dtype, verify: Verify) -> None:
    a, b = normal(), normal(seed=1)
    assert between((10 * a).to(dtype), (10 * b).to(dtype), verify).kind is Kind.UNRELATED


def test_independent_matrices_with_infinities_are_unrelated_without_a_warning() -> None:
    a, b = normal(), normal(seed=1)
    a[0], b[0] = float("inf"), float("-inf")
    a[5, 5] = float("nan")
    assert between(a, b).kind is Kind.UNRELATED
    assert between(a.half(), b.bfloat16()).kind is Kind.UNRELATED


def test_all_nan_on_one_side_is_no_relation() -> None:
    a, b = normal(), normal()
    b[:] = float("nan")
    b[:, 0] = 1.0
    assert between(a, b).kind is Kind.UNRELATED


# constants


@pytest.mark.parametrize("number", [0.0, 1.0, -0.02, float("nan")])
@pytest.mark.parametrize("shape", [(64, 64), (41, 25), (3, 683), (1025, 1), (2051, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_constant_matrix_is_constant_whatever_its_size(number: float, shape: tuple[int, int], dtype: torch.dtype) -> None:
    a = torch.full(shape, number, dtype=dtype)
    for verify, evidence in ((Verify.FULL, Evidence.PROVED), (Verify.SAMPLE, Evidence.SAMPLED)):
        assert found(between(a, a.clone(), verify)) == (Kind.CONSTANT, evidence)
        assert found(between(a, normal(*shape).to(dtype), verify)) == (Kind.CONSTANT, evidence)


def test_a_matrix_of_zeros_but_for_one_element_is_not_proved_constant() -> None:
    a = torch.zeros(2048, 512)
    a[700, 3] = 1
    assert between(a, normal(2048, 512)).kind is not Kind.CONSTANT
    assert between(a, a.clone()).kind is Kind.EQUAL


# what does not fit


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 8), (0, 8)), ((0, 8), (4, 8)), ((4, 0), (4, 0)), ((0,), (0,))],
    ids=str,
)
@pytest.mark.parametrize("verify", Verify)
def test_empty_tensors_are_not_compared(first: tuple[int, ...], second: tuple[int, ...], verify: Verify) -> None:
    assert between(torch.zeros(first), torch.ones(second), verify).kind is Kind.NOT_COMPARED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((64, 32), (64, 31)),
        ((64, 32), (2048,)),
        ((64, 32), (4, 16, 32)),
        ((4, 16, 32), (4, 16, 31)),
        ((64,), (65,)),
        ((), (1,)),
        ((), (64, 32)),
    ],
    ids=str,
)
@pytest.mark.parametrize("verify", Verify)
def test_shapes_that_do_not_fit_have_no_relation(first: tuple[int, ...], second: tuple[int, ...], verify: Verify) -> None:
    a, b = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed, shape in enumerate((first, second)))
    assert between(a, b, verify).kind in (Kind.UNRELATED, Kind.NOT_COMPARED, Kind.ROWS_DIFFER)


def test_scalars_and_vectors_are_related_too() -> None:
    assert between(torch.tensor(2.0), torch.tensor(2.0)).kind is Kind.EQUAL
    a = normal()[0]
    assert between(a, a.clone()).kind is Kind.EQUAL
    assert between(a, a.bfloat16()).kind is Kind.CAST
    assert between(a, normal(seed=1)[0]).kind is Kind.UNRELATED


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "C64"])
def test_dtypes_without_numbers_are_compared_by_bytes(dtype: str) -> None:
    shape = (64, 64)
    size = 64 * 64 * DTYPES[dtype].bits // 8
    a, b = (normal(seed=seed, rows=1, columns=size).numpy().tobytes()[:size] for seed in (0, 1))
    assert related(raw("a", dtype, shape, a), raw("b", dtype, shape, a)).kind is Kind.EQUAL
    assert related(raw("a", dtype, shape, a), raw("b", dtype, shape, b)).kind is Kind.UNRELATED


def test_compressed_and_strided_tensors_are_not_compared() -> None:
    record, source = stored("a", normal())
    other, beside = stored("b", normal())
    compressed = TensorRecord("b", "F32", other.shape, Storage("b", "0", None, other.nbytes), 0, other.nbytes)
    strided = TensorRecord("b", "F32", other.shape, other.storage, 0, other.nbytes, (1, ROWS))
    for odd in (compressed, strided):
        assert related((record, source), (odd, beside)).kind is Kind.NOT_COMPARED
        assert related((odd, beside), (record, source)).kind is Kind.NOT_COMPARED


def test_a_file_that_ends_early_makes_the_pair_not_comparable() -> None:
    record, source = stored("a", normal())
    other, beside = stored("b", normal())
    cut = MemorySource("b", beside.data[:-1])
    relation = related((record, source), (other, cut))
    assert relation.kind is Kind.NOT_COMPARED
    assert "ends at byte" in relation.detail


# cost


CASES: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "strangers of two rows": lambda: (torch.rand(2, 6_000_000), torch.rand(2, 6_000_000)),
    "strangers in one row": lambda: (torch.rand(12_000_000), torch.rand(12_000_000)),
    "copies in two dtypes": lambda: ((a := torch.rand(2, 6_000_000)), a.bfloat16()),
    "one element of two rows": lambda: ((a := torch.rand(2, 6_000_000)), a + torch.eye(2, 6_000_000)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_any_length_are_read_in_bounded_pieces(case: str) -> None:
    """A hostile header makes two rows of a 40 GB file; memory must not follow the row."""

    class Watched(MemorySource):
        def read(self, offset: int, n: int) -> bytes:
            assert n <= 8 << 20, f"{n:,} bytes asked for at once"
            return super().read(offset, n)

        def read_into(self, offset: int, buffer: memoryview) -> None:
            buffer[:] = memoryview(self.data)[offset : offset + len(buffer)]

    (a, source), (b, beside) = (stored(name, tensor) for name, tensor in zip("ab", CASES[case](), strict=True))
    related((a, Watched("a", source.data)), (b, Watched("b", beside.data)))


def test_samples_read_pages_whatever_the_length() -> None:
    a, b = stored("a", normal(4096, 512)), stored("b", normal(4096, 512))
    related(a, b, Verify.SAMPLE)
    assert a[1].meter.bytes_read + b[1].meter.bytes_read < 100_000


SCRIPT = """
import sys
from tieaudit import audit
report = audit(sys.argv[1])
print(*sorted(name for name in ("numpy", "torch", "transformers", "safetensors", "pickle") if name in sys.modules))
"""


def imported(target: Path) -> list[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT, str(target)], capture_output=True, text=True, check=True).stdout.split()


def model(path: Path, head: torch.Tensor | None) -> Path:
    from builders import folder, safetensors, tied

    tensors = {"model.embed_tokens.weight": normal(32, 8).numpy()}
    if head is not None:
        tensors["lm_head.weight"] = head.numpy()
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors(tensors)})


def test_numpy_is_imported_only_to_compare_values(tmp_path: Path) -> None:
    assert imported(model(tmp_path / "copies", normal(32, 8))) == []  # neither torch, nor pickle, …
    assert imported(model(tmp_path / "one", None)) == []
    assert "numpy" in imported(model(tmp_path / "two", normal(32, 8, seed=1)))
