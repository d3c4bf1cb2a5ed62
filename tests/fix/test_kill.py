"""The process that fixes is killed at random points and before each of its steps: the original or the finished result is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")  # a disk that is in memory: what is killed here never waits for one


def run(times: int, events: int, seed: int) -> dict[str, int]:
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as work:
        path = os.pathsep.join(str(folder) for folder in (HERE.parent.parent / "src", HERE.parent))
        done = subprocess.run(
            [sys.executable, str(HERE / "killed.py"), work, str(times), str(events), str(seed)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert list(Path(work).iterdir()) == []
    found: dict[str, int] = json.loads(done.stdout)
    assert sum(found.values()) == times + events
    return found


def test_twenty_fixes_are_killed() -> None:
    run(20, 0, 1)


@pytest.mark.slow
def test_two_hundred_fixes_are_killed_and_one_before_each_event() -> None:
    found = run(200, 120, 2)
    assert min(found["original"], found["finished"]) > 10
