"""What an audit costs, as whole processes, against what a user would do today and against the floor.

    python tests/bench.py [--inputs DIR] [--only NAME ...] [--repeat N] [--quick]

The inputs (6 GB, some of it sparse) are built on the first run and kept. Every figure is CPU seconds, user and system, as the
system counts them for a child that has ended: on a shared machine wall time says little. Repetitions of all programs of one case
take turns, and the median counts, so the ratios hold where the seconds do not. `--quick` repeats less and leaves the slow rivals
out. Nothing here fails: a target that is not met is printed as such. The peak of a child that needs less memory than this process is
that of this process (Linux counts from before exec).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOW_REPEATS = 2  # of a rival that takes seconds
MIB = 1 << 20

# The floor: an interpreter, click, and every header parsed, with nothing made of it.
HEADERS = """
import json, sys
from pathlib import Path
import click
count = 0
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    with path.open("rb", buffering=0) as file:
        count += len(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
click.echo(count)
"""
EVERY_BYTE = """
import sys
from pathlib import Path
buffer = bytearray(1 << 20)
for path in sorted(Path(sys.argv[1]).iterdir()):
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
"""
LOAD = """
import collections, sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
shared = collections.defaultdict(list)
for name, parameter in model.named_parameters(remove_duplicate=False):
    shared[parameter.data_ptr()].append(name)
print([names for names in shared.values() if len(names) > 1])
"""
SHA256 = """
import collections, hashlib, sys
from pathlib import Path
import torch
from safetensors import safe_open
same = collections.defaultdict(list)
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(path, "pt") as file:
        for name in file.keys():
            same[hashlib.sha256(file.get_tensor(name).view(torch.uint8).numpy()).digest()].append(name)
print([names for names in same.values() if len(names) > 1])
"""
TORCH_LOAD = """
import collections, sys, torch
state = torch.load(sys.argv[1] + "/pytorch_model.bin", weights_only=True{mmap})
shared = collections.defaultdict(list)
for name, tensor in state.items():
    shared[tensor.untyped_storage().data_ptr()].append(name)
print([names for names in shared.values() if len(names) > 1])
"""
GGUF_READER = """
import sys
from pathlib import Path
from gguf import GGUFReader
[path] = Path(sys.argv[1]).glob("*.gguf")
print(len([(tensor.name, tensor.data_offset) for tensor in GGUFReader(path).tensors]))
"""
ONNX_LOAD = """
import sys, onnx
print(len(onnx.load(sys.argv[1] + "/model.onnx").graph.initializer))
"""
# the copy that a user makes before any repair by hand
COPY = """
import os, shutil, sys
out = sys.argv[1] + ".copy"
os.spawnlp(os.P_WAIT, "cp", "cp", "-r", sys.argv[1], out)
"""
COPY_SYNC = (
    COPY
    + """
for name in os.listdir(out):
    file = os.open(os.path.join(out, name), os.O_RDONLY)
    os.fsync(file)
    os.close(file)
"""
)
# two buffers of 64 MiB, compared until as many bytes are done as each of the pair of case `tied` has
MEMORY = """
import random, sys, time
size = 64 << 20
one = random.Random(0).randbytes(size); two = bytes(bytearray(one))
one == two
begin = time.process_time()
for _ in range(int(sys.argv[1]) // size):
    assert one == two
print((time.process_time() - begin) * int(sys.argv[1]) / (int(sys.argv[1]) // size * size))
"""


@dataclass(frozen=True)
class Case:
    """`cpu` and `rss` are the targets: CPU seconds, and MiB at the peak."""

    name: str
    what: str
    cpu: float
    rss: int
    rivals: tuple[tuple[str, str], ...] = ()


RIVALS = (
    ("read every byte", EVERY_BYTE),
    ("SHA-256 of each tensor, safe_open", SHA256),
    ("load with transformers, data_ptr", LOAD),
)
CASES = (
    Case("help", "`tieaudit -h`", 0.08, 25),
    Case("small", "a small folder", 0.12, 30, (("floor: click, headers", HEADERS),)),
    Case("tied", "2 GB in 4 shards, copies proved equal", 0.20, 40, (("floor: click, headers", HEADERS), *RIVALS)),
    Case("plain", "2 GB in 4 shards, no copies", 0.12, 40, (("floor: click, headers", HEADERS), *RIVALS)),
    Case("many", "70,000 tensors in 62 shards", 1.5, 250, (("floor: click, headers", HEADERS),)),
    Case(
        "torch", "700 MB torch zip", 0.20, 40,
        (("torch.load(mmap), storages", TORCH_LOAD.format(mmap=", mmap=True")), ("torch.load, storages", TORCH_LOAD.format(mmap=""))),
    ),
    Case("gguf", "GGUF of 270M parameters with 262,144 tokens", 0.25, 40, (("gguf.GGUFReader, names and offsets", GGUF_READER),)),
    Case("fix", "2 GB in 4 shards, a proved copy left out", 0, 200, (("cp -r", COPY), ("cp -r, then sync", COPY_SYNC))),
    Case("onnx", "440 MB ONNX, weights inline", 0.20, 40, (("onnx.load, initializers", ONNX_LOAD),)),
)  # fmt: skip
FIX = 1.5  # CPU of a fix against `cp -r` of the same folder, at most
LOADED = {"plain": 1.15, "tied": 1.15, "torch": 1.15}  # memory over the imports that --load may take, as a multiple of the weights
PROOF = 0.7  # speed of the whole compare against comparing memory, at least


@dataclass(frozen=True)
class Run:
    """One process that has ended: CPU seconds, MiB at the peak, what it printed."""

    cpu: float
    rss: float
    code: int
    out: str


def measured(args: list[str], environment: dict[str, str]) -> Run:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([sys.executable, *args], stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text = out.read() if not child.returncode or "tieaudit" in args else err.read()
    scale = MIB if sys.platform == "darwin" else 1024
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale, child.returncode, text)


def environment(inputs: Path) -> dict[str, str]:
    """Compiled modules are kept, as for an installed package, but beside the inputs."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), own.get("PYTHONPATH")]))
    return own | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(inputs / ".compiled"), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


def median(runs: list[Run], field: str) -> float:
    return statistics.median(getattr(run, field) for run in runs)


def bench(case: Case, folder: Path, repeat: int, *, quick: bool) -> None:
    env = environment(folder.parent)
    if case.name == "fix":
        bench_fix(case, folder, repeat)
        return
    target = ["-h"] if case.name == "help" else [str(folder), "--format", "json", "--fail-on", "never"]
    programs = {"tieaudit": ["-m", "tieaudit", *target]}
    if case.name == "tied":
        programs["tieaudit --verify sample"] = ["-m", "tieaudit", *target, "--verify", "sample"]
    if case.name == "help":
        programs |= {"floor: import click": ["-c", "import click"], "bare interpreter": ["-c", "pass"]}
    programs |= {title: ["-c", code, str(folder)] for title, code in case.rivals}
    slow = {title for title, code in case.rivals if "torch" in code or "transformers" in code or "gguf" in code}
    runs: dict[str, list[Run]] = {title: [] for title in programs if not (quick and title in slow)}
    for title in runs:
        measured(programs[title], env)  # warms the page cache and compiles
    for turn in range(repeat):
        for title, seen in runs.items():
            if turn < SLOW_REPEATS or title not in slow:
                seen.append(measured(programs[title], env))
    own = median(runs["tieaudit"], "cpu")
    print(f"\n{case.name}: {case.what}")
    for title, seen in runs.items():
        cpu, rss = median(seen, "cpu"), median(seen, "rss")
        failure = f"   failed: {seen[-1].out.strip()[-100:]!r}" if seen[-1].code else ""
        print(f"  {title:36} {cpu:8.3f} s {rss:7.1f} MiB {cpu / own:8.2f} x{failure}")
    if case.name != "help":
        tell_cost(runs["tieaudit"][-1])
    verdict("CPU", own, case.cpu, "s")
    verdict("memory", median(runs["tieaudit"], "rss"), case.rss, "MiB")
    if case.name == "tied":
        proof(runs, repeat, env)


def bench_fix(case: Case, folder: Path, repeat: int) -> None:
    """Programs that write: each result is removed before the next one runs."""
    out = folder.with_name(folder.name + ".copy")
    programs = {"tieaudit fix": ["-m", "tieaudit", "fix", str(folder), "-o", str(out)]}
    programs |= {title: ["-c", code, str(folder)] for title, code in case.rivals}
    runs: dict[str, list[Run]] = {title: [] for title in programs}
    for _ in range(repeat):
        for title, seen in runs.items():
            shutil.rmtree(out, ignore_errors=True)
            seen.append(measured(programs[title], environment(folder.parent)))
    shutil.rmtree(out, ignore_errors=True)
    own = median(runs["tieaudit fix"], "cpu")
    print(f"\n{case.name}: {case.what}")
    for title, seen in runs.items():
        failure = f"   failed: {seen[-1].out.strip()[-100:]!r}" if seen[-1].code else ""
        print(f"  {title:36} {median(seen, 'cpu'):8.3f} s {median(seen, 'rss'):7.1f} MiB {median(seen, 'cpu') / own:8.2f} x{failure}")
    ratio = own / median(runs["cp -r"], "cpu")
    print(f"  target CPU <= {FIX} x cp -r: {'met' if ratio <= FIX else 'NOT met'} ({ratio:.2f} x)")
    verdict("memory", median(runs["tieaudit fix"], "rss"), case.rss, "MiB")


def tell_cost(run: Run) -> None:
    try:
        report = json.loads(run.out)
    except ValueError:
        print(f"  no report: {run.out[:200]!r}")
        return
    codes = ", ".join(sorted({finding["code"] for finding in report["findings"]})) or "none"
    print(f"  read {report['cost']['bytes_read']:,} bytes in {report['cost']['requests']:,} reads; "
          f"{report['checkpoint']['tensors']:,} tensors; findings: {codes}")  # fmt: skip


def verdict(what: str, value: float, target: float, unit: str) -> None:
    print(f"  target {what} <= {target:g} {unit}: {'met' if value <= target else 'NOT met'} ({value:.3g})")


def proof(runs: dict[str, list[Run]], repeat: int, env: dict[str, str]) -> None:
    """The compare alone, as the difference of two medians, against comparing as many bytes in memory, and against reading them."""
    pair = 151_936 * 1536 * 2
    memory = statistics.median(float(measured(["-c", MEMORY, str(pair)], env).out) for _ in range(repeat))
    whole = json.loads(runs["tieaudit"][-1].out)["checkpoint"]["nbytes"]["stored"]
    reading = median(runs["read every byte"], "cpu") * 2 * pair / whole
    own = max(1e-3, median(runs["tieaudit"], "cpu") - median(runs["tieaudit --verify sample"], "cpu"))
    print(f"  proof of a pair of 2 x {pair:,} bytes: {own:.3f} s, {reading / own:.2f} x the speed of reading them ({reading:.3f} s)")
    met = "met" if memory / own >= PROOF else "NOT met"
    print(f"  target speed >= {PROOF} x comparing memory: {met} ({memory / own:.2f} x; {memory:.3f} s)")


def load(inputs: Path) -> None:
    """What `--load` holds beyond its imports, against the unique bytes of the model: each weight once, wherever it has a second name."""
    env = environment(inputs)
    floor = measured(["-c", "import tieaudit.live.loading, tieaudit.stages; from transformers import Qwen2ForCausalLM"], env)
    print(f"\nload: `--load` of a checkpoint; its imports take {floor.cpu:.1f} s and {floor.rss:.0f} MiB")
    for case in CASES:
        if case.name not in LOADED or not (inputs / case.name).exists():
            continue
        run = measured(["-m", "tieaudit", str(inputs / case.name), "--load", "--format", "json", "--fail-on", "never"], env)
        try:
            live = json.loads(run.out)["live"]
        except (ValueError, KeyError):
            print(f"  {case.name}: no report: {run.out[:200]!r}")
            continue
        unique = live["parameters"]["unique"] * 2 / MIB  # all of them in BF16
        print(f"  {case.what:44} {run.cpu:6.1f} s {run.rss:7.0f} MiB; {unique:.0f} MiB of unique weights")
        verdict("memory over the imports, of the weights", (run.rss - floor.rss) / unique, LOADED[case.name], "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--inputs", type=Path, default=ROOT / "bench")
    parser.add_argument("--only", nargs="+", choices=[*(case.name for case in CASES), "load"])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.inputs.mkdir(parents=True, exist_ok=True)
    repeat = 3 if options.quick else options.repeat
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, medians of {repeat}; N x: as much CPU as that many audits")
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        # what is fixed is what the proof of a pair is measured on
        folder = options.inputs.resolve() / ("tied" if case.name == "fix" else case.name)
        if case.name != "help" and not folder.exists():
            args = [sys.executable, str(ROOT / "tests" / "bench_inputs.py"), folder.name, str(folder)]
            if subprocess.run(args, check=False, capture_output=True).returncode:
                print(f"\n{case.name}: its input cannot be built here")
                continue
        bench(case, folder, repeat, quick=options.quick)
    if not options.only or "load" in options.only:
        load(options.inputs.resolve())


if __name__ == "__main__":
    main()
