"""gk.AdapterSet: each run equals that of the merged model, without compiling again and without copies of weights."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.executor.run.program_cache import ProgramCache
from graphkit.train.adapters import adapter_set, combine
from graphkit.train.adapters.layers import find_layers
from graphkit.train.adapters.settings import Lora

RNG = np.random.default_rng(0)
X = {"x": RNG.standard_normal((4, 6)).astype(np.float32)}


def base() -> gk.Model:
    """A recurrent layer in a loop, a convolution, and a layer that is applied twice."""
    x = gk.input("x", ["N", 6])
    w = gk.parameter("cell.weight", (6, 6))
    h, _ = gk.scan(lambda h, _: (gk.tanh(gk.mat_mul(h, w)), h), x, None, length=3)
    h = gk.nn.conv2d(gk.reshape(h, (-1, 1, 2, 3)), 4, kernel=(2, 2), name="conv")
    return gk.Model({"y": gk.nn.linear(gk.flatten(gk.relu(h)), 3, name="head")}, seed=0)


def write(net: gk.Model, folder: Path, **options) -> gk.Model:
    """Write a random adapter to a folder; return the merged model."""
    made = gk.lora(net, **options)
    for name in made.trainable:
        array = made.params[name]
        made.params[name] = array + 0.5 * RNG.standard_normal(array.shape).astype(array.dtype)
    gk.save_adapter(made, folder)
    return gk.merge_lora(made)


@pytest.fixture
def merged(tmp_path) -> dict[str | None, gk.Model]:
    """The folders a to d with adapters of several ranks and layers, and the merged models; None: the base model."""
    net = base()
    return {
        "a": write(net, tmp_path / "a", rank=2, alpha=3.0),
        "b": write(net, tmp_path / "b", rank=5, rslora=True, layers="cell"),
        "c": write(net, tmp_path / "c", rank=1, layers="conv"),
        "d": write(net, tmp_path / "d", rank=1, layers="cell", train="head_bias"),
        None: net,
    }


@pytest.fixture
def compiled(monkeypatch) -> list[int]:
    """A list that grows with each program that is compiled."""
    found: list[int] = []
    build = ProgramCache.build
    monkeypatch.setattr(ProgramCache, "build", lambda self, *args: found.append(1) or build(self, *args))
    return found


def test_each_run_equals_the_merged_model_and_nothing_is_compiled_again(merged, tmp_path, compiled) -> None:
    adapters = gk.AdapterSet(merged[None], {name: tmp_path / name for name in "abcd"}, threads=1)
    assert adapters.rank == 5
    expected = {name: model.run(X)["y"] for name, model in merged.items()}
    assert len({array.tobytes() for array in expected.values()}) == 5
    adapters.run(X)
    count = len(compiled)
    for name in ("a", "b", None, "a", "c", "d", None, "b"):
        np.testing.assert_allclose(adapters.run(X, name)["y"], expected[name], rtol=1e-5, atol=1e-5)
        executor = adapters.executor.run({**X, **adapters.feeds(name)})
        np.testing.assert_array_equal(executor["y"], adapters.run(X, name)["y"])
    assert len(compiled) == count
    adapters.unload("b")
    with pytest.raises(UsageError, match="there is no adapter 'b'"):
        adapters.run(X, "b")
    adapters.load("b", [tmp_path / "c", tmp_path / "d", tmp_path / "a"], weights=[2.0, 1.0, -0.5])
    found = adapters.run(X, "b")["y"]
    assert len(compiled) == count
    added = gk.load_adapter(merged[None], [tmp_path / name for name in "cda"], weights=[2.0, 1.0, -0.5])
    np.testing.assert_allclose(found, gk.merge_lora(added).run(X)["y"], rtol=1e-5, atol=1e-5)


def test_threads_use_different_adapters(merged, tmp_path) -> None:
    adapters = gk.AdapterSet(merged[None], {name: tmp_path / name for name in "ab"}, threads=1)
    expected = {name: adapters.run(X, name)["y"] for name in ("a", "b", None)}
    wrong: list[object] = []

    def work(name: str | None) -> None:
        results = [adapters.run(X, name)["y"] for _ in range(50)]
        wrong.extend(name for y in results if not np.array_equal(y, expected[name]))

    workers = [threading.Thread(target=work, args=(name,)) for name in expected]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_weights_are_not_copied(tmp_path) -> None:
    size = 1024
    net = gk.Model({"y": gk.mat_mul(gk.input("x", [1, size]), gk.parameter("fc.weight", (size, size)))}, seed=0)
    write(net, tmp_path / "a", rank=2)
    write(net, tmp_path / "b", rank=4)
    x, weight = {"x": np.ones((1, size), np.float32)}, net.params["fc.weight"]
    used = []
    tracemalloc.start()
    executor = net.compile(threads=1)
    executor.run(x)
    used.append(tracemalloc.get_traced_memory()[0])
    adapters = gk.AdapterSet(net, {name: tmp_path / name for name in "ab"}, threads=1)
    adapters.run(x)
    used.append(tracemalloc.get_traced_memory()[0])
    for name in ("a", "b", None, "a"):
        adapters.run(x, name)
    for name in "cdef":
        adapters.load(name, tmp_path / "b")
        adapters.run(x, name)
    used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert np.shares_memory(adapters.model.params["fc.weight"], weight)
    assert np.shares_memory(adapters.model_with("b").params["fc.weight"], weight)
    # A compiled model contains the weight in the layout of its kernels. The set needs it once, as the base model does.
    assert used[1] - used[0] < used[0] + weight.nbytes // 8
    assert used[2] - used[1] < weight.nbytes // 8


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights(tmp_path, bits: int) -> None:
    x = gk.input("x", ["N", 32])
    gk.Model({"y": gk.nn.linear(x, 5, name="fc")}, seed=0).save(tmp_path / "float.onnx")
    gk.quantize(tmp_path / "float.onnx", mode="weights", bits=bits, block_size=16).save(tmp_path / "q.onnx")
    net, data = gk.load(tmp_path / "q.onnx"), {"x": RNG.standard_normal((3, 32)).astype(np.float32)}
    changed = write(net, tmp_path / "a", rank=2)
    adapters = gk.AdapterSet(net, {"a": tmp_path / "a"}, threads=1)
    np.testing.assert_allclose(adapters.run(data, "a")["y"], changed.run(data)["y"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(adapters.run(data)["y"], net.run(data)["y"], rtol=1e-5, atol=1e-5)
    assert "fc_weight" not in adapters.model.params  # its integers are constants of the graph


def test_onnx_runtime_switches_between_the_adapters(merged, tmp_path) -> None:
    ort = pytest.importorskip("onnxruntime")
    adapters = gk.AdapterSet(merged[None], {name: tmp_path / name for name in "abcd"}, threads=1)
    plain = adapters.model_with()
    plain.save(tmp_path / "net.onnx", as_inputs=gk.adapter_parameters(plain))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(tmp_path / "net.onnx", options, providers=["CPUExecutionProvider"])
    for name in ("a", "b", None, "a", "c", "d"):
        run = ort.RunOptions()
        adapter = ort.LoraAdapter()
        if name is not None:
            gk.save_adapter(adapters.model_with(name), tmp_path / f"{name}.onnx_adapter")
            adapter.Load(str(tmp_path / f"{name}.onnx_adapter"))
            run.add_active_adapter(adapter)
        found = session.run(None, X, run)[0]
        np.testing.assert_allclose(found, merged[name].run(X)["y"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, adapters.run(X, name)["y"], rtol=1e-5, atol=1e-5)


def test_room_for_later_adapters(merged, tmp_path) -> None:
    adapters = gk.AdapterSet(merged[None], {}, rank=2, layers="cell*", threads=1)
    assert adapters.names == ()
    np.testing.assert_allclose(adapters.run(X)["y"], merged[None].run(X)["y"], rtol=1e-5, atol=1e-5)
    changed = write(merged[None], tmp_path / "small", rank=1, layers="cell")
    adapters.load("small", tmp_path / "small")
    np.testing.assert_allclose(adapters.run(X, "small")["y"], changed.run(X)["y"], rtol=1e-5, atol=1e-5)
    for folder, message in (
        ("b", "has rank 5, but the set has room for 2; create it with rank=5"),
        ("c", r"contains conv\.lora_A\.weight, conv\.lora_B\.weight, which the set lacks"),
        ("d", "contains head_bias, which the set lacks"),
    ):
        with pytest.raises(UsageError, match=message):
            adapters.load("x", tmp_path / folder)
    assert adapters.names == ("small",)


def test_adapters_that_do_not_fit_are_errors(merged, tmp_path) -> None:
    net = merged[None]
    write(net, tmp_path / "dora", rank=1, dora=True)
    write(net, tmp_path / "weight", rank=1, layers="cell", train="head_weight")
    write(net, tmp_path / "head", rank=1, layers="head")
    for adapters, options, message in (
        ({"a": tmp_path / "dora"}, {}, "dora contains DoRA adapters"),
        ({"a": tmp_path / "none"}, {}, "none contains no adapter"),
        ({"a": tmp_path / "weight", "b": tmp_path / "head"}, {}, "replaces the weight of layer 'head', and another"),
        ({}, {}, "give adapters, or the layers that later adapters change"),
        ({}, {"layers": "absent"}, "layers pattern 'absent' matches no layer"),
        ({"a": tmp_path / "a"}, {"rank": 0}, "rank must be an integer of at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            gk.AdapterSet(net, adapters, **options)
    with pytest.raises(UsageError, match="has adapters already"):
        gk.AdapterSet(gk.load_adapter(net, tmp_path / "a"), {"a": tmp_path / "a"})


def test_arrays_of_feeds_are_read_only(merged, tmp_path) -> None:
    adapters = gk.AdapterSet(merged[None], {"a": tmp_path / "a", "d": tmp_path / "d"}, threads=1)
    adapters.load("b", tmp_path / "c")
    for name in ("a", "b", "d", None):
        for array in adapters.feeds(name).values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 5
    # A model of the set has arrays of its own when it is trained.
    before = adapters.run(X, "a")["y"]
    gk.Trainer(adapters.model_with("a"), loss="mse", optimizer=gk.optim.SGD(0.1)).step(X["x"], np.ones((4, 3)))
    np.testing.assert_array_equal(adapters.run(X, "a")["y"], before)


def test_layers_are_searched_once_for_all_adapters(merged, tmp_path, monkeypatch) -> None:
    calls: list[int] = []
    search = find_layers
    for module in (adapter_set, combine):
        monkeypatch.setattr(module, "find_layers", lambda graph: calls.append(1) or search(graph))
    adapters = gk.AdapterSet(merged[None], {name: tmp_path / name for name in "abcd"}, threads=1)
    assert len(calls) == 1
    # Nor does each array of an adapter read the settings of the set again.
    monkeypatch.setattr(Lora, "from_text", lambda text: calls.append(2))
    adapters.load("e", tmp_path / "a")
    assert calls == [1]


def test_folders_without_an_order_are_errors(merged, tmp_path) -> None:
    net, folders = merged[None], [tmp_path / "a", tmp_path / "b"]
    for given in (set(folders), frozenset(folders)):
        with pytest.raises(UsageError, match="list or tuple"):
            gk.load_adapter(net, given, weights=[1.0, 2.0])
        with pytest.raises(UsageError, match="list or tuple"):
            gk.AdapterSet(net, {"a": given})
    with pytest.raises(UsageError, match="list or tuple"):
        gk.load_adapter(net, folders, weights={1.0, 2.0})
