"""`crow search`: the pictures most like one or several, as a table, JSON, or a contact sheet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crow.app import options

if TYPE_CHECKING:
    from crow.search.query import Results


def add(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(search)


def search(
    path: options.IndexPath,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Pictures of the index or files; several are searched together.")
    ],
    k: Annotated[int, typer.Option("-k", metavar="K", min=1, help="How many results.")] = 10,
    box: Annotated[
        str | None, typer.Option("--box", metavar="XMIN,YMIN,XMAX,YMAX", help="Only this region, in pixels of the upright picture.")
    ] = None,
    expand: Annotated[
        int, typer.Option("--expand", metavar="M", min=0, help="Query expansion: search again with the sum of the top M.")
    ] = 0,
    alpha: Annotated[
        float | None, typer.Option("--alpha", metavar="A", help="Weigh them by score to the power A, and keep the query.")
    ] = None,
    expansion: Annotated[
        str | None, typer.Option("--expansion", metavar="KIND", help="sum (the paper's), sum-with-query (the released code's), alpha.")
    ] = None,
    under: Annotated[str | None, typer.Option("--under", metavar="FOLDER", help="Only pictures below a folder.")] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="DATE", help="Taken at this date or later: 2024, 2024-05, ...")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="DATE", help="Taken before this date.")] = None,
    min_score: Annotated[float | None, typer.Option("--min-score", metavar="S", help="Only results with this cosine or more.")] = None,
    approx: Annotated[
        bool | None, typer.Option("--approx/--exact", help="Approximate search; by default only from a million pictures.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a contact sheet, one file.")] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write a contact sheet as a picture.")] = None,
    engine: options.EngineName = None,
    device: options.Device = None,
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Find the pictures most like one or several."""
    from crow.app.sheet import Sheet

    for page in filter(None, (html, png)):
        options.writable(page)
    with options.opened(path, engine=engine, device=device, weights=weights) as opened:
        region = _box(box)
        results = opened.search(
            queries if len(queries) > 1 else queries[0],
            k, region, expand, alpha, under, after, before, min_score, expansion, approx,
        )  # fmt: skip
    sheet = Sheet.of(queries, region, results) if html or png else None
    if sheet and html:
        sheet.write_html(html)
    if sheet and png:
        sheet.write_png(png)
    if as_json:
        typer.echo(json.dumps([_record(hit) for hit in results], indent=2))
    else:
        _table(results)
        for file in (html, png):
            typer.echo(f"contact sheet: {file}") if file else None


def _box(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4 or not all(math.isfinite(n) for n in numbers):
        raise typer.BadParameter(f"a box is XMIN,YMIN,XMAX,YMAX in pixels, not {text!r}")
    return numbers


def _record(hit: Any) -> dict[str, Any]:
    chance = hit.chance if math.isfinite(hit.chance) else None
    return {
        "path": hit.path, "score": hit.score, "chance": chance, "match": hit.match,
        "width": hit.width, "height": hit.height, "taken": hit.taken,
    }  # fmt: skip


def _table(results: Results) -> None:
    """Rank, score, chance (`-`: a collection too small to tell) and path; a line where matches end."""
    typer.echo("rank   score    chance  path" if results else "nothing found")
    above = True
    for rank, hit in enumerate(results, 1):
        if above and not hit.match:
            typer.echo("-- matches end here; what follows is no more alike than unrelated pictures are --")
            above = False
        chance = f"{hit.chance:8.1e}" if math.isfinite(hit.chance) else "       -"
        typer.echo(f"{rank:4d}  {hit.score:6.3f}  {chance}  {options.line(hit.path)}")
