"""What goes over rows of the last axes in one launch: softmax and normalisations. A warp, or a block, has a row.

A row of few elements is read once and stays in registers; a longer one is read again for each pass over it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.executor.devices.cuda.expressions import STORED
from graphkit.executor.devices.cuda.joining import joined, threads_for
from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Launch, Output, source_of
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, HALVES, DType
from graphkit.ops._base import operator
from graphkit.ops.nn.norm import LayerNormalization, NormOfLastAxes, RMSNormalization
from graphkit.ops.nn.softmax import LogSoftmax, Softmax

# Elements of a row that a thread keeps in registers.
_KEPT = 8


@dataclass(frozen=True)
class _Rows:
    """count: rows; size: elements of each. stored: the type of x in memory, held: of what is computed."""

    count: int
    size: int
    stored: DType
    held: DType

    @property
    def together(self) -> int:
        return threads_for(self.size)

    @property
    def kept(self) -> int:
        """Elements that a thread keeps; 0 where a row has more."""
        each = -(-self.size // self.together)
        return each if each <= _KEPT else 0

    @property
    def index(self) -> str:
        return "gk_u32" if self.count * self.size + THREADS < 1 << 31 else "gk_u64"

    def begin(self) -> list[str]:
        """Whose row it is, `row`, `lane` within it, where it lies, `from`, and its elements where they are kept."""
        index, together = self.index, self.together
        lines = [
            f"typedef {STORED[self.held]} A;",
            f"const {index} row = ({index})blockIdx.x * {THREADS // together}u + threadIdx.x / {together}u;",
            f"const {index} lane = threadIdx.x % {together}u;",
            "if (row >= rows) {",
            "    return;",
            "}",
            f"const {STORED[self.stored]}* from = x + row * size;",
        ]
        if self.kept:
            lines += [f"A kept[{self.kept}];", *self._loop(["kept[k] = gk_read(from[j]);"])]
        return lines

    def each(self, *lines: str) -> list[str]:
        """The lines for every element of the thread: `v`, number `j` of its row."""
        return self._loop([f"const A v = {'kept[k]' if self.kept else 'gk_read(from[j])'};", *lines])

    def _loop(self, lines: Sequence[str]) -> list[str]:
        index, together = self.index, self.together
        if not self.kept:
            head = f"for ({index} j = lane; j < size; j += {together}u) {{"
            return [head, *("    " + line for line in lines), "}"]
        return [
            "#pragma unroll",
            f"for (int k = 0; k < {self.kept}; ++k) {{",
            f"    const {index} j = lane + k * {together}u;",
            "    if (j < size) {",
            *("        " + line for line in lines),
            "    }",
            "}",
        ]

    def launch(
        self, name: str, parameters: Sequence[str], arguments: Sequence[Argument], lines: Sequence[str]
    ) -> Launch:
        """parameters, arguments: beside x, which is the first operand, and the sizes."""
        given = [f"const {STORED[self.stored]}* x", *parameters, f"{self.index} rows", f"{self.index} size"]
        wide: type[np.unsignedinteger[Any]] = np.uint32 if self.index == "gk_u32" else np.uint64
        source = source_of(name, given, [*self.begin(), *lines])
        blocks = -(-self.count // (THREADS // self.together))
        return Launch(source, blocks, (Input(0), *arguments, wide(self.count), wide(self.size)))


def _rows_of(node: Node, size: int, wide: bool = False) -> _Rows | None:
    """The rows of a node's first operand; None where it is empty, or of a type without arithmetic."""
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.static_shape
    if math.prod(shape) == 0 or x.dtype not in FLOATS or x.dtype not in STORED:
        return None
    held = DType.FLOAT64 if wide else DType.FLOAT32 if x.dtype in HALVES else x.dtype
    return _Rows(math.prod(shape) // size, size, x.dtype, held)


# --- softmax ----------------------------------------------------------------------------------------


def _softmax(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, Softmax) if node.op.name == "Softmax" else operator(node, LogSoftmax)
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.static_shape
    axis = op.axis % max(len(shape), 1)
    if not shape or math.prod(shape[axis + 1 :]) != 1:
        return None
    rows = _rows_of(node, shape[axis])
    if rows is None:
        return None
    result = "gk_exp(v - most) / total" if isinstance(op, Softmax) else "v - most - logarithm"
    lines = [
        "A most = gk_limits<A>::lowest();",
        *rows.each("most = gk_maximum(most, v);"),
        *joined("most", "gk_maximum(a, b)", rows.together),
        "A total = 0;",
        *rows.each("total += gk_exp(v - most);"),
        *joined("total", "a + b", rows.together),
        *([] if isinstance(op, Softmax) else ["const A logarithm = gk_log(total);"]),
        *rows.each(f"gk_write(y[row * size + j], {result});"),
    ]
    launch = rows.launch(op.name, [f"{STORED[rows.stored]}* y"], [Output(0)], lines)
    return CardKernel((launch,), inplace=((0, 0),) if rows.kept else ())


for _name in ("Softmax", "LogSoftmax"):
    register_launched("cuda", "", _name)(_softmax)


# --- normalisations ---------------------------------------------------------------------------------


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
    narrow = op.stash is DType.FLOAT64 and node.operands[0].dtype in HALVES
    if rows is None or factors is None or op.stash not in STORED or narrow:
        return None
    used = [*context.used_outputs, True, True, True][:3]
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
    if rows is None or factors is None or node.output.dtype is not node.operands[0].dtype:
        return None
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
) -> tuple[_Rows | None, list[tuple[str, DType]] | None]:
    """The rows, and the factors at these positions; None for what has no kernel."""
    x = node.inputs[0]
    assert x is not None
    shape = x.tensor.static_shape
    size = math.prod(shape[op.axes(len(shape))[0] :])
    found = [_factor(node, i, size) for i in positions if node.inputs[i] is not None]
    rows = _rows_of(node, size, wide=op.stash is DType.FLOAT64) if size else None
    return rows, None if None in found else [f for f in found if f is not None]


def _normalising(
    name: str,
    node: Node,
    op: NormOfLastAxes,
    rows: _Rows,
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
