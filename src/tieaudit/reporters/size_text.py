"""Where the bytes go, as a person reads it: a table of components, then layers, ends, what a tie costs or saves, and what is wasted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ..components import Component
from ..footprint import OPTIMIZERS, Setup
from ..names import Matrix
from ..size import Layers, Part, Second, Size
from ..text import listed, printable, printable_words, quantity, shape

LABEL = 11  # columns of `component  `
MAX_ROWS = 8
MAX_UNSURE = 3
MAX_TARGET = 44  # columns of a target in the table of several
NO_TENSOR = "no tensor"


def render(size: Size, width: int | None = None) -> str:
    """The size of one target; lines at most `width` columns wide (None: as long as they are)."""
    lines = [*_head(size), "", *_table(size, width)]
    for block in (_layers(size), _by("dtype", size.dtypes, size), _by("file", size.files, size), _ends(size), _training(size), _waste(size),
                  _largest(size)):  # fmt: skip
        lines += block
    lines += _unsure(size)
    return "\n".join(text for line in lines for text in _wrapped(line, width)) + "\n"


def _head(size: Size) -> Iterator[str]:
    files = len([part for part in size.files if part.name])
    where = f" in {files:,} file{'s' * (files != 1)}" if size.source == "weights" else ""
    parameters = f"{size.parameters_stored:,} parameters"
    if size.parameters_unique != size.parameters_stored:
        parameters += f" ({size.parameters_unique:,} unique)"
    stored = f"{quantity(size.stored)} stored, {quantity(size.wasted)} wasted" if size.source == "weights" else quantity(size.stored)
    commit = f" · commit {printable(size.revision)[:12]}" if size.revision else ""
    yield f"{printable(size.target)}   {stored} · {parameters} · {size.tensors:,} tensor{'s' * (size.tensors != 1)}{where}{commit}"
    if size.note:
        yield f"  {printable_words(size.note)}"


def _table(size: Size, width: int | None) -> Iterator[str]:
    """Columns that do not fit are left out, the least telling first."""
    columns: list[tuple[str, list[str]]] = [
        ("component", [part.name for part in size.components]),
        ("tensors", [f"{part.tensors:,}" for part in size.components]),
        ("parameters", [f"{part.elements:,}" for part in size.components]),
        ("stored" if size.source == "weights" else "bytes", [quantity(part.stored) for part in size.components]),
        ("share", [_share(part.stored, size.stored) for part in size.components]),
    ]
    if size.wasted:
        columns.append(("wasted", [quantity(part.wasted) if part.wasted else "" for part in size.components]))
    for droppable in ("tensors", "parameters", "share"):
        if width is not None and sum(max(map(len, (name, *cells))) + 2 for name, cells in columns) > width:
            columns = [column for column in columns if column[0] != droppable]
    rows = [[name for name, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    yield from _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(widths[at]) if at else cell.ljust(widths[at]) for at, cell in enumerate(row)).rstrip()


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else ""


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """An empty line, then the lines, the first with its label."""
    for number, line in enumerate(lines):
        if not number:
            yield ""
        yield f"  {'' if number else label:{LABEL}}{line}"


def _layers(size: Size) -> Iterator[str]:
    runs = sorted(size.layers, key=lambda run: -run.stored)[:MAX_ROWS]
    chosen = [run for run in size.layers if run in runs]
    lines = [_run(run, size) for run in chosen]
    if len(size.layers) > len(chosen):
        lines.append(f"and {len(size.layers) - len(chosen):,} more runs (all in --format json)")
    yield from _labelled("layers", lines)


def _run(run: Layers, size: Size) -> str:
    if run.first == run.last:
        return f"{printable(run.name)} {run.first}: {quantity(run.stored)}, {_share(run.stored, size.stored)}"
    return (
        f"{printable(run.name)} {run.first} to {run.last}: {quantity(run.each)} each, {quantity(run.stored)} together, "
        f"{_share(run.stored, size.stored)}"
    )


def _by(label: str, parts: tuple[Part, ...], size: Size) -> Iterator[str]:
    """One part is the whole, and says nothing beyond its name."""
    if len(parts) == 1:
        if label == "dtype":
            yield from _labelled(label, [printable(parts[0].name)])
        return
    lines = [
        f"{printable(part.name) or NO_TENSOR}: {quantity(part.stored)}, {_share(part.stored, size.stored)}"
        + (f", {quantity(part.wasted)} of it wasted" if part.wasted else "")
        for part in parts[:MAX_ROWS]
    ]
    if len(parts) > MAX_ROWS:
        lines.append(f"and {len(parts) - MAX_ROWS:,} more (all in --format json)")
    yield from _labelled(label, lines)


def _ends(size: Size) -> Iterator[str]:
    yield from _labelled("ends", (
        f"{printable(end.name)} is the {end.role}: {quantity(end.nbytes)}, "
        + (f"{quantity(end.wasted)} of it wasted" if end.wasted else f"{100 * end.share:.2f} % of the whole")
        for end in size.ends[:MAX_ROWS]
    ))  # fmt: skip


def _training(size: Size) -> Iterator[str]:
    second = size.second
    if second is None:
        return
    cost = second.cost
    parts = [f"weights {quantity(cost.weights)}", f"gradient {quantity(cost.gradient)}", f"optimizer {quantity(cost.optimizer)}"]
    if size.setup.master:
        parts.append(f"FP32 weights {quantity(cost.master)}")
    what = "untying would cost" if second.tied else "tying would save"
    lines = [
        f"{what} {quantity(cost.total)}{' on each rank' if size.setup.dp * size.setup.tp > 1 else ''}: {', '.join(parts)}",
        _setup(size.setup, second),
        printable_words(second.why),
    ]
    yield from _labelled("training", lines)


def _setup(setup: Setup, second: Second) -> str:
    words = ["BF16 weights and gradient", OPTIMIZERS[setup.optimizer][1]]
    if setup.zero:
        words.append(f"ZeRO {setup.zero} over {setup.dp:,} rank{'s' * (setup.dp != 1)}")
    if setup.tp > 1:
        words.append(f"tensor parallel {setup.tp:,}")
    if second.cost.rows != second.rows:
        words.append(f"{second.rows:,} rows filled up to {second.cost.rows:,}")
    return f"({second.rows:,} × {second.width:,}; {'; '.join(words)})"


def _waste(size: Size) -> Iterator[str]:
    lines = [
        f"{fault.code} {fault.rule}: {quantity(fault.wasted)} in {fault.findings:,} finding{'s' * (fault.findings != 1)}"
        for fault in size.faults
    ]
    if sum(fault.wasted for fault in size.faults) != size.wasted and lines:
        lines.append(f"{quantity(size.wasted)} in all: what several of them name counts once")
    yield from _labelled("wasted", lines)


def _largest(size: Size) -> Iterator[str]:
    yield from _labelled("largest", (
        f"{quantity(tensor.nbytes)}  {printable(tensor.name)}  {shape(Matrix(tensor.name, (tensor,)))}  {kind.value}"
        for tensor, kind in size.largest
    ))  # fmt: skip


def _unsure(size: Size) -> Iterator[str]:
    if not size.unsure:
        return
    yield ""
    yield "  Not read or not compared, so more may be wasted than is counted:"
    for subject, reason in size.unsure[:MAX_UNSURE]:
        yield f"  {printable(subject)}: {printable_words(reason)}"
    if len(size.unsure) > MAX_UNSURE:
        yield f"  and {len(size.unsure) - MAX_UNSURE:,} more (all in --format json)"


def render_table(sizes: Sequence[Size], errors: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """One line per target: its bytes, and the share of each component that any of them has."""
    there = {part.name for size in sizes for part in size.components}
    kinds = [kind.value for kind in Component if kind.value in there]
    waste = any(size.wasted for size in sizes)
    rows = [["target", "parameters", "bytes", *(["wasted"] if waste else []), *kinds]]
    for size in sizes:
        shares = {part.name: _share(part.stored, size.stored) for part in size.components}
        lost = [quantity(size.wasted) if size.wasted else ""] if waste else []
        rows.append([_short(printable(size.target)), f"{size.parameters_stored:,}", quantity(size.stored), *lost,
                     *(shares.get(kind, "") for kind in kinds)])  # fmt: skip
    while width is not None and len(rows[0]) > 3 and sum(max(len(row[at]) for row in rows) + 2 for at in range(len(rows[0]))) > width:
        rows = [row[:-1] for row in rows]
    lines = list(_aligned(rows)) if sizes else []
    lines += [f"no answer: {printable_words(message)}" for _, message in errors]
    unsure = [printable(size.target) for size in sizes if size.unsure]
    if unsure:
        lines.append(f"more may be wasted, not all was compared: {listed(unsure, 6)}")
    return "\n".join(lines) + "\n"


def _short(target: str) -> str:
    """The end tells more than the begin."""
    return target if len(target) <= MAX_TARGET else "…" + target[-MAX_TARGET + 1 :]


def _wrapped(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width or width < 2 * LABEL or not line.strip():
        return [line]
    indent = " " * (2 + LABEL) if line.startswith("  ") else "    "
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
                         drop_whitespace=True)  # fmt: skip
