"""A progress bar on stderr, for work that takes over a second on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

PATIENCE = 1.0  # seconds before the bar shows
INTERVAL = 0.1  # seconds between two drawings
CELLS = 24


class Bar:
    """One line that is drawn over itself and gone at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._due = time.monotonic() + PATIENCE
        self._drawn = False

    def show(self, what: str, done: int, total: int) -> None:
        """Draw that `done` of `total` are done, if it is time to."""
        if not self._live or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + INTERVAL
        self._drawn = True
        filled = CELLS * done // max(1, total)
        name = "".join(char if char.isprintable() else "?" for char in what)[:30]
        self._stream.write(f"\r\x1b[2K{name:30} {'#' * filled}{'.' * (CELLS - filled)} {100 * done // max(1, total):3d} %")
        self._stream.flush()

    def clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._drawn = False
