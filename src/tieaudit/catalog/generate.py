"""This file holds the command that makes architectures.json.gz from installed transformers.

    python -m tieaudit.catalog.generate observe --out v5.json            # under transformers 5
    python -m tieaudit.catalog.generate observe --out v4.json --configs v5.json   # under transformers 4.57
    python -m tieaudit.catalog.generate merge v5.json v4.json

Every class runs in a forked child with limits of its own, so one bad class cannot stop the run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tieaudit.catalog import merge

Json = dict[str, Any]

CATALOG = Path(__file__).with_name("architectures.json.gz")
SECONDS = 300  # per class
MEMORY = 10 << 30  # bytes of address space per child, beyond the parent's own


def observe(names: Sequence[str] = (), like: Json | None = None, jobs: int = 2) -> Json:
    """Return the observations of the named architectures, or of all, by the installed transformers."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers

    from tieaudit.catalog import observation, tiny

    torch.set_num_threads(1)
    classes = tiny.architectures()
    transformers.PretrainedConfig.__repr__ = object.__repr__  # from_dict formats the whole config for a line that is not logged
    transformers.logging.set_verbosity_error()
    wanted = {name: classes[name] for name in (names or classes)}
    before = (like or {}).get("architectures", {})

    def one(name: str) -> Json:
        os.environ["HF_HUB_OFFLINE"] = "1"  # an observation never downloads; set in the child, so that the caller's stays
        try:
            return observation.observe(wanted[name], before.get(name))
        except tiny.NotBuilt as error:
            return {"error": str(error)}

    found = in_children(list(wanted), one, jobs)
    if not names:
        found |= {name: {"error": "named in an auto mapping, not exported"} for name in tiny.unresolved()}
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "flags": observation.flags(),
        "architectures": dict(sorted(found.items())),
    }


def in_children(names: Iterable[str], work: Callable[[str], Json], jobs: int, seconds: int = SECONDS) -> dict[str, Json]:
    """Return `work(name)` for each name, each in a forked child; a child that dies gives {"error": reason}."""
    results: dict[str, Json] = {}
    running: dict[int, tuple[str, int]] = {}
    queue = list(reversed(list(names)))
    while queue or running:
        while queue and len(running) < jobs:
            name = queue.pop()
            output = os.memfd_create(name)
            with warnings.catch_warnings():  # Python 3.12 warns of threads; the parent's are idle and torch's pool is unused
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _child(name, work, output, seconds)
            running[child] = (name, output)
        child, status = os.wait()
        name, output = running.pop(child)
        with os.fdopen(output, "rb") as file:
            file.seek(0)
            text = file.read()
        results[name] = json.loads(text) if status == 0 and text else {"error": _death(status)}
        if len(results) % 50 == 0:
            print(f"{len(results)} done, {len(queue)} left", file=sys.stderr, flush=True)
    return results


def _child(name: str, work: Callable[[str], Json], output: int, seconds: int) -> None:
    """Run in the child: never returns."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.alarm(seconds)  # no handler: the kernel ends the child even inside native code
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        try:
            result = work(name)
        except MemoryError:
            result = {"error": "out of memory"}
        except BaseException as error:  # whatever a class does in its own child is that class' result
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(output, "wb", closefd=False) as file:
            file.write(json.dumps(result).encode())
        code = 0
    finally:
        os._exit(code)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "timed out" if number == signal.SIGALRM else f"ended by signal {number}"
    return f"exit {os.WEXITSTATUS(status)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tieaudit.catalog.generate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seeing = commands.add_parser("observe", help="build every architecture of the installed transformers")
    seeing.add_argument("--out", type=Path, required=True)
    seeing.add_argument("--configs", type=Path, help="observations of another version, whose configs are used again")
    seeing.add_argument("--jobs", type=int, default=2)
    seeing.add_argument("names", nargs="*", help="only these architectures")
    merging = commands.add_parser("merge", help="write the catalog from two observations")
    merging.add_argument("v5", type=Path)
    merging.add_argument("v4", type=Path, nargs="?")
    merging.add_argument("--out", type=Path, default=CATALOG)
    options = parser.parse_args(arguments)
    if options.command == "observe":
        like = json.loads(options.configs.read_text()) if options.configs else None
        options.out.write_text(json.dumps(observe(options.names, like, options.jobs)))
    else:
        older = json.loads(options.v4.read_text()) if options.v4 else {}
        merge.write(merge.merge(json.loads(options.v5.read_text()), older), options.out)


if __name__ == "__main__":
    main()
