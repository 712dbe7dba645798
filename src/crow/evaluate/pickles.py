"""Pickles of plain lists, dicts, numbers, strings and arrays; anything else is refused before it can run.

Nothing that a pickle names is ever imported: its few NumPy names are answered by the small stand-ins below.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = (dict, list, tuple, str, bytes, int, float, bool, type(None), np.ndarray, np.generic)
KINDS = "biufSU"  # arrays of these hold plain values; "O" would hold anything


class PickleRefused(ValueError):
    """A pickle that is damaged, or holds more than plain values."""


def load(path: str | Path) -> Any:
    """The plain value that a pickle file holds."""
    try:
        return plain(_Plain(io.BytesIO(Path(path).read_bytes()), encoding="latin1").load())
    except PickleRefused as error:
        raise PickleRefused(f"{path}: {error}") from None
    except OSError:
        raise
    except Exception as error:
        raise PickleRefused(f"{path}: not a pickle of plain values ({type(error).__name__}: {error})") from None


def plain(value: Any) -> Any:
    """The same value with every stand-in replaced by its array; anything not plain is refused."""
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v) for v in value)
    if not isinstance(value, PLAIN):
        raise PickleRefused(f"holds a {type(value).__name__}, which is no plain value")
    return value


class _Type:
    """Stands for a NumPy dtype; of its state only the byte order is read."""

    def __init__(self, text: str, *_: Any) -> None:
        self.dtype = np.dtype(text)
        if self.dtype.kind not in KINDS:
            raise PickleRefused(f"holds an array of type {text!r}, which is no array of plain values")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands for a NumPy array until its state arrives."""

    array: np.ndarray[Any, Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.array = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C")


class _Name:
    """Stands for the class numpy.ndarray where a pickle passes it on; nothing can be made of it."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", data))
    return array


def _scalar(kind: _Type, data: Any) -> np.generic:
    raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
    value: np.generic = np.frombuffer(raw, kind.dtype)[0]
    return value


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise PickleRefused(f"holds text in the encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,  # how the protocols before 3 write bytes,
    ("__builtin__", "bytes"): _no_bytes,  # and how they write none
} | {
    (f"numpy.{core}.{room}", name): stand_in
    for core in ("core", "_core")
    for room, name, stand_in in (
        ("multiarray", "_reconstruct", _reconstruct),
        ("multiarray", "scalar", _scalar),
        ("numeric", "_frombuffer", _frombuffer),
    )
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise PickleRefused(f"names {module}.{name}, which is no plain value; nothing in it was run")
        return NAMES[module, name]
