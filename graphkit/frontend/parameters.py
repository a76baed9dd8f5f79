"""Graph inputs: data that a caller feeds, parameters that training changes, states that a run updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import initializers
from graphkit.ir import context, dims
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops.sequence.elements import with_own_sizes
from graphkit.signatures import typed


@typed("gk.input")
def input(name: str, shape: Sequence[Any] | Type | None, dtype: Any = "float32") -> Value:
    """Create an input of a graph, whose values are given when the graph runs.

    Args:
        name: Name of the input.
        shape: A list of sizes: integers, names ("N"), expressions of names ("2*N"), or None for a size that need not
            equal any other. Instead of the list: None if the rank is unknown, or a type, such as a `gk.SequenceType`,
            for an input that is not a tensor.
        dtype: Element type.

    Raises:
        UsageError: The name is empty, or a size is negative.
    """
    if not name:
        raise UsageError("an input needs a name")
    if isinstance(shape, Type):
        return Value(with_own_sizes(shape), context.current().qualify(name))
    if isinstance(shape, (str, int)):
        raise UsageError(f"input {name!r}: the shape must be a list of sizes, not {shape!r}")
    sizes = None if shape is None else [dims.fresh() if d is None else _size(f"input {name!r}", d) for d in shape]
    return Value(TensorType(dtype, sizes), context.current().qualify(name))


@typed("gk.parameter")
def parameter(
    name: str, shape: Iterable[Any], init: Any = "xavier_uniform", dtype: Any = "float32", *, trainable: bool = True
) -> Value:
    """Create a parameter: an array that belongs to the model, such as the weights of a layer.

    Args:
        name: Name of the parameter.
        shape: Sizes, all of them integers.
        init: Initialiser: a name such as "zeros", a number, or an object of `gk.init` (see `gk.init.of`).
        dtype: Element type.
        trainable: If False, training does not change the parameter.

    Raises:
        UsageError: The name is empty, a size is not an integer, or the initialiser is unknown.
    """
    return _stored("parameter", name, shape, init, dtype, {} if trainable else {"trainable": False})


@typed("gk.nn.state")
def state(name: str, shape: Iterable[Any], init: Any = "zeros", dtype: Any = "float32") -> Value:
    """Create an array that belongs to the model and that runs may overwrite, such as a running mean.

    It has no gradient.

    Args:
        name: Name of the array.
        shape: Sizes, all of them integers.
        init: Initialiser: a name such as "zeros", a number, or an object of `gk.init` (see `gk.init.of`).
        dtype: Element type.

    Raises:
        UsageError: The name is empty, a size is not an integer, or the initialiser is unknown.
    """
    return _stored("state", name, shape, init, dtype, {})


def _stored(role: str, name: str, shape: Iterable[Any], init: Any, dtype: Any, attrs: dict[str, Any]) -> Value:
    if not name:
        raise UsageError(f"a {role} needs a name")
    label = f"{role} {name!r}"
    sizes = [_size(label, d) for d in shape]
    unknown = [d for d in sizes if isinstance(d, DimExpr)]
    if unknown:
        raise UsageError(f"{label}: its shape must be integers, and {unknown[0]} is not known")
    scope = context.current()
    fields = {**scope.attrs, **attrs, "init": initializers.of(init).to_dict()}
    return Value(TensorType(dtype, sizes), scope.qualify(name), role=role, attrs=fields)


def _size(label: str, given: Any) -> dims.Dim:
    if not isinstance(given, (int, np.integer, str, DimExpr)) or isinstance(given, bool):
        raise UsageError(f"{label}: a size must be an integer or a name, not {given!r}")
    size = dims.parse(int(given) if isinstance(given, np.integer) else given)
    if not isinstance(size, DimExpr) and size < 0:
        raise UsageError(f"{label}: a size cannot be negative: {given!r}")
    return size
