"""This file holds what the reports for machines need beside a report: how the run was asked for, where a finding lies, its fingerprint.

Paths are those that the caller used: of a relative target they are relative, of an absolute one absolute, of a Hub id they are URLs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from ..fingerprints import DIGITS, VERSION, fingerprint, target_key
from ..inspectors.registry import all_rules
from ..inspectors.rule import Rule
from ..policy.verdict import Remark, Verdict
from ..report import Finding, Report, Severity
from ..text import printable_words
from .pages import in_memory
from .several import Outcome

IN_MEMORY = "memory"  # the "file" of tensors of a model that was loaded
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BESIDE = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
MAX_PATH = 4096  # characters; what is longer is no path of any system here


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the run was asked for. `fail_on`: None if findings never fail it; `rules`: codes of those that were chosen, None for all;
    `exit_code` of the process, where one ends with this report; `subfolder`: the folder of a Hub repository that the targets mean;
    `verdicts`: what a project's policy says, per outcome, where it was asked (it goes before `fail_on`)."""

    fail_on: Severity | None = Severity.ERROR
    allow_partial: bool = False
    rules: frozenset[str] | None = None
    exit_code: int | None = None
    subfolder: str = ""
    verdicts: tuple[Verdict | None, ...] = ()


DEFAULT = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A finding with what the run makes of it. `mark`: its fingerprint; `fails`: the exit code is 1 because of it; `accepted`: it does
    not count; `remarks`: who says so, and what else is said."""

    finding: Finding
    mark: str
    fails: bool
    accepted: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A target with what came of it. `report` is None if it could not be audited (`error` says why); `key` tells it from the other
    targets in fingerprints; `limits`: sentences on limits that were passed; `lines`: what else the policy says, with its label."""

    target: str
    key: str
    report: Report | None = None
    error: str = ""
    judgements: tuple[Judgement, ...] = ()
    limits: tuple[str, ...] = ()
    lines: tuple[tuple[str, str], ...] = field(default=())


def answers(outcomes: Sequence[Outcome], settings: Settings) -> list[Answer]:
    """What all machine-readable reports are made of."""
    verdicts = settings.verdicts or (None,) * len(outcomes)
    seen: dict[str, int] = {}
    return [
        Answer(
            target=outcome.target,
            key=key,
            report=outcome.report,
            error=outcome.error or outcome.target,
            judgements=tuple(_judgements(outcome.report, key, verdict, settings, seen)) if outcome.report else (),
            limits=tuple(words for label, words in verdict.lines if label == "limit") if verdict else (),
            lines=tuple(line for line in verdict.lines if line[0] != "limit") if verdict else (),
        )
        for outcome, key, verdict in zip(outcomes, targets(outcomes), verdicts, strict=True)
    ]


def _judgements(report: Report, key: str, verdict: Verdict | None, settings: Settings, seen: dict[str, int]) -> Iterator[Judgement]:
    """`seen` counts fingerprints: two that would be alike (one target twice, say) are told apart by their order."""
    for index, finding in enumerate(report.findings):
        mark = fingerprint(finding, key)
        seen[mark] = seen.get(mark, 0) + 1
        by_severity = settings.fail_on is not None and finding.severity.rank <= settings.fail_on.rank
        yield Judgement(
            finding=finding,
            mark=mark if seen[mark] == 1 else f"{mark}-{seen[mark]}",
            fails=index in verdict.failing if verdict else by_severity,
            accepted=not verdict.counts(index) if verdict else False,
            remarks=tuple(verdict.remarks.get(index, ())) if verdict else (),
        )


def ran(settings: Settings, reports: Iterable[Report]) -> list[Rule]:
    """The rules that looked at any of the reports, by code. Those about a model in memory need one."""
    loaded = any(report.live is not None for report in reports)
    chosen = [rule for rule in all_rules() if settings.rules is None or rule.code in settings.rules]
    return [rule for rule in chosen if loaded or not in_memory(rule)]


def single(report: Report) -> tuple[Outcome, ...]:
    return (Outcome(target=report.target, report=report),)


def verdict(report: Report | None) -> str:
    """The verdict in a word; what was filtered is never called ok."""
    if report is None:
        return "no answer"
    return "nothing found" if report.filtered and report.verdict == "ok" else report.verdict


def headline(report: Report) -> str:
    """The verdict as a clause: the worst finding's rule, or why all is well."""
    if report.verdict == "incomplete":
        return "not everything that was asked for could be checked"
    if report.filtered and report.verdict in ("ok", "note"):
        return "by the rules that were asked for"
    if report.verdict in ("ok", "note"):
        return printable_words(report.reason)
    worst = report.findings[0]
    words = next((rule.summary for rule in all_rules() if rule.code == worst.code), worst.message)
    return printable_words(f"{words[0].lower()}{words[1:].rstrip('.')}")


def is_remote(report: Report) -> bool:
    """True if the target is no path of this machine."""
    return report.revision is not None or (bool(_URL.match(report.target)) and not report.target.startswith("file://"))


def base(report: Report, subfolder: str = "") -> str:
    """The folder that names of files count from: a path without a slash at its end ("" for the current folder), or a URL."""
    target = report.target[:MAX_PATH]
    if is_remote(report):
        if not _URL.match(target):
            target = f"hf://{target}" + (f"@{report.revision}" if report.revision else "")
        where = "/".join(part for part in (target.rstrip("/"), subfolder.strip("/")) if part)
        folder, _, last = where.rpartition("/")
        return folder if _is_file(report, last) and not folder.endswith("/") else where
    path = os.path.normpath(target.removeprefix("file://"))
    folder, last = os.path.split(path)
    path = folder if _is_file(report, last) else path
    return "" if path == "." else path


def _is_file(report: Report, name: str) -> bool:
    """True if the target ends in the name of a file that was read, so that the target is this file."""
    files = [file for file, _ in report.files]
    if report.checkpoint is not None:
        files += [problem.file for problem in report.checkpoint.unreadable]
    return name in files


def path(report: Report, file: str, subfolder: str = "") -> str:
    """A file of the report as the caller would open it; of a file without a name the target itself. Not escaped for any format."""
    where = base(report, subfolder)
    name = file[:MAX_PATH]
    if not name:
        return where or "."
    return f"{where.rstrip('/')}/{name}" if where else name


def uri(report: Report, file: str, subfolder: str = "") -> str:
    """The same as an URI reference: percent-encoded, a folder with a slash at its end; absolute only if the target was."""
    plain = path(report, file, subfolder)
    if not file and plain == base(report, subfolder):
        plain = f"{plain.rstrip('/')}/"
    scheme, colon, rest = plain.partition("://") if is_remote(report) else ("", "", plain)
    # a name is bytes on the disk (surrogateescape) or text of an index (any surrogate)
    encoded = quote(b"".join(_octets(char) for char in rest), safe="/@" if colon else "/")
    if colon:
        return f"{scheme}://{encoded}"
    return f"file://{encoded}" if encoded.startswith("/") else encoded


def _octets(char: str) -> bytes:
    return bytes([ord(char) - 0xDC00]) if "\udc80" <= char <= "\udcff" else char.encode("utf-8", "surrogatepass")


def files(finding: Finding) -> Iterator[str]:
    """Files that a finding names, each once."""
    yield from dict.fromkeys(place.file for place in finding.tensors if place.file and place.file != IN_MEMORY)


def first_path(report: Report, finding: Finding, subfolder: str = "") -> str:
    """Where a reader that shows one place is sent to; the target itself if the finding is about no file."""
    return path(report, next(files(finding), mentioned(report, finding)), subfolder)


def mentioned(report: Report, finding: Finding) -> str:
    """Of a finding without tensors the file that its message names first, "" if it names none that is known to be there."""
    known = {*_BESIDE, *(name for name, _ in report.files)}
    return next((word for word in (word.strip("'\"`.,:;()") for word in finding.message.split()) if word in known), "")


def targets(outcomes: Sequence[Outcome]) -> list[str]:
    """Per outcome what tells its target from the others, for fingerprints: "" if there is one, else its path below their common folder.

    So a fingerprint stays when the folders are moved together, and when a single one is.
    """
    if len(outcomes) == 1:
        return [""]
    keys = [target_key(outcome.target) for outcome in outcomes]
    shared = os.path.commonpath(keys) if len({key.startswith("/") for key in keys}) == 1 else ""
    return [os.path.relpath(key, shared) if shared else key for key in keys]


def mark(*words: str) -> str:
    """A fingerprint of what is no finding."""
    return hashlib.sha256(json.dumps([VERSION, *words]).encode("ascii")).hexdigest()[:DIGITS]
