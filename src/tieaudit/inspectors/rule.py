"""This file holds what a rule is: a function from the case to problems, and the decorator that gives it code and severity.

To add a rule: write one function in the file of its family under `@rule(number, Severity.X)`. Its name in kebab case is the
rule's name, its docstring is its page (`tieaudit rules CODE`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..adapters import AdapterConfig, AdapterEnd, Copy
from ..checkpoint import Checkpoint, Edition, TensorRecord
from ..checkpoint import Problem as Fault
from ..claim import Claim, TieGroup
from ..config import Config
from ..copies import Scan
from ..kinds import Evidence, Relation
from ..names import Matrix, StoredNames
from ..report import Finding, Severity, TensorPlace
from ..skiplists import Plan

if TYPE_CHECKING:
    from ..alive import Live
    from ..difference import Changes

Waste = tuple[str, str, int]
"""(file, what, bytes): bytes that could be left out. Two problems that name the same (file, what) waste them once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two names of a tie group, both stored: `second` is claimed to be `first` under a new name."""

    first: Matrix
    second: Matrix
    tied: bool | None
    tied_v4: bool | None
    relation: Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class TieState:
    """A tie group against what is stored. `pairs` relate each further stored name to the first stored one (`holder`).

    `holder_as` is the catalog's name for the holder. `absent`: names that are not stored, with the two readings of the tie;
    `broken`: names whose entry cannot be read.
    """

    group: TieGroup
    holder: Matrix | None
    holder_as: str = ""
    pairs: tuple[Pair, ...] = ()
    absent: tuple[tuple[str, bool | None, bool | None], ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """What is stored of the group, the holder first."""
        return () if self.holder is None else (self.holder, *(pair.second for pair in self.pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditionCase:
    """One edition with everything that was found out about it.

    `related`: tensors outside the ties that are transposed or cast copies; `repeats`: one name stored twice.
    """

    edition: Edition
    claim: Claim
    stored: StoredNames
    ties: tuple[TieState, ...]
    scan: Scan = field(default_factory=Scan)
    related: tuple[tuple[TensorRecord, TensorRecord, Relation], ...] = ()
    repeats: tuple[tuple[TensorRecord, TensorRecord, Relation], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCase:
    """One end that an adapter touches, against the base. `tied`: the base takes one matrix for it and for `partners`; None if nobody
    says. `base`: the base's matrix for it, `against_base` how each copy relates to that; `rows`: what the base's config says."""

    end: AdapterEnd
    tied: bool | None = None
    partners: tuple[str, ...] = ()
    base: Matrix | None = None
    against_base: tuple[tuple[Copy, TensorRecord, Relation], ...] = ()
    rows: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCase:
    """An adapter and what is known of its base. `base` is the base's name, `read` says that its config was read; `source` why it
    ties or not, as a clause, and `state` its own embedding and head. `equal`: copies in the adapter with the same bytes, the one to keep
    first. `shown`: the adapter alone shows that its base is tied. `differing`: names of
    its matrices that were compared and differ. `trouble`: why a base that its file names could not be read."""

    edition: Edition
    config: AdapterConfig | None = None
    base: str = ""
    read: bool = False
    source: str = ""
    state: TieState | None = None
    base_edition: EditionCase | None = None
    ends: tuple[EndCase, ...] = ()
    equal: tuple[tuple[tuple[tuple[EndCase, Copy | None, TensorRecord], ...], Evidence], ...] = ()
    shown: bool = False
    differing: frozenset[tuple[str, str]] = frozenset()
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that rules may look at. Nothing in it reads a file. `faults`: what breaks a format, in all files; `unread`: what a
    server did not give, with the reason; `live`: the model in memory, if one was looked at; `changes`: what became of it in another
    checkpoint, if two were compared."""

    checkpoint: Checkpoint
    config: Config | None
    editions: tuple[EditionCase, ...]
    faults: tuple[Fault, ...] = ()
    min_waste: int = 1024
    format_pairs: tuple[FormatPair, ...] = ()
    across: tuple[Across, ...] = ()
    vocabulary: Vocabulary | None = None
    untrained: tuple[UntrainedRows, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    quantization: Plan | None = None
    adapters: tuple[AdapterCase, ...] = ()
    live: Live | None = None
    changes: Changes | None = None

    @property
    def judged(self) -> Iterator[EditionCase]:
        """Editions that hold the model."""
        return (case for case in self.editions if case.edition.kind == "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatPair:
    """Two editions of the same model, compared name by name. `differing` are tensors of `first` and `second` that disagree, `unread`
    those that a server did not give, `left` counts those that would have cost too many requests."""

    first: Edition
    second: Edition
    common: int
    differing: tuple[tuple[TensorRecord, TensorRecord], ...] = ()
    evidence: Evidence = Evidence.SAMPLED
    unread: tuple[tuple[str, str], ...] = ()
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """Matrices that the program `second` repeats of the program `first`: two files of one export, each of which runs alone."""

    first: Edition
    second: Edition
    pairs: tuple[tuple[TensorRecord, TensorRecord], ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The largest token id that the tokenizer files name, with the token and the file, and the tokens {id: text} that were added."""

    file: str
    token: str
    largest: int
    added: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrainedRows:
    """Rows of an embedding, by token id, that no training has touched: `constant` ones, and ones `equal` to the row of another token."""

    matrix: TensorRecord
    constant: tuple[int, ...] = ()
    equal: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a rule yields. The registry stamps code, name and severity; `severity` only where it differs from the rule's own."""

    message: str
    tensors: tuple[TensorPlace, ...] = ()
    waste: tuple[Waste, ...] = ()
    evidence: Evidence = Evidence.HEADER
    cause: str | None = None
    fix: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as registered."""

    code: str
    name: str
    severity: Severity
    check: Callable[[Case], Iterator[Problem]]

    @property
    def page(self) -> str:
        return inspect.getdoc(self.check) or ""

    @property
    def summary(self) -> str:
        return self.page.split("\n", 1)[0]

    def findings(self, case: Case) -> Iterator[tuple[Finding, tuple[Waste, ...]]]:
        for problem in self.check(case):
            finding = Finding(
                code=self.code,
                rule=self.name,
                severity=problem.severity or self.severity,
                message=problem.message,
                tensors=problem.tensors,
                wasted_bytes=sum(nbytes for _, _, nbytes in set(problem.waste)),
                evidence=problem.evidence,
                cause=problem.cause,
                fix=problem.fix,
                waste=problem.waste,
            )
            yield finding, problem.waste


def rule(number: int, severity: Severity) -> Callable[[Callable[[Case], Iterator[Problem]]], Rule]:
    """Make a rule of a function; `number` is its place in the family's hundred."""

    def make(check: Callable[[Case], Iterator[Problem]]) -> Rule:
        return Rule(f"TIE{number:03d}", check.__name__.replace("_", "-"), severity, check)

    return make


def place(tensor: TensorRecord) -> TensorPlace:
    return TensorPlace(tensor.name, tensor.file, tensor.file_offset, tensor.nbytes)


def places(*matrices: Matrix) -> tuple[TensorPlace, ...]:
    return tuple(place(part) for matrix in matrices for part in matrix.parts)


def wasted(*tensors: TensorRecord) -> tuple[Waste, ...]:
    """These tensors' own bytes."""
    return tuple((tensor.file, f"{tensor.storage.ident}+{tensor.offset}", tensor.nbytes) for tensor in tensors)
