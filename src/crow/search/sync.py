"""Sync: a store follows folders. Adds, updates, recognises what moved by its bytes, removes what is gone.

Everything that is written is a commit of a few seconds' work, so a sync that is cut off, in whatever way, is simply
run again: what was committed is unchanged then.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from crow.search.pace import Pace, ticking
from crow.search.store import Failure, Row, Stamp, Store, StoreError, Vectors, check_vector

if TYPE_CHECKING:
    from crow.extract.walk import Entry

GONE = 1 / 5  # a larger share of a folder missing at once looks like an unplugged drive, not like tidying up
BUFFER = 1000  # rows in one commit at most


class SyncError(ValueError):
    """A sync that stops before it forgets anything, with the reason."""


class Describes(Protocol):
    """What a sync and a search ask of a Describer."""

    recipe: Any
    precision: Any
    weights: Any

    def __call__(self, pictures: Any, box: Any = None) -> Vectors:
        """(n, K) unit rows."""

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        """A Described (key, vector, width, height, taken, reason) for each (key, source), in order."""


@dataclass(frozen=True)
class Report:
    """What a sync did, in pictures."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    removed: int = 0
    unchanged: int = 0
    failed: int = 0  # tried now, and gave no vector
    skipped: int = 0  # failed before and not changed since, so not tried again
    missing: int = 0  # gone from the disk, kept in the index because it was asked for
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()  # what a person should be told
    seconds: float = 0.0

    def __str__(self) -> str:
        names = ("added", "updated", "moved", "removed", "unchanged", "failed", "skipped", "missing")
        counts = {name: getattr(self, name) for name in names}
        always = ("added", "updated", "moved", "removed", "unchanged", "failed")
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name in always)


class SyncStopped(KeyboardInterrupt):
    """Ctrl-C during a sync; `report` says what is kept."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"stopped; kept: {report}")
        self.report = report


@dataclass
class Work:
    """A sync under way."""

    store: Store
    folders: Sequence[str]
    describer: Callable[[], Describes]
    pace: Pace
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    known: dict[str, Stamp] = field(default_factory=dict)  # in these folders as the sync began

    def report(self) -> Report:
        """What was done up to now."""
        counts: dict[str, Any] = dict(self.tally)
        return Report(**counts, failures=tuple(self.failures), seconds=self.pace.elapsed())


def sync(
    store: Store,
    folders: Sequence[str],
    describer: Callable[[], Describes],
    keep_missing: bool = False,
    prune: bool = False,
    progress: Callable[[Pace], None] | None = None,
) -> Report:
    """Bring the store to what lies in the folders; the describer is only made when there is a picture to describe."""
    work = Work(store, folders, describer, Pace(progress))
    try:
        with store.writer():
            _present(store, folders, prune)
            files, unreadable = look(folders)
            todo, missing = _compare(work, files)
            todo = _recognise(work, files, todo, missing)
            _forget(work, missing, unreadable, keep_missing, prune)
            _remember_mounts(work, files, prune)
            _extract(work, todo)
    except KeyboardInterrupt:
        raise SyncStopped(work.report()) from None
    return work.report()


def inside(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of the folders or lies in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def look(folders: Sequence[str]) -> tuple[dict[str, Entry], list[str]]:
    """Every picture file in the folders that are there, and the paths that could not be read just now."""
    from crow.extract.walk import entries

    unreadable: list[str] = []
    there = [folder for folder in folders if Path(folder).exists()]
    found = entries(there, lambda path, reason: unreadable.append(os.fspath(path)))
    return {os.fspath(entry.path): entry for entry in found}, unreadable


def _present(store: Store, folders: Sequence[str], prune: bool) -> None:
    """Stop when a folder or a drive inside it that was there before is gone."""
    for folder in folders:
        if not Path(folder).exists() and not (prune and len(store.ids(under=folder))):
            known = len(store.ids(under=folder))
            hint = f"; its {known:,} pictures stay in the index (--prune forgets them)" if known else ""
            raise SyncError(f"{folder}: no such folder{hint}")
    for mount in store.settings().get("mounts", []):
        if inside(mount, folders) and not os.path.ismount(mount) and len(store.ids(under=mount)) and not prune:
            raise SyncError(
                f"{mount}: the drive that was mounted here is gone; nothing was changed (--prune forgets it)"
            )


def _compare(work: Work, files: dict[str, Entry]) -> tuple[list[str], dict[str, Stamp]]:
    """Which files are new or changed, and which known pictures have no file any more."""
    work.known = {path: stamp for path, stamp in work.store.stamps().items() if inside(path, work.folders)}
    failed = {path: fail for path, fail in work.store.failures().items() if inside(path, work.folders)}
    todo = []
    for path, info in files.items():
        before = work.known.get(path) or failed.get(path)
        if before is None or (before.size, before.mtime) != (info.size, info.mtime_ns):
            todo.append(path)
        else:
            work.tally["unchanged" if path in work.known else "skipped"] += 1
    work.store.remove([path for path in failed if path not in files])
    return todo, {path: stamp for path, stamp in work.known.items() if path not in files}


def _recognise(work: Work, files: dict[str, Entry], todo: list[str], missing: dict[str, Stamp]) -> list[str]:
    """Take from `todo` what the store knows by its bytes, and from `missing` what only moved; nothing is extracted."""
    sizes, ids, lost = set(), {}, defaultdict(list)
    for path, stamp in work.store.stamps().items():
        sizes.add(stamp.size)
        ids[stamp.sha256] = stamp.id
        if path in missing:
            lost[stamp.sha256].append(path)
    rest, moves, copies = [], [], []
    work.pace.begin("comparing", len(todo))
    for path in todo:
        digest = _digest(path) if files[path].size in sizes else None
        place = Row(path, size=files[path].size, mtime=files[path].mtime_ns)
        before = work.known.get(path)
        if digest is None or digest not in ids:
            rest.append(path)
        elif before and before.sha256 == digest:
            moves.append((before.id, place))
            work.tally["unchanged"] += 1
        elif lost[digest] and before is None:
            moves.append((missing.pop(lost[digest].pop()).id, place))
            work.tally["moved"] += 1
        else:
            copies.append((ids[digest], place))
        if work.pace.step() and moves:
            moves = _move(work, moves)
    if moves:
        _move(work, moves)
    return rest + _copy(work, copies)


def _move(work: Work, moves: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Commit these moves; none are left then."""
    work.store.move([Row(place.path, id=number, size=place.size, mtime=place.mtime) for number, place in moves])
    work.pace.committed()
    return []


def _copy(work: Work, copies: list[tuple[int, Row]]) -> list[str]:
    """Write files whose bytes the store knows from elsewhere; the paths whose source is gone meanwhile come back."""
    rest = []
    for start in range(0, len(copies), BUFFER):
        batch = copies[start : start + BUFFER]
        rows = []
        sources = work.store.rows([number for number, _ in batch], vectors=True)
        for source, (_, place) in zip(sources, batch, strict=True):
            if source is None:
                rest.append(place.path)
                continue
            rows.append(
                Row(place.path, source.vector, place.size, place.mtime, source.sha256, source.width, source.height, source.taken)
            )  # fmt: skip
            work.tally["updated" if place.path in work.known else "added"] += 1
        work.store.upsert(rows)
    return rest


def _forget(work: Work, missing: dict[str, Stamp], unreadable: list[str], keep: bool, prune: bool) -> None:
    """Remove pictures whose files are gone, unless so many are gone that it looks like an accident."""
    gone = [path for path in missing if not inside(path, unreadable) and _is_gone(path)]
    work.tally["missing"] += len(missing) - len(gone)
    if keep:
        work.tally["missing"] += len(gone)
        return
    for folder in work.folders:
        known = sum(inside(path, [folder]) for path in work.known)
        here = sum(inside(path, [folder]) for path in gone)
        if here > GONE * known and not prune:
            raise SyncError(
                f"{folder}: {here:,} of its {known:,} pictures are gone; none was forgotten"
                " (--prune forgets them, --keep-missing goes on without)"
            )
    work.tally["removed"] += work.store.remove(gone)


def _is_gone(path: str) -> bool:
    """Whether the file cannot be there; a folder that may not be read just now is no proof."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return True  # there, but left out since: .crowignore, a name that is no picture's


def _remember_mounts(work: Work, files: dict[str, Entry], prune: bool) -> None:
    """Note the drives mounted inside the folders, to notice when one is gone."""
    folders = {str(entry.path.parent) for entry in files.values()}
    parents = {str(parent) for folder in folders for parent in [Path(folder), *Path(folder).parents]}
    now = {folder for folder in parents if inside(folder, work.folders) and os.path.ismount(folder)}
    before = set(work.store.settings().get("mounts", []))
    after = {mount for mount in before if not (prune and inside(mount, work.folders))} | now
    if after != before:
        work.store.configure(mounts=sorted(after))


def _extract(work: Work, todo: list[str]) -> None:
    """Describe the files, committing every few seconds; whatever ends this, what was described is written first."""
    if not todo:
        return
    describer = work.describer()
    read: dict[str, tuple[os.stat_result, bytes]] = {}
    rows: list[Row] = []
    failures: list[Failure] = []

    def write() -> None:
        batch, broken = rows[:], failures[:]
        if batch or broken:
            with work.store.transaction():
                work.store.upsert(batch)
                work.store.fail(broken)
            del rows[: len(batch)], failures[: len(broken)]
            updated = sum(row.path in work.known for row in batch)
            work.tally.update(added=len(batch) - updated, updated=updated, failed=len(broken))
            work.failures += broken
        work.pace.committed()

    work.pace.begin("describing", len(todo))
    try:
        for item in ticking(describer.stream(_sources(todo, read, failures))):
            if item is not None:
                _take(item, *read.pop(item.key), rows, failures)
            if work.pace.step(0 if item is None else 1) or len(rows) >= BUFFER:
                write()
    except StoreError:
        raise
    except BaseException:
        write()
        raise
    write()


def _sources(
    todo: Iterable[str], read: dict[str, tuple[os.stat_result, bytes]], failures: list[Failure]
) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of every file that can be read; the stamp is taken before the bytes, so no change is missed."""
    from crow.extract.formats import MAX_BYTES

    for path in todo:
        try:
            info = Path(path).stat()
            if info.st_size > MAX_BYTES:
                reason = f"too large: a file of more than {MAX_BYTES >> 30} GiB"
                failures.append(Failure(path, reason, info.st_size, info.st_mtime_ns))
                continue
            data = Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone since the folder was read; the next sync sees it
        except OSError as error:
            failures.append(Failure(path, error.strerror or str(error)))
            continue
        read[path] = info, hashlib.sha256(data).digest()
        yield path, data


def _take(item: Any, info: os.stat_result, digest: bytes, rows: list[Row], failures: list[Failure]) -> None:
    """A described picture as a row, or as a failure with its reason."""
    reason = item.reason
    if reason is None:
        try:
            check_vector(item.key, item.vector, None)
        except StoreError as error:
            reason = str(error)
    size, mtime = info.st_size, info.st_mtime_ns
    if reason is None:
        rows.append(Row(item.key, item.vector, size, mtime, digest, item.width, item.height, item.taken))
    else:
        failures.append(Failure(item.key, reason.removeprefix(f"{item.key}: "), size, mtime))


def _digest(path: str) -> bytes | None:
    """sha256 of a file's bytes, None where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None
