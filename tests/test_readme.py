"""The README shows what the program says today."""

from __future__ import annotations

import pytest

from readme import COST, PARTS, README, part


@pytest.mark.parametrize("name", PARTS)
def test_generated_part_is_current(name: str) -> None:
    shown = part(README.read_text(encoding="utf-8"), name)
    assert COST.sub("COST", shown) == COST.sub("COST", PARTS[name]()), "run `make readme`"
