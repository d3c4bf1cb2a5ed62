"""This file holds how stored bytes are read and compared: samples reject, a full compare proves. Bytes decide, NaN included.

Costs measured on 3 GB: samples of every tensor 0.04 s and 0.4 MB; a full compare runs at 0.7 of the speed of comparing memory
with two reused buffers, where a SHA-256 of every tensor takes 4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .checkpoint import TensorRecord
from .dtypes import DTYPES
from .errors import FormatError
from .extents import span
from .sources import Source, Wanted
from .sources.parts import Stitched, runs

SAMPLE = 4096  # bytes; one page
REMOTE_SAMPLE = 8192  # bytes; a request costs more than they do, and one row of most matrices fits in
PLENTY = 1 << 60
MIDDLE, BEGIN, END = 0, 1, 2  # places of samples
CHUNK = 1 << 18  # bytes compared at once: two of them and their pages stay in the second-level cache


def _no_progress(_n: int) -> None:
    return None


class Reach(Protocol):
    """What is asked of the way to the files, as `Folder` answers it."""

    @property
    def remote(self) -> bool: ...

    def prefetch(self, wanted: Iterable[Wanted]) -> None: ...

    def held(self, name: str, offset: int, n: int) -> bool: ...

    def spare(self) -> int: ...


@dataclass(slots=True)
class TensorBytes:
    """Reads bytes of tensors from their files. `advanced` is told how many bytes a full compare has covered.

    In a remote `folder` every place of a sample is a request. The begin and the end tell most there: the begin of a file's first
    tensor was fetched with the header, and rows that one side got alone (new tokens) stand at the end.
    """

    sources: Mapping[str, Source]
    advanced: Callable[[int], None] = _no_progress
    folder: Reach | None = None
    remote: bool = field(init=False)
    window: int = field(init=False)
    """Bytes of a sample."""
    telling: int = field(init=False)
    """The place that is looked at first, and alone where thousands of tensors are told apart."""
    _compared: dict[tuple[TensorRecord, TensorRecord], int | None] = field(default_factory=dict)
    _buffers: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(CHUNK), bytearray(CHUNK)))

    def __post_init__(self) -> None:
        self.remote = self.folder is not None and self.folder.remote
        self.window, self.telling = (REMOTE_SAMPLE, BEGIN) if self.remote else (SAMPLE, MIDDLE)

    def readable(self, tensor: TensorRecord) -> bool:
        """The bytes lie uncompressed, row-major and whole in files that can be opened."""
        storage = tensor.storage
        known = all(file in self.sources for file, _, _ in storage.pieces) if storage.pieces else tensor.file in self.sources
        return storage.offset is not None and tensor.strides is None and known

    def read(self, tensor: TensorRecord, offset: int, n: int) -> bytes:
        """`n` bytes from `offset` bytes behind the tensor's begin. FormatError if they are not there."""
        source, at = self._place(tensor)
        return source.read(at + offset, n)

    @property
    def spare(self) -> int:
        """Requests that may be spent on what was not asked for by name."""
        return self.folder.spare() if self.folder is not None else PLENTY

    def sample(self, tensor: TensorRecord, which: int) -> bytes:
        """One page of the tensor: its MIDDLE, BEGIN or END."""
        return self.read(tensor, *self._extent(tensor, which))

    def samples_equal(self, a: TensorRecord, b: TensorRecord) -> bool:
        if a.nbytes != b.nbytes or crcs_differ(a, b):
            return False
        self.prefetch((a, b))
        tells = False
        for which in self._places(a, b):
            page = self.sample(a, which)
            if page != self.sample(b, which):
                return False
            tells = tells or not one_word(page, page[: element(a)])
        # two different embeddings can both begin and end with rows of zeros
        return tells or self.sample(a, MIDDLE) == self.sample(b, MIDDLE)

    def prefetch(self, tensors: Iterable[TensorRecord], places: Iterable[int] = (BEGIN, END)) -> None:
        """Fetch samples of all these tensors at once, if that is worth anything."""
        if self.folder is not None and self.remote:
            wanted = [(tensor, self._extent(tensor, which)) for tensor in tensors for which in places if self.readable(tensor)]
            self.folder.prefetch([run for tensor, (offset, n) in wanted for run in _runs(tensor, offset, n)])

    def held(self, tensor: TensorRecord, which: int) -> bool:
        """True if this sample costs no request."""
        offset, n = self._extent(tensor, which)
        return self.folder is None or all(self.folder.held(*run) for run in _runs(tensor, offset, n))

    def at_hand(self, *tensors: TensorRecord, fetch: int = 0) -> bool:
        """True if any part of these tensors costs no request. Those of at most `fetch` bytes are fetched whole."""
        if self.folder is None or not self.folder.remote:
            return True
        if fetch:
            self.folder.prefetch([run for tensor in tensors if tensor.nbytes <= fetch for run in _runs(tensor, 0, tensor.nbytes)])
        return all(self.folder.held(*run) for tensor in tensors for run in _runs(tensor, 0, tensor.nbytes))

    def _places(self, *tensors: TensorRecord) -> tuple[int, ...]:
        """Where samples are compared: everywhere, but only where it costs nothing in the middle of remote tensors."""
        if self.remote and not all(self.held(tensor, MIDDLE) for tensor in tensors):
            return (BEGIN, END)
        return (MIDDLE, BEGIN, END)

    def _extent(self, tensor: TensorRecord, which: int) -> tuple[int, int]:
        """(offset in the tensor, bytes) of a sample."""
        n, wide = min(self.window, tensor.nbytes), element(tensor)
        # from the begin of an element (or block) on, so that a constant shows as one repeated word
        if which == MIDDLE:
            middle = (tensor.nbytes - n) // 2
            return middle - middle % wide, n
        end = 0 if which == BEGIN else tensor.nbytes - n
        end += -end % wide if n >= wide else 0
        return end, min(n, tensor.nbytes - end)

    def first_difference(self, a: TensorRecord, b: TensorRecord, n: int | None = None) -> int | None:
        """Where the first `n` bytes (all, if None) of two row-major tensors begin to differ, to within a chunk; None if equal.

        A whole compare is remembered: the ties and the search for copies ask for the same pair.
        """
        if n is None:
            key = (a, b) if (a.file, a.file_offset or 0) <= (b.file, b.file_offset or 0) else (b, a)
            if key not in self._compared:
                self._compared[key] = self.first_difference(a, b, a.nbytes)
            return self._compared[key]
        first, second = memoryview(self._buffers[0]), memoryview(self._buffers[1])
        here, there = self._place(a), self._place(b)
        for at in range(0, n, CHUNK):
            size = min(CHUNK, n - at)
            here[0].read_into(here[1] + at, first[:size])
            there[0].read_into(there[1] + at, second[:size])
            # bytearray against memoryview is one memcmp; memoryview against memoryview unpacks every byte
            same = self._buffers[0] == second if size == CHUNK else bytes(first[:size]) == second[:size]
            self.advanced(size)
            if not same:
                return at
        return None

    def is_constant(self, tensor: TensorRecord, *, whole: bool) -> bool:
        """One word repeated, in the samples or (`whole`) everywhere. Words are elements, at least one byte."""
        width = element(tensor)
        begin = self.sample(tensor, BEGIN)
        word = begin[:width]
        if not word or not one_word(begin, word) or not all(one_word(self.sample(tensor, which), word) for which in (MIDDLE, END)):
            return False
        if whole:
            source, start = self._place(tensor)
            buffer = memoryview(self._buffers[0])
            step = CHUNK - CHUNK % width  # whole words: blocks have 18 or 210 bytes
            expected = word * (step // width)
            for at in range(0, tensor.nbytes, step):
                size = min(step, tensor.nbytes - at)
                source.read_into(start + at, buffer[:size])
                self.advanced(size)
                if (self._buffers[0] if size == CHUNK else bytes(buffer[:size])) != expected[:size]:
                    return False
        return True

    def _place(self, tensor: TensorRecord) -> tuple[Source, int]:
        at = tensor.file_offset
        if at is None:
            raise FormatError(tensor.file, f"{tensor.name!r} is compressed and cannot be read in place")
        if tensor.storage.pieces:
            return Stitched(tensor.file, tuple((self.sources[file], begin, n) for file, begin, n in tensor.storage.pieces)), tensor.offset
        return self.sources[tensor.file], at


def _runs(tensor: TensorRecord, offset: int, n: int) -> list[Wanted]:
    """Where `n` bytes from `offset` bytes behind the tensor's begin lie."""
    if tensor.storage.pieces:
        return runs(tensor.storage.pieces, tensor.offset + offset, n)
    return [(tensor.file, (tensor.file_offset or 0) + offset, n)]


def element(tensor: TensorRecord) -> int:
    """Bytes of one element, at least 1; of one block where the dtype has blocks."""
    return max(1, DTYPES[tensor.dtype].bits // 8)


def one_word(data: bytes, word: bytes) -> bool:
    """`data` is `word` over and over (its start may be cut into a word only if the word's bytes are all equal)."""
    width = len(word)
    if data[width : 2 * width] != word[: max(0, len(data) - width)]:  # spares nearly every page of weights the whole compare
        return False
    count, rest = divmod(len(data), width)
    return data == word * count + word[:rest]


def crcs_differ(a: TensorRecord, b: TensorRecord) -> bool:
    """True if the directory's checksums alone tell that two whole storages hold different bytes."""
    if a.storage.crc is None or b.storage.crc is None:
        return False
    whole = a.nbytes == a.storage.nbytes and b.nbytes == b.storage.nbytes
    return whole and a.strides is None and b.strides is None and a.storage.crc != b.storage.crc


def crcs_equal(a: TensorRecord, b: TensorRecord) -> bool:
    """True if both are whole storages of one length whose recorded checksums agree: a strong hint, no proof."""
    whole = a.nbytes == a.storage.nbytes and b.nbytes == b.storage.nbytes and a.nbytes == b.nbytes
    return whole and a.storage.crc is not None and a.storage.crc == b.storage.crc


def extent(tensor: TensorRecord) -> tuple[int, int]:
    """Bytes of the storage that the view can touch, from its first element to behind its last."""
    n = tensor.nbytes if tensor.strides is None else span(tensor.shape, tensor.strides, element(tensor))
    return tensor.offset, tensor.offset + n
