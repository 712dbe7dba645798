"""A file that is replaced is the old one or the new one, and nothing stays beside it; what a power cut leaves, the torture tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crow.evaluate.maps import KeptMaps
from crow.files import replacing


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for text in ("one", "two"):
        with replacing(file) as half:
            half.write_text(text)
            assert half.parent == file.parent and (text == "one") != file.exists()
        assert file.read_text() == text and list(tmp_path.iterdir()) == [file]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(RuntimeError), replacing(file) as half:
        half.write_text("half of the new")
        raise RuntimeError
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


class Counting:
    """An engine that counts its maps."""

    name, precision, device, window, made = "counting", "exact", "cpu", 1, 0

    def maps(self, pictures):
        for picture in pictures:
            self.made += 1
            yield torch.from_numpy(np.asarray(picture, np.float32).transpose(2, 0, 1)[None].copy())


@pytest.mark.parametrize("spoil", [lambda d: b"", lambda d: d[:100], lambda d: d[:150] + b"!" + d[151:]])
def test_a_damaged_map_is_made_again(tmp_path: Path, spoil) -> None:
    engine, picture = Counting(), np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    kept = KeptMaps(engine, tmp_path)
    (expected,) = kept.maps([picture])
    (again,) = kept.maps([picture])
    assert engine.made == 1 and torch.equal(expected, again)
    (file,) = tmp_path.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    for _ in range(2):
        (found,) = kept.maps([picture])
        assert torch.equal(found, expected) and engine.made == 2
