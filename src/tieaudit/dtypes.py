"""This file holds the one dtype table: name, bits, kind, elements per block.

Names are those of safetensors (`Dtype` in safetensors/src/tensor.rs, version 0.8), plus the torch, ONNX and GGUF types that
safetensors cannot store. Sizes are in bits because F4 and F6 elements do not fill bytes. GGUF packs elements in blocks with their
scales (`GGML_QUANT_SIZES` in gguf/constants.py, version 0.19).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["float", "int", "bool", "complex", "packed"]


class Dtype(NamedTuple):
    """Bits per block of `block` elements (one, but for GGUF's quantised types) and the kind of number that they stand for."""

    bits: int
    kind: Kind
    block: int = 1


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
    # ONNX and OpenVINO (onnx.proto, TensorProto.DataType; openvino/core/type/element_type.hpp)
    "I4": Dtype(4, "packed"),
    "U4": Dtype(4, "packed"),
    "I2": Dtype(2, "packed"),
    "U2": Dtype(2, "packed"),
    "U1": Dtype(1, "packed"),
    "NF4": Dtype(4, "packed"),
    # GGUF
    "Q4_0": Dtype(18 * 8, "packed", 32),
    "Q4_1": Dtype(20 * 8, "packed", 32),
    "Q5_0": Dtype(22 * 8, "packed", 32),
    "Q5_1": Dtype(24 * 8, "packed", 32),
    "Q8_0": Dtype(34 * 8, "packed", 32),
    "Q8_1": Dtype(40 * 8, "packed", 32),
    "Q2_K": Dtype(84 * 8, "packed", 256),
    "Q3_K": Dtype(110 * 8, "packed", 256),
    "Q4_K": Dtype(144 * 8, "packed", 256),
    "Q5_K": Dtype(176 * 8, "packed", 256),
    "Q6_K": Dtype(210 * 8, "packed", 256),
    "Q8_K": Dtype(292 * 8, "packed", 256),
    "IQ2_XXS": Dtype(66 * 8, "packed", 256),
    "IQ2_XS": Dtype(74 * 8, "packed", 256),
    "IQ3_XXS": Dtype(98 * 8, "packed", 256),
    "IQ1_S": Dtype(50 * 8, "packed", 256),
    "IQ4_NL": Dtype(18 * 8, "packed", 32),
    "IQ3_S": Dtype(110 * 8, "packed", 256),
    "IQ2_S": Dtype(82 * 8, "packed", 256),
    "IQ4_XS": Dtype(136 * 8, "packed", 256),
    "IQ1_M": Dtype(56 * 8, "packed", 256),
    "TQ1_0": Dtype(54 * 8, "packed", 256),
    "TQ2_0": Dtype(66 * 8, "packed", 256),
    "MXFP4": Dtype(17 * 8, "packed", 32),
    "NVFP4": Dtype(36 * 8, "packed", 64),
    "Q1_0": Dtype(18 * 8, "packed", 128),
}

SAFETENSORS_DTYPES = frozenset(
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64".split()
)


def nbits(dtype: str, numel: int) -> int:
    """Bits that `numel` elements of `dtype` take, a block that is begun counted whole; KeyError for an unknown dtype."""
    bits, _, block = DTYPES[dtype]
    return bits * -(-numel // block)
