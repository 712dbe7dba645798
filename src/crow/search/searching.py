"""Searching: what an `Index` asks of whatever answers over its store, be it files beside it or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crow.framework.reduce import Whitening
from crow.search.chance import Background
from crow.search.store import Ids, Vectors

if TYPE_CHECKING:
    from crow.search.nearest import Found
    from crow.search.query import Filter


class Searched(Protocol):
    """The vectors that one search is answered from."""

    @property
    def whitening(self) -> Whitening | None:
        """What they were reduced with."""

    def __len__(self) -> int:
        """How many."""

    def finder(self, wanted: Filter | None, approx: bool | None) -> Callable[[Vectors, int], Found]:
        """The search (d,), k -> the nearest that pass the filter; `approx` None lets the size of the collection decide."""

    def vectors(self, ids: Ids) -> Vectors:
        """(n,) -> (n, d): the vectors with these ids."""

    def background(self) -> Background:
        """What unrelated pictures score here."""


class Searching(Protocol):
    """Answers searches, and cares for what it derived from the store to do so."""

    folder: Path | None  # where files lie that were derived, if any

    def reading(self) -> AbstractContextManager[Searched]:
        """What is searched now, for as long as this is held."""

    def save(self) -> list[str]:
        """Bring what was derived to what the store holds and asks for, for all readers; notes worth telling."""

    def build(self) -> list[str]:
        """Build the approximate index where it is due; notes worth telling."""

    def lost(self) -> str:
        """What is known to be gone from the store, in words; nothing where it looks after that itself."""
        ...

    def problems(self) -> Iterator[str]:
        """Where what was derived differs from what the store says."""

    def repair(self) -> None:
        """Derive it anew."""

    def forget(self) -> None:
        """Start the next search from what lies on disk or on the server."""

    def refuse(self, kind: str) -> None:
        """Refuse a kind of approximate index that is not known here."""
