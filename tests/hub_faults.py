"""This file holds what can go wrong between a test Hub and its client: each fault changes one reply, or how it is sent."""

from __future__ import annotations

import fnmatch
import gzip
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OTHER_SHA = "f" * 40


@dataclass(kw_only=True)
class Request:
    """One request as the server saw it; `status` and `body_bytes` are those of its answer.

    `body_bytes` counts a piece before it is handed to the socket, so it is complete as soon as the client has the last byte.
    Where a client hangs up early, it holds what the kernel took, which may be more than the client read.
    """

    host: str  # "hub" or "cdn"
    mirror: str  # the same target at the other host
    method: str
    target: str  # as sent, with its query
    path: str  # decoded, without query
    query: dict[str, list[str]]
    headers: dict[str, str]  # names in lower case
    form: bytes = b""
    status: int = 0
    body_bytes: int = 0

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(kw_only=True)
class Reply:
    """What is to be sent: bytes `start` to `stop` of the body; a Path is read piece by piece. The rest is for faults."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Path = b""
    start: int = 0
    stop: int | None = None
    drop: bool = False  # close instead of an answer
    cut: int | None = None  # close after so many bytes of body
    rate: float | None = None  # bytes per second
    stall: float = 0  # seconds of silence ...
    stall_at: int | None = None  # ... after so many bytes of body; None: before the first byte of the answer

    @property
    def total(self) -> int:
        return self.body.stat().st_size if isinstance(self.body, Path) else len(self.body)

    @property
    def end(self) -> int:
        return self.total if self.stop is None else self.stop

    def content(self) -> bytes:
        """All that would be sent, for faults in small answers."""
        whole = self.body.read_bytes() if isinstance(self.body, Path) else self.body
        return whole[self.start : self.end]

    def become(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.body, self.start, self.stop, self.headers = status, body, 0, None, dict(headers or {})


def ranged(reply: Reply, request: Request) -> None:
    """Answer to Range, as RFC 9110 has it; several ranges at once are answered in full, which it allows."""
    reply.headers["Accept-Ranges"] = "bytes"
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.range or "")
    if not match or match[0] == "bytes=-" or request.headers.get("if-range", reply.headers.get("ETag")) != reply.headers.get("ETag"):
        return
    total = reply.total
    start = int(match[1]) if match[1] else max(0, total - int(match[2]))
    stop = min(total, int(match[2]) + 1) if match[1] and match[2] else total
    if start >= stop:
        reply.become(416, b"", {"Content-Range": f"bytes */{total}"})
    else:
        reply.status, reply.start, reply.stop = 206, start, stop
        reply.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"


def status(reply: Reply, _: Request, *, status: int = 500, retry_after: Any = None, headers: Mapping[str, str] | None = None) -> None:
    """Another status, with Retry-After (seconds or a date) where given."""
    more = {} if retry_after is None else {"Retry-After": str(retry_after)}
    reply.become(status, f"error {status}".encode(), {"Content-Type": "text/plain"} | more | dict(headers or {}))


def expired(reply: Reply, _: Request) -> None:
    """What a CDN says to a signed link after its time."""
    reply.become(403, b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")


def cut(reply: Reply, _: Request, *, nbytes: int = 0) -> None:
    """The connection ends after n bytes of the body that the headers promised."""
    reply.cut = nbytes


def drop(reply: Reply, _: Request) -> None:
    """The connection ends without an answer."""
    reply.drop = True


def ignore_range(reply: Reply, _: Request) -> None:
    """200 and the whole body instead of the range."""
    if reply.status == 206:
        reply.status, reply.start, reply.stop = 200, 0, None
        del reply.headers["Content-Range"]


def content_range(reply: Reply, _: Request, *, value: str | None = "shifted") -> None:
    """Another Content-Range on a 206; None leaves it out, "shifted" names bytes one further than those that follow."""
    if reply.status == 206:
        wrong = f"bytes {reply.start + 1}-{reply.end}/{reply.total + 1}" if value == "shifted" else value
        reply.headers.pop("Content-Range")
        reply.headers |= {"Content-Range": wrong} if wrong is not None else {}


def short(reply: Reply, _: Request, *, nbytes: int = 1) -> None:
    """n bytes less than asked, well framed: Content-Length fits the body, Content-Range keeps its promise."""
    reply.stop = max(reply.start, reply.end - nbytes)


def overlong(reply: Reply, _: Request, *, nbytes: int = 4096) -> None:
    """Up to n bytes more than asked, well framed, Content-Range as asked."""
    reply.stop = min(reply.total, reply.end + nbytes)


def slow(reply: Reply, _: Request, *, rate: float = 1000) -> None:
    """The body comes with n bytes per second."""
    reply.rate = rate


def stall(reply: Reply, _: Request, *, seconds: float = 60, nbytes: int | None = None) -> None:
    """Silence after n bytes of the body, or before any answer; it ends early when the Hub closes."""
    reply.stall, reply.stall_at = seconds, nbytes


def changed(reply: Reply, _: Request, *, commit: bool = True, etag: bool = True, nbytes: int = 0) -> None:
    """Headers as if the file had been replaced: another commit, another ETag, a total that is n bytes larger."""
    headers = reply.headers
    if commit and "X-Repo-Commit" in headers:
        headers["X-Repo-Commit"] = OTHER_SHA
    for name in {"ETag", "X-Linked-Etag"} & headers.keys() if etag else ():
        headers[name] = f'"{OTHER_SHA}"'
    if nbytes and "X-Linked-Size" in headers:
        headers["X-Linked-Size"] = str(int(headers["X-Linked-Size"]) + nbytes)
    if nbytes and "Content-Range" in headers:
        span, total = headers["Content-Range"].split("/")
        headers["Content-Range"] = f"{span}/{int(total) + nbytes}"


def redirect(reply: Reply, request: Request, *, location: str | None = None, status: int = 302) -> None:
    """To a URL, or to the same path of the other host, which answers like the Hub itself. What a client of the Hub reads from
    the redirect of a file stays on it."""
    kept = {name: value for name, value in reply.headers.items() if name in {"X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Linked-Size"}}
    if "/resolve/" in request.path and "X-Linked-Size" not in kept:
        kept["X-Linked-Size"] = str(reply.total)
    reply.become(status, b"Found. Redirecting.", kept | {"Location": location or request.mirror})


def loop(reply: Reply, request: Request) -> None:
    """A redirect to itself."""
    redirect(reply, request, location=request.target)


def garbage(reply: Reply, _: Request, *, body: bytes = b'{"sha": "\xff\xfe <html>') -> None:
    """A body that is no JSON, with a 200 that says it is."""
    reply.become(200, body, reply.headers)


def edit(reply: Reply, _: Request, *, change: Callable[[Any], Any]) -> None:
    """The JSON answer as `change` returns it."""
    reply.become(reply.status, json.dumps(change(json.loads(reply.content()))).encode(), reply.headers)


def sizes(reply: Reply, request: Request, *, nbytes: int = 1) -> None:
    """Every size in a listing is n bytes larger than the file."""

    def wrong(value: Any) -> Any:
        if isinstance(value, list):
            return [wrong(item) for item in value]
        if isinstance(value, dict) and value.get("type") != "directory":
            return {key: item + nbytes if key == "size" else wrong(item) for key, item in value.items()}
        return value

    edit(reply, request, change=wrong)


def gzipped(reply: Reply, _: Request) -> None:
    """A body compressed though nobody asked for it: its bytes are not those of the file."""
    reply.body, reply.start, reply.stop = gzip.compress(reply.content(), mtime=0), 0, None
    reply.headers["Content-Encoding"] = "gzip"


def call(_: Reply, __: Request, *, action: Callable[[], object]) -> None:
    """Runs something before the answer is made: move a branch, replace a file, withdraw the links."""
    action()


KINDS = {
    kind.__name__: kind
    for kind in (
        status, expired, cut, drop, ignore_range, content_range, short, overlong, slow, stall, changed,
        redirect, loop, garbage, edit, sizes, gzipped, call,
    )
}  # fmt: skip


@dataclass(kw_only=True)
class Fault:
    """A kind of fault and the requests that it meets; `hits` counts them."""

    kind: str
    path: str  # a glob over the decoded path, without query
    host: str | None
    method: str | None
    times: int | None
    after: int
    options: dict[str, Any]
    seen: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        inspect.signature(KINDS[self.kind]).bind(None, None, **self.options)  # a misspelt option must not pass silently

    def meets(self, request: Request) -> bool:
        if self.host not in (None, request.host) or self.method not in (None, request.method):
            return False
        if not fnmatch.fnmatchcase(request.path, self.path):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True

    def apply(self, reply: Reply, request: Request) -> None:
        KINDS[self.kind](reply, request, **self.options)
