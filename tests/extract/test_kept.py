"""What is kept in the cache folder: whole or not at all, and never in the way."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crow.extract.engines.kept import keep, kept

DATA = bytes(range(256)) * 40


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "one" / "two.bin"
    assert kept(place) is None
    for data in (DATA, b"", b"other"):
        keep(data, place)
        assert kept(place) == data
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("at", [0, 31, 32, 40, -1])
def test_a_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    keep(DATA, tmp_path / "x")
    damaged = bytearray((tmp_path / "x").read_bytes())
    damaged[at] ^= 1
    (tmp_path / "x").write_bytes(damaged)
    assert kept(tmp_path / "x") is None


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, len(DATA) + 31])
def test_a_cut_file_is_noticed(tmp_path: Path, length: int) -> None:
    keep(DATA, tmp_path / "x")
    os.truncate(tmp_path / "x", length)
    assert kept(tmp_path / "x") is None
    keep(DATA, tmp_path / "x")  # and made anew
    assert kept(tmp_path / "x") == DATA


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    keep(DATA, tmp_path / "file" / "x")
    assert kept(tmp_path / "file" / "x") is None
    (tmp_path / "folder" / "x").mkdir(parents=True)
    keep(DATA, tmp_path / "folder" / "x")  # the place is taken by a folder
    assert kept(tmp_path / "folder" / "x") is None
    assert [place.name for place in (tmp_path / "folder").iterdir()] == ["x"]  # and no part is left


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    contents = [bytes([i]) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda data: keep(data, tmp_path / "x"), contents * 5))
    assert kept(tmp_path / "x") in contents
    assert [place.name for place in tmp_path.iterdir()] == ["x"]
