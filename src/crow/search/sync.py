"""Sync: a store follows folders. Adds, updates, recognises what moved by its bytes, removes what is gone.

Everything that is written is a commit of a few seconds' work, so a sync that is cut off, in whatever way, is simply
run again: what was committed is unchanged then.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crow.search.intake import BUFFER, digest_of, take_in
from crow.search.pace import Pace
from crow.search.store import Row, Stamp, Store
from crow.search.work import Describes, Report, SyncError, SyncStopped, Work, inside, root_of

if TYPE_CHECKING:
    from crow.extract.walk import Entry

GONE = (
    1 / 5
)  # a larger share of a folder missing at once looks like an unplugged drive; one picture of several never does


def sync(
    store: Store,
    folders: Sequence[str],
    describer: Callable[[], Describes],
    keep_missing: bool = False,
    prune: bool = False,
    progress: Callable[[Pace], None] | None = None,
) -> Report:
    """Bring the store to what lies in the folders; the describer is only made when there is a picture to describe."""
    work = Work(store, frozenset(folders), describer, Pace(progress))
    try:
        with store.writer():
            _present(store, folders, prune)
            files, unreadable = look(folders)
            todo, missing = _compare(work, files)
            todo = _recognise(work, files, todo, missing)
            _forget(work, missing, unreadable, keep_missing, prune)
            _remember_mounts(work, files, prune)
            take_in(work, todo)
    except KeyboardInterrupt:
        raise SyncStopped(work.report()) from None
    return work.report()


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
        digest = digest_of(path) if files[path].size in sizes else None
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
    known, lost = (Counter(root_of(path, work.folders) for path in paths) for paths in (work.known, gone))
    for folder, count in lost.items():
        if (count > max(1, GONE * known[folder]) or count == known[folder]) and not prune:
            raise SyncError(
                f"{folder}: {count:,} of its {known[folder]:,} pictures are gone; none was forgotten"
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
