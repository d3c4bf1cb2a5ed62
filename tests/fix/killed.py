"""Fixes that are killed: run as a process of its own, `python killed.py WORK TIMES EVENTS SEED`; prints what it saw as JSON.

Each fix runs in a fork that is killed by SIGKILL, TIMES times after a random time, and once before each event that Python audits (open,
mkdir, rename, link, chmod, …) up to EVENTS. After each kill the original must be whole, or the finished result in its place.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from builders import EMBED, HEAD, folder, index, matrix, safetensors, tied
from tieaudit import apply_fix, plan_fix

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EVENTS = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.link",
    "os.chmod",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "tempfile.mkdtemp",
    "ctypes.call_function",
)


def everything(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def model(path: Path, seed: int) -> Path:
    rows = 64 + seed % 512
    embed = matrix(seed, rows, 64)
    files = {
        "config.json": tied(),
        "sub/notes.txt": b"kept",
        "model.safetensors.index.json": index({EMBED: ONE, HEAD: TWO, "norm.weight": TWO}, 3 * embed.nbytes),
        ONE: safetensors({EMBED: embed}),
        TWO: safetensors({HEAD: embed, "norm.weight": matrix(seed + 1, rows, 64)}),
    }
    return folder(path, files)


def forked(target: Path, *, in_place: bool, event: int | None) -> int:
    """The process that fixes; it kills itself before the event of that number."""
    child = os.fork()
    if child:
        return child
    try:
        count = 0

        def hook(name: str, _args: object) -> None:
            nonlocal count
            count += name in EVENTS
            if event is not None and count > event:
                os.kill(os.getpid(), signal.SIGKILL)

        plan = plan_fix(target)
        sys.addaudithook(hook)
        if in_place:
            apply_fix(plan, in_place=True)
        else:
            apply_fix(plan, target.with_name("out"))
    finally:
        os._exit(0)


def look(work: Path, before: dict[str, bytes], after: dict[str, bytes], *, in_place: bool) -> str:
    """What is there after the kill; an AssertionError if anything is half."""
    names = sorted(path.name for path in work.iterdir())
    known = [name for name in names if ".unfinished-" not in name]
    target = everything(work / "in")
    if in_place:
        assert target in (before, after), "half a target"
        if target == after:
            rest = [path for path in work.iterdir() if path.name != "in"]
            found = [everything(path) for path in rest] + [everything(path / "content") for path in rest if (path / "content").is_dir()]
            assert before in found, "the original is lost"
        assert set(known) <= {"in", "in.before-fix"}
        return "finished" if target == after else "original"
    assert target == before, "the original was changed"
    assert set(known) <= {"in", "out"}
    if "out" in known:
        assert everything(work / "out") == after, "half a result under its own name"
        return "finished"
    return "original"


def main() -> None:
    work, times, events, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for number in range(times + events):
        case = work / str(number)
        case.mkdir()
        in_place = number % 2 == 1
        target = model(case / "in", number)
        before = everything(target)
        # once undisturbed, for what the result is and how long it takes
        shutil.copytree(target, case / "twin")
        begin = time.perf_counter()
        apply_fix(plan_fix(case / "twin"), case / "truth")
        took = time.perf_counter() - begin
        after = everything(case / "truth")
        shutil.rmtree(case / "twin")
        shutil.rmtree(case / "truth")
        event = None if number < times else (number - times) // 2
        child = forked(target, in_place=in_place, event=event)
        if event is None:
            time.sleep(chance.random() * took * 1.3)
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen[look(case, before, after, in_place=in_place)] += 1
        # what a kill leaves does not keep the next fix from its work
        if not in_place and not (case / "out").exists():
            apply_fix(plan_fix(target), case / "out")
            assert everything(case / "out") == after
        shutil.rmtree(case)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
