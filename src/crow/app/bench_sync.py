"""What `crow bench sync` measures: how long nothing takes. A folder that did not change, looked through by a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image

from crow.app.bench import Measure
from crow.extract.describer import Described
from crow.recipe import RECIPES
from crow.search.index import Index
from crow.search.store import Vectors

WANTED = 3.0  # seconds, for 10,000 files
TURNS = 5
CODE = """
import json, sys, crow
report = crow.Index.open(sys.argv[1]).sync()
print(json.dumps({"unchanged": report.unchanged, "torch": "torch" in sys.modules}))
"""


class Colours:
    """A describer without a network, so that a folder is indexed quickly: a picture is its 8 x 8 thumbnail."""

    recipe, precision, weights = RECIPES["crow"], "exact", "colours"

    def __call__(self, pictures: Any, box: Any = None) -> Vectors:
        """(n, 192) unit rows."""
        return np.stack([self._vector(picture) for picture in pictures])

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        """A Described for each (key, bytes)."""
        from io import BytesIO

        for key, data in items:
            yield Described(key, self._vector(BytesIO(data)), 8, 8)

    def _vector(self, file: Any) -> Vectors:
        with Image.open(file) as picture:
            pixels = np.asarray(picture.convert("RGB").resize((8, 8)), np.float32).ravel() + 1
        return pixels / np.linalg.norm(pixels)


def sync(count: int = 10_000) -> Iterator[Measure]:
    """Sync a folder of small files, then time new processes that find it unchanged."""
    with tempfile.TemporaryDirectory(prefix="crow-bench-") as place:
        folder, address = Path(place) / "photos", str(Path(place) / "bench.crow")
        _paint(folder, count)
        start = perf_counter()
        with Index.create(address, describer=Colours()) as index:
            report = index.sync(folder)
        assert report.added == count
        yield Measure(f"first sync of {count:,} small files, hardly any describing", perf_counter() - start, "s")
        times, torch = [], False
        for _ in range(TURNS):
            start = perf_counter()
            done = subprocess.run([sys.executable, "-c", CODE, address], capture_output=True, text=True, check=True)
            times.append(perf_counter() - start)
            said = json.loads(done.stdout)
            assert said["unchanged"] == count
            torch = torch or said["torch"]
    limit = WANTED * count / 10_000
    name = f"sync of the unchanged folder of {count:,}, a whole process"
    words = f"under {limit:g} s without torch"
    yield Measure(
        name, median(times), "s", max(times) - min(times), wanted=words, holds=max(times) < limit and not torch
    )


def _paint(folder: Path, count: int) -> None:
    """Small pictures, no two alike, 500 to a folder."""
    random = np.random.default_rng(0)
    for i in range(count):
        path = folder / f"{i // 500:04}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
