"""Workers: pictures read in processes of their own, since in threads Pillow's decoders wait for one another.

`python -m crow.extract.workers` is one of them: a line of JSON says what is wanted, a line and the pixels come back.
It is started as a program, so that a script that makes vectors needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import crow
from crow.extract.formats import name_of
from crow.extract.images import Box, Picture, PictureError, Source, prepared
from crow.recipe import Size, View

Process = subprocess.Popen[bytes]


class Workers:
    """A process for every picture that is read at a time; started when first needed, ended with this object."""

    group = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._idle: list[Process] = []
        weakref.finalize(self, _end, self._idle)  # also when Python exits

    def __call__(self, sources: list[Source], view: View, box: Box | None) -> list[Picture | PictureError]:
        """Each picture as `prepare` gives it, or why there is none."""
        return [self._one(source, view, box) for source in sources]

    def _one(self, source: Source, view: View, box: Box | None) -> Picture | PictureError:
        if not isinstance(source, str | Path | bytes) or (process := self._taken()) is None:
            return prepared(source, view, box)
        found = None
        try:
            found = _asked(process, source, view, box)
        except (OSError, ValueError):
            pass
        finally:  # a process whose answer was not read must never be asked again
            self._idle.append(process) if found else _end([process])
        return found or PictureError(name_of(source), "the process that decoded it died, perhaps for want of memory")

    def _taken(self) -> Process | None:
        """A process that lives; None where none can be started."""
        while self._idle:
            with suppress(IndexError):  # another thread may take the last one
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end([process])
        with suppress(OSError):
            return _started()
        return None


def _started() -> Process:
    """A worker, which finds its modules where this process finds them, and nothing in the folder it is started in."""
    places = [*filter(None, sys.path), str(Path(crow.__file__).parents[1])]
    command = [sys.executable, "-P", "-m", "crow.extract.workers"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)})


def _end(processes: list[Process]) -> None:
    """Stop them, close their pipes, and take note of their end, so that none is left as a zombie."""
    for process in processes:
        process.kill()
        process.communicate()


def _asked(process: Process, source: str | Path | bytes, view: View, box: Box | None) -> Picture | PictureError:
    """One picture from a worker."""
    assert process.stdin and process.stdout
    data = source if isinstance(source, bytes) else b""
    path = None if isinstance(source, bytes) else os.fspath(source)
    question = {"folder": os.fspath(Path.cwd()), "path": path, "bytes": len(data), "view": asdict(view), "box": box}
    process.stdin.write(json.dumps(question, default=float).encode() + b"\n" + data)
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "reason" in answer:
        return PictureError(name_of(source), answer["reason"])
    shape = answer.pop("shape")
    data = process.stdout.read(math.prod(shape))
    return Picture(np.frombuffer(data, np.uint8).reshape(shape), **answer)


def main(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until nobody asks any more."""
    while line := questions.readline():
        question = json.loads(line)
        view = View(**{**question["view"], "size": Size(**question["view"]["size"])})
        source = questions.read(question["bytes"]) if question["path"] is None else question["path"]
        os.chdir(question["folder"])
        found = prepared(source, view, question["box"] and tuple(question["box"]))
        if isinstance(found, PictureError):
            _tell(answers, {"reason": found.reason})
        else:
            facts = {"width": found.width, "height": found.height, "taken": found.taken}
            _tell(answers, {**facts, "shape": found.pixels.shape}, found.pixels.tobytes())


def _tell(answers: BinaryIO, what: dict[str, Any], pixels: bytes = b"") -> None:
    answers.write(json.dumps(what).encode() + b"\n" + pixels)
    answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a decoder prints is no answer
    main(sys.stdin.buffer, os.fdopen(own, "wb"))
