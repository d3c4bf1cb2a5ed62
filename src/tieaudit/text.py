"""This file holds how names, bytes and shapes are written, in messages and reports."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .names import Matrix

MAX_NAME = 200  # characters of a name that are shown; a hostile one has megabytes


def printable(text: str) -> str:
    """The text without anything that a terminal would obey: control and format characters, lone surrogates, line ends.

    They are written as escapes (`\\x1b`, `\\u202e`), so that two names that differ look different.
    """
    if len(text) > MAX_NAME:
        text = text[: MAX_NAME - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() and unicodedata.category(char) not in ("Cf", "Zl", "Zp") else char.encode("unicode_escape").decode()
        for char in text
    )


def printable_words(text: str) -> str:
    """As `printable`, word by word, so that a sentence with long names is not cut."""
    return " ".join(printable(word) for word in text.split(" "))


def quantity(nbytes: int) -> str:
    """Decimal units as people write sizes of models: 512 B, 4.1 kB, 272.3 MB, 1.18 GB."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{nbytes:,} B" if unit == "B" else f"{value:,.2f} {unit}" if value < 10 else f"{value:,.1f} {unit}"


def exactly(nbytes: int) -> str:
    """A count that can be checked: `4,096 bytes`."""
    return f"{nbytes:,} byte{'s' * (nbytes != 1)}"


def shape(matrix: Matrix) -> str:
    """`151,936 × 896 BF16`, `151,936 × 896 MLX 4-bit`; a quantised matrix whose width only its values could tell: `151,936 rows GPTQ`."""
    dims = " × ".join(f"{dim:,}" for dim in matrix.shape)
    if not dims:
        dims = "" if not matrix.packed or matrix.rows is None else f"{matrix.rows:,} rows"
    return f"{dims or ('' if matrix.packed else 'scalar')} {matrix.form}".lstrip()


def listed(names: Iterable[str], limit: int = 4) -> str:
    """`a, b, c and 12 more`."""
    known = list(names)
    if len(known) <= limit:
        return ", ".join(known)
    return f"{', '.join(known[:limit])} and {len(known) - limit:,} more"
