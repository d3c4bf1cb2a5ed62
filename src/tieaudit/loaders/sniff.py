"""This file holds how a format is recognised: by the first bytes, never by the name alone."""

from __future__ import annotations

from ..checkpoint import LoadedFile
from ..errors import UnknownFormat
from ..sources import Folder, Source
from . import safetensors

HEAD = 512  # bytes; a tar header is the longest signature
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

SIGNATURES = (
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer: the weights were not fetched (git lfs pull)"),
    (b"<!DOCTYPE", "an HTML page: a download went wrong"),
    (b"<html", "an HTML page: a download went wrong"),
    (b"\x93NUMPY", "a numpy array"),
)


def load(source: Source, folder: Folder | None = None) -> LoadedFile:  # noqa: ARG001  for formats whose bytes lie in files beside them
    """The file in whichever format its first bytes show. FormatError if none fits or the format is broken.

    `folder` is where formats that keep their data in a second file look for it.
    """
    head = source.read(0, min(HEAD, source.nbytes))
    if safetensors.sniff(head):
        return safetensors.load(source)
    # imported when the first such file is met: an audit of safetensors starts in three quarters of the time
    from . import torch_legacy, torch_zip

    if torch_zip.sniff(head):
        return torch_zip.load(source)
    if torch_legacy.sniff(head):
        return torch_legacy.load(source)
    for magic, words in SIGNATURES:
        if head.startswith(magic):
            raise UnknownFormat(source.name, f"is {words}", 0)
    if source.name.endswith(".safetensors") or not head:
        return safetensors.load(source)  # its words say more than "not recognised"
    raise UnknownFormat(source.name, f"is no format that is read here (first bytes {head[:8].hex(' ')})", 0)
