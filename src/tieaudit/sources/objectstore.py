"""Files in object stores and everywhere else that fsspec reaches: `s3://`, `gs://`, `az://`, `memory://`.

Exact ranges by `cat_file(start, end)`, one request each; `fs.open` reads blocks of 50 MiB (s3fs), so it is never used. The
backends (s3fs, gcsfs, …) find their credentials where they always do.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import ReadError, TargetError
from . import Entry, Meter, stays
from .patience import TookTooLong, bounded
from .remote import RemoteFolder

MAX_LISTED = 100_000  # files
DEPTH = 2  # of the listing: the folder and those directly below
TRIES = 3
Answer = TypeVar("Answer")


@dataclass(slots=True, kw_only=True)
class ObjectStore:
    """Files below `root` of one file system of fsspec. Requests are counted as calls: what a backend does inside one (its own
    retries, a lookup of the region) it does not tell."""

    system: Any
    root: str
    meter: Meter
    seconds: float
    entries: Mapping[str, Entry] = field(default_factory=dict)

    def fetch(self, name: str, offset: int, n: int) -> bytes:
        path = f"{self.root}/{name}"
        for number in range(1, TRIES + 1):
            try:
                data = bounded(lambda: self.system.cat_file(path, start=offset, end=offset + n), self.seconds)
            except TookTooLong as error:
                raise ReadError(name, f"cannot be read: {error}") from None
            except Exception as error:  # noqa: BLE001  a backend raises what its client library raises
                if number == TRIES or isinstance(error, (FileNotFoundError, PermissionError)):
                    raise ReadError(name, f"cannot be read: {_words(error)}") from None
                continue
            finally:
                self.meter.add(requests=1)
            self.meter.add(nbytes=len(data))
            if len(data) != n:
                raise ReadError(name, f"gave {len(data):,} of {n:,} bytes: was it changed meanwhile?")
            return bytes(data)
        raise AssertionError  # the last try returned or raised

    def whole(self, entry: Entry) -> bytes:
        return self.fetch(entry.name, 0, entry.nbytes) if entry.nbytes else b""

    def close(self) -> None:
        """The file system is fsspec's, which keeps it for the next caller."""


def open_url(target: str, seconds: float, meter: Meter) -> tuple[RemoteFolder, str | None]:
    """(the folder, the one file that was asked for). TargetError if there is nothing to open."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise TargetError(target, "is a URL, and fsspec is not installed", "pip install 'tieaudit[fsspec]'") from None

    def asked(call: Callable[[], Answer]) -> Answer:
        try:
            return bounded(call, seconds)
        except ImportError as error:
            raise TargetError(
                target, f"needs a package more ({_words(error)})", "s3fs for s3://, gcsfs for gs://, adlfs for az://"
            ) from None
        except FileNotFoundError:
            raise TargetError(target, "no such file or folder", "check the spelling and the bucket") from None
        except TookTooLong as error:
            raise TargetError(target, f"gave {error}", "check the connection") from None
        except Exception as error:  # noqa: BLE001  a backend raises what its client library raises
            raise TargetError(target, f"cannot be opened: {_words(error)}", "check the URL, the credentials and the connection") from None
        finally:
            meter.add(requests=1)

    system, path = asked(lambda: url_to_fs(target))
    meter.requests = 0  # nothing was asked of the network yet
    system.invalidate_cache()  # fsspec keeps listings of earlier audits in this process
    path = str(path).rstrip("/")
    info = asked(lambda: system.info(path))
    only = None
    if info.get("type") == "file":
        path, _, only = path.rpartition("/")
    listing = asked(lambda: system.find(path, maxdepth=1 if only else DEPTH, detail=True))
    if len(listing) > MAX_LISTED:
        raise TargetError(target, f"holds more than {MAX_LISTED:,} files", "name a folder of it")
    entries = {entry.name: entry for entry in (_entry(path, name, about) for name, about in listing.items()) if stays(entry.name)}
    if only is not None and only not in entries:
        entries[only] = _entry(path, f"{path}/{only}", info)
    store = ObjectStore(system=system, root=path, meter=meter, seconds=seconds, entries=entries)
    return RemoteFolder(store, entries, meter), only


def _entry(root: str, path: str, about: Mapping[str, Any]) -> Entry:
    name = posixpath.relpath(path, root) if root else path
    nbytes = about.get("size")
    if not isinstance(nbytes, int) or nbytes < 0:
        return Entry(name, 0, "is listed without its size")
    return Entry(name, nbytes)


def _words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
