"""Convert transposed convolutions without strides to convolutions, with reversed kernels and complementary padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, operator
from graphkit.ops.nn.conv import Conv, ConvTranspose
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import ints, is_op
from graphkit.passes.core.sweep import Readers, fuse
from graphkit.passes.layout.standard_order import scatters_over_planes

_ALL_THE_WAY = np.iinfo(np.int64).min
_LANES = 16
_FEW_FILTERS = 8  # convolutions with at most this many filters have kernels that use all lanes
_LEAST_GAIN = 1.6  # below it, the library's convolutions are faster although they compute more at the border


def scatters(x: Sequence[Dim], w: Sequence[int], y: Sequence[Dim]) -> bool:
    """Return whether a transposed convolution without strides is faster as scattered products than as a convolution.

    A convolution computes one term for each tap at each result, in vectors of filters. Scattered products compute one
    term for each element of x, in vectors of filters and taps, and add them to the results. The latter are faster if
    most results are near the border, or if the filters do not fill the vectors.

    x: [N, C, *spatial], w: [C, M, *kernel], y: [N, M, *spatial]. Returns False if spatial dimensions are unknown.
    """
    channels, filters = w[:2]
    before, after = ([d for d in dims[2:] if isinstance(d, int)] for dims in (x, y))
    if len(before) + len(after) < len(x[2:]) + len(y[2:]) or len(x) > 4 or not channels or filters <= _FEW_FILTERS:
        return False
    elements, results, taps = math.prod(before), math.prod(after), math.prod(w[2:])
    vectors = math.ceil(filters / _LANES) * taps
    sums = elements * vectors / channels
    return results * vectors > _LEAST_GAIN * (elements * math.ceil(filters * taps / _LANES) + sums)


@graph_pass(requires=[Property.RANKS_KNOWN], ensures=[Property.TRANSPOSED_CONVOLUTIONS_CONVERTED], at=["ConvTranspose"])
def unstride_transposed(graph: Graph) -> Graph:
    """Replace each ConvTranspose with strides of 1, whose padding is smaller than the kernel, by a Conv. Takes linear
    time.

    Float32 nodes with one group are kept if `scatters` returns True, or if they read an input of the graph, compute one
    of its outputs, and are fastest in the standard order of axes. Nodes with positions behind the last window are not
    kept: no kernel computes them as transposed convolutions. The reversed weights depend only on the weights, so an
    executor computes them once.
    """
    returned = frozenset(graph.outputs)

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if not is_op(node, "ConvTranspose"):
            return None
        return _as_convolution(node, node.output in returned and node.operands[0].node is None)

    return fuse(graph, rule, at=["ConvTranspose"])


def _as_convolution(node: Node, alone: bool) -> Sequence[Value] | None:
    """Return the outputs of an equal Conv; None to keep the node.

    alone: Whether the node reads an input of the graph and computes one of its outputs.
    """
    op = operator(node, ConvTranspose)
    x, w, *bias = node.inputs
    assert x is not None
    assert w is not None
    if x.rank is None or w.shape is None or not all(isinstance(d, int) and d > 0 for d in w.shape):
        return None
    if op.output_shape is not None or op.checked_auto_pad() != "NOTSET" or set(op.strides or (1,)) != {1}:
        return None
    known = x.tensor.known_shape
    geometry = op.geometry(known, w.shape)
    reach = [d * (k - 1) for d, k in zip(geometry.dilations, w.shape[2:], strict=True)]
    pads = [r - p for side in (geometry.begin, geometry.end) for r, p in zip(reach, side, strict=True)]
    if any(p < 0 for p in pads):
        return None
    if op.group == 1 and x.dtype is DType.FLOAT32 and min(geometry.end) >= 0:
        in_order = alone and scatters_over_planes(known, w.shape, op.group, op.strides, op.dilations)
        if in_order or scatters(known, w.shape, node.output.tensor.known_shape):
            return None
    made = Conv(group=op.group, dilations=geometry.dilations, pads=pads)
    operands = [x, _reversed(w, op.group), *bias]
    names = [v.name for v in node.outputs]
    return Node(made, operands, node.name, node.meta, output_names=names).outputs


def _reversed(w: Value, group: int) -> Value:
    """Convert weights [C, M / group, *kernel] to [M, C / group, *kernel], with all kernel axes reversed."""
    channels, per_group, *kernel = w.tensor.static_shape
    axes = np.arange(2, 2 + len(kernel))
    step = np.full(len(kernel), -1)
    flipped = F.slice(w, step, np.full(len(kernel), _ALL_THE_WAY), axes, step)
    split = F.reshape(flipped, ints(group, channels // group, per_group, *kernel))
    swapped = F.transpose(split, perm=(0, 2, 1, *range(3, 3 + len(kernel))))
    made: Value = F.reshape(swapped, ints(group * per_group, channels // group, *kernel))
    return made
