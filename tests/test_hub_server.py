"""huggingface_hub's own client takes the test Hub for a Hub, and every fault does what it says: other tests build on both."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import HfApi, RepoFile, RepoFolder, constants, errors, hf_hub_download, snapshot_download

from builders import EMBED, HEAD, index, matrix, safetensors
from hub_faults import KINDS, OTHER_SHA
from hub_repository import pointer
from hub_server import Hub

MODEL = safetensors({EMBED: matrix(1)})
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", {"config.json": b'{"model_type": "llama"}', WEIGHTS: MODEL, "original/params.json": b"{}"})


@pytest.fixture
def get(hub: Hub) -> Any:
    """GET of a file of org/model, redirects followed; `method`, `headers` and so on as httpx2 has them."""
    with httpx2.Client(base_url=hub.url, follow_redirects=True, timeout=5, trust_env=False) as client:

        def request(file: str = WEIGHTS, /, *, method: str = "GET", span: str = "", revision: str = "main", **more: Any) -> httpx2.Response:
            headers = {"Range": f"bytes={span}"} if span else {}
            return client.request(method, f"/org/model/resolve/{revision}/{file}", headers=headers | more.pop("headers", {}), **more)

        yield request


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hub's cache, for calls that take no `cache_dir` as well."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def api(hub: Hub, token: str | None = None) -> HfApi:
    return HfApi(endpoint=hub.url, token=token or False)  # False: never a token of this machine


# Listings


def test_model_info_names_the_commit_and_the_files(hub, folder):
    repository = hub.add("org/model", folder)
    info = api(hub).model_info("org/model")
    assert (info.id, info.sha, info.private, info.gated) == ("org/model", repository.head, False, False)
    assert [(file.rfilename, file.size, file.lfs) for file in info.siblings] == [
        ("config.json", None, None), (WEIGHTS, None, None), ("original/params.json", None, None),
    ]  # fmt: skip


def test_model_info_with_metadata_has_sizes_and_digests(hub, folder):
    hub.add("org/model", folder)
    config, weights, _ = api(hub).model_info("org/model", files_metadata=True).siblings
    assert (config.size, config.lfs, config.blob_id) == (23, None, hashlib.sha1(b'blob 23\0{"model_type": "llama"}').hexdigest())  # noqa: S324
    assert (weights.size, weights.lfs.size, weights.lfs.sha256) == (len(MODEL), len(MODEL), hashlib.sha256(MODEL).hexdigest())
    assert weights.lfs.pointer_size == len(pointer(weights.lfs.sha256, len(MODEL)))


def test_model_info_expands_what_is_asked(hub, folder):
    repository = hub.add("org/model", folder)
    info = api(hub).model_info("org/model", expand=["sha"])
    assert (info.sha, info.siblings) == (repository.head, None)


def test_tree_lists_files_and_folders(hub, folder):
    hub.add("org/model", folder)
    rows = list(api(hub).list_repo_tree("org/model", recursive=True, expand=True))
    assert [(type(row), row.path) for row in rows] == [
        (RepoFolder, "original"), (RepoFile, "config.json"), (RepoFile, WEIGHTS), (RepoFile, "original/params.json"),
    ]  # fmt: skip
    assert rows[2].lfs.sha256 == hashlib.sha256(MODEL).hexdigest()
    assert [row.path for row in api(hub).list_repo_tree("org/model")] == ["original", "config.json", WEIGHTS]
    assert [row.path for row in api(hub).list_repo_tree("org/model", "original")] == ["original/params.json"]


@pytest.mark.parametrize(("entries", "requests"), [(3, 4), (5, 2), (10, 1), (1000, 1)])
def test_tree_comes_in_pages(hub, tmp_path, entries, requests):
    hub.add("org/model", write(tmp_path, {f"{number}.txt": b"" for number in range(10)}))
    hub.page_entries = entries
    rows = list(api(hub).list_repo_tree("org/model", recursive=True))
    assert [row.path for row in rows] == [f"{number}.txt" for number in range(10)]
    assert len(hub.requests) == requests


def test_tree_honours_a_limit(hub, folder):
    hub.add("org/model", folder)
    answer = httpx2.get(hub.url + "/api/models/org/model/tree/main?recursive=true&limit=2", trust_env=False)
    assert len(answer.json()) == 2
    assert len(httpx2.get(answer.links["next"]["url"], trust_env=False).json()) == 2


def test_paths_info_leaves_unknown_paths_out(hub, folder):
    hub.add("org/model", folder)
    rows = api(hub).get_paths_info("org/model", [WEIGHTS, "original", "absent.bin"])
    assert [(row.path, type(row)) for row in rows] == [(WEIGHTS, RepoFile), ("original", RepoFolder)]


def test_refs_are_listed(hub, folder):
    repository = hub.add("org/model", folder)
    repository.commit(folder, branch="dev", tag="v1")
    refs = api(hub).list_repo_refs("org/model")
    assert {ref.name: ref.target_commit for ref in refs.branches} == repository.branches
    assert {ref.name: ref.target_commit for ref in refs.tags} == repository.tags == {"v1": repository.branches["dev"]}


# Files


@pytest.mark.parametrize("resolve_cache", [False, True])
def test_snapshot_is_the_folder(hub, folder, cache, resolve_cache):
    hub.resolve_cache = resolve_cache
    repository = hub.add("org/model", folder)
    snapshot = Path(snapshot_download("org/model", endpoint=hub.url, cache_dir=cache, token=False, max_workers=2))
    assert snapshot.name == repository.head
    assert {file.relative_to(snapshot).as_posix(): file.read_bytes() for file in snapshot.rglob("*") if file.is_file()} == {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }
    assert (snapshot / WEIGHTS).resolve().name == hashlib.sha256(MODEL).hexdigest()
    assert any("resolve-cache" in request.path for request in hub.requests) == resolve_cache


def test_download_takes_the_link_of_the_second_host(hub, folder, cache):
    hub.add("org/model", folder)
    file = hf_hub_download("org/model", WEIGHTS, endpoint=hub.url, cache_dir=cache, token="hf_secret")  # noqa: S106
    assert Path(file).read_bytes() == MODEL
    assert [(request.host, request.method, request.status, request.authorization) for request in hub.requests] == [
        ("hub", "HEAD", 302, "Bearer hf_secret"), ("cdn", "GET", 200, None),
    ]  # fmt: skip
    assert hub.body_bytes == len(MODEL)


@pytest.mark.parametrize("revision", ["main", "v1", "pr/with/slashes", "HEAD-SHA", "FIRST-SHA"])
def test_revisions_hold_their_own_files(hub, tmp_path, cache, revision):
    states = {name: write(tmp_path / name, {"config.json": name.encode()}) for name in ("first", "second", "other")}
    repository = hub.add("org/model", states["first"])
    first = repository.head
    repository.tags["v1"] = first
    head = repository.commit(states["second"])
    repository.commit(states["other"], branch="pr/with/slashes")
    asked = {"HEAD-SHA": head, "FIRST-SHA": first}.get(revision, revision)
    expected = {"v1": "first", first: "first", "pr/with/slashes": "other"}.get(asked, "second")
    file = hf_hub_download("org/model", "config.json", revision=asked, endpoint=hub.url, cache_dir=cache, token=False)
    assert Path(file).read_text() == expected
    assert Path(file).parent.name == api(hub).model_info("org/model", revision=asked).sha == repository.resolve(asked)


def test_safetensors_metadata_of_one_file(hub, folder):
    hub.add("org/model", folder)
    metadata = api(hub).get_safetensors_metadata("org/model")
    assert metadata.weight_map == {EMBED: WEIGHTS}


def test_safetensors_metadata_of_shards(hub, tmp_path, cache):
    shards = {f"model-0000{number}-of-00002.safetensors": safetensors({name: matrix(number)}) for number, name in ((1, EMBED), (2, HEAD))}
    weight_map = dict(zip((EMBED, HEAD), shards, strict=True))
    hub.add("org/model", write(tmp_path / "model", shards | {WEIGHTS + ".index.json": index(weight_map)}))
    metadata = api(hub).get_safetensors_metadata("org/model")
    assert (metadata.weight_map, sorted(metadata.files_metadata)) == (weight_map, sorted(shards))


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_head_tells_the_size_and_sends_no_body(hub, folder, get, name):
    hub.add("org/model", folder)
    answer = get(name, method="HEAD", follow_redirects=False)
    nbytes = (folder / name).stat().st_size
    assert int(answer.headers["X-Linked-Size" if name == WEIGHTS else "Content-Length"]) == nbytes
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["X-Repo-Commit"] == hub.repositories["org/model"].head
    assert hub.body_bytes == 0


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
@pytest.mark.parametrize(
    ("span", "status", "part"),
    [
        ("0-7", 206, slice(8)), ("5-5", 206, slice(5, 6)), ("3-", 206, slice(3, None)), ("-4", 206, slice(-4, None)),
        ("2-99999999", 206, slice(2, None)), ("99999999-", 416, slice(0)), ("7-3", 416, slice(0)), ("0-1,4-5", 200, slice(None)),
        ("x", 200, slice(None)), ("-", 200, slice(None)),
    ],
)  # fmt: skip
def test_ranges_are_exact(hub, folder, get, name, span, status, part):
    hub.add("org/model", folder)
    answer = get(name, span=span)
    whole = (folder / name).read_bytes()
    assert (answer.status_code, answer.content) == (status, whole[part])
    assert hub.requests[-1].body_bytes == len(answer.content)
    if status == 206:
        first, last, _ = part.indices(len(whole))
        assert answer.headers["Content-Range"] == f"bytes {first}-{last - 1}/{len(whole)}"


def test_a_range_of_another_state_is_answered_in_full(hub, folder, get):
    hub.add("org/model", folder)
    etag = get(span="0-0").headers["ETag"]
    assert get(span="0-7", headers={"If-Range": etag}).status_code == 206
    assert get(span="0-7", headers={"If-Range": '"older"'}).status_code == 200


def test_sparse_gigabytes_are_served_in_pieces(hub, tmp_path, get):
    nbytes = 50 << 30
    with (write(tmp_path / "model", {WEIGHTS: b"head"}) / WEIGHTS).open("r+b") as stream:
        stream.truncate(nbytes)
        stream.seek(nbytes - 4)
        stream.write(b"tail")
    repository = hub.add("org/model", tmp_path / "model")
    assert get(span=f"{nbytes - 6}-").content == b"\0\0tail"
    hub.reset()
    link = get(method="HEAD", follow_redirects=False).headers["Location"]
    with httpx2.stream("GET", link, trust_env=False) as answer:
        assert next(answer.iter_raw(chunk_size=4)) == b"head"
    assert hub.body_bytes < 100 << 20  # what the kernel took before it heard that the client had left
    assert repository.commits[repository.head][WEIGHTS].nbytes == nbytes


def test_equal_files_have_equal_digests(hub, tmp_path):
    hub.add("org/model", write(tmp_path, {"a.bin": MODEL, "b/c.bin": MODEL, "d.bin": MODEL + b"\0"}))
    digests = {file.rfilename: file.lfs.sha256 for file in api(hub).model_info("org/model", files_metadata=True).siblings}
    assert digests["a.bin"] == digests["b/c.bin"] != digests["d.bin"]


def test_links_end_when_they_expire_or_are_withdrawn(hub, folder, get):
    hub.add("org/model", folder)
    link = get(method="HEAD", follow_redirects=False).headers["Location"]
    assert httpx2.get(link, trust_env=False).content == MODEL
    assert httpx2.get(link.replace("Expires=1", "Expires=2"), trust_env=False).status_code == 403
    hub.withdraw_links()
    assert httpx2.get(link, trust_env=False).status_code == 403
    assert get().content == MODEL
    hub.link_seconds = -1
    assert get().status_code == 403


# Names and access


def test_one_part_id_and_its_successor(hub, folder, cache):
    hub.add("gpt2", folder)
    hub.add("openai-community/bert", folder)
    hub.rename("bert", "openai-community/bert")
    for name in ("gpt2", "bert"):
        assert api(hub).model_info(name).id.endswith(name)
        assert len(list(api(hub).list_repo_tree(name, recursive=True, revision="main"))) == 4
        assert len(api(hub).get_paths_info(name, [WEIGHTS])) == 1
        assert Path(hf_hub_download(name, "config.json", endpoint=hub.url, cache_dir=cache, token=False)).stat().st_size == 23
    with pytest.raises(errors.RepositoryNotFoundError):
        api(hub).model_info("model")


@pytest.mark.parametrize(
    ("repo_id", "token", "error", "status"),
    [
        ("org/absent", None, errors.RepositoryNotFoundError, 401),
        ("org/absent", "hf_other", errors.RepositoryNotFoundError, 404),
        ("org/private", None, errors.RepositoryNotFoundError, 401),
        ("org/private", "hf_other", errors.RepositoryNotFoundError, 404),
        ("org/gated", None, errors.GatedRepoError, 401),
        ("org/gated", "hf_other", errors.GatedRepoError, 403),
        ("org/disabled", None, errors.DisabledRepoError, 403),
        ("org/gated", "hf_invalid", errors.HfHubHTTPError, 401),
    ],
)
@pytest.mark.parametrize("call", ["listing", "file"])
def test_closed_repositories_raise_what_the_real_ones_do(hub, folder, cache, repo_id, token, error, status, call):
    for name in ("private", "gated", "disabled"):
        hub.add(f"org/{name}", folder, token="hf_owner", **{name: True})  # noqa: S106
    hub.invalid_tokens.add("hf_invalid")
    if call == "listing":
        if error is errors.GatedRepoError:  # everybody may see what there is
            assert api(hub, token).model_info(repo_id).gated == "manual"
            return
        with pytest.raises(errors.HfHubHTTPError) as raised:
            api(hub, token).model_info(repo_id, files_metadata=True)
    else:
        with pytest.raises(errors.HfHubHTTPError) as raised:
            api(hub, token).parse_safetensors_file_metadata(repo_id, WEIGHTS)
    assert (type(raised.value), raised.value.response.status_code) == (error, status)


@pytest.mark.parametrize("name", ["private", "gated"])
def test_the_right_token_opens(hub, folder, cache, name):
    hub.add("org/model", folder, token="hf_owner", **{name: True})  # noqa: S106
    assert api(hub, "hf_owner").model_info("org/model").sha
    api(hub, "hf_owner").auth_check("org/model")
    for file in ("config.json", WEIGHTS):
        assert Path(hf_hub_download("org/model", file, endpoint=hub.url, cache_dir=cache, token="hf_owner")).is_file()  # noqa: S106


def test_unknown_revisions_and_files_raise_what_the_real_ones_do(hub, folder, cache):
    repository = hub.add("org/model", folder)
    with pytest.raises(errors.RevisionNotFoundError):
        api(hub).model_info("org/model", revision="absent")
    with pytest.raises(errors.RevisionNotFoundError):
        hf_hub_download("org/model", WEIGHTS, revision="0" * 40, endpoint=hub.url, cache_dir=cache, token=False)
    with pytest.raises(errors.RemoteEntryNotFoundError) as raised:
        hf_hub_download("org/model", "absent.bin", endpoint=hub.url, cache_dir=cache, token=False)
    assert raised.value.response.headers["X-Repo-Commit"] == repository.head
    with pytest.raises(errors.RemoteEntryNotFoundError):
        list(api(hub).list_repo_tree("org/model", "absent"))


def test_hf_endpoint_leads_here(hub, folder, tmp_path):
    hub.add("gpt2", folder)
    code = "from huggingface_hub import hf_hub_download; print(open(hf_hub_download('gpt2', 'config.json')).read())"
    env = {name: value for name, value in os.environ.items() if not name.upper().endswith(("_PROXY", "HF_TOKEN"))}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {"model_type": "llama"}


# The server itself


def test_requests_are_recorded_in_order_and_forgotten_on_reset(hub, folder, get):
    hub.add("org/model", folder)
    get("config.json", headers={"Authorization": "Bearer hf_x"})
    get(span="0-7")
    assert [(request.host, request.method, request.status, request.range, request.authorization) for request in hub.requests] == [
        ("hub", "GET", 200, None, "Bearer hf_x"), ("hub", "GET", 302, "bytes=0-7", None), ("cdn", "GET", 206, "bytes=0-7", None),
    ]  # fmt: skip
    assert [request.body_bytes for request in hub.requests if request.status < 300] == [23, 8]
    assert hub.connections == 2  # kept alive, one to each host
    hub.reset()
    assert (hub.requests, hub.body_bytes) == ([], 0)


def test_requests_in_parallel_are_counted(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("stall", seconds=0.3, times=8)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: get("config.json"), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert 2 <= hub.peak <= 8


def test_closed_hub_refuses_connections(hub):
    hub.close()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(hub.url, trust_env=False)


def test_mistakes_of_the_server_are_raised(folder):
    def broken(hub: Hub) -> None:
        with hub:
            hub.add("org/model", folder)
            hub.fault("edit", change=lambda document: document["absent"])
            with pytest.raises(httpx2.RemoteProtocolError):
                httpx2.get(hub.url + "/api/models/org/model", trust_env=False)

    with pytest.raises(KeyError):
        broken(Hub())


# Faults


@pytest.mark.parametrize(("status", "retry_after"), [(500, None), (503, 2), (429, 1), (429, "Wed, 21 Oct 2026 07:28:00 GMT")])
def test_status(hub, folder, get, status, retry_after):
    hub.add("org/model", folder)
    fault = hub.fault("status", "*/config.json", times=2, status=status, retry_after=retry_after)
    answers = [get("config.json") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [status, status, 200]
    assert answers[0].headers.get("Retry-After") == (None if retry_after is None else str(retry_after))
    assert fault.hits == 2


def test_hub_client_tries_again_after_429(hub, folder):
    hub.add("org/model", folder)
    hub.fault("status", "*/tree/*", status=429, retry_after=0)
    assert len(list(api(hub).list_repo_tree("org/model"))) == 3
    assert [request.status for request in hub.requests] == [429, 200]


def test_faults_choose_by_host_method_and_count(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("status", f"*/{WEIGHTS}", host="cdn", method="GET", after=1, times=1)
    assert [get(method="HEAD").status_code, *(get().status_code for _ in range(3))] == [200, 200, 500, 200]
    hub.reset()
    hub.fault("status", times=None)
    assert {get().status_code for _ in range(5)} == {500}


def test_misspelt_options_are_refused(hub):
    with pytest.raises(TypeError):
        hub.fault("status", code=500)
    with pytest.raises(KeyError):
        hub.fault("stutter")


def test_expired(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("expired", host="cdn")
    assert [get().status_code, get().status_code] == [403, 200]


@pytest.mark.parametrize("nbytes", [0, 1, 100])
def test_cut(hub, folder, get, nbytes):
    hub.add("org/model", folder)
    hub.fault("cut", host="cdn", nbytes=nbytes)
    with pytest.raises(httpx2.RemoteProtocolError):
        get()
    assert hub.requests[-1].body_bytes == nbytes
    assert get().content == MODEL


def test_hub_client_tries_again_after_a_cut(hub, folder, cache):
    hub.add("org/model", folder)
    hub.fault("cut", host="cdn", nbytes=100)
    assert Path(hf_hub_download("org/model", WEIGHTS, endpoint=hub.url, cache_dir=cache, token=False)).read_bytes() == MODEL
    assert [(request.host, request.body_bytes) for request in hub.requests if request.method == "GET"] == [
        ("cdn", 100),
        ("cdn", len(MODEL)),
    ]


def test_drop(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("drop")
    with pytest.raises(httpx2.RemoteProtocolError):
        get()
    assert (hub.requests[0].status, get().status_code) == (0, 200)


def test_ignored_range(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("ignore_range", host="cdn")
    answer = get(span="0-7")
    assert (answer.status_code, answer.content, "Content-Range" in answer.headers) == (200, MODEL, False)


@pytest.mark.parametrize(
    ("value", "seen"), [("shifted", f"bytes 9-16/{len(MODEL) + 1}"), (None, None), ("bytes 0-7/*", "bytes 0-7/*"), ("", "")]
)
def test_content_range(hub, folder, get, value, seen):
    hub.add("org/model", folder)
    hub.fault("content_range", host="cdn", value=value)
    answer = get(span="8-15")
    assert (answer.status_code, answer.content, answer.headers.get("Content-Range")) == (206, MODEL[8:16], seen)


@pytest.mark.parametrize(("kind", "options", "content"), [("short", {"nbytes": 3}, MODEL[8:13]), ("overlong", {"nbytes": 5}, MODEL[8:21])])
def test_short_and_overlong(hub, folder, get, kind, options, content):
    hub.add("org/model", folder)
    hub.fault(kind, host="cdn", **options)
    answer = get(span="8-15")
    assert (answer.status_code, answer.headers["Content-Range"]) == (206, f"bytes 8-15/{len(MODEL)}")
    assert answer.content == content


def test_slow(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("slow", host="cdn", rate=4000)
    start = time.monotonic()
    assert get().content == MODEL
    assert time.monotonic() - start >= len(MODEL) / 4000 * 0.9  # a floor: the server must have waited


@pytest.mark.parametrize("nbytes", [None, 0, 100])
def test_stall(hub, folder, get, nbytes):
    hub.add("org/model", folder)
    hub.fault("stall", host="cdn", seconds=60, nbytes=nbytes)
    with pytest.raises(httpx2.ReadTimeout):
        get(timeout=0.3)
    assert hub.requests[-1].body_bytes == (nbytes or 0)
    assert get().content == MODEL


def test_closing_ends_a_stall(folder):
    with Hub() as hub, ThreadPoolExecutor(1) as pool:
        hub.add("org/model", folder)
        hub.fault("stall", seconds=600)
        answer = pool.submit(httpx2.get, hub.url, timeout=600, trust_env=False)
        while not hub.requests:
            time.sleep(0.01)
        hub.close()
        assert isinstance(answer.exception(timeout=10), httpx2.HTTPError)


def test_changed(hub, folder, get):
    repository = hub.add("org/model", folder)
    hub.fault("changed", method="HEAD", nbytes=5)
    answers = [get(method="HEAD", follow_redirects=False).headers for _ in range(2)]
    assert [answer["X-Repo-Commit"] for answer in answers] == [OTHER_SHA, repository.head]
    assert answers[0]["X-Linked-Etag"] != answers[1]["X-Linked-Etag"]
    assert int(answers[0]["X-Linked-Size"]) == int(answers[1]["X-Linked-Size"]) + 5
    hub.fault("changed", host="cdn", nbytes=5, etag=False)
    answer = get(span="0-7")
    assert answer.headers["Content-Range"] == f"bytes 0-7/{len(MODEL) + 5}"
    assert answer.headers["ETag"] == get().headers["ETag"]


def test_call_changes_the_repository_in_the_middle(hub, folder, get, tmp_path):
    repository = hub.add("org/model", folder)
    other = write(tmp_path / "other", {WEIGHTS: MODEL + b"more"})
    hub.fault("call", f"*/{WEIGHTS}", host="hub", after=1, action=lambda: repository.commit(other))
    first = repository.head
    assert [len(get().content) - len(MODEL) for _ in range(3)] == [0, 4, 4]
    assert len(get(revision=first).content) == len(MODEL)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_redirect_to_the_other_host(hub, folder, get, name):
    hub.add("org/model", folder)
    hub.fault("redirect", f"/org/model/resolve/*/{name}", host="hub")
    answer = get(name, headers={"Authorization": "Bearer hf_x"})
    assert answer.content == (folder / name).read_bytes()
    assert [request.host for request in hub.requests] == ["hub", "cdn", *(["cdn"] if name == WEIGHTS else [])]
    assert [request.authorization for request in hub.requests[:2]] == ["Bearer hf_x", None]


def test_hub_client_keeps_the_token_from_the_other_host(hub, folder, cache):
    hub.add("org/model", folder)
    hub.fault("redirect", "/org/model/resolve/*", host="hub")
    file = hf_hub_download("org/model", "config.json", endpoint=hub.url, cache_dir=cache, token="hf_x")  # noqa: S106
    assert Path(file).stat().st_size == 23
    assert [(request.host, request.authorization) for request in hub.requests] == [("hub", "Bearer hf_x"), ("cdn", None)]


def test_redirect_to_a_url(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("redirect", location="http://example.invalid/x", status=307)
    answer = get("config.json", follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (307, "http://example.invalid/x")


def test_loop(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("loop", times=None)
    with pytest.raises(httpx2.TooManyRedirects):
        get()


def test_garbage(hub, folder):
    hub.add("org/model", folder)
    hub.fault("garbage", "/api/*")
    with pytest.raises(ValueError):
        api(hub).model_info("org/model")


def test_edit(hub, folder):
    hub.add("org/model", folder)
    hub.fault("edit", "/api/*", change=lambda document: document | {"sha": "edited"})
    assert [api(hub).model_info("org/model").sha == "edited" for _ in range(2)] == [True, False]


def test_sizes(hub, folder):
    hub.add("org/model", folder)
    hub.fault("sizes", "/api/*", nbytes=7, times=2)
    weights = api(hub).model_info("org/model", files_metadata=True).siblings[1]
    assert (weights.size, weights.lfs.size) == (len(MODEL) + 7, len(MODEL) + 7)
    assert next(row for row in api(hub).list_repo_tree("org/model") if row.path == WEIGHTS).size == len(MODEL) + 7
    assert api(hub).get_paths_info("org/model", [WEIGHTS])[0].size == len(MODEL)


def test_gzipped(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("gzipped", host="cdn")
    answer = get(span="0-7")
    assert (answer.headers["Content-Encoding"], answer.content) == ("gzip", MODEL[:8])
    assert hub.requests[-1].body_bytes == len(gzip.compress(MODEL[:8], mtime=0))


def test_faults_add_up(hub, folder, get):
    hub.add("org/model", folder)
    hub.fault("ignore_range", host="cdn")
    hub.fault("cut", host="cdn", nbytes=50)
    with pytest.raises(httpx2.RemoteProtocolError):
        get(span="0-7")
    assert hub.requests[-1].body_bytes == 50


def test_every_kind_says_what_it_does():
    assert [name for name, kind in KINDS.items() if not kind.__doc__] == []
