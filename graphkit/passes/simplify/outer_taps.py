"""Remove the outer taps of convolution kernels that only ever read padding.

Kernels with a large dilation have such taps if the image is small. For example, only the middle tap of a 3 x 3 kernel
with dilation 36 reads a 33 x 33 image.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, operator
from graphkit.ops._op import number_of
from graphkit.ops.nn.conv import Conv
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import ints, is_op
from graphkit.passes.core.sweep import Readers, fuse


class _Axis(NamedTuple):
    """One spatial axis: image size, number of output positions, number of taps, and the geometry of the window."""

    size: int
    positions: int
    taps: int
    stride: int
    dilation: int
    begin: int
    end: int

    def idle(self) -> tuple[int, int]:
        """Return how many taps can be removed at the beginning and at the end.

        Each removed tap also removes `dilation` elements of padding on its side, so there must be enough padding.
        """
        useful = [t for t in range(self.taps) if self._meets_data(t)]
        if not useful:
            return 0, 0
        before = min(useful[0], self.begin // self.dilation)
        behind = min(self.taps - 1 - useful[-1], self.end // self.dilation)
        return before, behind

    def _meets_data(self, tap: int) -> bool:
        """Return whether the tap reads an element of the image at any output position i.

        At this position, it reads the element i * stride - begin + tap * dilation.
        """
        first = tap * self.dilation - self.begin
        nearest = max(0, -(first // self.stride))  # the first output position with an index >= 0
        return nearest < self.positions and first + nearest * self.stride < self.size


@graph_pass(
    requires=[Property.RANKS_KNOWN, Property.TRANSPOSED_CONVOLUTIONS_CONVERTED],
    ensures=[Property.TAPS_MEET_DATA],
    at=["Conv"],
)
def drop_outer_taps(graph: Graph) -> Graph:
    """Remove idle outer taps from the weights of each Conv whose image and kernel have known sizes. Takes linear time.

    A removed tap no longer multiplies the padding. So an infinite or NaN weight of it no longer makes the result NaN.
    """
    # The numbers of operators and operand types of convolutions without idle taps.
    kept: set[tuple[int, ...]] = set()

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if not is_op(node, "Conv"):
            return None
        key = (number_of(operator(node, Conv)), *[v.tensor.number for v in node.operands])
        if key in kept:
            return None
        found = _without_idle_taps(node)
        if found is None:
            kept.add(key)
        return found

    return fuse(graph, rule, at=["Conv"], counts_uses=False)


def _without_idle_taps(node: Node) -> Sequence[Value] | None:
    x, w, *bias = node.inputs
    assert x is not None
    assert w is not None
    sizes, kernel = x.tensor.known_shape[2:], w.tensor.known_shape[2:]
    positions = node.output.tensor.known_shape[2:]
    if not kernel or not all(isinstance(d, int) for d in (*sizes, *kernel, *positions)):
        return None
    op = operator(node, Conv)
    geometry = op.geometry(x.tensor.known_shape, w.tensor.known_shape)
    axes = [_Axis(*of) for of in zip(sizes, positions, kernel, *geometry[:4], strict=True)]
    idle = [axis.idle() for axis in axes]
    if not any(before or behind for before, behind in idle):
        return None
    left = [axis.taps - before - behind for axis, (before, behind) in zip(axes, idle, strict=True)]
    pairs = list(zip(axes, idle, strict=True))
    begin = [axis.begin - before * axis.dilation for axis, (before, _) in pairs]
    end = [axis.end - behind * axis.dilation for axis, (_, behind) in pairs]
    made = Conv(
        group=op.group,
        strides=geometry.strides,
        dilations=[axis.dilation if taps > 1 else 1 for axis, taps in zip(axes, left, strict=True)],
        pads=[*begin, *end],
    )
    starts = [before for before, _ in idle]
    ends = [start + taps for start, taps in zip(starts, left, strict=True)]
    weights = F.slice(w, ints(*starts), ints(*ends), ints(*range(2, 2 + len(kernel))))
    names = [v.name for v in node.outputs]
    return Node(made, [x, weights, *bias], node.name, node.meta, output_names=names).outputs
