"""Convolutions and their gradients by cuDNN, or as implicit matrix products of x, w and dy.

The matrix products are for cases that cuDNN does not support. Depthwise convolutions have separate kernels. The matrix
of windows (im2col) is never stored. In a convolution, rows of the product are channels, columns are the positions of
all images, and the sum is over the elements of a window. In the gradient of x, columns are elements of x, and the sum
is over the windows that contain them. In the gradient of w, columns are elements of a window, and the sum is over
positions. Padding is a zero factor in a product, and so are positions without a window. So if a weight is not finite,
it makes such terms NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Convolution,
    Input,
    Launch,
    Output,
    Scratch,
    launched,
)
from graphkit.executor.devices.cuda.movement.sorting import aligned
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, Divisor, for_each
from graphkit.executor.devices.cuda.windows import depthwise
from graphkit.executor.devices.cuda.windows.epilogues import NOTHING, Finish, finish, finishing_launch
from graphkit.executor.devices.cuda.windows.tiles import COLUMNS, SIDE, WIDE, Factor, Tiled
from graphkit.executor.devices.cuda.windows.windows import Windows
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import channel_strides, operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, HALVES, DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last import (
    ChannelsLast,
    ChannelsLastConvolution,
    ChannelsLastConvTranspose,
    to_first,
)
from graphkit.ops.internal.fused import Epilogue
from graphkit.ops.nn.conv import Convolution as ConvolutionOp
from graphkit.ops.nn.conv import ConvTranspose, Geometry
from graphkit.ops.nn.sliding_window import Window

_MOST_AXES = 3


@dataclass(frozen=True)
class Convolved:
    """A convolution with known sizes.

    Attributes:
        x, w, y: Sizes [N, C, *spatial], [M, C / group, *kernel] and [N, M, *positions].
        geometry: Strides, padding, dilations and groups.
        held: Type of sums.
        last: In memory, the channels of x and y are the last axis, instead of axis 1.
        filters_last: In memory, the channels of w are the last axis, instead of axis 1.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    geometry: Geometry
    held: DType
    last: bool = False
    filters_last: bool = False

    @property
    def axes(self) -> range:
        return range(len(self.x) - 2)

    @property
    def short(self) -> bool:
        g = self.geometry
        reach = [
            size + p * s + k * d + abs(begin)
            for size, p, k, s, d, begin in zip(
                self.x[2:], self.y[2:], self.w[2:], g.strides, g.dilations, g.begin, strict=True
            )
        ]
        columns = self.x[0] * max(math.prod(self.x[2:]), math.prod(self.y[2:]))
        return bool(max(*map(math.prod, (self.x, self.w, self.y)), columns, *reach) + COLUMNS * THREADS < 1 << 31)

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    @property
    def signed(self) -> str:
        return "gk_i32" if self.short else "gk_i64"

    def numbers(self, **named: int | Sequence[int]) -> tuple[tuple[str, Argument], ...]:
        """Return parameters with arguments: an index for an integer, and a signed number per axis for a sequence."""
        found: list[tuple[str, Argument]] = []
        for name, value in named.items():
            if isinstance(value, int):
                found.append((f"{self.index} {name}", Coordinates("", 1, self.short).number(value)))
            else:
                kind = np.int32 if self.short else np.int64
                found += [(f"{self.signed} {name}{axis}", kind(one)) for axis, one in enumerate(value)]
        return tuple(found)

    def inside(self, name: str, size: str) -> str:
        """Return the expression for whether a position is within all axes."""
        return " && ".join(f"({self.index}){name}{a} < ({self.index}){size}{a}" for a in self.axes)

    def offset(self, name: str, step: str) -> str:
        return " + ".join(f"({self.index}){name}{a} * {step}{a}" for a in self.axes)

    def _images(self, kind: DType) -> tuple[tuple[str, Argument], ...]:
        """Return the parameters for the operand x and the positions of windows in it."""
        g = self.geometry
        image, plane, *steps = channel_strides(self.x, last=self.last)
        places = self.numbers(
            stride=g.strides, dilation=g.dilations, begin=g.begin, size=self.x[2:], xstep=steps, ximage=image,
            xplane=plane, xgroup=plane * self.w[1],
        )  # fmt: skip
        return ((f"const {STORED[kind]}* x", Input(0)), *places)

    def _inner(self, axes: Sequence[int]) -> int:
        """Return the number of adjacent elements of a channel, in an image with these spatial axes."""
        return 1 if self.last else math.prod(axes)

    def _elements(self, places: Coordinates, linear: str) -> tuple[list[str], str, list[str]]:
        """Return lines that split the index `linear` of an element of a filter; its channel; its positions on axes."""
        lines, found = places.lines(linear)
        channel = found.pop(-1 if self.filters_last else 0)
        return lines, channel, found

    @property
    def _filter(self) -> tuple[int, ...]:
        """Sizes of a filter, in the order of memory."""
        channels, *kernel = self.w[1:]
        return (*kernel, channels) if self.filters_last else (channels, *kernel)

    # --- the three products -----------------------------------------------------------------------------

    def forward(self, kind: DType, result: Finish) -> Tiled:
        """Return the product that computes y. Operands: x, w."""
        group = self.geometry.group
        columns, steps = (
            Coordinates("c", 1 + len(self.axes), self.short),
            Coordinates("d", 1 + len(self.axes), self.short),
        )
        found, (image, *places) = columns.lines("column")
        taken, channel, elements = self._elements(steps, "d")
        positions, depth = self.y[2:], math.prod(self.w[1:])
        left = Factor(
            ["value = gk_read(w[(group * rows + row) * depth + d]);"], ((f"const {STORED[kind]}* w", Input(1)),)
        )
        before = [
            *found,
            *(f"const {self.signed} start{a} = ({self.signed}){places[a]} * stride{a} - begin{a};" for a in self.axes),
            f"const {self.index} base = {image} * ximage + group * xgroup;",
        ]
        lines = [
            *taken,
            *(f"const {self.signed} at{a} = start{a} + ({self.signed}){elements[a]} * dilation{a};" for a in self.axes),
            f"if ({self.inside('at', 'size')}) {{",
            f"    value = gk_read(x[base + {channel} * xplane + {self.offset('at', 'xstep')}]);",
            "}",
        ]
        given = (
            *self._images(kind),
            *columns.given((self.x[0], *positions)),
            *steps.given(self._filter),
        )
        return Tiled(
            "conv", group, self.w[0] // group, self.x[0] * math.prod(positions), depth, self._inner(positions), left,
            Factor(lines, given, [], before), self.held, kind, self.short, finish=result,
        )  # fmt: skip

    def by_data(self, kind: DType, result: Finish) -> Tiled:
        """Return the product that computes the gradient of x. Operands: dy, w."""
        g, group, rank = self.geometry, self.geometry.group, len(self.axes)
        spatial, positions, kernel = self.x[2:], self.y[2:], self.w[2:]
        yimage, yplane, *ysteps = channel_strides(self.y, last=self.last)
        columns, steps = (Coordinates(name, 1 + rank, self.short) for name in "cd")
        found, (image, *places) = columns.lines("column")
        taken, (channel, *elements) = steps.lines("d")
        left = self._filters_by_data(kind)
        before = [
            *found,
            *(f"const {self.signed} far{a} = ({self.signed}){places[a]} + begin{a};" for a in self.axes),
            f"const {self.index} base = {image} * yimage + group * ygroup;",
        ]
        strided = any(s > 1 for s in g.strides)
        divisors = [Divisor(f"stride{a}", self.short) for a in self.axes] if strided else []
        lines = [
            *taken,
            *(f"const {self.signed} t{a} = far{a} - ({self.signed}){elements[a]} * dilation{a};" for a in self.axes),
        ]
        if strided:
            # A negative position is replaced by 0 in the division, and not used.
            lines += [
                f"const {self.index} w{a} = {divisors[a].quotient(f'({self.index})(t{a} < 0 ? 0 : t{a})')};"
                for a in self.axes
            ]
            whole = " && ".join(f"t{a} >= 0 && w{a} * stride{a} == ({self.index})t{a}" for a in self.axes)
            condition = f"{whole} && {self.inside('w', 'positions')}"
        else:
            condition = self.inside("t", "positions")
        lines += [
            f"if ({condition}) {{",
            f"    value = gk_read(dy[base + {channel} * yplane + {self.offset('w' if strided else 't', 'ystep')}]);",
            "}",
        ]
        given = (
            (f"const {STORED[kind]}* dy", Input(0)),
            *self.numbers(
                dilation=g.dilations, begin=g.begin, positions=positions, ystep=ysteps, yimage=yimage, yplane=yplane,
                ygroup=yplane * (self.w[0] // group),
            ),
            *(pair for divisor, stride in zip(divisors, g.strides, strict=False) for pair in divisor.given(stride)),
            *columns.given((self.x[0], *spatial)),
            *steps.given((self.w[0] // group, *kernel)),
        )  # fmt: skip
        depth = self.w[0] // group * math.prod(kernel)
        return Tiled(
            "conv_grad_data", group, self.w[1], self.x[0] * math.prod(spatial), depth, self._inner(spatial), left,
            Factor(lines, given, [], before), self.held, kind, self.short, finish=result,
        )  # fmt: skip

    def _filters_by_data(self, kind: DType) -> Factor:
        """Return the left factor of `by_data`: operand w."""
        weights = Coordinates("l", 2, self.short)
        split, (filters, element) = weights.lines("d")
        row = f"((group * filters + {filters}) * rows + row) * lsize1 + {element}"
        if self.filters_last:
            row = f"((group * filters + {filters}) * lsize1 + {element}) * rows + row"
        return Factor(
            [f"value = gk_read(w[{row}]);"],
            (
                (f"const {STORED[kind]}* w", Input(1)),
                *self.numbers(filters=self.w[0] // self.geometry.group),
                *weights.given((1, math.prod(self.w[2:]))),
            ),
            split,
        )

    def by_weights(self, kind: DType, result: DType) -> Tiled:
        """Return the product that computes the gradient of w. Operands: x, dy."""
        group, rank, positions = self.geometry.group, len(self.axes), self.y[2:]
        columns, steps = (Coordinates(name, 1 + rank, self.short) for name in "cd")
        images = Coordinates("l", 2, self.short)
        split, (image, place) = images.lines("d")
        yimage, yplane, *ysteps = channel_strides(self.y, last=self.last)
        at = f"{image} * yimage + (group * rows + row) * yplane + {place} * ystep"
        left = Factor(
            [f"value = gk_read(dy[{at}]);"],
            (
                (f"const {STORED[kind]}* dy", Input(1)),
                *self.numbers(yimage=yimage, yplane=yplane, ystep=ysteps[-1]),
                *images.given((1, math.prod(positions))),
            ),
            split,
        )
        found, channel, elements = self._elements(columns, "column")
        # For each column of a thread: where its channel begins, and the offset of its element from the window's start.
        before = [
            f"{self.index} plane_of[{WIDE}];",
            *(f"{self.signed} far{a}[{WIDE}];" for a in self.axes),
            "#pragma unroll",
            f"for (int i = 0; i < {WIDE}; ++i) {{",
            f"    const {self.index} column = column0 + side + {SIDE}u * i;",
            *("    " + line for line in found),
            f"    plane_of[i] = {channel} * xplane;",
            *(f"    far{a}[i] = ({self.signed}){elements[a]} * dilation{a} - begin{a};" for a in self.axes),
            "}",
        ]
        taken, (one, *places) = steps.lines("d")
        once = [
            *taken,
            *(f"const {self.signed} start{a} = ({self.signed}){places[a]} * stride{a};" for a in self.axes),
            f"const {self.index} base = {one} * ximage + group * xgroup;",
        ]
        lines = [
            *(f"const {self.signed} at{a} = start{a} + far{a}[i];" for a in self.axes),
            f"if ({self.inside('at', 'size')}) {{",
            f"    value = gk_read(x[base + plane_of[i] + {self.offset('at', 'xstep')}]);",
            "}",
        ]
        given = (
            *self._images(kind),
            *columns.given(self._filter),
            *steps.given((self.x[0], *positions)),
        )  # fmt: skip
        count = math.prod(self.w[1:])
        return Tiled(
            "conv_grad_weights", group, self.w[0] // group, count, self.x[0] * math.prod(positions), count, left,
            Factor(lines, given, once, before), self.held, result, self.short, by_depth=True,
        )  # fmt: skip

    def depthwise(self) -> Windows | None:
        """Return the windows of a depthwise convolution; None if it is not depthwise."""
        g = self.geometry
        if not g.group == self.x[1] == self.w[0]:
            return None
        window = Window(self.w[2:], g.strides, g.dilations, g.begin, g.end)
        return Windows(self.x[0], self.x[1], self.x[2:], self.y[2:], window, self.last)


# --- the library ----------------------------------------------------------------------------------------

# Workspace of the library, in addition to copies of all arrays in another layout.
_WORKSPACE = 8 << 20

# With this many positions, the gradient of w is too slow in a kernel that does not divide the sum.
_MANY_POSITIONS = 1 << 13


def _by_library(
    found: Convolved, wanted: Literal["x", "w", "y"], node: Node, context: KernelContext, own: CardKernel
) -> CardKernel:
    """Return the kernel that uses cuDNN, or `own` if cuDNN does not support the convolution.

    A separate launch computes activations, because the documentation of cuDNN does not say that its Relu keeps NaN. It
    also adds residuals. cuDNN only adds a residual to y directly after the bias, on tensor cores, if all arrays have
    the channels last.

    On some GPUs, cuDNN does not compute float32 gradients of w from float16 or bfloat16 operands. The operands are then
    converted to float32 first, and multiplied in TF32, which represents them exactly. This is also done for sums over
    many positions, because cuDNN 9.19 does not divide these sums over blocks.
    """
    kind, result = node.operands[0].dtype, node.output.dtype
    wider = result is DType.FLOAT32 and kind in HALVES
    if kind not in FLOATS or node.operands[1].dtype is not kind or not (result is kind or wider):
        return own
    bias = 2 if wanted == "y" and operand(node, 2) is not None else None
    factors: tuple[Argument, Argument] = (Input(1), Input(0)) if wanted == "x" else (Input(0), Input(1))
    work = Convolution(
        wanted, kind, found.x, found.w, found.y, found.geometry, factors, Output(0),
        bias=None if bias is None else Input(bias), tf32=context.tf32 and kind is DType.FLOAT32, sums=wider,
        last=found.last, filters_last=found.filters_last,
    )  # fmt: skip
    if wider and found.y[0] * math.prod(found.y[2:]) >= _MANY_POSITIONS:
        return _of_widened(found, work, _asked((), work, (), 0, own))
    if wider:
        own = _of_widened(found, work, own)
    if wanted != "y" and not _is_transposed(node):
        return _asked((), work, (), 0, own)
    kernel = _finished(found, work, finish(node, kind, found.held, bias=2 if bias is None else None), own)
    on_tensor_cores = work.tf32 or kind in HALVES
    # If filters do not have the channels last, cuDNN 9.19 computes a wrong result with a residual.
    if not (found.last and found.filters_last and on_tensor_cores and wanted == "y" and _adds_first(node)):
        return kernel
    behind = finish(node, kind, found.held, bias=None, residual=None)
    return _finished(found, work._replace(residual=Input(_RESIDUAL)), behind, kernel)


# The position of the operand that is added to a convolution.
_RESIDUAL = 3


def _adds_first(node: Node) -> bool:
    """Whether a residual is added directly after the bias, before any activation."""
    op = node.op
    return (
        isinstance(op, Epilogue) and operand(node, _RESIDUAL) is not None and not (op.residual_last and op.activation)
    )


def _finished(found: Convolved, work: Convolution, after: Finish, own: CardKernel) -> CardKernel:
    """Return the kernel that runs a convolution by the library, then a launch for the operations that follow."""
    sizes = found.x if work.wanted == "x" else found.y
    launch = finishing_launch(after, work.kind, found.held, sizes, short=found.short, last=found.last)
    return _asked((), work, (launch,) if after.lines else (), 0, own)


def _asked(
    before: Sequence[Launch], work: Convolution, after: Sequence[Launch], used: int, otherwise: CardKernel
) -> CardKernel:
    """Return the kernel that runs `before`, a convolution by the library, and `after`.

    `otherwise` replaces it if the library does not support the convolution.

    used: bytes of scratch memory that the launches before the convolution write.
    """
    # Space for arrays in other layouts. Exact float32 convolutions without groups do not need it.
    orders = work.made.itemsize == 2 or work.tf32 or work.wanted == "w" or work.geometry.group > 1
    elements = sum(map(math.prod, (work.x, work.w, work.y)))
    workspace = aligned(elements * work.made.itemsize * orders + _WORKSPACE)
    work = work._replace(workspace=workspace, working=Scratch(used))
    size = max(used + workspace, otherwise.scratch_bytes)
    return CardKernel((*before, work, *after), size, otherwise=otherwise)


def _of_widened(found: Convolved, work: Convolution, own: CardKernel) -> CardKernel:
    """Return the kernel that converts float16 or bfloat16 factors to float32, the result's type, and convolves them."""
    launches, widened, used = [], [], 0
    for factor, size in zip(work.factors, (math.prod(found.x), math.prod(found.y)), strict=True):
        launches.append(_widened(factor, work.kind, Scratch(used), work.made, size, found.short))
        widened.append(Scratch(used))
        used += aligned(size * work.made.itemsize)
    wide = work._replace(kind=work.made, factors=(widened[0], widened[1]), tf32=True, sums=False)
    return _asked(launches, wide, (), used, own)


def _widened(x: Argument, kind: DType, y: Argument, wide: DType, count: int, short: bool) -> Launch:
    given: list[tuple[str, Argument]] = [(f"const {STORED[kind]}* x", x), (f"{STORED[wide]}* y", y)]
    return for_each("widen", (count,), Coordinates("i", 1, short), given, ["gk_write(y[at], gk_read(x[at]));"])


# --- operators ----------------------------------------------------------------------------------------


def _convolved(node: Node, x: Value | None, w: Value | None, y: Value | None) -> Convolved | None:
    """Return the convolution of a node; None for types without arithmetic, or more than 3 spatial axes."""
    kinds = {v.dtype for v in (*node.operands[:2], node.output)}
    held = DType.FLOAT64 if DType.FLOAT64 in kinds else DType.FLOAT32
    op = operator(node, ConvolutionOp)
    last, filters_last = isinstance(op, ChannelsLast), isinstance(op, ChannelsLastConvolution) and op.filters_last
    sizes = _sizes(x, last=last), _sizes(w, last=filters_last), _sizes(y, last=last)
    if not kinds <= STORED.keys() or not 1 <= len(sizes[0]) - 2 <= _MOST_AXES:
        return None
    standard = op.standard() if isinstance(op, ChannelsLast) else op
    transposed = isinstance(standard, ConvTranspose)
    geometry = standard.geometry(sizes[2], sizes[1]) if transposed else standard.geometry(*sizes[:2])
    return _flattened(Convolved(*sizes, geometry, held, last, filters_last))


def _sizes(value: Value | None, *, last: bool) -> tuple[int, ...]:
    """Return the sizes of a value with the channels at axis 1. last: its channels are the last axis."""
    sizes = shape(value)
    return tuple(sizes[axis] for axis in to_first(len(sizes))) if last else sizes


def _flattened(given: Convolved) -> Convolved:
    """Return a 1x1 convolution with a single spatial axis; other convolutions unchanged."""
    g = given.geometry
    if any(k != 1 for k in given.w[2:]) or any(s != 1 for s in g.strides) or any(g.begin) or any(g.end):
        return given
    x, w, y = ((*of[:2], math.prod(of[2:])) for of in (given.x, given.w, given.y))
    return replace(given, x=x, w=w, y=y, geometry=Geometry((1,), (1,), (0,), (0,), g.group))


def _is_transposed(node: Node) -> bool:
    return isinstance(node.op, (ConvTranspose, ChannelsLastConvTranspose))


def _is_empty(found: Convolved) -> bool:
    return 0 in (*found.x, *found.w, *found.y)


def _conv(node: Node, context: KernelContext) -> CardKernel | None:
    found = _convolved(node, node.inputs[0], node.inputs[1], node.output)
    if found is None or (_is_empty(found) and 0 not in found.y):
        return None
    if _is_empty(found):
        return CardKernel(())
    kind = node.output.dtype
    result, windows = finish(node, kind, found.held), found.depthwise()
    if windows is not None:
        return depthwise.forward(windows, kind, found.held, result)
    return _by_library(found, "y", node, context, found.forward(kind, result).kernel())


launched("Conv")(_conv)
launched("FusedConv", DOMAIN)(_conv)
launched("ChannelsLastConv", DOMAIN)(_conv)


def _by_data(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of a gradient of x, or of a transposed convolution: the same with a bias and an activation."""
    found = _convolved(node, node.output, node.inputs[1], node.inputs[0])
    if found is None or (_is_empty(found) and 0 not in found.x):
        return None
    if _is_empty(found):
        return CardKernel(())
    kind = node.output.dtype
    result = finish(node, kind, found.held) if _is_transposed(node) else NOTHING
    if (windows := found.depthwise()) is not None:
        return depthwise.by_data(windows, kind, found.held, result)
    return _by_library(found, "x", node, context, found.by_data(kind, result).kernel())


for _name in ("ConvGradInput", "ChannelsLastConvGradInput", "ChannelsLastConvTranspose"):
    launched(_name, DOMAIN)(_by_data)
launched("ConvTranspose")(_by_data)


@launched("ConvGradWeight", DOMAIN)
@launched("ChannelsLastConvGradWeight", DOMAIN)
def _by_weights(node: Node, context: KernelContext) -> CardKernel | None:
    found = _convolved(node, node.inputs[0], node.output, node.inputs[1])
    if found is None or _is_empty(found):
        return CardKernel(()) if found is not None and 0 in found.w else None
    kinds = node.operands[0].dtype, node.output.dtype
    if (windows := found.depthwise()) is not None:
        kernel = depthwise.by_weights(windows, kinds[0], found.held, kinds[1])
        if kernel is not None:
            return kernel
    return _by_library(found, "w", node, context, found.by_weights(*kinds).kernel())
