"""Store: what is kept of every picture, and kept safe. The protocol, the plain records, and the known stores.

An id names one vector for ever: a picture that changed gets a new id, a picture that only moved keeps its own.
So whatever is derived from a store (the matrix, an approximate index) only ever adds and removes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crow.search.searching import Searching

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]


class StoreError(ValueError):
    """A store that cannot be made, read or written, with the reason."""


class StoreBusy(StoreError):
    """Another process is writing; the message names it."""


class StoreMoved(StoreError):
    """What was being read has been replaced since; asking again finds what took its place."""


@dataclass(frozen=True, eq=False)
class Row:
    """A picture: where it lies, what it was when it was read, and its raw vector (K,)."""

    path: str  # or address; undecodable bytes as surrogates, as `os.fsdecode` gives them
    vector: Vectors | None = None  # None only where the caller did not ask for it
    size: int = 0  # bytes
    mtime: int = 0  # nanoseconds
    sha256: bytes = b""  # of the file's bytes: how a moved file is recognised
    width: int = 0  # of the upright original
    height: int = 0
    taken: str | None = None  # "2024-05-06T12:13:14"
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that gave no vector, the reason, and what it was then: it is tried again only when that changed."""

    path: str
    reason: str
    size: int = 0
    mtime: int = 0


@dataclass(frozen=True, slots=True)
class Stamp:
    """As much of a row as tells whether its file changed."""

    id: int
    size: int
    mtime: int
    sha256: bytes


@dataclass(frozen=True, eq=False)
class Changes:
    """What happened to the vectors since a generation: ids that came and ids that went, both rising."""

    added: Ids
    removed: Ids
    generation: int


class Store(Protocol):
    """Where vectors live. Each writing method is one durable commit, or part of the `transaction` around it."""

    address: str
    reach: str  # the address with what other processes need to open it; never printed
    shared: bool  # whether other machines reach it

    @classmethod
    def create(cls, address: str | Path, **settings: Any) -> Self:
        """A new store; one that is there already is an error."""

    @classmethod
    def open(cls, address: str | Path) -> Self:
        """The store that is there."""

    @property
    def generation(self) -> int:
        """Grows with every commit."""

    def settings(self) -> dict[str, Any]:
        """All settings; bytes stay bytes, everything else is JSON."""

    def configure(self, **settings: Any) -> None:
        """Write settings; setting `whitening` also sets `whitening_generation` to this commit's generation."""

    def writer(self) -> AbstractContextManager[None]:
        """Be the one writer for a while; StoreBusy names the other one."""

    def transaction(self) -> AbstractContextManager[None]:
        """Several writes as one commit: all of them or none."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see one generation."""

    def upsert(self, rows: Iterable[Row]) -> Ids:
        """Write pictures with their vectors, keyed by path; new ids, in order."""

    def move(self, rows: Iterable[Row]) -> None:
        """Change path, size and mtime of the pictures with these ids, the vectors stay."""

    def remove(self, paths: Iterable[str]) -> int:
        """Forget pictures and failures; how many pictures went."""

    def fail(self, failures: Iterable[Failure]) -> None:
        """Write failures; a picture that stood at such a path is forgotten."""

    def get(self, paths: Iterable[str], vectors: bool = False) -> dict[str, Row]:
        """The pictures at these paths, without those that are not there."""

    def rows(self, ids: Iterable[int], vectors: bool = False) -> list[Row | None]:
        """The pictures with these ids, in order; None where one is gone."""

    def ids(self, under: str | None = None, after: str | None = None, before: str | None = None) -> Ids:
        """Rising ids: all, or those in a folder, or taken in after <= date < before."""

    def vectors(self, ids: Ids | None = None) -> Vectors:
        """(n, K) raw vectors of these ids in their order, or of all by rising id."""

    def chunks(self, rows: int = 8192, part: tuple[int, int] | None = None) -> Iterator[tuple[Ids, Vectors]]:
        """All ids and raw vectors by rising id, some rows at a time; or those with first <= id < last."""

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of ids that together hold everything, for `chunks` in several processes."""

    def stamps(self) -> dict[str, Stamp]:
        """What every picture's file was when it was read."""

    def failures(self, paths: Iterable[str] | None = None) -> dict[str, Failure]:
        """Every file that gave no vector; or those of these paths."""

    def searching(self) -> Searching:
        """What answers searches over this store, made anew at each call."""

    def check(self) -> Iterator[tuple[str, str]]:
        """(path, problem) for every row that is not what was written; path "" for the store itself."""

    def backup(self, target: str | Path) -> None:
        """A consistent copy at another address, made while others read and write."""

    def salvage(self, target: str | Path) -> Self:
        """A new store with every row of this damaged one that can still be read whole."""

    def close(self) -> None:
        """Let go of everything."""

    @classmethod
    def exists(cls, address: str | Path) -> bool:
        """Whether a store is there."""

    def __len__(self) -> int:
        """How many pictures."""


STORES: dict[str, str] = {  # scheme of the address -> room:class; an address without a scheme is a folder
    "sqlite": "crow.search.sqlite:SqliteStore",
    "milvus": "crow.search.milvus:MilvusStore",
}


def store_at(address: str | Path) -> type[Store]:
    """The kind of store that an address names: NAME.crow is a folder with SQLite inside."""
    scheme, colon, _ = str(address).partition("://")
    scheme = scheme if colon else "sqlite"
    if scheme not in STORES:
        raise StoreError(f"{address}: no store named {scheme!r}; there are: {', '.join(STORES)}")
    room, _, name = STORES[scheme].partition(":")
    kind: type[Store] = getattr(import_module(room), name)
    return kind


def check_vector(path: str, vector: Vectors | None, dim: int | None) -> Vectors:
    """The vector as (K,) float32, refused with the path when it can be no descriptor."""
    if vector is None or np.ndim(vector) != 1 or not len(vector):
        raise StoreError(f"{path}: a picture is stored with a vector (K,)")
    vector = np.ascontiguousarray(vector, np.float32)
    if dim is not None and len(vector) != dim:
        raise StoreError(f"{path}: its vector has {len(vector)} dimensions, this store holds vectors of {dim}")
    if not np.isfinite(vector).all():
        raise StoreError(f"{path}: its vector holds NaN or infinity")
    if not vector.any():
        raise StoreError(f"{path}: its vector is zero")
    return vector
