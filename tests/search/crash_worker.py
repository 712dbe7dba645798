"""What test_crash.py starts: `follow` syncs a folder, `read` searches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tiny import Tiny

from crow.search import pace
from crow.search.index import Index


def follow(address: str, folder: str) -> Iterator[str]:
    """Sync once, committing as often as can be; each commit is acknowledged with the number of pictures kept."""
    pace.COMMIT = 0.0
    with Index.open(address, describer=Tiny()) as index:
        yield "ready"
        counts: list[int] = []

        def say(pace: object) -> None:
            if not counts or len(index) != counts[-1]:
                counts.append(len(index))
                print(f"kept {counts[-1]}", flush=True)

        yield f"report {index.sync(folder, progress=say)}"


def read(address: str) -> Iterator[str]:
    """Search until the parent closes our input; every answer must be one of a consistent state."""
    import select

    with Index.open(address) as index:
        query = np.ones(16, np.float32)
        yield "ready"
        answers = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            found = index.search(query, k=10_000)
            scores = [hit.score for hit in found]
            assert scores == sorted(scores, reverse=True) and len({hit.path for hit in found}) == len(found)
            assert all(Path(hit.path).suffix == ".png" and hit.width == 8 for hit in found)
            answers += 1
        yield f"answers {answers} last {len(index.search(query, k=10_000))}"


if __name__ == "__main__":
    work = {"follow": follow, "read": read}[sys.argv[1]]
    for line in work(*sys.argv[2:]):
        print(line, flush=True)
