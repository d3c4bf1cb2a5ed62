"""Where bytes come from. A format asks a `Source` for bytes and never learns whether it is a file or a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Meter:
    """What an audit has cost so far: bytes handed out by sources, and reads (for a server: requests)."""

    bytes_read: int = 0
    requests: int = 0


class Source(Protocol):
    """Random access to the bytes of one file."""

    @property
    def name(self) -> str:
        """Name relative to the target, with forward slashes."""

    @property
    def nbytes(self) -> int: ...

    def read(self, offset: int, n: int) -> bytes:
        """Exactly `n` bytes from `offset`. FormatError if the file does not have them or they cannot be read."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; errors as `read`."""
