"""This file holds the colours of the page in both themes, and the patterns that tell components apart without colour.

Hues are far apart for the common kinds of colour blindness; a pattern and a letter say the same. Text on a fill, and every word on its
ground, has a contrast of 4.5 or more in both themes (the tests compute it).
"""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from ...components import Component


class Tone(NamedTuple):
    """One colour per theme."""

    light: str
    dark: str


class Look(NamedTuple):
    """How a component is drawn: a fill, strokes over it on a square of 8 × 8, and a letter."""

    fill: Tone
    strokes: str
    letter: str
    label: str


GROUND = {
    "paper": Tone("#ffffff", "#12151c"),
    "card": Tone("#f6f7f9", "#1b2029"),
    "ink": Tone("#14181f", "#eceff4"),
    "soft": Tone("#4a5362", "#b3bccb"),
    "line": Tone("#c9cfd8", "#3a4352"),
    "edge": Tone("#767f8d", "#7d8798"),
    "link": Tone("#0b57b0", "#8ab8ff"),
    "on-fill": Tone("#ffffff", "#0d1016"),
    "error": Tone("#b3152c", "#ff8a94"),
    "warning": Tone("#8a4b00", "#ffb454"),
    "note": Tone("#1a5f9e", "#86c1ff"),
    "ok": Tone("#146c3a", "#6fd694"),
    "error-wash": Tone("#fdecee", "#3a1a20"),
    "warning-wash": Tone("#fdf2e0", "#35270f"),
    "note-wash": Tone("#e8f1fb", "#16273a"),
    "ok-wash": Tone("#e6f5eb", "#142b1d"),
}

LOOKS: dict[Component, Look] = {
    Component.EMBEDDING: Look(Tone("#0067a3", "#4aa8e0"), "M0 2h2M4 6h2", "E", "embedding"),
    Component.HEAD: Look(Tone("#b84a00", "#ff8a3d"), "M-1 7L7-1M3 9L9 3", "H", "head"),
    Component.ATTENTION: Look(Tone("#00785a", "#2fc79a"), "M-1 1L7 9M3-1L9 5", "A", "attention"),
    Component.MLP: Look(Tone("#876000", "#e8b23a"), "", "M", "MLP"),
    Component.NORM: Look(Tone("#a8447f", "#e79ac5"), "M4 0v8", "N", "norm"),
    Component.EXPERTS: Look(Tone("#6a4fb8", "#a996f0"), "M0 4h8M4 0v8", "X", "experts"),
    Component.VISION: Look(Tone("#4f7300", "#a5cf4a"), "M0 4h8", "V", "vision"),
    Component.AUDIO: Look(Tone("#7d4f24", "#cf9b68"), "M0 2L4 6L8 2", "S", "audio"),
    Component.POSITION: Look(Tone("#24757f", "#6cc5d0"), "M2 2h1M6 6h1", "P", "position"),
    Component.ADAPTER: Look(Tone("#b3174f", "#f2709c"), "M0 0L8 8M8 0L0 8", "L", "adapter"),
    Component.OPTIMIZER: Look(Tone("#5b6470", "#9aa3af"), "M0 2h8M0 6h8", "O", "optimizer"),
    Component.OTHER: Look(Tone("#6c737b", "#858e99"), "M2 0v8M6 0v8", "–", "other"),
    Component.DEAD: Look(Tone("#b3152c", "#ff8a94"), "M0 0L8 8M8 0L0 8", "!", "dead bytes"),
}

ORDER = tuple(LOOKS)


def variables(theme: str) -> str:
    """Declarations of all colours of a theme, `light` or `dark`."""
    tones = GROUND | {f"c-{component.value}": look.fill for component, look in LOOKS.items()}
    return "".join(f"--{name}:{getattr(tone, theme)};" for name, tone in tones.items())


def rules() -> str:
    """A class per component; its pattern is one of `patterns()`. Nothing here is a style attribute: the page's policy forbids them."""
    lines = []
    for component in LOOKS:
        name = component.value
        lines.append(f".f-{name}{{fill:url(#p-{name})}}.g-{name}{{fill:var(--c-{name})}}.b-{name}{{background:var(--c-{name})}}")
    return "\n".join(lines)


def patterns() -> Markup:
    """The patterns, once for the whole page."""
    made = Markup().join(
        Markup(
            '<pattern id="p-{0}" width="8" height="8" patternUnits="userSpaceOnUse"><rect width="8" height="8" class="g-{0}{2}"/>'
            '<path d="{1}" class="weave{2}"/></pattern>'
        ).format(component.value, look.strokes, " void" if component is Component.DEAD else "")
        for component, look in LOOKS.items()
    )
    return Markup('<svg class="defs" width="0" height="0" aria-hidden="true" focusable="false"><defs>{}</defs></svg>').format(made)
