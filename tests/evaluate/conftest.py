"""The official layouts of the benchmarks, drawn: a few tiny pictures of a few things, under the true names."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def draw(path: Path, thing: int, view: int, size: tuple[int, int] = (112, 96)) -> Path:
    """A picture of a thing: its own stripes and colours; a view shifts them and adds its own noise."""
    width, height = size
    own, seen = np.random.default_rng(thing), np.random.default_rng(1000 * thing + view)
    (u, v), colours = own.uniform(0.05, 0.6, 2), own.uniform(0, 255, (2, 3))
    x, y = np.meshgrid(np.arange(width) + seen.integers(20), np.arange(height) + seen.integers(20))
    wave = (np.sin(u * x) * np.sin(v * y) > own.uniform(-0.5, 0.5))[..., None]
    pixels = np.where(wave, colours[0], colours[1]) + seen.normal(0, 12, (height, width, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=92)
    return path


def ground_truth(folder: Path, query: str, line: str, good: list[str], ok: list[str], junk: list[str]) -> None:
    """The four files of one query, as the authors name them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{query}_query.txt").write_text(line + "\n")
    for label, names in (("good", good), ("ok", ok), ("junk", junk)):
        (folder / f"{query}_{label}.txt").write_text("".join(f"{name}\n" for name in names))


def oxford(root: Path) -> None:
    """oxbuild_images.tgz holds the pictures flat; gt_files_170407.tgz the lists, flat."""
    for thing, tag in enumerate(("all_souls", "christ_church", "oxford")):
        names = [f"{tag}_{number:06d}" for number in range(5)]
        for view, name in enumerate(names):
            draw(root / "images" / f"{name}.jpg", thing, view)
        if tag != "oxford":
            for q in (0, 1):
                line = f"oxc1_{names[q]} 10.5 8.2 100.9 90.1"
                ground_truth(root / "gt_files_170407", f"{tag}_{q + 1}", line, names[:2], [names[2]], [names[3]])


def paris(root: Path) -> None:
    """paris_1.tgz and paris_2.tgz hold paris/<tag>/; paris_120310.tgz the lists; broken files are broken here too."""
    for thing, tag in enumerate(("defense", "louvre", "pantheon"), 10):
        names = [f"paris_{tag}_{number:06d}" for number in range(4)]
        for view, name in enumerate(names):
            draw(root / "paris" / tag / f"{name}.jpg", thing, view)
        line = f"{names[0]} 5 5 100 90"
        ground_truth(root / "paris_120310", f"{tag}_1", line, names[:1], names[1:3], names[3:])
    for name in ("louvre_000136", "louvre_000146", "pantheon_000284"):
        (root / "paris" / name.split("_")[0] / f"paris_{name}.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut short")


def holidays(root: Path) -> None:
    """jpg1.tar.gz and jpg2.tar.gz hold jpg/NNNNNN.jpg."""
    for group in range(3):
        for view in range(3):
            draw(root / "jpg" / f"{1000 + group}{view:02d}.jpg", 20 + group, view)


def revisited(root: Path, name: str = "roxford5k", protocol: int = 2) -> None:
    """jpg/*.jpg and gnd_<name>.pkl; the query pictures are not among those searched. The second has no easy ones."""
    tags = ("all_souls", "christ_church") if name == "roxford5k" else ("paris_defense", "paris_louvre")
    images, queries, truth = [], [], []
    for thing, tag in enumerate(tags, 30):
        names = [f"{tag}_{number:06d}" for number in range(5)]
        for view, picture in enumerate(names):
            draw(root / "jpg" / f"{picture}.jpg", thing, view)
        first = len(images)
        queries.append(names[0])
        images += names[1:]
        easy = [] if thing == 31 else [first]
        lists = {"easy": easy, "hard": np.array([first + 1, first + 2]), "junk": [first + 3]}
        truth.append({"bbx": np.array([3.5, 4.5, 100.0, 90.0]), **lists})
    plain = {"imlist": images, "qimlist": queries, "gnd": truth}
    (root / f"gnd_{name}.pkl").write_bytes(pickle.dumps(plain, protocol=protocol))


def distractors(root: Path) -> None:
    """oxc1_100k/<tag>/<name>.jpg, one of them damaged."""
    for view in range(6):
        draw(root / "oxc1_100k" / ("animal", "beach")[view % 2] / f"oxc1_{view:06d}.jpg", 50 + view, 0)
    (root / "oxc1_100k" / "beach" / "oxc1_000009.jpg").write_bytes(b"\xff\xd8 not a picture")


def groups(root: Path) -> None:
    """Two things of three pictures, one of a single picture, two distractors."""
    for thing, count in ((60, 3), (61, 3), (62, 1)):
        for view in range(count):
            draw(root / f"thing{thing}" / f"{view}.jpg", thing, view)
    for view in range(2):
        draw(root / "_distractors" / f"{view}.jpg", 70 + view, 0)


LAYOUTS = {
    "oxford5k": oxford,
    "paris6k": paris,
    "holidays": holidays,
    "roxford5k": revisited,
    "rparis6k": lambda root: revisited(root, "rparis6k", 4),
    "oxford100k": distractors,
    "groups": groups,
}


@pytest.fixture
def lay(tmp_path: Path):
    """lay(name) draws a layout below its own folder and gives that folder."""

    def laid(name: str) -> Path:
        root = tmp_path / name
        LAYOUTS[name](root)
        return root

    return laid


@pytest.fixture
def draw_picture():
    return draw


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder with the real vgg16 weights of the user's cache linked into it."""
    from crow.extract.pretrained import cache_folder

    ready = [cache_folder() / f"vgg16.{ending}" for ending in ("safetensors", "json")]
    if not all(file.exists() for file in ready):
        pytest.skip("the weights of vgg16 are not in the cache folder: crow weights")
    cache = tmp_path / "cache"
    cache.mkdir()
    for file in ready:
        (cache / file.name).symlink_to(file)
    monkeypatch.setenv("CROW_CACHE", str(cache))
    return cache
