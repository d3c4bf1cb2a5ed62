"""Range arithmetic, held to plain sets of integers."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from tieaudit.extents import covered, gaps, merged, span

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)
WHOLE = st.tuples(st.integers(0, 40), st.integers(0, 40))


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {byte for begin, end in ranges for byte in range(begin, end)}


@given(RANGES)
def test_merged_is_the_union_sorted_disjoint_and_not_touching(ranges: list[tuple[int, int]]) -> None:
    runs = merged(ranges)
    assert members(runs) == members(ranges)
    assert all(begin < end for begin, end in runs)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(runs))


@given(RANGES)
def test_covered_counts_each_byte_once(ranges: list[tuple[int, int]]) -> None:
    assert covered(ranges) == len(members(ranges))


@given(RANGES, WHOLE)
def test_gaps_are_the_bytes_of_the_whole_that_nothing_covers(ranges: list[tuple[int, int]], whole: tuple[int, int]) -> None:
    found = gaps(ranges, whole)
    assert members(found) == set(range(*whole)) - members(ranges)
    assert all(begin < end for begin, end in found)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(found))


@given(RANGES, st.randoms(use_true_random=False))
def test_order_of_the_ranges_does_not_matter(ranges: list[tuple[int, int]], dice: object) -> None:
    shuffled = list(ranges)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merged(shuffled) == merged(ranges)


def test_the_running_maximum_decides_not_the_end_of_the_range_before() -> None:
    assert merged([(0, 3), (1, 2), (2, 3)]) == [(0, 3)]
    assert merged([(0, 10), (1, 2), (5, 6)]) == [(0, 10)]


def test_ranges_that_touch_are_one_run() -> None:
    assert merged([(4, 8), (0, 4)]) == [(0, 8)]


def test_empty_ranges_are_nothing() -> None:
    assert merged([(3, 3), (9, 2)]) == []
    assert gaps([(3, 3)], (0, 5)) == [(0, 5)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5)), max_size=4), st.integers(1, 8))
def test_span_reaches_from_the_lowest_element_to_behind_the_highest(dims: list[tuple[int, int]], itemsize: int) -> None:
    shape, strides = [dim for dim, _ in dims], [step for _, step in dims]
    places = [sum(i * step for i, step in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))]
    assert span(shape, strides, itemsize) == ((max(places) - min(places) + 1) * itemsize if places else 0)


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 8))
def test_span_without_strides_is_the_dense_size(shape: list[int], itemsize: int) -> None:
    assert span(shape, None, itemsize) == math.prod(shape) * itemsize
