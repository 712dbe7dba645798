"""The command line: one command per public verb. Exit codes: 0 all well, 3 some files failed, 2 wrong usage, 1 nothing could be done."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

import crow
from crow.app import cli_bench, cli_care, cli_evaluate, cli_extract, cli_index, cli_paper, cli_search, cli_serve

app = typer.Typer(
    name="crow",
    help="Image search by CroW: photographs become vectors, vectors an index, an index answers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for floor in (
    cli_index,
    cli_search,
    cli_care,
    cli_serve,
    cli_extract,
    cli_evaluate,
    cli_paper,
    cli_bench,
):  # as --help lists them
    floor.add(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"crow {crow.__version__}")
        raise typer.Exit


@app.callback()
def _crow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Image search by CroW: photographs become vectors, vectors an index, an index answers."""


def main() -> None:
    """Run the command line; no traceback reaches a user unless CROW_DEBUG is set."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of broken EXIF and the like; the picture itself is read
    warnings.showwarning = _note
    try:
        app(prog_name="crow")
    except Exception as error:
        if os.environ.get("CROW_DEBUG"):
            traceback.print_exc()
        known = isinstance(error, (ValueError, OSError, ImportError, MemoryError))
        text = " ".join(_words(error).split()) or type(error).__name__
        defect = f"{type(error).__name__}: {text} (a defect of crow; CROW_DEBUG=1 shows where)"
        typer.echo(f"crow: {text if known else defect}", err=True)
        sys.exit(1)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    """A warning for people: what it says, without where in the source it was said."""
    typer.echo(f"note: {' '.join(str(message).split())}", err=True)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    main()
