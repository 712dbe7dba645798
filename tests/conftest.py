"""What tests of several floors share: real photographs and real weights, each skipped by name where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no photographs at {folder}")
    return folder


@pytest.fixture(scope="session")
def photos() -> Path:
    """Six scenes and distractors of their size, one sub-folder each."""
    return _folder("photos")


@pytest.fixture(scope="session")
def other_photos() -> Path:
    """500 photographs of other things, to learn whitenings on."""
    return _folder("photos-other")


@pytest.fixture(scope="session")
def vgg16() -> Path:
    """The real weights of vgg16, where `crow weights` has put them; tests download nothing by themselves."""
    from crow.extract.networks import keep
    from crow.extract.pretrained import cache_folder

    if not (cache_folder() / "vgg16.safetensors").is_file():
        pytest.skip("no weights of vgg16 in the cache: run crow weights")
    return keep("vgg16")[0]
