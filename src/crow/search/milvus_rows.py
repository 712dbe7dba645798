"""Pictures as rows of a Milvus collection and back: the key, the id, paths of any bytes, the checksum over everything."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import Any

import numpy as np

from crow.search.record import bytes_of, checksum_of
from crow.search.store import Row, StoreError, check_vector

PATH = 65535  # bytes, the longest text that Milvus takes
COLUMNS: list[tuple[str, str, dict[str, Any]]] = [
    ("pk", "VARCHAR", {"is_primary": True, "max_length": 32}),
    ("id", "INT64", {"indexed": True}),
    ("path", "VARCHAR", {"max_length": PATH}),
    ("size", "INT64", {}),
    ("mtime", "INT64", {}),
    ("sha256", "VARCHAR", {"max_length": 128}),
    ("width", "INT64", {}),
    ("height", "INT64", {}),
    ("taken", "VARCHAR", {"max_length": 64}),
    ("checksum", "VARCHAR", {"max_length": 16}),
]
NAMES = [name for name, _, _ in COLUMNS]


def key_of(path: str) -> str:
    """The key of a path, of 128 bits: two of 10^12 paths share one with a chance of 10^-15."""
    return blake2b(os.fsencode(path), digest_size=16).hexdigest()


def id_of(row: Row) -> int:
    """The id of a picture as it was at a path: the same whoever writes it and however often, another when it changed."""
    assert row.vector is not None
    content = row.sha256 or bytes_of(row)
    digest = blake2b(key_of(row.path).encode() + content, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11  # 53 bits


def stored_path(path: str) -> str:
    """A path as text that is valid Unicode: bytes of no encoding become U+F780 ... U+F7FF, and those their bytes."""
    return re.sub(r"[\udc80-\udcff\uf780-\uf7ff]", lambda m: "".join(chr(0xF700 + b) for b in os.fsencode(m[0])), path)


def read_path(text: str) -> str:
    """The path that was stored."""
    raw = re.sub(r"[\uf780-\uf7ff]", lambda m: chr(0xDC00 + ord(m[0]) - 0xF700), text)
    return os.fsdecode(os.fsencode(raw))


def entity(row: Row) -> dict[str, Any]:
    """A row as the server takes it; an id that it has already stays."""
    path = stored_path(row.path)
    if len(path.encode()) > PATH:
        raise StoreError(f"{row.path[:100]}...: a path of more than {PATH} bytes")
    return {
        "pk": key_of(row.path),
        "id": row.id or id_of(row),
        "path": path,
        "size": row.size,
        "mtime": row.mtime,
        "sha256": row.sha256.hex(),
        "width": row.width,
        "height": row.height,
        "taken": row.taken or "",
        "checksum": _checksum(row),
        "vector": row.vector,
    }


def row_of(entity: dict[str, Any]) -> Row:
    """A row as it comes back, with the vector where that was asked for."""
    vector = np.array(entity["vector"], np.float32) if "vector" in entity else None
    e = entity
    plain = int(e["size"]), int(e["mtime"]), bytes.fromhex(e["sha256"]), int(e["width"]), int(e["height"])
    return Row(read_path(e["path"]), vector, *plain, e["taken"] or None, int(e["id"]))


def problem_of(entity: dict[str, Any], dim: int | None) -> tuple[str, str] | None:
    """What is wrong with a row as it was read back, if anything."""
    row = row_of(entity)
    if _checksum(row) != entity["checksum"] or key_of(row.path) != entity["pk"]:
        return row.path, "its row is not what was written (checksum)"
    try:
        check_vector(row.path, row.vector, dim)
    except StoreError as error:
        return row.path, str(error).removeprefix(f"{row.path}: ")
    return None


def _checksum(row: Row) -> str:
    plain = (os.fsencode(row.path), row.size, row.mtime, row.sha256, row.width, row.height, row.taken)
    return checksum_of(plain, bytes_of(row)).hex()
