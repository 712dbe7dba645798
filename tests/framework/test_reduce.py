"""Step 6 against scikit-learn, and what must never happen: a silent NaN, a blown-up axis, a foreign file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from sklearn.decomposition import PCA

from crow.framework import reduce as room
from crow.framework.reduce import Moments, Whitening, WhiteningError, reduce
from crow.recipe import RECIPES, Norm, Recipe, Size

CROW = RECIPES["crow"]


def vectors(count: int = 400, width: int = 32, rank: int | None = None, seed: int = 0) -> np.ndarray:
    """Unit rows around a common direction, variances falling as those of real CroW vectors do; float32."""
    dice = np.random.default_rng(seed)
    rank = width if rank is None else rank
    turn = np.linalg.qr(dice.normal(size=(width, width)))[0][:rank]
    rows = dice.normal(size=(count, rank)) * np.arange(1, rank + 1) ** -0.6 @ turn
    rows = rows + 1.5 * turn[0]
    return (rows / np.sqrt((rows * rows).sum(1, keepdims=True))).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    return np.array([row / np.sqrt(sum(value * value for value in row)) for row in rows])


def same_up_to_sign(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours, theirs * signs, atol=tolerance)


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return vectors(5000, 512)


@pytest.mark.parametrize("whiten", [True, False])
def test_equals_scikit_learn(many: np.ndarray, whiten: bool) -> None:
    peer = PCA(whiten=whiten, svd_solver="full").fit(many.astype(np.float64))
    learned = Whitening.fit(many, whiten=whiten)
    assert learned.dim == 512 and learned.count == 5000 and learned.whitened is whiten
    np.testing.assert_allclose(learned.variances, peer.explained_variance_, rtol=1e-8)
    fresh = vectors(300, 512, seed=1)
    for rows in (many, fresh):
        theirs = peer.transform(rows.astype(np.float64))
        same_up_to_sign(learned(rows), unit(theirs), 1e-5)
        same_up_to_sign(Whitening.fit(many, 128, whiten=whiten)(rows), unit(theirs[:, :128]), 1e-5)


def test_what_comes_out() -> None:
    rows = vectors()
    given = rows.copy()
    out = Whitening.fit(rows, 8)(rows)
    assert out.dtype == np.float32 and out.shape == (400, 8)
    np.testing.assert_allclose((out * out).sum(1), 1, atol=1e-6)
    np.testing.assert_array_equal(rows, given)


def test_before_the_last_norm_every_axis_varies_alike_and_by_itself() -> None:
    rows = vectors(3000, 16).astype(np.float64)
    learned = Whitening.fit(rows)
    plain = reduce(rows, learned.mean, learned.projection, Norm("none"))
    np.testing.assert_allclose(np.cov(plain, rowvar=False), np.eye(16), atol=1e-8)
    np.testing.assert_allclose(plain.mean(0), 0, atol=1e-9)


def test_the_recipes_final_norm_is_used() -> None:
    rows = vectors()
    learned = Whitening.fit(rows, 8, recipe=replace(CROW, final=Norm("l1")))
    np.testing.assert_allclose(abs(learned(rows)).sum(1), 1, atol=1e-6)


def test_reduce_is_the_same_in_torch_and_numpy() -> None:
    rows = vectors().astype(np.float64)
    learned = Whitening.fit(rows, 8)
    parts = [torch.from_numpy(array.copy()) for array in (rows, learned.mean, learned.projection)]
    by_numpy = reduce(rows, learned.mean, learned.projection, Norm())
    np.testing.assert_allclose(reduce(*parts, Norm()).numpy(), by_numpy, rtol=1e-12)


# --- streams, pieces, machines


def chunks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
def test_a_stream_of_chunks_equals_all_at_once(size: int) -> None:
    rows = vectors()
    at_once, streamed = Whitening.fit(rows, 16), Whitening.fit(chunks(rows, size), 16)
    assert streamed.count == at_once.count
    np.testing.assert_allclose(streamed(rows), at_once(rows), atol=1e-6)


def test_nothing_larger_than_a_chunk_is_held_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    add = Moments.add
    monkeypatch.setattr(room, "CHUNK", 50)
    monkeypatch.setattr(Moments, "add", lambda self, rows: held.append(len(rows)) or add(self, rows))
    rows = vectors()
    np.testing.assert_allclose(
        Whitening.fit([rows[:170], rows[170:]], 16)(rows), Whitening.fit(rows, 16)(rows), atol=1e-6
    )
    assert max(held) == 50 and sum(held) == 800


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 120), max_size=6), st.randoms())
def test_moments_merged_in_any_split_and_order(cuts: list[int], random) -> None:
    rows = vectors(120, 12).astype(np.float64) * 3 + 5
    pieces = [Moments().add(part) for part in np.split(rows, sorted(cuts))]
    random.shuffle(pieces)
    while len(pieces) > 1:
        pieces.append(pieces.pop(0).merge(pieces.pop(0)))
    merged = pieces[0]
    assert merged.count == 120
    np.testing.assert_allclose(merged.mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(merged.scatter / 119, np.cov(rows, rowvar=False), rtol=1e-6, atol=1e-9)


def test_moments_are_exact_far_from_the_origin() -> None:
    rows = vectors(500, 8).astype(np.float64)
    far = Moments()
    for chunk in chunks(rows + 1e4, 13):
        far = far.add(chunk)
    np.testing.assert_allclose(far.scatter, Moments().add(rows).scatter, rtol=1e-6, atol=1e-8)


def test_moments_are_values() -> None:
    first, second = Moments().add(vectors(10)), Moments().add(vectors(20, seed=1))
    kept = first.mean.copy(), first.scatter.copy()
    both = first.merge(second)
    assert (first.count, second.count, both.count) == (10, 20, 30)
    np.testing.assert_array_equal(first.mean, kept[0])
    np.testing.assert_array_equal(first.scatter, kept[1])


def test_the_same_vectors_give_the_same_bytes() -> None:
    assert Whitening.fit(vectors(), 8, CROW).to_bytes() == Whitening.fit(vectors(), 8, CROW).to_bytes()


def test_axes_have_a_sign_of_their_own() -> None:
    rows = vectors()
    np.testing.assert_allclose(Whitening.fit(rows[::-1], 16)(rows), Whitening.fit(rows, 16)(rows), atol=1e-5)


def test_to_dim_is_the_fit_of_that_dim() -> None:
    rows = vectors()
    cut, fitted = Whitening.fit(rows, 16, CROW).to_dim(4), Whitening.fit(rows, 4, CROW)
    assert cut.to_bytes() == fitted.to_bytes() and cut.fingerprint == fitted.fingerprint
    with pytest.raises(WhiteningError, match="dim 5 is not between 1 and 4, which is what this whitening holds"):
        cut.to_dim(5)


# --- refusals


def test_refuses_a_dim_beyond_the_rank() -> None:
    with pytest.raises(WhiteningError, match="dim 33 is not between 1 and the rank 32 of these 400 vectors of 32 dim"):
        Whitening.fit(vectors(), 33)
    with pytest.raises(WhiteningError, match="dim 11 is not between 1 and the rank 10 of these 400 vectors"):
        Whitening.fit(vectors(rank=10), 11)
    with pytest.raises(WhiteningError, match="dim 10 is not between 1 and the rank 9 of these 10 vectors"):
        Whitening.fit(vectors(10), 10)
    with pytest.raises(WhiteningError, match="dim 0 is not between 1 and the rank 32"):
        Whitening.fit(vectors(), 0)
    assert Whitening.fit(vectors(10)).dim == 9


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite_and_names_the_row(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = vectors()
    rows[273, 5] = rows[301, 0] = value
    for source in (rows, chunks(rows, 100)):
        with pytest.raises(WhiteningError, match="row 273 holds NaN or infinity"):
            Whitening.fit(source)
    monkeypatch.setattr(room, "CHUNK", 64)
    with pytest.raises(WhiteningError, match="row 273 holds NaN or infinity"):
        Whitening.fit(rows)


def test_refuses_too_few_rows() -> None:
    for few in (vectors(1), vectors(1)[:0], []):
        with pytest.raises(WhiteningError, match=f"learned from at least 2 vectors, not {len(few)}"):
            Whitening.fit(few)


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3])
def test_refuses_vectors_that_are_all_alike(value: float) -> None:
    same = np.full((100, 32), value, np.float32)
    same[:, 3] = 0.1
    with pytest.raises(WhiteningError, match="these 100 vectors are all alike"):
        Whitening.fit(same)
    with pytest.raises(WhiteningError, match="these 100 vectors are all alike"):
        Whitening.fit(chunks(same, 7))


def test_refuses_shapes_that_do_not_fit() -> None:
    learned = Whitening.fit(vectors(), 8)
    for wrong in (vectors(width=31), vectors()[0], vectors()[None]):
        with pytest.raises(WhiteningError, match=r"this whitening takes vectors \(n, 32\), not \("):
            learned(wrong)
    with pytest.raises(WhiteningError, match=r"finite vectors \(n, K\): shape \(32,\)"):
        Whitening.fit([vectors()[0]])
    with pytest.raises(WhiteningError, match="vectors of 32 and of 31 dimensions do not mix"):
        Whitening.fit([vectors(), vectors(width=31)])
    assert learned(vectors()[:0]).shape == (0, 8)


def test_vectors_of_another_recipe_are_refused_by_name() -> None:
    rows = vectors()
    learned = Whitening.fit(rows, 8, recipe=CROW)
    with pytest.raises(WhiteningError) as error:
        learned(rows, RECIPES["ucrow+sw"])
    assert "learned on crow vectors and these are ucrow+sw (channel.kind: sparsity / uniform)" in str(error.value)
    with pytest.raises(WhiteningError, match=r"view.network: vgg16 / vgg19"):
        learned(rows, CROW.set("view.network=vgg19"))
    with pytest.raises(WhiteningError, match=r"spatial.a: 2.0 / 1.0"):
        learned(rows, CROW.set("a=1").sized("original"))


def test_another_size_or_name_alone_is_let_through() -> None:
    rows = vectors()
    learned = Whitening.fit(rows, 8, recipe=CROW)
    for recipe in (CROW, None, CROW.sized("original"), CROW.sized(Size("square", 586)), replace(CROW, name="mine")):
        np.testing.assert_array_equal(learned(rows, recipe), learned(rows))
    assert Whitening.fit(rows, 8)(rows, RECIPES["gem"]).shape == (400, 8)


# --- directions of almost no variance


def degenerate(how: str) -> tuple[np.ndarray, int]:
    """Vectors with axes that carry nothing, and how many axes carry something."""
    rows = vectors(600, 16)
    if how == "duplicate columns":
        return np.concatenate([rows, rows[:, :5]], 1), 16
    if how == "constant columns":
        return np.concatenate([rows, np.full((600, 6), 0.3, np.float32)], 1), 16
    if how == "zero columns":
        return np.concatenate([rows, np.zeros((600, 6), np.float32)], 1), 16
    if how == "a subspace in float32":
        return vectors(600, 64, rank=16), 16
    if how == "nearly one picture":  # what the rows share is ten thousand times what tells them apart
        spread = vectors(600, 64, rank=16) - vectors(600, 64, rank=16).mean(0)
        return (0.125 + 1e-4 * spread).astype(np.float32), 16
    raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["duplicate columns", "constant columns", "zero columns", "a subspace in float32", "nearly one picture"]
)
def test_axes_that_carry_nothing_are_not_blown_up(how: str) -> None:
    rows, rank = degenerate(how)
    learned = Whitening.fit(rows)
    assert learned.dim == rank
    with pytest.raises(WhiteningError, match=f"the rank {rank} of these 600"):
        Whitening.fit(rows, rank + 1)
    out = learned(rows)
    assert np.isfinite(out).all()
    jitter = np.random.default_rng(1).normal(size=rows.shape) * 1e-7 * abs(rows).max()
    if how != "nearly one picture":
        np.testing.assert_allclose(learned((rows + jitter).astype(np.float32)), out, atol=1e-4)


def test_the_mean_picture_gives_a_zero_vector_not_nan() -> None:
    learned = Whitening.fit(vectors(), 8)
    np.testing.assert_array_equal(learned(learned.mean[None]), np.zeros((1, 8), np.float32))


# --- files


def test_save_and_load(tmp_path: Path) -> None:
    rows = vectors()
    for recipe in (CROW, CROW.set("a=inf").sized("original"), None):
        for whiten in (True, False):
            learned = Whitening.fit(rows, 8, recipe, whiten, source="photos of Zürich, 'old' ones")
            learned.save(tmp_path / "w.safetensors")
            again = Whitening.load(str(tmp_path / "w.safetensors"))
            assert again.recipe == recipe and again.whitened is whiten
            assert (again.count, again.dim, again.source) == (400, 8, "photos of Zürich, 'old' ones")
            assert again.fingerprint == learned.fingerprint and again.to_bytes() == learned.to_bytes()
            np.testing.assert_array_equal(again(rows), learned(rows))
            np.testing.assert_array_equal(again.variances, learned.variances)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_fingerprints_tell_whitenings_apart() -> None:
    rows = vectors()
    made = [
        Whitening.fit(rows, 8, CROW),
        Whitening.fit(rows, 9, CROW),
        Whitening.fit(rows, 8, RECIPES["gem"]),
        Whitening.fit(rows, 8),
        Whitening.fit(rows, 8, CROW, whiten=False),
        Whitening.fit(rows[:-1], 8, CROW),
        Whitening.fit(rows, 8, CROW, source="elsewhere"),
    ]
    assert len({w.fingerprint for w in made}) == len(made)


def test_foreign_and_cut_files_are_refused_by_name(tmp_path: Path) -> None:
    whole = Whitening.fit(vectors(), 8, CROW).to_bytes()
    foreign = save({"mean": np.zeros(3)})
    labelled = save({"mean": np.zeros(3)}, {"format": "pt"})
    for number, data in enumerate(
        (b"", b"\xff\xd8\xff\xe0 a photograph", whole[:5], whole[:-1], whole[:900], foreign, labelled)
    ):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(data)
        with pytest.raises(WhiteningError, match=f"{number}.safetensors: not a whitening that crow wrote"):
            Whitening.load(path)
    for absent in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(WhiteningError, match=f"{absent.name}: no such file"):
            Whitening.load(absent)


def test_any_flipped_bit_is_noticed() -> None:
    whole = Whitening.fit(vectors(width=12), 3, CROW).to_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(WhiteningError):
            Whitening.from_bytes(bytes(damaged))


def test_a_recipe_of_another_version_is_refused_by_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = {**CROW.to_dict(), "colour": 1}
    monkeypatch.setattr(Recipe, "to_dict", lambda self: newer)
    Whitening.fit(vectors(), 8, CROW).save(tmp_path / "new.safetensors")
    with pytest.raises(WhiteningError, match=r"new.safetensors: this is not a recipe of this version"):
        Whitening.load(tmp_path / "new.safetensors")


def test_a_failed_save_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    Whitening.fit(vectors(), 8).save(path)
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        Whitening.fit(vectors(), 9).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
