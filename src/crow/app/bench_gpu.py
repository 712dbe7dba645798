"""What `crow bench network` measures on a GPU: rates from pictures, and from JPEG files in memory, to vectors on the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from crow.app.bench import Measure, milliseconds, operations, spread, timed
from crow.extract.describer import Describer
from crow.extract.engines import Engine
from crow.extract.engines.rewrite import whole_numbers
from crow.extract.networks import load
from crow.framework.describe import describe
from crow.recipe import Recipe

WIDTH, HEIGHT = 1024, 768
COUNT, FILES = 128, 512  # pictures of that size, and JPEG files, in a measurement
BASELINE = "torch as it comes"  # float32 tensors, TF32 convolutions, one picture at a time, torch's own memory order
COMPILED, BATCH = "torch.compile in bfloat16, 8 at a time", 8
PRODUCT = 8192  # rows of the square matrices whose product is the machine's peak
OTHERS = 50  # picture sizes of the mixed set that come once
WANTED = {"cuda": {"rate": 1150.0, "one": 750.0}, "cuda-fp8": {"rate": 1600.0}}
Picture = NDArray[np.uint8]
Rates = dict[str, list[float]]  # milliseconds of every round


def speed(recipe: Recipe, engines: dict[str, Engine], sample: list[Picture], rounds: int) -> Iterator[Measure]:
    """Every engine against torch's defaults and torch.compile, in one run, and where files come in."""
    ours = {name: engine for name, engine in engines.items() if name != "torch"}
    uniform = [fitted(sample[i % len(sample)], WIDTH, HEIGHT) for i in range(COUNT)]
    there = [_on_gpu(picture, next(iter(ours.values())).device) for picture in uniform]
    times = timed(_ways(recipe, ours, there), range(rounds), block=1)
    peak = 2e-9 * PRODUCT**3 / median(times.pop("matrix product"))
    yield Measure("matrix product, bfloat16", peak, "TFLOP/s")
    base = times.pop(BASELINE)
    yield _rate(BASELINE, base, COUNT)
    if COMPILED in times:
        yield _rate(COMPILED, times.pop(COMPILED), COUNT)
    work = operations(load(recipe.view.network, recipe.view.layer)[0], HEIGHT, WIDTH)
    for name, found in times.items():
        yield _rate(f"{name}: {COUNT} of {WIDTH} x {HEIGHT}", found, COUNT, WANTED.get(name, {}).get("rate"), base)
        rate = 1e-12 * work * COUNT / median(found) * 1000
        yield Measure(f"{name}: arithmetic", rate, "TFLOP/s")
        yield Measure(f"{name}: of the matrix product", 100 * rate / peak, "%")
    for name, engine in ours.items():
        if name == "torch-bf16" and len(ours) > 1:
            continue  # only where nothing faster runs
        yield from _more(name, engine, recipe, sample, there, rounds)


def _ways(recipe: Recipe, engines: dict[str, Engine], there: list[torch.Tensor]) -> dict[str, Callable[[Any], Any]]:
    """What takes turns: the baseline, torch.compile, every engine on the same pictures, and a plain matrix product."""
    matrix = torch.randn(PRODUCT, PRODUCT, device=there[0].device, dtype=torch.bfloat16)
    pictures: dict[str, Any] = {name: _given(engine, there) for name, engine in engines.items()}
    ways: dict[str, Callable[[Any], Any]] = {
        name: lambda _, name=name: engines[name].vectors(pictures[name], recipe)  # type: ignore[misc]
        for name in engines
    }
    ways |= {BASELINE: baseline(recipe, there)}
    if (found := compiled(recipe, there)) is not None:
        ways |= {COMPILED: found}

    def product(_: Any) -> None:
        matrix @ matrix
        torch.cuda.synchronize()

    return ways | {"matrix product": product}


def baseline(recipe: Recipe, there: list[torch.Tensor]) -> Callable[[Any], Any]:
    """As cnnimageretrieval-pytorch and its kin run it."""
    body = load(recipe.view.network, recipe.view.layer)[0].to(there[0].device)

    def run(_: Any) -> NDArray[np.float32]:
        with torch.no_grad():
            return torch.cat([describe(body(x[None].float()), recipe) for x in there]).cpu().numpy()

    return run


def compiled(recipe: Recipe, there: list[torch.Tensor]) -> Callable[[Any], Any] | None:
    """The network and CroW through torch.compile for this one size; None where it does not work."""
    network = whole_numbers(load(recipe.view.network, recipe.view.layer)[0]).to(there[0].device, torch.bfloat16)
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    whole = torch.compile(lambda x: describe(network(x).float(), recipe))
    batches = [torch.stack(there[i : i + BATCH]) for i in range(0, len(there), BATCH)]
    batches = [batch.contiguous(memory_format=torch.channels_last) for batch in batches]

    def run(_: Any) -> NDArray[np.float32]:
        with torch.no_grad():
            return torch.cat([whole(batch) for batch in batches]).cpu().numpy()

    try:
        run(None)
    except Exception:  # it needs a compiler and more, and it is only a rival
        return None
    return run


def _more(
    name: str, engine: Engine, recipe: Recipe, sample: list[Picture], there: list[torch.Tensor], rounds: int
) -> Iterator[Measure]:
    """What else is asked of an engine: one at a time, mixed sizes, from the host, from files, memory, CroW's share."""
    pictures = _given(engine, there)
    some = pictures[:8]
    mixed = _given(engine, [_on_gpu(picture, engine.device) for picture in mixture(sample)])
    hosted = _hosted(there)
    ways: dict[str, Callable[[Any], Any]] = {
        "uniform": lambda _: engine.vectors(pictures, recipe),
        "one at a time": lambda _: [engine.vectors([picture], recipe) for picture in some],
        "mixed": lambda _: engine.vectors(mixed, recipe),
        "hosted": lambda _: engine.vectors(hosted, recipe),
    }
    if files := _files(recipe, engine, hosted):
        ways |= {"files": files}
    times = timed(ways, range(rounds), block=1)
    yield _rate(f"{name}: one at a time", times["one at a time"], len(some), WANTED.get(name, {}).get("one"))
    rates = {way: median(found) for way, found in times.items()}
    pixels = sum(_pixels(picture) for picture in mixed) / (COUNT * WIDTH * HEIGHT)
    yield _share(
        f"{name}: {len(mixed)} of mixed sizes, pixels a second", pixels * rates["uniform"] / rates["mixed"], 80
    )
    yield _rate(f"{name}: from pixels in the host's memory", times["hosted"], COUNT)
    if "files" in times:
        yield _rate(f"{name}: from JPEG files in the host's memory", times["files"], FILES)
        yield _share(f"{name}: from JPEG files", FILES / COUNT * rates["uniform"] / rates["files"], 85)
    yield _new_sizes(name, engine, recipe, there[0])
    yield from _crow_share(name, engine, recipe, pictures, rates["uniform"])
    yield _memory(name)


def _files(recipe: Recipe, engine: Engine, pictures: list[Picture]) -> Callable[[Any], Any] | None:
    """JPEG files in memory through a Describer; None where this engine takes no pictures from the GPU's own decoder."""
    if not getattr(engine, "takes_tensors", False):
        return None
    describer = Describer(recipe.sized("original"), engine=engine.name, device=engine.device)
    describer.engine = engine
    files = [_jpeg(picture) for picture in pictures]
    items = [(i, files[i % len(files)]) for i in range(FILES)]

    def run(_: Any) -> list[Any]:
        done = list(describer.stream(items))
        assert all(one.vector is not None for one in done)
        return done

    return run


def _jpeg(picture: Picture) -> bytes:
    """As cameras and the web write them: quality 90, halved colours."""
    buffer = BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def mixture(sample: list[Picture]) -> list[Picture]:
    """60 % of 1024 x 768, 30 % of 768 x 1024, 10 % of OTHERS other sizes, in random order."""
    random = np.random.default_rng(0)
    sizes = [(WIDTH, HEIGHT)] * (6 * OTHERS) + [(HEIGHT, WIDTH)] * (3 * OTHERS)
    sizes += [(int(random.integers(500, 1200)), int(random.integers(500, 1200))) for _ in range(OTHERS)]
    order = random.permutation(len(sizes))
    return [fitted(sample[i % len(sample)], *sizes[at]) for i, at in enumerate(order)]


def fitted(picture: Picture, width: int, height: int) -> Picture:
    """A picture brought to a size."""
    return np.array(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


def _new_sizes(name: str, engine: Engine, recipe: Recipe, picture: torch.Tensor) -> Measure:
    """How much longer the first picture of a size takes than the next ones, the median over some sizes."""
    random, ratios = np.random.default_rng(0), []
    for _ in range(16):
        part = picture[:, : HEIGHT - int(random.integers(1, 99)), : WIDTH - int(random.integers(1, 99))].contiguous()
        given = _given(engine, [part])
        first, *later = (milliseconds(lambda given: engine.vectors(given, recipe), given) for _ in range(6))
        ratios.append(first / median(later))
    return Measure(f"{name}: a new size over a seen one", median(ratios), "times", spread(ratios))


def _crow_share(name: str, engine: Engine, recipe: Recipe, pictures: Any, whole: float) -> Iterator[Measure]:
    """Steps 1 to 5 of the algorithm on the maps as they lie there, of the way from pictures to vectors."""
    if not hasattr(engine, "forward"):
        return
    few = pictures[:16]
    with engine.alone():  # type: ignore[attr-defined]
        done = engine.forward(few)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        found = []
        for _ in range(20):
            start.record()
            engine.reduced(done, recipe, None)  # type: ignore[attr-defined]
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end))
    value = 100 * median(found) / len(few) / (whole / COUNT)
    yield Measure(f"{name}: CroW itself, of the whole", value, "%", wanted="under 3", holds=value < 3)


def _memory(name: str) -> Measure:
    """What a process of its own takes of the GPU's memory at most, its context and libraries in it."""
    program = (
        "import sys, numpy as np, torch; from crow.extract.engines import engine_named; from crow.recipe import RECIPES;"
        "from crow.extract.networks import load; engine = engine_named(sys.argv[1], load('vgg16', 'conv5_3')[0]);"
        f"engine.vectors([np.zeros(({HEIGHT}, {WIDTH}, 3), np.uint8)] * {COUNT}, RECIPES['crow']);"
        "print(torch.cuda.mem_get_info()[0])"
    )
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    with subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        value = (before - float(process.stdout.read())) / 2**30
    return Measure(f"{name}: memory of the GPU", value, "GiB", wanted="under 12", holds=value < 12)


def _on_gpu(picture: Picture, device: str) -> torch.Tensor:
    return torch.from_numpy(picture.copy()).permute(2, 0, 1).contiguous().to(device)


def _given(engine: Engine, there: list[torch.Tensor]) -> Any:
    """Pictures as an engine takes them: on the GPU already where it can."""
    return there if getattr(engine, "takes_tensors", False) else _hosted(there)


def _hosted(there: list[torch.Tensor]) -> list[Picture]:
    return [np.ascontiguousarray(x.permute(1, 2, 0).cpu().numpy()) for x in there]


def _pixels(picture: Any) -> int:
    return int(np.prod(picture.shape)) // 3


def _rate(
    name: str, found: list[float], count: int, wanted: float | None = None, base: list[float] | None = None
) -> Measure:
    """Pictures a second, the median and spread over the rounds."""
    rates = [1000 * count / one for one in found]
    rivals = {BASELINE: 1000 * count / median(base)} if base else {}
    ratio = median(rates) / rivals[BASELINE] if base else None
    words, holds = (f"at least {wanted:g}", median(rates) >= wanted) if wanted else ("", None)
    return Measure(name, median(rates), "pictures/s", spread(rates), ratio, rivals, words, holds)


def _share(name: str, share: float, wanted: float) -> Measure:
    value = 100 * share
    text = f"{name}, of the rate of one size"
    return Measure(text, value, "%", wanted=f"at least {wanted:g}", holds=value >= wanted)
