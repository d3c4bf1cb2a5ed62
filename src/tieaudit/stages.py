"""This file holds `audit`: the only place where the stages meet (source → loader → claim → relations → rules → report)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from . import adapters, bases, repository, vocabulary
from .checkpoint import Checkpoint, LoadedFile
from .config import FILES, read
from .copies import LEFT_OUT
from .errors import MissingLibrary, OptionError, TargetError
from .evidence import Gathering, Progress
from .inspectors import registry
from .inspectors.rule import Case, EditionCase
from .kinds import Kind, Verify
from .loaders import sharded
from .report import Cost, Report, Skip, Totals
from .sources import Folder
from .sources.local import LocalFolder
from .sources.target import TIMEOUT, Access, resolve
from .summary import ends, reason, ties

FULL_REQUESTS = 1000  # that --verify full may spend on samples beyond the ties
MIN_WASTE = 1024  # bytes; below it repeats are norms and scales
LOOKED_FOR = (
    "model.safetensors, pytorch_model.bin, their *.index.json, other .safetensors, .bin, .pt, .pth and .ckpt files, .gguf, .onnx, "
    "OpenVINO's .xml, .npz, .msgpack, and checkpoint folders of torch.distributed, DeepSpeed and Megatron"
)


def audit(
    target: str | os.PathLike[str],
    *,
    verify: str | None = None,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    min_waste: int = MIN_WASTE,
    progress: Progress = lambda *_: None,
    revision: str | None = None,
    subfolder: str | None = None,
    offline: bool = False,
    timeout: float = TIMEOUT,
    base: str | os.PathLike[str] | None = None,
    load: bool = False,
    trust_remote_code: bool = False,
) -> Report:
    """Judge the checkpoint at `target`: a folder, a file, a Hub id, or a URL of an object store. A path that exists wins over a Hub id.

    `verify`: "headers" reads no weights, "sample" some pages of them (default where every read is a request), "full" (default for
    files on this machine) proves equality by a whole compare.
    `revision`, `subfolder`: of a Hub id; `offline` audits what the local Hub cache holds of it. `timeout`: seconds that one read over
    the network may take, all tries included. `base`: the model that an adapter was trained on, as any target.
    `select` and `ignore` name rules by code, prefix of a code, or name. `min_waste` in bytes: smaller repeats are no findings.
    `load`: let transformers load the model on the CPU as well, from files on this machine (of a Hub id: from its cache), and compare it in
    memory with what was found; `trust_remote_code` runs the code that lies beside the weights, if the model needs it.
    Raises TargetError if there is no checkpoint, OptionError for an option that does not exist. A broken file is a finding.
    """
    started = time.perf_counter()
    try:
        asked = None if verify is None else Verify(verify)
    except ValueError:
        raise OptionError("--verify", str(verify), "headers, sample or full") from None
    chosen, left = ((words,) if isinstance(words, str) else tuple(words) for words in (select, ignore))
    registry.matching((*chosen, *left), "--select or --ignore")
    if not timeout > 0:
        raise OptionError("--timeout", str(timeout), "a number of seconds above 0")
    if trust_remote_code and not load:
        raise OptionError("--trust-remote-code", "on", "it is for --load; nothing else runs code")
    access = Access(revision=revision, subfolder=subfolder, offline=offline, seconds=timeout)
    folder, only = _on_this_machine(os.fspath(target), access) if load else resolve(os.fspath(target), access)
    root = _loadable(os.fspath(target), folder, only) if load else None
    level = asked or (Verify.SAMPLE if folder.remote else Verify.FULL)
    if level is Verify.FULL:
        folder.allow(FULL_REQUESTS)
    try:
        beside = [name for name in FILES if folder.exists(name)][:1] if folder.remote else []
        beside += vocabulary.small(folder) if beside else ()
        beside += [adapters.CONFIG] if folder.remote and folder.exists(adapters.CONFIG) else []
        checkpoint = sharded.load(folder, os.fspath(target), only, progress, beside)
        _demand_something(checkpoint, folder, only)
        config, fault = read(folder)
        gathering = Gathering(folder, checkpoint, config, level, min_waste, progress)
        case = bases.with_adapters(gathering, gathering.case(fault), None if base is None else os.fspath(base), access, asked)
        if root is not None:
            case = _with_live(case, root, gathering, trust_remote_code=trust_remote_code)
        findings, wasted = registry.run(case, chosen, left)
    finally:
        folder.close()
    return Report(
        target=os.fspath(target),
        formats=tuple(dict.fromkeys(edition.format for edition in checkpoint.editions if edition.format)),
        files=tuple({entry: None for file in checkpoint.files for entry in ((file.name, file.nbytes), *file.data)}),
        totals=_totals(case, wasted),
        ties=tuple(ties(case)),
        findings=findings,
        skipped=tuple(_skipped(case)),
        not_compared=(
            *_not_compared(case, level, only),
            *([] if base is None or case.adapters else [Skip(f"the base {os.fspath(base)}", "not read: there is no adapter here")]),
            *(Skip(*words) for words in (repository.download(folder, checkpoint) if only is None else ())),
        ),
        cost=Cost(bytes_read=folder.meter.bytes_read, requests=folder.meter.requests, seconds=round(time.perf_counter() - started, 4)),
        revision=folder.revision,
        filtered=bool(chosen or left),
        reason=reason(case),
        live=case.live,
        checkpoint=checkpoint,
        ends=tuple(ends(case)),
    )


def _on_this_machine(target: str, access: Access) -> tuple[Folder, str | None]:
    """For --load: transformers takes whole files, so of a Hub id only what the cache holds is looked at."""
    advice = "--load needs its files here"
    scheme, colon, _ = target.partition("://")
    if colon and scheme not in ("hf", "http", "https") and not os.path.lexists(target):
        raise TargetError(target, "is not on this machine", advice)
    try:
        return resolve(target, replace(access, offline=True))
    except TargetError as error:
        if access.offline or "Hub cache" not in error.what:
            raise
        raise TargetError(error.target, error.what, f"{advice}: hf download fetches them") from None


def _loadable(target: str, folder: Folder, only: str | None) -> Path:
    """The folder that transformers loads from. TargetError if it cannot: it takes whole folders on this machine."""
    if not isinstance(folder, LocalFolder):
        raise TargetError(target, "is not on this machine", "--load needs its files here")
    if only is not None and only not in sharded.PREFERENCE:
        raise TargetError(target, "is one file, and no model by itself", "--load takes the folder of a model")
    from .live.hush import hushed

    try:
        with hushed():
            from .live import loading  # noqa: F401  before anything is read: without it there is no answer
    except ImportError as error:
        raise MissingLibrary(target, f"--load needs {error.name or 'torch and transformers'}", "pip install 'tieaudit[live]'") from None
    return folder.root


def _with_live(case: Case, root: Path, gathering: Gathering, *, trust_remote_code: bool) -> Case:
    """The case with the model in memory. What transformers cannot load is not checked; the static report stands."""
    from .live import loading

    try:
        live = loading.load(root, case, gathering.reader(), trust_remote_code=trust_remote_code)
    except loading.NotLoaded as error:
        return replace(case, unread=(*case.unread, ("--load", str(error))))
    return replace(case, live=live)


def _demand_something(checkpoint: Checkpoint, folder: Folder, only: str | None) -> None:
    """TargetError if there is nothing to judge: a folder that is no checkpoint must not pass as a healthy one."""
    if any(edition.kind != "training" for edition in checkpoint.editions) or checkpoint.unreadable:
        return
    if only is not None and checkpoint.editions:
        return
    if checkpoint.unread:
        name, what = checkpoint.unread[0]
        raise TargetError(checkpoint.target, f"{name} {what}", "try again, or raise --timeout")
    if only is not None:
        what = checkpoint.elsewhere[0][1] if checkpoint.elsewhere else "is not a checkpoint"
        raise TargetError(checkpoint.target, what, f"looked for {LOOKED_FOR}")
    inside = [name for name, _ in checkpoint.elsewhere]
    if inside:
        raise TargetError(checkpoint.target, "no checkpoint that is read here", f"found {', '.join(inside[:6])}; looked for {LOOKED_FOR}")
    has_config = " (there is a config.json, but no weights)" if folder.exists("config.json") else ""
    raise TargetError(checkpoint.target, f"no checkpoint here{has_config}", f"looked for {LOOKED_FOR}")


def _totals(case: Case, wasted: int) -> Totals:
    # by file too: several models of a folder can read one file of external data
    storages = {(storage.file, storage.ident): storage.nbytes for file in case.checkpoint.files for storage in file.storages}
    stored_nbytes = sum(storages.values())
    dead = sum(end - begin for file in case.checkpoint.files for begin, end in file.dead)
    primary = next(iter(case.judged), None) or next((other for other in case.editions if other.edition.kind == "adapter"), None)
    stored = sum(map(_elements, primary.edition.files)) if primary else 0
    repeated = sum(numel for _, numel in _repeated(primary)) if primary else 0
    return Totals(
        tensors=sum(len(file.tensors) for file in case.checkpoint.files),
        parameters_stored=stored,
        parameters_unique=stored - repeated,
        nbytes_stored=stored_nbytes + dead,
        nbytes_wasted=wasted,
    )


def _elements(file: LoadedFile) -> int:
    """Elements of the weights in a file; views of the same bytes count once."""
    return sum({(tensor.storage.ident, tensor.offset, tensor.shape): tensor.numel for tensor in file.tensors if not tensor.part}.values())


def _repeated(case: EditionCase) -> set[tuple[str, int]]:
    """(name, elements) of the tensors of an edition that only repeat another one."""
    found = {(tensor.name, tensor.numel) for group in case.scan.copies for tensor in group.tensors[1:]}
    for state in case.ties:
        for pair in state.pairs:
            # the pair's first name may be the later one in the scan's group: one of the two counts
            counted = (pair.first.main.name, pair.first.main.numel) in found
            if pair.relation.kind in (Kind.EQUAL, Kind.CAST) and not counted:
                found.add((pair.second.main.name, pair.second.main.numel))
    return found


def _skipped(case: Case) -> Iterator[Skip]:
    """What was asked for and could not be checked."""
    for subject, relation in bases.uncompared(case):
        if not relation.readable:
            yield Skip(subject, relation.detail)
    for subject, why in (*case.checkpoint.unread, *case.unread):
        yield Skip(subject, why)
    for format_pair in case.format_pairs:
        for name, why in format_pair.unread:
            yield Skip(f"{name} in {format_pair.first.name} and {format_pair.second.name}", why)
    for edition_case in case.editions:
        for file in edition_case.edition.files:
            for words in file.unread:
                yield Skip(file.name, words)
    for edition_case in case.judged:
        for state in edition_case.ties:
            for pair in state.pairs:
                relation = pair.relation
                if not relation.readable:
                    yield Skip(f"{pair.first.name} and {pair.second.name}", relation.detail)
        for name, why in edition_case.scan.unread:
            yield Skip(name, why)


def _not_compared(case: Case, verify: Verify, only: str | None) -> Iterator[Skip]:
    """What nobody asked for, so that nobody takes it for checked."""
    for subject, why in case.checkpoint.elsewhere:
        yield Skip(subject, why)
    for adapter in case.adapters:
        if adapter.trouble:
            yield Skip(f"the base {adapter.base}", adapter.trouble)
    if verify is Verify.HEADERS:
        yield Skip("values of all tensors", "--verify headers reads none")
    else:
        for subject, relation in bases.uncompared(case):
            if relation.readable:
                yield Skip(subject, relation.detail)
        several = len(list(case.judged)) > 1
        for edition_case in case.judged:
            for pair in (pair for state in edition_case.ties for pair in state.pairs):
                if pair.relation.kind is Kind.NOT_COMPARED and pair.relation.readable:
                    yield Skip(f"{pair.first.name} and {pair.second.name}", pair.relation.detail)
            where = f"{edition_case.edition.name}: " if several else ""
            for subject, why in edition_case.scan.left:
                yield Skip(where + subject, why)
        for format_pair in case.format_pairs:
            if format_pair.left:
                subject = f"{format_pair.left:,} of {format_pair.common:,} tensors of {format_pair.second.name}"
                yield Skip(f"{subject} with those of {format_pair.first.name}", LEFT_OUT)
    if only is not None and sharded.SHARD.match(only):
        yield Skip(f"the other shards of {only}", "only this file was named, so absence of a tensor was not judged")
