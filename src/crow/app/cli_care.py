"""Care of an index: rewhiten, verify, info, export, import, duplicates, backup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from crow.app import options


def add(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    for command in (rewhiten, verify, info, export, duplicates, backup):
        app.command()(command)
    app.command("import")(import_)


def rewhiten(
    path: options.IndexPath,
    dim: Annotated[int | None, typer.Option("--dim", metavar="D", min=1, help="Dimensions to keep.")] = None,
    whiten: options.Whiten = None,
    ray: options.Ray = None,
    as_json: options.Json = False,
) -> None:
    """Whiten an index anew from its raw vectors, without extraction."""
    with options.opened(path) as opened:
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
    path: options.IndexPath,
    repair: Annotated[bool, typer.Option("--repair", help="Forget damaged pictures, make the matrix anew.")] = False,
    as_json: options.Json = False,
) -> None:
    """Check every byte of an index: database, rows, whitening, matrix."""
    from crow.search import care

    with options.opened(path) as opened:
        problems = care.verify(opened, repair)
        count = len(opened)
    if as_json:
        typer.echo(json.dumps([{"where": p.where, "what": p.what, "repaired": p.repaired} for p in problems], indent=2))
    else:
        for p in problems:
            typer.echo(options.line(f"{p.where or path}: {p.what}{' (repaired)' if p.repaired else ''}"), err=True)
        typer.echo(
            f"{path}: {count:,} pictures, " + (f"{len(problems)} problems" if problems else "all as they were written")
        )
    raise typer.Exit(3 if any(not p.repaired for p in problems) else 0)


def info(path: options.IndexPath, as_json: options.Json = False) -> None:
    """Say what an index holds and how it was made."""
    from crow.search import care

    with options.opened(path) as opened:
        record = care.info(opened)
        failures = opened.store.failures().values()
    if as_json:
        record["failed"] = [{"path": f.path, "reason": f.reason} for f in failures]
        typer.echo(json.dumps(record, indent=2))
        return
    for name, value in record.items():
        typer.echo(options.line(f"{name:<12}{_plain(value)}"))
    for failure in failures:
        typer.echo(options.line(f"failed      {failure.path}: {failure.reason}"))


def export(
    path: options.IndexPath,
    out: Annotated[Path, typer.Argument(metavar="OUT.npz|OUT.parquet")],
    as_json: options.Json = False,
) -> None:
    """Write the raw vectors and what is known of every picture to a file."""
    from crow.search import care

    with options.opened(path) as opened:
        count = care.export(opened, out)
    typer.echo(json.dumps({"out": str(out), "pictures": count}) if as_json else f"{out}: {count:,} pictures")


def import_(
    path: options.IndexPath, source: Annotated[Path, typer.Argument(metavar="FILE.npz|FILE.parquet")], as_json: options.Json = False
) -> None:  # fmt: skip
    """Add what `crow export` wrote to an index, which is made if it is not there."""
    from crow.search import care
    from crow.search.index import Index
    from crow.search.store import store_at

    recipe = None if store_at(path).exists(path) else care.exported(source)[0]
    with Index.create(path, recipe) if recipe else options.opened(path) as opened:
        count = care.import_(opened, source)
    typer.echo(json.dumps({"path": path, "pictures": count}) if as_json else f"{path}: {count:,} pictures imported")


def duplicates(
    path: options.IndexPath,
    score: Annotated[float, typer.Option("--score", metavar="S", help="Cosine from which two pictures count as the same.")] = 0.95,
    under: Annotated[str | None, typer.Option("--under", metavar="FOLDER", help="Only pictures below a folder.")] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """List groups of near-duplicates."""
    from crow.search import care

    with options.opened(path) as opened:
        groups = care.duplicates(opened, score, under)
    if as_json:
        typer.echo(json.dumps(groups, indent=2))
        return
    for group in groups:
        typer.echo("\n".join(options.line(name) for name in group) + "\n")
    typer.echo(f"{len(groups):,} groups of near-duplicates")


def backup(
    path: options.IndexPath,
    target: Annotated[str, typer.Argument(metavar="TARGET.crow")],
    salvage: Annotated[
        bool, typer.Option("--salvage", help="From a damaged index: all that can still be read.")
    ] = False,
) -> None:
    """Copy an index while it is in use."""
    with options.opened(path) as opened:
        if salvage:
            opened.store.salvage(target).close()
        else:
            opened.store.backup(target)
    with options.opened(target) as copy:
        typer.echo(f"{target}: a copy of {path}, {len(copy):,} pictures")


def _plain(value: Any) -> str:
    """What `info` tells, in words: a list, a whitening or nothing at all is no Python here."""
    if isinstance(value, dict):
        return f"{value['dim']} dimensions, learned from {value['count']:,} vectors ({value['source'] or 'a file'})"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value or "none")
