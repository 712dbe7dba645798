"""Thirty clients for two minutes on an index of 100,000 while a sync runs. CROW_LONG=1 runs it; it prints its figures."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import httpx
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import encoded, paint

from crow.recipe import RECIPES
from crow.search.index import Index
from crow.search.store import Row

LONG = bool(os.environ.get("CROW_LONG"))
PICTURES, CLIENTS, SECONDS, WARM = 100_000, 30, 120.0, 15.0
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.mark.skipif(not LONG, reason="takes four minutes: CROW_LONG=1")
def test_thirty_clients_while_a_sync_runs(tmp_path: Path, vgg16: Path) -> None:
    index = large(tmp_path)
    server = subprocess.Popen(
        [sys.executable, "-m", "crow.app.cli", "serve", str(index), "--port", "0", "--no-browser"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    try:
        assert server.stderr
        line = next(line for line in iter(server.stderr.readline, b"") if b"http" in line).decode()
        address = re.search(r"http://\S+", line)[0].rstrip("/")  # type: ignore[index]
        threading.Thread(target=server.stderr.read, daemon=True).start()
        load = Load(address)
        stop = threading.Event()
        syncing = threading.Thread(target=keep_syncing, args=(index, tmp_path / "new", stop))
        syncing.start()
        asyncio.run(load.run())
        stop.set()
        syncing.join()
        load.report()
        grown = httpx.get(f"{address}/api/v1/status").json()["pictures"] - PICTURES
        print(f"meanwhile {grown} pictures came into the index")
        assert grown > 0
        assert load.other == Counter(), "no other status than 200, and 503 for uploads"
        assert max(load.memory) <= 1.1 * load.memory[0]
    finally:
        server.terminate()
        server.wait(60)


def large(folder: Path) -> Path:
    """An index of 100,000 random vectors of the network's length."""
    random = np.random.default_rng(0)
    with Index.create(folder / "large.crow", recipe=RECIPES["crow"], whitening="self") as index:
        for start in range(0, PICTURES, 5000):
            vectors = random.exponential(1.0, (5000, 512)).astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            rows = [Row(f"{folder}/old/{start + i}.jpg", v, 1, 1, width=96, height=64) for i, v in enumerate(vectors)]
            index.store.upsert(rows)
        index.rewhiten(to="self")
    return folder / "large.crow"


def keep_syncing(index: Path, folder: Path, stop: threading.Event) -> None:
    """Add pictures and sync them by `crow index`, in processes of their own, again and again."""
    seed = 0
    while not stop.is_set():
        for _ in range(20):
            seed += 1
            paint(folder / f"{seed}.jpg", seed)
        subprocess.run(
            [sys.executable, "-m", "crow.app.cli", "index", str(folder), str(index)],
            env={**os.environ, "PYTHONPATH": SOURCE},
            capture_output=True,
            check=True,
        )
        stop.wait(2)


class Load:
    """Clients that ask one thing after the other."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.times: dict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.other: Counter[tuple[str, int]] = Counter()
        self.memory: list[float] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self.address, timeout=120) as client:
            for _ in range(600):
                if (await client.get("/api/v1/status")).json()["network"]:
                    break
                await asyncio.sleep(0.2)
            self.end = time.monotonic() + WARM + SECONDS
            await asyncio.gather(self.watch(client), *(self.client(seed) for seed in range(CLIENTS)))

    async def watch(self, client: httpx.AsyncClient) -> None:
        """Memory of the server, from when it is warm."""
        await asyncio.sleep(WARM)
        while time.monotonic() < self.end:
            text = (await client.get("/metrics")).text
            self.memory.append(float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.M)[1]))  # type: ignore[index]
            await asyncio.sleep(5)

    async def client(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        async with httpx.AsyncClient(base_url=self.address, timeout=120) as client:
            while time.monotonic() < self.end:
                kind = "upload with a box" if random.random() < 0.2 else "member"
                begun = time.monotonic()
                if kind == "member":
                    answer = await client.get(
                        "/api/v1/search", params={"q": int(random.integers(1, PICTURES)), "k": 50}
                    )
                else:
                    files = {"picture": ("q.jpg", encoded(int(random.integers(10**9)), size=(640, 480)))}
                    answer = await client.post("/api/v1/search", params={"box": "40,40,400,300", "k": 50}, files=files)
                self.count(kind, answer, time.monotonic() - begun)
                if answer.status_code == 503:
                    await asyncio.sleep(float(answer.headers["retry-after"]))

    def count(self, kind: str, answer: httpx.Response, seconds: float) -> None:
        if time.monotonic() < self.end - SECONDS:
            return
        self.statuses[kind, answer.status_code] += 1
        if answer.status_code == 200:
            self.times[kind].append(seconds)
        elif answer.status_code != 503 or kind == "member" or "retry-after" not in answer.headers:
            self.other[kind, answer.status_code] += 1

    def report(self) -> None:
        for (kind, status), count in sorted(self.statuses.items()):
            print(f"{kind}: {count} answers of {status}")
        for kind, times in self.times.items():
            p50, p99 = np.percentile(times, [50, 99])
            print(f"{kind}: p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms")
        first, most, last = (f"{m / 1e6:.0f}" for m in (self.memory[0], max(self.memory), self.memory[-1]))
        print(f"memory of the server: {first} MB warm, {most} MB at most, {last} MB at the end")
