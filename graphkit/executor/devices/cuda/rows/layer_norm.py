"""Normalisations of the last axes.

A row that is short is read once and stays in registers. Longer ones, and those whose factors do not lie along them, are
read twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work, written
from graphkit.executor.devices.cuda.rows.rows import Rows, held_type, rows_of
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.joining import joined
from graphkit.executor.devices.cuda.text.repeated import repeated
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import operator
from graphkit.ops.nn.norm import LayerNormalization, NormOfLastAxes, RMSNormalization


def _factor(node: Node, position: int, size: int) -> tuple[str, DType] | None:
    """How a row is multiplied or added to: an expression of `j`, and the operand's type; None for other shapes."""
    value = node.inputs[position]
    assert value is not None
    shape = value.tensor.static_shape
    if value.dtype not in STORED:
        return None
    if math.prod(shape) == 1:
        return f"gk_read(f{position}[0])", value.dtype
    # Of as many elements as a row it has to lie along it, not along other axes.
    along = tuple(itertools.dropwhile(lambda size: size == 1, shape))
    x = node.inputs[0]
    assert x is not None
    if math.prod(along) != size or x.tensor.static_shape[-len(along) :] != along:
        return None
    return f"gk_read(f{position}[j])", value.dtype


@register_launched("cuda", "", "LayerNormalization")
def _layer_norm(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, LayerNormalization)
    rows, factors = _normalised(node, op, range(1, len(node.operands)))
    used = [*context.used_outputs, True, True, True][:3]
    narrow = op.stash is DType.FLOAT64 and node.operands[0].dtype in HALVES
    if op.stash not in STORED or narrow:
        return None
    if rows is None or factors is None or not rows.kept:
        ahead = ["const A mean = p0.mean;", "const A r = (A)1 / gk_sqrt(p0.deviations / (A)count + epsilon);"]
        moments = Pass("gk_moments<A>", 3, ["p0.take((A)gk_read(x[at]));"])
        return _grouped(node, op, used, moments, ahead, "((A)gk_read(x[at]) - mean) * r")
    statistic = STORED[op.stash]
    scaled = "(v - mean) * r" + "".join(f" {sign} (A){f}" for sign, (f, _) in zip("*+", factors, strict=False))
    stash = "double" if op.stash is DType.FLOAT64 else "float"
    lines = [
        "A sum = 0;",
        *rows.each("sum += v;"),
        *joined("sum", "a + b", rows.together),
        "const A mean = sum / (A)size;",
        "A squares = 0;",
        *rows.each("squares += (v - mean) * (v - mean);"),
        *joined("squares", "a + b", rows.together),
        "const A r = (A)1 / gk_sqrt(squares / (A)size + epsilon);",
        *(rows.each(f"gk_write(y[row * size + j], (R)({scaled}));") if used[0] else []),
        "if (lane == 0) {",
        *([f"    gk_write(means[row], ({stash})mean);"] if used[1] else []),
        *([f"    gk_write(inverses[row], ({stash})r);"] if used[2] else []),
        "}",
    ]
    names = (f"{STORED[rows.stored]}* y", f"{statistic}* means", f"{statistic}* inverses")
    outputs = [(name, Output(i)) for i, (name, read) in enumerate(zip(names, used, strict=True)) if read]
    return _normalising("layer_norm", node, op, rows, factors, outputs, lines)


@register_launched("cuda", "", "RMSNormalization")
def _rms_norm(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, RMSNormalization)
    rows, factors = _normalised(node, op, (1,))
    if rows is None or factors is None or not rows.kept or node.output.dtype is not node.operands[0].dtype:
        squares = Pass("gk_sums<A, 1>", 1, ["const A v = (A)gk_read(x[at]);", "p0.s[0] += v * v;"])
        ahead = ["const A r = (A)1 / gk_sqrt(p0.s[0] / (A)count + epsilon);"]
        return _grouped(node, op, (True,), squares, ahead, "(A)gk_read(x[at]) * r")
    lines = [
        "A squares = 0;",
        *rows.each("squares += v * v;"),
        *joined("squares", "a + b", rows.together),
        "const A r = (A)1 / gk_sqrt(squares / (A)size + epsilon);",
        *rows.each(f"gk_write(y[row * size + j], (R)(v * r * (A){factors[0][0]}));"),
    ]
    return _normalising("rms_norm", node, op, rows, factors, [(f"{STORED[rows.stored]}* y", Output(0))], lines)


def _normalised(
    node: Node, op: NormOfLastAxes, positions: Sequence[int]
) -> tuple[Rows | None, list[tuple[str, DType]] | None]:
    """The rows, and the factors at these positions; None for what has no kernel."""
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.static_shape
    size = math.prod(shape[op.axes(len(shape))[0] :])
    found = [_factor(node, i, size) for i in positions if node.inputs[i] is not None]
    rows = rows_of(node, size, wide=op.stash is DType.FLOAT64) if size else None
    return rows, None if None in found else [f for f in found if f is not None]


def _normalising(
    name: str,
    node: Node,
    op: NormOfLastAxes,
    rows: Rows,
    factors: Sequence[tuple[str, DType]],
    outputs: Sequence[tuple[str, Output]],
    lines: Sequence[str],
) -> CardKernel:
    given = [i for i in range(1, len(node.inputs)) if node.inputs[i] is not None]
    parameters = [f"const {STORED[kind]}* f{i}" for i, (_, kind) in zip(given, factors, strict=True)]
    parameters += [text for text, _ in outputs] + [f"{STORED[rows.held]} epsilon"]
    epsilon = rows.held.numpy.type(op.epsilon)
    arguments: list[Argument] = [*map(Input, given), *(output for _, output in outputs), epsilon]
    written = f"typedef {'double' if rows.stored is DType.FLOAT64 else 'float'} R;"
    return CardKernel((rows.launch(name, parameters, arguments, [written, *lines]),))


def _grouped(
    node: Node, op: NormOfLastAxes, used: Sequence[bool], statistics: Pass, ahead: Sequence[str], value: str
) -> CardKernel | None:
    """The kernel for rows of any size and factors of any shape. used: whether y, mean and inverse deviation are read.

    ahead: lines that say the latter two, as `mean` and `r`; value: what the factors multiply and are added to.
    """
    kinds = {v.dtype for v in node.operands}
    sizes = node.operands[0].tensor.static_shape
    if math.prod(sizes) == 0 or any(held_type(kind) is None for kind in kinds):
        return None
    held = DType.FLOAT64 if DType.FLOAT64 in kinds or op.stash is DType.FLOAT64 else DType.FLOAT32
    size = math.prod(sizes[op.axes(len(sizes))[0] :])
    groups = Groups.over((math.prod(sizes) // size, size), [1], held)
    given: list[tuple[str, Argument]] = [(f"const {STORED[node.operands[0].dtype]}* x", Input(0))]
    lines: list[str] = []
    places: list[tuple[Coordinates, Sequence[int]]] = []
    for position, sign in zip(range(1, len(node.inputs)), "*+", strict=False):
        factor = operand(node, position)
        if factor is None:
            continue
        lies = repeated(f"i{position}", shape(factor), sizes, groups.short, size)
        given += [(f"const {STORED[factor.dtype]}* f{position}", Input(position)), *lies.given]
        lines += lies.lines
        places += lies.coordinates
        value += f" {sign} (A)gk_read(f{position}[{lies.place}])"
    results = list(zip(("y", "means", "inverses"), node.outputs, used, strict=False))
    given += [(f"{STORED[v.dtype]}* {name}", Output(i)) for i, (name, v, read) in enumerate(results) if read]
    given.append((f"{STORED[held]} epsilon", held.numpy.type(op.epsilon)))
    lines.append(written("y", node.outputs[0].dtype, "at", value))
    statistics_of = zip(results[1:], ("mean", "r"), strict=False)
    once = [written(name, v.dtype, "g", made) for (name, v, read), made in statistics_of if read]
    work = Work(f"{op.name}_rows", given, [statistics], lines if used[0] else [], ahead, once, places)
    return groups.kernel(work)
