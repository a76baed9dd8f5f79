"""ai.onnx 1 to 6: explicit broadcasting, attributes of an execution engine, shapes and element types as attributes."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.onnx_io.upgrade import NodeView, upgrade
from graphkit.ops import F, constant


def _i64(*values: int) -> Value:
    return constant(np.asarray(values, np.int64))


@upgrade(
    "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid",
    "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu",
    "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh",
    below=6,
)  # fmt: skip
def _in_place_hint(node: NodeView) -> None:
    node.take("consumed_inputs")
    if node.op_type == "Selu":
        node.attrs.setdefault("alpha", 1.6732)
        node.attrs.setdefault("gamma", 1.0507)


@upgrade("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", below=7)
def _explicit_broadcast(node: NodeView) -> None:
    """If `broadcast` is set, align B with A's axes from `axis` on (default: with the last axes)."""
    axis = node.take("axis")
    if not node.take("broadcast", 0) or axis is None:
        return
    a, b = node.operand(0), node.operand(1)
    if b.rank == 0:
        return
    if a.rank is None or b.rank is None:
        raise UnsupportedError(f"{node.label}: a broadcast along axis {axis} needs a tensor of known rank")
    trailing = a.rank - axis % a.rank - b.rank
    if trailing > 0:
        node.set_input(1, F.unsqueeze(b, _i64(*range(b.rank, b.rank + trailing))))


@upgrade("Gemm", below=7)
def _implied_broadcast(node: NodeView) -> None:
    node.take("broadcast")


@upgrade("PRelu", below=7)
def _slope_per_channel(node: NodeView) -> None:
    # Before opset 7, a vector had one slope per channel. Since then, it would be aligned with the last axis.
    x, slope = node.operand(0), node.operand(1)
    if slope.rank != 1 or slope.shape == (1,) or x.rank == 2:
        return
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: a slope per channel needs a tensor of known rank")
    node.set_input(1, F.unsqueeze(slope, _i64(*range(1, x.rank - 1))))


@upgrade("BatchNormalization", "Dropout", below=7)
def _mode_of_the_engine(node: NodeView) -> None:
    # Before opset 7, is_test set the mode. Since then, the presence of further outputs does.
    node.take("is_test")


@upgrade("LSTM", "GRU", "RNN", below=7)
def _wanted_output(node: NodeView) -> None:
    # output_sequence is redundant: the name of the first output also shows whether it is used.
    node.take("output_sequence")
    if node.attrs.get("direction") == "foward":  # the default of GRU 1 was misspelt
        node.attrs["direction"] = "forward"


@upgrade("Cast", below=6)
def _named_type(node: NodeView) -> None:
    to = node.attrs.get("to")
    if isinstance(to, str):
        from onnx import TensorProto

        if to not in TensorProto.DataType.keys():  # noqa: SIM118 - an enumeration, not a dict
            raise UnsupportedError(f"{node.label}: unknown element type {to!r}")
        node.attrs["to"] = TensorProto.DataType.Value(to)


@upgrade("Concat", below=4)
def _default_axis(node: NodeView) -> None:
    node.attrs.setdefault("axis", 1)


@upgrade("Reshape", below=5)
def _shape_to_input(node: NodeView) -> None:
    node.take("consumed_inputs")
    node.attribute_to_input("shape", 1)


@upgrade("Pad", below=2)
def _paddings(node: NodeView) -> None:
    node.attrs["pads"] = node.require("paddings")


@upgrade("Split", below=2)
def _sizes_as_operand(node: NodeView) -> None:
    if node.input(1) is not None:
        node.take("split")


@upgrade("LpPool", "GlobalLpPool", below=2)
def _integer_exponent(node: NodeView) -> None:
    exponent = node.take("p", 2.0)
    if exponent != int(exponent):
        raise UnsupportedError(f"{node.label}: p={exponent} is not an integer")
    node.attrs["p"] = int(exponent)
    if node.op_type == "LpPool" and "kernel_shape" not in node.attrs:
        raise UnsupportedError(f"{node.label}: the attribute kernel_shape is missing")


@upgrade("Tile", below=6)
def _repeats_of_one_axis(node: NodeView) -> None:
    x, tiles, axis = node.operand(0), node.operand(1), node.operand(2)
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: a tensor of unknown rank")
    flat = _i64(-1)
    place = F.reshape(F.cast(axis, to=np.int64), flat)
    count = F.reshape(F.cast(tiles, to=np.int64), flat)
    node.inputs = [x, F.scatter_elements(constant(np.ones(x.rank, np.int64)), place, count)]


@upgrade("Upsample", below=7)
def _scales_of_all_axes(node: NodeView) -> None:
    height, width = node.require("height_scale"), node.require("width_scale")
    node.attrs["scales"] = (1.0, 1.0, height, width)
    if node.attrs.get("mode") == "bilinear":
        node.attrs["mode"] = "linear"
