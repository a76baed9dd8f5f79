"""Softmax and the output operators. In inference an output operator ignores its label, so the label is no input."""

from __future__ import annotations

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, axis_of, converter, flattened, rank_of, scalar, sizes_of
from graphkit.mxnet_io.operators.sequence import positions_below
from graphkit.ops import F
from graphkit.ops.axes import reshape_like

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


@converter("softmax_cross_entropy")
def softmax_cross_entropy(call: Call) -> Value:
    """The sum over the batch of -log softmax(x)[label], of shape [1]."""
    losses = F.softmax_cross_entropy_loss(call[0], F.cast(call[1], to="int64"), reduction="sum")[0]
    result: Value = F.reshape(losses, sizes_of(F.unsqueeze(losses, [0]), 0))
    return result
