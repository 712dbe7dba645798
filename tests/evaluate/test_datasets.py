from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crow.evaluate.datasets import DATASETS, PARIS_BROKEN, DatasetError, load
from crow.evaluate.pickles import PickleRefused


def test_oxford_as_unpacked(lay):
    dataset = load("oxford5k", lay("oxford5k").parent)
    assert len(dataset.images) == 15 and list(dataset.images) == sorted(dataset.images)
    assert [q.name for q in dataset.queries] == ["all_souls_1", "all_souls_2", "christ_church_1", "christ_church_2"]
    second = dataset.queries[1]
    assert second.path.name == "all_souls_000001.jpg" and second.box == (10.5, 8.2, 100.9, 90.1)
    assert second.labels["good"] == {"all_souls_000000", "all_souls_000001"}
    assert second.labels["ok"] == {"all_souls_000002"} and second.labels["junk"] == {"all_souls_000003"}
    assert not dataset.remarks and not dataset.missing and dataset.upright == "none"


def test_paris_leaves_its_broken_files_out(lay):
    dataset = load("paris6k", lay("paris6k"))
    assert len(PARIS_BROKEN) == 20 and len(set(PARIS_BROKEN)) == 20
    assert dataset.broken == ("paris_louvre_000136", "paris_louvre_000146", "paris_pantheon_000284")
    assert len(dataset.images) == 12 and not set(dataset.broken) & set(dataset.images)
    assert [q.name for q in dataset.queries] == ["defense_1", "louvre_1", "pantheon_1"]


def test_oxford_and_paris_side_by_side(lay):
    lay("oxford5k"), lay("paris6k"), lay("holidays")
    root = lay("oxford100k").parent
    assert [len(load(name, root).images) for name in ("oxford5k", "paris6k", "holidays")] == [15, 12, 9]
    assert len(load("oxford100k", root).images) == 7


def test_holidays(lay):
    dataset = load("holidays", lay("holidays"))
    assert [q.name for q in dataset.queries] == ["100000", "100100", "100200"]
    assert dataset.queries[1].labels["group"] == {"100100", "100101", "100102"}
    assert dataset.upright == "exif" and dataset.queries[0].box is None


@pytest.mark.parametrize("name", ["roxford5k", "rparis6k"])
def test_revisited(lay, name):
    dataset = load(name, lay(name))
    assert len(dataset.images) == 8 and len(dataset.queries) == 2
    first, second = dataset.queries
    assert first.name not in dataset.images and first.path.stem == first.name
    assert first.box == (3.5, 4.5, 100.0, 90.0)
    names = list(dataset.images)
    assert first.labels == {"easy": {names[0]}, "hard": set(names[1:3]), "junk": {names[3]}}
    assert second.labels["easy"] == set()


def test_groups(lay):
    dataset = load("groups", lay("groups"))
    assert len(dataset.images) == 9 and len(dataset.queries) == 6 and dataset.distractors == 3
    assert dataset.queries[0].name == "thing60/0.jpg"
    assert not any("_distractors" in q.name for q in dataset.queries)
    more = dataset.with_distractors([Path("far/away.jpg")])
    assert len(more.images) == 10 and more.distractors == 4 and len(dataset.images) == 9


def test_unknown_names_and_empty_folders_are_named(tmp_path):
    with pytest.raises(DatasetError, match=r"no dataset named 'ukbench'; there are: oxford5k, paris6k"):
        load("ukbench", tmp_path)
    with pytest.raises(DatasetError, match="no such folder"):
        load("groups", tmp_path / "nowhere")
    for name in DATASETS:
        with pytest.raises(DatasetError, match=str(tmp_path) if name == "groups" else name):
            load(name, tmp_path)


def test_missing_ground_truth(lay):
    root = lay("oxford5k")
    (root / "gt_files_170407" / "all_souls_1_ok.txt").unlink()
    with pytest.raises(DatasetError, match=r"all_souls_1_ok\.txt: this list of the ground truth is missing"):
        load("oxford5k", root)
    shutil.rmtree(root / "gt_files_170407")
    with pytest.raises(DatasetError, match=r"oxford5k: no ground truth.*crow data oxford5k"):
        load("oxford5k", root)


def test_a_query_file_of_another_form(lay):
    root = lay("oxford5k")
    (root / "gt_files_170407" / "all_souls_1_query.txt").write_text("oxc1_all_souls_000000 1 2 three 4\n")
    with pytest.raises(DatasetError, match=r"all_souls_1_query\.txt: not of the form 'name xmin ymin xmax ymax'"):
        load("oxford5k", root)


def test_names_without_a_picture_are_counted_and_reported(lay):
    root = lay("oxford5k")
    (root / "images" / "all_souls_000002.jpg").unlink()
    (root / "images" / "christ_church_000000.jpg").unlink()
    dataset = load("oxford5k", root)
    assert dataset.missing == ("all_souls_000002", "christ_church_000000")
    assert dataset.remarks == ("christ_church_1: its picture christ_church_000000 is not there; the query is left out",)
    assert len(dataset.queries) == 3


def test_an_empty_positive_list_is_named(lay):
    root = lay("oxford5k")
    for label in ("good", "ok"):
        (root / "gt_files_170407" / f"all_souls_2_{label}.txt").write_text("")
    assert load("oxford5k", root).remarks == (
        "all_souls_2: its ground truth names nothing right; the query is left out",
    )


def test_two_different_copies_of_one_picture_are_refused(lay, draw_picture):
    root = lay("oxford5k")
    shutil.copytree(root / "images", root / "copy")
    assert len(load("oxford5k", root).images) == 15
    draw_picture(root / "copy" / "all_souls_000000.jpg", 99, 9)
    with pytest.raises(DatasetError, match=r"all_souls_000000\.jpg and .* differ"):
        load("oxford5k", root)


def test_a_damaged_ground_truth_pickle_is_named(lay):
    root = lay("roxford5k")
    file = root / "gnd_roxford5k.pkl"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(PickleRefused, match=r"gnd_roxford5k\.pkl: not a pickle of plain values"):
        load("roxford5k", root)
    file.write_bytes(b"<!DOCTYPE html><html>not found</html>")
    with pytest.raises(PickleRefused, match=r"gnd_roxford5k\.pkl"):
        load("roxford5k", root)
    file.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(DatasetError, match=r"not a ground truth of the revisited sets \(KeyError\('imlist'\)\)"):
        load("roxford5k", root)
