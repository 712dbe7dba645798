"""Scenarios of single files: the cache of weights, and files of one's own that are replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np

from crow.framework.reduce import Moments, Whitening
from crow.recipe import RECIPES
from crow.search.care import export, exported
from crow.search.index import Index
from crow.search.store import Row
from torture.children import Ended, Say
from torture.operations import DIM, unit_rows
from torture.scenario import Scenario


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
