"""Convolutions with more fused in, or with channels last."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.activation import activated
from graphkit.ops import F

_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "pads", "strides")


def _window(node: NodeView) -> dict[str, Any]:
    """The attributes that a convolution of the standard has too."""
    return {name: node.take(name) for name in _WINDOW if name in node.attrs}


@contrib("FusedConv")
def _fused_conv(node: NodeView) -> Results:
    """activation(conv(X, W) + B + Z)."""
    activation, given = node.take("activation"), tuple(node.take("activation_params", ()))
    residual = node.input(3)
    y = F.conv(node.operand(0), node.operand(1), node.input(2), **_window(node))
    y = y if residual is None else F.add(y, residual)
    return (activated(node, y, activation, given),)


@contrib("NhwcConv", "NhwcFusedConv")
def _channels_last_conv(node: NodeView) -> Results:
    """A convolution, or a fused one, whose X, Z and Y have their channels last; W is as the standard has it."""
    x, w, residual = node.operand(0), node.operand(1), node.input(3)
    rank = x.rank if x.rank is not None else w.rank
    if rank is None:
        raise UnsupportedError(f"{node.label}: a convolution of unknown rank")
    activation, given = node.take("activation"), tuple(node.take("activation_params", ()))
    y = F.conv(F.transpose(x, perm=(0, rank - 1, *range(1, rank - 1))), w, node.input(2), **_window(node))
    y = F.transpose(y, perm=(0, *range(2, rank), 1))
    y = y if residual is None else F.add(y, residual)
    return (activated(node, y, activation, given),)


@contrib("ConvTransposeWithDynamicPads")
def _dynamic_pads(node: NodeView) -> Results:
    """A transposed convolution whose pads are an operand, which must be known when the file is read."""
    pads = node.input(2)
    attrs = _window(node)
    if pads is not None:
        known = None if pads.tensor.value is None else [int(v) for v in pads.tensor.value if isinstance(v, int)]
        if known is None or len(known) != len(pads.tensor.value or ()):
            raise UnsupportedError(f"{node.label}: pads that only a run tells")
        attrs["pads"] = tuple(known)
    return (F.conv_transpose(node.operand(0), node.operand(1), node.input(3), **attrs),)
