"""Ranges over HTTP: what is demanded of an answer, what is tried again, where the token goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import folder
from hub_server import Hub
from tieaudit.errors import ReadError, TargetError
from tieaudit.sources import Meter, http
from tieaudit.sources.http import RangeClient, Remote

CONTENT = bytes(range(256)) * 1024
WEIGHTS = "*/model.safetensors"
TOKEN = {"authorization": "Bearer hf_secret"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)


@pytest.fixture
def client() -> Iterator[RangeClient]:
    client = RangeClient(Meter(), 5.0)
    yield client
    client.close()


@pytest.fixture
def file(hub: Hub, tmp_path: Path) -> Remote:
    repo = hub.add("org/model", folder(tmp_path / "m", {"model.safetensors": CONTENT}))
    return remote(hub, repo.head)


def remote(hub: Hub, revision: str, **more: Any) -> Remote:
    url = f"{hub.url}/org/model/resolve/{revision}/model.safetensors"
    return Remote(name="model.safetensors", url=url, nbytes=len(CONTENT), headers=TOKEN, **more)


def test_a_range_is_exact_and_the_link_is_kept(hub: Hub, client: RangeClient, file: Remote) -> None:
    assert client.read(file, 1000, 10) == CONTENT[1000:1010]
    assert client.read(file, len(CONTENT) - 1, 1) == CONTENT[-1:]
    assert [(request.host, request.range) for request in hub.requests] == [
        ("hub", "bytes=1000-1009"), ("cdn", "bytes=1000-1009"), ("cdn", f"bytes={len(CONTENT) - 1}-{len(CONTENT) - 1}"),
    ]  # fmt: skip
    assert all(request.headers["accept-encoding"] == "identity" for request in hub.requests)


def test_cost_is_what_the_server_counts(hub: Hub, client: RangeClient, file: Remote) -> None:
    for at in (0, 5000, 90_000):
        client.read(file, at, 4096)
    hub.fault("status", WEIGHTS, host="cdn", status=503)
    client.read(file, 100, 4096)
    assert client._meter.requests == len(hub.requests)
    assert client._meter.bytes_read == hub.body_bytes


def test_the_token_stays_with_the_first_host(hub: Hub, client: RangeClient, file: Remote) -> None:
    client.read(file, 0, 10)
    client.read(file, 50, 10)
    assert {request.host: request.authorization for request in hub.requests} == {"hub": "Bearer hf_secret", "cdn": None}


def test_the_token_is_not_sent_where_another_host_redirects_back(hub: Hub, client: RangeClient, file: Remote) -> None:
    hub.fault("redirect", WEIGHTS, host="hub", location=f"{hub.cdn_url}/elsewhere/model.safetensors")
    hub.fault("redirect", "/elsewhere/*", host="cdn", location=file.url)
    assert client.read(file, 0, 10) == CONTENT[:10]
    assert [(request.host, bool(request.authorization)) for request in hub.requests] == [
        ("hub", True), ("cdn", False), ("hub", False), ("cdn", False),
    ]  # fmt: skip


def test_an_expired_link_is_resolved_again(hub: Hub, client: RangeClient, file: Remote) -> None:
    client.read(file, 0, 10)
    hub.withdraw_links()
    hub.requests.clear()
    assert client.read(file, 20, 10) == CONTENT[20:30]
    assert [(request.host, request.status) for request in hub.requests] == [("cdn", 403), ("hub", 302), ("cdn", 206)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("status", {"status": 500}),
        ("status", {"status": 429, "retry_after": 0}),
        ("status", {"status": 503}),
        ("status", {"status": 408}),
        ("cut", {"nbytes": 0}),
        ("cut", {"nbytes": 100}),
        ("drop", {}),
        ("short", {"nbytes": 3}),
        ("expired", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("host", ["hub", "cdn"])
def test_what_may_pass_is_tried_again(hub: Hub, client: RangeClient, file: Remote, host: str, kind: str, options: dict[str, Any]) -> None:
    if host == "hub" and kind in {"cut", "short", "expired"}:
        pytest.skip("of bodies, and links")
    hub.fault(kind, WEIGHTS, host=host, times=2, **options)
    assert client.read(file, 1000, 5000) == CONTENT[1000:6000]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("status", {"status": 500}, "answers 500, 5 times"),
        ("status", {"status": 429, "retry_after": 900}, "asks to wait 900 s"),
        ("status", {"status": 404}, "link that the server gave is refused"),
        ("status", {"status": 418}, "answers 418"),
        ("cut", {"nbytes": 100}, "connection failed"),
        ("short", {"nbytes": 3}, "sent 4,997 of 5,000 bytes"),
        ("ignore_range", {}, "ignores Range"),
        ("content_range", {}, "262,145 bytes on the server and 262,144 in its listing"),
        ("content_range", {"value": f"bytes 1001-6000/{len(CONTENT)}"}, "1,001 to 6,000 came"),
        ("content_range", {"value": None}, "no Content-Range"),
        ("content_range", {"value": "bytes x-y/z"}, "no Content-Range"),
        ("gzipped", {}, "compressed"),
        ("loop", {}, "redirects"),
        ("redirect", {"location": "ftp://127.0.0.1/x"}, "less safe"),
        ("redirect", {"location": "http://[::1/x"}, "no URL"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_pass_is_a_read_error_that_says_why(
    hub: Hub, client: RangeClient, file: Remote, kind: str, options: dict[str, Any], words: str
) -> None:
    hub.fault(kind, WEIGHTS, host="hub" if kind in {"loop", "redirect"} else "cdn", times=None, **options)
    with pytest.raises(ReadError) as error:
        client.read(file, 1000, 5000)
    assert words in str(error.value)


def test_a_server_that_ignores_range_is_not_read(hub: Hub, client: RangeClient, file: Remote) -> None:
    hub.fault("ignore_range", WEIGHTS, times=None)
    with pytest.raises(ReadError):
        client.read(file, 0, 100)
    assert client._meter.bytes_read < 1000  # the redirect's own


def test_all_of_a_file_may_come_as_200(hub: Hub, client: RangeClient, file: Remote) -> None:
    hub.fault("ignore_range", WEIGHTS, times=None)
    assert client.read(file, 0, len(CONTENT)) == CONTENT


def test_bytes_beyond_the_range_are_cut_off(hub: Hub, client: RangeClient, file: Remote) -> None:
    hub.fault("overlong", WEIGHTS, host="cdn")
    assert client.read(file, 7, 100) == CONTENT[7:107]


@pytest.mark.parametrize(
    ("options", "marks"),
    [
        ({"etag": False}, {"X-Repo-Commit": "a" * 40}),
        ({"commit": False}, {"X-Linked-Etag": "b" * 64}),
        ({"commit": False, "etag": False, "nbytes": 1}, {"X-Linked-Size": str(len(CONTENT))}),
    ],
    ids=["commit", "digest", "size"],
)
def test_another_file_than_the_listed_one_is_a_read_error(
    hub: Hub, client: RangeClient, file: Remote, options: dict[str, Any], marks: dict[str, str]
) -> None:
    hub.fault("changed", WEIGHTS, host="hub", times=None, **options)
    with pytest.raises(ReadError, match="not the file of the listing any more"):
        client.read(Remote(name=file.name, url=file.url, nbytes=file.nbytes, marks=marks), 0, 10)


def test_a_gated_file_is_a_target_error_that_names_the_token(hub: Hub, client: RangeClient, tmp_path: Path) -> None:
    repo = hub.add("org/model", folder(tmp_path / "m", {"model.safetensors": CONTENT}), gated=True, token="hf_other")  # noqa: S106
    with pytest.raises(TargetError, match=r"gated.*HF_TOKEN"):
        client.read(remote(hub, repo.head), 0, 10)


@pytest.mark.parametrize(("kind", "options"), [("stall", {}), ("stall", {"nbytes": 10}), ("slow", {"rate": 100})], ids=str)
def test_a_read_ends_at_its_time_limit(hub: Hub, file: Remote, kind: str, options: dict[str, Any]) -> None:
    hub.fault(kind, WEIGHTS, host="cdn", times=None, **options)
    client = RangeClient(Meter(), 0.6)
    begun = time.monotonic()
    with pytest.raises(ReadError, match=r"0.6 s"):
        client.read(file, 0, 5000)
    assert time.monotonic() - begun < 5  # a bound, not a measure
    with pytest.raises(ReadError):
        client.read(file, 0, 5000)
    client.close()


def test_from_https_no_redirect_leads_to_http() -> None:
    file = Remote(name="x", url="https://a/x", nbytes=1)
    with pytest.raises(ReadError, match="from https"):
        http._next(file, "https://a/x", "http://a/x")
    assert http._next(file, "https://a/x", "//b/y") == "https://b/y"
    assert http._next(file, "http://a/x", "https://b/y") == "https://b/y"


@pytest.mark.parametrize(
    ("header", "seconds"), [("", None), ("3", 3.0), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("-1", None)]
)
def test_retry_after_is_a_number_or_a_date(header: str, seconds: float | None) -> None:
    import httpx2

    assert http._retry_after(httpx2.Response(429, headers={"Retry-After": header})) == seconds
