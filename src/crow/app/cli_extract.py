"""Commands of the extraction floor: weights, describe, whiten, show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from crow.app import options
from crow.app.progress import Download, track
from crow.files import replacing
from crow.recipe import Recipe

if TYPE_CHECKING:
    from crow.extract.describer import Described, Describer
    from crow.framework.reduce import Whitening

DRAWINGS = (".png", ".jpg", ".webp")  # what `show` draws
Paths = Annotated[list[Path], typer.Argument(metavar="PATHS...", help="Pictures, or folders of pictures.")]


def add(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    for command in (weights, describe, whiten, show):
        app.command()(command)


def weights(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAMES...]", help="Networks; by default vgg16.")] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file already on disk instead of a download.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fetch network weights once, check them, and keep them in your cache folder."""
    from crow.extract.networks import keep, network_named

    records = []
    for name in names or ["vgg16"]:
        network_named(name)
        path, digest = keep(name, file, report=Download())
        records.append({"network": name, "path": str(path), "sha256": digest})
        if not as_json:
            typer.echo(f"{name}: {path} (sha256 {digest})")
    if as_json:
        typer.echo(json.dumps(records, indent=2))


def describe(
    paths: Paths,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.npz", help="Where the vectors go.")],
    recipe: options.RecipeName = "crow",
    size: options.SizeText = None,
    network: options.Network = None,
    fields: options.Fields = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    regional: options.Regional = None,
    as_json: options.Json = False,
) -> None:
    """Turn pictures into vectors: arrays `paths` and `vectors` (n, K) in one .npz file."""
    options.writable(out)
    describer = options.describer_of(
        options.recipe_of(recipe, size, network, fields), engine, device, weights, regional
    )
    good, failed = _describe_all(describer, paths)
    if good:
        names, vectors = (
            np.array([str(d.key) for d in good]),
            np.stack([d.vector for d in good if d.vector is not None]),
        )
        made = {"recipe": describer.recipe.to_dict(), "weights": describer.weights, "precision": describer.precision}
        _write_npz(out, paths=names, vectors=vectors, made=np.array(json.dumps(made)))
    _conclude(as_json, {"out": str(out) if good else None, "recipe": describer.recipe.name}, len(good), failed)


def whiten(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder of other pictures, their index, or a .npz.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors")],
    dim: Annotated[
        int | None, typer.Option("--dim", metavar="D", help="Dimensions to keep; by default all that vary.")
    ] = None,
    pca: Annotated[bool, typer.Option("--pca", help="Plain PCA, without whitening.")] = False,
    of_regions: Annotated[
        bool, typer.Option("--of-regions", help="Learn rmac-regional's whitening of regions.")
    ] = False,
    recipe: options.RecipeName = "crow",
    size: options.SizeText = None,
    network: options.Network = None,
    fields: options.Fields = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    regional: options.Regional = None,
    as_json: options.Json = False,
) -> None:
    """Learn a PCA-whitening on pictures other than those you will search."""
    from crow.framework.reduce import Whitening, WhiteningError

    options.writable(out)
    failed: list[Described] = []
    if "://" in source or source.endswith((".npz", ".crow")):
        learned = _learn_from_vectors(source, dim, options.recipe_of(recipe, size, network, fields), pca)
    else:
        wanted = options.recipe_of("rmac" if of_regions else recipe, size, network, fields)
        describer = options.describer_of(wanted, engine, device, weights, regional)
        chunks = (_regions if of_regions else _chunks)(describer, [Path(source)], failed)
        try:
            learned = Whitening.fit(chunks, dim, describer.recipe, not pca, source)
        except WhiteningError:
            _report(failed)
            raise
    learned.save(out)
    name = learned.recipe.name if learned.recipe else None
    done = {"out": str(out), "recipe": name, "dim": learned.dim, "whitened": learned.whitened}
    _conclude(as_json, done, learned.count, failed)


def show(
    pictures: Annotated[
        list[Path], typer.Argument(metavar="IMAGE [OTHER] OUT.png", help="One picture or two, and where to draw.")
    ],
    whitening: Annotated[
        Path | None, typer.Option("--whiten", metavar="FILE", help="Two pictures: compare after this whitening.")
    ] = None,
    recipe: options.RecipeName = "crow",
    size: options.SizeText = None,
    network: options.Network = None,
    fields: options.Fields = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
) -> None:
    """Draw what the weights look at in a picture, or why two pictures match."""
    from crow.evaluate.show import show_match, show_picture
    from crow.framework.reduce import Whitening

    if len(pictures) not in (2, 3):
        raise typer.BadParameter("give IMAGE OUT.png, or IMAGE OTHER OUT.png")
    *inputs, out = pictures
    if options.writable(out).suffix.lower() not in DRAWINGS:
        raise typer.BadParameter(f"{out}: a drawing is a file ending in {', '.join(DRAWINGS)}")
    describer = options.describer_of(options.recipe_of(recipe, size, network, fields), engine, device, weights)
    loaded = Whitening.load(whitening) if whitening else None
    drawn = (
        show_match(describer, inputs[0], inputs[1], loaded) if len(inputs) == 2 else show_picture(describer, inputs[0])
    )
    drawn.save(out)
    typer.echo(f"drawn: {out}")


def _learn_from_vectors(source: str, dim: int | None, recipe: Recipe, pca: bool) -> Whitening:
    """A whitening of vectors that are there: in an index, or in the .npz of describe, export or anybody else."""
    from crow.framework.reduce import Whitening
    from crow.search.index import Index

    if not source.endswith(".npz"):
        with Index.open(source) as index:
            chunks = (vectors for _, vectors in index.store.chunks())
            return Whitening.fit(chunks, dim, index.recipe, not pca, source)
    with np.load(source, allow_pickle=False) as file:
        made = json.loads(str(file["made"])) if "made" in file else {}
        recipe = Recipe.from_dict(made["recipe"]) if "recipe" in made else recipe
        return Whitening.fit(file["vectors"], dim, recipe, not pca, source)


def _describe_all(describer: Describer, paths: list[Path]) -> tuple[list[Described], list[Described]]:
    """Everything that became of the pictures below the paths: vectors, and failures."""
    results = list(_stream(describer, paths))
    return [d for d in results if d.vector is not None], [d for d in results if d.vector is None]


def _stream(describer: Describer, paths: list[Path]) -> Iterator[Described]:
    from crow.extract.describer import Described

    bad: list[Described] = []
    files = _files(paths, lambda path, reason: bad.append(Described(path, None, reason=reason)))
    yield from track(describer.stream((path, path) for path in files), len(files), "describing")
    yield from bad


def _files(paths: list[Path], on_error: Any) -> list[Path]:
    """The picture files below the paths, in the order given; what is not there is reported and left out."""
    from crow.extract.images import PictureError
    from crow.extract.walk import walk

    files: list[Path] = []
    for path in paths:
        try:
            files += walk([path], on_error)
        except PictureError as error:
            on_error(path, error.reason)
    return files


def _chunks(describer: Describer, paths: list[Path], failed: list[Described]) -> Iterator[Any]:
    for described in _stream(describer, paths):
        if described.vector is None:
            failed.append(described)
        else:
            yield described.vector[None]


def _regions(describer: Describer, paths: list[Path], failed: list[Described]) -> Iterator[Any]:
    """The unit vectors of the regions of every picture, a picture at a time."""
    from crow.extract.describer import Described
    from crow.extract.images import PictureError
    from crow.framework.describe import pooled, region_vectors

    files = _files(paths, lambda path, reason: failed.append(Described(path, None, reason=reason)))
    for path in track(files, len(files), "describing regions"):
        try:
            yield region_vectors(pooled(describer.maps(path)[0], describer.recipe)).numpy()
        except PictureError as error:
            failed.append(Described(path, None, reason=error.reason))


def _write_npz(out: Path, **arrays: Any) -> None:
    """An .npz of these arrays, whole or not at all."""
    with replacing(out) as half, half.open("wb") as file:
        np.savez(file, **arrays)


def _report(failed: list[Described]) -> None:
    for failure in failed:
        typer.echo(f"failed: {failure.key}: {failure.reason}", err=True)


def _conclude(as_json: bool, record: dict[str, Any], count: int, failed: list[Described]) -> None:
    """Say what was done and what failed, and end with the exit code that goes with it."""
    reasons = [{"path": str(d.key), "reason": d.reason} for d in failed]
    if as_json:
        typer.echo(json.dumps({**record, "described": count, "failed": reasons}, indent=2))
    else:
        _report(failed)
        typer.echo(
            f"{count} pictures described, {len(failed)} failed" + (f": {record['out']}" if record["out"] else "")
        )
    raise typer.Exit((3 if failed else 0) if count else 1)
