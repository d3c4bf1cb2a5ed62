"""This file holds a small Hugging Face Hub on 127.0.0.1: repositories from local folders, every request recorded, faults on demand.

    with Hub() as hub:
        hub.add("org/model", folder)
        HfApi(endpoint=hub.url).model_info("org/model")

Small files come from `hub.url`; files in LFS by a redirect to `hub.cdn_url`, another port and so another origin, with a signed link
that expires. Endpoints, headers and codes are those that huggingface_hub 2.4 reads; there are no Xet headers.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode

from hub_faults import Fault, Reply, Request, ranged
from hub_http import Server
from hub_repository import Entry, Repository

API_WORDS = {"revision", "tree", "paths-info", "refs", "auth-check"}  # that follow the id; an id has one or two parts


class Hub:
    """A Hub and its CDN; `requests` holds all that came, in order of arrival."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.connections = 0
        self.peak = 0  # most requests under way at once
        self.page_entries = 1000  # of a tree
        self.link_seconds = 3600.0  # that a signed link holds
        self.resolve_cache = False  # True: small public files by way of /api/resolve-cache, as huggingface.co does
        self.invalid_tokens: set[str] = set()  # all others belong to somebody
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.errors: list[BaseException] = []
        self._under_way = 0
        self._secret = b"0"
        self._blobs: dict[str, Entry] = {}
        self._servers = {name: Server(name, self) for name in ("hub", "cdn")}
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers.values())

    def __enter__(self) -> Self:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.errors:
            raise self.errors[0]

    def close(self) -> None:
        """Stops both servers and ends stalls; the ports refuse connections from then on."""
        self.stopped.set()
        for server in self._servers.values():
            server.close()

    def add(
        self, repo_id: str, folder: Path, *, gated: bool = False, private: bool = False, disabled: bool = False, token: str | None = None
    ) -> Repository:
        """A repository whose `main` holds the folder; `token` opens it where it is gated or private."""
        repository = Repository(repo_id=repo_id, gated=gated, private=private, disabled=disabled, tokens={token} if token else set())
        repository.commit(folder)
        self.repositories[repo_id] = repository
        return repository

    def rename(self, old: str, new: str) -> None:
        """Requests for the old id are redirected, as `gpt2` is to `openai-community/gpt2`."""
        self.renamed[old] = new

    def fault(
        self, kind: str, path: str = "*", *, host: str | None = None, method: str | None = None, times: int | None = 1, after: int = 0,
        **options: Any,
    ) -> Fault:  # fmt: skip
        """The next `times` requests (None: all) that fit meet the fault, `after` that many without it.

        Kinds and their options are the functions of `hub_faults`; several faults may meet one request. `path` is a glob over
        the decoded path without query; both hosts' paths of a file end in its name.
        """
        fault = Fault(kind=kind, path=path, host=host, method=method, times=times, after=after, options=options)
        self.faults.append(fault)
        return fault

    def withdraw_links(self) -> None:
        """Every signed link given so far is refused from now on."""
        self._secret += b"0"

    def reset(self) -> None:
        """Forgets requests and faults; repositories stay."""
        with self.lock:
            self.requests, self.faults, self.connections, self.peak = [], [], 0, 0

    @property
    def body_bytes(self) -> int:
        """Of all answers of both hosts, the short bodies of redirects and errors included."""
        return sum(request.body_bytes for request in self.requests)

    def begin(self, request: Request) -> list[Fault]:
        """Records a request and gives the faults that it meets."""
        with self.lock:
            self.requests.append(request)
            self._under_way += 1
            self.peak = max(self.peak, self._under_way)
            return [fault for fault in self.faults if fault.meets(request)]

    def end(self) -> None:
        with self.lock:
            self._under_way -= 1

    def reply(self, request: Request) -> Reply:
        """What a healthy Hub says."""
        raw = request.target.partition("?")[0]
        if request.host == "cdn" and raw.startswith("/blobs/"):
            return self._blob(raw, request)
        parts = raw.strip("/").split("/")
        if parts[:3] == ["api", "resolve-cache", "models"]:
            cut = next((at for at, part in enumerate(parts) if len(part) == 40), len(parts))
            return self._file("/".join(parts[3:cut]), "/".join(parts[cut : cut + 1]), "/".join(parts[cut + 1 :]), request, cached=True)
        if parts[:2] == ["api", "models"] and len(parts) > 2:
            cut = 3 if len(parts) == 3 or parts[3] in API_WORDS else 4
            return self._api("/".join(parts[2:cut]), parts[cut:], request)
        if "resolve" in parts[1:3] and len(parts) > parts.index("resolve") + 2:
            cut = parts.index("resolve", 1)
            return self._file("/".join(parts[:cut]), parts[cut + 1], "/".join(parts[cut + 2 :]), request)
        return _error(404, "", "Sorry, we can't find the page you are looking for.")

    def _open(self, repo_id: str, request: Request, *, files: bool) -> Repository | Reply:
        """The repository, or why not. The Hub does not tell a missing repository from a private one; a gated one is listed to
        everybody, and only its files are closed."""
        token = (request.authorization or "").removeprefix("Bearer ")
        if token in self.invalid_tokens:
            return _error(401, "", "Invalid credentials in Authorization header")
        if repo_id in self.renamed:
            target = request.target.replace(f"/{repo_id}", f"/{self.renamed[repo_id]}", 1)
            return Reply(status=307, headers={"Location": target}, body=f"Temporary Redirect. Redirecting to {target}".encode())
        repository = self.repositories.get(repo_id)
        if not repository or (repository.private and token not in repository.tokens):
            status, message = (404, "Repository not found") if token else (401, "Invalid username or password.")
            return _error(status, "RepoNotFound", message)
        if repository.disabled:
            return _error(403, "", "Access to this resource is disabled.")
        if repository.gated and files and token not in repository.tokens:
            return _error(403 if token else 401, "GatedRepo", f"Access to model {repo_id} is restricted.")
        return repository

    def _api(self, repo_id: str, words: list[str], request: Request) -> Reply:
        repository = self._open(repo_id, request, files=words[:1] == ["auth-check"])
        if isinstance(repository, Reply):
            return repository
        word, revision = (words or [""])[0], unquote(words[1]) if len(words) > 1 else "main"
        sha = repository.resolve(revision)
        if sha is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        expand = _true(request, "expand")
        match word:
            case "" | "revision":
                return _json(repository.info(sha, blobs=_true(request, "blobs"), expand=request.query.get("expand", ())))
            case "refs":
                return _json(repository.refs())
            case "auth-check":
                return _json({})
            case "tree":
                rows = repository.tree(sha, unquote("/".join(words[2:])), recursive=_true(request, "recursive"), expand=expand)
                return self._page(rows, sha, request, most=50 if expand else self.page_entries)
            case "paths-info":
                return _json(repository.paths_info(sha, _paths(request)))
        return _error(404, "", "Not found")

    def _page(self, rows: list[dict[str, Any]] | None, sha: str, request: Request, *, most: int) -> Reply:
        if rows is None:
            return _error(404, "EntryNotFound", "Entry not found", sha)
        start = int(request.query.get("cursor", ["0"])[0])
        stop = start + min(most, int(request.query.get("limit", [str(most)])[0]))
        reply = _json(rows[start:stop])
        if stop < len(rows):
            query = {name: values[0] for name, values in request.query.items()} | {"cursor": str(stop)}
            reply.headers["Link"] = f'<{self.url}{request.target.partition("?")[0]}?{urlencode(query)}>; rel="next"'
        return reply

    def _file(self, repo_id: str, revision: str, path: str, request: Request, *, cached: bool = False) -> Reply:
        repository = self._open(repo_id, request, files=True)
        if isinstance(repository, Reply):
            return repository
        sha = repository.resolve(unquote(revision))
        if sha is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        entry = repository.commits[sha].get(unquote(path))
        if entry is None:
            return _error(404, "EntryNotFound", "Entry not found", sha)
        headers = {"X-Repo-Commit": sha, "ETag": entry.etag, "Content-Type": "text/plain; charset=utf-8"}
        if entry.sha256:
            # the redirect's own ETag is that of the pointer, which is why clients read X-Linked-Etag first
            headers |= {"X-Linked-Size": str(entry.nbytes), "X-Linked-Etag": entry.etag, "ETag": f'"{entry.oid}"', "Accept-Ranges": "bytes"}
            link = self._sign(repo_id, entry)
            return Reply(status=302, headers=headers | {"Location": link}, body=f"Found. Redirecting to {link}".encode())
        if self.resolve_cache and not cached and not repository.gated and not repository.private and "/" in repo_id:
            target = f"/api/resolve-cache/models/{repo_id}/{sha}/{path}?etag={quote(entry.etag)}"
            return Reply(status=307, headers={"Location": target}, body=f"Temporary Redirect. Redirecting to {target}".encode())
        reply = Reply(headers=headers, body=entry.file)
        ranged(reply, request)
        return reply

    def _sign(self, repo_id: str, entry: Entry) -> str:
        path = f"/blobs/{repo_id}/{entry.sha256}/{quote(entry.path)}"
        self._blobs[path] = entry
        query = {"Expires": repr(time.time() + self.link_seconds), "Key-Pair-Id": "K1"}
        return f"{self.cdn_url}{path}?{urlencode(query | {'Signature': self._signature(path, query['Expires'])})}"

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path} {expires}".encode(), hashlib.sha256).hexdigest()

    def _blob(self, raw: str, request: Request) -> Reply:
        """A file in LFS, open to whoever has a link; the token plays no part here and should not be seen."""
        expires = request.query.get("Expires", ["0"])[0]
        fits = hmac.compare_digest(request.query.get("Signature", [""])[0], self._signature(raw, expires))
        if not fits or float(expires) < time.time() or raw not in self._blobs:
            return Reply(status=403, headers={"Content-Type": "application/xml"}, body=b"<Error><Code>AccessDenied</Code></Error>")
        entry = self._blobs[raw]
        reply = Reply(headers={"ETag": entry.etag, "Content-Type": "binary/octet-stream"}, body=entry.file)
        ranged(reply, request)
        return reply


def _json(document: Any) -> Reply:
    return Reply(headers={"Content-Type": "application/json; charset=utf-8"}, body=json.dumps(document).encode())


def _error(status: int, code: str, message: str, sha: str = "") -> Reply:
    headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": sha, "Content-Type": "application/json"}
    present = {name: value for name, value in headers.items() if value}
    return Reply(status=status, headers=present, body=json.dumps({"error": message}).encode())


def _true(request: Request, name: str) -> bool:
    return request.query.get(name, [""])[0].lower() in ("true", "1")


def _paths(request: Request) -> list[str]:
    if "json" in request.headers.get("content-type", ""):
        return list(json.loads(request.form)["paths"])
    return [value for name, value in parse_qsl(request.form.decode()) if name == "paths"]
