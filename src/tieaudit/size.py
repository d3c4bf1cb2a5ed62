"""This file holds where the bytes of a checkpoint go: by component, layer, dtype and file; stored, and wasted by which fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .bytewise import extent
from .checkpoint import Checkpoint, TensorRecord
from .components import Component, component, stack
from .footprint import Footprint, Setup, footprint
from .report import Finding, Report, Tie

View = tuple[str, str, int, tuple[int, ...], tuple[int, ...] | None]
"""`TensorRecord.view`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the checkpoint. A byte belongs to one part only; of two names of the same bytes the first one has them."""

    name: str
    tensors: int
    elements: int
    stored: int
    wasted: int

    @property
    def unique(self) -> int:
        return self.stored - self.wasted


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Consecutive layers of one list that are equally large: `each` bytes."""

    name: str
    first: int
    last: int
    each: int
    elements: int

    @property
    def stored(self) -> int:
        return self.each * (self.last - self.first + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one rule found wasted, in all of its findings."""

    code: str
    rule: str
    findings: int
    wasted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMatrix:
    """Embedding, head, or both in one. `share` is of all bytes that are stored once; of a copy that is `wasted` it is 0."""

    name: str
    role: str
    nbytes: int
    elements: int
    wasted: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What a second matrix for the head costs in training (the model is tied), or the one that is there (`tied` False)."""

    tied: bool
    rows: int
    width: int
    why: str
    cost: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The whole answer. `source`: "weights", or "config" and "meta" where nothing stored was read. `parts_*` add up to `stored` each.

    `unsure`: what was not checked or not compared, so that more may be wasted; `partial` says that something could not be read.
    """

    target: str
    source: str
    revision: str | None
    tensors: int
    parameters_stored: int
    parameters_unique: int
    stored: int
    wasted: int
    components: tuple[Part, ...]
    layers: tuple[Layers, ...]
    dtypes: tuple[Part, ...]
    files: tuple[Part, ...]
    faults: tuple[Fault, ...]
    largest: tuple[tuple[TensorRecord, Component], ...]
    ends: tuple[EndMatrix, ...]
    second: Second | None
    setup: Setup
    unsure: tuple[tuple[str, str], ...] = ()
    partial: bool = False
    note: str = ""

    @property
    def unique(self) -> int:
        return self.stored - self.wasted


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that one tensor owns; those that no tensor sees have none."""

    file: str
    kind: Component
    nbytes: int
    wasted: int
    elements: int
    tensor: TensorRecord | None = None


def measure(report: Report, setup: Setup, *, top: int = 0, source: str = "weights", note: str = "") -> Size:
    """Add up the report of one target."""
    checkpoint = report.checkpoint or Checkpoint(target=report.target, editions=())
    ends = dict(report.ends)
    pieces = list(_pieces(checkpoint, ends, _wasted(report.findings)))
    unread = bool(report.skipped or checkpoint.unreadable or checkpoint.unread)
    return Size(
        target=report.target,
        source=source,
        revision=report.revision,
        tensors=report.totals.tensors,
        parameters_stored=report.totals.parameters_stored,
        parameters_unique=report.totals.parameters_unique,
        stored=report.totals.nbytes_stored,
        wasted=report.totals.nbytes_wasted,
        components=tuple(_parts(pieces, lambda piece: piece.kind.value)),
        layers=tuple(_layers(pieces)),
        dtypes=tuple(_parts(pieces, lambda piece: piece.tensor.dtype if piece.tensor else "")),
        files=tuple(_parts(pieces, lambda piece: piece.file)),
        faults=tuple(_faults(report.findings)),
        largest=_largest(pieces, top),
        ends=tuple(_ends(report, checkpoint, ends, {piece.tensor.view: piece.wasted for piece in pieces if piece.tensor and piece.wasted})),
        second=_second(report, setup),
        setup=setup,
        unsure=tuple((skip.subject, skip.reason) for skip in (*report.skipped, *report.not_compared)),
        partial=unread,
        note=note,
    )


def _wasted(findings: Iterable[Finding]) -> dict[tuple[str, str], int]:
    """{(file, what): bytes}, as the report's total counts them: what two findings name is wasted once."""
    waste = {(file, what): nbytes for finding in findings for file, what, nbytes in finding.waste}
    whole = {file for file, what in waste if what == "all"}
    return {(file, what): nbytes for (file, what), nbytes in waste.items() if what == "all" or file not in whole}


def _pieces(checkpoint: Checkpoint, ends: dict[str, str], waste: dict[tuple[str, str], int]) -> Iterator[_Piece]:
    """Every stored byte once. A file that is wasted as a whole (a second format) wastes all of its pieces."""
    views: dict[tuple[str, str], list[TensorRecord]] = defaultdict(list)
    sizes: dict[tuple[str, str], int] = {}
    whole = {file for file, what in waste if what == "all"}
    touched = {file for file, _ in waste}
    for file in checkpoint.files:
        for storage in file.storages:
            sizes[storage.file, storage.ident] = storage.nbytes
        for tensor in file.tensors:
            views[tensor.storage.file, tensor.storage.ident].append(tensor)
        for begin, end in file.dead:
            lost = end - begin if file.name in whole else waste.get((file.name, f"dead {begin}"), 0)
            yield _Piece(file.name, Component.DEAD, end - begin, lost, 0)
    for (name, ident), nbytes in sizes.items():
        tensors = views.get((name, ident), [])
        if len(tensors) == 1 and tensors[0].nbytes == nbytes and name not in touched:
            # nearly always, and there may be 70,000
            tensor = tensors[0]
            yield _Piece(name, component(tensor.name, tensor.part, ends), nbytes, 0, tensor.numel, tensor)
            continue
        at = unseen = 0
        # an embedding that a head shares is the embedding's
        kinds = [(component(tensor.name, tensor.part, ends), tensor) for tensor in tensors]
        if len(kinds) > 1:
            kinds.sort(key=lambda entry: (extent(entry[1])[0], entry[0] is Component.HEAD))
        seen = set()
        for kind, tensor in kinds:
            begin, end = extent(tensor)
            own = max(0, min(end, nbytes) - max(at, begin))
            unseen += max(0, min(begin, nbytes) - at)
            at = max(at, min(end, nbytes))
            elements = 0 if tensor.view in seen else tensor.numel
            seen.add(tensor.view)
            lost = own if name in whole else waste.get((name, f"{ident}+{tensor.offset}"), 0) if name in touched else 0
            yield _Piece(name, kind, own, min(own, lost), elements, tensor)
        unseen += nbytes - at
        if unseen or not tensors:
            slack = waste.get((name, f"slack of {ident}"), 0) if tensors else waste.get((name, f"{ident}+0"), 0)
            yield _Piece(name, Component.DEAD, unseen, unseen if name in whole else min(unseen, slack), 0)


def _parts(pieces: list[_Piece], key: Callable[[_Piece], str]) -> Iterator[Part]:
    """Largest first."""
    sums: dict[str, list[int]] = {}
    for piece in pieces:
        entry = sums.setdefault(key(piece), [0, 0, 0, 0])
        entry[0] += piece.tensor is not None
        entry[1] += piece.elements
        entry[2] += piece.nbytes
        entry[3] += piece.wasted
    for name, (tensors, elements, stored, wasted) in sorted(sums.items(), key=lambda entry: (-entry[1][2], entry[0])):
        if tensors or stored:
            yield Part(name=name, tensors=tensors, elements=elements, stored=stored, wasted=wasted)


def _layers(pieces: list[_Piece]) -> Iterator[Layers]:
    """Runs of equally large layers, in the order of their lists."""
    sums: dict[str, dict[int, list[int]]] = {}
    for piece in pieces:
        found = stack(piece.tensor.name) if piece.tensor and not piece.tensor.part else None
        if found:
            entry = sums.setdefault(found[0], {}).setdefault(found[1], [0, 0])
            entry[0] += piece.nbytes
            entry[1] += piece.elements
    for name, layers in sums.items():
        run: list[int] = []
        for number in sorted(layers):
            if run and (number != run[-1] + 1 or layers[number] != layers[run[0]]):
                yield _run(name, run, layers[run[0]])
                run = []
            run.append(number)
        yield _run(name, run, layers[run[0]])


def _run(name: str, numbers: list[int], sums: list[int]) -> Layers:
    return Layers(name=name, first=numbers[0], last=numbers[-1], each=sums[0], elements=sums[1])


def _faults(findings: Iterable[Finding]) -> Iterator[Fault]:
    sums: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        if finding.wasted_bytes:
            entry = sums.setdefault((finding.code, finding.rule), [0, 0])
            entry[0] += 1
            entry[1] += finding.wasted_bytes
    for (code, rule), (count, wasted) in sorted(sums.items(), key=lambda entry: (-entry[1][1], entry[0])):
        yield Fault(code=code, rule=rule, findings=count, wasted=wasted)


def _largest(pieces: list[_Piece], top: int) -> tuple[tuple[TensorRecord, Component], ...]:
    if not top:
        return ()
    tensors = [(piece.tensor, piece.kind) for piece in pieces if piece.tensor is not None and piece.nbytes]
    tensors.sort(key=lambda entry: (-entry[0].nbytes, entry[0].name, entry[0].file))
    return tuple(tensors[:top])


def _ends(report: Report, checkpoint: Checkpoint, ends: dict[str, str], waste: dict[View, int]) -> Iterator[EndMatrix]:
    """The matrices at the ends of the first edition, a packed one with all of its tensors; biases and norms are no matrices."""
    edition = checkpoint.primary
    unique = report.totals.nbytes_unique
    sums: dict[tuple[str, str], list[TensorRecord]] = {}
    views = set()
    for tensor in edition.weights if edition else ():
        role = ends.get(tensor.name)
        if role and tensor.view not in views:
            views.add(tensor.view)
            # `lm_head.weight`, `lm_head.weight_scale`, `lm_head.qweight` are one matrix
            sums.setdefault((tensor.name.rpartition(".")[0] or tensor.name, role), []).append(tensor)
    shared = any(tie.claim == "tied" or tie.relation == "same storage" for tie in report.ties if tie.role == "embedding-head")
    both = len({role for _, role in sums}) == 1 and shared
    for (_, role), tensors in sums.items():
        main = max(tensors, key=lambda tensor: tensor.nbytes)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        wasted = sum(waste.get(tensor.view, 0) for tensor in tensors)
        yield EndMatrix(
            name=main.name,
            role="embedding and head" if both else role,
            nbytes=nbytes,
            elements=main.numel,
            wasted=wasted,
            share=(nbytes - wasted) / unique if unique > 0 else 0.0,
        )


def _second(report: Report, setup: Setup) -> Second | None:
    """About the first tie of embedding and head whose claim and shape are known."""
    for tie in report.ties:
        if _counts(tie):
            rows, width = tie.shape
            return Second(tied=tie.claim == "tied", rows=rows, width=width, why=tie.claim_source, cost=footprint(rows, width, setup))
    return None


def _counts(tie: Tie) -> bool:
    return tie.role == "embedding-head" and tie.trainable and tie.claim in ("tied", "untied") and len(tie.shape) == 2 and min(tie.shape) > 0
