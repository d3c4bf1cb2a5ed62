"""This file holds what a comparison of two checkpoints answers, as data: ties, tensors, sizes, logits. `changes/` makes it.

"Before" and "after" are the two targets in the order in which they were named. Rules look at this; no file is read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .kinds import Evidence
from .report import Cost, Finding, Skip


class Change(StrEnum):
    """How the values of one tensor differ between the two sides; the values are the words of the JSON."""

    EQUAL = "equal"
    CAST = "cast"
    QUANTISED = "quantised"
    TRANSPOSED = "transposed"
    RESIZED = "resized"
    PERMUTED = "rows permuted"
    SHIFTED = "plus one"
    SCALED = "scaled"
    DRIFTED = "drifted"
    UNRELATED = "unrelated"
    NOT_COMPARED = "not compared"


class Sharing(StrEnum):
    """What one side stores of names that can be one matrix."""

    SHARED = "one matrix"
    REPEATED = "equal copies"
    APART = "two matrices"
    LONE = "one name only"
    NONE = "not stored"
    UNKNOWN = "not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor, or the bundle of a quantised matrix, on one side. `form` is its dtype or how it is packed."""

    name: str
    file: str
    form: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """One tensor on both sides. `kinds` says how its values differ, the most telling first; `renamed` why two names are one tensor, ""
    if the names are equal. `allowed`: the change keeps what the model computes, up to the precision of the dtype; `reason` says why it
    is expected, or what is wrong. The numbers are None where they were not measured."""

    before: Stored
    after: Stored
    kinds: tuple[Change, ...]
    allowed: bool
    reason: str = ""
    evidence: Evidence = Evidence.PROVED
    renamed: str = ""
    moved: bool = False
    max_difference: float | None = None
    relative_error: float | None = None
    cosine: float | None = None
    rank: int | None = None

    @property
    def kind(self) -> Change:
        return self.kinds[0]

    @property
    def words(self) -> str:
        return " and ".join(kind.value for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """A tensor that only one side has. `reason` says why that is expected (`allowed`), or what is known of it. `judged`: its absence on
    the other side would have been seen under any name that is known."""

    tensor: Stored
    allowed: bool
    reason: str
    judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTie:
    """Names that can be one matrix, as one side has them. `tied`: its readers take one matrix for all (None: nobody says)."""

    names: tuple[str, ...]
    stored: tuple[str, ...]
    sharing: Sharing
    tied: bool | None
    words: str
    source: str
    role: str = "embedding-head"

    @property
    def holds(self) -> bool:
        """A model that is loaded from this side has one matrix."""
        return (self.sharing is Sharing.SHARED and self.tied is not False) or (self.sharing is Sharing.REPEATED and self.tied is True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TieChange:
    """A tie on both sides; None where a side does not speak of such names. `kept`: both share alike; None if that cannot be told."""

    role: str
    before: SideTie | None
    after: SideTie | None
    kept: bool | None
    words: str

    @property
    def lost(self) -> bool:
        """One matrix before, two after."""
        if self.before is None or self.after is None or not self.before.holds or self.after.holds:
            return False
        return self.after.sharing in (Sharing.APART, Sharing.REPEATED, Sharing.SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePart:
    """Bytes that one cause adds (or takes, below zero). `words` is a clause, `tensors` how many it is about."""

    what: str
    words: str
    nbytes: int
    tensors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of all files of weights on each side, and the causes of the difference, which add up to it exactly."""

    before: int
    after: int
    parts: tuple[SizePart, ...] = ()
    words: str = ""

    @property
    def difference(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What the two models compute from the same token ids. `held` is None if it was not tried, or if no tolerance applies."""

    held: bool | None
    words: str
    tried: bool = True
    max_difference: float | None = None
    tolerance: float | None = None
    agreement: float | None = None
    """Share of the positions at which both put the same token first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the user expects, and whether it is so; None if it could not be told."""

    name: str
    met: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSummary:
    """One of the two targets, as it was read."""

    target: str
    formats: tuple[str, ...] = ()
    files: tuple[tuple[str, int], ...] = ()
    tensors: int = 0
    revision: str | None = None
    edition: str = ""
    """The copy of the weights that was compared, where a target has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLoss:
    """The head of one side is gone on the other. `why` is a clause."""

    head: Stored
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that was found between two checkpoints; what the rules of family 9 look at."""

    pairs: tuple[TensorChange, ...] = ()
    added: tuple[OneSided, ...] = ()
    lost: tuple[OneSided, ...] = ()
    ties: tuple[TieChange, ...] = ()
    head: HeadLoss | None = None
    sizes: Sizes = field(default_factory=lambda: Sizes(before=0, after=0))
    outputs: Outputs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The whole answer for two targets. `findings` are sorted: worst first."""

    before: SideSummary
    after: SideSummary
    changes: Changes
    findings: tuple[Finding, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    skipped: tuple[Skip, ...] = ()
    not_compared: tuple[Skip, ...] = ()
    cost: Cost = field(default_factory=Cost)
    filtered: bool = False

    @property
    def verdict(self) -> str:
        """As that of an audit: "error", "warning", "note", "ok", or "incomplete"."""
        worst = min((finding.severity for finding in self.findings), key=lambda severity: severity.rank, default=None)
        if self.skipped and (worst is None or worst.value == "note"):
            return "incomplete"
        return worst.value if worst else "ok"

    @property
    def same(self) -> bool:
        """Nothing differs: every tensor is there on both sides under its name with its bytes, and ties and sizes are the same. Files may
        be cut otherwise."""
        changes = self.changes
        pairs = all(pair.kinds == (Change.EQUAL,) and not pair.renamed for pair in changes.pairs)
        ties = all(tie.kept is not False for tie in changes.ties)
        moved = sum(part.nbytes != 0 for part in changes.sizes.parts if part.what != "other")
        return pairs and ties and not (changes.added or changes.lost or changes.head or moved or self.skipped)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many tensors changed in which way."""
        return Counter(pair.words for pair in self.changes.pairs)
