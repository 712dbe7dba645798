"""The commands of the search floor, over a describer without a network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))
from tiny import Tiny, paint

from crow.app.cli import app
from crow.recipe import EVERYDAY
from crow.search.index import Index


@pytest.fixture
def crow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run `crow ...` in a folder with 12 pictures in photos/; pictures are described by Tiny."""
    monkeypatch.setattr("crow.extract.describer.Describer", lambda recipe, **_: Tiny(recipe))
    monkeypatch.chdir(tmp_path)
    for i in range(12):
        paint(tmp_path / "photos" / f"{i}.png", i, 40)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        if result.exception and not isinstance(result.exception, SystemExit):
            return str(result.exception)
        return result.stdout

    return run


def test_index_then_search(crow, tmp_path: Path) -> None:
    assert "12 pictures (12 added, 0 updated, 0 moved" in crow("index", "photos", "a.crow")
    assert "12 unchanged" in crow("index", "photos", "a.crow")
    assert "12 unchanged" in crow("index", "a.crow")
    records = json.loads(crow("search", "a.crow", "photos/3.png", "-k", "4", "--json"))
    assert records[0]["path"] == str(tmp_path / "photos/3.png") and len(records) == 4
    assert records[0]["score"] == pytest.approx(1, abs=1e-3)
    boxed = json.loads(crow("search", "a.crow", "photos/3.png", "--box", "0,0,20,20", "--json", "--expand", "2"))
    assert len(boxed) == 10
    table = crow("search", "a.crow", "photos/3.png", "photos/4.png", "-k", "2")
    assert "photos/3.png" in table and "photos/4.png" in table
    head, row = (line.split(maxsplit=3) for line in table.splitlines()[:2])
    assert dict(zip(head, row, strict=True)) == {"rank": "1", "score": ANY, "chance": "-", "path": ANY}


def test_exit_codes(crow, tmp_path: Path) -> None:
    (tmp_path / "photos/broken.png").write_bytes(b"no picture")
    crow("index", "photos", "a.crow", code=3)
    crow("index", "photos", "a.crow", code=0)
    crow("index", "a2.crow", code=2)
    crow("search", "a.crow", "photos/3.png", "--box", "1,2,3", code=2)
    crow("search", "a.crow", "nowhere.png", code=1)
    assert "no index is there" in crow("search", "b.crow", "photos/3.png", code=1)
    assert "no such folder" in crow("index", "nowhere", "a.crow", code=1)
    assert crow("index", "photos", "nowhere", "d.crow", code=1) == "nowhere: no such folder"
    assert not (tmp_path / "d.crow").exists()
    for forgotten in (("photos",), ("a.crow", "photos")):
        crow("index", *forgotten, code=2)
    assert "spatial.kind: response / uniform" in crow("index", "photos", "a.crow", "--recipe", "ucrow", code=1)
    assert f"view.size.pixels: {EVERYDAY.pixels} / 320" in crow("index", "photos", "a.crow", "--size", "320", code=1)
    crow("index", "photos", "a.crow", "--recipe", "crow")
    (tmp_path / "only").mkdir()
    (tmp_path / "only/broken.png").write_bytes(b"no picture")
    crow("index", "only", "c.crow", code=1)
    (tmp_path / "empty").mkdir()
    crow("index", "empty", "e.crow")
    crow("search", "a.crow", "photos/3.png", "--html", "nowhere/s.html", code=2)


def test_contact_sheets(crow, tmp_path: Path) -> None:
    strange = os.fsdecode(b"photos/<b>\xff.png")
    paint(tmp_path / strange, 50, 40)
    crow("index", "photos", "a.crow")
    (tmp_path / "photos/1.png").unlink()
    crow("search", "a.crow", "photos/3.png", "-k", "13", "--box", "10,10,30,30", "--html", "s.html", "--png", "s.png")
    page = (tmp_path / "s.html").read_text()
    assert page.count("<figure") == 14 and "&lt;b&gt;\\udcff.png" in page and "http" not in page
    sheet = np.asarray(Image.open(tmp_path / "s.png").convert("RGB")).astype(int)
    red = (abs(sheet - [0xD9, 0x30, 0x25]).max(-1) < 3)[:252, :252]
    rows, columns = np.nonzero(red)
    assert (abs(np.array([rows.min(), rows.max(), columns.min(), columns.max()]) - 12 - [60, 180, 60, 180]) <= 2).all()


def test_care(crow, tmp_path: Path) -> None:
    crow("index", "photos", "a.crow")
    (tmp_path / "photos/copy.png").write_bytes((tmp_path / "photos/0.png").read_bytes())
    crow("index", "photos", "a.crow")
    assert "8 dimensions" in crow("rewhiten", "a.crow", "--dim", "8")
    assert "13 pictures, all as they were written" in crow("verify", "a.crow")
    assert json.loads(crow("info", "a.crow", "--json"))["whitening"]["dim"] == 8
    told = dict(line.split(maxsplit=1) for line in crow("info", "a.crow").splitlines())
    assert told["pictures"] == "13" and told["folders"] == str(tmp_path / "photos")
    assert told["whitening"].startswith("8 dimensions, learned from 13 vectors (the 13 pictures")
    (group,) = json.loads(crow("duplicates", "a.crow", "--score", "0.999", "--json"))
    assert [Path(p).name for p in group] == ["0.png", "copy.png"]
    crow("backup", "a.crow", "b.crow")
    for name in ("x.npz", "x.parquet"):
        crow("export", "a.crow", name)
        assert "13 pictures imported" in crow("import", f"{name}.crow", name)
        with Index.open("b.crow") as one, Index.open(f"{name}.crow") as two:
            assert one.store.stamps().keys() == two.store.stamps().keys()
            np.testing.assert_array_equal(one.store.vectors(), two.store.vectors())
    assert "13 unchanged" in crow("index", "photos", "x.npz.crow")
    with np.load(tmp_path / "x.npz") as file:
        assert file["vectors"].shape == (13, 16) and len(file["paths"]) == 13
