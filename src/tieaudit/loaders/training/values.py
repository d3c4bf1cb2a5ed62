"""This file holds how plain values are taken out of an unpickled object: dicts, attributes, sizes, flags. Nothing is made of them."""

from __future__ import annotations

from ..pickle_machine import Made, Pairs
from ..torch_tensors import MAX_DIMS, MAX_NUMBER


def entries(value: object) -> dict[str, object]:
    """The entries of a dict, or the attributes of an object, whose keys are texts; of two with one key the last counts."""
    return {key: item for key, item in pairs(value) if type(key) is str}


def pairs(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Made):
        value = value.pairs if value.pairs is not None else value.state
    return value if isinstance(value, Pairs) else []


def class_name(value: object) -> str:
    """The last part of the class, "" for what is no object."""
    return value.name.rpartition(".")[2] if isinstance(value, Made) else ""


def items(value: object) -> list[object]:
    """A list or tuple."""
    return list(value) if isinstance(value, list | tuple) and not isinstance(value, Pairs) else []


def size(value: object) -> tuple[int, ...] | None:
    """A torch.Size or a tuple of counts; None for anything else."""
    if isinstance(value, Made) and value.name == "torch.Size" and isinstance(value.args, tuple):
        value = value.args[0] if value.args else ()
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMS:
        return None
    numbers = [number for number in value if type(number) is int and 0 <= number < MAX_NUMBER]
    return tuple(numbers) if len(numbers) == len(value) else None


def count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def flag(value: object) -> bool | None:
    return value if type(value) is bool else None


def numel(shape: tuple[int, ...]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product
