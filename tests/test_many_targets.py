"""Several targets in one call: each is answered, the table and the one document sum up, the exit code is the worst."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

import tieaudit
from hub_server import Hub
from test_cli import SCHEMA, copies, diverged, environment, healthy, partial, run


@pytest.mark.parametrize(
    ("makes", "options", "code"),
    [
        ([healthy, copies], [], 0),
        ([healthy, diverged], [], 1),
        ([diverged, partial], [], 2),
        ([partial, diverged], ["--allow-partial"], 1),
        ([healthy, copies], ["--fail-on", "warning"], 1),
        ([healthy, None], [], 2),
        ([None, diverged], ["--fail-on", "never"], 2),
    ],
)
def test_the_exit_code_is_the_worst(tmp_path: Path, makes: list[Any], options: list[str], code: int) -> None:
    targets = [make(tmp_path / str(number)) if make else tmp_path / "nothing" for number, make in enumerate(makes)]
    told = run(*targets, *options)
    assert told.returncode == code, told.stdout
    assert told.stderr == ""


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_each_target_is_answered_in_order_and_the_table_ends(tmp_path: Path, jobs: str) -> None:
    targets = [diverged(tmp_path / "a"), tmp_path / "b", healthy(tmp_path / "c")]
    told = run(*targets, "--jobs", jobs).stdout
    assert told.index("ERROR") < told.index("NO ANSWER") < told.index("OK  ")
    table = told[told.rindex("target ") :].splitlines()
    assert [line.split()[1] for line in table[1:4]] == ["error", "no", "ok"]
    assert str(tmp_path / "b") in table[4]


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_json_is_one_document_with_the_reports_of_single_targets(tmp_path: Path, jobs: str) -> None:
    targets = [diverged(tmp_path / "a"), tmp_path / "b", healthy(tmp_path / "c")]
    told = run(*targets, "--format", "json", "--jobs", jobs)
    document = json.loads(told.stdout)
    assert document["version"] == 1
    assert [report["verdict"] for report in document["reports"]] == ["error", "ok"]
    assert [error["target"] for error in document["errors"]] == [str(tmp_path / "b")]
    several = json.loads((Path(tieaudit.__file__).parent / "reporters" / "reports.schema.json").read_text(encoding="utf-8"))
    known = Registry().with_resource(SCHEMA["$id"], Resource.from_contents(SCHEMA))
    jsonschema.Draft202012Validator(several, registry=known).validate(document)
    alone = json.loads(run(targets[0], "--format", "json").stdout)
    for report in (alone, document["reports"][0]):
        report["cost"]["seconds"] = 0
    assert alone == document["reports"][0]


def test_a_list_names_targets_line_by_line(tmp_path: Path) -> None:
    names = [str(healthy(tmp_path / "a b")), str(diverged(tmp_path / "c"))]
    listing = tmp_path / "list"
    listing.write_text("\ufeff# models\n\n" + "\r\n".join(f"  {name} " for name in names) + "\n")
    told = run("--from-file", listing, "--format", "json")
    assert told.returncode == 1
    assert [report["target"] for report in json.loads(told.stdout)["reports"]] == names
    piped = subprocess.run(
        [sys.executable, "-m", "tieaudit", "--from-file", "-", str(tmp_path / "a b")],
        input=names[1], capture_output=True, text=True, env=environment(), check=False, timeout=60,
    )  # fmt: skip
    assert piped.returncode == 1
    assert piped.stdout.index("OK  ") < piped.stdout.index("ERROR")


def test_a_list_of_one_is_still_a_list_and_an_empty_one_is_wrong_usage(tmp_path: Path) -> None:
    listing = tmp_path / "list"
    listing.write_text(str(healthy(tmp_path / "a")))
    assert "reports" in json.loads(run("--from-file", listing, "--format", "json").stdout)
    listing.write_text("# nothing\n")
    told = run("--from-file", listing)
    assert (told.returncode, told.stdout) == (2, "")
    assert "list" in told.stderr


def test_a_wrong_option_stops_before_the_first_target(tmp_path: Path) -> None:
    told = run(healthy(tmp_path / "a"), healthy(tmp_path / "b"), "--select", "TIE999")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.count("\n") == 1


def test_ids_and_folders_mix(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/one", copies(tmp_path / "one"))
    told = run(
        tmp_path / "one", "org/one", "org/none", "--jobs", "2", "--format", "json", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home")
    )
    document = json.loads(told.stdout)
    assert (told.returncode, told.stderr) == (2, "")
    assert [[finding["code"] for finding in report["findings"]] for report in document["reports"]] == [["TIE002"]] * 2
    assert [report["revision"] for report in document["reports"]] == [None, hub.repositories["org/one"].head]
    assert "no such repository" in document["errors"][0]["message"]
    assert sum(report["cost"]["requests"] for report in document["reports"][1:]) == sum(
        "org/none" not in request.path for request in hub.requests
    )


def test_the_command_line_asks_the_hub_for_no_more_than_the_files(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/one", copies(tmp_path / "one"))
    hub.fault("status", "*/config.json", times=1, status=500)
    told = run("org/one", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
    assert (told.returncode, told.stderr) == (0, "")
    assert all("org/one" in request.path or request.host == "cdn" for request in hub.requests)


@pytest.mark.parametrize("target", ["org/none", "hf://org/none@main/x"])
def test_an_id_that_is_not_there_is_one_line_and_exit_2(hub: Hub, tmp_path: Path, target: str) -> None:
    told = run(target, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith(f"tieaudit: {target}: ")
