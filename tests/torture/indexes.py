"""Scenarios of an index: random writes, a sync of a folder that changes, a repair."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import numpy as np
from tiny import Tiny, paint

from crow.framework.reduce import Whitening
from crow.recipe import RECIPES
from crow.search import pace
from crow.search.care import verify
from crow.search.index import Index
from crow.search.store import Row
from torture import operations
from torture.children import Ended, Say
from torture.operations import DIM, after, held, step_of, unit_rows
from torture.scenario import Scenario


class Writes(Scenario):
    """Random writes, whitenings and approximate builds; every acknowledged one must be there, whole."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.address = self.disk / "a.crow"
        Index.create(self.address, "crow").close()
        self.count: int | None = 1

    def prepare(self) -> None:
        """Note how far it is."""
        with Index.open(self.address) as index:
            self.before = step_of(index)

    def unit(self, say: Say) -> None:
        """Some writes."""
        for line in operations.go_on(str(self.address), self.count):
            say(line)

    def judge(self, ended: Ended, disk: Path) -> None:
        """Between the last acknowledged write and the last begun one, and as the plain dict says."""
        with Index.open(disk / "a.crow") as index:
            now = step_of(index)
            done = ended.last("done", self.before)
            begun = max(done, ended.last("begin", 0))
            assert done <= now <= begun, f"acknowledged {done}, begun {begun}, kept {now}"
            problems = verify(index)
            assert problems == [], f"verify: {problems}"
            rows: operations.Rows = {}
            for step in range(1, now + 1):
                rows = after(step, rows)
            assert held(index) == rows, "the rows are not those of the last write"
            check_whitening(index)
            if rows:
                path = min(rows)
                assert path in [hit.path for hit in index.search(path, k=3)], "a member does not find itself"


class Syncs(Scenario):
    """A sync of a folder that changes; every picture that was said to be kept must be there."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.address, self.photos, self.count = self.disk / "a.crow", folder / "photos", 0
        Index.create(self.address, describer=Tiny()).close()
        self.more(12)

    def more(self, count: int) -> None:
        """New pictures."""
        for _ in range(count):
            self.count += 1
            paint(self.photos / f"{self.count}.png", self.random.getrandbits(32))

    def prepare(self) -> None:
        """The folder goes on changing: some pictures new, some others, some moved, some gone."""
        self.more(3)
        names = sorted(self.photos.glob("*.png"))
        for path in self.random.sample(names, 2):
            paint(path, self.random.getrandbits(32))
        for path in self.random.sample(names, 2):
            path.rename(path.with_name(f"m{self.random.getrandbits(32)}.png"))
        self.random.choice(sorted(self.photos.glob("*.png"))).unlink()

    def unit(self, say: Say) -> None:
        """One sync, committing as often as can be."""
        pace.COMMIT = 0.0
        with Index.open(self.address, describer=Tiny()) as index:
            kept = [0]

            def tell(_: object = None) -> None:
                if (now := still_there(index)) != kept[-1]:
                    kept.append(now)
                    say(f"kept {now}")

            index.sync(self.photos, progress=tell)
            tell()

    def judge(self, ended: Ended, disk: Path) -> None:
        """What was kept is whole; the same sync again makes it what a fresh index would be."""
        with Index.open(disk / "a.crow", describer=Tiny()) as index:
            problems = verify(index)
            assert problems == [], f"verify: {problems}"
            kept, found = ended.last("kept", 0), still_there(index)
            assert found >= kept, f"kept {kept}, found {found}"
            index.sync(self.photos)
            paths = sorted(map(str, self.photos.glob("*.png")))
            assert index.paths() == paths, "after the next sync the pictures are not those in the folder"
            np.testing.assert_allclose(index.vectors(paths), unit_rows(Tiny()(paths)), atol=1e-6)
            assert verify(index) == []


class Repairs(Scenario):
    """verify --repair of an index with damaged rows and a damaged matrix."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.address = self.disk / "a.crow"
        vectors = unit_rows(np.random.default_rng(random.getrandbits(32)).standard_normal((60, DIM)))
        self.rows = {f"/p/{i}.jpg": vector for i, vector in enumerate(vectors)}

    def prepare(self) -> None:
        """A fresh index, and damage."""
        import sqlite3

        shutil.rmtree(self.address, ignore_errors=True)
        with Index.create(self.address, "crow") as index:
            index.store.upsert(Row(path, vector) for path, vector in self.rows.items())
            index.rewhiten(8, to="self")
        self.spoilt = set(self.random.sample(sorted(self.rows), 5))
        with sqlite3.connect(self.address / "index.sqlite") as db:
            for path in sorted(self.spoilt):
                sql = "UPDATE vectors SET vector = zeroblob(64) WHERE id = (SELECT id FROM images WHERE path = ?)"
                db.execute(sql, (path.encode(),))
        db.close()
        (file,) = (self.address / "matrix").glob("*.rows")
        file.write_bytes(file.read_bytes()[:-7] + b"damaged")

    def unit(self, say: Say) -> None:
        """Repair it."""
        with Index.open(self.address) as index:
            verify(index, repair=True)
            say("done 1")

    def judge(self, ended: Ended, disk: Path) -> None:
        """No sound picture is lost, and the same command again ends what this one left."""
        with Index.open(disk / "a.crow") as index:
            left = {problem.where for problem in verify(index)}
            assert not (ended.last("done", 0) and left), f"said to be repaired, but {left}"
            assert all(problem.repaired for problem in verify(index, repair=True))
            assert verify(index) == [], "repaired twice, and still not whole"
            expected = {path: v.tobytes() for path, v in self.rows.items() if path not in self.spoilt}
            assert held(index) == expected, "repair lost a sound picture, or kept a damaged one"


def still_there(index: Index) -> int:
    """How many of its pictures lie where it says."""
    return sum(Path(path).exists() for path in index.paths())


def check_whitening(index: Index) -> None:
    """The whitening is whole: that of a moment, not half of one."""
    whitening = index.whitening
    if whitening is not None:
        assert whitening.count > whitening.dim and whitening.recipe == RECIPES["crow"]
        assert Whitening.from_bytes(whitening.to_bytes()).fingerprint == whitening.fingerprint
