"""Commands of the search floor: index, search, rewhiten, verify, info, export, import, duplicates, backup."""

from __future__ import annotations

import json
import math
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
    from crow.search.query import Results
    from crow.search.work import Report

INDEX = typer.Argument(
    metavar="INDEX", help="A folder NAME.crow, or milvus://HOST:PORT/COLLECTION.", show_default=False
)
IndexPath = Annotated[str, INDEX]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help=f"One of {', '.join(RECIPES)}.", rich_help_panel=options.WORKS),
]
Whiten = Annotated[
    str | None,
    typer.Option("--whiten", metavar="FILE|self|none", help="A whitening learned elsewhere, from the index itself, or none."),
]  # fmt: skip


Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Do the work on a Ray cluster: local, auto, or HOST:PORT.", rich_help_panel=options.WORKS),
]  # fmt: skip


def add(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command("index")(index)
    for command in (search, rewhiten, verify, info, export, duplicates, backup):
        app.command()(command)
    app.command("import")(import_)


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
    whiten: Whiten = None,
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
    ray: Ray = None,
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


def search(
    path: IndexPath,
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
    with _opened(path, engine=engine, device=device, weights=weights) as opened:
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


def rewhiten(
    path: IndexPath,
    dim: Annotated[int | None, typer.Option("--dim", metavar="D", min=1, help="Dimensions to keep.")] = None,
    whiten: Whiten = None,
    ray: Ray = None,
    as_json: options.Json = False,
) -> None:
    """Whiten an index anew from its raw vectors, without extraction."""
    with _opened(path) as opened:
        if ray:
            from crow.search import scale

            learned = scale.rewhiten(opened, ray, dim, whiten)
        else:
            learned = opened.rewhiten(dim, whiten)
        record = {"path": path, "dim": learned.dim if learned else None, "source": learned.source if learned else None}
    said = (
        f"whitened, {learned.dim} dimensions, learned from {learned.source or 'a file'}" if learned else "not whitened"
    )
    typer.echo(json.dumps(record) if as_json else f"{path}: {said}; earlier scores do not compare with new ones")


def verify(
    path: IndexPath,
    repair: Annotated[bool, typer.Option("--repair", help="Forget damaged pictures, make the matrix anew.")] = False,
    as_json: options.Json = False,
) -> None:
    """Check every byte of an index: database, rows, whitening, matrix."""
    from crow.search import care

    with _opened(path) as opened:
        problems = care.verify(opened, repair)
        count = len(opened)
    if as_json:
        typer.echo(json.dumps([{"where": p.where, "what": p.what, "repaired": p.repaired} for p in problems], indent=2))
    else:
        for p in problems:
            typer.echo(_line(f"{p.where or path}: {p.what}{' (repaired)' if p.repaired else ''}"), err=True)
        typer.echo(
            f"{path}: {count:,} pictures, " + (f"{len(problems)} problems" if problems else "all as they were written")
        )
    raise typer.Exit(3 if any(not p.repaired for p in problems) else 0)


def info(path: IndexPath, as_json: options.Json = False) -> None:
    """Say what an index holds and how it was made."""
    from crow.search import care

    with _opened(path) as opened:
        record = care.info(opened)
        failures = opened.store.failures().values()
    if as_json:
        record["failed"] = [{"path": f.path, "reason": f.reason} for f in failures]
        typer.echo(json.dumps(record, indent=2))
        return
    for name, value in record.items():
        typer.echo(_line(f"{name:<12}{_plain(value)}"))
    for failure in failures:
        typer.echo(_line(f"failed      {failure.path}: {failure.reason}"))


def export(
    path: IndexPath, out: Annotated[Path, typer.Argument(metavar="OUT.npz|OUT.parquet")], as_json: options.Json = False
) -> None:
    """Write the raw vectors and what is known of every picture to a file."""
    from crow.search import care

    with _opened(path) as opened:
        count = care.export(opened, out)
    typer.echo(json.dumps({"out": str(out), "pictures": count}) if as_json else f"{out}: {count:,} pictures")


def import_(
    path: IndexPath, source: Annotated[Path, typer.Argument(metavar="FILE.npz|FILE.parquet")], as_json: options.Json = False
) -> None:  # fmt: skip
    """Add what `crow export` wrote to an index, which is made if it is not there."""
    from crow.search import care
    from crow.search.index import Index
    from crow.search.store import store_at

    recipe = None if store_at(path).exists(path) else care.exported(source)[0]
    with Index.create(path, recipe) if recipe else _opened(path) as opened:
        count = care.import_(opened, source)
    typer.echo(json.dumps({"path": path, "pictures": count}) if as_json else f"{path}: {count:,} pictures imported")


def duplicates(
    path: IndexPath,
    score: Annotated[float, typer.Option("--score", metavar="S", help="Cosine from which two pictures count as the same.")] = 0.95,
    under: Annotated[str | None, typer.Option("--under", metavar="FOLDER", help="Only pictures below a folder.")] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """List groups of near-duplicates."""
    from crow.search import care

    with _opened(path) as opened:
        groups = care.duplicates(opened, score, under)
    if as_json:
        typer.echo(json.dumps(groups, indent=2))
        return
    for group in groups:
        typer.echo("\n".join(_line(name) for name in group) + "\n")
    typer.echo(f"{len(groups):,} groups of near-duplicates")


def backup(
    path: IndexPath,
    target: Annotated[str, typer.Argument(metavar="TARGET.crow")],
    salvage: Annotated[
        bool, typer.Option("--salvage", help="From a damaged index: all that can still be read.")
    ] = False,
) -> None:
    """Copy an index while it is in use."""
    with _opened(path) as opened:
        if salvage:
            opened.store.salvage(target).close()
        else:
            opened.store.backup(target)
    with _opened(target) as copy:
        typer.echo(f"{target}: a copy of {path}, {len(copy):,} pictures")


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


def _opened(path: str, **making: Any) -> Index:
    from crow.search.index import Index

    return Index.open(path, report=Download(), **making)


def _made(path: str, folders: list[str], works: tuple[Any, ...], whiten: str | None, making: dict[str, Any]) -> Index:
    """The index that is there, if it is what the options ask for; else a new one."""
    from crow.search.index import Index
    from crow.search.matrix import SearchError
    from crow.search.store import store_at

    if store_at(path).exists(path):
        opened = _opened(path, **making)
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


def _say(opened: Index, report: Report | str, as_json: bool) -> None:
    """A report for people, or one record per sync for programs."""
    if isinstance(report, str):
        typer.echo(f"crow: {_line(report)}", err=True)
        return
    if as_json:
        plain = {name: getattr(report, name) for name in report.__dataclass_fields__ if name != "failures"}
        plain["failures"] = [{"path": f.path, "reason": f.reason} for f in report.failures]
        typer.echo(json.dumps(plain))
        return
    for failure in report.failures:
        typer.echo(_line(f"failed: {failure.path}: {failure.reason}"), err=True)
    for note in report.notes:
        typer.echo(f"note: {_line(note)}", err=True)
    if not len(opened) and not report.failures:
        typer.echo("note: no picture was found in these folders", err=True)
    typer.echo(f"{opened.store.address}: {len(opened):,} pictures ({report})")


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
        typer.echo(f"{rank:4d}  {hit.score:6.3f}  {chance}  {_line(hit.path)}")


def _plain(value: Any) -> str:
    """What `info` tells, in words: a list, a whitening or nothing at all is no Python here."""
    if isinstance(value, dict):
        return f"{value['dim']} dimensions, learned from {value['count']:,} vectors ({value['source'] or 'a file'})"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value or "none")


def _line(text: str) -> str:
    """Text on one line that any terminal can print: what is undecodable, and line ends, escaped."""
    return (
        text.encode("utf-8", "backslashreplace")
        .decode()
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\x1b", "\\x1b")
    )
