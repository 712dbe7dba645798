"""Whole evaluations of drawn datasets through the real network, tiny pictures at 64 pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crow.evaluate.datasets import Query, load
from crow.evaluate.features import Item, Machine, tables
from crow.evaluate.run import Settings, SettingsError, cropped, evaluate
from crow.evaluate.teach import NOBODY, teacher_for
from crow.extract.engines import REVISIONS
from crow.extract.engines.torch import TorchEngine
from crow.recipe import RECIPES

CROW, UCROW, RMAC = (RECIPES[name].sized("64") for name in ("crow", "ucrow", "rmac"))
REGIONAL = RECIPES["rmac-regional"].sized("64")


def by_hand(dataset, crop=None):
    """mAP of CroW vectors, told again: a describer of one picture at a time, NumPy's own sort, the AP of a textbook."""
    from crow import Describer

    describer = Describer(CROW)
    images = {name: describer(path)[0].astype(float) for name, path in dataset.images.items()}
    aps = []
    for query in dataset.queries:
        vector = describer(query.path, box=query.box)[0]
        ranked = sorted(images, key=lambda name, v=vector: -float(np.dot(images[name], v)))
        right = query.labels.get("good", set()) | query.labels.get("ok", set()) | query.labels.get("group", set())
        out = query.labels.get("self", set()) | query.labels.get("junk", set())
        ranked = [name for name in ranked if name not in out]
        hits, ap, before = 0, 0.0, 1.0
        for place, name in enumerate(ranked, 1):
            hits += name in right
            if name in right:
                ap += (before + hits / place) / 2
            before = hits / place
        aps.append(ap / len(right - query.labels.get("self", set())))
    return np.mean(aps)


@pytest.mark.parametrize("name", ["oxford5k", "groups"])
def test_map_is_that_of_a_second_telling(lay, own_cache, name):
    dataset = replace(load(name, lay(name)), upright="exif")
    evaluation = evaluate(dataset, Settings((CROW,)))
    assert evaluation.results[0].record["map"] == pytest.approx(by_hand(dataset), abs=1e-6)
    assert not evaluation.amiss


def test_several_recipes_in_one_pass_equal_each_alone_and_come_from_the_cache(lay, own_cache, monkeypatch):
    dataset = load("groups", lay("groups"))
    together = evaluate(dataset, Settings((CROW, UCROW, RMAC)))
    assert [r.record["recipe"] for r in together.results] == ["crow", "ucrow", "rmac"]
    items = [Item(path) for path in dataset.images.values()]
    kept = tables(items, [RMAC])[0].stack(items)
    from crow import Describer

    np.testing.assert_allclose(kept, Describer(RMAC)([item.path for item in items]), atol=1e-6)
    monkeypatch.setattr("crow.extract.describer.Describer.__init__", None)  # the network must not be needed
    twice = evaluate(dataset, Settings((CROW, CROW))).results
    assert twice[0].record["map"] == twice[1].record["map"] and twice[1].record["p"] == 1
    again = evaluate(dataset, Settings((CROW, UCROW, RMAC), expand=2))
    assert again.results[0].record["expand"] == 2
    repeated = evaluate(dataset, Settings((CROW, UCROW, RMAC)))
    assert [r.record for r in repeated.results] == [r.record for r in together.results]


@pytest.mark.parametrize("keep_maps", [False, True])
def test_a_revised_engine_makes_its_vectors_anew(lay, own_cache, monkeypatch, keep_maps):
    items = [Item(path) for path in load("groups", lay("groups")).images.values()]
    machine = Machine("torch", keep_maps=keep_maps)
    before = tables(items, [CROW], machine)[0].stack(items)
    maps, seen = TorchEngine.maps, []

    def fixed(engine, pictures):
        for x in maps(engine, pictures):
            seen.append(x)
            yield x + 1

    monkeypatch.setattr(TorchEngine, "maps", fixed)
    np.testing.assert_array_equal(tables(items, [CROW], machine)[0].stack(items), before)
    assert not seen
    monkeypatch.setitem(REVISIONS, "torch", 7)
    after = tables(items, [CROW], machine)[0].stack(items)
    assert len(seen) == len(items)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_array_equal(tables(items, [CROW], machine)[0].stack(items), after)
    assert len(seen) == len(items)


def test_kept_maps_change_nothing(lay, own_cache):
    dataset = load("groups", lay("groups"))
    items = [Item(path) for path in dataset.images.values()]
    machine = Machine(keep_maps=True)
    first = tables(items, [CROW], machine)[0].stack(items)
    assert len(list((own_cache / "maps").rglob("*.npz"))) == 9
    second = tables(items, [UCROW], machine)[0].stack(items)  # from the maps on disk
    from crow import Describer

    for rows, recipe in ((first, CROW), (second, UCROW)):
        np.testing.assert_allclose(rows, Describer(recipe)([item.path for item in items]), atol=1e-6)


def test_dims_are_the_first_axes_of_one_whitening(lay, own_cache):
    root = lay("groups")
    dataset = load("groups", root)
    teacher = teacher_for(str(lay("holidays")), dataset, root, (4, 2))
    evaluation = evaluate(dataset, Settings((CROW, REGIONAL), dims=(4, 2)), teacher)
    assert [(r.record["recipe"], r.record["dim"]) for r in evaluation.results] == [
        ("crow", 4),
        ("crow", 2),
        ("rmac-regional", 4),
        ("rmac-regional", 2),
    ]
    assert {r.record["whiten"] for r in evaluation.results} == {"holidays"}
    assert evaluation.results[2].record["against"] == "crow" and 0 < evaluation.results[2].record["p"] <= 1


def test_crops(lay, own_cache, tmp_path):
    query = Query("q", tmp_path / "q.jpg", (10.0, 20.0, 50.0, 60.0), {})
    assert cropped(query, "box") == Item(query.path, (10, 20, 50, 60))
    assert cropped(query, "released") == Item(query.path, (10, 20, 60, 80), "black")
    assert cropped(query, "none") == Item(query.path)
    dataset = load("oxford5k", lay("oxford5k"))
    vectors = [
        tables([item], [CROW])[0].rows[item]
        for item in (cropped(dataset.queries[0], crop) for crop in ("box", "released", "none"))
    ]
    assert len({row.tobytes() for row in vectors}) == 3


def test_a_csv_of_turns_is_the_turned_picture(lay, own_cache, tmp_path):
    from PIL import Image

    root = lay("holidays")
    straight = evaluate(load("holidays", root), Settings((CROW,), upright="none")).results[0].record["map"]
    file = root / "jpg" / "100001.jpg"
    pixels = np.array(Image.open(file))
    Image.fromarray(np.rot90(pixels)).save(file.with_suffix(".png"))  # lossless, lying on its left side
    file.with_suffix(".png").rename(file)
    turns = tmp_path / "turns.csv"
    turns.write_text("name,degrees\n100001.jpg,90\n")
    found = evaluate(load("holidays", root), Settings((CROW,), upright=str(turns))).results[0].record
    assert found["map"] == pytest.approx(straight, abs=1e-6) and found["upright"] == str(turns)


def test_pictures_that_do_not_decode_are_counted_and_named(lay, own_cache):
    root = lay("oxford5k").parent
    lay("oxford100k")
    dataset = load("oxford5k", root).with_distractors(load("oxford100k", root).images.values())
    (root / "oxford5k" / "images" / "oxford_000003.jpg").write_bytes(b"")
    evaluation = evaluate(dataset, Settings((CROW,)))
    record = evaluation.results[0].record
    assert (record["images"], record["failed"], record["distractors"], record["queries"]) == (20, 2, 7, 4)
    assert sum("oxford_000003.jpg" in line or "oxc1_000009.jpg" in line for line in evaluation.amiss) == 2


def test_settings_that_do_not_go_together(lay):
    dataset = load("groups", lay("groups"))
    with pytest.raises(SettingsError, match="a dim needs something to learn the reduction on"):
        evaluate(dataset, Settings((CROW,), dims=(4,)))
    with pytest.raises(SettingsError, match="no crop named 'square'; there are: box, released, none"):
        evaluate(dataset, Settings((CROW,), crop="square"))
    skipped = evaluate(dataset, Settings((REGIONAL,)))
    assert not skipped.results and skipped.skipped[0].startswith("rmac-regional: needs pictures")


def test_teachers(lay):
    root = lay("groups")
    dataset = load("groups", root)
    assert teacher_for(None, dataset, root) == NOBODY
    assert teacher_for(None, dataset, root, (4,)).name == "self"
    from crow.evaluate.datasets import DatasetError

    oxford = load("oxford5k", lay("oxford5k"))
    with pytest.raises(DatasetError, match=r"to learn the whitening on: paris6k.*--whiten takes another set, or none"):
        teacher_for(None, oxford, root)
    with pytest.raises(DatasetError, match=r"--whiten nothing: no such folder or file, and neither a dataset"):
        teacher_for("nothing", dataset, root)
