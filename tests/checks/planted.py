"""Small ONNX models, and faults to plant in them: changed attributes and weights, wrong kernels, float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from graphkit.executor.devices import registry

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'

TEXTS = {
    "convnet": """
        net (float[2, 3, 12, 12] x) => (float[2, 5] y)
        {
            c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            n1 = BatchNormalization <epsilon = 1e-5> (c1, s, t, m, v)
            r1 = Relu (n1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            c2 = Conv <pads = [1, 1, 1, 1], group = 2> (p1, w2)
            l2 = LeakyRelu <alpha = 0.1> (c2)
            p2 = AveragePool <kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1], count_include_pad = 1> (l2)
            f = Flatten (p2)
            g = Gemm <transB = 1> (f, w3, b3)
            y = Softmax <axis = 1> (g)
        }""",
    "transformer": """
        net (float[2, 6, 8] x) => (float[2, 6, 8] y)
        {
            n1 = LayerNormalization <axis = -1> (x, s, t)
            q = MatMul (n1, wq)
            k = MatMul (n1, wk)
            u = MatMul (n1, wv)
            kt = Transpose <perm = [0, 2, 1]> (k)
            scores = MatMul (q, kt)
            scaled = Mul (scores, scale)
            p = Softmax <axis = -1> (scaled)
            mixed = MatMul (p, u)
            h = Add (x, mixed)
            up = MatMul (h, wu)
            e = Elu <alpha = 0.7> (up)
            down = MatMul (e, wd)
            y = Add (h, down)
        }""",
    "lstm": """
        net (float[7, 2, 3] x) => (float[2, 2] y)
        {
            out, last, cell = LSTM <hidden_size = 4> (x, w, r, b)
            sq = Squeeze (last, zero)
            g = Gemm <transB = 1, alpha = 0.5> (sq, wg, bg)
            sg = HardSigmoid <alpha = 0.25> (g)
            cl = Clip (sg, low, high)
            y = Mul (cl, cl)
        }""",
    "control": """
        net (float[4] x) => (float[4] y)
        {
            total = ReduceSum <keepdims = 0> (x)
            positive = Greater (total, zero)
            chosen = If (positive) <
                then_branch = yes () => (float[4] a) { t1 = Mul (x, two)  a = Elu <alpha = 0.5> (t1) },
                else_branch = no () => (float[4] c) { t2 = Sub (x, two)  c = Selu (t2) }
            >
            looped = Loop (count, , chosen) <
                body = step (int64 i, bool keep, float[4] state) => (bool again, float[4] after)
                { again = Identity (keep)  sum = Add (state, half)  after = Tanh (sum) }
            >
            y = ThresholdedRelu <alpha = 0.2> (looped)
        }""",
}  # fmt: skip

_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "convnet": {"w1": (4, 3, 3, 3), "b1": (4,), "s": (4,), "t": (4,), "m": (4,), "v": (4,), "w2": (6, 2, 3, 3),
                "w3": (5, 6 * 36), "b3": (5,)},
    "transformer": {"s": (8,), "t": (8,), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wu": (8, 16), "wd": (16, 8)},
    "lstm": {"w": (1, 16, 3), "r": (1, 16, 4), "b": (1, 32), "wg": (2, 4), "bg": (2,)},
    "control": {},
}  # fmt: skip
_VALUES: dict[str, dict[str, Any]] = {
    "convnet": {},
    "transformer": {"scale": np.float32(0.35)},
    "lstm": {"zero": np.array([0]), "low": np.float32(0.1), "high": np.float32(0.9)},
    "control": {
        "zero": np.float32(0), "two": np.float32(2), "half": np.float32(0.3), "count": np.array(3),
    },
}  # fmt: skip


def model_of(name: str) -> ModelProto:
    """One of the models, with random weights. Its nodes have the names of their first results."""
    proto = parser.parse_model(HEAD + TEXTS[name])
    rng = np.random.default_rng(7)
    for weight, shape in _SHAPES[name].items():
        array = rng.standard_normal(shape).astype(np.float32) * np.float32(0.4)
        proto.graph.initializer.append(numpy_helper.from_array(np.abs(array) if weight == "v" else array, weight))
    for weight, value in _VALUES[name].items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), weight))
    for node in proto.graph.node:
        node.name = node.output[0]
    onnx.checker.check_model(proto, full_check=True)
    return proto


def feeds_of(name: str) -> dict[str, np.ndarray]:
    shape = [d.dim_value for d in model_of(name).graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32) + np.float32(0.2)}


def node_of(proto: ModelProto, output: str) -> NodeProto:
    return next(node for node in proto.graph.node if output in node.output)


def with_attribute(proto: ModelProto, output: str, key: str, value: Any) -> None:
    """Change an attribute of the node that makes `output`."""
    node = node_of(proto, output)
    kept = [item for item in node.attribute if item.name != key]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(key, value)])


def with_weight(proto: ModelProto, weight: str, index: int, change: float) -> None:
    """Add `change` to one element of an initialiser."""
    tensor = next(item for item in proto.graph.initializer if item.name == weight)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[index] += change
    tensor.CopyFrom(numpy_helper.from_array(array, weight))


def with_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch, operator: str, domain: str = "", *, when: str = "", **changed: Any
) -> None:
    """Let the CPU's kernel of an operator compute with other attributes than those of the node.

    when: only if the attribute `activation` has this value.
    """
    from graphkit.ops import registry as operators

    rule = registry.rule_of("cpu", operators.find(domain, operator))
    wrong = rule
    if rule.make is not None:
        wrong = wrong._replace(make=lambda node, context: rule.make(_changed(node, changed, when), context))
    if rule.prepare is not None:
        wrong = wrong._replace(prepare=lambda node, context: rule.prepare(_changed(node, changed, when), context))
    assert wrong is not rule
    monkeypatch.setitem(registry._rules, ("cpu", domain, operator), wrong)


def _changed(node: Any, changed: dict[str, Any], when: str) -> Any:
    if when and node.op.activation != when:
        return node
    assert changed.keys() <= node.op.attributes().keys(), node
    return node.rebuilt(node.inputs, node.op.replace(**changed))


def in_float16(proto: ModelProto) -> ModelProto:
    """The model with float16 weights, inputs and results."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            with np.errstate(over="ignore"):
                tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return copy


def renamed(proto: ModelProto) -> ModelProto:
    """Put `r_` before the name of every value."""
    for node in proto.graph.node:
        node.name = ""
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = f"r_{name}" if name else ""
    for item in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        item.name = f"r_{item.name}"
    return proto
