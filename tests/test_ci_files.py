"""The files that put an audit into CI are run as CI runs them: the hook by pre-commit, the steps of the Action and of GitLab by bash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tieaudit
from builders import EMBED, HEAD, folder, matrix, safetensors, tied

ROOT = Path(__file__).parents[1]
SOURCE = Path(tieaudit.__file__).parents[1]
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    """A folder with `tieaudit` and `python3` as a fresh machine has them: `python3 -m venv` makes a venv in which pip installs nothing
    and says what it was asked for, and whose tieaudit is the one under test."""
    path = tmp_path / "bin"
    path.mkdir()

    def script(name: str, text: str) -> None:
        (path / name).write_text(f"#!/bin/bash\n{text}\n")
        (path / name).chmod(0o755)

    tool = f'PYTHONPATH={SOURCE} PYTHONWARNINGS=error HF_ENDPOINT=http://127.0.0.1:9 exec {sys.executable} -m tieaudit "$@"'
    script("tieaudit", tool)
    script("pip", f'printf "%s\\n" "$@" > {tmp_path}/pip-args')
    script(
        "python3",
        f'[[ $1 != -c ]] || exit 0  # new enough\n[[ "$1 $2" == "-m venv" ]] && mkdir -p "$3/bin" && '
        f'cp {path}/tieaudit "$3/bin/" && cp {path}/pip "$3/bin/python"',
    )
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two models and files of other kinds, in git."""
    path = tmp_path / "repository"
    folder(path / "models" / "apart", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1), HEAD: matrix(2)})})
    folder(path / "models" / "a healthy one", {"config.json": tied(), "model.safetensors": safetensors({EMBED: matrix(1)})})
    folder(path / "web", {"config.json": b"{}", "firmware.bin": b"\x00\x01\x02\x03" * 100, "index.html": b""})
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "init.defaultBranch=main", "-c", "core.hooksPath=none"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=path, check=True, env=environment(path))
    return path


def environment(shims: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "GIT_", "PYTHON", "TIEAUDIT", "RUNNER_"))}
    return {**kept, "PATH": f"{shims}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **more}


# pre-commit


def hooks() -> Any:
    return yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def test_the_manifest_is_one_by_pre_commits_own_schema() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    [hook] = clientlib.load_manifest(ROOT / ".pre-commit-hooks.yaml")
    assert (hook["id"], hook["entry"], hook["language"], hook["require_serial"]) == ("tieaudit", "tieaudit hook", "python", True)


@pytest.mark.parametrize(
    ("name", "taken"),
    [("config.json", True), ("a/config.json", True), ("a/model-00001-of-00002.safetensors", True), ("a/model.safetensors.index.json", True),
     ("m.gguf", True), ("m.onnx", True), ("a b/pytorch_model.bin", True), ("adapter_config.json", True), ("m.pth", True), ("m.pt", True),
     ("tsconfig.json", False), ("my-config.json", False), ("a.bin.txt", False), ("README.md", False), ("tokenizer.json", False)],
)  # fmt: skip
def test_which_files_start_the_hook(name: str, *, taken: bool) -> None:
    assert bool(re.search(hooks()[0]["files"], name)) is taken


def precommit(repository: Path, shims: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """pre-commit itself, with the hook as the manifest has it, but run by the tieaudit on PATH: no environment is built."""
    pytest.importorskip("pre_commit")
    [hook] = hooks()
    config = {"repos": [{"repo": "local", "hooks": [{**hook, "language": "system", "args": list(args)}]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    subprocess.run(["git", "add", ".pre-commit-config.yaml"], cwd=repository, check=True)
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never"],
        cwd=repository, capture_output=True, text=True, check=False,
        env=environment(shims, PRE_COMMIT_HOME=str(repository.parent / "pre-commit")), timeout=60,
    )  # fmt: skip


def test_pre_commit_audits_the_folders_of_models_and_nothing_else(repository: Path, shims: Path) -> None:
    told = precommit(repository, shims)
    assert told.returncode == 1, told.stdout + told.stderr
    assert "ERROR  models/apart   the config ties two names, but the file holds two different matrices" in told.stdout
    assert "OK  models/a healthy one   " in told.stdout
    assert "web" not in told.stdout


def test_pre_commit_with_options(repository: Path, shims: Path) -> None:
    assert "Passed" in precommit(repository, shims, "--fail-on", "never").stdout
    (repository / "tieaudit.toml").write_text('[[target]]\nmatch = "models/apart"\nignore = ["TIE001"]\nreason = "known"\n')
    assert "Passed" in precommit(repository, shims, "--quiet").stdout


def test_the_hook_has_nothing_to_do_where_there_are_no_weights(repository: Path, shims: Path) -> None:
    for words in ([], ["web/config.json", "web/firmware.bin"], ["gone/model.safetensors"]):
        told = subprocess.run(
            ["tieaudit", "hook", *words], cwd=repository, capture_output=True, text=True, check=False, env=environment(shims)
        )
        assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_the_hook_audits_each_folder_once_and_the_current_one(repository: Path, shims: Path) -> None:
    told = subprocess.run(
        ["tieaudit", "hook", "--fail-on", "never", "config.json", "model.safetensors"],
        cwd=repository / "models" / "apart", capture_output=True, text=True, check=False, env=environment(shims),
    )  # fmt: skip
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.count("TIE001 error") == 1
    assert told.stdout.startswith("ERROR  .   ")


# the Action


def action() -> Any:
    return yaml.safe_load((ROOT / "action.yml").read_text())


def test_the_action_uses_no_loose_action_and_puts_no_input_into_a_script() -> None:
    told = action()
    assert told["runs"]["using"] == "composite"
    for step in told["runs"]["steps"]:
        assert "uses" not in step or PINNED.fullmatch(step["uses"])
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
    named = set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", (ROOT / "action.yml").read_text()))
    assert named == set(told["inputs"]) == {"targets", "fail-on", "format", "args", "python-version"}
    assert all(one["description"] for part in ("inputs", "outputs") for one in told[part].values())


class Job:
    """A job that uses the action: its steps are run one after the other, as a runner does."""

    def __init__(self, tmp_path: Path, cwd: Path, shims: Path) -> None:
        self.temp = tmp_path / "runner temp"
        self.temp.mkdir()
        self.cwd = cwd
        self.shims = shims
        self.summary, self._outputs = tmp_path / "summary.md", tmp_path / "outputs"
        for path in (self.summary, self._outputs):
            path.write_text("before\n" if path is self.summary else "")

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """The last step that ran."""
        told = action()
        values = {name: str(one.get("default", "")) for name, one in told["inputs"].items()} | {
            name.replace("_", "-"): value for name, value in inputs.items()
        }
        for step in told["runs"]["steps"]:
            variables = {
                name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text).replace(
                    "${{ github.action_path }}", str(ROOT)
                )
                for name, text in step["env"].items()
            }
            assert not any("${{" in text for name, text in variables.items() if name != "TARGETS")
            script = self.temp / "step.sh"
            script.write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)], cwd=self.cwd, capture_output=True, text=True,
                check=False, timeout=60,
                env=environment(self.shims, RUNNER_TEMP=str(self.temp), GITHUB_OUTPUT=str(self._outputs), GITHUB_ACTIONS="true",
                                GITHUB_STEP_SUMMARY=str(self.summary), GITHUB_WORKSPACE=str(self.cwd), **variables),
            )  # fmt: skip
            if done.returncode:
                break
        return done

    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._outputs.read_text().splitlines())


@pytest.fixture
def job(tmp_path: Path, repository: Path, shims: Path) -> Job:
    return Job(tmp_path, repository, shims)


def test_the_action_annotates_and_sums_up(job: Job, tmp_path: Path) -> None:
    done = job.run(targets="models/apart\n\n  models/a healthy one  \n")
    assert done.returncode == 1, done.stderr
    assert "::error " in done.stdout
    assert "diverged-tie" in done.stdout
    assert job.outputs() == {"exit-code": "1", "report": ""}
    summary = job.summary.read_text()
    assert summary.startswith("before\n")
    assert "models/apart" in summary
    assert "models/a healthy one" in summary
    asked = (tmp_path / "pip-args").read_text().splitlines()
    assert asked == ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)]


def test_the_action_passes_and_writes_the_report_that_was_asked_for(job: Job) -> None:
    done = job.run(targets="models/apart", fail_on="never", format="sarif", args="--max-size '1 MB' --select TIE001")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ERROR  models/apart   ")
    assert job.outputs()["exit-code"] == "0"
    assert '"version": "2.1.0"' in Path(job.outputs()["report"]).read_text()
    assert job.summary.read_text().startswith("before\n#")


def test_the_action_passes_options_as_a_shell_would_and_runs_none_of_them(job: Job) -> None:
    done = job.run(targets="models/apart", fail_on="never", format="text", args="--max-size '100 B'")
    assert done.returncode == 1
    assert "100 B allowed" in done.stdout
    hostile = "'a' ; touch pwned & `touch pwned` $(touch pwned)"
    job.run(targets="models/apart", format="text", args=hostile)
    job.run(targets=hostile, format=hostile, fail_on=hostile)
    job.run(targets="models/apart", python_version=hostile)
    assert not list(job.cwd.rglob("pwned"))
    assert job.run(targets="--fail-on=never\nmodels/apart", format="text").returncode == 2  # a target, not an option
    unclosed = job.run(targets="models/apart", args="--select 'TIE0")
    assert unclosed.returncode == 2
    assert "a quote is not closed" in unclosed.stdout
    assert job.run(targets="\n").returncode == 2


def test_the_action_finds_the_python_that_is_asked_for(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "toolcache"
    (cache / "Python" / "3.99.1" / "x64" / "bin").mkdir(parents=True)
    shutil.copy(job.shims / "python3", cache / "Python" / "3.99.1" / "x64" / "bin" / "python3")
    monkeypatch.setenv("AGENT_TOOLSDIRECTORY", "")
    told = job.run(targets="models/apart", python_version="3.98")
    assert told.returncode == 2
    assert "there is no Python 3.98 on this runner" in told.stdout
    assert "not of the form" in job.run(targets="models/apart", python_version="three").stdout
    (job.shims / "python3.99").symlink_to(cache / "Python" / "3.99.1" / "x64" / "bin" / "python3")
    assert job.run(targets="models/a healthy one", python_version="3.99").returncode == 0
    (job.shims / "python3.99").unlink()
    (job.shims / "python3").write_text("#!/bin/sh\nexit 1\n")  # one that is too old
    assert "Python 3.11 or later is needed" in job.run(targets="models/apart").stdout


# GitLab


def test_the_gitlab_job_runs_and_leaves_its_reports(repository: Path, shims: Path) -> None:
    [(name, job)] = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text()).items()
    assert name == "tieaudit"
    (repository / "models" / "a healthy one").rename(repository / "models" / "healthy")
    script = "\n".join(job["script"])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=repository, capture_output=True, text=True, check=False, timeout=60,
        env=environment(shims, **{**job["variables"], "TIEAUDIT_ARGS": "--fail-on warning"}),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "ERROR  models/apart" in done.stdout
    assert "OK  models/healthy" in done.stdout
    reports = job["artifacts"]["reports"]
    assert job["artifacts"]["when"] == "always"
    assert "diverged-tie" in (repository / reports["codequality"]).read_text()
    assert "<testsuite" in (repository / reports["junit"]).read_text()


def test_every_option_in_these_files_exists() -> None:
    from tieaudit.cli.audit import audit_command

    known = {word for param in audit_command.params for word in (*param.opts, *param.secondary_opts)} | {"--"}
    for name in ("action.yml", "ci/gitlab.yml", ".pre-commit-hooks.yaml"):
        text = "\n".join(line for line in (ROOT / name).read_text().splitlines() if "pip" not in line)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known, name
