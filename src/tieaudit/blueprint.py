"""This file holds the report about a model of which only the config is there: its tensors by `shapes`, its ties by `claim`.

No weights are read, and neither torch nor transformers is imported, unless `meta` asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from . import claim, config
from .checkpoint import Checkpoint, Edition, LoadedFile, Storage, TensorRecord
from .dtypes import nbits
from .errors import FormatError, MissingLibrary, TargetError
from .kinds import Evidence
from .loaders.safetensors import JSON_TYPES
from .loaders.sharded import read_json
from .names import StoredNames
from .report import Cost, Report, Tie, Totals
from .shapes import family_of, shapes
from .sources import Folder
from .sources.target import TIMEOUT, Access, resolve

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
NO_WEIGHTS = "no weights"
"""The name of the file that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every parameter of a model {name: shape}, the names that are another's parameter {alias: name}, and its ends."""

    tensors: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    embedding: str | None = None
    head: str | None = None
    why: str = ""


def read(
    target: str | os.PathLike[str], *, meta: bool = False, revision: str | None = None, subfolder: str | None = None,
    offline: bool = False, timeout: float = TIMEOUT,
) -> tuple[Report, str]:  # fmt: skip
    """(the report as if the model were stored, what it takes for granted). TargetError if the config does not say enough."""
    target = os.fspath(target)
    folder, only = resolve(target, Access(revision=revision, subfolder=subfolder, offline=offline, seconds=timeout))
    try:
        found, fault = (_one_file(folder, only), None) if only and only not in config.FILES else config.read(folder)
    except FormatError as error:
        raise TargetError(target, error.what) from None
    finally:
        folder.close()
    if fault:
        raise TargetError(target, f"{fault.file} {fault.what}")
    if found is None:
        raise TargetError(target, "there is no config.json", "--config-only needs one")
    layout = _on_meta(found, target) if meta else _by_family(found, target)
    dtype = DTYPES.get(found.dtype, "F32")
    said = "" if found.dtype in DTYPES else f", which {'names no dtype' if not found.dtype else f'names {found.dtype[:20]}'}"
    report = _report(target, layout, dtype)
    cost = Cost(bytes_read=folder.meter.bytes_read, requests=folder.meter.requests)
    return replace(report, revision=folder.revision, cost=cost), f"by {found.file} alone{said}: bytes are those of {dtype}"


def _one_file(folder: Folder, name: str) -> config.Config:
    data = read_json(folder, name, config.MAX_CONFIG)
    if not isinstance(data, dict):
        raise FormatError(name, f"is {JSON_TYPES[type(data)]}, not a JSON object", 0)
    return config.Config(name, data)


def _by_family(found: config.Config, target: str) -> Layout:
    family = family_of(found.data, target)
    tensors = shapes(family, found.data, target)
    embedding = next(name for name in tensors if "emb" in name or "wte" in name)
    head = "lm_head.weight"
    if family.tied is not None:
        tied, why = family.tied, f"{'tied' if family.tied else 'untied'} by {family.architecture}'s own code"
    else:
        # the class is the family's: a config that names only its model_type means the same
        named = config.Config(found.file, {**found.data, "architectures": [family.architecture]})
        edition = _edition(tensors, "F32")
        asked = claim.of_edition(edition, named, StoredNames(edition.tensors))
        # by role: a head can have another name on disk than in memory (GPT-NeoX)
        groups = [group for group in asked.groups if group.role == "embedding-head"]
        tied = any(alias.tied for group in groups for alias in group.aliases)
        why = groups[0].source if groups else "untied: the class shares no tensor"
    return Layout(tensors=tensors, aliases={head: embedding} if tied else {}, embedding=embedding, head=head, why=why)


def _on_meta(found: config.Config, target: str) -> Layout:
    from .live.hush import hushed

    try:
        with hushed():
            from .live import meta
    except ImportError as error:
        raise MissingLibrary(target, f"--meta needs {error.name or 'torch and transformers'}", "pip install 'tieaudit[live]'") from None
    built = meta.build(found.data, target)
    embedding = built.aliases.get(built.embedding or "", built.embedding)
    tied = built.head in built.aliases or (built.head is not None and built.head == embedding)
    name = found.architectures[0] if found.architectures else found.model_type
    why = f"{'tied' if tied else 'untied'}: {name} as transformers {built.version} builds it"
    return Layout(tensors=built.tensors, aliases=built.aliases, embedding=embedding, head=built.head, why=why)


def _edition(tensors: Mapping[str, tuple[int, ...]], dtype: str) -> Edition:
    records = []
    for name, shape in tensors.items():
        numel = 1
        for dim in shape:
            numel *= dim
        nbytes = -(-nbits(dtype, numel) // 8)
        records.append(TensorRecord(name, dtype, shape, Storage(NO_WEIGHTS, name, None, nbytes), 0, nbytes))
    file = LoadedFile(
        name=NO_WEIGHTS, format="config", nbytes=0, tensors=tuple(records), storages=tuple(record.storage for record in records)
    )
    return Edition(name=NO_WEIGHTS, format="config", files=(file,))


def _report(target: str, layout: Layout, dtype: str) -> Report:
    edition = _edition({name: shape for name, shape in layout.tensors.items() if name not in layout.aliases}, dtype)
    elements = sum(record.numel for record in edition.tensors)
    ends = [(name, role) for name, role in ((layout.embedding, "embedding"), (layout.head, "head")) if name and name not in layout.aliases]
    ties: tuple[Tie, ...] = ()
    if layout.embedding and layout.head:
        shape = layout.tensors[layout.embedding]
        tied = layout.head in layout.aliases or layout.head == layout.embedding
        ties = (
            Tie(
                canonical=layout.embedding,
                aliases=(layout.head,),
                role="embedding-head",
                claim="tied" if tied else "untied",
                claim_source=layout.why,
                relation="one matrix" if tied else "unrelated",
                evidence=Evidence.HEADER,
                shape=shape,
                dtype=dtype,
            ),
        )
    nbytes = sum(record.nbytes for record in edition.tensors)
    totals = Totals(tensors=len(edition.tensors), parameters_stored=elements, parameters_unique=elements, nbytes_stored=nbytes)
    return Report(
        target=target, totals=totals, ties=ties, checkpoint=Checkpoint(target=target, editions=(edition,)), ends=tuple(ends)
    )  # fmt: skip
