"""fsspec and s3fs take the test store for S3, and its counts are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from s3_server import ObjectStore

DATA = bytes(range(256)) * 1024


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def url(store: ObjectStore, tmp_path: Path) -> str:
    (tmp_path / "sub").mkdir()
    (tmp_path / "model.safetensors").write_bytes(DATA)
    (tmp_path / "sub" / "config.json").write_text("{}")
    return store.put(f"bucket/{tmp_path.name}", tmp_path)


@pytest.fixture
def s3(store: ObjectStore) -> Iterator[Any]:
    filesystem = fsspec.filesystem("s3", **store.options, skip_instance_cache=True)
    yield filesystem
    filesystem.close_session(filesystem.loop, filesystem.s3)


def test_a_folder_is_found(s3, url):
    found = s3.find(url, detail=True)
    assert {name.removeprefix(url.removeprefix("s3://")): entry["size"] for name, entry in found.items()} == {
        "/model.safetensors": len(DATA),
        "/sub/config.json": 2,
    }


def test_a_range_costs_its_bytes(store, s3, url):
    # by keyword: the second positional argument of s3fs is a version
    assert s3.cat_file(f"{url}/model.safetensors", start=1000, end=1016) == DATA[1000:1016]
    (request,) = (request for request in store.requests if request.method == "GET")
    assert (request.status, request.range, request.body_bytes) == (206, "bytes=1000-1015", 16)


def test_missing_files_and_buckets_are_missing(s3, url):
    for missing in (f"{url}/absent.bin", "s3://no-such-bucket/x"):
        with pytest.raises(FileNotFoundError):
            s3.info(missing)


def test_another_process_finds_it_by_its_environment(store, url):
    code = "import fsspec, sys; fs, path = fsspec.url_to_fs(sys.argv[1]); print(fs.cat_file(path, start=0, end=4))"
    env = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")} | store.environment
    done = subprocess.run(
        [sys.executable, "-c", code, f"{url}/model.safetensors"], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{DATA[:4]!r}\n"
