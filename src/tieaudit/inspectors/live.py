"""Family 8: what a model in memory shares, and copies that a training run keeps in step. The data is in `alive.py`; no torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..alive import Live, LiveName, LiveTie, Sharing, Trial
from ..kinds import Evidence
from ..report import Severity, TensorPlace
from ..text import listed
from .rule import Case, Problem, places, rule
from .verdicts import speaking

_ONE_MEMORY = (Sharing.SAME_PARAMETER, Sharing.SAME_STORAGE)


def _names(live: Live, names: Iterable[str]) -> list[LiveName]:
    by_name = {name.name: name for name in live.names}
    return [by_name[name] for name in names if name in by_name]


def _places(live: Live, names: Iterable[str]) -> tuple[TensorPlace, ...]:
    return tuple(TensorPlace(name.name, "memory", None, name.nbytes) for name in _names(live, names))


def _sides(tie: LiveTie) -> tuple[str, str]:
    """(the names of the first Parameter, the names of the others)."""
    first, *others = tie.parts or (tie.names[:1], tie.names[1:])
    return " = ".join(first), listed(name for part in others for name in part)


def _parameters(tie: LiveTie) -> str:
    count = len(tie.parts) or len(tie.names)
    return {2: "two Parameters", 3: "three Parameters"}.get(count, f"{count} Parameters")


@rule(801, Severity.ERROR)
def lost_alias(case: Case) -> Iterator[Problem]:
    """Names that should be one Parameter are several.

    What it does: compares the identity of every parameter with the ties that the model's class, its config or its shapes ask for.
    Why is this bad: each gets the gradient of its own use only, they drift apart, and a save writes two matrices or drops a trained one.
    `to_empty()`, `load_state_dict(assign=True)`, copying values instead of assigning the Parameter, sharding or quantising one side do it.
    Use instead: assign the Parameter itself (`head.weight = embedding.weight`), or call `model.tie_weights()`, after the last such step.
    A warning where only shapes and values suggest the tie, on the meta device, and where an adapter or a quantiser parted the two.
    """
    live = case.live
    for tie in live.ties if live else ():
        if live is None or not tie.expected or tie.sharing in _ONE_MEMORY:
            continue
        kept, parted = _sides(tie)
        known = _names(live, tie.names)
        # beside a file that was read, its bytes are what counts
        equal = tie.sharing is Sharing.EQUAL_VALUES and not tie.detail and not case.editions
        waste = [("memory", name.name, name.nbytes) for name in _names(live, (part[0] for part in tie.parts[1:]))] if equal else []
        yield Problem(
            message=_lost(tie, known, kept, parted),
            tensors=_places(live, tie.names),
            waste=tuple(waste),
            evidence=_evidence(tie),
            severity=_how_bad(tie, known),
            cause=tie.apart_by or None,
            fix=_to_tie(tie, kept, parted),
        )


def _lost(tie: LiveTie, known: list[LiveName], kept: str, parted: str) -> str:
    if tie.certain:
        return f"{parted} and {kept} should be one Parameter ({tie.expected}) and are {_parameters(tie)}: {_seen(tie, known)}"
    return f"{parted} and {kept} ({tie.expected}) are {_parameters(tie)}: {_seen(tie, known)}"


def _seen(tie: LiveTie, known: list[LiveName]) -> str:
    where = " in all elements that were sampled" if tie.sampled else " in every element"
    if tie.sharing is Sharing.EQUAL_VALUES and not tie.detail:
        later = "they will drift apart at the first step" if any(name.trains for name in known) else "held twice in memory"
        return f"equal{where}, but {later}"
    if tie.sharing is Sharing.EQUAL_VALUES:
        return tie.detail
    if tie.sharing is Sharing.APART:
        return f"their values differ{f' ({tie.detail})' if tie.detail else ''}"
    return tie.detail or "their values were not compared"


def _how_bad(tie: LiveTie, known: list[LiveName]) -> Severity:
    if not tie.certain and not any(name.trains for name in known) and tie.sharing is Sharing.EQUAL_VALUES:
        return Severity.NOTE
    waiting = bool(known) and all(name.device == "meta" for name in known)
    return Severity.WARNING if not tie.certain or tie.apart_by or waiting else Severity.ERROR


def _evidence(tie: LiveTie) -> Evidence:
    if tie.sharing is Sharing.NOT_COMPARED:
        return Evidence.HEADER
    return Evidence.SAMPLED if tie.sampled else Evidence.PROVED


def _to_tie(tie: LiveTie, kept: str, parted: str) -> str:
    first = kept.split(" = ", 1)[0]
    if tie.apart_by.startswith("PEFT"):
        return "let PEFT tie the copies (ensure_weight_tying=True), or merge with PEFT 0.19 or later, which sets the flag to false"
    if tie.apart_by:
        return "treat both or neither; to keep them apart, set tie_word_embeddings to false in the config before saving"
    if tie.declared and not tie.certain and tie.sharing is Sharing.EQUAL_VALUES and not tie.detail:
        return f"call model.tie_weights(); in the file, store {first} only"
    if tie.declared and not tie.certain:
        return (
            "set tie_word_embeddings to false in the config before saving; else transformers 4 drops one of the two when it loads the file"
        )
    choice = f"; what {parted} holds is then lost" if tie.sharing is not Sharing.EQUAL_VALUES else ""
    if tie.declared:
        return f"call model.tie_weights(), which keeps {first}{choice}"
    if not tie.certain:
        return f"if they are meant to be one, assign the Parameter itself, {parted} = {first}: a copy of its values is no tie"
    return f"assign the Parameter itself, {parted} = {first}: a copy of its values is no tie{choice}"


@rule(802, Severity.WARNING)
def half_alias(case: Case) -> Iterator[Problem]:
    """Two Parameters stand over one memory.

    What it does: compares the storages behind all parameters, with offsets and strides.
    Why is this bad: the values stay equal, but each Parameter gets the gradient of its own use only, an optimizer keeps two states and
    moves the memory twice, gradient clipping counts them apart, and a cast or a move to another device makes them two.
    Use instead: one Parameter under both names (`head.weight = embedding.weight`). A note if none of them is trained.
    """
    live = case.live
    for tie in live.ties if live else ():
        if live is None or tie.sharing is not Sharing.SAME_STORAGE:
            continue
        known = _names(live, tie.names)
        if not any(not name.buffer for name in known):
            continue
        trained = any(name.trains for name in known)
        kept, parted = _sides(tie)
        exact = not tie.detail
        yield Problem(
            message=f"{kept} and {parted} are {_parameters(tie)} over one memory{'' if exact else f' ({tie.detail})'}: "
            + ("each gets a gradient of its own, and a cast or a move parts them" if trained else "a cast or a move parts them"),
            tensors=_places(live, tie.names),
            severity=None if trained else Severity.NOTE,
            cause="load_state_dict(assign=True) with an aliased state dict, or a .bin file whose names share a storage" if exact else None,
            fix=f"call model.tie_weights(), or assign the Parameter itself, {parted} = {kept.split(' = ', 1)[0]}"
            if tie.declared and tie.expected
            else f"assign the Parameter itself, {parted} = {kept.split(' = ', 1)[0]}; or clone one side if they are meant to be two",
        )


@rule(803, Severity.ERROR)
def undeclared_tie(case: Case) -> Iterator[Problem]:
    """Names share memory, but the model's class or config does not tie them: saving loses one, or is refused.

    What it does: compares what is shared in memory with what the config ties, and with the aliases that the class declares.
    Why is this bad: `save_pretrained` writes an alias that the class declares once, whatever the config says, and the model that is loaded
    from it starts with random values there; sharing that the class does not declare makes it raise.
    Use instead: set `tie_word_embeddings` to true, or clone one side. A warning for models that transformers does not save.
    """
    live = case.live
    for tie in live.ties if live else ():
        if live is None or tie.expected or tie.sharing not in _ONE_MEMORY or (tie.declared is None and not tie.kept_apart):
            continue
        names = " and ".join(tie.names) if len(tie.names) < 4 else listed(tie.names)
        one = f"are {'one Parameter' if tie.sharing is Sharing.SAME_PARAMETER else 'one memory'}"
        others = tie.names[1:]
        if tie.declared:
            what = f"save_pretrained writes one of them, and a reload starts the other with random values ({tie.kept_apart})"
            fix = f"set tie_word_embeddings to true in the config if they are meant to be one; else give {listed(others)} a clone"
        elif tie.declared is False:
            what = "save_pretrained refuses to save them, as the class declares no such tie"
            fix = f"name {listed(others)} in the class's _tied_weights_keys, or give it a clone before saving"
        else:
            what = tie.kept_apart
            fix = f"say so in the config if they are meant to be one; else give {listed(others)} a clone"
        yield Problem(
            message=f"{names} {one}, but {what}",
            tensors=_places(live, tie.names),
            severity=Severity.WARNING if tie.declared is None else None,
            fix=fix,
        )


@rule(804, Severity.ERROR)
def repeated_optimizer_parameter(case: Case) -> Iterator[Problem]:
    """An optimizer holds a parameter twice, or one that is not in the model.

    What it does: compares the parameters in the optimizer's groups with those of the model, by object and by memory.
    Why is this bad: a parameter that is held twice is updated twice per step. One that the model does not have (any more) is updated for
    nothing, and the one that took its place never is.
    Use instead: tie, resize, wrap and load first, then build the optimizer from `model.parameters()`, which names a tied matrix once.
    A warning if the optimizer steps something else in place of a model's parameter, a note if it only holds more than the model.
    """
    live = case.live
    if live is None:
        return
    for repeated in live.repeated:
        names = " and ".join(repeated.names) if repeated.names else "a Parameter that is not in the model"
        groups = f"param group{'s' * (len(set(repeated.groups)) > 1)} {listed(str(group) for group in dict.fromkeys(repeated.groups))}"
        if repeated.two:
            count = "two" if len(repeated.names) == 2 else str(len(repeated.names))
            message = f"{names} are {count} Parameters over one memory, and the optimizer steps each ({groups})"
        else:
            verb = "stand" if len(repeated.names) > 1 else "stands"
            message = f"{names} {verb} {len(repeated.groups)} times in the optimizer ({groups}): each step updates it as often"
        yield Problem(
            message=message,
            tensors=_places(live, repeated.names),
            fix="make it one Parameter, then build the optimizer again" if repeated.two else "build the optimizer from model.parameters()",
        )
    for stray in live.strays:
        if stray.untrained:
            yield Problem(
                message=f"{listed(stray.untrained)} need{'s' * (len(stray.untrained) == 1)} a gradient and stand"
                f"{'s' * (len(stray.untrained) == 1)} in no param group; the optimizer steps {_strangers(stray.count)} of the same shape "
                f"({' × '.join(map(str, stray.shape))}) instead",
                tensors=_places(live, stray.untrained),
                severity=Severity.WARNING,
                cause="the optimizer was built before the model was tied, resized, wrapped or loaded",
                fix="build the optimizer again",
            )
    spare = sum(stray.count for stray in live.strays if not stray.untrained)
    if spare:
        yield Problem(
            message=f"the optimizer holds {_strangers(spare)}: another model's, or left over from before a tie or a resize",
            severity=Severity.NOTE,
        )


def _strangers(count: int) -> str:
    return "a Parameter that is not in the model" if count == 1 else f"{count:,} Parameters that are not in the model"


def _failed(case: Case, trial: Trial) -> Iterator[Problem]:
    live = case.live
    for tried in live.tried if live else ():
        if live is not None and tried.trial is trial and tried.held is False:
            yield Problem(message=tried.words, tensors=_places(live, tried.names), evidence=Evidence.PROVED)


@rule(805, Severity.ERROR)
def round_trip_loss(case: Case) -> Iterator[Problem]:
    """A save and a load do not give the model back.

    What it does: saves the model to a temporary folder, loads it, and compares ties and values.
    Why is this bad: what is lost here is lost in every checkpoint of the run.
    """
    yield from _failed(case, Trial.ROUND_TRIP)


@rule(806, Severity.ERROR)
def logits_mismatch(case: Case) -> Iterator[Problem]:
    """The logits are not those of the matrix that the tie names.

    What it does: runs the model on a few tokens and compares its logits with the last hidden state times the tied matrix.
    Why is this bad: the head reads another matrix than training, saving and loading believe.
    """
    yield from _failed(case, Trial.LOGITS)


@rule(807, Severity.ERROR)
def doubled_gradient(case: Case) -> Iterator[Problem]:
    """The gradient of a tied matrix is not the sum over its uses.

    What it does: runs one backward pass and compares the gradient of the matrix with those of its uses taken apart.
    Why is this bad: the matrix learns from one side only, or from one side twice.
    """
    yield from _failed(case, Trial.GRADIENT)


@rule(808, Severity.ERROR)
def replica_drift(case: Case) -> Iterator[Problem]:
    """Copies of one matrix that a training run keeps in step have drifted apart.

    What it does: compares the embedding with the copy that Megatron's last pipeline stage keeps for a tied head (tensor rank by tensor
    rank), with the copies of other stages, and the two names of a tied matrix in a distributed checkpoint.
    Why is this bad: each copy learned on its own. An export keeps one of them, so the model that comes out is none that was trained.
    Use instead: go back to a checkpoint in which they agree; a run that goes on from here drifts further.
    A warning if only the last rows (padding) differ.
    """
    several = sum(1 for _ in case.judged) > 1
    for situation in speaking(case, "replica-drift"):
        relation = situation.relation
        # matrices that transformers 4 never tied, under a flag that it does obey, are no copies
        if situation.tied_v4 is False or relation is None or situation.holder is None or situation.second is None:
            continue
        yield Problem(
            message=f"{f'{situation.edition.name}: ' if several else ''}{situation.second.name} differs from {situation.holder.name}, and "
            f"both are copies of one matrix ({situation.group.source}): {relation.detail}",
            tensors=places(situation.holder, situation.second),
            evidence=relation.evidence,
            severity=situation.verdict.severity,
            fix="go back to the last checkpoint in which the two agree, and look for what no longer sums their gradients",
        )


RULES = (
    lost_alias,
    half_alias,
    undeclared_tie,
    repeated_optimizer_parameter,
    round_trip_loss,
    logits_mismatch,
    doubled_gradient,
    replica_drift,
)
