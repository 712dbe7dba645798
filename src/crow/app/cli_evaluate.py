"""Commands of the evaluation floor: eval and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crow.app import options
from crow.app.progress import Download, track
from crow.recipe import RECIPES

if TYPE_CHECKING:
    from crow.evaluate.datasets import Dataset
    from crow.evaluate.run import Evaluation
    from crow.evaluate.stream import Stream

LINES = 20  # of what was amiss, before the rest is only counted


def add(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command("eval")(evaluate)
    app.command()(data)


def evaluate(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="oxford5k, paris6k, roxford5k, rparis6k, holidays, or groups: one sub-folder per thing.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="The folder below which the dataset lies; by default this one.", show_default=False
        ),
    ] = Path(),
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="Again for several; `all` for all; by default crow.",
            rich_help_panel=options.WORKS,
        ),
    ] = None,
    fields: options.Fields = None,
    size: options.SizeText = "original",
    network: options.Network = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    dim: Annotated[
        list[int] | None, typer.Option("--dim", metavar="D", help="Dimensions to keep; again for several.")
    ] = None,
    whiten: Annotated[
        str | None,
        typer.Option(
            "--whiten",
            metavar="DATASET|FOLDER|FILE|self|none",
            help="What the whitening is learned on; by default what the paper takes, and nothing for groups.",
        ),
    ] = None,
    pca: Annotated[bool, typer.Option("--pca", help="Reduce without whitening.")] = False,
    expand: Annotated[
        int, typer.Option("--expand", metavar="M", min=0, help="Query expansion by the first M results.")
    ] = 0,
    expand_with_query: Annotated[
        bool, typer.Option("--expand-with-query", help="Add the query to that sum, as the released code does.")
    ] = False,
    crop: Annotated[
        str,
        typer.Option(metavar="box|released|none", help="Of the query; `released` reads boxes as the released code."),
    ] = "box",
    upright: Annotated[
        str | None,
        typer.Option(
            metavar="exif|none|FILE.csv", help="How pictures are turned; by default as usual for the dataset."
        ),
    ] = None,
    distractors: Annotated[
        str | None,
        typer.Option(
            metavar="oxford100k|FOLDER|INDEX",
            help="Search among these pictures as well; those of an index stream past.",
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Score these vectors (of `crow describe`, or anybody's).")
    ] = None,
    ranks: Annotated[Path | None, typer.Option(metavar="FILE", help="Score these rankings.")] = None,
    keep_maps: Annotated[
        bool, typer.Option("--keep-maps", help="Keep feature maps on disk too, to try weightings on.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a report with every query to look at.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Judge recipes on a benchmark, or on any folder with one sub-folder per thing."""
    from crow.evaluate.features import Machine
    from crow.evaluate.foreign import of_features, of_ranks
    from crow.evaluate.report import write
    from crow.evaluate.run import Settings, SettingsError
    from crow.evaluate.run import evaluate as run
    from crow.evaluate.teach import teacher_for

    _go_together(ranks, features, recipe, dim, whiten, expand)
    recipes = tuple(options.recipe_of(name, size, network, fields) for name in _names(recipe))
    machine = Machine(engine, device, weights, keep_maps)
    settings = Settings(recipes, tuple(dim or ()), pca, expand, expand_with_query, crop, upright, machine)
    among = _among(distractors)
    if among and (ranks or features):
        raise typer.BadParameter("the pictures of an index distract only from pictures that are described here")
    asked = _dataset(dataset, data, None if among else distractors)
    try:
        if ranks:
            evaluation = of_ranks(asked, ranks)
        elif features:
            evaluation = of_features(asked, features, settings, teacher_for(whiten or "none", asked, data))
        else:
            evaluation = run(asked, settings, teacher_for(whiten, asked, data, settings.dims), track, among)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    if html:
        write(evaluation, html)
    _conclude(evaluation, as_json)


def _among(distractors: str | None) -> Stream | None:
    """The index that distractors are read from, if they lie in one."""
    if distractors is None or not ("://" in distractors or distractors.endswith(".crow")):
        return None
    from crow.evaluate.stream import Stream
    from crow.search.store import store_at

    return Stream(store_at(distractors).open(distractors))


def _names(recipe: list[str] | None) -> list[str]:
    return list(RECIPES) if recipe == ["all"] else recipe or ["crow"]


def _go_together(
    ranks: Path | None,
    features: Path | None,
    recipe: list[str] | None,
    dim: list[int] | None,
    whiten: str | None,
    expand: int,
) -> None:
    """Refuse options that would be passed over in silence."""
    if ranks and (features or recipe or dim or whiten or expand):
        raise typer.BadParameter("--ranks are judged as they are: no --features, --recipe, --dim, --whiten or --expand")
    if features and recipe:
        raise typer.BadParameter("--features are vectors already: no --recipe")


def _dataset(name: str, data: Path, distractors: str | None) -> Dataset:
    """The dataset, among the distractors that were asked for."""
    from crow.evaluate.datasets import DATASETS, load
    from crow.extract.images import walk

    if name not in DATASETS or name == "oxford100k":
        known = ", ".join(known for known in DATASETS if known != "oxford100k")
        raise typer.BadParameter(f"no dataset named {name!r} to ask queries of; there are: {known}")
    dataset = load(name, data)
    if distractors is None:
        return dataset
    paths = load(distractors, data).images.values() if distractors == "oxford100k" else walk([distractors])
    return dataset.with_distractors(paths)


def _conclude(evaluation: Evaluation, as_json: bool) -> None:
    """Print the records, and what was amiss; end with the exit code that goes with it."""
    amiss = evaluation.amiss
    records = [{**result.record, "amiss": amiss} for result in evaluation.results]
    for line in [*evaluation.skipped, *amiss[:LINES]]:
        typer.echo(line, err=True)
    if len(amiss) > LINES:
        typer.echo(f"and {len(amiss) - LINES} more (--json names them all)", err=True)
    if as_json:
        typer.echo(json.dumps(records, indent=2))
    elif records:
        _table(records)
    raise typer.Exit((3 if amiss else 0) if records else 1)


def _table(records: list[dict[str, Any]]) -> None:
    """The records as a table for people; what is the same for all of them stands once, above."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from crow.evaluate.report import chance

    names = ["recipe", "setting", "dim", "mAP", "95 %", "P@10", f"p against {records[0]['recipe']}"]
    table = Table(box=box.SIMPLE)
    for name in names:
        table.add_column(name, no_wrap=True, justify="left" if name in ("recipe", "setting") else "right")
    for r in records:
        mean, low, high, ten = (
            "" if r[f] is None else f"{100 * r[f]:.2f}" for f in ("map", "ci_low", "ci_high", "precision_at_10")
        )
        by_chance = chance(r["p"]) if "p" in r else ""
        table.add_row(r["recipe"], r["setting"], str(r["dim"] or ""), mean, f"{low} - {high}", ten, by_chance)
    same = records[0]
    typer.echo(
        f"{same['dataset']}: {same['queries']} queries among {same['images']} pictures, whitening: {same['whiten']}"
    )
    Console().print(table)


def data(
    name: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="Without one, all are listed.")] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", help="Where archives are kept and unpacked; by default here.", show_default=False
        ),
    ] = Path(),
    fetch: Annotated[
        bool, typer.Option("--fetch/--no-fetch", help="Fetch what is not there, or only say where to get it.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Say where a dataset's archives are to be had, fetch them where their host answers, and record what came."""
    from crow.evaluate.archives import ARCHIVES, ArchiveError, bring

    if name is not None and name not in ARCHIVES:
        raise typer.BadParameter(f"no archives of {name!r} are known; there are: {', '.join(ARCHIVES)}")
    states: list[dict[str, Any]] = []
    for archive in [a for known in ([name] if name else ARCHIVES) for a in ARCHIVES[known]]:
        try:
            states.append(bring(archive, folder, fetch and name is not None, Download()))
        except (ArchiveError, OSError) as error:
            states.append({"file": str(folder / archive.file), "address": archive.address, "failed": str(error)})
    for state in states if not as_json else []:
        typer.echo(f"{state['file']}: {state.get('failed', state.get('state'))}", err="failed" in state)
    if as_json:
        typer.echo(json.dumps(states, indent=2))
    failed = sum("failed" in state for state in states)
    raise typer.Exit(0 if not failed else 1 if failed == len(states) else 3)
