"""This file holds the report as one HTML page that needs nothing else: no network, no font, no script of others.

The page's own policy forbids all but its one style sheet and its one script, each named by its hash; names from files are text.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib.resources import files as resources
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..report import Report, Severity
from ..text import printable, printable_words, quantity
from .page import byte_map, palette, view
from .several import NO_ANSWER, Outcome

SCRIPT = ("tools", "blocks", "drawing", "panels", "controls", "start")  # each stands on those before it
LEAST_ROOM = 40_000  # characters that the map of one of many targets has at least


def render(report: Report) -> str:
    """The report as a page."""
    shown = view.of(report, 1, byte_map.MAX_DATA, 1)
    return _page(title=f"{shown.word}: {shown.target}", views=[shown], rows=None)


def render_several(outcomes: Sequence[Outcome]) -> str:
    """All reports on one page, with a table of them on top."""
    found = [outcome.report for outcome in outcomes if outcome.report]
    room = max(LEAST_ROOM, byte_map.MAX_DATA // max(1, len(found)))
    views, rows = [], []
    for number, outcome in enumerate(outcomes, 1):
        shown = view.of(outcome.report, number, room, 2) if outcome.report else None
        views += [shown] if shown else []
        rows.append(_row(outcome, shown))
    return _page(title=f"{len(outcomes):,} target{'s' * (len(outcomes) != 1)}", views=views, rows=rows)


def _row(outcome: Outcome, shown: view.View | None) -> dict[str, Any]:
    if shown is None:
        return {
            "id": "",
            "tone": "incomplete",
            "sign": "?",
            "target": printable(outcome.target),
            "word": NO_ANSWER,
            "error": printable_words(outcome.error),
        }
    totals = shown.report.totals
    return {
        "id": shown.id, "tone": shown.verdict, "sign": shown.sign, "target": shown.target, "word": shown.word, "error": "",
        "cells": [*(shown.counts[severity.value] for severity in Severity), quantity(totals.nbytes_stored), quantity(totals.nbytes_wasted)],
    }  # fmt: skip


def _page(**content: Any) -> str:
    style, script = _style(), _script()
    page = _environment().get_template("page.html.j2").render(
        style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script), patterns=palette.patterns(),  # noqa: S704 - our own files
        looks=[(what.value, look.label, look.letter) for what, look in palette.LOOKS.items()], version=__version__, **content,
    )  # fmt: skip
    # nothing that a file says may end the page halfway: a lone surrogate has no UTF-8
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _text(name: str) -> str:
    return (resources(__package__) / "page" / name).read_text("utf-8")


@cache
def _style() -> str:
    dark, light = palette.variables("dark"), palette.variables("light")
    themes = (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
    )
    return themes + palette.rules() + "\n" + _text("style.css")


@cache
def _script() -> str:
    parts = "\n".join(_text(f"script/{name}.js") for name in SCRIPT)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@cache
def _environment() -> Environment:
    names = ("page.html.j2", "report.html.j2")
    return Environment(loader=DictLoader({name: _text(name) for name in names}), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True)  # fmt: skip
