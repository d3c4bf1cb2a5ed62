"""This file holds how a format is recognised: by the first bytes, never by the name alone."""

from __future__ import annotations

from ..checkpoint import LoadedFile
from ..errors import UnknownFormat
from ..sources import Folder, Source
from . import safetensors

HEAD = 512  # bytes; a tar header is the longest signature
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".npz", ".msgpack", ".xml")

SIGNATURES = (
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer: the weights were not fetched (git lfs pull)"),
    (b"<!DOCTYPE", "an HTML page: a download went wrong"),
    (b"<html", "an HTML page: a download went wrong"),
    (b"\x93NUMPY", "a numpy array"),
    (b"<?xml", "XML, but no OpenVINO model"),
    (b"lmgg", "a GGML file of before GGUF, or one of whisper.cpp"),
    (b"tjgg", "a GGML file of before GGUF, which llama.cpp no longer reads: convert the model again"),
)


def load(source: Source, folder: Folder | None = None) -> LoadedFile:
    """The file in whichever format its first bytes show. FormatError if none fits or the format is broken.

    `folder` is where formats that keep their data in a second file look for it.
    """
    head = source.read(0, min(HEAD, source.nbytes))
    if safetensors.sniff(head):
        return safetensors.load(source)
    if head.startswith(b"GGUF") or (not head and source.name.endswith(".gguf")):
        from . import gguf

        return gguf.load(source)
    if head.startswith(b"\x08"):
        from . import onnx

        if onnx.sniff(head):
            return onnx.load(source, folder)
    # imported when the first such file is met: an audit of safetensors starts in three quarters of the time
    from . import torch_legacy, torch_zip

    if torch_zip.sniff(head):
        from . import npz

        return npz.load(source, folder) if npz.sniff(head) else torch_zip.load(source)
    if torch_legacy.sniff(head):
        return torch_legacy.load(source)
    if head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
        from . import openvino

        if openvino.sniff(head):
            return openvino.load(source, folder)
    from . import ctranslate2, flax

    if ctranslate2.sniff(head):
        return ctranslate2.load(source)
    if flax.sniff(head):
        return flax.load(source)
    for magic, words in SIGNATURES:
        if head.startswith(magic):
            raise UnknownFormat(source.name, f"is {words}", 0)
    if source.name.endswith(".onnx"):
        from . import onnx

        return onnx.load(source, folder)  # it is none, and these words say where it breaks
    if source.name.endswith(".safetensors") or not head:
        return safetensors.load(source)  # its words say more than "not recognised"
    raise UnknownFormat(source.name, f"is no format that is read here (first bytes {head[:8].hex(' ')})", 0)
