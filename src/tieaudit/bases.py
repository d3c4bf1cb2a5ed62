"""This file holds how the base of an adapter is found, and what of the two is compared.

A base is read only if the user names it, or if adapter_config.json names a folder on this machine; a Hub id that a file names is never
followed. Of the base its config, the headers and the ends are read. Without it the adapter is judged by what it shows itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from .adapters import AdapterConfig, AdapterEnd, Copy, ends, read_config, short
from .bytewise import TensorBytes
from .checkpoint import Edition, TensorRecord
from .config import FILES, read
from .errors import FormatError, TargetError
from .evidence import Gathering
from .inspectors.rule import AdapterCase, Case, EditionCase, EndCase, TieState
from .kinds import Evidence, Kind, Relation, Verify, weakest
from .loaders import sharded
from .names import Matrix
from .relations import relate
from .sources import Folder, Source, Wanted
from .sources.local import LocalFolder
from .sources.target import Access, resolve

MAX_PATH = 4096  # characters
INSIDE = "base\0"  # in front of the base's files: no file of a folder can have such a name
SAME = (Kind.EQUAL, Kind.SAME_STORAGE)
# what is stored of a claimed tie, and that readers keep apart
APART = (Kind.UNRELATED, Kind.NEAR, Kind.SCALED, Kind.PADDED, Kind.ROWS_DIFFER, Kind.TRANSPOSED)


@dataclass(frozen=True, slots=True)
class Base:
    """The base as it was read. Its files are told from the adapter's by INSIDE in front."""

    case: EditionCase
    sources: dict[str, Source]
    folder: Folder

    def mine(self, tensor: TensorRecord) -> TensorRecord:
        storage = tensor.storage
        pieces = tuple((INSIDE + file, begin, n) for file, begin, n in storage.pieces)
        return replace(tensor, storage=replace(storage, file=INSIDE + storage.file, pieces=pieces))


@dataclass(frozen=True, slots=True)
class _Both:
    """The ways to the files of an adapter and of its base."""

    adapter: Folder
    base: Base | None
    remote: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "remote", self.adapter.remote or (self.base is not None and self.base.folder.remote))

    def _way(self, name: str) -> tuple[Folder, str]:
        if self.base and name.startswith(INSIDE):
            return self.base.folder, name.removeprefix(INSIDE)
        return self.adapter, name

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        by_folder: dict[int, tuple[Folder, list[Wanted]]] = {}
        for name, offset, n in wanted:
            folder, inside = self._way(name)
            by_folder.setdefault(id(folder), (folder, []))[1].append((inside, offset, n))
        for folder, part in by_folder.values():
            folder.prefetch(part)

    def held(self, name: str, offset: int, n: int) -> bool:
        folder, inside = self._way(name)
        return folder.held(inside, offset, n)

    def spare(self) -> int:
        return min(self.adapter.spare(), self.base.folder.spare() if self.base else self.adapter.spare())


def with_adapters(gathering: Gathering, case: Case, base: str | None, access: Access, asked: Verify | None) -> Case:
    """The case with every adapter that it holds judged against its base. `base`: what the user named."""
    editions = [edition for edition in case.checkpoint.editions if edition.kind == "adapter"]
    if not editions:
        return case
    config, fault, unread = read_config(gathering.folder)
    # the one that the user names, else a folder that the file names
    opened, only = (None, None) if base is None else resolve(base, replace(access, revision=None, subfolder=None))
    named = config.base if config else ""
    if base is None and named:
        opened = _beside(gathering.folder, named)
    adapters: list[AdapterCase] = []
    trouble = ""
    try:
        read_base = None
        if opened:
            verify = asked or (Verify.SAMPLE if opened.remote or gathering.folder.remote else Verify.FULL)
            try:
                read_base = _read(opened, only, replace(gathering, folder=opened, verify=verify))
            except (TargetError, FormatError) as error:
                trouble = str(error)
        else:
            verify = gathering.verify
            read_base = _by_config(gathering)
        if base is not None and read_base is None:
            unread = unread or (f"the base {base}", trouble or "holds no config and no weights that are read here")
        data = TensorBytes(dict(gathering.sources()) | (read_base.sources if read_base else {}), folder=_Both(gathering.folder, read_base))
        for edition in editions:
            adapter = _adapter(edition, config, named if base is None else base, read_base, data, verify)
            adapters.append(replace(adapter, trouble=trouble if base is None else ""))
    finally:
        if opened:
            gathering.folder.meter.add(requests=opened.meter.requests, nbytes=opened.meter.bytes_read)
            opened.close()
    return replace(
        case,
        adapters=tuple(adapters),
        faults=(*case.faults, fault) if fault else case.faults,
        unread=(*case.unread, unread) if unread else case.unread,
    )


def uncompared(case: Case) -> Iterator[tuple[str, Relation]]:
    """(both names, why) of every copy in an adapter that could not be held against the base's matrix."""
    for end in (end for adapter in case.adapters for end in adapter.ends):
        for _, tensor, relation in end.against_base:
            if end.base and relation.kind is Kind.NOT_COMPARED:
                yield f"{tensor.name} and {end.base.name} of the base", relation


def _beside(folder: Folder, name: str) -> LocalFolder | None:
    """The folder on this machine that a file names, seen from the adapter's own folder and then, as PEFT does, from the current one.

    Only a folder with a config is taken, and in it only regular files are opened. What a server's file names is not looked for here.
    """
    if not isinstance(folder, LocalFolder) or len(name) > MAX_PATH or "\0" in name or "://" in name or name.startswith("~"):
        return None
    for root in (folder.root, Path()):
        try:
            real = (root / name).resolve(strict=True)
            found = LocalFolder(real) if real.is_dir() else None
            if found and any(found.exists(file) for file in FILES):
                return found
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def _read(folder: Folder, only: str | None, gathering: Gathering) -> Base | None:
    """Config, headers and ties of the base; None if there is no config and nothing to read. TargetError, FormatError if it cannot be."""
    beside = [file for file in FILES if folder.exists(file)][:1] if folder.remote else []
    checkpoint = sharded.load(folder, "the base", only, gathering.progress, beside)
    config, fault = read(folder)
    if fault:
        raise FormatError(fault.file, fault.what, fault.offset)
    edition = checkpoint.primary
    if edition is None or edition.foreign:
        # the names of a graph are not those that PEFT writes; the config alone still says what is tied
        edition = Edition(name="model", format="", whole=False)
        if config is None:
            return None
    # how its own two ends relate is worth some pages; its own audit proves it
    own = replace(gathering, checkpoint=checkpoint, config=config, verify=min(gathering.verify, Verify.SAMPLE, key=list(Verify).index))
    sources = dict(own.sources())
    case = own.tied(edition, TensorBytes(sources, folder=folder))
    return Base(case, {INSIDE + file: source for file, source in sources.items()}, folder)


def _by_config(gathering: Gathering) -> Base | None:
    """The base by a config.json that trainers leave beside an adapter. Weights in that folder may be a merged model: not compared."""
    if gathering.config is None:
        return None
    case = gathering.tied(Edition(name="model", format="", whole=False), TensorBytes({}))
    return Base(case, {}, gathering.folder)


def _adapter(
    edition: Edition, config: AdapterConfig | None, name: str, base: Base | None, data: TensorBytes, verify: Verify
) -> AdapterCase:
    found = _ends(edition, base)
    touched = [_against(end, config, base, data, verify) for end in found]
    equal, differing = _equal(touched, data, verify)
    shown = _shows(touched, equal, config)
    if shown:
        modules = [case.end.module for case in touched]
        touched = [
            replace(case, tied=True, partners=tuple(module for module in modules if module != case.end.module))
            if case.tied is None
            else case
            for case in touched
        ]
    state = _main(base)
    return AdapterCase(
        edition=edition,
        config=config,
        base=name,
        read=base is not None,
        source=state.group.source if state else "",
        state=state,
        base_edition=base.case if base else None,
        ends=tuple(touched),
        equal=tuple((tuple((touched[at], kind, tensor) for at, kind, tensor in members), evidence) for members, evidence in equal),
        shown=shown,
        differing=frozenset(differing),
    )


def _main(base: Base | None) -> TieState | None:
    """The base's embedding and head."""
    states = base.case.ties if base else ()
    return next((state for state in states if state.group.role == "embedding-head"), None)


def _ends(edition: Edition, base: Base | None) -> tuple[AdapterEnd, ...]:
    claim = base.case.claim if base else None
    if claim is None:
        return ends(edition.tensors)
    names = {name for group in claim.groups if group.role in ("embedding-head", "embedding") for name in group.names}
    names |= {name for name in (claim.embedding, claim.head) if name}
    spelled = {name: (name, *claim.other_names.get(name, ())) for name in names}
    heads = spelled.pop(claim.head, ()) if claim.head else ()
    return ends(edition.tensors, heads, (other for others in spelled.values() for other in others))


def _against(end: AdapterEnd, config: AdapterConfig | None, base: Base | None, data: TensorBytes, verify: Verify) -> EndCase:
    if base is None:
        return EndCase(end=end)
    tied, name, partners, holder = _tied(end.module, base.case, headless=bool(config and config.headless))
    claim = base.case.claim
    matrix = base.case.stored.find(name, claim.other_names) or (holder if tied else None)
    if matrix:
        matrix = Matrix(matrix.name, tuple(map(base.mine, matrix.parts)))
    return EndCase(
        end=end,
        tied=tied,
        partners=partners,
        base=matrix,
        against_base=tuple(
            (kind, tensor, relate(matrix, Matrix(tensor.name, (tensor,)), data, verify)) for kind, tensor in end.copies if matrix
        ),
        rows=claim.rows.get(name),
    )


def _tied(module: str, base: EditionCase, *, headless: bool) -> tuple[bool | None, str, tuple[str, ...], Matrix | None]:
    """(whether the base takes one matrix for the module and others, its name there, the others, what holds it)."""
    claim = base.claim

    def is_it(name: str) -> bool:
        return short(module) in {short(other) for other in (name, *claim.other_names.get(name, ()))}

    for state in base.ties:
        group = state.group
        if group.role not in ("embedding-head", "embedding") or not any(map(is_it, group.names)):
            continue
        apart = {short(pair.second.name) for pair in state.pairs if pair.relation.kind in APART or pair.tied is False}
        flags = {alias.name: alias.tied and short(alias.name) not in apart for alias in group.aliases}
        if headless:  # the class of this task has no such module
            flags = {other: tied for other, tied in flags.items() if other != claim.head}
        name = next(filter(is_it, group.names))
        if name == group.canonical:
            # a group of one is what names alone gave: nobody says with whom it is tied
            tied = True if True in flags.values() else None if None in flags.values() or not group.aliases else False
        else:
            tied = flags.get(name, False)
        members = [group.canonical, *(other for other, flag in flags.items() if flag)]
        return tied, name, tuple(other for other in members if other != name) if tied else (), state.holder
    by_class = bool(claim.architecture) and not claim.basis.startswith("names and shapes")
    known = next((name for name in (claim.embedding, claim.head) if name and is_it(name)), "")
    return (False if by_class and known else None), known or module + ".weight", (), None


_Members = list[tuple[int, Copy | None, TensorRecord]]


def _equal(touched: list[EndCase], data: TensorBytes, verify: Verify) -> tuple[list[tuple[_Members, Evidence]], set[tuple[str, str]]]:
    """(whole matrices of the adapter, or trained rows, with the same bytes, the one to keep first; names of those that differ)."""
    order = {kind: at for at, kind in enumerate(Copy)}
    stored: _Members = [(at, kind, tensor) for at, case in enumerate(touched) for kind, tensor in case.end.copies]
    stored.sort(key=lambda entry: order[entry[1]] if entry[1] else 0)
    stored += [(at, None, case.end.tokens) for at, case in enumerate(touched) if case.end.tokens]
    classes: list[tuple[_Members, list[Evidence]]] = []
    differing: set[tuple[str, str]] = set()
    for entry in stored:
        for members, evidence in classes:
            if (members[0][1] is None) != (entry[1] is None):
                continue
            first, second = members[0][2], entry[2]
            relation = relate(Matrix(first.name, (first,)), Matrix(second.name, (second,)), data, verify)
            if relation.kind in SAME:
                members.append(entry)
                evidence.append(relation.evidence if relation.kind is Kind.EQUAL else Evidence.PROVED)
                break
            if relation.kind in APART:
                differing.add((first.name, second.name))
        else:
            classes.append(([entry], []))
    return [(members, weakest(evidence)) for members, evidence in classes if len(members) > 1], differing


def _shows(touched: list[EndCase], equal: list[tuple[_Members, Evidence]], config: AdapterConfig | None) -> bool:
    """The adapter alone shows that its base is tied: two trained matrices are equal only if they were one, and
    `ensure_weight_tying` lays the delta of one end on the other only where they are."""
    for members, _ in equal:
        if len({at for at, kind, _ in members if kind}) > 1:
            return True
    if config is None or not config.ensure_weight_tying or len(touched) < 2:
        return False
    laid = [case.end.module for case in touched if case.end.deltas]
    return len(laid) > 1 and any(config.targets(module) is False and not config.saves(module) for module in laid)
