"""This file holds what is fetched from a server before the loaders ask: the begins of all files at once: one request per header.

How long headers are is guessed from the index, which has the same names; what a guess leaves out is one request more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import FormatError
from ..sources import Entry, Folder, Wanted
from . import safetensors

PLAIN = ".safetensors"
ZIPS = (".bin", ".pt", ".pth", ".ckpt", ".npz")  # may be zips, whose directory stands at the end
MIN_HEAD, MAX_HEAD = 16 << 10, 1 << 20  # bytes fetched of the begin
ONE_FILE = 64 << 10  # bytes; the header of 300 tensors has 30 to 40 kB
TAIL = 64 << 10  # bytes of the end of a zip: the directory of 600 members
# An entry of a header (dtype, shape, two offsets: some 85 bytes and the name) against one of the index (a file name and the name)
HEADER_TO_INDEX = 1.5


def fetch(folder: Folder, files: list[Entry], indexes: list[Entry], beside: Iterable[str]) -> None:
    """Begins of the files (and the ends of those that may be zips), the indexes, and the other files whole, all at once."""
    shards = sum(entry.name.endswith(PLAIN) for entry in files)
    index_nbytes = max((entry.nbytes for entry in indexes), default=0)
    guess = int(HEADER_TO_INDEX * index_nbytes / max(1, shards)) + (MIN_HEAD >> 1) if index_nbytes else ONE_FILE
    head = max(MIN_HEAD, min(guess, MAX_HEAD))
    folder.prefetch([*_begins(files, head), *_wholes(folder, indexes, beside)])
    folder.prefetch(_rests(folder, files))


def _begins(files: Iterable[Entry], head: int) -> Iterator[Wanted]:
    for entry in files:
        if entry.name.endswith(PLAIN):
            yield entry.name, 0, min(head, entry.nbytes)
        else:
            yield entry.name, 0, min(ONE_FILE, entry.nbytes)
            if entry.name.endswith(ZIPS):
                yield entry.name, max(0, entry.nbytes - TAIL), min(TAIL, entry.nbytes)


def _wholes(folder: Folder, indexes: Iterable[Entry], beside: Iterable[str]) -> Iterator[Wanted]:
    for entry in indexes:
        yield entry.name, 0, entry.nbytes
    for name in beside:
        yield name, 0, folder.entry(name).nbytes


def _rests(folder: Folder, files: Iterable[Entry]) -> Iterator[Wanted]:
    """Of the headers that are longer than was guessed."""
    for entry in files:
        n = min(16, entry.nbytes)
        if n and folder.held(entry.name, 0, n):
            try:
                begin = folder.open(entry.name).read(0, n)
            except FormatError:
                continue
            if safetensors.sniff(begin):
                yield entry.name, 8, min(int.from_bytes(begin[:8], "little"), entry.nbytes - 8)
