"""The person's terminal: its width, and a progress bar on stderr for work that takes over a second."""

from __future__ import annotations

import os
import time
from typing import TextIO

PATIENCE = 1.0  # seconds before the bar shows
INTERVAL = 0.1  # seconds between two drawings
CELLS = 24
DEFAULT_COLUMNS = 80
COLOURS = ("auto", "always", "never")


def columns(stream: TextIO) -> int:
    """Width of the terminal behind `stream`; the variable COLUMNS goes before, 80 if nobody says."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said[:6]) > 0:
        return int(said[:6])
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except (ValueError, OSError):
        return DEFAULT_COLUMNS


def coloured(choice: str, stream: TextIO) -> bool:
    """Whether colours are wanted: the option, then NO_COLOR and FORCE_COLOR (any non-empty value: no-color.org, force-color.org), then
    what the stream is."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Bar:
    """One line that is drawn over itself and gone at the end. A closed stream or a pipe gets none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._due = time.monotonic() + PATIENCE
        self._drawn = False

    def show(self, what: str, done: int, total: int) -> None:
        """Draw that `done` of `total` are done, if it is time to."""
        if self._stream is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + INTERVAL
        self._drawn = True
        filled = CELLS * done // max(1, total)
        name = "".join(char if char.isprintable() else "?" for char in what)[:30]
        line = f"{name:30} {'#' * filled}{'.' * (CELLS - filled)} {100 * done // max(1, total):3d} %"
        # a line that wraps would not be erased
        self._stream.write(f"\r\x1b[2K{line[: columns(self._stream) - 1]}")
        self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None and self._drawn:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._drawn = False
