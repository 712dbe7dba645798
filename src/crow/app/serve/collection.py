"""The index as the server sees it: searches by what an address can name, in pages, always at the newest generation."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.app.serve.problems import Problem
from crow.search.index import Index
from crow.search.store import Row

STEPS = (200, 1000, 4000, 10_000)  # how many hits are fetched at a time as one scrolls; nobody scrolls past the last
ANSWERS = 32  # searches whose hits are kept for the next page
FOLDERS = 2000  # folders that are offered as a filter
BOX = re.compile(r"^-?[0-9]{1,9}(\.[0-9]{1,9})?(,-?[0-9]{1,9}(\.[0-9]{1,9})?){3}$")


@dataclass(frozen=True)
class Wish:
    """A search as it stands in an address."""

    q: tuple[str, ...]  # ids of members, or of uploads ("u...")
    box: tuple[float, ...] | None = None  # of the first of them
    expand: int = 0
    under: str | None = None
    after: str | None = None
    before: str | None = None
    min_score: float | None = None


class Collection:
    """What the routes ask of an index; every method may be called from any thread."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._answers: OrderedDict[tuple[Any, ...], list[dict[str, Any]]] = OrderedDict()
        self._folders: tuple[int, float, list[dict[str, Any]]] | None = None
        self._lock = threading.Lock()

    def row(self, number: int, vectors: bool = False) -> Row:
        """The picture with an id."""
        row = self.index.store.rows([number], vectors)[0]
        if row is None:
            raise Problem(404, f"no picture with the id {number} in this index")
        return row

    def search(self, wish: Wish, queries: list[NDArray[Any]], offset: int, k: int) -> dict[str, Any]:
        """The hits from `offset`, the best first; members that are the query itself are left out."""
        own = {int(q) for q in wish.q if not q.startswith("u")} if wish.box is None else set()
        wanted = next((step for step in STEPS if step >= offset + k), STEPS[-1])
        hits = self._hits(wish, queries, wanted + len(own))
        hits = [hit for hit in hits if hit["id"] not in own][:wanted]
        matches = sum(hit["match"] for hit in hits)
        return {
            "hits": hits[offset : offset + k],
            "offset": offset,
            "more": offset + k < min(len(hits), STEPS[-1]) or (len(hits) == wanted and wanted < STEPS[-1]),
            "total": max(self._count(wish) - len(own), 0),
            "matches": matches if matches < len(hits) or len(hits) < wanted else None,
            "generation": self.index.store.generation,
        }

    def _hits(self, wish: Wish, queries: list[NDArray[Any]], k: int) -> list[dict[str, Any]]:
        generation = self.index.store.generation
        with self._lock:
            known = self._answers.get((wish, k, generation))
        if known is not None:
            return known
        found = self.index.search(
            np.stack(queries) if len(queries) > 1 else queries[0],
            k=k,
            expand=wish.expand,
            under=wish.under,
            after=wish.after,
            before=wish.before,
            min_score=wish.min_score,
        )
        rows = self.index.store.get(hit.path for hit in found)
        hits = [_hit(rows[hit.path], hit) for hit in found if hit.path in rows]
        with self._lock:
            self._answers[wish, k, generation] = hits
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        return hits

    def _count(self, wish: Wish) -> int:
        """How many pictures the filters leave."""
        if wish.under or wish.after or wish.before:
            return len(self.index.store.ids(wish.under, wish.after, wish.before))
        return len(self.index)

    def browse(self, wish: Wish, offset: int, k: int) -> dict[str, Any]:
        """The pictures themselves, the newest in the index first."""
        store = self.index.store
        with store.snapshot():
            ids = store.ids(wish.under, wish.after, wish.before)[::-1]
            rows = store.rows(ids[offset : offset + k].tolist())
            generation = store.generation
        hits = [facts(row) | {"score": None, "chance": None, "match": True} for row in rows if row is not None]
        more = offset + k < len(ids)
        return {
            "hits": hits,
            "offset": offset,
            "more": more,
            "total": len(ids),
            "matches": None,
            "generation": generation,
        }

    def folders(self) -> list[dict[str, Any]]:
        """The folders that hold pictures, with how many; counted anew at most every ten seconds."""
        generation, now = self.index.store.generation, time.monotonic()
        known = self._folders
        if known and (known[0] == generation or now - known[1] < 10):
            return known[2]
        counts = Counter(os.path.dirname(path) for path in self.index.store.stamps())  # noqa: PTH120
        folders = [{"path": printable(path), "pictures": count} for path, count in sorted(counts.items())][:FOLDERS]
        self._folders = generation, now, folders
        return folders

    def info(self) -> dict[str, Any]:
        """What the index is: its recipe, its whitening, its size."""
        recipe, settings = self.index.recipe, self.index.store.settings()
        whitening = self.index.whitening
        return {
            "name": PurePath(self.index.store.address).name,
            "recipe": recipe.name,
            "network": recipe.view.network,
            "size": str(recipe.view.size),
            "dim": whitening.dim if whitening else int(settings.get("dim") or 0),
            "whitened": bool(whitening and whitening.whitened),
            "pictures": len(self.index),
            "folders": [printable(folder) for folder in settings.get("folders", [])],
        }

    def failures(self, offset: int, k: int) -> dict[str, Any]:
        """The files that gave no vector, and why."""
        failures = list(self.index.store.failures().values())
        shown = [{"path": printable(f.path), "reason": f.reason} for f in failures[offset : offset + k]]
        return {"failures": shown, "offset": offset, "total": len(failures)}


def parse_box(text: str | None) -> tuple[float, ...] | None:
    """`xmin,ymin,xmax,ymax` as numbers."""
    if text is None:
        return None
    return tuple(map(float, text.split(",")))


def printable(path: str) -> str:
    """A path as text for people; bytes of no encoding become question marks."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def facts(row: Row) -> dict[str, Any]:
    """What is known of a picture."""
    path = printable(row.path)
    name = path.rpartition("/")[2] or path
    return {"id": row.id, "path": path, "name": name, "width": row.width, "height": row.height, "taken": row.taken}


def _hit(row: Row, hit: Any) -> dict[str, Any]:
    chance = None if math.isnan(hit.chance) else float(hit.chance)
    return facts(row) | {"score": float(hit.score), "chance": chance, "match": bool(hit.match)}
