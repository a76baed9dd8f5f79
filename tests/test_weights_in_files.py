"""Weights of files: read when they are packed or asked for, from the file that was loaded or not at all."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import full
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import FileChanged

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((900, 160)).astype(np.float32)
HALF = rng.standard_normal((160, 250)).astype(np.float16)
WEIGHT = (rng.standard_normal((160, 200)) / 12).astype(np.float32)
BIAS = rng.standard_normal(200).astype(np.float32)
WEIGHTS: dict[str, np.ndarray] = {"table": TABLE, "half": HALF, "w": WEIGHT, "b": BIAS}
IDS = np.array([3, 899, 0, 3, 41])
FEEDS = {"ids": IDS}


def network() -> onnx.ModelProto:
    """A table is read as it is, one product's weight is packed, the other's is cast before."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h", "wide"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")]
    tensors = [numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "weights", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


STORAGES: dict[str, dict[str, Any]] = {
    "inside": {},
    "one file": {"save_as_external_data": True, "location": "net.data", "size_threshold": 0},
    "many files": {"save_as_external_data": True, "all_tensors_to_one_file": False, "size_threshold": 0},
}


@pytest.fixture(params=[*STORAGES, "json"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "json":
        gk.load(network()).save(tmp_path / "net.json")
    else:
        onnx.save(network(), tmp_path / "net.onnx", **STORAGES[request.param])
    return tmp_path


def model_in(folder: Path) -> Path:
    (found,) = [p for p in folder.iterdir() if p.stem == "net" and p.suffix in (".json", ".onnx")]
    return found


def files(folder: Path) -> list[Path]:
    """The files with weights."""
    return [p for p in folder.iterdir() if p.stat().st_size > 10_000]


def close(results: dict[str, np.ndarray]) -> None:
    h = TABLE[IDS].astype(np.float64)
    np.testing.assert_allclose(results["y"], h @ WEIGHT + BIAS, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results["z"], h @ HALF.astype(np.float64), rtol=1e-4, atol=1e-4)


def equal(params: gk.Model) -> None:
    assert set(params.params) == set(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(params.params[name], array)
        assert not params.params[name].flags.writeable


def test_runs_and_arrays(folder: Path) -> None:
    net = gk.load(model_in(folder))
    close(net.run(FEEDS))
    equal(net)
    close(net.compile(optimize=False).run(FEEDS))
    assert gk.verify(net).passed


def test_a_parameter_that_is_fed_or_assigned(folder: Path) -> None:
    net = gk.load(model_in(folder))
    exe = net.compile()
    doubled = exe.run({**FEEDS, "w": 2 * WEIGHT})["y"] - BIAS
    np.testing.assert_allclose(doubled, 2 * (exe.run(FEEDS)["y"] - BIAS), rtol=1e-4, atol=1e-4)
    net.params["w"] = -WEIGHT
    np.testing.assert_allclose(exe.run(FEEDS)["y"], -TABLE[IDS] @ WEIGHT + BIAS, rtol=1e-4, atol=1e-4)
    equal(gk.load(model_in(folder)))


def test_copies_and_files_made_of_it(folder: Path, tmp_path: Path) -> None:
    net = gk.load(model_in(folder))
    x = gk.input("tokens", ["M"], dtype="int64")
    composed = gk.Model(dict(zip(("y", "z"), net(x), strict=True)))
    made = [copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.select("y", "z"), composed]
    for name in ("again.onnx", "again.json"):
        net.save(tmp_path / name)
        made.append(gk.load(tmp_path / name))
    for model in made:
        close(model.run(dict(zip(model.inputs, FEEDS.values(), strict=True))))
        for name, array in WEIGHTS.items():
            np.testing.assert_array_equal(model.params[name], array)


def test_a_model_is_saved_over_its_own_file(folder: Path) -> None:
    path = model_in(folder)
    net = gk.load(path)
    net.save(path)
    close(net.run(FEEDS))
    equal(net)
    equal(gk.load(path))


def test_training_leaves_the_file_alone(folder: Path) -> None:
    whole = gk.load(model_in(folder))
    net = whole.select("y")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files(folder)}
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1, momentum=0.9))
    target = np.zeros((5, 200), np.float32)
    losses = [float(trainer.step(FEEDS, target)) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert not any(np.array_equal(array, WEIGHTS[name]) for name, array in net.params.items())
    equal(whole)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files(folder)} == before
    equal(gk.load(model_in(folder)))


def truncated(path: Path) -> None:
    os.truncate(path, 100)


def changed(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\1\2\3\4")


@pytest.mark.parametrize("write", [truncated, changed])
def test_files_that_are_written_in_place(folder: Path, write: Callable[[Path], None]) -> None:
    net = gk.load(model_in(folder))
    compiled = net.compile()
    first = compiled.run(FEEDS)
    for path in files(folder):
        write(path)
    for name, array in compiled.run(FEEDS).items():
        np.testing.assert_array_equal(array, first[name])
    fresh = net.compile()
    for read in (lambda: fresh.run(FEEDS), lambda: net.params["w"], lambda: net.save(folder / "other.onnx")):
        with pytest.raises(FileChanged, match=r"written while it was in use.*load it again"):
            read()
    assert not (folder / "other.onnx").exists()


def test_files_that_are_replaced_or_removed(folder: Path) -> None:
    net, later = gk.load(model_in(folder)), gk.load(model_in(folder))
    for path in files(folder):
        new = path.with_suffix(".new")
        new.write_bytes(bytes(path.stat().st_size))
        new.replace(path)
    close(net.run(FEEDS))
    equal(net)
    for path in files(folder):
        path.unlink()
    close(later.run(FEEDS))
    equal(later)


def test_files_are_closed_with_the_last_model(folder: Path) -> None:
    def opened() -> int:
        gc.collect()
        links = [os.readlink(f"/proc/self/fd/{d}") for d in os.listdir("/proc/self/fd") if int(d) > 2 and exists(d)]
        return sum(link.startswith(str(folder)) for link in links)

    def exists(descriptor: str) -> bool:
        return os.path.lexists(f"/proc/self/fd/{descriptor}")

    net = gk.load(model_in(folder))
    executor = net.compile()
    executor.run(FEEDS)
    count = opened()
    assert count == len([p for p in files(folder) if p.stat().st_size >= 1 << 16])
    gradient = gk.grad(net, of="y", wrt=["w"])
    del net, executor
    assert opened() == count, "another model has these weights"
    del gradient
    assert opened() == 0


_FEW_DESCRIPTORS = """
import gc, resource, sys
import numpy as np
import graphkit as gk
gk.load(sys.argv[1]).run({"x": np.ones((1, 200), np.float32)})
gc.collect()
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
net = gk.load(sys.argv[1])
y = net.run({"x": np.ones((1, 200), np.float32)})["y"]
assert (y == sum(range(40)) * 200).all(), y
"""


def test_more_files_than_the_process_may_open(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full((200, 100), i, np.float32) for i in range(40)}
    nodes = [helper.make_node("MatMul", ["x", name], [f"p_{name}"]) for name in arrays]
    nodes.append(helper.make_node("Sum", [f"p_{name}" for name in arrays], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 200])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 100])]
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "many", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, all_tensors_to_one_file=False)
    subprocess.run([sys.executable, "-P", "-c", _FEW_DESCRIPTORS, str(path)], check=True, timeout=300)


_MEMORY = """
import sys
import numpy as np
import graphkit as gk

def resident(which):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(which)]
    return int(line.split()[1]) << 10

x = np.ones((2, 2048), np.float32)
gk.load(sys.argv[1]).run({"x": x})  # libraries
before = resident("RssAnon")
net = gk.load(sys.argv[2])
loaded = resident("RssAnon") - before
exe = net.compile(threads=1)
exe.run({"x": x})
print(loaded, resident("RssAnon") - before, resident("VmHWM") - resident("VmRSS"))
"""


@pytest.mark.full
@pytest.mark.parametrize("storage", [full("inside"), "external", full("json")])
def test_what_is_packed_is_not_resident_besides(tmp_path: Path, storage: str) -> None:
    weights = 6 * 2048 * 2048 * 4
    drawn = rng.standard_normal((2048, 2048), np.float32)
    for name, layers, width in (("small", 1, 16), ("large", 6, 2048)):
        nodes, tensors = [], []
        for i in range(layers):
            tensors.append(numpy_helper.from_array(drawn[:, :width] + np.float32(i), f"w{i}"))
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]))
        inputs = [helper.make_tensor_value_info("h0", TensorProto.FLOAT, ["N", 2048])]
        outputs = [helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
        graph.input[0].name = graph.node[0].input[0] = "x"
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (tmp_path / name).mkdir()
        path = tmp_path / name / "net.onnx"
        onnx.save(proto, path, save_as_external_data=storage == "external")
        if storage == "json":
            gk.load(path).save(path.with_suffix(".json"))
    suffix = "json" if storage == "json" else "onnx"
    paths = [str(tmp_path / name / f"net.{suffix}") for name in ("small", "large")]
    done = subprocess.run([sys.executable, "-P", "-c", _MEMORY, *paths], check=True, timeout=300, capture_output=True)
    loaded, ran, above = map(int, done.stdout.split())
    assert loaded < 0.05 * weights
    assert ran < 1.15 * weights
    assert above < 0.25 * weights, "one weight at a time is there twice"
