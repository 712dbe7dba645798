"""The process that decodes pictures for the server: little memory, no files, nothing but bytes in and pixels out.

It reads frames (a JSON job and bytes) from its input and writes frames to its output; `decode.py` is the other end.
Once it has started it can open no file, and it ends by itself when a picture has made it large.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from crow.extract import formats, images
from crow.extract.picture import Picture, PictureError
from crow.recipe import Recipe

HEAD = struct.Struct(">IQ")  # length of the JSON, length of the bytes
LARGE = 600  # MB of memory after which the process makes room for a fresh one
QUALITY = 85  # of the JPEGs that are shown

Answer = tuple[dict[str, Any], bytes]


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next job and its bytes; None at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    job, data = HEAD.unpack(head)
    return json.loads(stream.read(job)), stream.read(data)


def frame(message: dict[str, Any], data: bytes = b"") -> bytes:
    """A message and bytes as one frame."""
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(data)) + text + data


def shown(job: dict[str, Any], data: bytes) -> Answer:
    """The picture upright as a JPEG of at most `side` pixels, without anything the camera wrote into it."""
    opened = _opened(job, data)
    if job.get("draft"):
        opened.draft("RGB", (2 * job["side"], 2 * job["side"]))  # JPEG only: decodes at a fraction of the size
    picture = images.load(opened, job.get("upright", True), job["name"])
    small = Image.fromarray(picture.pixels)
    small.thumbnail((job["side"], job["side"]), Image.Resampling.LANCZOS)
    out = BytesIO()
    small.save(out, "JPEG", quality=QUALITY, optimize=True, progressive=job["side"] > 500)
    return _facts(picture), out.getvalue()


def prepared(job: dict[str, Any], data: bytes) -> Answer:
    """The picture as the recipe's view wants it, cut to the box: raw RGB."""
    box = tuple(job["box"]) if job.get("box") else None
    opened = _opened(job, data)
    picture = images.prepare(opened, Recipe.from_dict(job["recipe"]).view, box, job["name"])
    height, width = picture.pixels.shape[:2]
    return {**_facts(picture), "shape": [height, width]}, np.ascontiguousarray(picture.pixels).tobytes()


JOBS: dict[str, Callable[[dict[str, Any], bytes], Answer]] = {"shown": shown, "prepared": prepared}


def answer(job: dict[str, Any], data: bytes) -> Answer:
    """What became of a job; whatever goes wrong with a picture is its own fault."""
    try:
        return JOBS[job["do"]](job, data)
    except PictureError as error:
        return {"error": error.reason, "status": 413 if error.reason.startswith("too large") else 422}, b""
    except MemoryError:
        return {"error": "needs too much memory to decode", "status": 413}, b""
    except Exception as error:
        return {"error": f"cannot be decoded ({type(error).__name__})", "status": 422}, b""


def main(memory: int) -> None:
    """Answer jobs until the input ends."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a decoder prints must not get into the answers
    for _, module, _ in formats.FORMATS.values():
        import_module(module)
    import_module("PIL.ImageCms")
    Image.init()
    for what, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (limit, limit))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    while (job := read_frame(stdin)) is not None:
        facts, out = answer(*job)
        last = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > LARGE * 1024
        stdout.write(frame({**facts, "last": last}, out))
        stdout.flush()
        if last:
            return


def _opened(job: dict[str, Any], data: bytes) -> Image.Image:
    opened = formats.open_picture(data, job["name"], job.get("raw", False))
    if opened.width * opened.height > job["pixels"]:
        size = f"{opened.width} x {opened.height}"
        raise PictureError(
            job["name"], f"too large: {size} pixels, the limit is {job['pixels'] // 1_000_000} megapixels"
        )
    return opened


def _facts(picture: Picture) -> dict[str, Any]:
    return {"width": picture.width, "height": picture.height, "taken": picture.taken}


if __name__ == "__main__":
    main(int(sys.argv[1]))
