"""Processes that read pictures: the same pictures and the same reasons as here, and nothing left of them afterwards."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crow.extract.images import PictureError, prepared
from crow.extract.workers import Workers, _asked, _started
from crow.recipe import Size, View

VIEW = View(size=Size("largest", 96))
PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="no /proc here to look at processes in")


def picture(folder: Path, seed: int = 0, name: str = "a.png", **options: Any) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (80 + seed, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name, **options)
    return folder / name


def children() -> dict[int, str]:
    """The processes that this one started, with their state: Z is a zombie."""
    found = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" ", 1)
        except OSError:
            continue
        state, parent = rest.rpartition(")")[2].split()[:2]
        if int(parent) == os.getpid():
            found[int(pid)] = state
    return found


def unread(process: subprocess.Popen[bytes]) -> int:
    """Bytes on their way to a process."""
    count = array("i", [0])
    assert process.stdin
    fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, count)
    return count[0]


def until(happened: Callable[[], bool]) -> None:
    """Look again and again, for a minute at most."""
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, PictureError) or isinstance(other, PictureError):
        return type(one) is type(other) and str(one) == str(other)
    facts = [(each.width, each.height, each.taken) for each in (one, other)]
    return facts[0] == facts[1] and np.array_equal(one.pixels, other.pixels)


def test_pictures_and_reasons_are_those_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2024:05:06 12:13:14"
    turned = picture(tmp_path, 3, "ü \udcff.jpg" if os.name == "posix" else "b.jpg", exif=exif)
    (tmp_path / "text.jpg").write_text("not a picture")
    whole = turned.read_bytes()
    sources: list[Any] = [picture(tmp_path), str(turned), whole, whole[:200], b"", tmp_path / "text.jpg", tmp_path]
    sources += [tmp_path / "gone.jpg", "", "a\0b.jpg", Image.open(turned), np.zeros((70, 80, 3), np.uint8), "a.png"]
    monkeypatch.chdir(tmp_path)
    workers = Workers(1)
    for box in (None, (5, 6, 60, np.float32(70)), (9, 9, 9, 9), ("?", 1, 2, 3)):
        found = workers(sources, VIEW, box)  # type: ignore[arg-type]
        here = [prepared(source, VIEW, box) for source in sources]  # type: ignore[arg-type]
        assert [str(a) for a, b in zip(found, here, strict=True) if not same(a, b)] == []
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")  # a worker goes where we go
    assert same(workers(["../a.png"], VIEW, None)[0], prepared("../a.png", VIEW))


def test_one_process_is_started_when_it_is_needed_and_used_again(tmp_path: Path) -> None:
    workers = Workers(4)
    assert workers._idle == []
    workers([np.zeros((70, 80, 3), np.uint8)], VIEW, None)
    assert workers._idle == []  # pixels need no decoder
    file = picture(tmp_path)
    seen = set()
    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:  # as every stream of a describer has new threads
            thread.submit(workers, [file], VIEW, None).result()
        seen |= {process.pid for process in workers._idle}
    assert len(seen) == 1


def test_a_killed_worker_costs_one_picture(tmp_path: Path) -> None:
    file, workers = picture(tmp_path), Workers(1)
    workers([file], VIEW, None)
    process = workers._idle[0]
    os.kill(process.pid, signal.SIGSTOP)  # so that it is in the middle of the next one for sure
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(workers, [file.read_bytes()], VIEW, None)
        until(lambda: unread(process) > 0)
        os.kill(process.pid, signal.SIGKILL)
        found = asked.result(timeout=60)
    assert isinstance(found[0], PictureError)
    assert str(found[0]).startswith("picture: the process that decoded it died")
    assert process.returncode == -signal.SIGKILL
    assert same(workers([file], VIEW, None)[0], prepared(file, VIEW))


def test_a_worker_that_died_in_between_costs_nothing(tmp_path: Path) -> None:
    file, workers = picture(tmp_path), Workers(1)
    workers([file], VIEW, None)
    process = workers._idle[0]
    process.kill()
    process.wait()
    assert same(workers([file], VIEW, None)[0], prepared(file, VIEW))
    assert [p.pid for p in workers._idle] != [process.pid]


def test_where_no_process_can_be_started_pictures_are_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    file = picture(tmp_path)
    assert same(Workers(1)([file], VIEW, None)[0], prepared(file, VIEW))


def test_interrupts_are_for_the_program_that_asks(tmp_path: Path) -> None:
    file, process = picture(tmp_path), _started()
    try:
        assert same(_asked(process, file, VIEW, None), prepared(file, VIEW))
        process.send_signal(signal.SIGINT)
        assert same(_asked(process, file, VIEW, None), prepared(file, VIEW))
    finally:
        process.kill()
        process.communicate()


def test_many_threads_get_their_own_answers(tmp_path: Path) -> None:
    files = [picture(tmp_path, seed, f"{seed}.png") for seed in range(24)]
    here, workers = [prepared(file, VIEW) for file in files], Workers(3)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda file: workers([file], VIEW, None)[0], files * 2))
    assert all(same(a, b) for a, b in zip(found, here * 2, strict=True))
    assert len(workers._idle) <= 3


CHATTY = """
import os, sys
from PIL import PngImagePlugin
load = PngImagePlugin.PngImageFile.load
def loud(self):
    print("a decoder that prints")
    os.write(1, b"and one written in C")
    return load(self)
PngImagePlugin.PngImageFile.load = loud
"""


def test_what_a_decoder_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(CHATTY)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    file, workers = picture(tmp_path), Workers(1)
    for _ in range(2):
        assert same(workers([file], VIEW, None)[0], prepared(file, VIEW))
    told = capfd.readouterr()
    assert "a decoder that prints" in told.err and "and one written in C" in told.err and told.out == ""


def test_the_folder_it_is_started_in_lends_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    file = picture(tmp_path)
    assert same(Workers(1)([file], VIEW, None)[0], prepared(file, VIEW))


@needs_proc
def test_nothing_is_left_of_workers_that_are_done_with(tmp_path: Path) -> None:
    before, file, meet = set(children()), picture(tmp_path), threading.Barrier(2)

    def two_at_a_time() -> None:
        workers = Workers(2)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: (meet.wait(60), workers([file], VIEW, None)), range(2)))
        assert set(children()) > before

    two_at_a_time()
    gc.collect()
    assert set(children()) <= before


@needs_proc
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "raise SystemExit(3)"])
def test_nothing_is_left_when_python_exits(tmp_path: Path, end: str) -> None:
    program = f"""
import os, sys
from crow.extract.workers import Workers
from crow.recipe import View
workers = Workers(1)
workers([{str(picture(tmp_path))!r}], View(), None)
print(workers._idle[0].pid, flush=True)
{end}
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, check=False, timeout=120)
    worker = int(ran.stdout)
    until(lambda: not (PROC / str(worker)).exists())  # the pipe it reads from was closed: it ends by itself
