"""Losses with the gradients of MXNet's output operators, for models that were loaded from MXNet.

An output operator of MXNet determines a gradient, not a loss. Each loss here has this gradient, divided by the number
of samples as in `Module.fit`. Source: softmax_output-inl.h, regression_output-inl.h, svm_output-inl.h, make_loss-inl.h
of MXNet 1.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.dims import fresh, symbol
from graphkit.ir.graph import Graph, Value
from graphkit.ir.origin import titled
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.importer import build_expression
from graphkit.mxnet_io.output_heads import WITHOUT_LABEL, Head, from_meta
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.train.named_losses import Loss
from graphkit.train.programs.weights import Term

_ACTIVATIONS = {"SoftmaxOutput": "Softmax", "LogisticRegressionOutput": "Sigmoid"}
_MOVES = ("Reshape", "Flatten", "Identity", "Cast")
_NO_HEAD = Head("", "", {})
_Rule: TypeAlias = Callable[[Attributes, Value, Value], Value]


def losses_of(net: Model) -> dict[str, Loss]:
    found: dict[str, Loss] = {}
    outputs = dict(zip(net.graph.output_names, net.graph.outputs, strict=True))
    for head in from_meta(net.meta, titled(net.graph, "model")):
        if head.problem:
            where = f"output {head.output!r} ({head.operator})" if head.output else head.operator
            raise UsageError(
                f"{titled(net.graph, 'model')}: {where}: {head.problem}. Give a loss: gk.Trainer(net, loss=...), --loss"
            )
        if head.output in outputs and _operand(head, outputs[head.output]) is not None:
            try:
                found[head.output] = _loss(head, outputs[head.output].tensor)
            except InvalidModel as error:
                where = f"output {head.output!r} ({head.operator})"
                raise InvalidModel(f"{titled(net.graph, 'model')}: {where}: {error}") from None
    return found


def _kind(head: Head) -> str:
    """Return the name of the operator: "SoftmaxOutput" also for "Softmax", and without the prefix "_sparse_"."""
    name = head.operator.removeprefix("_sparse_")
    return "SoftmaxOutput" if name == "Softmax" else name


def _operand(head: Head, output: Value) -> Value | None:
    wanted, value = _ACTIVATIONS.get(_kind(head)), output
    if wanted is None:
        return output
    while (node := value.node) is not None and node.op.name in _MOVES:
        value = node.operands[0]
    return node.operands[0] if node is not None and node.op.name == wanted else None


@dataclass(frozen=True, repr=False)
class HeadLoss(Loss):
    head: Head = _NO_HEAD

    @property
    def ignore_index(self) -> int | None:
        attributes = Attributes(self.head.attributes)
        if _kind(self.head) != "SoftmaxOutput" or not attributes.flag("use_ignore", False):
            return None
        return _ignored(attributes)

    def divisor(self, target: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return ("samples",)

    def largest_target(self, output: TensorType) -> int | None:
        if not self.classes or output.shape is None:
            return None
        count = output.shape[_class_axis(Attributes(self.head.attributes), len(output.shape))]
        return count - 1 if isinstance(count, int) else None

    def term(self, graph: Graph, output: Value, target: Value, sample_weight: Value | None = None) -> Term:
        if sample_weight is not None:
            raise UsageError(
                f"sample_weight= (--weight-column): MXNet's {self.head.operator} has no sample weights; give a loss: "
                "loss=, --loss"
            )
        x = _operand(self.head, output)
        assert x is not None, "checked by losses_of"
        if self.head.value:
            target = graph.find(self.head.value)
        elif self.head.expression is not None:
            target = build_expression(self.head.expression, target, f"the label of {self.head.output!r}")
        wide = F.cast(x, to=x.dtype if x.dtype is DType.FLOAT64 else DType.FLOAT32)
        total = _RULES[_kind(self.head)](Attributes(self.head.attributes), wide, target)
        return Term(F.div(total, F.cast(_samples(graph), to=total.dtype)), None)


def _ignored(attributes: Attributes) -> int:
    return attributes.integer("ignore_label", -1)


def _samples(graph: Graph) -> Value:
    """Return the batch size of MXNet's Module: axis 0 of the input `data`, or of the first input."""
    inputs = {graph.name_of(v): v for v in graph.inputs if v.role == "data"}
    first = inputs["data"] if "data" in inputs else next(iter(inputs.values()))
    size: Value = F.gather(F.shape(first), np.int64(0))
    return size


def _loss(head: Head, output: TensorType) -> HeadLoss:
    attributes, kind = Attributes(head.attributes), _kind(head)
    if kind == "SoftmaxOutput":
        # Raises an error if `ignore_label` is not an integer.
        _ignored(attributes)
    shape = _label_shape(head, attributes, kind, output)
    by_class = kind in ("SoftmaxOutput", "SVMOutput") and not _are_probabilities(head, output)
    dtype = DType.INT64 if by_class else output.dtype
    name = head.operator
    if kind == "SoftmaxOutput" and (head.expression is not None or attributes.flag("multi_output", False)):
        name += " of several positions"
    return HeadLoss(
        name,
        _no_mean,
        lambda _: TensorType(dtype, shape),
        classes=by_class and head.expression is None,
        per_sample=True,
        options=head.attributes,
        target=head.label,
        has_target=kind not in WITHOUT_LABEL and not head.value,
        head=head,
    )


def _no_mean(output: Value, target: Value) -> Value:
    raise UsageError("the loss of an output operator of MXNet belongs to its model: pass it as loss={output: loss}")


def _are_probabilities(head: Head, output: TensorType) -> bool:
    return _kind(head) == "SoftmaxOutput" and head.shape is not None and len(head.shape) == output.rank


def _class_axis(attributes: Attributes, rank: int) -> int:
    return 1 if attributes.flag("multi_output", False) else rank - 1


def _label_shape(head: Head, attributes: Attributes, kind: str, output: TensorType) -> tuple[Any, ...] | None:
    if head.shape is not None:
        return tuple(fresh() if d is None else symbol(d) if isinstance(d, str) else d for d in head.shape)
    if head.expression is not None:
        return (symbol("N"), fresh())
    if output.shape is None or kind not in ("SoftmaxOutput", "SVMOutput"):
        return output.shape
    axis = _class_axis(attributes, len(output.shape))
    return tuple(size for i, size in enumerate(output.shape) if i != axis)


# --- the rules --------------------------------------------------------------------------------------


def _sum(x: Value) -> Value:
    total: Value = F.reduce_sum(x, keepdims=False)
    return total


def _scaled(attributes: Attributes, total: Value) -> Value:
    result: Value = F.mul(total, scalar_like(attributes.number("grad_scale", 1.0), total))
    return result


def _at_least_one(count: Value, like: Value) -> Value:
    result: Value = F.max(F.cast(count, to=like.dtype), scalar_like(1.0, like))
    return result


def _softmax(attributes: Attributes, x: Value, label: Value) -> Value:
    """Return the cross entropy, summed over samples and positions.

    For class numbers, the sum is divided by the number of labels other than `ignore_label` (normalization="valid"), or
    by `_divisors`.
    """
    multi, alpha = attributes.flag("multi_output", False), attributes.number("smooth_alpha", 0.0)
    rank = x.rank
    if rank is None or (rank != 2 and not multi and not attributes.flag("preserve_shape", False)):
        raise UsageError(
            f"SoftmaxOutput of {x.tensor}: without multi_output or preserve_shape, only operands with 2 axes can be "
            "trained; give a loss: loss=, --loss"
        )
    axis = _class_axis(attributes, rank)
    classes = x.tensor.known_shape[axis]
    if not isinstance(classes, int):
        raise UsageError(f"SoftmaxOutput needs a fixed number of classes, not {x.tensor}")
    if label.rank == rank:
        # MXNet's gradient is (p - label) * grad_scale, even if the labels do not add up to 1. Normalization, smoothing
        # and ignored labels have no effect here.
        each = F.reduce_log_sum_exp(x, np.array([axis], np.int64), keepdims=False)
        return _scaled(attributes, F.sub(_sum(each), _sum(F.mul(x, F.cast(label, to=x.dtype)))))
    rows = F.transpose(x, perm=[0, *range(2, rank), 1]) if multi and rank > 2 else x
    logits = F.reshape(rows, np.array([-1, classes], np.int64))
    target = F.reshape(F.cast(label, to="int64"), np.array([-1], np.int64))
    ignored = _ignored(attributes)
    drops = attributes.flag("use_ignore", False)
    each, log_p = F.softmax_cross_entropy_loss(
        logits, target, None, reduction="none", ignore_index=ignored if drops else None
    )
    kept = F.not_(F.equal(target, np.int64(ignored)))
    if alpha and not multi:
        other = alpha / (classes - 1) if classes > 1 else 0.0
        spread = F.neg(F.reduce_sum(log_p, np.array([1]), keepdims=False))
        spread = F.where(kept, spread, scalar_like(0.0, spread)) if drops else spread
        each = F.add(F.mul(each, scalar_like(1.0 - alpha - other, each)), F.mul(spread, scalar_like(other, spread)))
    total = _scaled(attributes, _sum(each))
    if attributes.choice("normalization", "null", "batch", "valid") == "valid":
        return F.div(total, _at_least_one(F.reduce_sum(F.cast(kept, to="int64"), keepdims=False), total))
    divisors = _divisors(attributes, x, target, multi)
    for divisor in divisors:
        total = F.div(total, F.cast(divisor, to=total.dtype))
    return total


def _divisors(attributes: Attributes, x: Value, target: Value, multi: bool) -> list[Value]:
    found = []
    sizes = F.shape(x)
    if multi:
        found.append(F.reduce_prod(F.slice(sizes, np.array([2]), np.array([x.rank])), keepdims=False))
    if attributes.choice("normalization", "null", "batch", "valid") == "batch":
        found.append(F.gather(sizes, np.int64(0)) if multi else F.size(target))
    return found


def _per_output(attributes: Attributes, total: Value, label: Value) -> Value:
    samples = F.gather(F.shape(label), np.int64(0))
    count = F.div(F.size(label), F.max(samples, np.int64(1)))
    return F.div(_scaled(attributes, total), _at_least_one(count, total))


def _difference(x: Value, label: Value) -> Value:
    result: Value = F.sub(x, F.reshape(F.cast(label, to=x.dtype), F.shape(x)))
    return result


def _linear(attributes: Attributes, x: Value, label: Value) -> Value:
    error = _difference(x, label)
    return _per_output(attributes, F.mul(_sum(F.mul(error, error)), scalar_like(0.5, error)), label)


def _absolute(attributes: Attributes, x: Value, label: Value) -> Value:
    """Absolute error. Its gradient at 0 is -1, as in MXNet."""
    error = _difference(x, label)
    sign = F.where(F.greater(error, scalar_like(0.0, error)), scalar_like(1.0, error), scalar_like(-1.0, error))
    return _per_output(attributes, _sum(F.mul(error, F.stop_gradient(sign))), label)


def _logistic(attributes: Attributes, x: Value, label: Value) -> Value:
    """Binary cross entropy of logits, whose gradient is sigmoid(x) - label."""
    wanted = F.reshape(F.cast(label, to=x.dtype), F.shape(x))
    return _per_output(attributes, _sum(F.sub(F.softplus(x), F.mul(x, wanted))), label)


def _svm(attributes: Attributes, x: Value, label: Value) -> Value:
    """Hinge loss of each class against the others, squared unless use_linear is set."""
    classes = x.tensor.known_shape[-1]
    if x.rank != 2 or not isinstance(classes, int):
        raise UsageError(f"SVMOutput needs an operand with 2 axes and a fixed number of classes, not {x.tensor}")
    own = F.equal(F.unsqueeze(F.cast(label, to="int64"), np.array([1])), np.arange(classes, dtype=np.int64)[None])
    side = F.where(own, scalar_like(1.0, x), scalar_like(-1.0, x))
    lack = F.relu(F.sub(scalar_like(attributes.number("margin", 1.0), x), F.mul(side, x)))
    each = lack if attributes.flag("use_linear", False) else F.mul(lack, lack)
    total = _sum(each)
    return F.mul(total, scalar_like(attributes.number("regularization_coefficient", 1.0), total))


def _make_loss(attributes: Attributes, x: Value, label: Value) -> Value:
    total = _scaled(attributes, _sum(x))
    normalization = attributes.choice("normalization", "null", "batch", "valid")
    if normalization == "batch":
        return F.div(total, F.cast(F.gather(F.shape(x), np.int64(0)), to=total.dtype))
    if normalization == "valid":
        counted = F.greater(x, scalar_like(attributes.number("valid_thresh", 0.0), x))
        return F.div(total, _at_least_one(F.reduce_sum(F.cast(counted, to="int64"), keepdims=False), total))
    return total


_RULES: dict[str, _Rule] = {
    "SoftmaxOutput": _softmax,
    "LinearRegressionOutput": _linear,
    "MAERegressionOutput": _absolute,
    "LogisticRegressionOutput": _logistic,
    "SVMOutput": _svm,
    "MakeLoss": _make_loss,
    "make_loss": _make_loss,
}
