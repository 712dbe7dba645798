"""The matrix: the whitened vectors as float16 rows in memory-mapped segments, derived from a store.

A matrix is a value: `catch_up` returns a newer one, `save` writes what is not yet on disk and returns the mapped one.
The folder holds segments (never changed once written), one file that marks the dead rows, and `manifest.json`, which
is written last and names the others. Whatever does not fit together is ignored, and the store fills it again.
One writer at a time (the caller holds the lock of the index); any number of readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from crow.search.sealed import Damaged, crc_of, expect, fields_of, put, put_fields
from crow.search.store import Changes, Ids, Vectors

Reduce = Callable[[Vectors], Vectors]

FORMAT = 2  # 1 had no checksums of the manifest and of the dead rows
MANIFEST = "manifest.json"
BLOCK = 1 << 17  # rows in a full segment: 64 MiB at 256 dimensions, so no compaction ever writes much more
DEAD = 0.25  # a segment with a larger share of dead rows is written anew


class SearchError(ValueError):
    """A query or an id that cannot be answered."""


class Rows(Protocol):
    """As much of a store as a matrix needs."""

    def __len__(self) -> int:
        """How many pictures there are."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see one generation."""

    def changes(self, since: int) -> Changes:
        """Which ids came and went after a generation; after 0, all there are."""

    def vectors(self, ids: Ids) -> Vectors:
        """(n,) -> (n, K): the raw vectors in the order of the ids."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that arrived together, their ids rising."""

    name: str  # its file, empty while it lies only in memory
    rows: NDArray[np.float16]  # (n, d)
    ids: Ids  # (n,)
    dead: NDArray[np.bool_]  # (n,)
    crc: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def alive(self) -> int:
        """How many rows still count."""
        return len(self) - int(self.dead.sum())

    def find(self, ids: Ids) -> tuple[Ids, Ids]:
        """Where the living ones of these ids lie: (which of the ids, which row)."""
        at = np.searchsorted(self.ids, ids)
        at[at == len(self)] = 0
        which = np.flatnonzero((self.ids[at] == ids) & ~self.dead[at])
        return which, at[which]

    def without(self, ids: Ids) -> Segment:
        """The same segment with these ids dead."""
        _, rows = self.find(ids)
        if not len(rows):
            return self
        dead = self.dead.copy()
        dead[rows] = True
        return replace(self, dead=dead)


@dataclass(frozen=True, eq=False)
class Matrix:
    """All living vectors of a store at one generation, through one whitening."""

    key: str  # names the store, the recipe and the whitening: another key is another matrix
    generation: int
    dim: int
    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(segment.alive for segment in self.segments)

    @property
    def ids(self) -> Ids:
        """(n,): the living ids, rising."""
        return np.sort(np.concatenate([s.ids[~s.dead] for s in self.segments] or [np.empty(0, np.int64)]))

    def vectors(self, ids: Ids) -> NDArray[np.float32]:
        """(n,) -> (n, d): the rows of these ids; an id that is not there is an error."""
        ids = np.asarray(ids, np.int64)
        out = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for segment in self.segments:
            which, rows = segment.find(ids)
            out[which] = segment.rows[rows]
            missing[which] = False
        if missing.any():
            raise SearchError(f"no picture with the id {ids[missing][0]} in this index")
        return out

    def catch_up(self, store: Rows, reduce: Reduce, folder: Path | None = None) -> Matrix:
        """This matrix with what the store changed since; with a folder, full segments go to disk at once.

        They count only after `save`; it keeps the memory of a first build small.
        """
        with store.snapshot():
            changes = store.changes(self.generation)
            if changes.generation == self.generation:
                return self
            if changes.generation < self.generation:  # an older store was put back: start again
                return Matrix(self.key, 0, self.dim).catch_up(store, reduce, folder)
            gone = np.union1d(changes.added, changes.removed)
            segments = [segment.without(gone) for segment in self.segments]
            for start in range(0, len(changes.added), BLOCK):
                segment = _gather(store, reduce, changes.added[start : start + BLOCK], self.dim)
                segments.append(_write(folder, segment) if folder and len(segment) == BLOCK else segment)
            newer = replace(self, generation=changes.generation, segments=tuple(segments))
            if len(newer) != len(store) or len(np.unique(changes.added)) != len(changes.added):
                raise SearchError("the index is damaged: pictures are missing among its changes; crow verify says more")
        return newer

    def save(self, folder: Path) -> Matrix:
        """Write what is not on disk yet, small and half-dead segments compacted; the manifest goes last."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = (s if s.name else _write(folder, s) for s in _compact(self.segments))
        matrix = replace(self, segments=tuple(kept))
        dead, bits = f"{uuid4().hex}.dead", [np.packbits(s.dead) for s in matrix.segments]
        put(folder / dead, bits)
        manifest = {"format": FORMAT, "key": self.key, "generation": self.generation, "dim": self.dim}
        manifest |= {"dead": dead, "dead_crc": crc_of(list(bits))}
        manifest["segments"] = [{"name": s.name, "count": len(s), "crc": s.crc} for s in matrix.segments]
        put_fields(folder / MANIFEST, manifest)
        _sweep(folder, {dead, *(s.name for s in matrix.segments)})
        return matrix

    @classmethod
    def load(cls, folder: Path, key: str, dim: int, known: Matrix | None = None) -> Matrix:
        """What `save` wrote under this key, memory-mapped; an empty matrix where that is missing or damaged.

        Segments that `known` holds are taken from there; all others are read and compared with their checksums.
        """
        for _ in range(5):  # a writer may sweep a file away between our reading its name and opening it
            try:
                manifest = fields_of(folder / MANIFEST)
                if (manifest.get("format"), manifest.get("key"), manifest.get("dim")) != (FORMAT, key, dim):
                    break  # of another matrix, or of another version
                return cls._open(folder, manifest, known)
            except FileNotFoundError:
                continue
            except (OSError, Damaged):
                break
        return cls(key, 0, dim)

    @classmethod
    def _open(cls, folder: Path, manifest: dict[str, Any], known: Matrix | None = None) -> Matrix:
        dim, dead_file = manifest["dim"], folder / manifest["dead"]
        packed = expect(dead_file, np.frombuffer(dead_file.read_bytes(), np.uint8), manifest["dead_crc"])
        trusted = {segment.name: segment for segment in (known.segments if known else ())}
        segments, start = [], 0
        for entry in manifest["segments"]:
            stop = start + (entry["count"] + 7) // 8
            dead = np.unpackbits(packed[start:stop], count=entry["count"]).astype(bool)
            at_hand = trusted.get(entry["name"])
            segments.append(
                replace(at_hand, dead=dead) if at_hand else _checked(folder, _map(folder, entry, dim, dead))
            )
            start = stop
        return cls(manifest["key"], int(manifest["generation"]), dim, tuple(segments))

    @classmethod
    def saved(cls, folder: Path) -> tuple[str, int]:
        """The key and the generation of what was last saved; ("", 0) where nothing says so."""
        try:
            manifest = fields_of(folder / MANIFEST)
            return manifest.get("key", ""), int(manifest.get("generation", 0))
        except (OSError, Damaged):
            return "", 0

    @classmethod
    def problems(cls, folder: Path) -> Iterator[str]:
        """What is wrong with the files on disk, in words; reads every byte. Where nothing was saved, nothing is wrong."""
        if not (folder / MANIFEST).exists():
            return
        try:
            for _ in range(5):
                try:
                    manifest = fields_of(folder / MANIFEST)
                    matrix = cls._open(folder, manifest) if manifest else cls("", 0, 0)
                    break
                except FileNotFoundError as error:
                    gone = error
            else:
                yield f"{Path(gone.filename).name}: is gone"
                return
        except (OSError, Damaged) as error:
            yield str(error)
            return
        if len(np.unique(matrix.ids)) != len(matrix):
            yield "the matrix holds an id more than once"


def _gather(store: Rows, reduce: Reduce, ids: Ids, dim: int) -> Segment:
    """A new segment in memory, read from the store a few thousand vectors at a time."""
    rows = np.empty((len(ids), dim), np.float16)
    for start in range(0, len(ids), 4096):
        rows[start : start + 4096] = reduce(store.vectors(ids[start : start + 4096]))
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise SearchError(f"the vector of the picture with the id {ids[bad][0]} is not finite; `crow verify` says more")
    return Segment("", rows, ids, np.zeros(len(ids), bool))


def _compact(segments: tuple[Segment, ...]) -> list[Segment]:
    """Segments with too many dead rows written anew, small neighbours of like size joined, empty ones dropped."""
    out: list[Segment] = []
    for segment in segments:
        if segment.alive < (1 - DEAD) * len(segment):
            segment = _join([segment])
        while out and len(out[-1]) <= 2 * len(segment) and len(out[-1]) + len(segment) <= BLOCK:
            segment = _join([out.pop(), segment])
        if len(segment):
            out.append(segment)
    return out


def _join(segments: list[Segment]) -> Segment:
    """One segment in memory of the living rows of several."""
    ids = np.concatenate([s.ids[~s.dead] for s in segments])
    order = np.argsort(ids)
    rows = np.concatenate([s.rows[~s.dead] for s in segments])[order]
    return Segment("", rows, ids[order], np.zeros(len(ids), bool))


def _parts(segment: Segment) -> list[NDArray[Any]]:
    return [segment.rows, segment.ids]


def _write(folder: Path, segment: Segment) -> Segment:
    """The segment as a file of its own, mapped back."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"name": f"{uuid4().hex}.rows", "count": len(segment), "crc": crc_of(_parts(segment))}
    put(folder / str(entry["name"]), _parts(segment))
    return _map(folder, entry, segment.rows.shape[1], segment.dead)


def _checked(folder: Path, segment: Segment) -> Segment:
    """The same segment, if its bytes are the ones that were written."""
    if crc_of(_parts(segment)) != segment.crc:
        raise Damaged(f"{segment.name}: its bytes are not the ones that were written")
    return segment


def _map(folder: Path, entry: dict[str, Any], dim: int, dead: NDArray[np.bool_]) -> Segment:
    """A segment's file as arrays that the system reads when they are touched and every process shares."""
    path, n = folder / entry["name"], int(entry["count"])
    if path.stat().st_size != n * (2 * dim + 8):
        raise Damaged(f"{path.name}: has another size than what was written")
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    rows = data[: n * dim * 2].view(np.float16).reshape(n, dim)
    ids = data[n * dim * 2 :].view(np.int64)
    return Segment(entry["name"], rows, ids, dead, int(entry["crc"]))


def _sweep(folder: Path, kept: set[str]) -> None:
    """Remove what the manifest no longer names; a reader that has it mapped keeps it."""
    for path in folder.iterdir():
        if path.suffix in (".rows", ".dead", ".half") and path.name not in kept:
            path.unlink(missing_ok=True)
