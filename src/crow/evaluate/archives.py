"""Where the benchmarks' archives lie; bringing them, checking what can be checked, recording what came.

Their authors publish no hashes, so what was received is recorded (size and sha256, in `archives.json` beside it), and
every evaluation report can name the copy it used.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crow.extract.download import DownloadError, Report, by_url, quiet, sha256

RECORDS = "archives.json"
MAGIC = {".tgz": b"\x1f\x8b", ".gz": b"\x1f\x8b", ".rar": b"Rar!", ".pkl": b"\x80"}


class ArchiveError(ValueError):
    """An archive that could not be brought, or is not what it should be."""


@dataclass(frozen=True)
class Archive:
    """One file that a dataset's authors publish."""

    address: str
    note: str = ""

    @property
    def file(self) -> str:
        """Its name."""
        return self.address.rsplit("/", 1)[-1]


VGG = "https://www.robots.ox.ac.uk/~vgg/data"
REVISITED = "https://cmp.felk.cvut.cz/revisitop/data/datasets"
LEAR = "ftp://ftp.inrialpes.fr/pub/lear/douze/data"
OXFORD = Archive(f"{VGG}/oxbuildings/oxbuild_images-v1.tgz", "faces blurred since 2022; before: oxbuild_images.tgz")
PARIS = tuple(
    Archive(f"{VGG}/parisbuildings/paris_{part}-v1.tgz", f"faces blurred since 2022; before: paris_{part}.tgz")
    for part in (1, 2)
)
ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "oxford5k": (OXFORD, Archive(f"{VGG}/oxbuildings/gt_files_170407.tgz")),
    "paris6k": (*PARIS, Archive(f"{VGG}/parisbuildings/paris_120310.tgz")),
    "holidays": (Archive(f"{LEAR}/jpg1.tar.gz"), Archive(f"{LEAR}/jpg2.tar.gz")),
    "roxford5k": (OXFORD, Archive(f"{REVISITED}/roxford5k/gnd_roxford5k.pkl")),
    "rparis6k": (*PARIS, Archive(f"{REVISITED}/rparis6k/gnd_rparis6k.pkl")),
    "oxford100k": tuple(
        Archive(f"{VGG}/oxbuildings/ox100k/oxc1_100k.part{part:02d}.rar", "unpack with: unrar x oxc1_100k.part01.rar")
        for part in range(1, 41)
    ),
}


def bring(archive: Archive, folder: Path, fetch: bool = True, report: Report = quiet) -> dict[str, Any]:
    """See that an archive is there, whole and recorded; fetched, resumed and unpacked where it can be."""
    path = folder / archive.file
    state = {"file": str(path), "address": archive.address, "note": archive.note}
    kept = recorded(folder).get(archive.file)
    if not path.exists():
        if kept and not fetch:
            return {**state, **kept, "state": f"was here: {kept['bytes']} bytes, sha256 {kept['sha256']}"}
        if not fetch:
            return {
                **state,
                "state": f"not here; to be had from {archive.address}" + (f" ({archive.note})" if archive.note else ""),
            }
        _fetch(archive, path, report)
    check(path, path)
    facts = _recorded_now(path, archive.address, kept)
    unpacked = unpack(path)
    return {
        **state,
        **facts,
        "state": f"{facts['bytes']} bytes, sha256 {facts['sha256']}" + (f", {unpacked}" if unpacked else ""),
    }


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """What is on record of the archives that lie, or lay, in a folder."""
    try:
        records: dict[str, dict[str, Any]] = json.loads((folder / RECORDS).read_text())
        return records
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ArchiveError(f"{folder / RECORDS}: not a record that crow wrote ({error})") from None


def lying(name: str, places: Iterable[Path]) -> dict[str, str]:
    """The archives of a dataset that lie among these files, each with its size and sha256, as recorded or hashed now."""
    published = {archive.file for archive in ARCHIVES.get(name, ())}
    published |= {file.replace("-v1.", ".") for file in published}
    found = {}
    for path in places:
        if path.name in published:
            kept, size = recorded(path.parent).get(path.name), path.stat().st_size
            digest = kept["sha256"] if kept and kept["bytes"] == size else sha256(path)
            found[path.name] = f"{size} bytes, sha256 {digest}"
    return found


def check(file: Path, name: Path) -> None:
    """Refuse by name what is no archive: most of all a web page in the place of one."""
    with file.open("rb") as opened:
        head = opened.read(512)
    if not head or not head.startswith(MAGIC.get(name.suffix, b"")):
        what = "empty" if not head else "a web page" if head.lstrip()[:1] == b"<" else "something else"
        raise ArchiveError(f"{name}: {what}, not the {name.suffix} archive that its name says")


def unpack(path: Path) -> str:
    """Unpack a tar archive into a folder of its name beside it, once; nothing is written outside of that folder."""
    if path.suffix not in (".tgz", ".gz"):
        return ""
    target = path.parent / path.name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
    if target.exists():
        return f"unpacked in {target}"
    half = path.parent / f".{target.name}.half"
    try:
        with tarfile.open(path) as tar:
            tar.extractall(half, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"{path}: cannot be unpacked ({error})") from None
    half.rename(target)
    return f"unpacked in {target}"


def _fetch(archive: Archive, path: Path, report: Report) -> None:
    """Bring the file beside its place and rename it when it is whole; what broke off is taken up again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        by_url(archive.address, "", part, report=report)
        check(part, path)
    except DownloadError as error:
        raise ArchiveError(f"{error}; put {archive.file} into {path.parent} by hand") from None
    except ArchiveError as error:
        part.unlink()
        raise ArchiveError(f"{error}; it came from {archive.address}") from None
    part.replace(path)


def _recorded_now(path: Path, address: str, kept: dict[str, Any] | None) -> dict[str, Any]:
    """The facts of a file that is here, written down; a file that differs from its record is refused."""
    size = path.stat().st_size
    facts = {"bytes": size, "sha256": sha256(path)}
    if kept and {name: kept[name] for name in facts} != facts:
        raise ArchiveError(f"{path}: differs from its record in {RECORDS} (sha256 {kept['sha256']}); was it cut short?")
    records = recorded(path.parent)
    records[path.name] = kept or {**facts, "from": address, "date": datetime.now(UTC).date().isoformat()}
    half = path.parent / f".{RECORDS}.half"
    half.write_text(json.dumps(records, indent=2) + "\n")
    half.replace(path.parent / RECORDS)
    return facts
