"""This file holds what only the listing of a repository shows: what a plain download fetches against what a reader opens, and files
that are the same bytes under another name (by the SHA-256 that the listing has; nothing is read for it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .checkpoint import Checkpoint, Edition
from .loaders.sharded import OTHER_SUFFIXES
from .loaders.sniff import SUFFIXES
from .sources import Folder
from .text import quantity

WORTH_TELLING = 1.5  # times what is needed
LITTLE = 1_000_000  # bytes that are not worth a word
NEEDED_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")  # config, tokenizer, code: small, and read


def download(folder: Folder, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """(subject, reason) if a plain `snapshot_download` fetches much more than the first edition's readers open."""
    files, primary = folder.everything(), checkpoint.primary
    if not primary or not files or not folder.revision:
        return
    opened = {file.name for file in primary.files}
    total = sum(entry.nbytes for entry in files)
    needed = sum(entry.nbytes for entry in files if entry.name in opened or entry.name.endswith(NEEDED_SUFFIXES))
    if total < max(WORTH_TELLING * needed, needed + LITTLE):
        return
    kinds: Counter[str] = Counter()
    for entry in files:
        if entry.name.endswith((*SUFFIXES, *OTHER_SUFFIXES)):
            kinds[entry.name.rsplit(".", 1)[-1]] += entry.nbytes
    parts = ", ".join(f"{kind} {quantity(nbytes)}" for kind, nbytes in kinds.most_common(6))
    yield (
        "the rest of the repository",
        f"a plain snapshot_download fetches {quantity(total)} in {len(files):,} files ({parts}); {primary.name} needs {quantity(needed)}",
    )


def same_bytes(folder: Folder, first: Edition, second: Edition) -> bool:
    """True if every file of `second` is one of `first` again, by the listing's SHA-256."""
    known = {folder.entry(file.name).sha256 for file in first.files} - {""}
    return bool(second.files) and all(folder.entry(file.name).sha256 in known for file in second.files)
