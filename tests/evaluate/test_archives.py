"""Fetching against a server of our own on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from crow.evaluate.archives import ARCHIVES, Archive, ArchiveError, bring, lying, recorded
from crow.evaluate.datasets import DATASETS


def tgz(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def server():
    """A server of `files`; a file named in `broken` breaks off half way, the first time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data = self.server.files.get(self.path.strip("/"))
            self.server.asked.append((self.path, self.headers.get("Range")))
            if data is None:
                self.send_error(404)
                return
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            name = self.path.strip("/")
            stop = len(data) // 2 if name in self.server.broken else len(data)
            self.server.broken.discard(name)
            self.wfile.write(data[start:stop])

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.files, httpd.broken, httpd.asked = {}, set(), []
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def at(server, name):
    return Archive(f"http://127.0.0.1:{server.server_port}/{name}")


def test_fetched_resumed_recorded_and_unpacked(server, tmp_path):
    data = tgz(a__b=b"inside" * 20000)
    server.files["pictures.tgz"], server.broken = data, {"pictures.tgz"}
    state = bring(at(server, "pictures.tgz"), tmp_path)
    digest = hashlib.sha256(data).hexdigest()
    assert (state["bytes"], state["sha256"]) == (len(data), digest)
    assert server.asked == [("/pictures.tgz", None), ("/pictures.tgz", f"bytes={len(data) // 2}-")]
    assert (tmp_path / "pictures.tgz").read_bytes() == data
    assert (tmp_path / "pictures" / "a" / "b").read_bytes() == b"inside" * 20000
    kept = json.loads((tmp_path / "archives.json").read_text())["pictures.tgz"]
    assert kept["sha256"] == digest and kept["from"].endswith("/pictures.tgz")
    bring(at(server, "pictures.tgz"), tmp_path)
    assert len(server.asked) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archives.json", "pictures", "pictures.tgz"]


def test_a_web_page_in_place_of_an_archive_is_refused_by_name(server, tmp_path):
    server.files["jpg1.tar.gz"] = b"<!DOCTYPE html><title>moved</title>"
    with pytest.raises(ArchiveError, match=r"jpg1\.tar\.gz: a web page, not the \.gz archive .*it came from http"):
        bring(at(server, "jpg1.tar.gz"), tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "gnd.pkl").write_bytes(b"\n<html>")
    with pytest.raises(ArchiveError, match=r"gnd\.pkl: a web page"):
        bring(at(server, "gnd.pkl"), tmp_path, fetch=False)


def test_what_cannot_be_fetched_says_what_to_do(server, tmp_path):
    with pytest.raises(ArchiveError, match=r"HTTP 404.*put none\.tgz into .* by hand"):
        bring(at(server, "none.tgz"), tmp_path)
    with pytest.raises(ArchiveError, match=r"only https.*put jpg1\.tar\.gz into"):
        bring(ARCHIVES["holidays"][0], tmp_path)
    state = bring(ARCHIVES["holidays"][0], tmp_path, fetch=False)
    assert state["state"].startswith("not here; to be had from ftp://")


def test_a_file_that_changed_since_it_was_recorded_is_refused(server, tmp_path):
    server.files["x.tgz"] = data = tgz(a=b"1")
    bring(at(server, "x.tgz"), tmp_path)
    (tmp_path / "x.tgz").write_bytes(data[:-1])
    with pytest.raises(ArchiveError, match=r"x\.tgz: differs from its record"):
        bring(at(server, "x.tgz"), tmp_path)
    (tmp_path / "archives.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"archives\.json: not a record"):
        recorded(tmp_path)


def test_a_damaged_tar_and_one_that_reaches_outside(server, tmp_path):
    (tmp_path / "cut.tgz").write_bytes(tgz(a=b"x" * 100000)[:-40])
    with pytest.raises(ArchiveError, match=r"cut\.tgz: cannot be unpacked"):
        bring(at(server, "cut.tgz"), tmp_path)
    server.files["evil.tgz"] = tgz(**{"..__outside": b"x"})
    with pytest.raises(ArchiveError, match=r"evil\.tgz: cannot be unpacked"):
        bring(at(server, "evil.tgz"), tmp_path / "in")
    assert not (tmp_path / "outside").exists()


def test_the_copy_in_use_is_named(lay):
    from crow.evaluate.datasets import load

    root = lay("oxford5k")
    data = tgz(a=b"1")
    (root / "oxbuild_images-v1.tgz").write_bytes(data)
    dataset = load("oxford5k", root)
    digest = hashlib.sha256(data).hexdigest()
    assert dataset.archives == {"oxbuild_images-v1.tgz": f"{len(data)} bytes, sha256 {digest}"}
    assert lying("groups", [root / "oxbuild_images-v1.tgz"]) == {}


def test_every_dataset_but_groups_says_where_it_lies():
    assert set(ARCHIVES) == set(DATASETS) - {"groups"}
    assert len(ARCHIVES["oxford100k"]) == 40 and ARCHIVES["oxford100k"][-1].file == "oxc1_100k.part40.rar"
