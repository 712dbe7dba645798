"""Soak: a server under fifty clients while the index goes on growing. No 5xx, memory flat, file handles constant."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from torture import shim
from torture.campaign import Lane, Try

CLIENTS, UPLOADERS, PICTURES = 50, 4, 20_000
WARM, SHARE = 0.2, 0.2  # parts of the time: before anything is measured, and at both ends of what is compared
FLAT = 1.10
LONGEST = 1800.0  # seconds
LARGE, MANY = 32 << 20, 9  # bytes of an upload, and how many fill what the server keeps of uploads


def soak(lane: Lane) -> Iterator[Try]:
    """One server for as long as there is time, in a process of its own; every answer is a try."""
    from crow.extract.pretrained import cache_folder

    if not (cache_folder() / "vgg16.safetensors").is_file():
        yield Try("no weights: not tried", count=0)
        return
    seconds = min(LONGEST, max(6.0, lane.until - time.monotonic() - 60))
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    command = [
        sys.executable,
        "-m",
        "torture.soak",
        str(lane.fresh("soak")),
        str(seconds),
        str(lane.random.getrandbits(31)),
    ]
    done = subprocess.run(command, env=shim.plain_environment() | {"PYTHONPATH": path}, capture_output=True, text=True)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        yield Try("soak", f"it ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return
    yield Try("status", f"other answers than 200: {told['other']}" if told["other"] else "", 0)
    for what, allowed in (("memory", FLAT), ("handles", FLAT)):
        first, last = told[what]
        text = f"{what} from {first:,} to {last:,} over {seconds:.0f} s"
        yield Try(text, text if last > allowed * first else "", 0)
    yield Try(
        f"{told['grown']} pictures came in meanwhile", "nothing was synced meanwhile" if not told["grown"] else "", 0
    )
    yield Try("answers", count=told["answers"])  # last, since it reaches the goal


def main(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """The server, its clients, and the sync; what was seen."""
    import httpx
    import test_load as load

    load.PICTURES, load.CLIENTS, load.SECONDS, load.WARM = PICTURES, CLIENTS, seconds, max(3.0, WARM * seconds)
    index = load.large(folder)
    command = [sys.executable, "-m", "crow.app.cli", "serve", str(index), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": load.SOURCE})
    try:
        assert server.stderr
        line = next(line for line in iter(server.stderr.readline, b"") if b"http" in line).decode()
        address = re.search(r"http://\S+", line)[0].rstrip("/")  # type: ignore[index]
        threading.Thread(target=server.stderr.read, daemon=True).start()
        clients, stop = _clients(load, address, server.pid, seed), threading.Event()
        syncing = threading.Thread(target=load.keep_syncing, args=(index, folder / "new", stop))
        syncing.start()
        asyncio.run(clients.run())
        stop.set()
        syncing.join()
        grown = httpx.get(f"{address}/api/v1/status").json()["pictures"] - PICTURES
        return clients.told() | {"grown": grown}
    finally:
        server.terminate()
        server.wait(60)


def _clients(load: Any, address: str, pid: int, seed: int) -> Any:
    """The clients of tests/app/test_load.py, doing what people do: most search and look, a few send pictures."""
    import httpx
    import numpy as np
    from serving import encoded

    class Clients(load.Load):
        handles: list[int]  # of the server, from when it is warm

        async def run(self) -> None:
            """First until nothing more is kept of uploads: what grows after that is no cache."""
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                for number in range(MANY):
                    picture = encoded(number, size=(320, 240)) + np.random.default_rng(number).bytes(LARGE)
                    self.seen("upload", await client.post("/api/v1/search", files={"picture": ("q.jpg", picture)}))
            await super().run()

        async def watch(self, client: httpx.AsyncClient) -> None:
            self.handles = []
            await asyncio.sleep(load.WARM)
            while sum(self.statuses.values()) < 20 * CLIENTS and time.monotonic() < self.end - 1:  # each has connected
                await asyncio.sleep(0.1)
            while not self.memory or time.monotonic() < self.end:
                text = (await client.get("/metrics")).text
                self.memory.append(float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.M)[1]))  # type: ignore[index]
                self.handles.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
                await asyncio.sleep(1)

        async def client(self, number: int) -> None:
            random = np.random.default_rng([seed, number])
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                while time.monotonic() < self.end:
                    if number < UPLOADERS:
                        files = {"picture": ("q.jpg", encoded(int(random.integers(10**9)), size=(320, 240)))}
                        self.seen("upload", await client.post("/api/v1/search", params={"k": 50}, files=files))
                        continue
                    q = int(random.integers(1, PICTURES))
                    answer = await client.get("/api/v1/search", params={"q": q, "k": 20})
                    self.seen("member", answer)
                    shown = [hit["id"] for hit in answer.json()["hits"] if "/new/" in hit["path"]]
                    for other in (f"pictures/{q}", "status", *(f"pictures/{i}/thumbnail" for i in shown[:2])):
                        self.seen(other.split("/")[0], await client.get(f"/api/v1/{other}"))
                    await asyncio.sleep(float(random.uniform(0.2, 1.0)))

        def seen(self, kind: str, answer: httpx.Response) -> None:
            self.statuses[kind, answer.status_code] += 1
            if answer.status_code != 200:
                self.other[f"{kind} {answer.status_code}", answer.status_code] += 1

        def told(self) -> dict[str, Any]:
            part = max(1, int(SHARE * len(self.memory)))
            ends = lambda values: (round(median(values[:part])), round(median(values[-part:])))  # noqa: E731
            other = {kind: count for (kind, _), count in self.other.items()}
            return {
                "answers": sum(self.statuses.values()),
                "other": other,
                "memory": ends(self.memory),
                "handles": ends(self.handles),
            }

    return Clients(address)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
