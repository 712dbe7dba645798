"""Determinism: the same photographs in any order, batches, threads, and after interruptions give the same bits and ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import crow
from crow.extract.pretrained import cache_folder
from torture import seeds, shim
from torture.campaign import Lane, Try

PHOTOS, SIZE, INTERRUPTIONS = 24, 160, 10
SOURCE = str(Path(crow.__file__).parents[1])
Told = dict[str, Any]


def determinism(lane: Lane) -> Iterator[Try]:
    """Each engine against itself; then a sync that is killed ten times against one that is not."""
    paths = sorted(map(str, seeds.PHOTOS.rglob("*.jpg")))
    if not paths or not (cache_folder() / "vgg16.safetensors").is_file():
        yield Try("no photographs, or no weights: not tried", count=0)
        return
    folder = lane.fresh("photos")
    for number, path in enumerate(paths[:: max(1, len(paths) // PHOTOS)][:PHOTOS]):
        (folder / f"{number:02}.jpg").symlink_to(path)
    while True:
        for engine in ("torch", "openvino"):
            reference = described(folder, lane, {"engine": engine, "threads": 1, "window": 1})
            for _ in range(3):
                more = {"engine": engine, "threads": lane.random.randint(1, 2), "window": lane.random.randint(1, 9)}
                order = lane.random.sample(range(PHOTOS), PHOTOS)
                other = described(folder, lane, {**more, "order": order})
                yield Try(engine, wrong and f"{wrong}: {more}" if (wrong := differs(reference, other)) else "")
        yield Try("interrupted", interrupted(folder, lane))


def described(folder: Path, lane: Lane, wish: Told) -> Told:
    """Vectors and rankings of an index that a fresh process made."""
    out = lane.place / "told.json"
    environment = {**shim.plain_environment(), "PYTHONPATH": os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])}
    environment |= {"OMP_NUM_THREADS": str(wish["threads"])}
    command = [sys.executable, "-m", "torture.determinism", str(folder), str(lane.fresh("index")), str(out)]
    done = subprocess.run([*command, json.dumps(wish)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.strip()[-300:]
    told: Told = json.loads(out.read_text())
    return told


def differs(a: Told, b: Told) -> str:
    """What is not the same, in words."""
    worst = max(float(np.abs(np.array(a["vectors"][p]) - np.array(b["vectors"][p])).max()) for p in a["vectors"])
    ranks = sum(x != y for x, y in zip(a["ranks"], b["ranks"], strict=True))
    if ranks or worst:
        return f"vectors differ by up to {worst:g}, {ranks} of {len(a['ranks'])} rankings differ"
    return ""


def interrupted(folder: Path, lane: Lane) -> str:
    """crow index, killed or stopped ten times, and then not; against crow index that was left alone."""
    alone, often = lane.fresh("alone") / "a.crow", lane.fresh("often") / "a.crow"
    _index(folder, alone, None, lane.random)
    begun = time.monotonic()
    _index(folder, lane.fresh("clock") / "a.crow", None, lane.random)
    longest = time.monotonic() - begun
    for number in range(INTERRUPTIONS):
        _index(folder, often, lane.random.uniform(0.4, 1.0) * longest, lane.random)
        if number % 3 == 2 and often.exists():
            _forget(often, number)  # so that there is always something left to do
    _index(folder, often, None, lane.random)
    return differs(_told(alone), _told(often))


def _index(folder: Path, address: Path, after: float | None, random: Random) -> None:
    command = [sys.executable, "-m", "crow.app.cli", "index", str(folder), str(address), "--size", str(SIZE)]
    environment = {**shim.plain_environment(), "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environment, stdout=-3, stderr=subprocess.PIPE, text=True) as process:
        try:
            process.wait(after or 300)
        except subprocess.TimeoutExpired:
            process.send_signal(random.choice([signal.SIGKILL, signal.SIGINT]))
            process.wait(60)
        assert process.stderr
        said = process.stderr.read()
        assert after or process.returncode == 0, f"crow index: {said.strip()[-300:]}"


def _forget(address: Path, number: int) -> None:
    from crow.search.index import Index

    with Index.open(address) as index:
        index.store.remove(index.paths()[number::2])


def _told(address: Path) -> Told:
    """Vectors and rankings of an index: each picture's nearest, with scores."""
    from crow.search.index import Index

    with Index.open(address) as index:
        paths = index.paths()
        rows = index.store.get(paths, vectors=True)
        ranks = [[(Path(hit.path).name, hit.score) for hit in index.search(path, k=8)] for path in paths]
        return {"vectors": {Path(p).name: rows[p].vector.tolist() for p in paths}, "ranks": ranks}  # type: ignore[union-attr]


def main(folder: Path, place: Path, out: Path, wish: Told) -> None:
    """The fresh process: describe in some order, in some batches, with some threads; index; tell."""
    import torch

    from crow.extract.describer import Describer
    from crow.recipe import RECIPES
    from crow.search.index import Index
    from crow.search.store import Row

    torch.set_num_threads(wish["threads"])
    recipe = _sized(RECIPES["crow"])
    describer = Describer(recipe, engine=wish["engine"])
    describer.engine.window = wish["window"]
    paths = sorted(folder.iterdir())
    order = wish.get("order") or range(len(paths))
    with Index.create(place / "a.crow", describer=describer) as index:
        for found in describer.stream((str(paths[i]), paths[i]) for i in order):
            index.store.upsert([Row(found.key, found.vector)])
    out.write_text(json.dumps(_told(place / "a.crow")))


def _sized(recipe: Any) -> Any:
    from dataclasses import replace

    from crow.recipe import Size

    return replace(recipe, view=replace(recipe.view, size=Size("largest", SIZE)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
