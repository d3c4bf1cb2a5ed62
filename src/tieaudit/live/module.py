"""This file holds what is public for training code: `audit_module`, `assert_tied`. torch is imported when they are called."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..alive import Live, Sharing
from ..errors import BrokenTie, OptionError
from ..inspectors.live import lost_alias
from ..report import Report
from . import reporting

if TYPE_CHECKING:
    from torch import nn


def audit_module(
    model: nn.Module,
    optimizer: Any = None,
    *,
    config: Any = None,
    probe: bool = True,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
) -> Report:
    """Judge a model in memory: are the names that should be one matrix one Parameter, and does a save keep what is shared?

    `optimizer`: whether it steps a parameter twice, or one that the model does not have. `config`: an object or a mapping with
    `tie_word_embeddings`, or the answer itself (True, False), for models that do not say it themselves.
    `probe`: change one bit through one name and look for it under the others (put back at once; plain tensors on the CPU only).
    `select` and `ignore` name rules as for `audit`. The model is not changed. DDP, FSDP, torch.compile and PEFT are seen through.
    """
    started = time.perf_counter()
    chosen, left = reporting.words(select), reporting.words(ignore)
    live, absent = look(model, optimizer, config=config, probe=probe)
    return reporting.report(live, chosen, left, absent, time.perf_counter() - started)


def look(
    model: nn.Module, optimizer: Any = None, *, config: Any = None, probe: bool = True, moment: str = "as it is"
) -> tuple[Live, tuple[tuple[str, str], ...]]:
    """(the model in memory as data, [(names that ties ask for and that are not there, reason)])."""
    from . import identity, ties
    from .optimizer import looked_at

    demand_module(model)
    found = identity.collect(model)
    seen, absent = ties.ties(model, found, config, probe=probe)
    repeated, strays = looked_at(found, optimizer) if optimizer is not None else ((), ())
    return Live(model=called(model), moment=moment, names=found.names, ties=seen, repeated=repeated, strays=strays), absent


def called(model: nn.Module) -> str:
    """The class, and what it is wrapped in: `DistributedDataParallel(LlamaForCausalLM)`."""
    inner = next((model._modules[leaf] for leaf in ("module", "_orig_mod", "_fsdp_wrapped_module") if leaf in model._modules), None)  # noqa: SLF001
    name = type(model).__name__
    return f"{name}({called(inner)})" if inner is not None and len(model._modules) == 1 else name  # noqa: SLF001


def assert_tied(model: nn.Module, *names: str, config: Any = None) -> None:
    """Raise BrokenTie (an AssertionError) unless these names are one Parameter, or, without names, every tie that should hold does.

    Without names something has to be known to be tied: a transformers model says it itself, for others give `config` or the names.
    OptionError for a name that the model does not have.
    """
    from . import identity, ties
    from .naming import LiveNames

    demand_module(model)
    if not names:
        _assert_all(model, config)
        return
    if len(names) == 1:
        raise OptionError("names", names[0], "give two names or more, or none for every tie that should hold")
    judge = ties.Judge(identity.collect(model), probe=False)
    known = LiveNames(judge.known)
    wanted = []
    for name in names:
        live = name if name in judge.known else known.find(name)
        if live is None:
            near = difflib.get_close_matches(name, known.all, 1, 0.4)
            computed = known.sources(name)
            what = (
                f"it is computed from {' and '.join(computed)}"
                if computed
                else f"did you mean {near[0]}?"
                if near
                else "see named_parameters()"
            )
            raise OptionError("names", name, what)
        wanted.append(live)
    broken = []
    for other in dict.fromkeys(wanted[1:]):
        relation = judge.relation(wanted[0], other)
        if relation.sharing is not Sharing.SAME_PARAMETER:
            detail = f" ({relation.detail})" if relation.detail else ""
            broken.append(f"{other} is not the Parameter {wanted[0]}: {relation.sharing.value}{detail}")
    if broken:
        raise BrokenTie(called(model), tuple(broken))


def _assert_all(model: nn.Module, config: Any) -> None:
    from .expect import pretrained

    live, _ = look(model, config=config, probe=False)
    wanted = [tie for tie in live.ties if tie.expected]
    broken = [tie for tie in wanted if not tie.held]
    if broken:
        report = reporting.report(live)
        told = {finding.message for finding in report.findings if finding.code in (lost_alias.code, "TIE802")}
        raise BrokenTie(live.model, tuple(sorted(told)) or tuple(f"{' and '.join(tie.names)}: {tie.sharing.value}" for tie in broken))
    if not wanted and not any(tie.kept_apart for tie in live.ties) and not pretrained(model):
        raise BrokenTie(live.model, ("nothing says which names should be one Parameter; give their names, or a config",))


def demand_module(model: Any) -> None:
    """OptionError for anything but a module."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise OptionError("model", type(model).__name__, "a torch.nn.Module; for a state dict there is audit_state_dict")
