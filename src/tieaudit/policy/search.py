"""This file holds where settings are looked for, and which files are not believed.

They are the user's: of the current folder or a folder above it, up to the repository's root. A model that was downloaded must not
switch rules off, also not for someone who stands in its folder. So what is found in a target, beside weights, or in a download of the
Hub is not used unless `--config` names it, and the caller is told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import SettingsError
from .settings import NAMES, content

MODEL = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".msgpack", ".index.json")
MODEL_NAMES = ("config.json", "adapter_config.json", "params.json")
MAX_SEEN = 10_000  # entries of a folder that are looked at before it counts as one of data


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The file to use with its bytes, or None; `unused`: sentences about files that were found and are not used; `looked`: the folders."""

    path: str | None = None
    data: bytes = b""
    unused: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()


def search(start: Path, targets: Iterable[str]) -> Found:
    """What is found from the folder `start` upwards, given what will be audited. SettingsError for a file that cannot be read."""
    audited = tuple(_folders(targets))
    unused: list[str] = []
    looked: list[str] = []
    for folder in _upwards(start.resolve()):
        looked.append(str(folder))
        for name in NAMES:
            path = folder / name
            if not os.path.lexists(path):
                continue
            shown = os.path.relpath(path, start)
            why = _refused(path, audited)
            try:
                data = content(str(path), shown)
            except SettingsError:
                if why:  # nobody wanted it
                    continue
                raise
            if name == "pyproject.toml" and not _speaks_of_us(data):
                continue
            if why:
                unused.append(f"{shown} is not used: {why} (--config {shown} would use it)")
                continue
            return Found(path=str(path), data=data, unused=tuple(unused), looked=tuple(looked))
    return Found(unused=tuple(unused), looked=tuple(looked))


def _speaks_of_us(data: bytes) -> bool:
    """True if a pyproject.toml has a table of this tool, or tried to write one. What else is in it is another tool's business."""
    if b"tieaudit" not in data:
        return False
    import tomllib

    try:
        tool = tomllib.loads(data.decode("utf-8-sig")).get("tool")
    except (ValueError, RecursionError):
        return b"[tool.tieaudit" in data
    return isinstance(tool, dict) and "tieaudit" in tool


def _upwards(folder: Path) -> Iterator[Path]:
    for above in (folder, *folder.parents):
        yield above
        if os.path.lexists(above / ".git"):
            return


def _folders(targets: Iterable[str]) -> Iterator[Path]:
    """Folders of the targets that are on this machine."""
    for target in filter(None, targets):
        path = Path(target.removeprefix("file://"))
        try:
            real = path.resolve()
            if real.is_dir():
                yield real
            elif real.exists():
                yield from (real.parent, path.parent.resolve())  # of a link its own folder too
        except (OSError, ValueError, RuntimeError):  # no name of a file here: the audit says so
            continue


def _refused(path: Path, audited: Iterable[Path]) -> str:
    """Why a file is not believed, as a clause; "" if it is."""
    folder = path.parent
    if any(folder.is_relative_to(target) for target in audited):
        return "it lies in what is audited"
    if _holds_model(folder):
        return "it lies beside a model"
    if any(map(_downloaded, _upwards(folder))):
        return "it was downloaded with a model"
    try:
        if folder.stat().st_mode & stat.S_IWOTH and path.stat().st_uid != os.getuid():
            return "it is another user's, in a folder that all may write"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    return ""


def _holds_model(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            for seen, entry in enumerate(entries):
                if entry.name.endswith(MODEL) or entry.name in MODEL_NAMES or seen > MAX_SEEN:
                    return True
    except OSError:
        pass
    return False


def _downloaded(folder: Path) -> bool:
    """True for the root of what `hf download --local-dir` wrote, and for a snapshot in the Hub cache."""
    if (folder / ".cache" / "huggingface" / "download").is_dir():
        return True
    above = folder.parent
    return above.name == "snapshots" and (above.parent / "blobs").is_dir()
