"""What the JSON interface answers with, as its OpenAPI document tells it."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Picture(BaseModel):
    """A picture of the index."""

    id: int = Field(description="Names this picture as it was indexed, for ever.")
    path: str
    name: str
    width: int = Field(description="Of the upright original, in pixels.")
    height: int
    taken: str | None = Field(description="When, as the camera wrote it: 2024-05-06T12:13:14.")


class Hit(Picture):
    """A picture that was found."""

    score: float | None = Field(description="The cosine of the two vectors; null where nothing was searched.")
    chance: float | None = Field(description="That an unrelated picture of this collection scores as high.")
    match: bool = Field(description="Whether it stands above the line where matches end.")


class Upload(BaseModel):
    """A picture that was dropped; `id` stands for it in searches as long as it is kept."""

    id: str
    width: int
    height: int
    taken: str | None


class Answer(BaseModel):
    """A page of hits."""

    hits: list[Hit]
    offset: int
    more: bool
    total: int = Field(description="How many pictures the filters leave.")
    matches: int | None = Field(description="How many stand above the line; null while the line is further down.")
    generation: int = Field(description="Grows whenever the index changes.")


class UploadAnswer(Answer):
    """The hits of a picture that came with the request."""

    upload: Upload


class Panel(BaseModel):
    """One side of an explanation."""

    cells: list[list[float]] = Field(description="What each cell adds to the score; rows from the top.")
    constant: float = Field(description="What the whitening's mean adds; all cells and this make the score.")
    extent: list[float] = Field(description="Where the grid of cells lies in the picture: xmin, ymin, xmax, ymax.")
    region: list[float] = Field(description="The region that adds most, in pixels of the picture.")
    weights: list[list[float]] | None = Field(description="The recipe's spatial weights, where it has any.")


class Explanation(BaseModel):
    """Why two pictures match."""

    score: float
    linear: bool = Field(description="Whether the score is a sum over cells; else cells say how alike places are.")
    recipe: str
    query: Panel
    result: Panel


class Folder(BaseModel):
    """A folder that holds pictures."""

    path: str
    pictures: int


class Folders(BaseModel):
    """The folders of the index."""

    folders: list[Folder]


class Failed(BaseModel):
    """A file that gave no vector."""

    path: str
    reason: str


class Failures(BaseModel):
    """Files that gave no vector."""

    failures: list[Failed]
    offset: int
    total: int


class Info(BaseModel):
    """What the index is."""

    name: str
    recipe: str
    network: str
    size: str
    dim: int
    whitened: bool
    pictures: int
    folders: list[str]


class Sync(BaseModel):
    """A sync that is going on."""

    doing: str
    done: int
    total: int
    left: float | None = Field(description="Seconds it will still take.")


class Status(BaseModel):
    """How the index stands now."""

    pictures: int
    failed: int
    generation: int
    growing: bool = Field(description="Whether somebody is writing to the index.")
    sync: Sync | None
    network: bool = Field(description="Whether new pictures can be searched with at once.")


class Health(BaseModel):
    """The server is up, or ready."""

    status: str
