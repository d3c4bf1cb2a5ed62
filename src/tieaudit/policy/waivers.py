"""This file holds what a model card says of findings: front matter of README.md, written by whoever made the model.

    tieaudit:
      ignore:
        - rule: diverged-tie
          reason: the head was trained apart on purpose

An author's word, not the reader's: such findings are shown with it, and count until the reader says `--allow-waivers`. What a reader's
safety hangs on cannot be waived at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import TieauditError
from ..inspectors import registry
from ..sources.target import Access, resolve
from ..text import printable, printable_words

CARD = "README.md"
MAX_FRONT_MATTER = 65_536  # bytes; cards of thousands of results stay far below
MAX_DEPTH = 20
MAX_EVENTS = 20_000
MAX_WAIVERS = 100
NEVER = frozenset({"malformed-file", "unsafe-pickle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the card waives: {name of a rule: reason}; `trouble`: why something in it is not taken, as clauses."""

    waived: dict[str, str]
    trouble: tuple[str, ...] = ()


NOTHING = Card(waived={})


class _Refused(Exception):
    """The front matter is not what a card has; the message is a clause."""


def of_target(target: str, access: Access) -> Card:
    """The waivers of the card beside the weights; none if there is no card."""
    try:
        folder, _ = resolve(target, access)
    except TieauditError:  # the audit itself has said so
        return NOTHING
    try:
        if not folder.exists(CARD):
            return NOTHING
        source = folder.open(CARD)
        data = source.read(0, min(source.nbytes, MAX_FRONT_MATTER))
    except TieauditError as error:
        return Card(waived={}, trouble=(f"cannot be read: {printable_words(str(error))}",))
    finally:
        folder.close()
    return read(data)


def read(data: bytes) -> Card:
    """The waivers in the first bytes of a card."""
    matter = _front_matter(data)
    if b"tieaudit" not in matter:
        return NOTHING
    try:
        told = _yaml(matter)
    except _Refused as error:
        return Card(waived={}, trouble=(str(error),))
    waived: dict[str, str] = {}
    trouble: list[str] = []
    for rule, reason in _waivers(told):
        name, why = _name(rule), reason.strip() if isinstance(reason, str) else ""
        if name is None:
            trouble.append(f"{printable(str(rule))} is no rule's name or code")
        elif name in NEVER:
            trouble.append(f"{name} cannot be waived")
        elif not why:
            trouble.append(f"{name} is waived without a reason")
        else:
            waived.setdefault(name, why)
    return Card(waived=waived, trouble=tuple(trouble))


def _front_matter(data: bytes) -> bytes:
    """What stands between the first line `---` and the next."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[0].rstrip() != b"---":
        return b""
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in (b"---", b"...")), None)
    return b"" if end is None else b"\n".join(lines[1:end])


def _yaml(matter: bytes) -> Any:
    """The front matter as strings, lists and dicts. Guarded before anything is built: no aliases (they grow), no deep nesting."""
    try:
        import yaml
    except ImportError:
        raise _Refused("cannot be read: PyYAML is not installed") from None
    try:
        text = matter.decode("utf-8")
        depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.BaseLoader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise _Refused("has YAML anchors, which are not followed")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or number > MAX_EVENTS:
                raise _Refused("is nested too deeply or too long")
        # BaseLoader: every scalar stays a string, no tag means anything
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        raise _Refused("is not YAML" + (f" (line {where.line + 2} of the card)" if where else "")) from None


def _waivers(told: Any) -> Iterator[tuple[Any, Any]]:
    ours = told.get("tieaudit") if isinstance(told, dict) else None
    listed = ours.get("ignore") if isinstance(ours, dict) else None
    for one in (listed if isinstance(listed, list) else [])[:MAX_WAIVERS]:
        if isinstance(one, dict):
            yield one.get("rule"), one.get("reason")
        else:
            yield one, None


def _name(rule: Any) -> str | None:
    """The name of the one rule that is meant: prefixes would waive what nobody has seen yet."""
    return next((one.name for one in registry.all_rules() if rule in (one.name, one.code)), None)
