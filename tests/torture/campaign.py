"""Campaigns: endless tries in forked lanes until a goal or the end of a share of the time, and what they found."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

GRACE = 120.0  # seconds beyond its share that a lane gets to end its last try
ENOUGH = 10  # failures after which a campaign stops: more of them say nothing new


@dataclass(frozen=True)
class Try:
    """One try: what was done, what is wrong afterwards ("" where it held), and how many tries it stands for."""

    what: str
    failed: str = ""
    count: int = 1


@dataclass(frozen=True)
class Lane:
    """Where and how long one process of a campaign works, and its own source of chance."""

    place: Path
    random: Random
    until: float  # time.monotonic()
    goal: int

    def fresh(self, name: str) -> Path:
        """An empty folder of that name."""
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


@dataclass(frozen=True)
class Campaign:
    """A kind of fault: a generator of tries, and how many of them the long run must reach."""

    name: str
    unit: str  # what one try is
    goal: int
    start: Callable[[Lane], Iterator[Try]]
    share: float = 1.0  # of the time
    lanes: int = 2
    disk: bool = False  # needs a real disk instead of memory


@dataclass
class Tally:
    """What came of a campaign."""

    campaign: Campaign
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, what: str, failed: str, count: int) -> None:
        """Count a try."""
        self.tried += count
        if failed:
            self.failed += 1
            self.failures.append(f"{what}: {failed}")
        elif count:
            self.parts[what] += count
        elif what not in self.notes:
            self.notes.append(what)

    @property
    def bad(self) -> bool:
        """Whether the whole run is to end as failed."""
        return self.failed > 0 or self.tried == 0


def run(campaigns: list[Campaign], seconds: float, seed: int, place: Path, tell: Callable[[str], None]) -> list[Tally]:
    """All campaigns one after the other; what one leaves of its share goes to those after it."""
    end, tallies = time.monotonic() + seconds, []
    for number, campaign in enumerate(campaigns):
        rest = sum(c.share for c in campaigns[number:])
        until = time.monotonic() + max(1.0, (end - time.monotonic()) * campaign.share / rest)
        tallies.append(conduct(campaign, until, seed, place))
        tell(line_of(tallies[-1]))
        parts = [f"{what} {many:,}" for what, many in tallies[-1].parts.most_common(8)]
        tell(f"    {'; '.join(parts + tallies[-1].notes)}")
        for failure in tallies[-1].failures[: 2 * ENOUGH]:
            tell(f"    FAILED  {failure}")
    return tallies


def line_of(tally: Tally) -> str:
    """A campaign's result on one line."""
    return (
        f"{tally.campaign.name:<12} tried {tally.tried:>9,}   held {tally.tried - tally.failed:>9,}"
        f"   failed {tally.failed:>3}   {tally.seconds:>6.0f} s   {tally.campaign.unit}"
    )


def conduct(campaign: Campaign, until: float, seed: int, place: Path) -> Tally:
    """One campaign in its lanes."""
    tally, begun = Tally(campaign), time.monotonic()
    folder = Path("/var/tmp" if campaign.disk else place) / f"crow-torture-{os.getpid()}-{campaign.name}"
    count = min(campaign.lanes, os.cpu_count() or 1)
    lanes: dict[int, tuple[int, bytes]] = {}  # pipe -> (process, what came of its last line)
    for number in range(count):
        random = Random(f"{seed} {campaign.name} {number}")
        lane = Lane(folder / str(number), random, until, -(-campaign.goal // count))
        pipe, process = _fork(campaign, lane)
        lanes[pipe] = process, b""
    try:
        _listen(lanes, tally, until + GRACE)
    finally:
        for process, _ in lanes.values():
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    tally.seconds = time.monotonic() - begun
    return tally


def _fork(campaign: Campaign, lane: Lane) -> tuple[int, int]:
    """A lane as a process of its own: (the pipe its tries come through, its id)."""
    reading, writing = os.pipe()
    if process := os.fork():
        os.close(writing)
        return reading, process
    os.close(reading)
    code = 0
    try:
        os.setpgid(0, 0)
        lane.place.mkdir(parents=True, exist_ok=True)
        with os.fdopen(writing, "w", buffering=1) as out:
            give = lambda t: print(json.dumps([t.what, t.failed, t.count]), file=out)  # noqa: E731
            try:
                _go(campaign, lane, give)
            except Exception:
                give(Try("a lane", " ".join(traceback.format_exc().split())[-400:]))
    except BaseException:
        code = 1
    os._exit(code)


def _go(campaign: Campaign, lane: Lane, give: Callable[[Try], Any]) -> None:
    done = bad = 0
    tries = campaign.start(lane)
    try:
        for one in tries:
            give(one)
            done, bad = done + one.count, bad + bool(one.failed)
            over = one.count and (done >= lane.goal or time.monotonic() >= lane.until)  # a mere note ends nothing
            if over or bad >= ENOUGH:
                break
    finally:
        tries.close()  # type: ignore[attr-defined]


def _listen(lanes: dict[int, tuple[int, bytes]], tally: Tally, limit: float) -> None:
    """Take what the lanes say until all have ended; one that ends badly or never is a failure."""
    while lanes:
        ready, _, _ = select.select(list(lanes), [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            tally.add("a lane", "it did not end in time", 1)
            return
        for pipe in ready:
            process, rest = lanes[pipe]
            piece = os.read(pipe, 1 << 16)
            *lines, rest = (rest + piece).split(b"\n")
            lanes[pipe] = process, rest
            for line in lines:
                tally.add(*json.loads(line))
            if not piece:
                del lanes[pipe]
                os.close(pipe)
                if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
                    tally.add("a lane", f"it ended with {code}", 1)
