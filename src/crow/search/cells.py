"""Cells: any values through a Ray dataset and back, and what went wrong on the way as an error of ours, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crow.search.cluster import ClusterError

STALL = 3600.0  # seconds without a listed or a finished batch after which the job has failed


@dataclass(frozen=True)
class Cell:
    """Any value in a row of a dataset: Ray carries it as it carries arguments, so that nothing is unpacked here."""

    value: Any


@dataclass(frozen=True)
class Ended:
    """Why the job ends, told as a value: of an error with a cause Ray brings only its own words back."""

    reason: str


def attempted(do: Callable[[Any], Any], given: Any) -> Any:
    """What a worker makes of what it was given, or why it cannot."""
    if isinstance(given, Ended):
        return given
    try:
        return do(given)
    except (ValueError, OSError, ImportError) as error:
        return Ended(" ".join(str(error).split()) or type(error).__name__)


def cells(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """A batch with one column of values."""
    column = np.empty(len(values), object)
    column[:] = [Cell(value) for value in values]
    return {name: column}


def results(dataset: Any) -> Iterator[Any]:
    """The values of the cells `told` as they come; errors as ours, and an end where nothing goes on any more."""
    dataset.context.execution_no_progress_timeout_s = STALL
    try:
        for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
            for cell in batch["told"]:
                if isinstance(cell.value, Ended):
                    raise ClusterError(cell.value.reason)
                yield cell.value
    except ClusterError:
        raise
    except Exception as error:
        if type(error).__name__ == "ExecutionTimeoutError":
            raise ClusterError(f"nothing has gone on for {STALL:,.0f} seconds; run it again to go on") from None
        raise named(error) from None


def named(error: Exception) -> Exception:
    """What went wrong in a worker, as it would be raised here."""
    cause: Any = error
    while cause is not None:
        inner = getattr(cause, "cause", None)  # Ray's own wrapper is also of the kind that it wraps
        if not isinstance(inner, Exception) and isinstance(cause, ValueError | OSError | ImportError):
            return cause
        cause = inner if isinstance(inner, Exception) else cause.__cause__
    return ClusterError(f"the job failed ({_first(str(error))}); run it again to go on")


def _first(text: str) -> str:
    """What the first of the errors in a chain says: the last line of its trace that is no part of the trace."""
    trace = text.partition("\n\nThe above exception was")[0]
    said = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
    return re.sub(r"^[\w.]+\.(?=\w+:)", "", said[-1] if said else text)[:300]
