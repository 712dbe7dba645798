"""Workers: pictures read in processes of their own, since in threads Pillow's decoders wait for one another.

`python -m crow.extract.workers` is one of them: a line of JSON says what is wanted, a line and the pixels come back.
It is started as a program, so that a script that makes vectors needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import crow
from crow.extract.formats import name_of
from crow.extract.images import Box, Picture, PictureError, Source, prepared
from crow.recipe import Size, View


class Workers:
    """A process for every thread that asks."""

    group = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._own = threading.local()

    def __call__(self, sources: list[Source], view: View, box: Box | None) -> list[Picture | PictureError]:
        """Each picture as `prepare` gives it, or why there is none."""
        return [self._one(source, view, box) for source in sources]

    def _one(self, source: Source, view: View, box: Box | None) -> Picture | PictureError:
        if not isinstance(source, str | Path | bytes):
            return prepared(source, view, box)
        process = getattr(self._own, "process", None) or _started()
        self._own.process = process
        try:
            return _asked(process, source, view, box)
        except (OSError, EOFError, ValueError):
            _ended(process)
            self._own.process = None
            return PictureError(name_of(source), "the process that decoded it died")


def _started() -> subprocess.Popen[bytes]:
    here = os.pathsep.join((str(Path(crow.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "crow.extract.workers"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": here})


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _asked(
    process: subprocess.Popen[bytes], source: str | Path | bytes, view: View, box: Box | None
) -> Picture | PictureError:
    """One picture from a worker."""
    assert process.stdin and process.stdout
    data = source if isinstance(source, bytes) else b""
    path = None if isinstance(source, bytes) else os.fspath(source)
    question = {"path": path, "bytes": len(data), "view": asdict(view), "box": box}
    process.stdin.write(json.dumps(question).encode() + b"\n" + data)
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "reason" in answer:
        return PictureError(answer["name"], answer["reason"])
    shape = answer.pop("shape")
    data = process.stdout.read(math.prod(shape))
    return Picture(np.frombuffer(data, np.uint8).reshape(shape), **answer)


def main(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until nobody asks any more."""
    while line := questions.readline():
        question = json.loads(line)
        view = View(**{**question["view"], "size": Size(**question["view"]["size"])})
        source = questions.read(question["bytes"]) if question["path"] is None else question["path"]
        found = prepared(source, view, question["box"])
        if isinstance(found, PictureError):
            _tell(answers, {"name": os.fspath(found.name), "reason": found.reason})
        else:
            facts = {"width": found.width, "height": found.height, "taken": found.taken}
            _tell(answers, {**facts, "shape": found.pixels.shape}, found.pixels.tobytes())


def _tell(answers: BinaryIO, what: dict[str, Any], pixels: bytes = b"") -> None:
    answers.write(json.dumps(what).encode() + b"\n" + pixels)
    answers.flush()


if __name__ == "__main__":
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a decoder prints is no answer
    main(sys.stdin.buffer, os.fdopen(own, "wb"))
