"""What must never happen: an original that is touched, a half result, a link that is followed out, a proof that is out of date."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fix_reading import everything

from builders import EMBED, HEAD, folder, index, matrix, safetensors, tied, torch_tensor, torch_zip
from tieaudit import apply_fix, audit, plan_fix
from tieaudit.errors import OptionError, TargetError
from tieaudit.fix import files

WEIGHTS = "model.safetensors"
SRC = Path(__file__).parent.parent.parent / "src"
ROOT = os.geteuid() == 0


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A repeated tie, with what else stands in such a folder."""
    content = {
        "config.json": tied(),
        WEIGHTS: safetensors({EMBED: matrix(1), HEAD: matrix(1), "norm.weight": matrix(2)}, {"format": "pt"}),
        "README.md": b"---\nlicense: mit\n---\n",
        "tokenizer.json": b"{}",
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "onnx/notes.txt": b"\0\xff",
        "deep/er/a.bin.txt": b"a" * 5000,
    }
    (tmp_path / "in" / "empty").mkdir(parents=True)
    return folder(tmp_path / "in", content)


def untouched(broken: Path, before: dict[str, bytes]) -> None:
    assert everything(broken) == before
    assert [path.name for path in broken.parent.iterdir()] == ["in"]


def test_everything_else_is_carried_over_with_its_mode(broken: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(broken.rglob("*"))):
        path.chmod((0o700 if path.is_dir() else 0o400) | number % 0o77)
    broken.chmod(0o750)
    before = everything(broken)
    apply_fix(plan_fix(broken), tmp_path / "out")
    after = everything(tmp_path / "out")
    assert set(after) == set(before)
    assert {name for name in before if after[name] != before[name]} == {WEIGHTS}
    modes = {path.relative_to(broken): stat.S_IMODE(path.stat().st_mode) for path in (broken, *broken.rglob("*"))}
    assert {path.relative_to(tmp_path / "out"): stat.S_IMODE(path.stat().st_mode) for path in
            (tmp_path / "out", *(tmp_path / "out").rglob("*"))} == modes  # fmt: skip


def test_read_only_folders_are_no_hindrance(broken: Path, tmp_path: Path) -> None:
    (broken / "deep" / "er").chmod(0o500)
    (broken / "deep").chmod(0o500)
    try:
        apply_fix(plan_fix(broken), tmp_path / "out")
        assert (tmp_path / "out" / "deep" / "er" / "a.bin.txt").read_bytes() == b"a" * 5000
        assert stat.S_IMODE((tmp_path / "out" / "deep").stat().st_mode) == 0o500
    finally:
        for top in (broken, tmp_path / "out"):
            (top / "deep").chmod(0o700)
            (top / "deep" / "er").chmod(0o700)


def test_in_place_keeps_the_original_beside_it(broken: Path) -> None:
    before = everything(broken)
    fixed = apply_fix(plan_fix(broken), in_place=True)
    assert fixed.backup == str(broken) + ".before-fix"
    assert everything(Path(fixed.backup)) == before
    assert audit(broken).findings == ()
    assert sorted(path.name for path in broken.parent.iterdir()) == ["in", "in.before-fix"]
    # again broken, again fixed: the first backup stays
    (broken / WEIGHTS).write_bytes(before[WEIGHTS])
    assert apply_fix(plan_fix(broken), in_place=True).backup == str(broken) + ".before-fix-2"
    assert everything(Path(fixed.backup)) == before


def test_in_place_where_names_cannot_be_swapped_at_one_stroke(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "exchange", lambda *_: False)
    before = everything(broken)
    fixed = apply_fix(plan_fix(broken), in_place=True)
    assert everything(Path(fixed.backup)) == before
    assert audit(broken).findings == ()


def test_one_file(broken: Path, tmp_path: Path) -> None:
    before = everything(broken)
    fixed = apply_fix(plan_fix(broken / WEIGHTS), tmp_path / "out.safetensors")
    assert fixed.after is not None
    assert fixed.after.findings == ()
    assert everything(broken) == before
    assert set(safetensors_names(tmp_path / "out.safetensors")) == {EMBED, "norm.weight"}
    fixed = apply_fix(plan_fix(broken / WEIGHTS), in_place=True)
    assert Path(fixed.backup).read_bytes() == before[WEIGHTS]
    assert (broken / WEIGHTS).read_bytes() == (tmp_path / "out.safetensors").read_bytes()


def safetensors_names(path: Path) -> list[str]:
    data = path.read_bytes()
    return [name for name in json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]) if name != "__metadata__"]


def test_one_file_whose_config_must_change(tmp_path: Path) -> None:
    folder(tmp_path / "in", {"config.json": tied(), WEIGHTS: safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    plan = plan_fix(tmp_path / "in" / WEIGHTS, untie=True)
    assert plan.verdict == "refused"
    assert plan.refusals[0].what == f"config.json must change with {WEIGHTS}: name the folder"


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling"])
def test_what_is_at_out_stays(kind: str, broken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_bytes(b"mine")
    elif kind == "folder":
        folder(out, {"mine.txt": b"mine"})
    else:
        (tmp_path / "elsewhere").mkdir() if kind == "link" else None
        out.symlink_to("elsewhere")
    with pytest.raises(TargetError, match="is there already"):
        apply_fix(plan_fix(broken), out)
    assert out.is_symlink() or out.is_file() or (out / "mine.txt").read_bytes() == b"mine"


def test_an_empty_folder_at_out_is_taken(broken: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    apply_fix(plan_fix(broken), tmp_path / "out")
    assert audit(tmp_path / "out").findings == ()


@pytest.mark.parametrize("name", ["in/out", "in/deep/out", "in"])
def test_out_inside_the_target(name: str, broken: Path, tmp_path: Path) -> None:
    before = everything(broken)
    with pytest.raises(TargetError, match=r"lies inside|is there already"):
        apply_fix(plan_fix(broken), tmp_path / name)
    untouched(broken, before)


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _same_length(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _same_time(path: Path) -> None:
    """As a tool writes that puts the old time back."""
    told = path.stat()
    _same_length(path)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def _replaced(path: Path) -> None:
    told, data = path.stat(), path.read_bytes()
    path.unlink()
    path.with_name("keeps-the-inode").write_bytes(b"")
    path.write_bytes(data)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    path.with_name("keeps-the-inode").unlink()


@pytest.mark.parametrize("change", [_grow, _same_length, _same_time, _replaced, Path.unlink])
@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "README.md"])
def test_a_file_that_changed_since_the_plan(change: Callable[[Path], None], name: str, broken: Path, tmp_path: Path) -> None:
    plan = plan_fix(broken)
    change(broken / name)
    with pytest.raises(TargetError, match=r"was changed since the plan|cannot be read"):
        apply_fix(plan, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_proof_that_no_longer_holds(tmp_path: Path) -> None:
    """Bytes in the middle of a large matrix change, and every sign of it is wiped out: the second look at the bytes finds it."""
    big = matrix(1, 65_536, 64)
    path = folder(tmp_path / "in", {"config.json": tied(vocab_size=65_536), WEIGHTS: safetensors({EMBED: big, HEAD: big})}) / WEIGHTS
    plan = plan_fix(tmp_path / "in")
    told = path.stat()
    with path.open("r+b") as file:
        file.seek(12_000_000)
        file.write(b"\x55\x55\x55")
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    stale = plan_fix(tmp_path / "in", untie=True).seen
    with pytest.raises(TargetError, match="is not what it was when the plan was made"):
        apply_fix(replace(plan, seen=stale), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("link", ["outside-file", "outside-folder", "dangling", "fifo"])
def test_nothing_is_followed_out(link: str, broken: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    if link == "fifo":
        os.mkfifo(broken / "x")
    else:
        targets = {"outside-file": "../secret/key", "outside-folder": "../secret", "dangling": "nowhere"}
        (broken / "x").symlink_to(targets[link])
    with pytest.raises(TargetError, match=r"x is |x cannot"):
        plan_fix(broken)


def test_links_inside(broken: Path, tmp_path: Path) -> None:
    (broken / "again.md").symlink_to("README.md")
    (broken / "again").symlink_to("deep")
    apply_fix(plan_fix(broken), tmp_path / "out")
    assert (tmp_path / "out" / "again.md").read_bytes() == (broken / "README.md").read_bytes()
    assert not (tmp_path / "out" / "again.md").is_symlink()
    assert (tmp_path / "out" / "again").readlink() == Path("deep")


def test_a_snapshot_of_the_hub_cache(broken: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, name in enumerate(["config.json", WEIGHTS]):
        (blobs / str(number)).write_bytes((broken / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    before = everything(tmp_path / "models--x")
    plan = plan_fix(snapshot)
    with pytest.raises(TargetError, match="is a snapshot of the Hub cache"):
        apply_fix(plan, in_place=True)
    apply_fix(plan, tmp_path / "out")
    assert everything(tmp_path / "models--x") == before
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert audit(tmp_path / "out").findings == ()


@pytest.mark.parametrize("name", ["../in2/x.safetensors", "/etc/passwd", "a\0b", "..", "sub/../../x.safetensors"])
def test_hostile_names_in_an_index(name: str, tmp_path: Path) -> None:
    files_in = {
        "config.json": tied(),
        "model.safetensors.index.json": index({EMBED: "one.safetensors", HEAD: "one.safetensors", "evil": name}, 9),
        "one.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)}),
    }
    folder(tmp_path / "in", files_in)
    folder(tmp_path / "in2", {"x.safetensors": b"outside"})
    plan = plan_fix(tmp_path / "in")
    if plan.verdict == "ready":
        apply_fix(plan, tmp_path / "out")
    assert everything(tmp_path / "in2") == {"x.safetensors": b"outside"}
    assert everything(tmp_path / "in") == files_in


def test_hostile_tensor_names_survive(tmp_path: Path) -> None:
    names = ["../x", "a\n\x1b]8;;", "<script>", "=cmd()", "é\u202e", "a" * 10_000]
    weights = {EMBED: matrix(1), HEAD: matrix(1)} | {name: np.full(3, number, np.float32) for number, name in enumerate(names)}
    folder(tmp_path / "in", {"config.json": tied(), WEIGHTS: safetensors(weights)})
    apply_fix(plan_fix(tmp_path / "in"), tmp_path / "out")
    assert set(safetensors_names(tmp_path / "out" / WEIGHTS)) == {EMBED, *names}


LIMITED = """
import resource, sys
from tieaudit import apply_fix, plan_fix
from tieaudit.errors import TargetError
plan = plan_fix(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    apply_fix(plan, sys.argv[2] or None, in_place=not sys.argv[2])
except TargetError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [0, 100, 1500, 100_000])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_full_disk(kind: str, in_place: bool, limit: int, tmp_path: Path) -> None:
    big = matrix(1, 1024, 64)
    shared = {EMBED: torch_tensor(big), HEAD: torch_tensor(big)}
    weights = {WEIGHTS: safetensors({EMBED: big, HEAD: big})} if kind == "safetensors" else {"pytorch_model.bin": torch_zip(shared)}
    source = folder(tmp_path / "in", {"config.json": tied(vocab_size=1024), **weights})
    before = everything(source)
    args = [sys.executable, "-c", LIMITED, str(source), "" if in_place else str(tmp_path / "out"), str(limit)]
    done = subprocess.run(args, env=os.environ | {"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "File too large" in done.stdout
    untouched(source, before)


def test_a_disk_that_is_nearly_full(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(broken)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: files.shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(TargetError, match="bytes are needed, 5 are free"):
        apply_fix(plan_fix(broken), tmp_path / "out")
    untouched(broken, before)


def test_a_small_tmpfs(broken: Path, tmp_path: Path) -> None:
    """A disk with 64 KiB: the check of what is free is switched off, so that the writing itself meets the end."""
    big = folder(tmp_path / "in", {WEIGHTS: safetensors({EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64)})})
    before = everything(broken)
    disk = tmp_path / "disk"
    disk.mkdir()
    code = (
        "import sys; from tieaudit import apply_fix, plan_fix; from tieaudit.fix import files; files.SPARE = -10**9\n"
        "try: apply_fix(plan_fix(sys.argv[1], tie='embed'), sys.argv[2])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "import os; print(os.listdir(os.path.dirname(sys.argv[2])))"
    )
    script = f'mount -t tmpfs -o size=64k tmpfs "{disk}" && exec "$0" -c "$1" "{big}" "{disk}/out"'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, sys.executable, code],
                          env=os.environ | {"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False)  # fmt: skip
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("this machine does not let a test mount a disk")
    assert done.stdout.splitlines()[0].startswith("TargetError")
    assert "No space left" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    assert everything(broken) == before


def test_a_result_that_is_worse_is_not_put_in_place(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tieaudit.fix.writers import safetensors as writer

    before = everything(broken)
    own = writer.write

    def careless(rewrite: object, inputs: object, out: int) -> None:
        own(rewrite, inputs, out)  # type: ignore[arg-type]
        os.pwrite(out, b"X", 20)

    monkeypatch.setattr(writer, "write", careless)
    with pytest.raises((TargetError, ValueError), match=r"put in place|as written"):
        apply_fix(plan_fix(broken), tmp_path / "out")
    untouched(broken, before)


def test_what_is_no_target(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "nowhere", "org/model", "https://example.org/x", ""):
        with pytest.raises(TargetError):
            plan_fix(target)
    with pytest.raises(OptionError, match="--drop"):
        plan_fix(tmp_path, drop="everything")
    with pytest.raises(OptionError, match="opposite"):
        plan_fix(tmp_path, untie=True, tie="head")


def test_out_or_in_place(broken: Path, tmp_path: Path) -> None:
    plan = plan_fix(broken)
    for arguments in ({}, {"out": tmp_path / "out", "in_place": True}):
        with pytest.raises(TargetError, match="either -o OUT or --in-place"):
            apply_fix(plan, **arguments)  # type: ignore[arg-type]
