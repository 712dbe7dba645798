"""The page's own files, who may see them, and what whoever runs the server asks: health, readiness, metrics."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from crow.app.serve import models
from crow.app.serve.guard import COOKIE, same, session_of
from crow.app.serve.problems import Problem, responses
from crow.app.serve.server import server_of

WEB = Path(__file__).parents[1] / "web"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
router = APIRouter(responses=responses(400, 401, 403, 421))


@router.get("/health", response_model=models.Health)
async def health() -> Response:
    """The server runs."""
    return JSONResponse({"status": "ok"})


@router.get("/ready", response_model=models.Health, responses=responses(503))
async def ready(request: Request) -> Response:
    """The index answers, and the server is not about to stop."""
    server = server_of(request)
    if server.stopping:
        raise Problem(503, "the server is stopping", 5)
    await server.threads(lambda: server.collection.index.store.generation)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    server = server_of(request)
    return PlainTextResponse(await server.threads(server.metrics.text), media_type="text/plain; version=0.0.4")


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The page; the one that asks for the token where it is needed."""
    server = server_of(request)
    offered = request.query_params.get("token")
    if server.token is not None and offered is not None and same(offered, server.token):
        return _admitted(request, server.token)
    known = server.token is None or server.admits(request.headers.get("cookie", ""))
    if not request.url.path.endswith("/"):
        return RedirectResponse(request.url.path.rpartition("/")[2] + "/", 308)
    return _file("index.html") if known else HTMLResponse(_text("login.html"), 401)


@router.post("/session", include_in_schema=False)
async def session(request: Request) -> Response:
    """Exchange the token for a cookie."""
    server = server_of(request)
    form = await request.form(max_files=0, max_fields=1, max_part_size=4096)
    if server.token is None or same(str(form.get("token", "")), server.token):
        return _admitted(request, server.token or "")
    return HTMLResponse(_text("login.html").replace("<!-- wrong -->", "<p role=alert>That is not the token.</p>"), 401)


@router.get("/web/{name}", include_in_schema=False)
async def web(name: str) -> Response:
    """A file of the page."""
    return _file(name)


def _file(name: str) -> Response:
    """One of the page's own files, by its name alone."""
    known = {path.name for path in WEB.iterdir() if path.suffix in TYPES}
    if name not in known or name == "login.html":
        raise Problem(404, "no such file")
    kind = TYPES[Path(name).suffix]
    return Response((WEB / name).read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


def _text(name: str) -> str:
    return (WEB / name).read_text("utf-8")


def _admitted(request: Request, token: str) -> Response:
    """Go to the page with the cookie that opens it."""
    answer = RedirectResponse("./", 303)
    root = request.scope.get("root_path", "") or "/"
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, session_of(token), path=root, httponly=True, samesite="strict", secure=secure)
    return answer
