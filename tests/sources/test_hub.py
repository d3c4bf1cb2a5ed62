"""A repository as a folder: its listing, its small files, its place in the cache."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from builders import folder
from hub_server import Hub
from tieaudit.errors import ReadError, TargetError
from tieaudit.sources import Meter, hub
from tieaudit.sources.hub import HubTarget, open_target
from tieaudit.sources.hub_calls import counted
from tieaudit.sources.patience import TookTooLong, bounded

FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": bytes(range(256)) * 512,
    "sub/model.bin": b"12345",
    "sub/deep/x.json": b"{}",
    "empty.json": b"",
}


@pytest.fixture
def repository(online: Hub, tmp_path: Path) -> Hub:
    online.add("org/model", folder(tmp_path / "m", FILES))
    return online


def opened(path: str = "", **more: Any) -> Any:
    return open_target(HubTarget(words="org/model", repo_id="org/model", path=path, **more), 10.0, Meter())


def test_the_listing_has_sizes_and_digests_for_one_request(repository: Hub) -> None:
    found, only = opened()
    assert only is None
    assert [(entry.name, entry.nbytes, bool(entry.sha256)) for entry in found.entries()] == [
        ("config.json", 8, False), ("empty.json", 0, False), ("model.safetensors", 131_072, True),
    ]  # fmt: skip
    assert found.subfolders() == ["sub"]
    assert found.revision == repository.repositories["org/model"].head
    assert (found.meter.requests, found.meter.bytes_read) == (1, repository.body_bytes)
    found.close()


def test_bytes_are_those_of_the_files(repository: Hub) -> None:
    found, _ = opened()
    found.prefetch([("config.json", 0, 8), ("model.safetensors", 100, 50)])
    assert found.open("config.json").read(0, 8) == FILES["config.json"]
    assert found.open("empty.json").read(0, 0) == b""
    assert found.open("model.safetensors").read(90, 100) == FILES["model.safetensors"][90:190]
    assert found.open("sub/model.bin").read(0, 5) == b"12345"
    assert (found.meter.requests, found.meter.bytes_read) == (len(repository.requests), repository.body_bytes)
    found.close()


@pytest.mark.parametrize(
    ("path", "names", "only"),
    [
        ("sub", ["model.bin"], None),
        ("/sub/", ["model.bin"], None),
        ("sub/model.bin", ["model.bin"], "model.bin"),
        ("sub/deep", ["x.json"], None),
    ],
)
def test_a_folder_inside_is_a_folder_of_its_own(repository: Hub, path: str, names: list[str], only: str | None) -> None:
    found, file = opened(path)
    assert ([entry.name for entry in found.entries()], file) == (names, only)
    assert found.everything() == []
    assert found.open(names[0]).read(0, 2) in (b"12", b"{}")
    found.close()
    assert repository.requests


def test_a_very_large_repository_is_listed_page_by_page(repository: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_SIBLINGS", 3)
    repository.page_entries = 2
    found, _ = opened()
    assert set(found.listing) == set(FILES)
    assert found.listing["model.safetensors"].sha256
    assert found.open("config.json").read(0, 8) == FILES["config.json"]
    assert found.meter.requests == len(repository.requests) > 4
    found.close()


def test_a_size_that_is_not_told_makes_the_file_unreadable_and_no_other(repository: Hub) -> None:
    def forget(info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "siblings": [{**one, "size": None} if one["rfilename"] == "model.safetensors" else one for one in info["siblings"]]}

    repository.fault("edit", "/api/models/*", change=forget)
    found, _ = opened()
    assert found.entry("model.safetensors").refused == "is listed without its size"
    assert found.entry("config.json").refused == ""
    found.close()


def test_a_small_file_that_is_another_one_is_refused(repository: Hub) -> None:
    repository.fault("garbage", "*/config.json", method="GET", times=None, body=b'{"a": 2}')
    found, _ = opened()
    with pytest.raises(ReadError, match="not the file of the listing"):
        found.open("config.json").read(0, 8)
    found.close()


def test_requests_of_others_are_not_counted(repository: Hub) -> None:
    from huggingface_hub import HfApi

    mine, api = Meter(), HfApi(endpoint=repository.url)
    with counted(mine):
        api.model_info("org/model")
        other = threading.Thread(target=lambda: api.model_info("org/model"))
        other.start()
        other.join()
    api.model_info("org/model")
    assert len(repository.requests) == 3
    assert mine.requests == 1
    assert 0 < mine.bytes_read < repository.body_bytes


def test_what_huggingface_hub_says_of_retries_stays_inside(repository: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    repository.fault("status", "*/config.json", status=503, times=1)
    found, _ = opened()
    assert found.open("config.json").read(0, 8)
    found.close()
    assert capfd.readouterr() == ("", "")


def test_a_call_has_a_time_limit() -> None:
    stop = threading.Event()
    with pytest.raises(TookTooLong, match=r"0\.1 s"):
        bounded(lambda: stop.wait(30), 0.1)
    stop.set()
    assert bounded(lambda: 7, 5) == 7
    with pytest.raises(KeyError):
        bounded(lambda: {}["x"], 5)


@pytest.mark.parametrize("revision", ["v9", "main@{1}", "../main", "a b", "refs/pr/99"])
def test_a_revision_that_is_not_there_is_a_target_error(repository: Hub, revision: str) -> None:
    with pytest.raises(TargetError, match="revision"):
        opened(revision=revision)
    assert repository.requests


def test_the_cache_is_where_the_environment_says(repository: Hub) -> None:
    found, _ = opened()
    found.open("config.json").read(0, 1)
    found.close()
    [blob] = [file for file in Path(os.environ["HF_HUB_CACHE"]).rglob("blobs/*") if file.is_file()]
    assert blob.read_bytes() == FILES["config.json"]
    assert repository.requests
