"""Pictures in an object store: a real S3 server, listed, read and described on the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers import WORDS, Weed
from tiny import Tiny, paint

from crow.extract.picture import PictureError
from crow.extract.sources import Piece, SourceError, listed, pictures, read
from crow.search import scale
from crow.search.index import Index


@pytest.fixture
def bucket(weed: Weed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A bucket with twenty pictures, in folders."""
    fs = pytest.importorskip("pyarrow.fs")
    for name, value in (WORDS | {"AWS_ENDPOINT_URL": weed.endpoint}).items():
        monkeypatch.setenv(name, value)
    system = fs.S3FileSystem(endpoint_override=weed.endpoint, allow_bucket_creation=True)
    system.create_dir("photos")
    for i in range(20):
        with system.open_output_stream(f"photos/a b/{i % 3}/{i}.png") as out:
            out.write(paint(tmp_path / f"{i}.png", i).read_bytes())
    with system.open_output_stream("photos/list.txt") as out:
        out.write(b"a b/0/0.png\ns3://photos/a b/1/1.png\ns3://photos/gone.png\nno picture\n")
    return system


def test_an_address_is_listed_and_read(bucket: Any, tmp_path: Path) -> None:
    found = {f.key: f.read() for piece in listed("s3://photos/a b") for f in pictures(piece)}
    assert found == {f"s3://photos/a b/{i % 3}/{i}.png": (tmp_path / f"{i}.png").read_bytes() for i in range(20)}
    assert all(piece.size > 0 and piece.mtime > 0 for piece in listed("s3://photos/a b/"))
    bucket.delete_file("photos/a b/0/3.png")
    with pytest.raises(PictureError, match="listed, but not there any more"):
        read("s3://photos/a b/0/3.png")
    with pytest.raises(SourceError, match="s3://nobucket/x: cannot be listed"):
        list(listed("s3://nobucket/x"))
    assert [piece.place for piece in listed("s3://photos/list.txt")][:3] == [
        "s3://photos/a b/0/0.png", "s3://photos/a b/1/1.png", "s3://photos/gone.png",
    ]  # fmt: skip
    assert isinstance(next(listed("s3://photos/list.txt")), Piece)


def test_a_job_over_a_manifest_names_what_is_missing(bucket: Any, tmp_path: Path) -> None:
    """On a cluster that this process starts, so that its workers know the server's address."""
    pytest.importorskip("ray")
    with Index.create(tmp_path / "a.crow", "crow") as index:
        report = scale.extract(index, ["s3://photos/list.txt"], "local", make=Tiny)
        assert (report.added, report.failed, report.missing) == (2, 2, 0)
        reasons = {f.path: f.reason for f in report.failures}
        assert "not there any more" in reasons["s3://photos/gone.png"]
        assert "line 4 is no path" in reasons["s3://photos/list.txt#4"]
        assert index.paths() == ["s3://photos/a b/0/0.png", "s3://photos/a b/1/1.png"]
        again = scale.extract(index, ["s3://photos/a b"], "local", make=Tiny)
        assert (again.added, again.unchanged, again.missing) == (18, 2, 0)
