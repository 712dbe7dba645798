"""A job on three nodes: the same rows as on one machine, whatever dies on the way. CROW_SCALE=1 runs the full counts."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from servers import Milvus
from tiny import Tiny, paint
from unsteady import Counting, Fatal, Other, Slow, Still, Watched, Wrong

from crow.search import scale
from crow.search.care import verify
from crow.search.cluster import ClusterError, joined
from crow.search.index import Index
from crow.search.store import Row
from crow.search.work import Report

LONG = bool(os.environ.get("CROW_SCALE"))
COUNT = int(os.environ.get("CROW_SCALE_PICTURES", 5000 if LONG else 600))
KILLS = int(os.environ.get("CROW_SCALE_KILLS", 20 if LONG else 1))
SEED = int(os.environ.get("CROW_SEED", 7))
Pictures = Callable[..., Path]


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    """A folder of small pictures."""

    def make(count: int, name: str = "p", first: int = 0) -> Path:
        for i in range(first, first + count):
            paint(tmp_path / name / f"{i // 100}" / f"{i}.png", i)
        return tmp_path / name

    return make


def counts(report: Report) -> tuple[int, ...]:
    return report.added, report.updated, report.unchanged, report.failed, report.missing


def rows_of(index: Index, under: Path | None = None) -> dict[str, np.ndarray]:
    """Path -> vector; an id or a path that stands there twice is an error."""
    ids = index.store.ids(under=str(under) if under else None)
    rows = [row for row in index.store.rows(ids.tolist(), vectors=True) if row is not None]
    assert len(set(ids.tolist())) == len(ids) == len(rows) == len({row.path for row in rows})
    return {row.path: row.vector for row in rows if row.vector is not None}


def test_three_nodes_make_what_one_machine_makes(
    cluster: Any, address: str, pictures: Pictures, tmp_path: Path
) -> None:
    folder = pictures(COUNT)
    (folder / "broken.png").write_bytes(b"no picture")
    same_as_on_one_machine(cluster, address, folder, tmp_path / "one.crow", COUNT, Tiny, 100)


def test_three_nodes_see_photographs_through_the_network_as_one_machine_does(
    cluster: Any, address: str, photos: Path, vgg16: Path, tmp_path: Path
) -> None:
    folder, count = tmp_path / "p", 5000 if LONG else 48
    cut(photos, folder, count)
    (folder / "broken.png").write_bytes(b"no picture")
    same_as_on_one_machine(cluster, address, folder, tmp_path / "one.crow", count, None, max(4, count // 100))


def cut(photos: Path, folder: Path, count: int) -> None:
    """Pieces of real photographs, small, of many sizes."""
    chance, files = np.random.default_rng(SEED), sorted(photos.rglob("*.jpg"))
    for file, numbers in zip(files, np.array_split(np.arange(count), len(files)), strict=True):
        with Image.open(file) as image:
            for number in numbers:
                left, top = (int(chance.integers(0, side - 300)) for side in image.size)
                size = (int(chance.integers(64, 97)), int(chance.integers(64, 97)))
                place = folder / f"{number // 100}" / f"{number}.jpg"
                place.parent.mkdir(parents=True, exist_ok=True)
                image.crop((left, top, left + 300, top + 300)).resize(size).save(place, quality=90)


def same_as_on_one_machine(
    cluster: Any, address: str, folder: Path, place: Path, count: int, make: Any, batch: int
) -> None:
    """Describe a folder here and on the cluster, twice there, and compare."""
    with Index.create(place, **({"describer": make()} if make else {})) as one:
        one.sync(folder)
        expected = rows_of(one)
        with Index.create(address, "crow") as index:
            began = time.monotonic()
            report = scale.extract(index, [str(folder)], cluster.address, make=make, batch=batch)
            took = time.monotonic() - began
            assert counts(report) == (count, 0, 0, 1, 0) and report.failures[0].path == str(folder / "broken.png")
            found = rows_of(index)
            assert found.keys() == expected.keys()
            cosine = min(float(found[path] @ expected[path]) for path in expected)
            assert cosine >= 0.99999
            again = scale.extract(index, [str(folder)], cluster.address, make=make, batch=batch)
            assert (again.unchanged, again.skipped, again.added, again.failed) == (count, 1, 0, 0)
            assert verify(index) == []
            nodes = int(next(note for note in report.notes if " node" in note).split(" on ")[1].split()[0])
            assert nodes >= (2 if count >= 1000 else 1)  # of a small job one may have done all before others are up
    print(
        f"\n{count} pictures in {took:.1f} s on {nodes} nodes; least cosine to one machine {cosine:.7f}; {report.notes}"
    )


def test_into_a_store_of_one_machine(cluster: Any, pictures: Pictures, tmp_path: Path) -> None:
    folder = pictures(150)
    with (
        Index.create(tmp_path / "one.crow", describer=Tiny()) as one,
        Index.create(tmp_path / "a.crow", "crow") as index,
    ):
        one.sync(folder)
        assert counts(scale.extract(index, [str(folder)], cluster.address, make=Tiny, batch=20)) == (150, 0, 0, 0, 0)
        expected, found = rows_of(one), rows_of(index)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[path], expected[path]) for path in expected)
        paint(folder / "0" / "3.png", 12345)
        assert counts(scale.extract(index, [str(folder)], cluster.address, make=Tiny)) == (0, 1, 149, 0, 0)
        assert verify(index) == []


def test_raylets_are_killed(cluster: Any, address: str, pictures: Pictures) -> None:
    chance, inside, took = random.Random(SEED), 0, []
    with Index.create(address, "crow", whitening="none") as index:
        for run in range(KILLS):
            folder = pictures(300, f"run{run}", 1000 * run)
            node = chance.choice([n for n in cluster.list_all_nodes() if not n.head])
            (raylet,) = [p.process for p in node.all_processes["raylet"]]
            done = threading.Event()
            delay = chance.uniform(0, 12)
            killer = threading.Thread(target=_kill_after, args=(done, delay, raylet.pid))
            killer.start()
            began = time.monotonic()
            report = scale.extract(index, [str(folder)], cluster.address, make=Slow, batch=10)
            took.append(time.monotonic() - began)
            inside += delay < took[-1]
            killer.join()
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
            assert report.missing == report.failed == 0
            found = rows_of(index, folder)
            assert found.keys() == {str(path) for path in folder.rglob("*.png")}
        assert len(index) == 300 * KILLS and verify(index) == []
    print(f"\n{KILLS} runs, {inside} raylets killed while the job ran; every id set exact; {max(took):.0f} s at most")


def _kill_after(done: threading.Event, delay: float, process: int) -> None:
    done.wait(delay)
    os.kill(process, signal.SIGKILL)


def test_a_describer_that_dies_is_made_again(cluster: Any, address: str, pictures: Pictures, tmp_path: Path) -> None:
    folder = pictures(100)
    with Index.create(address, "crow", whitening="none") as index:
        report = scale.extract(index, [str(folder)], cluster.address, make=Fatal(tmp_path / "died"), batch=10)
        assert (tmp_path / "died").exists() and report.missing == report.failed == 0
        assert rows_of(index).keys() == {str(path) for path in folder.rglob("*.png")}
        assert verify(index) == []


def test_the_reason_of_a_worker_is_named_in_one_line(
    cluster: Any, address: str, pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(pictures(20))
    monkeypatch.setattr("crow.search.cells.STALL", 5.0)
    reasons = {
        Other: f"{address}: this index was made with crow, not with gem",
        Wrong: "the job failed (KeyError: 'lost'); run it again to go on",
        Still: "nothing has gone on for 5 seconds; run it again to go on",
    }
    with Index.create(address, "crow", whitening="none") as index:
        for make, reason in reasons.items():
            with pytest.raises(ClusterError) as refused:
                scale.extract(index, [folder], cluster.address, make=make)
            assert str(refused.value).startswith(reason) and "\n" not in str(refused.value)
        with pytest.raises(ClusterError, match=f"^{tmp_path}/none.tar: "):
            scale.extract(index, [f"{tmp_path}/none.tar"], cluster.address, make=Tiny)
        index.store.upsert([Row("/p/1.jpg", np.ones(8, np.float32))])
        with pytest.raises(ClusterError, match=r"^/\S+\.png: "):  # vectors of another length
            scale.extract(index, [folder], cluster.address, make=Tiny)


def test_milvus_is_killed_and_started_again(cluster: Any, milvus: Milvus, address: str, pictures: Pictures) -> None:
    folder = pictures(400)
    with Index.create(address, "crow", whitening="none") as index:
        seen: list[int] = []

        def progress(pace: Any) -> None:
            seen.append(pace.done)
            if pace.done >= 50 and len(seen) > 0 and not killed.is_set():
                killed.set()
                milvus.kill()
                threading.Timer(3, milvus.start).start()

        killed = threading.Event()
        report = scale.extract(index, [str(folder)], cluster.address, progress, make=Slow, batch=10)
        assert killed.is_set() and report.missing == report.failed == 0
        assert rows_of(index).keys() == {str(path) for path in folder.rglob("*.png")}
        assert verify(index) == []
    print(f"\nMilvus killed after {next(n for n in seen if n >= 50)} of 400 pictures; the job went on: {report}")


def test_moments_summed_on_the_cluster_are_those_of_one_machine(
    cluster: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crow.search.milvus.PART", 500)  # several parts
    vectors = np.random.default_rng(1).standard_normal((3000, 24)).astype(np.float32) * np.linspace(0.2, 3, 24) + 0.3
    rows = [Row(f"/p/{i}.jpg", v / np.linalg.norm(v)) for i, v in enumerate(vectors.astype(np.float32))]
    with Index.create(address, "crow") as index, Index.create(tmp_path / "a.crow", "crow") as one:
        for store in (index.store, one.store):
            store.upsert(rows)
        assert len(index.store.parts()) == 6
        learned, expected = scale.rewhiten(index, cluster.address, 12, "self"), one.rewhiten(12, "self")
        assert expected and learned.count == expected.count == 3000
        worst = max(
            float(np.abs(getattr(learned, name) / getattr(expected, name) - 1).max()) for name in ("mean", "variances")
        )
        apart = float(np.abs(learned.projection - expected.projection).max() / np.abs(expected.projection).max())
        assert worst < 1e-6 and apart < 1e-6
        straight = np.stack([row.vector for row in rows if row.vector is not None]).astype(np.float64)
        np.testing.assert_allclose(learned.mean, straight.mean(0), atol=1e-9)
    print(
        f"\n3,000 vectors in 6 parts: mean and variances differ by {worst:.1e}, the projection by {apart:.1e} (relative)"
    )


def test_the_memory_of_a_worker_stays_flat(cluster: Any, address: str, pictures: Pictures, tmp_path: Path) -> None:
    count = int(os.environ.get("CROW_SCALE_MEMORY", 20_000 if LONG else 1500))
    folder = pictures(count, "many", 100_000)
    with Index.create(address, "crow", whitening="none") as index:
        report = scale.extract(index, [str(folder)], cluster.address, make=Watched(tmp_path), batch=250)
        assert report.added == count and report.missing == 0
    workers = [np.loadtxt(file, ndmin=2) for file in tmp_path.glob("*.memory")]
    assert sum(len(samples) for samples in workers) >= count // 5 - len(workers)
    rises = [float(np.median(s[-20:, 1]) - np.median(s[len(s) // 4 :][:20, 1])) for s in workers if len(s) > 80]
    held = max(float(samples[:, 1].max()) for samples in workers)
    shown = ", ".join(f"{rise / 1e6:.1f}" for rise in rises)
    print(
        f"\n{count} pictures: workers grew by {shown} MB from their first quarter to their end, to {held / 1e6:.0f} MB at most"
    )
    assert max(rises) < 10e6


def test_the_driver_holds_sums_only(tmp_path: Path) -> None:
    """As it lists and adds up a large job, in a cluster of its own; the workers only count, since the driver is what is weighed."""
    count = 400_000
    lists = tmp_path / "short.txt", tmp_path / "long.txt"
    for file, lines in zip(lists, (count // 10, count), strict=True):
        file.write_text("".join(f"/photos/{i // 1000}/{i}.png\n" for i in range(lines)))
    with joined("local") as ray:
        grown, before = [], 0
        for file in lists:  # the first loads what is loaded once
            before, sums, highest = resident(os.getpid()), scale.Sums(), 0
            for told in scale._described(ray, [str(file)], Counting, scale.BATCH):
                sums.add(told)
                highest = max(highest, resident(os.getpid()))
            grown.append(highest - before)
        assert sums.tally["added"] == count
    print(
        f"\n{count:,} pictures listed and added up: the driver grew by {grown[1] / 1e6:.1f} MB, {grown[1] / count:.0f} bytes a picture"
    )
    assert grown[1] / count < 100


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path: Path, pictures: Pictures) -> None:
    began = time.monotonic()
    with Index.create(tmp_path / "a.crow", "crow") as index:
        for address in ("127.0.0.1:1", "nonsense"):
            with pytest.raises(ClusterError, match=f"{address}: no Ray cluster can be reached there"):
                scale.extract(index, [str(pictures(1))], address, make=Tiny)
    assert time.monotonic() - began < 60  # a limit, not a speed: Ray by itself goes on for minutes
