"""Scale: extraction as a Ray Data job into any store. Listing -> batches of pieces -> describers that keep what they make.

A describer reads, decodes, describes and writes by itself, so that no picture travels between nodes and only small
sums reach the driver. Every write is an upsert by the picture's key: a batch that is done twice, because a node died or
the job was started again, changes nothing. Into a store on one machine the rows travel, and the driver writes them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from crow.extract.sources import Piece, listed
from crow.framework.reduce import Moments
from crow.search.cells import Ended, attempted, cells, named, results
from crow.search.cluster import HEADROOM, joined, share
from crow.search.index import Index
from crow.search.maker import made
from crow.search.pace import Pace
from crow.search.store import Store, store_at
from crow.search.work import Describes, Report
from crow.search.worker import Carried, OnServer, Worker, readable

BATCH = 500  # pieces that a describer is given at a time
SHOWN = 20  # missing pictures that are named
ATTEMPTS = -1  # of a task whose node dies: as often as nodes do; describers and their batches have that by themselves
DEATHS = 100  # of describers that die while they are made, one after another, as when nodes go; Ray allows none


@dataclass
class Sums:
    """What the describers told so far."""

    tally: Counter[str] = field(default_factory=Counter)
    nodes: set[str] = field(default_factory=set)
    failures: list[Any] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, told: dict[str, Any]) -> int:
        """One more batch; how many pictures it was."""
        self.tally.update(told["tally"])
        self.nodes.add(told["node"])
        self.failures += told["failures"][: SHOWN - len(self.failures)]
        return int(sum(told["tally"][name] for name in ("added", "updated", "failed", "unchanged", "skipped")))

    def report(self, missing: Sequence[str], asked: int) -> Report:
        """The job as a Report; what it cost is among its notes."""
        t, seconds = self.tally, time.monotonic() - self.began
        done = t["added"] + t["updated"]
        notes = [f"{asked:,} pictures asked for, {len(missing) if asked else 0:,} of them neither stored nor failed"]
        notes += [f"missing: {key}" for key in missing[:SHOWN]]
        if done:
            unit = "gpu" if t["gpu"] else "cpu"
            cost = f"{t[unit] / done / 1000:.4f} {unit.upper()}-seconds and {t['bytes'] / done / 1000:,.0f} kB read per image"
            where = f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
            notes += [f"{done / seconds:,.1f} images/s on {where}; {cost}"]
        counts: dict[str, int] = {n: t[n] for n in ("added", "updated", "unchanged", "failed", "skipped")}
        return Report(
            **counts, missing=len(missing), failures=tuple(self.failures), notes=tuple(notes), seconds=seconds
        )


def extract(
    index: Index,
    sources: Sequence[str],
    address: str = "local",
    progress: Callable[[Pace], None] | None = None,
    make: Callable[[], Describes] | None = None,
    batch: int = BATCH,
) -> Report:
    """Describe everything in the sources on a cluster, and keep it in the store of the index; says what was done.

    `make` makes the describer of a worker; by default that of the index' recipe with the options it was opened with.
    """
    store = index.store
    make = make or partial(made, index.recipe, index.maker.options() | {"report": None})
    with joined(address) as ray, store.writer():
        index.derived.save()  # what is searched grows along, where a whitening is known
        pace, sums = Pace(progress), Sums()
        keeper = _keeper(store, ray)
        pace.begin("describing", 0)
        for told in _described(ray, sources, partial(Worker, index.recipe, make, keeper), batch):
            if told["made"] or told["rows"]:
                _take(index, told)
            pace.step(sums.add(told))
        missing, asked = _compared(ray, store, sources, batch)
        report = sums.report(missing, asked)
        notes = index.settle(report, partial(moments, ray=ray))
    return replace(report, notes=(*notes, *index.derived.build()))


def _described(ray: Any, sources: Sequence[str], worker: Callable[..., Worker], batch: int) -> Iterator[dict[str, Any]]:
    """What each batch came to, as they end, in any order."""
    each, count, cores = share(ray)
    pieces = _pieces(ray, sources, batch)
    told = pieces.map_batches(
        _Describing,
        fn_constructor_kwargs={"worker": partial(worker, cores=cores)},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=count),
        **each,
    )
    yield from results(told)


class _Describing:
    """A Worker as Ray Data calls it."""

    def __init__(self, worker: Callable[[], Worker]) -> None:
        self.worker = worker()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return cells("told", [attempted(self.worker, cell.value) for cell in batch["pieces"]])


def _pieces(ray: Any, sources: Sequence[str], batch: int) -> Any:
    """A lazy dataset with a row for every so many pieces, listed on the cluster, each row a block of its own."""
    context = ray.data.DataContext.get_current()
    context.print_on_execution_start = False
    context.max_consecutive_actor_init_deaths = DEATHS
    context.target_max_block_size = 1  # a block ends with the row that fills it: one batch, one task
    context.target_min_block_size = 1
    items = ray.data.from_items([{"source": str(source)} for source in sources], override_num_blocks=len(sources))
    return items.map_batches(partial(_list, batch=batch), batch_size=1, num_cpus=HEADROOM / 2)


def _list(sources: dict[str, Any], batch: int) -> Iterator[dict[str, Any]]:
    for source in sources["source"]:
        pieces = attempted(listed, str(source))
        while some := attempted(lambda rest: list(islice(rest, batch)), pieces):
            yield cells("pieces", [some])
            if isinstance(some, Ended):
                return


def _keeper(store: Store, ray: Any) -> OnServer | Carried:
    """How a worker knows what is done, and keeps what it makes."""
    if store.shared:
        return OnServer(store.reach)
    stamps = {path: (s.size, s.mtime, True) for path, s in store.stamps().items()}
    failed = {path: (f.size, f.mtime, False) for path, f in store.failures().items()}
    return Carried(ray.put(stamps | failed))


def _take(index: Index, told: dict[str, Any]) -> None:
    """Write what came back to a store that only the driver can reach."""
    if told["made"]:
        index.maker.claim(told["made"])
    with index.store.transaction():
        index.store.upsert(told["rows"])
        index.store.fail(told["failed"])


# what was asked for, and what is there


def _compared(ray: Any, store: Store, sources: Sequence[str], batch: int) -> tuple[list[str], int]:
    """Keys that were listed but are neither stored nor failed (the first of them), and how many were listed."""
    missing: list[str] = []
    asked = 0
    for count, gone in _checked(ray, store, sources, batch):
        asked += count
        missing += gone
    return missing, asked


def _checked(ray: Any, store: Store, sources: Sequence[str], batch: int) -> Iterator[tuple[int, list[str]]]:
    if not store.shared:
        for source in sources:
            pieces = listed(source)
            while some := list(islice(pieces, batch)):
                yield check(store, some)
        return
    told = _pieces(ray, sources, batch).map_batches(
        partial(_check, address=store.reach), batch_size=1, num_cpus=HEADROOM / 2
    )
    yield from results(told)


def _check(batch: dict[str, Any], address: str) -> dict[str, Any]:
    return cells("told", [attempted(partial(_looked_up, address), cell.value) for cell in batch["pieces"]])


def _looked_up(address: str, pieces: Sequence[Piece]) -> tuple[int, list[str]]:
    store = store_at(address).open(address)
    try:
        return check(store, pieces)
    finally:
        store.close()


def check(store: Store, pieces: Sequence[Piece]) -> tuple[int, list[str]]:
    """How many pictures these pieces hold, and which of them the store knows nothing of."""
    asked: list[str] = []
    for piece in pieces:
        asked += [found.key for found in readable(piece)]
    there = store.get(asked).keys()
    rest = [key for key in asked if key not in there]
    failed = store.failures(rest).keys() if rest else set()
    return len(asked), [key for key in rest if key not in failed]


# whitening


def moments(store: Store, ray: Any) -> Moments:
    """Count, mean and scatter of all raw vectors: summed on the cluster where workers reach the store, exactly."""
    total = Moments()
    if not store.shared:
        for _, vectors in store.chunks():
            total = total.add(vectors)
        return total
    task = ray.remote(num_cpus=HEADROOM / 2, max_retries=ATTEMPTS)(_moments)
    parts = iter(store.parts())
    most = 2 * int(ray.cluster_resources().get("CPU", 1)) + 1
    running = [task.remote(store.reach, part) for part in islice(parts, most)]
    while running:
        (done,), running = ray.wait(running, num_returns=1)
        try:
            total = total.merge(ray.get(done))
        except Exception as error:
            raise named(error) from None
        running += [task.remote(store.reach, part) for part in islice(parts, 1)]
    return total


def _moments(address: str, part: tuple[int, int]) -> Moments:
    store = store_at(address).open(address)
    total = Moments()
    try:
        for _, vectors in store.chunks(part=part):
            total = total.add(vectors)
    finally:
        store.close()
    return total


def rewhiten(index: Index, address: str, dim: int | None = None, to: str | None = None) -> Any:
    """`Index.rewhiten` with the learning done on a cluster."""
    with joined(address) as ray:
        return index.rewhiten(dim, to, partial(moments, ray=ray))
