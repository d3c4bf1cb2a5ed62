"""This file holds what an audit answers: findings, ties, skips, cost. Reporters turn it into text; nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from .alive import Live
from .checkpoint import Checkpoint
from .kinds import Evidence


class Severity(StrEnum):
    """How bad: error = the result changes or the file breaks; warning = bytes wasted, or a reader refuses or misreads the file;
    note = legal and worth knowing. The words are SARIF's levels."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return tuple(Severity).index(self)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor that a finding is about. `offset` is its byte in the file, None if it is not stored."""

    name: str
    file: str
    offset: int | None
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem. `fix` says what to do, `cause` the likely reason if the evidence points at one."""

    code: str
    rule: str
    severity: Severity
    message: str
    tensors: tuple[TensorPlace, ...] = ()
    wasted_bytes: int = 0
    evidence: Evidence = Evidence.HEADER
    cause: str | None = None
    fix: str | None = None
    waste: tuple[tuple[str, str, int], ...] = field(default=(), compare=False, repr=False)
    """What of which file is wasted (file, what, bytes), for those who add up where. Not a part of the JSON contract."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not checked, and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """What a program that reads checkpoints makes of a tie in this file."""

    engine: str
    version: str
    outcome: str
    silent: bool | None
    name: str = ""
    """As people write it, with the version if that decides. `leading`: it is named first where room is short."""
    leading: bool = False
    effect: str = "intact"
    """What becomes of the model that is stored: intact, lost, random, error."""
    mode: str = ""
    """How it is known: run, or read in the program's source."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """Names that can be one matrix: what is claimed and how the stored ones relate.

    `saves_bytes`: bytes that sharing saves on disk, or would save if copies were left out; `numel` elements of the matrix;
    `summary` is the verdict as a clause; `uniform` says that all stored names have `nbytes` bytes, `parts` in how many tensors one of
    them lies; `trainable` is False for an export.
    """

    canonical: str
    aliases: tuple[str, ...]
    role: str
    claim: str
    claim_source: str
    relation: str
    evidence: Evidence
    saves_bytes: int = 0
    engines: tuple[EngineOutcome, ...] = ()
    stored: tuple[str, ...] = ()
    file: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    detail: str = ""
    summary: str = ""
    uniform: bool = True
    parts: int = 1
    trainable: bool = True

    @property
    def numel(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count if self.shape else 0

    @property
    def training_bytes(self) -> int:
        """What sharing saves in training beside the weights: a BF16 gradient and two FP32 Adam moments per element."""
        if not self.trainable or self.claim != "tied" or not self.nbytes or self.dtype not in ("F32", "F16", "BF16", "F64"):
            return 0
        return self.numel * (2 + 8) * (self.saves_bytes // self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sizes. `parameters_*` count the elements of the weights that a reader loads (the first edition), `nbytes_*` all files read."""

    tensors: int = 0
    parameters_stored: int = 0
    parameters_unique: int = 0
    nbytes_stored: int = 0
    nbytes_wasted: int = 0

    @property
    def nbytes_unique(self) -> int:
        return self.nbytes_stored - self.nbytes_wasted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes and reads (requests, for a server) that the audit took, and wall time in seconds."""

    bytes_read: int = 0
    requests: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole answer for one target. `findings` are sorted: worst first, then by wasted bytes."""

    target: str
    formats: tuple[str, ...] = ()
    files: tuple[tuple[str, int], ...] = ()
    totals: Totals = field(default_factory=Totals)
    ties: tuple[Tie, ...] = ()
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skip, ...] = ()
    not_compared: tuple[Skip, ...] = ()
    cost: Cost = field(default_factory=Cost)
    revision: str | None = None
    filtered: bool = False
    """True if rules were left out by choice: silence then says only so much."""
    reason: str = ""
    """Why a healthy checkpoint is healthy, as a clause."""
    live: Live | None = None
    """The model in memory, if one was looked at."""
    checkpoint: Checkpoint | None = field(default=None, compare=False, repr=False)
    """What was read: files, storages, tensors; for reports that draw or count them. Not a part of the JSON contract."""
    ends: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """(name of a stored tensor, "embedding" or "head") as the claim knows them."""

    @property
    def verdict(self) -> str:
        """ "error", "warning", "note", "ok", or "incomplete" if nothing worse was found but something asked for was not checked."""
        worst = min((finding.severity for finding in self.findings), key=lambda severity: severity.rank, default=None)
        if self.skipped and worst in (None, Severity.NOTE):
            return "incomplete"
        return worst.value if worst else "ok"

    def at_least(self, severity: Severity) -> bool:
        """True if a finding is at or above `severity`."""
        return any(finding.severity.rank <= severity.rank for finding in self.findings)


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first, then the most wasted bytes, then by code and first tensor so that the order is stable."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                finding.severity.rank,
                -finding.wasted_bytes,
                finding.code,
                finding.tensors[0].name if finding.tensors else "",
                finding.message,
            ),
        )
    )
