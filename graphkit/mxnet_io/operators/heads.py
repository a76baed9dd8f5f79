"""Softmax and the output operators. In inference, an output operator ignores its label: the label is not an input."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.frontend.alignment import log_likelihood
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    as_indices,
    axis_of,
    converter,
    flattened,
    rank_of,
    scalar,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.mxnet_io.operators.sequence import positions_below
from graphkit.ops import F
from graphkit.ops.axes import i64, reshape_like

_OF_TRAINING = (
    "grad_scale", "ignore_label", "use_ignore", "normalization", "out_grad", "smooth_alpha", "multi_output",
    "preserve_shape", "margin", "regularization_coefficient", "use_linear", "valid_thresh",
)  # fmt: skip


@converter("SoftmaxOutput", "Softmax")
def softmax_output(call: Call) -> Value:
    """Over axis 1 with multi_output, over the last axis with preserve_shape, else over all axes but the first."""
    attributes = call.attributes
    x = call.x
    if attributes.flag("multi_output", False):
        result: Value = F.softmax(x, axis=1, name=call.name)
    elif attributes.flag("preserve_shape", False) or x.rank == 2:
        result = F.softmax(x, axis=-1, name=call.name)
    else:
        result = reshape_like(F.softmax(flattened(x), axis=-1, name=call.name), x)
    attributes.ignore(*_OF_TRAINING)
    return result


@converter("SoftmaxActivation")
def softmax_activation(call: Call) -> Value:
    """Over the last axis, or over axis 1 in mode channel."""
    mode = call.attributes.choice("mode", "instance", "channel")
    result: Value = F.softmax(call.x, axis=1 if mode == "channel" else -1, name=call.name)
    return result


@converter("softmax", "_npx_softmax")
def softmax(call: Call) -> Value:
    """Softmax of x / temperature. With use_length, positions from a sequence's length on get probability 0."""
    x, axis = _scaled(call, call.x)
    attributes = call.attributes
    if not attributes.flag("use_length", False):
        result: Value = F.softmax(x, axis=axis, name=call.name)
        return result
    axis, rank = axis_of(x, axis), rank_of(x)
    valid = positions_below(x, call[1], axis, [i for i in range(rank) if i != axis])
    least = scalar(float("-inf"), x)
    result = F.where(valid, F.softmax(F.where(valid, x, least), axis=axis), scalar(0.0, x))
    return result


@converter("log_softmax", "_npx_log_softmax")
def log_softmax(call: Call) -> Value:
    x, axis = _scaled(call, call.x)
    if call.attributes.flag("use_length", False):
        raise UnsupportedError("use_length: log_softmax over sequences of different lengths")
    result: Value = F.log_softmax(x, axis=axis, name=call.name)
    return result


@converter("softmin")
def softmin(call: Call) -> Value:
    x, axis = _scaled(call, call.x)
    if call.attributes.flag("use_length", False):
        raise UnsupportedError("use_length: softmin over sequences of different lengths")
    result: Value = F.softmax(F.neg(x), axis=axis, name=call.name)
    return result


def _scaled(call: Call, x: Value) -> tuple[Value, int]:
    """Return x, cast to dtype and divided by the temperature, and the axis."""
    attributes = call.attributes
    temperature = attributes.number("temperature", 1.0)
    dtype = attributes.dtype("dtype", x.dtype.value)
    x = x if dtype is x.dtype else F.cast(x, to=dtype)
    scaled: Value = x if temperature == 1.0 else F.div(x, scalar(temperature, x))
    return scaled, attributes.integer("axis", -1)


@converter("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput", "MakeLoss", "IdentityAttachKLSparseReg")
def unchanged(call: Call) -> Value:
    """The operand itself; only the gradients of these operators differ."""
    call.attributes.ignore(*_OF_TRAINING, "sparseness_target", "penalty", "momentum")
    result: Value = F.identity(call.x, name=call.name)
    return result


@converter("LogisticRegressionOutput")
def logistic(call: Call) -> Value:
    call.attributes.ignore(*_OF_TRAINING)
    result: Value = F.sigmoid(call.x, name=call.name)
    return result


@converter("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss")
def ctc_loss(call: Call) -> Value:
    """-log p(labels) of each sample. Labels end at the first padding: 0 if the blank is the first class, else -1.

    data: [T, N, classes]; label: [N, S].
    """
    attributes = call.attributes
    x, label = call.x, as_indices(call[1])
    classes = static_sizes(x, [2])[0]
    first = attributes.choice("blank_label", "first", "last") == "first"
    position = 2
    lengths = None
    if attributes.flag("use_data_lengths", False):
        lengths, position = as_indices(call[position]), position + 1
    places = F.sub(F.cum_sum(F.add(F.mul(label, np.int64(0)), np.int64(1)), np.int64(1)), np.int64(1))
    if attributes.flag("use_label_lengths", False):
        kept = F.less(places, F.unsqueeze(as_indices(call[position]), i64(1)))
    else:
        padding = F.equal(label, np.int64(0 if first else -1))
        kept = F.equal(F.cum_sum(F.cast(padding, to="int64"), np.int64(1)), np.int64(0))
    label = F.where(kept, label, np.int64(-1))
    wide = F.cast(x, to=x.dtype if x.dtype is DType.FLOAT64 else DType.FLOAT32)
    total, _ = log_likelihood(transpose(wide, 1, 0, 2), label, lengths, 0 if first else classes - 1)
    result: Value = F.cast(F.neg(total), to=x.dtype)
    return result


@converter("softmax_cross_entropy")
def softmax_cross_entropy(call: Call) -> Value:
    """The sum over the batch of -log softmax(x)[label], of shape [1]."""
    losses = F.softmax_cross_entropy_loss(call[0], F.cast(call[1], to="int64"), reduction="sum")[0]
    result: Value = F.reshape(losses, sizes_of(F.unsqueeze(losses, [0]), 0))
    return result
