"""Random writes to an index, each one commit; whoever watches can work out from its number what must be there.

Which write the i-th is depends on i and on what the store holds, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crow.search import approximate
from crow.search.index import Index
from crow.search.store import Failure, Row

DIM, BATCH = 32, 40
KINDS = ("add", "update", "remove", "move", "fail", "rewhiten", "build")
Rows = dict[str, bytes]  # path -> raw vector


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def kind_of(step: int) -> str:
    """Which kind of write the i-th is."""
    return KINDS[int(np.random.default_rng(step).choice(len(KINDS), p=[0.24, 0.22, 0.16, 0.12, 0.08, 0.15, 0.03]))]


def change(step: int, rows: Rows) -> tuple[Rows, list[str], list[tuple[str, str]]]:
    """Of the i-th write over these rows: (written, removed, moved)."""
    random, kind, known = np.random.default_rng([step, 1]), kind_of(step), sorted(rows)
    picked = [known[i] for i in random.permutation(len(known))[: int(random.integers(1, BATCH))]]
    if kind == "add":
        paths = [f"/p/{step}-{i}.jpg" for i in range(int(random.integers(1, BATCH)))]
    else:
        paths = picked if kind == "update" else []
    vectors = random.standard_normal((len(paths), DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    written = {path: vector.tobytes() for path, vector in zip(paths, vectors, strict=True)}
    removed = picked if kind in ("remove", "fail") and len(known) > 4 * BATCH else []
    return written, removed, [(p, f"{p}+") for p in picked] if kind == "move" else []


def after(step: int, rows: Rows) -> Rows:
    """What the store holds after the i-th write."""
    written, removed, moved = change(step, rows)
    rows = {path: vector for path, vector in {**rows, **written}.items() if path not in set(removed)}
    return {dict(moved).get(path, path): vector for path, vector in rows.items()}


def held(index: Index) -> Rows:
    """What the store holds now."""
    ids = index.store.ids()
    rows = zip(index.store.rows(ids.tolist()), index.store.vectors(ids), strict=True)
    return {row.path: vector.tobytes() for row, vector in rows if row is not None}


def step_of(index: Index) -> int:
    """The number of the last write that is kept."""
    return int(index.store.settings().get("step", 0))


def apply(index: Index, step: int, rows: Rows) -> None:
    """The i-th write, as one commit that also says that it is the i-th."""
    written, removed, moved = change(step, rows)
    store, kind = index.store, kind_of(step)
    if kind == "rewhiten" and len(rows) > DIM + 2:
        index.rewhiten(dim=4 + step % 20, to="self")
    if kind == "build" and len(rows) > approximate.LEAST:
        (index.derived.folder / "approximate.json").unlink(missing_ok=True)  # type: ignore[operator]
        index.approximate("hnsw")
        index.derived.build()
    with store.transaction():
        ids = {path: row.id for path, row in store.get([path for path, _ in moved]).items()}
        store.upsert(Row(path, np.frombuffer(vector, np.float32)) for path, vector in written.items())
        store.move(Row(new, id=ids[old]) for old, new in moved)
        if kind == "remove":
            store.remove(removed)
        store.fail(Failure(path, "broken") for path in (removed if kind == "fail" else []))
        store.configure(step=step)
    index.save_matrix()


def go_on(address: str, count: int | None = None) -> Iterator[str]:
    """Write, for ever or so many times, saying what begins and what is done."""
    approximate.LEAST = 64
    with Index.open(address) as index:
        rows, step = held(index), step_of(index) + 1
        yield f"ready {step}"
        while count is None or count > 0:
            yield f"begin {step} {kind_of(step)}"
            apply(index, step, rows)
            yield f"done {step}"
            rows, step = after(step, rows), step + 1
            count = None if count is None else count - 1
