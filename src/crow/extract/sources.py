"""Where many pictures lie: folders, s3:// and gs://, manifests, Parquet with bytes, tar files. Listed piece by piece.

A piece is what one worker reads by itself: a picture file, a row group of a Parquet file, a tar file. The key of a
picture is its path or address; inside a piece it is that of the file, "#", and its name there.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from crow.extract.formats import EXTENSIONS, MAX_BYTES
from crow.extract.picture import PictureError, one_line
from crow.extract.walk import entries

MANIFESTS = (".txt", ".lst", ".manifest")
KEYS = ("path", "key", "url", "file_name", "__key__")  # columns of a Parquet file that may name a picture
BYTES = ("bytes", "image", "jpg", "content")  # and those that may hold it; `image` may be a struct with bytes and path


class SourceError(ValueError):
    """A source that cannot be listed, with the reason."""


@dataclass(frozen=True)
class Piece:
    """A file, or a part of one, with as much of it as tells whether it changed; a reason instead where it is none."""

    place: str
    kind: str = "file"  # file, parquet, tar
    part: int = 0  # of Parquet the row group
    size: int = -1  # bytes, -1 where the listing does not say
    mtime: int = 0  # nanoseconds
    reason: str = ""


@dataclass(frozen=True)
class Found:
    """A picture: its key, what tells whether it changed, and a way to its bytes."""

    key: str
    size: int
    mtime: int
    read: Callable[[], bytes]


def listed(source: str) -> Iterator[Piece]:
    """The pieces of a source, in the order of their names, without holding them all."""
    text = os.fspath(source)
    if text.startswith("manifest:"):
        return _manifest(text.removeprefix("manifest:"))
    kind = _kind(text)
    if kind == "manifest":
        return _manifest(text)
    if kind:
        return _of_file(text, kind, *_stat(text))
    return _below(text) if "://" in text else _folder(text)


def pictures(piece: Piece) -> Iterator[Found]:
    """The pictures of a piece."""
    if piece.reason:
        yield Found(piece.place, 0, 0, lambda: _refuse(piece))
    elif piece.kind == "parquet":
        yield from _rows(piece)
    elif piece.kind == "tar":
        yield from _members(piece)
    else:
        size, mtime = (piece.size, piece.mtime) if piece.size >= 0 else _known(piece.place)
        yield Found(piece.place, size, mtime, lambda: read(piece.place))


def read(place: str) -> bytes:
    """The bytes of a picture file at a path or address."""
    try:
        with opened(place) as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise PictureError(place, "listed, but not there any more") from None
    except OSError as error:
        raise PictureError(place, one_line(error.strerror or str(error))[:300]) from None
    if len(data) > MAX_BYTES:
        raise PictureError(place, f"too large: a file of more than {MAX_BYTES >> 30} GiB")
    return data


def opened(place: str) -> BinaryIO:
    """A file at a path or address, open for reading."""
    if "://" not in place:
        return Path(place).open("rb")
    system, path = _system(place)
    return io.BufferedReader(system.open_input_file(path))  # which alone knows lines


def _folder(folder: str) -> Iterator[Piece]:
    root = os.path.abspath(folder)  # noqa: PTH100
    if not Path(root).exists():
        raise SourceError(f"{folder}: no such file or folder")
    for top, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(top, name)  # noqa: PTH118
            if _kind(name) in ("parquet", "tar"):
                yield from _of_file(path, cast(str, _kind(name)), *_stat(path))
    for entry in entries(root):
        yield Piece(os.fspath(entry.path), size=entry.size, mtime=entry.mtime_ns)


def _below(address: str) -> Iterator[Piece]:
    """What lies below an address, one level of it in memory at a time."""
    from pyarrow import fs

    system, root = _system(address)
    scheme = address.partition("://")[0]
    waiting = [root]
    while waiting:
        try:
            infos = system.get_file_info(fs.FileSelector(waiting.pop()))
        except OSError as error:
            raise SourceError(f"{address}: cannot be listed ({one_line(str(error))[:300]})") from None
        for info in sorted(infos, key=lambda info: info.path):
            place = f"{scheme}://{info.path}"
            if info.type == fs.FileType.Directory:
                waiting.append(info.path)
            elif kind := _kind(place):
                yield from _of_file(place, kind, info.size, info.mtime_ns or 0)
            elif Path(place).suffix.lower() in EXTENSIONS:
                yield Piece(place, size=info.size, mtime=info.mtime_ns or 0)


def _of_file(place: str, kind: str, size: int, mtime: int) -> Iterator[Piece]:
    if kind == "tar":
        yield Piece(place, "tar", 0, size, mtime)
    elif kind == "parquet":
        with _parquet(place) as file:
            groups = file.num_row_groups
        for number in range(groups):
            yield Piece(place, "parquet", number, size, mtime)


def _manifest(place: str) -> Iterator[Piece]:
    """A line is a path (relative to the manifest) or an address; empty lines and those that begin with # are left out."""
    base = place.rpartition("/")[0] if "://" in place else os.path.dirname(os.path.abspath(place))  # noqa: PTH100, PTH120
    try:
        file = opened(place)
    except OSError as error:
        raise SourceError(f"{place}: cannot be read ({one_line(error.strerror or str(error))})") from None
    with file:
        for number, line in zip(count(1), file, strict=False):
            text = os.fsdecode(line.rstrip(b"\r\n"))
            if not text or text.startswith("#"):
                continue
            path = text if "://" in text or text.startswith("/") else f"{base}/{text}"
            if "\0" in text or (Path(path).suffix.lower() not in EXTENSIONS and not _kind(path)):
                yield Piece(f"{place}#{number}", reason=f"line {number} is no path of a picture: {one_line(text[:80])}")
            elif (kind := _kind(path)) in ("parquet", "tar"):
                yield from _of_file(path, kind, *_stat(path))
            else:
                yield Piece(path)


def _rows(piece: Piece) -> Iterator[Found]:
    with _parquet(piece.place) as file:
        names = file.schema_arrow.names
        column = next((name for name in BYTES if name in names), None)
        if column is None:
            raise SourceError(
                f"{piece.place}: no column {' or '.join(BYTES)} with the pictures' bytes; there are: {', '.join(names)}"
            )
        key = next((name for name in KEYS if name in names), None)
        table = file.read_row_group(piece.part, [c for c in (key, column) if c])
    for number in range(table.num_rows):
        value = table[column][number].as_py()
        inner = value if isinstance(value, dict) else {"bytes": value}
        name = (table[key][number].as_py() if key else inner.get("path")) or f"{piece.part}-{number}"
        data = inner.get("bytes") or b""
        yield Found(f"{piece.place}#{name}", len(data), piece.mtime, lambda data=data: data)  # type: ignore[misc]


def _members(piece: Piece) -> Iterator[Found]:
    """The pictures of a tar file as they come; each can only be read before the next is asked for."""
    with opened(piece.place) as file, tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in tar:
            if member.isfile() and Path(member.name).suffix.lower() in EXTENSIONS:
                data = cast(Any, tar.extractfile(member)).read(MAX_BYTES)
                yield Found(f"{piece.place}#{member.name}", member.size, piece.mtime, lambda data=data: data)  # type: ignore[misc]


def _parquet(place: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise SourceError("Parquet needs the extra 'parquet': pip install 'crow-search[parquet]'") from None
    try:
        return pyarrow.parquet.ParquetFile(opened(place))
    except (OSError, ValueError) as error:
        raise SourceError(f"{place}: not a Parquet file that can be read ({one_line(str(error))[:200]})") from None


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there; s3:// takes AWS_ENDPOINT_URL and the usual credentials."""
    try:
        from pyarrow import fs
    except ImportError:
        raise SourceError("addresses need the extra 'parquet': pip install 'crow-search[parquet]'") from None
    scheme, _, path = address.partition("://")
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        more = {"endpoint_override": endpoint} if endpoint else {}
        return fs.S3FileSystem(connect_timeout=10, request_timeout=60, **more), path.rstrip("/")
    if scheme in ("gs", "gcs"):
        return fs.GcsFileSystem(), path.rstrip("/")
    raise SourceError(f"{address}: no pictures are read from {scheme}://; there are: s3://, gs://, and paths")


def _kind(place: str) -> str | None:
    lower = place.lower()
    if lower.endswith(MANIFESTS):
        return "manifest"
    if lower.endswith((".tar", ".tar.gz", ".tgz")):
        return "tar"
    return "parquet" if lower.endswith((".parquet", ".pq")) else None


def _stat(place: str) -> tuple[int, int]:
    """Size and time of change of a file at a path or address."""
    if "://" in place:
        system, path = _system(place)
        info = system.get_file_info([path])[0]
        if info.size is None:
            raise SourceError(f"{place}: not there")
        return int(info.size), int(info.mtime_ns or 0)
    try:
        found = Path(place).stat()
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror}") from None
    return found.st_size, found.st_mtime_ns


def _known(place: str) -> tuple[int, int]:
    try:
        return _stat(place)
    except (SourceError, OSError):
        return 0, 0  # reading it will say why


def _refuse(piece: Piece) -> bytes:
    raise PictureError(piece.place, piece.reason)
