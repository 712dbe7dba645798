"""The weights in a .caffemodel: its protocol buffers, read with the few fields that hold them. Caffe is not needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = Any  # of a field: an int, or a memoryview of its bytes

NET_LAYERS = {2: (4, 6), 100: (1, 7)}  # field of a net that holds layers, old and new -> the layer's name, its blobs
BLOB_DATA, BLOB_SHAPE, SHAPE_DIM, BLOB_SIZES = 5, 7, 1, (1, 2, 3, 4)


def read(path: Path) -> dict[str, NDArray[np.float32]]:
    """The blobs of all layers as `layer/number`: views on the file, not copies. ValueError if it is no caffemodel."""
    try:
        net = list(_fields(np.memmap(path, np.uint8, "r").data))
        layers = [_layer(message, *NET_LAYERS[number]) for number, message in net if number in NET_LAYERS]
    except TypeError:
        raise ValueError("a number where a message belongs, or the other way round") from None
    return {name: blob for layer in layers for name, blob in layer.items()}


def _layer(message: Value, name_field: int, blob_field: int) -> dict[str, NDArray[np.float32]]:
    """The blobs of one layer, numbered below its name."""
    parts = list(_fields(message))
    name = "".join(bytes(memoryview(value)).decode() for field, value in parts if field == name_field)
    blobs = [_blob(value) for field, value in parts if field == blob_field]
    return {f"{name}/{i}": blob for i, blob in enumerate(blobs)}


def _blob(message: Value) -> NDArray[np.float32]:
    """One BlobProto; its shape is a message of its own, or in older files the four numbers beside the data."""
    parts = list(_fields(message))
    runs = [np.frombuffer(value, "<f4") for field, value in parts if field == BLOB_DATA]
    data = runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.float32), *runs])
    sizes = dict(parts)
    if BLOB_SHAPE in sizes:
        shape = list(_dims(sizes[BLOB_SHAPE]))
    else:
        shape = [int(sizes.get(field, 1)) for field in BLOB_SIZES]
    if math.prod(shape) != len(data):
        raise ValueError(f"a blob of shape {tuple(shape)} holds {len(data)} numbers")
    return data.reshape(shape)


def _dims(message: Value) -> Iterator[int]:
    """The numbers of a BlobShape, packed into one field or each in its own."""
    for field, value in _fields(message):
        if field == SHAPE_DIM and isinstance(value, int):
            yield value
        elif field == SHAPE_DIM and isinstance(value, memoryview):
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                yield number


def _fields(message: Value) -> Iterator[tuple[int, Value]]:
    """The (number, value) pairs of one message: an int, or the bytes of a text, a message or a fixed number."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire not in (0, 1, 2, 5) or not number:
            raise ValueError(f"field {number} of kind {wire}")
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        length, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + length > len(message):
            raise ValueError("it ends in the middle of a field")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A protobuf number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it ends in the middle of a number")
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError("a number without end")
