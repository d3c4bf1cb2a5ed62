"""This file holds which objects and which memory stand behind every name of a model.

References to all tensors are held while numbers are given out: the address of a freed tensor comes back at once. A tensor on the meta
device has no memory, so that only the object tells; neither has a tensor without elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..alive import LiveName

WORDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.complex128: "C128",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
_BASE_OF_PEFT = ("base_model", "model", "base_layer", "original_module")  # children through which its wrappers reach the model


class Named(NamedTuple):
    """A tensor under one of its names, as the walk found it."""

    name: str
    tensor: Tensor
    buffer: bool = False
    stored: bool = True
    adapter: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Names with their numbers, and the tensors, which must stay referenced as long as the numbers are used."""

    names: tuple[LiveName, ...]
    tensors: Mapping[str, Tensor]

    def by_name(self) -> dict[str, LiveName]:
        return {name.name: name for name in self.names}


def collect(model: nn.Module) -> Found:
    """Every parameter and buffer of the model under every name."""
    return numbered(walk(model))


def walk(model: nn.Module) -> Iterator[Named]:
    """As `named_parameters(remove_duplicate=False)` and its kin, but a module that contains itself ends."""
    yield from _walk(model, "", (), adapter=False)


def _walk(module: nn.Module, prefix: str, above: tuple[int, ...], *, adapter: bool) -> Iterator[Named]:
    for leaf, parameter in module._parameters.items():  # noqa: SLF001  a module's own ones, with no name left out
        if parameter is not None:
            yield Named(prefix + leaf, parameter, adapter=adapter)
    for leaf, buffer in module._buffers.items():  # noqa: SLF001
        if buffer is not None:
            stored = leaf not in module._non_persistent_buffers_set  # noqa: SLF001
            yield Named(prefix + leaf, buffer, buffer=True, stored=stored, adapter=adapter)
    of_peft = type(module).__module__.startswith("peft.")
    above = (*above, id(module))
    for leaf, child in module._modules.items():  # noqa: SLF001
        if child is not None and id(child) not in above:
            inside = leaf not in _BASE_OF_PEFT if of_peft else adapter
            yield from _walk(child, f"{prefix}{leaf}.", above, adapter=inside)


def numbered(named: Iterable[Named], *, by_view: bool = False) -> Found:
    """Numbers for objects and memory. `by_view`: two tensors that are the same view count as one object (a state dict is detached)."""
    held = list(named)
    objects: dict[Any, int] = {}
    storages: dict[Any, int] = {}
    names: list[LiveName] = []
    for one in held:
        view = _view(one.tensor)
        storage = None if view.memory is None else storages.setdefault(view.memory, len(storages))
        key: Any = id(one.tensor)
        if by_view and storage is not None:
            key = (storage, view.offset, view.shape, view.strides, view.dtype)
        names.append(
            LiveName(
                name=one.name,
                parameter=objects.setdefault(key, len(objects)),
                storage=storage,
                data_ptr=view.address,
                offset=view.offset,
                shape=view.shape,
                dtype=view.dtype,
                device=view.device,
                nbytes=view.nbytes,
                storage_nbytes=view.storage_nbytes,
                trains=bool(one.tensor.requires_grad),
                buffer=one.buffer,
                full=view.full,
                strides=view.strides,
                kind=view.kind,
                stored=one.stored,
                adapter=one.adapter,
            )
        )
    return Found(tuple(names), {one.name: one.tensor for one in held})


class _View(NamedTuple):
    memory: Any
    address: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    storage_nbytes: int
    full: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    kind: str = ""


def _view(tensor: Tensor) -> _View:
    kind = "" if type(tensor) in (Tensor, nn.Parameter, nn.Buffer) else type(tensor).__name__
    dtype, device = word(tensor.dtype), str(tensor.device)
    if torch.nn.parameter.is_lazy(tensor):
        return _View(None, 0, 0, (), dtype, device, 0, 0, kind=kind)
    shape = tuple(map(int, tensor.shape))
    inner = plain_parts(tensor)
    nbytes = sum(part.numel() * part.element_size() for part in inner)
    nothing = _View(None, 0, 0, shape, dtype, device, nbytes, 0, kind=kind)
    if not inner or not has_memory(inner[0]):
        return nothing
    first = inner[0]
    try:
        storage = first.untyped_storage()
        # a view made by copy-on-write would be copied by a look at its address, and is no alias
        cow = _is_cow(first)
        address = 0 if cow else storage.data_ptr()
        # two storages can be made over one memory (from_numpy): the address tells; where there is none, the object does
        memory = (first.device, address or ("object", storage._cdata))  # noqa: SLF001
        dense = first.is_contiguous()
        local = tuple(map(int, first.shape))
        sharded = local != shape and kind == "DTensor"
        return _View(
            memory=memory,
            address=0 if cow else first.data_ptr(),
            offset=int(first.storage_offset()),
            shape=local if sharded else shape,
            dtype=dtype,
            device=device,
            nbytes=nbytes,
            storage_nbytes=storage.nbytes(),
            full=shape if sharded else (),
            strides=None if dense else tuple(map(int, first.stride())),
            kind=kind,
        )
    except (RuntimeError, NotImplementedError):  # sparse and functional tensors have no storage to show
        return nothing


def _is_cow(tensor: Tensor) -> bool:
    ask = getattr(torch._C, "_is_cow_tensor", None)  # noqa: SLF001
    return bool(ask(tensor)) if ask else False


def plain_parts(tensor: Tensor) -> list[Tensor]:
    """The tensor itself, or the plain ones that a subclass (DTensor, torchao's) is made of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in plain_parts(getattr(tensor, name)) if isinstance(part, Tensor)]


def has_memory(tensor: Tensor) -> bool:
    """There are bytes behind it. (A FakeTensor says that it is on a device, and has none.)"""
    return tensor.device.type != "meta" and not _fake(tensor) and tensor.numel() > 0


def _fake(tensor: Tensor) -> bool:
    return any(base.__name__ == "FakeTensor" for base in type(tensor).__mro__)


def word(dtype: torch.dtype) -> str:
    """The dtype in the words of safetensors, torch's own where it has none."""
    return WORDS.get(dtype, str(dtype).removeprefix("torch."))
