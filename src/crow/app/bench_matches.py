"""What `crow bench matches` measures: whether the line where matches end keeps its promise on photographs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crow.app.bench import Measure
from crow.extract.walk import walk
from crow.search.index import Index, absolute
from crow.search.work import Describes

DISTRACTORS = "_distractors"


def matches(
    pictures: Path, others: Path | None = None, count: int = 200, describer: Describes | None = None
) -> Iterator[Measure]:
    """Over a folder with a sub-folder per scene and `_distractors`: right results above the line, and wrong ones.

    Queries without a match are the distractors, themselves left out, and up to `count` photographs of other things.
    """
    files = [str(file) for file in walk([absolute(pictures)])]
    strangers = [str(file) for file in walk([absolute(others)])] if others else []
    strangers = strangers[:: max(1, len(strangers) // count)][:count]
    scenes = {file: Path(file).parent.name for file in files}
    with (
        tempfile.TemporaryDirectory(prefix="crow-bench-") as place,
        Index.create(Path(place) / "bench.crow", whitening="none", describer=describer) as index,
    ):
        index.sync(pictures)
        above = {file: _above(index, file, len(files)) for file in files if file in index}
        lured = [bool(_above(index, file, len(files))) for file in strangers]
    alone = [bool(above[file]) for file in above if scenes[file] == DISTRACTORS]
    right = [
        other in above[file]
        for file in above
        for other in above
        if other != file and scenes[other] == scenes[file] != DISTRACTORS
    ]
    wrong = [
        float(np.mean([scenes[other] != scenes[file] for other in found]))
        for file, found in above.items()
        if found and scenes[file] != DISTRACTORS
    ]
    share, size = float(np.mean(right)), f"{len(above)} photographs"
    yield Measure(f"right results above the line, {size}", share, wanted="at least 0.8", holds=share >= 0.8)
    yield Measure(f"wrong results among those above the line, {size}", float(np.mean(wrong)))
    if strangers:
        share = float(np.mean(lured))
        name = f"queries without a match that get one, {len(lured)} other photographs"
        yield Measure(name, share, wanted="at most 0.05", holds=share <= 0.05)
    yield Measure(f"queries without a match that get one, {len(alone)} distractors", float(np.mean(alone)))


def _above(index: Index, query: str, k: int) -> set[str]:
    """The results above the line, the query itself left out."""
    return {hit.path for hit in index.search(query, k=k) if hit.match and hit.path != query}
