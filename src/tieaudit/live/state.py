"""This file holds `audit_state_dict`: a state dict in memory, judged as the file that it would become.

Its tensors are given to the same stages as those of a file, the bytes come from memory; so every rule about ties, copies and storages
speaks before anything is written.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, Edition, LoadedFile, Storage, TensorRecord
from ..config import Config
from ..dtypes import DTYPES
from ..errors import FormatError, OptionError
from ..evidence import Gathering
from ..inspectors import registry
from ..inspectors.rule import EditionCase
from ..kinds import Kind, Verify
from ..report import Cost, Report, Skip, Tie, Totals
from ..sources import Entry, Meter, Source, Wanted
from ..summary import reason, ties
from . import reporting

if TYPE_CHECKING:
    from torch import Tensor

FILE = "state dict"
MIN_WASTE = 1024  # bytes, as for files


def audit_state_dict(
    state_dict: Mapping[str, Tensor], config: Any = None, *, select: str | Iterable[str] = (), ignore: str | Iterable[str] = ()
) -> Report:
    """Judge a state dict before it is saved: does it hold what the config claims, what shares memory, what would be written twice?

    `config`: a mapping as in config.json, an object with `to_dict()`, or True or False for the flag alone. `Tie.summary` of the report says
    what each way of saving makes of names that are one matrix. Nothing is written or copied whole.
    """
    started = time.perf_counter()
    chosen, left = reporting.words(select), reporting.words(ignore)
    file, folder, absent = _file(_tensors(state_dict))
    edition = Edition(name=FILE, format="torch state dict", files=(file,), whole=not absent)
    checkpoint = Checkpoint(target=FILE, editions=(edition,))
    case = Gathering(folder, checkpoint, _config(config), Verify.FULL, MIN_WASTE, lambda *_: None).case(None)
    findings, wasted = registry.run(case, chosen, left)
    seen = tuple(replace(tie, summary=tie.summary + _savers(tie)) for tie in ties(case))
    stored = sum({tensor.view: tensor.numel for tensor in file.tensors}.values())
    return Report(
        target=FILE,
        formats=(edition.format,),
        totals=Totals(
            tensors=len(file.tensors),
            parameters_stored=stored,
            parameters_unique=stored - sum(_repeated(next(case.judged)).values()),
            nbytes_stored=sum(storage.nbytes for storage in file.storages),
            nbytes_wasted=wasted,
        ),
        ties=seen,
        findings=findings,
        not_compared=tuple(Skip(*entry) for entry in absent),
        cost=Cost(bytes_read=folder.meter.bytes_read, requests=folder.meter.requests, seconds=round(time.perf_counter() - started, 4)),
        filtered=bool(chosen or left),
        reason=reason(case),
    )


def _savers(tie: Tie) -> str:
    """What each way of saving makes of names that share memory, as clauses behind the summary."""
    if tie.relation != Kind.SAME_STORAGE or tie.claim == "unknown":
        return ""
    others = ", and a load starts the others with random values" if tie.claim == "untied" else ""
    return f"; torch.save stores it once, safetensors.torch.save_file raises, save_pretrained stores {tie.canonical} alone{others}"


def _repeated(case: EditionCase) -> dict[str, int]:
    """Elements by the names of tensors that only repeat another one."""
    found = {tensor.name: tensor.numel for group in case.scan.copies for tensor in group.tensors[1:]}
    for pair in (pair for state in case.ties for pair in state.pairs):
        if pair.relation.kind in (Kind.EQUAL, Kind.CAST) and pair.first.main.name not in found:
            found[pair.second.main.name] = pair.second.main.numel
    return found


def _config(config: Any) -> Config | None:
    if config is None:
        return None
    data = {"tie_word_embeddings": config} if isinstance(config, bool) else config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(data, Mapping):
        raise OptionError("config", type(config).__name__, "a mapping as in config.json, an object with to_dict(), True or False")
    return Config("the config", {key: value for key, value in data.items() if value is not None})


def _tensors(state_dict: Any) -> dict[str, Tensor]:
    from torch import Tensor

    found = {str(name): value for name, value in state_dict.items() if isinstance(value, Tensor)} if isinstance(state_dict, Mapping) else {}
    if not found:
        raise OptionError("state_dict", type(state_dict).__name__, "a mapping of names to tensors, as model.state_dict() gives it")
    return found


def _file(tensors: Mapping[str, Tensor]) -> tuple[LoadedFile, _Memory, list[tuple[str, str]]]:
    """(the tensors as those of a file, the source of their bytes, [(what cannot be looked at, reason)])."""
    from .identity import Named, numbered, plain_parts

    found = numbered((Named(name, tensor) for name, tensor in tensors.items()), by_view=True)
    storages: dict[str, Storage] = {}
    held: list[Any] = []
    records: list[TensorRecord] = []
    absent: list[tuple[str, str]] = []
    at = 0
    for name in found.names:
        dtype, kind = name.dtype, name.kind
        if dtype not in DTYPES or (kind and name.storage is not None):
            absent.append((name.name, f"is a {kind or dtype} tensor, whose values are not looked at"))
            dtype = dtype if dtype in DTYPES else "BYTES"
        elif name.device == "meta":
            absent.append((name.name, "is on the meta device, which holds no values"))
        plain = name.storage is not None and not kind and dtype == name.dtype
        ident = str(name.storage) if plain else f"of {name.name}"
        if ident not in storages:
            storages[ident] = Storage(FILE, ident, at if plain else None, name.storage_nbytes if plain else name.nbytes)
            if plain:
                held.append(plain_parts(found.tensors[name.name])[0].untyped_storage())
                at += name.storage_nbytes
        width = max(1, DTYPES[dtype].bits // 8)
        records.append(
            TensorRecord(
                name=name.name,
                dtype=dtype,
                shape=name.full or name.shape,
                storage=storages[ident],
                offset=name.offset * width if plain else 0,
                nbytes=name.nbytes,
                strides=name.strides if plain else None,
            )
        )
    file = LoadedFile(name=FILE, format="torch state dict", nbytes=at, tensors=tuple(records), storages=tuple(storages.values()))
    return file, _Memory(_Bytes(held)), absent


class _Bytes:
    """Storages in memory, one behind the other, as a source."""

    name = FILE

    def __init__(self, storages: list[Any]) -> None:
        self._storages = storages
        self._ends = list(accumulate(storage.nbytes() for storage in storages))
        self.meter = Meter()

    @property
    def nbytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, offset: int, n: int) -> bytes:
        import torch

        place = bisect_right(self._ends, offset)
        if n == 0:
            return b""
        if offset < 0 or place >= len(self._ends) or offset + n > self._ends[place]:
            raise FormatError(FILE, "a tensor reaches beyond its storage")
        storage = self._storages[place]
        begin = offset - (self._ends[place - 1] if place else 0)
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self.meter.add(requests=1, nbytes=n)
        return bytes(whole[begin : begin + n].cpu().numpy())

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


@dataclass(frozen=True, slots=True)
class _Memory:
    """A folder that holds nothing but the state dict."""

    source: _Bytes
    remote: bool = False
    revision: str | None = None
    _none: tuple[Entry, ...] = field(default=())

    @property
    def meter(self) -> Meter:
        return self.source.meter

    def entries(self) -> list[Entry]:
        return list(self._none)

    def subfolders(self, below: str = "") -> list[str]:  # noqa: ARG002  the protocol's
        return []

    def inside(self, subfolder: str) -> list[Entry]:  # noqa: ARG002  the protocol's
        return []

    def everything(self) -> list[Entry]:
        return []

    def entry(self, name: str) -> Entry:
        return Entry(name, self.source.nbytes if name == FILE else 0, "" if name == FILE else "is not there")

    def exists(self, name: str) -> bool:
        return name == FILE

    def open(self, name: str) -> Source:
        if name != FILE:
            raise FormatError(name, "is not there")
        return self.source

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Nothing to do."""

    def held(self, name: str, offset: int, n: int) -> bool:  # noqa: ARG002  the protocol's
        return True

    def spare(self) -> int:
        return 1 << 60

    def allow(self, requests: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""
