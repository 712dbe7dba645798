"""Sealed files: written whole or not at all, with checksums that tell a turned bit from what was written."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crow.files import replacing


class Damaged(ValueError):
    """A file that is not what was written; the message says which."""


def put(path: Path, parts: list[NDArray[Any]]) -> None:
    """Write a file whole or not at all, and have it on disk before going on."""
    with replacing(path) as half, half.open("wb") as file:
        for part in parts:
            file.write(_bytes(part))


def crc_of(parts: list[NDArray[Any]]) -> int:
    """One checksum over several arrays."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(_bytes(part), crc)
    return crc


def put_fields(path: Path, fields: dict[str, Any]) -> None:
    """Write fields as JSON, with a checksum over them."""
    text = json.dumps(fields)
    sealed = json.dumps({"crc": zlib.crc32(text.encode()), "fields": text})
    put(path, [np.frombuffer(sealed.encode(), np.uint8)])


def fields_of(path: Path) -> dict[str, Any]:
    """What `put_fields` wrote; Damaged where it is not that, {} where an older version wrote it, which had no checksum."""
    try:
        sealed = json.loads(path.read_bytes())
        if "format" in sealed or "kind" in sealed:
            return {}
        text = sealed["fields"]
        if zlib.crc32(text.encode()) != sealed["crc"]:
            raise Damaged(f"{path.name}: its bytes are not the ones that were written")
        fields: dict[str, Any] = json.loads(text)
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path.name}: its bytes are not the ones that were written") from None
    return fields


def expect(path: Path, data: NDArray[Any], crc: int) -> NDArray[Any]:
    """The data, if it has this checksum."""
    if crc_of([data]) != crc:
        raise Damaged(f"{path.name}: its bytes are not the ones that were written")
    return data


def _bytes(part: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(part).view(np.uint8).reshape(-1).data
