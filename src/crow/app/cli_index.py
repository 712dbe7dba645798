"""`crow index`: folders into an index, or a job on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crow.app import options
from crow.app.progress import Download, follow
from crow.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from crow.framework.reduce import Whitening
    from crow.search.index import Index
    from crow.search.pace import Pace
    from crow.search.work import Report

RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help=f"One of {', '.join(RECIPES)}.", rich_help_panel=options.WORKS),
]


def add(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command("index")(index)


def index(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FOLDER...] INDEX",
            help="Folders of pictures (with --ray also s3://, gs://, manifests, Parquet, tar), then the folder NAME.crow or milvus://HOST:PORT/COLLECTION.",
        ),
    ],
    recipe: RecipeName = None,
    size: options.SizeText = None,
    network: options.Network = None,
    fields: options.Fields = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    regional: options.Regional = None,
    whiten: options.Whiten = None,
    keep_missing: Annotated[bool, typer.Option("--keep-missing", help="Keep pictures whose files are gone.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Forget them even if more than a fifth is gone.")] = False,
    approx: Annotated[
        str | None,
        typer.Option(
            "--approx",
            metavar="KIND",
            help="Build approximate search: ivf-pq or hnsw (on Milvus also flat, diskann); by default from a million pictures.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep following the folders.")] = False,
    ray: options.Ray = None,
    as_json: options.Json = False,
) -> None:
    """Make an index of folders, or bring it up to date: adds, updates, moves and removes."""
    from crow.search.work import SyncStopped

    *folders, path = places
    _not_pictures(path, folders)
    making = {"engine": engine, "device": device, "weights": weights, "regional": _regional(regional)}
    with _made(path, folders, (recipe, size, network, fields), whiten, making) as opened, follow() as progress:
        try:
            if approx:
                opened.approximate(approx)
            if ray:
                report = _on_cluster(opened, folders, ray, progress)
            elif watch:
                for told in opened.watch(*folders, keep_missing=keep_missing, prune=prune, progress=progress):
                    _say(opened, told, as_json)
                return
            else:
                report = opened.sync(*folders, keep_missing=keep_missing, prune=prune, progress=progress)
        except SyncStopped as stopped:
            typer.echo(f"stopped; kept: {stopped.report}. Run it again to go on.", err=True)
            raise typer.Exit(130) from None
        except KeyboardInterrupt:  # between two syncs of --watch: nothing was going on
            raise typer.Exit(0) from None
        _say(opened, report, as_json)
        failed, kept = report.failed + (report.missing if ray else 0), len(opened)
    raise typer.Exit((3 if failed else 0) if kept or not failed else 1)


def _on_cluster(opened: Index, sources: list[str], ray: str, progress: Callable[[Pace], None]) -> Report:
    """The report of a job; stopped by Ctrl-C it is simply run again."""
    from crow.search import scale

    if not sources:
        raise typer.BadParameter("name what to read with --ray: crow index --ray ADDRESS SOURCE... INDEX")
    try:
        return scale.extract(opened, sources, ray, progress)
    except KeyboardInterrupt:
        typer.echo("stopped; what was written is kept. Run it again to go on.", err=True)
        raise typer.Exit(130) from None


def _made(path: str, folders: list[str], works: tuple[Any, ...], whiten: str | None, making: dict[str, Any]) -> Index:
    """The index that is there, if it is what the options ask for; else a new one."""
    from crow.search.index import Index
    from crow.search.matrix import SearchError
    from crow.search.store import store_at

    if store_at(path).exists(path):
        opened = options.opened(path, **making)
        wanted = _recipe(opened.recipe, *works)
        if wanted.key() != opened.recipe.key():
            differences = "; ".join(opened.recipe.differences(wanted))
            opened.close()
            raise SearchError(f"{path}: this index was made with another recipe ({differences}: its own / asked for)")
        if whiten is not None and whiten != opened.store.settings().get("policy"):
            opened.rewhiten(to=whiten)
        return opened
    if not folders:
        raise typer.BadParameter(
            f"{path} is not there; to make it, name the folders first: crow index FOLDER... {path}"
        )
    missing = next((folder for folder in folders if "://" not in folder and not Path(folder).exists()), None)
    if missing is not None:  # before an index is made that would stay empty
        raise SearchError(f"{missing}: no such folder")
    recipe, size, network, fields = works
    made = options.recipe_of(recipe or "crow", size, network, fields)
    return Index.create(path, made, whiten, report=Download(), **making)


def _not_pictures(path: str, folders: list[str]) -> None:
    """Refuse a folder of pictures where the index should be named: easily forgotten, and easily said."""
    from crow.search.database import FILE

    if Path(path).is_dir() and Path(path).suffix != ".crow" and not (Path(path) / FILE).exists():
        example = " ".join(["crow index", *folders, path, "NAME.crow"])
        raise typer.BadParameter(f"{path} is a folder without an index in it; name the index last: {example}")


def _recipe(base: Recipe, name: str | None, size: str | None, network: str | None, fields: list[str] | None) -> Recipe:
    """What the options ask for; what they do not mention is as in the index."""
    if name is None and not (size or network or fields):
        return base
    if name is None:
        wanted = base.sized(size) if size else base
        from crow.extract.networks import on_network

        return (on_network(wanted, network) if network else wanted).set(*(fields or ()))
    wanted = options.recipe_of(name, size or str(base.view.size), network or base.view.network, fields)
    return wanted


def _regional(file: Path | None) -> Whitening | None:
    from crow.framework.reduce import Whitening

    return Whitening.load(file) if file else None


def _say(opened: Index, report: Report | str, as_json: bool) -> None:
    """A report for people, or one record per sync for programs."""
    if isinstance(report, str):
        typer.echo(f"crow: {options.line(report)}", err=True)
        return
    if as_json:
        plain = {name: getattr(report, name) for name in report.__dataclass_fields__ if name != "failures"}
        plain["failures"] = [{"path": f.path, "reason": f.reason} for f in report.failures]
        typer.echo(json.dumps(plain))
        return
    for failure in report.failures:
        typer.echo(options.line(f"failed: {failure.path}: {failure.reason}"), err=True)
    for note in report.notes:
        typer.echo(f"note: {options.line(note)}", err=True)
    if not len(opened) and not report.failures:
        typer.echo("note: no picture was found in these folders", err=True)
    typer.echo(f"{opened.store.address}: {len(opened):,} pictures ({report})")
