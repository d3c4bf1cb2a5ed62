"""This file holds `audit`: the only place where the stages meet (source → loader → claim → relations → rules → report)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import copies, vocabulary
from .bytewise import TensorBytes
from .checkpoint import Checkpoint, Edition, Problem, TensorRecord
from .claim import Claim, TieGroup, of_edition
from .config import Config, read
from .errors import FormatError, OptionError, TargetError
from .inspectors import registry
from .inspectors.rule import Case, EditionCase, FormatPair, Pair, TieState
from .loaders import sharded
from .names import Matrix, StoredNames, plain
from .relations import Evidence, Kind, Relation, Verify, relate
from .report import Cost, Report, Skip, Totals
from .sources import Source
from .sources.local import LocalFolder
from .summary import reason, ties

MIN_WASTE = 1024  # bytes; below it repeats are norms and scales
Progress = Callable[[str, int, int], None]
"""Told (what, done, total) as the work goes on."""

LOOKED_FOR = "model.safetensors, pytorch_model.bin, their *.index.json, and other .safetensors, .bin, .pt, .pth, .ckpt files"
# editions of one and the same model, as `save_pretrained` names them; other names (step-100.pt, value_head.bin) are other things
_MODEL = re.compile(r"^(diffusion_)?(pytorch_)?model\.(safetensors|bin)$")


def audit(
    target: str | os.PathLike[str],
    *,
    verify: str = Verify.FULL,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    min_waste: int = MIN_WASTE,
    progress: Progress = lambda *_: None,
) -> Report:
    """Judge the checkpoint at `target`, a folder or a file.

    `verify`: "headers" reads no weights, "sample" some pages of them, "full" (default) proves equality by a whole compare.
    `select` and `ignore` name rules by code, prefix of a code, or name. `min_waste` in bytes: smaller repeats are no findings.
    Raises TargetError if there is no checkpoint, OptionError for an option that does not exist. A broken file is a finding.
    """
    started = time.perf_counter()
    try:
        level = Verify(verify)
    except ValueError:
        raise OptionError("--verify", str(verify), "headers, sample or full") from None
    registry.matching((*select, *ignore), "--select or --ignore")
    folder, only = _resolve(os.fspath(target))
    try:
        checkpoint = sharded.load(folder, os.fspath(target), only, lambda name, done, total: progress(name, done, total))
        _demand_something(checkpoint, folder, only)
        config, fault = read(folder)
        job = _Job(folder, checkpoint, config, level, min_waste, progress)
        case = job.case(fault)
        findings, wasted = registry.run(case, select, ignore)
    finally:
        folder.close()
    return Report(
        target=os.fspath(target),
        formats=tuple(dict.fromkeys(edition.format for edition in checkpoint.editions if edition.format)),
        files=tuple((file.name, file.nbytes) for file in checkpoint.files),
        totals=_totals(case, wasted),
        ties=tuple(ties(case)),
        findings=findings,
        skipped=tuple(_skipped(case)),
        not_compared=tuple(_not_compared(case, level, only)),
        cost=Cost(
            bytes_read=folder.meter.bytes_read, requests=folder.meter.requests, seconds=round(time.perf_counter() - started, 4)
        ),
        reason=reason(case),
    )


def _resolve(target: str) -> tuple[LocalFolder, str | None]:
    """(folder, the one file of it that was asked for)."""
    try:
        path = Path(target)
        real = path.resolve(strict=True)
        if real.is_dir():
            return LocalFolder(real), None
        if not real.is_file():
            raise TargetError(target, "is neither a folder nor a regular file", "devices, FIFOs and sockets are not opened")
        # the folder of the link, so that a snapshot of the Hub cache keeps its config; else that of the file itself
        parent, name = path.parent.resolve(), path.name
        if LocalFolder(parent).entry(name).refused:
            parent, name = real.parent, real.name
        return LocalFolder(parent), name
    except FileNotFoundError:
        hint = "Hub ids are not read by this version" if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", target) else "check the spelling"
        raise TargetError(target, "no such file or folder", hint) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise TargetError(target, f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def _demand_something(checkpoint: Checkpoint, folder: LocalFolder, only: str | None) -> None:
    """TargetError if there is nothing to judge: a folder that is no checkpoint must not pass as a healthy one."""
    if any(edition.kind != "training" for edition in checkpoint.editions) or checkpoint.unreadable:
        return
    if only is not None and checkpoint.editions:
        return
    if only is not None:
        what = checkpoint.elsewhere[0][1] if checkpoint.elsewhere else "is not a checkpoint"
        raise TargetError(checkpoint.target, what, "safetensors and torch files are read")
    inside = [name for name, _ in checkpoint.elsewhere]
    if inside:
        raise TargetError(checkpoint.target, "no checkpoint that is read here", f"found {', '.join(inside[:6])}; looked for {LOOKED_FOR}")
    has_config = " (there is a config.json, but no weights)" if folder.exists("config.json") else ""
    raise TargetError(checkpoint.target, f"no checkpoint here{has_config}", f"looked for {LOOKED_FOR}")


@dataclass(frozen=True, slots=True)
class _Job:
    """One audit under way: reads what the rules will need."""

    folder: LocalFolder
    checkpoint: Checkpoint
    config: Config | None
    verify: Verify
    min_waste: int
    progress: Progress

    def case(self, config_fault: Problem | None) -> Case:
        data = TensorBytes(dict(self._sources()), self._advanced())
        editions = tuple(self._edition(edition, data) for edition in self.checkpoint.editions)
        faults = [*self.checkpoint.unreadable, *(problem for file in self.checkpoint.files for problem in file.problems)]
        return Case(
            checkpoint=self.checkpoint,
            config=self.config,
            editions=editions,
            faults=tuple([*faults, config_fault] if config_fault else faults),
            min_waste=self.min_waste,
            format_pairs=tuple(self._format_pairs(data)),
            vocabulary=vocabulary.largest(self.folder) if self.config else None,
        )

    def _sources(self) -> Iterator[tuple[str, Source]]:
        for file in self.checkpoint.files:
            try:
                yield file.name, self.folder.open(file.name)
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

    def _edition(self, edition: Edition, data: TensorBytes) -> EditionCase:
        stored = StoredNames(edition.weights, (name for file in edition.files for problem in file.problems for name in problem.tensors))
        if edition.kind != "weights":
            return EditionCase(edition=edition, claim=Claim(), stored=stored, ties=())
        claim = of_edition(edition, self.config, stored)
        states = tuple(self._state(group, claim, stored, data) for group in claim.groups)
        weights = edition.weights
        scan = copies.scan(
            weights, data, self.verify, max(1, self.min_waste), lambda done, total: self.progress("sampling", done, total)
        )
        ends = [matrix.main for state in states for matrix in _matrices(state)]
        return EditionCase(
            edition=edition,
            claim=claim,
            stored=stored,
            ties=states,
            scan=scan,
            related=tuple(self._related(weights, ends, data)),
            repeats=tuple(self._repeats(edition, data)),
        )

    def _state(self, group: TieGroup, claim: Claim, stored: StoredNames, data: TensorBytes) -> TieState:
        """Every name of the group looked up, and the stored ones compared with the first of them."""
        asked: list[tuple[str, bool | None, bool | None]] = [(group.canonical, True, True)]
        asked += [(alias.name, alias.tied, alias.tied_v4) for alias in group.aliases]
        found: list[tuple[Matrix, bool | None, bool | None]] = []
        absent, broken = [], []
        for name, tied, tied_v4 in asked:
            matrix = stored.find(name, claim.other_names)
            if matrix and all(matrix.name != other.name for other, _, _ in found):
                found.append((matrix, tied, tied_v4))
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
        holder, holder_tied, holder_tied_v4 = found[0]
        pairs = tuple(
            Pair(
                first=holder,
                second=matrix,
                tied=_both(holder_tied, tied),
                tied_v4=_both(holder_tied_v4, tied_v4),
                relation=relate(holder, matrix, data, self.verify),
            )
            for matrix, tied, tied_v4 in found[1:]
        )
        if absent and absent[0][0] == group.canonical:
            # what became of the canonical name depends on whether the holder is tied to it
            absent[0] = (group.canonical, holder_tied, holder_tied_v4)
        return TieState(group=group, holder=holder, pairs=pairs, absent=tuple(absent), broken=tuple(broken))

    def _related(
        self, weights: Iterable[TensorRecord], ends: list[TensorRecord], data: TensorBytes
    ) -> Iterator[tuple[TensorRecord, TensorRecord, Relation]]:
        if self.verify is Verify.HEADERS:
            return
        for first, second in copies.candidates(weights, ends, data, self.min_waste):
            relation = relate(Matrix(first.name, (first,)), Matrix(second.name, (second,)), data, self.verify)
            if relation.kind in (Kind.TRANSPOSED, Kind.CAST):
                yield first, second, relation

    def _repeats(self, edition: Edition, data: TensorBytes) -> Iterator[tuple[TensorRecord, TensorRecord, Relation]]:
        seen: dict[str, TensorRecord] = {}
        if len(edition.files) < 2:
            return
        for tensor in edition.tensors:
            first = seen.setdefault(tensor.name, tensor)
            if first is not tensor and first.file != tensor.file and not tensor.part:
                yield first, tensor, relate(Matrix(first.name, (first,)), Matrix(tensor.name, (tensor,)), data, self.verify)

    def _format_pairs(self, data: TensorBytes) -> Iterator[FormatPair]:
        models = [edition for edition in self.checkpoint.editions if edition.kind == "weights" and _MODEL.match(edition.name)]
        for second in models[1:]:
            yield _compared(models[0], second, data, self.verify)


def _matrices(state: TieState) -> Iterator[Matrix]:
    if state.holder:
        yield state.holder
    for pair in state.pairs:
        yield pair.second


def _both(first: bool | None, second: bool | None) -> bool | None:
    """Two names are tied to each other if both are tied to the canonical one."""
    if first is None or second is None:
        return None
    return first and second


def _compared(first: Edition, second: Edition, data: TensorBytes, verify: Verify) -> FormatPair:
    """The tensors that both editions name, by shape and by pages; a cast is no difference."""
    ours = {plain(tensor.name): tensor for tensor in first.weights}
    common, differing = 0, []
    for tensor in second.weights:
        other = ours.get(plain(tensor.name))
        if other is None or tensor.numel == 0 or other.numel == 0:
            continue
        common += 1
        if other.shape != tensor.shape or (verify is not Verify.HEADERS and not _agree(other, tensor, data)):
            differing.append((other, tensor))
    evidence = Evidence.HEADER if verify is Verify.HEADERS else Evidence.SAMPLED
    return FormatPair(first=first, second=second, common=common, differing=tuple(differing), evidence=evidence)


def _agree(first: TensorRecord, second: TensorRecord, data: TensorBytes) -> bool:
    try:
        if not (data.readable(first) and data.readable(second)):
            return True  # what cannot be compared accuses nobody
        if first.dtype == second.dtype:
            return data.samples_equal(first, second)
        relation = relate(Matrix(first.name, (first,)), Matrix(second.name, (second,)), data, Verify.SAMPLE)
    except FormatError:
        return True
    return relation.kind not in (Kind.UNRELATED, Kind.SCALED)


def _totals(case: Case, wasted: int) -> Totals:
    storages = {
        (storage.file, storage.ident): storage.nbytes for file in case.checkpoint.files for storage in file.storages
    }
    dead = sum(end - begin for file in case.checkpoint.files for begin, end in file.dead)
    primary = next(iter(case.judged), None)
    weights = primary.edition.weights if primary else ()
    views = {tensor.view[:4]: tensor.numel for tensor in weights}
    stored = sum(views.values())
    repeated = sum(numel for _, numel in _repeated(primary)) if primary else 0
    return Totals(
        tensors=sum(len(file.tensors) for file in case.checkpoint.files),
        parameters_stored=stored,
        parameters_unique=stored - repeated,
        nbytes_stored=sum(storages.values()) + dead,
        nbytes_wasted=wasted,
    )


def _repeated(case: EditionCase) -> set[tuple[str, int]]:
    """(name, elements) of the tensors of an edition that only repeat another one."""
    found = {
        (tensor.name, tensor.numel) for group in case.scan.copies for tensor in group.tensors[1:]
    }
    for state in case.ties:
        for pair in state.pairs:
            if pair.relation.kind in (Kind.EQUAL, Kind.CAST) and pair.second.main.numel:
                # the pair's first name may be the later one in the scan's group: count one of the two
                if (pair.first.main.name, pair.first.main.numel) not in found:
                    found.add((pair.second.main.name, pair.second.main.numel))
    return found


def _skipped(case: Case) -> Iterator[Skip]:
    """What was asked for and could not be checked."""
    for edition_case in case.editions:
        for file in edition_case.edition.files:
            for words in file.unread:
                yield Skip(file.name, words)
    for edition_case in case.judged:
        for state in edition_case.ties:
            for pair in state.pairs:
                relation = pair.relation
                if relation.kind is Kind.NOT_COMPARED and ("compressed" in relation.detail or "byte" in relation.detail):
                    yield Skip(f"{pair.first.name} and {pair.second.name}", relation.detail)
        for name, why in edition_case.scan.unread:
            yield Skip(name, why)


def _not_compared(case: Case, verify: Verify, only: str | None) -> Iterator[Skip]:
    """What nobody asked for, so that nobody takes it for checked."""
    for subject, why in case.checkpoint.elsewhere:
        yield Skip(subject, why)
    if verify is Verify.HEADERS:
        yield Skip("values of all tensors", "--verify headers reads none")
    if only is not None and sharded.SHARD.match(only):
        yield Skip(f"the other shards of {only}", "only this file was named, so absence of a tensor was not judged")
