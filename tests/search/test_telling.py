"""How far a sync is, told to other processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tiny import Tiny

from crow.search.index import Index
from crow.search.pace import Pace
from crow.search.telling import FILE, Telling, told


def test_a_sync_tells_how_far_it_is_and_takes_it_back(tmp_path: Path, photos: Callable[..., Path], tiny: Tiny) -> None:
    heard = []
    with Index.create(tmp_path / "a.crow", describer=tiny) as index:
        index.sync(photos(5), progress=lambda pace: heard.append(told(index.store.address)))
        assert heard[-1] and heard[-1]["total"] == 5 and heard[-1]["doing"]
        assert told(index.store.address) is None and not (tmp_path / "a.crow" / FILE).exists()


def test_what_a_killed_sync_left_is_not_believed(tmp_path: Path) -> None:
    telling = Telling(str(tmp_path))
    pace = Pace()
    pace.begin("describing", 7)
    telling(pace)
    assert told(str(tmp_path)) == {"doing": "describing", "done": 0, "total": 7, "left": None}
    os.utime(tmp_path / FILE, (1, 1))
    assert told(str(tmp_path)) is None
    (tmp_path / FILE).write_text("[")
    assert told(str(tmp_path)) is None and told("milvus://elsewhere") is None


def test_a_folder_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    with Telling(str(tmp_path / "nowhere")) as telling:
        telling(Pace())
