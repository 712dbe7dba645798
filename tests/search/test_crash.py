"""kill -9 in the middle of writes: nothing acknowledged is lost, nothing is half there. CROW_LONG=1 makes it 200 kills, CROW_KILLS=N any number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from crash_worker import DIM, Rows, after, held, kind_of
from tiny import Tiny, paint

import crow
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES
from crow.search import pace
from crow.search.care import verify
from crow.search.index import Index
from crow.search.store import StoreBusy

KILLS = int(os.environ.get("CROW_KILLS", 200 if os.environ.get("CROW_LONG") else 4))
SEED = int(os.environ.get("CROW_SEED", 5))
WORKER = [sys.executable, str(Path(__file__).with_name("crash_worker.py"))]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(crow.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def start(*arguments: str) -> subprocess.Popen[str]:
    """A worker that has opened its index."""
    process = subprocess.Popen([*WORKER, *arguments], stdin=-1, stdout=-1, stderr=-2, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("ready"), first + process.stdout.read()
    return process


def rest(process: subprocess.Popen[str]) -> str:
    """All that it says until it ends, errors as well (`communicate` would lose what is buffered)."""
    assert process.stdin and process.stdout
    process.stdin.close()
    with process.stdout:
        said = process.stdout.read()
    process.wait()
    return said


def kill_soon(process: subprocess.Popen[str], delay: float) -> list[str]:
    """Kill -9 after so many seconds; everything it had said by then."""
    timer = threading.Timer(delay, process.send_signal, [signal.SIGKILL])
    timer.start()
    said = rest(process)
    timer.join()
    assert process.returncode in (-signal.SIGKILL, 0), said
    return said.splitlines()


def test_killed_while_it_writes(tmp_path: Path) -> None:
    random, inside, rows, step = Random(SEED), Counter[str](), Rows(), 0
    address = str(tmp_path / "a.crow")
    Index.create(address, "crow").close()
    kills = lost = 0
    while inside.total() < KILLS:
        said = kill_soon(start("operations", address), random.uniform(0, 0.4))
        kills += 1
        done = max((int(line.split()[1]) for line in said if line.startswith("done")), default=step)
        begun = max((int(line.split()[1]) for line in said if line.startswith("begin")), default=step)
        if begun > done:
            inside[kind_of(begun)] += 1
        with Index.open(address) as index:
            assert verify(index) == []
            now = int(index.store.settings().get("step", 0))
            lost += now < done
            assert done <= now <= begun
            while step < now:
                step += 1
                rows = after(step, rows)
            assert held(index) == rows
            check_whitening(index, rows)
            if rows:
                path = sorted(rows)[0]
                assert path in [hit.path for hit in index.search(path, k=3)]
    print(
        f"\n{kills} kills, {inside.total()} of them inside a write ({dict(inside)}); acknowledged writes lost: {lost}"
    )


def check_whitening(index: Index, rows: Rows) -> None:
    """The whitening is whole: that of a moment, not half of one."""
    whitening = index.whitening
    if whitening is not None:
        assert whitening.count > whitening.dim and whitening.recipe == RECIPES["crow"]
        assert Whitening.from_bytes(whitening.to_bytes()).fingerprint == whitening.fingerprint
        assert (
            whitening.apply(np.frombuffer(b"".join(rows.values()), np.float32).reshape(-1, DIM)).shape[1]
            == whitening.dim
        )


def test_killed_while_it_syncs(tmp_path: Path) -> None:
    random, folder, address = Random(SEED), tmp_path / "photos", str(tmp_path / "a.crow")
    tiny, inside, kills = Tiny(), 0, 0
    Index.create(address, describer=tiny).close()
    for i in range(120):
        paint(folder / f"{i}.png", i)
    while inside < max(2, KILLS // 4):
        said = kill_soon(start("follow", address, str(folder)), random.uniform(0, 0.5))
        kills += 1
        inside += not any(line.startswith("report") for line in said)
        kept = [int(line.split()[1]) for line in said if line.startswith("kept")]
        with Index.open(address, describer=tiny) as index:
            assert verify(index) == []
            assert len(index) >= max(kept[-1:], default=0)
            for path in index.paths():
                assert Path(path).exists() or len(index) < 2 * kills + 200
        for _ in range(random.randint(1, 20)):  # the folder goes on changing
            path = folder / f"{random.randint(0, 200)}.png"
            if path.exists() and random.random() < 0.3:
                path.rename(folder / f"{random.randint(1000, 9999)}.png")
            else:
                paint(path, random.randint(0, 10**6))
    with Index.open(address, describer=tiny) as index:
        index.sync(folder)
        assert index.paths() == sorted(map(str, folder.glob("[0-9]*.png")))
        np.testing.assert_allclose(index.vectors(index.paths()), tiny(index.paths()), atol=1e-6)
        assert verify(index) == []
    print(f"\n{kills} kills, {inside} of them before the sync was done; the next sync made the index whole")


def test_two_processes_sync_and_four_read(tmp_path: Path) -> None:
    folder, address = tmp_path / "photos", str(tmp_path / "a.crow")
    for i in range(60):
        paint(folder / f"{i}.png", i)
    with Index.create(address, describer=Tiny()) as index:
        index.sync(folder)
        readers = [start("read", address) for _ in range(4)]
        told = []
        for turn in range(4 if KILLS < 100 else 60):
            for i in range(5):
                paint(folder / f"{turn}-{i}.png", 1000 * turn + i)
                paint(folder / f"{(turn * 7 + i) % 60}.png", 5000 * turn + i)
            (folder / f"{turn}-0.png").rename(folder / f"{turn}-moved.png")
            with index.store.writer():
                other = start("follow", address, str(folder))
                errors = rest(other)
                told.append(f"process {os.getpid()} on" in errors and "is writing this index" in errors)
            index.sync()
            if turn % 3 == 1:
                index.rewhiten(4 + turn % 8, to="self")
        said = []
        for reader in readers:
            out = rest(reader)  # its input closes, and it stops
            assert reader.returncode == 0, out
            said.append(out.split())
        assert all(told) and all(int(words[3]) == len(index) for words in said)
        with pytest.raises(StoreBusy), index.store.writer(), Index.open(address) as second:
            second.store.remove(["x"])
    print(
        f"\nthe second writer was told {len(told)} times; 4 readers got {[int(w[1]) for w in said]} answers, no error"
    )


def test_the_commit_interval_is_below_five_seconds() -> None:
    assert pace.COMMIT + pace.TICK < 5
