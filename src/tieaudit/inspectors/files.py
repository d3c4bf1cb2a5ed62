"""Family 5: files that break their own format, and pickles that would run code."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoint import Problem as Fault
from ..report import Severity, TensorPlace
from ..text import listed, printable
from .rule import Case, Problem, rule


@rule(501, Severity.ERROR)
def malformed_file(case: Case) -> Iterator[Problem]:
    """A file breaks its own format.

    What it does: reads headers, directories and indexes strictly, and says what is wrong at which byte.
    Why is this bad: readers refuse the file, or, worse, read something else than was meant.
    The rest of the folder is still judged; absence of a tensor is then no fault.
    """
    for fault in case.faults:
        yield _told(fault)


def _told(fault: Fault) -> Problem:
    at = "" if fault.offset is None else f" (at byte {fault.offset:,})"
    tensors = tuple(TensorPlace(name, fault.file, fault.offset, 0) for name in fault.tensors[:50])
    return Problem(
        message=f"{fault.file}: {fault.what}{at}",
        tensors=tensors or (TensorPlace("", fault.file, fault.offset, 0),),
        fix="fetch or write the file again",
    )


@rule(502, Severity.WARNING)
def unsafe_pickle(case: Case) -> Iterator[Problem]:
    """A pickle names something that would run code when the file is loaded. Nothing of it was imported or run here.

    What it does: reads the opcodes and lists every global; those that only rebuild tensors and containers are silent.
    Why is this bad: `torch.load(weights_only=False)` executes it.
    Use instead: do not load the file; ask for safetensors. A note if only classes are named that `weights_only=True` refuses.
    """
    for file in case.checkpoint.files:
        calls = sorted(named.name for named in file.globals if named.danger == "call")
        unknown = sorted(named.name for named in file.globals if named.danger == "unknown")
        if calls:
            yield Problem(
                message=f"{file.name}: loading it as a pickle would call {listed(map(printable, calls), 6)}",
                tensors=(TensorPlace("", file.name, None, 0),),
                fix="do not load it with torch.load(weights_only=False); ask for safetensors",
            )
        elif unknown:
            yield Problem(
                message=f"{file.name}: names classes that torch.load(weights_only=True) refuses: {listed(map(printable, unknown), 6)}",
                tensors=(TensorPlace("", file.name, None, 0),),
                severity=Severity.NOTE,
            )


RULES = (malformed_file, unsafe_pickle)
