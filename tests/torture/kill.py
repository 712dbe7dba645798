"""Kill: SIGKILL at any moment of the work, and at every write, sync, rename and removal that it makes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from torture import shim
from torture.campaign import Lane, Try
from torture.children import Ended, Say, in_child
from torture.scenarios import SCENARIOS, Scenario, Syncs, Writes

MANY = 50  # kills of one index before a fresh one
AT = (shim.KILL_BEFORE, shim.KILL_AFTER, shim.KILL_HALF)


def anywhere(lane: Lane) -> Iterator[Try]:
    """At random moments; only kills that fell inside work count."""
    while True:
        kind = lane.random.choices(list(SCENARIOS.values()), [6, 3, 1, 1, 1, 1])[0]
        scenario = kind(lane.fresh("work"), lane.random)
        if isinstance(scenario, Writes):
            scenario.count = None
        for _ in range(MANY):
            scenario.prepare()
            longest = 0.2 if isinstance(scenario, Writes | Syncs) else 0.05
            ended = in_child(scenario.unit, kill_after=lane.random.uniform(0, longest))
            inside = ended.how == "killed" and (bool(ended.said) or not isinstance(scenario, Writes))
            wrong = _unexpected(ended) or judged(scenario, ended)
            if inside or wrong:
                yield Try(scenario.name, wrong)
            elif time.monotonic() >= lane.until:
                return


def traced(lane: Lane) -> Iterator[Try]:
    """At each operation on files in turn, before it, after it, or half way through it."""
    if not shim.is_there():
        yield Try("no C compiler here: not tried", count=0)
        return
    scenarios = [kind(lane.fresh(name), lane.random) for name, kind in SCENARIOS.items()]
    saved = lane.place / "saved"
    while True:
        lane.random.shuffle(scenarios)
        for scenario in scenarios:
            scenario.prepare()
            shutil.rmtree(saved, ignore_errors=True)
            shutil.copytree(scenario.disk, saved)
            counted = in_child(lambda say, s=scenario: _count(s, say))  # type: ignore[misc]
            if trouble := _unexpected(counted):
                yield Try(scenario.name, trouble)
            for number in range(1, counted.last("operations", 0) + 1):
                _restore(saved, scenario.disk)
                how = lane.random.choice(AT)
                ended = in_child(lambda say, s=scenario, n=number, h=how: _suffer(s, say, h, n))  # type: ignore[misc]
                wrong = _unexpected(ended) or judged(scenario, ended)
                if wrong or ended.how == "killed":
                    yield Try(scenario.name, wrong and f"{wrong} (operation {number}, way {how})")
            _restore(saved, scenario.disk)
            in_child(scenario.unit)


def judged(scenario: Scenario, ended: Ended) -> str:
    """What is wrong with what was left, in words; it is looked at in a child of its own."""
    return in_child(lambda say: scenario.judge(ended, scenario.disk)).how


def _count(scenario: Scenario, say: Say) -> None:
    shim.arm(scenario.disk, shim.COUNT)
    scenario.unit(say)
    count = shim.seen()
    shim.disarm()
    say(f"operations {count}")


def _suffer(scenario: Scenario, say: Say, how: int, when: int) -> None:
    shim.arm(scenario.disk, how, when)
    scenario.unit(say)


def _restore(saved: Path, disk: Path) -> None:
    shutil.rmtree(disk)
    shutil.copytree(saved, disk)


def _unexpected(ended: Ended) -> str:
    """An end that is neither ours nor its own."""
    return ended.how if ended.how not in ("", "killed") else ""
