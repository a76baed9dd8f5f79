"""Running sums and products along an axis, and the first-order linear recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import FLOATS, INDICES, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import contiguous, i64, normal_axis
from graphkit.ops.known_elements import index_array, known_array, moved
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like

_ACCUMULATED = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}


class Cumulative(Op):
    """Base of running totals of the elements up to each position along `axis` (0-d, or a vector of one element).

    exclusive: without the element itself; reverse: from the end.
    """

    exclusive: bool = False
    reverse: bool = False
    inputs = ("x", "axis")
    types = {"x": _ACCUMULATED, "axis": INDICES}
    symbolic_inference = True

    def infer(self, x: TensorType, axis: TensorType) -> TensorType:
        if axis.shape is not None and any(d != 1 for d in axis.shape if dims.is_static(d)):
            raise TypeMismatch(f"the axis of {self.name} must be one element, not {axis}")
        if x.shape is not None and axis.constants is not None:
            normal_axis(axis.constants[0], len(x.shape))
        return TensorType(x.dtype, x.shape, moved(self.reference, known_array(x), index_array(axis)))

    def accumulated(self, xp: Any, x: Any, axis: Any, function: Any, neutral: Any) -> Any:
        """Apply `function` along the axis. neutral: makes an array of the total before the first element."""
        where = normal_axis(int(axis.reshape(())), x.ndim)
        rows = xp.flip(x, axis=where) if self.reverse else x
        total = function(rows, axis=where, dtype=x.dtype)
        if self.exclusive:
            before = (slice(None),) * where
            first = neutral(total[(*before, slice(0, 1))])
            total = xp.concatenate((first, total[(*before, slice(0, -1))]), axis=where)
        return contiguous(xp, xp.flip(total, axis=where) if self.reverse else total)


@op
class CumSum(Cumulative):
    """Cumulative sum along `axis`, an int scalar or a tensor of one element.

    exclusive: each sum leaves out the element at its own position; reverse: sum from the end.
    """

    onnx = Onnx("CumSum", since=14)
    samples = lambda: (
        Sample((5,), np.int64(0)),
        Sample((2, 3), np.int32(1), exclusive=True),
        Sample((2, 3), np.int64(-2), reverse=True),
        Sample((2, 3, 2), np.int64(-1), exclusive=True, reverse=True),
        Sample((0, 3), np.int64(0)),
        Sample(np.array([[1, 2], [3, 4]]), np.int64(0)),
    )

    def reference(self, xp: Any, x: Any, axis: Any) -> Any:
        return self.accumulated(xp, x, axis, xp.cumsum, xp.zeros_like)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.cum_sum(dy, node.operands[1], exclusive=self.exclusive, reverse=not self.reverse), None


@op
class CumProd(Cumulative):
    """Cumulative product along `axis`, an int scalar or a tensor of one element.

    exclusive: each product leaves out the element at its own position; reverse: multiply from the end. The gradient is
    exact also where elements are zero.
    """

    onnx = Onnx("CumProd", since=26)
    samples = lambda: (
        Sample((5,), np.int64(0)),
        Sample((2, 3), np.int32(1), exclusive=True),
        Sample((2, 3), np.int64(-2), reverse=True),
        Sample((2, 3, 2), np.int64(-1), exclusive=True, reverse=True),
        Sample((0, 3), np.int64(0)),
        Sample((2, 1), np.int64(1), exclusive=True),
        Sample(np.array([[1, 2], [3, 4]]), np.int64(0)),
    )

    def reference(self, xp: Any, x: Any, axis: Any) -> Any:
        return self.accumulated(xp, x, axis, xp.cumprod, xp.ones_like)

    def grad(self, node: Node, dy: Any) -> Any:
        # dx[j] = (product before j) * r[j], where r sums dy over the later positions, each times the product of
        # what lies between: r[j] = dy[j] + x[j + 1] * r[j + 1]. If exclusive, dy[j + 1] replaces dy[j].
        x, axis = node.operands
        along = _constant_axis(node, axis)
        ahead = -1 if self.reverse else 1
        before = F.cum_prod(x, axis, exclusive=True, reverse=self.reverse)
        r = F.linear_recurrence(
            shifted(x, along, ahead),
            shifted(dy, along, ahead) if self.exclusive else dy,
            axis=along,
            reverse=not self.reverse,
        )
        return before * r, None


def _constant_axis(node: Node, axis: Value) -> int:
    if axis.tensor.constants is None:
        raise UnsupportedError(f"{node.describe()}: its gradient needs an axis that is known when the graph is built")
    return int(axis.tensor.constants[0])


def shifted(x: Any, axis: int, ahead: int) -> Any:
    """Return x[j + 1] (ahead=1) or x[j - 1] (ahead=-1) at each position j of an axis; 0 beyond its ends."""
    return F.pad(x, i64(*((-1, 1) if ahead > 0 else (1, -1))), None, i64(axis))


@op
class LinearRecurrence(Op):
    """h[t] = a[t] * h[t - 1] + b[t] along `axis`, from h = 0; with `reverse`, h[t] = a[t] * h[t + 1] + b[t].

    a, b: tensors of one shape. The a of the first step is not used. In an exported file it must be finite, because it
    is multiplied by zero there.
    """

    axis: int
    reverse: bool = False
    domain = DOMAIN
    inputs, outputs = ("a", "b"), ("h",)
    types = {"a": FLOATS, "b": "a"}
    inplace = ((1, 0),)
    samples = lambda: (
        Sample((4,), (4,), axis=0),
        Sample((2, 3), (2, 3), axis=1, reverse=True),
        Sample((3, 2, 2), (3, 2, 2), axis=-3),
        Sample((1, 2), (1, 2), axis=0),
        Sample((0, 2), (0, 2), axis=0),
        Sample(Rand((3, 0)), (3, 0), axis=0),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if not fits(a.shape, b.shape):
            raise TypeMismatch(f"the factors {a} and the terms {b} must have the same shape")
        shape = b.shape if a.shape is None else a.shape
        if shape is not None:
            normal_axis(self.axis, len(shape))
        return TensorType(a.dtype, shape)

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        h = xp.array(b, order="C")
        factors, states = xp.moveaxis(a, self.axis, 0), xp.moveaxis(h, self.axis, 0)
        if self.reverse:
            factors, states = factors[::-1], states[::-1]
        for t in range(1, len(states)):
            states[t] += factors[t] * states[t - 1]
        return h

    def grad(self, node: Node, dy: Any) -> Any:
        a, h = node.operands[0], node.output
        ahead = -1 if self.reverse else 1
        db = F.linear_recurrence(shifted(a, self.axis, ahead), dy, axis=self.axis, reverse=not self.reverse)
        return db * shifted(h, self.axis, -ahead), db

    def expand(self, a: Any, b: Any) -> Any:
        if a.shape is None:
            raise UnsupportedError(f"LinearRecurrence in standard operators needs an operand of known rank, not {a}")
        axis = normal_axis(self.axis, len(a.shape))
        step = TensorType(a.dtype, (*a.shape[:axis], *a.shape[axis + 1 :]))
        state, factor, term = (Value(step, name) for name in ("h", "a", "b"))
        after: Any = F.add(F.mul(factor, state), term)
        body = Graph([state, factor, term], [after, F.identity(after)], name="step")
        sizes = F.shape(a)
        rest = F.concat(sizes[:axis], sizes[axis + 1 :], axis=0)
        initial = F.expand(scalar_like(0.0, a), rest)
        backward = (int(self.reverse),)
        _, stacked = F.scan(
            initial,
            a,
            b,
            body=body,
            num_scan_inputs=2,
            scan_input_axes=(axis, axis),
            scan_input_directions=backward * 2,
            scan_output_axes=(axis,),
            scan_output_directions=backward,
        )
        return stacked
