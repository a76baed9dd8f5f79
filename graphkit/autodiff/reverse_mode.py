"""Reverse-mode differentiation: from values to values, before any fusion, for any shapes.

The gradient graph consists of ordinary nodes, so that differentiating it again gives second-order gradients. The
gradients of a value that is read several times are added by one n-ary Sum, which the executor accumulates in place.
Gradient nodes join the group (`ctx_group`) of their forward node, so that they run on its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphkit.autodiff.control_flow import CONTROL_FLOW
from graphkit.autodiff.subgraphs import differentiable
from graphkit.autodiff.templates import Templates
from graphkit.collector import without_gc
from graphkit.errors import GraphkitError, MissingGradient, UsageError
from graphkit.ir import context, dims
from graphkit.ir.graph import Node, Value, next_serial, topological
from graphkit.ir.origin import brief, label
from graphkit.ir.types import OptionalType, TensorType
from graphkit.ops import F, Op, operator
from graphkit.ops.axes import zeros_like
from graphkit.passes.core.draws import is_undetermined
from graphkit.signatures import check_values, typed
from graphkit.text import quantity


@typed("gk.gradient")
@without_gc
def gradient(
    outputs: Sequence[Value],
    wrt: Sequence[Value],
    seeds: Sequence[Value] | None = None,
    *,
    allow_unused: bool = False,
    meta: Mapping[str, str] | None = None,
) -> list[Value]:
    """Return, for each value of `wrt`, the gradient of sum(seed * output) over all outputs.

    Args:
        outputs: Graph values: float tensors, or sequences and optionals of float tensors.
        wrt: Graph values of the same kinds: inputs, parameters or intermediate values. Each gradient has the type of
            its value.
        seeds: One value per output, of the type of the output. By default they are 1; only tensors have this default.
        allow_unused: Return zeros for a value of `wrt` that gets no gradient from any output.
        meta: Metadata to attach to the new nodes. Nodes into which a composite operator is expanded do not get it.

    Raises:
        MissingGradient: Operators have no gradient rule; the message lists all of them.
        UsageError: A value is not a float; seeds are missing or too many; or a value of `wrt` gets no gradient, because
            no output depends on it, or because every path stops at an operator such as Floor.
    """
    check_values("gk.gradient: outputs, wrt and seeds", (*outputs, *wrt, *(seeds or ())))
    for value in (*outputs, *wrt):
        if not differentiable(value):
            raise UsageError(f"{value} is not a float tensor: it has no gradient")
    if seeds is None:
        if other := [str(y) for y in outputs if not isinstance(y.type, TensorType)]:
            raise UsageError(f"gradients of {', '.join(other)} need seeds=: only tensors have the default, ones")
        with context.detached():
            seeds = [_ones_like(y) for y in outputs]
    if len(seeds) != len(outputs):
        raise UsageError(f"{quantity(len(outputs), 'output')} but {quantity(len(seeds), 'seed')}")
    with context.entered(context.Scope(attrs=meta or {}, maker="gradient")):
        found = _Sweep(outputs, seeds, wrt).run()
        unused = [v for v, g in zip(wrt, found, strict=True) if g is None]
        if unused and not allow_unused:
            raise UsageError(_without_gradient(outputs, unused))
        return [zeros_like(v) if g is None else g for v, g in zip(wrt, found, strict=True)]


def _without_gradient(outputs: Sequence[Value], unused: Sequence[Value]) -> str:
    """The reasons why `unused` values get no gradient from the outputs, for the message."""
    through = reached(outputs)
    apart, stopped = ([str(v) for v in unused if (v in through) == found] for found in (False, True))
    reasons = [f"the outputs do not depend on {', '.join(apart)}"] if apart else []
    if stopped:
        reasons.append(
            f"no gradient reaches {', '.join(stopped)}: each path has an operator whose gradient is zero, such as "
            "Floor or StopGradient"
        )
    return "; ".join([*reasons, "with allow_unused=True you get zeros"])


def reached(outputs: Iterable[Value], *, through_stops: bool = True) -> set[Value]:
    """The values that `outputs` depend on through floats alone, and the float values of `outputs` themselves.

    through_stops: Whether to follow the operands of StopGradient, too.
    """
    found: set[Value] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        if value not in found and differentiable(value):
            found.add(value)
            node = value.node
            if node is not None and (through_stops or node.op.name != "StopGradient"):
                pending += node.operands
    return found


class _Sweep:
    """One backward pass over the nodes between `wrt` and `outputs`. It stops at the values of `boundary`."""

    def __init__(
        self,
        outputs: Sequence[Value],
        seeds: Sequence[Value],
        wrt: Sequence[Value],
        boundary: Iterable[Value] = (),
        templates: Templates | None = None,
    ):
        self.wrt = tuple(wrt)
        self.templates = templates or Templates()
        self.pending: dict[Value, list[Value]] = {}
        for value, seed in zip(outputs, seeds, strict=True):
            self.pending.setdefault(value, []).append(seed)
        self.nodes = topological(outputs, stop=boundary)
        self.active = self._depending_on(wrt)
        self.totals: dict[Value, Value] = {}
        # Values without a known gradient: an operator without a rule reads them, perhaps indirectly. The sweep visits
        # their nodes only to report further operators without a rule.
        self.tainted: set[Value] = set()
        self.missing: list[Node] = []
        # Forward nodes of control flow, with the additional results that the backward pass reads.
        self.extended: list[Node] = []

    def _depending_on(self, wrt: Sequence[Value]) -> set[Value]:
        active = set(wrt)
        for node in self.nodes:
            if not active.isdisjoint(node.inputs):
                active.update(v for v in node.outputs if differentiable(v))
        return active

    def run(self) -> list[Value | None]:
        for node in reversed(self.nodes):
            if not self.active.isdisjoint(node.inputs):
                with _gradient_of(node):
                    self._visit(node)
        if self.missing:
            raise MissingGradient(_missing_message(self.missing))
        return [self._total(v) for v in self.wrt]

    def _total(self, value: Value) -> Value | None:
        if value not in self.totals:
            parts = self.pending.pop(value, None)
            if not parts:
                return None
            tensors = isinstance(value.type, TensorType)
            total = parts[0] if len(parts) == 1 else (F.sum if tensors else F.add_n)(*parts)
            if tensors and total.rank is None and value.rank is not None:
                # A result of control flow may have no known rank, but gradient rules need one.
                total = F.reshape(total, F.shape(value))
            self.totals[value] = total
        return self.totals[value]

    def _visit(self, node: Node) -> None:
        gradients = [self._total(v) for v in node.outputs]
        tainted = bool(self.tainted) and not self.tainted.isdisjoint(node.outputs)
        if not tainted and gradients.count(None) == len(gradients):
            return
        op = operator(node, Op)
        control = CONTROL_FLOW.get(op.name) if op.domain == "" else None
        if op.grad is None and op.expand is None and control is None:
            self.missing.append(node)
            tainted = True
        if tainted:
            self.tainted.update(v for v in node.inputs if v is not None and v in self.active)
            return
        try:
            if control is not None:
                if is_undetermined(node):
                    raise UsageError(
                        "its subgraphs draw random numbers, but have no random state: use gk.grad, or call bind_rng "
                        "of graphkit.passes.training.randomness"
                    )
                results, extended = control(node, gradients, self.active, _differentiate)
                self.extended += [] if extended is None else [extended]
                contributions: Iterable[tuple[Value | None, Value | None]]
                contributions = self._checked(node, zip(node.inputs, results, strict=True))
            elif op.grad is not None:
                contributions = self._rule(node, gradients)
            else:
                contributions = self._checked(node, self._through_expansion(node, gradients))
        except MissingGradient as error:
            place = "expansion" if control is None else "subgraph"
            raise MissingGradient(f"{error}\n  inside the {place} of {node.describe()}") from None
        except GraphkitError as error:
            raise type(error)(f"gradient of {node.describe()}: {error}") from error
        for value, contribution in contributions:
            if contribution is not None and value is not None:
                self.pending.setdefault(value, []).append(contribution)

    def _checked(
        self, node: Node, contributions: Iterable[tuple[Value | None, Value | None]]
    ) -> list[tuple[Value | None, Value | None]]:
        """Return the contributions to values that need a gradient, each in the form of its value."""
        found: list[tuple[Value | None, Value | None]] = []
        for value, contribution in contributions:
            if contribution is not None and value is not None and value in self.active:
                contribution = _in_form_of(value, contribution)
                _check_type(node, value, contribution)
                found.append((value, contribution))
        return found

    def _rule(self, node: Node, gradients: Sequence[Value | None]) -> Iterable[tuple[Value | None, Value | None]]:
        boundary = (*node.inputs, *node.outputs, *gradients)
        key = self.templates.key(node, gradients, self.active)
        template = None if key is None else self.templates.find(key)
        if template is not None:
            return zip(node.inputs, template.copied(boundary), strict=True)
        first = next_serial()
        result = operator(node, Op).grad(node, *gradients)
        if not isinstance(result, (tuple, list)):
            result = (result,) + (None,) * (len(node.inputs) - 1)
        if key is not None:
            needed = [None if v not in self.active else r for v, r in zip(node.inputs, result, strict=True)]
            self.templates.add(key, boundary, needed, first)
        return self._checked(node, zip(node.inputs, result, strict=True))

    def _through_expansion(
        self, node: Node, gradients: Sequence[Value | None]
    ) -> Iterable[tuple[Value | None, Value | None]]:
        op = operator(node, Op)
        with context.expanding(maker=f"the expansion of {brief(node)}"):
            expanded = op.expand(*node.inputs)
        outputs = expanded if isinstance(expanded, tuple) else (expanded,)
        reached = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
        wrt = list(dict.fromkeys(v for v in node.inputs if v is not None and v in self.active))
        inner = _Sweep(
            [y for y, _ in reached],
            [g for _, g in reached],
            wrt,
            boundary=[v for v in node.inputs if v is not None],
            templates=self.templates,
        )
        return list(zip(wrt, inner.run(), strict=True))


def _differentiate(
    outputs: Sequence[Value], seeds: Sequence[Value], wrt: Sequence[Value]
) -> tuple[list[Value | None], list[Node]]:
    sweep = _Sweep(outputs, seeds, wrt)
    return sweep.run(), sweep.extended


def _gradient_of(node: Node) -> context.entered:
    """Return a context manager: nodes made in it count as the gradient of `node`, and join its group (`ctx_group`)."""
    scope = context.current()
    group = node.meta.get(context.GROUP)
    attrs = scope.attrs if group is None else {**scope.attrs, context.GROUP: group}
    maker = f"the gradient of {brief(node)}"
    return context.entered(context.Scope(scope.prefix, attrs, maker, True, scope.made))


def _check_type(node: Node, value: Value, gradient_value: Value) -> None:
    expected, actual = value.type, gradient_value.type
    while not isinstance(expected, TensorType) and type(expected) is type(actual):
        expected, actual = expected.element, actual.element
    if not isinstance(expected, TensorType) or not isinstance(actual, TensorType):
        raise GraphkitError(
            f"the gradient rule of {node.op.name} gives {gradient_value.type} for an operand of type {value.type} "
            f"({node.describe()})"
        )
    same_rank = expected.rank is None or actual.rank is None or expected.rank == actual.rank
    if (
        actual.dtype is not expected.dtype
        or not same_rank
        or (
            expected.shape is not None
            and actual.shape is not None
            and not all(dims.may_equal(a, b) for a, b in zip(expected.shape, actual.shape, strict=True))
        )
    ):
        raise GraphkitError(
            f"the gradient rule of {node.op.name} gives {actual} for an operand of type {expected} ({node.describe()})"
        )


def _missing_message(nodes: Sequence[Node]) -> str:
    by_operator: dict[str, list[str]] = {}
    for node in reversed(nodes):
        domain = f"{node.op.domain}." if node.op.domain else ""
        by_operator.setdefault(domain + node.op.name, []).append(label(node))
    lines = [f"  {operator}: node {', '.join(names)}" for operator, names in by_operator.items()]
    advice = (
        "If you need no gradient through these nodes, put gk.stop_gradient behind them. An operator of your own needs "
        "a method grad or expand (docs/operators.md)"
    )
    return "\n".join(["no gradient rule for", *lines, advice])


def _in_form_of(value: Value, gradient_value: Value) -> Value:
    """Wrap a gradient in an optional, or unwrap it, to match the type of `value`: control flow may mix the two."""
    wanted, given = (isinstance(v.type, OptionalType) for v in (value, gradient_value))
    if wanted == given:
        return gradient_value
    made: Value = F.optional(gradient_value) if wanted else F.optional_get_element(gradient_value)
    return made


def _ones_like(value: Value) -> Value:
    scalar = F.constant(value=np.asarray(1, dtype=value.dtype.numpy))
    return scalar if value.shape == () else F.expand(scalar, F.shape(value))
