"""Helpers of the layers: checks whose errors name the layer, and creation of weights and biases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.frontend.initializers import FanInUniform, fans
from graphkit.frontend.parameters import parameter
from graphkit.ir import context
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Value
from graphkit.signatures import typed

Layer = TypeVar("Layer", bound=Callable[..., Any])

# Option names of layers in other libraries -> names in graphkit. The first one that the layer has is suggested.
_ELSEWHERE = {
    "dilation_rate": ("dilation",),
    "embedding_dim": ("features",),
    "eps": ("epsilon",),
    "filters": ("channels",),
    "hidden_size": ("units",),
    "input_dim": ("rows", "in_features"),
    "input_size": ("in_features",),
    "kernel_initializer": ("init",),
    "kernel_size": ("kernel",),
    "num_embeddings": ("rows",),
    "num_filters": ("channels",),
    "out_channels": ("channels",),
    "out_features": ("units",),
    "output_dim": ("features", "units"),
    "output_padding": ("output_pad",),
    "p": ("ratio",),
    "padding": ("pad",),
    "pool_size": ("kernel",),
    "rate": ("ratio",),
    "strides": ("stride",),
    "use_bias": ("bias",),
}


def layer(function: Layer) -> Layer:
    """Decorate a layer function: the error for an unknown option suggests the right one, and errors name the layer."""
    code: Any = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    kind, usual = function.__name__, (function.__kwdefaults__ or {}).get("name", "")

    checked = typed(f"gk.nn.{kind}")(function)

    @functools.wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        for key in options:
            if key not in known:
                meant = next((name for name in _ELSEWHERE.get(key, ()) if name in known), key)
                raise UsageError(f"gk.nn.{function.__name__} has no option {key!r}{did_you_mean(meant, known)}")
        with context.made_by(f"layer {options.get('name', usual)!r} ({kind})"):
            return checked(*operands, **options)

    return call  # type: ignore[return-value]


def first(result: Any) -> Value:
    """Return the first output of a node, given its output or a tuple of outputs."""
    value: Value = result[0] if isinstance(result, tuple) else result
    return value


def named(layer: str, name: str) -> str:
    """Return the layer's name for messages: `layer 'fc' (linear)`, or `layer dropout` if it has none."""
    return f"layer {name!r} ({layer})" if name else f"layer {layer}"


def describe(layer: str, name: str, x: Value) -> str:
    """`layer 'block1/fc' (linear) of x: float32[N, ...]`, for messages."""
    return f"{named(layer, context.current().qualify(name) if name else name)} of {x.describe()}"


def known_size(layer: str, name: str, x: Value, axis: int, given: int | None, option: str) -> int:
    """Return the integer size of `axis`, else `given`. Raises UsageError if neither is known, or if they differ."""
    size: Dim | None = None
    if x.shape is not None:
        if not -len(x.shape) <= axis < len(x.shape):
            raise TypeMismatch(f"{describe(layer, name, x)}: the operand has no axis {axis}")
        size = x.shape[axis]
    if size is None or isinstance(size, DimExpr):
        if given is None:
            if size is None:
                fault, remedy = "the rank of the operand is not known", "declare the shape of the input"
            else:
                fault, remedy = f"axis {axis} has the symbolic size {size}", "declare this size as an integer"
            raise UsageError(
                f"{describe(layer, name, x)}: {fault}, but the shapes of the layer's parameters depend on the size of "
                f"axis {axis}: {remedy}, or pass {option}="
            )
        return given
    if given is not None and given != size:
        raise TypeMismatch(f"{describe(layer, name, x)}: {option}={given}, but axis {axis} has size {size}")
    return size


def float_operand(layer: str, name: str, x: Value) -> None:
    if not x.tensor.dtype.is_float:
        raise TypeMismatch(f"{describe(layer, name, x)}: a floating-point operand is expected; cast it")


def checked_rank(layer: str, name: str, x: Value, rank: int, axes: str) -> None:
    if x.rank is not None and x.rank != rank:
        raise TypeMismatch(
            f"{describe(layer, name, x)}: the operand must be {axes}, of rank {rank}; it has rank {x.rank}"
        )


def positive(layer: str, name: str, option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{named(layer, name)}: {option} must be a positive integer, not {value!r}")
    return value


def per_axis(
    layer: str, name: str, option: str, value: int | Sequence[int], count: int, lowest: int
) -> tuple[int, ...]:
    """Return one integer for each spatial axis, from one integer for all axes or from a sequence."""
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) != count or any(not isinstance(v, int) or isinstance(v, bool) or v < lowest for v in values):
        raise UsageError(
            f"{named(layer, name)}: {option} must be an integer or {count} integers, at least {lowest}, not {value!r}"
        )
    return values


def weight_and_bias(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    dtype: Any,
    init: Any,
    bias: bool | Value,
    bias_init: Any,
    weight: Value | None = None,
) -> tuple[Value, Value | None]:
    if weight is None:
        weight = parameter(f"{name}_weight", shape, FanInUniform() if init is None else init, dtype)
    elif weight.shape != shape:
        raise TypeMismatch(f"layer {name!r}: the weight must have shape {list(shape)}, not {weight}")
    if isinstance(bias, Value):
        return weight, bias
    if not bias:
        return weight, None
    start = FanInUniform(fans(shape)[0]) if bias_init is None else bias_init
    return weight, parameter(f"{name}_bias", (outputs,), start, dtype)
