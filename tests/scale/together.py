"""Processes that begin with a store at the same moment, or are killed on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

from crow.search.index import Index
from crow.search.milvus import MilvusStore
from crow.search.milvus_server import Server
from crow.search.store import Row

CHANGES = ("create_", "load_", "alter_", "upsert", "delete", "release_")
barrier: Any = None


def meet(at: Any) -> None:
    """What every process of a pool is told as it begins."""
    global barrier
    barrier = at


def rows_by(number: int, count: int = 30) -> list[Row]:
    """What one of the processes writes."""
    vectors = np.random.default_rng(number).standard_normal((count, 8)).astype(np.float32)
    return [Row(f"/{number}/{i}.jpg", v / np.linalg.norm(v), sha256=b"%d" % i) for i, v in enumerate(vectors)]


def write(address: str, number: int) -> str:
    """Write when all others do; what went wrong."""
    return _together(address, lambda index: (index.store.upsert(rows_by(number)), index.store.configure(engine="any")))


def whiten(address: str) -> str:
    """Whiten when all others do; what went wrong."""
    return _together(address, lambda index: index.rewhiten(4, "self"))


def _together(address: str, do: Callable[[Index], object]) -> str:
    with Index.open(address) as index:
        barrier.wait(60)
        try:
            do(index)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def write_and_die(address: str, change: int) -> None:
    """Make a store and write to it, and die just before so many changes were asked of the server."""
    left, call = [change], Server.__call__

    def counted(self: Server, what: str, *args: Any, **kwargs: Any) -> Any:
        left[0] -= what.startswith(CHANGES)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, what, *args, **kwargs)

    Server.__call__ = counted  # type: ignore[method-assign]
    MilvusStore.create(address, recipe={"name": "crow"}).upsert(rows_by(0))
