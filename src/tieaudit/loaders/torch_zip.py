"""This file holds the loader of torch's zip format: .bin, .pt, .pth, .ckpt since torch 1.6, and TorchScript archives.

`NAME/data.pkl` is the pickle of the object, `NAME/data/KEY` the bytes of one storage, stored as they are and aligned to 64;
`NAME/byteorder` is "little" or "big", absent before torch 2.1 (torch/serialization.py, `_save`). A TorchScript archive has
`NAME/constants.pkl` and `NAME/constants/KEY` too, and its code as text. Two tensors share memory when their pickled storage has the
same key. The CRC-32 of each storage stands in the zip directory: two storages with different ones differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..checkpoint import LoadedFile, Problem, Storage
from ..errors import FormatError, ReadError, UnknownFormat
from ..sources import Source
from .pickle_machine import MAX_INPUT
from .pickle_reader import PickleReader
from .torch_file import BIG_ENDIAN_NOTE, TorchFile
from .torch_tensors import StorageRef, storage_ref
from .zip_directory import DEFLATED, ENCRYPTED, MAGIC, STORED, Directory, Member, read_directory, repeated_names
from .zip_members import Layout, ZipMembers, lay_out

FORMAT = "torch-zip"
FORMAT_TORCHSCRIPT = "torchscript"
DATA, CONSTANTS = "data.pkl", "constants.pkl"
MAX_BYTEORDER = 64  # bytes


def sniff(head: bytes) -> bool:
    """True for any zip file; `load` says which kind it is if it is not torch's."""
    return head.startswith(MAGIC)


def load(source: Source, see: Callable[[object], None] | None = None) -> LoadedFile:
    """Read directory and pickles; no storage is read. FormatError if it is no torch file or cannot be followed at all.

    `see` is shown the unpickled root, of which only the tensors are kept."""
    directory = read_directory(source)
    root = _root(source.name, directory)
    members = {member.name.removeprefix(root): member for member in directory.members if member.name.startswith(root)}
    found = TorchFile(source.name)
    found.problems.extend(repeated_names(source.name, directory.members))
    torchscript = CONSTANTS in members
    try:
        _read_members(ZipMembers(source, directory), members, found, see, torchscript=torchscript)
    except FormatError as error:
        found.give_up(error)
    return found.loaded(source, FORMAT_TORCHSCRIPT if torchscript else FORMAT)


def _read_members(
    archive: ZipMembers, members: dict[str, Member], found: TorchFile, see: Callable[[object], None] | None, *, torchscript: bool
) -> None:
    pickles = [
        (folder, *_unpickle(archive, members[name], found, torchscript=torchscript))
        for name, folder in ((DATA, "data/"), (CONSTANTS, "constants/"))
        if name in members
    ]
    if see and pickles:
        see(pickles[0][1])
    _byteorder(archive, members, found)
    layout = lay_out(archive)
    found.problems.extend(layout.problems)
    found.dead.extend(layout.dead)
    storages = {
        name: _storage(found.file, name, member, layout) for name, member in members.items() if name.startswith(("data/", "constants/"))
    }
    found.storages.extend(storages.values())
    for folder, root, refs in pickles:
        _check_lengths(found, storages, folder, refs.values())
        found.add_root(root, {key: storages[folder + key] for key in refs if folder + key in storages})


def _root(file: str, directory: Directory) -> str:
    """The folder of the archive with its slash, by where data.pkl is; torch takes that of the first member
    (PyTorchStreamReader::init). FormatError that says what else the zip is."""
    names = [member.name for member in directory.members]
    # Without case, as torch looks for it: a second archive/DATA.PKL could be the one that is loaded.
    pickles = [name for name in names if name.lower().rpartition("/")[2] == DATA and name.count("/") < 2]
    if len(pickles) > 1 or (pickles and not pickles[0].endswith(DATA)):
        shown = " and ".join(sorted(repr(name) for name in pickles[:3]))
        raise FormatError(file, f"is a zip with the members {shown}: which one is loaded is not certain")
    if pickles:
        return pickles[0].removesuffix(DATA)
    raise UnknownFormat(file, _other_zip(names), 0)


def _other_zip(names: list[str]) -> str:
    tails = {name.rpartition("/")[2] for name in names}
    if names and all(name.endswith(".npy") for name in names):
        return "is a numpy archive (.npz), not a torch file"
    if {"config.json", "model.weights.h5"} & tails and "metadata.json" in tails:
        return "is a Keras archive, not a torch file"
    if "extern_modules" in tails:
        return "is a torch.package archive: it is code to be imported, save the state_dict instead"
    if "archive_format" in tails or any(name.endswith("models/model.json") for name in names):
        return "is a torch.export archive (.pt2), which is not read here"
    if "model.json" in tails:
        return "is a TorchScript archive of torch 1.0 to 1.3: re-save it with a newer torch"
    return f"is a zip without data.pkl: {len(names):,} members" + (f", the first is {names[0][:80]!r}" if names else "")


def _unpickle(archive: ZipMembers, member: Member, found: TorchFile, *, torchscript: bool) -> tuple[object, dict[str, StorageRef]]:
    """(root, storages that the pickle names)."""
    begin, raw = archive.contents(member, MAX_INPUT)
    refs: dict[str, StorageRef] = {}

    def persistent(value: object) -> object:
        ref = storage_ref(value)
        if isinstance(ref, StorageRef):
            before = refs.setdefault(ref.key, ref)
            if before is not ref and ref.nbytes > before.nbytes:
                refs[ref.key] = ref
        return ref

    reader = PickleReader(archive.source.name, raw, begin if member.method == STORED else None, persistent)
    try:
        return reader.load(), refs
    finally:
        found.add_globals(reader, torchscript=torchscript)


def _byteorder(archive: ZipMembers, members: dict[str, Member], found: TorchFile) -> None:
    member = members.get("byteorder")
    if member is None:
        return
    try:
        _, word = archive.contents(member, MAX_BYTEORDER)
    except ReadError:
        raise
    except FormatError as error:
        found.add_problem(error)
        return
    if word == b"big":
        found.unread.append(BIG_ENDIAN_NOTE)
    elif word != b"little":
        what = f"has a member byteorder that says {word[:MAX_BYTEORDER]!r}, neither little nor big"
        found.problems.append(Problem(file=found.file, what=what, offset=member.header))


def _storage(file: str, name: str, member: Member, layout: Layout) -> Storage:
    plain = member.method == STORED and not member.flags & ENCRYPTED and member.packed_nbytes == member.nbytes
    readable = plain or (member.method == DEFLATED and not member.flags & ENCRYPTED)
    return Storage(
        file=file,
        ident=name,
        offset=layout.begins.get(member.header) if plain else None,
        nbytes=member.nbytes,
        # set_crc32_options(False) and skip_data() write 0
        crc=(member.crc or None) if readable else None,
    )


def _check_lengths(found: TorchFile, storages: dict[str, Storage], folder: str, refs: Iterable[StorageRef]) -> None:
    """torch does not compare them: it would read past the member's bytes in memory."""
    for ref in refs:
        storage = storages.get(folder + ref.key)
        if storage is not None and storage.nbytes != ref.nbytes:
            what = f"has {storage.nbytes:,} bytes in storage {storage.ident!r}, the pickle says {ref.nbytes:,}"
            found.problems.append(Problem(file=found.file, what=what, offset=storage.offset))
