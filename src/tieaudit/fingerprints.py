"""This file holds what makes two findings the same one on different days: a fingerprint for baselines, SARIF and code quality reports.

It is made of what stays when a model is saved again: the target, the rule, the files and tensors, and their size to a power of two.
Byte offsets, the wording of a message, the severity and the exact waste are no part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from .report import Finding

VERSION = "tieaudit/v1"
"""The name of this way to make one; a report names it beside the fingerprint."""
DIGITS = 32  # of SHA-256 in hex: 128 bits
_HUB = re.compile(r"hf://(?:models/)?([^@/]+/[^@/]+)(?:@[^/]*)?(?:/(.*))?$")
_MEANT = re.compile(r"[A-Za-z].*[._/]|[._/].*[A-Za-z]")  # a name of a file, a key or a storage, as against a word or a number


def fingerprint(finding: Finding, target: str) -> str:
    """32 hex digits. `target` as it was given, or better as `target_key` writes it: then it is the same on every machine."""
    subject = sorted({(place.file, place.name) for place in finding.tensors} or {("", word) for word in _names(finding.message)})
    size = max((place.nbytes for place in finding.tensors), default=0).bit_length()
    # JSON keeps names apart whatever is in them, lone surrogates too
    content = json.dumps([VERSION, target_key(target), finding.rule, subject, size])
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:DIGITS]


def target_key(target: str, start: str | None = None, subfolder: str | None = None) -> str:
    """The target without what differs between machines and days: a path with single slashes, relative to `start` if it lies below or
    beside it; a Hub id without its revision, with its subfolder behind it; other URLs as they are."""
    hub = _HUB.match(target)
    if hub:
        key = f"{hub[1]}/{hub[2]}" if hub[2] else hub[1]
        return f"{key.rstrip('/')}/{subfolder.strip('/')}" if subfolder else key.rstrip("/")
    if "://" in target and not target.startswith("file://"):
        return target.rstrip("/")
    path = target.removeprefix("file://")
    if start is not None and os.path.lexists(path):
        path = os.path.relpath(os.path.realpath(path), os.path.realpath(start))
    key = os.path.normpath(path).replace(os.sep, "/")
    return f"{key}/{subfolder.strip('/')}" if subfolder else key


def _names(message: str) -> set[str]:
    """What a message is about where the finding has no tensors: its words that are names."""
    words = (word.strip("'\"`.,:;()[]") for word in message.split())
    return {word for word in words if _MEANT.search(word)}
