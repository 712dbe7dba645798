"""Power loss: everything that was not synced is thrown away, or any part of it kept; what was acknowledged must be there.

The work is run once with a journal of all that it does to files. For every moment that is tried, the journal is played
back onto a disk that keeps only what was synced: the bytes of a file by fsync of the file, its name by fsync of its
folder. Half of the tries also keep random parts of what was not synced, in any order, torn anywhere.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from torture import shim
from torture.campaign import Lane, Try
from torture.children import Ended, Say, in_child
from torture.scenarios import SCENARIOS, Scenario, Writes

HEAD = struct.Struct("<c3xIII4xQq" if struct.calcsize("<c3xIII4xQq") == 32 else "<c3xIIIQq")
CUT = ("writes", "syncs", "files", "weights", "repairs")
POINTS = 12  # moments tried of one piece of work
UNITS = 3  # pieces of work in one journal


@dataclass(frozen=True)
class Done:
    """One line of the journal."""

    op: str
    inode: int
    offset: int
    first: bytes
    second: bytes


@dataclass(eq=False)
class Node:
    """A file or a folder: what is on the disk for sure, and what came since."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Done] = field(default_factory=list)
    names: dict[str, Node] | None = None  # of a folder, as a program sees it
    kept: dict[str, Node] = field(default_factory=dict)  # of a folder, as they are on the disk
    unsynced: list[tuple[str, Node | None]] = field(default_factory=list)  # changes of names since

    def sync(self) -> None:
        """All of it is on the disk now."""
        for done in self.pending:
            _write(self.content, done)
        self.pending.clear()
        self.kept = dict(self.names or {})
        self.unsynced.clear()


class Disk:
    """A folder as a power cut would find it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Node(names={})
        self.inodes: dict[int, Node] = {}
        self.known(self.top, root)
        self.said: list[str] = []

    def known(self, node: Node, folder: Path) -> None:
        """Take in what lies there already, all of it safe on the disk."""
        self.inodes[folder.stat().st_ino] = node
        assert node.names is not None
        for path in folder.iterdir():
            inner = Node(names={} if path.is_dir() else None)
            if path.is_dir():
                self.known(inner, path)
            else:
                inner.content[:] = path.read_bytes()
                self.inodes[path.stat().st_ino] = inner
            node.names[path.name] = inner
        node.kept = dict(node.names)

    def play(self, done: Done) -> None:
        """Take in one operation."""
        if done.op == "A":
            self.said.append(done.first.decode())
        elif done.op in "CM":
            node = self.inodes[done.inode] = Node(names={} if done.op == "M" else None)
            self._name(done.first, node)
        elif done.op == "U":
            self._name(done.first, None)
        elif done.op == "R":
            folder, name = self._place(done.first)
            node = (folder.names or {})[name]
            self._name(done.first, None)
            self._name(done.second, node)
        elif node := self.inodes.get(done.inode):
            if done.op == "S":
                node.sync()
            else:
                node.pending.append(done)

    def _place(self, path: bytes) -> tuple[Node, str]:
        """The folder that holds a path, and the name in it."""
        *folders, name = Path(os.fsdecode(path)).relative_to(self.root).parts
        node = self.top
        for folder in folders:
            node = (node.names or {})[folder]
        return node, name

    def _name(self, path: bytes, node: Node | None) -> None:
        folder, name = self._place(path)
        assert folder.names is not None
        if node is None:
            folder.names.pop(name, None)
        else:
            folder.names[name] = node
        folder.unsynced.append((name, node))

    def write_out(self, target: Path, random: Random | None) -> None:
        """What is on the disk after the cut; with `random`, some of what was not synced as well."""
        _write_folder(self.top, target, random)


def _write_folder(node: Node, target: Path, random: Random | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    names = dict(node.kept)
    for name, inner in node.unsynced[: random.randint(0, len(node.unsynced)) if random else 0]:
        if inner is None:
            names.pop(name, None)
        else:
            names[name] = inner
    for name, inner in names.items():
        if inner.names is not None:
            _write_folder(inner, target / name, random)
            continue
        content = bytearray(inner.content)
        for done in inner.pending if random else []:
            if random and random.random() < 0.5:
                _write(content, done, random.choice([None, random.random()]))
        (target / name).write_bytes(content)


def _write(content: bytearray, done: Done, torn: float | None = None) -> None:
    """A write or a cut, the write perhaps only up to a part of it."""
    if done.op == "T":
        del content[done.offset :]
        content.extend(bytes(done.offset - len(content)))
        return
    data = done.first if torn is None else done.first[: int(torn * len(done.first))]
    content.extend(bytes(max(0, done.offset - len(content))))
    content[done.offset : done.offset + len(data)] = data


def read_journal(file: Path) -> list[Done]:
    """All lines of a journal."""
    data, at, lines = file.read_bytes(), 0, []
    while at < len(data):
        op, first, second, _, inode, offset = HEAD.unpack_from(data, at)
        at += HEAD.size
        parts = data[at : at + first], data[at + first : at + first + second]
        lines.append(Done(op.decode(), inode, offset, *parts))
        at += first + second
    return lines


def power(lane: Lane) -> Iterator[Try]:
    """Cuts at random moments of recorded work."""
    if not shim.is_there():
        yield Try("no C compiler here: not tried", count=0)
        return
    while True:
        kind = lane.random.choices([SCENARIOS[name] for name in CUT], [6, 3, 2, 1, 1])[0]
        scenario = kind(lane.fresh("work"), lane.random)
        for _ in range(UNITS):
            scenario.prepare()
            if isinstance(scenario, Writes):
                scenario.count = 6
            yield from _cuts(lane, scenario)


def _cuts(lane: Lane, scenario: Scenario) -> Iterator[Try]:
    """One unit of a scenario, recorded, and cut at some moments."""
    file, disk = lane.place / "journal", Disk(scenario.disk)
    ended = in_child(lambda say: _record(scenario, file, say))
    journal = read_journal(file)
    if ended.how:
        yield Try(scenario.name, ended.how)
    points = sorted(lane.random.sample(range(len(journal) + 1), min(POINTS, len(journal) + 1)))
    for at, done in enumerate([*journal, None]):
        if points and at == points[0]:
            points.pop(0)
            for random in (None, lane.random):
                target = lane.fresh("cut") / "disk"
                disk.write_out(target, random)
                so_far = Ended(list(disk.said), "killed")
                wrong = in_child(lambda say, s=scenario, e=so_far, t=target: s.judge(e, t)).how  # type: ignore[misc]
                where = f" (operation {at} of {len(journal)}, {'with parts' if random else 'nothing'} of what was not synced)"
                yield Try(scenario.name, wrong and wrong + where)
        if done:
            disk.play(done)


def _record(scenario: Scenario, file: Path, say: Say) -> None:
    journal = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    shim.arm(scenario.disk, shim.COUNT, journal=journal)
    scenario.unit(shim.note)
    shim.disarm()
