"""Family 1: whether config, architecture and tokenizer agree with each other and with the rows that are stored."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Config
from ..kinds import Evidence, Kind
from ..report import Severity
from ..text import listed, printable
from .rule import Case, EditionCase, Problem, UntrainedRows, Vocabulary, place, places, rule
from .verdicts import Situation, Stored, situations


@rule(101, Severity.WARNING)
def ambiguous_flag(case: Case) -> Iterator[Problem]:
    """Two readers of the same config disagree on the tie, and for this file it matters.

    What it does: reads the flag as transformers 5 does (the class's own config, its own defaults) and as transformers 4 does (the
    text config, true when absent), and compares what each makes of the stored matrices.
    Why is this bad: the same file is right under one release and has a random or a lost head under the other.
    Use instead: write `tie_word_embeddings` with the same value at the top and in the nested text config.
    An error if one reading destroys a matrix; a note if the file was written by transformers 5 and only 4 misreads it.
    """
    for edition_case in case.judged:
        for key, value in edition_case.claim.bad_flags:
            yield Problem(
                message=f"{key} is {printable(value)}, not a boolean: transformers 5 refuses such a config, transformers 4 takes it for "
                f"{'false' if value in ('null', '0', repr('')) else 'true'}",
                severity=Severity.ERROR,
                fix="write true or false",
            )
    seen: dict[tuple[str, str, bool | None], list[Situation]] = {}
    for situation in situations(case):
        if None not in (situation.tied, situation.tied_v4) and situation.tied != situation.tied_v4:
            seen.setdefault((situation.edition.name, situation.group.source, situation.tied), []).append(situation)
    writers = {edition_case.edition.name: edition_case.claim.writer for edition_case in case.judged}
    for group in seen.values():
        yield from _disagreement(group, writers[group[0].edition.name])


def _disagreement(group: list[Situation], writer: int | None) -> Iterator[Problem]:
    written_by_5 = writer is not None and writer >= 5
    absent = [situation for situation in group if situation.stored is Stored.CANONICAL_ONLY]
    apart = [situation for situation in group if situation.differs]
    fix = "write tie_word_embeddings with one value, at the top and in the nested config"
    first = group[0]
    if first.tied and absent:
        names = listed(situation.name for situation in absent)
        yield Problem(
            message=f"transformers 5: {first.group.source}; transformers 4: not tied, so it starts with random values for {names}",
            severity=Severity.NOTE if written_by_5 or first.group.always else Severity.ERROR,
            tensors=places(first.holder) if first.holder else (),
            fix=None if first.group.always else fix,
        )
    if apart and not (first.tied and first.group.always):
        names = listed(situation.name for situation in apart)
        what = (
            f"{first.group.source}, but finds {names} different and keeps both; transformers 4: not tied"
            if first.tied
            else f"{first.group.source}; transformers 4: tied, so it drops {names} without a word"
        )
        yield Problem(
            message=f"transformers 5: {what}",
            severity=Severity.WARNING if first.tied else Severity.NOTE if written_by_5 else Severity.ERROR,
            tensors=tuple(place for situation in apart if situation.second for place in places(situation.second)),
            evidence=Evidence.SAMPLED,
            fix=fix,
        )


@rule(102, Severity.ERROR)
def row_mismatch(case: Case) -> Iterator[Problem]:
    """Embedding, head or bias has another number of rows than the config says, or than its partner has.

    What it does: compares rows with the size key of the family (`vocab_size`, `text_config.vocab_size`, plus the extra rows of
    families that have them, as mllama's 8).
    Why is this bad: readers refuse the file, or tokens have no row. Typical of a vocabulary that was resized on one side.
    Use instead: resize both sides (`resize_token_embeddings`) and save the config with them.
    """
    for edition_case in case.judged:
        claim, stored = edition_case.claim, edition_case.stored
        rows = dict(claim.rows)
        for group in (state.group for state in edition_case.ties):
            if group.role == "bias" and claim.head in rows and claim.head is not None:
                rows.update(dict.fromkeys(group.names, rows[claim.head]))
        told = set(_transposed(edition_case))
        for name, (count, key) in rows.items():
            matrix = stored.find(name, claim.other_names)
            if matrix is None or matrix.rows is None or matrix.main.numel == 0 or matrix.name in told:
                continue
            told.add(matrix.name)
            have = matrix.rows
            if have != count and have not in _other_sizes(case.config):
                yield Problem(
                    message=f"{matrix.name} has {have:,} rows, but {key} is {count:,}",
                    tensors=places(matrix),
                    fix="resize both ends to one number of rows and write it into config.json",
                )
        yield from _partners(edition_case, told)


def _other_sizes(config: Config | None) -> set[int]:
    """Vocabulary sizes under further keys: a decoder of its own (`decoder_vocab_size`), a target language (`tgt_vocab_size`)."""
    values = config.data.items() if config else ()
    return {value for key, value in values if key.endswith("_vocab_size") and type(value) is int}


def _transposed(edition_case: EditionCase) -> Iterator[str]:
    """Heads of which transposed-head speaks."""
    for state in edition_case.ties:
        for pair in state.pairs:
            if pair.relation.kind is Kind.TRANSPOSED:
                yield pair.second.name


def _partners(edition_case: EditionCase, told: set[str]) -> Iterator[Problem]:
    for state in edition_case.ties:
        if state.group.role != "embedding-head" or not edition_case.claim.exact:
            continue
        # untied ends may have rows of their own (CpmAnt's prompt tokens, ImageGPT's start token): only the size keys can tell
        for pair in (pair for pair in state.pairs if pair.tied):
            first, second = pair.first.shape, pair.second.shape
            if told >= {pair.first.name, pair.second.name} or 0 in (pair.first.main.numel, pair.second.main.numel):
                continue
            if len(first) == len(second) == 2 and first[1] == second[1] and first[0] != second[0]:
                yield Problem(
                    message=f"{pair.first.name} has {first[0]:,} rows, {pair.second.name} has {second[0]:,}",
                    tensors=places(pair.first, pair.second),
                    fix="resize both ends to one number of rows and write it into config.json",
                )


@rule(103, Severity.ERROR)
def tokenizer_overflow(case: Case) -> Iterator[Problem]:
    """The tokenizer names a token id for which the embedding has no row.

    What it does: compares the largest id in the tokenizer files with the rows of the stored embedding.
    Why is this bad: the first text with this token ends in an index error (on a GPU: in an assertion of the device).
    Use instead: resize the embedding, or remove the token.
    A note if added tokens have a row, but one that was never trained: a constant, or the same as another added token's.
    """
    if case.vocabulary is None:
        return
    for rows in case.untrained:
        yield _never_trained(rows, case.vocabulary)
    for edition_case in case.judged:
        claim = edition_case.claim
        matrix = edition_case.stored.find(claim.embedding, claim.other_names) if claim.embedding else None
        if not matrix or matrix.rows is None or matrix.main.numel == 0 or not claim.exact:
            continue
        if not matrix.packed and len(matrix.main.shape) != 2:
            continue
        have = matrix.rows
        if case.vocabulary.largest >= have:
            yield Problem(
                message=f"{case.vocabulary.file} gives {printable(case.vocabulary.token)!s} the id {case.vocabulary.largest:,}, "
                f"but {matrix.name} has {have:,} rows (ids 0 to {have - 1:,})",
                tensors=places(matrix),
                fix="resize_token_embeddings to the tokenizer's length, or remove the token",
            )
            return


def _never_trained(rows: UntrainedRows, vocabulary: Vocabulary) -> Problem:
    parts = []
    for ids, what in ((rows.constant, "one number repeated"), (rows.equal, "equal to another added token's")):
        if ids:
            tokens = listed(f"{printable(vocabulary.added[number])} ({number:,})" for number in ids)
            parts.append(f"{'the row' if len(ids) == 1 else f'{len(ids):,} rows'} of added tokens {what}: {tokens}")
    return Problem(
        message=f"{rows.matrix.name} was never trained there: {'; '.join(parts)}",
        tensors=(place(rows.matrix),),
        evidence=Evidence.PROVED,
        severity=Severity.NOTE,
        fix="train them, or leave the tokens out if no text uses them",
    )


@rule(104, Severity.NOTE)
def stale_flag(case: Case) -> Iterator[Problem]:
    """The config sets a tie flag that this architecture does not obey.

    What it does: looks up whether any reading of the class depends on the flag.
    Why is this worth knowing: changing it changes nothing; other programs may believe it.
    """
    for edition_case in case.judged:
        claim = edition_case.claim
        if claim.ignored_flag and claim.exact:
            yield Problem(message=f"{claim.ignored_flag} is set in config.json, but {claim.architecture} does not obey it")
            return


RULES = (ambiguous_flag, row_mismatch, tokenizer_overflow, stale_flag)
