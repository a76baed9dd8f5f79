"""Convolutions with fused operators, or with channels as the last axis."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.activation import activated
from graphkit.onnx_io.upgrade.contrib.layout import channels_first, channels_last, rank_of
from graphkit.ops import F


def window(node: NodeView) -> dict[str, Any]:
    """The attributes that standard convolutions and poolings have, too."""
    return node.taken("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "pads", "strides")


@contrib("FusedConv")
def _fused_conv(node: NodeView) -> Results:
    """activation(conv(X, W) + B + Z)."""
    activation, given = node.take("activation"), tuple(node.take("activation_params", ()))
    residual = node.input(3)
    y = F.conv(node.operand(0), node.operand(1), node.input(2), **window(node))
    y = y if residual is None else F.add(y, residual)
    return (activated(node, y, activation, given),)


@contrib("NhwcConv", "NhwcFusedConv")
def _channels_last_conv(node: NodeView) -> Results:
    """A convolution, possibly fused. Channels are the last axis of X, Z and Y; W has the standard layout."""
    x, w, residual = node.operand(0), node.operand(1), node.input(3)
    rank = rank_of(node, x, w)
    activation, given = node.take("activation"), tuple(node.take("activation_params", ()))
    y = channels_last(F.conv(channels_first(x, rank), w, node.input(2), **window(node)), rank)
    y = y if residual is None else F.add(y, residual)
    return (activated(node, y, activation, given),)


@contrib("ConvTransposeWithDynamicPads")
def _dynamic_pads(node: NodeView) -> Results:
    """A transposed convolution whose pads are an operand, which must be a constant."""
    pads = node.input(2)
    attrs = window(node)
    if pads is not None:
        known = None if pads.tensor.value is None else [int(v) for v in pads.tensor.value if isinstance(v, int)]
        if known is None or len(known) != len(pads.tensor.value or ()):
            raise UnsupportedError(f"{node.label}: pads that are computed at run time are not supported")
        attrs["pads"] = tuple(known)
    return (F.conv_transpose(node.operand(0), node.operand(1), node.input(3), **attrs),)
