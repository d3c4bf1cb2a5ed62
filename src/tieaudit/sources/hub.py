"""Files of a repository on the Hugging Face Hub, by ranges, at one commit.

One call of the API lists everything: names, sizes, SHA-256 of what lies in LFS, and the commit, which every later request
names. Weights come by range (`http.py`), small files through `hf_hub_download`, so that a second audit finds them in the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi, constants, errors, hf_hub_download
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from .. import __version__
from ..errors import ReadError, TargetError
from . import Entry, Meter, stays
from .http import AGAIN, RangeClient, Remote
from .hub_calls import answered, as_read_error, as_target_error
from .local import LocalFolder
from .patience import TookTooLong
from .remote import RemoteFolder

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # git's SHA-1 or SHA-256: it becomes a part of URLs and of paths in the cache
MAX_SIBLINGS = 50_000  # from here on the API's list may be cut (huggingface_hub's own VERY_LARGE_REPO_THRESHOLD)
PAUSES = (0.4, 1.2)  # seconds between tries of the listing


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTarget:
    """What was asked for: `path` is a folder or file in the repository, "" for its top."""

    words: str
    repo_id: str
    revision: str | None = None
    path: str = ""


@dataclass(slots=True, kw_only=True)
class HubStore:
    """Bytes of one repository at one commit. Names are relative to `prefix`."""

    target: HubTarget
    repo_id: str
    commit: str
    endpoint: str
    prefix: str
    meter: Meter
    seconds: float
    entries: dict[str, Entry] = field(default_factory=dict)
    oids: dict[str, str] = field(default_factory=dict)
    _client: RangeClient | None = None
    _headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._client = RangeClient(self.meter, self.seconds)
        self._headers = build_hf_headers(library_name="tieaudit", library_version=__version__)

    def fetch(self, name: str, offset: int, n: int) -> bytes:
        entry = self.entries[name]
        url = f"{self.endpoint}/{self.repo_id}/resolve/{self.commit}/{quote(self.prefix + name)}"
        marks = {"X-Repo-Commit": self.commit, "X-Linked-Size": str(entry.nbytes)}
        if entry.sha256:
            marks["X-Linked-Etag"] = entry.sha256
        if self._client is None:
            raise ReadError(name, "cannot be read: the audit has ended")
        try:
            return self._client.read(Remote(name=name, url=url, nbytes=entry.nbytes, headers=self._headers, marks=marks), offset, n)
        except TargetError as error:
            raise TargetError(self.target.words, error.what, error.advice) from None

    def whole(self, entry: Entry) -> bytes:
        path = self.prefix + entry.name
        deadline = time.monotonic() + self.seconds
        try:
            try:
                content = self._download(path, deadline)
            except (httpx2.TransportError, RuntimeError, OSError) as error:
                # huggingface_hub closes its one client for everybody when one of its callers cannot connect: that passes
                if isinstance(error, (errors.HfHubHTTPError, errors.EntryNotFoundError, PermissionError)):
                    raise
                content = self._download(path, deadline)
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.DisabledRepoError) as error:
            raise as_target_error(error, self.target.words, self.target.revision, self.endpoint) from None
        except (errors.EntryNotFoundError, errors.HfHubHTTPError, httpx2.HTTPError, TookTooLong, ValueError, RuntimeError) as error:
            raise as_read_error(error, entry.name) from None
        except OSError:  # a cache that cannot be written must not keep anybody from reading
            content = self.fetch(entry.name, 0, entry.nbytes) if entry.nbytes else b""
        if len(content) != entry.nbytes or not self._is_listed(entry, content):
            raise ReadError(entry.name, f"is not the file of the listing (a broken copy in the cache at {_cache()}? delete it)")
        return content

    def close(self) -> None:
        if self._client:
            self._client.close()

    def _download(self, path: str, deadline: float) -> bytes:
        def call() -> str:
            return hf_hub_download(
                self.repo_id, path, revision=self.commit, endpoint=self.endpoint, cache_dir=_cache(), library_name="tieaudit",
                library_version=__version__, etag_timeout=min(10.0, self.seconds),
            )  # fmt: skip

        return Path(answered(call, self.meter, max(0.1, deadline - time.monotonic()))).read_bytes()

    def _is_listed(self, entry: Entry, content: bytes) -> bool:
        """By git's name of the content, or by the SHA-256 of what lies in LFS."""
        if entry.sha256:
            return hashlib.sha256(content).hexdigest() == entry.sha256
        oid = self.oids.get(entry.name, "")
        ours = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
        return len(oid) != len(ours) or oid == ours


def open_target(target: HubTarget, seconds: float, meter: Meter) -> tuple[RemoteFolder, str | None]:
    """(the folder at its commit, the one file that was asked for). TargetError if there is nothing to open."""
    disable_progress_bars()  # stderr is ours
    endpoint = _endpoint()
    deadline = time.monotonic() + seconds
    api = HfApi(endpoint=endpoint, library_name="tieaudit", library_version=__version__)
    info = _asked(
        lambda: api.model_info(target.repo_id, revision=target.revision, files_metadata=True, timeout=min(10.0, seconds)),
        target, endpoint, deadline, meter,
    )  # fmt: skip
    commit, siblings = getattr(info, "sha", None), getattr(info, "siblings", None)
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or siblings is None:
        raise TargetError(target.words, f"{endpoint} gave an answer without a commit or without files", "check HF_ENDPOINT")
    if not siblings:
        raise TargetError(target.words, "is empty", "there is nothing to audit")
    repo_id = info.id if isinstance(info.id, str) and info.id else target.repo_id  # the name that it has now
    if len(siblings) >= MAX_SIBLINGS:
        rows = _asked(lambda: list(api.list_repo_tree(repo_id, recursive=True, revision=commit)), target, endpoint, deadline, meter)
        siblings = [row for row in rows if hasattr(row, "size")]
    entries, oids = _entries(siblings)
    prefix, only = _place(target, entries)
    below = {name.removeprefix(prefix): replace(entry, name=name.removeprefix(prefix)) for name, entry in entries.items()
             if name.startswith(prefix)}  # fmt: skip
    store = HubStore(
        target=target, repo_id=repo_id, commit=commit, endpoint=endpoint, prefix=prefix, meter=meter, seconds=seconds, entries=below,
        oids={name.removeprefix(prefix): oid for name, oid in oids.items() if name.startswith(prefix)},
    )  # fmt: skip
    return RemoteFolder(store, below, meter, commit, partial=bool(prefix)), only


def open_cached(target: HubTarget) -> tuple[LocalFolder, str | None]:
    """The same from the local Hub cache, without network."""
    cache = Path(_cache()) / ("models--" + target.repo_id.replace("/", "--"))
    revision = target.revision or "main"
    advice = f"without --offline it is looked up on the Hub; the cache is {_cache()}"
    if not stays(revision):
        raise TargetError(target.words, f"has no revision {revision!r}", "--revision takes a branch, a tag or a full commit")
    if not cache.is_dir():
        raise TargetError(target.words, "no such folder here, and no such repository in the local Hub cache", advice)
    try:
        commit = (cache / "refs" / revision).read_text("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = cache / "snapshots" / commit
    if not stays(commit) or not snapshot.is_dir():
        raise TargetError(target.words, f"its revision {revision!r} is not in the local Hub cache", advice)
    place = snapshot / target.path
    if target.path and not (stays(target.path) and place.exists()):
        raise TargetError(target.words, f"{target.path} is not in the cached snapshot", advice)
    folder, only = (place.parent, place.name) if place.is_file() else (place, None)
    return LocalFolder(folder, revision=commit), only


def is_offline() -> bool:
    """True if the environment says so (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    return constants.is_offline_mode()


def _asked(call: Any, target: HubTarget, endpoint: str, deadline: float, meter: Meter) -> Any:
    """The API's answer; what may be otherwise the next time is asked again."""
    for pause in (*PAUSES, None):
        try:
            return answered(call, meter, max(0.1, deadline - time.monotonic()))
        except (errors.HfHubHTTPError, httpx2.HTTPError) as error:
            status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 503
            said = error.response.headers.get("Retry-After", "") if isinstance(error, errors.HfHubHTTPError) else ""
            wait = float(said[:9]) if said.isdecimal() else pause
            if isinstance(error, httpx2.ConnectError) and pause != PAUSES[0]:
                wait = None  # no network is the likeliest: once more, and say so
            if pause is None or wait is None or status not in AGAIN or time.monotonic() + wait > deadline:
                raise as_target_error(error, target.words, target.revision, endpoint) from None
            time.sleep(wait)
        except (TookTooLong, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise as_target_error(error, target.words, target.revision, endpoint) from None
    raise AssertionError  # the last try returned or raised


def _entries(rows: Any) -> tuple[dict[str, Entry], dict[str, str]]:
    """Files by path, and git's name of their contents."""
    entries: dict[str, Entry] = {}
    oids: dict[str, str] = {}
    for row in rows:
        name, nbytes, lfs = row.rfilename, row.size, row.lfs
        if not isinstance(name, str) or not stays(name):
            continue
        sha256 = getattr(lfs, "sha256", None) if lfs else None
        known = type(nbytes) is int and nbytes >= 0
        entries[name] = Entry(
            name, nbytes if known else 0, "" if known else "is listed without its size", sha256 if isinstance(sha256, str) else ""
        )
        oids[name] = row.blob_id if isinstance(row.blob_id, str) and not lfs else ""
    return entries, oids


def _place(target: HubTarget, entries: dict[str, Entry]) -> tuple[str, str | None]:
    """(prefix with its slash, the one file that was asked for)."""
    path = target.path.strip("/")
    if not path:
        return "", None
    if path in entries:
        folder, slash, name = path.rpartition("/")
        return folder + slash, name
    if any(name.startswith(path + "/") for name in entries):
        return path + "/", None
    folders = sorted({name.rpartition("/")[0] for name in entries if "/" in name})
    there = f"its folders are {', '.join(folders[:6])}" if folders else "it has no folders"
    raise TargetError(target.words, f"has nothing at {path!r}", there)


def _endpoint() -> str:
    """HF_ENDPOINT as it is now: huggingface_hub reads it once, when it is imported."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _cache() -> str:
    return os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE
