"""This file holds one sum on checksums: the CRC-32 of the second part of some bytes, from those of the whole and of the first part.

zip records the CRC-32 of a whole member (polynomial 0xEDB88320, bits reflected: PKWARE APPNOTE 4.4.7), and a numpy member has a
header before its data. Appending n bytes multiplies a CRC by x^(8n) modulo the polynomial, and CRCs of parts add:
crc(AB) = crc(A) x^(8n) + crc(B).
"""

from __future__ import annotations

from functools import lru_cache

POLYNOMIAL = 0xEDB88320
ONE = 1 << 31  # x^0 with its bits reflected


def behind(whole: int, first: int, nbytes: int) -> int:
    """The CRC-32 of the last `nbytes` bytes of what has the CRC-32 `whole`; `first` is that of all bytes before them."""
    return whole ^ _times(_appended(nbytes), first)


@lru_cache(maxsize=1024)
def _appended(nbytes: int) -> int:
    """x^(8 nbytes) modulo the polynomial."""
    product = ONE
    for place in range(nbytes.bit_length()):
        if nbytes >> place & 1:
            product = _times(_square(place), product)
    return product


@lru_cache(maxsize=64)
def _square(place: int) -> int:
    """x^8 squared `place` times."""
    return ONE >> 8 if not place else _times(_square(place - 1), _square(place - 1))


@lru_cache(maxsize=1024)
def _rows(a: int) -> tuple[int, ...]:
    """a times x^0, x^1, … x^31."""
    rows = []
    for _ in range(32):
        rows.append(a)
        a = (a >> 1) ^ POLYNOMIAL if a & 1 else a >> 1
    return tuple(rows)


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo the polynomial; `a` is one that comes again."""
    product = 0
    for place, row in enumerate(_rows(a)):
        if b & (ONE >> place):
            product ^= row
    return product
