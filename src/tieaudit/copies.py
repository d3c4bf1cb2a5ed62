"""This file holds how equal tensors are found among all that are stored, without reading most of any.

Only tensors of one byte length can be equal; one 4 KiB page of each splits the groups, two more confirm, and only then a whole
compare proves. Constants (norms of one, zero biases) repeat by nature and are set apart, as are tensors that a formula fixes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice

from .budget import affordable
from .bytewise import END, MIDDLE, TensorBytes, crcs_differ, element, one_word
from .checkpoint import TensorRecord
from .dtypes import DTYPES
from .errors import FormatError
from .kinds import Evidence, Verify

# computed from the config by every implementation, so equal in every layer and in every model
DETERMINISTIC = re.compile(
    r"(?:^|[._])(?:A_logs?|inv_freq\w*|original_inv_freq|rotary_emb\.\w+|cos_cached|sin_cached|freqs_cis|position_ids|token_type_ids|"
    r"\w*position\w*\.(?:weights|pe|position_encoding)|pe|relative_position_index|rel_pos_idx|relative_coords_table|attn_mask|causal_mask|"
    r"masked_bias|attn\.bias|attention\.bias|mask|window|mel_filters?|fbank|num_batches_tracked|anchor\w*|alibi\w*|slopes|"
    r"quant_map|nested_quant_map|qzeros|_?weight_zero_point|final_logits_bias|dt_bias|conv_kernel|sinusoid\w*|embed_positions\.weights?)$"
)


LEFT_OUT = "each look is a request; --verify full makes more of them"


@lru_cache(maxsize=4096)
def _fixed(tail: str) -> bool:
    return DETERMINISTIC.search(tail) is not None


def deterministic(name: str) -> bool:
    """True if a formula fixes the values. The last two parts of the name decide, and they repeat in every layer."""
    return _fixed(".".join(name.rsplit(".", 2)[-2:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Tensors with the same bytes, in file order; `evidence` is the weakest of the group."""

    tensors: tuple[TensorRecord, ...]
    evidence: Evidence


@dataclass(slots=True, kw_only=True)
class Scan:
    """What the search found: groups of copies, constants of two and more dimensions, what could not be compared, and (subject, reason)
    what was not looked at because every look is a request."""

    copies: list[Copies] = field(default_factory=list)
    constants: list[TensorRecord] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    pale: int = 0
    """Remote tensors whose only page is one number."""


def scan(
    tensors: Iterable[TensorRecord],
    data: TensorBytes,
    verify: Verify,
    min_nbytes: int,
    step: Callable[[int, int], None] = lambda *_: None,
) -> Scan:
    """Search the tensors of one edition. Views of one storage count once."""
    found = Scan()
    groups: dict[int, list[TensorRecord]] = {}
    storages: set[tuple[str, str, int, int]] = set()
    for tensor in tensors:
        if tensor.nbytes < min_nbytes or len(tensor.shape) < 2 or deterministic(tensor.name):
            continue
        place = (tensor.storage.file, tensor.storage.ident, tensor.offset, tensor.nbytes)
        if place in storages or not data.readable(tensor):
            continue
        storages.add(place)
        groups.setdefault(tensor.nbytes, []).append(tensor)
    chosen: Iterable[list[TensorRecord]] = groups.values()
    if data.remote and verify is not Verify.HEADERS:
        chosen, left = affordable(groups.values(), data)
        if left:
            found.left.append((f"{left:,} of {sum(map(len, groups.values())):,} matrices with each other", LEFT_OUT))
    total, done = sum(map(len, groups.values())), 0
    for group in chosen:
        done += len(group)
        step(done, total)
        if verify is not Verify.HEADERS:
            _split(group, data, verify, found)
    if found.pale:
        found.left.append((f"{found.pale:,} matrices that begin with one number", LEFT_OUT))
    return found


def _split(group: list[TensorRecord], data: TensorBytes, verify: Verify, found: Scan) -> None:
    if len(group) == 1 and min(group[0].shape) > 1:
        # alone in its size: no copy is possible, only whether it is all one number is worth a page
        _sampled(group[0], data, found)
        return
    pages: dict[int, list[TensorRecord]] = {}
    for tensor in group:
        page = _sampled(tensor, data, found)
        if page is not None:
            # the hash alone: 70,000 pages are 280 MB, and what it takes for equal is compared again
            pages.setdefault(hash(page), []).append(tensor)
    for candidates in pages.values():
        if len(candidates) > 1:
            found.copies.extend(_classes(candidates, data, verify, found))


def _sampled(tensor: TensorRecord, data: TensorBytes, found: Scan) -> bytes | None:
    """A page of the tensor; None if it is a constant or cannot be read."""
    try:
        page = data.sample(tensor, data.telling)
        if one_word(page, page[: element(tensor)]):
            if data.remote and not (data.held(tensor, MIDDLE) and data.held(tensor, END)):
                found.pale += 1  # this page tells it from no other, and each further one is a request
                return None
            if not data.is_constant(tensor, whole=False):
                return page
            if min(tensor.shape) > 1:
                found.constants.append(tensor)
            return None
    except FormatError as error:
        found.unread.append((tensor.name, str(error)))
        return None
    return page


def _classes(candidates: list[TensorRecord], data: TensorBytes, verify: Verify, found: Scan) -> list[Copies]:
    """Compare each tensor with one representative per class."""
    classes: list[list[TensorRecord]] = []
    for tensor in candidates:
        for members in classes:
            try:
                if _equal(members[0], tensor, data, verify):
                    members.append(tensor)
                    break
            except FormatError as error:
                found.unread.append((tensor.name, str(error)))
                break
        else:
            classes.append([tensor])
    evidence = Evidence.PROVED if verify is Verify.FULL else Evidence.SAMPLED
    return [Copies(tensors=tuple(members), evidence=evidence) for members in classes if len(members) > 1]


def _equal(a: TensorRecord, b: TensorRecord, data: TensorBytes, verify: Verify) -> bool:
    if crcs_differ(a, b) or not data.samples_equal(a, b):
        return False
    return verify is not Verify.FULL or data.first_difference(a, b) is None


MAX_PAIRS = 64  # comparisons by value that are worth their reads
_NUMBER = re.compile(r"\d+")


def candidates(
    tensors: Iterable[TensorRecord], ends: Iterable[TensorRecord], data: TensorBytes, min_nbytes: int
) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """Pairs that may be one tensor in two forms: an end of the model and a matrix of the swapped shape, or two tensors of one
    shape, one layer and the same last name parts in different dtypes. At most MAX_PAIRS."""
    matrices = [tensor for tensor in tensors if len(tensor.shape) == 2 and tensor.nbytes >= max(1, min_nbytes) and data.readable(tensor)]
    ends = [tensor for tensor in ends if len(tensor.shape) == 2]
    names = {tensor.name for tensor in ends}
    swapped = (
        (end, tensor)
        for end in ends[:1]
        for tensor in matrices
        if tensor.shape == end.shape[::-1] and tensor.shape != end.shape and tensor.name not in names
    )
    groups: dict[object, list[TensorRecord]] = {}
    dtypes: dict[tuple[int, ...], set[str]] = {}
    for tensor in matrices:
        dtypes.setdefault(tensor.shape, set()).add(tensor.dtype)
    mixed = {shape for shape, found in dtypes.items() if len(found) > 1}
    if mixed:
        for tensor in matrices:
            if tensor.shape in mixed and DTYPES[tensor.dtype].kind == "float" and tensor.name not in names:
                key = (tensor.shape, tuple(_NUMBER.findall(tensor.name)), tuple(tensor.name.split(".")[-2:]))
                groups.setdefault(key, []).append(tensor)
    recast = (
        (group[0], tensor)
        for group in groups.values()
        for tensor in group[1:]
        if tensor.dtype != group[0].dtype and not deterministic(tensor.name)
    )
    return islice(chain(swapped, recast), MAX_PAIRS)
