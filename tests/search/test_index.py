"""The index: a folder becomes searchable, stays so, and refuses what would not mix."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import DIM, Tiny, paint

from crow.framework.reduce import Whitening
from crow.recipe import RECIPES
from crow.search import approximate, policy
from crow.search.index import Index
from crow.search.matrix import SearchError
from crow.search.store import Row, StoreError
from crow.search.work import Report

Photos = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path, tiny: Tiny):
    with Index.create(tmp_path / "a.crow", describer=tiny) as index:
        yield index


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def test_search_finds_what_a_sort_of_all_cosines_finds(index: Index, photos: Photos, tiny: Tiny) -> None:
    folder = photos(60)
    assert index.sync(folder) == replace(Report(added=60), seconds=pytest.approx(0, abs=100), notes=ANY)
    paths = sorted(str(p) for p in folder.iterdir())
    vectors = tiny(paths).astype(np.float64)
    for query in (paths[7], Path(paths[7]), paths[7:8]):
        hits = index.search(query, k=5)
        scores = vectors @ vectors[7]
        expected = np.argsort(-scores)[:5]
        assert [h.path for h in hits] == [paths[i] for i in expected]
        np.testing.assert_allclose([h.score for h in hits], scores[expected], atol=2e-3)
    assert hits[0].width == 8 and hits[0].score == pytest.approx(1, abs=1e-3)


class Any_:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY: tuple[str, ...] = Any_()  # type: ignore[assignment]


def test_queries_of_every_kind(index: Index, photos: Photos, tmp_path: Path, tiny: Tiny) -> None:
    folder = photos(20)
    index.sync(folder)
    a, b = folder / "3.png", folder / "4.png"
    outside = paint(tmp_path / "outside.png", 3)  # the same picture as 3.png, not a member
    assert index.search(outside, k=1)[0].path == str(a)
    assert index.search(tiny(a)[0], k=1)[0].path == str(a)
    both = index.search([a, b], k=20)
    expected = unit(tiny([str(a), str(b)]).sum(0))
    assert {h.path for h in both[:2]} == {str(a), str(b)}
    assert both[0].score == pytest.approx(float(expected @ tiny(both[0].path)[0]), abs=2e-3)
    boxed = index.search(a, k=20, box=(0, 0, 4, 8))
    expected = tiny([str(a)], box=(0, 0, 4, 8))[0]
    assert boxed[0].score == pytest.approx(max(float(expected @ tiny(h.path)[0]) for h in boxed), abs=2e-3)
    assert len(index.search(a, k=1000)) == 20
    assert index.search(a, min_score=0.999)[0].path == str(a)
    assert str(a) in index and outside not in index


def test_query_expansion_is_the_papers(index: Index, photos: Photos, tiny: Tiny) -> None:
    folder = photos(30)
    index.sync(folder)
    paths = sorted(str(p) for p in folder.iterdir())
    vectors = tiny(paths).astype(np.float64)
    top = np.argsort(-vectors @ vectors[0])[:4]
    paper = unit(vectors[top].sum(0))
    weighed = unit(vectors[0] + ((vectors[top] @ vectors[0])[:, None].clip(0) ** 3 * vectors[top]).sum(0))
    for alpha, query in ((None, paper), (3.0, weighed)):
        hits = index.search(paths[0], k=6, expand=4, alpha=alpha)
        assert [h.path for h in hits] == [paths[i] for i in np.argsort(-vectors @ query)[:6]]
        np.testing.assert_allclose([h.score for h in hits], np.sort(vectors @ query)[::-1][:6], atol=2e-3)


def test_filters_by_folder_and_date(index: Index, photos: Photos) -> None:
    folder = photos(5)
    photos(5, "photos/sub", first=10)
    index.sync(folder)
    query = folder / "0.png"
    assert {h.path for h in index.search(query, under=folder / "sub")} == {str(p) for p in (folder / "sub").iterdir()}
    assert list(index.search(query, under=folder / "nothing")) == []
    assert list(index.search(query, after="2024")) == []
    with pytest.raises(SearchError, match="a date is written"):
        index.search(query, before="last week")


def test_sync_follows_adds_changes_moves_and_removals(index: Index, photos: Photos, tiny: Tiny) -> None:
    folder = photos(12)
    index.sync(folder)
    tiny.described = 0
    paint(folder / "new.png", 99)
    paint(folder / "1.png", 98)
    (folder / "2.png").rename(folder / "moved.png")
    (folder / "3.png").unlink()
    os.utime(folder / "4.png", (5, 5))  # touched, the bytes are the same
    (folder / "copy.png").write_bytes((folder / "5.png").read_bytes())
    (folder / "broken.png").write_bytes(b"no picture")
    report = index.sync()
    counts = (report.added, report.updated, report.moved, report.removed, report.unchanged, report.failed)
    assert counts == (2, 1, 1, 1, 9, 1)
    assert (
        report.failures[0].path == str(folder / "broken.png") and report.failures[0].reason == "UnidentifiedImageError"
    )
    assert tiny.described == 2  # new.png and 1.png; what moved or was copied is known by its bytes
    again = index.sync()
    assert (again.unchanged, again.skipped, again.failed, again.added) == (13, 1, 0, 0)
    paint(folder / "broken.png", 100)
    assert index.sync().added == 1 and index.store.failures() == {}
    for path in folder.glob("*.png"):
        np.testing.assert_allclose(index.vectors([path])[0], tiny(path)[0], atol=1e-6)


def test_two_files_that_change_places(index: Index, photos: Photos, tiny: Tiny) -> None:
    folder = photos(6)
    index.sync(folder)
    a, b = folder / "0.png", folder / "1.png"
    before = tiny([a, b])
    a.rename(folder / "t")
    b.rename(a)
    (folder / "t").rename(b)
    os.utime(a, (7, 7))
    os.utime(b, (8, 8))
    assert index.sync().updated == 2
    np.testing.assert_allclose(index.vectors([b, a]), before, atol=1e-6)


def test_an_unplugged_drive_is_no_reason_to_forget(index: Index, photos: Photos, tmp_path: Path) -> None:
    folder = photos(10)
    index.sync(folder)
    generation = index.store.generation
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"photos: no such folder; its 10 pictures stay in the index \(--prune"):
        index.sync()
    folder.mkdir()
    with pytest.raises(ValueError, match="10 of its 10 pictures are gone; none was forgotten"):
        index.sync()
    assert (index.store.generation, len(index)) == (generation, 10)
    report = index.sync(keep_missing=True)
    assert (report.missing, len(index)) == (10, 10)
    folder.rmdir()
    (tmp_path / "elsewhere").rename(folder)
    for i in (0, 1):
        (folder / f"{i}.png").unlink()
    assert index.sync().removed == 2  # a fifth is not more than a fifth
    for i in (2, 3):
        (folder / f"{i}.png").unlink()
    with pytest.raises(ValueError, match="2 of its 8"):
        index.sync()
    assert index.sync(prune=True).removed == 2
    assert len(index) == 6


def test_one_picture_of_a_few_may_go_but_not_the_last_or_two(index: Index, photos: Photos) -> None:
    folder = photos(4)
    index.sync(folder)
    (folder / "0.png").unlink()
    assert index.sync().removed == 1  # more than a fifth, but one alone
    for i in (1, 2):
        (folder / f"{i}.png").unlink()
    with pytest.raises(ValueError, match="2 of its 3 pictures are gone"):
        index.sync()
    assert index.sync(prune=True).removed == 2
    (folder / "3.png").unlink()
    with pytest.raises(ValueError, match="1 of its 1 pictures are gone"):
        index.sync()
    assert len(index) == 1


def test_a_mount_inside_that_is_gone_is_noticed(
    index: Index, photos: Photos, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = photos(30)
    photos(2, "photos/drive", first=50)
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: str(path) == str(folder / "drive"))
        index.sync(folder)
    for path in (folder / "drive").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="drive: the drive that was mounted here is gone"):
        index.sync()
    assert index.sync(prune=True).removed == 2
    assert index.sync().unchanged == 30


def test_a_folder_that_may_not_be_read_forgets_nothing(
    index: Index, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(20)
    photos(2, "photos/locked", first=50)
    index.sync(folder)
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = index.sync()
    assert (report.removed, report.missing, len(index)) == (0, 2, 22)


def test_what_would_not_mix_is_refused_by_name(index: Index, photos: Photos, tiny: Tiny, tmp_path: Path) -> None:
    index.sync(photos(5))
    path = index.store.address
    with pytest.raises(SearchError, match=r"made with crow, not with gem .*pool.kind: max / power-mean"):
        Index.open(path, describer=Tiny(RECIPES["gem"]))
    other = Tiny()
    other.weights = "others"  # type: ignore[misc]
    with pytest.raises(SearchError, match="made with network weights tiny, not others"):
        Index.open(path, describer=other)
    fast = Tiny()
    fast.precision = "fast"  # type: ignore[misc]
    with pytest.raises(SearchError, match="made with precision exact, not fast"):
        Index.open(path, describer=fast)
    learned = Whitening.fit(np.random.default_rng(0).random((50, DIM)), 4, RECIPES["gem"])
    with pytest.raises(SearchError, match="learned on gem vectors, the index holds crow"):
        index.rewhiten(to=learned)
    with pytest.raises(SearchError, match="learned on gem"):
        Index.create(tmp_path / "b.crow", recipe="crow", whitening=learned)
    assert not (tmp_path / "b.crow").exists()
    with pytest.warns(UserWarning, match="another picture size"):
        Index.create(tmp_path / "b.crow", "crow", replace(learned, recipe=RECIPES["crow"].sized("original"))).close()
    with pytest.raises(StoreError, match="is there already"):
        Index.create(path)


def test_rewhitening_is_the_whitening_of_the_raw_vectors(index: Index, photos: Photos, tiny: Tiny) -> None:
    folder = photos(60)
    assert any("no whitening below 1,000" in note for note in index.sync(folder).notes)
    paths = sorted(str(p) for p in folder.iterdir())
    raw = tiny(paths)
    tiny.described = 0
    learned = index.rewhiten(dim=6)
    expected = Whitening.fit(raw.astype(np.float64), 6, index.recipe)(raw)
    order = np.argsort(-expected @ expected[3])[:8]
    hits = index.search(paths[3], k=8)
    np.testing.assert_allclose([h.score for h in hits], (expected @ expected[3])[order], atol=3e-3)
    assert learned is not None and (learned.dim, learned.count, tiny.described) == (6, 60, 0)
    with pytest.raises(ValueError, match="rank"):
        index.rewhiten(dim=61)
    index.rewhiten(to="none")
    np.testing.assert_allclose(index.search(paths[3], k=60)[-1].score, (raw @ raw[3]).min(), atol=2e-3)
    index.rewhiten(to=learned)
    assert index.rewhiten(dim=3).dim == 3  # type: ignore[union-attr]
    assert index.store.settings()["policy"] == "file"


def test_a_large_collection_whitens_itself_and_says_so(
    index: Index, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "ENOUGH", 30)
    monkeypatch.setattr(policy, "SELF_DIM", 6)
    assert index.sync(photos(29)) and index.whitening is None
    notes = index.sync(photos(30)).notes
    assert any("whitened with what 30 pictures" in note and "6 dimensions" in note for note in notes)
    assert index.whitening is not None and index.whitening.dim == 6
    assert index.sync(photos(40)).notes == ()  # learned once: scores stay comparable until someone rewhitens
    assert len(index.search(photos(1) / "0.png", k=40)) == 40


def test_a_small_collection_that_whitens_itself_keeps_few_dimensions(index: Index, photos: Photos) -> None:
    """With every dimension that 20 pictures vary in, all of them would be equally far apart: -1/19 each."""
    folder = photos(20)
    index.sync(folder)
    learned = index.rewhiten(to="self")
    assert learned is not None and learned.dim == 5
    scores = [hit.score for hit in index.search(folder / "0.png", k=20)][1:]
    assert max(scores) - min(scores) > 0.5


def test_readers_follow_a_writer_and_its_whitening(index: Index, photos: Photos) -> None:
    folder = photos(10)
    with Index.open(index.store.address) as reader:
        assert list(reader.search(np.ones(DIM, np.float32))) == []
        index.sync(folder)
        assert len(reader.search(folder / "0.png", k=99)) == 10
        index.rewhiten(4)
        assert reader.search(folder / "0.png").vector.shape == (4,)  # type: ignore[union-attr]
        photos(12)
        index.sync()
        assert len(reader.search(folder / "11.png", k=99)) == 12


def test_an_index_that_was_searched_while_it_was_empty(index: Index, tiny: Tiny, photos: Photos) -> None:
    folder = photos(3)
    assert list(index.search(folder / "0.png")) == []
    index.store.upsert([Row(str(folder / "0.png"), tiny(folder / "0.png")[0])])
    assert [hit.path for hit in index.search(folder / "0.png")] == [str(folder / "0.png")]


def test_bad_input_is_a_clear_line(index: Index, photos: Photos, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert repr(index) == f"Index({tmp_path / 'a.crow'}, crow, 0 pictures)"
    with pytest.raises(SearchError, match="no folder was ever given"):
        index.sync()
    assert index.sync(empty).added == 0
    folder = photos(5)
    index.sync(folder)
    for query, message in (
        (np.full(DIM, np.nan, np.float32), "NaN"),
        (np.full(DIM, np.inf, np.float32), "NaN or infinity"),
        (np.zeros(DIM, np.float32), "zero"),
        (np.ones(DIM + 1, np.float32), str(DIM)),
        ([], "at least one query"),
        (tmp_path / "none.jpg", "neither in the index nor a file"),
    ):
        with pytest.raises(ValueError, match=message):
            index.search(query)
    with pytest.raises(SearchError, match="k is at least 1"):
        index.search(folder / "0.png", k=0)
    with pytest.raises(SearchError, match="no recipe"):
        Index(type(index.store).create(tmp_path / "bare.crow"))


def test_names_with_newlines_and_undecodable_bytes(index: Index, photos: Photos) -> None:
    folder = photos(6)
    strange = [os.fsdecode(b"caf\xe9 \xff.png"), "a\nb.png", "\u200b  .png", "'; DROP TABLE images; --.png"]
    for i, name in enumerate(strange):
        paint(folder / name, 100 + i)
    assert index.sync(folder).added == 10
    for name in strange:
        assert index.search(folder / name, k=1)[0].path == str(folder / name)
        (folder / name).unlink()
    assert index.sync(prune=True).removed == 4


def test_nothing_heavy_is_imported_for_an_unchanged_folder_and_a_member(index: Index, photos: Photos) -> None:
    folder = photos(10)
    index.sync(folder)
    script = f"""
import sys
import crow
index = crow.Index.open({index.store.address!r})
assert index.sync().unchanged == 10
assert index.search({str(folder / "3.png")!r}, k=3)[0].path.endswith("3.png")
print([name for name in ("torch", "crow.extract.describer", "openvino") if name in sys.modules])
"""
    environment = os.environ | {"PYTHONPATH": str(Path(policy.__file__).parents[2])}
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert (out.stdout, out.returncode) == ("[]\n", 0), out.stderr


def test_approximate_search_when_it_is_asked_for(index: Index, photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(300)
    with pytest.raises(SearchError, match="there are: ivf-pq, hnsw"):
        index.approximate("best")
    index.sync(folder)
    with pytest.raises(SearchError, match="no approximate search was built"):
        index.search(folder / "3.png", approx=True)
    monkeypatch.setattr(approximate, "LEAST", 200)
    index.approximate("hnsw")
    assert any("measured recall@10" in note for note in index.sync().notes)
    assert index.sync().notes == ()  # it is not built again for nothing
    exact = index.search(folder / "3.png")
    quick = index.search(folder / "3.png", approx=True)
    assert len({h.path for h in exact} & {h.path for h in quick}) >= 8
    paint(folder / "new.png", 999)
    index.sync()
    assert index.search(folder / "new.png", approx=True)[0].path == str(folder / "new.png")
    (folder / "new.png").unlink()
    index.sync()
    assert str(folder / "new.png") not in {h.path for h in index.search(folder / "3.png", k=301, approx=True)}
