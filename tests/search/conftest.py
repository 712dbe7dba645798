"""What the tests of this floor share: a describer without a network, and folders of small pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import Tiny, paint


@pytest.fixture
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """A folder with pictures 0.png ... n-1.png; made once per name."""

    def make(count: int, name: str = "photos", first: int = 0) -> Path:
        for i in range(first, first + count):
            paint(tmp_path / name / f"{i}.png", i)
        return tmp_path / name

    return make
