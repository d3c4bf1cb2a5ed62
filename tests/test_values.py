"""Numbers behind bytes, held to torch bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tieaudit import values
from tieaudit.dtypes import DTYPES, SAFETENSORS_DTYPES

TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool,
}  # fmt: skip
FLOAT8 = ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"]

SPECIAL = [
    0x00000000, 0x80000000,  # zeros
    0x00000001, 0x80000001, 0x007FFFFF, 0x00400000, 0x00008000, 0x00007FFF, 0x00018000,  # subnormals
    0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF,  # smallest normal, largest, those that round to infinity and not
    0x7F800000, 0xFF800000,  # infinities
    0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0x7F80FFFF, 0xFFFFFFFF,  # NaN, quiet and signalling
    0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001,  # ties to even in BF16
    0x3F801000, 0x3F803000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001, 0x38800000, 0x387FC000,  # and in F16
]  # fmt: skip


def patterns() -> np.ndarray:
    """float32 by bit pattern: the special ones and a seeded 200,000 over the whole range."""
    dice = np.random.default_rng(7)
    return np.concatenate([np.array(SPECIAL, np.uint32), dice.integers(0, 1 << 32, 200_000, dtype=np.uint32)]).view(np.float32)


def torch_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def same_bits(ours: np.ndarray, truth: torch.Tensor) -> bool:
    """Equal bit by bit; any NaN for any NaN, since the payload of a NaN is nobody's value."""
    other = truth.numpy()
    return bool(np.all((ours.view(np.uint32) == other.view(np.uint32)) | (np.isnan(ours) & np.isnan(other))))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_16_bit_pattern_decodes_as_in_torch(dtype: str) -> None:
    raw = np.arange(1 << 16, dtype=np.uint16).tobytes()
    assert same_bits(values.decode(raw, dtype), torch.frombuffer(bytearray(raw), dtype=TORCH[dtype]).float())


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_8_bit_float_decodes_as_in_torch(dtype: str) -> None:
    raw = bytes(range(256))
    assert same_bits(values.decode(raw, dtype), torch.frombuffer(bytearray(raw), dtype=TORCH[dtype]).float())


@pytest.mark.parametrize("dtype", sorted(name for name in TORCH if DTYPES[name].kind != "float"))
def test_integers_decode_as_in_torch(dtype: str) -> None:
    raw = np.random.default_rng(3).integers(0, 256, 4096, dtype=np.uint8)
    if dtype == "BOOL":
        raw &= 1
    assert same_bits(values.decode(raw.tobytes(), dtype), torch.frombuffer(bytearray(raw.tobytes()), dtype=TORCH[dtype]).float())


def test_float64_is_rounded_to_float32_as_torch_does() -> None:
    dice = np.random.default_rng(5)
    raw = np.concatenate(
        [dice.standard_normal(2000) * 10.0 ** dice.integers(-320, 308, 2000), [np.nan, np.inf, -np.inf, 1e308, 5e-324, -0.0]]
    )
    assert same_bits(values.decode(raw.tobytes(), "F64"), torch.from_numpy(raw).float())


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F64", "F32"])
def test_casts_give_the_bits_of_torch(dtype: str) -> None:
    numbers = patterns()
    width = DTYPES[dtype].bits // 8
    ours = np.frombuffer(values.encode(numbers, dtype) or b"", np.uint8).reshape(-1, width)
    truth = np.frombuffer(torch_bytes(torch.from_numpy(numbers.copy()).to(TORCH[dtype])), np.uint8).reshape(-1, width)
    both_nan = np.isnan(numbers)
    assert np.array_equal(ours[~both_nan], truth[~both_nan])
    # a NaN stays a NaN; its payload is not part of the contract of any framework
    assert np.isnan(values.decode(ours[both_nan].tobytes(), dtype)).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16", *FLOAT8])
def test_a_value_that_the_dtype_has_survives_the_way_there_and_back(dtype: str) -> None:
    count = 1 << DTYPES[dtype].bits
    raw = np.arange(count, dtype=np.uint16 if count > 256 else np.uint8).tobytes()
    numbers = values.decode(raw, dtype)
    again = values.encode(numbers, dtype)
    if again is not None:  # no rule for the 8-bit floats is an answer too; a wrong one is not
        assert same_bits(values.decode(again, dtype), torch.from_numpy(numbers))


@pytest.mark.parametrize("dtype", sorted(SAFETENSORS_DTYPES))
def test_decodable_tells_whether_decode_knows_the_dtype(dtype: str) -> None:
    if values.decodable(dtype):
        assert len(values.decode(bytes(16), dtype)) == 128 // DTYPES[dtype].bits
    else:
        assert dtype in {"F4", "F6_E2M3", "F6_E3M2", "C64"}


def test_cosine_leaves_out_what_is_not_finite() -> None:
    a = np.array([1, 2, np.nan, np.inf, 3], np.float32)
    b = np.array([1, 2, 5, 5, 3], np.float32)
    assert values.cosine(a, b) == pytest.approx(1)


def test_cosine_of_nothing_is_zero() -> None:
    zero, one = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert values.cosine(zero, one) == 0
    assert values.cosine(np.full(4, np.nan, np.float32), one) == 0


@pytest.mark.parametrize("number", [45.254834, -1.0, 2.0, 0.5, 1 / 45.254834, 1e-20, 1e20])
def test_factor_is_found(number: float) -> None:
    a = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    found = values.factor(a, (a * np.float32(number)).astype(np.float32), 2.0**-22)
    assert found == pytest.approx(number, rel=1e-5)


def test_no_factor_between_strangers_or_where_it_would_say_nothing() -> None:
    dice = np.random.default_rng(2)
    a, b = dice.standard_normal((2, 500)).astype(np.float32)
    zero = np.zeros(500, np.float32)
    assert values.factor(a, b, 2.0**-6) is None
    assert values.factor(a, a, 2.0**-6) is None
    assert values.factor(a, zero, 2.0**-6) is None
    assert values.factor(zero, a, 2.0**-6) is None


def test_no_factor_where_something_is_not_finite() -> None:
    a = np.array([1, np.inf, 0, 2], np.float32)
    assert values.factor(a, a * 2, 0.01) is None
    assert values.factor(np.ones(4, np.float32), np.array([2, np.nan, 2, 2], np.float32), 0.01) is None


def test_same_infinities_and_nans_are_the_same_up_to_rounding() -> None:
    a = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    assert values.same_up_to_rounding(a, a.copy(), 0.0)
    assert not values.same_up_to_rounding(a, -a, 0.1)
    assert not values.same_up_to_rounding(np.array([np.nan], np.float32), np.array([1], np.float32), 0.1)
    assert not values.same_up_to_rounding(np.array([np.inf], np.float32), np.array([1], np.float32), 0.1)


@given(st.integers(1, 9), st.integers(1, 9), st.sets(st.integers(0, 80)))
def test_differing_rows_are_those_that_differ(height: int, width: int, touched: set[int]) -> None:
    first = bytearray(height * width)
    second = bytearray(first)
    for at in touched:
        if at < len(second):
            second[at] ^= 0x80
    expected = sorted({at // width for at in touched if at < height * width})
    assert list(values.differing_rows(bytes(first), bytes(second), width)) == expected
