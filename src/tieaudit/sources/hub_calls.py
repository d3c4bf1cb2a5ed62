"""This file holds how huggingface_hub is called: counted, bounded in time, its errors in one line each.

huggingface_hub keeps one HTTP client per process and lets callers replace it for everybody (`set_client_factory`). Counting must
not do that to a program that uses both, so an event hook is added to the client that is there; it counts what runs in the context of
an audit.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx2
from huggingface_hub import errors, get_session

from ..errors import ReadError, TargetError
from . import Meter
from .patience import TookTooLong, bounded

Answer = TypeVar("Answer")
ADVICE_TOKEN = "check the spelling; for a private repository set HF_TOKEN to a token that may read it"  # noqa: S105  a sentence
ADVICE_OFFLINE = "check the connection; --offline audits what the local Hub cache holds"


class _Count:
    """Answers of one call whose bodies are still to be counted."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.answers: list[httpx2.Response] = []


_COUNT: contextvars.ContextVar[_Count | None] = contextvars.ContextVar("tieaudit_count", default=None)


def _sent(_request: httpx2.Request) -> None:
    count = _COUNT.get()
    if count:
        count.meter.add(requests=1)


def _answered(answer: httpx2.Response) -> None:
    count = _COUNT.get()
    if count:
        count.answers.append(answer)


def _not_ours(_record: logging.LogRecord) -> bool:
    """What huggingface_hub says of its own retries is not for the reader of a report; other callers still get it."""
    return _COUNT.get() is None


@contextmanager
def counted(meter: Meter) -> Iterator[None]:
    """Requests of huggingface_hub in this context are counted, bodies as they came over the wire."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        if _not_ours not in handler.filters:
            handler.addFilter(_not_ours)
    for kind, hook in (("request", _sent), ("response", _answered)):
        hooks = get_session().event_hooks[kind]
        if hook not in hooks:
            hooks.append(hook)
    count = _Count(meter)
    token = _COUNT.set(count)
    try:
        yield
    finally:
        _COUNT.reset(token)
        meter.add(nbytes=sum(answer.num_bytes_downloaded for answer in count.answers))


def answered(call: Callable[[], Answer], meter: Meter, seconds: float) -> Answer:
    """What a call of huggingface_hub returns or raises, counted. TookTooLong after `seconds`: the library bounds silence, not the
    whole of a slow answer."""

    def run() -> Answer:
        with counted(meter):
            return call()

    return bounded(run, seconds)


def as_target_error(error: Exception, target: str, revision: str | None, endpoint: str) -> TargetError:
    """What an error of huggingface_hub means for the whole target."""
    match error:
        case errors.GatedRepoError():
            return TargetError(target, "is gated, and its files are not open to you", "accept the terms on its page and set HF_TOKEN")
        case errors.RepositoryNotFoundError():
            return TargetError(target, "no such folder here, and no such repository on the Hub", ADVICE_TOKEN)
        case errors.RevisionNotFoundError():
            return TargetError(target, f"has no revision {revision or 'main'!r}", "--revision takes a branch, a tag or a full commit")
        case errors.DisabledRepoError():
            return TargetError(target, "is disabled on the Hub")
        case errors.OfflineModeIsEnabled():
            return TargetError(target, "is not looked up: HF_HUB_OFFLINE is set", "unset it, or audit the cached copy with --offline")
        case errors.HFValidationError():
            return TargetError(target, "is neither a path that exists nor a possible Hub id", "check the spelling")
        case errors.HfHubHTTPError():
            status = error.response.status_code
            if status == 401:
                return TargetError(target, "the Hub refuses the token", "check HF_TOKEN, or log in again with `hf auth login`")
            return TargetError(target, f"the Hub answers {status}", "try again later; --offline audits what the local Hub cache holds")
        case TookTooLong():
            return TargetError(target, f"{endpoint} gave {error}", ADVICE_OFFLINE)
        case httpx2.HTTPError() | OSError():
            return TargetError(target, f"is not on this machine, and {endpoint} cannot be reached ({_words(error)})", ADVICE_OFFLINE)
        case _:
            return TargetError(target, f"{endpoint} gave an answer that is not the Hub's ({type(error).__name__})", "check HF_ENDPOINT")


def as_read_error(error: Exception, name: str) -> ReadError:
    """What an error of huggingface_hub means for one file."""
    return ReadError(name, f"cannot be fetched: {_words(error)}")


def _words(error: BaseException) -> str:
    """The first line that says something; the cause, where huggingface_hub hides it behind advice."""
    inner = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if isinstance(inner, errors.HfHubHTTPError):
        return f"the server answers {inner.response.status_code}"
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(inner).__name__
