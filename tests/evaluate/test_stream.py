"""Distractors that stream past give the same rankings, and the same numbers, as distractors that are held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crow.evaluate.rank import rankings
from crow.evaluate.stream import Stream, rankings_among
from crow.recipe import RECIPES
from crow.search.sqlite import SqliteStore
from crow.search.store import Row, StoreError

RANDOM = np.random.default_rng(5)


def units(count: int, dim: int = 6) -> np.ndarray:
    rows = RANDOM.standard_normal((count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("expand", "with_query"), [(0, False), (5, False), (5, True)])
def test_the_same_rankings_as_with_all_of_them_in_memory(expand: int, with_query: bool) -> None:
    images, queries, more = units(40), units(7), units(1000)
    more[3] = images[11]  # a tie: the picture goes first, as it does by its index
    alone = [[i] for i in range(7)]
    chunks = [more[:300], more[300:301], more[301:301], more[301:]]
    streamed = list(rankings_among(images, queries, alone, lambda: chunks, expand, with_query))
    held = list(rankings(np.vstack([images, more]), queries, alone, expand, with_query))
    for one, other in zip(streamed, held, strict=True):
        np.testing.assert_array_equal(one, np.minimum(other, len(images)))


def test_an_index_made_otherwise_is_refused(tmp_path: Path) -> None:
    recipe = RECIPES["crow"]
    with SqliteStore.create(tmp_path / "a.crow", recipe=recipe.to_dict(), weights="w") as store:
        rows = units(20)
        store.upsert(Row(f"{i}.jpg", row) for i, row in enumerate(rows))
        stream = Stream(store)
        assert stream.count == 20
        np.testing.assert_array_equal(np.concatenate(list(stream.chunks(recipe, "w", None))), rows)
        with pytest.raises(StoreError, match="made with another recipe"):
            next(stream.chunks(RECIPES["gem"], "w", None))
        with pytest.raises(StoreError, match="made with weights w, the dataset with v"):
            next(stream.chunks(recipe, "v", None))
