"""What the tests of the server and of the page share: a describer of colours, indexes, and a server that runs."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from PIL import Image

from crow.app.serve import run
from crow.app.serve.guard import Limits
from crow.app.serve.server import build
from crow.extract.describer import Described
from crow.extract.images import PictureError, prepare
from crow.framework.describe import describe
from crow.recipe import RECIPES, Recipe
from crow.search.index import Index

K = 12


class ColourEngine:
    """Maps of plain colours, one cell for 16 pixels: what a network would say, in a millisecond."""

    name, precision, device, window = "colours", "exact", "cpu", 4

    def maps(self, pictures: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        mix = np.random.default_rng(7).standard_normal((K, 3)).astype(np.float32)
        for picture in pictures:
            rgb = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255 - 0.3
            cells = torch.nn.functional.avg_pool2d(rgb, 16, ceil_mode=True)
            yield torch.einsum("kc,bchw->bkhw", torch.from_numpy(mix), cells).relu() + 0.01


class Colours:
    """A describer over that engine."""

    precision, weights, regional = "exact", "colours", None

    def __init__(self, recipe: Recipe = RECIPES["crow"]) -> None:
        self.recipe, self.engine = recipe, ColourEngine()
        self.slow: threading.Event | None = None  # makes every description wait until it is set

    def __call__(self, pictures: Any, box: Any = None) -> np.ndarray:
        if self.slow is not None:
            self.slow.wait(20)
        many = pictures if isinstance(pictures, list) else [pictures]
        prepared = [prepare(p, self.recipe.view, box).pixels for p in many]
        return np.concatenate([describe(x, self.recipe).numpy() for x in self.engine.maps(prepared)])

    def stream(self, items: Iterable[tuple[str, Any]]) -> Iterator[Described]:
        for key, source in items:
            try:
                picture = prepare(source, self.recipe.view, name=key)
                yield Described(key, self(source)[0], picture.width, picture.height, picture.taken)
            except PictureError as error:
                yield Described(key, None, reason=error.reason)


def paint(path: Path, seed: int, size: tuple[int, int] = (96, 64), **options: Any) -> Path:
    """A small picture of a few coloured rectangles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (2, 3, 3), np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST).save(path, **options)
    return path


def encoded(seed: int, kind: str = "JPEG", size: tuple[int, int] = (96, 64)) -> bytes:
    """The bytes of such a picture."""
    random = np.random.default_rng(seed)
    out = io.BytesIO()
    image = Image.fromarray(random.integers(0, 256, (2, 3, 3), np.uint8)).resize(size, Image.Resampling.NEAREST)
    image.save(out, kind)
    return out.getvalue()


def index_of(folder: Path, count: int = 40, describer: Any = None) -> Index:
    """A fresh index of `count` painted pictures in folder/photos/a and folder/photos/b."""
    describer = describer or Colours()
    for i in range(count):
        exif = Image.Exif()
        exif[0x0132] = f"20{10 + i % 10}:05:06 12:13:14"
        exif[0x0112] = 6 if i == 1 else 1
        paint(folder / "photos" / "ab"[i % 2] / f"{i:03}.jpg", i, exif=exif)
    index = Index.create(folder / "test.crow", describer=describer, whitening="self")
    index.sync(folder / "photos")
    return index


@contextmanager
def running(index: Index, folder: Path, **options: Any) -> Iterator[str]:
    """A real server over an index on a free loopback port; its address without the last slash."""
    settings = run.Settings(port=0, root_path=options.get("root_path", ""), limits=options.get("limits", Limits()))
    with run.bind(settings) as listening:
        app = build(index, thumbnails=folder / "thumbnails", **{"warm": False, **options})
        server = uvicorn.Server(run.config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def wait_for(condition: Any, seconds: float = 30) -> None:
    """Return as soon as a condition holds."""
    tick = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        tick.wait(0.02)
    raise AssertionError("it did not happen in time")


class Slow(Colours):
    """A describer that says when it begins and takes its time."""

    def __call__(self, pictures: Any, box: Any = None) -> np.ndarray:
        print("begun", flush=True)
        time.sleep(0.7)
        return super().__call__(pictures, box)


if __name__ == "__main__":  # a server in a process of its own, to be stopped by a signal
    with Index.open(sys.argv[1], Slow()) as slow:
        run.serve(slow, run.Settings(port=0, browser=False, as_json=True))
