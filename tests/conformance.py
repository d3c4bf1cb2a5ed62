"""Audit tiny models of every architecture of the installed transformers: `python tests/conformance.py [names...]`.

Healthy files, saved by transformers itself under every reading of the tie flag, must give no error and no warning. The
same files, damaged in one place, must give the finding that names the damage. What was shared is read off the model in
memory (parameter identity), never from the catalog, so that a wrong catalog shows.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tieaudit import audit
from tieaudit.catalog import generate, tiny
from tieaudit.catalog.files import disk_names
from tieaudit.catalog.observation import FLAG
from tieaudit.catalog.structure import Structure, ends

MIN_WASTE = 1024  # bytes; the audit's default: smaller repetitions are no finding
SECONDS = 240  # per architecture
KINDS_PER_ARCHITECTURE = 6  # damaged ties per architecture: one of each shape of name
LOUD = {"error", "warning"}

Json = dict[str, Any]
Variant = tuple[str, Mapping[tuple[str, ...], bool | None]]


@dataclass(kw_only=True)
class Outcome:
    """What one architecture showed: checks as (check, subject, message or "" where it held)."""

    checks: list[tuple[str, str, str]] = field(default_factory=list)
    not_built: str = ""


def variants(config: Json) -> Iterator[Variant]:
    """Yield the readings of the flag: as it is, at the top, and at the top and in every nested config together."""
    yield "default", {}
    nested = [(*path, FLAG) for path in tiny.subconfigs(config)]
    for word, state in (("true", True), ("false", False), ("absent", None)):
        yield f"top {word}", {(FLAG,): state}
        if nested:
            yield f"all {word}", {(FLAG,): state, **dict.fromkeys(nested, state)}


def check(name: str, keep: Path | None = None) -> Outcome:
    """Check one architecture."""
    outcome = Outcome()
    cls = tiny.architectures()[name]
    try:
        config, model = tiny.tiny(cls)
    except tiny.NotBuilt as error:
        outcome.not_built = str(error)
        return outcome
    if tiny.numel(model) > tiny.MAX_REAL:
        outcome.not_built = f"{tiny.numel(model):,} parameters: too large to be real"
        return outcome
    plain = not Structure(model).groups and ends(model)[1] is None
    plain = plain and not any(getattr(module, "_tied_weights_keys", None) for module in model.modules())
    damaged: set[str] = set()
    seen: list[Json] = []
    for label, values in variants(config):
        changed = tiny.with_values(config, values)
        if changed in seen:
            continue
        seen.append(changed)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / name
            try:
                model = _saved(cls, changed, values, folder)
            except Exception as error:  # noqa: BLE001  (a value that the class refuses cannot be in a file)
                if not values:
                    outcome.not_built = f"{type(error).__name__}: {error}"[:200]
                    return outcome
                continue
            check_name = "no tie, no head: silent" if plain else f"healthy, {label}: silent"
            _note(outcome, keep, folder, check_name, label, _loud(folder))
            if not plain:
                _damage(cls, changed, model, folder, outcome, damaged, label, keep)
        if plain:
            break
    return outcome


def _saved(cls: type, config: Json, values: Mapping[tuple[str, ...], bool | None], folder: Path) -> Any:
    """Save an instance with random weights, and write the flag's state into its config.json."""
    model = tiny.build(cls, config, "cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02) if parameter.is_floating_point() else None
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(tiny.with_values(written, values), indent=2))
    return model


def _damage(cls: type, config: Json, model: Any, folder: Path, outcome: Outcome, damaged: set[str], label: str, keep: Path | None) -> None:
    """Break the ties that this variant has, one shape of name at a time, and take the head away where it is untied."""
    weights = folder / "model.safetensors"
    if not weights.exists():
        return
    structure = Structure(model)
    head = ends(model)[1]
    disk = disk_names(tiny.build(cls, config, "cpu"))
    stored = load_file(weights)
    for group in structure.groups:
        kept = [disk[name] for name in group if disk.get(name) in stored]
        for alias in [disk[name] for name in group if name in disk and disk[name] not in stored]:
            shape = re.sub(r"\d+", "#", alias)
            if not kept or shape in damaged or len(damaged) >= KINDS_PER_ARCHITECTURE:
                continue
            damaged.add(shape)
            value = stored[kept[0]]
            for rule, other in (("duplicate-tie", value.clone()), ("diverged-tie", torch.randn_like(value) * 0.02)):
                save_file({**stored, alias: other}, weights, metadata={"format": "pt"})
                big = value.numel() * value.element_size() >= MIN_WASTE
                wanted = {rule, "ambiguous-flag"} if rule == "diverged-tie" else {rule}
                message = _missing(folder, wanted, alias) if big else ""
                _note(outcome, keep, folder, rule, f"{alias} ({label})", message)
    stored_head = disk.get(head or "")
    if stored_head in stored and not any(head in group for group in structure.groups) and "missing-head" not in damaged:
        damaged.add("missing-head")
        save_file({name: value for name, value in stored.items() if name != stored_head}, weights, metadata={"format": "pt"})
        message = _missing(folder, {"missing-head", "missing-embedding", "ambiguous-flag"}, stored_head)
        _note(outcome, keep, folder, "missing-head", f"{stored_head} ({label})", message)


def _loud(folder: Path) -> str:
    """Return the errors and warnings of a healthy folder, "" where it is silent."""
    found = [f"{f.rule} {f.severity}: {f.message}" for f in audit(str(folder)).findings if f.severity in LOUD]
    return "; ".join(found)


def _missing(folder: Path, rules: set[str], name: str) -> str:
    """Return "" where one of the rules names a tensor, else what was found instead."""
    findings = audit(str(folder)).findings
    for found in findings:
        loud = found.severity in LOUD or found.rule == "duplicate-tie"
        if found.rule in rules and loud and (name in {t.name for t in found.tensors} or name in found.message):
            return ""
    return "found instead: " + ("; ".join(f"{f.rule} {f.severity}: {f.message}" for f in findings) or "nothing")


def _note(outcome: Outcome, keep: Path | None, folder: Path, check_name: str, subject: str, message: str) -> None:
    outcome.checks.append((check_name, subject, message))
    if message and keep:
        target = keep / re.sub(r"[^\w.-]+", "_", f"{check_name}_{folder.name}_{subject}")
        if len(list(keep.glob(re.sub(r"[^\w.-]+", "_", check_name) + "_*"))) < 5:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)


def run(names: Sequence[str], jobs: int = 2, keep: Path | None = None) -> dict[str, Outcome]:
    """Check the named architectures, each in a child process of its own."""
    torch.set_num_threads(1)
    tiny.architectures()  # imported once, before the children
    transformers.logging.set_verbosity_error()

    def one(name: str) -> Json:
        outcome = check(name, keep)
        return {"checks": outcome.checks, "not_built": outcome.not_built}

    found = generate.in_children(names, one, jobs, SECONDS)
    return {
        name: Outcome(checks=[tuple(c) for c in seen.get("checks", ())], not_built=seen.get("error") or seen.get("not_built", ""))
        for name, seen in found.items()
    }


def summary(outcomes: Mapping[str, Outcome]) -> tuple[str, int]:
    """Return the report and the number of failed checks."""
    lines: list[str] = []
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, outcome in sorted(outcomes.items()):
        for check_name, subject, message in outcome.checks:
            counts[check_name][0] += not message
            counts[check_name][1] += 1
            if message:
                lines.append(f"FAILED {name}: {check_name}: {subject}: {' '.join(message.split())[:400]}")
    for check_name, (held, total) in sorted(counts.items()):
        lines.append(f"{held} of {total}  {check_name}")
    not_built = {name: outcome.not_built for name, outcome in sorted(outcomes.items()) if outcome.not_built}
    lines += [f"not built: {name}: {' '.join(reason.split())[:160]}" for name, reason in not_built.items()]
    lines.append(f"{len(outcomes) - len(not_built)} of {len(outcomes)} architectures built (transformers {transformers.__version__})")
    return "\n".join(lines), sum(total - held for held, total in counts.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these architectures")
    parser.add_argument("--sample", type=int, help="only this many, chosen at random but always the same")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="copy a few folders of failed checks here")
    options = parser.parse_args(arguments)
    names = options.names or list(tiny.architectures())
    if options.sample:
        names = sorted(random.Random(0).sample(names, min(options.sample, len(names))))
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    text, failed = summary(run(names, options.jobs, options.keep))
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
