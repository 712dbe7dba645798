"""Sources: every picture of a folder, a manifest, a Parquet file or a tar is found once, with its bytes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crow.extract.picture import PictureError
from crow.extract.sources import Piece, SourceError, listed, pictures


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


def read(source: str | Path) -> dict[str, bytes]:
    """Key -> bytes; a key that comes twice is an error."""
    found = [(f.key, f.read()) for piece in listed(str(source)) for f in pictures(piece)]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(5):
        (tmp_path / "p" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / ("sub" if i % 2 else ".") / f"{i}.png").write_bytes(png(i))
    (tmp_path / "p" / "notes.doc").write_bytes(b"no picture")
    return tmp_path / "p"


def test_a_folder(folder: Path) -> None:
    expected = {str(path): path.read_bytes() for path in folder.rglob("*.png")}
    assert read(folder) == expected and len(expected) == 5
    piece = next(iter(listed(str(folder))))
    assert (piece.size, piece.mtime) == (Path(piece.place).stat().st_size, Path(piece.place).stat().st_mtime_ns)
    with pytest.raises(SourceError, match="nowhere: no such file or folder"):
        list(listed(str(folder / "nowhere")))


def test_a_manifest(folder: Path) -> None:
    lines = ["# two of them, and what is none", "", "0.png", str(folder / "sub" / "1.png"), "gone.png", "hello world"]
    (folder / "list.txt").write_bytes("\n".join(lines).encode() + b"\r\ncaf\xe9.png\n")
    found = [f for piece in listed(str(folder / "list.txt")) for f in pictures(piece)]
    assert [f.key for f in found] == [
        str(folder / "0.png"), str(folder / "sub" / "1.png"), str(folder / "gone.png"),
        f"{folder}/list.txt#6", os.fsdecode(os.fsencode(f"{folder}/") + b"caf\xe9.png"),
    ]  # fmt: skip
    assert found[0].read() == png(0) and found[1].read() == png(1)
    assert found[0].size == len(png(0)) and found[0].mtime == (folder / "0.png").stat().st_mtime_ns
    with pytest.raises(PictureError, match=r"gone.png: listed, but not there any more"):
        found[2].read()
    with pytest.raises(PictureError, match="line 6 is no path of a picture: hello world"):
        found[3].read()


def test_parquet_with_bytes(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [f"{i}.png" for i in range(10)]
    plain = pa.table({"path": names, "bytes": [png(i) for i in range(10)]})
    parquet.write_table(plain, tmp_path / "plain.parquet", row_group_size=4)
    struct = pa.table({"image": [{"bytes": png(i), "path": name} for i, name in enumerate(names)], "label": [0] * 10})
    parquet.write_table(struct, tmp_path / "struct.parquet")
    for name in ("plain", "struct"):
        place = tmp_path / f"{name}.parquet"
        assert read(place) == {f"{place}#{i}.png": png(i) for i in range(10)}
    assert [piece.part for piece in listed(str(tmp_path / "plain.parquet"))] == [0, 1, 2]
    assert len(read(tmp_path)) == 20
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match=r"no column bytes or .*there are: x"):
        read(tmp_path / "other.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(SourceError, match="not a Parquet file"):
        read(tmp_path / "broken.parquet")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_tar_as_webdataset_writes_it(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as tar:
        for i in range(6):
            for suffix, data in (("png", png(i)), ("json", b"{}"), ("cls", b"3")):
                info = tarfile.TarInfo(f"{i:06}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    assert read(tmp_path / name) == {f"{tmp_path / name}#{i:06}.png": png(i) for i in range(6)}
    assert len(read(tmp_path)) == 6


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(SourceError, match="no pictures are read from ftp://"):
        list(listed("ftp://host/folder"))
    with pytest.raises(PictureError, match="because"):
        next(pictures(Piece("x", reason="because"))).read()
