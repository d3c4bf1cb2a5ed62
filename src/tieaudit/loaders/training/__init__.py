"""Folders of training runs: which there are, and which files are theirs.

    torch.distributed.checkpoint   `.metadata` beside `__0_0.distcp` …                          dcp.py
    DeepSpeed                      `latest` names `global_step100/`, with `mp_rank_00_model_states.pt` …   deepspeed.py
    Megatron-LM                    `latest_checkpointed_iteration.txt` names `iter_0000100/`, with `mp_rank_00/` …   megatron.py

A sub-folder is read if a marker file names it, or if it has the name that Accelerate gives. A name that a marker file holds is one path
component and is looked up among the sub-folders that are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import FormatError, ReadError
from ...sources import Entry, Folder
from .found import Found

METADATA, SUFFIX = ".metadata", ".distcp"
__all__ = ["METADATA", "SUFFIX", "Found", "editions"]
MARKERS = re.compile(r"^(\.metadata|latest|latest_checkpointed_iteration\.txt|\w+\.distcp|.*_model_states\.pt)$")
RANK_FOLDER = re.compile(r"^mp_rank_\d{2,}(_\d{3}){0,2}$")
ACCELERATE = re.compile(r"^(?P<what>pytorch_model_fsdp|optimizer)_(?P<number>\d{1,3})$")  # accelerate/utils/constants.py
MAX_MARKER = 256  # bytes
ITERATION = re.compile(r"^\d{1,10}$")


def editions(folder: Folder, entries: Iterable[Entry]) -> Found:
    """What the folder has of training runs; nothing, without a look at any file, if no name says so."""
    found = Found(folder)
    names = [entry.name for entry in entries]
    marked = {name for name in names if MARKERS.match(name)}
    subs = folder.subfolders()
    ranks = [sub for sub in subs if RANK_FOLDER.match(sub)]
    accelerated = [sub for sub in subs if ACCELERATE.match(sub)]
    if not (marked or ranks or accelerated):
        return found
    if any(name == METADATA or name.endswith(SUFFIX) for name in marked):
        _dcp(found, "", names)
    if ranks:
        _megatron(found, "", ranks)
    if "latest_checkpointed_iteration.txt" in marked:
        word = _word(found, "latest_checkpointed_iteration.txt")
        sub = f"iter_{int(word):07d}" if ITERATION.match(word) else word
        if _is_there(found, "latest_checkpointed_iteration.txt", sub, subs):
            _iteration(found, sub)
    if any(name.endswith("_model_states.pt") for name in marked):
        _deepspeed(found, "", names)
    elif "latest" in marked:
        word = _word(found, "latest")
        if _is_there(found, "latest", word, subs):
            inside = [entry.name for entry in folder.inside(word)]
            if any(name.endswith("_model_states.pt") for name in inside):
                _deepspeed(found, word + "/", inside)
    for sub in accelerated:
        match = ACCELERATE.match(sub)
        if match and match["what"] == "pytorch_model_fsdp" and folder.exists(f"{sub}/{METADATA}"):
            state = f"optimizer_{match['number']}"
            _dcp(found, sub + "/", [entry.name for entry in folder.inside(sub)], state + "/" if state in accelerated else "")
    return found


def _word(found: Found, marker: str) -> str:
    """The one name in a marker file, "" if it holds something else."""
    try:
        source = found.folder.open(marker)
        if source.nbytes > MAX_MARKER:
            return ""
        text = source.read(0, source.nbytes).decode("utf-8").strip()
    except ReadError as error:
        found.unread.append((marker, error.what))
        return ""
    except (FormatError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() and "/" not in text and "\\" not in text and text not in (".", "..") else ""


def _is_there(found: Found, marker: str, sub: str, subs: list[str]) -> bool:
    if sub and sub not in subs:
        # a release keeps the marker of the run that it comes from
        found.notes.append((marker, f"names the folder {sub!r}, which is not here"))
    return sub in subs


def _dcp(found: Found, base: str, names: list[str], optimizer: str = "") -> None:
    from . import dcp, megatron

    if base + "metadata.json" in {base + name for name in names} and megatron.is_core(found.folder, base):
        megatron.core(found, base, names)
    else:
        dcp.edition(found, base, names, optimizer)


def _iteration(found: Found, sub: str) -> None:
    ranks = [name for name in found.folder.subfolders(sub) if RANK_FOLDER.match(name)]
    if ranks:
        _megatron(found, sub + "/", ranks)
    elif found.folder.exists(f"{sub}/{METADATA}"):
        _dcp(found, sub + "/", [entry.name for entry in found.folder.inside(sub)])


def _megatron(found: Found, base: str, ranks: list[str]) -> None:
    from . import megatron

    megatron.legacy(found, base, ranks)


def _deepspeed(found: Found, base: str, names: list[str]) -> None:
    from . import deepspeed

    deepspeed.editions(found, base, names)
