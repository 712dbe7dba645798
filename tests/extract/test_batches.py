"""Which pictures share a batch on a GPU."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crow.extract.engines.batches import MOST, canvases, size_of

sides = st.integers(1, 400)


def blank(height: int, width: int) -> np.ndarray:
    return np.broadcast_to(np.uint8(0), (height, width, 3))


@settings(deadline=None)
@given(st.lists(st.tuples(sides, sides), max_size=300), st.integers(1, 3_000_000))
def test_every_picture_once_and_canvases_within_limits(sizes: list[tuple[int, int]], pixels: int) -> None:
    batches = list(canvases([blank(*size) for size in sizes], pixels))
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        room = max(sizes[i][0] for i in batch) * max(sizes[i][1] for i in batch)
        assert len(batch) == 1 or len(batch) * room <= pixels
        assert 1 <= len(batch) <= MOST


def test_batches_are_of_like_sizes_and_as_full_as_they_may_be() -> None:
    sizes = [(100, 200), (200, 100)] * 50
    batches = list(canvases([blank(*size) for size in sizes], 20_000 * 50))
    assert [{sizes[i] for i in batch} for batch in batches] == [{(100, 200)}, {(200, 100)}]
    assert all(batch == sorted(batch) for batch in batches)  # equal ones stay in the order given
    assert [len(batch) for batch in canvases([blank(9, 9)] * (2 * MOST + 3), 1 << 30)] == [MOST, MOST, 3]


def test_the_same_sizes_in_another_order_make_the_same_batches() -> None:
    rng = np.random.default_rng(0)
    sizes = [tuple(size) for size in rng.integers(64, 300, (90, 2)).tolist()]
    shapes = []
    for order in (range(90), rng.permutation(90)):
        mixed = [sizes[i] for i in order]
        shapes.append([[mixed[i] for i in batch] for batch in canvases([blank(*s) for s in mixed], 400_000)])
    assert shapes[0] == shapes[1]


def test_sizes_of_pixels_here_and_of_planes_on_a_gpu() -> None:
    assert size_of(np.zeros((5, 7, 3), np.uint8)) == size_of(torch.zeros((3, 5, 7), dtype=torch.uint8)) == (5, 7)
