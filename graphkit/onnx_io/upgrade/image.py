"""Upsample, Resize, RoiAlign, GridSample, DFT."""

from __future__ import annotations

import numpy as np

from graphkit.ir.graph import Value
from graphkit.onnx_io.upgrade import ALWAYS, NodeView, Results, upgrade
from graphkit.ops import F, constant


@upgrade("Upsample", below=9)
def _scales_to_input(node: NodeView) -> None:
    node.attribute_to_input("scales", 1, np.float32)


@upgrade("Upsample", below=10, becomes="Resize")
def _upsample(node: NodeView) -> None:
    node.op_type = "Resize"


@upgrade("Resize", below=11)
def _asymmetric(node: NodeView) -> Results | None:
    """Before opset 11: x_original = x_resized / scale. "nearest" rounded down, or up along axes that shrink."""
    x, scales = node.operand(0), node.operand(1)
    node.set_input(1, None)
    node.set_input(2, scales)
    node.attrs["coordinate_transformation_mode"] = "asymmetric"
    if node.attrs.get("mode", "nearest") != "nearest":
        return None
    factors = _constant_of(scales)
    if factors is not None and (factors >= 1).all():
        node.attrs["nearest_mode"] = "floor"
        return None
    if factors is not None and (factors <= 1).all():
        node.attrs["nearest_mode"] = "ceil"
        return None
    # Axes are independent, so resize first those that shrink, then those that grow. Scale 1 leaves an axis unchanged.
    one = constant(np.ones((), np.float32))
    shrunk = F.resize(x, None, F.min(scales, one), **node.attrs, nearest_mode="ceil")
    return (F.resize(shrunk, None, F.max(scales, one), **node.attrs, nearest_mode="floor"),)


@upgrade("Upsample", below=ALWAYS, becomes="Resize")
def _upsample_after_its_end(node: NodeView) -> Results | None:
    # Deprecated since opset 10, but newer files still contain it.
    node.op_type = "Resize"
    results: Results | None = _asymmetric(node)
    return results


@upgrade("Resize", below=ALWAYS)
def _absent_when_empty(node: NodeView) -> None:
    # In files of any version, an empty tensor may mean an absent operand.
    for index in (1, 2, 3):
        value = node.input(index)
        if value is not None and value.shape is not None and 0 in value.shape:
            node.set_input(index, None)


def _constant_of(value: Value | None) -> np.ndarray | None:
    if value is None or value.node is None or value.node.op.name != "Constant":
        return None
    array: np.ndarray = value.node.op.attributes()["value"].array
    return array


@upgrade("RoiAlign", below=16)
def _output_half_pixel(node: NodeView) -> None:
    node.attrs["coordinate_transformation_mode"] = "output_half_pixel"


@upgrade("GridSample", below=20)
def _mode_names(node: NodeView) -> None:
    mode = node.attrs.get("mode", "bilinear")
    node.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


@upgrade("DFT", below=20)
def _axis_to_input(node: NodeView) -> None:
    node.set_input(2, constant(np.asarray(node.take("axis", 1), np.int64)))
