"""Folders: which files together are one edition of the weights.

`model.safetensors.index.json` = `{"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}`, written by
`save_pretrained` (transformers/modeling_utils.py); the order of preference among editions is that of its `from_pretrained`.
"""

from __future__ import annotations

import codecs
import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..checkpoint import Checkpoint, Edition, LoadedFile, Problem, ShardIndex
from ..errors import FormatError, ReadError, UnknownFormat
from ..sources import Entry, Folder
from . import ahead, sniff, training

MAX_JSON = 64 << 20  # bytes; the index of 100,000 tensors has 10 MB
INDEX = re.compile(r"\.index(\.\w+)?\.json$")  # a variant's word stands in the middle: model.safetensors.index.fp16.json
SHARD = re.compile(r"^(?P<stem>.+?)[-_.](?P<number>\d{4,6})-of-(?P<count>\d{4,6})(?P<tail>\.[a-z]+)$")
NUMBERED = re.compile(r"^(?P<stem>weights)\.\d{1,3}\.npz$")  # shards that MLX's first examples wrote; none says how many there are
# files of a training run that are read for what they are, never judged as the model
TRAINING = re.compile(
    r"^(optimizer|scheduler|scaler|training_args|rng_state|random_states|trainer_state|dcgan_optim)\b.*|.*_optim_states\.pt$"
)
ADAPTER = re.compile(r"^adapter_(model|weights)\b")
# other editions of the same weights beside the one that an index describes: never shards that the index forgot
EDITION = re.compile(
    r"^(model|pytorch_model|diffusion_pytorch_model|consolidated|open_clip_\w+|adapter_model|flax_model)"
    r"(\.(fp16|fp32|bf16|ema|non_ema|int8|\d\d))*\.\w+$|^consolidated\b.*|^(model|pytorch_model|diffusion_pytorch_model)\.\w+-\d+-of-\d+\.\w+$"
)
# names that promise weights: there another kind of file is a fault; any other `.bin` may be a vocabulary
WEIGHTS = re.compile(r"^(model|pytorch_model|diffusion_pytorch_model|consolidated|adapter_model)\b|.*\.(safetensors|gguf|onnx)$")
MAX_REMOTE_GGUF = 2  # models of one repository; many hold ten or more quantisations of one
OWNERS = (".onnx", ".xml")  # read first: files beside them may be theirs
OTHER_SUFFIXES = (".h5", ".tflite")
MAX_SHARDS = 100_000  # that are looked for by name; a name can say -of-999999
PREFERENCE = (  # transformers/modeling_utils.py, _get_resolved_checkpoint_files
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class _Reader:
    """Reads each file once; a file that cannot be read is noted and the rest goes on."""

    folder: Folder
    progress: Progress
    total: int = 0
    done: int = 0
    unreadable: list[Problem] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    other: list[tuple[str, str]] = field(default_factory=list)

    def read(self, names: Iterable[str], *, promised: bool = False) -> tuple[LoadedFile, ...]:
        """`promised`: an index says that these are weights, so another kind of file is a fault."""
        read = []
        for name in names:
            self.done += 1
            self.progress(name, self.done, self.total)
            try:
                read.append(sniff.load(self.folder.open(name), self.folder))
            except ReadError as error:
                self.unread.append((name, error.what))
            except UnknownFormat as error:
                if promised or WEIGHTS.match(name) or SHARD.match(name):
                    self.unreadable.append(Problem(file=name, what=error.what, offset=error.offset))
                else:
                    self.other.append((name, error.what))
            except FormatError as error:
                self.unreadable.append(Problem(file=name, what=error.what, offset=error.offset))
        return tuple(read)

    def index(self, name: str) -> ShardIndex | None:
        """The index; None if it cannot be read (its shards are then grouped by their names)."""
        try:
            return _index(name, read_json(self.folder, name))
        except ReadError as error:
            self.unread.append((name, error.what))
            return None
        except FormatError as error:
            self.unreadable.append(Problem(file=name, what=error.what, offset=error.offset))
            return None


def _never(*_: object) -> None:
    return None


def load(folder: Folder, target: str, only: str | None = None, progress: Progress = _never, beside: Iterable[str] = ()) -> Checkpoint:
    """Everything in the folder, or only the file (or index) `only` of it. `beside`: other files that will be read later."""
    entries = folder.entries() if only is None else [folder.entry(only)]
    runs = training.editions(folder, entries) if only in (None, training.METADATA) else training.Found(folder)
    entries = [entry for entry in entries if entry.name not in runs.taken]
    known = {entry.name for entry in entries}
    weights = [entry for entry in entries if _candidate(entry, only) and (only is not None or _worth_opening(entry.name, known, folder))]
    left = _further_ggufs(weights) if folder.remote else {}
    weights = [entry for entry in weights if entry.name not in left]
    names = [entry.name for entry in weights]
    listed = [entry for entry in entries if INDEX.search(entry.name) and (only is not None or not _between_weights(entry.name, folder))]
    if folder.remote:
        ahead.fetch(folder, weights, listed, beside)
    reader = _Reader(folder, progress, len(names))
    editions: list[Edition] = list(runs.editions)
    indexes = [index for entry in listed if (index := reader.index(entry.name))]
    taken = {file for index in indexes for file in index.weight_map.values()}
    for index in indexes:
        editions.append(_indexed(reader, index, [name for name in names if name not in taken]))
        taken.update(file.name for file in editions[-1].strays)
    for stem, group in _groups(sorted((name for name in names if name not in taken), key=_owned)).items():
        if not taken.issuperset(group):
            editions.append(_plain(reader, stem, group, alone=only is not None))
            taken.update(name for file in editions[-1].files for name, _ in file.data)
    editions = [edition for edition in editions if edition.files or edition.strays or edition.missing or edition.index]
    editions.sort(key=_rank)
    return Checkpoint(
        target=target,
        editions=tuple(editions),
        unreadable=(*runs.unreadable, *reader.unreadable),
        unread=(*runs.unread, *reader.unread),
        elsewhere=(*runs.notes, *reader.other, *left.items(), *(_elsewhere(folder, entries, runs.folders) if only is None else ())),
    )


def read_json(folder: Folder, name: str, limit: int = MAX_JSON) -> object:
    """The parsed file. FormatError if it is too large, not UTF-8 or not JSON."""
    source = folder.open(name)
    if source.nbytes > limit:
        raise FormatError(name, f"is {source.nbytes:,} bytes long; at most {limit:,} are read of such a file")
    raw = source.read(0, source.nbytes).removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise FormatError(name, "is not UTF-8", error.start + source.nbytes - len(raw)) from None
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode()) + source.nbytes - len(raw)
        raise FormatError(name, f"is not JSON: {error.msg}", at) from None
    except (ValueError, RecursionError):
        raise FormatError(name, "is not JSON: a number too long or nested too deeply") from None


def _owned(name: str) -> bool:
    """Sorts files that may own others before those that may be owned."""
    return not name.endswith(OWNERS)


def _candidate(entry: Entry, only: str | None) -> bool:
    if INDEX.search(entry.name):
        return False
    # "._model.safetensors": attributes that a Mac writes beside the file into every archive
    return only is not None or (entry.name.endswith(sniff.SUFFIXES) and not entry.name.startswith("._"))


def _worth_opening(name: str, known: Collection[str], folder: Folder) -> bool:
    """False for XML of other kinds, and for files whose headers lie between the weights and would cost a request each."""
    if name.endswith(".xml"):
        return name.removesuffix(".xml") + ".bin" in known or posixpath.basename(name).startswith("openvino_")
    return not _between_weights(name, folder)


def _further_ggufs(entries: Iterable[Entry]) -> dict[str, str]:
    """{name: why it is left out} of the GGUF models of a repository beyond the first: each header holds the vocabulary again."""
    groups = list(_groups(entry.name for entry in entries if entry.name.endswith(".gguf")).values())
    why = f"the header of a GGUF has some MB, so only the first {MAX_REMOTE_GGUF} models are read: audit it by its name"
    return {name: why for group in groups[MAX_REMOTE_GGUF:] for name in group}


def _between_weights(name: str, folder: Folder) -> bool:
    return folder.remote and re.search(r"\.msgpack(\.index\.json)?$", name) is not None


def _indexed(reader: _Reader, index: ShardIndex, others: Sequence[str]) -> Edition:
    """The edition that an index describes. `others` are files that no index names."""
    name = index.file
    shards = sorted(set(index.weight_map.values()))
    present = [shard for shard in shards if reader.folder.exists(shard)]
    suffix = "." + (shards[0].rsplit(".", 1)[-1] if shards else "safetensors")
    strays = [other for other in others if other.endswith(suffix) and not TRAINING.match(other) and not EDITION.match(other)]
    files = reader.read(present, promised=True)
    return Edition(
        name=INDEX.sub(r"\1", name),
        format=files[0].format if files else "safetensors" if suffix == ".safetensors" else "torch",
        kind="adapter" if ADAPTER.match(name) else "weights",
        files=files,
        index=index,
        strays=reader.read(strays),
        missing=tuple(shard for shard in shards if shard not in present),
        whole=len(files) == len(shards) and not any(file.problems or file.unread for file in files),
    )


def _index(name: str, content: object) -> ShardIndex:
    """Checked for shape only. FormatError if it is not a map of tensor names to file names."""
    if not isinstance(content, dict):
        raise FormatError(name, "is not a JSON object")
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FormatError(name, "has no weight_map of tensor names to file names")
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if name.endswith(".msgpack.index.json"):
        # Flax's own names are paths: model/embed_tokens/embedding
        weight_map = {tensor.replace("/", "."): file for tensor, file in weight_map.items()}
    # float: written so by some converters
    return ShardIndex(
        file=name,
        # "./a" and "a" are one file
        weight_map={
            tensor: posixpath.normpath(file) if file.startswith("./") or "//" in file else file for tensor, file in weight_map.items()
        },
        total_size=int(total) if type(total) is int or (type(total) is float and total.is_integer()) else None,
    )


def _groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Shards without an index go together, everything else stands alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        shard = SHARD.match(name)
        part = NUMBERED.match(name)
        key = f"{shard['stem']}{shard['tail']} in {int(shard['count'])} shards" if shard else part["stem"] + ".npz" if part else name
        groups.setdefault(key, []).append(name)
    return groups


def _plain(reader: _Reader, name: str, group: list[str], *, alone: bool) -> Edition:
    files = reader.read(group)
    if len(files) > 1 and files[0].format == "gguf":
        from . import gguf

        files = gguf.joined(files)
    kind = "training" if TRAINING.match(name) else "adapter" if ADAPTER.match(name) else "weights"
    missing: tuple[str, ...] = ()
    shard = SHARD.match(group[0])
    if shard and not alone:
        width, count = len(shard["number"]), int(shard["count"])
        first = 0 if any(int(match["number"]) == 0 for match in map(SHARD.match, group) if match) else 1
        numbers = {int(match["number"]) for match in map(SHARD.match, group) if match}
        missing = tuple(
            f"{shard['stem']}-{number:0{width}d}-of-{shard['count']}{shard['tail']}"
            for number in range(first, min(count, MAX_SHARDS) + first)
            if number not in numbers
        )
        if count > MAX_SHARDS:
            missing = (*missing, f"and {count - MAX_SHARDS:,} behind them")
    return Edition(
        name=name,
        format=files[0].format if files else "",
        kind=kind,
        files=files,
        missing=missing,
        whole=len(files) == len(group)
        and not missing
        and not (shard and alone and int(shard["count"]) > 1)
        and not NUMBERED.match(group[0])
        and not any(file.problems or file.unread for file in files),
    )


def _rank(edition: Edition) -> tuple[int, int, str]:
    name = edition.index.file if edition.index else edition.name
    place = PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE)
    return (0 if edition.kind == "weights" else 1, place, name)


def _elsewhere(folder: Folder, entries: Sequence[Entry], read: Collection[str]) -> Iterable[tuple[str, str]]:
    """Weights that are seen and not opened: other formats, and sub-folders (`original/`, parts), each a target of its own."""
    for entry in entries:
        if entry.name.endswith(OTHER_SUFFIXES):
            yield (entry.name, f"{entry.name.rsplit('.', 1)[-1]} files are not read by this version")
        elif _between_weights(entry.name, folder) and not entry.name.endswith(".json"):
            yield (entry.name, "its headers lie between the weights, a request each: audit it by its own name, or a local copy")
    known = {entry.sha256 for entry in entries} - {""}
    for sub in (sub for sub in folder.subfolders() if sub not in read):
        inside = [entry for entry in folder.inside(sub) if entry.name.endswith((*sniff.SUFFIXES, *OTHER_SUFFIXES, training.SUFFIX))]
        beside = {entry.name for entry in inside}
        inside = [entry for entry in inside if not entry.name.endswith(".xml") or _worth_opening(entry.name, beside, folder)]
        if inside:
            words = f"a folder of its own with {len(inside)} file{'s' * (len(inside) > 1)} of weights: audit it by its path"
            again = sum(entry.sha256 in known for entry in inside)
            # what a repository's listing tells for nothing
            yield (sub + "/", words + (f"; {again} of them {'is' if again == 1 else 'are'} here too, by SHA-256" if again else ""))
