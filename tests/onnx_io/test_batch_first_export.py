"""Recurrent layers with layout=1 are exported in a form that ONNX Runtime runs, and so are their gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(operator, directions, optional, seed, layout=1):
    """A model of one layer, and batch-first feeds for it; with `optional`, lengths and initial states too."""
    random = np.random.default_rng(seed)

    def array(*shape):
        return random.standard_normal(shape).astype(np.float32)

    rows = GATES[operator] * 3
    weights = {"w": array(directions, rows, 4), "r": array(directions, rows, 3), "b": array(directions, 2 * rows)}
    feeds = {"x": array(2, 5, 4)}
    states = ["h", "c"] if operator == "LSTM" else ["h"]
    operands = ["x", "w", "r", "b"]
    if optional:
        feeds |= {"lengths": np.array([5, 3], np.int32)} | {s: array(2, directions, 3) for s in states}
        operands += ["lengths", *states]
    results = ["y", "y_h", "y_c"][: 1 + len(states)]
    node = helper.make_node(
        operator, operands, results, "layer", hidden_size=3, layout=layout,
        direction="bidirectional" if directions == 2 else "forward",
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim)
        for k, v in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in results]
    inits = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), feeds


def runtime(proto, feeds):
    session = ort.InferenceSession(proto.SerializeToString())
    return dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds), strict=True))


@in_one_item("pairs")
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("operator", GATES)
def test_onnxruntime_runs_what_is_exported(operator, directions, optional, opset):
    proto, feeds = layer(operator, directions, optional, seed=0)
    net = gk.load(proto)
    found = runtime(net.to_onnx(opset=opset), feeds)
    for name, array in net.run(feeds).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    # The same weights in a layer of layout 0, which ONNX Runtime has.
    time_first, _ = layer(operator, directions, optional, seed=0, layout=0)
    turned = {k: v if v.ndim == 1 else v.swapaxes(0, 1) for k, v in feeds.items()}
    for name, array in runtime(time_first, turned).items():
        right = array.transpose(2, 0, 1, 3) if name == "y" else array.swapaxes(0, 1)
        np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-6)


@in_one_item("values")
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("operator", GATES)
def test_onnxruntime_runs_the_gradient(operator, optional):
    proto, feeds = layer(operator, 2, optional, seed=1)
    net = gk.load(proto)
    back = gk.grad(net, of="y", wrt=["x", "w", "r", *(["h"] if optional else [])])
    found = runtime(back.to_onnx(), feeds)
    for name, array in back.run(feeds).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_no_node_keeps_layout_1():
    proto, _ = layer("GRU", 1, False, seed=2)
    written = gk.load(proto).to_onnx()
    assert not [a for n in written.graph.node for a in n.attribute if a.name == "layout"]
    onnx.checker.check_model(written)
