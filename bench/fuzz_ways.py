"""Ways of the fuzzer: each changes a file, reads it, and uses the result.

A way returns None, raises a graphkit error, or returns a text that says what differs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import damage
import mutations
import numpy as np
import onnx
from fuzz_results import MEMORY, SECONDS, difference
from fuzz_seeds import CORPUS, Seed
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit import errors
from graphkit.data.files.npz import read_arrays
from graphkit.ir.limits import limited
from graphkit.ir.weights import read_arrays as read_tensors
from graphkit.ir.weights import write_arrays
from graphkit.onnx_io.wire import Malformed, count_messages, fields


class Way(NamedTuple):
    """`run` takes a seed; `often`: how often it is taken. `codes`: exit codes of errors that it may end in."""

    run: Callable[[Seed, random.Random], str | None]
    often: int
    codes: tuple[int, ...] = (3, 4, 5)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        inner = Path(folder) / "model"
        inner.mkdir()
        yield inner


def _load(source: Any, **options: Any) -> gk.Model:
    return gk.load(source, max_memory=MEMORY, timeout=SECONDS, **options)


def _used(net: gk.Model, rng: random.Random, seed: Seed | None = None) -> str | None:
    """Run the model. If an input of the fuzzer does not fit, this is not a finding."""
    try:
        return difference(net, rng, seed.inputs if seed else None)
    except errors.InputError:
        return None


# --- models -------------------------------------------------------------------------------------------


def _onnx(seed: Seed, rng: random.Random) -> str | None:
    net = _load(mutations.mutated(seed.data, rng), external_root=CORPUS)
    found = _used(net, rng, seed)
    if rng.random() < 0.2:
        net.to_text()
        again = _load(net.to_onnx(opset=24))
        if again.outputs != net.outputs:
            return f"outputs {net.outputs} are written as {again.outputs}"
    return found


def _json(seed: Seed, rng: random.Random) -> str | None:
    with _folder() as folder:
        path = folder / "net.json"
        _load(seed.data, external_root=CORPUS).save(path)
        path.write_bytes(damage.damaged_json(path.read_bytes(), rng))
        return _used(_load(path), rng, seed)


def _weights(seed: Seed, rng: random.Random) -> str | None:
    """Headers of safetensors: of arrays alone, and of a model whose file is what its JSON says."""
    with _folder() as folder:
        path = folder / "net.safetensors"
        write_arrays(path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 2), np.int64)})
        if rng.random() < 0.5:
            path.write_bytes(damage.damaged_safetensors(path.read_bytes(), rng))
            read_tensors(path)
            return None
        path.unlink()
        _large().save(folder / "net.json")
        (weights,) = folder.glob("*.safetensors")
        data = damage.damaged_safetensors(weights.read_bytes(), rng)
        weights.write_bytes(data)
        document = json.loads((folder / "net.json").read_bytes())
        document["weights"] |= {"hash": f"sha256:{hashlib.sha256(data).hexdigest()}", "bytes": len(data)}
        (folder / "net.json").write_text(json.dumps(document))
        return _used(_load(folder / "net.json"), rng)


# --- files of models, byte by byte --------------------------------------------------------------------


@cache
def _large() -> gk.Model:
    return gk.load(_large_file())


@cache
def _large_file() -> bytes:
    """A model whose weights are large enough to stay in their file."""
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.normal(size=(128, 160)).astype(np.float32) / 16,
        "b": rng.normal(size=(160, 128)).astype(np.float32) / 16,
        "c": rng.integers(-3, 3, (128, 600)).astype(np.int8),
        "d": np.ones(128, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["s"]), helper.make_node("Add", ["s", "d"], ["t"]),
        helper.make_node("Cast", ["c"], ["e"], to=1), helper.make_node("MatMul", ["t", "e"], ["y"]),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in (("x", 128), ("y", 600)))
    graph = helper.make_graph(nodes, "large", [x], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _wire(seed: Seed, rng: random.Random) -> str | None:
    """Compare a file read with its weights left in the file and the same file read whole."""
    data = damage.rewired(_large_file() if rng.random() < 0.5 else seed.data, rng)
    if rng.random() < 0.3:
        data = mutations.mutated(data, rng) if _parses(data) else damage.damaged(data, rng)
    if count_messages(data, 1000) > 1000:
        return "more messages are counted than are to be"
    try:
        end = 0
        for field in fields(data, 0, len(data)):
            if not end == field.start < field.body <= field.end <= len(data):
                return f"a field lies at {field}, behind {end}"
            end = field.end
    except Malformed:
        pass
    with _folder() as folder:
        path = folder / "net.onnx"
        path.write_bytes(data)
        for file in CORPUS.glob("*.data"):
            shutil.copy(file, folder)
        one, other = (_said(lambda source=source: _load(source, external_root=CORPUS)) for source in (path, data))
        if isinstance(one, errors.GraphkitError) != isinstance(other, errors.GraphkitError):
            return f"from its path: {one!r}, from bytes: {other!r}"[:1000]
        if isinstance(one, errors.GraphkitError):
            raise one
        assert isinstance(other, gk.Model)
        for name, array in other.params.items():
            if one.params[name].tobytes() != array.tobytes():
                return f"parameter {name!r} is another one where it is left in the file"
        return None if one.to_text() == other.to_text() else "the graph is another one from its path"


def _parses(data: bytes) -> bool:
    try:
        onnx.load_model_from_string(data)
    except Exception:  # noqa: BLE001 - protobuf has one of its own for each implementation
        return False
    return True


def _said(load: Callable[[], gk.Model]) -> gk.Model | errors.GraphkitError:
    """Return the model with its weights, or the error."""
    try:
        net = load()
        for name in net.params:
            np.asarray(net.params[name])
    except errors.GraphkitError as error:
        return error
    return net


# --- external data ------------------------------------------------------------------------------------

_SECRET = 0x5A
_SIZES = (*damage.INTEGERS, 1, 4, 81920, 81921, 163840, 10**17, 10**18, 10**19)


def _external(seed: Seed, rng: random.Random) -> str | None:
    """Change the locations of external weights. No file outside of the model's folder may be read."""
    with _folder() as folder:
        model = onnx.load_model_from_string(_large_file() if rng.random() < 0.7 else seed.data)
        body = _moved_out(model, folder)
        secret = folder.parent / "secret"
        secret.write_bytes(bytes([_SECRET]) * max(len(body), 8))
        (folder / "link").symlink_to(secret)
        os.mkfifo(folder / "pipe")
        (folder / "sub").mkdir()
        for _ in range(rng.choice((1, 1, 2, 4))):
            _misplace(model, folder, rng)
        path = folder / "net.onnx"
        path.write_bytes(model.SerializeToString())
        if rng.random() < 0.3:
            (folder / "data").write_bytes(damage.damaged(body, rng))
        net = _load(path)
        if rng.random() < 0.1:
            (folder / "data").write_bytes(damage.damaged(body, rng))
        for name in net.params:
            data = np.asarray(net.params[name]).reshape(-1).view(np.uint8)
            if data.size > 3 and (data == _SECRET).all():
                return f"parameter {name!r} is from outside of the folder"
        return _used(net, rng)


def _moved_out(model: onnx.ModelProto, folder: Path) -> bytes:
    """Put the initialisers into a file, one behind the other; its bytes."""
    body = b""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.STRING or tensor.data_location == TensorProto.EXTERNAL:
            continue
        data = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
        name, dims, kind = tensor.name, list(tensor.dims), tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = name, kind, TensorProto.EXTERNAL
        tensor.dims.extend(dims)
        for key, value in (("location", "data"), ("offset", str(len(body))), ("length", str(len(data)))):
            tensor.external_data.add(key=key, value=value)
        body += data
    (folder / "data").write_bytes(body)
    return body


def _misplace(model: onnx.ModelProto, folder: Path, rng: random.Random) -> None:
    tensors = [t for t in model.graph.initializer if t.external_data]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    entry = rng.choice(tensor.external_data)
    if rng.random() < 0.15:
        kept = rng.choice((tensor.external_data[:1], [], [*tensor.external_data, entry]))
        copies = [(e.key, e.value) for e in kept]
        del tensor.external_data[:]
        for key, value in copies:
            tensor.external_data.add(key=key, value=value)
    elif entry.key == "location":
        entry.value = rng.choice(
            (
                "../secret",
                str(folder.parent / "secret"),
                "link",
                "sub/../data",
                "./data",
                str(folder / "data"),
                "pipe",
                "sub",
                ".",
                "",
                "..",
                "/dev/zero",
                "/proc/self/environ",
                "/etc/passwd",
                "a" * 5000,
                "a/" * 3000,
                "da\0ta",
                "data/",
                "é",
                "~/data",
                "sub/../../secret",
                "file:data",
                "data\n",
                "net.onnx",
                "missing",
                "*",
                "\ud7ff",
            )
        )
    else:
        entry.value = rng.choice((
            *map(str, _SIZES), "", "-", " 5", "5 ", "1e3", "0x10", "1_0", "٣", "²", "1.0", "nan", "9" * 400, "+5", "\0",
        ))  # fmt: skip
    if rng.random() < 0.1:
        tensor.raw_data = rng.randbytes(8)
    if rng.random() < 0.1:
        tensor.dims.append(rng.choice(damage.INTEGERS))


# --- arrays -------------------------------------------------------------------------------------------

_ARRAYS = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3),
    "y": np.array([0, 1, 2, 1]),
    "classes": np.array(["a", "b", "c"]),
}
# Bytes: what arrays may come to, and what a member comes to that is to take more.
_FEW, _BOMB = 1 << 20, 1 << 22


def _arrays(_: Seed, rng: random.Random) -> str | None:
    """Read numpy, idx and text files. They must respect the memory limit, and nothing may be unpickled."""
    with _folder() as folder, limited(_FEW, SECONDS):
        kind = rng.choice(("npz", "npz", "npz", "npy", "npy", "idx", "csv"))
        if kind == "idx":
            _idx(folder, rng)
            gk.data.read(f"mnist:{folder}")
            return None
        path = folder / f"data.{kind}"
        if kind == "csv":
            path.write_bytes(damage.damaged(b"a,b,target\n1,2,x\n3,4,y\n5,1e5,x\n7,8,y\n", rng))
            gk.data.read(path)
            return None
        if kind == "npy":
            path.write_bytes(damage.npy(rng, rng.choice(list(_ARRAYS.values()))))
            if rng.random() < 0.2:
                path.write_bytes(damage.damaged(path.read_bytes(), rng))
            if rng.random() < 0.1:  # a sparse file: zeros that take no space on the disk
                os.truncate(path, _BOMB)
        else:
            path.write_bytes(damage.archive(rng, _ARRAYS, _BOMB))
        arrays = read_arrays(path)
        if any(not isinstance(a, np.ndarray) or a.dtype.hasobject for a in arrays.values()):
            return f"not arrays of numbers and text: {[type(a) for a in arrays.values()]}"
        if sum(a.nbytes for a in arrays.values()) > _FEW:
            return f"{sum(a.nbytes for a in arrays.values())} bytes of arrays, and {_FEW} are the limit"
        for array in arrays.values():
            _adder().run({"x": array})
        gk.data.read(path)
        return None


@cache
def _adder() -> gk.Model:
    return gk.Model({"y": gk.input("x", None) + 1.0})


def _idx(folder: Path, rng: random.Random) -> None:
    sizes = [rng.choice((2, 2, 3, 0, 2**31, 2**32 - 1)) if rng.random() < 0.3 else 2 for _ in range(3)]
    images = struct.pack(
        ">HBBIII", 0, rng.choice((8, 8, 8, 9, 14, 0)), rng.choice((3, 3, 3, 0, 1, 255)), *sizes
    ) + bytes(8)
    labels = struct.pack(">HBBI", 0, 8, 1, 2) + bytes([3, rng.choice((7, 255))])
    images = damage.damaged(images, rng) if rng.random() < 0.5 else images + bytes(rng.choice((0, 0, _BOMB)))
    packed = rng.random() < 0.5
    data = gzip.compress(images, 1) if packed else images
    data = damage.damaged(data, rng) if rng.random() < 0.3 else data
    (folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}").write_bytes(data)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)


WAYS: dict[str, Way] = {
    "model": Way(_onnx, 16),
    "json": Way(_json, 2),
    "weights": Way(_weights, 1),
    "wire": Way(_wire, 2),
    "external": Way(_external, 2),
    "arrays": Way(_arrays, 2, (2, 3, 4, 5)),
}
