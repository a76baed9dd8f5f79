"""The straight-through estimator: values as before, gradients as if rounding were not there."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.training.straight_through import pass_through_rounding

X = np.array([[-1.6, -0.5, 0.4, 2.5]], np.float32)


def gradient_of(build, **options):
    x = gk.input("x", [1, 4])
    net = gk.Model({"y": gk.mul(build(x), np.array([1.0, 2.0, 3.0, 4.0], np.float32))})
    return gk.grad(net, wrt=["x"], with_outputs=True, allow_unused=True, **options), net


@in_one_item()
@pytest.mark.parametrize("rounding", [gk.round, gk.floor, gk.ceil, gk.sign], ids=lambda f: f.__name__)
def test_rounding_passes_gradients_on_when_asked(rounding):
    plain, net = gradient_of(rounding)
    through, _ = gradient_of(rounding, straight_through=True)
    expected = net.compile().run({"x": X})["y"]
    for model, slope in ((plain, [[0, 0, 0, 0]]), (through, [[1, 2, 3, 4]])):
        found = model.compile().run({"x": X})
        np.testing.assert_array_equal(found["y"], expected)
        np.testing.assert_array_equal(found["x_grad"], slope)


def test_a_cast_to_integers_and_back():
    def quantised(x):
        return F.cast(F.cast(F.clip(x, -1.0, 2.0), to="int8"), to="float32")

    through, _ = gradient_of(quantised, straight_through=True)
    found = through.compile().run({"x": X})
    np.testing.assert_array_equal(found["y"], [[-1, 0, 0, 8]])
    np.testing.assert_array_equal(found["x_grad"], [[0, 2, 3, 0]])  # Clip keeps its own gradient


def test_a_cast_back_to_another_type():
    x = gk.input("x", [1, 4])
    y = F.cast(F.cast(F.cast(x, to="int32"), to="float16"), to="float32")
    found = gk.grad(gk.Model({"y": y}), wrt=["x"], straight_through=True).compile().run({"x": X})
    np.testing.assert_array_equal(found["x_grad"], np.ones((1, 4)))


def test_rounding_inside_a_loop():
    x = gk.input("x", [3, 4])
    total, _ = gk.scan(lambda s, v: (s + gk.round(v), s), gk.constant(np.zeros(4, np.float32)), x)
    found = (
        gk.grad(gk.Model({"y": total}), wrt=["x"], straight_through=True).compile().run({"x": np.ones((3, 4), "f4")})
    )
    np.testing.assert_array_equal(found["x_grad"], np.ones((3, 4)))


def test_names_stay_and_the_graph_given_is_untouched():
    x = gk.input("x", [1, 4])
    y = gk.round(x, name="r")
    graph = Graph([x], [y])
    before = str(graph)
    marked = pass_through_rounding(graph)
    assert str(graph) == before
    assert marked.output_names == graph.output_names
    np.testing.assert_array_equal(evaluate(marked, [X])[0], np.rint(X))


def test_any_function_may_be_passed_through():
    """A hard threshold that learns with the slope of tanh."""
    x = gk.input("x", [1, 4])
    soft = gk.tanh(x)
    net = gk.Model({"y": gk.straight_through(soft, gk.sign(x))})
    found = gk.grad(net, wrt=["x"], with_outputs=True).compile().run({"x": X})
    np.testing.assert_array_equal(found["y"], np.sign(X))
    np.testing.assert_allclose(found["x_grad"], 1 - np.tanh(X) ** 2, rtol=1e-6)


def test_it_exports_as_the_rounded_value(tmp_path):
    x = gk.input("x", [1, 4])
    net = gk.Model({"y": gk.straight_through(x, gk.round(x))})
    net.save(tmp_path / "net.onnx")
    assert gk.verify(net, against=tmp_path / "net.onnx").passed
    net.save(tmp_path / "net.json")
    assert gk.load(tmp_path / "net.json").to_text() == net.to_text()


def test_a_quantised_layer_trains_only_with_it():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((32, 4)).astype(np.float32)
    targets = inputs @ np.array([[2.0], [-1.0], [3.0], [1.0]], np.float32)

    def trainer(straight_through):
        x = gk.input("x", ["N", 4])
        weight = gk.parameter("w", [4, 1])
        net = gk.Model({"y": gk.mat_mul(x, gk.round(weight))})
        net.params["w"] = np.full((4, 1), 0.3, np.float32)
        return gk.Trainer(net, loss="mse", optimizer=gk.optim.SGD(0.05), straight_through=straight_through)

    with pytest.raises(UsageError, match="no gradient reaches w"):
        trainer(False)
    learner = trainer(True)
    losses = [float(learner.step(inputs, targets)) for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]


def test_shapes_must_agree():
    with pytest.raises(Exception, match="different shapes"):
        gk.straight_through(gk.input("x", [2]), gk.input("y", [3]))


def test_the_command_line(tmp_path):
    x = gk.input("x", [1, 4])
    path, out = tmp_path / "net.json", tmp_path / "grad.json"
    gk.Model({"y": gk.round(x)}).save(path)
    options = ["grad", str(path), "--wrt", "x", "--straight-through"]
    assert cli.invoke([*options, "--check"]) == 2  # the numeric derivative of rounding is another one
    assert cli.invoke([*options, "-o", str(out)]) == 0
    np.testing.assert_array_equal(gk.load(out).compile().run({"x": X})["x_grad"], np.ones((1, 4)))
