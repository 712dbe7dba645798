"""Errors as problem+json (RFC 9457): what went wrong, in words for people, and nothing of the inside."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

MEDIA = "application/problem+json"


class Problem(HTTPException):
    """A request that cannot be answered, and why."""

    def __init__(self, status: int, detail: str, retry: int | None = None) -> None:
        super().__init__(status, detail, {"Retry-After": str(retry)} if retry else None)


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """The answer that tells of a problem."""
    title = HTTPStatus(status).phrase
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(content, status, headers, media_type=MEDIA)


def install(app: FastAPI) -> None:
    """Answer every error of an app in this way."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _defect)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation says in OpenAPI of the problems it may answer with."""
    content = {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names the methods of one route only
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return problem(error.status_code, str(error.detail), headers)


def _methods(request: Request) -> set[str]:
    """What can be done at this path."""
    matching = (r for r in request.app.state.routes if r.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return methods | {"HEAD"} if "GET" in methods else methods


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    parts = (f"{'.'.join(str(p) for p in e['loc'][1:]) or 'request'}: {e['msg']}" for e in error.errors())
    return problem(422, "; ".join(parts).encode("utf-8", "replace").decode())


async def _defect(request: Request, error: Exception) -> Response:
    return problem(500, "something went wrong inside crow; its log says more")
