"""What stands before every request: the host's name, the token, other sites, and how large and how slow a body may be."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import time
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crow.app.serve.metrics import Metrics
from crow.app.serve.problems import Problem, problem

COOKIE = "crow_session"
OPEN = ("/health", "/ready", "/session", "/web/login.css")  # answered without a token
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
log = logging.getLogger("crow.serve")


@dataclass(frozen=True)
class Limits:
    """What one request may cost."""

    upload_bytes: int = 64 << 20  # the largest phone photographs are half of that
    upload_pixels: int = 100_000_000
    body_seconds: float = 30.0  # 64 MiB at 17 Mbit/s
    waiting: int = 8  # who waits for the network; at a second each nobody waits longer than a person would


LIMITS = Limits()


class Guard:
    """Refuses what should not reach the app, and adds the headers that keep browsers strict."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: tuple[str, ...],
        names: tuple[str, ...],
        token: str | None,
        limits: Limits,
        root_path: str = "",
    ) -> None:
        self.app, self.token, self.limits, self.root_path = app, token, limits, root_path
        self.names = {name.lower() for name in names}  # by which a proxy shows us
        self.hosts = {host.lower() for host in hosts} | self.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope["root_path"] = self.root_path  # a proxy may take it off the path, or leave it
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        body = Body(receive, self.limits)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    added.setdefault(name, value)
            await send(message)

        if refusal is not None:
            return await problem(*refusal)(scope, receive, sending)
        if scope["method"] == "HEAD":
            return await self._head(scope, body, sending)
        return await self.app(scope, body, sending)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What GET would answer, without the body."""
        asked = {**scope, "method": "GET"}

        async def sending(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        try:
            await self.app(asked, receive, sending)
        finally:
            scope["route"] = asked.get("route")

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._known(host):
            return 421, "this server does not go by that name (Host header); --allow-host adds one"
        if _foreign(scope["method"], headers, {host.lower(), *self.names}):
            return 403, "requests from the pages of other sites are refused"
        if _number(headers.get("content-length")) > self.limits.upload_bytes:
            return 413, f"larger than {self.limits.upload_bytes >> 20} MiB"
        path = get_route_path(scope)
        if self.token is not None and path not in OPEN and not self._admitted(headers):
            wants_page = path == "/" and "text/html" in headers.get("accept", "")
            return None if wants_page else (401, "a token is needed: Authorization: Bearer TOKEN")
        return None

    def _known(self, host: str) -> bool:
        """A name we go by, or a bare address, which no foreign name server can turn on us."""
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower()
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _admitted(self, headers: Headers) -> bool:
        assert self.token is not None
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(offered.strip(), self.token):
            return True
        return admitted_by_cookie(headers.get("cookie", ""), self.token)


class Body:
    """The body of a request, refused once it is too large or too slow."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self.receive, self.limits = receive, limits
        self.size, self.begun, self.complete = 0, time.monotonic(), False

    async def __call__(self) -> Message:
        """The next piece."""
        if self.complete:  # only a disconnect can follow, and may take as long as it likes
            return await self.receive()
        left = self.limits.body_seconds - (time.monotonic() - self.begun)
        try:
            message = await asyncio.wait_for(self.receive(), max(left, 0.001))
        except TimeoutError:
            raise Problem(408, f"the request took more than {self.limits.body_seconds:g} seconds to arrive") from None
        self.complete = message["type"] != "http.request" or not message.get("more_body", False)
        self.size += len(message.get("body", b""))
        if self.size > self.limits.upload_bytes:
            raise Problem(413, f"larger than {self.limits.upload_bytes >> 20} MiB")
        return message


class Watch:
    """Counts and times every request, and logs it where asked for."""

    def __init__(self, app: ASGIApp, metrics: Metrics, as_json: bool) -> None:
        self.app, self.metrics, self.as_json = app, metrics, as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, size, begun = 499, 0, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        finally:
            seconds = time.perf_counter() - begun
            route = getattr(scope.get("route"), "path", None) or "none"
            self.metrics.count(_method(scope), route, status, seconds)
            if self.as_json:
                self._log(scope, status, size, seconds)

    def _log(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        client = (scope.get("client") or ("", 0))[0]
        record: dict[str, Any] = {"method": _method(scope), "path": scope["path"], "status": status, "bytes": size}
        log.info(json.dumps({**record, "ms": round(1000 * seconds, 1), "client": client}))


def same(offered: str, token: str) -> bool:
    """Whether a token is the right one, in a time that tells nothing."""
    return hmac.compare_digest(offered.encode("utf-8", "surrogatepass"), token.encode())


def session_of(token: str) -> str:
    """What the browser's cookie holds instead of the token."""
    return hmac.new(token.encode(), b"crow session", hashlib.sha256).hexdigest()


def admitted_by_cookie(cookies: str, token: str) -> bool:
    """Whether the request brings the cookie of a session."""
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except Exception:  # a header of any bytes at all
        return False
    return morsel is not None and same(morsel.value, session_of(token))


def _foreign(method: str, headers: Headers, own: set[str]) -> bool:
    """Whether another site's page makes the browser ask; `own`: our host, and the names a proxy shows us by."""
    site = headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return True
    origin = headers.get("origin")
    if method in ("GET", "HEAD", "OPTIONS") or origin is None:
        return False
    place = origin.partition("://")[2].lower()
    return place not in own and place.partition(":")[0] not in own


def _method(scope: Scope) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "OTHER"


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 19 else 0
