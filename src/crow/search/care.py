"""Care: is everything as it was written, what is in an index, copies in and out, and near-duplicates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crow.files import replacing
from crow.framework.reduce import WhiteningError
from crow.recipe import Recipe
from crow.search.index import Index, absolute
from crow.search.matrix import SearchError
from crow.search.store import Row, StoreError, Vectors

UNIT = 1e-3  # how far from 1 the length of a stored vector may be
COLUMNS = ("size", "mtime", "sha256", "width", "height", "taken")
SAME = 0.95  # cosine from which two pictures count as near-duplicates
BLOCK = 2048  # rows against all others at a time


@dataclass(frozen=True)
class Problem:
    """What `verify` found: where (a path, "matrix", or "" for the index as a whole), what, and whether it was repaired."""

    where: str
    what: str
    repaired: bool = False


@dataclass(frozen=True, eq=False)
class Parts:
    """Pictures as columns, as they are written to files."""

    paths: list[str]
    vectors: Vectors
    columns: dict[str, list[Any]]

    def row(self, i: int) -> Row:
        """One of them as the store takes it."""
        return Row(self.paths[i], self.vectors[i], **{name: self.columns[name][i] for name in COLUMNS})


def verify(index: Index, repair: bool = False) -> list[Problem]:
    """Everything that is not as it was written: database, rows, whitening, matrix.

    Repair forgets damaged pictures (the next sync describes them again) and throws a wrong matrix away.
    """
    rows = list(_checked(index))
    rows += _lengths(index) if not rows else []
    problems = [Problem(where, what) for where, what in rows]
    problems += [Problem("", what) for what in _whitening(index)] if not any(p.where == "" for p in problems) else []
    matrix = [Problem("matrix", what) for what in index.derived.problems()] if not problems else []
    lost = [Problem("", what) for what in [index.derived.lost()] if what] if not problems else []
    problems += lost
    if not repair:
        return problems + matrix
    with index.store.writer():
        damaged = {where for where, _ in rows if where}
        index.store.remove(damaged)
        if matrix or damaged or lost:
            index.derived.repair()
    fixed = damaged | {"matrix"}
    return [Problem(p.where, p.what, p.where in fixed) for p in problems + matrix]


def _checked(index: Index) -> Iterator[tuple[str, str]]:
    """What the store finds; that it cannot even be read is a finding, too."""
    try:
        yield from index.store.check()
    except StoreError as error:
        yield "", str(error)


def _lengths(index: Index) -> Iterator[tuple[str, str]]:
    """Vectors that are finite but not of length 1, as every recipe that ends in L2 makes them."""
    if index.recipe.norm.kind != "l2" or not len(index):
        return
    for ids, vectors in index.store.chunks():
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        wrong = np.isfinite(lengths) & (np.abs(lengths - 1) > UNIT) & (lengths > 0)
        for row, length in zip(index.store.rows(ids[wrong].tolist()), lengths[wrong], strict=True):
            if row is not None:
                yield row.path, f"its vector has length {length:.4g} instead of 1"


def _whitening(index: Index) -> Iterator[str]:
    try:
        whitening = index.whitening
    except WhiteningError as error:
        yield f"the whitening cannot be read: {error}"
        return
    dim = index.store.settings().get("dim")
    if whitening is not None and dim is not None and len(whitening.mean) != dim:
        yield f"the whitening takes vectors of {len(whitening.mean)} dimensions, the index holds {dim}"


def info(index: Index) -> dict[str, Any]:
    """What an index is and holds, for people and programs."""
    settings, whitening = index.store.settings(), index.whitening
    folder = Path(index.store.address)
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    learned = {"dim": whitening.dim, "count": whitening.count, "source": whitening.source} if whitening else None
    return {
        "path": index.store.address,
        "pictures": len(index),
        "failures": len(index.store.failures()),
        "folders": settings.get("folders", []),
        "recipe": index.recipe.name,
        "network": index.recipe.view.network,
        "size": str(index.recipe.view.size),
        "dim": settings.get("dim"),
        "policy": settings.get("policy"),
        "whitening": learned,
        "weights": settings.get("weights"),
        "precision": settings.get("precision"),
        "engine": settings.get("engine"),
        "generation": index.store.generation,
        "bytes": sum(p.stat().st_size for p in files),
    }


def export(index: Index, target: str | Path) -> int:
    """Write every picture with its raw vector, and how they were made, as .npz or .parquet; how many."""
    target = Path(target)
    with index.store.snapshot():
        ids = index.store.ids()
        rows = [row for row in index.store.rows(ids.tolist()) if row is not None]
        vectors = index.store.vectors(ids)
        settings = index.store.settings()
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    made = {name: settings.get(name) for name in ("recipe", "weights", "precision", "engine", "dim")}
    writers = {".npz": _write_npz, ".parquet": _write_parquet}
    if target.suffix not in writers:
        raise SearchError(f"{target}: an index is exported to a file ending in .npz or .parquet")
    with replacing(target) as half:
        writers[target.suffix](half, [row.path for row in rows], vectors, columns, json.dumps(made))
    return len(rows)


def exported(source: str | Path) -> tuple[Recipe, dict[str, Any], Parts]:
    """What `export` wrote: the recipe, how else the vectors were made, and the pictures."""
    source = Path(source)
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    if source.suffix not in readers:
        raise SearchError(f"{source}: an index is imported from a file ending in .npz or .parquet")
    if not source.is_file():
        raise SearchError(f"{source}: no such file")
    try:
        made_text, paths, vectors, columns = readers[source.suffix](source)
        made = json.loads(made_text)
        return Recipe.from_dict(made["recipe"]), made, Parts(paths, vectors, columns)
    except (KeyError, ValueError, OSError) as error:
        raise SearchError(f"{source}: not what crow export writes ({error})") from None


def import_(index: Index, source: str | Path) -> int:
    """Add what `export` wrote to an index of the same recipe, weights and precision; how many."""
    recipe, made, parts = exported(source)
    if recipe.key() != index.recipe.key():
        raise SearchError(f"{source}: made with {recipe.name}, the index with {index.recipe.name} ({'; '.join(index.recipe.differences(recipe))})")  # fmt: skip
    settings = index.store.settings()
    with index.store.writer():
        for name in ("weights", "precision"):
            if settings.get(name) not in (None, made[name]):
                raise SearchError(f"{source}: made with {name} {made[name]}, the index with {settings[name]}")
        index.store.configure(**{n: made[n] for n in ("weights", "precision", "engine") if made.get(n) is not None})
        for start in range(0, len(parts.paths), 1000):
            part = range(start, min(start + 1000, len(parts.paths)))
            index.store.upsert(parts.row(i) for i in part)
        index.save_matrix()
    return len(parts.paths)


def duplicates(index: Index, score: float = SAME, under: str | Path | None = None) -> list[list[str]]:
    """Groups of pictures whose vectors are at least so alike, chains joined; the largest group first."""
    if not -1 <= score <= 1:
        raise SearchError(f"a score is between -1 and 1, not {score}")
    with index.derived.reading() as state:
        ids = index.store.ids(under=absolute(under) if under is not None else None)
        names = [row.path for row in index.store.rows(ids.tolist()) if row is not None]
        vectors = state.vectors(ids) if len(ids) else np.empty((0, 1), np.float32)
    group = list(range(len(names)))
    for start in range(0, len(names), BLOCK):
        alike = vectors[start : start + BLOCK] @ vectors[start:].T >= score
        for i, j in zip(*np.nonzero(np.triu(alike, 1)), strict=True):
            group[_root(group, start + int(j))] = _root(group, start + int(i))
    members: dict[int, list[str]] = {}
    for i, name in enumerate(names):
        members.setdefault(_root(group, i), []).append(name)
    return sorted((sorted(g) for g in members.values() if len(g) > 1), key=lambda g: (-len(g), g))


def _root(group: list[int], i: int) -> int:
    """The one that stands for i's group; the way to it is shortened."""
    while group[i] != i:
        group[i] = group[group[i]]
        i = group[i]
    return i


def _write_npz(file: Path, paths: list[str], vectors: Vectors, columns: dict[str, Any], made: str) -> None:
    plain = columns | {
        "sha256": np.frombuffer(b"".join(columns["sha256"]), np.uint8).reshape(len(paths), -1),
        "taken": np.array([t or "" for t in columns["taken"]], str),
    }
    with file.open("wb") as out:
        np.savez(out, paths=np.array(paths, str), vectors=vectors, made=np.array(made), **plain)


def _read_npz(file: Path) -> tuple[str, list[str], Vectors, dict[str, Any]]:
    with np.load(file, allow_pickle=False) as data:
        columns = {n: data[n].tolist() for n in ("size", "mtime", "width", "height")}
        columns["sha256"] = [row.tobytes() for row in data["sha256"]]
        columns["taken"] = [t or None for t in data["taken"].tolist()]
        return str(data["made"]), data["paths"].tolist(), data["vectors"], columns


def _write_parquet(file: Path, paths: list[str], vectors: Vectors, columns: dict[str, Any], made: str) -> None:
    pa, parquet = _arrow()
    flat = pa.array(vectors.reshape(-1), pa.float32())
    table = {
        "path": [p.encode("utf-8", "backslashreplace").decode() for p in paths],
        "path_bytes": pa.array([os.fsencode(p) for p in paths], pa.binary()),
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1] or 1),
        **{name: pa.array(columns[name], pa.int64()) for name in ("size", "mtime", "width", "height")},
        "sha256": pa.array(columns["sha256"], pa.binary()),
        "taken": pa.array(columns["taken"], pa.string()),
    }
    parquet.write_table(pa.table(table).replace_schema_metadata({"crow": made}), file)


def _read_parquet(file: Path) -> tuple[str, list[str], Vectors, dict[str, Any]]:
    _, parquet = _arrow()
    table = parquet.read_table(file)
    vectors = table["vector"].combine_chunks()
    rows = np.asarray(vectors.flatten().to_numpy(), np.float32).reshape(table.num_rows, -1)
    columns = {name: table[name].to_pylist() for name in COLUMNS}
    made = (table.schema.metadata or {})[b"crow"].decode()
    return made, [os.fsdecode(p) for p in table["path_bytes"].to_pylist()], rows, columns


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SearchError("Parquet needs the extra 'parquet': pip install 'crow-search[parquet]'; .npz needs nothing") from None  # fmt: skip
    return pyarrow, pyarrow.parquet
