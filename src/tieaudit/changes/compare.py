"""This file holds how one tensor changed between the two sides, and whether that keeps what the model computes.

First bytes, then values (`relations.py`); what these do not explain is tried as what converters are known to do: rows of q and k in
rotary order (llama.cpp's converter), a norm stored plus one (its Gemma), a matrix turned (its GPT-2, ONNX, Flax, CTranslate2).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..bytewise import BEGIN, END, TensorBytes
from ..checkpoint import TensorRecord
from ..copies import deterministic
from ..difference import Change, TensorChange
from ..dtypes import DTYPES
from ..errors import FormatError
from ..kinds import QUANTISED_TWICE, Evidence, Kind, Relation, Verify, weakest
from ..names import Matrix
from ..relations import relate
from .converters import Conversion, steps
from .sides import Side, Unit, moved

EXACT = frozenset(("F64", "F32", "F16", "BF16"))  # dtypes whose casts are known to the last bit
LOSSLESS = {("F16", "F32"), ("BF16", "F32"), ("F16", "F64"), ("BF16", "F64"), ("F32", "F64")}
TURNERS = {  # formats whose matrices are (input, output)
    "onnx": "ONNX multiplies by a matrix of input × output",
    "openvino": "OpenVINO can multiply by a matrix of input × output",
    "flax": "Flax stores a kernel as input × output",
    "ctranslate2": "CTranslate2 stores its matrices in its own orientation",
}
MOST_DECODED = 1 << 20  # elements of a quantised matrix that are all looked at; each row of it is decoded by itself
# error of one row, of its length: one large value makes a row of eight bits lose up to a fifth; and what it is over that of the whole
BROKEN_ROW, OUTLIER = 0.5, 6.0
MAX_NUMBERS = 2_000  # tensors whose distance is measured
LOST = (Change.DRIFTED, Change.UNRELATED, Change.SCALED)


@dataclass(slots=True)
class Comparer:
    """Compares pairs of tensors of two sides. `family`: the architecture that a GGUF names, `converted` that one side alone
    is a GGUF, `heads`: numbers of attention heads that a config names."""

    before: Side
    after: Side
    data: TensorBytes
    verify: Verify
    measured: int = 0
    formats: set[str] = field(init=False)
    family: str = field(init=False)
    converted: bool = field(init=False)
    heads: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.formats = {self.before.format, self.after.format}
        self.family = next((file.architecture for side in (self.before, self.after) if side.edition for file in side.edition.files
                            if file.architecture), "")  # fmt: skip
        self.converted = "gguf" in self.formats and len(self.formats) > 1
        self.heads = tuple(value for side in (self.before, self.after) if side.config
                           for key in ("num_attention_heads", "num_key_value_heads", "n_head")
                           for value in (side.config.at(key), side.config.at(f"text_config.{key}")) if type(value) is int)  # fmt: skip

    def change(self, before: Unit, after: Unit, renamed: str) -> TensorChange:
        """What became of the tensor."""
        found = self._change(before, after, moved(before.matrix))
        shards = before.matrix.main.file != after.matrix.main.file and self.before.format == self.after.format
        return replace(found, renamed=renamed, moved=shards)

    def _change(self, before: Unit, after: Unit, ours: Matrix) -> TensorChange:
        a, b = ours, after.matrix
        made = TensorChange(before=before.stored, after=after.stored, kinds=(Change.NOT_COMPARED,), allowed=True)
        if self._same_file(before, after):
            return replace(made, kinds=(Change.EQUAL,), evidence=Evidence.PROVED)
        if not a.main.nbytes or not b.main.nbytes:
            if a.shape == b.shape and a.main.nbytes == b.main.nbytes:
                return replace(made, kinds=(Change.EQUAL,), evidence=Evidence.HEADER)
            empty = "before" if not a.main.nbytes else "after"
            return replace(made, kinds=(Change.UNRELATED,), allowed=False, reason=f"it has no elements {empty}", evidence=Evidence.HEADER)
        if self.verify is Verify.HEADERS:
            return replace(made, reason=_by_headers(a, b), evidence=Evidence.HEADER)
        held: list[TensorRecord] = []
        try:
            a, b = (self._readable(matrix, held) for matrix in (a, b))
            return self._values(a, b, before, after, made)
        except FormatError as error:
            return replace(made, allowed=False, reason=str(error).replace("before\0", ""), evidence=Evidence.HEADER)
        finally:
            if held:
                from .numbers import forget

                for tensor in held:
                    forget(self.data, tensor)

    def _same_file(self, before: Unit, after: Unit) -> bool:
        """Both lie at one place of a file that a server's listing knows by one SHA-256."""
        parts = list(zip(before.matrix.parts, after.matrix.parts, strict=False))
        return len(before.matrix.parts) == len(after.matrix.parts) and all(
            (digest := self.before.digests.get(a.file)) is not None
            and digest == self.after.digests.get(b.file)
            and (a.file_offset, a.nbytes, a.dtype, a.shape) == (b.file_offset, b.nbytes, b.dtype, b.shape)
            and a.file_offset is not None
            for a, b in parts
        )

    def free(self, before: Unit, after: Unit) -> bool:
        """True if the compare costs no request."""
        if self._same_file(before, after):
            return True
        parts = (*moved(before.matrix).parts, *after.matrix.parts)
        return all(self.data.held(part, BEGIN) and self.data.held(part, END) for part in parts)

    def _readable(self, matrix: Matrix, held: list[TensorRecord]) -> Matrix:
        """The matrix as rows that can be read: strided views are put in order, more than two dimensions are laid flat."""
        if matrix.packed:
            return matrix
        tensor = matrix.main
        if tensor.strides is not None and not self.data.remote:
            from .numbers import dense, in_memory

            ordered = dense(tensor, self.data)
            if ordered is not None:
                tensor = in_memory(tensor, ordered, tensor.shape, tensor.dtype, self.data)
                held.append(tensor)
        return replace(matrix, parts=(_flat(tensor),))

    def _values(self, a: Matrix, b: Matrix, before: Unit, after: Unit, made: TensorChange) -> TensorChange:
        if not a.packed and not b.packed:
            b = _reshaped(a, b)
        if a.leaves == b.leaves and len(a.parts) == len(b.parts):
            same = [self._same_bytes(mine, other) for mine, other in zip(a.parts, b.parts, strict=True)]
            if all(same):
                return replace(made, kinds=(Change.EQUAL,), evidence=weakest(evidence for evidence in same if evidence))
        relation = self._relation(a, b)
        if relation.kind in (Kind.EQUAL, Kind.SAME_STORAGE):
            return replace(made, kinds=(Change.EQUAL,), evidence=relation.evidence)
        found = self._allowed(relation, a, b, made) or self._resized(relation, a, b, made)
        if found is not None:
            return found
        if relation.kind is Kind.NOT_COMPARED and (a.packed or b.packed or relation.detail.startswith("quantised")):
            return replace(made, reason=relation.detail, evidence=Evidence.HEADER)
        explained = self._converted(a, b, before, after, made)
        if explained is not None:
            return explained
        if relation.kind is Kind.NOT_COMPARED and not relation.readable:
            return replace(made, allowed=False, reason=relation.detail.replace("before\0", ""), evidence=Evidence.HEADER)
        return self._changed(relation, a, b, made)

    def _same_bytes(self, a: TensorRecord, b: TensorRecord) -> Evidence | None:
        """None if they differ, or if only values can tell."""
        if (a.dtype, a.nbytes, a.shape) != (b.dtype, b.nbytes, b.shape):
            return None
        if not self.data.readable(a) or not self.data.readable(b):
            # compressed members of a zip: the directory's checksums over the same storage tell
            whole = (a.offset, a.strides, a.storage.nbytes) == (b.offset, b.strides, b.storage.nbytes)
            return Evidence.SAMPLED if whole and a.storage.crc is not None and a.storage.crc == b.storage.crc else None
        if not self.data.samples_equal(a, b):
            return None
        if self.verify is not Verify.FULL:
            return Evidence.SAMPLED
        return Evidence.PROVED if self.data.first_difference(a, b) is None else None

    def _relation(self, a: Matrix, b: Matrix) -> Relation:
        found = relate(a, b, self.data, self.verify)
        if found.kind is not Kind.CONSTANT:
            return found
        # bytes that are equal were seen before; one number against other ones is a change, in whatever dtype
        from .numbers import apart

        measured = apart(a, b, self.data, whole=self.verify is Verify.FULL) if not (a.packed or b.packed) else None
        if measured is not None and measured.finite and measured.max_difference == 0:
            evidence = Evidence.SAMPLED if measured.sampled else Evidence.PROVED
            return Relation(kind=Kind.CAST if a.form != b.form else Kind.EQUAL, evidence=evidence)
        return Relation(kind=Kind.UNRELATED, evidence=Evidence.SAMPLED, detail=found.detail)

    def _allowed(self, relation: Relation, a: Matrix, b: Matrix, made: TensorChange) -> TensorChange | None:
        """The changes that keep the values: cast, quantisation, and orientation where the format asks for it."""
        if relation.kind is Kind.CAST:
            return self._cast(relation, a, b, made)
        if relation.kind is Kind.NEAR and relation.detail.startswith(QUANTISED_TWICE):
            return self._quantised(a, b, made, relation.evidence)
        if relation.kind is Kind.TRANSPOSED and (a.form == b.form or self.data.remote or max(a.nbytes, b.nbytes) > MOST_HELD):
            why = self._turns()
            kinds = (Change.TRANSPOSED, *((Change.CAST,) if a.form != b.form else ()))
            reason = why or f"rows and columns are swapped, and {self.after.format} does not ask for that"
            return replace(made, kinds=kinds, allowed=bool(why), reason=reason, evidence=relation.evidence)
        return None

    def _cast(self, relation: Relation, a: Matrix, b: Matrix, made: TensorChange) -> TensorChange | None:
        """None if the two are only near: a cast gives each value exactly, and a little training moves them as little as rounding."""
        from .numbers import overflows, truncated

        wide = DTYPES[a.main.dtype].bits < DTYPES[b.main.dtype].bits
        if not wide and b.main.dtype in ("F16", "F8_E4M3", "F8_E5M2") and not self.data.remote:
            lost = overflows(a.main, b.main, self.data)
            if lost:
                reason = f"{lost:,} value{'s are' if lost > 1 else ' is'} too large for {b.form} and became infinite"
                return replace(made, kinds=(Change.DRIFTED, Change.CAST), allowed=False, reason=reason, evidence=relation.evidence)
        lossless = (a.main.dtype, b.main.dtype) in LOSSLESS
        how = "every value is kept" if lossless else f"each value is rounded to {b.form}"
        if relation.detail.endswith("up to rounding"):
            if {a.main.dtype, b.main.dtype} <= EXACT:
                if self.data.remote or not truncated(a.main, b.main, self.data):
                    return None
                how = f"each value is cut to {b.form if not wide else a.form}, not rounded"
            else:
                how = "equal up to rounding"
        return replace(made, kinds=(Change.CAST,), reason=f"{a.form} to {b.form}: {how}", evidence=relation.evidence)

    def _quantised(self, a: Matrix, b: Matrix, made: TensorChange, evidence: Evidence) -> TensorChange:
        from .numbers import apart

        few = a.shape and a.shape[0] * a.shape[-1] <= (MOST_DECODED if a.packed or b.packed else 4 * MOST_DECODED)
        measured = apart(a, b, self.data, whole=bool(few) and self.verify is Verify.FULL)
        words = f"{a.form} to {b.form}: within what quantisation explains"
        if measured is None:
            return replace(made, kinds=(Change.QUANTISED,), reason=words, evidence=evidence)
        evidence = evidence if measured.sampled else Evidence.PROVED
        if not measured.finite or measured.worst > max(BROKEN_ROW, OUTLIER * measured.relative):
            told = (
                f"row {measured.row:,} differs more than quantisation explains" if measured.finite else "numbers became none, or infinite"
            )
            return replace(made, kinds=(Change.DRIFTED, Change.QUANTISED), allowed=False, reason=f"{a.form} to {b.form}: {told}",
                           evidence=evidence, max_difference=measured.max_difference, relative_error=measured.relative,
                           cosine=measured.cosine)  # fmt: skip
        return replace(
            made,
            kinds=(Change.QUANTISED,),
            reason=f"{words} (relative error {100 * measured.relative:.2g} %)",
            evidence=evidence,
            max_difference=measured.max_difference,
            relative_error=measured.relative,
            cosine=measured.cosine,
        )

    def _turns(self) -> str:
        """Why a matrix may stand transposed on one side, "" if it may not."""
        turners = [TURNERS[name] for name in (self.before.format, self.after.format) if name in TURNERS]
        if turners:
            return turners[0]
        if self.converted:
            return "GGUF stores every matrix as output × input"
        return ""

    def _resized(self, relation: Relation, a: Matrix, b: Matrix, made: TensorChange) -> TensorChange | None:
        """The shorter side is the begin of the longer one, as it is or in another dtype."""
        if a.packed or b.packed or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1] or a.shape[0] == b.shape[0]:
            return None
        rows = min(a.shape[0], b.shape[0])
        kinds: tuple[Change, ...] = (Change.RESIZED,)
        evidence = relation.evidence
        if relation.kind is not Kind.PADDED:
            cut = (replace(a, parts=(_first_rows(a.main, rows),)), replace(b, parts=(_first_rows(b.main, rows),)))
            inner = self._relation(cut[0], cut[1])
            same = inner.kind is Kind.EQUAL or self._same_bytes(cut[0].main, cut[1].main) is not None
            allowed = None if same else self._allowed(inner, cut[0], cut[1], made)
            if not same and (allowed is None or not allowed.allowed or allowed.kind is Change.TRANSPOSED):
                return self._rows_changed(cut, a, b, made)
            kinds = (Change.RESIZED, *(allowed.kinds if allowed else ()))
            evidence = inner.evidence if not same or inner.kind is Kind.EQUAL else Evidence.SAMPLED
        end = made.before.role or made.after.role
        if b.shape[0] > rows:
            words = f"the first {rows:,} rows are kept, {b.shape[0] - rows:,} are new"
            return replace(made, kinds=kinds, reason=words, evidence=evidence, allowed=bool(end) or len(made.before.shape) == 1)
        gone = a.shape[0] - rows
        from .numbers import plain_rows

        padding = plain_rows(a.main, rows, self.data)
        words = f"the first {rows:,} rows are kept, {gone:,} are gone" + (": they were padding" if padding else "")
        return replace(made, kinds=kinds, reason=words, evidence=evidence, allowed=padding and bool(end))

    def _rows_changed(self, cut: tuple[Matrix, ...], a: Matrix, b: Matrix, made: TensorChange) -> TensorChange:
        changed = self._changed(self._relation(cut[0], cut[1]), cut[0], cut[1], made)
        words = f"{a.shape[0]:,} rows before and {b.shape[0]:,} after; of those that both have, {changed.reason}"
        return replace(changed, kinds=(changed.kind, Change.RESIZED), reason=words)

    def _converted(self, a: Matrix, b: Matrix, before: Unit, after: Unit, made: TensorChange) -> TensorChange | None:
        """The first of what converters do that explains it."""
        if a.packed or b.packed or self.data.remote or max(a.nbytes, b.nbytes) > MOST_HELD:
            return None
        for step in steps(a, b, before, after, self._conversion()):
            from .numbers import forget, in_memory

            tensor = in_memory((b if step.second else a).main, step.data, step.shape, step.dtype, self.data)
            try:
                copy = replace(b if step.second else a, parts=(_flat(tensor),))
                one, other = (a, copy) if step.second else (copy, b)
                same = self._same_bytes(one.main, other.main)
                found = replace(made, kinds=(), evidence=same) if same else self._allowed(self._relation(one, other), one, other, made)
                if found is not None and found.allowed and found.kinds[:1] != (Change.TRANSPOSED,):
                    also = f"; {found.reason}" if found.reason and step.kind is not Change.SHIFTED else ""
                    kinds = (step.kind, *found.kinds) if step.kind is not Change.SHIFTED else (step.kind,)
                    return replace(found, kinds=kinds, reason=step.reason + also)
            finally:
                forget(self.data, tensor)
        return None

    def _conversion(self) -> Conversion:
        return Conversion(
            data=self.data,
            converted=self.converted,
            from_gguf=self.before.format == "gguf",
            family=self.family,
            heads=self.heads,
            turns=self._turns(),
        )

    def _changed(self, relation: Relation, a: Matrix, b: Matrix, made: TensorChange) -> TensorChange:
        """The values are others: how far, and whether a known step leaves such a change."""
        if deterministic(made.after.name) or deterministic(made.before.name):
            return replace(made, kinds=(Change.DRIFTED,), reason="a table that a formula fixes, computed anew", evidence=relation.evidence)
        kind = (
            Change.SCALED
            if relation.kind is Kind.SCALED
            else Change.DRIFTED
            if relation.kind in (Kind.NEAR, Kind.PADDED)
            else Change.UNRELATED
        )
        made = replace(made, kinds=(kind,), allowed=False, reason=relation.detail.replace("before\0", ""), evidence=relation.evidence)
        if a.shape != b.shape:
            words = f"{_dims(a)} before, {_dims(b)} after"
            if (a.packed or b.packed) and a.shape[1:] == b.shape[1:]:
                words = f"a quantised matrix with another number of rows ({words})"
                return replace(made, kinds=(Change.NOT_COMPARED,), allowed=True, reason=words, evidence=Evidence.HEADER)
            return replace(made, kinds=(Change.UNRELATED,), reason=words)
        from .numbers import apart, rank_of_change, same_rows

        both = not (a.packed or b.packed)
        self.measured += 1
        if self.measured > MAX_NUMBERS or (both and not (_decodable(a) and _decodable(b))):
            return made
        whole = self.verify is Verify.FULL and both
        measured = apart(a, b, self.data, whole=whole)
        if measured is None:
            return made
        if not measured.finite:
            return replace(made, kinds=(Change.DRIFTED,), reason="numbers stand where there were none, or the other way round")
        made = replace(made, max_difference=measured.max_difference, relative_error=measured.relative, cosine=measured.cosine,
                       evidence=Evidence.SAMPLED if measured.sampled else Evidence.PROVED)  # fmt: skip
        words = f"largest difference {measured.max_difference:.3g}, cosine {_angle(measured.cosine)}"
        if kind is Change.SCALED:
            return replace(made, reason=f"{made.reason}; {words}")
        if both and whole and a.form == b.form and a.shape[0] > 1 and a.nbytes <= MOST_HELD and same_rows(a.main, b.main, self.data):
            return replace(made, kinds=(Change.PERMUTED,), reason="the same rows in another order")
        rank = None if self.data.remote else rank_of_change(a, b, self.data)
        kind = Change.DRIFTED if measured.cosine >= NEAR or rank is not None else Change.UNRELATED
        if rank is not None:
            words += f"; the change has rank {rank}, as a merged LoRA leaves"
        rows = (
            f"{relation.detail}; "
            if relation.kind in (Kind.NEAR, Kind.PADDED) and "row" in relation.detail[:24] and "every" not in relation.detail
            else ""
        )
        return replace(made, kinds=(kind,), reason=rows + words, rank=rank)


NEAR = 0.8  # cosine from which on a tensor has drifted; below it, it is another one
MOST_HELD = 1 << 28  # bytes


def _angle(cosine: float) -> str:
    return "over 0.9999" if cosine > 0.9999 else f"{cosine:.4f}"


def _dims(matrix: Matrix) -> str:
    return " × ".join(f"{dim:,}" for dim in matrix.shape) or "one number"


def _by_headers(a: Matrix, b: Matrix) -> str:
    if a.shape != b.shape or a.form != b.form:
        return f"{_dims(a)} {a.form} before, {_dims(b)} {b.form} after; only headers were read"
    return "only headers were read (--verify headers)"


def _decodable(matrix: Matrix) -> bool:
    from ..values import decodable

    return decodable(matrix.main.dtype)


def _flat(tensor: TensorRecord) -> TensorRecord:
    """As rows: what has more than two dimensions is one row per index of the first, what has fewer one row."""
    shape = tensor.shape
    if len(shape) == 2 or tensor.strides is not None or not tensor.numel:
        return tensor
    flat = (shape[0], tensor.numel // shape[0]) if len(shape) > 2 else (1, tensor.numel)
    return replace(tensor, shape=flat)


def _reshaped(a: Matrix, b: Matrix) -> Matrix:
    """`b` in the shape of `a` where only dimensions of one were added or taken."""
    ours, theirs = a.main, b.main
    real = [[dim for dim in tensor.shape if dim != 1] for tensor in (ours, theirs)]
    if ours.shape != theirs.shape and real[0] == real[1] and DTYPES[theirs.dtype].block == 1 and theirs.strides is None:
        return replace(b, parts=(replace(theirs, shape=ours.shape),))
    return b


def _first_rows(tensor: TensorRecord, rows: int) -> TensorRecord:
    return replace(tensor, shape=(rows, tensor.shape[1]), nbytes=tensor.nbytes // tensor.shape[0] * rows)
