"""This file holds the one dtype table: name, bits per element, kind.

Names are those of safetensors (`Dtype` in safetensors/src/tensor.rs, version 0.8), plus the torch dtypes that safetensors
cannot store. Sizes are in bits because F4 and F6 elements do not fill bytes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["float", "int", "bool", "complex", "packed"]


class Dtype(NamedTuple):
    """Bits per element and the kind of number that the bits stand for."""

    bits: int
    kind: Kind


DTYPES: dict[str, Dtype] = {
    "BOOL": Dtype(8, "bool"),
    "F4": Dtype(4, "packed"),
    "F6_E2M3": Dtype(6, "packed"),
    "F6_E3M2": Dtype(6, "packed"),
    "U8": Dtype(8, "int"),
    "I8": Dtype(8, "int"),
    "F8_E5M2": Dtype(8, "float"),
    "F8_E4M3": Dtype(8, "float"),
    "F8_E8M0": Dtype(8, "float"),
    "F8_E4M3FNUZ": Dtype(8, "float"),
    "F8_E5M2FNUZ": Dtype(8, "float"),
    "I16": Dtype(16, "int"),
    "U16": Dtype(16, "int"),
    "F16": Dtype(16, "float"),
    "BF16": Dtype(16, "float"),
    "I32": Dtype(32, "int"),
    "U32": Dtype(32, "int"),
    "F32": Dtype(32, "float"),
    "C64": Dtype(64, "complex"),
    "F64": Dtype(64, "float"),
    "I64": Dtype(64, "int"),
    "U64": Dtype(64, "int"),
    # torch only (torch/storage.py, torch/_utils.py)
    "C32": Dtype(32, "complex"),
    "C128": Dtype(128, "complex"),
    "QI8": Dtype(8, "packed"),
    "QU8": Dtype(8, "packed"),
    "QI32": Dtype(32, "packed"),
    "QU4X2": Dtype(8, "packed"),
    "QU2X4": Dtype(8, "packed"),
    "BITS8": Dtype(8, "packed"),
    "BITS16": Dtype(16, "packed"),
    "BYTES": Dtype(8, "packed"),  # an untyped storage
}

SAFETENSORS_DTYPES = frozenset(
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64".split()
)


def nbits(dtype: str, numel: int) -> int:
    """Bits that `numel` elements of `dtype` take; KeyError for an unknown dtype."""
    return DTYPES[dtype].bits * numel
