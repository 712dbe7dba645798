"""Watch: tells when something changed below folders."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence

from crow.search.matrix import SearchError
from crow.search.work import inside

LOOK = 1000  # milliseconds between looks
RESCAN = 600.0  # seconds after which it is time to look whatever was heard: network drives say nothing


def changes(folders: Sequence[str], own: str, stop: threading.Event | None = None) -> Iterator[None]:
    """Whenever something changed, until `stop`; changes below `own` (the index itself) do not count.

    The first comes soon after the watching began, for what happened before.
    """
    try:
        from watchfiles import watch
    except ImportError:
        raise SearchError("following a folder needs the extra 'watch': pip install 'crow-search[watch]'") from None
    heard = watch(
        *folders,
        watch_filter=lambda _, path: not inside(path, [own]),
        stop_event=stop,
        rust_timeout=LOOK,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    last = -math.inf
    for some in heard:
        if some or time.monotonic() - last >= RESCAN:
            last = time.monotonic()
            yield
