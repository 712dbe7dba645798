"""The server: what it holds while it runs, and the app that is built around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request

import crow
from crow.app.serve import problems
from crow.app.serve.collection import Collection
from crow.app.serve.decode import Decoder
from crow.app.serve.engine import Engine
from crow.app.serve.following import Following
from crow.app.serve.guard import LIMITS, Guard, Limits, Watch, admitted_by_cookie
from crow.app.serve.metrics import Metrics
from crow.app.serve.pictures import Pictures
from crow.app.serve.uploads import Line, Uploads
from crow.extract.pretrained import cache_folder
from crow.search.index import Index

T = TypeVar("T")
SEARCHERS = 4  # threads that search and read the store; FAISS spreads one search over the cores by itself


class Server:
    """Everything that is alive while the server runs."""

    def __init__(self, index: Index, token: str | None, limits: Limits, thumbnails: Path | None) -> None:
        self.token, self.stopping = token, False
        self.collection, self.metrics, self.uploads = Collection(index), Metrics(), Uploads()
        self.line = Line(limits.waiting)
        self.decoders = Decoder(2), Decoder(1)
        self.pictures = Pictures(self.decoders[0], thumbnails, index.recipe.view.upright)
        self.engine = Engine(
            self.collection, self.decoders[1], self.pictures, self.uploads, self.line, limits.upload_pixels
        )
        self.following = Following(index.store)
        self._threads = ThreadPoolExecutor(SEARCHERS, "crow-search")
        self.metrics.gauges |= {
            "crow_index_pictures": ("Pictures in the index.", lambda: len(index)),
            "crow_index_failed": ("Files that gave no vector.", lambda: self.following.failed),
            "crow_line_waiting": ("Pictures waiting for the network.", lambda: self.line.waiting),
            "crow_uploads_kept": ("Dropped pictures in memory.", lambda: len(self.uploads)),
        }

    async def threads(self, work: Callable[..., T], *args: Any) -> T:
        """Do something that reads the index, without holding up anybody else."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))

    def admits(self, cookies: str) -> bool:
        """Whether these cookies open the page."""
        return self.token is None or admitted_by_cookie(cookies, self.token)

    def status(self) -> dict[str, Any]:
        """How the index stands now."""
        return {**self.following.now(), "network": self.engine.ready}

    async def close(self) -> None:
        """Let go of everything but the index, which is its opener's."""
        self.engine.close()
        for decoder in self.decoders:
            await decoder.close()
        self._threads.shutdown(wait=False)


def server_of(request: Request) -> Server:
    """What the app serves."""
    return cast(Server, request.app.state.server)


def build(
    index: Index,
    token: str | None = None,
    hosts: tuple[str, ...] = ("localhost",),
    names: tuple[str, ...] = (),
    root_path: str = "",
    limits: Limits = LIMITS,
    as_json: bool = False,
    thumbnails: Path | None = None,
    warm: bool = True,
) -> FastAPI:
    """The app over an index; `warm` loads the network at once."""
    from crow.app.serve import api, site

    kept = thumbnails or cache_folder() / "thumbnails" / str(index.store.settings().get("uuid", "index"))
    server = Server(index, token, limits, kept)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        server.pictures.sweep(index.store.ids().tolist())
        warming = asyncio.create_task(server.engine.warm()) if warm else None
        yield
        server.stopping = True
        if warming:
            warming.cancel()
        await server.close()

    title = "crow: search by eye"
    app = FastAPI(
        title=title,
        version=crow.__version__,
        lifespan=life,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.server = server
    problems.install(app)
    app.include_router(api.router)
    app.include_router(site.router)
    app.state.routes = [*api.router.routes, *site.router.routes]
    app.add_middleware(Guard, hosts=hosts, names=names, token=token, limits=limits, root_path=root_path)
    app.add_middleware(Watch, metrics=server.metrics, as_json=as_json)
    _describe(app, token is not None)
    return app


def _describe(app: FastAPI, secured: bool) -> None:
    """Make the OpenAPI document tell of our problems, and of the token."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = json.loads(json.dumps(plain()))
            schemas = document["components"]["schemas"]
            schemas["Problem"] = problems.SCHEMA
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            if secured:
                document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
