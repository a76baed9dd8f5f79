"""Calls in the style of numpy, PyTorch and Keras: accepted if their meaning is clear, else an error shows the form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ops._op import INTEGER_LISTS, function_name

# Keywords in other libraries -> keywords in graphkit. The first one that the operator has is meant.
_KEYWORDS = {
    "a_max": ("max",),
    "a_min": ("min",),
    "axes": ("axis", "perm"),
    "axis": ("axes",),
    "dilation": ("dilations",),
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis", "perm"),
    "dtype": ("to",),
    "eps": ("epsilon",),
    "exponent": ("Y",),
    "groups": ("group",),
    "index": ("indices",),
    "keepdim": ("keepdims",),
    "kernel_size": ("kernel_shape",),
    "multiples": ("repeats",),
    "negative_slope": ("alpha",),
    "newshape": ("shape",),
    "p": ("ratio",),
    "padding": ("pads",),
    "permutation": ("perm",),
    "rate": ("ratio",),
    "reps": ("repeats",),
    "sections": ("num_outputs",),
    "size": ("shape", "sizes"),
    "start_dim": ("axis",),
    "stride": ("strides",),
}
# Keywords that mean the same: an operator that has one of them accepts the other.
_SAME = frozenset({"axis", "axes"})
# Attributes that users most likely mean by an extra positional argument, most likely first.
_LIKELY = ("axis", "perm", "to", "kernel_shape", "alpha", "k")
# Operators that combine tensors element by element -> functions that reduce one tensor along axes.
_COMBINES = {"Max": "reduce_max", "Mean": "reduce_mean", "Min": "reduce_min", "Sum": "reduce_sum"}

# Names of functions and methods in other libraries -> the graphkit expression, where x is the graph value.
_FUNCTIONS = {
    "T": "gk.transpose(x)",
    "all": "gk.reduce_min(x)",
    "amax": "gk.reduce_max(x)",
    "amin": "gk.reduce_min(x)",
    "any": "gk.reduce_max(x)",
    "argmax": "gk.arg_max(x)",
    "argmin": "gk.arg_min(x)",
    "astype": "gk.cast(x, to=...)",
    "broadcast_to": "gk.expand(x, shape)",
    "cat": "gk.concat([a, b], axis=...)",
    "clamp": "gk.clip(x, low, high)",
    "concatenate": "gk.concat([a, b], axis=...)",
    "conv2d": "gk.nn.conv2d(x, channels, kernel=...)",
    "Conv2d": "gk.nn.conv2d(x, channels, kernel=...)",
    "Conv2D": "gk.nn.conv2d(x, channels, kernel=...)",
    "compile": "net.compile(), of a gk.Model",
    "cumsum": "gk.cum_sum(x, axis)",
    "dense": "gk.nn.linear(x, units)",
    "Dense": "gk.nn.linear(x, units)",
    "detach": "gk.stop_gradient(x)",
    "dot": "gk.mat_mul(a, b), or a @ b",
    "double": "gk.cast(x, to='float64')",
    "evaluate": "gk.Trainer(net, loss, optimizer).evaluate(data)",
    "export": "net.save('net.onnx'), of a gk.Model",
    "fit": "gk.Trainer(net, loss, optimizer).fit(data)",
    "float": "gk.cast(x, to='float32')",
    "fully_connected": "gk.nn.linear(x, units)",
    "half": "gk.cast(x, to='float16')",
    "Input": "gk.input(name, shape)",
    "int": "gk.cast(x, to='int32')",
    "item": "gk.Model(x).run({...}), which computes it",
    "linear": "gk.nn.linear(x, units)",
    "Linear": "gk.nn.linear(x, units)",
    "long": "gk.cast(x, to='int64')",
    "masked_fill": "gk.where(mask, value, x)",
    "matmul": "gk.mat_mul(a, b), or a @ b",
    "max": "gk.reduce_max(x, axes=[...])",
    "maximum": "gk.max(a, b)",
    "mean": "gk.reduce_mean(x, axes=[...])",
    "min": "gk.reduce_min(x, axes=[...])",
    "minimum": "gk.min(a, b)",
    "mm": "gk.mat_mul(a, b), or a @ b",
    "multiply": "gk.mul(a, b), or a * b",
    "ndim": "x.rank",
    "no_grad": "gk.stop_gradient(x)",
    "numpy": "gk.Model(x).run({...}), which computes it",
    "ones": "gk.constant(np.ones(shape, np.float32))",
    "permute": "gk.transpose(x, perm=...)",
    "placeholder": "gk.input(name, shape)",
    "power": "gk.pow(a, b), or a ** b",
    "prod": "gk.reduce_prod(x, axes=[...])",
    "randn": "gk.random_normal(shape=...)",
    "repeat": "gk.tile(x, repeats)",
    "save": "net.save('net.json'), of a gk.Model",
    "size": "x.shape",
    "stack": "gk.concat([gk.unsqueeze(a, axis), gk.unsqueeze(b, axis)], axis=...)",
    "subtract": "gk.sub(a, b), or a - b",
    "sum": "gk.reduce_sum(x, axes=[...])",
    "swapaxes": "gk.transpose(x, perm=...)",
    "t": "gk.transpose(x)",
    "take": "gk.gather(x, indices, axis=...)",
    "tensor": "gk.constant(array)",
    "Tensor": "gk.constant(array)",
    "to": "gk.cast(x, to=...)",
    "topk": "gk.top_k(x, k)",
    "Variable": "gk.parameter(name, shape)",
    "view": "gk.reshape(x, shape)",
    "zeros": "gk.constant(np.zeros(shape, np.float32))",
}  # fmt: skip


def elsewhere(name: str) -> str | None:
    """Return the graphkit expression for a function or method `name` of other libraries; None if there is none."""
    return _FUNCTIONS.get(name)


def other_names() -> Iterable[str]:
    """Return the names that `elsewhere` knows."""
    return _FUNCTIONS


def as_list(cls: Any, values: Sequence[Any], position: int) -> Any:
    """Return the operand at `position`, which is one integer, as a list (for SplitToSequence: as a scalar array).

    Raises UsageError if the integer could mean something else.
    """
    name, given = cls.formals[position].name, values[position]
    if cls.name == "SplitToSequence":
        return np.array(given)  # a scalar: the size of every part
    if name == "split":
        raise UsageError(
            f"Split takes sizes: {form(cls, values[:position])[:-1]}, [a, b, ...]) for parts of these sizes, "
            f"{form(cls, values[:position], num_outputs=given)} for {given} equal ones"
        )
    if name == "repeats":
        raise UsageError(f"Tile takes one number per axis: {form(cls, [*values[:position], [given, given]])}")
    return [given]


def attributes(cls: Any, operands: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given keywords under the operator's names for them. Raises UsageError for unknown ones."""
    known = [*(f.name for f in cls.formals), *cls.fields]
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in known:
            found[key] = value
            continue
        meant = next((name for name in _KEYWORDS.get(key, ()) if name in known), None)
        if meant is None:
            raise UsageError(f"{cls.name} has no argument {key!r}{did_you_mean(key, known)}")
        one = _one_axis(value) if meant == "axis" else value
        if key in _SAME and meant in _SAME and one is not None:
            found[meant] = one
            continue
        right = form(cls, operands, **{**found, meant: value})
        raise UsageError(f"{cls.name} has no attribute {key!r}; did you mean {meant!r}? {right}")
    return found


def check_combined(cls: Any, operands: Sequence[Any]) -> None:
    """Raise UsageError for Sum, Mean, Max or Min of one graph value: the caller probably wants a reduction."""
    if cls.name in _COMBINES and not cls.domain and len(operands) == 1 and isinstance(operands[0], Value):
        name, x = cls.name.lower(), _shown(operands[0])
        raise UsageError(
            f"gk.{name} combines tensors element by element, gk.{name}([a, b]), but one is given; "
            f"to reduce it along axes, use gk.{_COMBINES[cls.name]}({x}, axes=[...])"
        )


def check_list(cls: Any, operands: Sequence[Any]) -> None:
    """Raise UsageError for a positional attribute after the operands of a variadic operator: concat([a, b], 1)."""
    if len(operands) < 2 or not isinstance(operands[-1], (int, float, str)) or "axis" not in cls.fields:
        return
    *tensors, last = operands
    first = tensors[0] if isinstance(tensors[0], (list, tuple)) else tensors
    raise UsageError(f"attributes of {cls.name} are keywords: {form(cls, [list(first)], axis=last)}")


def too_many(cls: Any, operands: Sequence[Any]) -> UsageError:
    """Return the error for too many positional arguments. It suggests a keyword, or a list of sizes."""
    count = len(cls.formals)
    extra = list(operands[count:])
    message = f"{cls.name} takes {count} operand{'' if count == 1 else 's'}, {len(operands)} given"
    if any(isinstance(v, Value) for v in extra):
        return UsageError(f"{message}: gk.{function_name(cls)}({', '.join(f.name for f in cls.formals)})")
    sizes = list(operands[count - 1 :]) if count and cls.formals[-1].name in (*INTEGER_LISTS, "repeats") else []
    if sizes and all(isinstance(size, int) for size in sizes):
        return UsageError(f"{message}: {form(cls, [*operands[: count - 1], sizes])}")
    fields = [*(f for f in _LIKELY if f in cls.fields), *(f for f in cls.fields if f not in _LIKELY)]
    if not fields:
        return UsageError(f"{message}, and it has no attributes")
    if cls.fields[fields[0]].kind == "tuple[int, ...]" and len(extra) > 1 and all(isinstance(v, int) for v in extra):
        extra = [extra]
    named = dict(zip(fields, extra, strict=False))
    return UsageError(f"{message}; attributes are keywords: {form(cls, operands[:count], **named)}")


def form(cls: Any, operands: Sequence[Any], **attrs: Any) -> str:
    """Return the text of a call, such as `gk.softmax(x, axis=1)`."""
    parts = [_shown(v) for v in operands]
    for key, value in attrs.items():
        per_axis = key in cls.fields and cls.fields[key].kind == "tuple[int, ...]" and isinstance(value, int)
        parts.append(f"{key}={_shown([value, value] if per_axis else value)}")
    return f"gk.{function_name(cls)}({', '.join(parts)})"


def _one_axis(value: Any) -> int | None:
    """Return the axis given by an integer or a list of one integer."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    return int(value) if isinstance(value, (int, np.integer)) else None


def _shown(value: Any) -> str:
    if isinstance(value, Value):
        name = value.name or (value.node.name if value.node is not None else "")
        return name if name.isidentifier() else "x"
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)
