"""Files on this machine: what is opened, what is refused, and in which words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from builders import EMBED, config, folder, index, matrix, safetensors, tied
from tieaudit import TargetError, audit
from tieaudit.errors import FormatError
from tieaudit.sources.local import MAX_OPEN_FILES, LocalFolder

CONTENT = b"0123456789"
LEAVES = "leaves the folder: not opened"


def refusal(path: Path, name: str) -> str:
    """Why the folder does not open the name; both ways of asking must agree."""
    opened = LocalFolder(path)
    with pytest.raises(FormatError) as told:
        opened.open(name)
    assert told.value.what == opened.entry(name).refused
    return told.value.what


def readable(path: Path, name: str) -> bytes:
    opened = LocalFolder(path)
    try:
        source = opened.open(name)
        return source.read(0, source.nbytes)
    finally:
        opened.close()


# names


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//etc/passwd", "a\\b", "..\\x", "C:\\x", "\0", "a\0b", "\0/etc/passwd"]
)
def test_a_name_that_could_leave_the_folder_is_refused_before_anything_is_looked_at(tmp_path: Path, name: str) -> None:
    assert LEAVES in refusal(folder(tmp_path / "in", {"a/x": CONTENT}), name)


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "x", "\ud800", "nothing", "f/x", "x\n"])
def test_a_name_that_cannot_be_is_a_format_error(tmp_path: Path, name: str) -> None:
    assert "cannot be read" in refusal(folder(tmp_path, {"f": CONTENT}), name)


def test_a_name_in_a_folder_below_is_opened(tmp_path: Path) -> None:
    assert readable(folder(tmp_path, {"sub/x": CONTENT}), "sub/x") == CONTENT


def test_names_that_are_not_utf8_are_opened(tmp_path: Path) -> None:
    name = os.fsdecode(b"m\xff.safetensors")
    (tmp_path / name).write_bytes(CONTENT)
    assert readable(tmp_path, name) == CONTENT


@pytest.mark.parametrize("name", ["../x", "/etc", "\0"])
def test_exists_probes_nothing_outside_the_folder(tmp_path: Path, name: str) -> None:
    assert LocalFolder(tmp_path).exists(name)  # so that it is opened, and refused in words


# links


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    folder(tmp_path, {"sub/real": CONTENT})
    (tmp_path / "link").symlink_to("sub/real")
    (tmp_path / "again").symlink_to("link")
    assert readable(tmp_path, "again") == CONTENT


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "../in-name-only/secret"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    inside = folder(tmp_path, {"secret": CONTENT, "in-name-only/secret": CONTENT, "in/x": CONTENT}) / "in"
    (inside / "link").symlink_to(target)
    assert LEAVES in refusal(inside, "link")


def test_a_link_to_a_folder_that_leads_out_is_refused(tmp_path: Path) -> None:
    inside = folder(tmp_path, {"out/secret": CONTENT, "in/x": CONTENT}) / "in"
    (inside / "sub").symlink_to("../out")
    assert LEAVES in refusal(inside, "sub/secret")


def test_links_that_go_in_circles_or_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("nowhere")
    for name in "abc":
        assert "cannot be read" in refusal(tmp_path, name)


def test_a_link_to_itself_is_one_refused_file_of_the_listing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "x").write_bytes(CONTENT)
    assert [(entry.name, bool(entry.refused)) for entry in LocalFolder(tmp_path).entries()] == [("loop", True), ("x", False)]


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    folder(tmp_path / "real", {"x": CONTENT})
    (tmp_path / "link").symlink_to("real")
    assert readable(tmp_path / "link", "x") == CONTENT


def hub_cache(path: Path) -> Path:
    """The snapshot of a Hub cache, made as huggingface_hub makes it."""
    model = path / "models--org--name"
    files = {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})}
    folder(model / "blobs", {f"{number:064x}": content for number, content in enumerate(files.values())})
    folder(model / "refs", {"main": b"abc"})
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, name in enumerate(files):
        (snapshot / name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot


def test_a_snapshot_of_the_hub_cache_is_read_as_a_folder_and_by_its_file(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path)
    for target in (snapshot, snapshot / "model.safetensors"):
        report = audit(target)
        assert report.verdict == "ok"
        assert [tie.claim for tie in report.ties] == ["tied"]  # so config.json beside the link was read too


def test_a_blob_of_the_hub_cache_is_read_when_it_is_named_itself(tmp_path: Path) -> None:
    blob = (hub_cache(tmp_path) / "model.safetensors").resolve()
    assert audit(blob).totals.tensors == 1


def test_a_link_from_elsewhere_to_a_snapshot_is_followed(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path / "cache")
    (tmp_path / "model").symlink_to(snapshot)
    assert audit(tmp_path / "model").verdict == "ok"
    assert audit(tmp_path / "model" / "model.safetensors").verdict == "ok"


def test_a_link_of_a_snapshot_to_the_blobs_of_another_model_is_refused(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path)
    folder(tmp_path / "models--other--name/blobs", {"secret": CONTENT})
    (snapshot / "link").symlink_to("../../../models--other--name/blobs/secret")
    assert LEAVES in refusal(snapshot, "link")


def test_a_link_of_a_snapshot_to_another_file_of_its_cache_is_refused(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path)
    (snapshot / "link").symlink_to("../../refs/main")
    assert LEAVES in refusal(snapshot, "link")


def test_a_file_that_is_a_link_to_elsewhere_is_audited_where_it_lies(tmp_path: Path) -> None:
    folder(tmp_path / "store", {"model.safetensors": safetensors({EMBED: matrix(1)}), "config.json": tied()})
    (tmp_path / "link.safetensors").symlink_to("store/model.safetensors")
    assert audit(tmp_path / "link.safetensors").verdict == "ok"


# what is no regular file


def odd(path: Path, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()


@pytest.fixture
def short() -> Path:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket"])
def test_only_regular_files_are_opened(short: Path, kind: str) -> None:
    odd(short / "x", kind)
    assert refusal(short, "x") == f"is not a regular file but a {kind}"


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    odd(tmp_path / "x", "device")
    assert LEAVES in refusal(tmp_path, "x")


def test_a_device_is_named_as_one() -> None:
    assert refusal(Path("/dev"), "null") == "is not a regular file but a device"


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.json"])
def test_an_audit_of_a_folder_with_an_odd_file_ends_and_says_so(short: Path, kind: str, name: str) -> None:
    files = {"config.json": tied(), "model-00001-of-00001.safetensors": safetensors({EMBED: matrix(1)}), "tokenizer.json": b"{}"}
    folder(short, {other: content for other, content in files.items() if other != name})
    odd(short / name, kind)
    report = audit(short)
    if name == "tokenizer.json":
        assert report.verdict == "ok"
    else:
        assert any(finding.code == "TIE501" and finding.message.startswith(name) for finding in report.findings)


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_an_odd_file_as_the_target_is_refused(tmp_path: Path, kind: str) -> None:
    odd(tmp_path / "x", kind)
    with pytest.raises(TargetError, match="neither a folder nor a regular file"):
        audit(tmp_path / "x")


def test_a_folder_named_model_safetensors_is_not_taken_for_weights(tmp_path: Path) -> None:
    folder(tmp_path, {"model.safetensors/x": CONTENT})
    with pytest.raises(TargetError, match="no checkpoint here"):
        audit(tmp_path)


def test_a_fifo_that_takes_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    opened = LocalFolder(folder(tmp_path, {"x": CONTENT}))
    source = opened.open("x")
    (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / "x")
    with pytest.raises(FormatError, match="is not a regular file"):
        source.read(0, 1)


# reading


def test_reads_are_exact_and_counted(tmp_path: Path) -> None:
    opened = LocalFolder(folder(tmp_path, {"x": CONTENT}))
    source = opened.open("x")
    assert (source.read(0, 10), source.read(3, 4), source.read(10, 0)) == (CONTENT, b"3456", b"")
    buffer = bytearray(4)
    source.read_into(6, memoryview(buffer))
    assert buffer == b"6789"
    assert (opened.meter.requests, opened.meter.bytes_read) == (4, 18)
    opened.close()


@pytest.mark.parametrize(("offset", "n"), [(0, 11), (10, 1), (11, 0), (-1, 1), (0, -1), (5, -1), (1 << 70, 1), (0, 1 << 70)])
def test_reads_beyond_the_file_are_format_errors(tmp_path: Path, offset: int, n: int) -> None:
    source = LocalFolder(folder(tmp_path, {"x": CONTENT})).open("x")
    with pytest.raises(FormatError, match="ends at byte 10"):
        source.read(offset, n)


def test_a_file_that_shrinks_while_it_is_read_is_a_format_error(tmp_path: Path) -> None:
    opened = LocalFolder(folder(tmp_path, {"x": CONTENT}))
    source = opened.open("x")
    assert source.read(0, 1) == b"0"
    os.truncate(tmp_path / "x", 5)
    assert source.read(0, 5) == b"01234"
    for read in (lambda: source.read(3, 4), lambda: source.read_into(3, memoryview(bytearray(4)))):
        with pytest.raises(FormatError, match="gave 2 of 4 bytes: was it changed meanwhile"):
            read()
    opened.close()


def test_a_file_that_is_gone_is_a_format_error(tmp_path: Path) -> None:
    source = LocalFolder(folder(tmp_path, {"x": CONTENT})).open("x")
    (tmp_path / "x").unlink()
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        source.read(0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_file_without_permission_is_a_format_error(tmp_path: Path) -> None:
    folder(tmp_path, {"model.safetensors": CONTENT})
    (tmp_path / "model.safetensors").chmod(0)
    report = audit(tmp_path)
    assert [finding.code for finding in report.findings] == ["TIE501"]
    assert "Permission denied" in report.findings[0].message


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir(mode=0)
    with pytest.raises(TargetError, match="Permission denied"):
        audit(tmp_path / "in")


def test_more_files_than_may_be_open_are_all_read_and_few_are_open(tmp_path: Path) -> None:
    count = 2 * MAX_OPEN_FILES + 3
    opened = LocalFolder(folder(tmp_path, {f"{n:03}": b"%03d" % n for n in range(count)}))
    sources = [opened.open(f"{n:03}") for n in range(count)]
    for _ in range(2):
        for n in [*range(count), *reversed(range(count))]:
            assert sources[n].read(0, 3) == b"%03d" % n
            assert len(opened._open) <= MAX_OPEN_FILES
    opened.close()
    assert not opened._open


SCRIPT = """
import os, resource, sys
from tieaudit import audit
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
before = sorted(os.listdir("/proc/self/fd"))
report = audit(sys.argv[1])
print(report.verdict, report.totals.tensors, sorted(os.listdir("/proc/self/fd")) == before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_two_hundred_shards_are_audited_with_a_hundred_descriptors_and_all_are_closed(tmp_path: Path) -> None:
    names = {f"layer.{n}.weight": f"model-{n + 1:05}-of-00200.safetensors" for n in range(200)}
    shards = {file: safetensors({name: matrix(n)}) for n, (name, file) in enumerate(names.items())}
    folder(tmp_path, {**shards, "model.safetensors.index.json": index(names), "config.json": config("Odd", "odd")})
    told = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True).stdout.split()
    assert told == ["ok", "200", "True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_descriptors_are_closed_when_an_audit_fails(tmp_path: Path) -> None:
    folder(tmp_path, {"model.safetensors": safetensors({EMBED: matrix(1)})})
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ZeroDivisionError):
        audit(tmp_path, progress=lambda *_: 1 // 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_entries_are_the_files_by_name_and_no_folders(tmp_path: Path) -> None:
    folder(tmp_path, {"b": b"12", "a": b"1", "sub/c": b"123", ".hidden": b""})
    (tmp_path / "out").symlink_to("/etc/passwd")
    entries = LocalFolder(tmp_path).entries()
    assert [(entry.name, entry.nbytes) for entry in entries] == [(".hidden", 0), ("a", 1), ("b", 2), ("out", 0)]
    assert LEAVES in entries[-1].refused
