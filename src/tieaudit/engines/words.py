"""This file holds how answers of engines are put into words: one line for a report, one clause for a finding, rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..report import EngineOutcome

NAMED = 3  # engines of a group that are named; of the others the number

# (one engine, several)
_VERBS = {
    "tied_to_embed": ("takes the embedding for the head", "take the embedding for the head"),
    "head_dropped": ("drops the head", "drop the head"),
    "tied_to_head": ("takes the head for the embedding", "take the head for the embedding"),
    "both_kept": ("keeps both", "keep both"),
    "head_random": ("gets a random head", "get a random head"),
    "embed_random": ("gets a random embedding", "get a random embedding"),
    "error": ("cannot use it", "cannot use it"),
}
_EMBEDDING_LOST = ("drops the embedding", "drop the embedding")
_RIGHT = ("reads it right", "read it right")
_HARM = ("lost", "random", "error", "intact")  # the order of a line: what goes wrong first


def differ(outcomes: Sequence[EngineOutcome]) -> bool:
    """True if the file is not the same model in all engines: one loses, invents or refuses what another one reads. Whether two equal
    matrices or one are in memory is no difference."""
    return len({outcome.effect for outcome in outcomes}) > 1


def line(outcomes: Sequence[EngineOutcome]) -> str:
    """All engines, those with one outcome together: `transformers 4, SGLang and 2 more drop the head silently · …`."""
    return " · ".join(_told(group, outcomes, NAMED) for group in _groups(outcomes))


def clause(outcomes: Sequence[EngineOutcome], *, harm: bool = False) -> str:
    """As `line`, of the leading engines alone; "" if they agree. `harm`: only what goes wrong."""
    leading = [outcome for outcome in outcomes if outcome.leading]
    if not differ(leading):
        return ""
    groups = [group for group in _groups(leading) if not harm or group[0].effect != "intact"]
    return "; ".join(_told(group, leading, len(group)) for group in groups)


def table(outcomes: Sequence[EngineOutcome]) -> list[tuple[str, str]]:
    """(engine, what it does, whether it says so, how and of which version it is known) of each."""
    return [(outcome.name or outcome.engine, " · ".join((_does(outcome), ", ".join(_known(outcome))))) for outcome in outcomes]


def _does(outcome: EngineOutcome) -> str:
    return _verb(outcome)[0] + (f" ({outcome.detail})" if outcome.detail else "")


def _known(outcome: EngineOutcome) -> Iterator[str]:
    if outcome.outcome != "error" and outcome.silent is not None:
        yield "silent" if outcome.silent else "warns"
    yield f"{outcome.mode} {'on' if outcome.mode == 'run' else 'in'} {outcome.version}"


def _groups(outcomes: Sequence[EngineOutcome]) -> list[list[EngineOutcome]]:
    found: dict[tuple[str, str], list[EngineOutcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.leading):
        word = "" if outcome.effect == "intact" and _alike(outcomes) else outcome.outcome
        found.setdefault((outcome.effect, word), []).append(outcome)
    return [found[key] for key in sorted(found, key=lambda key: _HARM.index(key[0]))]


def _alike(outcomes: Iterable[EngineOutcome]) -> bool:
    """Some keep two matrices and some one, and both are right: the copies are equal."""
    return {"both_kept", "tied_to_embed"} <= {outcome.outcome for outcome in outcomes if outcome.effect == "intact"}


def _verb(outcome: EngineOutcome) -> tuple[str, str]:
    return _EMBEDDING_LOST if outcome.outcome == "tied_to_head" and outcome.effect == "lost" else _VERBS[outcome.outcome]


def _told(group: Sequence[EngineOutcome], outcomes: Sequence[EngineOutcome], named: int) -> str:
    names = _names(group, outcomes)
    shown = ", ".join(names[:named]) + f" and {len(names) - named} more" if len(names) > named else _joined(names)
    return f"{shown} {_what(group, outcomes, several=len(names) > 1)}"


def _names(group: Sequence[EngineOutcome], outcomes: Sequence[EngineOutcome]) -> list[str]:
    """Each program once if all its versions do the same: `vLLM` for `vLLM ≥ 0.29` and `vLLM ≤ 0.28`."""
    names: dict[str, None] = {}
    for outcome in group:
        versions = [other for other in outcomes if other.engine == outcome.engine]
        agree = len(versions) > 1 and all(other in group for other in versions)
        names[outcome.name.split(" ")[0] if agree else outcome.name] = None
    return list(names)


def _what(group: Sequence[EngineOutcome], outcomes: Sequence[EngineOutcome], *, several: bool) -> str:
    first = group[0]
    if first.effect == "intact" and _alike(outcomes):
        return _RIGHT[several]
    verb = _verb(first)[several]
    if first.effect == "error":
        return verb
    silent = sum(outcome.silent is True for outcome in group)
    if not silent:
        return f"{verb} and {'warn' if several else 'warns'}"
    if first.effect == "intact":
        return verb if silent == len(group) else f"{verb}, some with a warning"
    return f"{verb} silently" if silent == len(group) else f"{verb}, {'most' if 2 * silent > len(group) else 'some'} silently"


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
