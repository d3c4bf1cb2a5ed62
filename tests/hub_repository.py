"""This file holds what a test Hub serves: repositories made from local folders, commit by commit, and what the Hub's API says of them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a new repository's .gitattributes sends to LFS, as far as a model has it; anything larger than 10 MB goes there too.
LFS_SUFFIXES = tuple(".safetensors .bin .pt .pth .ckpt .gguf .onnx .onnx_data .h5 .msgpack .model .npz .npy .zip .gz .pkl .arrow".split())
LFS_NBYTES = 10_000_000
SPARSE_NBYTES = 256 << 20  # larger files with holes are not read in full for a digest
DATE = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a commit; `sha256` where it lies in LFS."""

    path: str
    file: Path
    nbytes: int
    oid: str
    sha256: str | None

    @property
    def etag(self) -> str:
        return f'"{self.sha256 or self.oid}"'

    @property
    def pointer(self) -> bytes:
        """What git holds in place of an LFS file: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md."""
        return pointer(self.sha256 or "", self.nbytes)

    def sibling(self, *, blobs: bool) -> dict[str, Any]:
        """As `model_info` lists it."""
        if not blobs:
            return {"rfilename": self.path}
        lfs = {"sha256": self.sha256, "size": self.nbytes, "pointerSize": len(self.pointer)}
        return {"rfilename": self.path, "size": self.nbytes, "blobId": self.oid} | ({"lfs": lfs} if self.sha256 else {})

    def listed(self) -> dict[str, Any]:
        """As the tree lists it: the digest's key differs from that of a sibling."""
        lfs = {"oid": self.sha256, "size": self.nbytes, "pointerSize": len(self.pointer)}
        return {"type": "file", "oid": self.oid, "size": self.nbytes, "path": self.path} | ({"lfs": lfs} if self.sha256 else {})


@dataclass(kw_only=True)
class Repository:
    """A model repository: `commit` adds states, `branches` and `tags` name them."""

    repo_id: str
    gated: bool = False
    private: bool = False
    disabled: bool = False
    tokens: set[str] = field(default_factory=set)  # that may read it where it is gated or private
    commits: dict[str, dict[str, Entry]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return self.branches["main"]

    def commit(self, folder: Path, *, branch: str = "main", tag: str | None = None) -> str:
        """The new commit's SHA; the branch moves to it. Every file of the folder belongs to it, links are followed."""
        files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
        entries = {entry.path: entry for entry in (_entry(file, file.relative_to(folder).as_posix()) for file in files)}
        state = json.dumps([self.repo_id, len(self.commits), [(entry.path, entry.oid) for entry in entries.values()]])
        sha = hashlib.sha1(state.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = entries
        self.branches[branch] = sha
        self.branches.setdefault("main", sha)
        if tag:
            self.tags[tag] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        """The full SHA of a branch, a tag or a full SHA; like the Hub's files, not of a short one."""
        return self.branches.get(revision) or self.tags.get(revision) or (revision if revision in self.commits else None)

    def info(self, sha: str, *, blobs: bool, expand: Iterable[str] = ()) -> dict[str, Any]:
        author, _, _ = self.repo_id.rpartition("/")
        document = {
            "_id": hashlib.sha1(self.repo_id.encode(), usedforsecurity=False).hexdigest()[:24],
            "id": self.repo_id,
            "modelId": self.repo_id,
            "author": author or None,
            "sha": sha,
            "lastModified": DATE,
            "createdAt": DATE,
            "private": self.private,
            "gated": "manual" if self.gated else False,
            "disabled": self.disabled,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [entry.sibling(blobs=blobs) for entry in self.commits[sha].values()],
        }
        wanted = set(expand)
        return {key: value for key, value in document.items() if not wanted or key in wanted | {"_id", "id"}}

    def tree(self, sha: str, folder: str = "", *, recursive: bool, expand: bool = False) -> list[dict[str, Any]] | None:
        """Folders and files at or below a folder, None where there is no such folder."""
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        inside = {path: entry for path, entry in self.commits[sha].items() if path.startswith(prefix)}
        if prefix and not inside:
            return None
        rows = [_folder(path) for path in sorted({above for path in inside for above in _above(path) if above.startswith(prefix)})]
        rows += [entry.listed() for entry in inside.values()]
        rows = [row for row in rows if recursive or "/" not in row["path"].removeprefix(prefix)]
        more = {"lastCommit": {"id": sha, "title": "Upload", "date": DATE}} if expand else {}
        return [row | more for row in rows]

    def paths_info(self, sha: str, paths: Iterable[str]) -> list[dict[str, Any]]:
        """Unknown paths are left out without a word, as on the Hub."""
        rows = {row["path"]: row for row in self.tree(sha, recursive=True) or ()}
        return [rows[path.strip("/")] for path in paths if path.strip("/") in rows]

    def refs(self) -> dict[str, Any]:
        def rows(names: dict[str, str], stem: str) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{stem}/{name}", "targetCommit": sha} for name, sha in names.items()]

        return {"branches": rows(self.branches, "heads"), "tags": rows(self.tags, "tags"), "converts": [], "pullRequests": []}


def pointer(sha256: str, nbytes: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {nbytes}\n".encode()


def _entry(file: Path, path: str) -> Entry:
    status = file.stat()
    if path.endswith(LFS_SUFFIXES) or status.st_size > LFS_NBYTES:
        sha256 = _sha256(str(file), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return Entry(path=path, file=file, nbytes=status.st_size, oid=_blob_oid(pointer(sha256, status.st_size)), sha256=sha256)
    return Entry(path=path, file=file, nbytes=status.st_size, oid=_blob_oid(file.read_bytes()), sha256=None)


def _blob_oid(content: bytes) -> str:
    """Git's own name of a file's content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


@functools.cache
def _sha256(file: str, _device: int, _inode: int, nbytes: int, _mtime: int) -> str:
    """SHA-256 of a file, kept per state of the file because several tests serve the same one.

    Of large sparse files only what is written counts (each run with its offset): a stand-in, with which equal files written
    alike are still equal. Hundreds of sparse gigabytes cannot be hashed in a test.
    """
    with Path(file).open("rb") as stream:
        if nbytes < SPARSE_NBYTES or os.fstat(stream.fileno()).st_blocks * 512 > nbytes // 2:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(b"sparse %d" % nbytes)
        for start, stop in _written(stream.fileno(), nbytes):
            digest.update(b"%d" % start)
            for offset in range(start, stop, 1 << 20):
                digest.update(os.pread(stream.fileno(), min(1 << 20, stop - offset), offset))
        return digest.hexdigest()


def _written(descriptor: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The runs of a sparse file that are no holes."""
    stop = 0
    while stop < nbytes:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole up to the end
            return
        stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, stop


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest(), "size": 0, "path": path}


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
