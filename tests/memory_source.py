"""This file holds a source whose bytes are in memory, and counts what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieaudit.errors import FormatError
from tieaudit.sources import Meter


@dataclass(frozen=True, slots=True)
class MemorySource:
    name: str
    data: bytes = field(repr=False)
    meter: Meter = field(default_factory=Meter)

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, n: int) -> bytes:
        if offset < 0 or n < 0 or offset + n > len(self.data):
            raise FormatError(self.name, f"ends at byte {len(self.data):,}", max(offset, 0))
        self.meter.requests += 1
        self.meter.bytes_read += n
        return self.data[offset : offset + n]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))
