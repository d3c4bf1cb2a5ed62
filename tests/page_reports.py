"""This file makes reports for tests of the HTML page: a very large model without its bytes, names that want to be markup, a broken file."""

from __future__ import annotations

import json
from pathlib import Path

from builders import EMBED, HEAD, folder, matrix, safetensors, safetensors_file, tied
from tieaudit import Report, audit
from tieaudit.checkpoint import Checkpoint, Edition, LoadedFile, Storage, TensorRecord
from tieaudit.report import Totals

SHARDS, LAYERS, EXPERTS = 62, 61, 384
SURROGATE = "model.\udcff.weight"

HOSTILE = (
    "<script>document.title='owned'</script>",
    "[/red]",
    '"><img src=x onerror="document.title=1">',
    "${{7*7}}",
    "{{7*7}}",
    "{% raw %}",
    "</script><script>document.title='owned'</script>",
    "</title><base href=//example.invalid>",
    "]]><!--",
    "a\u202etxt.exe",
    "\x1b]8;;http://example.invalid\x1b\\",
    "line\nbreak\u2028here",
    "x" * 100_000,
    "{__class__}",
    "%s %d",
    "&lt;b&gt;",
    "</script x",
    "<!-- <script x",
)


def many() -> Report:
    """70,272 tensors in 62 files: as large as they come, and nothing of it on disk."""
    names = [f"model.layers.{layer}.mlp.experts.{expert}.{which}_proj.weight"
             for layer in range(LAYERS) for expert in range(EXPERTS) for which in ("gate", "up", "down")]  # fmt: skip
    each = -(-len(names) // SHARDS)
    files = []
    for number in range(SHARDS):
        file, at, tensors = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors", 100_000, []
        for name in names[number * each : (number + 1) * each]:
            nbytes = 2 * 2048 * 7168
            shape = (7168, 2048) if "down" in name else (2048, 7168)
            tensors.append(TensorRecord(name, "BF16", shape, Storage(file, name, at, nbytes), 0, nbytes))
            at += nbytes
        files.append(
            LoadedFile(name=file, format="safetensors", nbytes=at, tensors=tuple(tensors), storages=tuple(one.storage for one in tensors))
        )
    edition = Edition(name="model.safetensors.index.json", format="safetensors", files=tuple(files))
    return Report(
        target="many", formats=("safetensors",), files=tuple((file.name, file.nbytes) for file in files), reason="a large one",
        totals=Totals(tensors=len(names), nbytes_stored=sum(file.nbytes for file in files)),
        checkpoint=Checkpoint(target="many", editions=(edition,)),
    )  # fmt: skip


def copies(path: Path) -> Path:
    """A tied matrix stored twice, and one more tensor."""
    tensors = {EMBED: matrix(1), HEAD: matrix(1), "model.layers.0.mlp.up_proj.weight": matrix(3), "model.norm.weight": matrix(4, 1)}
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors(tensors)})


def hostile(path: Path) -> Path:
    """Every name above, one of them stored twice so that findings and links name it too."""
    tensors = {name: matrix(number + 20) for number, name in enumerate(HOSTILE)}
    tensors |= {"copy of <b>": matrix(20), EMBED: matrix(1), HEAD: matrix(1)}
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors(tensors)})


def surrogate() -> Report:
    """A name that has no UTF-8, as a pickle may hold one."""
    storage = Storage("pytorch_model.bin", "0", 64, 64)
    tensor = TensorRecord(SURROGATE, "F32", (16,), storage, 0, 64)
    file = LoadedFile(name="pytorch_model.bin", format="torch-zip", nbytes=200, tensors=(tensor,), storages=(storage,))
    edition = Edition(name="pytorch_model.bin", format="torch-zip", files=(file,))
    return Report(
        target="sur\udc80rogate",
        files=(("pytorch_model.bin", 200),),
        checkpoint=Checkpoint(target="", editions=(edition,)),
        reason="\ud800",
    )


def broken(path: Path) -> Path:
    """A file that says nothing of its tensors."""
    return folder(path, {"config.json": tied(), "model.safetensors": safetensors_file("{", b"")})


def bart(path: Path) -> Report:
    """Names of four ends: two equal the shared matrix, one differs from it."""
    config = {"architectures": ["BartForConditionalGeneration"], "model_type": "bart", "d_model": 8, "vocab_size": 32, "encoder_layers": 1,
              "decoder_layers": 1, "tie_word_embeddings": True}  # fmt: skip
    tensors = {"model.shared.weight": matrix(1), "model.encoder.embed_tokens.weight": matrix(1),
               "model.decoder.embed_tokens.weight": matrix(1), "lm_head.weight": matrix(4)}  # fmt: skip
    return audit(str(folder(path, {"config.json": json.dumps(config).encode(), "model.safetensors": safetensors(tensors)})))
