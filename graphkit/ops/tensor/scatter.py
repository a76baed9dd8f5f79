"""Copies of a tensor with some elements overwritten, or combined with others.

ScatterElements and ScatterND differ only in how indices address elements. With "none", indices must not repeat (the
standard leaves it undefined which update would win); the other reductions combine every update of an element with it.
TensorScatter overwrites a run of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import ANY, INDICES, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, fresh_shape, i64, normal_axis, shape_text, zeros_like
from graphkit.ops.known_elements import index_array, known_array, moved
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.tensor.gather import along_axis, nd_index, nd_pair, refused_indices, refused_tuples

_REDUCTIONS = ("none", "add", "mul", "max", "min")


class _Scatter(Op):
    """Base of both operators. reduction: how an update is combined with the element; "none" replaces it."""

    reduction: str = "none"
    inputs = ("x", "indices", "updates")
    inplace = ((0, 0),)

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        if self.reduction not in _REDUCTIONS:
            raise UsageError(f"reduction must be one of {', '.join(_REDUCTIONS)}, not {self.reduction!r}")
        if self.reduction != "none" and x.dtype is DType.STRING:
            raise TypeMismatch(f"strings cannot be combined: reduction={self.reduction!r} of {x}")
        self.check(x, indices, updates)
        value = None
        if self.reduction == "none":
            value = moved(self.reference, known_array(x), index_array(indices), known_array(updates))
        return TensorType(x.dtype, x.shape, value)

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        """Raise TypeMismatch if the shapes cannot match."""
        raise NotImplementedError(f"{self.name}.check")

    def index(self, xp: Any, shape: tuple[int, ...], indices: Any) -> tuple[Any, ...]:
        """Return the numpy index of the elements that the updates address."""
        raise NotImplementedError(f"{self.name}.index")

    def reference(self, xp: Any, x: Any, indices: Any, updates: Any) -> Any:
        result = xp.array(x, order="C")
        view, indices = self.addressed(xp, result, indices)
        index = self.index(xp, view.shape, indices)
        if self.reduction == "none":
            view[index] = updates
        else:
            xp.scatter(self.reduction, view, index, updates)
        return result

    def addressed(self, xp: Any, result: Any, indices: Any) -> tuple[Any, Any]:
        """Return a view of the result, and the indices into this view."""
        return result, indices

    # --- gradient: `put` scatters by these indices, `take` gathers by them --------------------------

    def put(self, x: Any, indices: Any, updates: Any, reduction: str) -> Any:
        raise NotImplementedError(f"{self.name}.put")

    def take(self, x: Any, indices: Any) -> Any:
        raise NotImplementedError(f"{self.name}.take")

    def grad(self, node: Node, dy: Any) -> Any:
        x, indices, updates = node.inputs
        assert x is not None
        assert updates is not None
        if self.reduction == "none":
            return self.put(dy, indices, zeros_like(updates), "none"), None, self.take(dy, indices)
        if self.reduction == "add":
            return dy, None, self.take(dy, indices)
        if self.reduction == "mul":
            return self._product_gradient(x, indices, updates, dy)
        return self._extreme_gradient(node.output, x, indices, updates, dy)

    def _product_gradient(self, x: Value, indices: Any, updates: Value, dy: Any) -> Any:
        """Return the gradient for "mul": the product of the other factors, also if one factor of an element is 0."""
        zero, one = scalar_like(0.0, dy), scalar_like(1.0, dy)
        factors = self.put(F.expand(one, F.shape(x)), indices, updates, "mul")
        is_zero = F.equal(updates, zero)
        filled = F.where(is_zero, one, updates)
        nonzero = self.put(x, indices, filled, "mul")
        zeros = self.put(zeros_like(x), indices, F.cast(is_zero, to=dy.dtype), "add")
        other_zeros = F.sub(self.take(zeros, indices), F.cast(is_zero, to=dy.dtype))
        others = F.where(F.equal(other_zeros, zero), F.div(self.take(nonzero, indices), filled), zero)
        return F.mul(dy, factors), None, F.mul(self.take(dy, indices), others)

    def _extreme_gradient(self, y: Value, x: Value, indices: Any, updates: Value, dy: Any) -> Any:
        """Return the gradient for "max" and "min": equal elements and updates share it equally."""
        x_hits = F.cast(F.equal(x, y), to=dy.dtype)
        update_hits = F.cast(F.equal(updates, self.take(y, indices)), to=dy.dtype)
        share = F.div(dy, self.put(x_hits, indices, update_hits, "add"))
        return F.mul(share, x_hits), None, F.mul(self.take(share, indices), update_hits)


_TWICE = np.array([[0, 1, 0], [2, 1, -3]])


@op
class ScatterElements(_Scatter):
    """Return x with updates[i, j, ...] written to the index indices[i, j, ...] along `axis`.

    On the other axes the position stays the same: with axis=0, y[indices[i, j], j] = updates[i, j]. indices and updates
    have the same shape, and the rank of x; negative indices count from the end. With `reduction` "add", "mul", "max" or
    "min", an update is combined with the element instead; "none" replaces it.
    """

    axis: int = 0
    types = {"x": ANY, "indices": INDICES, "updates": "x"}
    onnx = Onnx("ScatterElements", since=18)
    samples = lambda: (
        Sample((3, 3), np.array([[1, 0, 2], [0, 2, -2]]), (2, 3)),
        Sample((1, 5), np.array([[1, -2]], np.int32), (1, 2), axis=1),
        Sample((2, 3, 2), np.array([[[0], [1]]]), (1, 2, 1), axis=-1),
        Sample((3, 2), np.zeros((0, 2), np.int64), (0, 2)),
        *(Sample((3, 3), _TWICE, (2, 3), reduction=reduction) for reduction in ("add", "mul", "max", "min")),
        Sample((2, 3), np.array([[1, 1], [0, -1]]), (2, 2), axis=1, reduction="add"),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        x, indices, _ = inputs
        return refused_indices(x, indices, self.axis)

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        for operand in (indices, updates):
            if x.shape is not None and operand.shape is not None and len(x.shape) != len(operand.shape):
                raise TypeMismatch(f"{operand} has another rank than x {shape_text(x.shape)}")
        if not fits(indices.shape, updates.shape):
            raise TypeMismatch(f"indices {indices} and updates {shape_text(updates.shape)} must have the same shape")
        if x.shape is not None:
            normal_axis(self.axis, len(x.shape))

    def index(self, xp: Any, shape: tuple[int, ...], indices: Any) -> tuple[Any, ...]:
        return along_axis(xp, shape, indices, self.axis % len(shape))

    def put(self, x: Any, indices: Any, updates: Any, reduction: str) -> Any:
        return F.scatter_elements(x, indices, updates, axis=self.axis, reduction=reduction)

    def take(self, x: Any, indices: Any) -> Any:
        return F.gather_elements(x, indices, axis=self.axis)


@op
class ScatterND(_Scatter):
    """Return x with the slices at some index tuples replaced: y[indices[i]] = updates[i] for each i.

    x: [*a, *b]; indices: int64 [*c, len(a)]: each row of the last axis is one index tuple; updates: [*c, *b]. Negative
    indices count from the end. With `reduction` "add", "mul", "max" or "min", an update is combined with the slice
    instead; "none" replaces it.
    """

    types = {"x": ANY, "indices": INT64, "updates": "x"}
    onnx = Onnx("ScatterND", since=18)
    samples = lambda: (
        Sample((6,), np.array([[4], [3], [-6]]), (3,)),
        Sample((3, 2, 2), np.array([[0], [2]]), (2, 2, 2)),
        Sample((3, 4), np.array([[[0, 1]], [[2, -1]]]), (2, 1)),
        Sample((3,), np.zeros((0, 1), np.int64), (0,)),
        # Empty tuples address all of x, as in GatherND.
        Sample((3,), np.zeros((0,), np.int64), (3,), onnx=False),
        Sample((3,), np.zeros((2, 0), np.int64), (2, 3), reduction="add", onnx=False),
        *(
            Sample((3, 2), np.array([[0], [2], [0]]), (3, 2), reduction=reduction)
            for reduction in ("add", "mul", "max", "min")
        ),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        x, indices, _ = inputs
        return refused_tuples(x, indices)

    def check(self, x: TensorType, indices: TensorType, updates: TensorType) -> None:
        if x.shape is None or indices.shape is None:
            return
        if not indices.shape or not dims.is_static(indices.shape[-1]):
            return
        depth = indices.shape[-1]
        wanted = (*indices.shape[:-1], *x.shape[depth:])
        if depth > len(x.shape) or not fits(updates.shape, wanted):
            given = f"updates {shape_text(updates.shape)} at indices {shape_text(indices.shape)}"
            raise TypeMismatch(f"{given} do not fit x {shape_text(x.shape)}")

    def addressed(self, xp: Any, result: Any, indices: Any) -> tuple[Any, Any]:
        return nd_pair(xp, result, indices)

    def index(self, xp: Any, shape: tuple[int, ...], indices: Any) -> tuple[Any, ...]:
        return nd_index(xp, shape, indices)

    def put(self, x: Any, indices: Any, updates: Any, reduction: str) -> Any:
        return F.scatter_nd(x, indices, updates, reduction=reduction)

    def take(self, x: Any, indices: Any) -> Any:
        return F.gather_nd(x, indices)


@op
class TensorScatter(Op):
    """Write a shorter update into a cache along `axis`; each batch entry has its own start position.

    cache: [B, ..., S, ...]; update: the same with at most S elements along `axis`; write_indices: int64 [B], 0 by
    default. An update that reaches beyond the end of the cache raises RuntimeFailure in a run; with mode "circular", it
    continues at the beginning.
    """

    axis: int = -2
    mode: str = "linear"
    inputs = ("cache", "update", "write_indices?")
    types = {"cache": ANY, "update": "cache", "write_indices": INT64}
    inplace = ((0, 0),)
    composite = True
    onnx = Onnx("TensorScatter", since=24)
    samples = lambda: (
        Sample((2, 3, 5, 2), (2, 3, 2, 2), np.array([1, 3])),
        Sample((2, 5, 2), (2, 3, 2)),
        Sample((2, 4), (2, 3), np.array([3, 2]), axis=1, mode="circular"),
        Sample((2, 4, 2, 2), (2, 4, 2, 2), np.array([0, 2]), axis=1, mode="circular"),
        Sample((2, 3, 2), (2, 0, 2), np.array([1, 3])),
    )

    def infer(self, cache: TensorType, update: TensorType, write_indices: TensorType | None = None) -> TensorType:
        if self.mode not in ("linear", "circular"):
            raise UsageError(f"mode must be one of linear, circular, not {self.mode!r}")
        if cache.shape is None:
            return TensorType(cache.dtype, update.shape and fresh_shape(len(update.shape)))
        axis = normal_axis(self.axis, len(cache.shape))
        if axis == 0:
            raise TypeMismatch("the axis of TensorScatter cannot be that of the batch")
        around = (*cache.shape[:axis], dims.fresh(), *cache.shape[axis + 1 :])
        if not fits(update.shape, around):
            raise TypeMismatch(f"the update {update} does not fit the cache {cache}")
        if update.shape is not None:
            new, size = update.shape[axis], cache.shape[axis]
            if dims.is_static(new) and dims.is_static(size) and new > size:
                raise TypeMismatch(f"the update {update} is longer than the cache {cache}")
        if write_indices is not None and not fits(write_indices.shape, cache.shape[:1]):
            raise TypeMismatch(f"write_indices {write_indices} are not one for each entry of {cache}")
        return TensorType(cache.dtype, cache.shape)

    def reference(self, xp: Any, cache: Any, update: Any, write_indices: Any = None) -> Any:
        axis = self.axis % cache.ndim
        place = xp.arange(update.shape[axis])[None]
        if write_indices is not None:
            place = place + write_indices[:, None]
        if self.mode == "circular":
            place = place % cache.shape[axis]
        elif place.size and (int(place.min()) < 0 or int(place.max()) >= cache.shape[axis]):
            raise TypeMismatch(f"an update reaches beyond axis {axis} of {list(cache.shape)}")
        place = place.reshape(place.shape[0], *(1,) * (axis - 1), place.shape[1], *(1,) * (cache.ndim - axis - 1))
        index = xp.broadcast_to(place, update.shape)
        result = xp.array(cache, order="C")
        result[along_axis(xp, cache.shape, index, axis)] = update
        return result

    def _places(self, cache: Any, update: Any, write_indices: Any) -> Any:
        """Return the position along the axis for each element of the update: int64 of the update's shape."""
        if cache.rank is None:
            raise UnsupportedError(f"TensorScatter in other operators needs a cache of known rank, not {cache}")
        axis = self.axis % cache.rank
        count = F.gather(F.shape(update), np.array(axis, np.int64))
        place = F.range(np.array(0, np.int64), count, np.array(1, np.int64))
        if write_indices is not None:
            place = F.add(F.unsqueeze(write_indices, i64(1)), place)
        else:
            place = F.unsqueeze(place, i64(0))
        if self.mode == "circular":
            place = F.mod(place, F.gather(F.shape(cache), np.array(axis, np.int64)))
        others = [a for a in range(1, cache.rank) if a != axis]
        return F.expand(F.unsqueeze(place, i64(*others)) if others else place, F.shape(update))

    def grad(self, node: Node, dy: Any) -> Any:
        cache, update, *where = node.inputs
        assert update is not None
        d_cache = F.tensor_scatter(dy, zeros_like(update), *where, axis=self.axis, mode=self.mode)
        places = self._places(cache, update, where[0] if where else None)
        d_update = F.gather_elements(dy, places, axis=self.axis)
        return (d_cache, d_update, *(None for _ in where))

    def expand(self, cache: Any, update: Any, write_indices: Any = None) -> Any:
        return F.scatter_elements(cache, self._places(cache, update, write_indices), update, axis=self.axis)
