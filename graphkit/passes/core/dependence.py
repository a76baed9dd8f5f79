"""Which values depend on the elements of other values, not only on their shapes."""

from __future__ import annotations

from collections.abc import Iterable

from graphkit.ir.graph import Node, Value, topological
from graphkit.ops.control.views import IfView, LoopView, is_if
from graphkit.passes.core.sweep import elements_read, is_control


def dependent_on_elements(results: Iterable[Value], sources: Iterable[Value]) -> set[Value]:
    """Return the sources, and all values between them and the results whose elements depend on those of the sources."""
    active = set(sources)
    for node in topological(results):
        if not active.isdisjoint(elements_read(node)):
            active.update(_dependent_results(node, active) if is_control(node) else node.outputs)
    return active


def _dependent_results(node: Node, active: set[Value]) -> Iterable[Value]:
    """Return the results of an If, Loop or Scan that depend on the elements of active operands."""
    if not is_if(node):
        return _of_loop(LoopView.of(node), active)
    view = IfView.of(node)
    if view.condition in active:
        return node.outputs
    found: set[int] = set()
    for branch in view.branches:
        sources = [v for v, outer in zip(branch.inputs, view.captures, strict=True) if outer in active]
        inside = dependent_on_elements(branch.outputs, sources)
        found.update(i for i, v in enumerate(branch.outputs) if v in inside)
    return [node.outputs[i] for i in found]


def _of_loop(view: LoopView, active: set[Value]) -> Iterable[Value]:
    body, outputs = view.body, view.node.outputs
    if any(v in active for v in view.operands[: view.lead] if v is not None):
        return outputs
    sources = {v for v, outer in zip(body.inputs, view.operands, strict=True) if outer is not None and outer in active}
    while True:
        inside = dependent_on_elements(body.outputs, sources)
        if any(v in inside for v in body.outputs[: view.flag]):
            return outputs
        results = [i for i, v in enumerate(body.outputs[view.flag :]) if v in inside]
        # A state that depends on them does so at the begin of the next iteration, too.
        more = {body.inputs[view.lead + i] for i in results if i < view.state_count} - sources
        if not more:
            return [outputs[i] for i in results]
        sources |= more
