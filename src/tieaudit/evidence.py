"""This file holds how the evidence for the rules is gathered: claims, relations and copies of every edition, read from the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from . import copies, repository, skiplists, vocabulary
from .bytewise import BEGIN, TensorBytes
from .checkpoint import Checkpoint, Edition, Problem, TensorRecord
from .claim import Claim, TieGroup, of_edition
from .config import MAX_CONFIG, Config
from .errors import FormatError, ReadError
from .inspectors.rule import Across, Case, EditionCase, FormatPair, Pair, TieState, UntrainedRows, Vocabulary
from .kinds import Evidence, Kind, Relation, Verify
from .loaders.sharded import read_json
from .names import Matrix, StoredNames, plain
from .quantised import hints
from .relations import relate
from .sources import Folder, Source
from .training import of_run

MODELOPT = "hf_quant_config.json"
ALWAYS_COMPARED = 2  # tensors of two remote formats
PAIR_REQUESTS = 8  # that comparing two remote tensors by value may take
PROGRAMS = ("onnx", "openvino")  # formats in which one model is exported as several files that run alone
_MOVING = frozenset(("model", "language_model", "transformer"))

Progress = Callable[[str, int, int], None]
"""Told (what, done, total) as the work goes on."""

# editions of one and the same model, as `save_pretrained` names them; other names (step-100.pt, value_head.bin) are other things
_MODEL = re.compile(r"^(diffusion_)?(pytorch_)?model\.(safetensors|bin)$")


@dataclass(frozen=True, slots=True)
class Gathering:
    """One audit under way: reads what the rules will need, and no more."""

    folder: Folder
    checkpoint: Checkpoint
    config: Config | None
    verify: Verify
    min_waste: int
    progress: Progress

    def case(self, config_fault: Problem | None) -> Case:
        """All that the rules may look at; `config_fault` is what broke config.json, if anything."""
        data = self.reader()
        editions = tuple(self._edition(edition, data) for edition in self.checkpoint.editions)
        known, unread = vocabulary.largest(self.folder) if self.config else (None, [])
        faults = [*self.checkpoint.unreadable, *(problem for file in self.checkpoint.files for problem in file.problems)]
        return Case(
            checkpoint=self.checkpoint,
            config=self.config,
            editions=editions,
            faults=tuple([*faults, config_fault] if config_fault else faults),
            min_waste=self.min_waste,
            format_pairs=tuple(self._format_pairs(data)),
            across=tuple(self._across(data)),
            vocabulary=known,
            untrained=tuple(self._untrained(editions, known, data)) if known and self.verify is not Verify.HEADERS else (),
            unread=tuple(unread),
            quantization=self._quantization(),
        )

    def _quantization(self) -> skiplists.Plan | None:
        """The quantisation config: within config.json, or in ModelOpt's own file."""
        if self.config is None:
            return None
        found = skiplists.plan(self.config.data, self.config.file)
        if found is None and self.folder.exists(MODELOPT):
            try:
                data = read_json(self.folder, MODELOPT, MAX_CONFIG)
            except FormatError:
                return None  # what cannot be read contradicts nobody
            found = skiplists.Plan(MODELOPT, "", data) if isinstance(data, dict) else None
        return found

    def _untrained(self, editions: Iterable[EditionCase], known: Vocabulary, data: TensorBytes) -> Iterator[UntrainedRows]:
        padding = self.config.at("pad_token_id") if self.config else None
        for edition_case in editions:
            claim = edition_case.claim
            matrix = edition_case.stored.find(claim.embedding, claim.other_names) if claim.embedding else None
            if matrix is None or matrix.packed or not claim.exact:
                continue
            try:
                found = vocabulary.untrained(matrix.main, known.added, padding, data)
            except FormatError:
                continue  # the scan for copies tells of what cannot be read
            if found:
                yield found

    def reader(self) -> TensorBytes:
        """Reads the tensors of all files."""
        return TensorBytes(dict(self.sources()), self._advanced(), self.folder)

    def sources(self) -> Iterator[tuple[str, Source]]:
        """Every file that was read, by its name."""
        for name in dict.fromkeys(name for file in self.checkpoint.files for name in (file.name, *(data for data, _ in file.data))):
            try:
                yield name, self.folder.open(name)
            except FormatError:
                continue  # it was read a moment ago; its tensors are then not comparable

    def _advanced(self) -> Callable[[int], None]:
        total = sum(file.nbytes for file in self.checkpoint.files)
        done = 0

        def advanced(n: int) -> None:
            nonlocal done
            done += n
            self.progress("comparing", min(done, total), total)

        return advanced

    def tied(self, edition: Edition, data: TensorBytes) -> EditionCase:
        """The edition's claim, and its ties against what is stored; nothing else of it is compared."""
        broken = (name for file in edition.files for problem in file.problems for name in problem.tensors)
        stored = StoredNames(edition.weights, broken, hints(self.config.data) if self.config else None)
        if edition.kind != "weights":
            return EditionCase(edition=edition, claim=Claim(), stored=stored, ties=())
        claim = of_run(of_edition(edition, self.config, stored), edition, stored)
        if self.verify is not Verify.HEADERS:
            data.prefetch(_tied_tensors(claim, stored))
            stored.learn(dict(_notes(claim, stored, data)))
        states = tuple(self._state(group, claim, stored, data) for group in claim.groups)
        return EditionCase(edition=edition, claim=claim, stored=stored, ties=states)

    def _edition(self, edition: Edition, data: TensorBytes) -> EditionCase:
        case = self.tied(edition, data)
        if edition.kind != "weights":
            return case
        weights = edition.weights
        scan = copies.scan(weights, data, self.verify, max(1, self.min_waste), lambda done, total: self.progress("sampling", done, total))
        ends = [matrix.main for state in case.ties for matrix in state.matrices]
        return replace(
            case,
            scan=scan,
            related=tuple(self._related(weights, ends, data, scan)),
            repeats=tuple(self._repeats(edition, data, scan)),
        )

    def _state(self, group: TieGroup, claim: Claim, stored: StoredNames, data: TensorBytes) -> TieState:
        """Every name of the group looked up, and the stored ones compared with the first of them."""
        asked: list[tuple[str, bool | None, bool | None]] = [(group.canonical, True, True)]
        asked += [(alias.name, alias.tied, alias.tied_v4) for alias in group.aliases]
        found: list[tuple[Matrix, bool | None, bool | None, str]] = []
        absent, broken = [], []
        for name, tied, tied_v4 in asked:
            matrix = stored.find(name, claim.other_names)
            if matrix and all(matrix.name != other.name for other, *_ in found):
                found.append((matrix, tied, tied_v4, name))
            elif matrix is None and stored.is_broken(name, claim.other_names):
                broken.append(name)
            elif matrix is None:
                absent.append((name, tied, tied_v4))
        if not found:
            first = group.aliases[0] if group.aliases else None
            return TieState(
                group=group,
                holder=None,
                absent=tuple((name, first.tied if first else None, first.tied_v4 if first else None) for name, _, _ in absent),
                broken=tuple(broken),
            )
        # a name that nothing ties cannot stand in for the others
        found.sort(key=lambda entry: entry[1] is False)
        holder, holder_tied, holder_tied_v4, holder_as = found[0]
        pairs = tuple(
            Pair(
                first=holder,
                second=matrix,
                tied=_both(holder_tied, tied),
                tied_v4=_both(holder_tied_v4, tied_v4),
                relation=relate(holder, matrix, data, self.verify),
            )
            for matrix, tied, tied_v4, _ in found[1:]
        )
        if absent and absent[0][0] == group.canonical:
            # what became of the canonical name depends on whether the holder is tied to it
            absent[0] = (group.canonical, holder_tied, holder_tied_v4)
        return TieState(group=group, holder=holder, holder_as=holder_as, pairs=pairs, absent=tuple(absent), broken=tuple(broken))

    def _related(
        self, weights: Iterable[TensorRecord], ends: list[TensorRecord], data: TensorBytes, scan: copies.Scan
    ) -> Iterator[tuple[TensorRecord, TensorRecord, Relation]]:
        if self.verify is Verify.HEADERS:
            return
        for first, second in copies.candidates(weights, ends, data, self.min_waste):
            if data.spare < PAIR_REQUESTS and not (data.held(first, BEGIN) and data.held(second, BEGIN)):
                scan.left.append((f"{first.name} and {second.name}", copies.LEFT_OUT))
                continue
            relation = relate(Matrix(first.name, (first,)), Matrix(second.name, (second,)), data, self.verify)
            if relation.kind in (Kind.TRANSPOSED, Kind.CAST):
                yield first, second, relation

    def _repeats(self, edition: Edition, data: TensorBytes, scan: copies.Scan) -> Iterator[tuple[TensorRecord, TensorRecord, Relation]]:
        seen: dict[str, TensorRecord] = {}
        if len(edition.files) < 2:
            return
        for tensor in edition.tensors:
            first = seen.setdefault(tensor.name, tensor)
            if first is not tensor and first.file != tensor.file and not tensor.part:
                if data.spare < PAIR_REQUESTS and not (data.held(first, BEGIN) and data.held(tensor, BEGIN)):
                    scan.left.append((f"{tensor.name} in {first.file} and in {tensor.file}", copies.LEFT_OUT))
                    relation = Relation(kind=Kind.NOT_COMPARED, evidence=Evidence.HEADER, detail=copies.LEFT_OUT)
                    yield first, tensor, relation
                    continue
                yield first, tensor, relate(Matrix(first.name, (first,)), Matrix(tensor.name, (tensor,)), data, self.verify)

    def _format_pairs(self, data: TensorBytes) -> Iterator[FormatPair]:
        models = [edition for edition in self.checkpoint.editions if edition.kind == "weights" and _MODEL.match(edition.name)]
        for second in models[1:]:
            yield _compared(models[0], second, data, self.verify)
        primary = self.checkpoint.primary
        for second in self.checkpoint.editions:
            if primary and second is not primary and second not in models and repository.same_bytes(self.folder, primary, second):
                yield FormatPair(first=primary, second=second, common=len(second.weights), evidence=Evidence.PROVED)

    def _across(self, data: TensorBytes) -> Iterator[Across]:
        """Between the programs of one export (encoder, decoder, decoder with past). Pages show it: no byte of it is called wasted."""
        programs = [edition for edition in self.checkpoint.editions if edition.kind == "weights" and edition.format in PROGRAMS]
        if len(programs) < 2 or self.verify is Verify.HEADERS:
            return
        owners = {id(tensor): edition for edition in programs for tensor in edition.weights}
        found: dict[tuple[str, str], list[tuple[TensorRecord, TensorRecord]]] = {}
        scan = copies.scan((tensor for edition in programs for tensor in edition.weights), data, Verify.SAMPLE, max(1, self.min_waste))
        for group in scan.copies:
            once = {owners[id(tensor)].name: tensor for tensor in reversed(group.tensors)}
            first, *others = sorted(once, key=[edition.name for edition in programs].index)
            for other in others:
                found.setdefault((first, other), []).append((once[first], once[other]))
        named = {edition.name: edition for edition in programs}
        for (one, two), pairs in found.items():
            yield Across(first=named[one], second=named[two], pairs=tuple(pairs), evidence=Evidence.SAMPLED)


def _tied_tensors(claim: Claim, stored: StoredNames) -> Iterator[TensorRecord]:
    """What the ties will compare: the stored names of each group that has several."""
    for group in claim.groups:
        names = (group.canonical, *(alias.name for alias in group.aliases))
        found = {matrix.name: matrix for matrix in (stored.find(name, claim.other_names) for name in names) if matrix}
        if len(found) > 1:
            yield from (part for matrix in found.values() for part in matrix.parts)


def _notes(claim: Claim, stored: StoredNames, data: TensorBytes) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the small tensors that say which shape a packed end has; what cannot be read leaves the shape unknown."""
    ends = [name for name in (claim.embedding, claim.head) if name]
    ends += [name for group in claim.groups if group.role in ("embedding-head", "embedding") for name in group.names]
    for name in dict.fromkeys(ends):
        matrix = stored.find(name, claim.other_names)
        note = matrix.note if matrix else None
        if note and data.readable(note):
            try:
                yield note.name, data.read(note, 0, note.nbytes)
            except FormatError:
                continue


def _both(first: bool | None, second: bool | None) -> bool | None:
    """Two names are tied to each other if both are tied to the canonical one."""
    if first is None or second is None:
        return None
    return first and second


def _compared(first: Edition, second: Edition, data: TensorBytes, verify: Verify) -> FormatPair:
    """The tensors that both editions name, by shape and by pages; a cast is no difference. Of remote files some pages only."""
    ours = _by_short_name(first)
    pairs = [
        (other, tensor)
        for name, tensor in _by_short_name(second).items()
        if (other := ours.get(name)) is not None and tensor.numel and other.numel
    ]
    differing = {tensor.name: (other, tensor) for other, tensor in pairs if other.shape != tensor.shape}
    unread: list[tuple[str, str]] = []
    looked_at = [] if verify is Verify.HEADERS else [pair for pair in pairs if pair[1].name not in differing]
    left = 0
    if data.remote:
        affordable: list[tuple[TensorRecord, TensorRecord]] = []
        rest = data.spare
        # the largest first: the ends of the model and its widest layers
        for pair in sorted(looked_at, key=lambda pair: -pair[0].nbytes):
            cost = 2 * sum(not data.held(tensor, BEGIN) for tensor in pair)
            # the widest are always looked at: without a page there is nothing to say of two formats
            if cost <= rest or not cost or len(affordable) < ALWAYS_COMPARED:
                affordable.append(pair)
                rest -= cost
        left, looked_at = len(looked_at) - len(affordable), affordable
        data.prefetch(tensor for pair in affordable for tensor in pair)
    for other, tensor in looked_at:
        try:
            if not _agree(other, tensor, data):
                differing[tensor.name] = (other, tensor)
        except ReadError as error:
            unread.append((tensor.name, str(error)))
    return FormatPair(
        first=first,
        second=second,
        common=len(pairs),
        differing=tuple(differing.values()),
        evidence=Evidence.HEADER if not looked_at else Evidence.SAMPLED,
        unread=tuple(unread),
        left=left,
    )


def _by_short_name(edition: Edition) -> dict[str, TensorRecord]:
    """Names without the words that differ between a state dict in memory and the same on disk; names that then collide are left out.

    transformers renames on saving: `model.language_model.embed_tokens` in memory is `language_model.model.embed_tokens` on disk.
    """
    found: dict[str, TensorRecord | None] = {}
    for tensor in edition.weights:
        name = ".".join(word for word in plain(tensor.name).split(".") if word not in _MOVING)
        found[name] = None if name in found else tensor
    return {name: tensor for name, tensor in found.items() if tensor}


def _agree(first: TensorRecord, second: TensorRecord, data: TensorBytes) -> bool:
    try:
        if not (data.readable(first) and data.readable(second)):
            return True  # what cannot be compared accuses nobody
        if first.dtype == second.dtype:
            return data.samples_equal(first, second)
        relation = relate(Matrix(first.name, (first,)), Matrix(second.name, (second,)), data, Verify.SAMPLE)
    except ReadError:
        raise
    except FormatError:
        return True
    return relation.kind not in (Kind.UNRELATED, Kind.SCALED)
