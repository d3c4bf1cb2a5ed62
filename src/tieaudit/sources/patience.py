"""This file holds how a call of a library that has no time limit of its own is given one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class TookTooLong(Exception):
    """A call did not come back in time."""


def bounded(call: Callable[[], Answer], seconds: float) -> Answer:
    """What the call returns or raises; TookTooLong after `seconds`. It is then left alone, in a thread that keeps no process alive."""
    results: list[Answer] = []
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(call))
        except BaseException as error:  # noqa: BLE001  handed to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tieaudit-call")
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TookTooLong(f"no whole answer in {round(seconds, 1):g} s (--timeout)")
    return results[0]
