"""Several processes on one index, and kills by the torture's own campaigns (tests/torture). CROW_LONG=1 goes on longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import Tiny, paint

import crow
from crow.search import pace
from crow.search.index import Index
from crow.search.store import StoreBusy

TURNS = 60 if os.environ.get("CROW_LONG") else 4
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


def test_two_processes_sync_and_four_read(tmp_path: Path) -> None:
    folder, address = tmp_path / "photos", str(tmp_path / "a.crow")
    for i in range(60):
        paint(folder / f"{i}.png", i)
    with Index.create(address, describer=Tiny()) as index:
        index.sync(folder)
        readers = [start("read", address) for _ in range(4)]
        told = []
        for turn in range(TURNS):
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
