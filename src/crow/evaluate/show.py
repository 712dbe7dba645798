"""What the weights look at, drawn: the paper's two visualisations for one picture, and the match of two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from crow.framework import explain

if TYPE_CHECKING:
    import torch

    from crow.extract.describer import Describer
    from crow.extract.images import Source
    from crow.framework.reduce import Whitening

Pixels = NDArray[np.uint8]
WIDE, PATCH, GAP = 480, 128, 12
INK, PAPER = (30, 30, 30), (255, 255, 255)


def show_picture(describer: Describer, source: Source) -> Image.Image:
    """One picture: itself, its spatial weights, its 7 highest and 7 lowest receptive fields, its rare channels' regions."""
    pixels, x = _look(describer, source)
    weights = explain.spatial_map(x, describer.recipe)
    channels, places = explain.rarest_active(x, describer.recipe)
    size, stride = _field(describer)
    fields = [window(pixels, i, j, size, stride) for i, j in ranked(weights)]
    rare = [pixels[top:bottom, left:right] for left, top, right, bottom in _windows(pixels, places, size, stride)]
    count = min(7, len(fields))
    rows = [
        _row("picture, spatial weights", [_fit(pixels, WIDE), _fit(heat(pixels, weights), WIDE)]),
        _row(f"the {count} highest weighted receptive fields", [_fit(f, PATCH) for f in fields[:count]]),
        _row(f"the {count} lowest weighted receptive fields", [_fit(f, PATCH) for f in fields[::-1][:count]]),
        _row(
            f"where the {len(channels)} rarest active channels fire ({int(places.sum())} of {places.size} places)",
            [_fit(lit(pixels, places), WIDE), *[_fit(r, PATCH) for r in rare[:4]]],
        ),
    ]
    return _column(rows)


def show_match(describer: Describer, left: Source, right: Source, whitening: Whitening | None = None) -> Image.Image:
    """Two pictures: what each cell of either adds to their cosine; the best matching region as a box."""
    looks = [_look(describer, source) for source in (left, right)]
    cells = [explain.cell_vectors(x, describer.recipe) for _, x in looks]
    raw = np.stack([c.sum((0, 1)) for c in cells])
    finals = whitening.apply(raw) if whitening else raw
    panels, constants = [], []
    for side in (0, 1):
        shares, constant = explain.score_cells(cells[side], finals[1 - side], whitening)
        picture = Image.fromarray(heat(looks[side][0], np.maximum(shares, 0)))
        _draw_box(picture, explain.best_region(shares), shares.shape)
        panels.append(_fit(np.asarray(picture), WIDE))
        constants.append(constant)
    plain = _row("the two pictures", [_fit(pixels, WIDE) for pixels, _ in looks])
    score = float(finals[0] @ finals[1])
    words = f"what each cell adds to the cosine {score:.3f} (constants {constants[0]:+.3f}, {constants[1]:+.3f})"
    return _column([plain, _row(words, panels)])


def heat(pixels: Pixels, weights: NDArray[Any]) -> Pixels:
    """(h, w, 3) and weights (a, b) >= 0 -> (h, w, 3): grey where the weight is low, warm where it is high."""
    height, width = pixels.shape[:2]
    level = Image.fromarray((weights / (weights.max() or 1)).astype(np.float32))
    strength = np.asarray(level.resize((width, height), Image.Resampling.BICUBIC)).clip(0, 1)[..., None]
    grey = pixels.mean(-1, keepdims=True) * 0.75 + 20
    colour = np.concatenate([255 * strength**0.5, 200 * strength**1.5, 60 * (1 - strength)], -1)
    return (grey * (1 - 0.65 * strength) + colour * 0.65 * strength).clip(0, 255).astype(np.uint8)


def lit(pixels: Pixels, places: NDArray[np.bool_]) -> Pixels:
    """(h, w, 3) and places (a, b) -> (h, w, 3) with everything else darkened."""
    height, width = pixels.shape[:2]
    mask = np.asarray(Image.fromarray(places.astype(np.uint8) * 255).resize((width, height), Image.Resampling.NEAREST))
    return np.where(mask[..., None] > 0, pixels, pixels // 4).astype(np.uint8)


def _look(describer: Describer, source: Source) -> tuple[Pixels, torch.Tensor]:
    from crow.extract.images import prepare

    pixels = prepare(source, describer.recipe.view).pixels
    return pixels, next(iter(describer.engine.maps([pixels])))


def _field(describer: Describer) -> tuple[int, int]:
    from crow.extract.networks import receptive_field

    return receptive_field(describer.recipe)


def ranked(weights: NDArray[Any]) -> list[tuple[int, int]]:
    """Places of (h, w) by falling weight, ties by position."""
    order = np.argsort(-weights.ravel(), kind="stable")
    return [divmod(int(i), weights.shape[1]) for i in order]


def window(pixels: Pixels, i: int, j: int, size: int, stride: int) -> Pixels:
    """The pixels that the cell in row i, column j looks at, cut to the picture."""
    y, x = (i + 0.5) * stride, (j + 0.5) * stride
    top, left = max(0, round(y - size / 2)), max(0, round(x - size / 2))
    return pixels[top : round(y + size / 2), left : round(x + size / 2)]


def _windows(pixels: Pixels, places: NDArray[np.bool_], size: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Boxes around separate active places: the receptive field of each, nearby ones left out."""
    boxes: list[tuple[int, int, int, int]] = []
    for i, j in zip(*np.nonzero(places), strict=True):
        y, x = int((i + 0.5) * stride), int((j + 0.5) * stride)
        if all(abs(x - (b[0] + b[2]) / 2) > size / 2 or abs(y - (b[1] + b[3]) / 2) > size / 2 for b in boxes):
            boxes.append((max(0, x - size // 2), max(0, y - size // 2), x + size // 2, y + size // 2))
    return boxes


def _draw_box(picture: Image.Image, region: tuple[int, int, int, int], shape: tuple[int, ...]) -> None:
    x, y, width, height = region
    sx, sy = picture.width / shape[1], picture.height / shape[0]
    box = (x * sx, y * sy, (x + width) * sx - 1, (y + height) * sy - 1)
    ImageDraw.Draw(picture).rectangle(box, outline=(0, 220, 255), width=max(2, picture.width // 160))


def _fit(pixels: Pixels, side: int) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture


def _row(title: str, pictures: list[Image.Image]) -> Image.Image:
    width = sum(p.width for p in pictures) + GAP * (len(pictures) - 1)
    row = Image.new("RGB", (max(width, 7 * PATCH + 6 * GAP), max(p.height for p in pictures) + 20), PAPER)
    ImageDraw.Draw(row).text((0, 2), title, INK)
    x = 0
    for picture in pictures:
        row.paste(picture, (x, 20))
        x += picture.width + GAP
    return row


def _column(rows: list[Image.Image]) -> Image.Image:
    page = Image.new("RGB", (max(r.width for r in rows) + 2 * GAP, sum(r.height + GAP for r in rows) + GAP), PAPER)
    y = GAP
    for row in rows:
        page.paste(row, (GAP, y))
        y += row.height + GAP
    return page
