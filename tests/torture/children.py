"""Child processes, forked from a warm parent in milliseconds, and how they end."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    """What a child said, and how it ended: "" by itself, "killed" by us or at a traced operation, or what went wrong."""

    said: list[str]
    how: str

    def last(self, word: str, default: int) -> int:
        """The number in the last line that begins with a word."""
        return next((int(line.split()[1]) for line in reversed(self.said) if line.startswith(f"{word} ")), default)


def in_child(work: Callable[[Say], None], kill_after: float | None = None, limit: float = 60.0) -> Ended:
    """Run `work` in a child; SIGKILL it after so many seconds, or call it hanging after `limit`."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    due = time.monotonic() + (limit if kill_after is None else kill_after)
    said, hung = b"", False
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, due - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            due = time.monotonic() + 60
            hung = kill_after is None
            continue
        piece = os.read(reading, 1 << 16)
        if not piece:
            break
        said += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    lines = said.decode().splitlines()
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return Ended(lines, f"hang: not done after {limit:g} s" if hung else "killed")
    if code < 0:
        return Ended(lines, f"crash: {signal.Signals(-code).name}")
    trouble = next((i for i, line in enumerate(lines) if line.startswith("Traceback ")), None)
    return Ended(lines[:trouble], "" if code == 0 else " ".join(lines[trouble:]).removeprefix("Traceback "))


def _work(work: Callable[[Say], None], pipe: int) -> None:
    """The child's life; it never returns."""
    code = 1
    try:
        work(lambda line: _tell(pipe, line))
        code = 0
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if "/crow/" in f.filename), "")
        text = " ".join(str(error).split()) or traceback.format_exc()[-300:]
        _tell(pipe, f"Traceback {type(error).__name__}: {text}" + (f" [{where}]" if where else ""))
    finally:
        os._exit(code)


def _tell(pipe: int, line: str) -> None:
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(pipe, data) :]
