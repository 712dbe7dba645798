"""Index: a Store and a Searcher. A folder of photographs becomes searchable, and stays so.

Neither opening, searching by a member, nor syncing an unchanged folder imports torch: the describer is only made
when there is a picture to describe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from crow.framework.reduce import Moments, Whitening
from crow.recipe import RECIPES, Recipe, recipe_named
from crow.search import expand as expansion
from crow.search import policy
from crow.search.derived import reduced
from crow.search.maker import Maker
from crow.search.matrix import SearchError
from crow.search.nearest import Found, cosines
from crow.search.pace import Pace
from crow.search.policy import check_whitening, learned_from, moments_of, whitening_policy
from crow.search.query import Box, Filter, Results, combined, hits_of, read_query
from crow.search.store import Store, StoreMoved, Vectors, store_at
from crow.search.sync import sync
from crow.search.telling import Telling
from crow.search.watch import changes
from crow.search.work import Describes, Report, inside

JUDGED = 50  # results that are looked at to say where matches end, however few are asked for
FRESH = 10_000  # rows by which the matrix on disk may fall behind during a sync


class Index:
    """A folder NAME.crow (or another store's address), with everything a search needs."""

    def __init__(self, store: Store, describer: Describes | None = None, **options: Any) -> None:
        settings = store.settings()
        if "recipe" not in settings:
            store.close()
            raise SearchError(f"{store.address}: this store holds no index (no recipe)")
        self.store = store
        self.recipe = Recipe.from_dict(settings["recipe"])
        self.derived = store.searching()
        self.maker = Maker(store, self.recipe, describer, options)

    @classmethod
    def create(
        cls,
        path: str | Path,
        recipe: Recipe | str | None = None,
        whitening: Whitening | str | Path | None = None,
        describer: Describes | None = None,
        **options: Any,
    ) -> Self:
        """A new, empty index. `whitening`: one that was learned, its file, "self", "none", or None to decide later.

        Without a describer one is made when it is needed, with the options (engine, device, ...) of Describer.
        """
        how, learned = whitening_policy(whitening)
        if recipe is None:
            recipe = (
                describer.recipe if describer else learned.recipe if learned and learned.recipe else RECIPES["crow"]
            )
        recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
        regional = options.get("regional")
        recipe = replace(recipe, regional=regional.fingerprint) if recipe.regional and regional else recipe
        check_whitening(learned, recipe)
        data = learned.to_bytes() if learned else None
        store = store_at(path).create(path, recipe=recipe.to_dict(), policy=how, whitening=data)
        return cls(store, describer, **options)

    @classmethod
    def open(cls, path: str | Path, describer: Describes | None = None, **options: Any) -> Self:
        """The index that is there."""
        return cls(store_at(path).open(path), describer, **options)

    def close(self) -> None:
        """Let go of everything."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"Index({self.store.address}, {self.recipe.name}, {len(self):,} pictures)"

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | Path) and bool(self.store.get([absolute(path)]))

    def paths(self) -> list[str]:
        """Where its pictures lie, in the order of the paths."""
        return sorted(self.store.stamps())

    @property
    def describer(self) -> Describes:
        """The one it was opened with, or one made for its recipe now."""
        return self.maker.describer

    # keeping it up to date

    def sync(
        self,
        *folders: str | Path,
        keep_missing: bool = False,
        prune: bool = False,
        progress: Callable[[Pace], None] | None = None,
    ) -> Report:
        """Follow the folders (none: the ones it followed before): adds, updates, moves, removes; says what it did."""
        with self.store.writer(), Telling(self.store.address) as telling:
            before = self.store.settings().get("folders", [])
            wanted = outermost([absolute(folder) for folder in folders]) or before
            if not wanted:
                raise SearchError(f"{self.store.address}: no folder was ever given to this index; name one")
            after = outermost([*before, *(folder for folder in wanted if Path(folder).exists())])
            if after != before:  # first, so that a sync that is cut off is gone on with
                self.store.configure(folders=after)
            report = sync(
                self.store, wanted, self.maker.claimed, keep_missing, prune, self._following(telling, progress)
            )
            notes = self.settle(report)
        return replace(report, notes=(*notes, *self.derived.build()))

    def settle(self, report: Report, moments: Callable[[Store], Moments] = moments_of) -> list[str]:
        """After pictures came: whiten where it is time for it, and bring what is searched up to date; what to tell."""
        return [*report.notes, *self._whiten_by_policy(report, moments), *self.derived.save()]

    def watch(
        self, *folders: str | Path, stop: threading.Event | None = None, **options: Any
    ) -> Iterator[Report | str]:
        """Sync, and again whenever something changes below the folders, until `stop`; a sync that stops says why."""
        yield self.sync(*folders, **options)
        for _ in changes(self.store.settings()["folders"], absolute(self.store.address), stop):
            try:
                report = self.sync(*folders, **options)
                if replace(report, unchanged=0, skipped=0, missing=0, seconds=0) != Report():
                    yield report
            except ValueError as error:
                yield str(error)

    def _following(self, telling: Telling, progress: Callable[[Pace], None] | None) -> Callable[[Pace], None]:
        """Telling, and the caller's progress, with the matrix kept fresh on the way for those who search meanwhile."""
        due = FRESH

        def follow(pace: Pace) -> None:
            nonlocal due
            if pace.done >= due:
                due = pace.done + FRESH
                self.derived.save()
            telling(pace)
            if progress:
                progress(pace)

        return follow

    # whitening

    @property
    def whitening(self) -> Whitening | None:
        """What its vectors are reduced with now."""
        data = self.store.settings().get("whitening")
        return Whitening.from_bytes(data) if data else None

    def rewhiten(
        self,
        dim: int | None = None,
        to: Whitening | str | Path | None = None,
        moments: Callable[[Store], Moments] = moments_of,
    ) -> Whitening | None:
        """Whiten anew from the raw vectors, without extraction: learned from itself, another one, or "none".

        Without `to` it stays what it was: a whitening from elsewhere is cut to `dim`, else one is learned here.
        """
        with self.store.writer():
            how, learned = whitening_policy(to)
            if to is None and self.store.settings().get("policy") == "file":
                how, learned = "file", self.whitening
            if how in ("auto", "self"):
                how, learned = "self", learned_from(moments(self.store), self.store.address, self.recipe, dim)
            learned = learned.to_dim(dim) if learned and dim else learned
            check_whitening(learned, self.recipe)
            data, settings = learned.to_bytes() if learned else None, self.store.settings()
            if (settings.get("policy"), settings.get("whitening")) != (how, data):
                self.store.configure(policy=how, whitening=data)
            self.derived.save()
        return learned

    def _whiten_by_policy(self, report: Report, moments: Callable[[Store], Moments]) -> list[str]:
        """After a sync: whiten where it is time for it, and say so aloud."""
        settings, count = self.store.settings(), len(self)
        if settings.get("whitening") or settings["policy"] not in ("auto", "self"):
            return []
        if count < (policy.ENOUGH if settings["policy"] == "auto" else 2):
            hint = f"no whitening below {policy.ENOUGH:,} pictures; --whiten FILE uses one learned elsewhere"
            return [hint] if report.added else []
        learned = self.rewhiten(to="self", moments=moments)
        assert learned is not None
        return [
            f"whitened with what {count:,} pictures of the index itself teach, {learned.dim} dimensions;"
            " scores from before do not compare with scores from now on"
        ]

    def approximate(self, kind: str) -> None:
        """From the next sync on keep an approximate index of this kind, whatever the size of the collection."""
        self.derived.refuse(kind)
        if self.store.settings().get("approximate") != kind:
            self.store.configure(approximate=kind)

    def save_matrix(self) -> list[str]:
        """Write what was derived for all readers; notes where that did not work."""
        return self.derived.save()

    # searching

    def search(
        self,
        query: Any,
        k: int = 10,
        box: Box | None = None,
        expand: int = 0,
        alpha: float | None = None,
        under: str | Path | None = None,
        after: str | None = None,
        before: str | None = None,
        min_score: float | None = None,
        expansion_kind: str | None = None,
        approx: bool | None = None,
    ) -> Results:
        """The k pictures most like the query: a path, a member, a picture, a raw vector (K,), or a list of those.

        `box` is a region of the query in pixels of the upright original; `expand` is query expansion by the top so
        many, the paper's unless `alpha` (weights score ** alpha, the query kept) or a kind of EXPANSIONS says
        otherwise; dates are after <= taken < before; `approx` None is exact below a million pictures.
        """
        kind = expansion_kind or ("sum" if alpha is None else "alpha")
        alpha = expansion.ALPHA if alpha is None else alpha
        if k < 1 or expand < 0:
            raise SearchError(f"k is at least 1 and expand at least 0, not {k} and {expand}")
        wanted = Filter.of(absolute(under) if under is not None else None, after, before)
        for last in (False, False, True):
            try:
                raw = read_query(query, box, self._members, lambda: self.describer)
                return self._answer(raw, k, expand, kind, alpha, wanted, min_score, approx)
            except StoreMoved:  # whitened anew in between
                if last:
                    raise
        raise AssertionError

    def _answer(
        self,
        raw: Vectors,
        k: int,
        expand: int,
        kind: str,
        alpha: float,
        wanted: Filter | None,
        min_score: float | None,
        approx: bool | None,
    ) -> Results:
        """The results for the raw vectors (m, K) of a query."""
        with self.derived.reading() as state:
            if not len(state):
                return Results()
            vector = asked = combined(reduced(state.whitening, raw))
            find = state.finder(wanted, approx)
            nearest = find(asked, max(k, expand, JUDGED))
            found, plain = Found(nearest.ids[:k], nearest.scores[:k]), nearest.scores[:k]
            if expand:  # an expanded query holds pictures that it found: only the plain one's scores tell chance
                vector = expansion.expand(asked, state.vectors(nearest.ids[:expand]), kind, alpha)
                found = find(vector, k)
                plain = cosines(state.vectors(found.ids), asked)
            rows = self.store.rows(found.ids.tolist())
            background = state.background()
        line = background.line_among(nearest.scores)
        hits = hits_of(rows, np.minimum(found.scores, 1.0), background.chances(plain), ~(plain < line))
        return Results([hit for hit in hits if min_score is None or hit.score >= min_score], vector, line)

    def vectors(self, paths: Sequence[str | Path]) -> Vectors:
        """(n, d) the vectors that searches compare, of members of the index."""
        rows = self._members([absolute(path) for path in paths])
        missing = next((str(p) for p, row in zip(paths, rows, strict=True) if row is None), None)
        if missing is not None:
            raise SearchError(f"{missing}: not in this index")
        return reduced(self.whitening, np.stack([row for row in rows if row is not None]))

    def _members(self, paths: Sequence[str]) -> list[Vectors | None]:
        keys = [absolute(path) for path in paths]
        found = self.store.get(keys, vectors=True) | self.store.get(paths, vectors=True)
        return [row.vector if (row := found.get(a) or found.get(b)) else None for a, b in zip(keys, paths, strict=True)]


def absolute(path: str | Path) -> str:
    """The path as the store knows it: absolute, links left as they are; an address stays one."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def outermost(folders: Sequence[str]) -> list[str]:
    """The folders without those that lie in another of them, sorted."""
    wanted = set(folders)
    return sorted(f for f in wanted if f == "/" or not inside(os.path.dirname(f), wanted))  # noqa: PTH120
