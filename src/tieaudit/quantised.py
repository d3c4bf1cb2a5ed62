"""This file holds how quantised matrices are stored: one row of SCHEMES per way, by the names and dtypes of its tensors.

Where the rows come from: bitsandbytes `functional.QuantState`, `Linear8bitLt`; GPTQModel and AutoAWQ `qweight` (GPTQ packs along the
input, AWQ along the output: the width of `scales` tells which); compressed-tensors `compressors/*` (`compression_param_names`);
transformers `quantizers/*` (`serialized_names`); torchao's flattened tensor subclasses; `mx.quantize`; HQQ `HQQLinear.state_dict`;
optimum-quanto `QTensor`; ModelOpt's exporter. A `quantization_config` is no source: it may contradict the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checkpoint import TensorRecord
from .dtypes import DTYPES

MAX_NOTE = 4096  # bytes; quant_state of bitsandbytes has some 170, a shape 16
_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_FLOAT8 = frozenset(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"))
_FLOATS = frozenset(("F16", "BF16", "F32"))
_ANY: frozenset[str] = frozenset()
_INPUTS = ("input_scale", "input_scale_ub", "input_zero_point", "input_global_scale", "activation_scale", "output_scale")

Parts = Mapping[str, TensorRecord]
"""Tensors of one matrix by what follows the module's name: `weight_packed`, `weight.absmax`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a config says that no header does: widths of the model, and (bits, group) of MLX. Used only where it fits the file."""

    widths: frozenset[int] = frozenset()
    affine: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A stored form in words, and the matrix that it stands for: `shape` () and `rows` None where only the values could tell."""

    words: str
    shape: tuple[int, ...] = ()
    rows: int | None = None
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to store a quantised matrix: leaf and dtypes (none: any) of the packed tensor, leaves that must or may be beside it."""

    name: str
    main: str
    dtypes: frozenset[str]
    needs: tuple[str, ...]
    more: tuple[str, ...]
    layout: Callable[[Parts, Mapping[str, bytes], Hints], Layout]

    def find(self, at: Callable[[str], TensorRecord | None]) -> dict[str, TensorRecord] | None:
        """The tensors under one module's name, the packed one first; None if it is not stored this way."""
        main = at(self.main)
        if main is None or (self.dtypes and main.dtype not in self.dtypes):
            return None
        found = {self.main: main}
        for leaf in (*self.needs, *self.more):
            part = at(leaf)
            if part is not None:
                found[leaf] = part
            elif leaf in self.needs:
                return None
        return found


def _dims(*dims: int) -> tuple[int, ...]:
    return dims


def _as_stored(words: str, bits: int = 8) -> Callable[[Parts, Mapping[str, bytes], Hints], Layout]:
    """One element of the packed tensor is one of the matrix."""

    def layout(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
        shape = next(iter(parts.values())).shape
        return Layout(words, shape, shape[0] if shape else None, bits)

    return layout


def _unknown(words: str) -> Callable[[Parts, Mapping[str, bytes], Hints], Layout]:
    return lambda _parts, _notes, _hints: Layout(words)


def _bitsandbytes4(parts: Parts, notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    main = parts["weight"]
    state = next((leaf for leaf in _STATES if leaf in parts), None)
    words = f"bitsandbytes 4-bit ({state.rpartition('__')[2]})" if state else "bitsandbytes 4-bit"
    shape = _shape_in_json(notes.get(parts[state].name, b"")) if state else ()
    numel = 1
    for dim in shape:
        numel *= dim
    # two elements fill a byte; a last half one is filled up
    if not shape or -(-numel // 2) != main.nbytes:
        return Layout(words, bits=4)
    return Layout(words, shape, shape[0], 4)


def _shape_in_json(note: bytes) -> tuple[int, ...]:
    """`{"shape": [151936, 896], …}` of bitsandbytes; () for anything else."""
    try:
        state = json.loads(note.decode())
    except (ValueError, RecursionError):
        return ()
    shape = state.get("shape") if isinstance(state, dict) else None
    return _checked(shape) if isinstance(shape, list) else ()


def _checked(shape: list[Any]) -> tuple[int, ...]:
    good = 0 < len(shape) <= 4 and all(type(dim) is int and 0 < dim < 1 << 40 for dim in shape)
    return tuple(shape) if good else ()


def _shape_in_words(part: TensorRecord | None, notes: Mapping[str, bytes]) -> tuple[int, ...]:
    """The integers of a `weight_shape` tensor."""
    width = {"I64": 8, "I32": 4}.get(part.dtype, 0) if part else 0
    note = notes.get(part.name, b"") if part else b""
    if not width or len(note) % width:
        return ()
    return _checked([int.from_bytes(note[at : at + width], "little", signed=True) for at in range(0, len(note), width)])


def _gptq_or_awq(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    packed, scales, zeros, order = (parts[leaf].shape if leaf in parts else () for leaf in ("qweight", "scales", "qzeros", "g_idx"))
    if len(packed) != 2 or len(scales) != 2 or 0 in (*packed, *scales):
        return Layout("GPTQ or AWQ")
    rows = scales[1]
    if packed[1] == rows:
        bits = _whole(zeros[1] * 32, rows) if len(zeros) == 2 else _whole(packed[0] * 32, order[0]) if order else 0
        width = _whole(packed[0] * 32, bits)
        good = 1 <= bits <= 8 and width
        return Layout(_bits("GPTQ", bits), _dims(rows, width), rows, bits) if good else Layout("GPTQ", rows=rows)
    bits = _whole(packed[1] * 32, rows)
    return Layout(_bits("AWQ", bits), _dims(rows, packed[0]), rows, bits) if 1 <= bits <= 8 else Layout("GPTQ or AWQ")


def _whole(number: int, by: int) -> int:
    """`number / by` if that is whole, else 0."""
    return 0 if by <= 0 or number % by else number // by


def _bits(name: str, bits: int) -> str:
    return f"{name} {bits}-bit"


def _compressed(parts: Parts, notes: Mapping[str, bytes], hints: Hints) -> Layout:
    packed, scale = parts["weight_packed"], parts["weight_scale"]
    name = "compressed-tensors"
    if len(packed.shape) != 2 or len(scale.shape) != 2:
        return Layout(name)
    rows, words = packed.shape
    if packed.dtype == "U8":
        per_scale = _whole(words, scale.shape[1])
        if scale.dtype == "F8_E4M3" and per_scale == 8:
            return Layout("NVFP4 (compressed-tensors)", _dims(rows, 2 * words), rows, 4)
        if scale.dtype == "U8" and per_scale == 16:
            return Layout("MXFP4 (compressed-tensors)", _dims(rows, 2 * words), rows, 4)
        return Layout(name, rows=rows)
    shape = _shape_in_words(parts.get("weight_shape"), notes)
    widths = [shape[1]] if len(shape) == 2 and shape[0] == rows else sorted(hints.widths)
    # dense packing: element i lies at bit i × bits
    found = {(width, bits) for width in widths for bits in range(1, 9) if -(-width * bits // 32) == words}
    if len(found) != 1:
        return Layout(name, rows=rows)
    ((width, bits),) = found
    return Layout(_bits(name, bits), _dims(rows, width), rows, bits)


def _nvfp4(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    packed, scale = parts["weight"].shape, parts["weight_scale"].shape
    if len(packed) == len(scale) == 2 and packed[0] == scale[0] and packed[1] == 8 * scale[1]:
        return Layout("NVFP4 (ModelOpt)", _dims(packed[0], 2 * packed[1]), packed[0], 4)
    return Layout("NVFP4 (ModelOpt)")


def _mlx(parts: Parts, _notes: Mapping[str, bytes], hints: Hints) -> Layout:
    packed, scales = parts["weight"].shape, parts["scales"]
    if len(packed) != 2 or len(scales.shape) != 2 or not packed[1] or packed[0] != scales.shape[0]:
        return Layout("MLX")
    rows, words = packed
    if scales.dtype == "U8":  # no biases: groups of 32 (MX) or 16 (NV) share one 8-bit scale
        for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)):
            if words * 32 == scales.shape[1] * group * bits:
                return Layout(f"MLX {mode}", _dims(rows, words * 32 // bits), rows, bits)
        return Layout("MLX", rows=rows)
    # bits × group is all that the shapes tell: 4 bits in groups of 64 look like 8 in groups of 32
    fits = {
        (words * 32 // bits, bits, group)
        for bits in (2, 3, 4, 5, 6, 8)
        for group in (16, 32, 64, 128)
        if words * 32 == scales.shape[1] * group * bits
    }
    by_width = {fit for fit in fits if fit[0] in hints.widths}
    chosen = by_width if len(by_width) == 1 else {fit for fit in (by_width or fits) if fit[1:] == hints.affine}
    if not chosen and len(fits) == 1:
        chosen = fits
    if len(chosen) != 1:
        return Layout("MLX", rows=rows)
    ((width, bits, _),) = chosen
    return Layout(_bits("MLX", bits), _dims(rows, width), rows, bits)


def _mxfp4_blocks(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    blocks, scales = (part.shape for part in parts.values())
    if len(blocks) < 3 or blocks[:-1] != scales:
        return Layout("MXFP4")
    shape = _dims(*blocks[:-2], blocks[-2] * blocks[-1] * 2)
    return Layout("MXFP4", shape, shape[0], 4)


def _torchao(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    data = parts["_weight_qdata"]
    rows = data.shape[0] if len(data.shape) == 2 else None
    if data.dtype in _FLOAT8:
        return Layout("torchao FP8", data.shape, rows, 8)
    if data.dtype == "I8":  # smaller integers are stored in 8 bits too
        return Layout("torchao 8-bit", data.shape, rows, 8)
    return Layout("torchao")


def _hqq(parts: Parts, notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    shape = _shape_in_words(parts.get("shape"), notes)
    return Layout("HQQ", shape, shape[0]) if shape else Layout("HQQ")


def _quanto(parts: Parts, _notes: Mapping[str, bytes], _hints: Hints) -> Layout:
    data = parts["weight._data"]
    if "weight._shift" in parts or data.dtype == "U8":
        return Layout("Quanto")
    return Layout("Quanto 8-bit", data.shape, data.shape[0] if data.shape else None, 8)


SCHEMES: tuple[Scheme, ...] = (
    # the storage dtype of bitsandbytes is the user's choice (bnb_4bit_quant_storage); what stands beside it is not
    Scheme("bitsandbytes-4bit", "weight", _ANY, ("weight.absmax", "weight.quant_map"),
           ("weight.nested_absmax", "weight.nested_quant_map", *_STATES), _bitsandbytes4),
    Scheme("bitsandbytes-8bit", "weight", frozenset(("I8",)), ("SCB",), ("weight_format",), _as_stored("bitsandbytes 8-bit")),
    Scheme("gptq-awq", "qweight", frozenset(("I32",)), ("scales",), ("qzeros", "g_idx"), _gptq_or_awq),
    Scheme("compressed-tensors", "weight_packed", frozenset(("I32", "U8")), ("weight_scale",),
           ("weight_shape", "weight_zero_point", "weight_global_scale", "weight_g_idx", *_INPUTS), _compressed),
    Scheme("modelopt-nvfp4", "weight", frozenset(("U8",)), ("weight_scale", "weight_scale_2"), ("pre_quant_scale", *_INPUTS), _nvfp4),
    Scheme("fp8-block", "weight", _FLOAT8, ("weight_scale_inv",), _INPUTS, _as_stored("FP8")),
    Scheme("fp8", "weight", _FLOAT8, ("weight_scale",), ("weight_zero_point", *_INPUTS), _as_stored("FP8")),
    Scheme("fp8-scale", "weight", _FLOAT8, ("scale",), _INPUTS, _as_stored("FP8")),  # DeepSeek's own releases
    Scheme("fp8-qscale", "weight", _FLOAT8, ("qscale_weight",), ("qscale_act",), _as_stored("FP8")),  # Mistral's
    Scheme("int8", "weight", frozenset(("I8",)), ("weight_scale",), ("weight_zero_point", *_INPUTS), _as_stored("int8")),
    Scheme("eetq", "weight", frozenset(("I8",)), ("weight_scales",), (), _unknown("EETQ 8-bit")),
    Scheme("torchao", "_weight_qdata", _ANY, ("_weight_scale",), ("_weight_zero_point", "_weight_act_pre_scale"), _torchao),
    Scheme("mlx", "weight", frozenset(("U32",)), ("scales",), ("biases", "qbiases"), _mlx),
    Scheme("mxfp4", "weight_blocks", frozenset(("U8",)), ("weight_scales",), (), _mxfp4_blocks),
    Scheme("hqq", "W_q", _ANY, ("scale", "zero"),
           ("shape", "nbits", "group_size", "axis", "packing", "view_as_float", "unpack_view_dtype", "compute_dtype", "quant_zero",
            "quant_scale", "channel_wise", "optimize", "round_zero", "stores_quant_config", "offload_meta", "encoded_state_dict"), _hqq),
    Scheme("quanto", "weight._data", _ANY, ("weight._scale",), ("weight._shift", "input_scale", "output_scale"), _quanto),
    # known by name only, so that nobody takes the matrix for absent
    Scheme("exl2", "q_weight", _ANY, (), ("q_scale", "q_scale_max", "q_groups", "q_invperm", "q_perm"), _unknown("EXL2")),
    Scheme("exl3", "trellis", _ANY, (), ("suh", "svh", "su", "sv", "mcg", "mul1"), _unknown("EXL3")),
    Scheme("aqlm", "codes", _ANY, ("codebooks",), ("scales",), _unknown("AQLM")),
    Scheme("vptq", "indices", _ANY, ("centroids",), ("weight_scale", "weight_bias", "perm", "res_centroids", "outlier_centroids"),
           _unknown("VPTQ")),
    Scheme("marlin", "B", frozenset(("I32",)), ("s",), (), _unknown("Marlin")),
)  # fmt: skip
# gpt-oss stacks its experts under names without `weight`
BARE = Scheme("mxfp4", "_blocks", frozenset(("U8",)), ("_scales",), (), _mxfp4_blocks)

MAINS = tuple(dict.fromkeys(scheme.main for scheme in SCHEMES if scheme.main != "weight"))
# parts that mean nothing without the packed tensor, under names that nothing else has
ORPHANS = ("scales", "biases", "qbiases", "qzeros", "g_idx", "SCB", "weight_format", "weight.absmax", "weight.quant_map",
           "weight.nested_absmax", "weight.nested_quant_map", *_STATES, "weight_scale", "weight_scale_inv", "weight_scale_2",
           "weight_zero_point", "weight_global_scale", "weight_shape", "weight_scales", "_weight_scale", "_weight_zero_point",
           "weight._scale", "weight._shift")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is stored of one quantised matrix, and how it is to be read."""

    scheme: str
    parts: tuple[TensorRecord, ...]
    leaves: tuple[str, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Bundles:
    """Finds the quantised matrices of one edition. `tails` are the last parts of all names: a plain file is done after one look."""

    notes: Mapping[str, bytes] = field(default_factory=dict)
    hints: Hints = field(default_factory=Hints)
    possible: tuple[Scheme, ...] = ()
    mains: tuple[str, ...] = ()

    @classmethod
    def among(cls, tails: frozenset[str] | set[str], notes: Mapping[str, bytes], hints: Hints) -> Bundles:
        def there(leaf: str) -> bool:
            return leaf.rpartition(".")[2] in tails

        possible = tuple(scheme for scheme in SCHEMES if there(scheme.main) and all(map(there, scheme.needs)))
        return cls(notes, hints, possible, tuple(filter(there, MAINS)))

    def find(self, at: Callable[[str], TensorRecord | None]) -> Bundle | None:
        """The bundle of one module; `at` gives the tensor that is stored under the module's name and a leaf."""
        for scheme in self.possible:
            parts = scheme.find(at)
            if parts:
                return self._bundle(scheme, parts)
        plain = at("weight")
        if plain is not None:
            # an integer matrix without a scale that is known here: whatever it is, its numbers are no weights
            opaque = DTYPES[plain.dtype].kind == "int" and len(plain.shape) > 1
            return Bundle("unknown", (plain,), ("weight",), Layout(f"{plain.dtype} in an unknown layout")) if opaque else None
        leaf = next((leaf for leaf in self.mains if at(leaf) is not None), None)
        if leaf is None:
            return None
        leaves = tuple(leaf for leaf in dict.fromkeys((leaf, *ORPHANS)) if at(leaf) is not None)
        parts_found = tuple(part for part in map(at, leaves) if part is not None)
        return Bundle("unknown", parts_found, leaves, Layout("quantised in an unknown layout"))

    def bare(self, at: Callable[[str], TensorRecord | None]) -> Bundle | None:
        parts = BARE.find(at)
        return self._bundle(BARE, parts) if parts else None

    def _bundle(self, scheme: Scheme, parts: Parts) -> Bundle:
        return Bundle(scheme.name, tuple(parts.values()), tuple(parts), scheme.layout(parts, self.notes, self.hints))


def note(parts: tuple[TensorRecord, ...], leaves: tuple[str, ...]) -> TensorRecord | None:
    """The small tensor whose values say which shape the matrix has, if there is one."""
    for part, leaf in zip(parts, leaves, strict=True):
        if leaf in (*_STATES, "weight_shape", "shape") and 0 < part.nbytes <= MAX_NOTE:
            return part
    return None


def hints(config: Mapping[str, Any]) -> Hints:
    """What config.json says about widths and about MLX's packing."""
    sections = (config, *(section for section in map(config.get, ("text_config", "llm_config")) if isinstance(section, Mapping)))
    keys = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size")
    widths = {section.get(key) for section in sections for key in keys}
    affine = None
    for key in ("quantization", "quantization_config"):
        given = config.get(key)
        bits, group = (given.get("bits"), given.get("group_size")) if isinstance(given, Mapping) else (None, None)
        if affine is None and type(bits) is int and type(group) is int:
            affine = (bits, group)
    return Hints(widths=frozenset(width for width in widths if type(width) is int and width > 0), affine=affine)
