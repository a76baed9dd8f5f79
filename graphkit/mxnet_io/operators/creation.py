"""Operators that make tensors: zeros, ones, ranges."""

from __future__ import annotations

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, axis_of, converter, require_elements, scalar, sizes_of
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


@converter("_zeros", "_ones", "_full", "_npi_zeros", "_npi_ones", "_npi_full", "_zeros_without_dtype")
def filled(call: Call) -> Value:
    """A constant. A size 0 in `shape`, which MXNet infers from the readers, becomes 1, which is broadcast there."""
    attributes = call.attributes
    attributes.ignore("ctx")
    shape = [size or 1 for size in attributes.integers("shape")]
    dtype = attributes.dtype("dtype", "float32")
    number = attributes.number("value", 0.0) if call.op.endswith("full") else float(call.op.endswith("ones"))
    require_elements(*shape)
    return constant(np.full(shape, number, dtype.numpy))


@converter("_arange", "_npi_arange")
def arange(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("ctx")
    if attributes.flag("infer_range", False):
        raise UnsupportedError("infer_range=True")
    start, stop = attributes.number("start", 0.0), attributes.number("stop", float("inf"))
    if stop == float("inf"):
        start, stop = 0.0, start
    step, repeat = attributes.number("step", 1.0), attributes.integer("repeat", 1)
    if step == 0 or repeat < 0:
        raise InvalidModel(f"step {step:g} and repeat {repeat}")
    require_elements((stop - start) / step, repeat)
    repeated = np.repeat(np.arange(start, stop, step), repeat)
    return constant(repeated.astype(attributes.dtype("dtype", "float32").numpy))


@converter("_linspace", "_npi_linspace")
def linspace(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("ctx", "infer_range", "repeat", "step")
    start, stop = attributes.number("start", 0.0), attributes.number("stop", 0.0)
    count = attributes.integer("num", 50)
    require_elements(count)
    numbers = np.linspace(start, stop, count, endpoint=attributes.flag("endpoint", True))
    return constant(numbers.astype(attributes.dtype("dtype", "float32").numpy))


@converter("_eye", "_npi_eye")
def eye(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("ctx")
    rows = attributes.integer("N", 1)
    columns = attributes.integer("M", 0) or rows
    require_elements(rows, columns)
    return constant(np.eye(rows, columns, attributes.integer("k", 0), attributes.dtype("dtype", "float32").numpy))


@converter("_contrib_arange_like", "_npx_arange_like")
def arange_like(call: Call) -> Value:
    """start, start + step, ...: as many as the operand has along an axis; without an axis, in the operand's shape.

    Each number stands `repeat` times.
    """
    attributes = call.attributes
    attributes.ignore("ctx")
    start, step = attributes.number("start", 0.0), attributes.number("step", 1.0)
    repeat = attributes.integer("repeat", 1)
    x = call.x
    axis = attributes.optional_integer("axis")
    count = F.size(x) if axis is None else F.squeeze(sizes_of(x, axis_of(x, axis)), i64(0))
    steps = F.range(np.int64(0), count, np.int64(1))
    steps = F.cast(steps if repeat == 1 else F.div(steps, np.int64(repeat)), to=x.dtype)
    line: Value = F.add(F.mul(steps, scalar(step, x)), scalar(start, x))
    return F.reshape(line, F.shape(x)) if axis is None else line


@converter("_npi_full_like")
def full_like(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("ctx")
    x = call.x
    dtype = attributes.dtype("dtype", x.dtype.value)
    number = np.full(1, attributes.number("fill_value", 0.0), dtype.numpy)
    result: Value = F.constant_of_shape(F.shape(x), value=number)
    return result


@converter("_npi_identity")
def identity(call: Call) -> Value:
    """The identity matrix; `shape` has its two sizes."""
    call.attributes.ignore("ctx")
    shape, dtype = call.attributes.integers("shape"), call.attributes.dtype("dtype", "float32")
    return constant(np.eye(shape[0], shape[-1], dtype=dtype.numpy))


@converter("_npi_indices")
def indices(call: Call) -> Value:
    """The position of each element along each axis: [rank, *dimensions]."""
    call.attributes.ignore("ctx")
    dtype = call.attributes.dtype("dtype", "int32")
    return constant(np.indices(call.attributes.integers("dimensions")).astype(dtype.numpy))


@converter("_npi_logspace")
def logspace(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("ctx")
    start, stop = attributes.number("start", 0.0), attributes.number("stop", 0.0)
    count, base = attributes.integer("num", 50), attributes.number("base", 10.0)
    numbers = np.logspace(start, stop, count, endpoint=attributes.flag("endpoint", True), base=base)
    return constant(numbers.astype(attributes.dtype("dtype", "float32").numpy))


@converter("_npi_hanning", "_npi_hamming", "_npi_blackman")
def window(call: Call) -> Value:
    """Numpy's window of M points."""
    call.attributes.ignore("ctx")
    made = getattr(np, call.op.removeprefix("_npi_"))(call.attributes.integer("M", 1))
    return constant(made.astype(call.attributes.dtype("dtype", "float32").numpy))
