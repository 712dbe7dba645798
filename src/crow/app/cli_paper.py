"""The command that makes the paper's tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from crow.app import options
from crow.app.progress import track

LINES = 20  # of what was amiss, before the rest is only counted


def add(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(paper)


def paper(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder below which the datasets lie, or the groups.")
    ] = Path(),
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where the report goes.")] = Path("report"),
    dataset: Annotated[
        str,
        typer.Option(
            metavar="benchmarks|groups", help="The paper's own sets, or any folder with one sub-folder per thing."
        ),
    ] = "benchmarks",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="One table or figure; again for several.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="A further row of the search table; again for several.",
            rich_help_panel=options.WORKS,
        ),
    ] = None,
    size: options.SizeText = "original",
    network: options.Network = None,
    weights: options.Weights = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Make every table and figure of the paper, our values beside the published ones: PNG, CSV and one HTML page."""
    from crow.evaluate.features import Machine
    from crow.evaluate.paper.bench import of_benchmarks, of_groups
    from crow.evaluate.paper.report import UnknownExhibit, make, named

    try:
        named(only or ())
    except UnknownExhibit as error:
        raise typer.BadParameter(str(error)) from None
    makers = {"benchmarks": of_benchmarks, "groups": of_groups}
    if dataset not in makers:
        raise typer.BadParameter(f"no dataset named {dataset!r}; there are: {', '.join(makers)}")
    bench = makers[dataset](data)
    bench.size = options.recipe_of("crow", size).view.size
    bench.network = network or bench.network
    bench.more = tuple(options.recipe_of(name, size, network) for name in recipe or ())
    bench.machine, bench.progress = Machine(engine, device, weights), track
    report = make(bench, out, only or ())
    lines = [f"skipped: {name}: {reason}" for name, reason in report.skipped.items()] + list(report.amiss)
    for line in lines[:LINES]:
        typer.echo(line, err=True)
    if len(lines) > LINES:
        typer.echo(f"and {len(lines) - LINES} more (the report names them all)", err=True)
    page = str(out / "index.html")
    if as_json:
        typer.echo(
            json.dumps(
                {"page": page, "made": list(report.made), "skipped": report.skipped, "amiss": report.amiss}, indent=2
            )
        )
    else:
        typer.echo(f"{len(report.made)} made, {len(report.skipped)} skipped: {page}")
    raise typer.Exit((3 if lines else 0) if report.made else 1)
