"""TensorArray: numbered tensors of one type that loops read and write in any order.

It is a value like others: `write` returns a new array, and a loop can have it as state. Its elements are slices of one
tensor [size, *element], which defines its gradients: the gradient of a read is added to the element that was read, and
the gradient of a write is that of the element that it replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.frontend import tree
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.ops import F, as_value
from graphkit.ops.axes import i64


class TensorArray(tree.Nest):
    """An array of `size` tensors of one shape and type, initially 0.

    Methods never change an array; `write` and the others return a new one. Indices are integers or integer tensors; -1
    is the last element. If an element is written twice, the last write determines its value and gets the gradient.

    Args:
        size: An integer, or an integer scalar of the graph.
        element_shape: Shape of one element, as integers.
        dtype: Element type.
    """

    __slots__ = ("_elements",)

    def __init__(self, size: int | Value, element_shape: Sequence[int] = (), dtype: str | DType = "float32"):
        count = as_value(size)
        if count.dtype not in (DType.INT64, DType.INT32) or count.rank not in (0, None):
            raise TypeMismatch(f"TensorArray: size must be an integer scalar, not {count}")
        sizes = [F.reshape(F.cast(count, to=DType.INT64), i64(1)), F.constant(value=i64(*element_shape))]
        zero = np.zeros(1, dtype_of(dtype).numpy)
        self._elements: Any = F.constant_of_shape(F.concat(*sizes, axis=0), value=zero)

    @classmethod
    def of(cls, values: Any) -> TensorArray:
        """Return the array whose elements are the slices of a tensor [size, *element]."""
        given = as_value(values)
        if given.rank == 0:
            raise TypeMismatch(f"TensorArray.of: {given} is a scalar; its first axis must hold the elements")
        return cls._around(given)

    @classmethod
    def _around(cls, elements: Any) -> TensorArray:
        made = cls.__new__(cls)
        made._elements = elements
        return made

    # --- what it is ------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        dtype: DType = self._elements.dtype
        return dtype

    @property
    def element_shape(self) -> tuple[Dim, ...] | None:
        """The shape of one element; None if it is unknown."""
        shape = self._elements.shape
        return None if shape is None else tuple(shape[1:])

    @property
    def size(self) -> Value:
        """The number of elements, an int64 scalar."""
        count: Value = F.squeeze(F.shape(self._elements, start=0, end=1))
        return count

    # --- elements --------------------------------------------------------------------------------

    def read(self, index: Any) -> Value:
        """Return element `index`, an integer scalar."""
        element: Value = F.gather(self._elements, self._numbers("read", index, 0), axis=0)
        return element

    def write(self, index: Any, value: Any) -> TensorArray:
        """Return a new array in which element `index`, an integer scalar, is `value`."""
        element = self._fitting("write", as_value(value, self._elements), ())
        places = F.reshape(self._numbers("write", index, 0), i64(1, 1))
        return self._around(F.scatter_nd(self._elements, places, F.unsqueeze(element, i64(0))))

    def gather(self, indices: Any) -> Value:
        """Return the elements at `indices` (n integers), stacked: [n, *element]."""
        elements: Value = F.gather(self._elements, self._numbers("gather", indices, 1), axis=0)
        return elements

    def scatter(self, indices: Any, values: Any) -> TensorArray:
        """Return a new array in which the elements at `indices` are the slices of `values`.

        indices: n different integers; values: [n, *element].
        """
        places = self._numbers("scatter", indices, 1)
        count = places.shape[0] if places.shape is not None else dims.fresh()
        slices = self._fitting("scatter", as_value(values), (count,))
        return self._around(F.scatter_nd(self._elements, F.unsqueeze(places, i64(-1)), slices))

    def stack(self) -> Value:
        """Return all elements as one tensor [size, *element]."""
        elements: Value = self._elements
        return elements

    def unstack(self, values: Any) -> TensorArray:
        """Return a new array of the same size whose elements are the slices of `values` [size, *element]."""
        size = dims.fresh() if self._elements.shape is None else self._elements.shape[0]
        return self._around(self._fitting("unstack", as_value(values), (size,)))

    def concat(self) -> Value:
        """Return the elements, of rank 1 and above, concatenated along their first axis."""
        shape = self.element_shape
        if shape is None or not shape:
            raise TypeMismatch(f"TensorArray.concat: elements of {self._kind(())} have no axis to join along")
        sizes = F.shape(self._elements)
        joined = F.mul(sizes[0:1], sizes[1:2])
        whole: Value = F.reshape(self._elements, F.concat(joined, sizes[2:], axis=0), allowzero=True)
        return whole

    def _numbers(self, method: str, given: Any, rank: int) -> Value:
        value = as_value(given)
        if value.dtype not in (DType.INT64, DType.INT32) or value.rank not in (rank, None):
            wanted = "an integer scalar" if rank == 0 else "a vector of integers"
            raise TypeMismatch(f"TensorArray.{method}: an index must be {wanted}, not {value}")
        return value if value.dtype is DType.INT64 else F.cast(value, to=DType.INT64)

    def _fitting(self, method: str, value: Value, lead: tuple[Dim, ...]) -> Value:
        wanted, given = self._kind(lead), value.tensor
        same = wanted.shape is None or given.shape is None or (
            len(wanted.shape) == len(given.shape)
            and all(dims.may_equal(a, b) for a, b in zip(wanted.shape, given.shape, strict=True))
        )  # fmt: skip
        if not same or given.dtype is not wanted.dtype:
            raise TypeMismatch(f"TensorArray.{method}: the value must be {wanted}, not {value}")
        return value

    def _kind(self, lead: tuple[Dim, ...]) -> TensorType:
        shape = self.element_shape
        return TensorType(self.dtype, None if shape is None else (*lead, *shape))

    # --- as a tree -------------------------------------------------------------------------------

    def items(self) -> Sequence[Any]:
        return (self._elements,)

    def around(self, items: Sequence[Any]) -> TensorArray:
        (elements,) = items
        return self._around(elements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorArray) and self._elements is other._elements

    def __hash__(self) -> int:
        return hash((TensorArray, id(self._elements)))

    def __repr__(self) -> str:
        return f"TensorArray({self._elements})"
