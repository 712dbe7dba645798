"""Every kind of published file is read by what is in it; damaged, foreign and malicious ones are refused in a line."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from crow.extract.checkpoints import CheckpointError, read

RNG = np.random.default_rng(2)
FILTERS = RNG.standard_normal((4, 3, 3, 3), dtype=np.float32)
BIASES = RNG.standard_normal(4, dtype=np.float32)
FLAX = {"VGG16_0": {"Conv_0": {"kernel": FILTERS.transpose(2, 3, 1, 0), "bias": BIASES}}}


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].shape == np.shape(value)


def refused(path: Path, why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as error:
        read(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_safetensors(tmp_path: Path) -> None:
    wide = torch.arange(6, dtype=torch.bfloat16)
    save_file({"conv.weight": torch.from_numpy(FILTERS), "half": wide}, tmp_path / "any.name")
    same(read(tmp_path / "any.name"), {"conv.weight": FILTERS, "half": np.arange(6, dtype=np.float32)})


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_state_dicts_of_both_formats_named_as_stored(tmp_path: Path, zipped: bool) -> None:
    state = OrderedDict({"features.0.weight": torch.from_numpy(FILTERS), "features.0.bias": torch.from_numpy(BIASES)})
    path = tmp_path / "weights"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    same(read(path), {"features.0.weight": FILTERS, "features.0.bias": BIASES})
    torch.save(
        {"epoch": 3, "state_dict": state, "meta": {"arch": "vgg16"}}, path, _use_new_zipfile_serialization=zipped
    )
    same(read(path), {"state_dict/features.0.weight": FILTERS, "state_dict/features.0.bias": BIASES})


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_flax_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "vgg16.ckpt"
    path.write_bytes(pickle.dumps(FLAX, protocol=protocol))
    expected = {"VGG16_0/Conv_0/kernel": FILTERS.transpose(2, 3, 1, 0), "VGG16_0/Conv_0/bias": BIASES}
    same(read(path), expected)


def test_arrays_of_other_types_and_orders(tmp_path: Path) -> None:
    arrays = {
        "big endian": np.arange(6, dtype=">f8").reshape(2, 3),
        "Fortran": np.asfortranarray(RNG.standard_normal((3, 4, 5))),
        "strided": np.arange(20, dtype=np.int16)[::3],
        "flags": np.array([True, False]),
        "single": np.array(2.5, np.float16),
        "none": np.zeros((0, 3), np.float32),
    }
    for protocol in (3, 5):
        (tmp_path / "x.ckpt").write_bytes(pickle.dumps(arrays, protocol=protocol))
        same(read(tmp_path / "x.ckpt"), arrays)


def test_the_names_an_old_numpy_wrote(tmp_path: Path) -> None:
    """The published checkpoint says numpy.core, NumPy 2 writes numpy._core: both are read."""
    data = pickle.dumps(FLAX, protocol=3)
    old = data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    new = data.replace(b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n")
    for content in (old, new):
        (tmp_path / "x.ckpt").write_bytes(content)
        assert len(read(tmp_path / "x.ckpt")) == 2


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_the_source_archive_with_its_checkpoints(tmp_path: Path) -> None:
    other = {"AlexNet_0": {"Conv_0": {"bias": BIASES}}}
    files = {"a-1/setup.py": b"raise SystemExit", "a-1/w/alexnet.ckpt": pickle.dumps(other, 3)}
    path = archive(tmp_path / "a-1.tar.gz", files | {"a-1/w/vgg16.ckpt": pickle.dumps(FLAX, 3)})
    assert list(read(path)) == ["AlexNet_0/Conv_0/bias", "VGG16_0/Conv_0/kernel", "VGG16_0/Conv_0/bias"]
    refused(archive(tmp_path / "none.tar.gz", {"a-1/setup.py": b""}), "holds no tensors")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:60] + b"\0" * 40 + whole[100:], whole[:12]):
        path.write_bytes(damaged)
        refused(path, "archive|file|pickle|data|tensors|stream|CRC")


# Caffe's protocol buffers, written by a small encoder of our own.


def varint(value: int) -> bytes:
    head = b""
    while value > 127:
        head, value = head + bytes([value & 127 | 128]), value >> 7
    return head + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def packed(array: np.ndarray) -> bytes:
    return message(5, array.astype("<f4").tobytes())


def unpacked(array: np.ndarray) -> bytes:
    return b"".join(varint(5 << 3 | 5) + struct.pack("<f", value) for value in array.ravel())


def old_sizes(shape: tuple[int, ...]) -> bytes:
    whole = (1,) * (4 - len(shape)) + shape
    return b"".join(number(field, size) for field, size in enumerate(whole, 1))


def new_shape(shape: tuple[int, ...]) -> bytes:
    return message(7, message(1, b"".join(map(varint, shape))))


def loose_shape(shape: tuple[int, ...]) -> bytes:
    return message(7, b"".join(number(1, size) for size in shape))


def net(field: int, shape: Any, data: Any) -> bytes:
    """A net of an input, one convolution and one ReLU, in the old (2) or the new (100) form."""
    name_field, blob_field = {2: (4, 6), 100: (1, 7)}[field]
    convolution, relu = (
        (number(5, 4), number(5, 18)) if field == 2 else (message(2, b"Convolution"), message(2, b"ReLU"))
    )
    blobs = b"".join(message(blob_field, shape(array.shape) + data(array)) for array in (FILTERS, BIASES))
    convolution = message(3, b"conv1_1") + message(name_field, b"conv1_1") + convolution + blobs
    relu = message(name_field, b"relu1_1") + relu
    return message(1, b"VGG") + message(3, b"data") + number(4, 10) + message(field, convolution) + message(field, relu)


@pytest.mark.parametrize("field", [2, 100])
@pytest.mark.parametrize("shape", [old_sizes, new_shape, loose_shape])
@pytest.mark.parametrize("data", [packed, unpacked])
def test_caffemodels_old_and_new(tmp_path: Path, field: int, shape: Any, data: Any) -> None:
    path = tmp_path / "VGG_ILSVRC_16_layers.caffemodel"
    path.write_bytes(net(field, shape, data))
    biases = BIASES.reshape(1, 1, 1, 4) if shape is old_sizes else BIASES
    same(read(path), {"conv1_1/0": FILTERS, "conv1_1/1": biases})


def test_a_caffemodel_with_a_wrong_shape(tmp_path: Path) -> None:
    path = tmp_path / "x.caffemodel"
    path.write_bytes(net(100, lambda shape: new_shape((*shape, 2)), packed))
    refused(path, "a blob of shape")
    path.write_bytes(message(100, number(1, 10**12) + message(7, packed(BIASES))))
    refused(path, "a number where a message belongs")


# What must not be read.


class Malice:
    """A pickle of this makes a file when it is loaded by a loader that runs what it is told."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_the_malicious_pickle_is_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Malice(tmp_path / "mark")))  # noqa: S301
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_malicious_pickles_run_nothing(tmp_path: Path, protocol: int) -> None:
    mark, path = tmp_path / "mark", tmp_path / "weights"
    evil = pickle.dumps({"VGG16_0": {"kernel": FILTERS, "bias": Malice(mark)}}, protocol=protocol)
    path.write_bytes(evil)
    refused(path, "asks for|damaged")
    refused(archive(tmp_path / "a.tar.gz", {"a-1/w/vgg16.ckpt": evil}), "asks for|damaged")
    assert not mark.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_malicious_torch_files_run_nothing(tmp_path: Path, zipped: bool) -> None:
    mark, path = tmp_path / "mark", tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(2), "b": Malice(mark)}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "more than tensors")
    torch.save(torch.nn.Linear(2, 2), path, _use_new_zipfile_serialization=zipped)
    refused(path, "more than tensors")
    assert not mark.exists()


@pytest.mark.parametrize(
    "asked",
    [
        "builtins eval",
        "os system",
        "numpy load",
        "numpy.core.multiarray scalar",
        "numpy.ndarray __reduce__",
        "numpy.core.multiarray _reconstruct.__globals__",
        "_codecs encode",
        "copyreg _reconstructor",
    ],
)
def test_nothing_but_the_making_of_arrays_can_be_asked_for(tmp_path: Path, asked: str) -> None:
    module, name = asked.encode().split(b" ")
    (tmp_path / "x.ckpt").write_bytes(b"\x80\x03c" + module + b"\n" + name + b"\n.")
    refused(tmp_path / "x.ckpt", "asks for")


def test_arrays_of_objects_and_texts_are_refused(tmp_path: Path) -> None:
    for array in (np.array([{}, 1], object), np.array(["a"]), np.zeros(2, [("a", "f4")])):
        (tmp_path / "x.ckpt").write_bytes(pickle.dumps({"a": array}, 3))
        refused(tmp_path / "x.ckpt", "pickle")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>Not found</html>", "web page"),
        (b'name: "VGG"\ninput: "data"\n', "no file of weights"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(100), "no file of weights"),
        (b"PK\x03\x04" + bytes(100), "no torch file"),
        (b"\x1f\x8b\x08\0" + bytes(100), "archive|gzip"),
        (b"\x80\x03}.", "holds no tensors"),
        (bytes(1000), "no file of weights"),
        (b"Weights, of which this file has none." * 9, "no file of weights"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file", why)


def test_what_is_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "No such file")
    refused(tmp_path, "directory")


def samples() -> list[bytes]:
    """A small file of every kind."""
    made = []
    tensors = {"a": torch.from_numpy(FILTERS), "b": torch.from_numpy(BIASES)}
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
        made.append(file.getvalue())
    from safetensors.torch import save

    return [*made, save(tensors), pickle.dumps(FLAX, 3), net(2, old_sizes, packed), net(100, new_shape, unpacked)]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_anywhere_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(samples()), "file"))
    start = data.draw(st.integers(0, len(content) - 1), "start")
    if data.draw(st.booleans(), "cut"):
        del content[start:]
    else:
        content[start : start + 8] = data.draw(st.binary(min_size=1, max_size=12), "damage")
    path = tmp_path / "damaged"
    path.write_bytes(content)
    try:
        assert all(isinstance(value, np.ndarray) for value in read(path).values())
    except CheckpointError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
