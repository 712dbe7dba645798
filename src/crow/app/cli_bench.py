"""The command `crow bench`: measurements on this machine, each against its rivals in the same run."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

import crow
from crow.app import options
from crow.app.bench import SUBJECTS, Measure, measures
from crow.extract.cores import granted_cores

PICTURES = ("network", "pipeline", "decode", "matches")  # subjects that look at photographs
LIBRARIES = ("torch", "openvino", "numpy", "Pillow", "faiss-cpu")


def add(app: typer.Typer) -> None:
    """Put the command of this file on the command line."""
    app.command()(bench)


def bench(
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]", help=f"One of {', '.join(SUBJECTS)}.")] = "network",
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="FOLDER", help="Photographs to measure with.")
    ] = None,
    others: Annotated[
        Path | None, typer.Option("--others", metavar="FOLDER", help="Photographs of other things (matches).")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="How many of them.")] = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Measure this machine: ours and the usual way in one run, medians and spread."""
    if subject not in SUBJECTS:
        raise typer.BadParameter(f"nothing to measure is named {subject!r}; there are: {', '.join(SUBJECTS)}")
    if subject in ("pipeline", "decode", "matches") and pictures is None:
        raise typer.BadParameter(f"crow bench {subject} needs photographs: give --pictures FOLDER")
    given: dict[str, Any] = {"pictures": pictures, "count": count} if subject in PICTURES else {}
    given |= {"others": others} if subject == "matches" else {}
    given |= {"device": device} if subject in ("network", "pipeline") else {}
    here = machine()
    if not as_json:
        gpu = f", {here['gpu']}" if here["gpu"] else ""
        typer.echo(f"{here['processor']}, {here['cores']} cores{gpu}; {here['date']}; load {here['load']}")
    records = []
    for measure in measures(subject, **{key: value for key, value in given.items() if value is not None}):
        records.append(asdict(measure))
        if not as_json:
            typer.echo(line(measure))
    if as_json:
        typer.echo(json.dumps({"subject": subject, "machine": here, "measures": records}, indent=2))


def line(measure: Measure) -> str:
    """One measure in words."""
    text = f"{measure.name}: {measure.value:.4g} {measure.unit}".rstrip()
    text += f" (quartiles {measure.spread:.2g} apart)" if measure.spread is not None else ""
    if measure.ratio is not None:
        rivals = ", ".join(f"{name} {value:.4g}" for name, value in measure.rivals.items())
        text += f"; {measure.ratio:.2f} times {rivals}"
    return text + (f"; wanted {measure.wanted}: {'holds' if measure.holds else 'FAILS'}" if measure.wanted else "")


def machine() -> dict[str, Any]:
    """What a figure belongs to: processor, cores, versions, date, and how busy the machine was at the start."""
    return {
        "processor": _processor(),
        "cores": granted_cores(),
        "gpu": _gpu(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "crow": crow.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
