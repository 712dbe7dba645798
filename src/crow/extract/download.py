"""An address -> a checked file: by URL, or a source package through pip. Nothing of it runs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from errno import ENOSPC
from http.client import HTTPException, HTTPMessage, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

Report = Callable[[str, int, int], None]  # what goes on, bytes so far, bytes in all (0: not known)

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 6  # each must have brought something, else the first is the last


class DownloadError(ValueError):
    """A file that could not be brought, or is not the one that was asked for."""


def quiet(what: str, done: int, total: int) -> None:
    """A Report that tells nobody."""


def sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_url(address: str, expected: str, part: Path, size: int = 0, report: Report = quiet) -> str:
    """Make `part` the file at `address`, going on from what is there; its sha256. `expected` may be the start of it."""
    resumed = part.exists()
    if not resumed or not sha256(part).startswith(expected):
        _receive(address, part, size, report)
    found = sha256(part)
    if found.startswith(expected):
        return found
    with part.open("rb") as file:
        page = file.read(64).lstrip().startswith(b"<")
    part.unlink()
    if resumed:  # the beginning may have been another file's
        return by_url(address, expected, part, size, report)
    what = "a web page, not the file" if page else "another file"
    raise DownloadError(f"{address} gave {what}: its sha256 is {found}, expected {expected}")


def _receive(address: str, part: Path, size: int, report: Report) -> None:
    """Append to `part` until it is whole; a connection that broke off is taken up again while it brings anything."""
    for left in reversed(range(ATTEMPTS)):
        before = _length(part)
        try:
            for at, chunk, total in _chunks(address, before, size):
                with part.open("ab") as file:
                    file.truncate(at)
                    file.write(chunk)
                report("downloading", at + len(chunk), total)
            return
        except _Broken as error:
            if not left or _length(part) <= before:
                raise DownloadError(f"{address}: {error}") from None
        except DownloadError:
            part.unlink(missing_ok=True)
            raise


class _Broken(Exception):
    """The connection failed; what came so far may be good."""


def _chunks(address: str, have: int, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Pieces from byte `have` on, or from 0 where the server cannot go on: offset, bytes, length of the whole."""
    total = 0
    try:
        with _open(address, have) as answer:
            at = have if answer.headers.get("Content-Range", "").startswith(f"bytes {have}-") else 0
            length = answer.headers.get("Content-Length")
            total = at + int(length) if length else size
            while chunk := answer.read(CHUNK):
                yield at, chunk, total
                at += len(chunk)
                if size and at > size:
                    raise DownloadError(f"{address} gave another file: longer than the expected {size} bytes")
    except urllib.error.URLError as error:
        raise _Broken(f"no connection ({error.reason})") from None
    except (OSError, HTTPException) as error:
        raise _Broken(f"the connection broke off ({error or type(error).__name__})") from None
    if at < total:
        raise _Broken(f"the connection broke off after {at} of {total} bytes")


def _open(address: str, have: int) -> HTTPResponse:
    """The answer of a server that is asked to go on after `have` bytes."""
    _allow(address)
    headers = {"User-Agent": "crow", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    opener = urllib.request.build_opener(_Redirects)
    try:
        return opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # what is there is not the beginning of that file
            return _open(address, 0)
        raise DownloadError(f"{address}: HTTP {error.code} {error.reason}") from None


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _allow(address: str) -> None:
    """Only https, or http on this machine itself."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise DownloadError(f"{address}: only https addresses are downloaded from")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection only to where a download may come from."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _allow(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


BACKEND = '''"""Stands where setuptools would: pip's look at the metadata of a package runs nothing of the package."""
import pathlib, sys

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "{name}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name

__legacy__ = sys.modules[__name__]
'''


def by_pip(requirement: str, expected: str, work: Path, size: int = 0, report: Report = quiet) -> Path:
    """The source archive of `name==version`, brought and hash-checked by pip, so that its mirrors and proxies hold."""
    name, version = requirement.split("==")
    paths = [_backend(work, name, version), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = work / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{expected}\n")
    command = [*_pip(), "download", "--no-deps", "--no-binary", name, "--no-build-isolation", "--use-pep517"]
    command += ["--require-hashes", "--requirement", str(wanted), "--dest", str(work / "archive"), "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off"]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PIP_REQUIRE_VIRTUALENV": "0"}
    ours |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))
    arrived = 0

    def tick() -> None:
        nonlocal arrived
        arrived = max(arrived, _arrived(work))
        report("downloading", arrived, size)

    code, words = _run(command, os.environ | ours, tick)
    archives = list((work / "archive").glob("*.tar.gz"))
    if os.strerror(ENOSPC) in words:
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    if code or len(archives) != 1:
        raise DownloadError(f"pip could not bring {requirement}: {_reason(words)}")
    if (found := sha256(archives[0])) != expected:
        raise DownloadError(f"pip brought another {requirement}: its sha256 is {found}, expected {expected}")
    return archives[0]


def _backend(work: Path, name: str, version: str) -> str:
    """A folder with a setuptools of our own in it, to be found before any other."""
    stub = work / "backend" / "setuptools"
    stub.mkdir(parents=True)
    (stub / "__init__.py").touch()
    (stub / "build_meta.py").write_text(BACKEND.format(name=name.replace("-", "_"), version=version))
    return str(stub.parent)


def _pip() -> list[str]:
    """This Python's pip, or the one that Python carries to install it with (environments made by uv have none)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    carrier = importlib.util.find_spec("ensurepip")
    wheels = sorted(Path(carrier.origin).parent.glob("_bundled/pip-*.whl")) if carrier and carrier.origin else []
    if not wheels:
        raise DownloadError("this Python has no pip")
    return [sys.executable, "-P", str(wheels[-1] / "pip")]


def _run(command: list[str], environment: dict[str, str], tick: Callable[[], None]) -> tuple[int, str]:
    """Exit code and words of a program, with a tick now and then while it runs."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            while True:
                try:
                    words = process.communicate(timeout=0.2)[0]
                    return process.returncode, words.decode(errors="replace")
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            process.kill()


def _arrived(work: Path) -> int:
    """How much of the archive pip has so far in its temporary folder."""
    return max((_length(file) for file in work.glob("pip-unpack-*/*.gz")), default=0)


def _reason(log: str) -> str:
    """The one line of pip's words that says why."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if "DO NOT MATCH THE HASHES" in log:
        found = next((line.split()[-1] for line in lines if line.startswith("Got ")), "another")
        return f"the index gave another file, its sha256 is {found}; nothing of it was run"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if broken := re.search(r"connection broken by '(\w+)", log):
        return f"the package index could not be reached ({broken[1]})"
    return (errors or lines or ["it said nothing"])[-1]


def take(archive: Path, member: str, target: Path) -> None:
    """One file out of a source archive, named as below its top folder; nothing else of it is written."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                if entry.isreg() and entry.name.partition("/")[2] == member and (source := tar.extractfile(entry)):
                    with source, target.open("wb") as file:
                        shutil.copyfileobj(source, file)
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"{archive.name}: not a readable archive ({error})") from None
    raise DownloadError(f"{archive.name}: holds no {member}")
