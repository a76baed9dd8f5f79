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
    """Create a data input that callers feed: a tensor, or a value of the type given instead of a shape.

    `shape`: integers, names ("N"), expressions over names ("2*N"), None for a size that equals no other. If the shape
    is None, the rank is unknown. Raises UsageError for an empty name or a negative size.
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
    """Create a parameter of a static shape.

    `init` is anything that gk.init.of takes. With trainable=False, optimizers do not change the parameter. Raises
    UsageError for a shape that is not static or an unknown initialiser.
    """
    return _stored("parameter", name, shape, init, dtype, {} if trainable else {"trainable": False})


@typed("gk.nn.state")
def state(name: str, shape: Iterable[Any], init: Any = "zeros", dtype: Any = "float32") -> Value:
    """Create a stored value that runs update and that has no gradient, such as running statistics."""
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
