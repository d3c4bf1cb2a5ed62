"""SARIF: valid by the official schema for whatever is audited, read by another tool, and stable where results are matched by it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from report_samples import FOLDERS, HOSTILE, RAW, ROOT, SCHEMAS, nasty, outcomes, reports
from tieaudit import audit
from tieaudit.policy.verdict import Remark, Verdict
from tieaudit.report import Severity
from tieaudit.reporters import sarif
from tieaudit.reporters.settings import Settings
from tieaudit.reporters.several import Outcome

VALID = jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0.json").read_text()))
REFERENCE = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-F]{2})+")  # RFC 3986, no query and no fragment


def log(report: Any, settings: Settings | None = None) -> dict[str, Any]:
    """The one run, held to the schema."""
    told = sarif.render(report, settings or Settings())
    document = json.loads(told)
    VALID.validate(document)
    [run] = document["runs"]
    return run


def diverged(path: Path, names: tuple[str, ...] = (EMBED, HEAD)) -> Path:
    matrices = {EMBED: matrix(1), HEAD: matrix(2), "model.norm.weight": matrix(3, 1, 8)[0]}
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors({name: matrices[name] for name in names})})


def test_the_schema_is_the_official_one() -> None:
    assert VALID.schema["id"].startswith("https://docs.oasis-open.org/sarif/sarif/v2.1.0/")
    assert not VALID.is_valid({"version": "2.1.0", "runs": [{}]})
    assert not VALID.is_valid({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"}}, "more": 1}]})


@pytest.mark.parametrize("index", range(len(FOLDERS)), ids=[str(path.relative_to(ROOT)) for path in FOLDERS])
def test_every_fixture_is_valid_and_tells_each_finding_once(index: int) -> None:
    report = reports()[index]
    run = log(report)
    rules = run["tool"]["driver"]["rules"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        (finding.code, finding.severity.value) for finding in report.findings
    ]
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert (rules[result["ruleIndex"]]["id"], rules[result["ruleIndex"]]["name"]) == (finding.code, finding.rule)
        assert result["properties"]["wastedBytes"] == finding.wasted_bytes
        assert result["locations"]
    uris = [artifact["location"]["uri"] for artifact in run["artifacts"]]
    assert len(set(uris)) == len(uris) == len(report.files)
    assert run["invocations"][0]["executionSuccessful"] is not bool(report.skipped)


def test_many_targets_are_one_run_with_marks_that_differ() -> None:
    document = json.loads(sarif.render_several(outcomes()))
    VALID.validate(document)
    [run] = document["runs"]
    assert len(run["results"]) == sum(len(report.findings) for report in reports())
    marks = [result["partialFingerprints"]["tieaudit/v1"] for result in run["results"]]
    assert len(set(marks)) == len(marks)
    assert [target["verdict"] for target in run["properties"]["targets"]] == [*(report.verdict for report in reports()), "no answer"]
    [invocation] = run["invocations"]
    assert invocation["executionSuccessful"] is False
    first = invocation["toolExecutionNotifications"][0]
    assert (first["level"], first["descriptor"]["id"], first["message"]["text"]) == ("error", "no-answer", "nowhere: is not there")


def test_another_tool_counts_the_same(tmp_path: Path) -> None:
    loader = pytest.importorskip("sarif.loader")
    file = tmp_path / "all.sarif"
    file.write_text(sarif.render_several(outcomes()))
    loaded = loader.load_sarif_file(str(file))
    assert loaded.get_distinct_tool_names() == ["tieaudit"]
    counts = {level: sum(record["Severity"] == level for record in loaded.get_records()) for level in ("error", "warning", "note")}
    expected = {
        severity.value: sum(finding.severity is severity for report in reports() for finding in report.findings) for severity in Severity
    }
    assert counts == expected
    codes = sorted(record["Code"].split()[0] for record in loaded.get_records())
    assert codes == sorted(finding.code for report in reports() for finding in report.findings)
    seen = {record["Location"] for record in loaded.get_records()}
    assert any(location.endswith("model.safetensors") for location in seen)


def test_a_rule_has_its_page() -> None:
    rule = log(reports()[0])["tool"]["driver"]["rules"][0]
    assert (rule["id"], rule["name"], rule["defaultConfiguration"]) == ("TIE001", "diverged-tie", {"level": "error"})
    assert rule["shortDescription"]["text"] == "The config ties two names, but the file holds two different matrices."
    assert rule["help"]["markdown"].startswith(f"{rule['shortDescription']['text']}\n\n**What it does:** compares")
    assert "helpUri" not in rule


def test_only_rules_that_ran_are_listed() -> None:
    def listed(settings: Settings) -> list[str]:
        return [rule["id"] for rule in log(reports()[0], settings)["tool"]["driver"]["rules"]]

    assert listed(Settings(rules=frozenset({"TIE001", "TIE207"}))) == ["TIE001", "TIE207"]
    assert {"TIE801", "TIE807"} & set(listed(Settings())) == set()  # no model was in memory
    assert "TIE808" in listed(Settings())


def test_a_region_holds_the_bytes_of_the_tensor(tmp_path: Path) -> None:
    run = log(audit(diverged(tmp_path / "m")))
    content = (tmp_path / "m" / "model.safetensors").read_bytes()
    for location, name, seed in zip(run["results"][0]["locations"], (EMBED, HEAD), (1, 2), strict=True):
        region = location["physicalLocation"]["region"]
        assert content[region["byteOffset"] : region["byteOffset"] + region["byteLength"]] == matrix(seed).tobytes()
        assert location["logicalLocations"] == [{"name": name, "fullyQualifiedName": name, "kind": "member"}]
        artifact = run["artifacts"][location["physicalLocation"]["artifactLocation"]["index"]]
        assert artifact["location"]["uri"] == location["physicalLocation"]["artifactLocation"]["uri"]
        assert artifact["length"] == len(content)


def test_marks_stay_when_the_folder_is_copied_and_a_tensor_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def marks(target: Any) -> list[str]:
        return [result["partialFingerprints"]["tieaudit/v1"] for result in log(audit(target))["results"]]

    first = diverged(tmp_path / "a")
    here = marks(first)
    assert len(here) == 1
    shutil.copytree(first, tmp_path / "elsewhere" / "b")
    assert marks(tmp_path / "elsewhere" / "b") == here
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert marks("b") == marks("./b/") == marks("b/model.safetensors") == here
    moved = diverged(tmp_path / "c", ("model.norm.weight", HEAD, EMBED))
    offsets = [
        [place["physicalLocation"]["region"]["byteOffset"] for place in log(audit(path))["results"][0]["locations"]]
        for path in (first, moved)
    ]
    assert offsets[0] != offsets[1]
    assert marks(moved) == here


def test_marks_of_several_targets_stay_when_their_folder_moves(tmp_path: Path) -> None:
    def marks(root: Path) -> list[str]:
        several = [Outcome(target=str(root / name), report=audit(root / name)) for name in ("a", "b")]
        [run] = json.loads(sarif.render_several(several))["runs"]
        return [result["partialFingerprints"]["tieaudit/v1"] for result in run["results"]]

    diverged(tmp_path / "x" / "a")
    diverged(tmp_path / "x" / "b")
    shutil.copytree(tmp_path / "x", tmp_path / "far" / "y")
    assert marks(tmp_path / "x") == marks(tmp_path / "far" / "y")
    assert len(set(marks(tmp_path / "x"))) == 2


def test_a_target_twice_has_two_marks(tmp_path: Path) -> None:
    report = audit(diverged(tmp_path))
    [run] = json.loads(sarif.render_several([Outcome(target="m", report=report)] * 2))["runs"]
    assert len({result["partialFingerprints"]["tieaudit/v1"] for result in run["results"]}) == 2


@pytest.mark.parametrize("name", ["a b", "é中😀", "50%25 #x?y", "a:b", "[x]", "a&b;c=d", os.fsdecode(b"caf\xe9"), "'\"`"])
def test_a_uri_leads_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    diverged(Path(name))
    for target, root in ((name, ""), (f"./{name}/", ""), (f"{name}/model.safetensors", ""), (str(tmp_path / name), "file://")):
        run = log(audit(target))
        [artifact] = run["artifacts"]
        uri = artifact["location"]["uri"]
        assert REFERENCE.fullmatch(uri), uri
        assert uri.startswith(root or "")
        assert str(tmp_path) not in uri or root
        assert Path(os.fsdecode(unquote(uri.removeprefix(root), errors="surrogateescape").encode("utf-8", "surrogateescape"))).is_file()
        assert Path(name, "model.safetensors").is_file()


def test_every_place_is_there_and_holds_the_bytes() -> None:
    """Of all fixtures; what is told of a missing shard or tensor leads to the index that names it."""
    for report in reports():
        for result in json.loads(sarif.render(report))["runs"][0]["results"]:
            for location in result["locations"]:
                physical = location["physicalLocation"]
                uri = physical["artifactLocation"]["uri"]
                file = Path(unquote(uri.removeprefix("file://")))
                assert file.is_file(), (result["ruleId"], uri)
                region = physical.get("region", {"byteOffset": 0, "byteLength": 0})
                assert region["byteOffset"] + region["byteLength"] <= file.stat().st_size


def test_a_relative_target_names_no_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    told = sarif.render(audit("m"))
    assert str(tmp_path) not in told
    assert '"uri": "m/model.safetensors"' in told
    monkeypatch.chdir(tmp_path / "m")
    assert '"uri": "model.safetensors"' in sarif.render(audit("."))


@pytest.mark.parametrize(
    ("target", "revision", "subfolder", "uri"),
    [
        ("org/model", "abc", "", "hf://org/model@abc/model.safetensors"),
        ("org/model", "abc", "sub/", "hf://org/model@abc/sub/model.safetensors"),
        ("hf://org/model@v1/sub", "abc", "", "hf://org/model@v1/sub/model.safetensors"),
        ("hf://org/model@v1/sub/model.safetensors", "abc", "", "hf://org/model@v1/sub/model.safetensors"),
        ("s3://bucket/a b/", None, "", "s3://bucket/a%20b/model.safetensors"),
        ("../m", None, "", "../m/model.safetensors"),
    ],
)
def test_what_lies_elsewhere_has_a_url(tmp_path: Path, target: str, revision: str | None, subfolder: str, uri: str) -> None:
    from dataclasses import replace

    report = replace(audit(diverged(tmp_path)), target=target, revision=revision, checkpoint=None)
    assert log(report, Settings(subfolder=subfolder))["artifacts"][0]["location"]["uri"] == uri


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_names_are_text(case: str) -> None:
    word = HOSTILE[case]
    for report in (nasty(word), nasty("x", target=word)):
        told = sarif.render(report)
        assert told.isascii()
        run = log(report)
        assert not RAW.search(json.dumps(run, ensure_ascii=False).replace("\n", ""))
        messages = [run["results"][0]["message"]["text"], run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]]
        for message in messages:
            assert not re.search(r"(?<!\\)\[[^\[\]]*\]\(", message)  # SARIF's links
            assert not re.search(r"(?<!\{)(?:\{\{)*\{\d+\}(?!\})", message)  # and its placeholders
        assert REFERENCE.fullmatch(run["artifacts"][0]["location"]["uri"])
        assert len(told) < 300_000


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_target_without_an_answer_is_text(case: str) -> None:
    document = json.loads(sarif.render_several([Outcome(target=HOSTILE[case], error=HOSTILE[case])]))
    VALID.validate(document)
    assert not RAW.search(json.dumps(document, ensure_ascii=False).replace("\n", ""))


def test_braces_are_doubled_and_links_are_escaped() -> None:
    assert log(nasty("a{0}[b](c)[d]"))["results"][0]["message"]["text"] == "a{{0}}\\[b](c)[d] differs from a{{0}}\\[b](c)[d]"


def test_what_was_not_checked_is_a_notification() -> None:
    run = log(nasty("x"), Settings(exit_code=2))
    [invocation] = run["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    assert [(note["descriptor"]["id"], note["level"], note["message"]["text"]) for note in invocation["toolExecutionNotifications"]] == [
        ("not-checked", "warning", "model: x: because x"),
        ("not-compared", "note", "model: x: left x"),
    ]
    ids = [one["id"] for one in run["tool"]["driver"]["notifications"]]
    assert [ids[note["descriptor"]["index"]] for note in invocation["toolExecutionNotifications"]] == ["not-checked", "not-compared"]
    assert log(nasty("x"), Settings(allow_partial=True))["invocations"][0]["executionSuccessful"] is True


def test_what_is_accepted_is_suppressed_and_a_limit_is_told() -> None:
    verdict = Verdict(code=1, failing=(0,), remarks={1: (Remark("accepted", "in base.json: known {x}", accepts=True),)},
                      lines=(("limit", "16 bytes are wasted, 8 are allowed"),))  # fmt: skip
    run = log(nasty("x"), Settings(verdicts=(verdict,)))
    assert ["suppressions" in result for result in run["results"]] == [False, True, False]
    assert run["results"][1]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "accepted in base.json: known {x}"}
    ]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert (notes[0]["level"], notes[0]["message"]["text"]) == ("error", "model: 16 bytes are wasted, 8 are allowed")
