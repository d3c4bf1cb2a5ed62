"""This file holds how the table is asked: one question about embedding and head, an answer per engine that knows one.

What was neither run nor read gives no answer. For transformers 4 and 5 the reading of the tie comes from the catalog, so their answers
hold for every class there; the others answer for the model types of their rows. All those types have one flag, at the top of
config.json (of gemma3, exllamav3 obeys none), so no answer depends on how an engine reads nested ones.
"""

from __future__ import annotations

from typing import NamedTuple

from ..report import EngineOutcome
from .table import Cell, Engine, engines, gguf_loader


class Question(NamedTuple):
    """One embedding and one head, as readers of the edition meet them.

    `stored`: words of `table.STORED`; several where it depends on the dtype that a reader loads in. `tied_v5`, `tied_v4`: whether
    transformers ties the two (None: not known). `plain`: class and names are those that the other engines' rows are about; `flag` is
    a word of `table.FLAGS`.
    """

    format: str
    stored: tuple[str, ...]
    tied_v5: bool | None = None
    tied_v4: bool | None = None
    model_type: str = ""
    plain: bool = False
    flag: str = "absent"


def outcomes(question: Question) -> tuple[EngineOutcome, ...]:
    """What each engine makes of it, in the order of the table."""
    found = ((engine, _answer(engine, question)) for engine in engines() if question.format in engine.formats)
    return tuple(_outcome(engine, cell, question.stored[0]) for engine, cell in found if cell)


def _answer(engine: Engine, question: Question) -> Cell | None:
    """The cell, if all that may be stored ends in the same."""
    cells = [_cell(engine, question, stored) for stored in question.stored]
    first = cells[0]
    return first if first and all(cell and cell.outcome == first.outcome for cell in cells) else None


def _cell(engine: Engine, question: Question, stored: str) -> Cell | None:
    if engine.engine == "transformers":
        five = engine.version.startswith("5.")
        if five and question.flag == "invalid":
            return next((cell for row in engine.rows if (cell := row.cell("invalid", stored))), None)
        tied = question.tied_v5 if five else question.tied_v4
        if tied is None:
            return None
        # what follows from the reading is the same for every class, but for a few with rows of their own
        column, own = str(tied).lower(), engine.row(question.model_type)
        return (own.cell(column, stored) if own else None) or engine.rows[0].cell(column, stored)
    row = engine.row(question.model_type) if question.plain else None
    return row.cell(question.flag, stored) if row else None


def _outcome(engine: Engine, cell: Cell, stored: str) -> EngineOutcome:
    return EngineOutcome(
        engine=engine.engine,
        version=engine.version,
        outcome=cell.outcome,
        silent=cell.silent,
        name=engine.name,
        leading=engine.leading,
        effect=effect(cell.outcome, stored),
        mode=cell.mode,
        detail=cell.detail,
    )


def effect(outcome: str, stored: str) -> str:
    """ "intact": the model is what is stored, whether one matrix or two. Else "lost", "random" or "error"."""
    match outcome:
        case "error":
            return "error"
        case "head_random" | "embed_random":
            return "random"
        case "head_dropped":
            return "lost"
        case "tied_to_head" if stored == "diff":
            return "lost"
        case _:
            return "intact"


def of_gguf(architecture: str, stored: str) -> tuple[EngineOutcome, ...]:
    """What llama.cpp makes of `token_embd.weight` and `output.weight` in a GGUF file, by its `general.architecture`."""
    loader = gguf_loader()
    known = architecture in loader.optional
    if stored == "embed_only" and architecture in loader.required:
        outcome = "error"
    elif not known:
        return ()
    else:
        outcome = {"embed_only": "tied_to_embed", "head_only": "error"}.get(stored, "both_kept")
    return (
        EngineOutcome(
            engine=loader.engine,
            version=loader.version,
            outcome=outcome,
            silent=outcome != "error",
            name=loader.engine,
            leading=True,
            effect=effect(outcome, stored),
            mode=loader.mode,
        ),
    )
