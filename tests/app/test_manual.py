"""docs/cli.md is what the commands say of themselves now."""

from __future__ import annotations

from pathlib import Path

from crow.app.manual import manual


def test_the_command_line_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == manual(), "run: make docs"
