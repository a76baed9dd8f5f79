"""Train files in which the exporter merged equal tensors: a tensor with several roles is split."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import InvalidModel
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.passes.training.separate_roles import separate_roles

RNG = np.random.default_rng(0)
CHANNELS = 4


def exported(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], shape: tuple[Any, ...] = ("N", CHANNELS, 3, 3)
) -> gk.Model:
    initialisers = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [x], [y], initialisers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return gk.load(proto.SerializeToString())


def ones() -> np.ndarray:
    return np.ones(CHANNELS, np.float32)


def merged() -> gk.Model:
    """Two normalisations whose eight vectors were merged into two."""
    return exported(
        [
            helper.make_node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["h"], "bn1"),
            helper.make_node("Conv", ["h", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["n"], "bn2"),
            helper.make_node("GlobalAveragePool", ["n"], ["p"]),
            helper.make_node("Flatten", ["p"], ["y"]),
        ],
        {"one": ones(), "zero": ones() * 0, "w": kernel()},
    )


def kernel() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) * 0.2


def batches(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [
        (
            rng.normal(1, 2, (8, CHANNELS, 3, 3)).astype(np.float32),
            rng.standard_normal((8, CHANNELS)).astype(np.float32),
        )
        for _ in range(count)
    ]


@pytest.mark.pytorch
def test_merged_vectors_are_trained_as_pytorch_trains_them() -> None:
    """Trained vectors stay shared, and each node has its own statistics."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn1, self.bn2 = torch.nn.BatchNorm2d(CHANNELS), torch.nn.BatchNorm2d(CHANNELS)
            self.bn2.weight, self.bn2.bias = self.bn1.weight, self.bn1.bias
            self.conv = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.conv.weight.data = torch.from_numpy(kernel().copy())

        def forward(self, x: Any) -> Any:
            return self.bn2(self.conv(self.bn1(x))).mean((2, 3))

    net, ours = Net().train(), merged()
    trainer = gk.Trainer(ours, "mse", gk.optim.SGD(0.1, momentum=0.9))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches():
        loss = torch.nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(trainer.step(x, y)) == pytest.approx(loss.item(), rel=1e-4)
    pairs = {
        "one": net.bn1.weight, "zero": net.bn1.bias, "w": net.conv.weight,
        "bn1.running_mean": net.bn1.running_mean, "bn2.running_mean": net.bn2.running_mean,
    }  # fmt: skip
    for name, tensor in pairs.items():
        np.testing.assert_allclose(ours.params[name], tensor.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
    # PyTorch's running variance is the sample variance, ONNX's is the population variance.
    assert not np.array_equal(ours.params["bn1.running_var"], ours.params["bn2.running_var"])


def test_split_tensors_have_names_and_roles() -> None:
    net = merged()
    before = net.run({"x": batches(1)[0][0]})["y"]
    origins = net.separate_roles()
    assert origins == {
        f"{node}.{statistic}": name
        for node in ("bn1", "bn2")
        for statistic, name in (("running_mean", "zero"), ("running_var", "one"))
    }
    assert [net.graph.name_of(v) for v in net.graph.inputs if v.role == "state"] == list(origins)
    assert set(net.trainable) == {"one", "zero", "w"}
    np.testing.assert_array_equal(net.run({"x": batches(1)[0][0]})["y"], before)
    assert net.separate_roles() == {}


def test_checkpoint_resume_and_export(tmp_path: Path) -> None:
    data = batches(4)
    whole = gk.Trainer(merged(), "mse", gk.optim.Adam(0.01))
    half = gk.Trainer(merged(), "mse", gk.optim.Adam(0.01))
    for x, y in data[:2]:
        whole.step(x, y), half.step(x, y)
    half.save(tmp_path)
    resumed = gk.Trainer(merged(), "mse", gk.optim.Adam(0.01))
    resumed.resume(tmp_path)
    for x, y in data[2:]:
        whole.step(x, y), resumed.step(x, y)
    for name, array in whole.net.params.items():
        np.testing.assert_array_equal(resumed.net.params[name], array, err_msg=name)
    saved = gk.load(tmp_path / "model.json")
    again = gk.Trainer(saved, "mse", gk.optim.Adam(0.01))
    again.resume(tmp_path)
    resumed.net.save(tmp_path / "trained.onnx")
    assert gk.verify(resumed.net).passed
    back = gk.load(tmp_path / "trained.onnx")
    assert dict.fromkeys(back.params) == dict.fromkeys(resumed.net.params)
    x = data[0][0]
    np.testing.assert_allclose(back.run({"x": x})["y"], resumed.net.run({"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_a_tied_weight_stays_shared() -> None:
    table = RNG.standard_normal((6, CHANNELS)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "table"], ["h"]),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    net = exported(nodes, {"table": table}, ("N", 6))
    graph = net.graph
    assert net.separate_roles() == {}
    assert net.graph is graph


def test_resize_scales_are_not_trained() -> None:
    """The tensor [1, 1, 2, 2] contains scales of a Resize and channel factors. Training changes only the factors."""
    factors = np.array([1, 1, 2, 2], np.float32)
    nodes = [
        helper.make_node("Resize", ["x", "", "factors"], ["h"], "up"),
        helper.make_node("GlobalAveragePool", ["h"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Mul", ["f", "factors"], ["y"]),
    ]
    net = exported(nodes, {"factors": factors})
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.01))
    x, _ = batches(1)[0]
    for _ in range(2):
        trainer.step(x, np.zeros((8, CHANNELS), np.float32))
    assert (net.params["factors"] < factors).all()
    np.testing.assert_array_equal(net.params["up.setting"], factors)
    assert net.run({"x": x})["y"].shape == (8, CHANNELS)


def test_statistics_behind_identity_nodes() -> None:
    """Some exporters write an Identity node for each merged name."""
    nodes = [
        helper.make_node("Identity", ["bn1.running_mean"], ["bn2.running_mean"]),
        helper.make_node("Identity", ["bn1.running_mean"], ["bn1.bias"]),
        helper.make_node("Identity", ["bn1.weight"], ["bn1.running_var"]),
        helper.make_node("BatchNormalization", ["x", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"],
                         ["h"], "first"),
        helper.make_node("BatchNormalization", ["h", "bn1.weight", "bn1.bias", "bn2.running_mean", "bn1.running_var"],
                         ["y"], "second"),
    ]  # fmt: skip
    net = exported(nodes, {"bn1.weight": ones(), "bn1.running_mean": ones() * 0})
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.0))
    x, _ = batches(1)[0]
    trainer.step(x, np.zeros_like(x))
    mean = x.mean((0, 2, 3)) * 0.1
    states = [net.graph.name_of(v) for v in net.graph.inputs if v.role == "state"]
    means = [name for name in states if name.startswith(("first.running_mean", "bn2.running_mean"))]
    assert len(states) == 4
    assert len(means) == 2
    np.testing.assert_allclose(net.params[means[0]], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net.params[means[1]], 0 * mean, atol=1e-5)
    assert set(net.trainable) == {"bn1.weight", "bn1.running_mean"}  # the latter now contains bn1.bias


def test_one_statistic_behind_an_identity_is_updated() -> None:
    nodes = [
        helper.make_node("Identity", ["mean"], ["m"]),
        helper.make_node("BatchNormalization", ["x", "scale", "bias", "m", "var"], ["y"], "bn"),
    ]
    arrays = {"scale": ones() * 2, "bias": ones(), "mean": ones() * 3, "var": ones() * 5}
    net = exported(nodes, arrays)
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.0, weight_decay=0.1))
    x, _ = batches(1)[0]
    trainer.step(x, np.zeros_like(x))
    np.testing.assert_allclose(net.params["mean"], 2.7 + 0.1 * x.mean((0, 2, 3)), rtol=1e-5)
    assert set(net.trainable) == {"scale", "bias"}


def test_statistics_in_the_branches_of_an_if() -> None:
    p, x = Value(TensorType("bool", ()), "p"), Value(TensorType("float32", ("N", CHANNELS, 3, 3)), "x")
    one, zero = (Value(TensorType("float32", (CHANNELS,)), n, role="parameter") for n in ("one", "zero"))

    def norm() -> Any:
        return F.batch_normalization(x, one, zero, zero, one)[0]

    y = gk.cond(p, norm, lambda: F.mul(norm(), 2.0))
    net = Model.from_graph(Graph([p, x, one, zero], [y], output_names=["y"]), {"one": ones(), "zero": ones() * 0})
    array = batches(1)[0][0]
    before = net.run({"p": np.array(True), "x": array})["y"]
    assert len(net.separate_roles()) == 4
    np.testing.assert_array_equal(net.run({"p": np.array(True), "x": array})["y"], before)
    trainer = gk.Trainer(net, lambda y: F.reduce_mean(F.mul(y, y), keepdims=False), gk.optim.SGD(0.0), targets={})
    trainer.step({"p": np.array(True), "x": array}, {})
    changed = {
        n for n in net.params if not np.allclose(net.params[n], [0.0] * 4) and not np.allclose(net.params[n], [1.0] * 4)
    }
    assert len(changed) == 2


def test_graph_with_two_updates_of_a_state_fails() -> None:
    state, x = Value(TensorType("float32", (2,)), "s", role="state"), Value(TensorType("float32", (2,)), "x")
    with pytest.raises(InvalidModel, match=r"updated twice, by node Add.* and node Mul"):
        Graph([state, x], [x], [(state, F.add(state, x)), (state, F.mul(state, x))])


@pytest.mark.pytorch
def test_pytorch_exports_of_fresh_networks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, CHANNELS, 3), torch.nn.BatchNorm2d(CHANNELS), torch.nn.ReLU(),
        torch.nn.Conv2d(CHANNELS, CHANNELS, 3), torch.nn.BatchNorm2d(CHANNELS), torch.nn.Flatten(),
    )  # fmt: skip
    buffer = io.BytesIO()
    options: dict[str, Any] = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    net.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(4, 2, 6, 6),), buffer, dynamo=False, **options)
    ours = gk.load(buffer.getvalue())
    trainer = gk.Trainer(ours, "mse", gk.optim.SGD(0.0))
    x = RNG.normal(1, 2, (4, 2, 6, 6)).astype(np.float32)
    trainer.step(x, np.zeros((4, CHANNELS * 4), np.float32))
    net.train()
    net(torch.from_numpy(x))
    state = net.state_dict()
    found = {n: ours.params[n] for n in ours.params if "mean" in n}
    expected = [state[f"{i}.running_mean"].numpy() for i in (1, 4)]
    assert len(found) == 2, sorted(ours.params)
    for array in expected:
        assert any(np.allclose(array, got, rtol=1e-3, atol=1e-5) for got in found.values())


def test_graph_without_shared_tensors_is_unchanged() -> None:
    net = gk.models.build("resnet", layers=18, classes=4)
    graph, origins = separate_roles(net.graph)
    assert graph is net.graph
    assert not origins
