"""What `make demo` shows: real photographs become an index, three searches, and pages to look at.

Without a folder of your own it takes the public-domain photographs inside scikit-image and makes honest views of
each (crop, perspective, light, scale, rotation), named as made, so that there is something to find.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from PIL import Image, ImageEnhance

from crow.app.progress import follow
from crow.app.sheet import Sheet
from crow.evaluate.show import show_picture
from crow.extract.describer import Describer
from crow.extract.images import load
from crow.search.index import Index

PHOTOGRAPHS = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg",
)  # fmt: skip


def crop(picture: Image.Image) -> Image.Image:
    """The middle two thirds, a little off centre."""
    w, h = picture.size
    return picture.crop((w // 8, h // 6, w // 8 + 2 * w // 3, h // 6 + 2 * h // 3))


def perspective(picture: Image.Image) -> Image.Image:
    """As if seen from the left: the right side shrinks."""
    w, h = picture.size
    corners = (0, 0, 0, h, w, h + h // 5, w, -h // 5)
    return picture.transform((w, h), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)


def dusk(picture: Image.Image) -> Image.Image:
    """Darker, with less contrast."""
    return ImageEnhance.Contrast(ImageEnhance.Brightness(picture).enhance(0.45)).enhance(0.8)


def small(picture: Image.Image) -> Image.Image:
    """Half the size."""
    return picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS)


def tilted(picture: Image.Image) -> Image.Image:
    """Turned by 12 degrees, the corners cut away."""
    turned = picture.rotate(12, Image.Resampling.BICUBIC)
    w, h = picture.size
    return turned.crop((w // 7, h // 7, w - w // 7, h - h // 7))


VIEWS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "crop": crop,
    "perspective": perspective,
    "dusk": dusk,
    "small": small,
    "tilted": tilted,
}


def make_photographs(folder: Path) -> None:
    """The photographs inside scikit-image and their made views: one sub-folder per thing."""
    from skimage import data

    source = Path(data.__file__).parent
    for name in PHOTOGRAPHS:
        picture = Image.open(source / name).convert("RGB")
        picture.thumbnail((1024, 1024), Image.Resampling.LANCZOS)
        thing = folder / Path(name).stem
        thing.mkdir(parents=True, exist_ok=True)
        picture.save(thing / "original.jpg", quality=92)
        for view, make in VIEWS.items():
            make(picture).save(thing / f"made-{view}.jpg", quality=92)


def below(index: Index, folder: Path) -> list[str]:
    """The pictures of this folder; a folder of the same name that was shown before may be in the index too."""
    return [path for path in index.paths() if Path(path).is_relative_to(folder)]


def first(members: list[str]) -> str:
    """The picture that is searched for and looked into."""
    return next((p for p in members if "coffee" in p and "original" in p), members[0])


def search(index: Index, folder: Path) -> dict[str, Sheet]:
    """Three searches, said aloud: by a picture, by a box in it, and with query expansion."""
    members = below(index, folder)
    query, last = first(members), members[-1]
    size = load(query)
    box = (size.width * 0.3, size.height * 0.15, size.width * 0.85, size.height * 0.85)
    asked: dict[str, dict[str, Any]] = {
        "a picture": {"query": query},
        "a box in it": {"query": query, "box": box},
        "query expansion by the top 5": {"query": last, "expand": 5},
    }
    sheets = {}
    for title, how in asked.items():
        results = index.search(k=10, under=folder, **how)
        typer.echo(f"\nsearch by {title}: {Path(how['query']).relative_to(folder)}")
        for hit in results[:7]:
            typer.echo(f"  {hit.score:.3f} {'  ' if hit.match else '- '}{Path(hit.path).relative_to(folder)}")
        sheets[title] = Sheet.of([how["query"]], how.get("box"), results)
    return sheets


def main(photographs: Path | None, out: Path = Path("demo")) -> None:
    """Index, search three times, draw; everything lands in `out`."""
    if photographs is not None and not photographs.is_dir():
        raise SystemExit(f"{photographs}: no such folder")
    out.mkdir(exist_ok=True)
    folder = (photographs or out / "photographs").resolve()
    if photographs is None:
        make_photographs(folder)
        typer.echo(f"the photographs inside scikit-image, and views made of each: {folder}")
    address = out / ("photographs.crow" if photographs is None else f"{folder.name}.crow")
    with (Index.open if address.exists() else Index.create)(address) as index:
        with follow() as progress:
            report = index.sync(folder, progress=progress)
        typer.echo(f"{address}: {report}")
        if not below(index, folder):
            raise SystemExit(f"no picture could be indexed below {folder}")
        for number, sheet in enumerate(search(index, folder).values(), 1):
            sheet.write_html(out / f"search-{number}.html")
            sheet.write_png(out / f"search-{number}.png")
        if isinstance(index.describer, Describer):
            show_picture(index.describer, first(below(index, folder))).save(out / "weights.png")
    typer.echo(
        f"\nlook at {out}/search-1.html to search-3.html (or .png), and what the weights look at: {out}/weights.png"
    )
    typer.echo(f"search by eye: .venv/bin/crow serve {address}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser() if len(sys.argv) > 1 else None)
