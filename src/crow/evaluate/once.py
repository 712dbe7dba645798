"""Pictures through the network once: what many recipes make of each goes into their stores, a few seconds at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from crow.evaluate.features import Item, Machine, Progress
from crow.evaluate.maps import KeptMaps, SideBySide, Tapped
from crow.evaluate.tally import Wanted, counted
from crow.extract import engines, networks
from crow.extract.describer import Described, Describer
from crow.extract.images import PictureError, Source, crop, load
from crow.extract.pretrained import cache_folder
from crow.framework.reduce import Whitening
from crow.recipe import View
from crow.search.store import Failure, Row, Store

COMMIT_SECONDS = 5.0  # of work that an interruption may cost


def describer_for(recipes: Sequence[Wanted], machine: Machine, regional: Mapping[str, Whitening]) -> Describer:
    """A describer that goes as deep as the deepest of the recipes."""
    recipe = counted(max(recipes, key=lambda recipe: recipe.view.layer))
    return Describer(recipe, machine.engine, machine.device, machine.weights, regional.get(recipe.regional))


def describe_once(
    describer: Describer,
    stores: Mapping[Wanted, Store],
    keys: Mapping[Item, str],
    machine: Machine,
    regional: Mapping[str, Whitening],
    progress: Progress,
) -> None:
    """Describe every item by every recipe and keep what came of it, at the latest every few seconds."""
    engine = _widened(describer, list(stores), machine, regional)
    _extract(describer, engine, list(stores.values()), keys, progress)


def _widened(
    describer: Describer, recipes: list[Wanted], machine: Machine, regional: Mapping[str, Whitening]
) -> SideBySide:
    """Make a describer of our own give the vectors of several recipes side by side, by the engine that is returned."""
    view, tapped = describer.recipe.view, None
    layers = sorted({recipe.view.layer for recipe in recipes})
    if machine.keep_maps:
        name = f"{view.network}-{view.layer}-{describer.weights[:16]}-{engines.revised(describer.engine.name)}"
        describer.engine = KeptMaps(describer.engine, cache_folder() / "maps" / name)
    elif layers != [view.layer]:
        network, _ = networks.load(view.network, layers[-1], machine.weights)
        assert isinstance(network, networks.Preprocessed)
        tapped = Tapped(network, layers)
        describer.engine = engines.engine_named(describer.engine.name, tapped, machine.device)
    describer.engine = engine = SideBySide(describer.engine, recipes, regional, tapped)
    return engine


def _extract(
    describer: Describer, engine: SideBySide, stores: list[Store], keys: Mapping[Item, str], progress: Progress
) -> None:
    """Describe every item and keep what came of it, at the latest every few seconds."""
    failures: list[tuple[Item, str]] = []
    sources = _sources(keys, describer.recipe.view, failures)
    names = [recipe.name for recipe in engine.recipes]
    what = f"{', '.join(names) if len(names) < 4 else f'{len(names)} recipes at once'} on {engine.name}"
    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(store.writer())
        done: list[Described] = []
        last = time.monotonic()
        for described in progress(describer.stream(sources), len(keys), what):
            done.append(described)
            if time.monotonic() - last > COMMIT_SECONDS:
                _keep(engine.parts, stores, keys, done, failures)
                done, last = [], time.monotonic()
        _keep(engine.parts, stores, keys, done, failures)


def _sources(items: Iterable[Item], view: View, failures: list[tuple[Item, str]]) -> Iterator[tuple[Item, Source]]:
    """What the describer is to read: the file itself where that will do, else the turned and cropped pixels."""
    for item in items:
        if item.box is None and not item.turn:
            yield item, item.path
            continue
        try:
            pixels = np.rot90(load(item.path, view.upright).pixels, -(item.turn // 90))
            yield item, pixels if item.box is None else crop(pixels, item.box, item.outside, item.path)
        except PictureError as error:
            failures.append((item, error.reason))


def _keep(
    parts: list[slice],
    stores: list[Store],
    keys: Mapping[Item, str],
    done: list[Described],
    failures: list[tuple[Item, str]],
) -> None:
    """One commit per store: the vectors, cut into those of each recipe, and the failures."""
    failed = [(d.key, (d.reason or "").removeprefix(f"{d.key.path}: ")) for d in done if d.vector is None] + failures
    failures.clear()
    good = [d for d in done if d.vector is not None]
    for store, part in zip(stores, parts, strict=True):
        rows = [
            Row(keys[d.key], d.vector[part], sha256=bytes.fromhex(keys[d.key][:64]), width=d.width, height=d.height)
            for d in good
            if d.vector is not None
        ]
        with store.transaction():
            store.upsert(rows)
            store.fail(Failure(keys[item], reason) for item, reason in failed)
