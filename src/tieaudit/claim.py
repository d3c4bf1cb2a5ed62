"""This file holds what a config claims: which names are one matrix, by which key, and for which readers.

The catalog says, per architecture, how each pair depends on the keys of config.json under transformers 5 and 4 (their readings
differ). Where no class is known, names and shapes stand in, and the claim says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .catalog import lookup
from .catalog.lookup import UNKNOWN, Architecture, CatalogTie, State
from .checkpoint import Edition, Ends, Wiring
from .config import ABSENT, Config
from .names import StoredNames, guess_pairs, plain

FLAG = "tie_word_embeddings"
# where else a flag is written: params.json of Mistral, and configs of remote code
FLAG_KEYS = (FLAG, "text_config." + FLAG, "llm_config." + FLAG, "language_config." + FLAG, "tie_embeddings", "tied_embeddings",
             "tie_embedding", "weight_tying")  # fmt: skip
# speculative heads have a config of the model that they speed up, and neither of its ends
_DRAFTER_NAMES = ("d2t", "t2d", "midlayer.", "medusa_head", "fc.weight", "hidden_norm.weight")
# a tie that names a layer by its place, or all layers: it holds for the depth and pattern that it was observed with
_NUMBERED = re.compile(r"\.(?:\d+|\{\*\})\.")
_DRAFTER_CLASS = re.compile(r"eagle|medusa|draft|speculator|mtp|dflash", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that can be the canonical one's matrix: what transformers 5 makes of it, and 4. None: nobody says."""

    name: str
    tied: bool | None
    tied_v4: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TieGroup:
    """Names that can be one matrix. `source` says why, as a clause. `optional`: absence of a name proves nothing. `absent` and `advice`
    say what a format's readers do without a name, and what to do about a copy, where that is not as with a config."""

    canonical: str
    aliases: tuple[Alias, ...]
    role: str
    source: str
    optional: bool = False
    defaulted: bool = False
    """True if transformers 5 follows its class default because the deciding key is absent."""
    always: bool = False
    """True if no key decides under transformers 5."""
    wiring: Wiring = Wiring.CONFIG
    absent: str = ""
    advice: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.canonical, *(alias.name for alias in self.aliases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Everything that config and architecture ask of the names.

    `rows` gives the row count that a name must have and the key that says so. `v4_kept`: aliases that transformers 4
    stores in place of the canonical name. `bad_flags`: keys whose value is no boolean, with the value.
    """

    architecture: str = ""
    basis: str = ""
    groups: tuple[TieGroup, ...] = ()
    embedding: str | None = None
    head: str | None = None
    rows: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    writer: int | None = None
    exact: bool = False
    ignored_flag: str = ""
    bad_flags: tuple[tuple[str, str], ...] = ()
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    v4_kept: frozenset[str] = frozenset()


def of_edition(edition: Edition, config: Config | None, stored: StoredNames) -> Claim:
    """The claim that holds for the names of this edition."""
    if edition.ends or edition.foreign:
        return _by_format(edition, config)
    architecture, exact = _architecture(config, stored)
    if config is None or architecture is None:
        return _by_names(config, stored, "no config.json" if config is None else _unknown(config))
    if _is_drafter(config, stored):
        return _by_names(config, stored, "a drafter for speculative decoding, without the ends of its model")
    claim = _by_catalog(architecture, config, stored, exact=exact and edition.whole)
    ends = {name for name in (claim.embedding, claim.head) if name}
    ends |= {name for group in claim.groups if group.role in ("embedding-head", "embedding") for name in group.names}
    if ends and not any(stored.find(name, claim.other_names) for name in ends) and not any(map(stored.is_broken, ends)):
        guessed = _by_names(config, stored, f"{architecture.name} by other names than those of transformers")
        if guessed.groups or edition.kind != "weights" or not _named_as_model(edition):
            return guessed
    return claim


def _architecture(config: Config | None, stored: StoredNames) -> tuple[Architecture | None, bool]:
    """(class, whether the config names it itself)."""
    if config is None:
        return None, False
    for name in config.architectures:
        found = lookup.find(name)
        if found:
            return found, True
    if config.architectures or not config.model_type or config.remote_code:
        return None, False
    candidates = [found for found in map(lookup.find, lookup.of_type(config.model_type)) if found]
    for found in candidates:
        if found.embedding and stored.find(found.embedding, found.other_names):
            return found, False
    return None, False


def _by_catalog(architecture: Architecture, config: Config, stored: StoredNames, *, exact: bool) -> Claim:
    states, bad = _states(architecture, config)
    groups: dict[str, list[tuple[CatalogTie, Alias]]] = {}
    # a section that is not there (Qwen2-VL as first released) is filled from the top by transformers 4, in its own ways
    states_v4 = tuple(
        UNKNOWN if "." in key and config.at(key.rpartition(".")[0]) is ABSENT else state
        for key, state in zip(architecture.keys, states, strict=True)
    )
    moved = any(config.at(path) not in (ABSENT, value) for path, value in architecture.layout.items())
    for tie in architecture.ties:
        tied, tied_v4 = architecture.read(tie.v5, states), architecture.read(tie.v4, states_v4)
        if (tied is None and tied_v4 is None) or (moved and _NUMBERED.search(f".{tie.canonical}.{tie.alias}.")):
            continue
        for canonical, alias in _expanded(tie, stored):
            groups.setdefault(canonical, []).append((tie, Alias(alias, tied, tied_v4)))
    _join(groups)
    # a head that is tied to the decoder's embedding (T5Gemma) misses nothing because it is apart from the encoder's
    tied_somewhere = {alias.name for members in groups.values() for _, alias in members if alias.tied}
    for canonical in list(groups):
        groups[canonical] = [(tie, alias) for tie, alias in groups[canonical] if alias.tied or alias.name not in tied_somewhere]
        if not groups[canonical]:
            del groups[canonical]
    rows = {}
    for end, (path, extra) in architecture.rows.items():
        name, count = {"embedding": architecture.embedding, "head": architecture.head}.get(end), config.at(path)
        if name and type(count) is int:
            rows[name] = (count + extra, path + (f" + {extra}" if extra else ""))
    return Claim(
        architecture=architecture.name,
        basis="" if config.architectures else f"{config.file} names no class, only model_type {config.model_type}",
        groups=tuple(_group(canonical, members, architecture, config, states) for canonical, members in groups.items()),
        embedding=architecture.embedding,
        head=architecture.head,
        rows=rows,
        writer=config.writer,
        exact=exact,
        ignored_flag=_ignored(architecture, config),
        bad_flags=bad,
        other_names=architecture.other_names,
        v4_kept=architecture.v4_kept,
    )


def _join(groups: dict[str, list[tuple[CatalogTie, Alias]]]) -> None:
    """A group whose canonical name is a tied alias of another one is a part of that one (Marian's decoder embedding and head)."""
    roots = {
        alias.name: (canonical, alias)
        for canonical, members in groups.items()
        for _, alias in members
        if alias.tied and alias.name in groups
    }
    for name, (root, through) in roots.items():
        if root not in groups or name not in groups:
            continue
        known = {alias.name for _, alias in groups[root]}
        for tie, alias in groups.pop(name):
            if alias.name not in known and alias.name != root:
                tied_v4 = None if None in (alias.tied_v4, through.tied_v4) else alias.tied_v4 and through.tied_v4
                groups[root].append((tie, Alias(alias.name, alias.tied, tied_v4)))


def _group(
    canonical: str,
    members: list[tuple[CatalogTie, Alias]],
    architecture: Architecture,
    config: Config,
    states: tuple[State, ...],
) -> TieGroup:
    aliases = {alias.name: alias for _, alias in members}
    leading = min((tie for tie, _ in members), key=lambda tie: tie.role != "embedding-head")
    tied = architecture.read(leading.v5, states)
    source, defaulted = _source(architecture, leading.v5, states, config, tied)
    return TieGroup(
        canonical=canonical,
        aliases=tuple(aliases.values()),
        role=leading.role,
        source=source,
        defaulted=defaulted,
        always=len(leading.v5) == 1,
        optional=leading.role not in ("embedding-head", "embedding", "bias") or any("{" in tie.alias for tie, _ in members),
    )


def _states(architecture: Architecture, config: Config) -> tuple[tuple[State, ...], tuple[tuple[str, str], ...]]:
    """(state of each key, keys whose value is not a boolean). A value that is no boolean counts as Python would read it,
    which is what transformers 4 does; transformers 5 refuses it."""
    states: list[State] = []
    bad = []
    for key in architecture.keys:
        value = config.at(key)
        if value is ABSENT:
            # another text model than the observed one may have another default
            section = key.rpartition(".")[0]
            kind = config.at(f"{section}.model_type") if section else ABSENT
            states.append(None if kind in (ABSENT, architecture.types.get(section, kind)) else UNKNOWN)
            continue
        states.append(bool(value))
        if type(value) is not bool and key.endswith(FLAG):
            bad.append((key, "null" if value is None else repr(value)[:40]))
    return tuple(states), tuple(bad)


def _source(architecture: Architecture, table: str, states: tuple[State, ...], config: Config, tied: bool | None) -> tuple[str, bool]:
    """(why transformers 5 ties or does not, whether an absent key was decided by the class)."""
    verb = {True: "tied", False: "untied", None: "unknown"}[tied]
    keys = architecture.keys
    if len(table) == 1:
        always = "always" if tied else "never"
        return f"{verb}: {architecture.name} {always} shares these names, whatever the config says", False

    def flipped(at: int) -> bool:
        other = (*states[:at], not states[at], *states[at + 1 :])
        return architecture.read(table, other) is not tied

    deciding = [key for at, key in enumerate(keys) if isinstance(states[at], bool) and flipped(at)]
    stated = [(key, states[at]) for at, key in enumerate(keys) if isinstance(states[at], bool)]
    if deciding:
        said = [(key, state) for key, state in stated if key in deciding]
    else:
        said = [(key, state) for key, state in stated if state is tied]
    if said:
        return f"{verb}: {' and '.join(f'{key} is {str(state).lower()}' for key, state in said)} in {config.file}", False
    missing = next((key for at, key in enumerate(keys) if states[at] is None), FLAG)
    of = config.model_type or architecture.model_type
    return f"{verb} by class default ({of}: {config.file} has no {missing})", True


def _ignored(architecture: Architecture, config: Config) -> str:
    """`tie_word_embeddings` if the config sets it and no tie of the class depends on it, in either reading."""
    if type(config.at(FLAG)) is not bool or not (architecture.embedding and architecture.head):
        return ""
    depends = any(len(tie.v5) > 1 or len(tie.v4) > 1 for tie in architecture.ties)
    # a constant table that agrees with the flag contradicts nobody
    agrees = any(tie.v5 == str(int(config.at(FLAG))) for tie in architecture.ties if tie.role == "embedding-head")
    return "" if FLAG in architecture.keys and depends else "" if agrees else FLAG


def _expanded(tie: CatalogTie, stored: StoredNames) -> Iterator[tuple[str, str]]:
    """(canonical, alias) with placeholders filled from the names that are stored."""
    if "{" not in tie.alias:
        yield tie.canonical, tie.alias
        return
    alias, canonical = _pattern(tie.alias), _pattern(tie.canonical)
    found: dict[tuple[str, str], None] = {}
    for name in stored:
        match = alias.fullmatch(name)
        if match:
            found[_filled(tie.canonical, match), name] = None
        elif "{*}" not in tie.alias and (match := canonical.fullmatch(name)):
            found[name, _filled(tie.alias, match)] = None
    yield from (pair for pair in found if pair[0] != pair[1])


def _filled(name: str, match: re.Match[str]) -> str:
    return re.sub(r"\{([nmk])\}", lambda place: match[place[1]], name)


@lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    text, seen = "", set()
    for part in re.split(r"(\{[nmk*]\})", name):
        if part == "{*}":
            text += r"\d+"
        elif part.startswith("{"):
            text += f"(?P={part[1]})" if part in seen else rf"(?P<{part[1]}>\d+)"
            seen.add(part)
        else:
            text += re.escape(part)
    return re.compile(text)


def _by_format(edition: Edition, config: Config | None) -> Claim:
    """What the files themselves say of their names; no architecture's names apply."""
    return Claim(
        basis=f"{edition.format}: the file itself says what is shared",
        groups=tuple(_of_ends(ends, config) for ends in edition.ends),
        exact=edition.whole,
    )


def _of_ends(ends: Ends, config: Config | None) -> TieGroup:
    tied, source = ends.tied, ends.source
    if tied is None and ends.by_config:
        key, flag = _flag(config)
        if config and flag:
            # an untied flag keeps nobody from sharing equal matrices in a graph
            tied, source = True, f"{key} is true in {config.file}; {source}"
    verb = {True: "tied", False: "untied", None: "unknown"}[tied]
    return TieGroup(
        # stored names are looked up without wrappers (`module.`)
        canonical=plain(ends.embedding),
        aliases=(Alias(plain(ends.head), tied, tied),),
        role=ends.role,
        source=f"{verb}: {source}",
        always=not ends.by_config,
        wiring=ends.wiring,
        absent=ends.absent,
        advice=ends.advice,
    )


def _flag(config: Config | None) -> tuple[str, bool | None]:
    """(key, value) of the first key that speaks of a tie in any config; None if there is none."""
    key = next((key for key in FLAG_KEYS if config and type(config.at(key)) is bool), "")
    return key, bool(config.at(key)) if config and key else None


def _by_names(config: Config | None, stored: StoredNames, why: str) -> Claim:
    """The pair that names and shapes suggest; claimed only if a flag says so."""
    embeddings, heads = guess_pairs(stored)
    key, flag = _flag(config)
    names = [matrix.name for matrix in (*embeddings, *heads)]
    if len(embeddings) > 1 or len(heads) > 1:
        # the flag speaks of one embedding and one head; which of several it means, only the code knows
        flag = None
    source = f"unknown: judged by names and shapes ({why})"
    if config and flag is not None:
        source = f"{'tied' if flag else 'untied'}: {key} is {str(flag).lower()} in {config.file}; names and shapes ({why})"
    groups: tuple[TieGroup, ...] = ()
    if len(names) > 1 or (names and flag):
        aliases = tuple(Alias(name, flag, flag) for name in names[1:])
        groups = (TieGroup(canonical=names[0], aliases=aliases, role="embedding-head", source=source, optional=True),)
    return Claim(
        architecture=config.architectures[0] if config and config.architectures else "",
        basis=f"names and shapes ({why})",
        groups=groups,
        embedding=names[0] if embeddings else None,
        head=heads[0].name if heads else None,
        writer=config.writer if config else None,
    )


def _unknown(config: Config) -> str:
    name = config.architectures[0] if config.architectures else config.model_type
    if not name:
        return f"{config.file} names no architecture"
    return f"{name} is {'remote code' if config.remote_code else 'not in the catalog'}"


def _is_drafter(config: Config, stored: StoredNames) -> bool:
    if any(_DRAFTER_CLASS.search(name) for name in config.architectures) or "draft_vocab_size" in config.data:
        return True
    return any(name.startswith(_DRAFTER_NAMES) for name in stored)


def _named_as_model(edition: Edition) -> bool:
    """Files that transformers would load as the model; `mm_projector.bin` or `value_head.bin` are parts and lack much."""
    return edition.name.startswith(("model", "pytorch_model"))
