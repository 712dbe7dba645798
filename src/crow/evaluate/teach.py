"""What a whitening is learned on in an evaluation, and the whitening of regions that `rmac-regional` needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from crow.evaluate.datasets import DATASETS, Dataset, DatasetError, load
from crow.evaluate.features import HERE, Machine, Progress, every, file_digest
from crow.extract import engines
from crow.extract.images import PictureError, walk
from crow.extract.pretrained import cache_folder
from crow.framework.reduce import Moments, Whitening
from crow.recipe import Pool, Recipe

USUAL = {  # as the paper does: never on the dataset itself
    "oxford5k": "paris6k",
    "paris6k": "oxford5k",
    "roxford5k": "paris6k",
    "rparis6k": "oxford5k",
    "holidays": "oxford100k",
}


@dataclass(frozen=True)
class Teacher:
    """What a whitening is learned on: pictures, under a name; or one learned before; or nothing at all."""

    name: str
    pictures: tuple[Path, ...] = ()
    learned: Whitening | None = None

    def __bool__(self) -> bool:
        return bool(self.pictures) or self.learned is not None


NOBODY = Teacher("none")


def teacher_for(text: str | None, dataset: Dataset, data: Path, dims: tuple[int, ...] = ()) -> Teacher:
    """`none`, `self`, a dataset, a folder or a whitening file; where nothing is said, what the paper takes.

    For groups that is nothing, or the pictures themselves where dims are asked for.
    """
    text = USUAL.get(dataset.name, "self" if dims else "none") if text is None else text
    if text == "none":
        return NOBODY
    if text == "self":
        return Teacher("self", tuple(dataset.images.values()))
    if text in DATASETS and text != "groups":
        try:
            return Teacher(text, tuple(load(text, data).images.values()))
        except DatasetError as error:
            raise DatasetError(f"to learn the whitening on: {error}; --whiten takes another set, or none") from None
    path = Path(text)
    if path.is_dir():
        pictures = tuple(walk([path]))
        if not pictures:
            raise DatasetError(f"{path}: no pictures in it to learn a whitening on")
        return Teacher(path.name, pictures)
    if path.is_file():
        return Teacher(path.name, learned=Whitening.load(path))
    raise DatasetError(
        f"--whiten {text}: no such folder or file, and neither a dataset ({', '.join(DATASETS)}), self nor none"
    )


def regional_whitening(
    teacher: Teacher, recipe: Recipe, machine: Machine = HERE, pca: bool = False, progress: Progress = every
) -> Whitening:
    """The whitening of the regions of a teacher's pictures, every axis kept; learned once, then read from the cache."""
    plain = replace(recipe, name="rmac", regional="")
    made_by = [repr(machine.asked()), repr(engines.REVISIONS)]
    identity = [plain.key(), str(pca), *made_by, *map(file_digest, teacher.pictures)]
    place = (
        cache_folder() / "vectors" / f"regions-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}.safetensors"
    )
    if not place.exists():
        learned = Whitening.from_moments(
            _region_moments(teacher, plain, machine, progress), None, plain, not pca, teacher.name
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        learned.save(place)
    return Whitening.load(place)


def _region_moments(teacher: Teacher, recipe: Recipe, machine: Machine, progress: Progress) -> Moments:
    """The moments of the unit vectors of all regions; pictures that cannot be read teach nothing."""
    from crow.extract.describer import Describer
    from crow.framework.describe import pooled, region_vectors

    assert isinstance(recipe.pool, Pool) and recipe.pool.kind == "regions"
    describer = Describer(recipe, machine.engine, machine.device, machine.weights)
    moments = Moments()
    for path in progress(teacher.pictures, len(teacher.pictures), f"regions of {teacher.name}"):
        try:
            moments = moments.add(region_vectors(pooled(describer.maps(path)[0], recipe)).cpu().numpy())
        except PictureError:
            continue
    return moments
