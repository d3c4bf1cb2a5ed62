"""This file holds how raw observations (observation.py, one file per transformers) become the shipped catalog.

Nothing here knows an architecture: pairs, names, truth tables and patterns all follow from the observations.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tieaudit.catalog.patterns import INTEGER, fold

Json = dict[str, Any]
Pair = tuple[str, str]  # canonical, alias

_BLOCK = re.compile(r"(^|\.)(layers?|blocks?|h|stages?|encoder|decoder)\.")
# Order of the classes of one model type, most likely the file's own first.
_FIRST = ("CausalLM", "LMHeadModel", "Seq2SeqLM", "ConditionalGeneration", "ImageTextToText", "MaskedLM", "PreTraining")


def merge(v5: Json, v4: Json) -> Iterator[str]:
    """Yield the lines of the catalog from the two observation files."""
    first, second = v5["architectures"], v4.get("architectures", {})
    entries = {name: entry(seen, second.get(name)) for name, seen in first.items() if "error" not in seen}
    head = {
        "transformers": {"v4": v4.get("transformers"), "v5": v5["transformers"]},
        "architectures": len(entries),
        "not_built": [f"{name}: {seen['error']}" for name, seen in sorted(first.items()) if "error" in seen],
    }
    yield f"#\t{_dumps(head)}"
    for name in sorted(entries):
        yield f"{name}\t{_dumps(entries[name])}"
    by_type: dict[str, list[str]] = defaultdict(list)
    for name, found in entries.items():
        if found["model_type"]:
            by_type[found["model_type"]].append(name)
    for model_type in sorted(by_type):
        yield f"@{model_type}\t{_dumps(sorted(by_type[model_type], key=_rank))}"
    now, then = v5.get("flags", {}), v4.get("flags", {})
    for model_type in sorted({*now, *then}):
        flags = {"v5": now.get(model_type), "v4": then.get(model_type)}
        if flags != {"v5": None, "v4": None}:
            yield f"@!{model_type}\t{_dumps(flags)}"


def write(lines: Iterable[str], path: Path) -> None:
    """Write the catalog: the same lines give the same bytes, and a reader never sees half a file."""
    raw = ("\n".join(lines) + "\n").encode()
    part = path.with_suffix(".part")
    part.write_bytes(gzip.compress(raw, 9, mtime=0))
    os.replace(part, path)


def entry(v5: Json, v4: Json | None) -> Json:
    """Return the catalog's entry of one architecture from its observations."""
    made: Json = {"model_type": v5["model_type"]}
    if "structures" not in v5:
        return made
    now = _Reading(v5)
    then = _Reading(v4) if v4 and "structures" in v4 else None
    keys = list(dict.fromkeys([*v5["keys"], *(v4["keys"] if v4 and then else ())]))
    pairs = [*now.pairs(), *(then.pairs_as(now) if then else ())]
    embedding, head = now.end("embedding"), now.end("head")
    alike = embedding and head and embedding != head and v5["embedding"]["shape"] == v5["head"]["shape"]
    if embedding and head and alike and not any(head in pair for pair in pairs):
        pairs.append((embedding, head))  # never tied: says that a file needs its head
    rows = [_Row(pair, now, then, keys) for pair in dict.fromkeys(pairs)]
    tied = {row.pair[1] for row in rows if "1" in row.v5}
    rows = [row for row in rows if row.stored and ("1" in row.v5 or row.pair[1] not in tied)]
    deciding = [
        at
        for at in range(len(keys))
        if any(_varies(table, at, len(keys), "-" if row.loose else "") for row in rows for table in row.tables)
    ]
    ties = [_tie(row, deciding, len(keys)) for row in rows]

    def truth(canonical: str, alias: str) -> Json:
        if not {canonical, alias} <= now.by_disk.keys():
            return {}
        return _tie(_Row((now.by_disk[canonical], now.by_disk[alias]), now, then, keys), deciding, len(keys))

    ties = fold(ties, frozenset(now.by_disk), truth)
    if deciding:
        made["keys"] = [keys[at] for at in deciding]
    if ties:
        made["ties"] = [{name: value for name, value in tie.items() if name != "names"} for tie in ties]
    for role, name in (("embedding", embedding), ("head", head)):
        if name and name in now.disk:
            made[role] = now.disk[name]
    made.update(_renames(ties, made, now, then))
    rows_of = {role: found for role, found in v5["rows"].items() if role in made}
    if rows_of:
        made["rows"] = rows_of
    types = {path: kind for path, kind in v5["types"].items() if any(key.startswith(f"{path}.") for key in made.get("keys", ()))}
    if types:
        made["types"] = types
    kept = sorted({row.v4_kept for row in rows if row.v4_kept})
    if kept:
        made["v4_kept"] = kept
    if v5.get("layout"):
        made["layout"] = v5["layout"]
    return made


class _Reading:
    """One transformers' observation of one architecture: its truth per state and its names on disk."""

    def __init__(self, seen: Json) -> None:
        self.seen = seen
        self.keys: list[str] = seen["keys"]
        self.table: list[int] = seen["table"]
        self.names = [frozenset(structure["names"]) for structure in seen["structures"]]
        self.groups: list[list[tuple[str, ...]]] = [[tuple(g) for g in s["groups"]] for s in seen["structures"]]
        self.member = [{name: number for number, group in enumerate(groups) for name in group} for groups in self.groups]
        self.disk: dict[str, str] = {}
        lost: set[str] = set()
        for saved in seen["saved"]:
            lost |= set(saved.get("lost", ()))
        for names, saved in zip(self.names, seen["saved"], strict=True):
            for name in names - lost:
                self.disk.setdefault(name, saved.get("disk", {}).get(name, name))
            self.disk.update(saved.get("disk", {}))
        self.by_disk = {stored: name for name, stored in self.disk.items()}

    def end(self, role: str) -> str | None:
        name: str | None = self.seen.get(role, {}).get("name")
        return name if name in self.disk else None

    def kept(self, number: int, group: int) -> str:
        """Return the name of a group that a saved file keeps."""
        names = self.groups[number][group]
        kept = self.seen["saved"][number].get("kept")
        if kept and kept[group]:
            return str(kept[group][0])
        embedding = self.end("embedding")
        return embedding if embedding in names else min(names, key=lambda name: (len(name), name))

    def pairs(self) -> list[Pair]:
        """Return the pairs whose closure gives the groups of every state, the largest groups first."""
        found: dict[Pair, None] = {}
        order = sorted(range(len(self.groups)), key=lambda n: -sum(map(len, self.groups[n])))
        for number in order:
            for at, group in enumerate(self.groups[number]):
                linked = [{name} for name in group]
                for one, two in found:
                    if self.same(number, one, two) and one in group:
                        joined = [part for part in linked if one in part or two in part]
                        linked = [part for part in linked if part not in joined] + [set().union(*joined)]
                if len(linked) > 1:
                    canonical = self.kept(number, at)
                    own = next(part for part in linked if canonical in part)
                    for part in linked:
                        if part is not own:
                            for name in part if len(own) == 1 or len(part) == 1 else [min(part)]:
                                found[canonical, name] = None
        return list(found)

    def pairs_as(self, other: _Reading) -> Iterator[Pair]:
        """Yield this reading's pairs under the other's parameter names, where the other has both."""
        for canonical, alias in self.pairs():
            one, two = other.find(canonical, self), other.find(alias, self)
            if one and two and one != two and not other.ever(one, two):
                yield one, two

    def find(self, name: str, source: _Reading) -> str | None:
        """Return this reading's name for another reading's parameter: by name on disk, else by its own name."""
        stored = source.disk.get(name)
        if stored is not None and stored in self.by_disk:
            return self.by_disk[stored]
        return name if any(name in names for names in self.names) else None

    def same(self, number: int, one: str, two: str) -> bool:
        member = self.member[number]
        return one in member and member[one] == member.get(two)

    def ever(self, one: str, two: str) -> bool:
        return any(self.same(number, one, two) for number in range(len(self.groups)))

    def truth(self, pair: Pair, keys: Sequence[str]) -> str:
        """Return the truth table of a pair over the states of `keys`, which include this reading's own."""
        chars = []
        for states in itertools.product(range(3), repeat=len(keys)):
            by_key = dict(zip(keys, states, strict=True))
            at = 0
            for key in self.keys:
                at = at * 3 + by_key[key]
            number = self.table[at]
            exists = number >= 0 and set(pair) <= self.names[number]
            chars.append("-" if not exists else "1" if self.same(number, *pair) else "0")
        return "".join(chars)


class _Row:
    """One pair, both readings of it, and its names on disk."""

    def __init__(self, pair: Pair, now: _Reading, then: _Reading | None, keys: Sequence[str]) -> None:
        self.pair = pair
        self.stored = all(name in now.disk for name in pair)
        self.disk = tuple(now.disk.get(name, name) for name in pair)
        self.role = _role(pair, now)
        self.v5 = now.truth(pair, keys)
        self.v4: str | None = None
        self.v4_kept: str | None = None
        if then:
            old = tuple(then.find(name, now) or name for name in pair)
            self.v4 = then.truth((old[0], old[1]), keys)
            self.v4_kept = _kept_by(then, old, self.disk)
        self.loose = self.role not in ("embedding", "embedding-head")  # whether it exists is not worth a key
        self.tables = [self.v5] + ([self.v4] if self.v4 else [])


def _kept_by(then: _Reading, old: tuple[str, ...], disk: tuple[str, ...]) -> str | None:
    """Return the alias' name on disk where the other transformers' files keep it and not the canonical one."""
    for number in range(len(then.groups)):
        if then.same(number, old[0], old[1]):
            kept = then.seen["saved"][number].get("kept")
            names = kept[then.member[number][old[0]]] if kept else []
            if names and old[0] not in names and old[1] in names:
                return disk[1]
    return None


def _tie(row: _Row, deciding: Sequence[int], count: int) -> Json:
    tie: Json = {"canonical": row.disk[0], "alias": row.disk[1], "role": row.role}
    tie["v5"] = _reduced(row.v5, deciding, count)
    if row.v4 is not None:
        tie["v4"] = _reduced(row.v4, deciding, count)
    tie["names"] = row.pair
    return tie


def _role(pair: Pair, reading: _Reading) -> str:
    kinds: dict[str, str] = reading.seen["kinds"]
    found = {kinds.get(name) for name in pair}
    indexed = any(INTEGER.search(name) for name in pair)
    if any(name.rpartition(".")[2] == "bias" for name in pair) and _heads(reading) & {_module(name) for name in pair}:
        return "bias"
    if found == {"embedding"} and not indexed:
        return "embedding"
    if reading.end("head") in pair or found == {"embedding", "linear"}:
        return "embedding-head"
    return "layer" if all(_BLOCK.search(name) and INTEGER.search(name) for name in pair) else "other"


def _heads(reading: _Reading) -> set[str]:
    """Return the modules that hold an output embedding: the declared one and every linear layer tied to an embedding."""
    kinds: dict[str, str] = reading.seen["kinds"]
    heads = {_module(reading.end("head") or "")}
    for groups in reading.groups:
        for group in groups:
            if any(kinds.get(name) == "embedding" for name in group):
                heads |= {_module(name) for name in group if kinds.get(name) == "linear"}
    return heads - {""}


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _varies(table: str, at: int, count: int, free: str) -> bool:
    """Whether a key changes the answer; from or to a `free` answer is no change."""
    step = 3 ** (count - 1 - at)
    for start in range(len(table)):
        if start // step % 3 == 0:
            states = {table[start + state * step] for state in range(3)} - set(free)
            if len(states) > 1:
                return True
    return False


def _reduced(table: str, deciding: Sequence[int], count: int) -> str:
    """Return a table over the deciding keys only, one character where nothing decides.

    A key that only brings a name into being does not decide: the answer is that of the state in which the name exists.
    """
    chars: list[str] = []
    for states in itertools.product(range(3), repeat=len(deciding)):
        fixed = dict(zip(deciding, states, strict=True))
        possible = [
            table[sum(state * 3 ** (count - 1 - at) for at, state in enumerate(every))]
            for every in itertools.product(*([fixed[at]] if at in fixed else range(3) for at in range(count)))
        ]
        chars.append(next((char for char in possible if char != "-"), "-"))
    return chars[0] if len(set(chars)) == 1 else "".join(chars)


def _renames(ties: Sequence[Json], made: Json, now: _Reading, then: _Reading | None) -> Json:
    """Return `names` (parameter name) and `v4_names` (version 4's name on disk) of the names in an entry, where they differ."""
    parameters = {stored: name for tie in ties for stored, name in zip((tie["canonical"], tie["alias"]), tie["names"], strict=True)}
    parameters |= {made[role]: now.end(role) for role in ("embedding", "head") if role in made}
    names = {stored: name for stored, name in sorted(parameters.items()) if name and stored != name}
    older: dict[str, str] = {}
    for stored, name in sorted(parameters.items()):
        if then and name and "{" not in stored:
            found = then.find(name, now)
            if found and then.disk.get(found, stored) not in (stored, *parameters):
                older[stored] = then.disk[found]
    return {key: value for key, value in (("names", names), ("v4_names", older)) if value}


def _rank(name: str) -> tuple[int, str]:
    return next((at for at, part in enumerate(_FIRST) if part in name), len(_FIRST)), name


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
