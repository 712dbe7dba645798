"""The kernels on a Hopper GPU: against torch layer by layer and whole, in batches of any sizes, buffers and threads.

What every engine must show is in tests/extract/test_engines.py, on these too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crow.extract.engines import EngineError, TooLargeError, engine_named
from crow.extract.engines.convolution import EIGHT, Step, _laid, as_written, levels
from crow.extract.engines.cuda import LAYOUTS, CudaEngine, usable
from crow.extract.networks import Preprocessed, load, vgg
from crow.framework.describe import describe
from crow.recipe import RECIPES, Pool, Recipe, Spatial

pytestmark = pytest.mark.skipif(not usable(), reason="no Hopper GPU (H100, H200) here")

NAMES = ["cuda", "cuda-fp8"]
CROW = RECIPES["crow"]
Pictures = list[np.ndarray[Any, np.dtype[np.uint8]]]
SIZES = [
    (64, 64),
    (333, 251),
    (65, 479),
    (480, 81),
    (241, 240),
    (255, 256),
    (257, 95),
    (143, 111),
    (127, 480),
    (66, 66),
]


@pytest.fixture(scope="module")
def pictures(photos: Path) -> Pictures:
    """Real photographs of ten sizes, odd ones and those of a tile and one pixel among them."""
    found = []
    for file, (height, width) in zip(sorted(photos.rglob("*.jpg"))[::15], SIZES, strict=False):
        with Image.open(file) as image:
            found.append(np.asarray(image.convert("RGB").resize((width, height))))
    return found


@pytest.fixture(scope="module")
def network(vgg16: Path) -> torch.nn.Module:
    """The real VGG16."""
    return load("vgg16", "conv5_3")[0]


@pytest.fixture(scope="module", params=NAMES)
def engine(network: torch.nn.Module, request: pytest.FixtureRequest) -> Any:
    """Each of the two."""
    return engine_named(request.param, network)


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """The GPU's memory as it was."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("layer", ["conv5_3", "conv4_3", "conv2_1", "conv1_2"])
def test_maps_equal_the_references_at_every_size(
    network: torch.nn.Module, pictures: Pictures, ceil: bool, layer: str
) -> None:
    """As near as bfloat16 gets in torch's own layers; also with pools that round up, as those of vgg16-caffe do."""
    body = vgg(layer, (2, 2, 3, 3, 3), ceil)
    body.load_state_dict({key: value for key, value in network.body.state_dict().items() if key in body.state_dict()})
    means, scales = (tuple(buffer.flatten().tolist()) for buffer in (network.mean, network.std))
    cut = Preprocessed(body, means, scales).eval().requires_grad_(False)
    ours, rival, reference = (engine_named(name, cut, "cuda") for name in ("cuda", "torch-bf16", "torch"))
    found = zip(*(engine.maps(pictures) for engine in (ours, rival, reference)), strict=True)
    for alone, theirs, expected in found:
        assert alone.shape == expected.shape
        assert error(alone, expected) < 1.2 * error(theirs, expected) + 1e-6
    together = ours.forward(pictures)  # type: ignore[attr-defined]
    for i, alone in enumerate(parts(together)):
        assert torch.equal(next(ours.maps(pictures[i : i + 1])), alone)


def parts(layout: Any) -> list[torch.Tensor]:
    """The map of each picture of a batch, (1, K, H, W)."""
    sizes = layout.sizes[:, 2:].tolist()
    return [layout.map[i : i + 1, :h, :w].permute(0, 3, 1, 2).float() for i, (h, w) in enumerate(sizes)]


@pytest.mark.parametrize("recipe", ["crow", "ucrow", "rmac", "gem", "spoc"])
def test_alone_or_in_any_batch_a_vector_is_the_same(engine: CudaEngine, pictures: Pictures, recipe: str) -> None:
    together = engine.vectors(pictures, RECIPES[recipe])
    for i, picture in enumerate(pictures):
        assert engine.vectors([picture], RECIPES[recipe]).tobytes() == together[i].tobytes()
    backwards = engine.vectors(pictures[::-1] * 3, RECIPES[recipe])
    assert backwards.tobytes() == np.concatenate([together[::-1]] * 3).tobytes()


@pytest.mark.parametrize(
    "recipe",
    [
        *(RECIPES[name] for name in ("crow", "ucrow", "ucrow+sw", "ucrow+ssw", "crow-conv5", "crow-released")),
        Recipe("largest", Pool("max", size=2, stride=2), Spatial("response", a=float("inf"), b=1)),
        Recipe("rounding up", Pool("max", size=2, stride=2, ceil=True), Spatial("response", a=3, b=2)),
    ],
    ids=lambda recipe: recipe.name,
)
def test_sums_in_one_pass_are_those_of_describe(engine: CudaEngine, pictures: Pictures, recipe: Recipe) -> None:
    expected = torch.cat([describe(x, recipe) for x in engine.maps(pictures)]).cpu().numpy()
    assert np.abs(engine.vectors(pictures, recipe) - expected).max() < 1e-5


def test_buffers_that_grow_and_layouts_that_come_again(network: torch.nn.Module, pictures: Pictures) -> None:
    batches = [[0], [0, 9], [8], [3], [1, 2, 3], list(range(10)), [0], [4, 5], [0, 9], [6, 7, 8, 9], [3]]
    expected = engine_named("cuda", network).vectors(pictures, CROW)
    for order in (batches, batches[::-1]):
        fresh: Any = engine_named("cuda", network)
        for batch in order:
            assert fresh.vectors([pictures[i] for i in batch], CROW).tobytes() == expected[batch].tobytes()
        assert len(fresh._layouts) <= len({tuple(batch) for batch in batches})
        sizes = (pictures[3].shape[:2],)
        assert fresh._layout(sizes) is fresh._layout(sizes)
    many = [np.full((64 + i // 12, 64 + i % 12, 3), i, np.uint8) for i in range(LAYOUTS + 30)]
    once = [fresh.vectors([picture], CROW) for picture in many]
    assert len(fresh._layouts) == LAYOUTS
    assert [fresh.vectors([picture], CROW).tobytes() for picture in many] == [row.tobytes() for row in once]


def test_pictures_on_the_gpu_are_pictures(engine: CudaEngine, pictures: Pictures) -> None:
    expected = engine.vectors(pictures, CROW).tobytes()
    lines = [torch.from_numpy(picture.copy()).cuda().permute(2, 0, 1) for picture in pictures]
    planes = [picture.contiguous() for picture in lines]
    parts_of_larger = [torch.nn.functional.pad(picture, (5, 9, 3, 7))[:, 3:-7, 5:-9] for picture in planes]
    mixed = [each[i % 3] for i, each in enumerate(zip(pictures, lines, planes, strict=True))]
    for given in (lines, planes, parts_of_larger, mixed):
        assert engine.vectors(given, CROW).tobytes() == expected  # type: ignore[arg-type]


def test_a_border_of_two_pixels_beside_a_large_picture(engine: CudaEngine, network: torch.nn.Module) -> None:
    """What lies at the very edge is neither lost nor mixed with what is beside it."""
    framed = np.zeros((98, 82, 3), np.uint8)
    framed[:2], framed[-2:], framed[:, :2], framed[:, -2:] = 255, 255, 255, 255
    white = np.full((400, 300, 3), 255, np.uint8)
    alone = next(engine.maps([framed]))
    expected = next(engine_named("torch", network, "cuda").maps([framed]))
    assert engine.precision == "fast" or error(alone, expected) < 1e-2
    vector = engine.vectors([framed], CROW)
    for batch in ([framed, white], [white, framed], [white, framed, white[:98], white[:, :82]]):
        at = next(i for i, picture in enumerate(batch) if picture is framed)
        assert engine.vectors(batch, CROW)[at].tobytes() == vector.tobytes()


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (64, 128), (128, 128), (128, 256), (512, 512)])
def test_one_layer_equals_torchs_and_leaves_zeros_beside_it(inputs: int, outputs: int, pool: bool, ceil: bool) -> None:
    torch.manual_seed(inputs + outputs)
    sizes = (
        [(15, 31), (16, 16), (47, 33), (2 - ceil, 2), (32, 15), (2, 50)]
        if pool
        else [(15, 31), (1, 1), (47, 33), (2, 50)]
    )
    step = Step(torch.randn(outputs, inputs, 3, 3) / (3 * inputs**0.5), torch.randn(outputs) / 4, pool)
    values = [torch.randn(1, inputs, *size).relu().bfloat16().cuda() for size in sizes]
    weight, bias = step.weight.bfloat16().float().cuda(), step.bias.cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = [torch.conv2d(x.float(), weight, bias, padding=1).relu() for x in values]
    expected = [torch.max_pool2d(x, 2, ceil_mode=ceil) if pool else x for x in expected]
    for x, y in zip(
        expected, layer_of(_laid(step, ceil, torch.bfloat16, torch.bfloat16), values, pool, ceil), strict=True
    ):
        assert torch.allclose(y, x, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kinds", [(torch.bfloat16, EIGHT), (EIGHT, EIGHT), (EIGHT, torch.bfloat16)], ids=str)
def test_one_layer_of_eight_bit_floats(kinds: tuple[torch.dtype, torch.dtype], pool: bool) -> None:
    """Values are stored over a scale, their channels in the order of `as_written`."""
    torch.manual_seed(0)
    step = Step(torch.randn(256, 128, 3, 3) / 34, torch.randn(256) / 4, pool)
    values = [torch.randn(1, 128, *size).relu().bfloat16().cuda() for size in ((15, 31), (47, 33))]
    scale, scale_out = (0.02 if kind is EIGHT else 1.0 for kind in kinds)
    given = values
    if kinds[0] is EIGHT:
        given = [(x.float() / scale)[:, as_written(128)].to(EIGHT) for x in values]
        values = [(x.float() * scale)[:, as_written(128).argsort()] for x in given]
    expected = [torch.conv2d(x.float(), step.weight.cuda(), step.bias.cuda(), padding=1).relu() for x in values]
    expected = [torch.max_pool2d(x, 2) if pool else x for x in expected]
    for x, y in zip(expected, layer_of(_laid(step, False, *kinds, scale, scale_out), given, pool, False), strict=True):
        found = y[:, as_written(256).argsort()] * scale_out if kinds[1] is EIGHT else y
        assert error(found, x) < 0.05


def layer_of(convolution: Any, values: list[torch.Tensor], pool: bool, ceil: bool) -> list[torch.Tensor]:
    """What a layer makes of (1, K, H, W) values in one batch of canvases, (1, K', H', W') float32, zeros checked."""
    sizes = [(x.shape[2], x.shape[3]) for x in values]
    table, shapes, counts = levels(sizes, [pool], ceil)
    x = torch.zeros((len(values), *shapes[0], values[0].shape[1]), dtype=values[0].dtype, device="cuda")
    for i, value in enumerate(values):
        x[i, : sizes[i][0], : sizes[i][1]] = value[0].permute(1, 2, 0)
    y = torch.full((len(values), *shapes[1], convolution.outputs), 99.0, device="cuda").to(convolution.outward)
    tables = torch.from_numpy(table).cuda()
    convolution.launch(x, y, tables[0], counts[0])()
    found = []
    for i, (height, width) in enumerate(table[1][:, 2:].tolist()):
        whole = y[i].float()
        assert not whole[height : height + 1, : width + 1].any() and not whole[: height + 1, width : width + 1].any()
        found.append(whole[:height, :width].permute(2, 0, 1)[None])
    return found


def test_a_picture_that_memory_does_not_hold_is_named_and_the_next_one_works(
    network: torch.nn.Module, pictures: Pictures
) -> None:
    for name in ("cuda", "torch-bf16"):
        engine = engine_named(name, network)
        expected = engine.vectors(pictures, CROW)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties("cuda").total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
        for _ in range(2):
            with pytest.raises(TooLargeError, match="5500 x 5000 pixels are too many for the GPU's memory"):
                engine.vectors([pictures[0], np.zeros((5000, 5500, 3), np.uint8)], CROW)
            assert np.abs(engine.vectors(pictures, CROW) - expected).max() < 1e-3
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_threads_with_streams_of_their_own_share_an_engine(engine: CudaEngine, pictures: Pictures) -> None:
    expected = engine.vectors(pictures, CROW)
    maps = [x.cpu() for x in engine.maps(pictures)]

    def work(start: int) -> bool:
        own = [(start + i) % len(pictures) for i in range(6)]
        given = [pictures[i] for i in own]
        with torch.cuda.stream(torch.cuda.Stream()):
            same = engine.vectors(given, CROW).tobytes() == expected[own].tobytes()
            return same and all(torch.equal(x.cpu(), maps[i]) for x, i in zip(engine.maps(given), own, strict=True))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(40)))


def test_networks_and_weights_that_it_is_not_made_for(network: torch.nn.Module) -> None:
    with pytest.raises(EngineError, match="engine cuda runs VGG16 and VGG19"):
        engine_named("cuda", load("vgg16", "conv1_1")[0])
    other = load("vgg16", "conv5_3")[0]
    other.body[0].weight.data *= 2
    with pytest.raises(EngineError, match="take engine cuda"):
        engine_named("cuda-fp8", other)
