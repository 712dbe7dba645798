"""The whitening policy: a file, the collection itself, or none; and what may not be mixed."""

from __future__ import annotations

import warnings
from pathlib import Path

from crow.framework.reduce import Moments, Whitening
from crow.recipe import Recipe
from crow.search.matrix import SearchError
from crow.search.store import Store

ENOUGH = 1000  # pictures from which a collection whitens itself; fewer say too little about 128 directions
SELF_DIM = 128  # what self-whitening keeps: on real photographs CroW found best at 128 (docs/search.md)
PER_DIM = 4  # pictures for each dimension kept: with as many dimensions as pictures, all are equally far apart


def whitening_policy(whitening: Whitening | str | Path | None) -> tuple[str, Whitening | None]:
    """("auto" | "self" | "none" | "file", the whitening itself where it is known)."""
    if whitening is None or whitening in ("self", "none", "auto"):
        return str(whitening or "auto"), None
    return "file", whitening if isinstance(whitening, Whitening) else Whitening.load(Path(whitening))


def check_whitening(whitening: Whitening | None, recipe: Recipe) -> None:
    """Refuse a whitening learned on other vectors, by name; another picture size alone is worth a warning."""
    if whitening is None or whitening.recipe is None:
        return
    differences = whitening.recipe.differences(recipe)
    serious = [d for d in differences if not d.startswith("view.size.")]
    if serious:
        raise SearchError(
            f"this whitening was learned on {whitening.recipe.name} vectors, the index holds {recipe.name} ({'; '.join(serious)})"
        )
    if differences:
        warnings.warn(f"the whitening was learned at another picture size ({'; '.join(differences)})", stacklevel=3)


def moments_of(store: Store) -> Moments:
    """Count, mean and scatter of all raw vectors of a store."""
    moments = Moments()
    with store.snapshot():
        for _, vectors in store.chunks():
            moments = moments.add(vectors)
    return moments


def learned_from(moments: Moments, address: str, recipe: Recipe, dim: int | None) -> Whitening:
    """A whitening learned from the moments of everything in a store; without `dim` it keeps SELF_DIM, or what so many pictures teach."""
    if moments.count < 2:
        raise SearchError(f"{address}: a whitening is learned from at least 2 pictures")
    source = f"the {moments.count} pictures of the index itself"
    learned = Whitening.from_moments(moments, dim, recipe, source=source)
    return learned if dim else learned.to_dim(min(SELF_DIM, max(1, moments.count // PER_DIM), learned.dim))
