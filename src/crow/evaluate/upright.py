"""How pictures are turned upright where their files do not say: a CSV of names and degrees."""

from __future__ import annotations

import csv
from pathlib import Path

from crow.evaluate.datasets import Dataset, DatasetError


def turns(file: str | Path, dataset: Dataset) -> dict[str, int]:
    """Lines `name,degrees`, clockwise, in quarter turns; names as the dataset's, with or without an ending."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"--upright takes exif, none or a CSV file; {file}: {error}") from None
    found: dict[str, int] = {}
    for number, row in enumerate(csv.reader(lines), 1):
        if not row or (number == 1 and not row[-1].strip().lstrip("-").isdecimal()):  # a heading
            continue
        name = row[0].strip()
        name = name if name in dataset.images else Path(name).stem
        if name not in dataset.images:
            raise DatasetError(f"{file}, line {number}: {dataset.name} has no picture named {row[0].strip()!r}")
        try:
            degrees = int(row[1])
        except (IndexError, ValueError):
            raise DatasetError(f"{file}, line {number}: not of the form name,degrees") from None
        if degrees % 90:
            raise DatasetError(f"{file}, line {number}: {degrees} degrees are no quarter turns")
        found[name] = degrees % 360
    return found
