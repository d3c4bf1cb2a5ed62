"""Audits of Hub ids against a real client's test Hub: verdicts as from disk, few requests, every fault told, nothing trusted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench_inputs import deepseek, qwen2
from builders import EMBED, HEAD, folder, index, matrix, safetensors, tied, torch_tensor, torch_zip
from hub_server import Hub
from sparse_model import spread, write_sparse
from tieaudit import Report, Severity, TargetError, audit
from tieaudit.reporters import terminal
from tieaudit.sources import http

CASES = Path(__file__).parent / "cases"
LARGE = {"config.json": tied(vocab_size=4096), "model.safetensors": safetensors({EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64)})}
COPIES = {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})}
WEIGHTS = "*/model.safetensors"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from huggingface_hub.utils import _http as theirs

    from tieaudit.sources import hub as ours

    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(ours, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(theirs.time, "sleep", lambda _seconds: None)
    yield
    # calls that were given up end when the Hub has closed; what they do to the shared client must not meet the next test
    for thread in threading.enumerate():
        if thread.name == "tieaudit-call":
            thread.join(10)


def verdicts(report: Report) -> object:
    """All that two audits of the same files must agree on."""
    return (
        report.verdict,
        [(f.code, f.severity, f.message, f.tensors, f.wasted_bytes, f.evidence, f.cause, f.fix) for f in report.findings],
        [(tie.canonical, tie.aliases, tie.claim, tie.relation, tie.evidence, tie.detail, tie.saves_bytes) for tie in report.ties],
        report.totals,
        report.formats,
        report.files,
        report.skipped,
        report.not_compared,
    )


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def counted(hub: Hub, report: Report) -> bool:
    return (report.cost.requests, report.cost.bytes_read) == (len(hub.requests), hub.body_bytes)


# the same answer as from disk


# but for an adapter whose base is a folder beside it: what a server's file names is not looked for on this machine
@pytest.mark.parametrize("name", sorted({path.name for path in CASES.iterdir()} - {"warn_adapter_targets_tied"}))
def test_a_case_on_the_hub_gets_the_findings_that_it_gets_on_disk(online: Hub, name: str) -> None:
    repo = online.add("org/model", CASES / name)
    for verify in ("full", "sample", "headers"):
        online.reset()
        report = audit("org/model", verify=verify)
        assert verdicts(report) == verdicts(audit(CASES / name, verify=verify))
        assert report.revision == repo.head
        assert counted(online, report)


def test_by_default_pages_are_compared_and_full_proves(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    assert [finding.evidence for finding in audit("org/model").findings] == ["sampled"]
    assert [finding.evidence for finding in audit("org/model", verify="full").findings] == ["proved"]


def test_a_second_audit_finds_the_small_files_in_the_cache(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    first = audit("org/model")
    online.reset()
    second = audit("org/model")
    assert not [request for request in online.requests if request.path.endswith("config.json")]
    assert verdicts(first) == verdicts(second)
    assert counted(online, second)


def test_a_renamed_repository_and_a_one_part_id_are_found(online: Hub, tmp_path: Path) -> None:
    online.add("openai-community/gpt2", folder(tmp_path, COPIES))
    online.rename("gpt2", "openai-community/gpt2")
    report = audit("gpt2")
    assert codes(report) == ["TIE002"]
    assert len([request for request in online.requests if request.status == 307]) == 1  # only the first question
    assert counted(online, report)


def test_small_files_behind_a_redirect_are_counted_too(online: Hub, tmp_path: Path) -> None:
    online.resolve_cache = True
    online.add("org/model", folder(tmp_path, COPIES))
    assert counted(online, audit("org/model"))


def test_revisions_and_subfolders(online: Hub, tmp_path: Path) -> None:
    fixed = {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})}
    repo = online.add("org/model", folder(tmp_path / "old", {**COPIES, **{f"fixed/{name}": data for name, data in fixed.items()}}))
    old = repo.head
    new = repo.commit(folder(tmp_path / "new", fixed), tag="v2")
    assert (audit("org/model").verdict, audit("org/model").revision) == ("ok", new)
    assert codes(audit("org/model", revision=old)) == ["TIE002"]
    assert audit("org/model", revision="v2").revision == new
    assert codes(audit(f"hf://org/model@{old}")) == ["TIE002"]
    for target, options in (
        (f"hf://org/model@{old}/fixed", {}),
        ("org/model", {"revision": old, "subfolder": "fixed"}),
        (f"hf://org/model@{old}/fixed/model.safetensors", {}),
    ):
        report = audit(target, **options)
        assert (report.verdict, report.revision, report.files[0][0]) == ("ok", old, "model.safetensors")


def test_the_commit_is_pinned_while_the_branch_moves(online: Hub, tmp_path: Path) -> None:
    repo = online.add("org/model", folder(tmp_path / "old", COPIES))
    old = repo.head
    other = folder(tmp_path / "new", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})})
    online.fault("call", "*/config.json", method="HEAD", action=lambda: repo.commit(other))
    report = audit("org/model")
    assert repo.head != old
    assert (report.revision, codes(report)) == (old, ["TIE002"])
    assert all(old in request.path for request in online.requests if "/resolve/" in request.path)


# cost


def test_two_gigabytes_in_four_shards_with_a_repeated_head(online: Hub, tmp_path: Path) -> None:
    config, specs = qwen2(12, 1536, 8960, 151_936, 12)
    specs.append((HEAD, *specs[0][1:]))
    write_sparse(tmp_path / "m", config, spread(specs, 4), {EMBED, HEAD}, {HEAD: EMBED})
    online.add("org/model", tmp_path / "m")
    report = audit("org/model")
    assert codes(report) == ["TIE002"]
    assert report.findings[0].wasted_bytes == 151_936 * 1536 * 2
    assert [(tie.relation, tie.evidence) for tie in report.ties] == [("equal", "sampled")]
    assert counted(online, report)
    assert report.cost.requests <= 16
    assert report.cost.bytes_read <= 150_000
    assert any("matrices with each other" in skip.subject for skip in report.not_compared)
    assert not report.skipped


def test_seventy_thousand_tensors_in_62_shards(online: Hub, tmp_path: Path) -> None:
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "tie_word_embeddings": False,
              "vocab_size": 4096, "hidden_size": 7168, "num_hidden_layers": 61}  # fmt: skip
    headers = write_sparse(tmp_path / "m", config, spread(list(deepseek()), 62), {EMBED, HEAD})
    online.add("org/model", tmp_path / "m")
    report = audit("org/model")
    assert not report.at_least(Severity.WARNING)
    assert report.totals.tensors > 70_000
    assert [tie.relation for tie in report.ties] == ["unrelated"]
    assert counted(online, report)
    assert report.cost.requests <= 3 * 62
    described = sum(headers.values()) + (tmp_path / "m" / "model.safetensors.index.json").stat().st_size
    assert described <= report.cost.bytes_read <= described + 2_000_000


def test_a_torch_zip_is_read_by_ranges(online: Hub, tmp_path: Path) -> None:
    state = {f"layers.{n}.weight": torch_tensor(matrix(n, 512, 128)) for n in range(20)}
    state |= {EMBED: torch_tensor(matrix(90, 2048, 128)), HEAD: torch_tensor(matrix(90, 2048, 128))}
    state["layers.7.again"] = torch_tensor(matrix(3, 512, 128))
    online.add("org/model", folder(tmp_path, {"config.json": tied(vocab_size=2048), "pytorch_model.bin": torch_zip(state)}))
    report = audit("org/model")
    assert codes(report) == ["TIE002", "TIE201"]  # the directory's checksums point at both
    assert counted(online, report)
    assert report.cost.requests <= 16
    assert report.cost.bytes_read < 300_000 < sum(nbytes for _, nbytes in report.files)
    assert codes(audit("org/model", verify="full")) == codes(audit(tmp_path))


@pytest.mark.parametrize("place", [(0, 0), (2047, 127)], ids=["first", "last"])
def test_a_head_that_differs_where_it_is_sampled_is_no_copy(online: Hub, tmp_path: Path, place: tuple[int, int]) -> None:
    other = matrix(1, 2048, 128).copy()
    other[place] += 1
    files = {"config.json": tied(vocab_size=2048), "model.safetensors": safetensors({EMBED: matrix(1, 2048, 128), HEAD: other})}
    online.add("org/model", folder(tmp_path, files))
    assert codes(audit("org/model")) == ["TIE001"]


def test_full_finds_what_pages_cannot(online: Hub, tmp_path: Path) -> None:
    other = matrix(1, 2048, 128).copy()
    other[1500, 3] += 1
    files = {"config.json": tied(vocab_size=2048), "model.safetensors": safetensors({EMBED: matrix(1, 2048, 128), HEAD: other})}
    online.add("org/model", folder(tmp_path, files))
    report = audit("org/model", verify="full")
    assert verdicts(report)[1:3] == verdicts(audit(tmp_path))[1:3]  # type: ignore[index]
    assert "row 1,500" in report.findings[0].message
    assert counted(online, report)


def test_embeddings_that_begin_and_end_with_zeros_are_told_apart(online: Hub, tmp_path: Path) -> None:
    sides = [matrix(seed, 4096, 64).copy() for seed in (1, 2)]
    for side in sides:
        side[:64] = side[-64:] = 0
    files = {"config.json": tied(vocab_size=4096),
             "model.safetensors": safetensors({EMBED: sides[0], HEAD: sides[1]})}  # fmt: skip
    online.add("org/model", folder(tmp_path, files))
    assert "TIE002" not in codes(audit("org/model"))


def test_a_transposed_head_is_seen_from_few_elements(online: Hub, tmp_path: Path) -> None:
    files = {
        "config.json": tied(vocab_size=4096),
        "model.safetensors": safetensors({EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64).T}),
    }
    online.add("org/model", folder(tmp_path, files))
    report = audit("org/model")
    assert codes(report) == ["TIE008"]
    assert report.cost.requests <= 24
    assert codes(audit("org/model", verify="full")) == ["TIE008"]


def test_a_cache_that_cannot_be_written_keeps_nobody_from_reading(online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online.add("org/model", folder(tmp_path / "m", COPIES))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    assert codes(audit("org/model")) == ["TIE002"]


def test_a_broken_copy_in_the_cache_is_told(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    audit("org/model")
    for blob in Path(os.environ["HF_HUB_CACHE"]).rglob("blobs/*"):
        blob.write_bytes(b"{}")
    with pytest.raises(TargetError, match="broken copy in the cache"):
        audit("org/model")


def test_a_server_that_ignores_range_is_refused_before_the_body(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path, LARGE))
    online.fault("ignore_range", WEIGHTS, times=None)
    with pytest.raises(TargetError, match="ignores Range"):
        audit("org/model")


# faults


@pytest.mark.parametrize(
    ("kind", "path", "options"),
    [
        ("status", WEIGHTS, {"status": 500}),
        ("status", WEIGHTS, {"status": 429, "retry_after": 0}),
        ("cut", WEIGHTS, {"host": "cdn", "nbytes": 100}),
        ("drop", WEIGHTS, {}),
        ("short", WEIGHTS, {"host": "cdn"}),
        ("expired", WEIGHTS, {"host": "cdn"}),
        ("overlong", WEIGHTS, {"host": "cdn"}),
        ("status", "*/config.json", {"status": 503}),
        ("status", "*/config.json", {"status": 429, "retry_after": 0, "method": "GET"}),
        ("cut", "*/config.json", {"method": "GET", "nbytes": 5}),
        ("status", "/api/models/*", {"status": 503}),
        ("status", "/api/models/*", {"status": 429, "retry_after": 0}),
        ("drop", "/api/models/*", {}),
    ],
    ids=str,
)
def test_a_fault_that_passes_changes_no_verdict(online: Hub, tmp_path: Path, kind: str, path: str, options: dict[str, Any]) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    fault = online.fault(kind, path, times=2 if kind != "expired" else 1, **options)
    report = audit("org/model")
    assert fault.hits
    assert codes(report) == ["TIE002"]
    assert not report.skipped


@pytest.mark.parametrize(
    ("kind", "path", "options", "words"),
    [
        ("status", WEIGHTS, {"status": 500}, "answers 500"),
        ("status", WEIGHTS, {"status": 429, "retry_after": 900}, "wait 900 s"),
        ("cut", WEIGHTS, {"host": "cdn", "nbytes": 100}, "connection failed"),
        ("content_range", WEIGHTS, {"host": "cdn"}, "in its listing"),
        ("changed", WEIGHTS, {"host": "hub"}, "changed meanwhile"),
        ("gzipped", WEIGHTS, {"host": "cdn"}, "compressed"),
        ("loop", WEIGHTS, {"host": "hub"}, "redirects"),
        ("sizes", "/api/*", {"nbytes": 1}, "changed meanwhile"),
        ("status", "*/config.json", {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}}, "config.json"),
        ("cut", "*/config.json", {"method": "GET", "nbytes": 5}, "config.json"),
        ("garbage", "*/config.json", {"method": "GET"}, "config.json"),
        ("garbage", "/api/models/*", {}, "HF_ENDPOINT"),
        ("edit", "/api/models/*", {"change": lambda _: []}, "HF_ENDPOINT"),
        ("edit", "/api/models/*", {"change": lambda info: {**info, "sha": None}}, "HF_ENDPOINT"),
        ("edit", "/api/models/*", {"change": lambda info: {**info, "siblings": None}}, "HF_ENDPOINT"),
        ("edit", "/api/models/*", {"change": lambda info: {**info, "siblings": []}}, "is empty"),
        ("status", "/api/models/*", {"status": 503}, "--offline"),
        ("drop", "/api/models/*", {}, "--offline"),
        ("loop", "/api/models/*", {}, "org/model"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_fault_that_stays_is_one_line_and_nothing_is_cached_by_half(
    online: Hub, tmp_path: Path, kind: str, path: str, options: dict[str, Any], words: str
) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    online.fault(kind, path, times=None, **options)
    with pytest.raises(TargetError) as error:
        audit("org/model", timeout=5)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    cached = [file for file in Path(os.environ["HF_HUB_CACHE"]).rglob("*") if file.is_file() and "blobs" in file.parts]
    assert all(file.read_bytes() == COPIES["config.json"] for file in cached)


def sharded(path: Path) -> Path:
    names = {f"model.layers.{n}.mlp.up_proj.weight": f"model-0000{n + 1}-of-00003.safetensors" for n in range(3)}
    names[EMBED] = "model-00001-of-00003.safetensors"
    files = {
        file: safetensors({name: matrix(len(name) + number) for number, name in enumerate(names) if names[name] == file})
        for file in set(names.values())
    }
    return folder(path, {**files, "model.safetensors.index.json": index(names), "config.json": tied()})


def test_a_shard_that_is_not_given_is_not_checked_and_accuses_nobody(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", sharded(tmp_path))
    online.fault("status", "*/model-00001-of-00003.safetensors", times=None, status=500)
    report = audit("org/model")
    assert report.findings == ()
    assert report.verdict == "incomplete"
    assert [skip.subject for skip in report.skipped] == ["model-00001-of-00003.safetensors"]
    assert "answers 500" in report.skipped[0].reason
    assert terminal.render(report).startswith("INCOMPLETE")


def test_an_index_that_is_not_given_is_not_checked(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", sharded(tmp_path))
    online.fault("garbage", "*/model.safetensors.index.json", method="GET", times=None)
    report = audit("org/model")
    assert (report.verdict, report.findings) == ("incomplete", ())
    assert [skip.subject for skip in report.skipped] == ["model.safetensors.index.json"]


def test_samples_that_are_not_given_are_not_checked(online: Hub, tmp_path: Path) -> None:
    files = {
        "config.json": tied(vocab_size=4096),
        "model.safetensors": safetensors({EMBED: matrix(1, 4096, 64), HEAD: matrix(1, 4096, 64)}),
    }
    online.add("org/model", folder(tmp_path, files))
    online.fault("status", WEIGHTS, host="cdn", times=None, after=1, status=500)
    report = audit("org/model")
    assert report.verdict == "incomplete"
    assert any(EMBED in skip.subject for skip in report.skipped)
    assert report.findings == ()


def test_a_torch_file_that_breaks_off_on_the_way_is_not_called_broken(online: Hub, tmp_path: Path) -> None:
    state = {f"layers.{n}.weight": torch_tensor(matrix(n, 512, 128)) for n in range(20)}
    online.add("org/model", folder(tmp_path, {"config.json": tied(), "pytorch_model.bin": torch_zip(state)}))
    for after in range(4):
        online.faults.clear()
        online.fault("status", "*/pytorch_model.bin", host="cdn", times=None, after=after, status=500)
        try:
            report = audit("org/model")
        except TargetError as error:
            assert "answers 500" in str(error)  # noqa: PT017  which of the two depends on how far it came
        else:
            assert "TIE501" not in codes(report)
            assert report.skipped or after > 2


@pytest.mark.parametrize(("kind", "options"), [("stall", {}), ("slow", {"rate": 50})], ids=["stall", "slow"])
@pytest.mark.parametrize("path", [WEIGHTS, "*/config.json", "/api/models/*"], ids=["weights", "config", "listing"])
def test_no_fault_holds_an_audit_longer_than_the_time_limit(
    online: Hub, tmp_path: Path, kind: str, options: dict[str, Any], path: str
) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    online.fault(kind, path, times=None, **options)
    with pytest.raises(TargetError, match=r"\d s|reached|silent"):
        audit("org/model", timeout=0.7)


# who may read


def missing(hub: Hub, _: Path) -> None:
    hub.repositories.clear()


def gated(hub: Hub, path: Path) -> None:
    hub.add("org/model", path, gated=True, token="hf_good")  # noqa: S106


def private(hub: Hub, path: Path) -> None:
    hub.add("org/model", path, private=True, token="hf_good")  # noqa: S106


def disabled(hub: Hub, path: Path) -> None:
    hub.add("org/model", path, disabled=True)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (missing, {}, ["no such repository", "spelling", "HF_TOKEN"]),
        (private, {}, ["no such repository", "HF_TOKEN"]),
        (gated, {}, ["gated", "HF_TOKEN"]),
        (disabled, {}, ["org/model"]),
        (Hub.add, {"revision": "v9"}, ["no revision 'v9'", "--revision"]),
        (Hub.add, {"subfolder": "nothing"}, ["nothing at 'nothing'"]),
        (Hub.add, {"offline": True}, ["local Hub cache", "--offline"]),
    ],
)
def test_what_cannot_be_opened_says_what_to_do(
    online: Hub, tmp_path: Path, make: Callable[..., None], options: dict[str, Any], words: list[str]
) -> None:
    path = folder(tmp_path, COPIES)
    make(online, path) if make is not Hub.add else online.add("org/model", path)
    with pytest.raises(TargetError) as error:
        audit("org/model", **options)
    line = str(error.value)
    assert line.startswith("org/model: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize("make", [gated, private])
def test_the_token_opens_and_goes_to_the_hub_alone(
    online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Hub, Path], None]
) -> None:
    make(online, folder(tmp_path, COPIES))
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert codes(audit("org/model")) == ["TIE002"]
    assert {(request.host, request.authorization) for request in online.requests} == {("hub", "Bearer hf_good"), ("cdn", None)}


@pytest.mark.parametrize("path", ["/api/models/*", "*/config.json", WEIGHTS], ids=["listing", "config", "weights"])
def test_the_token_follows_no_redirect_to_another_host(online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    fault = online.fault("redirect", path, host="hub", times=None)
    assert codes(audit("org/model")) == ["TIE002"]
    assert fault.hits
    assert {request.authorization for request in online.requests if request.host == "cdn"} == {None}


def test_a_token_that_the_hub_refuses_is_told(online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online.add("org/model", folder(tmp_path, COPIES))
    online.invalid_tokens.add("hf_old")
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    with pytest.raises(TargetError, match="refuses the token"):
        audit("org/model")


def test_no_network_points_at_the_cache(online: Hub) -> None:
    online.close()
    with pytest.raises(TargetError, match=r"cannot be reached.*--offline"):
        audit("org/model")


def test_offline_audits_the_cached_snapshot(online: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import snapshot_download

    repo = online.add("org/model", folder(tmp_path, {**COPIES, "sub/model.safetensors": COPIES["model.safetensors"]}))
    snapshot_download("org/model", endpoint=online.url, cache_dir=os.environ["HF_HUB_CACHE"])
    online.close()
    for options in ({}, {"revision": "main"}, {"revision": repo.head}):
        report = audit("org/model", offline=True, **options)
        assert (codes(report), report.revision, report.findings[0].evidence) == (["TIE002"], repo.head, "proved")
    assert audit("org/model", offline=True, subfolder="sub").files == (("model.safetensors", len(COPIES["model.safetensors"])),)
    for options in ({"revision": "v9"}, {"revision": "../../x"}, {"subfolder": "no"}, {"subfolder": "../.."}):
        with pytest.raises(TargetError, match="org/model"):
            audit("org/model", offline=True, **options)


# what only a repository shows


def test_other_formats_and_folders_are_told_with_their_bytes(online: Hub, tmp_path: Path) -> None:
    weights = COPIES["model.safetensors"]
    other = {"original/consolidated.safetensors": weights, "tf_model.h5": bytes(2_000_000), "onnx/model.onnx": bytes(3000)}
    online.add("org/model", folder(tmp_path, {**COPIES, **other}))
    said = {skip.subject: skip.reason for skip in audit("org/model").not_compared}
    assert "here too, by SHA-256" in said["original/"]
    assert "h5" in said["tf_model.h5"]
    assert "onnx/" in said
    assert "snapshot_download fetches" in said["the rest of the repository"]
    assert "h5 2.00 MB" in said["the rest of the repository"]


def test_the_same_file_under_another_name_is_a_duplicate_format(online: Hub, tmp_path: Path) -> None:
    weights = safetensors({EMBED: matrix(1)})
    online.add("org/model", folder(tmp_path, {"config.json": tied(), "model.safetensors": weights, "model.fp16.safetensors": weights}))
    report = audit("org/model")
    assert codes(report) == ["TIE206"]
    assert report.findings[0].evidence == "proved"


def test_a_stale_shard_outside_the_index_is_an_orphan(online: Hub, tmp_path: Path) -> None:
    path = sharded(tmp_path)
    folder(path, {"model-00004-of-00004.safetensors": safetensors({"old.weight": matrix(77)})})
    online.add("org/model", path)
    assert codes(audit("org/model")) == codes(audit(path))
    assert "TIE402" in codes(audit("org/model"))


# hostile listings


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/model.safetensors", "a\\model.safetensors", "x\0.safetensors"])
def test_names_that_leave_the_folder_are_not_asked_for(online: Hub, tmp_path: Path, name: str) -> None:
    online.add("org/model", folder(tmp_path, COPIES))

    def change(info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "siblings": [*info["siblings"], {"rfilename": name, "size": 100, "blobId": "0" * 40}]}

    online.fault("edit", "/api/models/*", times=None, change=change)
    report = audit("org/model")
    assert codes(report) == ["TIE002"]
    assert not [request for request in online.requests if name.rpartition("/")[2] in request.path and COPIES.get(name)]


def test_a_commit_that_is_no_name_does_not_leave_the_cache(online: Hub, tmp_path: Path) -> None:
    online.add("org/model", folder(tmp_path / "m", COPIES))
    online.fault("edit", "/api/models/*", times=None, change=lambda info: {**info, "sha": "../../../../escaped"})
    with pytest.raises(TargetError):
        audit("org/model")
    assert not list(tmp_path.rglob("escaped"))


def test_the_report_names_commit_and_target(online: Hub, tmp_path: Path) -> None:
    import jsonschema

    import tieaudit
    from tieaudit.reporters import json as reporter

    repo = online.add("org/model", folder(tmp_path, COPIES))
    report = audit("org/model")
    document = json.loads(reporter.render(report))
    schema = json.loads((Path(tieaudit.__file__).parent / "reporters" / "report.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert (document["target"], document["revision"]) == ("org/model", repo.head)
    assert f"commit {repo.head[:12]}" in terminal.render(report)
