"""`tieaudit hook FILE…`: audit the models that changed files belong to, for pre-commit and the like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from .audit import audit_command
from .completion import files

SURE = (".safetensors", ".gguf", ".onnx", ".npz", ".msgpack", ".pth", ".ckpt")
TORCH = (b"PK\x03\x04", b"\x80")  # a zip or a pickle: other programs have files called .bin and .pt too


def hook_command() -> click.Command:
    """The command, with the options of an audit."""
    options = [param for param in audit_command.params if isinstance(param, click.Option)]
    argument = click.Argument(["targets"], nargs=-1, metavar="FILE...", shell_complete=files)
    return click.Command(
        "hook",
        params=[argument, *options],
        callback=_hook,
        help="Audit the models that the changed FILEs belong to: the folders they lie in, as far as these hold weights.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _hook(targets: tuple[str, ...], **options: Any) -> Any:
    folders = tuple(_models(targets))
    if not folders:
        return 0
    if audit_command.callback is None:
        raise click.UsageError("Nothing to run.")
    return audit_command.callback(targets=folders, **options)


def _models(changed: Iterable[str]) -> Iterator[str]:
    """Folders of the files, each once, in their order, that hold weights. A file that was deleted counts by where it was."""
    for folder in dict.fromkeys(str(Path(path).parent) for path in changed):
        try:
            with os.scandir(folder) as entries:
                weights = any(_is_weights(entry) for entry in entries)
        except OSError:
            continue
        if weights:
            yield folder


def _is_weights(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file():
        return False
    if entry.name.endswith(SURE):
        return True
    if not entry.name.endswith((".bin", ".pt")):
        return False
    try:
        with open(entry.path, "rb") as stream:
            return stream.read(4).startswith(TORCH)
    except OSError:
        return False
