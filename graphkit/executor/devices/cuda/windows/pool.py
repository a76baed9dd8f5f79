"""Pooling and its gradients: a thread for each result, which reads its window, or for each element of a gradient.

Windows overlap, but the cache serves repeated reads, so each element is read from memory about once. A gradient is a
sum over the windows that contain an element, in row-major order and without atomics, so it has the same bits every
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.movement.addressing import INDEX_TYPES, TupleAddress
from graphkit.executor.devices.cuda.movement.scatter import Scatter
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.windows.windows import MOST_AXES, Windows
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import row_major, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.lp_pool import LpPool
from graphkit.ops.nn.pool import AveragePooling, MaxPool, MaxPoolGrad, Pooling


def _windows(op: Pooling, x: Value | None, y: Value | None, *, last: bool = False) -> Windows | None:
    """Return the windows over x; None for too many axes."""
    sizes, results = shape(x), shape(y)
    channels = sizes[-1] if last else sizes[1]
    spatial, positions = (of[1:-1] if last else of[2:] for of in (sizes, results))
    if not 1 <= len(spatial) <= MOST_AXES:
        return None
    return Windows(sizes[0], channels, spatial, positions, op.window_of(spatial), last)


def _held(kind: DType) -> str:
    return STORED[held_type(kind)]


def _kind(value: Value | None) -> DType | None:
    """Return the element type of an operand; None for a type without arithmetic."""
    assert value is not None
    return value.dtype if value.dtype in STORED else None


def _is_empty(value: Value) -> bool:
    return 0 in value.tensor.static_shape


# --- maxima -----------------------------------------------------------------------------------------


def _maximum(kind: DType, windows: Windows, found: Sequence[str]) -> list[str]:
    """Return lines that find the first maximum of a window, `best`. NaN counts as the largest number.

    found: Lines that run for each element that is larger than all before.
    """
    better = "v > best || !any" + (" || (v != v && best == best)" if kind not in (DType.INT8, DType.UINT8) else "")
    loop = [
        "const A v = gk_read(x[from]);",
        f"if ({better}) {{",
        "    best = v;",
        "    any = true;",
        *("    " + line for line in found),
        "}",
    ]
    return [
        f"typedef {_held(kind)} A;", "A best = gk_limits<A>::lowest();", "bool any = false;",
        *windows.elements_of(loop),
    ]  # fmt: skip


def _max_pool(node: Node, context: KernelContext, *, last: bool) -> CardKernel | None:
    op, kind = operator(node, Pooling), _kind(node.inputs[0])
    windows = _windows(op, node.inputs[0], node.outputs[0], last=last)
    if kind is None or windows is None:
        return None
    if _is_empty(node.outputs[0]):
        return CardKernel(())
    used = (*context.used_outputs, *[True] * len(node.outputs))[: len(node.outputs)]
    given: list[tuple[str, Argument]] = [(f"const {STORED[kind]}* x", Input(0))]
    found: list[str] = []
    stores: list[str] = []
    lines: list[str] = []
    if used[0]:
        given.append((f"{STORED[kind]}* y", Output(0)))
        stores.append("gk_write(y[at], best);")
    if used[1:] == (True,):
        indices = node.outputs[1].dtype
        given.append((f"{STORED[indices]}* indices", Output(1)))
        lines.append("gk_i64 where = 0;")
        if isinstance(op, MaxPool):
            steps = _plane_steps(op, windows)
            given += [(f"{windows.signed} istep{a}", windows.number(step)) for a, step in enumerate(steps)]
            place = " + ".join(f"(gk_i64)({windows.place(a)}) * istep{a}" for a in windows.axes)
            found.append(f"where = {place};")
            stores.append("indices[at] = (gk_i64)plane * (gk_i64)xplane + where;")
        else:
            found.append(f"where = {windows.number_in_window()};")
            stores.append(f"indices[at] = ({STORED[indices]})where;")
    lines += [*_maximum(kind, windows, found), *stores]
    return CardKernel((windows.over_y("max_pool", given, lines),))


def _plane_steps(op: MaxPool, windows: Windows) -> list[int]:
    """Return the strides by which the indices of maxima are computed in a plane."""
    if op.storage_order == 0:
        return row_major(windows.spatial)
    return row_major(windows.spatial[::-1])[::-1]


@launched("MaxPool")
def _max_pool_first(node: Node, context: KernelContext) -> CardKernel | None:
    return _max_pool(node, context, last=False)


@launched("ChannelsLastMaxPool", DOMAIN)
@launched("ChannelsLastMaxPoolIndices", DOMAIN)
def _max_pool_last(node: Node, context: KernelContext) -> CardKernel | None:
    return _max_pool(node, context, last=True)


@launched("MaxPoolGrad", DOMAIN)
def _max_pool_grad(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of the gradient.

    If the indices come from a MaxPool node, each element of the result sums the gradients of windows that chose it. For
    other indices, gradients are scattered; this requires that no index occurs twice.
    """
    dy, indices = node.operands[:2]
    kind, pool = _kind(dy), indices.node
    if kind is None:
        return None
    if pool is not None and isinstance(pool.op, MaxPool) and not pool.op.storage_order:
        windows = _windows(pool.op, node.output, dy)
        # The index for a window that contains only padding is that of an element outside of the window.
        if windows is not None and windows.all_filled:
            return _chosen(node, kind, windows, "indices[from] == (gk_i64)at", "gk_i64")
    return _scattered(node, context.deterministic) if operator(node, MaxPoolGrad).disjoint else None


def _scattered(node: Node, deterministic: bool) -> CardKernel | None:
    """Return the kernel that writes each element of dy at its index, and zeros elsewhere."""
    dy, indices = node.operands[:2]
    address = TupleAddress.of_axis(
        [math.prod(shape(node.output))], 0, math.prod(shape(dy)), INDEX_TYPES[indices.dtype], 1
    )
    return Scatter(node, address, 1, 1, None, 0).kernel("none", deterministic)


@launched("ChannelsLastMaxPoolGrad", DOMAIN)
def _channels_last_max_pool_grad(node: Node, context: KernelContext) -> CardKernel | None:
    dy, indices = node.operands[:2]
    kind, windows = _kind(dy), _windows(operator(node, Pooling), node.output, dy, last=True)
    if kind is None or windows is None:
        return None
    return _chosen(node, kind, windows, f"indices[from] == {windows.number_in_window()}", STORED[indices.dtype])


def _chosen(node: Node, kind: DType, windows: Windows, condition: str, indices: str) -> CardKernel:
    """Return the kernel that sums, for each element of x, dy of the windows that chose it.

    condition: Expression for whether a window chose the element. indices: C type of the indices.
    """
    if _is_empty(node.output):
        return CardKernel(())
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[kind]}* dy", Input(0)), (f"const {indices}* indices", Input(1)),
        (f"{STORED[kind]}* dx", Output(0)),
    ]  # fmt: skip
    lines = [
        f"{_held(kind)} sum = 0;",
        *windows.around([f"if ({condition}) {{", "    sum += gk_read(dy[from]);", "}"]),
        "gk_write(dx[at], sum);",
    ]
    return CardKernel((windows.over_x("max_pool_grad", given, lines),))


# --- means and norms --------------------------------------------------------------------------------


def _of_sums(
    node: Node, name: str, element: str, result: str, given: Sequence[tuple[str, Argument]] = (), *, last: bool
) -> CardKernel | None:
    """Return the kernel of a pooling that sums over windows.

    element: The summand, an expression of an element `v`. result: An expression of `sum`, and of `whole`, the number of
    elements that an average counts.
    """
    op, kind = operator(node, Pooling), _kind(node.inputs[0])
    windows = _windows(op, node.inputs[0], node.output, last=last)
    if kind is None or windows is None:
        return None
    if _is_empty(node.output):
        return CardKernel(())
    operands: list[tuple[str, Argument]] = [(f"const {STORED[kind]}* x", Input(0)), (f"{STORED[kind]}* y", Output(0))]
    lines = [
        f"typedef {_held(kind)} A;",
        "A sum = 0;",
        *windows.elements_of(["const A v = gk_read(x[from]);", f"sum += {element};"]),
        *(_whole(op, windows) if isinstance(op, AveragePooling) else ()),
        f"gk_write(y[at], {result});",
    ]
    return CardKernel((windows.over_y(name, [*operands, *given], lines),))


def _whole(op: AveragePooling, windows: Windows) -> list[str]:
    """Return lines that declare `whole`: the divisor of an average over the window at `start`."""
    counts = [line for a in windows.axes for line in windows.counted(a, padded=op.count_include_pad)]
    return [*counts, f"const A whole = (A)({' * '.join(f'count{a}' for a in windows.axes)});"]


@launched("AveragePool")
def _average_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _of_sums(node, "average_pool", "v", "sum / whole", last=False)


@launched("ChannelsLastAveragePool", DOMAIN)
def _channels_last_average_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _of_sums(node, "average_pool", "v", "sum / whole", last=True)


@launched("LpPool")
def _lp_pool(node: Node, context: KernelContext) -> CardKernel | None:
    p = operator(node, LpPool).p
    if p == 1:
        return _of_sums(node, "lp_pool", "gk_abs(v)", "sum", last=False)
    if p == 2:
        return _of_sums(node, "lp_pool", "v * v", "gk_sqrt(sum)", last=False)
    element, result = "gk_pow(gk_abs(v), (A)p)", "gk_pow(sum, (A)1 / (A)p)"
    return _of_sums(node, "lp_pool", element, result, [("gk_i32 p", np.int32(p))], last=False)


def _average_pool_gradient(node: Node, *, last: bool) -> CardKernel | None:
    op, kind = operator(node, AveragePooling), _kind(node.inputs[0])
    windows = _windows(op, node.output, node.inputs[0], last=last)
    if kind is None or windows is None:
        return None
    if _is_empty(node.output):
        return CardKernel(())
    given: list[tuple[str, Argument]] = [(f"const {STORED[kind]}* dy", Input(0)), (f"{STORED[kind]}* dx", Output(0))]
    counts = {a: windows.counted(a, padded=op.count_include_pad) for a in windows.axes}
    whole = " * ".join(f"count{a}" for a in windows.axes)
    lines = [
        f"typedef {_held(kind)} A;",
        "A sum = 0;",
        *windows.around([f"sum += gk_read(dy[from]) / (A)({whole});"], inside=counts),
        "gk_write(dx[at], sum);",
    ]
    return CardKernel((windows.over_x("average_pool_grad", given, lines),))


@launched("AveragePoolGrad", DOMAIN)
def _average_pool_grad(node: Node, context: KernelContext) -> CardKernel | None:
    return _average_pool_gradient(node, last=False)


@launched("ChannelsLastAveragePoolGrad", DOMAIN)
def _channels_last_average_pool_grad(node: Node, context: KernelContext) -> CardKernel | None:
    return _average_pool_gradient(node, last=True)
