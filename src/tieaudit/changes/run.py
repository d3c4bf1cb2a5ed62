"""This file holds `diff`: two targets read, their tensors matched and compared, and the answer put together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ..checkpoint import Checkpoint
from ..copies import LEFT_OUT, deterministic
from ..difference import Change, Changes, Diff, OneSided, Outputs, TensorChange
from ..errors import FormatError, OptionError, TargetError
from ..evidence import Progress
from ..inspectors import registry
from ..inspectors.changes import RULES
from ..inspectors.rule import Case
from ..kinds import QUANTISED_TWICE, Evidence, Kind, Verify
from ..relations import relate
from ..report import Cost, Skip
from ..sources.local import LocalFolder
from ..sources.target import TIMEOUT, Access
from . import expect as expecting
from .compare import Comparer
from .gguf_names import candidates
from .matching import Matched, match
from .sharing import changes as tie_changes
from .sharing import head_loss, is_same
from .sides import BEFORE, Side, Unit, open_side, read_side, reader
from .sizes import account

FULL_REQUESTS = 1000  # that --verify full may spend on each remote side
PAIR_REQUESTS = 4  # that comparing one remote pair by value may take
GRAPHS = ("onnx", "openvino")
FLOATS = ("F32", "F16", "BF16", "F64")
SMALL = 1024  # bytes of a matrix that a graph may hold for itself
CONSTANT = "a constant of the graph"
ALWAYS = 2  # remote pairs that are looked at whatever it costs: the ends


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    verify: str | None = None,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    expect: str | Iterable[str] = (),
    logits: bool = False,
    offline: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress = lambda *_: None,
) -> Diff:
    """What became of the checkpoint `before` in `after`: ties, tensors, values, sizes. Each is any target that `audit` takes; a revision
    of the Hub is `hf://org/model@revision`.

    `verify`: "headers" reads no weights, "sample" some pages of them (default where every read is a request), "full" (default for files on
    this machine) compares all. `expect`: "same-ties", "same-values", "smaller". `logits`: run both models on the same token ids, where
    transformers or onnxruntime can. `select` and `ignore` name rules of TIE9.
    Raises TargetError if one of the two cannot be read at all, OptionError for an option that does not exist.
    """
    started = time.perf_counter()
    try:
        asked = None if verify is None else Verify(verify)
    except ValueError:
        raise OptionError("--verify", str(verify), "headers, sample or full") from None
    chosen, left = ((words,) if isinstance(words, str) else tuple(words) for words in (select, ignore))
    rules = _rules(chosen, left)
    expected = expecting.known((expect,) if isinstance(expect, str) else expect)
    if not timeout > 0:
        raise OptionError("--timeout", str(timeout), "a number of seconds above 0")
    access = Access(offline=offline, seconds=timeout)
    opened = [open_side(before, access)]
    try:
        opened.append(open_side(after, access))
        level = asked or (Verify.SAMPLE if any(one.folder.remote for one in opened) else Verify.FULL)
        if level is Verify.FULL:
            for one in opened:
                one.folder.allow(FULL_REQUESTS)
        sides = [read_side(one, level, progress) for one in opened]
        first, second = sides
        found = _Comparison(first, second, Comparer(first, second, reader(first, second, progress), level))
        made = found.changes()
        if logits:
            made = replace(made, outputs=_outputs(sides, made))
        skipped, not_compared = tuple(found.skipped()), tuple(found.not_compared())
    finally:
        for one in opened:
            one.folder.close()
    empty = Checkpoint(target=opened[1].target, editions=())
    findings, _ = registry.run(Case(checkpoint=empty, config=None, editions=(), changes=made), rules) if rules else ((), 0)
    return Diff(
        before=sides[0].summary,
        after=sides[1].summary,
        changes=made,
        findings=findings,
        expectations=tuple(expecting.judged(expected, made, skipped, not_compared)),
        skipped=skipped,
        not_compared=not_compared,
        cost=Cost(
            bytes_read=sum(one.folder.meter.bytes_read for one in opened),
            requests=sum(one.folder.meter.requests for one in opened),
            seconds=round(time.perf_counter() - started, 4),
        ),
        filtered=bool(chosen or left),
    )


def _rules(select: tuple[str, ...], ignore: tuple[str, ...]) -> tuple[str, ...]:
    """Codes of the rules of this family that are to speak. OptionError for words that name none of them."""
    own = {rule.code for rule in RULES}
    chosen = registry.matching(select, "--select") if select else frozenset(own)
    if not chosen & own:
        raise OptionError("--select", ", ".join(select), "a comparison has the rules TIE901 to TIE904")
    return tuple(sorted((chosen & own) - registry.matching(ignore, "--ignore")))


class _Comparison:
    """One comparison under way."""

    def __init__(self, before: Side, after: Side, comparer: Comparer) -> None:
        self.before, self.after, self.comparer = before, after, comparer
        self.left = 0
        self.matched = Matched()
        self.unreadable = tuple(_unreadable(before, after))
        for side in (before, after):
            if side.edition is None and self.unreadable:
                file, what = self.unreadable[0]
                raise TargetError(side.opened.target, f"cannot be read: {file}: {what}")

    def changes(self) -> Changes:
        before, after, comparer = self.before, self.after, self.comparer
        self.matched = match(before, after, comparer)
        pairs = list(self._compared())
        lost = [(unit, self._lost(unit)) for unit in self.matched.lost.values()]
        added = [(unit, self._added(unit)) for unit in self.matched.added.values()]
        ties = list(tie_changes(before, after, {one.name: other.name for one, other, _ in pairs}))
        self.pairs = tuple(change for _, _, change in pairs)
        return Changes(
            pairs=self.pairs,
            lost=tuple(told for _, told in lost),
            added=tuple(told for _, told in added),
            ties=tuple(ties),
            head=head_loss(before, after, ties, comparer) if comparer.verify is not Verify.HEADERS else None,
            sizes=account(before, after, pairs, lost, added),
        )

    def _compared(self) -> Iterator[tuple[Unit, Unit, TensorChange]]:
        data = self.comparer.data
        pairs = self.matched.pairs
        if data.remote:
            # the ends and the widest first: each look is a request
            pairs = sorted(pairs, key=lambda pair: (not pair[0].role, -pair[0].matrix.nbytes))
            data.prefetch(part for one, other, _ in pairs[:ALWAYS] for part in other.matrix.parts)
        for number, (one, other, renamed) in enumerate(pairs):
            looked_at = number < ALWAYS or not data.remote or data.spare >= PAIR_REQUESTS
            if not looked_at and self.comparer.verify is not Verify.HEADERS and not self.comparer.free(one, other):
                self.left += 1
                kind = TensorChange(before=one.stored, after=other.stored, kinds=(Change.NOT_COMPARED,), allowed=True, renamed=renamed,
                                    reason=LEFT_OUT, evidence=Evidence.HEADER)  # fmt: skip
                yield one, other, kind
            else:
                yield one, other, self.comparer.change(one, other, renamed)

    def _lost(self, unit: Unit) -> OneSided:
        """What is known of a tensor that only the first side has."""
        stored, side = unit.stored, self.after
        again = self._again(unit, self.before)
        if again and side.unit("embedding") is not None:
            return OneSided(tensor=stored, allowed=True, reason=f"it repeats {again}, which stays")
        end = side.unit("embedding")
        if (
            unit.role == "head"
            and end is not None
            and self.comparer.verify is not Verify.HEADERS
            and is_same(unit.matrix, end.matrix, self.comparer)
        ):
            return OneSided(tensor=stored, allowed=True, reason=f"{end.matrix.name} has its values now")
        if deterministic(unit.name):
            return OneSided(tensor=stored, allowed=True, reason="a table that a formula fixes")
        if self._of_graph(unit, self.before):
            return OneSided(tensor=stored, allowed=True, reason=CONSTANT)
        if side.edition is None or not side.edition.whole or side.checkpoint.unread:
            return OneSided(tensor=stored, allowed=False, reason="not all of the other side was read", judged=False)
        if side.edition.kind != self._kind(self.before):
            return OneSided(tensor=stored, allowed=False, reason=f"the other side holds {side.edition.kind} only", judged=False)
        if side.format == "gguf" and self.before.format != "gguf":
            known = any(True for _ in candidates(unit.name))
            words = "no tensor of the GGUF is it" if known else "no name in a GGUF is known for it"
            return OneSided(tensor=stored, allowed=False, reason=words, judged=known)
        if side.foreign or self.before.foreign:
            words = f"{(side if side.foreign else self.before).format} may hold it under another name or in another form"
            return OneSided(tensor=stored, allowed=False, reason=words, judged=False)
        return OneSided(tensor=stored, allowed=False, reason="the other side has nothing under this name, or with these values")

    def _kind(self, side: Side) -> str:
        return side.edition.kind if side.edition else "weights"

    def _added(self, unit: Unit) -> OneSided:
        stored = unit.stored
        again = self._again(unit, self.after)
        if again:
            return OneSided(tensor=stored, allowed=True, reason=f"it repeats {again}")
        if deterministic(unit.name):
            return OneSided(tensor=stored, allowed=True, reason="a table that a formula fixes")
        if self._of_graph(unit, self.after):
            return OneSided(tensor=stored, allowed=True, reason=CONSTANT)
        return OneSided(tensor=stored, allowed=False, reason="only after", judged=not self.after.foreign)

    def _of_graph(self, unit: Unit, side: Side) -> bool:
        """A shape, an axis, a mask, a table of angles: what a graph holds beside the parameters."""
        small = len(unit.matrix.shape) < 2 or unit.matrix.nbytes < SMALL or unit.matrix.main.dtype not in FLOATS
        return side.format in GRAPHS and not unit.role and not unit.matrix.packed and small

    def _again(self, unit: Unit, side: Side) -> str:
        """The name of the matrix that this end repeats on its own side, with how it does; "" if it repeats none."""
        partner = side.unit("head" if unit.role == "embedding" else "embedding") if unit.role else None
        if partner is None or partner.name == unit.name or self.comparer.verify is Verify.HEADERS:
            return ""
        relation = relate(partner.matrix, unit.matrix, side.gathering.reader(), self.comparer.verify)
        how = {Kind.EQUAL: "", Kind.SAME_STORAGE: "", Kind.CAST: " in another dtype", Kind.TRANSPOSED: ", transposed"}.get(relation.kind)
        if relation.kind is Kind.NEAR and relation.detail.startswith(QUANTISED_TWICE):
            how = " in another quantisation"
        return "" if how is None else f"{partner.matrix.name}{how}"

    def skipped(self) -> Iterator[Skip]:
        """What could not be checked, on either side."""
        for file, what in self.unreadable:
            yield Skip(file, what)
        for side, which in ((self.before, "before"), (self.after, "after")):
            for name, why in side.checkpoint.unread:
                yield Skip(f"{which}: {name}", why)
            for name in side.edition.missing if side.edition else ():
                if name not in _missing(self.before, self.after):
                    yield Skip(f"{which}: {name}", "a shard that is not there")
            for file_ in side.edition.files if side.edition else ():
                for words in file_.unread:
                    yield Skip(f"{which}: {file_.name}", words)
        if not self.pairs and self.before.units and self.after.units:
            yield Skip("the tensors of the two", "no tensor of one is known to be one of the other")
        for pair in self.pairs:
            if pair.kind is Change.NOT_COMPARED and not pair.allowed:
                yield Skip(pair.after.name, pair.reason)

    def not_compared(self) -> Iterator[Skip]:
        """What nobody asked for, so that nobody takes it for checked."""
        if self.comparer.verify is Verify.HEADERS:
            yield Skip("values of all tensors", "--verify headers reads none")
            return
        if self.left:
            yield Skip(f"{self.left:,} of {len(self.pairs):,} tensors", LEFT_OUT)
        reasons: dict[str, int] = {}
        for pair in self.pairs:
            if pair.kind is Change.NOT_COMPARED and pair.allowed and pair.reason != LEFT_OUT:
                reasons[_general(pair)] = reasons.get(_general(pair), 0) + 1
        for reason, count in reasons.items():
            yield Skip(f"the values of {count:,} tensor{'s' * (count > 1)}", reason)
        for side, which in ((self.before, "before"), (self.after, "after")):
            others = [edition.name for edition in side.checkpoint.editions if edition is not side.edition and edition.kind == "weights"]
            for name in others:
                yield Skip(
                    f"{which}: {name}", f"another copy of the weights; {side.edition.name if side.edition else 'nothing'} was compared"
                )


def _general(pair: TensorChange) -> str:
    """The reason without the tensor's own name, so that a hundred of them are one line."""
    reason = pair.reason.replace(BEFORE, "")
    for name in (pair.before.name, pair.after.name):
        reason = reason.replace(f"{name} is ", "it is ").replace(name, "it")
    return reason


def _missing(before: Side, after: Side) -> set[str]:
    """Shards that neither side has: nothing differs there."""
    both = [set(side.edition.missing) if side.edition else set() for side in (before, after)]
    return both[0] & both[1]


def _unreadable(before: Side, after: Side) -> Iterator[tuple[str, str]]:
    """(file, what) of files that break their format, with `before` or `after`; the same bytes on both sides are no difference."""
    known: dict[str, set[str]] = {}
    sides = (("before", before), ("after", after))
    for which, side in sides:
        faults = [*side.checkpoint.unreadable, *(fault for file in side.checkpoint.files for fault in file.problems)]
        for fault in faults:
            known.setdefault(fault.file, set()).add(f"{which}\0{fault.what}")
    for file, told in known.items():
        if len({words.partition("\0")[0] for words in told}) == 2 and _equal_files(before, after, file):
            continue
        for words in sorted(told):
            which, _, what = words.partition("\0")
            yield f"{which}: {file}", what


def _equal_files(before: Side, after: Side, name: str) -> bool:
    """The file has the same bytes on both sides; only told of files on this machine, or of digests that a server lists."""
    ours, theirs = before.digests.get(name), after.digests.get(name)
    if ours and theirs:
        return ours == theirs
    if before.opened.folder.remote or after.opened.folder.remote:
        return False
    try:
        one, other = before.opened.folder.open(name), after.opened.folder.open(name)
        step = 1 << 20
        return one.nbytes == other.nbytes and all(
            one.read(at, min(step, one.nbytes - at)) == other.read(at, min(step, one.nbytes - at)) for at in range(0, one.nbytes, step)
        )
    except FormatError:
        return False


def _outputs(sides: list[Side], made: Changes) -> Outputs:
    """What both compute, if that can be tried here."""
    roots = []
    for side in sides:
        if not isinstance(side.opened.folder, LocalFolder):
            return Outputs(held=None, tried=False, words=f"not tried: {side.opened.target} is not on this machine")
        roots.append(side.opened.folder.root)
    from ..live.hush import hushed

    try:
        with hushed():
            from ..live import outputs
    except ImportError as error:
        return Outputs(held=None, tried=False, words=f"not tried: {error.name or 'torch'} is not installed (pip install 'tieaudit[live]')")
    kinds = {kind for pair in made.pairs for kind in pair.kinds}
    forms = {pair.after.form for pair in made.pairs} | {pair.before.form for pair in made.pairs}
    models = [outputs.Model(root=Path(root), edition=side.edition, case=side.case, config=side.config)
              for root, side in zip(roots, sides, strict=True)]  # fmt: skip
    return outputs.compare(models[0], models[1], forms=forms, quantised=Change.QUANTISED in kinds or Change.NOT_COMPARED in kinds)
