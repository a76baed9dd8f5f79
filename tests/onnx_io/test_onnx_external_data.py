"""External data: reads only in the allowed folders, with checked offsets; atomic writes into the model's folder."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import InvalidModel, RuntimeFailure, UnsafeModel, UsageError
from graphkit.ir import stored
from graphkit.ir.graph import Graph, Value
from graphkit.ir.hashing import BLAKE2B8, hash_of
from graphkit.ir.types import TensorType
from graphkit.onnx_io import exporter, external_data, writing
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.importer import import_model
from graphkit.onnx_io.writing import write_proto
from graphkit.ops import F

W = np.arange(4096, dtype=np.float32).reshape(64, 64)


def external_model(location, offset=None, length=None, dims=(64, 64)):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": offset, "length": length}
    for key, value in entries.items():
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "w.bin").write_bytes(b"\0" * 16 + W.tobytes())
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    return inner


def load(folder, proto, **options):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return import_model(path, **options)


def test_reading_at_an_offset(folder):
    found = load(folder, external_model("w.bin", 16, W.nbytes))
    np.testing.assert_array_equal(found.params["w"], W)
    assert not found.params["w"].flags.writeable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("w.bin", 17, W.nbytes), "which has only 16400"),
        (("w.bin", 0, 4), "needs 16384 bytes, but its external data have 4"),
        (("w.bin", -1, W.nbytes), "offset '-1' is not a size"),
        (("w.bin", 10**30, W.nbytes), "is not a size"),
        (("none.bin", 0, W.nbytes), "missing or is not a regular file"),
        ((".", 0, W.nbytes), "missing or is not a regular file"),
        (("", 0, W.nbytes), "without a location"),
    ],
)
def test_locations_that_do_not_fit(folder, arguments, message):
    with pytest.raises(InvalidModel, match=message):
        load(folder, external_model(*arguments))


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd", "a/../../outside.bin"])
def test_data_outside_the_folder_are_refused(folder, location):
    with pytest.raises(UnsafeModel, match="outside the model's folder"):
        load(folder, external_model(location))


def test_symbolic_links_out_of_the_folder(folder, tmp_path):
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(UnsafeModel, match="outside the model's folder"):
        load(folder, external_model("link.bin"))
    allowed = load(folder, external_model("link.bin"), external_root=tmp_path)
    np.testing.assert_array_equal(allowed.params["w"], W)


@pytest.mark.parametrize("linked", ["both", "the model"])
def test_a_model_that_is_a_link(tmp_path, folder, linked):
    """As in the cache of the Hugging Face hub: both are links to blobs, whose names are digests."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/revision/onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    onnx.save(external_model("data", 16), blobs / "c6ed")
    (snapshot / "model.onnx").symlink_to("../../../blobs/c6ed")
    (folder / "w.bin").rename(blobs / ("b879" if linked == "both" else "data"))
    if linked == "both":
        (snapshot / "data").symlink_to("../../../blobs/b879")
    np.testing.assert_array_equal(gk.load(snapshot / "model.onnx").params["w"], W)
    # A file in neither folder is rejected.
    for place in (snapshot, blobs):
        (place / "data").unlink(missing_ok=True)
    (snapshot / "data").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(UnsafeModel, match="outside the model's folder"):
        gk.load(snapshot / "model.onnx")


def test_a_model_without_a_folder(tmp_path, folder):
    data = external_model("w.bin", 16).SerializeToString()
    with pytest.raises(InvalidModel, match="without a folder"):
        import_model(data)
    np.testing.assert_array_equal(import_model(data, external_root=folder).params["w"], W)


def test_huge_dims_are_refused_before_allocation(folder):
    with pytest.raises(InvalidModel, match="which has only 16400"):
        load(folder, external_model("w.bin", dims=(1 << 31, 1 << 20)))


@pytest.mark.parametrize("location", ["zero", "self/mem", "fd/0", "pipe", "w.bin/x", "loop", "a" * 5000])
def test_what_is_no_file_of_data(folder, tmp_path, location):
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    roots = {"zero": "/dev", "self/mem": "/proc", "fd/0": "/dev"}
    source, root = (external_model(location), roots.get(location))
    if root is not None:
        with pytest.raises((InvalidModel, UnsafeModel)):
            import_model(source.SerializeToString(), external_root=root)
        (folder / "link").symlink_to(os.path.join(root, location))
        source = external_model("link")
    with pytest.raises((InvalidModel, UnsafeModel)):
        load(folder, source)


def test_a_link_that_changes_between_the_look_and_the_opening(folder, tmp_path, monkeypatch):
    real = external_data.StoredFile

    def swapped(path):
        (folder / "w.bin").unlink(missing_ok=True)
        (folder / "w.bin").symlink_to(tmp_path / "outside.bin")
        return real(path)

    monkeypatch.setattr(external_data, "StoredFile", swapped)
    with pytest.raises(UnsafeModel, match="outside the model's folder"):
        load(folder, external_model("w.bin"))


def test_pieces_of_a_file_may_overlap(folder):
    first = load(folder, external_model("w.bin", 16)).params["w"]
    other = load(folder, external_model("w.bin", 0)).params["w"]
    np.testing.assert_array_equal(np.asarray(other).reshape(-1)[4:], np.asarray(first).reshape(-1)[:-4])


@pytest.mark.parametrize("name", ["m.onnx", "m.json"])
def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises((InvalidModel, RuntimeFailure), match="regular file"):
        gk.load(tmp_path / name)


# --- writing --------------------------------------------------------------------------------------


def save(folder, path, weights=None, **options):
    found = load(folder, external_model("w.bin", 16))
    params = found.params if weights is None else {"w": weights}
    return exporter.save(found.graph, params, path, name="m", **options)


def test_saving_with_external_data(folder, tmp_path):
    path = tmp_path / "out" / "net.onnx"
    path.parent.mkdir()
    data, written = save(folder, path, external=True)
    assert written == path
    assert data.stat().st_size == W.nbytes
    assert data.name == f"net-{hash_of(BLAKE2B8, [data.read_bytes()])[:16]}.data"
    np.testing.assert_array_equal(import_model(path).params["w"], W)
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(OnnxRuntimeModel(path).run({"x": x})["y"], x @ W, rtol=1e-6)
    onnx.checker.check_model(str(path))


def test_saving_again_replaces_the_data_file(folder, tmp_path):
    path = tmp_path / "net.onnx"
    (first, _) = save(folder, path, external=True)
    (second, _) = save(folder, path, W + 1, external=True)
    assert first != second
    assert not first.exists()
    np.testing.assert_array_equal(import_model(path).params["w"], W + 1)


def test_a_full_disk_leaves_what_was_there(folder, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for external in (False, True):
        with pytest.raises(RuntimeFailure, match="No space left"):
            save(folder, path, external=external)
    assert path.read_bytes() == b"before"
    assert {p.name for p in tmp_path.iterdir()} == {"net.onnx", "model", "outside.bin"}


@pytest.mark.parametrize("external", [False, True])
def test_a_model_file_that_cannot_be_written_leaves_what_was_there(folder, tmp_path, monkeypatch, external):
    path = tmp_path / "net.onnx"
    save(folder, path, external=True)
    files = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    replace = os.replace

    def refuse(source, target):
        if Path(target).name == "net.onnx":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RuntimeFailure, match="cannot be written"):
        save(folder, path, W + 1, external=external)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == files
    np.testing.assert_array_equal(import_model(path).params["w"], W)


def test_a_file_above_2_gib_needs_a_data_file(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    weight = writing.Initialiser(TensorProto(name="w", dims=[3 << 30], data_type=TensorProto.INT8), 3 << 30, bytes)
    with pytest.raises(UsageError, match=r"takes 3\.0 GiB, but an ONNX file holds at most 2 GiB: .*external=True"):
        writing.write(writing.UnwrittenModel(onnx.ModelProto(), [weight]), path, external=False)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@in_one_item()
@pytest.mark.parametrize(("name", "options"), [("m.onnx", {}), ("m.onnx", {"external": True}), ("m.json", {})])
def test_weights_in_a_file_are_copied_block_by_block(tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(stored, "_BLOCK", 1 << 14)
    weights = [Value(TensorType(gk.DType.FLOAT32, (400, 400)), f"w{i}", role="parameter") for i in range(8)]
    arrays = {v.name: np.full((400, 400), i, np.float32) for i, v in enumerate(weights)}
    exporter.save(Graph(weights, [F.sum(*weights)]), arrays, tmp_path / "net.onnx")
    model = gk.load(tmp_path / "net.onnx")
    tracemalloc.start()
    try:
        model.save(tmp_path / name, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < arrays["w0"].nbytes
    for key, array in gk.load(tmp_path / name).params.items():
        np.testing.assert_array_equal(array, arrays[key])


def test_the_message_of_a_missing_folder(folder, tmp_path):
    with pytest.raises(RuntimeFailure, match="cannot be written: No such file"):
        save(folder, tmp_path / "none" / "net.onnx")
    with pytest.raises(UsageError, match="is a directory"):
        save(folder, tmp_path)


def test_nothing_but_the_data_of_large_initialisers_moves(folder, tmp_path):
    large, small = np.random.default_rng(0).standard_normal((2, 40, 41)).astype(np.float32), np.ones(900, np.float32)
    branches = []
    for name, array in zip(("then", "else"), large, strict=True):
        inner = onnx.numpy_helper.from_array(array, f"{name}_w")
        node = helper.make_node("Identity", [inner.name], [f"{name}_y"], name=name)
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [40, 41])
        branches.append(
            helper.make_graph([node], name, [], [output], [inner, onnx.numpy_helper.from_array(small, "s")])
        )
    node = helper.make_node("If", ["p"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [helper.make_tensor_value_info("p", TensorProto.BOOL, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [40, 41])]
    graph = helper.make_graph([node], "g", inputs, outputs, [onnx.numpy_helper.from_array(large, "unread")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, doc_string="text")
    proto.metadata_props.add(key="key", value="value")
    before = proto.SerializeToString(deterministic=True)
    data, path = write_proto(proto, tmp_path / "net.onnx", external=True)
    assert proto.SerializeToString(deterministic=True) == before
    assert data.stat().st_size >= 2 * large.nbytes
    again = onnx.load(path)
    onnx_file = onnx.load(path, load_external_data=False)
    inner = [i for a in onnx_file.graph.node[0].attribute for i in a.g.initializer]
    places = [{e.key: e.value for e in t.external_data} for t in (*onnx_file.graph.initializer, *inner)]
    assert [int(p["offset"]) % writing.ALIGNMENT for p in places if p] == [0, 0, 0]
    assert [not p for p in places] == [False, False, True, False, True]  # small tensors stay in the model
    for tensor in (*again.graph.initializer, *(i for a in again.graph.node[0].attribute for i in a.g.initializer)):
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    assert again.SerializeToString(deterministic=True) == before


def test_embedded_data_are_those_of_the_message(tmp_path):
    """Large and small tensors, sub-byte types, half floats, strings and scalars; also a large Constant."""
    rng = np.random.default_rng(0)
    arrays = {
        "wide": rng.standard_normal((64, 128)).astype(np.float32), "half": np.ones((70, 70), np.float16),
        "bias": np.arange(4, dtype=np.float32),
        "nibbles": rng.integers(-8, 8, (90, 101)).astype(gk.DType("int4").numpy),
        "words": np.array(["a", "\u00fc" * 5000], object), "scalar": np.asarray(3, np.int64),
        "brain": np.full((50, 50), 1.5, gk.DType("bfloat16").numpy), "empty": np.zeros((0, 4), np.float64),
    }  # fmt: skip
    values = [Value(TensorType(gk.ir.types.dtype_of(a.dtype), a.shape), n, role="parameter") for n, a in arrays.items()]
    constant = F.constant(value=rng.integers(0, 9, (40, 40)))
    graph = Graph(values, [*map(F.identity, values), F.identity(constant)])
    for opset in (21, 25):
        exporter.save(graph, arrays, tmp_path / "net.onnx", opset=opset, meta={"k": "v"})
        found, expected = onnx.load(tmp_path / "net.onnx"), exporter.export(graph, arrays, opset=opset, meta={"k": "v"})
        assert found == expected
        assert len(found.graph.initializer) == len(arrays) + 1


@pytest.mark.full
@pytest.mark.long
def test_more_than_a_message_holds(tmp_path):
    """2.1 GiB of weights: protobuf neither serialises nor copies such a message."""
    x = Value(TensorType("float32", ("N", 1 << 14)), "x")
    arrays = {f"w{i}": np.full((1 << 14, 11264), i, np.float32) for i in range(3)}
    weights = [Value(TensorType("float32", a.shape), n, role="parameter") for n, a in arrays.items()]
    graph = Graph([x, *weights], [F.mat_mul(x, w) for w in weights])
    path = tmp_path / "net.onnx"
    data, _ = exporter.save(graph, arrays, path)
    assert data.stat().st_size > 1 << 31
    found = import_model(path).params
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
