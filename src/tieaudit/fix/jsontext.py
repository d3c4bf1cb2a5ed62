"""This file holds how one value of a JSON text is replaced, with every other byte of it left as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def with_value(text: str, path: Sequence[str], literal: str) -> str:
    """The text with `literal` at `path`: in place of the value that is there, else as the last member of the innermost object, which must
    exist. The text must be a valid JSON object (it was parsed before)."""
    begin = _SPACE.match(text, text.startswith("\ufeff")).end()  # type: ignore[union-attr]
    for step in path[:-1]:
        *_, (_, begin, _) = (member for member in _members(text, begin) if member[0] == step)
    members = list(_members(text, begin))
    # a key that is there twice: readers take the last one, and people see the first
    found = [(start, stop) for key, start, stop in members if key == path[-1]]
    for start, stop in reversed(found):
        text = text[:start] + literal + text[stop:]
    if found:
        return text
    entry = f"{json.dumps(path[-1])}: {literal}"
    if not members:
        return text[: begin + 1] + entry + text[begin + 1 :]
    stop = members[-1][2]
    gap = _SPACE.match(text, begin + 1)
    return f"{text[:stop]},{gap[0] if gap and gap[0] else ' '}{entry}{text[stop:]}"


def _members(text: str, begin: int) -> Iterator[tuple[str, int, int]]:
    """(key, begin, end) of each value of the object at `begin`."""
    at = _skip(text, begin + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        yield key, start, at
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def indent_of(text: str) -> int | None:
    """Spaces before the first member; None if the object stands on one line."""
    found = re.match(r"\ufeff?\s*\{\r?\n( *)", text)
    return len(found[1]) if found else None
