"""This file holds how many ties that differ only in integers become one pattern.

`{n}`, `{m}`, `{k}` stand for integers that are equal in the canonical name and the alias, `{*}` for any integer of the
alias but the canonical name's own.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]
Truth = Callable[[str, str], Json]  # (canonical, alias), both on disk -> {"v5": table, "v4": table}

INTEGER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)|(?<=\.)\d+$")
_LABELS = ("{n}", "{m}", "{k}")


def fold(ties: Sequence[Json], names: frozenset[str], truth: Truth) -> list[Json]:
    """Return the ties with repeated ones replaced by patterns, those with `{*}` first.

    `names` are all names on disk, and `truth` gives the truth tables of any two of them. A pattern is made only where it
    holds for every name that matches it, so that a longer model of the same kind is described too, or where another tie
    of the same canonical name, which comes later, says otherwise. Ties that fit no pattern stay as they are.
    """
    alike: dict[tuple[Any, ...], list[Json]] = defaultdict(list)
    for tie in ties:
        shape = tuple(INTEGER.sub("#", name) for name in (tie["canonical"], tie["alias"], *tie["names"]))
        alike[(*shape, tie["role"], "v4" in tie)].append(tie)
    folded: list[Json] = []
    for same_shape in alike.values():
        for members in _compatible(same_shape):
            pattern = _pattern(members) if len(members) > 1 else None
            folded += [pattern] if pattern and _holds(pattern, ties, names, truth) else members
    return sorted(folded, key=lambda tie: "{*}" not in tie["alias"])


def _holds(pattern: Json, ties: Sequence[Json], names: frozenset[str], truth: Truth) -> bool:
    pairs = {(tie["canonical"], tie["alias"]) for tie in ties}
    parts = re.split(r"(\{.\})", pattern["alias"])
    marks = {"{*}": r"\d+"} | {label: rf"(?P<{label[1]}>\d+)" for label in _LABELS}
    matcher = re.compile("".join(marks.get(part) or re.escape(part) for part in parts))
    for name in names:
        if match := matcher.fullmatch(name):
            canonical = pattern["canonical"]
            for label, number in match.groupdict().items():
                canonical = canonical.replace(f"{{{label}}}", number)
            if name != canonical and (canonical, name) not in pairs:
                tables = truth(canonical, name)
                if not all(_union(pattern[version], tables.get(version, "")) for version in ("v5", "v4") if version in pattern):
                    return False
    return True


def _compatible(ties: Sequence[Json]) -> list[list[Json]]:
    """Return the ties in runs whose truth tables nowhere contradict: a name may exist in some states only."""
    runs: list[list[Json]] = []
    for tie in ties:
        for run in runs:
            if all(_union(one[version], tie[version]) for one in run for version in ("v5", "v4") if version in tie):
                run.append(tie)
                break
        else:
            runs.append([tie])
    return runs


def _union(one: str, two: str) -> str:
    """Return one truth table for two, "" where they contradict or one of them is not known."""
    if not one or not two:
        return ""
    length = max(len(one), len(two))
    one, two = (table * length if len(table) == 1 else table for table in (one, two))
    if any(a != b and "-" not in (a, b) for a, b in zip(one, two, strict=True)):
        return ""
    table = "".join(b if a == "-" else a for a, b in zip(one, two, strict=True))
    return table[0] if len(set(table)) == 1 else table


def _pattern(members: Sequence[Json]) -> Json | None:
    """Return one tie for many that differ only in integers, or None where no placeholders describe them."""
    fields = [(tie["canonical"], tie["alias"], *tie["names"]) for tie in members]
    numbers = [[INTEGER.findall(name) for name in field] for field in fields]
    canonical, alias = [n[0] for n in numbers], [n[1] for n in numbers]
    marks: dict[tuple[str, ...], str] = {}  # the values of a column over all members -> its placeholder
    labels = iter(_LABELS)
    for column in zip(*alias, strict=True):
        if len(set(column)) == 1 or column in marks:
            continue
        if column in set(zip(*canonical, strict=True)):
            marks[column] = next(labels)
        elif "{*}" not in marks.values():
            marks[column] = "{*}"
        else:
            return None
    if any(len(set(column)) > 1 and marks.get(column, "{*}") == "{*}" for column in zip(*canonical, strict=True)):
        return None
    columns = [list(zip(*(n[at] for n in numbers), strict=True)) for at in range(4)]
    texts = [_marked(fields[0][at], [marks.get(column) for column in columns[at]]) for at in range(4)]
    tables: Json = {v: functools.reduce(_union, (tie[v] for tie in members)) for v in ("v5", "v4") if v in members[0]}
    return {**members[0], **tables, "canonical": texts[0], "alias": texts[1], "names": (texts[2], texts[3])}


def _marked(name: str, marks: Sequence[str | None]) -> str:
    queue = iter(marks)
    return INTEGER.sub(lambda match: next(queue) or match.group(), name)
