"""This file holds how a range of a file is read over HTTP, with huggingface_hub's own client library.

Why not the ready-made ways (measured with huggingface_hub 2.4): HfFileSystem reads blocks of 5 MiB, `urllib` sends the token on to
the host of a redirect, and `parse_safetensors_file_metadata` swallows a gigabyte where a server ignores Range. So: one
keep-alive client, Range with `Accept-Encoding: identity`, 206 with the Content-Range that was asked for and the total of the
listing or nothing, the stream closed after n bytes, and the link behind the redirect kept until it expires.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

import httpx2

from ..errors import ReadError, TargetError
from . import Meter

MAX_HOPS = 5  # redirects of one read
MAX_TRIES = 5
FIRST_PAUSE, MAX_PAUSE = 0.4, 8.0  # seconds between two tries
SILENCE_SECONDS = 10.0  # after which one try is given up
MAX_NOTE = 64 << 10  # bytes of the body of a redirect or an error that are taken
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # the answer may be another one next time
EXPIRED = frozenset((400, 401, 403, 404, 410))  # what stores say of a signed link after its time
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """One file behind a URL. `headers` go to the URL's own origin only. `marks`: answer headers and the value that they must have
    where they are sent: the commit, the size and the digest of the listing."""

    name: str
    url: str
    nbytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)


class _Again(Exception):
    """A try that failed in a way that another may not. `pause`: seconds that the server asks for."""

    def __init__(self, what: str, pause: float | None = None) -> None:
        super().__init__(what)
        self.pause = pause


class RangeClient:
    """Reads ranges of files; safe to use from several threads."""

    def __init__(self, meter: Meter, seconds: float) -> None:
        """`seconds` is how long one read may take with all its tries. When a read has taken so long and none has ended well
        meanwhile, nothing is tried any more."""
        self._meter = meter
        self._seconds = seconds
        self._links: dict[str, str] = {}
        self._last_success = time.monotonic()
        self._dead = ""
        self._client = httpx2.Client(
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=16, max_keepalive_connections=16),
            headers={"Accept-Encoding": "identity", "Accept": "*/*"},
        )

    def close(self) -> None:
        self._client.close()

    def read(self, file: Remote, offset: int, n: int) -> bytes:
        """These bytes of the file. ReadError after all tries; TargetError if the server refuses the whole repository."""
        begun = time.monotonic()
        deadline = begun + self._seconds
        for number in range(1, MAX_TRIES + 1):
            if self._dead:
                raise ReadError(file.name, self._dead)
            try:
                data = self._try(file, offset, n, deadline)
            except _Again as failed:
                pause = _pause(number) if failed.pause is None else failed.pause
                if number == MAX_TRIES:
                    raise ReadError(file.name, f"cannot be read: {failed}, {number} times") from None
                if time.monotonic() + pause >= deadline:
                    if self._last_success < begun and failed.pause is None:
                        self._dead = f"cannot be read: {failed}; nothing came for {self._seconds:g} s"
                    asked = f", and asks to wait {failed.pause:g} s" if failed.pause else ""
                    raise ReadError(file.name, f"cannot be read: {failed}{asked}; given up after {self._seconds:g} s (--timeout)") from None
                time.sleep(pause)
            else:
                self._last_success = time.monotonic()
                return data
        raise AssertionError  # the last try returned or raised

    def _try(self, file: Remote, offset: int, n: int, deadline: float) -> bytes:
        link = self._links.get(file.name)
        try:
            if link:
                data = self._follow(file, link, offset, n, deadline)
                if data is not None:
                    return data
                self._links.pop(file.name, None)  # expired: ask the Hub for a new one
            data = self._follow(file, file.url, offset, n, deadline)
        except httpx2.TimeoutException as error:
            raise _Again(f"the server is silent ({type(error).__name__})") from None
        except httpx2.TransportError as error:
            raise _Again(f"the connection failed ({error or type(error).__name__})") from None
        except httpx2.InvalidURL:
            raise ReadError(file.name, "cannot be read: the server redirects to what is no URL") from None
        if data is None:
            raise _Again("the link that the server gave is refused")
        return data

    def _follow(self, file: Remote, url: str, offset: int, n: int, deadline: float) -> bytes | None:
        """The bytes; None if a signed link is refused."""
        own = True
        for _ in range(MAX_HOPS + 1):
            # once away, always away: another host must not choose what the token is sent for
            own = own and _origin(url) == _origin(file.url)
            headers = {**(file.headers if own else {}), "Range": f"bytes={offset}-{offset + n - 1}"}
            self._meter.add(requests=1)
            left = max(0.1, deadline - time.monotonic())
            with self._client.stream("GET", url, headers=headers, timeout=min(SILENCE_SECONDS, left)) as answer:
                self._check_marks(file, answer)
                if answer.has_redirect_location:
                    self._drain(answer, deadline)
                    url = _next(file, url, answer.headers["Location"])
                    continue
                if not own and answer.status_code in EXPIRED:
                    self._drain(answer, deadline)
                    return None
                if answer.status_code != 206 and not _is_whole(answer, file, offset, n):
                    self._refuse(file, answer, deadline)
                data = self._body(file, answer, offset, n, deadline)
                if not own:
                    self._links[file.name] = url
                return data
        raise ReadError(file.name, f"cannot be read: more than {MAX_HOPS} redirects")

    def _body(self, file: Remote, answer: httpx2.Response, offset: int, n: int, deadline: float) -> bytes:
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ReadError(file.name, "cannot be read: the server sends compressed bytes that nobody asked for")
        if answer.status_code == 206:
            said = CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
            if not said:
                raise ReadError(file.name, "cannot be read: the server does not say which bytes it sends (no Content-Range)")
            begin, last, total = map(int, said.groups())
            if total != file.nbytes:
                raise ReadError(file.name, f"has {total:,} bytes on the server and {file.nbytes:,} in its listing: changed meanwhile?")
            if begin != offset or last != offset + n - 1:
                raise ReadError(
                    file.name, f"cannot be read: bytes {offset:,} to {offset + n - 1:,} were asked for, {begin:,} to {last:,} came"
                )
        data = bytearray()
        try:
            for piece in answer.iter_raw():
                data += piece
                if len(data) >= n:
                    break
                if time.monotonic() > deadline:
                    raise _Again(f"{len(data):,} of {n:,} bytes came")
        finally:
            self._meter.add(nbytes=answer.num_bytes_downloaded)
        if len(data) < n:
            raise _Again(f"the server sent {len(data):,} of {n:,} bytes")
        return bytes(data[:n])

    def _drain(self, answer: httpx2.Response, deadline: float) -> None:
        """The few bytes of a redirect or an error, so that the connection can be used again."""
        try:
            for _ in answer.iter_raw():
                if answer.num_bytes_downloaded > MAX_NOTE or time.monotonic() > deadline:
                    break
        finally:
            self._meter.add(nbytes=answer.num_bytes_downloaded)

    def _check_marks(self, file: Remote, answer: httpx2.Response) -> None:
        for header, value in file.marks.items():
            said = answer.headers.get(header, value).removeprefix("W/").strip('"')
            if answer.status_code < 400 and said != value:
                raise ReadError(file.name, f"is not the file of the listing any more ({header} is {said[:60]}): changed meanwhile?")

    def _refuse(self, file: Remote, answer: httpx2.Response, deadline: float) -> None:
        """Raise what an answer means that is no range."""
        status = answer.status_code
        if status == 200:  # nothing of the body is read: it can have any length
            raise ReadError(file.name, "cannot be read in parts: the server ignores Range and would send all of it")
        if status in AGAIN:
            self._drain(answer, deadline)
            raise _Again(f"the server answers {status}", _retry_after(answer))
        self._drain(answer, deadline)
        if status in (401, 403):
            gated = answer.headers.get("X-Error-Code") == "GatedRepo"
            what = "its files are gated" if gated else "its files are not open to you"
            advice = "accept the terms on its page and set HF_TOKEN" if gated else "set HF_TOKEN to a token that may read it"
            raise TargetError(file.url.partition("/resolve/")[0], what, advice)
        raise ReadError(file.name, f"cannot be read: the server answers {status}")


def _is_whole(answer: httpx2.Response, file: Remote, offset: int, n: int) -> bool:
    """All of a file may be sent as 200 although a range was asked for (RFC 9110, 14.2)."""
    return answer.status_code == 200 and offset == 0 and n == file.nbytes and answer.headers.get("Content-Length") == str(n)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _next(file: Remote, url: str, location: str) -> str:
    """Where a redirect leads. ReadError for a step down from https, and for what is not HTTP."""
    try:
        target = urljoin(url, location)
        scheme, _, _ = _origin(target)
    except ValueError:
        raise ReadError(file.name, "cannot be read: the server redirects to what is no URL") from None
    if scheme not in ("http", "https") or (scheme == "http" and urlsplit(url).scheme == "https"):
        raise ReadError(file.name, "cannot be read: the server redirects from https to something less safe")
    return target


def _pause(number: int) -> float:
    # spread, so that eight parallel reads do not come back at once
    return min(MAX_PAUSE, FIRST_PAUSE * float(2 ** (number - 1))) * random.uniform(0.7, 1.3)  # noqa: S311  nothing secret


def _retry_after(answer: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait: a number, or a date."""
    said = answer.headers.get("Retry-After", "").strip()
    if said.isdecimal():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time()) if said else None
    except (ValueError, TypeError):
        return None
