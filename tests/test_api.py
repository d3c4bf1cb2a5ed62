"""What is public: the names, their types, and what they raise."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

import pytest

import tieaudit
from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from tieaudit import Finding, FormatError, OptionError, Report, Severity, TargetError, TieauditError, audit


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return folder(tmp_path, {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(1)})})


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", tieaudit.__all__)
def test_every_public_name_can_be_imported_first(name: str) -> None:
    assert run(f"from tieaudit import {name}; print({name} is not None)") == "True"


def test_star_import_gives_exactly_the_public_names() -> None:
    told = run("from tieaudit import *; print(*sorted(name for name in dir() if name[:2] != '__' or name == '__version__'))")
    assert told.split() == sorted(tieaudit.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'tieaudit' has no attribute 'nothing'"):
        _ = tieaudit.nothing
    with pytest.raises(ImportError):
        from tieaudit import nothing  # noqa: F401


@pytest.mark.parametrize("first", ["tieaudit.stages", "tieaudit.cli.audit", "tieaudit.report"])
def test_audit_is_the_function_whatever_was_imported_first(first: str) -> None:
    told = run(
        f"import {first}, tieaudit; from tieaudit import audit; print(type(tieaudit.audit).__name__, type(audit).__name__)\n"
        f"import tieaudit.stages; print(tieaudit.audit is audit)"
    )
    assert told.split() == ["function", "function", "True"]


def test_importing_the_package_imports_nothing_else() -> None:
    told = run("import sys, tieaudit; print(*sorted(name for name in sys.modules if name.startswith('tieaudit')))")
    assert told == "tieaudit"


def test_every_module_can_be_imported_on_its_own() -> None:
    root = Path(tieaudit.__file__).parent
    names = [".".join(("tieaudit", *path.relative_to(root).with_suffix("").parts)) for path in sorted(root.rglob("*.py"))]
    # the catalog's generator needs transformers, __main__ runs, a callback for Lightning is one of its own
    left = {"tieaudit.__main__", "tieaudit.live.lightning"}
    names = [name.removesuffix(".__init__") for name in names if name not in left and (".catalog." not in name or name.endswith("lookup"))]
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n"
        " for known in [n for n in sys.modules if n.startswith('tieaudit')]: del sys.modules[known]\n"
        " importlib.import_module(name)"
    )
    subprocess.run([sys.executable, "-c", code, *names], check=True, capture_output=True)


def test_the_package_is_typed_and_audit_says_all_its_types() -> None:
    hints = typing.get_type_hints(audit)
    assert hints["return"] is Report
    assert set(hints) == {*inspect.signature(audit).parameters, "return"}
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in list(inspect.signature(audit).parameters.values())[1:])
    assert (Path(tieaudit.__file__).parent / "py.typed").exists()


def test_a_report_says_what_was_found(copies: Path) -> None:
    report = audit(copies)
    assert isinstance(report, Report)
    assert (report.target, report.formats, report.revision) == (str(copies), ("safetensors",), None)
    assert report.files == (("model.safetensors", (copies / "model.safetensors").stat().st_size),)
    assert report.verdict == "warning"
    totals = report.totals
    assert (totals.tensors, totals.parameters_stored, totals.parameters_unique) == (2, 512, 256)
    assert (totals.nbytes_stored, totals.nbytes_wasted, totals.nbytes_unique) == (2048, 1024, 1024)
    (tie,) = report.ties
    assert (tie.canonical, tie.aliases, tie.role, tie.claim, tie.relation, tie.evidence) == (
        EMBED, (HEAD,), "embedding-head", "tied", "equal", "proved",
    )  # fmt: skip
    assert report.at_least(Severity.WARNING)
    assert not report.at_least(Severity.ERROR)
    assert report.cost.bytes_read > 0
    assert report.cost.requests > 0


def test_a_finding_says_what_where_how_much_and_what_to_do(copies: Path) -> None:
    (finding,) = audit(copies).findings
    assert isinstance(finding, Finding)
    assert (finding.code, finding.rule, finding.severity, finding.wasted_bytes, finding.evidence) == (
        "TIE002", "duplicate-tie", Severity.WARNING, 1024, "proved",
    )  # fmt: skip
    raw = (copies / "model.safetensors").read_bytes()
    for place in finding.tensors:
        assert place.file == "model.safetensors"
        assert place.offset is not None
        assert raw[place.offset : place.offset + place.nbytes] == matrix(1).tobytes()
    assert {place.name for place in finding.tensors} == {EMBED, HEAD}
    assert finding.fix


def test_reports_and_findings_cannot_be_changed(copies: Path) -> None:
    report = audit(copies)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.target = "x"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.findings[0].message = "x"  # type: ignore[misc]


def test_the_same_checkpoint_gives_the_same_report(copies: Path) -> None:
    first, second = (dataclasses.replace(audit(copies), cost=tieaudit.report.Cost()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("form", [str, Path])
def test_the_target_is_text_or_a_path(copies: Path, form: type) -> None:
    assert audit(form(copies)).target == str(copies)


@pytest.mark.parametrize("verify", ["headers", "sample", "full"])
def test_verify_decides_what_is_read_and_how_sure_the_answer_is(copies: Path, verify: str) -> None:
    report = audit(copies, verify=verify)
    evidence = {"headers": "header", "sample": "sampled", "full": "proved"}[verify]
    assert report.ties[0].evidence == evidence
    assert bool(report.findings) is (verify != "headers")
    assert bool(report.not_compared) is (verify == "headers")


@pytest.mark.parametrize("words", [("TIE002",), ("tie0",), ("duplicate-tie",), ["TIE0", "TIE5"], ("TIE",)])
def test_select_and_ignore_name_rules(copies: Path, words: Iterable[str]) -> None:
    assert [finding.code for finding in audit(copies, select=words).findings] == ["TIE002"]
    assert audit(copies, ignore=words).findings == ()


def test_min_waste_leaves_out_what_is_smaller(tmp_path: Path) -> None:
    tensors = {"model.a.weight": matrix(5), "model.b.weight": matrix(5)}
    folder(tmp_path, {"model.safetensors": safetensors(tensors)})
    assert [finding.code for finding in audit(tmp_path, min_waste=1024).findings] == ["TIE201"]
    assert audit(tmp_path, min_waste=1025).findings == ()


def test_progress_is_told_and_its_errors_are_the_caller_s(copies: Path) -> None:
    told: list[tuple[str, int, int]] = []
    audit(copies, progress=lambda *step: told.append(step))
    assert told
    assert all(isinstance(what, str) and 0 <= done <= total for what, done, total in told)
    with pytest.raises(KeyboardInterrupt):
        audit(copies, progress=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))


@pytest.mark.parametrize("option", [{"select": ["TIE999"]}, {"ignore": ["nothing"]}, {"select": [""]}, {"verify": "all"}, {"verify": ""}])
def test_an_option_that_names_nothing_is_an_option_error(copies: Path, option: dict[str, typing.Any]) -> None:
    with pytest.raises(OptionError):
        audit(copies, **option)


@pytest.mark.parametrize("words", ["TIE002", "duplicate-tie"])
def test_a_bare_string_is_no_list_of_letters(copies: Path, words: str) -> None:
    """`select="TIE002"` is the first thing that people write; as an iterable it would be seven words, of which `T` names every rule."""
    try:
        findings = audit(copies, select=words).findings
    except OptionError as error:
        assert words in str(error)  # noqa: PT017
    else:
        assert [finding.code for finding in findings] == ["TIE002"]


@pytest.mark.parametrize("target", ["", "nowhere", "a/b", "\0", "\ud800", "x" * 5000])
def test_a_target_that_is_not_there_is_a_target_error(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder(tmp_path, {"model.safetensors": safetensors({EMBED: matrix(1)})}))
    with pytest.raises(TargetError) as told:
        audit(target)
    assert "\n" not in str(told.value)


def test_errors_have_one_root_and_say_what_where_and_what_to_do() -> None:
    assert all(issubclass(error, TieauditError) for error in (FormatError, TargetError, OptionError))
    assert str(FormatError("f", "is bad", 1234)) == "f: is bad (at byte 1,234)"
    assert str(TargetError("t", "is bad", "do this")) == "t: is bad (do this)"
    assert FormatError("f", "is bad", 7).offset == 7


def test_a_broken_file_is_a_finding_and_no_exception(tmp_path: Path) -> None:
    report = audit(folder(tmp_path, {"model.safetensors": b"\xff" * 100}))
    assert [finding.code for finding in report.findings] == ["TIE501"]
