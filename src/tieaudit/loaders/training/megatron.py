"""This file holds the reader of Megatron-LM's checkpoint folders (megatron/training/checkpointing.py, `get_checkpoint_name`).

`iter_0000100/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`: one file per rank of tensor (TT), pipeline (PPP) and expert (EEE) parallelism.
Each tensor rank holds a slice of every matrix, each pipeline stage its own layers. `args` is the Namespace of the run. A tied head
needs the embedding's matrix on the last stage too: that stage keeps a copy, which gradients keep in step
(megatron/core/models/common/language_module/language_module.py). Megatron-core writes one checkpoint of torch.distributed instead
(`metadata.json` says `torch_dist`), where a tied head is saved under the embedding's key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ...checkpoint import Edition, Ends, LoadedFile, TensorRecord, Wiring
from ...errors import FormatError
from ...sources import Folder
from . import dcp, values
from .found import Found, told_once, whole

FORMAT, FORMAT_CORE = "megatron", "megatron-dist"
RANK = re.compile(r"^mp_rank_(?P<tensor>\d{2,})(?:_(?P<second>\d{3}))?(?:_(?P<third>\d{3}))?$")
MODEL_FILES = ("model_optim_rng.pt", "model_rng.pt")  # the second where a distributed optimizer writes its own
STATE_FILES = ("distrib_optim.pt", "optim.pt")
MAX_JSON = 64 << 10  # bytes of metadata.json, which has some 80
MAX_RANKS = 1_024  # tensor ranks or stages that are looked for by number
EMBEDDING = re.compile(r"(?:^|\.)(?P<stem>(?:.*\.)?)embedding\.word_embeddings\.weight$")
HEAD = re.compile(r"(?:^|\.)(?:output_layer\.weight|word_embeddings_for_head(?:\.word_embeddings)?\.weight)$")
STAGE = re.compile(r"^stage\d+\.")
UNTIE = "untie_embeddings_and_output_weights"


@dataclass(slots=True)
class _Rank:
    """One tensor-parallel rank: its stages in order, each with the folder that holds it."""

    stages: dict[int, str] = field(default_factory=dict)
    experts: int = 0


def is_core(folder: Folder, base: str) -> bool:
    """True if `metadata.json` says that the `.metadata` beside it is Megatron-core's."""
    try:
        source = folder.open(base + "metadata.json")
        content = json.loads(source.read(0, source.nbytes)) if source.nbytes <= MAX_JSON else None
    except (FormatError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("sharded_backend") == "torch_dist"


def core(found: Found, base: str, names: list[str]) -> None:
    """A checkpoint of Megatron-core in the folder `base`."""
    made = dcp.read(found, base, names)
    if made is None:
        return
    file, missing = made
    files, args = [replace(file, foreign=True)], None
    if "common.pt" in names:
        found.take(base, ["common.pt"])
        common = found.torch(base + "common.pt")
        if common:
            files.append(replace(common[0], tensors=(), storages=()))
            args = values.entries(values.entries(common[1]).get("args"))
    embedding = _first(file.tensors, EMBEDDING)
    between: tuple[Ends, ...] = ()
    if embedding:
        head = _first(file.tensors, HEAD)
        tied, source = _claim(args)
        if tied is None:
            tied = head is None
            source = "Megatron-core saves a tied head under the embedding's key, and " + ("none is stored" if tied else "a head is stored")
        between = (_ends(embedding.name, head.name if head else _head_name(embedding.name), tied, source),)
    found.editions.append(
        Edition(
            name=base.rstrip("/") or dcp.METADATA,
            format=FORMAT_CORE,
            files=tuple(files),
            index=dcp.index_of(file),
            missing=missing,
            whole=whole(files) and not missing,
            between=between,
            run=True,
        )
    )


def legacy(found: Found, base: str, folders: list[str]) -> None:
    """One edition for each tensor-parallel rank in the folder `base`; `folders` are those of its ranks."""
    files = {sub: name for sub in folders if (name := _model_file(found.folder, base + sub))}
    if not files:
        return
    found.take(base, [])
    found.folders.update(() if base else folders)
    found.fetch(f"{base}{sub}/{name}" for sub, name in files.items())
    opened: dict[str, tuple[LoadedFile, object] | None] = {}

    def read(name: str) -> tuple[LoadedFile, object] | None:
        if name not in opened:
            opened[name] = found.torch(name)
        return opened[name]

    first = next((one for sub, name in files.items() if (one := read(f"{base}{sub}/{name}"))), None)
    args = values.entries(values.entries(first[1]).get("args")) if first else {}
    ranks = _ranks(folders, values.count(args.get("pipeline_model_parallel_size")))
    skipped = sum(rank.experts for rank in ranks.values())
    if skipped:
        found.notes.append((base or "mp_rank_*", f"has {skipped:,} folders of further expert-parallel ranks, which are not read"))
    stages = max(values.count(args.get("pipeline_model_parallel_size")) or 1, *(max(rank.stages) + 1 for rank in ranks.values()))
    loaded: list[LoadedFile] = []
    for number, rank in sorted(ranks.items()):
        group, missing = [], []
        for stage in range(min(stages, MAX_RANKS)):
            sub = rank.stages.get(stage)
            if sub is None or sub not in files:
                missing.append(f"{base}{sub or _name(folders[0], number, stage)}/{MODEL_FILES[0]}")
                continue
            for name in (files[sub], *STATE_FILES):
                at = f"{base}{sub}/{name}"
                if name == files[sub] or found.folder.exists(at):
                    one = read(at)
                    group += [_staged(one[0], stage if stages > 1 else None, state=name != files[sub])] if one else []
        complete = whole(group) and not missing and len(group) >= stages
        between = tuple(_copies(group, args, stages - 1, complete=complete))
        found.editions.append(
            Edition(
                name=f"{base}mp_rank_{number:02d}",
                format=FORMAT,
                files=tuple(group),
                missing=tuple(missing),
                whole=complete,
                between=between,
                run=True,
            )
        )
        loaded += group
    _without_repeats(found, loaded)
    _tell_missing_ranks(found, base, ranks, values.count(args.get("tensor_model_parallel_size")) or 1, folders[0])


def _model_file(folder: Folder, sub: str) -> str:
    return next((name for name in MODEL_FILES if folder.exists(f"{sub}/{name}")), "")


def _ranks(folders: Iterable[str], stages: int | None) -> dict[int, _Rank]:
    """By tensor rank. A second number is the stage, but where the run has one stage it is the expert rank."""
    ranks: dict[int, _Rank] = {}
    for sub in folders:
        match = RANK.match(sub)
        if match is None:
            continue
        second, third = int(match["second"] or 0), int(match["third"] or 0)
        stage, expert = (0, second) if stages == 1 and match["third"] is None else (second, third)
        rank = ranks.setdefault(int(match["tensor"]), _Rank())
        if expert or stage in rank.stages:
            rank.experts += 1
        else:
            rank.stages[stage] = sub
    for rank in ranks.values():
        rank.stages = rank.stages or {0: ""}
    return ranks


def _name(like: str, tensor: int, stage: int) -> str:
    """The folder of a rank that is not there, named as the others are."""
    parts = like.split("_")
    return "_".join([*parts[:2], f"{tensor:0{len(parts[2])}d}", *([f"{stage:03d}"] if len(parts) > 3 else []), *parts[4:]])


def _staged(file: LoadedFile, stage: int | None, *, state: bool) -> LoadedFile:
    """The file with the names of its stage: layers count from 0 on each."""
    prefix = "" if stage is None else f"stage{stage}."
    tensors = tuple(replace(tensor, name=prefix + tensor.name, part="optimizer" if state else tensor.part) for tensor in file.tensors)
    problems = tuple(replace(problem, tensors=tuple(prefix + name for name in problem.tensors)) for problem in file.problems)
    return replace(file, tensors=tensors, problems=problems, foreign=True)


def _copies(files: list[LoadedFile], args: dict[str, object], last: int, *, complete: bool) -> Iterator[Ends]:
    """What the stages hold of embedding and head: the head's own matrix or its copy, and copies of the embedding on further stages."""
    weights = [tensor for file in files for tensor in file.tensors if not tensor.part]
    embeddings = [tensor for tensor in weights if EMBEDDING.search(tensor.name)]
    heads = [tensor for tensor in weights if HEAD.search(tensor.name)]
    if not embeddings:
        return
    first = embeddings[0]
    tied, source = _claim(args)
    if heads or complete:
        head = heads[-1].name if heads else STAGE.sub(f"stage{last}.", _head_name(first.name))
        if tied is None and "word_embeddings_for_head" in head:
            tied, source = True, "word_embeddings_for_head is the last stage's copy of the embedding"
        yield _ends(first.name, head, tied, source)
    for copy in embeddings[1:]:
        words = "each stage that embeds tokens keeps a copy of the embedding"
        yield Ends(embedding=first.name, head=copy.name, source=words, tied=True, wiring=Wiring.REPLICA, role="embedding")


def _claim(args: dict[str, object] | None) -> tuple[bool | None, str]:
    untied = values.flag(args.get(UNTIE)) if args else None
    if untied is None:
        return None, f"the run's args say nothing of {UNTIE}" if args else "the checkpoint keeps no args of its run"
    return not untied, f"{UNTIE} is {str(untied).lower()} in the run's args"


def _ends(embedding: str, head: str, tied: bool | None, source: str) -> Ends:
    return Ends(
        embedding=embedding,
        head=head,
        source=source,
        tied=tied,
        wiring=Wiring.REPLICA,
        absent="Megatron does not load the checkpoint without it",
        advice="restore it from the run, or load with the flag that it was trained with",
    )


def _head_name(embedding: str) -> str:
    return embedding.removesuffix("embedding.word_embeddings.weight") + "output_layer.weight"


def _first(tensors: Iterable[TensorRecord], pattern: re.Pattern[str]) -> TensorRecord | None:
    return next((tensor for tensor in tensors if not tensor.part and pattern.search(tensor.name)), None)


def _without_repeats(found: Found, loaded: list[LoadedFile]) -> None:
    """Each class that the pickles name is told in the first file alone."""
    by_name = {file.name: file for file in told_once(loaded)}
    for at, edition in enumerate(found.editions):
        if edition.format == FORMAT:
            found.editions[at] = replace(edition, files=tuple(by_name.get(file.name, file) for file in edition.files))


def _tell_missing_ranks(found: Found, base: str, ranks: dict[int, _Rank], count: int, like: str) -> None:
    for number in range(min(count, MAX_RANKS)):
        if number not in ranks:
            missing = f"{base}{_name(like, number, 0)}/{MODEL_FILES[0]}"
            found.editions.append(Edition(name=f"{base}mp_rank_{number:02d}", format=FORMAT, missing=(missing,), whole=False, run=True))
