"""The Describer: order, mixed sizes, every kind of input, failures that do not stop the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crow.extract.describer import Described, Describer
from crow.extract.engines import Pictures
from crow.extract.engines.batches import within_memory
from crow.extract.engines.torch import TorchEngine
from crow.extract.images import PictureError
from crow.extract.workers import Workers
from crow.framework.reduce import Whitening
from crow.recipe import RECIPES, RecipeError


@pytest.fixture(scope="module")
def describer(vgg16: Path) -> Describer:
    """CroW at its reference, on small pictures."""
    return Describer(RECIPES["crow"].sized("160"), engine="torch")


def test_forty_photographs_of_mixed_sizes_equal_one_by_one(describer: Describer, photos: Path) -> None:
    files = sorted(photos.rglob("*.jpg"))[::4][:40]
    shapes = [(160, 120), (120, 160), (160, 107), (131, 90)]
    pictures = []
    for i, file in enumerate(files):
        with Image.open(file) as image:
            pictures.append(np.asarray(image.convert("RGB").resize(shapes[i * 7 % 4])))
    assert len(pictures) == 39 or len(pictures) == 40
    window = describer.engine.window
    describer.engine.window = 16  # so that batches of one size really form
    try:
        together = describer(pictures)
    finally:
        describer.engine.window = window
    apart = np.concatenate([describer(picture) for picture in pictures])
    assert np.abs(together - apart).max() < 1e-5
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_one_or_many_paths_arrays_and_pil_images(describer: Describer, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    sources = [
        str(tmp_path / "a.png"),
        tmp_path / "a.png",
        (tmp_path / "a.png").read_bytes(),
        pixels,
        Image.fromarray(pixels),
    ]
    vectors = describer(sources)
    assert vectors.shape == (5, 512) and vectors.dtype == np.float32
    assert (vectors == vectors[0]).all()
    assert np.array_equal(describer(pixels), vectors[:1])
    assert describer([]).shape == (0, 512)
    boxed, cut = describer(pixels, box=(10, 20, 90, 90)), describer(np.ascontiguousarray(pixels[20:90, 10:90]))
    assert np.array_equal(boxed, cut)


def test_failures_keep_their_place_and_the_rest_goes_on(describer: Describer, tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    (tmp_path / "text.jpg").write_text("not a picture")
    sources = [pixels, tmp_path / "text.jpg", tmp_path / "gone.jpg", pixels, tmp_path / "text.jpg"]
    results = list(describer.stream(enumerate(sources)))
    assert [r.key for r in results] == list(range(5))
    assert [r.reason is None for r in results] == [True, False, False, True, False]
    assert all(isinstance(r, Described) and (r.vector is None) == (r.reason is not None) for r in results)
    with pytest.raises(PictureError, match=r"text\.jpg: not a picture"):
        describer([pixels, tmp_path / "text.jpg"])


@pytest.mark.parametrize("group", [1, 3, 8])
def test_groups_and_processes_keep_order_and_failures(
    describer: Describer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    sources: list[Path] = []
    for i in range(13):
        sources.append(tmp_path / f"{i}.png")
        if i % 5 == 3:
            sources[-1].write_text("not a picture")
        else:
            Image.fromarray(np.full((64 + 9 * i, 80, 3), 20 * i, np.uint8)).save(sources[-1])
    expected = list(describer.stream(enumerate(sources)))
    workers = Workers(2)
    workers.group = group
    monkeypatch.setitem(vars(describer), "_decoder", workers)
    for window in (4, 7):
        monkeypatch.setattr(describer.engine, "window", window)
        found = list(describer.stream(enumerate(sources)))
        for one, other in zip(found, expected, strict=True):
            assert (one.key, one.width, one.height, one.reason) == (other.key, other.width, other.height, other.reason)
            assert np.array_equal(one.vector, other.vector)  # type: ignore[arg-type]
    assert [each.key for each in found if each.reason] == [3, 8]


def test_a_picture_that_memory_does_not_hold_is_named_and_the_rest_goes_on(
    describer: Describer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(TorchEngine):
        """The real engine on a device that has no memory for much."""

        def maps(self, pictures: Pictures) -> Iterator[torch.Tensor]:
            with within_memory(pictures):
                if sum(picture.size for picture in pictures) > 3 * 100 * 200:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
            return super().maps(pictures)

    sizes = [(64, 64), (140, 150), (90, 70), (130, 90)]
    pictures = [np.full((*size, 3), 90, np.uint8) for size in sizes]
    expected = describer([pictures[i] for i in (0, 2, 3)])
    monkeypatch.setattr(describer, "engine", Small(describer.engine.network))  # type: ignore[attr-defined]
    found = list(describer.stream(enumerate(pictures)))
    assert [each.reason for each in found if each.reason] == [
        "150 x 140 pixels are too many for the GPU's memory: give a --size"
    ]
    assert np.array_equal([each.vector for each in found if each.vector is not None], expected)


def test_a_stream_reads_no_further_ahead_than_a_few_windows(describer: Describer) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield taken, np.zeros((64, 64, 3), np.uint8)

    stream = describer.stream(endless())
    for _ in range(6):
        next(stream)
    stream.close()
    assert taken <= 6 + 5 * describer.engine.window


def test_a_picture_too_large_for_the_network_is_named(describer: Describer) -> None:
    large = Describer(RECIPES["crow"].sized("original"), engine="torch")
    with pytest.raises(PictureError, match="too many for the network"):
        large(np.zeros((8000, 5000, 3), np.uint8))


def test_a_recipe_goes_by_its_name_too(vgg16: Path) -> None:
    assert Describer("mac", engine="torch").recipe == RECIPES["mac"]
    with pytest.raises(RecipeError, match="no recipe named 'mcb'; there are: crow, "):
        Describer("mcb")


def test_rmac_regional_needs_the_whitening_of_its_regions(describer: Describer, vgg16: Path) -> None:
    with pytest.raises(RecipeError, match="regional"):
        Describer(RECIPES["rmac-regional"])
    with pytest.raises(RecipeError, match="regional"):
        Describer(RECIPES["crow"], regional=Whitening.fit(np.random.default_rng(0).random((40, 512)), 8))
    regional = Whitening.fit(np.random.default_rng(0).random((600, 512)).astype(np.float32), 64)
    describer = Describer(RECIPES["rmac-regional"].sized("96"), engine="torch", regional=regional)
    assert describer.recipe.regional == regional.fingerprint
    assert describer(np.full((96, 96, 3), 90, np.uint8)).shape == (1, 64) == (1, describer.dim)
