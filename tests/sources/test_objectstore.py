"""Object stores by exact ranges: the same verdicts as from disk, few requests, and one line for what cannot be opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="an extra")

from builders import EMBED, HEAD, folder, matrix, safetensors, tied, torch_tensor, torch_zip
from s3_server import ObjectStore
from tieaudit import Report, TargetError, audit
from tieaudit.sources import objectstore

CASES = Path(__file__).parent.parent / "cases"
FILES = {"config.json": tied(vocab_size=4096), "model.safetensors": safetensors({EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64)})}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield server
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def verdicts(report: Report) -> object:
    return (report.verdict, report.findings, report.ties, report.totals, report.files, report.skipped, report.not_compared)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["ok_tied_no_head", "warn_dup", "err_diverged", "err_formats_differ", "warn_index_orphan", "err_bad_header_dtype"]
)
def test_a_case_in_s3_gets_the_findings_that_it_gets_on_disk(store: ObjectStore, name: str) -> None:
    url = store.put(f"bucket/cases/{name}", CASES / name)
    assert verdicts(audit(url, verify="full")) == verdicts(audit(CASES / name))


@pytest.mark.filterwarnings("ignore")
def test_ranges_are_exact(store: ObjectStore, tmp_path: Path) -> None:
    state = {EMBED: torch_tensor(matrix(1, 4096, 64)), "layers.0.weight": torch_tensor(matrix(2, 512, 64))}
    url = store.put("bucket/m", folder(tmp_path, {**FILES, "other.bin": torch_zip(state)}))
    report = audit(url)
    assert [finding.code for finding in report.findings] == ["TIE002"]
    assert report.findings[0].evidence == "sampled"
    reads = [request for request in store.requests if request.range]
    assert sum(request.body_bytes for request in reads) == report.cost.bytes_read < 400_000 < sum(nbytes for _, nbytes in report.files)
    assert len(reads) <= 10


@pytest.mark.filterwarnings("ignore")
def test_a_single_file_is_a_target_with_its_config(store: ObjectStore, tmp_path: Path) -> None:
    url = store.put("bucket/single", folder(tmp_path, FILES))
    report = audit(f"{url}/model.safetensors")
    assert [finding.code for finding in report.findings] == ["TIE002"]
    assert report.revision is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/nothing/here", "no such file or folder"),
        ("s3://no-such-bucket/x", "no such file or folder"),
        ("nonsense://x/y", "cannot be opened"),
    ],
)
def test_what_is_not_there_is_one_line(store: ObjectStore, tmp_path: Path, url: str, words: str) -> None:
    store.put("bucket/any", folder(tmp_path, FILES))
    with pytest.raises(TargetError, match=words) as error:
        audit(url)
    assert "\n" not in str(error.value)


def test_any_file_system_of_fsspec_is_read() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, content in FILES.items():
        memory.pipe_file(f"/tieaudit/{name}", content)
    try:
        report = audit("memory://tieaudit")
        assert [finding.code for finding in report.findings] == ["TIE002"]
        # info, listing, config, header, ends of both (their begins came along or are near)
        assert report.cost.requests <= 8
        assert report.cost.bytes_read < 200_000
    finally:
        memory.rm("/tieaudit", recursive=True)


class Broken:
    """A file system whose reads fail as `fault` says."""

    def __init__(self, fault: Any) -> None:
        self.fault = fault

    def cat_file(self, _path: str, start: int, end: int) -> bytes:
        return self.fault(start, end) if callable(self.fault) else self._raise()

    def _raise(self) -> bytes:
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "words", "calls"),
    [
        (RuntimeError("slow down\nplease"), "slow down", 3),
        (PermissionError("denied"), "denied", 1),
        (lambda start, end: bytes(end - start - 1), "gave 9 of 10 bytes", 1),
        (lambda *_: __import__("time").sleep(5), "0.2 s", 1),
    ],
    ids=["error", "denied", "short", "stall"],
)
def test_a_read_that_fails_is_a_read_error(fault: Any, words: str, calls: int) -> None:
    from tieaudit.errors import ReadError
    from tieaudit.sources import Meter

    store = objectstore.ObjectStore(system=Broken(fault), root="b", meter=Meter(), seconds=0.2)
    with pytest.raises(ReadError) as error:
        store.fetch("x", 0, 10)
    assert words in str(error.value)
    assert store.meter.requests == calls


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(TargetError, match=r"pip install 'tieaudit\[fsspec\]'"):
        audit("s3://bucket/x")
    assert os.environ
