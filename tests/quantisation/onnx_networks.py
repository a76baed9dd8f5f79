"""Small ONNX networks, and functions that run and read them without graphkit."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, arrays, opset=17, **options):
    """A model of nodes, inputs and outputs as (name, shape) or infos, and arrays by name."""
    graph = helper.make_graph(
        nodes, "g", [i if not isinstance(i, tuple) else info(*i) for i in inputs],
        [o if not isinstance(o, tuple) else info(*o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset > 20 else 8, **options)


def floats(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def sixteenths(*shape, seed=0, scale=1.0):
    """Random multiples of 1/16: their products and sums are exact in any order."""
    return np.rint(floats(*shape, seed=seed, scale=scale) * 16) / np.float32(16)


def conv_net(opset=17):
    """Conv, Relu, MaxPool, a depthwise Conv, Relu, a sum with the first result, GlobalAveragePool, Flatten, Gemm."""
    node = helper.make_node
    arrays = {
        "w1": sixteenths(8, 3, 3, 3, seed=1, scale=0.3), "b1": sixteenths(8, seed=2),
        "w2": sixteenths(8, 1, 3, 3, seed=3, scale=0.3), "b2": sixteenths(8, seed=4),
        "w3": sixteenths(5, 8, seed=5), "b3": sixteenths(5, seed=6),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("MaxPool", ["r1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1], group=8),
        node("Relu", ["c2"], ["r2"], "relu2"),
        node("Add", ["r2", "p1"], ["a"], "sum"),
        node("GlobalAveragePool", ["a"], ["g"], "mean"),
        node("Flatten", ["g"], ["f"], "flat"),
        node("Gemm", ["f", "w3", "b3"], ["y"], "fc", transB=1),
    ]
    return model(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 5])], arrays, opset)


def run(proto, feeds, **options):
    """The outputs of ONNX Runtime. options: of the session."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    # Otherwise, ONNX Runtime rounds the factors of dequantised weights to 8 bits.
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    for name, value in options.items():
        setattr(settings, name, value)
    data = proto if isinstance(proto, str) else proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def initializers(proto):
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def kinds(proto):
    """The operators of the nodes, sorted."""
    return sorted(node.op_type for node in proto.graph.node)


def producer(proto, name):
    return next(node for node in proto.graph.node if name in node.output)


def decibels(exact, other):
    """The signal-to-noise ratio; infinite for equal arrays."""
    exact, other = exact.astype(np.float64), other.astype(np.float64)
    noise = np.square(exact - other).sum()
    return 10 * np.log10(np.square(exact).sum() / noise) if noise else np.inf


def check(proto):
    onnx.checker.check_model(proto, full_check=True)
