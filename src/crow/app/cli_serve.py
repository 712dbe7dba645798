"""The command of the page: serve."""

from __future__ import annotations

from typing import Annotated

import typer

REACH = "Who may reach it"


def add(app: typer.Typer) -> None:
    """Put the commands of this file on the command line."""
    app.command()(serve)


def serve(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index that `crow index` made.")],
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes any that is free.")
    ] = 8000,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Where to listen; others can reach it.", rich_help_panel=REACH),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="CROW_TOKEN", help="What everybody has to give.", rich_help_panel=REACH),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve others without a token.", rich_help_panel=REACH)
    ] = False,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="/PATH", help="Below which a proxy shows it.", rich_help_panel=REACH)
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name that a proxy calls it by.", rich_help_panel=REACH),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="A line of JSON for every request.")] = False,
) -> None:
    """Search an index by eye: a page in the browser, and a JSON interface beside it."""
    try:
        from crow.app.serve import run
        from crow.search.index import Index
    except ImportError as error:
        raise ImportError(f"the page needs the extra 'serve': pip install 'crow-search[serve]' ({error})") from None
    names = tuple(allow_host or ())
    try:
        settings = run.Settings(host, port, token, no_auth, root_path, names, not no_browser, log_json).checked()
    except run.ServeError as error:
        raise typer.BadParameter(str(error)) from None
    with Index.open(index) as opened:
        run.serve(opened, settings)
