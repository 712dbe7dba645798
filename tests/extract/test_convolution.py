"""Convolutions for the GPU, as far as they are laid out on the processor: plans, tiles, weights in the kernels' order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crow.extract.engines import EngineError
from crow.extract.engines.convolution import TILE, as_written, first_weights, levels, plan
from crow.extract.engines.rewrite import whole_numbers
from crow.extract.networks import NETWORKS, Preprocessed, vgg

VGG16 = (2, 2, 3, 3, 3)


def network_of(body: nn.Module) -> nn.Module:
    return whole_numbers(Preprocessed(body, NETWORKS["vgg16"].mean, NETWORKS["vgg16"].std))


@pytest.mark.parametrize("ceil", [False, True])
def test_the_plan_is_the_network(ceil: bool) -> None:
    """What it says, done by torch, gives the network's map."""
    torch.manual_seed(0)
    network = network_of(vgg("conv3_2", VGG16, ceil))
    steps, rounds = plan(network)
    assert rounds == ceil and [step.pool for step in steps] == [False, True, False, True, False, False]
    picture = torch.randint(0, 256, (1, 3, 37, 50)).float()
    x = picture - network.body[0].mean
    x = torch.cat([x, torch.ones(1, 1, 37, 50)], 1)
    for step in steps:
        x = torch.relu(torch.conv2d(x, step.weight, step.bias, padding=1))
        x = torch.max_pool2d(x, 2, ceil_mode=rounds) if step.pool else x
    with torch.no_grad():
        assert torch.equal(x, network(picture))


@pytest.mark.parametrize(
    "other",
    [
        NETWORKS["alexnet"].make("conv5"),
        NETWORKS["resnet50"].make("layer3"),
        vgg("conv1_1", VGG16),
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 96, 3, padding=1)),
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 1)),
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1)),
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)),
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()),
        nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.ReLU()
        ),
    ],
    ids=["alexnet", "resnet50", "one layer", "96", "1 x 1", "early pool", "no ReLU", "stride", "no bias"],
)
def test_other_networks_are_refused(other: nn.Module) -> None:
    with pytest.raises(EngineError, match="engine cuda runs VGG16 and VGG19"):
        plan(network_of(other))
    with pytest.raises(EngineError, match="engine torch runs any network"):
        plan(nn.Identity())


def tiles_drawn(table: np.ndarray, canvas: tuple[int, int], count: int) -> list[np.ndarray]:
    """Per picture, how often each place of its canvas is in a tile; tiles found as the kernels find them."""
    drawn = [np.zeros((canvas[0] + TILE, canvas[1] + TILE), int) for _ in table]
    for tile in range(count):
        at = max(i for i, level in enumerate(table) if level[0] <= tile)
        start, across, _, _ = table[at]
        y, x = (tile - start) // across * TILE, (tile - start) % across * TILE
        drawn[at][y : y + TILE, x : x + TILE] += 1
        assert y < canvas[0] and x < canvas[1]
    return [picture[: canvas[0], : canvas[1]] for picture in drawn]


sides = st.integers(1, 70)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(sides, sides), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.booleans(),
)
def test_every_place_that_a_layer_reads_is_written(sizes: list[tuple[int, int]], pools: list[bool], ceil: bool) -> None:
    """Drawn place by place: a 3 x 3 convolution reads one place beyond each picture's border, as far as its canvas goes."""
    if not ceil and min(min(size) for size in sizes) < 2 ** sum(pools):
        with pytest.raises(EngineError, match="too small"):
            levels(sizes, pools, ceil)
        return
    tables, shapes, counts = levels(sizes, pools, ceil)
    here = sizes
    for pool, table, canvas, after, count in zip([*pools, False], tables, shapes[:-1], shapes[1:], counts, strict=True):
        assert [tuple(level[2:]) for level in table] == here
        assert canvas == tuple(np.max(here, 0))
        half = 2 if pool else 1
        probe = nn.MaxPool2d(2, ceil_mode=ceil) if pool else nn.Identity()
        here = [tuple(probe(torch.zeros(1, 1, *size)).shape[2:]) for size in here]
        assert after == tuple(np.max(here, 0))
        for (height, width), places in zip(here, tiles_drawn(table, canvas, count), strict=True):
            assert places.max() == 1  # no place is computed twice
            written = np.zeros(after, bool)
            pooled = places[::half, ::half][: after[0], : after[1]]
            written[: pooled.shape[0], : pooled.shape[1]] = pooled > 0
            assert written[: height + 1, : width + 1].all()


@pytest.mark.parametrize(
    ("side", "ceil", "rows"),
    [(31, True, 3), (31, False, 2), (15, True, 2), (15, False, 1), (32, True, 3), (33, True, 3)],
)
def test_a_pool_that_rounds_up_may_need_one_tile_more(side: int, ceil: bool, rows: int) -> None:
    """31 rows become 16, all that two tiles make: the row of zeros after them is a third one's."""
    tables, _, counts = levels([(side, 200), (200, 200)], [True], ceil)
    across = tables[0][0][1]
    assert tables[0][1][0] == rows * across
    assert counts[0] == (rows + 13) * across


def test_weights_stand_as_eight_bit_lines_are_written() -> None:
    """`narrowed` packs two channels of one block of eight and two of the next: walked as the kernel walks."""
    order = []
    for lines in range(2):
        for block in range(8):
            for pair in range(4):
                order += [128 * lines + 16 * block + 8 * part + 2 * pair + e for part in range(2) for e in range(2)]
    assert as_written(256).tolist() == order


def test_the_first_weights_lie_as_the_tensor_cores_read_them() -> None:
    """By the layout of mma.m16n8k16's operands in NVIDIA's manual: a product of one place, lane by lane."""
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.integers(-8, 8, (64, 4, 3, 3)).astype(np.float32))
    places = rng.integers(-8, 8, (4, 3, 3)).astype(np.float32)
    inputs = [places[channel, tap // 3, tap % 3] for tap in range(9) for channel in range(4)] + [0.0] * 12
    laid = first_weights(weight).float().numpy()
    assert laid.shape == (24, 32, 4)
    found = np.zeros(64)
    for step in range(3):
        for block in range(8):
            for lane in range(32):
                column, rows = lane // 4, (lane % 4 * 2, lane % 4 * 2 + 1, lane % 4 * 2 + 8, lane % 4 * 2 + 9)
                channel = 16 * (column // 2) + 2 * block + column % 2  # where the kernel stores this column
                for i, row in enumerate(rows):
                    found[channel] += laid[8 * step + block, lane, i] * inputs[16 * step + row]
    expected = [float((weight[k].numpy() * places).sum()) for k in range(64)]
    assert found.tolist() == expected
