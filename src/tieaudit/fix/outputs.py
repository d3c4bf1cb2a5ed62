"""This file holds how what the steps decided becomes files: which are written again, with which tensors, and which small texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint import Edition, LoadedFile, TensorRecord
from ..errors import FormatError
from ..loaders.sharded import read_json
from ..sources.local import LocalFolder
from . import jsontext
from .draft import Draft, key
from .model import Kept, Rewrite, Text
from .steps import graphs
from .steps.formats import converted
from .writers import family, writer


@dataclass(slots=True)
class Outputs:
    """All that is not carried over."""

    rewrites: list[Rewrite] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


def outputs(draft: Draft) -> Outputs:
    """What will be written. What no writer can write is refused."""
    found = Outputs()
    for edition in draft.case.checkpoint.editions:
        made: dict[str, Rewrite] = {}
        for file in (*edition.files, *edition.strays):
            if file.name not in draft.removed and _touched(draft, file):
                rewrite = _rewrite(draft, edition, file)
                if rewrite.tensors or not edition.index:
                    made[file.name] = rewrite
                else:
                    draft.removed.add(file.name)  # a shard of which nothing is left
        for rewrite in made.values():
            own = writer(rewrite.format)
            why = (
                own.refuses(rewrite, draft.folder.open(rewrite.source))
                if own
                else f"files of the format {rewrite.format} are not written yet"
            )
            if why:
                way = ("--to safetensors", "writes its tensors, and nothing else of it") if rewrite.format == "torch" else None
                draft.refuse(draft.steps[-1].rule if draft.steps else "malformed-file", f"{rewrite.source}: {why}", *([way] if way else []))
        found.rewrites.extend(made.values())
        found.texts.extend(_index(draft, edition, made))
    return found


def _touched(draft: Draft, file: LoadedFile) -> bool:
    if file.name in draft.rewritten or file.name in draft.apart:
        return True
    return any(key(tensor) in draft.kept_for or key(tensor) in draft.renamed for tensor in file.tensors)


def _rewrite(draft: Draft, edition: Edition, file: LoadedFile) -> Rewrite:
    torch = draft.is_torch(edition)
    convert = file.format.startswith("torch") and not torch
    kept: list[Kept] = []
    aliases: dict[str, str] = {}
    dropped: set[str] = set()
    for tensor in file.tensors:
        stays = draft.kept_for.get(key(tensor))
        if (tensor.part and (file.name in draft.parts or convert)) or (
            key(tensor) in draft.kept_for and not (torch and _near(stays, file))
        ):
            dropped.add(tensor.name)
        elif stays is not None and key(tensor) in draft.kept_for:
            aliases[tensor.name] = stays.name
        else:
            kept.append(Kept(name=draft.renamed.get(key(tensor), tensor.name), tensor=tensor))
    metadata = {"format": "pt"} if convert else _metadata(draft.folder, file)
    if file.format == "gguf":
        metadata = graphs.counted(draft, edition)
    if file.format == "safetensors" or convert:
        metadata = _notes(draft, file, metadata, unexplained=convert)
    return Rewrite(
        name=converted(file.name) if convert else file.name,
        source=file.name,
        format="safetensors" if convert else family(file.format),
        tensors=tuple(kept),
        aliases=aliases,
        dropped=frozenset(dropped),
        apart=file.name in draft.apart,
        instead=graphs.instead(draft, file) if file.format == "onnx" else {},
        metadata=metadata,
    )


def _near(stays: TensorRecord | None, file: LoadedFile) -> bool:
    return stays is not None and stays.file == file.name


def _metadata(folder: LocalFolder, file: LoadedFile) -> dict[str, str]:
    """`__metadata__` of a safetensors file, as it stands there."""
    if file.format != "safetensors":
        return {}
    source = folder.open(file.name)
    header = json.loads(source.read(8, int.from_bytes(source.read(0, 8), "little")))
    found: dict[str, str] = header.get("__metadata__") or {}
    return found


def _notes(draft: Draft, file: LoadedFile, metadata: Mapping[str, str], *, unexplained: bool) -> dict[str, str]:
    """Alias notes {name left out: name kept} that are still true: turned round where the kept one got the other's name."""
    found = dict(metadata)
    for tensor in file.tensors:
        new = draft.renamed.get(key(tensor))
        if new:
            for left, kept in metadata.items():
                if kept == tensor.name and left in (new, *file.aliases):
                    del found[left]
                    found[tensor.name if left == new else left] = new
        stays = draft.kept_for.get(key(tensor))
        if unexplained and stays is not None and stays.file == file.name:
            found[tensor.name] = draft.renamed.get(key(stays), stays.name)
    return found


def _index(draft: Draft, edition: Edition, made: Mapping[str, Rewrite]) -> list[Text]:
    index = edition.index
    if index is None or index.file in draft.removed or not (index.file in draft.reindexed or made or _lost(draft, edition)):
        return []
    try:
        content: Any = read_json(draft.folder, index.file)
    except FormatError as error:
        draft.refuse("malformed-file", str(error))
        return []
    raw = draft.folder.open(index.file).read(0, draft.folder.entry(index.file).nbytes).decode("utf-8-sig")
    place: dict[str, str] = {}
    old_names: dict[str, str] = {}
    nbytes = numel = 0
    for file in edition.files:
        if file.name in draft.removed:
            continue
        rewrite = made.get(file.name)
        kept = [(one.name, one.tensor) for one in rewrite.tensors] if rewrite else [(tensor.name, tensor) for tensor in file.tensors]
        by_name = {tensor.name: tensor for tensor in file.tensors}
        kept += [(name, by_name[other]) for name, other in rewrite.aliases.items()] if rewrite else []
        for name, tensor in kept:
            place.setdefault(name, rewrite.name if rewrite else file.name)
            old_names[tensor.name] = name if rewrite is None or tensor.name not in rewrite.aliases else tensor.name
            nbytes += tensor.nbytes
            numel += tensor.numel
        old_names.update({name: name for name in rewrite.aliases} if rewrite else {})
    weight_map: dict[str, str] = {}
    for old in content["weight_map"]:
        new = old_names.get(old, old)
        if new in place:
            weight_map[new] = place[new]
    content["weight_map"] = weight_map
    metadata = content.get("metadata")
    if isinstance(metadata, dict):
        before = sum(tensor.numel for tensor in edition.tensors)
        if "total_size" in metadata:
            metadata["total_size"] = nbytes
        if metadata.get("total_parameters") == before:
            metadata["total_parameters"] = numel
    text = json.dumps(content, indent=jsontext.indent_of(raw), ensure_ascii=raw.isascii()) + ("\n" if raw.endswith("\n") else "")
    name = index.file
    if any(rewrite.name != rewrite.source for rewrite in made.values()):
        name = name.replace("pytorch_model", "model", 1).replace(".bin.", ".safetensors.")
    return [Text(name=name, source=index.file, content=text.encode())]


def _lost(draft: Draft, edition: Edition) -> bool:
    return any(file.name in draft.removed for file in edition.files)
