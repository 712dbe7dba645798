"""What Ray says of a job that went wrong, as one line that a user can do something with."""

from __future__ import annotations

import numpy as np
import pytest

from crow.search.cells import Ended, attempted, cells, named
from crow.search.cluster import ClusterError

TRACE = """\x1b[36mray::MapWorker(MapBatches(_Describing)).submit()\x1b[39m (pid=6141, ip=127.0.0.1, actor_id=e9e2, repr=MapWorker)
  File "/crow/search/worker.py", line 50, in keep
    self.store.upsert(rows)
    ^^^^^^^^^^^^^^^^^^^^^^^
crow.search.store.StoreError: milvus://127.0.0.1:56713/t: it is [not: well]

The above exception was the direct cause of the following exception:

\x1b[36mray::MapWorker(MapBatches(_Describing)).submit()\x1b[39m (pid=6141, ip=127.0.0.1, actor_id=e9e2, repr=MapWorker)
ray.exceptions.UserCodeException: UDF failed to process a data block.
Failed to apply UDF transform after 1/1 attempts (total backoff 0.0s)."""
DEAD = "The actor died unexpectedly before finishing this task.\n\tclass_name: MapWorker\n\tactor_id: e9e2\nIts node has died."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACE, "StoreError: milvus://127.0.0.1:56713/t: it is [not: well]"),
        (DEAD, "Its node has died."),
        ("", ""),
    ],
)
def test_the_first_error_of_a_chain_is_named(text: str, reason: str) -> None:
    error = named(RuntimeError(text))
    assert isinstance(error, ClusterError)
    assert str(error) == f"the job failed ({reason}); run it again to go on"


def test_an_error_that_came_whole_is_itself() -> None:
    inner, outer = ValueError("a.jpg: broken"), RuntimeError("of Ray's own")
    outer.__cause__ = inner
    assert named(outer) is inner


def test_a_reason_travels_as_a_value() -> None:
    assert attempted(int, "3") == 3
    ended = attempted(int, "a\nb")
    assert isinstance(ended, Ended) and "\n" not in ended.reason and "invalid literal" in ended.reason
    assert attempted(int, ended) is ended
    with pytest.raises(KeyError):  # nobody foresaw it: Ray writes its trace down
        attempted({}.__getitem__, "x")
    column = cells("told", [[1, 2], {"a": np.ones(2)}])["told"]
    assert column.shape == (2,) and column[0].value == [1, 2]
