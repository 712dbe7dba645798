"""The disk under an index: network filesystems, and the lock of the one writer."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crow.search.store import StoreBusy, StoreError

NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gluster",
    "fuse.sshfs",
    "fuse.rclone",
    "davfs",
    "ncpfs",
)


def is_network(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a folder lies on another machine, where SQLite's shared memory (WAL) is unsafe."""
    if not mounts.exists():
        return False
    target, best, kind = os.fsencode(folder.resolve()), b"", ""
    for line in mounts.read_bytes().splitlines():
        left, _, right = line.partition(b" - ")
        point = left.split(b" ")[4].decode("unicode_escape").encode("latin-1")  # spaces are written \040
        inside = target == point or target.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(b" ")[0].decode()
    return kind.startswith(NETWORK)


class WriterLock:
    """One writer at a time, over threads and processes; the system lets go of it when its holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = threading.RLock()
        self._depth = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock; inside itself it may be taken again."""
        if not self._thread.acquire(blocking=False):
            raise self._busy(f"{os.getpid()}")
        try:
            if not self._depth:
                self._take()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    os.close(self._file)
        finally:
            self._thread.release()

    def _take(self) -> None:
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path.parent}: this index cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise self._busy(holder or "unknown") from None
        with suppress(OSError):  # on a full disk the lock holds without the name of its holder
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _busy(self, holder: str) -> StoreBusy:
        return StoreBusy(f"{self.path.parent}: process {holder} is writing this index; try again when it is done")
