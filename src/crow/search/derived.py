"""Derived: the matrix and the searcher over a store, always of its newest generation; all of it may be thrown away."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from crow.files import sync
from crow.framework.normalize import l2
from crow.framework.reduce import Whitening
from crow.search import approximate
from crow.search.approximate import Approximate
from crow.search.chance import Background
from crow.search.matrix import Matrix, SearchError
from crow.search.nearest import Found, Searcher
from crow.search.query import Filter
from crow.search.store import Changes, Ids, Store, StoreError, Vectors


@dataclass(frozen=True, eq=False)
class State:
    """What one generation of the index answers with."""

    generation: int
    whitening: Whitening | None
    searcher: Searcher
    derived: Derived

    @property
    def matrix(self) -> Matrix:
        """What the searcher looks at."""
        return self.searcher.matrix

    def __len__(self) -> int:
        return len(self.matrix)

    def vectors(self, ids: Ids) -> Vectors:
        """(n,) -> (n, d): the rows of these ids."""
        return self.matrix.vectors(ids)

    def background(self) -> Background:
        """What unrelated pictures score here."""
        return self.derived.background(self)

    def finder(self, wanted: Filter | None, approx: bool | None) -> Callable[[Vectors, int], Found]:
        """The search under a filter: exact, or approximate if that was asked for or the collection is very large."""
        store = self.derived.store
        allowed = store.ids(wanted.under, wanted.after, wanted.before) if wanted else None
        approx = approx and allowed is None
        if approx or (approx is None and len(self) >= approximate.FROM):
            quick = self.derived.quick(self)
            if quick is not None:
                return partial(quick.search, allowed=allowed, approximate=True)
            if approx:
                raise SearchError(f"{store.address}: no approximate search was built (crow index --approx)")
        return partial(self.searcher.search, allowed=allowed)


class Kept(Store, Protocol):
    """A store that remembers which ids came and went, so that files beside it can follow."""

    def changes(self, since: int) -> Changes:
        """Which ids came and went after generation `since`."""


class Derived:
    """Follows a store: from memory, from what lies in its folder, or from its raw vectors, whichever is newest."""

    def __init__(self, store: Kept) -> None:
        self.store = store
        self.folder = None if "://" in store.address else Path(store.address) / "matrix"
        self._state: State | None = None
        self._proposals: Approximate | None = None
        self._background: tuple[str, int, Background] | None = None
        self._one = threading.RLock()  # catches up at a time

    @contextmanager
    def reading(self) -> Iterator[State]:
        """The state of the newest generation, and the store as it was then, for as long as this is held."""
        while True:
            state = self._state
            if state is None or state.generation != self.store.generation:
                state = self.refresh()
            with self.store.snapshot():
                if self.store.generation == state.generation:
                    yield state
                    return

    def refresh(self, folder: Path | None = None) -> State:
        """Catch up with the store; with a folder, full segments are written to it on the way."""
        with self._one:
            while (state := self._caught_up(folder)) is None:
                pass  # re-whitened in between
            self._state = state
        return state

    def _caught_up(self, folder: Path | None) -> State | None:
        key, dim, _ = self.identity()
        old, saved = self._state, Matrix.saved(self.folder) if self.folder else ("", 0)
        known = old.matrix if old else None
        matrix = Matrix.load(self.folder, key, dim, known) if self.folder else Matrix(key, 0, dim)
        if old and old.matrix.key == key and old.generation >= matrix.generation:
            matrix = old.matrix
        with self.store.snapshot():
            again, _, whitening = self.identity()
            if again != key:
                return None
            if lost := self._lost(*saved):
                raise StoreError(f"{self.store.address}: {lost}; crow verify --repair goes on with what is left")
            newer = matrix.catch_up(self.store, partial(reduced, whitening), folder)
        return old if old and newer is old.matrix else State(newer.generation, whitening, Searcher(newer), self)

    def lost(self) -> str:
        """Whether commits that the saved matrix has seen are gone from the store, in words."""
        return self._lost(*Matrix.saved(self.folder)) if self.folder else ""

    def _lost(self, key: str, generation: int) -> str:
        now, uuid = self.store.generation, self.store.settings().get("uuid")
        if not uuid or key.split(" ")[0] != uuid or generation <= now:
            return ""
        return f"the matrix is of generation {generation}, the store of {now}: the last commits are lost"

    def identity(self) -> tuple[str, int, Whitening | None]:
        """The name of the matrix, its dimension, and the whitening that makes it."""
        settings = self.store.settings()
        data = settings.get("whitening")
        whitening = Whitening.from_bytes(data) if data else None
        dim = whitening.dim if whitening else int(settings.get("dim") or 0)  # 0: there was never a picture
        key = f"{settings.get('uuid', self.store.address)} {whitening.fingerprint if whitening else 'none'} {dim}"
        return key, dim, whitening

    def save(self) -> list[str]:
        """Write the matrix for all readers; that it cannot be written is only worth a note."""
        if self.folder is None or not len(self.store):
            return []
        try:
            with self.store.writer(), self._one:
                state = self.refresh(self.folder)
                saved = Matrix.load(self.folder, state.matrix.key, state.matrix.dim, state.matrix)
                if saved.generation != state.generation:
                    self._state = replace(state, searcher=Searcher(state.matrix.save(self.folder)))
        except OSError as error:
            return [f"{self.folder}: cannot be written ({error.strerror}); searches still work, but start slower"]
        return []

    def forget(self) -> None:
        """Start the next search from what lies on disk."""
        self._state = self._proposals = self._background = None

    def quick(self, state: State) -> Searcher | None:
        """A searcher that can be approximate over the same matrix; None where none was built."""
        with self._one:
            if self._proposals is None or self._proposals.key != state.matrix.key:
                self._proposals = Approximate.load(self.folder, state.matrix.key) if self.folder else None
            if self._proposals is None or state.searcher.proposals is self._proposals:
                return state.searcher if self._proposals else None
            searcher = Searcher(state.matrix, proposals=self._proposals)
            if self._state is state:
                self._state = replace(state, searcher=searcher)
            return searcher

    def background(self, state: State) -> Background:
        """What unrelated pictures score here; worked out again when a twentieth of the collection came or went."""
        key, count, known = self._background or ("", 0, None)
        if known is None or key != state.matrix.key or abs(len(state.matrix) - count) > count / 20:
            known = state.searcher.background
            self._background = state.matrix.key, len(state.matrix), known
        return known

    def problems(self) -> Iterator[str]:
        """Where the files differ from what was written or from what the store says; missing or behind is no problem."""
        if self.folder is None or not self.folder.is_dir() or not len(self.store):
            return
        found = [*Matrix.problems(self.folder), *Approximate.problems(self.folder)]
        yield from found
        key, dim, whitening = self.identity()
        matrix = Matrix.load(self.folder, key, dim)
        with self.store.snapshot():
            if not found and matrix.generation and matrix.generation == self.store.generation:
                yield from self._compared(matrix, whitening)

    def _compared(self, matrix: Matrix, whitening: Whitening | None) -> Iterator[str]:
        """Where a matrix is not what the store gives now."""
        if not np.array_equal(matrix.ids, self.store.ids()):
            yield f"the matrix holds {len(matrix):,} pictures, the store {len(self.store):,}, or not the same ones"
            return
        wrong = 0
        for ids, raw in self.store.chunks():
            expected = reduced(whitening, raw).astype(np.float16)
            wrong += int((expected.astype(np.float32) != matrix.vectors(ids)).any(axis=1).sum())
        if wrong:
            yield f"{wrong:,} rows of the matrix are not what the store holds"

    def repair(self) -> None:
        """Throw everything away, and derive it anew."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            sync(self.folder.parent)
            self.forget()
            self.save()
            self.build()

    def refuse(self, kind: str) -> None:
        """Refuse a kind of approximate index that is not known here."""
        if kind not in approximate.KINDS:
            raise SearchError(f"no approximate index named {kind!r}; there are: {', '.join(approximate.KINDS)}")

    def build(self) -> list[str]:
        """Build the approximate index where the collection is large enough or it was asked for, and it is due."""
        kind = self.store.settings().get("approximate")
        count = len(self.store)
        if self.folder is None or count < approximate.LEAST or not (kind or count >= approximate.FROM):
            return []
        matrix = self.refresh().matrix
        made = Approximate.load(self.folder, matrix.key)
        if made is not None and made.kind == (kind or made.kind) and not made.is_stale(matrix):
            return []
        made = approximate.build(matrix, kind or "ivf-pq")
        try:
            made.save(self.folder)
        except OSError as error:
            return [f"{self.folder}: cannot be written ({error.strerror}); there is no approximate search"]
        self._proposals = None
        return [
            f"approximate search built over {len(made.ids):,} pictures ({made.kind}); measured recall@10 {made.recall:.3f}"
        ]


def reduced(whitening: Whitening | None, raw: Vectors) -> Vectors:
    """(n, K) -> (n, d): whitened, or of length 1 where there is no whitening."""
    vectors: Vectors = whitening.apply(raw) if whitening else l2(np.asarray(raw, np.float32))
    return vectors
