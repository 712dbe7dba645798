"""Numbers for Prometheus, in its text format: requests by route, how long they took, and what waits."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Metrics:
    """Counts of what the server did; gauges are asked for when they are read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(BUCKETS) + 2))
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "process_resident_memory_bytes": ("Memory of the server.", resident)
        }

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request is done."""
        with self._lock:
            self._requests[method, route, status] += 1
            row = self._seconds[route]
            for i, edge in enumerate(BUCKETS):
                row[i] += seconds <= edge
            row[-2] += 1
            row[-1] += seconds

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        with self._lock:
            return "\n".join([*self._counted(), *self._timed(), *self._measured(), ""])

    def _counted(self) -> Iterator[str]:
        yield "# HELP crow_requests_total Requests answered."
        yield "# TYPE crow_requests_total counter"
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'crow_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'

    def _timed(self) -> Iterator[str]:
        yield "# HELP crow_request_seconds How long requests took."
        yield "# TYPE crow_request_seconds histogram"
        for route, row in sorted(self._seconds.items()):
            for edge, count in zip([*map(str, BUCKETS), "+Inf"], row, strict=False):
                yield f'crow_request_seconds_bucket{{route="{route}",le="{edge}"}} {count:g}'
            yield f'crow_request_seconds_count{{route="{route}"}} {row[-2]:g}'
            yield f'crow_request_seconds_sum{{route="{route}"}} {row[-1]:.6f}'

    def _measured(self) -> Iterator[str]:
        for name, (meaning, measure) in self.gauges.items():
            yield f"# HELP {name} {meaning}"
            yield f"# TYPE {name} gauge"
            yield f"{name} {measure():.17g}"


def resident() -> float:
    """Bytes of memory this process holds; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return float(pages * 4096)
