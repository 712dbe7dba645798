"""Somebody else's vectors or rankings, judged by the same rules."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.evaluate.datasets import Dataset, Query
from crow.evaluate.protocols import Order
from crow.evaluate.run import Evaluation, EvaluationError, Settings, SettingsError, measure, summed_up
from crow.evaluate.teach import NOBODY, Teacher
from crow.framework.normalize import l2

Rows = Mapping[str, int]  # every way to name a picture -> its row


def of_features(dataset: Dataset, file: Path, settings: Settings, teacher: Teacher = NOBODY) -> Evaluation:
    """Judge an .npz with `paths` and `vectors` (n, K), and `query_paths`, `query_vectors` where queries have their own.

    A query is called by its name in the ground truth or by its picture; without vectors of its own it is the whole
    picture's.
    """
    if teacher.pictures or (settings.dims and not teacher):
        raise SettingsError("vectors from a file are reduced by a whitening from a file (--whiten FILE), or not at all")
    arrays = _arrays(file)
    rows = _rows(arrays["paths"])
    own = "query_vectors" in arrays
    asked_rows = _rows(arrays["query_paths"]) if own else rows
    names = [name for name, path in dataset.images.items() if _find(rows, name, path) is not None]
    asked = [query for query in dataset.queries if _query(asked_rows, query, dataset) is not None]
    if not names or not asked:
        raise EvaluationError(f"{file}: holds no {'query' if names else 'picture'} of {dataset.name}")
    images = arrays["vectors"][np.array([_find(rows, name, dataset.images[name]) for name in names])]
    queries = arrays["query_vectors" if own else "vectors"][np.array([_query(asked_rows, q, dataset) for q in asked])]
    results = []
    for dim in settings.dims or (None,):
        reduce = teacher.learned.to_dim(dim) if teacher.learned and dim else teacher.learned
        x, q = (reduce(images), reduce(queries)) if reduce else (images, queries)
        choices = {"whiten": teacher.name, "dim": x.shape[1], "crop": "own" if own else "none"}
        more = {"expand": settings.expand, "expand_with_query": settings.expand_with_query}
        results += measure(dataset, names, asked, x, q, settings, _record(dataset, file) | choices | more)
    lost = dict.fromkeys(dataset.images.keys() - names, f"no vector in {file.name}")
    lost |= {query.name: f"no vector in {file.name}" for query in dataset.queries if query not in asked}
    return Evaluation(dataset, tuple(results), lost)


def of_ranks(dataset: Dataset, file: Path) -> Evaluation:
    """Judge rankings, best first: a text file, a line `query picture picture ...` each, or an integer .npy
    (queries, images) of places in the dataset's order; what a ranking does not name was not found."""
    names = list(dataset.images)
    orders = _numbers(dataset, file) if file.suffix == ".npy" else _lines(dataset, file)
    asked = [query for query in dataset.queries if query.name in orders]
    if not asked:
        raise EvaluationError(f"{file}: ranks nothing for any query of {dataset.name}")
    record = _record(dataset, file) | {"dim": None, "whiten": None, "crop": None, "expand": None}
    results = summed_up(dataset, names, asked, [orders[query.name] for query in asked], record)
    lost = {query.name: f"no ranking in {file.name}" for query in dataset.queries if query not in asked}
    return Evaluation(dataset, tuple(results), lost)


def _record(dataset: Dataset, file: Path) -> dict[str, Any]:
    return {"dataset": dataset.name, "recipe": file.name}


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file, the vectors as finite float64 rows of length 1."""
    try:
        with np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        for kind in ("", "query_") if "query_vectors" in arrays else ("",):
            rows = np.asarray(arrays[f"{kind}vectors"], np.float64)
            if rows.ndim != 2 or len(rows) != len(arrays[f"{kind}paths"]):
                raise EvaluationError(f"{file}: its {kind}vectors {rows.shape} are not one row for each of {kind}paths")
            if not np.isfinite(rows).all():
                raise EvaluationError(
                    f"{file}: row {(~np.isfinite(rows)).any(1).argmax()} of {kind}vectors is not finite"
                )
            arrays[f"{kind}vectors"] = l2(rows)
    except EvaluationError:
        raise
    except KeyError as error:
        raise EvaluationError(f"{file}: holds no array {error.args[0].split()[0]!r}") from None
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise EvaluationError(f"{file}: not an .npz of paths and vectors ({error})") from None
    return arrays


def _rows(paths: Iterable[Any]) -> Rows:
    """Each path's row, under its end from any folder on, and under its bare name."""
    rows: dict[str, int] = {}
    for i, path in enumerate(map(str, paths)):
        parts = [part for part in Path(path).parts if part != "/"]
        for start in range(len(parts)):
            rows.setdefault("/".join(parts[start:]), i)
        rows.setdefault(Path(path).stem, i)
    return rows


def _find(rows: Rows, name: str, path: Path) -> int | None:
    return rows.get(path.as_posix().lstrip("/"), rows.get(name))


def _query(rows: Rows, query: Query, dataset: Dataset) -> int | None:
    if query.name in dataset.images:
        return _find(rows, query.name, query.path)
    return rows.get(query.name, rows.get(query.path.stem))


def _lines(dataset: Dataset, file: Path) -> dict[str, Order]:
    """The orders of a text file, as places among the dataset's pictures; tabs part names that hold spaces."""
    places = _rows(dataset.images)
    orders: dict[str, Order] = {}
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{file}: not a text file of rankings ({error})") from None
    for number, line in enumerate(lines, 1):
        query, *ranked = line.split("\t" if "\t" in line else None) or [""]
        for name in ranked:
            if name not in places:
                raise EvaluationError(f"{file}, line {number}: {dataset.name} has no picture named {name!r}")
        if query:
            orders[query] = _once(file, query, [places[name] for name in ranked])
    return orders


def _numbers(dataset: Dataset, file: Path) -> dict[str, Order]:
    """The orders of an integer array, a row per query."""
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EvaluationError(f"{file}: not an .npy of integers ({error})") from None
    shape = (len(dataset.queries), len(dataset.images))
    if array.ndim != 2 or array.dtype.kind not in "iu" or len(array) != shape[0] or array.shape[1] > shape[1]:
        raise EvaluationError(f"{file}: {array.dtype} {array.shape} is not integers (queries, images), here {shape}")
    if array.size and (array.min() < 0 or array.max() >= shape[1]):
        raise EvaluationError(
            f"{file}: its places reach from {array.min()} to {array.max()}, not from 0 to {shape[1] - 1}"
        )
    return {
        query.name: _once(file, query.name, row.tolist()) for query, row in zip(dataset.queries, array, strict=True)
    }


def _once(file: Path, query: str, places: Sequence[int]) -> Order:
    if len(set(places)) != len(places):
        raise EvaluationError(f"{file}: ranks a picture twice for {query}")
    return np.array(places, np.int64)
