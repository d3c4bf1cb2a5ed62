"""This file holds how a format is recognised: by the first bytes, never by the name alone."""

from __future__ import annotations

from collections.abc import Callable

from ..checkpoint import LoadedFile
from ..errors import FormatError, UnknownFormat
from ..sources import Source
from . import safetensors, torch_legacy, torch_zip

HEAD = 512  # bytes; a tar header is the longest signature
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

LOADERS: tuple[tuple[Callable[[bytes], bool], Callable[[Source], LoadedFile]], ...] = (
    (torch_zip.sniff, torch_zip.load),
    (torch_legacy.sniff, torch_legacy.load),
    (safetensors.sniff, safetensors.load),
)

SIGNATURES = (
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer: the weights were not fetched (git lfs pull)"),
    (b"<!DOCTYPE", "an HTML page: a download went wrong"),
    (b"<html", "an HTML page: a download went wrong"),
    (b"\x93NUMPY", "a numpy array"),
)


def load(source: Source) -> LoadedFile:
    """The file in whichever format its first bytes show. FormatError if none fits or the format is broken."""
    head = source.read(0, min(HEAD, source.nbytes))
    if source.name.endswith(".safetensors") and not head.startswith((b"PK", b"GGUF", b"version ", b"<")):
        return safetensors.load(source)  # its own words say more than "not recognised"
    for sniff, loader in LOADERS:
        if sniff(head):
            return loader(source)
    if not head:
        raise FormatError(source.name, "is empty (0 bytes)", 0)
    for magic, words in SIGNATURES:
        if head.startswith(magic):
            raise UnknownFormat(source.name, f"is {words}", 0)
    raise UnknownFormat(source.name, f"is no format that is read here (first bytes {head[:8].hex(' ')})", 0)
