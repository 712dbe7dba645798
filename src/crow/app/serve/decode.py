"""Decoding in processes of their own, with a limit of time and of memory (`worker.py` is the other end)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from crow.app.serve.problems import Problem
from crow.app.serve.worker import HEAD, frame

MEMORY = (
    3 << 30
)  # bytes of address space: a picture at the limit of pixels takes 0.4 GB, and its colours a few times that
SECONDS = 30.0  # the slowest honest picture at the limit takes about three


class Decoder:
    """A few worker processes; `await decoder(job, data)` uses the next free one."""

    def __init__(self, count: int, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.seconds, self.memory = seconds, memory
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._all: set[asyncio.subprocess.Process] = set()
        self._ended: list[asyncio.subprocess.Process] = []
        for _ in range(count):
            self._idle.put_nowait(None)

    async def __call__(self, job: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """The facts and bytes a job gives; a picture that cannot be decoded is a Problem."""
        process = await self._idle.get()
        try:
            if process is None or process not in self._all or process.returncode is not None:
                process = await self._start()
            async with asyncio.timeout(self.seconds):
                facts, out = await _ask(process, job, data)
            if facts.pop("last"):  # it has grown large and ends by itself
                self._all.discard(process)
                self._ended.append(process)
        except TimeoutError:
            self._end(process)
            raise Problem(422, f"the picture takes more than {self.seconds:g} seconds to decode") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            self._end(process)
            raise Problem(422, "the picture cannot be decoded") from None
        except BaseException:
            self._end(process)
            raise
        finally:
            self._idle.put_nowait(process)  # an ended one is started anew
        if "error" in facts:
            raise Problem(facts["status"], facts["error"])
        return facts, out

    async def close(self) -> None:
        """End the processes."""
        for process in list(self._all):
            self._end(process)
        for process in self._ended:
            await process.communicate()

    async def _start(self) -> asyncio.subprocess.Process:
        places = os.pathsep.join(path for path in sys.path if path)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crow.app.serve.worker", str(self.memory)),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
        )
        self._all.add(process)
        return process

    def _end(self, process: asyncio.subprocess.Process | None) -> None:
        if process in self._all:
            self._all.discard(process)
            self._ended = [p for p in self._ended if p.returncode is None] + [process]
            with suppress(ProcessLookupError):
                process.kill()


async def _ask(process: asyncio.subprocess.Process, job: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    assert process.stdin and process.stdout
    process.stdin.write(frame(job, data))
    answer = asyncio.ensure_future(_read(process.stdout))
    try:
        await process.stdin.drain()
        return await answer
    finally:
        answer.cancel()


async def _read(stream: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    text, size = HEAD.unpack(await stream.readexactly(HEAD.size))
    return json.loads(await stream.readexactly(text)), await stream.readexactly(size)
