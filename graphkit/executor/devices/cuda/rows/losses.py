"""Classification losses and their gradients.

Scores are read twice: for the sum of their exponentials, and for the results. The loss of each label is written to
scratch memory. Further launches sum the losses, in an order that depends only on the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.elementwise.fill import filled
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Fault,
    Input,
    Launch,
    Output,
    Scratch,
    launched,
)
from graphkit.executor.devices.cuda.movement.addressing import INDEX_TYPES
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.loss import ClassLoss

_TOTAL_BYTES = 16


@dataclass(frozen=True)
class _Loss:
    """The parameters of a node's kernels.

    Attributes:
        op: The operator.
        sizes: Shape of the scores; axis 1 is that of classes.
        stored: Type of the scores.
        own: Type of the weights and the loss.
        held: Type in which the kernels compute.
        labels_type: Type of the labels.
        scores, labels, weights: Positions of operands; weights is None if there are none.
    """

    op: ClassLoss
    sizes: tuple[int, ...]
    stored: DType
    own: DType
    held: DType
    labels_type: DType
    scores: int
    labels: int
    weights: int | None

    @property
    def count(self) -> int:
        """Number of labels."""
        return math.prod(self.sizes) // self.sizes[1]

    @property
    def loss_bytes(self) -> int:
        """Bytes of scratch memory for the losses of all labels, rounded up to an alignment."""
        return -(-self.count * self.held.itemsize // _TOTAL_BYTES) * _TOTAL_BYTES

    @property
    def groups(self) -> Groups:
        """Groups of scores, one for each label."""
        return Groups.over(self.sizes, [1], self.held)

    @property
    def of_labels(self) -> Groups:
        return Groups.over((self.count,), [0], self.held)

    @property
    def fault(self) -> str:
        classes, ignored = self.sizes[1], self.op.ignore_index
        return f"a label is outside [0, {classes}) and is not ignore_index ({ignored})"

    @property
    def weighs(self) -> bool:
        """Whether labels may have other weights than 1."""
        return self.weights is not None or self.op.ignore_index is not None

    # --- parts of kernels -------------------------------------------------------------------------------------------

    def given(self) -> list[tuple[str, Argument]]:
        """Return the parameters for the scores, and those that the lines of `label` need."""
        x = [(f"const {STORED[self.stored]}* x", Input(self.scores))]
        return [*x, *self.given_labels()]

    def given_labels(self) -> list[tuple[str, Argument]]:
        found: list[tuple[str, Argument]] = [(f"const {INDEX_TYPES[self.labels_type]}* labels", Input(self.labels))]
        if self.weights is not None:
            found.append((f"const {STORED[self.own]}* weights", Input(self.weights)))
        if self.op.ignore_index is not None:
            found.append(("gk_i64 ignored", np.int64(self.op.ignore_index)))
        return [*found, ("gk_i64 classes", np.int64(self.sizes[1])), ("unsigned* fault", Fault())]

    def label(self, at: str) -> list[str]:
        """Return lines that declare `label`, whether it `counts`, and its `weight`. at: expression of its index."""
        weight = "(A)1" if self.weights is None else "(A)gk_read(weights[label])"
        return [
            f"const gk_i64 label = labels[{at}];",
            f"bool counts = {'true' if self.op.ignore_index is None else 'label != ignored'};",
            "if (counts && (label < 0 || label >= classes)) {",
            "    *fault = 1;",
            "    counts = false;",
            "}",
            f"const A weight = counts ? {weight} : (A)0;",
        ]

    def total_weight(self, total: Argument, offset: int) -> tuple[tuple[Launch, ...], int]:
        """Return the launches that sum the weights of all labels, and the bytes of scratch memory from `offset` on."""
        work = Work(
            "total_weight",
            [(f"{STORED[self.held]}* total", total), *self.given_labels()],
            [Pass("gk_sums<A, 1>", 1, [*self.label("at"), "p0.s[0] += weight;"])],
            once=["*total = p0.s[0];"],
        )
        return self.of_labels.launches(work, offset), self.of_labels.scratch_bytes(work)

    def reduced(self, loss: Argument, each: Sequence[str], given: Sequence[tuple[str, Argument]]) -> Work:
        """Return the work that reduces the losses of labels.

        each: Lines that declare `one`, the loss of label number `at`; and `weight`, if the mean is weighted.
        """
        mean = self.op.reduction == "mean"
        weighs = mean and self.weighs
        lines = [*each, "p0.s[0] += one;", *(["p0.s[1] += weight;"] if weighs else [])]
        divided = " / p0.s[1]" if weighs else " / (A)count" if mean else ""
        parameters = [*given, (f"{STORED[self.own]}* loss", loss)]
        numbers = 2 if weighs else 1
        once = [f"gk_write(loss[0], p0.s[0]{divided});"]
        return Work("class_loss", parameters, [Pass(f"gk_sums<A, {numbers}>", numbers, lines)], once=once)

    def reduced_losses(self, loss: Argument, offset: int) -> tuple[tuple[Launch, ...], int]:
        """Return the launches that reduce the losses at the beginning of scratch memory, and the bytes that they need.

        offset: Where their own scratch memory begins.
        """
        given: list[tuple[str, Argument]] = [(f"const {STORED[self.held]}* losses", Scratch(0))]
        weighs = self.op.reduction == "mean" and self.weighs
        given += self.given_labels() if weighs else []
        work = self.reduced(loss, [*(self.label("at") if weighs else []), "const A one = losses[at];"], given)
        return self.of_labels.launches(work, offset), self.of_labels.scratch_bytes(work)


def _loss(node: Node, scores: int, labels: int, weights: int, own: DType | None = None) -> _Loss | None:
    """Return the parameters of a node's kernels; None for an empty operand, and for unsupported types.

    own: Type of weights and losses; default: that of the scores.
    """
    x, given = node.operands[scores], node.operands[labels]
    sizes, held = x.tensor.static_shape, float_type(x.dtype)
    if math.prod(sizes) == 0 or held is None or given.dtype not in INDEX_TYPES:
        return None
    position = weights if len(node.inputs) > weights and node.inputs[weights] is not None else None
    own = own or x.dtype
    return _Loss(operator(node, ClassLoss), sizes, x.dtype, own, held, given.dtype, scores, labels, position)


# --- forward ----------------------------------------------------------------------------------------


@launched("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(node: Node, context: KernelContext) -> CardKernel | None:
    found = _loss(node, 0, 1, 2)
    if found is None:
        return None
    inner = math.prod(found.sizes[2:])
    index = "const gk_u64 place = ((gk_u64)at / inner * (gk_u64)classes + (gk_u64)label) * inner + (gk_u64)at % inner;"
    lines = [
        *found.label("at"),
        "A one = 0;",
        "if (counts) {",
        f"    {index}",
        "    one = -gk_read(x[place]) * weight;",
        "}",
    ]
    given = [*found.given(), ("gk_u64 inner", np.uint64(inner))]
    if found.op.reduction == "none":
        given.append((f"{STORED[found.stored]}* loss", Output(0)))
        lines = [f"typedef {STORED[found.held]} A;", *lines, "gk_write(loss[at], one);"]
        places = Coordinates("i", 1, found.count + THREADS < 1 << 31)
        return CardKernel((for_each("class_loss", (found.count,), places, given, lines),), fault=found.fault)
    return found.of_labels.kernel(found.reduced(Output(0), lines, given), fault=found.fault)


@launched("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(node: Node, context: KernelContext) -> CardKernel | None:
    found = _loss(node, 0, 1, 2)
    if found is None:
        return None
    loss, log_prob = [*context.used_outputs, True, True][:2]
    given, each = found.given(), ["const A p = gk_read(x[at]) - p0.most - logarithm;"]
    if log_prob:
        given.append((f"{STORED[found.stored]}* log_prob", Output(1)))
        each.append("gk_write(log_prob[at], p);")
    return _of_rows(found, given, each, loss)


def _of_rows(
    found: _Loss,
    given: Sequence[tuple[str, Argument]],
    each: Sequence[str],
    loss: bool,
    before: tuple[Launch, ...] = (),
    offset: int = 0,
    inplace: Sequence[tuple[int, int]] = (),
    ahead: Sequence[str] = (),
) -> CardKernel:
    """Return the kernel over the scores of each label; then it reduces the losses, if `loss`.

    Args:
        found: The parameters.
        given: Parameters in C, with their arguments.
        each: Lines for each score. They declare its log-probability `p`.
        loss: Whether the loss is used.
        before: Launches that run first.
        offset: Bytes of scratch memory that they use, after the losses.
        inplace: Positions (operand, result) that may share memory.
        ahead: Further lines that run once for a label, before `each`.
    """
    ahead = ["const A logarithm = gk_log(p0.sum());", *found.label("g"), *ahead]
    single = found.op.reduction == "none"
    offset += 0 if single else found.loss_bytes
    given, each = list(given), list(each)
    if loss:
        kind = found.stored if single else found.held
        given.append((f"{STORED[kind]}* losses", Output(0) if single else Scratch(0)))
        # The thread that reads the label's score writes the loss, because the score may be overwritten.
        each += ["if (counts && (gk_i64)e == label) {", "    gk_write(losses[g], -p * weight);", "}"]
        ahead += ["if (!counts && live && lane == 0 && slice == 0) {", "    gk_write(losses[g], (A)0);", "}"]
    passes = [Pass("gk_exponentials<A>", 2, ["p0.take(gk_read(x[at]));"])]
    work = Work("softmax_cross_entropy", given, passes, each, ahead)
    launches, scratch = found.groups.launches(work, offset), found.groups.scratch_bytes(work)
    if loss and not single:
        more, wanted = found.reduced_losses(Output(0), offset)
        launches, scratch = launches + more, max(scratch, wanted)
    return CardKernel(before + launches, offset + scratch, inplace, found.fault)


# --- gradients --------------------------------------------------------------------------------------


def _scale(found: _Loss, dloss: str, offset: int) -> tuple[list[tuple[str, Argument]], str, tuple[Launch, ...], int]:
    """Return the factor of a label's gradient: parameters, expression, launches that must run before, scratch bytes.

    offset: Where the scratch memory of the launches begins. Its first bytes contain the total weight.
    """
    if found.op.reduction != "mean":
        return [], f"weight * {dloss}", (), 0
    if not found.weighs:
        return [("gk_u64 labelled", np.uint64(found.count))], f"{dloss} / (A)labelled", (), 0
    launches, scratch = found.total_weight(Scratch(offset), offset + _TOTAL_BYTES)
    total: list[tuple[str, Argument]] = [(f"const {STORED[found.held]}* total", Scratch(offset))]
    return total, f"weight * {dloss} / *total", launches, _TOTAL_BYTES + scratch


@launched("SoftmaxCrossEntropyGrad", DOMAIN)
def _softmax_cross_entropy_grad(node: Node, context: KernelContext) -> CardKernel | None:
    found = _loss(node, 1, 2, 3)
    if found is None:
        return None
    kind = STORED[found.stored]
    dloss = "gk_read(dloss[g])" if found.op.reduction == "none" else "gk_read(dloss[0])"
    total, scale, before, scratch = _scale(found, dloss, 0)
    given = [*found.given(), (f"const {kind}* dloss", Input(0)), (f"{kind}* dx", Output(0)), *total]
    work = Work(
        "softmax_cross_entropy_grad",
        given,
        [],
        ["const A hit = counts && (gk_i64)e == label ? (A)1 : (A)0;",
         "gk_write(dx[at], (gk_exp(gk_read(x[at])) - hit) * scale);"],
        [*found.label("g"), f"const A scale = {scale};"],
    )  # fmt: skip
    return CardKernel(before + found.groups.launches(work), scratch, ((1, 0),), found.fault)


@launched("SoftmaxCrossEntropyWithGrad", DOMAIN)
def _softmax_cross_entropy_with_grad(node: Node, context: KernelContext) -> CardKernel | None:
    own = node.outputs[0].dtype
    loss, dscores = [*context.used_outputs, True, True][:2]
    if shape(node.inputs[0])[0] == 0:
        mean = math.nan if operator(node, ClassLoss).reduction == "mean" else 0.0
        return CardKernel(filled(node.outputs[0], 0, np.array(mean, own.numpy)) if loss else ())
    found = _loss(node, 0, 1, 3, own)
    if found is None:
        return None
    given = found.given()
    each = ["const A p = gk_read(x[at]) - p0.most - logarithm;"]
    if not dscores:
        return _of_rows(found, given, each, loss)
    total, scale, before, scratch = _scale(found, "gk_read(dloss[0])", found.loss_bytes)
    given += [(f"const {STORED[own]}* dloss", Input(2)), (f"{STORED[node.outputs[1].dtype]}* dx", Output(1)), *total]
    each += [
        "const A hit = counts && (gk_i64)e == label ? (A)1 : (A)0;",
        "gk_write(dx[at], (gk_exp(p) - hit) * scale);",
    ]
    inplace = ((0, 1),) if node.outputs[1].dtype is found.stored else ()
    return _of_rows(found, given, each, loss, before, scratch, inplace, [f"const A scale = {scale};"])
