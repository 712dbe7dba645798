"""Which recipe finds the other photographs of a scene? Mean average precision of each, beside two controls.

    python examples/02_scenes.py PHOTOS [OTHERS]

PHOTOS holds one sub-folder per scene and `_distractors`; every photograph of a scene is a query, itself left out; no
whitening, pictures at their own size. OTHERS are photographs of other things: rmac-regional, and it alone, whitens its
regions with what they teach. The controls know nothing of networks: a colour histogram, and width / height alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import crow
from crow.evaluate.datasets import load as load_dataset
from crow.evaluate.protocols import average_precision, full_sort, ranks_of
from crow.evaluate.run import Settings, evaluate
from crow.evaluate.teach import teacher_for
from crow.extract.images import load, walk


def mean_average_precision(scores: np.ndarray, scenes: list[str]) -> float:
    """Of all photographs of a scene against all others; (n, n) scores."""
    precisions = []
    for query, scene in enumerate(scenes):
        right = {i for i, other in enumerate(scenes) if other == scene and i != query}
        if right and scene != "_distractors":
            precisions.append(average_precision(ranks_of(full_sort(scores[query]), right, {query}), len(right)))
    return float(np.mean(precisions))


def histogram(pixels: np.ndarray) -> np.ndarray:
    """8 x 8 x 8 colours, square roots of their shares: a unit vector (512,)."""
    bins = (pixels // 32).reshape(-1, 3) @ (64, 8, 1)
    return np.sqrt(np.bincount(bins, minlength=512) / len(bins))


def controls(photos: Path) -> dict[str, float]:
    """What no network is needed for."""
    files = list(walk([photos]))
    scenes = [file.parent.name for file in files]
    pixels = [load(file).pixels for file in files]
    colours = np.stack([histogram(p) for p in pixels])
    ratios = np.array([p.shape[1] / p.shape[0] for p in pixels])
    return {
        "control: colour histogram": mean_average_precision(colours @ colours.T, scenes),
        "control: width / height": mean_average_precision(-np.abs(ratios[:, None] - ratios), scenes),
    }


def main(photos: Path, others: str | None) -> None:
    dataset = load_dataset("groups", photos)
    recipes = {name: recipe.sized("original") for name, recipe in crow.RECIPES.items()}
    regional = recipes.pop("rmac-regional")
    results = list(evaluate(dataset, Settings(tuple(recipes.values()))).results)
    if others:
        results += evaluate(dataset, Settings((regional,)), teacher_for(others, dataset, photos)).results
    print(f"{len(dataset.images)} photographs, {len(dataset.queries)} of them queries")
    for name, value in controls(photos).items():
        print(f"{name:26} {100 * value:5.1f}")
    for result in results:
        print(f"{result.record['recipe']:26} {100 * result.record['map']:5.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
