from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from crow.evaluate.pickles import PickleRefused, load


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back(tmp_path, protocol):
    value = {
        "lists": [[1, 2.5, None], ("a", True), b"bytes"],
        "floats": np.random.default_rng(0).random((3, 4)),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        "big-endian": np.arange(4, dtype=">i8"),
        "names": np.array(["one", "three"]),
        "flags": np.array([True, False]),
        "empty": np.array([], np.int64),
        "scalar": np.float32(0.25),
    }
    file = tmp_path / "plain.pkl"
    file.write_bytes(pickle.dumps(value, protocol))
    found = load(file)
    assert found["lists"] == value["lists"]
    for name in ("floats", "fortran", "big-endian", "names", "flags", "empty", "scalar"):
        np.testing.assert_array_equal(found[name], value[name])
        assert found[name].dtype == value[name].dtype


def test_the_older_names_of_numpy(tmp_path):
    """As NumPy 1 and Python 2 wrote them."""
    text = pickle.dumps(np.arange(3), protocol=0).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    file = tmp_path / "old.pkl"
    file.write_bytes(text)
    assert load(file).tolist() == [0, 1, 2]


class Command:
    """A pickle that would run a command."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def test_anything_else_is_refused_and_nothing_is_run(tmp_path):
    for i, value in enumerate(
        [Command(tmp_path / "ran"), np.array([Command(tmp_path / "ran")]), {1, 2}, Command, np.dtype("O")]
    ):
        file = tmp_path / f"{i}.pkl"
        file.write_bytes(pickle.dumps({"imlist": [value]}, 4))
        with pytest.raises(PickleRefused, match=f"{i}.pkl"):
            load(file)
    assert not (tmp_path / "ran").exists()
