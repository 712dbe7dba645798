"""Index: a Store and a Searcher. A folder of photographs becomes searchable, and stays so.

Neither opening, searching by a member, nor syncing an unchanged folder imports torch: the describer is only made
when there is a picture to describe.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from crow.framework.normalize import l2
from crow.framework.reduce import Moments, Whitening
from crow.recipe import RECIPES, Recipe, recipe_named
from crow.search.matrix import Matrix, SearchError
from crow.search.nearest import Searcher
from crow.search.pace import Pace
from crow.search.query import Box, Filter, Hit, Results, combined, expanded, read_query
from crow.search.store import Store, Vectors, store_at
from crow.search.sync import Describes, Report, sync

ENOUGH = 1000  # pictures from which a collection whitens itself; fewer say too little about 128 directions
SELF_DIM = 128  # what self-whitening keeps: on real photographs CroW found best at 128 (docs/search.md)
FRESH = 10_000  # rows by which the matrix on disk may fall behind during a sync


@dataclass(frozen=True, eq=False)
class State:
    """What one generation of the index answers with."""

    generation: int
    whitening: Whitening | None
    searcher: Searcher


class Index:
    """A folder NAME.crow (or another store's address), with everything a search needs."""

    def __init__(self, store: Store, describer: Describes | None = None, **options: Any) -> None:
        settings = store.settings()
        if "recipe" not in settings:
            store.close()
            raise SearchError(f"{store.address}: this store holds no index (no recipe)")
        self.store = store
        self.recipe = Recipe.from_dict(settings["recipe"])
        self._options = {name: value for name, value in options.items() if value is not None}
        self._state: State | None = None
        self._refreshing = threading.RLock()
        self._describer = None if describer is None else self._checked(describer)

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
        policy, learned = whitening_policy(whitening)
        if recipe is None:
            recipe = (
                describer.recipe if describer else learned.recipe if learned and learned.recipe else RECIPES["crow"]
            )
        recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
        regional = options.get("regional")
        recipe = replace(recipe, regional=regional.fingerprint) if recipe.regional and regional else recipe
        check_whitening(learned, recipe)
        data = learned.to_bytes() if learned else None
        store = store_at(path).create(path, recipe=recipe.to_dict(), policy=policy, whitening=data)
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

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | Path) and bool(self.store.get([absolute(path)]))

    def paths(self) -> list[str]:
        """Where its pictures lie, in the order of the paths."""
        return sorted(self.store.stamps())

    # what makes its vectors

    @property
    def describer(self) -> Describes:
        """The one it was opened with, or one made for its recipe now."""
        if self._describer is None:
            from crow.extract.describer import Describer

            settings, options = self.store.settings(), dict(self._options)
            if settings.get("precision") == "fast":
                options.setdefault("engine", settings.get("engine"))
            if settings.get("regional"):
                options.setdefault("regional", Whitening.from_bytes(settings["regional"]))
            recipe = replace(self.recipe, regional="unfitted") if self.recipe.regional else self.recipe
            made = Describer(recipe, **options)
            self._describer = self._checked(made)
        return self._describer

    def _checked(self, describer: Describes) -> Describes:
        """The describer, refused by name where its vectors would not mix with the ones that are here."""
        if describer.recipe.key() != self.recipe.key():
            differences = "; ".join(self.recipe.differences(describer.recipe))
            raise SearchError(
                f"{self.store.address}: this index was made with {self.recipe.name}, not with {describer.recipe.name} ({differences})"
            )
        settings = self.store.settings()
        for name, what in (("weights", "network weights"), ("precision", "precision")):
            known, offered = settings.get(name), getattr(describer, name)
            if known is not None and known != offered:
                raise SearchError(f"{self.store.address}: this index was made with {what} {known}, not {offered}")
        return describer

    def _claimed(self) -> Describes:
        """The describer, and from now on the index is bound to what it is."""
        describer = self.describer
        settings = self.store.settings()
        if "weights" not in settings:
            regional = getattr(describer, "regional", None)
            more = {"regional": regional.to_bytes()} if isinstance(regional, Whitening) else {}
            engine = str(getattr(getattr(describer, "engine", None), "name", ""))
            self.store.configure(weights=describer.weights, precision=describer.precision, engine=engine, **more)
        return self._checked(describer)

    # keeping it up to date

    def sync(
        self,
        *folders: str | Path,
        keep_missing: bool = False,
        prune: bool = False,
        progress: Callable[[Pace], None] | None = None,
    ) -> Report:
        """Follow the folders (none: the ones it followed before): adds, updates, moves, removes; says what it did."""
        with self.store.writer():
            before = self.store.settings().get("folders", [])
            wanted = outermost([absolute(folder) for folder in folders]) or before
            if not wanted:
                raise SearchError(f"{self.store.address}: no folder was ever given to this index; name one")
            report = sync(self.store, wanted, self._claimed, keep_missing, prune, self._following(progress))
            after = outermost([*before, *wanted])
            if after != before:
                self.store.configure(folders=after)
            notes = [*report.notes, *self._whiten_by_policy(), *self.save_matrix()]
        return replace(report, notes=tuple(notes))

    def watch(
        self, *folders: str | Path, stop: threading.Event | None = None, **options: Any
    ) -> Iterator[Report | str]:
        """Sync, and again whenever something changes below the folders, until `stop`; a sync that stops says why."""
        try:
            from watchfiles import watch
        except ImportError:
            raise SearchError("following a folder needs the extra 'watch': pip install 'crow-search[watch]'") from None
        yield self.sync(*folders, **options)
        for _ in watch(
            *self.store.settings()["folders"], stop_event=stop, debounce=2000, ignore_permission_denied=True
        ):
            try:
                yield self.sync(*folders, **options)
            except ValueError as error:
                yield str(error)

    def _following(self, progress: Callable[[Pace], None] | None) -> Callable[[Pace], None]:
        """The caller's progress, with the matrix kept fresh on the way for those who search meanwhile."""
        due = FRESH

        def follow(pace: Pace) -> None:
            nonlocal due
            if pace.done >= due:
                due = pace.done + FRESH
                self.save_matrix()
            if progress:
                progress(pace)

        return follow

    def save_matrix(self) -> list[str]:
        """Write the derived matrix for all readers; that it cannot be written is only worth a note."""
        folder = matrix_folder(self.store)
        if folder is None or not len(self):
            return []
        try:
            with self.store.writer():
                state = self._refresh(folder)
                if (
                    any(not segment.name for segment in state.searcher.matrix.segments)
                    or Matrix.load(folder, state.searcher.matrix.key, state.searcher.matrix.dim).generation
                    != state.generation
                ):
                    self._state = replace(state, searcher=Searcher(state.searcher.matrix.save(folder)))
        except OSError as error:
            return [
                f"{folder}: the matrix could not be written ({error.strerror}); searches still work, but start slower"
            ]
        return []

    # whitening

    @property
    def whitening(self) -> Whitening | None:
        """What its vectors are reduced with now."""
        data = self.store.settings().get("whitening")
        return Whitening.from_bytes(data) if data else None

    def rewhiten(self, dim: int | None = None, to: Whitening | str | Path | None = None) -> Whitening | None:
        """Whiten anew from the raw vectors, without extraction: learned from itself, another one, or "none".

        Without `to` it stays what it was: a whitening from elsewhere is cut to `dim`, else one is learned here.
        """
        with self.store.writer():
            policy, learned = whitening_policy(to)
            if to is None and self.store.settings().get("policy") == "file":
                policy, learned = "file", self.whitening
            if policy in ("auto", "self"):
                policy, learned = "self", self._learned(dim)
            learned = learned.to_dim(dim) if learned and dim else learned
            check_whitening(learned, self.recipe)
            self.store.configure(policy=policy, whitening=learned.to_bytes() if learned else None)
            self.save_matrix()
        return learned

    def _learned(self, dim: int | None) -> Whitening:
        """A whitening learned from the index itself."""
        moments = Moments()
        with self.store.snapshot():
            for _, vectors in self.store.chunks():
                moments = moments.add(vectors)
        if moments.count < 2:
            raise SearchError(f"{self.store.address}: a whitening is learned from at least 2 pictures")
        source = f"the {moments.count} pictures of the index itself"
        learned = Whitening.from_moments(moments, dim, self.recipe, source=source)
        return learned if dim else learned.to_dim(min(SELF_DIM, learned.dim))

    def _whiten_by_policy(self) -> list[str]:
        """After a sync: whiten where it is time for it, and say so aloud."""
        settings, count = self.store.settings(), len(self)
        if settings.get("whitening") or settings["policy"] not in ("auto", "self"):
            return []
        if count < (ENOUGH if settings["policy"] == "auto" else 2):
            return (
                [f"no whitening below {ENOUGH:,} pictures; `--whiten FILE` uses one learned elsewhere"] if count else []
            )
        learned = self.rewhiten(to="self")
        assert learned is not None
        return [
            f"whitened with what {count:,} pictures of the index itself teach, {learned.dim} dimensions;"
            " scores from before do not compare with scores from now on"
        ]

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
    ) -> Results:
        """The k pictures most like the query: a path, a member, a picture, a raw vector (K,), or a list of those.

        `box` is a region of the query in pixels of the upright original; `expand` is the paper's query expansion by
        the top so many, `alpha` weighs them by score ** alpha and keeps the query; dates are after <= taken < before.
        """
        if k < 1 or expand < 0:
            raise SearchError(f"k is at least 1 and expand at least 0, not {k} and {expand}")
        wanted = Filter.of(absolute(under) if under is not None else None, after, before)
        raw = read_query(query, box, self._members, lambda: self.describer)
        if not len(self):
            return Results()
        with self.reading() as state:
            vector = combined(self.reduced(state.whitening, raw))
            allowed = self.store.ids(wanted.under, wanted.after, wanted.before) if wanted else None
            vector = expanded(state.searcher, vector, expand, alpha, allowed) if expand else vector
            found = state.searcher.search(vector, k, allowed)
            rows = self.store.rows(found.ids.tolist())
        hits = [
            Hit.of(row, float(score), state.searcher)
            for row, score in zip(rows, found.scores, strict=True)
            if row is not None and (min_score is None or score >= min_score)
        ]
        return Results(hits, vector=vector)

    def vectors(self, paths: Sequence[str | Path]) -> Vectors:
        """(n, d) the vectors that searches compare, of members of the index."""
        rows = self._members([absolute(path) for path in paths])
        missing = next((str(p) for p, row in zip(paths, rows, strict=True) if row is None), None)
        if missing is not None:
            raise SearchError(f"{missing}: not in this index")
        return self.reduced(self.whitening, np.stack([row for row in rows if row is not None]))

    def _members(self, paths: Sequence[str]) -> list[Vectors | None]:
        keys = [absolute(path) for path in paths]
        found = self.store.get(keys, vectors=True) | self.store.get(paths, vectors=True)
        return [row.vector if (row := found.get(a) or found.get(b)) else None for a, b in zip(keys, paths, strict=True)]

    @staticmethod
    def reduced(whitening: Whitening | None, raw: Vectors) -> Vectors:
        """(n, K) -> (n, d): whitened, or of length 1 where there is no whitening."""
        reduced: Vectors = whitening.apply(raw) if whitening else l2(np.asarray(raw, np.float32))
        return reduced

    def forget_state(self) -> None:
        """Start the next search from what lies on disk."""
        self._state = None

    @contextmanager
    def reading(self) -> Iterator[State]:
        """The state of the newest generation, and the store as it was then, for as long as this is held."""
        while True:
            state = self._state
            if state is None or state.generation != self.store.generation:
                state = self._refresh()
            with self.store.snapshot():
                if self.store.generation == state.generation:
                    yield state
                    return

    def _refresh(self, folder: Path | None = None) -> State:
        """Catch up with the store, from memory or from the matrix on disk, whichever is newer."""
        place = matrix_folder(self.store)
        with self._refreshing:
            while (state := self._caught_up(place, folder)) is None:
                pass  # re-whitened in between
            self._state = state
        return state

    def _caught_up(self, place: Path | None, folder: Path | None) -> State | None:
        key, dim, _ = self.identity()
        matrix = Matrix.load(place, key, dim) if place else Matrix(key, 0, dim)
        old = self._state
        if old and old.searcher.matrix.key == key and old.generation >= matrix.generation:
            matrix = old.searcher.matrix
        with self.store.snapshot():
            again, _, whitening = self.identity()
            if again != key:
                return None
            newer = matrix.catch_up(self.store, partial(self.reduced, whitening), folder)
        if old and newer is old.searcher.matrix:
            return old
        return State(newer.generation, whitening, Searcher(newer))

    def identity(self) -> tuple[str, int, Whitening | None]:
        """The name of the matrix, its dimension, and the whitening that makes it."""
        settings = self.store.settings()
        data = settings.get("whitening")
        whitening = Whitening.from_bytes(data) if data else None
        key = f"{settings.get('uuid', self.store.address)} {whitening.fingerprint if whitening else 'none'}"
        return key, whitening.dim if whitening else int(settings.get("dim") or 0), whitening


def absolute(path: str | Path) -> str:
    """The path as the store knows it: absolute, links left as they are; an address stays one."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def outermost(folders: Sequence[str]) -> list[str]:
    """The folders without those that lie in another of them, sorted."""
    from crow.search.sync import inside

    return sorted({f for f in folders if not any(inside(f, [g]) for g in folders if g != f)})


def matrix_folder(store: Store) -> Path | None:
    """Where the derived matrix of a store lies: in its folder, if it is one."""
    return None if "://" in store.address else Path(store.address) / "matrix"


def whitening_policy(whitening: Whitening | str | Path | None) -> tuple[str, Whitening | None]:
    """("auto" | "self" | "none" | "file", the whitening itself where it is known)."""
    if whitening is None or whitening in ("self", "none", "auto"):
        return str(whitening or "auto"), None
    return "file", whitening if isinstance(whitening, Whitening) else Whitening.load(Path(whitening))


def check_whitening(whitening: Whitening | None, recipe: Recipe) -> None:
    """Refuse a whitening learned on other vectors, by name; another picture size alone is worth a warning."""
    if whitening is None or whitening.recipe is None:
        return
    differences = whitening.recipe.differences(recipe)
    serious = [d for d in differences if not d.startswith("view.size.")]
    if serious:
        raise SearchError(
            f"this whitening was learned on {whitening.recipe.name} vectors, the index holds {recipe.name} ({'; '.join(serious)})"
        )
    if differences:
        warnings.warn(f"the whitening was learned at another picture size ({'; '.join(differences)})", stacklevel=3)
