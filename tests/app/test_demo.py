"""What `make demo PHOTOS=folder` shows, over a describer without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))
from tiny import Tiny, paint

from crow.app.demo import main


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("crow.extract.describer.Describer", lambda recipe, **_: Tiny(recipe))
    monkeypatch.chdir(tmp_path)


def test_folders_of_one_name_are_shown_each_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for place, names in (("a", "pqr"), ("b", "xyz")):
        for i, name in enumerate(names):
            paint(Path(place, "holiday", f"{name}.png"), i, 40)
        main(Path(place, "holiday"))
        told = capsys.readouterr().out
        assert {name for name in "pqrxyz" if f"{name}.png" in told} == set(names)
    assert Path("demo/search-3.html").is_file() and Path("demo/holiday.crow").is_dir()


def test_a_folder_that_is_not_there_is_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^nowhere: no such folder$"):
        main(Path("nowhere"))
    assert not Path("demo").exists()
