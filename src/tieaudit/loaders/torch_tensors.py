"""This file holds how torch writes a tensor into a pickle: storages as persistent ids, tensors as calls in torch._utils.

`_rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks)` and its relatives are in torch/_utils.py,
`("storage", type, key, location, numel)` in torch/serialization.py. Offsets, sizes and strides count elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .pickle_machine import Global, Made, PersistentId

MAX_DIMS = 64  # torch's own limit
MAX_NUMBER = 1 << 63  # torch counts in signed 64-bit numbers

# torch/storage.py, _dtype_to_storage_type_map
STORAGE_DTYPES: Mapping[str, str] = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexDoubleStorage": "C128", "ComplexFloatStorage": "C64",
    "QInt8Storage": "QI8", "QInt32Storage": "QI32", "QUInt8Storage": "QU8", "QUInt4x2Storage": "QU4X2",
    "QUInt2x4Storage": "QU2X4", "UntypedStorage": "U8", "TypedStorage": "U8",
}  # fmt: skip

# torch/storage.py, _new_dtypes, and those above by their own name: `_rebuild_tensor_v3` names a dtype, not a storage class.
DTYPES_BY_NAME: Mapping[str, str] = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16", "bfloat16": "BF16",
    "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "complex32": "C32", "chalf": "C32", "complex64": "C64", "cfloat": "C64", "complex128": "C128", "cdouble": "C128",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
    "qint8": "QI8", "qint32": "QI32", "quint8": "QU8", "quint4x2": "QU4X2", "quint2x4": "QU2X4",
    "bits8": "BITS8", "bits1x8": "BITS8", "bits2x4": "BITS8", "bits4x2": "BITS8", "bits16": "BITS16",
    **{f"{kind}{bits}": "BYTES" for kind in ("int", "uint") for bits in range(1, 8)},
}  # fmt: skip

ITEM_NBYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "U16": 2, "U32": 4, "U64": 8, "C32": 4, "C64": 8, "C128": 16, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E5M2FNUZ": 1,
    "F8_E4M3FNUZ": 1, "F8_E8M0": 1, "F4": 1, "QI8": 1, "QI32": 4, "QU8": 1, "QU4X2": 1, "QU2X4": 1,
    "BITS8": 1, "BITS16": 2, "BYTES": 1,
}  # fmt: skip
"""Bytes of one element as torch counts them; its F4 element (float4_e2m1fn_x2) is a pair."""

UNTYPED = frozenset({"UntypedStorage", "TypedStorage"})

UTILS = "torch._utils."
# Position of the dtype among the arguments; None: the storage's.
TENSOR_CALLS: Mapping[str, int | None] = {
    f"{UTILS}_rebuild_tensor": None,
    f"{UTILS}_rebuild_tensor_v2": None,
    f"{UTILS}_rebuild_tensor_v3": 6,
    f"{UTILS}_rebuild_qtensor": None,
}


@dataclass(frozen=True, slots=True, eq=False)
class StorageRef:
    """A storage as the pickle names it. `numel` elements of `dtype` are what the whole storage should have; `first` is the
    element at which a view of it (torch <= 0.3) begins."""

    key: str
    dtype: str
    numel: int
    typed: bool
    first: int = 0

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_NBYTES[self.dtype]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor in its storage: `offset`, `nbytes` and `end` (one past the last byte that it touches) in bytes of the storage,
    `strides` in elements, None when row-major without gaps."""

    ref: StorageRef
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    end: int
    strides: tuple[int, ...] | None


class Fault(NamedTuple):
    """Why something that looks like a tensor is none, as a clause after its name."""

    what: str


def storage_ref(value: object) -> object:
    """What torch's `persistent_load` gives for a persistent id: a StorageRef, the class of a `("module", class, …)`,
    a PersistentId for anything else."""
    if type(value) is not tuple or len(value) < 2:
        return PersistentId(value)
    if value[0] == "module" and isinstance(value[1], Global):
        return value[1]
    if value[0] != "storage" or len(value) < 5:
        return PersistentId(value)
    kind, key, numel = value[1], value[2], value[4]
    if not isinstance(kind, Global) or type(key) is not str or not _is_count(numel):
        return PersistentId(value)
    name = kind.name
    dtype = STORAGE_DTYPES.get(name)
    first = 0
    if len(value) > 5 and value[5] is not None:  # (view_key, offset, numel) of a storage that is a view of another
        metadata = value[5]
        if type(metadata) is not tuple or len(metadata) != 3 or not _is_count(metadata[1]):
            return PersistentId(value)
        first = metadata[1]
    if dtype is None:
        return PersistentId(value)
    return StorageRef(key, dtype, numel, name not in UNTYPED, first)


def tensor_view(made: Made) -> View | Fault:
    """The tensor that a call in TENSOR_CALLS rebuilds."""
    args = made.args
    if not isinstance(args, tuple) or len(args) < 4:
        return Fault("is rebuilt without size and stride")
    ref, offset, shape, strides = args[:4]
    if not isinstance(ref, StorageRef):
        return Fault("has no storage that the pickle names")
    shape, strides = _plain(shape), _plain(strides)
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides):
        return Fault("has a size and a stride that do not fit each other")
    if len(shape) > MAX_DIMS:
        return Fault(f"has {len(shape):,} dimensions")
    for number in (offset, *shape, *strides):
        if type(number) is not int or not 0 <= number < MAX_NUMBER:
            return Fault("has a size, stride or offset that is no 64-bit number")
    dtype = ref.dtype
    at = TENSOR_CALLS.get(made.name)
    if at is not None:
        named = args[at] if len(args) > at else None
        if not isinstance(named, Global) or named.name not in DTYPES_BY_NAME:
            return Fault("has a dtype that is not known")
        dtype = DTYPES_BY_NAME[named.name]
    return _view(ref, dtype, offset, shape, strides)


def whole_storage(ref: StorageRef) -> View:
    """A storage that was saved by itself, as a tensor of one dimension."""
    dtype = ref.dtype if ref.typed else "BYTES"
    return _view(ref, dtype, 0, (ref.numel,), (1,))


def _view(ref: StorageRef, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    item = ITEM_NBYTES[dtype]
    numel = 1
    for dim in shape:
        numel *= dim
    begin = ref.first * ITEM_NBYTES[ref.dtype] + offset * item
    if not numel or _is_row_major(shape, strides):
        kept, last = None, numel - 1
    else:
        kept, last = strides, sum((dim - 1) * stride for dim, stride in zip(shape, strides, strict=True))
    if dtype == "F4":
        # torch's element is two F4 side by side; safetensors and the dtype table count single ones
        if shape and kept is None:
            shape = (*shape[:-1], 2 * shape[-1])
        else:
            dtype = "BYTES"
    return View(ref, dtype, shape, begin, numel * item, begin + (last + 1) * item, kept)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for dim, stride in zip(shape[::-1], strides[::-1], strict=True):
        if dim != 1:
            if stride != expected:
                return False
            expected *= dim
    return True


def _plain(size: object) -> object:
    """A size as a tuple: torch.Size((2, 3)), or a list."""
    if isinstance(size, Made) and size.name == "torch.Size" and isinstance(size.args, tuple) and len(size.args) == 1:
        size = size.args[0]
    return tuple(size) if type(size) is list else size


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number < MAX_NUMBER
