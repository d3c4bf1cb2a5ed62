"""This file holds what a plan is: steps and refusals in words, and the files that will be written, as data. Nothing is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..checkpoint import TensorRecord
from ..kinds import Evidence, Kind
from ..names import Matrix
from ..report import Finding, Report, Severity

DROPS = ("formats", "training-state", "placeholders", "orphans")
SIDES = ("embed", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What only a person can decide. `tie`: "" or the side that is kept; `to`: "" or the format that torch files become."""

    untie: bool = False
    tie: str = ""
    to: str = ""
    drop: frozenset[str] = frozenset()

    @property
    def words(self) -> str:
        """As they are written on the command line, with a space in front."""
        told = [(self.untie, "--untie"), (self.tie, f"--tie {self.tie}"), (self.to, f"--to {self.to}")]
        words = [word for is_set, word in told if is_set] + [f"--drop {name}" for name in sorted(self.drop)]
        return "".join(f" {word}" for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One repair. `rule` is the finding that it ends, "" for a wish that none stands behind. `lost`: what is gone for good afterwards,
    `brings`: notes that it leads to."""

    rule: str
    what: str
    why: str
    saves_bytes: int = 0
    evidence: Evidence = Evidence.HEADER
    lost: str = ""
    brings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing is written: a person must choose, or it cannot be done. `ways`: options to choose from, with what each does."""

    rule: str
    what: str
    ways: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A finding that stays. `way`: the options that would repair it, "" if nothing here does."""

    rule: str
    severity: Severity
    message: str
    way: str = ""


class Ground(StrEnum):
    """Why a matrix may be left out."""

    PROVED = "proved"  # its bytes are computed from the one that stays; shown again when the new file is written
    CHOSEN = "chosen"  # it differs, and the user said which side stays
    ASKED = "asked"  # the user asked for its kind to be dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A matrix that is left out, or in a torch file becomes a second name of `kept`."""

    dropped: Matrix
    ground: Ground
    kept: Matrix | None = None
    kind: Kind = Kind.EQUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor of a new file: its name there, and where its bytes are now."""

    name: str
    tensor: TensorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A new file. `source` is the file that it takes the place of, `format` names the writer. `aliases` {name: kept name}: second names of
    a stored tensor, where the format can say so. `dropped`: names of `source` that are not in the new file. `apart`: names that shared a
    storage get one each. `instead` {name left out: (name that is read in its place, whether transposed)}: for formats whose nodes name
    what they read."""

    name: str
    source: str
    format: str
    tensors: tuple[Kept, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    apart: bool = False
    instead: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A small file with new content (config.json, an index) that takes the mode of `source`."""

    name: str
    source: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A file as it was when the plan was made: a change of any of this is a change of the file. `digest` is of its begin and end (whole if
    small), "" for files that are only carried over."""

    name: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    mode: int
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a fix will do. `file` is "" or the one file of `root` that was named. `seen`: every file below `root`, `folders` {name: mode},
    `links` {name: target} those that are carried over as links,
    `foreign` names that link into the blobs of a Hub cache. `removed`: files that are left out."""

    target: str
    root: str
    file: str
    choices: Choices
    before: Report
    steps: tuple[Step, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    left: tuple[Left, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    texts: tuple[Text, ...] = ()
    removed: frozenset[str] = frozenset()
    removals: tuple[Removal, ...] = ()
    seen: tuple[Seen, ...] = ()
    folders: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    nbytes_before: int = 0
    min_waste: int = 1024

    @property
    def verdict(self) -> str:
        """ "refused", "ready", "unrepaired" (findings from a warning up, and no repair for any) or "nothing to do"."""
        if self.refusals:
            return "refused"
        if self.steps:
            return "ready"
        return "unrepaired" if any(left.severity is not Severity.NOTE for left in self.left) else "nothing to do"

    @property
    def carried(self) -> tuple[Seen, ...]:
        """Files that are carried over byte for byte."""
        replaced = {rewrite.source for rewrite in self.rewrites} | {text.name for text in self.texts} | self.removed
        replaced |= {text.source for text in self.texts}
        return tuple(seen for seen in self.seen if seen.name not in replaced and (not self.file or seen.name == self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What `apply_fix` did: where the result is, where the original went (in place), and the audit of the result."""

    plan: Plan
    out: str
    backup: str = ""
    after: Report | None = None

    @property
    def repaired(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.rule for step in self.plan.steps if step.rule))

    @property
    def remaining(self) -> tuple[Finding, ...]:
        return self.after.findings if self.after else self.plan.before.findings
