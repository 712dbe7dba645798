"""python -m torture: the campaigns, what each tried and what held, and exit code 1 where one failed or tried nothing."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from torture import shim

WARM = ("faiss", "sqlite3", "safetensors.numpy", "PIL.PngImagePlugin", "crow.extract.walk", "crow.extract.pretrained")


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long, altogether")
    parser.add_argument("--seed", type=int, default=1, help="of every choice that is made by chance")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these campaigns alone")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    wish = parser.parse_args()
    if not os.environ.get("CROW_TORTURE"):
        memory = Path("/dev/shm")
        place = Path(tempfile.mkdtemp(prefix="crow-torture-", dir=memory if memory.is_dir() else None))
        shim.begin_again(place)
    place = Path(os.environ["CROW_TORTURE"])
    try:
        return torture(wish, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def torture(wish: argparse.Namespace, place: Path) -> int:
    """The run itself, under the layer."""
    from torture import plants, report
    from torture.campaign import run
    from torture.campaigns import CAMPAIGNS

    for room in WARM:
        import_module(room)
    unknown = set(wish.only or ()) - set(CAMPAIGNS)
    if unknown:
        print(f"no campaign named {', '.join(sorted(unknown))}; there are: {', '.join(CAMPAIGNS)}", file=sys.stderr)
        return 2
    planted = plants.plant(os.environ.get("CROW_PLANT"))
    tell = lambda line: print(line, flush=True)  # noqa: E731
    tell(f"torture: {wish.seconds:g} seconds, seed {wish.seed}" + (f", planted: {planted}" if planted else ""))
    chosen = [campaign for name, campaign in CAMPAIGNS.items() if not wish.only or name in wish.only]
    tallies = run(chosen, wish.seconds, wish.seed, place, tell)
    if wish.write:
        report.write(wish.write, tallies, wish.seconds, wish.seed)
    bad = [tally.campaign.name for tally in tallies if tally.bad]
    tell(f"failed, or tried nothing: {', '.join(bad)}" if bad else f"all {len(tallies)} campaigns held")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
