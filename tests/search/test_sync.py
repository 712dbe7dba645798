"""Sync at its edges: interrupted, the disk full, files that vanish or grow, folders followed, honest estimates."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Described, Tiny, paint

from crow.search import intake
from crow.search.care import verify
from crow.search.index import Index
from crow.search.pace import Pace, ticking
from crow.search.store import StoreError
from crow.search.work import SyncStopped

Photos = Callable[..., Path]


class Troubled(Tiny):
    """Something happens before the n-th picture."""

    def __init__(self, at: int, trouble: Callable[[], Any]) -> None:
        super().__init__()
        self.at, self.trouble = at, trouble

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for i, item in enumerate(items):
            if i == self.at:
                self.trouble()
            yield from super().stream([item])


def raise_(error: BaseException) -> Callable[[], Any]:
    def trouble() -> None:
        raise error

    return trouble


def test_ctrl_c_keeps_what_was_described_and_says_so(tmp_path: Path, photos: Photos) -> None:
    folder = photos(20)
    with Index.create(tmp_path / "a.crow", describer=Troubled(7, raise_(KeyboardInterrupt()))) as index:
        with pytest.raises(SyncStopped, match="kept: 7 added") as stopped:
            index.sync(folder)
        assert stopped.value.report.added == len(index) == 7
    with Index.open(tmp_path / "a.crow", describer=Tiny()) as index:
        report = index.sync()  # the folder is remembered
        assert (report.added, report.unchanged) == (13, 7)


def test_a_describer_that_breaks_down_loses_nothing(tmp_path: Path, photos: Photos) -> None:
    with Index.create(tmp_path / "a.crow", describer=Troubled(7, raise_(RuntimeError("out of memory")))) as index:
        with pytest.raises(RuntimeError, match="out of memory"):
            index.sync(photos(20))
        assert len(index) == 7 and verify(index) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_a_vector_that_can_be_no_descriptor_is_a_failure(tmp_path: Path, photos: Photos, bad: float) -> None:
    class Bad(Tiny):
        def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
            for described in super().stream(items):
                wrong = described.key.endswith("3.png")
                yield Described(described.key, np.full(16, bad, np.float32)) if wrong else described

    with Index.create(tmp_path / "a.crow", describer=Bad()) as index:
        report = index.sync(photos(5))
        assert (report.added, report.failed) == (4, 1)
        assert "zero" in report.failures[0].reason or "NaN or infinity" in report.failures[0].reason


def test_files_that_vanish_or_change_while_it_runs(tmp_path: Path, photos: Photos) -> None:
    folder = photos(10)

    def trouble() -> None:
        for i in (5, 6):
            (folder / f"{i}.png").unlink()
        paint(folder / "0.png", 500)  # was described already

    with Index.create(tmp_path / "a.crow", describer=Troubled(5, trouble)) as index:
        assert index.sync(folder).added in (8, 9)  # the first that vanished may have been read before
        report = index.sync(prune=True)
        assert (report.updated, len(index)) == (1, 8)
        np.testing.assert_allclose(index.vectors([folder / "0.png"])[0], Tiny()(folder / "0.png")[0], atol=1e-6)


def test_a_folder_that_vanishes_while_it_runs_forgets_nothing(tmp_path: Path, photos: Photos) -> None:
    folder = photos(10)
    with Index.create(tmp_path / "a.crow", describer=Tiny()) as index:
        index.sync(folder)
    photos(10, first=10)
    trouble = Troubled(3, lambda: folder.rename(tmp_path / "gone"))
    with Index.open(tmp_path / "a.crow", describer=trouble) as index:
        assert index.sync(folder).failed == 0
        assert len(index) >= 13
        with pytest.raises(ValueError, match="no such folder"):
            index.sync(folder)


def test_a_full_disk_keeps_what_was_committed(tmp_path: Path, photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(small)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root, where mounting is allowed")
    try:
        monkeypatch.setattr(intake, "BUFFER", 50)
        folder = photos(1200)
        with Index.create(small / "a.crow", describer=Tiny()) as index:
            with pytest.raises(StoreError, match=r"a\.crow: the disk is full; what was committed before is kept"):
                index.sync(folder)
            kept = len(index)
            assert 0 < kept < 1200 and verify(index) == []
            assert len(index.search(folder / "0.png", k=5)) == 5
        subprocess.run([*command[:1], "-o", "remount,size=20m", str(small)], check=True)
        with Index.open(small / "a.crow", describer=Tiny()) as index:
            report = index.sync(folder)
            assert (report.unchanged, report.added, verify(index)) == (kept, 1200 - kept, [])
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_an_index_that_may_only_be_read(tmp_path: Path, photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(10)
    with Index.create(tmp_path / "a.crow", describer=Tiny()) as index:
        index.sync(folder)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    with Index.open(tmp_path / "a.crow", describer=Tiny()) as index:
        assert index.search(folder / "3.png", k=1)[0].path == str(folder / "3.png")
        with pytest.raises(StoreError, match="may only be read here"):
            index.rewhiten(3)


def test_a_crowignore_written_later_takes_pictures_out(tmp_path: Path, photos: Photos) -> None:
    folder = photos(30)
    with Index.create(tmp_path / "a.crow", describer=Tiny()) as index:
        index.sync(folder)
        (folder / ".crowignore").write_text("1?.png\n!15.png\n")
        with pytest.raises(ValueError, match="9 of its 30"):
            index.sync()
        assert index.sync(prune=True).removed == 9


def test_folders_of_one_index_do_not_touch_each_other(tmp_path: Path, photos: Photos) -> None:
    one, two = photos(5, "one"), photos(5, "two", first=50)
    with Index.create(tmp_path / "a.crow", describer=Tiny()) as index:
        index.sync(one)
        assert index.sync(two).removed == 0
        assert index.store.settings()["folders"] == [str(one), str(two)]
        (one / "0.png").rename(two / "x.png")  # from one folder to the other is a move, not a loss
        report = index.sync()
        assert (report.moved, report.removed, report.added) == (1, 0, 0)
        assert index.sync(two, two / "..", one).unchanged == 10


def test_watching_sees_what_happens_later(tmp_path: Path, photos: Photos) -> None:
    pytest.importorskip("watchfiles")
    folder, stop = photos(3), threading.Event()
    with Index.create(folder / "inside.crow", describer=Tiny()) as index:
        seen = index.watch(folder, stop=stop)
        assert next(seen).added == 3
        paint(folder / "before.png", 70)  # after the sync, before the watching begins
        assert next(seen).added == 1
        paint(folder / "later.png", 71)
        assert next(seen).added == 1
        stop.set()
        assert list(seen) == []


def test_the_time_left_is_honest_from_the_first_answer() -> None:
    now = [0.0]
    work = Pace(clock=lambda: now[0])
    now[0] = 60.0  # loading a network does not count
    work.begin("describing", 400)
    assert work.left is None
    for _ in range(50):  # eight at a time, as an engine answers, half a second each
        now[0] += 4.0
        for _ in range(8):
            work.step()
        true = (400 - work.done) * 0.5
        assert work.left == pytest.approx(true, rel=0.01)


def test_commits_do_not_wait_for_a_slow_picture() -> None:
    go = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        go.wait(60)
        yield 2

    items = ticking(slow(), 0.01)
    assert next(items) == 1
    assert [next(items) for _ in range(3)] == [None] * 3
    go.set()
    assert [item for item in items if item is not None] == [2]


def test_ticking_passes_errors_on_and_stops_its_thread() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    items = ticking(endless(), 0.01)
    assert next(items) == 1
    items.close()
    assert closed.is_set()
    with pytest.raises(ZeroDivisionError):
        list(ticking((1 // x for x in (1, 0)), 0.01))
