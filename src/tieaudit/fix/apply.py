"""This file holds `apply_fix`: new files in a stage beside the target, an audit of them, and one rename that puts them in place.

Until that rename nothing under the name of the original or of the result is touched. A removal is proved again from the bytes that are
there now, and every file is held against what it was when the plan was made, before and after it is read.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ..bytewise import TensorBytes
from ..config import FILES
from ..errors import FormatError, TargetError
from ..evidence import Progress
from ..loaders import sniff
from ..report import Report, Severity
from ..sources.local import LocalFolder
from ..stages import audit
from . import files
from .draft import proved
from .model import Fixed, Ground, Plan, Rewrite
from .plan import needed
from .writers import Inputs, writer

UNDONE = "it was not put in place, and nothing was changed"


def apply_fix(
    plan: Plan, out: str | os.PathLike[str] | None = None, *, in_place: bool = False, progress: Progress = lambda *_: None
) -> Fixed:
    """Carry the plan out: the result at `out`, which must not be there (an empty folder may), or `in_place` with the original kept beside
    it as `NAME.before-fix`. A plan without steps does nothing. Raises TargetError if anything stands in the way: nothing was changed."""
    if plan.refusals:
        raise TargetError(plan.target, f"is not fixed: {plan.refusals[0].what}", _ways(plan))
    if bool(out) == in_place:
        raise TargetError(plan.target, "needs a place for the result", "either -o OUT or --in-place")
    if not plan.steps:
        return Fixed(plan=plan, out="", after=None)
    original = Path(plan.root, plan.file)
    place = original if in_place else _free_place(plan, Path.cwd() / os.fspath(out or ""))
    if in_place and plan.foreign:
        raise TargetError(
            plan.target, "is a snapshot of the Hub cache, whose files are links into its blobs", "use -o OUT: it gets real files"
        )
    if in_place and any(rewrite.name != rewrite.source for rewrite in plan.rewrites) and plan.file:
        raise TargetError(plan.target, f"would become {plan.rewrites[0].name}", "use -o OUT")
    try:
        files.demand_space(place.parent, needed(plan), len(plan.seen))
        with files.stage_beside(place) as stage:
            return _staged(plan, original, place, stage, in_place=in_place, progress=progress)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        raise TargetError(plan.target, f"could not be written ({what})", "nothing was changed") from None


def _ways(plan: Plan) -> str:
    ways = [option for option, _ in plan.refusals[0].ways]
    return f"choose: {', '.join(ways)}" if ways else "nothing was changed"


def _free_place(plan: Plan, place: Path) -> Path:
    """Where the result will be. TargetError if something is there."""
    root = Path(plan.root)
    if place.is_symlink() or (place.exists() and (plan.file or not place.is_dir() or any(place.iterdir()))):
        raise TargetError(str(place), "is there already", "name a place that is not, or an empty folder")
    real = place.parent.resolve() / place.name
    if not plan.file and (real == root or root in real.parents):
        raise TargetError(str(place), "lies inside the target", "name a place beside it")
    if not place.parent.is_dir():
        raise TargetError(str(place), "has no parent folder", f"make {place.parent} first")
    return real


def _staged(plan: Plan, original: Path, place: Path, stage: Path, *, in_place: bool, progress: Progress) -> Fixed:
    content = stage / "content"
    content.mkdir()
    folder = LocalFolder(Path(plan.root))
    with ExitStack() as stack:
        stack.callback(folder.close)
        descriptors = stack.enter_context(_opened(plan, folder))
        _prove(plan, folder)
        _write(plan, folder, descriptors, content, progress)
        for seen in plan.seen:
            if seen.name in descriptors:
                os.close(files.unchanged(folder, plan.target, seen))
    for rewrite in plan.rewrites:
        _check(rewrite, content)
    after = _audited(plan, content, place)
    if plan.file:
        return _file_in_place(plan, original, content, place, after, in_place=in_place)
    files.finish_folders(content, dict(plan.folders))
    files.sync(stage)
    backup = ""
    if in_place:
        backup = str(_swapped(original, content))
    else:
        content.rename(place)  # over an empty folder at most: rename refuses any other
    files.sync(place.parent)
    return Fixed(plan=plan, out=str(place), backup=backup, after=after)


@contextmanager
def _opened(plan: Plan, folder: LocalFolder) -> Iterator[dict[str, int]]:
    """Descriptors of the files whose tensors are read, all checked against the plan; the others are checked when they are copied."""
    needed_now = {rewrite.source for rewrite in plan.rewrites} | {
        tensor.file for rewrite in plan.rewrites for tensor in (kept.tensor for kept in rewrite.tensors)
    }
    known = {seen.name: seen for seen in plan.seen}
    descriptors: dict[str, int] = {}
    try:
        for seen in plan.seen:
            descriptor = files.unchanged(folder, plan.target, known[seen.name])
            if seen.name in needed_now:
                descriptors[seen.name] = descriptor
            else:
                os.close(descriptor)
        yield descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _prove(plan: Plan, folder: LocalFolder) -> None:
    """Every removal that claims a proof is proved from what is there now."""
    names = {part.file for removal in plan.removals for matrix in (removal.dropped, removal.kept) if matrix for part in matrix.parts}
    data = TensorBytes({name: folder.open(name) for name in sorted(names)}, folder=folder)
    for removal in plan.removals:
        try:
            sure = removal.ground is not Ground.PROVED or proved(removal, data)
        except FormatError as error:
            raise TargetError(plan.target, str(error), UNDONE) from None
        if not sure:
            raise TargetError(plan.target, f"{removal.dropped.name} is not what it was when the plan was made", UNDONE)


def _write(plan: Plan, folder: LocalFolder, descriptors: dict[str, int], content: Path, progress: Progress) -> None:
    for name in sorted(plan.folders):
        (content / name).mkdir(exist_ok=True)
    for name, link in plan.links.items():
        (content / name).symlink_to(link)
    sources = {name: folder.open(name) for name in descriptors}
    modes = {seen.name: seen.mode for seen in plan.seen}
    total, done = len(plan.rewrites) + len(plan.carried) + len(plan.texts), 0
    for rewrite in plan.rewrites:
        progress(rewrite.name, done, total)
        own = writer(rewrite.format)
        if own is None:
            raise TargetError(plan.target, f"{rewrite.name}: there is no writer of {rewrite.format}", UNDONE)
        with files.new_file(content, rewrite.name, modes[rewrite.source]) as out:
            own.write(rewrite, Inputs(sources, descriptors), out)
        done += 1
    for text in plan.texts:
        with files.new_file(content, text.name, modes[text.source]) as out:
            files.write_all(out, text.content, 0)
        done += 1
    for seen in plan.carried:
        progress(seen.name, done, total)
        source = files.unchanged(folder, plan.target, seen)
        try:
            with files.new_file(content, seen.name, seen.mode) as out:
                files.copy_range(source, 0, out, 0, seen.nbytes, seen.name)
                if files.state(source, seen.name, digest=False) != replace(seen, digest=""):
                    raise TargetError(plan.target, f"{seen.name} was changed while it was copied", UNDONE)
        finally:
            os.close(source)
        done += 1


def _check(rewrite: Rewrite, content: Path) -> None:
    """The new file, read as anybody would: the tensors that it should hold and no fault."""
    folder = LocalFolder(content)
    try:
        found = sniff.load(folder.open(rewrite.name), folder)
    finally:
        folder.close()
    wanted = {(kept.name, kept.tensor.dtype, kept.tensor.shape) for kept in rewrite.tensors}
    by_name = {kept.name: kept.tensor for kept in rewrite.tensors} | {kept.tensor.name: kept.tensor for kept in rewrite.tensors}
    wanted |= {(name, by_name[kept].dtype, by_name[kept].shape) for name, kept in rewrite.aliases.items()}
    if found.problems or {(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors} != wanted:
        what = found.problems[0].what if found.problems else "does not hold the tensors that it should"
        raise TargetError(rewrite.name, f"as written anew {what}", UNDONE)


def _audited(plan: Plan, content: Path, place: Path) -> Report:
    """The audit of the result. TargetError if it is worse than the original, or a rule that was to be repaired still speaks."""
    beside = [name for name in FILES if plan.file and Path(plan.root, name).is_file()]
    for name in beside:  # the claim for the one file; taken away again
        shutil.copyfile(Path(plan.root, name), content / name)
    only = next((rewrite.name for rewrite in plan.rewrites), plan.file) if plan.file else ""
    after = replace(audit(content / only, min_waste=plan.min_waste), target=str(place))
    for name in beside:
        (content / name).unlink()
    worse = worsened(plan, after)
    if worse:
        raise TargetError(plan.target, f"would not be better: {worse}", UNDONE)
    return after


def worsened(plan: Plan, after: Report) -> str:
    """What is wrong with a result, as a clause; "" if it is no worse and the repaired rules are silent."""
    brought = {rule for step in plan.steps for rule in step.brings}
    repaired = {step.rule for step in plan.steps} - {left.rule for left in plan.left}
    before = Counter((finding.rule, finding.severity) for finding in plan.before.findings)
    # a missing name can be an error in one place and a warning in another: more of a kind is worse, less severe is not
    for finding in after.findings:
        if finding.rule in repaired:
            return f"{finding.rule} still says: {finding.message}"
        if finding.rule in brought and finding.severity is Severity.NOTE:
            continue
        same = [rank for rank in before if rank[0] == finding.rule and rank[1].rank <= finding.severity.rank and before[rank]]
        if not same:
            return f"{finding.rule} now says: {finding.message}"
        before[same[0]] -= 1
    return ""


def _file_in_place(plan: Plan, original: Path, content: Path, place: Path, after: Report, *, in_place: bool) -> Fixed:
    """One file: the original keeps a second name until the new one has its place."""
    [new] = [path for path in content.iterdir() if path.is_file()]
    backup = ""
    if in_place:
        kept = files.free_name(original)
        os.link(original, kept)
        files.sync(place.parent)
        os.replace(new, original)
        backup = str(kept)
    else:
        os.link(new, place)  # fails if something came there meanwhile, where a rename would replace it
    files.sync(place.parent)
    return Fixed(plan=plan, out=str(place), backup=backup, after=after)


def _swapped(original: Path, content: Path) -> Path:
    """The new folder under the name of the old one, at one stroke where the system can; then the old one under its backup name."""
    kept = files.free_name(original)
    if files.exchange(content, original):
        content.rename(kept)
    else:
        original.rename(kept)
        try:
            content.rename(original)
        except OSError:
            kept.rename(original)
            raise
    return kept
