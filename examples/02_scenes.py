"""Which recipe finds the other photographs of a scene? Mean average precision of each, beside two controls.

    python examples/02_scenes.py PHOTOS [OTHERS]

PHOTOS holds one sub-folder per scene and `_distractors`; every photograph of a scene is a query, itself left out; no
whitening. OTHERS are photographs of other things, from which rmac-regional learns the whitening of its regions.
The controls know nothing of networks: a colour histogram, and the ratio of width to height alone.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import crow
from crow.evaluate.protocols import average_precision, full_sort, ranks_of
from crow.extract.images import load, walk
from crow.framework.describe import pooled, region_vectors


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


def main(photos: Path, others: Path | None) -> None:
    files = list(walk([photos]))
    scenes = [file.parent.name for file in files]
    pixels = [load(file).pixels for file in files]
    describer = crow.Describer(crow.RECIPES["crow"].sized("original"))
    maps = list(describer.engine.maps(pixels))
    print(f"{len(files)} photographs, {sum(s != '_distractors' for s in scenes)} queries, {describer!r}")

    histograms = np.stack([histogram(p) for p in pixels])
    ratios = np.array([p.shape[1] / p.shape[0] for p in pixels])
    table = {
        "control: colour histogram": mean_average_precision(histograms @ histograms.T, scenes),
        "control: width / height": mean_average_precision(-np.abs(ratios[:, None] - ratios), scenes),
    }
    for name, recipe in crow.RECIPES.items():
        regional = None
        if recipe.regional:
            if others is None:
                continue
            learned = describer.engine.maps([load(file).pixels for file in list(walk([others]))[:100]])
            regions = torch.cat([region_vectors(pooled(x, crow.RECIPES["rmac"])) for x in learned])
            regional = crow.Whitening.fit(regions.numpy(), 512 - 64)
            recipe = replace(recipe, regional=regional.fingerprint)
        vectors = torch.cat([crow.describe(x, recipe, regional) for x in maps]).numpy()
        table[name] = mean_average_precision(vectors @ vectors.T, scenes)
    for name, value in table.items():
        print(f"{name:26} {100 * value:5.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
