"""This file holds what a loaded model says to the static report: what became of each claim, and which stored matrix each name holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
import transformers
from torch import Tensor

from ..alive import Answer, LiveName, LiveTie, Sharing
from ..bytewise import TensorBytes
from ..checkpoint import TensorRecord
from ..claim import FLAG, Alias
from ..config import Config
from ..errors import FormatError
from ..inspectors.rule import EditionCase, Pair
from ..kinds import Kind
from ..values import decodable, decode
from .compare import comparable
from .passes import Ends

READER = f"transformers {transformers.__version__}"
MAJOR = int(transformers.__version__.partition(".")[0])
ROWS = 4096  # looked at once: a mask of a whole matrix takes half its memory
PROBED = 3  # pages of a matrix that say which stored one is in memory
_TWO = {
    Sharing.SAME_PARAMETER: "one Parameter",
    Sharing.SAME_STORAGE: "two Parameters over one memory",
    Sharing.EQUAL_VALUES: "two Parameters with equal values",
    Sharing.APART: "two Parameters with different values",
}
_DIFFERENT = (Kind.UNRELATED, Kind.NEAR, Kind.SCALED, Kind.PADDED, Kind.CAST)


def claimed(alias: Alias | Pair) -> bool | None:
    """What the config asks of the release that loaded the model."""
    return alias.tied if MAJOR >= 5 else alias.tied_v4


def won(edition: EditionCase, tensors: Mapping[str, Tensor], data: TensorBytes) -> Iterator[tuple[str, str]]:
    """Of ties of which the file holds several matrices: which stored one each name has in memory."""
    for state in edition.ties:
        pairs = [pair for pair in state.pairs if pair.relation.kind in _DIFFERENT and (pair.tied or pair.tied_v4)]
        stored = list(dict.fromkeys(matrix.main for pair in pairs for matrix in (pair.first, pair.second)))
        for record in stored:
            name = in_memory(record.name, edition, tensors)
            if name is None or not _readable(tensors[name], record, data):
                continue
            holding = [other.name for other in stored if _is(tensors[name], other, data)]
            if record.name in holding:
                yield name, "is the stored matrix of its name"
            elif holding:
                yield name, f"is the stored {holding[0]}; the stored {record.name} is not in memory"
            else:
                yield name, "is none of the stored matrices"


def in_memory(name: str, edition: EditionCase, known: Iterable[str]) -> str | None:
    """The name in memory of a stored one: transformers renames on loading, and adds or drops a base model's prefix."""
    names = set(known)
    tried = [name, *edition.claim.other_names.get(name, ())]
    tried += [own for own, others in edition.claim.other_names.items() if name in others]
    exact = next((one for one in tried if one in names), None)
    if exact is not None:
        return exact
    behind = [one for one in names if any(one.endswith("." + other) or other.endswith("." + one) for other in tried)]
    return behind[0] if len(behind) == 1 else None


def _readable(tensor: Tensor, record: TensorRecord, data: TensorBytes) -> bool:
    same = tuple(tensor.shape) == record.shape and tensor.is_floating_point()
    return same and comparable(tensor) and data.readable(record) and decodable(record.dtype)


def _is(tensor: Tensor, record: TensorRecord, data: TensorBytes) -> bool:
    """The tensor in memory is the stored one, by pages, after the cast that the load made."""
    if not _readable(tensor, record, data):
        return False
    flat = tensor.detach().reshape(-1)
    item, count = record.nbytes // record.numel, min(record.numel, 1024)
    try:
        for page in range(PROBED):
            start = (record.numel - count) * page // (PROBED - 1)
            values = torch.from_numpy(decode(data.read(record, start * item, count * item), record.dtype).copy())
            # NaN is what it was
            if not torch.allclose(values.to(flat.dtype), flat[start : start + count].cpu(), rtol=0, atol=0, equal_nan=True):
                return False
    except FormatError:
        return False
    return True


def answers(
    edition: EditionCase, names: Mapping[str, LiveName], ties: Iterable[LiveTie], tensors: Mapping[str, Tensor], declared: Mapping[str, int]
) -> Iterator[Answer]:
    """What became in memory of each tie that the static report claims. `declared`: {name: number of its Parameter} before any file was
    read."""
    seen = tuple(ties)
    for state in edition.ties:
        canonical = in_memory(state.group.canonical, edition, names)
        pairs = {in_memory(side.name, edition, names): pair for pair in state.pairs[::-1] for side in (pair.first, pair.second)}
        for alias in state.group.aliases:
            name = in_memory(alias.name, edition, names)
            if canonical is None or name is None or canonical == name:
                continue
            sharing = _sharing(names[canonical], names[name], seen)
            held, words = _verdict(claimed(alias), sharing, pairs.get(name), tensors[canonical])
            yield _answer(names[canonical], names[name], held, words, declared)


def ends_by_flag(
    edition: EditionCase,
    config: Config | None,
    names: Mapping[str, LiveName],
    ties: Iterable[LiveTie],
    told: Iterable[Answer],
    ends: Ends | None,
    declared: Mapping[str, int],
) -> Iterator[Answer]:
    """Of a class that the catalog does not know the file may hold one end: only the model in memory has both."""
    if ends is None or edition.claim.exact or not all(name in names for name in ends.names):
        return
    if any(set(ends.names) <= set(answer.names) for answer in told):
        return
    flag = config.at(FLAG) if config is not None else None
    first, second = (names[name] for name in ends.names)
    sharing = _sharing(first, second, tuple(ties))
    held, words = _verdict(flag if isinstance(flag, bool) else None, sharing, None, ends.embedding.weight)
    yield _answer(first, second, held, words, declared)


def _answer(first: LiveName, second: LiveName, held: bool | None, words: str, declared: Mapping[str, int]) -> Answer:
    built = declared.get(first.name), declared.get(second.name)
    return Answer(
        names=(first.name, second.name),
        held=held,
        words=words,
        pointers=(first.data_ptr, second.data_ptr),
        on_meta=None if None in built else built[0] == built[1],
    )


def built_tied(model: str, ties: Iterable[LiveTie], told: Iterable[Answer]) -> Iterator[LiveTie]:
    """The ties; those of names that the class makes one Parameter as it is built (`head.weight = embedding.weight` in `__init__`, without a
    word to transformers) and that loading has parted are expected ones."""
    parted = [set(answer.names) for answer in told if answer.on_meta and answer.held is False]
    for tie in ties:
        if tie.expected or set(tie.names) not in parted or tie.sharing in (Sharing.SAME_PARAMETER, Sharing.SAME_STORAGE):
            yield tie
        else:
            asked = f"{model} makes them one as it is built, and loading has parted them"
            yield replace(tie, expected=asked, certain=tie.sharing is Sharing.APART, kept_apart="")


def _sharing(first: LiveName, second: LiveName, ties: tuple[LiveTie, ...]) -> Sharing:
    if first.parameter == second.parameter:
        return Sharing.SAME_PARAMETER
    if first.storage is not None and (first.storage, first.offset) == (second.storage, second.offset):
        return Sharing.SAME_STORAGE
    told = next((tie.sharing for tie in ties if {first.name, second.name} <= set(tie.names)), Sharing.NOT_COMPARED)
    # of a tie of three names the worst counts, which may be another pair's
    return Sharing.NOT_COMPARED if told in (Sharing.SAME_PARAMETER, Sharing.SAME_STORAGE) else told


def _verdict(tied: bool | None, sharing: Sharing, pair: Pair | None, tensor: Tensor) -> tuple[bool | None, str]:
    """(the claim is confirmed, what was seen)."""
    words = _TWO.get(sharing, "two Parameters") + (", without values: nothing was loaded into them" if tensor.is_meta else "")
    one = sharing is Sharing.SAME_PARAMETER
    if tied is None:
        return None, f"{words}; the config says neither that they are one nor that they are two"
    if one == tied and sharing is not Sharing.SAME_STORAGE:
        return True, words
    if not tied:
        return False, f"{words}, though the claim keeps them apart"
    if pair and pair.relation.kind in _DIFFERENT and False in (pair.tied, pair.tied_v4):
        return True, f"{words}, as the file holds them"  # the flag does decide for one of the releases (T5 v1.1)
    if pair and pair.relation.kind in _DIFFERENT:
        return False, f"{words}: the file holds different matrices, and {READER} keeps them apart"
    if sharing is Sharing.EQUAL_VALUES and comparable(tensor) and any(part.isnan().any() for part in torch.split(tensor.detach(), ROWS)):
        return False, f"{words}: there is NaN in them, which {READER} takes for a difference"
    return False, f"{words}, though the claim ties them"
