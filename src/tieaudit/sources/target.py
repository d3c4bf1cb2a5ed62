"""This file holds what the argument of an audit means: a folder, a file with the folder it stands in, a Hub id, or a URL.

A path that exists wins over a Hub id; `hf://org/model@revision/sub` and `./` say which is meant.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import OptionError, TargetError
from . import Folder, Meter
from .local import LocalFolder

URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
HUB_ID = re.compile(r"[\w][\w.-]{0,95}(/[\w][\w.-]{0,95})?")
# huggingface_hub's own rule for revisions with a slash (hf_file_system.py)
SPECIAL = re.compile(r"(refs/(?:convert|pr)/[\w.-]+)(?:/(.*))?$")
FILE_SUFFIX = re.compile(r"\.(safetensors|bin|pth?|ckpt|json|gguf|onnx|xml|h5|npz|msgpack)$")
TIMEOUT = 60.0  # seconds
HUB = "https://huggingface.co"  # where HF_ENDPOINT does not say otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a target that is not on this machine is reached. `seconds`: how long one read may take with all its tries."""

    revision: str | None = None
    subfolder: str | None = None
    offline: bool = False
    seconds: float = TIMEOUT


def resolve(target: str, access: Access | None = None) -> tuple[Folder, str | None]:
    """(folder, the one file of it that was asked for). TargetError if it is not there or cannot be opened."""
    access = access or Access()
    if not target:  # Path("") is the current folder, and an unset variable in CI would pass
        raise TargetError("''", "is empty", "name a folder, a file or a Hub id")
    target_on_hub = _from_web(target)
    if target_on_hub:
        return _hub(target, *_parts(target_on_hub), access)
    url = URL.match(target)
    if url and url[1].lower() not in ("hf", "file"):
        _refuse_options(target, access)
        from .objectstore import open_url

        return open_url(target, access.seconds, Meter())
    if url and url[1].lower() == "hf":
        return _hub(target, *_parts(target), access)
    path = target.removeprefix("file://") if url else target
    try:
        found = _local(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise TargetError(target, f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if found:
        _refuse_options(target, access)
        return found
    if url or not _may_be_id(target):
        raise TargetError(target, "no such file or folder", "check the spelling")
    return _hub(target, target, None, "", access)


def _refuse_options(target: str, access: Access) -> None:
    for option, value in (("--revision", access.revision), ("--subfolder", access.subfolder)):
        if value:
            raise OptionError(option, value, f"it is for Hub ids; {target} is none: hf://{target} would be" if "://" not in target
                              else "it is for Hub ids")  # fmt: skip


def _local(target: str) -> tuple[Folder, str | None] | None:
    """None if there is no such path."""
    path = Path(target)
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        return None
    if real.is_dir():
        return LocalFolder(real), None
    if not real.is_file():
        raise TargetError(target, "is neither a folder nor a regular file", "devices, FIFOs and sockets are not opened")
    # the folder of the link, so that a snapshot of the Hub cache keeps its config; else that of the file itself
    parent, name = path.parent.resolve(), path.name
    if LocalFolder(parent).entry(name).refused:
        parent, name = real.parent, real.name
    return LocalFolder(parent), name


def _may_be_id(target: str) -> bool:
    """`gpt2` and `org/model`, but nothing that is written like a path or a file of weights."""
    if target.startswith((".", "/", "~")) or target.endswith((".", "/", ".git")) or (os.sep != "/" and os.sep in target):
        return False
    return bool(HUB_ID.fullmatch(target)) and not FILE_SUFFIX.search(target)


def _from_web(target: str) -> str:
    """A page of the Hub as people paste it (`https://HOST/org/model/tree/main/sub`), written as `hf://`; "" for anything else."""
    parts = urlsplit(target) if target.startswith(("http://", "https://")) else None
    host = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).netloc
    words = [word for word in parts.path.split("/") if word] if parts and parts.netloc == host else []
    if not words or words[0] in ("datasets", "spaces", "api"):
        return ""
    cut = next((at for at in (1, 2) if words[at : at + 1] and words[at] in ("tree", "blob", "resolve")), None)
    if cut is None:
        return f"hf://{'/'.join(words[:2])}" if len(words) < 3 else ""
    return f"hf://{'/'.join(words[:cut])}" + (f"@{'/'.join(words[cut + 1 :])}" if words[cut + 1 :] else "")


def _parts(target: str) -> tuple[str, str | None, str]:
    """(repository, revision, path) of `hf://[models/]org/model[@revision][/path]`; `%2F` is a slash inside a revision."""
    rest = target[len("hf://") :].removeprefix("models/").strip("/")
    if rest.startswith(("datasets/", "spaces/", "buckets/")):
        raise TargetError(target, "is no model repository", "models are audited")
    head, at, tail = rest.partition("@")
    revision, path = None, ""
    if at:
        special = SPECIAL.match(tail)
        revision, path = (special[1], special[2] or "") if special else tail.partition("/")[::2]
        revision = unquote(revision)
        if not revision:
            raise TargetError(target, "has no revision behind its @", "hf://org/model@revision/folder")
    else:
        words = head.split("/")
        head, path = "/".join(words[:2]), "/".join(words[2:])
    if not HUB_ID.fullmatch(head):
        raise TargetError(target, "is no Hub id", "hf://org/model@revision/folder")
    return head, revision, path


def _hub(words: str, repo_id: str, revision: str | None, path: str, access: Access) -> tuple[Folder, str | None]:
    if revision and access.revision and revision != access.revision:
        raise OptionError("--revision", access.revision, f"the target itself says @{revision}")
    if access.subfolder:
        path = "/".join(part.strip("/") for part in (path, access.subfolder) if part.strip("/"))
    try:
        from . import hub
    except ImportError:
        raise TargetError(words, "is not on this machine, and huggingface_hub is not installed", "pip install huggingface_hub") from None

    asked = hub.HubTarget(words=words, repo_id=repo_id, revision=revision or access.revision or None, path=path)
    if access.offline or hub.is_offline():
        return hub.open_cached(asked)
    return hub.open_target(asked, access.seconds, Meter())
