"""Remote folders: what is fetched, in how many requests, and what is kept."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieaudit.errors import FormatError, ReadError
from tieaudit.sources import Entry, Meter
from tieaudit.sources.pages import LARGE, MAX_LARGE, Pages
from tieaudit.sources.remote import AHEAD, MAX_AHEAD, NEAR, PIECE, RemoteFolder


@dataclass
class Store:
    """Bytes from memory; `asked` is what was fetched."""

    files: dict[str, bytes]
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def fetch(self, name: str, offset: int, n: int) -> bytes:
        self.asked.append((name, offset, n))
        if name in self.broken:
            raise ReadError(name, "cannot be read")
        data = self.files[name][offset : offset + n]
        assert len(data) == n > 0
        return data

    def whole(self, entry: Entry) -> bytes:
        self.asked.append((entry.name, 0, entry.nbytes))
        return self.files[entry.name]

    def close(self) -> None:
        pass


def opened(**sizes: int) -> tuple[RemoteFolder, Store]:
    files = {name.replace("__", "/").replace("_", "."): random.Random(name).randbytes(n) for name, n in sizes.items()}
    store = Store(files)
    return RemoteFolder(store, {name: Entry(name, len(data)) for name, data in files.items()}, Meter()), store


EXTENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(EXTENTS, EXTENTS)
def test_pages_give_what_was_added_and_name_what_is_missing(added: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    content, pages, known = bytes(range(100)), Pages(), set()
    for begin, n in added:
        for start, stop in pages.missing(begin, begin + n):
            assert known.isdisjoint(range(start, stop))
            pages.add(start, content[start:stop])
        known |= set(range(begin, begin + n))
    for begin, n in asked:
        missing = {at for start, stop in pages.missing(begin, begin + n) for at in range(start, stop)}
        assert missing == set(range(begin, begin + n)) - known
        if not missing:
            assert pages.read(begin, begin + n) == content[begin : begin + n]


def test_pages_let_go_of_long_runs_and_keep_short_ones() -> None:
    pages = Pages()
    pages.add(0, b"short")
    for number in range(1, 40):
        pages.add(number * LARGE * 2, bytes(LARGE + 1))
        pages.trim()
    assert pages.read(0, 5) == b"short"
    assert sum(map(len, pages._runs.values())) <= MAX_LARGE + 5


@given(st.lists(st.tuples(st.integers(0, 299_999), st.integers(1, 100_000)), min_size=1, max_size=8))
def test_any_reads_give_the_files_bytes(reads: list[tuple[int, int]]) -> None:
    folder, store = opened(a_bin=300_000)
    source = folder.open("a.bin")
    for offset, longest in reads:
        n = min(longest, 300_000 - offset)
        assert source.read(offset, n) == store.files["a.bin"][offset : offset + n]
        buffer = bytearray(n)
        source.read_into(offset, memoryview(buffer))
        assert buffer == store.files["a.bin"][offset : offset + n]
    folder.close()


def test_what_was_fetched_is_not_fetched_again() -> None:
    folder, store = opened(a_bin=10_000)
    source = folder.open("a.bin")
    folder.prefetch([("a.bin", 0, 100)])
    assert folder.held("a.bin", 0, 100)
    assert not folder.held("a.bin", 0, 101)
    source.read(0, 100)
    source.read(50, 100)
    assert store.asked == [("a.bin", 0, 100), ("a.bin", 100, 50)]
    folder.close()


def test_near_reads_are_one_request_and_far_ones_are_not() -> None:
    folder, store = opened(a_bin=1_000_000, b_bin=1_000_000)
    folder.prefetch([("a.bin", 0, 10), ("a.bin", 10 + NEAR, 10), ("a.bin", 500_000, 10), ("b.bin", 5, 10), ("none", 0, 5), ("b.bin", 0, 0)])
    assert sorted(store.asked) == [("a.bin", 0, 20 + NEAR), ("a.bin", 500_000, 10), ("b.bin", 5, 10)]
    folder.close()


def test_a_long_read_is_split_and_a_sequential_one_reads_ahead() -> None:
    folder, store = opened(a_bin=3 * PIECE)
    source = folder.open("a.bin")
    source.read(0, 2 * PIECE + 5)
    assert sorted(store.asked) == [("a.bin", 0, PIECE), ("a.bin", PIECE, PIECE), ("a.bin", 2 * PIECE, 5)]
    folder, store = opened(a_bin=16 << 20)
    source = folder.open("a.bin")
    step = 128 << 10
    for at in range(0, 16 << 20, step):
        assert source.read(at, step) == store.files["a.bin"][at : at + step]
    assert store.asked[:2] == [("a.bin", 0, step), ("a.bin", step, step + AHEAD)]
    assert len(store.asked) < 16
    assert sum(n for _, _, n in store.asked) == 16 << 20
    assert max(n for _, _, n in store.asked) <= PIECE <= MAX_AHEAD
    folder.close()


def test_a_file_that_fails_fails_when_it_is_read_and_only_once() -> None:
    folder, store = opened(a_bin=1000, b_bin=1000)
    store.broken.add("a.bin")
    folder.prefetch([("a.bin", 0, 10), ("b.bin", 0, 10)])
    assert folder.open("b.bin").read(0, 10)
    for _ in range(2):
        with pytest.raises(ReadError):
            folder.open("a.bin").read(0, 10)
    assert [name for name, _, _ in store.asked].count("a.bin") == 1
    folder.close()


def test_small_files_come_whole_and_large_tokenizers_by_range() -> None:
    folder, store = opened(config_json=100, tokenizer_json=1 << 20)
    folder.open("config.json").read(10, 5)
    folder.open("tokenizer.json").read(0, 5)
    assert store.asked == [("config.json", 0, 100), ("tokenizer.json", 0, 5)]
    folder.close()


def test_the_path_rule_is_that_of_folders() -> None:
    folder, _ = opened(a_bin=1, sub__b_bin=1, sub__deep__c_bin=1)
    assert [entry.name for entry in folder.entries()] == ["a.bin"]
    assert folder.subfolders() == ["sub"]
    assert [entry.name for entry in folder.inside("sub")] == ["b.bin"]
    assert folder.open("sub/b.bin").nbytes == 1
    for name in ("../x", "/etc/passwd", "", "a\\b", "x\0"):
        assert folder.exists(name)
        with pytest.raises(FormatError, match="leaves the folder"):
            folder.open(name)
    assert not folder.exists("none")
    with pytest.raises(FormatError, match="No such file"):
        folder.open("none")


@pytest.mark.parametrize(("offset", "n"), [(0, 11), (10, 1), (11, 0), (-1, 1), (0, -1), (1 << 70, 1)])
def test_reads_beyond_the_file_are_format_errors(offset: int, n: int) -> None:
    folder, store = opened(a_bin=10)
    with pytest.raises(FormatError, match="ends at byte 10"):
        folder.open("a.bin").read(offset, n)
    assert not store.asked


def test_an_empty_read_costs_nothing() -> None:
    folder, store = opened(a_bin=10)
    assert folder.open("a.bin").read(10, 0) == b""
    assert not store.asked
