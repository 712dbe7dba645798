"""Damage: files of an index cut short, zeroed in places, with bits turned. Never a crash, never a silently wrong answer.

Each damaged copy is searched, verified, repaired and salvaged. What it says must be what the sound one says, or an
error in one line; what `verify` finds nothing wrong with must hold everything; what `--repair` leaves must be sound.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from crow.framework.reduce import WhiteningError
from crow.recipe import RecipeError
from crow.search import approximate
from crow.search.care import verify
from crow.search.index import Index
from crow.search.matrix import SearchError
from crow.search.store import Failure, Row, StoreError
from torture.campaign import Lane, Try
from torture.children import in_child
from torture.operations import DIM, unit_rows

ROWS = 240
KINDS = ("cut", "zeroed", "bit")
NAMED = (StoreError, SearchError, WhiteningError, RecipeError)  # errors for users
QUERIES = [np.random.default_rng(seed).standard_normal(DIM).astype(np.float32) for seed in range(2)]
Answers = list[list[tuple[str, float]]]


def damage(lane: Lane) -> Iterator[Try]:
    """One damaged copy after the other, every file in turn in each of three ways."""
    approximate.LEAST = 64
    sound = lane.fresh("sound")
    reference: list[Any] = [answers_after(sound, clean) for clean in (True, False)]
    for kind in cycle(KINDS):
        for clean, expected in zip((True, False), reference, strict=True):
            kept = sound / ("clean" if clean else "killed") / "a.crow"
            for file in sorted(
                p.relative_to(kept)
                for p in kept.rglob("*")
                if p.is_file() and p.suffix != ".lock" and not p.name.endswith("-shm")
            ):
                target = lane.fresh("copy") / "a.crow"
                shutil.copytree(kept, target)
                what = spoil(target / file, kind, lane.random)
                if what is None:
                    continue
                in_database = file.name.startswith("index.sqlite")
                wrong = in_child(lambda say, t=target, e=expected, d=in_database: judge(t, *e, d)).how  # type: ignore[misc]
                name = file.name if file.name.isascii() and len(file.name) < 32 else f"*{file.suffix}"
                yield Try(name, wrong and f"{wrong} ({what})")


def answers_after(sound: Path, clean: bool) -> tuple[Answers, dict[str, Any]]:
    """Make a sound index, closed or left by a killed process; what it says and holds."""
    folder = sound / ("clean" if clean else "killed")
    folder.mkdir()
    in_child(lambda say: make(folder / "a.crow", clean))
    copy = sound / "asked" / "a.crow"
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(folder / "a.crow", copy)
    with Index.open(copy) as index:
        assert verify(index) == []
        return answers(index), content(index)


def make(address: Path, clean: bool) -> None:
    """An index with everything in it: folders, dates, failures, a whitening, dead rows, an approximate index."""
    import os

    rows = all_rows()
    index = Index.create(address, "crow")
    index.store.upsert(rows[:-20])
    index.rewhiten(16, to="self")
    index.store.upsert(rows[-20:-5])
    index.store.remove(row.path for row in rows[5:20])
    index.store.fail([Failure("/p/broken.jpg", "a truncated JPEG file")])
    index.save_matrix()
    index.approximate("hnsw")
    index.derived.build()
    index.save_matrix()
    index.store.upsert(rows[-5:])
    index.store.remove([rows[30].path])
    if clean:
        return index.close()  # the matrix is behind
    index.save_matrix()
    os._exit(0)  # the log of the database stays


def all_rows() -> list[Row]:
    """Every row that was ever written."""
    vectors = unit_rows(np.random.default_rng(1).standard_normal((ROWS, DIM)))
    dates = [f"20{i % 20:02}-01-02T03:04:05" for i in range(ROWS)]
    return [
        Row(f"/p/{'ab'[i % 2]}/{i}.jpg", vector, 10 + i, 1000 + i, bytes([i]) * 32, 640, 480, dates[i])
        for i, vector in enumerate(vectors)
    ]


def spoil(file: Path, kind: str, random: Random) -> str | None:
    """Cut, zero, or turn a bit of a file somewhere; what was done, None where that changes nothing."""
    before = file.read_bytes()
    data, at = bytearray(before), random.randrange(max(1, len(before)))
    if kind == "cut":
        del data[at:]
    elif kind == "zeroed":
        length = random.choice((1, 64, 4096))
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif data:
        data[at] ^= 1 << random.randrange(8)
    file.write_bytes(data)
    return None if data == before else f"{file.name}: {kind} at {at} of {len(before)}"


def answers(index: Index) -> Answers:
    """What it says to some questions, exact and approximate, filtered and not."""
    asked: list[dict[str, Any]] = [{}, {"under": "/p/a"}, {"after": "2005", "before": "2012"}, {"approx": True}]
    queries: list[Any] = [*QUERIES, "/p/a/2.jpg", "/p/b/121.jpg"]
    found = [index.search(query, k=12, **more) for query in queries for more in asked]
    return [[(hit.path, hit.score) for hit in hits] for hits in found]


def content(index: Index) -> dict[str, Any]:
    """Everything that a store holds."""
    store = index.store
    ids = store.ids()
    rows = zip(store.rows(ids.tolist()), store.vectors(ids), strict=True)
    fields = ("size", "mtime", "sha256", "width", "height", "taken")
    pictures = {r.path: (*(getattr(r, f) for f in fields), v.tobytes()) for r, v in rows if r is not None}
    failures = {path: (f.reason, f.size, f.mtime) for path, f in store.failures().items()}
    return {"pictures": pictures, "failures": failures, "settings": store.settings()}


def judge(address: Path, said: Answers, held: dict[str, Any], in_database: bool) -> None:
    """Ask, verify, repair, salvage; an assertion says what is not as promised."""
    first = attempt(address, answers)
    assert first is None or first == said, f"a silently wrong answer: {_difference(first, said)}"
    problems = attempt(address, verify)
    if problems == []:
        assert attempt(address, content) == held, "verify finds nothing, but something is lost"
        assert first == said, "verify finds nothing, but it does not answer"
        return
    repaired = attempt(address, lambda index: verify(index, repair=True))
    after = attempt(address, content)
    if repaired is not None and all(problem.repaired for problem in repaired):
        assert attempt(address, verify) == [], f"not repaired: {attempt(address, verify)} after {repaired}"
        gone = held["pictures"].keys() - after["pictures"].keys()  # type: ignore[index]
        named = {problem.where for problem in repaired}
        assert gone <= named, f"repair lost pictures that it does not name: {sorted(gone - named)[:3]}"
        again = attempt(address, answers)
        assert again is not None or "/p/a/2.jpg" in gone or "/p/b/121.jpg" in gone, "repaired, but it does not answer"
    if after is not None:
        wrong = [path for path, row in after["pictures"].items() if held["pictures"].get(path) != row]
        left = {problem.where for problem in repaired or [] if not problem.repaired}
        assert not wrong or left, f"repaired, but these rows are wrong: {wrong[:3]}"
    if not in_database:
        return
    saved = attempt(address, lambda index: salvaged(index, address.with_name("b.crow")))
    ever = {row.path: row.vector.tobytes() for row in all_rows() if row.vector is not None}
    wrong = [path for path, (*_, vector) in (saved or {}).items() if ever.get(path) != vector]
    assert not wrong, f"salvage kept damaged rows: {wrong[:3]}"


def salvaged(index: Index, target: Path) -> dict[str, Any]:
    """The pictures of what can be saved."""
    index.store.salvage(target).close()
    with Index.open(target) as saved:
        return content(saved)["pictures"]


def attempt(address: Path, do: Callable[[Index], Any]) -> Any:
    """What comes of it; None for an error in one line that is meant for users."""
    try:
        with Index.open(address) as index:
            return do(index)
    except NAMED as error:
        assert "\n" not in str(error).strip(), f"an error of several lines: {error}"
        assert str(error).strip(), "an error without words"
        return None


def _difference(found: Answers, expected: Answers) -> str:
    """The first answer that differs."""
    number = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    kind = ("exact", "in a folder", "between dates", "approximate")[number % 4]
    a, b = found[number], expected[number]
    return f"{kind}: {len(a)} hits instead of {len(b)}, {sum(x != y for x, y in zip(a, b, strict=False))} differ"
