"""Writers of convolutions, products, pools, normalisations, softmax and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.writing import Entry, Writer, writes


def _shape(value: Value) -> tuple[Any, ...]:
    if value.tensor.shape is None:
        raise UnsupportedError(f"the rank of {value} is unknown")
    return value.tensor.shape


def _kernel(writer: Writer, weight: Value | None) -> tuple[int, ...]:
    if writer["kernel_shape"] is not None:
        return tuple(writer["kernel_shape"])
    assert weight is not None
    return tuple(int(size) for size in _shape(weight)[2:])


def _window(writer: Writer, kernel: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return stride, and the padding before and after each axis."""
    if writer["auto_pad"] not in ("NOTSET", "VALID"):
        raise UnsupportedError(f"auto_pad {writer['auto_pad']}: MXNet needs numbers")
    stride = tuple(writer["strides"] or (1,) * len(kernel))
    pads = tuple(writer["pads"] or (0,) * 2 * len(kernel)) if writer["auto_pad"] == "NOTSET" else (0,) * 2 * len(kernel)
    return {"kernel": kernel, "stride": stride}, pads


def _padded(writer: Writer, x: Entry, pads: tuple[int, ...], number: float = 0.0) -> tuple[Entry, tuple[int, ...]]:
    """Return x and the padding of the operator. Padding that is not symmetric becomes a node of its own."""
    axes = len(pads) // 2
    before, after = pads[:axes], pads[axes:]
    if before == after:
        return x, before
    if axes not in (2, 3):
        raise UnsupportedError(f"pads {pads}: MXNet pads both ends of an axis equally")
    widths = (0, 0, 0, 0, *(width for pair in zip(before, after, strict=True) for width in pair))
    padded = writer.add("Pad", [x], last=False, mode="constant", pad_width=widths, constant_value=number)
    return padded, (0,) * axes


@writes("Conv")
def conv(writer: Writer) -> Entry:
    weight = writer.value(1)
    kernel = _kernel(writer, weight)
    places, pads = _window(writer, kernel)
    x, pad = _padded(writer, writer.entry(0), pads)
    bias = writer.given(2)
    inputs = [x, writer.entry(1), *([] if bias is None else [writer.entry(2)])]
    return writer.add(
        "Convolution", inputs, **places, pad=pad, dilate=tuple(writer["dilations"] or (1,) * len(kernel)),
        num_filter=_shape(weight)[0], num_group=writer["group"], no_bias=bias is None,
    )  # fmt: skip


@writes("ConvTranspose")
def conv_transpose(writer: Writer) -> Entry:
    weight = writer.value(1)
    kernel = _kernel(writer, weight)
    places, pads = _window(writer, kernel)
    axes = len(kernel)
    if pads[:axes] != pads[axes:] or writer["output_shape"] is not None:
        raise UnsupportedError("MXNet needs equal pads at both ends, and no output_shape")
    bias = writer.given(2)
    inputs = [writer.entry(0), writer.entry(1), *([] if bias is None else [writer.entry(2)])]
    return writer.add(
        "Deconvolution", inputs, **places, pad=pads[:axes], dilate=tuple(writer["dilations"] or (1,) * axes),
        adj=tuple(writer["output_padding"] or (0,) * axes), num_filter=_shape(weight)[1] * writer["group"],
        num_group=writer["group"], no_bias=bias is None,
    )  # fmt: skip


@writes("MaxPool", "AveragePool")
def pool(writer: Writer) -> Entry:
    is_max = writer.node.op.name == "MaxPool"
    kernel = _kernel(writer, None)
    if any(d != 1 for d in writer["dilations"] or ()):
        raise UnsupportedError("dilations: MXNet has no pooling with dilation")
    places, pads = _window(writer, kernel)
    axes = len(kernel)
    surplus = tuple(after - before for before, after in zip(pads[:axes], pads[axes:], strict=True))
    rest = tuple(stride - 1 for stride in places["stride"])
    if writer["ceil_mode"]:
        _check_full(writer, kernel, places["stride"], pads)
    if writer["ceil_mode"] or (surplus == rest and any(rest) and (is_max or not writer["count_include_pad"])):
        # This much more padding at the end is what the convention full does.
        include = None if is_max else False
        return writer.add(
            "Pooling", [writer.entry(0)], **places, pad=pads[:axes], pool_type="max" if is_max else "avg",
            pooling_convention="full", count_include_pad=include,
        )  # fmt: skip
    if pads[:axes] != pads[axes:] and not (is_max or writer["count_include_pad"]):
        raise UnsupportedError(f"pads {pads}: MXNet pads both ends of an axis equally")
    x, pad = _padded(writer, writer.entry(0), pads, float(np.finfo(np.float32).min) if is_max else 0.0)
    include = None if is_max else writer["count_include_pad"]
    kind = "max" if is_max else "avg"
    return writer.add("Pooling", [x], **places, pad=pad, pool_type=kind, count_include_pad=include)


def _check_full(writer: Writer, kernel: tuple[int, ...], stride: tuple[int, ...], pads: tuple[int, ...]) -> None:
    """Raise UnsupportedError unless the convention full has the windows that ceil_mode has here."""
    axes = len(kernel)
    before, after = _shape(writer.value(0))[2:], _shape(writer.node.outputs[0])[2:]
    equal = pads[:axes] == pads[axes:] and all(map(is_static, before))
    if equal:
        padded = [size + 2 * pad - k for size, pad, k in zip(before, pads[:axes], kernel, strict=True)]
        equal = after == tuple(1 - (-rest // s) for rest, s in zip(padded, stride, strict=True))
    if not equal or (writer.node.op.name == "AveragePool" and writer["count_include_pad"]):
        raise UnsupportedError("ceil_mode: MXNet's convention full may have other windows; pass shapes of the inputs")


@writes("GlobalAveragePool", "GlobalMaxPool")
def global_pool(writer: Writer) -> Entry:
    axes = len(_shape(writer.value(0))) - 2
    kind = "max" if writer.node.op.name == "GlobalMaxPool" else "avg"
    return writer.add("Pooling", [writer.entry(0)], global_pool=True, kernel=(1,) * axes, pool_type=kind)


@writes("Gemm")
def gemm(writer: Writer) -> Entry:
    if writer["alpha"] != 1.0 or (writer["beta"] != 1.0 and writer.given(2) is not None):
        raise UnsupportedError("alpha and beta: MXNet's FullyConnected has none")
    bias = writer.given(2)
    weight = writer.value(1)
    if writer["transB"] and not writer["transA"] and (bias is None or bias.rank == 1) and is_static(_shape(weight)[0]):
        inputs = [writer.entry(0), writer.entry(1), *([] if bias is None else [writer.entry(2)])]
        units = _shape(weight)[0]
        return writer.add("FullyConnected", inputs, num_hidden=units, no_bias=bias is None, flatten=False)
    product = writer.add(
        "dot", [writer.entry(0), writer.entry(1)], last=bias is None, transpose_a=writer["transA"],
        transpose_b=writer["transB"],
    )  # fmt: skip
    return product if bias is None else writer.add("broadcast_add", [product, writer.entry(2)])


@writes("MatMul")
def mat_mul(writer: Writer) -> Entry:
    a, b = writer.value(0), writer.value(1)
    inputs = [writer.entry(0), writer.entry(1)]
    if b.rank == 2 and a.rank is not None:
        return writer.add("dot", inputs)
    if a.rank != b.rank or a.rank is None or a.rank < 3 or _shape(a)[:-2] != _shape(b)[:-2]:
        raise UnsupportedError(f"MXNet multiplies batches of matrices of equal shapes only, not {a} and {b}")
    return writer.add("batch_dot" if a.rank == 3 else "_linalg_gemm2", inputs)


@writes("BatchNormalization")
def batch_normalization(writer: Writer) -> Entry:
    """Running statistics are auxiliary states in MXNet, whatever their role is here."""
    if writer["training_mode"]:
        raise UnsupportedError("training_mode: MXNet chooses training or inference at run time")
    writing = writer.writing
    inputs = [writer.entry(i) for i in range(3)]
    for position, ending in ((3, "moving_mean"), (4, "moving_var")):
        value = writer.value(position)
        if value.is_input and value.role == "state":
            inputs.append(writing.entry(value))
        else:
            name = writing.names.take(f"{writer.name}_{ending}")
            inputs.append(writing.variable(name, writing.array(value), state=True))
    return writer.add(
        "BatchNorm", inputs, eps=writer["epsilon"], momentum=writer["momentum"], fix_gamma=False, axis=1
    )  # fmt: skip


@writes("LayerNormalization")
def layer_normalization(writer: Writer) -> Entry:
    x = writer.value(0)
    if writer["axis"] not in (-1, (x.rank or 0) - 1):
        raise UnsupportedError("MXNet normalises one axis")
    shift = writer.given(2)
    zeros = np.zeros(_shape(writer.value(1)), np.float32)
    offset = writer.writing.constant(zeros, f"{writer.name}_beta") if shift is None else writer.entry(2)
    return writer.add("LayerNorm", [writer.entry(0), writer.entry(1), offset], axis=-1, eps=writer["epsilon"])


@writes("InstanceNormalization")
def instance_normalization(writer: Writer) -> Entry:
    return writer.add("InstanceNorm", [writer.entry(i) for i in range(3)], eps=writer["epsilon"])


@writes("GroupNormalization")
def group_normalization(writer: Writer) -> Entry:
    """MXNet 1.9 has one scale and shift per group, so they are separate nodes."""
    x, groups = writer.value(0), writer["num_groups"]
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    fixed = [writer.writing.constant(array, f"{writer.name}_{n}") for n, array in (("ones", ones), ("zeros", zeros))]
    normal = writer.add("GroupNorm", [writer.entry(0), *fixed], last=False, num_groups=groups, eps=writer["epsilon"])
    column = (-1, *(1,) * (len(_shape(x)) - 2))
    scale, shift = (writer.add("Reshape", [writer.entry(i)], last=False, shape=column) for i in (1, 2))
    scaled = writer.add("broadcast_mul", [normal, scale], last=False)
    return writer.add("broadcast_add", [scaled, shift])


@writes("LRN")
def lrn(writer: Writer) -> Entry:
    return writer.add(
        "LRN", [writer.entry(0)], nsize=writer["size"], alpha=writer["alpha"], beta=writer["beta"],
        knorm=writer["bias"],
    )  # fmt: skip


@writes("Softmax", "LogSoftmax")
def softmax(writer: Writer) -> Entry:
    op = "softmax" if writer.node.op.name == "Softmax" else "log_softmax"
    return writer.add(op, [writer.entry(0)], axis=writer["axis"])


@writes("Dropout")
def dropout(writer: Writer) -> Entry:
    ratio = writer.array(1)
    return writer.add("Dropout", [writer.entry(0)], p=0.5 if ratio is None else float(ratio))


@writes("Gather")
def gather(writer: Writer) -> Entry:
    """Rows of a table of parameters are an Embedding."""
    table, axis, indices = writer.value(0), writer["axis"], writer.value(1)
    rows, *rest = _shape(table)
    if indices.rank == 0:
        place = int(writer.writing.array(indices))
        end = None if place == -1 else place + 1
        row = writer.add("slice_axis", [writer.entry(0)], last=False, axis=axis, begin=place, end=end)
        return writer.add("squeeze", [row], axis=axis)
    if writer.writing.is_fixed(table) and axis == 0 and len(rest) == 1:
        inputs = [writer.entry(1), writer.entry(0)]
        return writer.add("Embedding", inputs, input_dim=rows, output_dim=rest[0])
    return writer.add("take", [writer.entry(0), writer.entry(1)], axis=axis, mode="wrap")
