"""Reductions over axes, and their gradients.

All share the standard's conventions: `axes` is an int64 vector (absent or empty: every axis, or none at all with
`noop_with_empty_axes`), `keepdims` leaves dimensions of 1. A composite reduction over no axes still applies its
elementwise steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import MissingGradient, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import BOOLS, FLOATS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import INT64, contiguous, fresh_shape, i64, length_of, normal_axes, reshape_like, zeros_like
from graphkit.ops.known_elements import known_array
from graphkit.ops.pointwise import scalar_like

_SUMMABLE = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}


def _uses(x: Callable[[tuple[int, ...]], Any]) -> tuple[Sample, ...]:
    """Return samples for every attribute and edge case. x: makes the operands of a given shape."""
    return (
        Sample(x((2, 3)), i64(1)),
        Sample(x((2, 3, 2)), i64(0, -1), keepdims=False),
        Sample(x((2, 3))),
        Sample(x((2, 3)), keepdims=False),
        Sample(x((2, 3)), i64(-2), keepdims=False),
        Sample(x((2, 3)), np.zeros(0, np.int64)),
        Sample(x((2, 3)), np.zeros(0, np.int64), noop_with_empty_axes=True),
        Sample(x((2, 3)), noop_with_empty_axes=True, keepdims=False),
        Sample(x(())),
        Sample(x((0, 3)), i64(1)),
    )


def _normal(shape: tuple[int, ...]) -> Any:
    return shape


def _positive(shape: tuple[int, ...]) -> Any:
    return Rand(shape, 0.5, 2.0)


def _empty(grad: bool = True) -> Sample:
    """grad: False if the result over no elements is infinite, so that its gradient cannot be checked."""
    return Sample((2, 0), i64(1), keepdims=False, grad=grad)


class Reduction(Op):
    """A reduction of x over axes."""

    keepdims: bool = True
    noop_with_empty_axes: bool = False
    inputs = ("x", "axes?")
    types = {"x": _SUMMABLE, "axes": INT64}
    symbolic_inference = True
    samples = lambda: (*_uses(_normal), _empty())
    # Function of a list of known elements, if shape arithmetic uses the operator.
    known: ClassVar[Any] = None

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        axes = inputs[1].constants if len(inputs) > 1 and inputs[1] is not None else None
        rank = len(inputs[0].known_shape)
        return self._has_examples(("x",), inputs, batched) and bool(axes) and all(axis % rank for axis in axes or ())

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        count = 0 if axes is None else length_of(axes)
        given = () if axes is None else axes.constants
        if given == () or count == 0:
            if self.noop_with_empty_axes:
                return TensorType(x.dtype, x.shape, self._known_result(x, (), x.rank))
            if not self.keepdims:
                return TensorType(x.dtype, (), self._known_result(x, None, x.rank))
            given = None if x.shape is None else tuple(range(len(x.shape)))
        if x.shape is None:
            return TensorType(x.dtype, None)
        rank = len(x.shape)
        if given is None:
            if not self.keepdims:
                return TensorType(x.dtype, None if count is None else fresh_shape(rank - count))
            return TensorType(x.dtype, fresh_shape(rank))
        reduced = normal_axes(given, rank)
        if self.keepdims:
            shape = [1 if axis in reduced else d for axis, d in enumerate(x.shape)]
        else:
            shape = [d for axis, d in enumerate(x.shape) if axis not in reduced]
        return TensorType(x.dtype, shape, self._known_result(x, reduced, rank))

    def _known_result(self, x: TensorType, axes: tuple[int, ...] | None, rank: int | None) -> tuple[Dim, ...] | None:
        """Return the known result if all elements are reduced to one; else None."""
        rule, source = type(self).known, known_array(x)
        if rule is None or source is None or (axes is not None and len(axes) != rank):
            return None
        result = rule(source.reshape(-1).tolist())
        return None if result is None else (result,)

    def axes_of(self, x: Any, axes: Any) -> tuple[int, ...]:
        """Return the axes in a run, counted from the front."""
        if axes is None or axes.size == 0:
            return () if self.noop_with_empty_axes else tuple(range(x.ndim))
        return normal_axes(axes.tolist(), x.ndim)

    def reference(self, xp: Any, x: Any, axes: Any = None) -> Any:
        return self.reduced(xp, x, self.axes_of(x, axes))

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        """Reduce an array over these axes."""
        raise NotImplementedError(f"{self.name}.reduced")

    def grad(self, node: Node, dy: Any) -> Any:
        x = node.inputs[0]
        assert x is not None
        return (self.slope(node, x, self.kept(node, dy)), None)[: len(node.inputs)]

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        """Return x's gradient. dy: the gradient of the result, with reduced axes kept as size 1."""
        raise NotImplementedError(f"{self.name}.slope")

    def kept(self, node: Node, y: Any) -> Any:
        """Reshape a tensor of the result's shape: reduced axes have size 1."""
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        return y if self.keepdims or axes is None else F.unsqueeze(y, axes)

    def like_this(self, function: str, node: Node, x: Any) -> Any:
        """Build another reduction of x over the same axes, which keeps them with size 1."""
        axes = node.inputs[1:]
        return getattr(F, function)(x, *axes, keepdims=True, noop_with_empty_axes=self.noop_with_empty_axes)


def _spread(dy: Any, x: Value) -> Any:
    """Broadcast dy to x's shape."""
    return F.expand(dy, F.shape(x))


@op
class ReduceSum(Reduction):
    """Sum over `axes` (default: all); 0 over no elements."""

    onnx = Onnx("ReduceSum", since=13)
    known = staticmethod(lambda values: sum(values))

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.sum(x, axis=axes, keepdims=self.keepdims)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        return _spread(dy, x)


@op
class ReduceMean(Reduction):
    """Mean over `axes` (default: all); NaN over no elements. The mean of integers is rounded towards zero."""

    onnx = Onnx("ReduceMean", since=18)
    samples = lambda: _uses(_normal)

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
        total = xp.sum(x, axis=axes, keepdims=self.keepdims)
        if x.dtype.kind not in "iu":
            return total / xp.asarray(count, dtype=total.dtype)
        quotient = xp.floor_divide(total, count)
        return quotient + (quotient * count != total) * (quotient < 0)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        return _spread(F.mul(dy, self._share(node, x)), x)

    def _share(self, node: Node, x: Value) -> Any:
        """Return 1 / n, where n is the number of elements that each result is reduced from."""
        axes = node.inputs[1].tensor.constants if len(node.inputs) > 1 and node.inputs[1] is not None else ()
        if x.shape is not None and axes is not None:
            every = not axes and not self.noop_with_empty_axes
            sizes = x.shape if every else [x.shape[axis] for axis in axes]
            count = dims.product(sizes)
            if dims.is_static(count):
                return scalar_like(1.0 / count if count else float("inf"), x)
        # Computed in at least float32: a size may be too large for float16, its reciprocal is not.
        wide = DType.FLOAT64 if x.dtype is DType.FLOAT64 else DType.FLOAT32
        ratio = F.div(F.cast(F.size(node.output), to=wide), F.cast(F.size(x), to=wide))
        return ratio if x.dtype is wide else F.cast(ratio, to=x.dtype)


class _ReduceExtreme(Reduction):
    """Base of the largest and smallest element. Equal extreme elements share the gradient equally."""

    types = {"x": _SUMMABLE | {DType.INT8, DType.UINT8} | BOOLS, "axes": INT64}
    samples = lambda: (
        *_uses(_normal),
        _empty(grad=False),
        Sample(np.array([[True, False], [False, False]]), i64(1)),
        Sample(np.array([[3, -1], [4, 4]], np.int8), i64(0), keepdims=False),
        Sample(np.zeros((0, 2), np.int32), i64(0)),
    )

    @staticmethod
    def worst(dtype: np.dtype) -> Any:
        """Result for no elements."""
        raise NotImplementedError

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        hit = F.cast(F.equal(x, self.kept(node, node.output)), to=x.dtype)
        return F.mul(F.div(dy, self.like_this("reduce_sum", node, hit)), hit)


def _extreme_over(xp: Any, function: Any, worst: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if all(x.shape[axis] for axis in axes):
        return function(x, axis=axes, keepdims=keepdims)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return xp.full(tuple(shape), worst, dtype=x.dtype)


@op
class ReduceMax(_ReduceExtreme):
    """Maximum over `axes` (default: all); NaN if an element is NaN.

    Over no elements, the result is -inf, or the least value of the dtype.
    """

    onnx = Onnx("ReduceMax", since=20)
    known = staticmethod(lambda values: dims.dim_max(*values) if values else None)

    @staticmethod
    def worst(dtype: np.dtype) -> Any:
        return False if dtype.kind == "b" else -np.inf if dtype.kind == "f" else np.iinfo(dtype).min

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return _extreme_over(xp, xp.amax, self.worst(x.dtype), x, axes, self.keepdims)


@op
class ReduceMin(_ReduceExtreme):
    """Minimum over `axes` (default: all); NaN if an element is NaN.

    Over no elements, the result is inf, or the largest value of the dtype.
    """

    onnx = Onnx("ReduceMin", since=20)
    known = staticmethod(lambda values: dims.dim_min(*values) if values else None)

    @staticmethod
    def worst(dtype: np.dtype) -> Any:
        return True if dtype.kind == "b" else np.inf if dtype.kind == "f" else np.iinfo(dtype).max

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return _extreme_over(xp, xp.amin, self.worst(x.dtype), x, axes, self.keepdims)


@op
class ReduceL1(Reduction):
    """Sum of absolute values over `axes` (default: all)."""

    onnx = Onnx("ReduceL1", since=18)

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.sum(xp.abs(x), axis=axes, keepdims=self.keepdims)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        return F.mul(dy, F.sign(x))


@op
class ReduceL2(Reduction):
    """Square root of the sum of squares over `axes` (default: all); where it is 0, the gradient is 0."""

    onnx = Onnx("ReduceL2", since=18)

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.sqrt(xp.sum(xp.multiply(x, x), axis=axes, keepdims=self.keepdims))

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        y = self.kept(node, node.output)
        norm = F.where(F.equal(y, scalar_like(0.0, x)), scalar_like(1.0, x), y)
        return F.mul(F.div(dy, norm), x)


@op
class ReduceSumSquare(Reduction):
    """Sum of squares over `axes` (default: all)."""

    onnx = Onnx("ReduceSumSquare", since=18)

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.sum(xp.multiply(x, x), axis=axes, keepdims=self.keepdims)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        return F.mul(F.mul(dy, scalar_like(2.0, x)), x)


@op
class ReduceLogSum(Reduction):
    """Logarithm of the sum over `axes` (default: all); -inf over no elements."""

    types = {"x": FLOATS, "axes": INT64}
    onnx = Onnx("ReduceLogSum", since=28)
    samples = lambda: (*_uses(_positive), _empty(grad=False))

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.log(xp.sum(x, axis=axes, keepdims=self.keepdims))

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        return _spread(F.div(dy, self.like_this("reduce_sum", node, x)), x)


@op
class ReduceLogSumExp(Reduction):
    """Log of the sum of exponentials over `axes` (default: all), without overflow; -inf over no elements."""

    types = {"x": FLOATS, "axes": INT64}
    onnx = Onnx("ReduceLogSumExp", since=28)
    samples = lambda: (
        *_uses(_normal),
        _empty(grad=False),
        # Not differentiable at infinity; onnx's evaluator gives NaN where every element is -inf.
        Sample(np.array([[-np.inf, 200.0], [np.inf, 1.0]], np.float32), i64(1), grad=False),
        Sample(np.array([[-np.inf, -np.inf]], np.float32), i64(1), grad=False, onnx=False),
    )

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        largest = _extreme_over(xp, xp.amax, -np.inf, x, axes, True)
        largest = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
        result = xp.log(xp.sum(xp.exp(x - largest), axis=axes, keepdims=True)) + largest
        return result if self.keepdims else xp.squeeze(result, axis=axes)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        # If every element is -inf, so is the result. Each element's share is then 0 instead of NaN.
        y = self.kept(node, node.output)
        finite = F.where(F.equal(y, scalar_like(float("-inf"), x)), scalar_like(0.0, x), y)
        return F.mul(dy, F.exp(F.sub(x, finite)))


def _zeros() -> tuple[Sample, ...]:
    """Rows with one zero, several zeros, and none."""
    return (
        Sample(np.array([[2.0, 0.0, -3.0], [0.0, 4.0, 0.0], [1.5, -2.0, 0.5]]), i64(1)),
        Sample(np.array([[[2.0, 0.0], [3.0, 4.0]], [[1.5, 2.0], [0.5, 3.0]]]), i64(0, 2), keepdims=False),
    )


@op
class ReduceProd(Reduction):
    """Product over `axes` (default: all); 1 over no elements."""

    onnx = Onnx("ReduceProd", since=18)
    known = staticmethod(dims.product)
    samples = lambda: (*_uses(_normal), _empty(), *_zeros())

    def reduced(self, xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
        return xp.prod(x, axis=axes, keepdims=self.keepdims)

    def slope(self, node: Node, x: Value, dy: Any) -> Any:
        axes = node.inputs[1:]
        return F.mul(dy, F.leave_one_out_product(x, *axes, noop_with_empty_axes=self.noop_with_empty_axes))


def _last(xp: Any, x: Any, axes: tuple[int, ...]) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Merge `axes` of x into one last axis. Return it, the order of the axes, and the shape before merging."""
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    turned = xp.transpose(x, order)
    return turned.reshape((*turned.shape[: x.ndim - len(axes)], -1)), order, turned.shape


def _rows_of(values: Sequence[Any], axes: tuple[int, ...]) -> tuple[list[Any], Callable[[Any], Any]]:
    """Merge `axes` of values of one shape into one last axis. Return the values, and a function that reverses this."""
    rank = values[0].rank
    order = (*(i for i in range(rank) if i not in axes), *axes)
    turned = [F.transpose(v, perm=order) for v in values]
    sizes, kept = F.shape(turned[0]), rank - len(axes)
    shape = F.concat(sizes[:kept], F.reduce_prod(sizes[kept:]), axis=0)

    def back(value: Any) -> Any:
        return F.transpose(reshape_like(value, turned[0]), perm=[order.index(i) for i in range(rank)])

    return [F.reshape(v, shape, allowzero=True) for v in turned], back


@op
class LeaveOneOutProduct(Op):
    """For each element of x, the product of all other elements along `axes`: the derivative of ReduceProd.

    The result has the shape of x. It is also exact where elements are 0. Products are computed in float64, because
    partial products may overflow although the result does not. axes: int64 [k] (default: all axes).
    """

    former_names = ("ProductOfOthers",)
    noop_with_empty_axes: bool = False
    domain = DOMAIN
    composite = True
    inputs = ("x", "axes?")
    types = {"x": FLOATS, "axes": INT64}
    samples = lambda: tuple(
        Sample(*sample.inputs, **{k: v for k, v in sample.attrs.items() if k != "keepdims"})
        for sample in (*_uses(_normal), *_zeros())
    )

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, axes: Any = None) -> Any:
        if axes is None or axes.size == 0:
            where = () if self.noop_with_empty_axes else tuple(range(x.ndim))
        else:
            where = normal_axes(axes.tolist(), x.ndim)
        if x.size == 0 or not where:
            return xp.ones_like(x)
        rows, order, shape = _last(xp, x, where)
        rows = rows.astype(np.float64)
        one = xp.ones_like(rows[..., :1])
        before = xp.cumprod(xp.concatenate((one, rows[..., :-1]), axis=-1), axis=-1)
        after = xp.cumprod(xp.concatenate((one, rows[..., :0:-1]), axis=-1), axis=-1)
        others = xp.multiply(before, xp.flip(after, axis=-1)).reshape(shape).astype(x.dtype)
        return contiguous(xp, xp.transpose(others, [order.index(i) for i in range(x.ndim)]))

    def grad(self, node: Node, dy: Any) -> Any:
        """Build the gradient from products of all elements but two: n * n elements for a product of n."""
        x = node.inputs[0]
        assert x is not None
        where = self._static_axes(node)
        if not where:
            return (zeros_like(x), None)[: len(node.inputs)]
        (rows, slopes), back = _rows_of((x, dy), where)
        number = F.range(np.int64(0), F.squeeze(F.shape(rows, start=-1), i64(0)), np.int64(1))
        other = F.not_(F.equal(F.unsqueeze(number, i64(1)), F.unsqueeze(number, i64(0))))
        pairs = F.where(other, F.unsqueeze(rows, i64(-2)), scalar_like(1.0, x))
        terms = F.where(other, F.leave_one_out_product(pairs, i64(-1)), scalar_like(0.0, x))
        total = F.reduce_sum(F.mul(terms, F.unsqueeze(slopes, i64(-1))), i64(-2), keepdims=False)
        return (back(total), None)[: len(node.inputs)]

    def _static_axes(self, node: Node) -> tuple[int, ...]:
        where = self._axes(*node.inputs)
        if where is None:
            raise MissingGradient(f"{node.describe()}: the second derivative of ReduceProd needs known axes and rank")
        return where

    def _axes(self, x: Any, axes: Any = None) -> tuple[int, ...] | None:
        """Return the axes of the product; None if they or the rank are unknown."""
        known = () if axes is None else axes.tensor.constants
        if x.rank is None or known is None:
            return None
        if not known:
            return () if self.noop_with_empty_axes else tuple(range(x.rank))
        return normal_axes(known, x.rank)

    def composed(self, x: Any, axes: Any = None) -> Any:
        where = self._axes(x, axes)
        if where is None:
            raise UnsupportedError(f"{self.name} in products along an axis needs known axes and rank")
        if not where:
            return F.constant_of_shape(F.shape(x), value=np.ones(1, x.dtype.numpy))
        (rows,), back = _rows_of((x,), where) if len(where) > 1 else ((x,), lambda value: value)
        axis = np.int64(where[0] if len(where) == 1 else -1)
        wide = F.cast(rows, to=DType.FLOAT64)
        before, after = (F.cum_prod(wide, axis, exclusive=True, reverse=reverse) for reverse in (False, True))
        return back(F.cast(F.mul(before, after), to=x.dtype))

    def expand(self, x: Any, axes: Any = None) -> Any:
        # Product of the other elements. Without zeros: the whole product divided by the element. With one zero: 0 for
        # all elements but the zero itself.
        given = () if axes is None else (axes,)
        wide = F.cast(x, to=DType.FLOAT64)
        zero, one = scalar_like(0.0, wide), scalar_like(1.0, wide)

        def over(function: str, value: Any) -> Any:
            return getattr(F, function)(value, *given, noop_with_empty_axes=self.noop_with_empty_axes)

        is_zero = F.equal(wide, zero)
        filled = F.where(is_zero, one, wide)
        product = over("reduce_prod", filled)
        zeros = F.cast(is_zero, to=DType.FLOAT64)
        others = F.where(F.equal(F.sub(over("reduce_sum", zeros), zeros), zero), F.div(product, filled), zero)
        return F.cast(others, to=x.dtype)
