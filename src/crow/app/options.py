"""What several commands share, each with its one home: options, the Describer and the Index they ask for, text on a line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crow.app.progress import Download
from crow.recipe import RECIPES, Recipe, RecipeError, recipe_named

if TYPE_CHECKING:
    from crow.extract.describer import Describer
    from crow.framework.reduce import Whitening
    from crow.search.index import Index

WORKS = "How vectors are made"
RecipeName = Annotated[
    str, typer.Option("--recipe", metavar="NAME", help=f"One of {', '.join(RECIPES)}.", rich_help_panel=WORKS)
]
SizeText = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="N|original|NxN",
        help="Longest side in pixels, the picture's own size, or a square.",
        rich_help_panel=WORKS,
    ),
]
Network = Annotated[
    str | None, typer.Option("--network", metavar="NAME", help="vgg16, vgg16-caffe, vgg19, ...", rich_help_panel=WORKS)
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change any field of the recipe, e.g. a=1 or pool.stride=1.",
        rich_help_panel=WORKS,
    ),
]
Weights = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Network weights of your own.", rich_help_panel=WORKS)
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="torch, openvino, cuda, ...; by default the fastest exact one.",
        rich_help_panel=WORKS,
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:1, ...", rich_help_panel=WORKS)
]
Regional = Annotated[
    Path | None,
    typer.Option(
        "--regional", metavar="FILE", help="rmac-regional: the whitening of its regions.", rich_help_panel=WORKS
    ),
]
INDEX = typer.Argument(
    metavar="INDEX", help="A folder NAME.crow, or milvus://HOST:PORT/COLLECTION.", show_default=False
)
IndexPath = Annotated[str, INDEX]
Whiten = Annotated[
    str | None,
    typer.Option("--whiten", metavar="FILE|self|none", help="A whitening learned elsewhere, from the index itself, or none."),
]  # fmt: skip
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Do the work on a Ray cluster: local, auto, or HOST:PORT.", rich_help_panel=WORKS),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def writable(path: Path) -> Path:
    """A file to be written: refused at once, before any work, where its folder is not there or cannot be written."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        reason = "is a folder" if path.is_dir() else "its folder is not there, or cannot be written"
        raise typer.BadParameter(f"{path}: {reason}")
    return path


def recipe_of(
    name: str, size: str | None = None, network: str | None = None, fields: list[str] | None = None
) -> Recipe:
    """The recipe that the options describe; a wrong one is wrong usage."""
    try:
        recipe = recipe_named(name)
        if network:
            from crow.extract.networks import on_network  # torch: only where it is needed

            recipe = on_network(recipe, network)
        recipe = recipe.sized(size) if size else recipe
        return recipe.set(*(fields or ()))
    except RecipeError as error:
        raise typer.BadParameter(str(error)) from None


def describer_of(
    recipe: Recipe,
    engine: str | None = None,
    device: str | None = None,
    weights: Path | None = None,
    regional: Path | Whitening | None = None,
) -> Describer:
    """The Describer that the options ask for; says on the error stream which engine and device it uses."""
    from crow.extract.describer import Describer
    from crow.framework.reduce import Whitening

    loaded = Whitening.load(regional) if isinstance(regional, Path) else regional
    describer = Describer(recipe, engine, device, weights, loaded, report=Download())
    shown = describer.engine
    typer.echo(
        f"{recipe.name} on {recipe.view.network}, {shown.name} ({shown.precision}) on {shown.device}, size {recipe.view.size}",
        err=True,
    )
    return describer


def opened(path: str, **making: Any) -> Index:
    """The index at a path; whatever has to be fetched for it is shown as it comes."""
    from crow.search.index import Index

    return Index.open(path, report=Download(), **making)


def line(text: str) -> str:
    """Text on one line that any terminal can print: what is undecodable, and line ends, escaped."""
    return (
        text.encode("utf-8", "backslashreplace")
        .decode()
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\x1b", "\\x1b")
    )
