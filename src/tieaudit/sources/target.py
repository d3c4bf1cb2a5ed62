"""This file holds what the argument of an audit means: a folder, or a file with the folder it stands in."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import TargetError
from .local import LocalFolder


def resolve(target: str) -> tuple[LocalFolder, str | None]:
    """(folder, the one file of it that was asked for). TargetError if it is not there or cannot be opened."""
    if not target:  # Path("") is the current folder, and an unset variable in CI would pass
        raise TargetError("''", "is empty", "name a folder or a file")
    try:
        path = Path(target)
        real = path.resolve(strict=True)
        if real.is_dir():
            return LocalFolder(real), None
        if not real.is_file():
            raise TargetError(target, "is neither a folder nor a regular file", "devices, FIFOs and sockets are not opened")
        # the folder of the link, so that a snapshot of the Hub cache keeps its config; else that of the file itself
        parent, name = path.parent.resolve(), path.name
        if LocalFolder(parent).entry(name).refused:
            parent, name = real.parent, real.name
        return LocalFolder(parent), name
    except FileNotFoundError:
        hint = "Hub ids are not read by this version" if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", target) else "check the spelling"
        raise TargetError(target, "no such file or folder", hint) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise TargetError(target, f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
