"""The table of a run, put into a page between its two marks."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from torture.campaign import Tally

BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"


def write(page: Path, tallies: list[Tally], seconds: float, seed: int) -> None:
    """Replace what stands between the marks of the page."""
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{page}: the marks for the table are not there"
    page.write_text(f"{before}{BEGIN}\n{table(tallies, seconds, seed)}\n{END}{after}", "utf-8")


def table(tallies: list[Tally], seconds: float, seed: int) -> str:
    """The command, the day, and a row for each campaign."""
    rows = [
        f"| {t.campaign.name} | {t.campaign.unit} | {t.tried:,} | {t.tried - t.failed:,} | {t.failed} | {t.seconds:.0f} s |"
        for t in tallies
    ]
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return "\n".join(
        [
            f"`make torture SECONDS={seconds:g} SEED={seed}`, {datetime.now(UTC):%Y-%m-%d}, {where}:",
            "",
            "| campaign | a try is one of | tried | held | failed | took |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )
