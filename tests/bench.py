"""What an audit costs, as whole processes, against what a user would do today and against the floor.

    python tests/bench.py [--inputs DIR] [--only NAME ...] [--repeat N] [--quick]

The inputs (6 GB, some of it sparse) are built on the first run and kept. Every figure is CPU seconds, user and system, as the
system counts them for a child that has ended: on a shared machine wall time says little. Repetitions of all programs of one case
take turns, and the median counts, so the ratios hold where the seconds do not. `--quick` repeats less and leaves the slow rivals
out. Nothing here fails: a target that is not met is printed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOW_REPEATS = 2  # of a rival that takes seconds
BLOCK = 4 << 20
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
# two buffers that fit no cache, compared until as many bytes are done as the pair of case `tied` has
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
)  # fmt: skip
PROOF = 0.7  # speed of the whole compare against comparing memory, at least


# ---------------------------------------------------------------- inputs

Spec = tuple[str, str, tuple[int, ...]]
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def qwen2(layers: int, hidden: int, inner: int, vocab: int, heads: int, kv_heads: int) -> tuple[dict[str, Any], list[Spec]]:
    """(config, tensors) of a Qwen2ForCausalLM without head."""
    narrow = hidden // heads * kv_heads
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    parts = {
        "self_attn.q_proj.weight": (hidden, hidden), "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (narrow, hidden), "self_attn.k_proj.bias": (narrow,),
        "self_attn.v_proj.weight": (narrow, hidden), "self_attn.v_proj.bias": (narrow,),
        "self_attn.o_proj.weight": (hidden, hidden), "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    specs: list[Spec] = [("model.embed_tokens.weight", "BF16", (vocab, hidden))]
    specs += [(f"model.layers.{layer}.{part}", "BF16", shape) for layer in range(layers) for part, shape in parts.items()]
    return config, [*specs, ("model.norm.weight", "BF16", (hidden,))]


def deepseek(layers: int = 61, dense: int = 3, experts: int = 200) -> Iterator[Spec]:
    """Names, dtypes and shapes as in DeepSeek-V3: FP8 weights with a scale beside each."""

    def quantised(name: str, rows: int, columns: int) -> Iterator[Spec]:
        yield name + ".weight", "F8_E4M3", (rows, columns)
        yield name + ".weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))

    yield "model.embed_tokens.weight", "BF16", (4096, 7168)
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        yield from ((stem + norm + "_layernorm.weight", "BF16", (7168,)) for norm in ("input", "post_attention"))
        yield from quantised(stem + "self_attn.q_a_proj", 1536, 7168)
        yield from quantised(stem + "self_attn.q_b_proj", 24_576, 1536)
        yield from quantised(stem + "self_attn.kv_a_proj_with_mqa", 576, 7168)
        yield from quantised(stem + "self_attn.kv_b_proj", 32_768, 512)
        yield from quantised(stem + "self_attn.o_proj", 7168, 16_384)
        if layer >= dense:
            yield stem + "mlp.gate.weight", "BF16", (256, 7168)
        for where in ["mlp."] if layer < dense else [*(f"mlp.experts.{expert}." for expert in range(experts)), "mlp.shared_experts."]:
            inner = 18_432 if layer < dense else 2048
            yield from quantised(stem + where + "gate_proj", inner, 7168)
            yield from quantised(stem + where + "up_proj", inner, 7168)
            yield from quantised(stem + where + "down_proj", 7168, inner)
    yield "model.norm.weight", "BF16", (7168,)
    yield "lm_head.weight", "BF16", (4096, 7168)


def nbytes(spec: Spec) -> int:
    count = BYTES[spec[1]]
    for dim in spec[2]:
        count *= dim
    return count


def write_model(folder: Path, config: dict[str, Any], specs: list[Spec], shards: int, *, sparse: bool = False) -> None:
    """One file, or shards of even size with an index. Bytes depend on the name; if not sparse, `lm_head` repeats the embedding.

    Sparse: tensors of layers are holes, with a few bytes in the middle, where a sample looks.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    share = sum(map(nbytes, specs)) / shards
    files: list[list[Spec]] = [[]]
    filled = 0
    for spec in specs:
        if files[-1] and filled >= share * len(files) and len(files) < shards:
            files.append([])
        files[-1].append(spec)
        filled += nbytes(spec)
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(len(files))] if shards > 1 else ["model.safetensors"]
    for name, content in zip(names, files, strict=True):
        header, at = {}, 0
        for spec in content:
            header[spec[0]] = {"dtype": spec[1], "shape": list(spec[2]), "data_offsets": [at, at + nbytes(spec)]}
            at += nbytes(spec)
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            start = file.tell()
            for spec in content:
                dice = random.Random(spec[0] if sparse or spec[0] != "lm_head.weight" else "model.embed_tokens.weight")
                begin, end = header[spec[0]]["data_offsets"]
                file.seek(start + begin)
                if sparse and ".layers." in spec[0]:
                    file.seek(start + (begin + end) // 2)
                    file.write(dice.randbytes(min(8, end - begin)))
                    continue
                for done in range(begin, end, BLOCK):
                    file.write(dice.randbytes(min(BLOCK, end - done)))
            file.truncate(start + at)
    if shards > 1:
        weight_map = {spec[0]: name for name, content in zip(names, files, strict=True) for spec in content}
        index = {"metadata": {"total_size": sum(map(nbytes, specs))}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_torch(folder: Path) -> None:
    import torch

    config, specs = qwen2(14, 896, 4864, 151_936, 14, 2)
    state = {name: torch.randint(-9999, 9999, shape, dtype=torch.int16).view(torch.bfloat16) for name, _, shape in specs}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(state, folder / "pytorch_model.bin")


def build(name: str, folder: Path) -> None:
    """Written beside its place and moved, so that a build that was stopped is not taken for whole."""
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    if name == "small":
        write_model(half, *qwen2(2, 64, 128, 512, 4, 2), 1)
    elif name == "tied":
        config, specs = qwen2(12, 1536, 8960, 151_936, 12, 2)
        write_model(half, config, [*specs, ("lm_head.weight", *specs[0][1:])], 4)
    elif name == "plain":
        write_model(half, *qwen2(17, 1536, 8960, 151_936, 12, 2), 4)
    elif name == "many":
        config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "tie_word_embeddings": False,
                  "vocab_size": 4096, "hidden_size": 7168, "num_hidden_layers": 61}  # fmt: skip
        write_model(half, config, list(deepseek()), 62, sparse=True)
    elif name == "torch":
        write_torch(half)
    half.rename(folder)


# ---------------------------------------------------------------- measuring


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
    target = ["-h"] if case.name == "help" else [str(folder), "--format", "json", "--fail-on", "never"]
    programs = {"tieaudit": ["-m", "tieaudit", *target]}
    if case.name == "tied":
        programs["tieaudit --verify sample"] = ["-m", "tieaudit", *target, "--verify", "sample"]
    if case.name == "help":
        programs |= {"floor: import click": ["-c", "import click"], "bare interpreter": ["-c", "pass"]}
    programs |= {title: ["-c", code, str(folder)] for title, code in case.rivals}
    slow = {title for title, code in case.rivals if "torch" in code or "hashlib" in code}
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
    """The compare alone, as the difference of two medians, against comparing as many bytes in memory."""
    pair = 151_936 * 1536 * 2
    memory = statistics.median(float(measured(["-c", MEMORY, str(pair)], env).out) for _ in range(repeat))
    own = median(runs["tieaudit"], "cpu") - median(runs["tieaudit --verify sample"], "cpu")
    speed = memory / own if own > 0 else float("inf")
    print(f"  proof of a pair of 2 x {pair:,} bytes: {own:.3f} s; comparing memory {memory:.3f} s")
    print(f"  target speed >= {PROOF} x comparing memory: {'met' if speed >= PROOF else 'NOT met'} ({speed:.2f} x)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--inputs", type=Path, default=ROOT / "bench")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--build", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.inputs.mkdir(parents=True, exist_ok=True)
    if options.build:
        build(options.build, options.inputs / options.build)
        return
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, median of {options.repeat}; N x = as much CPU as that many audits")
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        folder = options.inputs.resolve() / case.name
        if case.name != "help" and not folder.exists():
            # in a child: the peak of a process counts from that of its parent
            args = [sys.executable, __file__, "--inputs", str(options.inputs), "--build", case.name]
            if subprocess.run(args, check=False, capture_output=True).returncode:
                print(f"\n{case.name}: its input cannot be built here")
                continue
        bench(case, folder, 3 if options.quick else options.repeat, quick=options.quick)


if __name__ == "__main__":
    main()
