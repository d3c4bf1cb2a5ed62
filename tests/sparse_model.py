"""This file makes large sharded checkpoints of which only headers, index and a few pages exist: the rest are holes."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from bench_inputs import Spec, nbytes

PAGE = 16 << 10  # bytes written at the begin, in the middle and at the end of a filled tensor


def write_sparse(
    folder: Path, config: dict[str, Any], shards: Iterable[list[Spec]], filled: Collection[str], same: dict[str, str] | None = None
) -> dict[str, int]:
    """`shards` with an index (or one model.safetensors). Only `filled` tensors have bytes; `same` maps a name to the one it repeats.

    Returns {file: bytes of its header}.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    contents = list(shards)
    count, headers, weight_map, total = len(contents), {}, {}, 0
    for number, content in enumerate(contents, 1):
        name = f"model-{number:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors"
        header, at = {}, 0
        for tensor, dtype, shape in content:
            n = nbytes((tensor, dtype, shape))
            header[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
            weight_map[tensor], at = name, at + n
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        headers[name], total = 8 + len(raw), total + at
        with (folder / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            start = file.tell()
            for tensor in header.keys() & set(filled):
                begin, end = header[tensor]["data_offsets"]
                n = min(PAGE, end - begin)
                for place, offset in enumerate((begin, begin + (end - begin - n) // 2 // 64 * 64, end - n)):
                    file.seek(start + offset)
                    file.write(random.Random(f"{(same or {}).get(tensor, tensor)} {place}").randbytes(n))
            file.truncate(start + at)
    if count > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return headers


def spread(specs: list[Spec], count: int) -> list[list[Spec]]:
    """Shards of about even size, tensors in order."""
    share, filled = sum(map(nbytes, specs)) / count, 0
    shards: list[list[Spec]] = [[]]
    for spec in specs:
        if shards[-1] and filled >= share * len(shards) and len(shards) < count:
            shards.append([])
        shards[-1].append(spec)
        filled += nbytes(spec)
    return shards
