"""What is cut off in the middle: work that acknowledges what it has done, and a judge of what must then be there.

A scenario lives in a folder. `prepare` brings it to a state from which `unit`, run in a child, does one piece of work;
`judge`, also run in a child, looks at what an end at any moment left behind, raises where that is wrong, and mends
what a person would mend by running the command again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
from tiny import Tiny, paint

from crow.framework.reduce import Moments, Whitening
from crow.recipe import RECIPES
from crow.search import pace
from crow.search.care import export, exported, verify
from crow.search.index import Index
from crow.search.store import Row
from torture import operations
from torture.children import Ended, Say
from torture.operations import DIM, after, held, step_of


class Scenario:
    """One kind of work in a folder; `disk` is the part of it that suffers."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True)

    @property
    def name(self) -> str:
        """For people."""
        return type(self).__name__.lower()

    def prepare(self) -> None:
        """Before every unit, in the parent."""

    def unit(self, say: Say) -> None:
        """A piece of work, in a child that may end anywhere."""
        raise NotImplementedError

    def judge(self, ended: Ended, disk: Path) -> None:
        """What is left of `disk` must be what `ended` was told, in a child."""
        raise NotImplementedError


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
        self.more(30)

    def more(self, count: int) -> None:
        """New pictures."""
        for _ in range(count):
            self.count += 1
            paint(self.photos / f"{self.count}.png", self.random.getrandbits(32))

    def prepare(self) -> None:
        """The folder goes on changing: some pictures new, some others, some moved, some gone."""
        self.more(6)
        names = sorted(self.photos.glob("*.png"))
        for path in self.random.sample(names, 4):
            paint(path, self.random.getrandbits(32))
        for path in self.random.sample(names, 3):
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


class Weights(Scenario):
    """The cache of network weights: made from a file and by download, removed, and made again."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.turn = 0
        for name in "ab":
            (folder / name).write_bytes(random.randbytes(1 << 16) + name.encode())

    def prepare(self) -> None:
        """The other file, and nothing in the cache that would save the work."""
        self.turn += 1
        for path in self.disk.glob("*.json"):
            path.unlink()

    @property
    def file(self) -> Path:
        """What the weights are made of this time."""
        return self.folder / "ab"[self.turn % 2]

    def obtain(self, disk: Path) -> dict[str, np.ndarray]:
        """Through the product, into the cache at `disk`."""
        import os

        from safetensors.numpy import load_file

        from crow.extract.pretrained import obtain

        os.environ["CROW_CACHE"] = str(disk)
        path, _ = obtain("tiny", None, converted, self.file)
        return load_file(path)

    def unit(self, say: Say) -> None:
        """Into the cache."""
        self.obtain(self.disk)
        say("done 1")

    def judge(self, ended: Ended, disk: Path) -> None:
        """Whatever is in the cache under a whole name is whole, and asking again gives the right weights."""
        for note in disk.glob("*.json"):
            made = json.loads(note.read_text())
            assert made["sha256"]
        found = self.obtain(disk)
        assert np.array_equal(found["all"], np.frombuffer(self.file.read_bytes(), np.uint8)), "other weights"
        for note in disk.glob("*.json"):
            note.unlink()
        self.obtain(disk)  # whoever works there next sweeps up first
        assert not list(disk.glob("work-*")), "something was left in the cache"


class Downloads(Weights):
    """The same by download from a server on this machine."""

    def obtain(self, disk: Path) -> dict[str, np.ndarray]:
        """Through the product, from loopback."""
        import hashlib
        import os

        from safetensors.numpy import load_file

        from crow.extract.pretrained import Source, obtain
        from torture.loopback import serving

        os.environ["CROW_CACHE"] = str(disk)
        with serving(self.folder) as address:
            digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
            path, _ = obtain("tiny", Source(f"{address}/{self.file.name}", digest), converted)
        return load_file(path)


class Files(Scenario):
    """Files of one's own that are replaced: a whitening, an export."""

    def __init__(self, folder: Path, random: Random) -> None:
        super().__init__(folder, random)
        self.version = 0
        vectors = unit_rows(np.random.default_rng(3).standard_normal((40, DIM)))
        self.moments = Moments().add(vectors)
        with Index.create(folder / "a.crow", "crow") as index:
            index.store.upsert(Row(f"/p/{i}", vector) for i, vector in enumerate(vectors))
        self.unit(lambda line: None)

    def prepare(self) -> None:
        """The next version."""
        self.before = {name: read() for name, _, read in self.files(self.disk)}
        self.version += 1

    def unit(self, say: Say) -> None:
        """Replace them all."""
        for name, write, _ in self.files(self.disk):
            write(self.version)
            say(f"{name} {self.version}")

    def judge(self, ended: Ended, disk: Path) -> None:
        """Each is whole, and no older than what was acknowledged."""
        for name, _, read in self.files(disk):
            least = ended.last(name, self.before[name])
            assert least <= read() <= self.version, f"{name}: acknowledged {least}, found {read()}"

    def files(self, disk: Path) -> Iterator[tuple[str, Callable[[int], object], Callable[[], int]]]:
        """(name, writes a version, reads which version is there; 0: no file)."""
        whitening, table = disk / "w.safetensors", disk / "x.npz"

        def write_whitening(version: int) -> None:
            Whitening.from_moments(self.moments, 8, RECIPES["crow"], source=str(version)).save(whitening)

        def write_export(version: int) -> None:
            with Index.open(self.folder / "a.crow") as index:
                index.store.move([Row(f"/p/{version}", id=1)])
                export(index, table)

        yield "whitening", write_whitening, lambda: version_in(whitening, lambda: Whitening.load(whitening).source)
        yield "export", write_export, lambda: version_in(table, lambda: exported(table)[2].paths[0][3:])


def version_in(file: Path, read: Callable[[], str | None]) -> int:
    """The version that a file says it is, 0 where there is none."""
    return int(read() or 0) if file.exists() else 0


def converted(file: Path) -> dict[str, np.ndarray]:
    """A file's bytes as the one tensor of a network."""
    return {"all": np.frombuffer(file.read_bytes(), np.uint8)}


def still_there(index: Index) -> int:
    """How many of its pictures lie where it says."""
    return sum(Path(path).exists() for path in index.paths())


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def check_whitening(index: Index) -> None:
    """The whitening is whole: that of a moment, not half of one."""
    whitening = index.whitening
    if whitening is not None:
        assert whitening.count > whitening.dim and whitening.recipe == RECIPES["crow"]
        assert Whitening.from_bytes(whitening.to_bytes()).fingerprint == whitening.fingerprint


SCENARIOS: dict[str, type[Scenario]] = {
    kind.__name__.lower(): kind for kind in (Writes, Syncs, Repairs, Weights, Downloads, Files)
}
