"""Running the server: one uvicorn, patient with pictures and with nobody else, stopped cleanly by SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
import threading
import webbrowser
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from crow.app.serve.guard import LIMITS, Limits
from crow.app.serve.server import build
from crow.search.index import Index

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEADER_SECONDS = 15.0  # to send the first line and the headers of a request
GRACE = 20  # seconds that requests have to finish once the server was told to stop


class ServeError(ValueError):
    """A server that cannot be started, and why."""


@dataclass(frozen=True)
class Settings:
    """How the server is reached."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free
    token: str | None = None
    no_auth: bool = False
    root_path: str = ""
    names: tuple[str, ...] = ()  # by which a proxy calls it
    browser: bool = True
    as_json: bool = False
    limits: Limits = LIMITS

    def checked(self) -> Settings:
        """The settings, refused where they would leave the pictures open to everybody by accident."""
        if self.host not in LOOPBACK and not self.token and not self.no_auth:
            raise ServeError(
                f"{self.host} can be reached by others: give --token (such as {secrets.token_urlsafe(12)}) or --no-auth"
            )
        if self.root_path and not (self.root_path.startswith("/") and self.root_path[-1:] != "/"):
            raise ServeError(f"a root path begins with / and does not end with it: not {self.root_path!r}")
        return self


class Patient(H11Protocol):
    """HTTP for clients that send their headers in time; the others are let go."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        super().data_received(data)
        if self.cycle is not None:
            self._late.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._late.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def serve(index: Index, settings: Settings) -> None:
    """Serve an index until told to stop."""
    settings = settings.checked()
    with bind(settings) as listening:
        app = build(
            index,
            settings.token,
            hosts=("localhost", settings.host),
            names=settings.names,
            root_path=settings.root_path,
            limits=settings.limits,
            as_json=settings.as_json,
        )
        server = uvicorn.Server(config(app))
        _announce(settings, listening.getsockname()[1])
        server.run(sockets=[listening])


def config(app: Any) -> uvicorn.Config:
    """Uvicorn's settings."""
    set_up_log()
    return uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=64 << 10,
        proxy_headers=False,
    )


def bind(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family[0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(family[4])
    except OSError as error:
        hint = " (--port 0 takes any that is free)" if "in use" in str(error) else ""
        raise ServeError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}{hint}") from None
    return listening


def set_up_log() -> None:
    """Our own lines go to the error stream, as they are."""
    log = logging.getLogger("crow.serve")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    log.propagate = False


def _announce(settings: Settings, port: int) -> None:
    everywhere = ("0.0.0.0", "::")  # nosec B104  # only compared with what was asked for
    host = "localhost" if settings.host in (*LOOPBACK, *everywhere) else settings.host
    address = f"http://{host}:{port}{settings.root_path}/"
    print(f"crow serves {address} until Ctrl-C", file=sys.stderr, flush=True)
    if settings.browser:
        secret = f"?token={settings.token}" if settings.token else ""
        threading.Timer(0.5, webbrowser.open, [address + secret]).start()
