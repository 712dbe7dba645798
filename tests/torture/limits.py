"""Full disks and other limits: work goes wrong in one line, keeps what it acknowledged, and goes on once there is room."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
from tiny import Tiny, paint

import crow
from crow.search.care import verify
from crow.search.index import Index
from crow.search.store import StoreError
from torture import operations, shim
from torture.campaign import Lane, Try
from torture.children import Say, in_child
from torture.operations import after, held, step_of

MIB = 1 << 20
NEWNS, NEWUSER, REMOUNT, READONLY, BIND = 0x20000, 0x10000000, 32, 1, 4096  # <sched.h>, <sys/mount.h>
SOURCE = str(Path(crow.__file__).parents[1])


def limits(lane: Lane) -> Iterator[Try]:
    """Disks that fill up, at ever other places; and in between each of the other limits."""
    if not shim.is_there():
        yield Try("no C compiler here: not tried", count=0)
        return
    others = sorted(OTHERS)
    for number in count():
        size = lane.random.randint(200, 2200) << 10
        yield _tried("full disk", lane, lambda say, s=size: full_disk(lane.fresh("full"), s))  # type: ignore[misc]
        when = lane.random.randint(1, 400)
        for how, name in ((shim.FULL_FROM, "writes fail"), (shim.BROKEN_FROM, "disk errors")):
            yield _tried(name, lane, lambda say, w=when, h=how: failing(lane.fresh("fails"), h, w))  # type: ignore[misc]
        if number % 5 == 0:
            name = others[number // 5 % len(others)]
            yield _tried(name, lane, lambda say, n=name: OTHERS[n](lane.fresh("other")))  # type: ignore[misc]


def _tried(name: str, lane: Lane, work: Callable[[Say], None]) -> Try:
    ended = in_child(work, limit=180)
    if "PermissionError" in ended.how and "mount" in ended.how:
        return Try(f"{name}: no right to mount here, not tried", count=0)
    return Try(name, ended.how)


def full_disk(folder: Path, size: int) -> None:
    """A small disk of its own; the index is filled until it is full, then the disk gets room."""
    mount(folder, f"size={size}")
    _until_it_fails(folder / "a.crow", lambda: mount(folder, f"size={size + 64 * MIB}", REMOUNT))


def failing(folder: Path, how: int, when: int) -> None:
    """From one operation on, all writes fail; then the disk is well again."""
    shim.arm(folder, how, when)
    _until_it_fails(folder / "a.crow", shim.disarm)


def _until_it_fails(address: Path, heal: Callable[[], None]) -> None:
    """Write until an error comes; it is one line for users, and nothing acknowledged is lost, at once and later."""
    said: list[str] = []
    try:
        Index.create(address, "crow").close()
        for line in operations.go_on(str(address), 400):
            said.append(line)
    except StoreError as error:
        assert "\n" not in str(error) and str(address.parent) in str(error), f"not one line that names it: {error}"
    heal()
    if not address.exists():
        assert not said, "what was acknowledged is gone"
        Index.create(address, "crow").close()
    done = max((int(line.split()[1]) for line in said if line.startswith("done")), default=0)
    begun = max((int(line.split()[1]) for line in said if line.startswith("begin")), default=0)
    with Index.open(address) as index:
        now = step_of(index)
        assert done <= now <= max(begun, done), f"acknowledged {done}, begun {begun}, kept {now}"
        rows: operations.Rows = {}
        for step in range(1, now + 1):
            rows = after(step, rows)
        assert held(index) == rows, "what is held is not what was acknowledged"
    list(operations.go_on(str(address), 3))
    with Index.open(address) as index:
        assert verify(index) == [], f"afterwards: {verify(index)}"
        assert step_of(index) == now + 3


def read_only(folder: Path) -> None:
    """An index on a disk that may only be read answers as before, and says in one line that it cannot be written."""
    address, expected = _small(folder)
    mount(folder, "", BIND, source=folder)
    mount(folder, "", BIND | REMOUNT | READONLY, source=folder)
    with Index.open(address, describer=Tiny()) as index:
        assert _answers(index) == expected and verify(index) == []
        for write in (lambda: index.store.remove(["/x"]), lambda: index.rewhiten(4, to="self"), index.sync):
            _refused(write)


def few_files(folder: Path) -> None:
    """64 open files are enough for a sync of 200 pictures, a whitening, a build and searches."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    address, expected = _small(folder, 200)
    for _ in range(40):
        with Index.open(address, describer=Tiny()) as index:
            index.rewhiten(5, to="self")
            index.sync()
            assert verify(index) == []
    with Index.open(address, describer=Tiny()) as index:
        index.rewhiten(6, to="self")
        assert _answers(index) == expected


def few_files_real(folder: Path) -> None:
    """The same from the command line with the real network."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    _commands(folder)


def little_memory(folder: Path) -> None:
    """1.5 GB of addresses: what needs no network works; what needs one works, or ends in one line."""
    address, expected = _small(folder)
    resource.setrlimit(resource.RLIMIT_AS, (1536 * MIB, 1536 * MIB))
    with Index.open(address, describer=Tiny()) as index:
        assert _answers(index) == expected
    for command in (["search", str(address), str(folder / "photos" / "1.png")], ["verify", str(address)], ["info", str(address)]):  # fmt: skip
        _ran(command, folder, {0})
    paint(folder / "more" / "x.png", 5, 64)
    _ran(["index", str(folder / "more"), str(folder / "b.crow"), "--size", "96"], folder, {0, 1})


def no_temporary_folder(folder: Path) -> None:
    """/tmp and its like can be read but not written."""
    os.environ.pop("TMPDIR", None)
    places = [Path(p) for p in ("/tmp", "/var/tmp", "/usr/tmp") if Path(p).is_dir()]
    unshare()
    for place in places:
        if folder.is_relative_to(place):
            raise PermissionError("mount: the torture itself lies in the temporary folder")
        _mount("none", place, "tmpfs", READONLY, "size=4k")
    _commands(folder)


def clock_jumps_back(folder: Path) -> None:
    """The clock goes back by two days in the middle of the work: nothing is taken for old, new or stale by mistake."""
    photos = folder / "photos"
    for i in range(30):
        paint(photos / f"{i}.png", i)
    with Index.create(folder / "a.crow", describer=Tiny()) as index:
        index.sync(photos)
        shim.shift_clock(-2 * 86400)
        path = paint(photos / "3.png", 1003)
        os.utime(path, (0, 0))
        assert index.sync().updated == 1
        paint(photos / "30.png", 30)
        assert index.sync().added == 1 and index.sync().unchanged == 31
        shim.shift_clock(4 * 86400)
        assert index.sync().unchanged == 31 and verify(index) == []
        np.testing.assert_allclose(index.vectors(index.paths()), Tiny()(index.paths()), atol=1e-6)


OTHERS: dict[str, Callable[[Path], None]] = {
    "read-only mount": read_only,
    "64 open files": few_files,
    "64 open files, network": few_files_real,
    "1.5 GB of addresses": little_memory,
    "no /tmp": no_temporary_folder,
    "clock jumps back": clock_jumps_back,
}


def _small(folder: Path, count: int = 60) -> tuple[Path, list[list[tuple[str, float]]]]:
    """An index of painted pictures, and its answers."""
    for i in range(count):
        paint(folder / "photos" / f"{i}.png", i)
    with Index.create(folder / "a.crow", describer=Tiny()) as index:
        index.sync(folder / "photos")
        index.rewhiten(6, to="self")
        return folder / "a.crow", _answers(index)


def _answers(index: Index) -> list[list[tuple[str, float]]]:
    queries = [np.random.default_rng(seed).standard_normal(16).astype(np.float32) for seed in range(3)]
    return [[(hit.path, hit.score) for hit in index.search(query, k=9)] for query in queries]


def _refused(write: Callable[[], object]) -> None:
    try:
        write()
    except ValueError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
    else:
        raise AssertionError("a write to a disk that may only be read passes for done")


def _commands(folder: Path) -> None:
    """The everyday commands, with the real network where its weights are here."""
    from crow.extract.pretrained import cache_folder

    for i in range(6):
        paint(folder / "photos" / f"{i}.png", i, 96)
    if (cache_folder() / "vgg16.safetensors").is_file():
        photos, address = str(folder / "photos"), str(folder / "a.crow")
        _ran(["index", photos, address, "--size", "96"], folder, {0})
        _ran(["search", address, str(folder / "photos" / "1.png"), "--box", "0,0,50,50"], folder, {0})
    else:
        _small(folder)
        address = str(folder / "a.crow")
    for command in (["verify", address], ["rewhiten", address, "--dim", "2"], ["export", address, str(folder / "x.npz")], ["index", str(folder / "photos"), address]):  # fmt: skip
        _ran(command, folder, {0})


def _ran(command: list[str], folder: Path, codes: set[int]) -> None:
    """A command of the real program ends with one of these codes, without a traceback and not by a signal."""
    environment = shim.plain_environment() | {"PYTHONPATH": SOURCE, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-m", "crow.app.cli", *command],
        env={name: value for name, value in environment.items() if name != "TMPDIR"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"code {done.returncode}"
    assert done.returncode in codes and "Traceback" not in done.stderr, f"crow {command[0]}: {how}: {last[:300]}"


def mount(folder: Path, options: str, flags: int = 0, source: Path | None = None) -> None:
    """Mount there, in a namespace of this process alone."""
    if not flags & REMOUNT:
        unshare()
    _mount(str(source or "none"), folder, None if flags & (BIND | REMOUNT) else "tmpfs", flags, options)


def unshare() -> None:
    """A namespace of mounts of its own; PermissionError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if not (os.geteuid() == 0 and libc.unshare(NEWNS) == 0):
        if libc.unshare(NEWNS | NEWUSER):
            raise PermissionError(f"mount: {os.strerror(ctypes.get_errno())}")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    libc.mount(b"none", b"/", None, ctypes.c_ulong(0x44000), None)  # MS_PRIVATE | MS_REC: nothing gets out


def _mount(source: str, folder: Path, kind: str | None, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    what = kind.encode() if kind else None
    if libc.mount(source.encode(), os.fsencode(folder), what, ctypes.c_ulong(flags), options.encode()):
        raise PermissionError(f"mount: {os.strerror(ctypes.get_errno())}")
