from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crow.evaluate.datasets import load
from crow.evaluate.foreign import of_features, of_ranks
from crow.evaluate.run import EvaluationError, Settings, SettingsError

PLAIN = Settings(())


@pytest.fixture
def groups(lay):
    return load("groups", lay("groups"))


def perfect(dataset):
    """Vectors that put the pictures of one folder on one axis."""
    folders = sorted({name.split("/")[0] for name in dataset.images})
    rows = np.zeros((len(dataset.images), len(folders)), np.float32)
    for i, name in enumerate(dataset.images):
        rows[i, folders.index(name.split("/")[0])] = 1
    return rows


def test_vectors_of_anybody(groups, tmp_path):
    file = tmp_path / "x.npz"
    rows = perfect(groups) + np.float32(0.01)
    order = np.random.default_rng(0).permutation(len(rows))
    paths = np.array([str(path) for path in groups.images.values()])
    np.savez(file, paths=paths[order], vectors=3 * rows[order])
    found = of_features(groups, file, PLAIN)
    record = found.results[0].record
    assert record["map"] == 1 and record["recipe"] == "x.npz" and record["dim"] == rows.shape[1]
    assert (record["queries"], record["images"]) == (6, 9) and not found.amiss
    np.savez(file, paths=paths[:-2], vectors=rows[:-2])
    short = of_features(groups, file, PLAIN)
    assert short.results[0].record["queries"] == 5
    assert any("no vector in x.npz" in line for line in short.amiss)


def test_queries_with_vectors_of_their_own(lay, tmp_path):
    dataset = load("roxford5k", lay("roxford5k"))
    names = list(dataset.images)
    rows = np.eye(8, dtype=np.float32)
    queries = np.stack([rows[0] + 0.5 * rows[1] + 0.4 * rows[2], rows[5] + 0.5 * rows[6]])
    file = tmp_path / "x.npz"
    np.savez(file, paths=names, vectors=rows, query_paths=[q.path.name for q in dataset.queries], query_vectors=queries)
    easy, medium, hard = of_features(dataset, file, PLAIN).results
    assert (easy.record["setting"], easy.record["map"], easy.record["queries"]) == ("easy", 1, 1)
    assert medium.record["map"] == 1 and hard.record["map"] == 1 and hard.record["queries"] == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"vectors": np.eye(2)}, "holds no array 'paths'"),
        ({"paths": ["a"], "vectors": np.eye(2)}, r"its vectors \(2, 2\) are not one row for each of paths"),
        ({"paths": ["a", "b"], "vectors": np.eye(2) * np.nan}, "row 0 of vectors is not finite"),
        ({"paths": ["a", "b"], "vectors": np.eye(2)}, "holds no picture of groups"),
        ({"paths": np.array([{}, {}]), "vectors": np.eye(2)}, r"not an \.npz of paths and vectors"),
    ],
)
def test_bad_vectors_are_named(groups, tmp_path, arrays, message):
    file = tmp_path / "x.npz"
    np.savez(file, **arrays)
    with pytest.raises(EvaluationError, match=f"x.npz.*{message}"):
        of_features(groups, file, PLAIN)
    file.write_text("<html>")
    with pytest.raises(EvaluationError, match=r"x\.npz: not an \.npz"):
        of_features(groups, file, PLAIN)
    with pytest.raises(SettingsError, match="reduced by a whitening from a file"):
        of_features(groups, file, Settings((), dims=(2,)))


def test_rankings_of_anybody(groups, tmp_path):
    """Each query's ranking is worked out by hand: one wrong one between the two right ones."""
    queries, names = [q.name for q in groups.queries], list(groups.images)
    lines = []
    for query in queries:
        right = [n for n in names if n.split("/")[0] == query.split("/")[0] and n != query]
        lines.append([query, right[0], "_distractors/0.jpg", right[1]])
    text = tmp_path / "ranks.txt"
    text.write_text("\n".join(" ".join(line) for line in lines))
    expected = (1 + (1 / 2 + 2 / 3) / 2) / 2
    assert of_ranks(groups, text).results[0].record["map"] == pytest.approx(expected)
    numbers = tmp_path / "ranks.npy"
    np.save(numbers, np.array([[names.index(name) for name in line[1:]] for line in lines]))
    assert of_ranks(groups, numbers).results[0].record["map"] == pytest.approx(expected)
    text.write_text("\n".join("\t".join(line[:2]) for line in lines[1:]))  # cut short: the second one never found
    short = of_ranks(groups, text)
    assert short.results[0].record["map"] == pytest.approx(1 / 2) and short.results[0].record["queries"] == 5
    assert short.amiss == [f"{queries[0]}: no ranking in ranks.txt"]


def test_bad_rankings_are_named(groups, tmp_path):
    file = tmp_path / "ranks.txt"
    query = groups.queries[0].name
    for content, message in (
        (f"{query} nowhere.jpg", r"ranks\.txt, line 1: groups has no picture named 'nowhere\.jpg'"),
        (f"{query} thing60/1.jpg thing60/1.jpg", f"ranks a picture twice for {query}"),
        ("", "ranks nothing for any query of groups"),
    ):
        file.write_text(content)
        with pytest.raises(EvaluationError, match=message):
            of_ranks(groups, file)
    numbers = tmp_path / "ranks.npy"
    for array, message in (
        (np.zeros((2, 2)), r"float64 \(2, 2\) is not integers"),
        (np.full((6, 1), 9), "its places reach from 9 to 9, not from 0 to 8"),
        (np.array([{}]), r"not an \.npy of integers"),
    ):
        np.save(numbers, array, allow_pickle=True)
        with pytest.raises(EvaluationError, match=message):
            of_ranks(groups, numbers)
    with pytest.raises(EvaluationError, match="not a text file"):
        of_ranks(groups, Path(tmp_path / "none.txt"))
