"""The argument of converters: a node of an MXNet symbol with its operands as graph values. Table of converters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.dims import Dim, is_static
from graphkit.ir.graph import Value
from graphkit.ir.limits import require_memory
from graphkit.ir.types import DType
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.symbol import Symbol, SymbolNode
from graphkit.ops import F, constant
from graphkit.ops.axes import i64, normal_axis


class ShapeNeeded(UsageError):
    """A converter needs a size or a rank that depends on the shapes of the inputs, which the user can give."""


class Scope(Protocol):
    """The interface of the graph that a node belongs to."""

    def operand(self, node: SymbolNode, position: int) -> Value:
        """Return an operand of a node as a graph value."""

    def body(self, node: SymbolNode, position: int, operands: Sequence[Value]) -> list[Value]:
        """Build a subgraph of a node on these values of its variables, and return its outputs."""


class Call:
    """One node. Operands are made graph values when a converter asks for them; labels in inference never are.

    Attributes:
        name: Name of the node.
        op: MXNet's name of the operator.
        attributes: Its attributes.
        subgraphs: The bodies of a control flow operator.
    """

    def __init__(self, node: SymbolNode, scope: Scope) -> None:
        self._node = node
        self._scope = scope
        self.name = node.name
        self.op = node.op
        self.attributes = Attributes(node.attributes)
        self.subgraphs: tuple[Symbol, ...] = node.subgraphs

    def __len__(self) -> int:
        return len(self._node.inputs)

    def __getitem__(self, position: int) -> Value:
        if not 0 <= position < len(self._node.inputs):
            raise InvalidModel(f"it has {len(self._node.inputs)} inputs; input {max(position, 0)} is missing")
        return self._scope.operand(self._node, position)

    @property
    def x(self) -> Value:
        """The first operand."""
        return self[0]

    def operands(self) -> list[Value]:
        return [self[i] for i in range(len(self))]

    def given(self, position: int) -> Value | None:
        """Return an operand that may be absent."""
        return self[position] if position < len(self._node.inputs) else None

    def body(self, position: int, operands: Sequence[Value]) -> list[Value]:
        """Build a subgraph on these values of its variables, and return its outputs."""
        return self._scope.body(self._node, position, operands)


Converter: TypeAlias = Callable[[Call], Any]
# MXNet's name of an operator -> the function that makes graphkit's nodes for it.
CONVERTERS: dict[str, Converter] = {}


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Return a decorator that registers the converter of these operators: a function of a Call that returns the output,
    or a list of the outputs.
    """

    def register(function: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS, name
            CONVERTERS[name] = function
        return function

    return register


# Bytes of memory that an element of a constant takes while it is made.
_BYTES = 32


def require_elements(*sizes: float) -> None:
    """Raise OutOfMemory if a constant of these sizes, which attributes determine, exceeds the memory limit."""
    count = math.prod(abs(size) for size in sizes)
    require_memory(int(min(count * _BYTES, 2**62)), f"a constant of {count:.3g} elements")


# --- shared by converters ---------------------------------------------------------------------------


def rank_of(x: Value) -> int:
    """Return the rank of a tensor. Raises ShapeNeeded if it is unknown."""
    if x.rank is None:
        raise ShapeNeeded(f"the rank of {x} is unknown")
    return x.rank


def ranked_operands(call: Call, *positions: int) -> list[Value]:
    """Return the operands at these positions. Raises ShapeNeeded if the rank of one is unknown."""
    operands = [call[i] for i in positions]
    for x in operands:
        rank_of(x)
    return operands


def shape_of(x: Value) -> tuple[Dim, ...]:
    """Return the shape of a tensor of known rank; sizes may be symbolic."""
    rank_of(x)
    assert x.tensor.shape is not None
    return x.tensor.shape


def static_sizes(x: Value, axes: Sequence[int]) -> list[int]:
    """Return the sizes of axes. Raises ShapeNeeded if one depends on the inputs' shapes."""
    shape = shape_of(x)
    sizes = [size for axis in axes if is_static(size := shape[axis])]
    if len(sizes) < len(axes):
        unknown = ", ".join(str(shape[axis]) for axis in axes if not is_static(shape[axis]))
        raise ShapeNeeded(f"the operator needs fixed sizes, but {unknown} of {x} depends on the inputs")
    return sizes


def axis_of(x: Value, axis: int) -> int:
    """Return an axis counted from the front."""
    return normal_axis(axis, rank_of(x))


def scalar(number: float, like: Value) -> Value:
    """Return a constant of rank 0 with the element type of `like`."""
    return constant(np.asarray(number, like.dtype.numpy))


def along_axis(vector: Value, axis: int, rank: int) -> Value:
    """Reshape a vector so that it is broadcast along one axis of tensors of this rank."""
    shape = [1] * rank
    shape[axis] = -1
    return reshape(vector, shape)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """Reshape; one size may be -1, and 0 copies the size at its position."""
    result: Value = F.reshape(x, i64(*shape))
    return result


def transpose(x: Value, *axes: int) -> Value:
    """Permute the axes; return x itself if nothing moves."""
    result: Value = x if axes == tuple(range(len(axes))) else F.transpose(x, perm=axes)
    return result


def with_channels_second(x: Value, axis: int, build: Callable[[Value], Value]) -> Value:
    """Apply an operator that expects channels on axis 1 to a tensor whose channels are on another axis."""
    axis, rank = axis_of(x, axis), rank_of(x)
    if axis == 1:
        return build(x)
    there = [0, axis, *(i for i in range(1, rank) if i != axis)]
    return transpose(build(transpose(x, *there)), *np.argsort(there).tolist())


def flattened(x: Value) -> Value:
    """Return x as a matrix: all axes but the first are joined."""
    result: Value = x if x.rank == 2 else F.flatten(x, axis=1)
    return result


def sizes_of(x: Value, *axes: int) -> Value:
    """Return the sizes of axes as an int64 vector, a constant if they are known."""
    shape = shape_of(x)
    sizes = [shape[axis] for axis in axes]
    if all(map(is_static, sizes)):
        return constant(i64(*(int(size) for size in sizes if is_static(size))))
    result: Value = F.gather(F.shape(x), i64(*axes), axis=0)
    return result


def as_floats(x: Value, like: Value) -> Value:
    """Return a result of a comparison or a search as MXNet does, in the element type of `like`."""
    result: Value = F.cast(x, to=like.dtype)
    return result


def as_indices(x: Value) -> Value:
    """Return indices, which MXNet often holds in floating point, as int64."""
    result: Value = x if x.dtype is DType.INT64 else F.cast(x, to=DType.INT64)
    return result


def in_range(indices: Value, size: Value, mode: str) -> Value:
    """Bring indices into 0 to size - 1: clip them, or take them modulo the size (mode "wrap"). size: int64 [1]."""
    if mode == "wrap":
        result: Value = F.mod(indices, size)
    else:
        result = F.clip(indices, np.int64(0), F.sub(F.squeeze(size, i64(0)), np.int64(1)))
    return result
