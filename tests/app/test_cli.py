"""The command line as a whole: what reaches a person when something is amiss."""

from __future__ import annotations

import warnings

import pytest

from crow.app import cli


def test_a_warning_is_one_line_without_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda **_: warnings.warn("learned at\nanother size", stacklevel=2))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.main()
    assert capsys.readouterr().err == "note: learned at another size\n"
