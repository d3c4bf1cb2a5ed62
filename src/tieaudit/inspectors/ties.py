"""Family 0: ties that the claim asks for, against what is stored. Which rule speaks is decided by the table in verdicts.py."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoint import TensorRecord, Wiring
from ..kinds import Evidence, Kind, weakest
from ..report import Severity
from ..text import exactly, listed
from . import advice
from .aliases import contradicted
from .rule import Case, Problem, place, places, rule, wasted
from .verdicts import Situation, lone_ends, speaking


def _named(situation: Situation) -> tuple[str, str]:
    """(the name that holds the matrix, the other name)."""
    holder = situation.holder.name if situation.holder else situation.group.canonical
    return holder, situation.name


def _readers(situation: Situation) -> str:
    """A clause on transformers 4 where it reads the same config otherwise."""
    if situation.tied is None or situation.tied_v4 is None or situation.tied == situation.tied_v4:
        return ""
    return f"; transformers 4 {'would tie' if situation.tied_v4 else 'would not tie'} them"


def _proved(evidence: Evidence, advice: str) -> str:
    """Nothing is to be left out on the word of samples."""
    return advice if evidence is Evidence.PROVED else f"prove it first (--verify full); then {advice}"


def _where(case: Case, situation: Situation) -> str:
    """The edition, where there is more than one."""
    return f"{situation.edition.name}: " if sum(1 for _ in case.judged) > 1 else ""


@rule(1, Severity.ERROR)
def diverged_tie(case: Case) -> Iterator[Problem]:
    """The config ties two names, but the file holds two different matrices.

    What it does: compares the stored matrices of every tie that the architecture and the config ask for.
    Why is this bad: transformers 4, SGLang and mlx-lm throw the second matrix away without a word, transformers 5 keeps both and
    warns. The trained head (or embedding) is lost for a part of the readers.
    Use instead: keep both and set `tie_word_embeddings` to false, or keep one on purpose. Neither side may be deleted unseen.
    A warning if only the last rows (padding) differ, a note in a graph (ONNX, OpenVINO, CTranslate2), which reads both as they are.
    """
    for situation in speaking(case, "diverged-tie"):
        # different matrices that transformers 4 never tied, under a flag that it does obey: ambiguous-flag, or no fault at all
        if situation.tied_v4 is False:
            continue
        holder, name = _named(situation)
        relation = situation.relation
        if relation is None or situation.holder is None or situation.second is None:
            continue
        drifted = relation.kind is Kind.NEAR and "cosine" in relation.detail
        resaved = advice.saved_by_5(case, situation)
        engines = advice.engines(case, situation)
        yield Problem(
            message=f"{_where(case, situation)}{name} differs from {holder}, and both are one matrix "
            f"by the claim ({situation.group.source}): {relation.detail}" + (f"; {engines}" if engines else ""),
            tensors=places(situation.holder, situation.second),
            evidence=relation.evidence,
            severity=situation.verdict.severity,
            cause="one of the two was trained while they were not shared in memory, "
            "as with an adapter's modules_to_save merged by PEFT ≤ 0.18"
            if drifted
            else "transformers 5 loaded and saved a file whose flag was false: it writes true, and scale_decoder_outputs false"
            if resaved
            else None,
            fix="set the flag to false in config.json: transformers 4 then keeps both too, and nothing changes for 5"
            if resaved
            else f"{advice.keep_both(case, situation)}; keep one: store only {holder}, and what {name} learned is lost"
            if situation.group.wiring is Wiring.CONFIG
            else f"export again from the checkpoint that {'has one matrix' if situation.tied else 'is right'}",
        )


@rule(2, Severity.WARNING)
def duplicate_tie(case: Case) -> Iterator[Problem]:
    """A tied matrix is stored twice, byte for byte.

    What it does: finds a second copy of a matrix that the config ties, or that only a tie can have made equal.
    Why is this bad: the file carries the same bytes twice, some readers (vLLM, mlx-lm, FSDP) refuse the second name, and the copies
    drift apart as soon as something changes one of them.
    Use instead: save with `save_pretrained`, or leave the alias out of the state dict; readers tie it again.
    """
    groups: dict[tuple[str, str], list[Situation]] = {}
    for situation in speaking(case, "duplicate-tie"):
        groups.setdefault((situation.edition.name, _named(situation)[0]), []).append(situation)
    for (_, holder), group in groups.items():
        first = group[0]
        copies = [situation.second for situation in group if situation.second]
        if first.holder is None:
            continue
        names = listed(copy.name for copy in copies)
        total = exactly(sum(copy.nbytes for copy in copies))
        evidence = weakest(situation.relation.evidence for situation in group if situation.relation)
        engines = advice.engines(case, first, harm=True)
        in_file = first.edition.format.startswith("torch") and any(copy.main.file == first.holder.main.file for copy in copies)
        yield Problem(
            message=f"{_where(case, first)}{names} repeat{'s' * (len(copies) == 1)} {holder} ({total} wasted)"
            + (f"; {engines}" if engines else ""),
            tensors=places(first.holder, *copies),
            waste=tuple(waste for copy in copies for waste in wasted(*copy.parts)),
            evidence=evidence,
            cause="the values were copied or cast one by one before torch.save, so that every name got a storage of its own"
            if in_file
            else None,
            fix=_proved(
                evidence,
                first.group.advice or f"leave {names} out of the file: readers take {holder} for {'it' if len(copies) == 1 else 'them'}"
                if first.tied or first.group.advice
                else f"tie them in the model's config, then leave {names} out of the file",
            ),
        )


@rule(3, Severity.ERROR)
def missing_head(case: Case) -> Iterator[Problem]:
    """The config does not tie the head, and the head is not stored.

    What it does: looks for the output head of an architecture whose config says that it is a matrix of its own.
    Why is this bad: transformers starts with a random head, vLLM and SGLang with uninitialised memory.
    Use instead: set `tie_word_embeddings` to true if the model was trained tied, else restore the head from the training run.
    """
    told = set()
    for situation in speaking(case, "missing-head"):
        if _is_embedding(situation) or (situation.edition.name, situation.name) in told:
            continue  # missing-embedding speaks, or it is absent from two groups
        told.add((situation.edition.name, situation.name))
        _, name = _named(situation)
        what = situation.group.absent or ("starts with zeros" if name.endswith("bias") else "starts with random values")
        yield Problem(
            message=f"{_where(case, situation)}{name} is not stored and {what} ({situation.group.source}{_readers(situation)})",
            tensors=places(situation.holder) if situation.holder else (),
            cause=advice.shared_by_4(situation),
            fix=situation.group.advice or advice.restored(case, situation),
        )
    yield from _lone(case, heads=True)


def _lone(case: Case, *, heads: bool) -> Iterator[Problem]:
    for edition_case, name, is_head in lone_ends(case):
        if is_head is heads:
            yield Problem(
                message=f"{name} is not stored and starts with random values ({edition_case.claim.architecture} shares it with nothing)",
                fix="restore it from the training run",
            )


@rule(4, Severity.ERROR)
def missing_embedding(case: Case) -> Iterator[Problem]:
    """A matrix that the model cannot do without is not stored.

    What it does: looks for the embedding (of the encoder, the decoder, or both) when no stored name can stand in for it.
    Why is this bad: readers start with a random embedding.
    Use instead: restore it, or set the tie flag if it was one matrix with a name that is stored.
    """
    for situation in speaking(case, "missing-embedding"):
        holder = situation.holder
        yield Problem(
            message=f"{_where(case, situation)}{situation.name} is not stored"
            + (f", only {holder.name}" if holder else " under any of its names")
            + f" ({situation.group.source}{_readers(situation)})",
            tensors=places(holder) if holder else (),
            cause=_alias_note(situation),
            fix=situation.group.advice or "save again from the model in memory; if the two were one matrix there, set the flag to true",
        )
    for situation in speaking(case, "missing-head"):
        if _is_embedding(situation):
            yield Problem(
                message=f"{_where(case, situation)}{situation.name} is not stored and starts with random values "
                f"({situation.group.source}{_readers(situation)})",
                tensors=places(situation.holder) if situation.holder else (),
                cause=advice.shared_by_4(situation),
                fix=advice.restored(case, situation),
            )
    yield from _lone(case, heads=False)
    for file, _, lost in contradicted(case):
        if lost:
            yield Problem(
                message=f"{file.name}: {listed(f'{alias} is noted as {kept}' for alias, kept in lost)}, and neither name is stored",
                fix="restore it from the training run",
            )


def _shape(tensor: TensorRecord) -> str:
    return " × ".join(f"{dim:,}" for dim in tensor.shape) or "a scalar"


def _is_embedding(situation: Situation) -> bool:
    """The absent name is an input embedding: one of several (BART), or the only one where the head's name is the canonical one."""
    return situation.group.role == "embedding" or situation.group.canonical == situation.head != situation.name


def _alias_note(situation: Situation) -> str | None:
    if situation.holder and situation.edition.aliases.get(situation.name) == situation.holder.name:
        return "safetensors.torch.save_model, which keeps the alphabetically first of the names that share a storage"
    return None


@rule(5, Severity.WARNING)
def inverted_alias(case: Case) -> Iterator[Problem]:
    """A tied matrix is stored under the head's name only.

    What it does: notices that the embedding's name is absent and the head's is there.
    Why is this bad: transformers 4.54 to 4.57 leave both on the meta device and fail at the first forward; vLLM starts with an
    uninitialised embedding; most other engines refuse the file. transformers 5 reads it.
    Use instead: store the matrix under the embedding's name.
    """
    for situation in speaking(case, "inverted-alias"):
        if situation.holder is None:
            continue
        yield Problem(
            message=f"{_where(case, situation)}only {situation.holder.name} is stored, not {situation.name} whose alias it is: "
            + (advice.engines(case, situation) or "transformers 5 reads it, most other readers do not"),
            tensors=places(situation.holder),
            cause=_alias_note(situation),
            fix=f"store it as {situation.name} and leave {situation.holder.name} out",
        )


@rule(6, Severity.WARNING)
def unwanted_alias(case: Case) -> Iterator[Problem]:
    """Two names are one in the file, but separate by the config or by their shapes.

    What it does: compares the storages of torch files with the claim, and DeepSpeed's notes on shared parameters with their shapes.
    Why is this bad: after loading, two Parameters share one memory; the next `save_pretrained` drops one name, and the reload
    starts with a random head.
    Use instead: set the flag to true, or clone one side before saving.
    """
    for situation in speaking(case, "unwanted-alias"):
        holder, name = _named(situation)
        yield Problem(
            message=f"{_where(case, situation)}{name} and {holder} are one storage, but untied by the claim ({situation.group.source}): "
            "loading and saving loses one of them",
            tensors=places(situation.holder, situation.second) if situation.holder and situation.second else (),
            fix="set the flag to true in config.json if they are meant to be one; else clone one before saving",
        )
    for file, apart, _ in contradicted(case):
        if apart:
            yield Problem(
                message=f"{file.name}: {listed(f'{alias.name} ({_shape(alias)})' for alias, _ in apart)} "
                f"{'is' if len(apart) == 1 else 'are'} noted as {listed(dict.fromkeys(holder.name for _, holder in apart), 2)} "
                f"({_shape(apart[0][1])}), whose shape is another: who follows the note overwrites what was trained",
                tensors=tuple(place(alias) for alias, _ in apart[:50]),
                severity=Severity.ERROR,
                cause="DeepSpeed of spring 2023, which took every placeholder of ZeRO-3 for one tensor" if len(apart) > 1 else None,
                fix="take these names out of shared_params before zero_to_fp32.py runs",
            )


@rule(7, Severity.WARNING)
def cast_copy(case: Case) -> Iterator[Problem]:
    """A tied matrix is stored twice in two dtypes.

    What it does: finds that one matrix is the other, cast.
    Why is this bad: the bytes are wasted, and whether readers see one matrix or two depends on the dtype that they load in.
    Use instead: keep the one in the model's dtype.
    """
    for situation in speaking(case, "cast-copy"):
        holder, name = _named(situation)
        if situation.relation is None or situation.holder is None or situation.second is None:
            continue
        relation = situation.relation
        both = (situation.holder, situation.second)
        spare = [matrix for matrix in both if matrix.name == relation.redundant]
        kept = [matrix for matrix in both if matrix not in spare]
        waste = f" ({exactly(spare[0].nbytes)} wasted)" if spare else ""
        loaded = f"; {case.config.file} asks for {case.config.dtype}" if case.config and case.config.dtype else ""
        canonical = situation.group.canonical
        rename = f" under the name {canonical}" if kept[0].name == situation.head != canonical else ""
        yield Problem(
            message=f"{_where(case, situation)}{holder} and {name} are one matrix in two dtypes: {relation.detail}{waste}{loaded}",
            tensors=places(*both),
            waste=tuple(waste for matrix in spare for waste in wasted(*matrix.parts)),
            evidence=relation.evidence,
            fix=_proved(relation.evidence, f"keep {kept[0].name}{rename} and leave {spare[0].name} out")
            if spare
            else "neither holds the other exactly: keep the one that the model was trained with",
        )


@rule(8, Severity.ERROR)
def transposed_head(case: Case) -> Iterator[Problem]:
    """The head is stored as the transpose of the embedding.

    What it does: compares shapes and values with rows and columns swapped.
    Why is this bad: the shapes do not fit the architecture; readers refuse the file or start with a random head.
    Use instead: store the head as (vocabulary, width), or leave it out if it is tied.
    """
    for situation in speaking(case, "transposed-head"):
        holder, name = _named(situation)
        if situation.relation is None or situation.holder is None or situation.second is None:
            continue
        yield Problem(
            message=f"{_where(case, situation)}{name} is {holder} transposed ({situation.relation.detail})",
            tensors=places(situation.holder, situation.second),
            evidence=situation.relation.evidence,
            fix=f"leave {name} out (tied), or store it as {tuple(situation.holder.main.shape)}",
        )


@rule(9, Severity.NOTE)
def untied_but_equal(case: Case) -> Iterator[Problem]:
    """Two matrices are equal although the config keeps them apart.

    What it does: compares head and embedding of an untied model.
    Why is this worth knowing: only a tie makes two trained matrices equal, so the flag may be wrong; or the model is new.
    Use instead: if they are meant to be one, set the flag to true first; only then can the head be left out.
    """
    for situation in speaking(case, "untied-but-equal"):
        holder, name = _named(situation)
        if situation.relation is None or situation.holder is None or situation.second is None or len(situation.second.main.shape) < 2:
            continue
        yield Problem(
            message=f"{_where(case, situation)}{name} equals {holder}, but they are {situation.group.source}; "
            f"as one matrix they would save {exactly(situation.second.nbytes)}",
            tensors=places(situation.holder, situation.second),
            evidence=situation.relation.evidence,
            fix=situation.group.advice or f"if they are meant to be one: set the flag to true, then {name} can be left out",
        )


@rule(10, Severity.NOTE)
def scaled_copy(case: Case) -> Iterator[Problem]:
    """The head is the embedding times one constant.

    What it does: fits one factor to the sampled rows.
    Why is this worth knowing: a logit or embedding scale was folded into one side (MiniCPM, muP), so the two must stay untied.
    """
    for situation in speaking(case, "scaled-copy"):
        if situation.relation is None or situation.holder is None or situation.second is None:
            continue
        yield Problem(
            message=f"{_where(case, situation)}{situation.relation.detail}: a scale folded into one side, so the two must stay untied",
            tensors=places(situation.holder, situation.second),
            evidence=situation.relation.evidence,
        )


@rule(11, Severity.WARNING)
def unusual_alias(case: Case) -> Iterator[Problem]:
    """A shared matrix is stored under a lesser alias, not under its own name.

    What it does: notices that the canonical name is absent and an alias other than the head holds the matrix.
    Why is this bad: transformers 4 leaves parts of some models (BART) on the meta device; other engines look for the usual name.
    Use instead: store it under the canonical name.
    """
    for situation in speaking(case, "unusual-alias"):
        if situation.holder is None:
            continue
        yield Problem(
            message=f"{_where(case, situation)}{situation.holder.name} is stored, not {situation.name} whose alias it is: "
            "not every reader finds it",
            tensors=places(situation.holder),
            fix=f"store it as {situation.name}",
        )


RULES = (
    diverged_tie, duplicate_tie, missing_head, missing_embedding, inverted_alias, unwanted_alias, cast_copy, transposed_head,
    untied_but_equal, scaled_copy, unusual_alias,
)  # fmt: skip
