"""Raw vectors of many pictures under many recipes: one pass of the network per size, and none for bytes already seen.

They are kept in stores of the same kind as an index, one for each recipe on each network, in the user's cache folder.
A row's key is the sha256 of the file's bytes, with the box and the turn where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from crow.evaluate.tally import Wanted, counted
from crow.extract import engines
from crow.extract.download import sha256
from crow.extract.images import Box
from crow.extract.pretrained import cache_folder
from crow.framework.reduce import Whitening
from crow.recipe import Recipe, View
from crow.search.store import Store, StoreError, store_at

if TYPE_CHECKING:
    from crow.extract.describer import Describer

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]  # the items as they are, their number, what goes on
Vector = NDArray[np.float32]
TAPPED = ("torch", "openvino")  # engines that run a VGG with several outputs as readily as one


@dataclass(frozen=True)
class Item:
    """One thing to describe: a picture, or a box in it, turned first where its file does not say how it stands."""

    path: Path
    box: Box | None = None
    outside: Literal["refuse", "black"] = "refuse"
    turn: int = 0  # degrees clockwise


@dataclass(frozen=True)
class Machine:
    """What runs the network; engines are kept apart, so that a number can say which one it came from."""

    engine: str | None = None
    device: str | None = None
    weights: Path | None = None
    keep_maps: bool = False

    def asked(self) -> list[str | None]:
        """What the network's identity hangs on, before there is a network."""
        return [self.engine, self.device, sha256(self.weights) if self.weights else None]


HERE = Machine()  # the fastest exact engine of this machine, published weights


@dataclass(frozen=True)
class Table:
    """The vectors of items under one recipe, and the reasons where there is none."""

    recipe: Recipe
    rows: Mapping[Item, Vector]
    failures: Mapping[Item, str] = field(default_factory=dict)
    weights: str = ""
    engine: str = ""
    precision: str = ""

    def stack(self, items: Iterable[Item]) -> Vector:
        """(n, K) of these items, in order."""
        rows = [self.rows[item] for item in items]
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def every(items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    """A Progress that shows nothing."""
    return items


def tables(
    items: Iterable[Item],
    recipes: Sequence[Wanted],
    machine: Machine = HERE,
    regional: Mapping[str, Whitening] | None = None,
    progress: Progress = every,
) -> list[Table]:
    """One Table per recipe; `regional` holds, by fingerprint, the whitenings that recipes name."""
    keys, unread = _keys(items)
    by_view: dict[View, list[Wanted]] = {}
    for recipe in {recipe.key(): recipe for recipe in recipes}.values():
        vgg = recipe.view.network.startswith("vgg") and not machine.keep_maps  # its layers share a pass
        by_view.setdefault(replace(recipe.view, layer="") if vgg else recipe.view, []).append(recipe)
    found: dict[str, Table] = {}
    for group in by_view.values():
        with ExitStack() as stack:
            stores = _stores(group, keys, machine, regional or {}, progress, stack)
            found |= {r.key(): _read(r, store, keys, unread) for r, store in zip(group, stores, strict=True)}
    return [replace(found[recipe.key()], recipe=counted(recipe)) for recipe in recipes]


def _keys(items: Iterable[Item]) -> tuple[dict[Item, str], dict[Item, str]]:
    """The key of each item, and the reasons of those whose file cannot be read."""
    keys, unread = {}, {}
    for item in dict.fromkeys(items):
        try:
            digest = file_digest(item.path)
        except OSError as error:
            unread[item] = error.strerror or str(error)
            continue
        box = f" {item.outside} {','.join(map(repr, item.box))}" if item.box else ""
        keys[item] = digest + (f" {item.turn}" if item.turn else "") + box
    return keys, unread


def file_digest(path: Path) -> str:
    """The sha256 of a file, read once as long as its size and time stay."""
    info = path.stat()
    return _digest(path, info.st_size, info.st_mtime_ns)


@cache
def _digest(path: Path, size: int, mtime: int) -> str:
    return sha256(path)


def _stores(
    recipes: list[Wanted],
    keys: Mapping[Item, str],
    machine: Machine,
    regional: Mapping[str, Whitening],
    progress: Progress,
    stack: ExitStack,
) -> list[Store]:
    """A store per recipe (all of one view, or of one but for the layer) that holds every item: a row, or why none."""
    known = [_known(recipe, machine, stack) for recipe in recipes]
    if all(store is not None and not _lacking(store, keys) for store in known):
        return [store for store in known if store is not None]
    from crow.evaluate.once import describe_once, describer_for

    layers = sorted({recipe.view.layer for recipe in recipes})
    if len(layers) > 1 and (machine.engine or engines.choose(recipes[0].view, machine.device)) not in TAPPED:
        by_layer = {layer: [r for r in recipes if r.view.layer == layer] for layer in layers}
        lists = {n: iter(_stores(r, keys, machine, regional, progress, stack)) for n, r in by_layer.items()}
        return [next(lists[recipe.view.layer]) for recipe in recipes]
    describer = describer_for(recipes, machine, regional)
    stores = [_store(recipe, describer, machine, stack) for recipe in recipes]
    lacking = [_lacking(store, keys) for store in stores]
    wanted = {recipes[i]: stores[i] for i, items in enumerate(lacking) if items}
    if wanted:
        todo = {item: keys[item] for items in lacking for item in items}
        describe_once(describer, wanted, todo, machine, regional, progress)
    return stores


def _folder(recipe: Wanted) -> Path:
    return cache_folder() / "vectors" / recipe.key()


def _known(recipe: Wanted, machine: Machine, stack: ExitStack) -> Store | None:
    """The store of this recipe that was made by what the machine asks for, found without loading a network."""
    for place in sorted(_folder(recipe).glob("*.crow")):
        store = _open(place, stack)
        made = store.settings()
        if machine.asked() in made["asked"] and made.get("revised") == engines.revised(made["engine"]):
            return store
    return None


def _store(recipe: Wanted, describer: Describer, machine: Machine, stack: ExitStack) -> Store:
    """The store of this recipe on this network, made if need be."""
    engine = describer.engine.name
    revised = engines.revised(engine)
    place = _folder(recipe) / f"{describer.weights[:16]}-{revised}-{describer.precision}.crow"
    asked = machine.asked()
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        made = {"weights": describer.weights, "engine": engine, "revised": revised, "precision": describer.precision}
        stack.callback(store_at(place).create(place, recipe=recipe.to_dict(), asked=[asked], **made).close)
    store = _open(place, stack)
    if asked not in (before := store.settings()["asked"]):
        store.configure(asked=[*before, asked])
    return store


def _open(place: Path, stack: ExitStack) -> Store:
    store = store_at(place).open(place)
    stack.callback(store.close)
    return store


def _lacking(store: Store, keys: Mapping[Item, str]) -> list[Item]:
    have = store.stamps().keys() | store.failures().keys()
    return [item for item, key in keys.items() if key not in have]


def _read(recipe: Wanted, store: Store, keys: Mapping[Item, str], unread: Mapping[Item, str]) -> Table:
    """What the store holds of these items."""
    rows, reasons, settings = store.get(keys.values(), vectors=True), store.failures(), store.settings()
    vectors = {item: rows[key].vector for item, key in keys.items() if key in rows}
    failures = {item: reasons[key].reason for item, key in keys.items() if key in reasons}
    good = {item: vector for item, vector in vectors.items() if vector is not None}
    if len(good) + len(failures) != len(keys):
        raise StoreError(f"{_folder(recipe)}: pictures are missing from it; is another evaluation at work on it?")
    return Table(
        counted(recipe), good, failures | dict(unread), *(settings[k] for k in ("weights", "engine", "precision"))
    )
