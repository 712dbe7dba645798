"""The routes: a versioned JSON interface over one index."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from crow.app.serve import models
from crow.app.serve.collection import BOX, Wish, facts, parse_box
from crow.app.serve.engine import upload_of
from crow.app.serve.problems import Problem, responses
from crow.app.serve.server import Server, server_of
from crow.app.serve.uploads import id_of
from crow.search.matrix import SearchError

FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # an id names one picture for ever
NUMBER = r"^(u[0-9a-f]{32}|[1-9][0-9]{0,17})$"
DATE = r"^\d{4}(-\d\d(-\d\d)?)?$"

Q = Annotated[
    list[Annotated[str, Query(pattern=NUMBER)]],
    Query(min_length=1, max_length=20, description="What to search with: ids of pictures or of uploads."),
]
Box = Annotated[
    str | None,
    Query(
        max_length=100,
        pattern=BOX.pattern,
        description="xmin,ymin,xmax,ymax in pixels of the first picture of `q`.",
        examples=["10,20,300,400"],
    ),
]
Expand = Annotated[int, Query(ge=0, le=100, description="Search again with the sum of the first so many hits.")]
Under = Annotated[str | None, Query(max_length=4096, description="Only pictures in this folder.")]
Date = Annotated[str | None, Query(pattern=DATE, description="A date: 2024, 2024-05 or 2024-05-06.")]
Score = Annotated[float | None, Query(ge=-1, le=1, description="Only hits that score at least this.")]
Offset = Annotated[int, Query(ge=0, le=10_000, description="How many to pass over.")]
Count = Annotated[int, Query(ge=1, le=500, description="How many to answer with.")]
Number = Annotated[int, InPath(ge=1, lt=2**63, description="The id of a picture.")]
UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["picture"],
                    "properties": {"picture": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
COMMON = responses(400, 401, 403, 404, 408, 413, 421, 422, 503)
router = APIRouter(prefix="/api/v1", responses=COMMON)


@router.get("/search", response_model=models.Answer, summary="Search with pictures of the index or with uploads")
async def search(
    request: Request,
    q: Q,
    box: Box = None,
    expand: Expand = 0,
    under: Under = None,
    after: Date = None,
    before: Date = None,
    min_score: Score = None,
    offset: Offset = 0,
    k: Count = 100,
) -> Response:
    """The pictures most like `q`; several queries are summed."""
    wish = Wish(tuple(q), parse_box(box), expand, under, after, before, min_score)
    return JSONResponse(await _found(server_of(request), wish, offset, k))


@router.post(
    "/search", response_model=models.UploadAnswer, openapi_extra=UPLOAD, summary="Search with a picture you send"
)
async def search_by_upload(
    request: Request,
    box: Box = None,
    expand: Expand = 0,
    under: Under = None,
    after: Date = None,
    before: Date = None,
    min_score: Score = None,
    k: Count = 100,
) -> Response:
    """The pictures most like the one in the form field `picture`."""
    server, area = server_of(request), parse_box(box)
    data = await _received(request)
    async with server.line.place():
        upload = await _kept(server, data)
        wish = Wish((str(upload["id"]),), area, expand, under, after, before, min_score)
        found = await _found(server, wish, 0, k, placed=True)
    return JSONResponse({**found, "upload": upload})


@router.post("/uploads", response_model=models.Upload, status_code=201, openapi_extra=UPLOAD, summary="Send a picture")
async def upload(request: Request) -> Response:
    """Keep a picture for a while, so that `q` can name it."""
    server = server_of(request)
    data = await _received(request)
    async with server.line.place():
        return JSONResponse(await _kept(server, data), 201)


@router.get("/uploads/{upload}", response_model=models.Upload, summary="What is known of an upload")
async def upload_facts(request: Request, upload: Annotated[str, InPath(pattern=r"^u[0-9a-f]{32}$")]) -> Response:
    """Its size, as long as it is kept."""
    kept = server_of(request).uploads.get(upload)
    return JSONResponse({"id": kept.id, "width": kept.width, "height": kept.height, "taken": kept.taken})


@router.get("/uploads/{upload}/image", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def upload_image(request: Request, upload: Annotated[str, InPath(pattern=r"^u[0-9a-f]{32}$")]) -> Response:
    """An upload as it is shown."""
    return Response(server_of(request).uploads.get(upload).jpeg, media_type="image/jpeg", headers=FOR_EVER)


@router.get("/pictures", response_model=models.Answer, summary="The pictures of the index, the newest first")
async def browse(
    request: Request,
    under: Under = None,
    after: Date = None,
    before: Date = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    k: Count = 100,
) -> Response:
    """What can be searched with."""
    server = server_of(request)
    wish = Wish((), under=under, after=after, before=before)
    return JSONResponse(await server.threads(server.collection.browse, wish, offset, k))


@router.get("/pictures/{id}", response_model=models.Picture, summary="What is known of a picture")
async def picture(request: Request, id: Number) -> Response:
    """Its path, its size, when it was taken."""
    server = server_of(request)
    return JSONResponse(facts(await server.threads(server.collection.row, id)))


@router.get("/pictures/{id}/image", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def image(request: Request, id: Number) -> Response:
    """The picture upright, at most 1600 pixels wide or high."""
    return await _jpeg(server_of(request), id, "image")


@router.get("/pictures/{id}/thumbnail", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def thumbnail(request: Request, id: Number) -> Response:
    """The picture upright, at most 400 pixels wide or high."""
    return await _jpeg(server_of(request), id, "thumbnail")


@router.get("/pictures/{id}/neighbours", response_model=models.Answer, summary="The pictures nearest to a picture")
async def neighbours(request: Request, id: Number, k: Count = 10) -> Response:
    """A search with nothing but a picture of the index."""
    return JSONResponse(await _found(server_of(request), Wish((str(id),)), 0, k))


@router.get("/explain", response_model=models.Explanation, summary="Why a result matches")
async def explain(
    request: Request,
    q: Annotated[str, Query(pattern=NUMBER)],
    result: Annotated[int, Query(ge=1, lt=2**63)],
    box: Box = None,
) -> Response:
    """What every cell of either picture adds to the score of the two."""
    return JSONResponse(await server_of(request).engine.explain(q, parse_box(box), result))


@router.get("/folders", response_model=models.Folders, summary="The folders of the index")
async def folders(request: Request) -> Response:
    """Which folders `under` can name."""
    server = server_of(request)
    return JSONResponse({"folders": await server.threads(server.collection.folders)})


@router.get("/failures", response_model=models.Failures, summary="The files that gave no vector, and why")
async def failures(
    request: Request, offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0, k: Count = 100
) -> Response:
    """They are tried again when they change."""
    server = server_of(request)
    return JSONResponse(await server.threads(server.collection.failures, offset, k))


@router.get("/info", response_model=models.Info, summary="What the index is")
async def info(request: Request) -> Response:
    """Recipe, whitening, size."""
    server = server_of(request)
    return JSONResponse(await server.threads(server.collection.info))


@router.get("/status", response_model=models.Status, summary="How the index stands now")
async def status(request: Request) -> Response:
    """Asked for every few seconds by the page, to follow a sync."""
    server = server_of(request)
    return JSONResponse(await server.threads(server.status))


async def _found(server: Server, wish: Wish, offset: int, k: int, placed: bool = False) -> dict[str, Any]:
    queries = [await server.engine.vector(q, wish.box if i == 0 else None, placed) for i, q in enumerate(wish.q)]
    try:
        return await server.threads(server.collection.search, wish, queries, offset, k)
    except SearchError as error:
        raise Problem(422, str(error)) from None


async def _received(request: Request) -> bytes:
    """The bytes of the form field `picture`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Problem(422, "send the picture as the field 'picture' of multipart/form-data")
    try:
        async with request.form(max_files=1, max_fields=100, max_part_size=4096) as form:
            sent = form.get("picture")
            if not isinstance(sent, UploadFile):
                raise Problem(422, "send the picture as the field 'picture' of multipart/form-data")
            return await sent.read()
    except MultiPartException as error:
        raise Problem(400, error.message) from None
    except Problem:
        raise
    except Exception as error:
        if "Too many" in str(getattr(error, "detail", "")):
            raise Problem(413, "one picture at a time") from None
        raise


async def _kept(server: Server, data: bytes) -> dict[str, Any]:
    number = id_of(data)
    if number not in server.uploads:
        facts, jpeg = await server.engine.look(data)
        server.uploads.add(upload_of(number, data, facts, jpeg))
    kept = server.uploads.get(number)
    return {"id": kept.id, "width": kept.width, "height": kept.height, "taken": kept.taken}


async def _jpeg(server: Server, number: int, what: str) -> Response:
    row = await server.threads(server.collection.row, number)
    return Response(await server.pictures.jpeg(row, what), media_type="image/jpeg", headers=FOR_EVER)
