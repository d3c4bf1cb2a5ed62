"""This file holds what is known of a model in memory, as data: names, identities, what was tried. No torch; rules look at this.

Gathered by `live/`, the only package that imports torch. Identities are small numbers given out in order, one per object that was seen
while references to all of them were held: a freed tensor's address comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sharing(StrEnum):
    """How closely two names share."""

    SAME_PARAMETER = "one Parameter"
    SAME_STORAGE = "one storage, two Parameters"
    EQUAL_VALUES = "equal values, two storages"
    APART = "different values"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveName:
    """A parameter or buffer under one of its names.

    `parameter` and `storage` number the objects (equal numbers: the same one); `storage` is None where there is none to tell (meta
    device, no elements). `data_ptr` is the address, 0 on the meta device. `offset` in elements from the storage's begin. `nbytes` are
    those of the view, `storage_nbytes` of the whole storage. `full` is the logical shape where the local part is a shard. `strides` in
    elements, None if row-major without gaps. `kind` is the class of a tensor that is more than a plain one (DTensor, Int8Tensor), "" else.
    `stored`: it is in the state dict. `adapter`: an adapter's own, no weight of the model that it stands on.
    """

    name: str
    parameter: int
    storage: int | None
    data_ptr: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    storage_nbytes: int
    trains: bool
    buffer: bool = False
    full: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    kind: str = ""
    stored: bool = True
    adapter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTie:
    """Names that should be one matrix, and what they are.

    `expected` says who asks for it, as a clause ("LlamaForCausalLM declares it", "an Embedding and a Linear of one shape", "the config
    ties them"); empty if nobody does and they only happen to share. `certain` is False where only shapes and values suggest it.
    `declared`: `save_pretrained` knows the alias. `probe`: whether a value that was written through the first name was seen through the
    others; None if it was not tried. `parts`: the names by Parameter, if there are several. `kept_apart` says who wants them to be
    separate, as a clause. `apart_by`: who took them apart knowingly (an adapter's copy, quantisation), as a clause. `sampled`: values
    were compared by samples.
    """

    names: tuple[str, ...]
    sharing: Sharing
    expected: str
    certain: bool = True
    declared: bool | None = None
    probe: bool | None = None
    detail: str = ""
    parts: tuple[tuple[str, ...], ...] = ()
    kept_apart: str = ""
    apart_by: str = ""
    sampled: bool = False

    @property
    def held(self) -> bool:
        """The tie holds in memory."""
        return self.sharing is Sharing.SAME_PARAMETER


class Trial(StrEnum):
    """What is tried on a model."""

    ROUND_TRIP = "round trip"
    LOGITS = "logits"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One trial. `held` is None if it could not be made; `words` say what was seen, as a clause, or why it was not tried."""

    trial: Trial
    held: bool | None
    words: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A parameter that an optimizer holds more than once: its names, the param groups (numbers) that it stands in. `two`: it is two
    Parameters over one memory, each held once."""

    names: tuple[str, ...]
    groups: tuple[int, ...]
    two: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """Parameters of one shape that an optimizer holds and the model does not. `untrained`: names of the model's parameters of this shape
    that need a gradient and stand in no param group."""

    shape: tuple[int, ...]
    count: int
    groups: tuple[int, ...]
    untrained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a loaded model says of two names that the static report speaks of. `held`: the claim is confirmed (True) or contradicted
    (False) in memory; None if nothing was claimed. `pointers` are both addresses, `on_meta` whether the class ties them before any
    file is read (None if it cannot be built so)."""

    names: tuple[str, str]
    held: bool | None
    words: str
    pointers: tuple[int, int]
    on_meta: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """One model in memory. `moment` says when it was looked at ("loaded by transformers 5.24.0", "before the save"). `resident` are bytes
    of the process before and after loading, None if nothing was loaded. `won` says, for a tie of which the file holds several
    matrices, which of them is in memory {name in memory: clause}; `answers` what became of the claims. `missing` and `unexpected` names
    are those that the load reported; `absent` are names that ties ask for and that are not there, with the reason."""

    model: str
    moment: str
    names: tuple[LiveName, ...]
    ties: tuple[LiveTie, ...] = ()
    tried: tuple[Tried, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    strays: tuple[Stray, ...] = ()
    resident: tuple[int, int] | None = None
    won: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()

    @property
    def counted(self) -> int:
        """Parameters if every name is counted."""
        return sum(_numel(name) for name in self.names if not name.buffer)

    @property
    def unique(self) -> int:
        """Parameters if every storage is counted once; tied ones count once."""
        return sum({(name.parameter if name.storage is None else -1 - name.storage, name.offset, name.shape): _numel(name)
                    for name in self.names if not name.buffer}.values())  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters and buffers, each view of memory once."""
        return sum({(name.parameter if name.storage is None else -1 - name.storage, name.offset, name.shape): name.nbytes
                    for name in self.names}.values())  # fmt: skip


def _numel(name: LiveName) -> int:
    count = 1
    for dim in name.full or name.shape:
        count *= dim
    return count
