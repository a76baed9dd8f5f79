"""Convolutions lose the outer taps that meet nothing but padding, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.simplify.outer_taps import drop_outer_taps

RNG = np.random.default_rng(0)


def built(shape: Any, weights: tuple[int, ...], bias: bool = False, **attrs: Any) -> tuple[Graph, list[np.ndarray]]:
    arrays = [RNG.standard_normal([d if isinstance(d, int) else 3 for d in shape]), RNG.standard_normal(weights)]
    inputs = [Value(TensorType("float64", shape), "x"), Value(TensorType("float64", weights), "w", role="parameter")]
    if bias:
        arrays.append(RNG.standard_normal(weights[0]))
        inputs.append(Value(TensorType("float64", weights[:1]), "b", role="parameter"))
    return Graph(inputs, [F.conv(*inputs, **attrs)]), arrays


def kernel(graph: Graph) -> tuple[int, ...]:
    """The spatial sizes of the weights of the one Conv."""
    (conv,) = [n for n in graph.nodes if n.op.name == "Conv"]
    assert conv.inputs[1] is not None
    return conv.inputs[1].tensor.static_shape[2:]


@in_one_item()
@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "left"),
    [
        ((1, 2, 4, 4), (3, 2, 3, 3), {"dilations": (12, 12), "pads": (12, 12, 12, 12)}, (1, 1)),
        ((1, 2, 4, 40), (3, 2, 3, 3), {"dilations": (12, 12), "pads": (12, 12, 12, 12)}, (1, 3)),
        ((2, 4, 6), (4, 2, 5), {"group": 2, "pads": (7, 0)}, (5,)),
        ((1, 2, 1, 5), (2, 2, 3, 3), {"pads": (1, 1, 1, 1)}, (1, 3)),
        ((1, 2, 1, 5), (2, 2, 3, 3), {"auto_pad": "SAME_UPPER"}, (1, 3)),
        ((1, 2, 2), (2, 2, 4), {"auto_pad": "SAME_LOWER"}, (3,)),
        ((1, 1, 3, 3, 3), (1, 1, 3, 1, 3), {"dilations": (3, 1, 2), "pads": (3, 0, 2, 3, 0, 2)}, (1, 1, 3)),
        ((1, 2, 5), (2, 2, 3), {"strides": (4,), "pads": (4, 4), "dilations": (4,)}, (3,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_what_is_left(shape: Any, weights: Any, attrs: dict[str, Any], left: tuple[int, ...], bias: bool) -> None:
    graph, arrays = built(shape, weights, bias, **attrs)
    after = drop_outer_taps(graph)
    assert kernel(after) == left
    assert after.outputs[0].type == graph.outputs[0].type
    np.testing.assert_allclose(evaluate(after, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-12, atol=1e-12)
    again = drop_outer_taps(after)
    assert again is after


def test_every_geometry_of_a_line() -> None:
    """Against the taps that a look at every position finds; padding goes with the taps that are left out."""
    cut = 0
    for _ in range(400):
        size, taps, stride, dilation = (int(RNG.integers(*bounds)) for bounds in ((1, 7), (1, 6), (1, 4), (1, 5)))
        begin, end = (int(p) for p in RNG.integers(0, 10, 2))
        if size + begin + end < (taps - 1) * dilation + 1:
            continue
        graph, arrays = built((1, 1, size), (1, 1, taps), strides=(stride,), dilations=(dilation,), pads=(begin, end))
        positions = graph.outputs[0].tensor.static_shape[2]
        reads = [{i * stride - begin + t * dilation for i in range(positions)} for t in range(taps)]
        meets = [bool(read & set(range(size))) for read in reads]
        after = drop_outer_taps(graph)
        (left,) = kernel(after)
        np.testing.assert_allclose(evaluate(after, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-12, atol=1e-12)
        assert left >= sum(meets)
        before = next((t for t in range(taps) if meets[t]), 0) if any(meets) else 0
        behind = next((t for t in range(taps) if meets[::-1][t]), 0) if any(meets) else 0
        assert taps - left == min(before, begin // dilation) + min(behind, end // dilation)
        cut += left < taps
    assert cut > 50


@in_one_item()
@pytest.mark.parametrize("shape", [(1, 2, "H", 4), (1, 2, 40, 40), (1, 2, 0, 40)], ids=str)
def test_others_stay(shape: Any) -> None:
    graph, _ = built(shape, (3, 2, 3, 3), dilations=(12, 12), pads=(12, 12, 12, 12))
    assert drop_outer_taps(graph) is graph


@in_one_item()
@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_a_tap_beside_padding_counts_as_nothing_whatever_its_weight(weight: float) -> None:
    graph, (x, w) = built((1, 1, 3), (1, 1, 3), dilations=(4,), pads=(4, 4))
    w[0, 0, [0, 2]] = weight
    np.testing.assert_array_equal(evaluate(drop_outer_taps(graph), [x, w])[0], x * w[0, 0, 1])


def test_subgraphs_are_entered() -> None:
    x, w = Value(TensorType("float64", (1, 2, 4)), "x"), Value(TensorType("float64", (2, 2, 3)), "w")
    p = Value(TensorType("bool", ()), "p")
    graph = Graph([p, x, w], [gk.cond(p, lambda: F.conv(x, w, dilations=(9,), pads=(9, 9)), lambda: F.neg(x))])
    (node,) = [n for n in drop_outer_taps(graph).nodes if n.op.name == "If"]
    assert kernel(node.op.subgraphs()["then_branch"]) == (1,)


def pyramid() -> Any:
    """A 3 x 3 convolution dilated by 1, 6 and 36 over 8 x 8 pixels, as an ONNX file."""
    rng = np.random.default_rng(1)
    names = [f"w{d}" for d in (1, 6, 36)]
    nodes = [
        helper.make_node("Conv", ["x", w, f"b{w}"], [f"y{w}"], dilations=[d, d], pads=[d] * 4)
        for w, d in zip(names, (1, 6, 36), strict=True)
    ]
    nodes += [helper.make_node("Relu", [f"y{w}"], [f"r{w}"]) for w in names]
    nodes.append(helper.make_node("Concat", [f"r{w}" for w in names], ["y"], axis=1))
    arrays = {w: rng.standard_normal((24, 16, 3, 3), dtype=np.float32) for w in names}
    arrays |= {f"b{w}": rng.standard_normal(24, dtype=np.float32) for w in names}
    stored = [helper.make_tensor(n, TensorProto.FLOAT, a.shape, a.ravel().tolist()) for n, a in arrays.items()]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, 8, 8])]
        for name, channels in (("x", 16), ("y", 72))
    )
    graph = helper.make_graph(nodes, "pyramid", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@in_one_item()
@pytest.mark.parametrize("images", [1, 3])
def test_as_onnx_runtime_computes_it(images: int) -> None:
    model = pyramid()
    x = np.random.default_rng(2).standard_normal((images, 16, 8, 8), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    executor = gk.load(model).compile(threads=2)
    np.testing.assert_allclose(executor.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
    read = {operand.type for step in executor.plan.steps for operand in step.inputs}
    assert {"float32[24, 16, 3, 3]", "float32[24, 16, 1, 1]"} <= read, "of one convolution a tap is left of nine"


def test_gradients_reach_the_taps_that_count() -> None:
    graph, arrays = built((1, 2, 4), (2, 2, 3), dilations=(9,), pads=(9, 9))
    model = gk.Model.from_graph(graph, {"w": arrays[1]})
    grads = gk.grad(model).compile(threads=1).run({"x": arrays[0]})
    (by_weights,) = [g for name, g in grads.items() if "w" in name]
    assert np.abs(by_weights[:, :, 1]).min() > 0
    assert not by_weights[:, :, [0, 2]].any()
