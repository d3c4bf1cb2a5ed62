"""This file holds what a user can expect of a comparison, and whether it is so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..difference import Change, Changes, Expectation, TensorChange
from ..errors import OptionError
from ..report import Skip
from ..text import exactly, listed

EXPECTATIONS = ("same-ties", "same-values", "smaller")


def known(words: Iterable[str]) -> tuple[str, ...]:
    """The expectations, each once. OptionError for a word that is none."""
    found = tuple(dict.fromkeys(words))
    for word in found:
        if word not in EXPECTATIONS:
            raise OptionError("--expect", word, ", ".join(EXPECTATIONS[:-1]) + f" or {EXPECTATIONS[-1]}")
    return found


def judged(words: Iterable[str], changes: Changes, skipped: tuple[Skip, ...], not_compared: tuple[Skip, ...]) -> Iterator[Expectation]:
    """Each expectation with its reason."""
    for word in words:
        if word == "same-ties":
            yield _same_ties(changes)
        elif word == "same-values":
            yield _same_values(changes, skipped, not_compared)
        else:
            yield _smaller(changes)


def _same_ties(changes: Changes) -> Expectation:
    name = "same-ties"
    apart = [tie for tie in changes.ties if tie.kept is False]
    if apart:
        names = apart[0].before.names if apart[0].before else ()
        return Expectation(name=name, met=False, reason=f"{' and '.join(names)}: {apart[0].words}")
    unknown = [tie for tie in changes.ties if tie.kept is None]
    if unknown:
        return Expectation(name=name, met=None, reason=unknown[0].words)
    count = len(changes.ties)
    return Expectation(
        name=name, met=True, reason=f"{count} tie{'s' * (count != 1)}, the same on both sides" if count else "neither side has ties"
    )


def changed(changes: Changes) -> list[TensorChange]:
    """Tensors whose values changed in a way that nothing allows."""
    return [pair for pair in changes.pairs if not pair.allowed and pair.kind is not Change.NOT_COMPARED]


def _same_values(changes: Changes, skipped: tuple[Skip, ...], not_compared: tuple[Skip, ...]) -> Expectation:
    name = "same-values"
    broken, gone = changed(changes), [one for one in changes.lost if one.judged and not one.allowed]
    if changes.head is not None:
        return Expectation(name=name, met=False, reason=f"the head {changes.head.head.name} is lost: {changes.head.why}")
    if broken:
        return Expectation(name=name, met=False, reason=f"{_tensors(len(broken))} changed: {listed(pair.after.name for pair in broken)}")
    if gone:
        return Expectation(name=name, met=False, reason=f"{_tensors(len(gone))} gone: {listed(one.tensor.name for one in gone)}")
    if changes.outputs is not None and changes.outputs.held is False:
        return Expectation(name=name, met=False, reason=changes.outputs.words)
    unjudged = [one for one in changes.lost if not one.judged and not one.allowed]
    if skipped or not_compared or unjudged:
        first = next(iter((*skipped, *not_compared)), None)
        why = f"{first.subject}: {first.reason}" if first else f"{unjudged[0].tensor.name}: {unjudged[0].reason}"
        return Expectation(name=name, met=None, reason=why)
    other = [pair for pair in changes.pairs if pair.kinds != (Change.EQUAL,)]
    equal = len(changes.pairs) - len(other)
    words = f"{_tensors(equal)} equal" + (f", {_tensors(len(other))} changed in ways that are allowed" if other else "")
    return Expectation(name=name, met=True, reason=words)


def _smaller(changes: Changes) -> Expectation:
    sizes = changes.sizes
    reason = f"{exactly(sizes.before)} before, {exactly(sizes.after)} after"
    return Expectation(name="smaller", met=sizes.after < sizes.before, reason=reason)


def _tensors(count: int) -> str:
    return f"{count:,} tensor{'s' * (count != 1)}"
