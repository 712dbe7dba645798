"""The benchmarks as they unpack, found wherever they lie below one folder; and any folder of grouped pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crow.evaluate import pickles
from crow.evaluate.archives import lying
from crow.evaluate.protocols import judge
from crow.extract.images import walk

Box = tuple[float, float, float, float]
Places = dict[str, list[Path]]  # file name -> where files of that name lie, sorted


class DatasetError(ValueError):
    """A dataset that is not there, or does not read as its authors laid it out."""


@dataclass(frozen=True)
class Query:
    """One query: its picture, the box in it, and the names under each label of its ground truth."""

    name: str
    path: Path
    box: Box | None
    labels: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Dataset:
    """What is searched, what is asked, and what is right; `remarks` names everything that was amiss."""

    name: str
    protocol: str  # a key of protocols.PROTOCOLS
    images: Mapping[str, Path]  # in their fixed order, under the names that the ground truth uses
    queries: tuple[Query, ...]
    upright: str  # "exif" or "none", where the user does not say
    broken: tuple[str, ...] = ()  # known to be, and left out
    missing: tuple[str, ...] = ()  # named by the ground truth, without a picture: they count as never found
    remarks: tuple[str, ...] = ()
    distractors: int = 0  # how many of the images are there only to distract
    archives: Mapping[str, str] = field(default_factory=dict)  # which copy this is: file -> size and sha256

    def with_distractors(self, paths: Iterable[Path]) -> Dataset:
        """The same queries among more pictures, none of them right."""
        more = {f"distractor:{path}": path for path in paths}
        return replace(self, images={**self.images, **more}, distractors=self.distractors + len(more))


def load(name: str, data: str | Path) -> Dataset:
    """One of DATASETS, from wherever it lies below `data`."""
    if name not in DATASETS:
        raise DatasetError(f"no dataset named {name!r}; there are: {', '.join(DATASETS)}")
    if not Path(data).is_dir():
        raise DatasetError(f"{data}: no such folder")
    dataset = DATASETS[name](name, Path(data))
    archives = (
        lying(name, (path for paths in files_below(Path(data)).values() for path in paths)) if name != "groups" else {}
    )
    return replace(dataset, archives=archives)


OXFORD_NAME = re.compile(
    r"(all_souls|ashmolean|balliol|bodleian|christ_church|cornmarket|hertford|jesus|keble|magdalen|new|oriel|oxford"
    r"|pitt_rivers|radcliffe_camera|trinity|worcester)_\d{6}"
)
PARIS_NAME = re.compile(r"paris_[a-z]+_\d{6}")
HOLIDAYS_NAME = re.compile(r"1\d{5}")
BROKEN = {  # files that never decoded, by tag
    "louvre": (136, 146),
    "moulinrouge": (422,),
    "museedorsay": (1059,),
    "notredame": (188,),
    "pantheon": (284, 960, 974),
    "pompidou": (195, 196, 201, 467, 640),
    "sacrecoeur": (299, 330, 353),
    "triomphe": (662, 833, 863, 867),
}
PARIS_BROKEN = tuple(f"paris_{tag}_{number:06d}" for tag, numbers in BROKEN.items() for number in numbers)


def read_oxford(name: str, data: Path) -> Dataset:
    """Oxford 5k and Paris 6k: `*_query.txt` beside `*_good.txt`, `*_ok.txt` and `*_junk.txt`."""
    places = files_below(data)
    prefix, pattern = ("oxc1_", OXFORD_NAME) if name == "oxford5k" else ("paris_", PARIS_NAME)
    images = named_pictures(name, places, pattern, PARIS_BROKEN)
    asked = [_read_query(path, prefix) for path in _ground_truth(name, places, prefix)]
    here = tuple(sorted(set(PARIS_BROKEN) & {Path(file).stem for file in places}))
    return _checked(Dataset(name, "oxford", images, (), "none", here), asked)


def read_revisited(name: str, data: Path) -> Dataset:
    """Revisited Oxford and Paris: one pickle with the lists, the pictures of the original sets."""
    places = files_below(data)
    file = _the_file(name, places, f"gnd_{name}.pkl")
    truth = pickles.load(file)
    pattern = OXFORD_NAME if name == "roxford5k" else PARIS_NAME
    pictures = named_pictures(name, places, pattern, PARIS_BROKEN)
    try:
        names = [str(n) for n in truth["imlist"]]
        asked = [_revisited_query(str(q), gnd, names) for q, gnd in zip(truth["qimlist"], truth["gnd"], strict=True)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DatasetError(f"{file}: not a ground truth of the revisited sets ({error!r})") from None
    images = {n: pictures[n] for n in names if n in pictures}
    lost = tuple(n for n in names if n not in pictures)
    return _checked(Dataset(name, "revisited", images, (), "none", missing=lost), asked, pictures)


def read_holidays(name: str, data: Path) -> Dataset:
    """Holidays: six digits, the first four the group; the picture that ends in 00 is the query."""
    images = named_pictures(name, files_below(data), HOLIDAYS_NAME, ())
    groups: dict[str, set[str]] = {}
    for image in images:
        groups.setdefault(image[:4], set()).add(image)
    asked = [_member(q, groups[q[:4]]) for q in images if q.endswith("00")]
    lost = tuple(f"{group}00" for group in groups if f"{group}00" not in images)
    return _checked(Dataset(name, "holidays", images, (), "exif", missing=lost), asked)


def read_groups(name: str, data: Path) -> Dataset:
    """Any folder: one sub-folder per thing, each of its pictures a query; those in `_distractors` never are."""
    unread: list[str] = []
    found = walk([data], lambda path, reason: unread.append(f"{path}: {reason}"))
    images = {path.relative_to(data).as_posix(): path for path in found}
    if not images:
        raise DatasetError(f"{data}: no pictures in it")
    groups: dict[str, set[str]] = {}
    for image in images:
        group, inside, _ = image.partition("/")
        if inside and group != "_distractors":
            groups.setdefault(group, set()).add(image)
    asked = [_member(q, members) for members in groups.values() if len(members) > 1 for q in sorted(members)]
    if not asked:
        raise DatasetError(f"{data}: no sub-folder with two pictures or more of one thing")
    distractors = len(images) - len(asked)
    dataset = _checked(Dataset(name, "groups", images, (), "exif"), asked)
    return replace(dataset, distractors=distractors, remarks=(*dataset.remarks, *unread))


def read_oxford100k(name: str, data: Path) -> Dataset:
    """The 100k distractors: every picture below a folder named oxc1_100k, or oxford100k, flickr100k."""
    roots = [
        Path(top)
        for top, _, _ in os.walk(data, followlinks=True)
        if Path(top).name in ("oxc1_100k", name, "flickr100k")
    ]
    if not roots:
        raise DatasetError(f"{name}: no folder named oxc1_100k below {data}; `crow data {name}` says where to get it")
    root = min(roots, key=lambda path: (len(path.parts), str(path)))
    images = {path.relative_to(root).as_posix(): path for path in walk([root])}
    return Dataset(name, "oxford", images, (), "none", distractors=len(images))


DATASETS: dict[str, Callable[[str, Path], Dataset]] = {
    "oxford5k": read_oxford,
    "paris6k": read_oxford,
    "roxford5k": read_revisited,
    "rparis6k": read_revisited,
    "holidays": read_holidays,
    "groups": read_groups,
    "oxford100k": read_oxford100k,  # distractors: nothing is asked
}


def files_below(data: Path) -> Places:
    """Where each file name lies below a folder, links followed, hidden folders left out."""
    places: Places = {}
    seen: set[str] = set()
    for top, folders, files in os.walk(data, followlinks=True):
        real = str(Path(top).resolve())
        folders[:] = [] if real in seen else sorted(f for f in folders if not f.startswith("."))
        if real not in seen:
            for file in files:
                places.setdefault(file, []).append(Path(top, file))
        seen.add(real)
    return {name: sorted(found) for name, found in sorted(places.items())}


def named_pictures(name: str, places: Places, pattern: re.Pattern[str], broken: Collection[str]) -> dict[str, Path]:
    """The pictures whose names are of a dataset's form, sorted; two different ones of one name are refused."""
    pictures: dict[str, Path] = {}
    for file, found in places.items():
        stem, dot, ending = file.rpartition(".")
        if dot and ending.lower() in ("jpg", "jpeg") and pattern.fullmatch(stem) and stem not in broken:
            if len({path.stat().st_size for path in found}) > 1:
                raise DatasetError(f"{name}: {found[0]} and {found[-1]} differ: give --data a folder with one copy")
            pictures[stem] = found[0]
    if not pictures:
        raise DatasetError(f"{name}: none of its pictures there; `crow data {name}` says where to get them")
    return pictures


Asked = tuple[str, str, Box | None, Mapping[str, frozenset[str]]]  # a query, its picture's name, box, labels


def _checked(dataset: Dataset, asked: list[Asked], pictures: Mapping[str, Path] | None = None) -> Dataset:
    """The dataset with its queries; those that cannot be asked are left out, and named in the remarks."""
    pictures = dataset.images if pictures is None else pictures
    queries, remarks, missing = [], [], list(dataset.missing)
    for name, picture, box, labels in asked:
        settings = judge(dataset.protocol, labels).values()
        lost = set().union(*labels.values()) - set(dataset.images) - set(dataset.broken)
        missing += sorted(lost - set(missing))
        if picture not in pictures:
            remarks.append(f"{name}: its picture {picture} is not there; the query is left out")
        elif not any(judged.right for judged in settings):
            remarks.append(f"{name}: its ground truth names nothing right; the query is left out")
        else:
            queries.append(Query(name, pictures[picture], box, labels))
    if not queries:
        raise DatasetError(f"{dataset.name}: no query can be asked ({'; '.join(remarks[:3])})")
    return replace(dataset, queries=tuple(queries), missing=tuple(missing), remarks=tuple(remarks))


def _ground_truth(name: str, places: Places, prefix: str) -> list[Path]:
    """The query files of one dataset, from the one folder where they lie, sorted."""
    found = [path for file, paths in places.items() if file.endswith("_query.txt") for path in paths]
    mine = [path for path in found if path.read_text(errors="replace").startswith(prefix)]
    if not mine:
        raise DatasetError(f"{name}: no ground truth (*_query.txt) there; `crow data {name}` says where to get it")
    folder = min(path.parent for path in mine)
    return sorted(path for path in mine if path.parent == folder)


def _read_query(path: Path, prefix: str) -> Asked:
    """A query file `name xmin ymin xmax ymax` and the three lists beside it."""
    name, words = path.name.removesuffix("_query.txt"), path.read_text(errors="replace").split()
    try:
        picture, (left, top, right, bottom) = words[0], map(float, words[1:])
    except (IndexError, ValueError):
        raise DatasetError(f"{path}: not of the form 'name xmin ymin xmax ymax'") from None
    labels = {}
    for label in ("good", "ok", "junk"):
        file = path.with_name(f"{name}_{label}.txt")
        if not file.is_file():
            raise DatasetError(f"{file}: this list of the ground truth is missing")
        labels[label] = frozenset(file.read_text(errors="replace").split())
    return name, picture.removeprefix("oxc1_") if prefix == "oxc1_" else picture, (left, top, right, bottom), labels


def _revisited_query(name: str, truth: Mapping[str, Any], names: list[str]) -> Asked:
    left, top, right, bottom = map(float, truth["bbx"])
    return name, name, (left, top, right, bottom), {k: _named(names, truth[k]) for k in ("easy", "hard", "junk")}


def _member(picture: str, group: Collection[str]) -> Asked:
    """A picture asked for the others of its group."""
    return picture, picture, None, {"group": frozenset(group), "self": frozenset([picture])}


def _the_file(name: str, places: Places, file: str) -> Path:
    if file not in places:
        raise DatasetError(f"{name}: no {file} there; `crow data {name}` says where to get it")
    return places[file][0]


def _named(names: list[str], places: Any) -> frozenset[str]:
    """Names from their places in the list of images."""
    indices = [int(i) for i in places]
    if any(i < 0 for i in indices):
        raise IndexError(min(indices))
    return frozenset(names[i] for i in indices)
